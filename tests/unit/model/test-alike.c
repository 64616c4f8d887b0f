/* Tasks that have much in common: kept once, read as before, and nothing is left when they go. */
#include "base/cleanup.h"
#include "model/alike.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static ProtobufCBinaryData bytes(const char *text) {
    return (ProtobufCBinaryData){.data = (uint8_t *)strdup(text), .len = strlen(text)};
}

/* A task of this user with two variables, the second of which says which. */
static struct vg_task *make(uint64_t id, const char *user, int which) {
    char text[32];
    Vg__Pb__TaskSpec *spec = malloc(sizeof *spec);
    Vg__Pb__Identity *who = malloc(sizeof *who);
    vg__pb__task_spec__init(spec);
    vg__pb__identity__init(who);
    snprintf(text, sizeof text, "RUN=%d", which);
    spec->name = strdup("task");
    spec->n_env = 2;
    spec->env = malloc(2 * sizeof *spec->env);
    spec->env[0] = bytes("PATH=/bin");
    spec->env[1] = bytes(text);
    spec->n_rlimit = 1;
    spec->rlimit = malloc(sizeof *spec->rlimit);
    spec->rlimit[0] = malloc(sizeof **spec->rlimit);
    vg__pb__rlimit__init(spec->rlimit[0]);
    spec->rlimit[0]->has_soft = 1;
    spec->rlimit[0]->soft = 77;
    spec->has_cwd = 1;
    spec->cwd = bytes("/work");
    spec->client_host = strdup("here");
    who->user = strdup(user);
    struct vg_task *t = vg_task_new(id, user, "team", spec, false, 1);
    cr_assert(t);
    vg_task_set_who(t, who);
    return t;
}

static void check(const struct vg_task *t, const char *user, const char *run) {
    cr_expect_eq(t->spec->n_env, 2);
    cr_expect_eq(memcmp(t->spec->env[0].data, "PATH=/bin", t->spec->env[0].len), 0);
    cr_expect_eq(t->spec->env[1].len, strlen(run));
    cr_expect_eq(memcmp(t->spec->env[1].data, run, strlen(run)), 0);
    cr_expect_eq(t->spec->rlimit[0]->soft, 77);
    cr_expect_eq(memcmp(t->spec->cwd.data, "/work", 5), 0);
    cr_expect_str_eq(t->spec->client_host, "here");
    cr_expect_str_eq(t->spec->name, "task");
    cr_expect_str_eq(t->who->user, user);
}

Test(alike, the_same_is_kept_once_and_reads_as_before) {
    struct vg_alike pool = {0};
    struct vg_task *a = make(1, "ann", 1), *b = make(2, "ann", 1);
    vg_alike_share(&pool, a);
    vg_alike_share(&pool, b);
    vg_alike_share(&pool, b); /* once is enough */
    cr_expect_eq(a->spec->env, b->spec->env);
    cr_expect_eq(a->spec->rlimit, b->spec->rlimit);
    cr_expect_eq(a->who, b->who);
    cr_expect_neq(a->spec->name, b->spec->name);
    check(a, "ann", "RUN=1");
    vg_task_free(a);
    check(b, "ann", "RUN=1");
    vg_task_free(b);
    cr_expect_eq(vg_map_len(&pool.texts), 0);
    cr_expect_eq(vg_map_len(&pool.blocks), 0);
    vg_alike_done(&pool);
}

Test(alike, what_differs_stays_apart_and_costs_only_itself) {
    struct vg_alike pool = {0};
    struct vg_task *a = make(1, "ann", 1), *b = make(2, "ann", 2), *c = make(3, "bob", 1);
    vg_alike_share(&pool, a);
    vg_alike_share(&pool, b);
    vg_alike_share(&pool, c);
    cr_expect_eq(vg_map_len(&pool.blocks), 3);
    cr_expect_eq(vg_map_len(&pool.texts), 3, "PATH, and two of RUN");
    cr_expect_eq(a->spec->env[0].data, b->spec->env[0].data);
    cr_expect_neq(a->who, c->who);
    check(a, "ann", "RUN=1");
    check(b, "ann", "RUN=2");
    check(c, "bob", "RUN=1");
    vg_task_free(b);
    vg_task_free(a);
    check(c, "bob", "RUN=1");
    vg_task_free(c);
    cr_expect_eq(vg_map_len(&pool.texts), 0);
    vg_alike_done(&pool);
}

Test(alike, members_go_on_with_what_their_group_has) {
    struct vg_alike pool = {0};
    struct vg_task *g = make(1, "ann", 1);
    g->members = 2;
    vg_alike_share(&pool, g);
    struct vg_task *m = vg_task_new_member(g, 1);
    vg_alike_share(&pool, m);
    cr_expect_eq(m->spec, g->spec);
    vg_task_free(g);
    check(m, "ann", "RUN=1");
    vg_task_free(m);
    cr_expect_eq(vg_map_len(&pool.blocks), 0);
    vg_alike_done(&pool);
}

Test(alike, nothing_to_share_is_fine) {
    struct vg_alike pool = {0};
    Vg__Pb__TaskSpec *spec = malloc(sizeof *spec);
    vg__pb__task_spec__init(spec);
    struct vg_task *t = vg_task_new(1, "ann", "team", spec, false, 1);
    vg_alike_share(&pool, t);
    cr_expect_eq(t->spec->n_env, 0);
    cr_expect_null(t->who);
    vg_task_free(t);
    vg_alike_done(&pool);
}
