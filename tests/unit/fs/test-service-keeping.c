/* What the file service does not do for ever: look at every event, remember daemons that are dead,
   keep what they left on disk. */
#include "service-node.h"

#include <jansson.h>

static char *const ls[] = {"ls", NULL};
#define PROJECT "/home/me/project"

static struct world w;
static struct node n;

static void setup(void) {
    world_new(&w);
}
static void teardown(void) {
    node_done(&n);
    world_done(&w);
}
TestSuite(keeping, .init = setup, .fini = teardown, .timeout = 60);

static json_t *status(void) {
    char *text = vg_mirror_status(w.m);
    json_t *j = text ? json_loads(text, 0, NULL) : NULL;
    cr_assert(j);
    free(text);
    return j;
}

static long long rounds(void) {
    json_t *j = status();
    long long v = json_integer_value(json_object_get(j, "event_rounds"));
    json_decref(j);
    return v;
}

Test(keeping, a_file_that_is_written_all_the_time_is_looked_at_now_and_then) {
    put(&w, PROJECT "/log", "0");
    service_start(&w);
    begin(&w, &n, 1, ls, PROJECT, NULL);
    turn(&w, &n, n.n_runs == 1);
    node_hello(&n, 1, true);
    int invals = n.n_invals;
    long long before = rounds();
    uint64_t since = vg_now_usec();
    for (int i = 0; i < 500; i++) {
        put(&w, PROJECT "/log", "1");
        uv_run(&w.loop, UV_RUN_NOWAIT);
    }
    long long most = 4 + (long long)(vg_now_usec() - since) / 10000;
    cr_assert(rounds() - before <= most, "%lld rounds, not %lld", rounds() - before, most);
    turn(&w, &n, n.n_invals > invals); /* and yet the node hears of it */
    /* Whoever begins a command does not wait for the next look. */
    struct node next;
    put(&w, PROJECT "/other", "2");
    begin(&w, &next, 2, ls, PROJECT, NULL);
    turn(&w, &next, next.n_runs >= 1);
    cr_assert(next.n_invals + next.n_dirs > 0);
    node_done(&next);
}

static size_t nodes_known(void) {
    json_t *j = status();
    size_t count = json_array_size(json_object_get(j, "nodes"));
    json_decref(j);
    return count;
}

Test(keeping, a_daemon_that_another_took_the_place_of_is_forgotten) {
    service_start(&w);
    for (uint8_t life = 1; life <= 3; life++) {
        struct vg_mirror_task *t = begin(&w, &n, life, ls, PROJECT, NULL);
        turn(&w, &n, n.n_runs >= 1);
        node_hello(&n, life, true);
        node_get(&n, n.view_root[1], 0, 0);
        int dirs = n.n_dirs;
        turn(&w, &n, n.n_dirs > dirs);
        cr_assert_eq(nodes_known(), 1);
        vg_mirror_end(t);
        node_done(&n);
        n = (struct node){.fd = -1};
    }
}

static void put_state(const char *name, time_t age_s) {
    char path[200];
    snprintf(path, sizeof(path), "%s/state", w.dir);
    cr_assert(vg_mkdir_p(path, 0700) == 0);
    snprintf(path, sizeof(path), "%s/state/%s", w.dir, name);
    cr_assert(vg_write_file(path, "x", 1, 0600) == 0);
    time_t then = (time_t)(vg_wall_usec() / VG_USEC) - age_s;
    struct timespec ts[2] = {{.tv_sec = then}, {.tv_sec = then}};
    cr_assert(utimensat(AT_FDCWD, path, ts, 0) == 0);
}

static bool has_state(const char *name) {
    char path[200];
    snprintf(path, sizeof(path), "%s/state/%s", w.dir, name);
    return access(path, F_OK) == 0;
}

Test(keeping, what_dead_daemons_left_goes_after_a_while) {
    put_state("applied-00", 15 * 86400);
    put_state("left-00", 15 * 86400);
    put_state("applied-01", 13 * 86400);
    put_state("left-01", 13 * 86400);
    put_state("memo-of-mine", 400 * 86400);
    service_start(&w);
    cr_assert(!has_state("applied-00") && !has_state("left-00"));
    cr_assert(has_state("applied-01") && has_state("left-01") && has_state("memo-of-mine"));
}
