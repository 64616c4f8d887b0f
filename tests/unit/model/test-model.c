/* The model: every allowed and every forbidden move, fencing, invariants, rows, roles. */
#include "base/cleanup.h"
#include "base/util.h"
#include "model/node.h"
#include "model/pool.h"
#include "model/session.h"
#include "model/task-row.h"
#include "model/tenant.h"

#include <criterion/criterion.h>

static struct vg_task *make_task(void) {
    Vg__Pb__TaskSpec *spec = malloc(sizeof *spec);
    vg__pb__task_spec__init(spec);
    struct vg_task *t = vg_task_new(7, "ann", "vision", spec, false, 1000);
    cr_assert(t);
    return t;
}

/* Brings a task to a state by allowed moves only. */
static struct vg_task *task_in(enum vg_task_state s) {
    Vg__Pb__TaskSpec *spec = malloc(sizeof *spec);
    vg__pb__task_spec__init(spec);
    struct vg_task *t = vg_task_new(7, "ann", "vision", spec, s == VG_TASK_BLOCKED, 1000);
    if (s == VG_TASK_BLOCKED || s == VG_TASK_QUEUED)
        return t;
    cr_assert_eq(vg_task_place(t, 5, 3), 0);
    if (s != VG_TASK_STARTING)
        cr_assert_eq(vg_task_move(t, VG_TASK_RUNNING, 2000, NULL), 0);
    if (vg_task_state_final(s))
        cr_assert_eq(vg_task_move(t, s, 3000, "over"), 0);
    cr_assert_eq(t->state, s);
    return t;
}

/* The design's picture, written a second time on purpose: the table must agree with it. */
static const char *const allowed[VG_TASK_STATES] = {
    [VG_TASK_BLOCKED] = " queued failed cancelled ",
    [VG_TASK_QUEUED] = " starting failed cancelled ",
    [VG_TASK_STARTING] = " queued running succeeded failed cancelled ",
    [VG_TASK_RUNNING] = " queued succeeded failed cancelled ",
    [VG_TASK_SUCCEEDED] = "",
    [VG_TASK_FAILED] = "",
    [VG_TASK_CANCELLED] = "",
};

Test(task, every_move_is_allowed_or_refused_as_designed) {
    for (unsigned from = 0; from < VG_TASK_STATES; from++)
        for (unsigned to = 0; to < VG_TASK_STATES; to++) {
            char word[32];
            snprintf(word, sizeof word, " %s ", vg_task_state_name(to));
            bool may = strstr(allowed[from], word) != NULL;
            struct vg_task *t = task_in(from);
            int r =
                to == VG_TASK_STARTING ? vg_task_place(t, 9, 0) : vg_task_move(t, to, 4000, "x");
            cr_assert_eq(r, may ? 0 : -EINVAL, "%s -> %s", vg_task_state_name(from), word);
            cr_assert_eq(t->state, may ? to : from);
            cr_assert_null(vg_task_check(t), "%s -> %s: %s", vg_task_state_name(from), word,
                           vg_task_check(t));
            vg_task_free(t);
        }
}

Test(task, starting_is_reached_by_place_alone) {
    struct vg_task *t = make_task();
    cr_assert_eq(vg_task_move(t, VG_TASK_STARTING, 1, NULL), -EINVAL);
    cr_assert_eq(vg_task_place(t, 0, 0), -EINVAL);
    vg_task_free(t);
}

Test(task, only_the_current_attempt_on_its_node_is_believed) {
    struct vg_task *t = make_task();
    cr_assert_not(vg_task_is_current(t, 0, 0));
    vg_task_place(t, 5, 0);
    cr_assert(vg_task_is_current(t, 1, 5));
    cr_assert_not(vg_task_is_current(t, 1, 6));
    cr_assert_not(vg_task_is_current(t, 2, 5));
    vg_task_move(t, VG_TASK_QUEUED, 10, "lost");
    cr_assert_eq(t->attempt.state, VG_ATTEMPT_LOST);
    cr_assert_not(vg_task_is_current(t, 1, 5));
    vg_task_place(t, 5, 0);
    cr_assert(vg_task_is_current(t, 2, 5));
    cr_assert_not(vg_task_is_current(t, 1, 5));
    vg_task_free(t);
}

Test(task, a_task_to_be_cancelled_never_goes_back_to_the_queue) {
    struct vg_task *t = task_in(VG_TASK_RUNNING);
    t->cancel = true;
    cr_assert_eq(vg_task_move(t, VG_TASK_QUEUED, 10, NULL), -EINVAL);
    cr_assert_eq(vg_task_end(t, 143, VG_OK, 10, "cancelled by ann"), 0);
    cr_assert_eq(t->state, VG_TASK_CANCELLED);
    cr_assert_eq(t->status, 143);
    vg_task_free(t);
}

Test(task, the_end_follows_from_the_status) {
    const struct {
        int status;
        enum vg_reason reason;
        enum vg_task_state state;
    } table[] = {
        {0, VG_OK, VG_TASK_SUCCEEDED}, {1, VG_OK, VG_TASK_FAILED}, {0, VG_LOST, VG_TASK_FAILED}};
    for (size_t i = 0; i < VG_COUNT(table); i++) {
        struct vg_task *t = task_in(VG_TASK_RUNNING);
        cr_assert_eq(vg_task_end(t, table[i].status, table[i].reason, 10, NULL), 0);
        cr_assert_eq(t->state, table[i].state);
        cr_assert_eq(vg_task_end(t, 0, VG_OK, 11, NULL), -EINVAL);
        vg_task_free(t);
    }
}

Test(task, check_can_fail) {
    struct vg_task *t = make_task();
    cr_assert_null(vg_task_check(t));
    t->attempt.node = 3;
    cr_assert(vg_task_check(t));
    vg_task_free(t);
}

Test(task, a_row_carries_everything_there_and_back) {
    for (unsigned state = 0; state < VG_TASK_STATES; state++) {
        struct vg_task *t = task_in(state), *back;
        struct vg_task_pack pack = {0};
        struct vg_task_row row;
        char *labels[] = {"a=1", "b=2"};
        t->spec->name = strdup("train");
        t->spec->n_label = 2;
        t->spec->label = malloc(2 * sizeof(char *));
        t->spec->label[0] = strdup(labels[0]);
        t->spec->label[1] = strdup(labels[1]);
        t->grant = (struct vg_res){.cpu_milli = 1500, .mem_bytes = 1 << 30, .gpus = 2};
        t->durable = true;
        t->out_bytes = 99;
        cr_assert_eq(vg_task_to_row(t, true, &pack, &row), 0);
        cr_assert_str_eq(row.labels, "a=1\nb=2\n");
        if (state == VG_TASK_RUNNING)
            cr_assert_str_eq(row.gpus, "0,1");
        cr_assert_eq(vg_task_from_row(&row, NULL, &back), 0, "%s", vg_task_state_name(state));
        cr_assert_eq(back->state, t->state);
        cr_assert_eq(back->attempt.number, t->attempt.number);
        cr_assert_eq(back->attempt.node, t->attempt.node);
        cr_assert_eq(back->attempt.state, t->attempt.state);
        cr_assert_eq(back->gpus, t->gpus);
        cr_assert_eq(back->grant.mem_bytes, 1 << 30);
        cr_assert_str_eq(vg_task_name(back), "train");
        cr_assert(back->durable && back->out_bytes == 99);
        cr_assert_eq(back->ended_usec, t->ended_usec);
        row.state = "asleep";
        cr_assert_eq(vg_task_from_row(&row, NULL, &back), -EBADMSG);
        vg_task_free(back);
        vg_task_free(t);
        vg_task_pack_done(&pack);
    }
}

Test(task, a_share_is_part_of_the_card_that_was_found_and_goes_with_the_attempt) {
    struct vg_task *t = make_task(), *back;
    struct vg_task_pack pack = {0};
    struct vg_task_row row;
    t->grant = (struct vg_res){.cpu_milli = 500, .gpu_milli = 300};
    t->spec->has_gpu_hard = t->spec->gpu_hard = 1;
    cr_assert_eq(vg_task_held(t).gpu_mem_bytes, 0, "no card yet");
    cr_assert_eq(vg_task_place(t, 5, 1 << 3), 0);
    vg_task_share(t, VG_CLASS_SHARED, 80ULL << 30);
    struct vg_res held = vg_task_held(t);
    cr_assert(held.gpu_milli == 300 && held.gpu_mem_bytes == (80ULL << 30) * 3 / 10);
    cr_assert_eq(held.cpu_milli, 500);
    cr_assert_eq(vg_task_move(t, VG_TASK_RUNNING, 1000000, NULL), 0);
    cr_assert_eq(vg_task_gpu_held(t, 1000100), 300 * 100);
    vg_task_reshare(t, 450, 8ULL << 30, false, 1000100);
    cr_assert_eq(vg_task_gpu_held(t, 1000110), 300 * 100 + 450 * 10);
    vg_task_reshare(t, 100, 8ULL << 30, true, 1000200);
    vg_task_reshare(t, 450, 8ULL << 30, true, 1000150); /* a clock that went back adds nothing */
    cr_assert_eq(vg_task_gpu_held(t, 1000150), 300 * 100 + 450 * 100);
    cr_assert_eq(vg_task_to_row(t, true, &pack, &row), 0);
    cr_assert_str_eq(row.gpus, "3 share 450 8589934592 shared hard 1000200 75000");
    cr_assert_eq(vg_task_from_row(&row, NULL, &back), 0);
    cr_assert(back->gpus == 8 && back->grant.gpu_milli == 300);
    cr_assert(back->share.milli == 450 && back->share.mem_bytes == 8ULL << 30 && back->share.hard &&
              back->share.class == VG_CLASS_SHARED);
    cr_assert_eq(vg_task_gpu_held(back, 1000300), 75000 + 450 * 100);
    vg_task_free(back);
    static const char *const bad[] = {"3 share", "3 share 0 1 shared soft",
                                      "3 share 1000 1 mps soft", "3 share 1 1 best soft",
                                      "3 shape 1 1 shared soft"};
    for (size_t i = 0; i < VG_COUNT(bad); i++) {
        row.gpus = bad[i];
        cr_assert_eq(vg_task_from_row(&row, NULL, &back), -EBADMSG, "%s", bad[i]);
    }
    vg_task_pack_done(&pack);
    cr_assert_eq(vg_task_move(t, VG_TASK_QUEUED, 9, "its node left"), 0);
    cr_assert(t->share.milli == 0 && vg_task_held(t).gpu_milli == 300);
    vg_task_free(t);
}

Test(node, moves_follow_the_table) {
    static const char *const may[VG_NODE_STATES] = {
        [VG_NODE_JOINING] = " ready draining lost quarantined ",
        [VG_NODE_READY] = " draining lost quarantined ",
        [VG_NODE_DRAINING] = " ready lost quarantined ",
        [VG_NODE_LOST] = " ready draining quarantined ",
        [VG_NODE_QUARANTINED] = " ready draining lost ",
    };
    for (unsigned from = 0; from < VG_NODE_STATES; from++)
        for (unsigned to = 0; to < VG_NODE_STATES; to++) {
            struct vg_node *n = vg_node_new(1, "n1");
            char word[32];
            snprintf(word, sizeof word, " %s ", vg_node_state_name(to));
            if (from != VG_NODE_JOINING)
                cr_assert_eq(vg_node_move(n, from, 1), 0);
            bool yes = strstr(may[from], word) != NULL;
            cr_assert_eq(vg_node_move(n, to, 5), yes ? 0 : -EINVAL, "%u ->%s", from, word);
            cr_assert_eq(n->state, yes ? to : from);
            vg_node_free(n);
        }
}

Test(node, is_called_lost_only_after_lease_and_margin) {
    struct vg_node *n = vg_node_new(1, "n1");
    vg_node_renew(n, 1000, 600);
    cr_assert_not(vg_node_lease_over(n, 1600, 600));
    cr_assert_not(vg_node_lease_over(n, 1660, 600));
    cr_assert(vg_node_lease_over(n, 1661, 600));
    vg_node_free(n);
}

Test(session, sticks_to_its_node_and_expires_after_its_keep_time) {
    struct vg_session *s = vg_session_new("ann", "lab", "default", 100, 0);
    cr_assert_str_eq(s->key, "ann/lab");
    cr_assert_eq(vg_session_leave(s, 1), -EINVAL);
    cr_assert_eq(vg_session_enter(s, 5, 1), 0);
    cr_assert_eq(vg_session_enter(s, 6, 1), -EINVAL);
    cr_assert_eq(vg_session_enter(s, 5, 1), 0);
    cr_assert_eq(vg_session_leave(s, 2), 0);
    cr_assert_eq(s->state, VG_SESSION_ACTIVE);
    cr_assert_eq(vg_session_leave(s, 10), 0);
    cr_assert_eq(s->state, VG_SESSION_IDLE);
    cr_assert_not(vg_session_expired(s, 109));
    cr_assert(vg_session_expired(s, 110));
    cr_assert_eq(vg_session_enter(s, 5, 50), 0);
    cr_assert_not(vg_session_expired(s, 1000));
    cr_assert_eq(vg_session_move(s, VG_SESSION_ENDED, 60), 0);
    cr_assert_eq(vg_session_enter(s, 5, 61), -EINVAL);
    vg_session_free(s);
}

Test(session, moves_follow_the_table) {
    static const unsigned rows[VG_SESSION_STATES] = {
        [VG_SESSION_NEW] = 1u << VG_SESSION_ACTIVE | 1u << VG_SESSION_ENDED,
        [VG_SESSION_ACTIVE] = 1u << VG_SESSION_IDLE | 1u << VG_SESSION_ENDED,
        [VG_SESSION_IDLE] = 1u << VG_SESSION_ACTIVE | 1u << VG_SESSION_ENDED,
    };
    for (unsigned from = 0; from < VG_SESSION_STATES; from++)
        for (unsigned to = 0; to < VG_SESSION_STATES; to++)
            cr_assert_eq(vg_session_may_move(from, to), (rows[from] >> to & 1) != 0, "%u %u", from,
                         to);
}

Test(tenant, names_slots_and_uids_are_unique) {
    struct vg_tenants t = {0};
    struct vg_err err = VG_ERR_INIT;
    struct vg_user *u;
    cr_assert_eq(
        vg_tenants_add_user(&t, "ann", "vision", VG_ROLE_MEMBER, 1000, 1000, 0, 1, &u, &err),
        -ENOENT);
    cr_assert_eq(err.reason, VG_NOT_FOUND);
    cr_assert_eq(vg_tenants_add_team(&t, "org", "vision", 1, NULL, &err), 0);
    cr_assert_eq(vg_tenants_add_team(&t, "org", "vision", 1, NULL, &err), -EEXIST);
    cr_assert_eq(
        vg_tenants_add_user(&t, "ann", "vision", VG_ROLE_MEMBER, 1000, 1000, 0, 1, &u, &err), 0);
    cr_assert_eq(u->slot, 1);
    cr_assert_eq(vg_tenants_add_user(&t, "ann", "vision", VG_ROLE_MEMBER, 1, 1, 0, 1, &u, &err),
                 -EEXIST);
    cr_assert_eq(vg_tenants_add_user(&t, "bob", "vision", VG_ROLE_MEMBER, 1000, 1, 0, 1, &u, &err),
                 -EEXIST);
    cr_assert_eq(vg_tenants_add_user(&t, "bob", "vision", VG_ROLE_MEMBER, -1, -1, 1, 1, &u, &err),
                 -EEXIST);
    cr_assert_eq(vg_tenants_add_user(&t, "../b", "vision", VG_ROLE_MEMBER, -1, -1, 0, 1, &u, &err),
                 -EINVAL);
    cr_assert_eq(vg_tenants_add_user(&t, "bob", "vision", VG_ROLE_LEAD, -1, -1, 0, 1, &u, &err), 0);
    cr_assert_eq(vg_tenants_by_uid(&t, 1000), vg_tenants_user(&t, "ann"));
    cr_assert_null(vg_tenants_by_uid(&t, -1));
    cr_assert_eq(vg_tenants_remove_user(&t, "ann"), 0);
    cr_assert_null(vg_tenants_by_uid(&t, 1000));
    cr_assert_eq(vg_tenants_remove_user(&t, "ann"), -ENOENT);
    vg_tenants_done(&t);
}

Test(tenant, teams_and_organisations_move_and_go_when_they_are_empty) {
    struct vg_tenants t = {0};
    struct vg_err err = VG_ERR_INIT;
    struct vg_team *vision, *speech;
    struct vg_user *u;
    cr_assert_eq(vg_tenants_add_org(&t, "a b", 1, &err), -EINVAL);
    cr_assert_eq(vg_tenants_add_org(&t, "acme", 1, &err), 0);
    cr_assert_eq(vg_tenants_add_org(&t, "acme", 1, &err), -EEXIST);
    cr_assert_eq(vg_tenants_add_team(&t, "acme", "vision", 1, &vision, &err), 0);
    cr_assert_eq(vg_tenants_add_team(&t, "new", "speech", 1, &speech, &err), 0);
    cr_assert_not_null(vg_tenants_org(&t, "new"), "made with its first team");
    cr_assert_eq(vg_tenants_add_user(&t, "ann", "vision", VG_ROLE_MEMBER, -1, -1, 0, 1, &u, &err),
                 0);
    cr_assert_eq(vg_tenants_remove_team(&t, "vision"), -EBUSY);
    cr_assert_eq(vg_tenants_remove_org(&t, "acme"), -EBUSY);
    vg_tenants_move_user(u, speech);
    cr_assert(vision->users == 0 && speech->users == 1 && u->team == speech);
    cr_assert_eq(vg_tenants_move_team(&t, vision, "nowhere"), -ENOENT);
    cr_assert_eq(vg_tenants_move_team(&t, vision, "new"), 0);
    cr_assert_str_eq(vision->org, "new");
    cr_assert_eq(vg_tenants_remove_org(&t, "acme"), 0);
    cr_assert_eq(vg_tenants_remove_org(&t, "acme"), -ENOENT);
    cr_assert_eq(vg_tenants_remove_team(&t, "vision"), 0);
    cr_assert_eq(vg_tenants_remove_team(&t, "vision"), -ENOENT);
    cr_assert_eq(vg_tenants_remove_user(&t, "ann"), 0);
    cr_assert_eq(speech->users, 0);
    vg_tenants_done(&t);
}

Test(tenant, a_uid_belongs_to_one) {
    struct vg_tenants t = {0};
    struct vg_err err = VG_ERR_INIT;
    struct vg_user *ann, *bob;
    vg_tenants_add_team(&t, "org", "vision", 1, NULL, &err);
    vg_tenants_add_user(&t, "ann", "vision", VG_ROLE_MEMBER, 7, 7, 0, 1, &ann, &err);
    vg_tenants_add_user(&t, "bob", "vision", VG_ROLE_MEMBER, -1, -1, 0, 1, &bob, &err);
    cr_assert_eq(vg_tenants_bind_user(&t, bob, 7, 7), -EEXIST);
    cr_assert_eq(vg_tenants_bind_user(&t, ann, 8, 9), 0);
    cr_assert(vg_tenants_by_uid(&t, 8) == ann && !vg_tenants_by_uid(&t, 7) && ann->gid == 9);
    cr_assert_eq(vg_tenants_bind_user(&t, bob, 7, 7), 0);
    cr_assert_eq(vg_user_set_text(&bob->email, "bob@example.org"), 0);
    cr_assert_eq(vg_user_set_text(&bob->email, ""), 0);
    cr_assert_null(bob->email);
    vg_tenants_done(&t);
}

Test(tenant, scopes_are_words) {
    char *all[] = {"read", "run", "secrets", "admin"}, *wrong[] = {"run", "Admin"};
    unsigned bits = 0;
    cr_assert_eq(vg_scope_parse(all, 4, &bits), 0);
    cr_assert_eq(bits, VG_SCOPE_READ | VG_SCOPE_RUN | VG_SCOPE_SECRETS | VG_SCOPE_ADMIN);
    cr_assert_eq(vg_scope_parse(NULL, 0, &bits), 0);
    cr_assert_eq(bits, VG_SCOPE_ALL);
    cr_assert_eq(vg_scope_parse(wrong, 2, &bits), -EINVAL);
    for (unsigned i = 0; i < 4; i++)
        cr_assert_str_eq(vg_scope_name(i), all[i]);
    cr_assert_null(vg_scope_name(4));
    cr_assert_str_eq(vg_act_name(VG_ACT_MANAGE_USERS), "manage-users");
    cr_assert_null(vg_act_name(1u << 31));
}

Test(tenant, roles_reach_as_far_as_the_table_says) {
    struct vg_team vision = {.name = "vision"};
    struct vg_user u = {.name = "ann", .team = &vision};
    const struct {
        enum vg_role role;
        bool see_mate, end_mate, see_other, end_other, run;
    } table[] = {
        {VG_ROLE_VIEWER, true, false, false, false, false},
        {VG_ROLE_MEMBER, true, false, false, false, true},
        {VG_ROLE_LEAD, true, true, false, false, true},
        {VG_ROLE_ADMIN, true, true, true, true, true},
    };
    for (size_t i = 0; i < VG_COUNT(table); i++) {
        u.role = table[i].role;
        cr_assert(vg_user_may_see(&u, "ann", "vision"));
        cr_assert_eq(vg_user_may_see(&u, "bob", "vision"), table[i].see_mate);
        cr_assert_eq(vg_user_may_end(&u, "bob", "vision"), table[i].end_mate);
        cr_assert_eq(vg_user_may_see(&u, "eve", "speech"), table[i].see_other);
        cr_assert_eq(vg_user_may_end(&u, "eve", "speech"), table[i].end_other);
        cr_assert_eq(vg_user_may(&u, VG_ACT_RUN), table[i].run);
    }
}

Test(pool, grants_the_shape_and_refuses_more_than_max) {
    struct vg_pool_conf p = {.name = "a100-1",
                             .shape = {.cpu_milli = 2000, .gpus = 1},
                             .max = {.cpu_milli = 4000, .gpus = 2, .mem_bytes = 1 << 20}};
    struct vg_conf c = {.pool = &p, .n_pools = 1};
    struct vg_err err = VG_ERR_INIT;
    struct vg_res r;
    cr_assert_eq(vg_pool_grant(&c, &p, NULL, &r, &err), 0);
    cr_assert(r.cpu_milli == 2000 && r.gpus == 1 && r.mem_bytes == 0);
    Vg__Pb__Resources want = vg_res_to_pb((struct vg_res){.gpus = 3});
    cr_assert_eq(vg_pool_grant(&c, &p, &want, &r, &err), -EINVAL);
    cr_assert_str_eq(err.msg, "pool 'a100-1' gives a task at most 2 GPUs (asked: 3)");
    want = vg_res_to_pb((struct vg_res){.mem_bytes = 2 << 20});
    cr_assert_eq(vg_pool_grant(&c, &p, &want, &r, &err), -EINVAL);
    want = vg_res_to_pb((struct vg_res){.gpu_milli = 250});
    cr_assert_eq(vg_pool_grant(&c, &p, &want, &r, &err), -EINVAL);
    cr_assert_str_eq(err.msg, "pool 'a100-1' gives whole GPUs only (class dedicated): ask for "
                              "--gpus 1");
    p.max_time_usec = 50;
    cr_assert_eq(vg_pool_time_usec(&p, 0), 50);
    cr_assert_eq(vg_pool_time_usec(&p, 20), 20);
    cr_assert_eq(vg_pool_time_usec(&p, 60), 50);
}

Test(pool, gives_parts_of_a_gpu_or_whole_ones_and_says_who_gives_the_other) {
    struct vg_pool_conf p[] = {{.name = "a100", .max = {.gpus = 8}},
                               {.name = "small",
                                .class = VG_CLASS_SHARED,
                                .shape = {.gpu_milli = 250},
                                .max = {.gpu_milli = 500, .gpu_mem_bytes = 40ULL << 30}},
                               {.name = "cpu"}};
    struct vg_conf c = {.pool = p, .n_pools = VG_COUNT(p)};
    const struct {
        size_t pool;
        struct vg_res want, given;
        const char *refused;
    } table[] = {
        {1, {0}, {.gpu_milli = 250}, NULL},
        {1, {.gpu_milli = 500}, {.gpu_milli = 500}, NULL},
        {1, {.gpu_milli = 1}, {.gpu_milli = 1}, NULL},
        {1, {.gpu_mem_bytes = 8ULL << 30}, {.gpu_milli = 250, .gpu_mem_bytes = 8ULL << 30}, NULL},
        {0, {.gpus = 2, .gpu_mem_bytes = 8}, {.gpus = 2, .gpu_mem_bytes = 8}, NULL},
        {1, {.gpu_milli = 700}, {0}, "pool 'small' gives a task at most 0.5 of a GPU (asked: 0.7)"},
        {1,
         {.gpus = 1},
         {0},
         "pool 'small' gives parts of one GPU (class shared): ask for less than 1, such as --gpus "
         "0.5, or for whole GPUs in pool 'a100' or 'cpu'"},
        {1,
         {.gpu_mem_bytes = 41ULL << 30},
         {0},
         "pool 'small' gives a task at most 40 GiB of GPU memory (asked: 41 GiB)"},
        {0,
         {.gpu_milli = 300},
         {0},
         "pool 'a100' gives whole GPUs only (class dedicated): ask for --gpus 1, or for a share in "
         "pool 'small'"},
        {0, {.gpus = 9}, {0}, "pool 'a100' gives a task at most 8 GPUs (asked: 9)"},
        {2,
         {.gpu_mem_bytes = 1},
         {0},
         "--gpu-mem needs a GPU, and pool 'cpu' gives none that is not asked for: add --gpus"},
    };
    for (size_t i = 0; i < VG_COUNT(table); i++) {
        struct vg_err err = VG_ERR_INIT;
        struct vg_res r = {0};
        Vg__Pb__Resources want = vg_res_to_pb(table[i].want);
        int e = vg_pool_grant(&c, &p[table[i].pool], &want, &r, &err);
        cr_assert_eq(e, table[i].refused ? -EINVAL : 0, "%zu: %s", i, err.msg);
        if (table[i].refused)
            cr_assert_str_eq(err.msg, table[i].refused);
        else
            cr_assert(r.gpus == table[i].given.gpus && r.gpu_milli == table[i].given.gpu_milli &&
                          r.gpu_mem_bytes == table[i].given.gpu_mem_bytes,
                      "%zu", i);
    }
}

Test(pool, nodes_belong_by_the_model_of_their_gpus) {
    struct vg_pool_conf p = {.name = "fast"};
    char *models[] = {"H100", "a100"};
    struct vg_node *n = vg_node_new(1, "n");
    p.model = (struct vg_strings){.item = models, .n = 2};
    cr_assert_not(vg_node_in_pool(n, &p), "it has no GPU");
    n->gpu_model = strdup("NVIDIA A100-SXM4-80GB");
    cr_assert(vg_node_in_pool(n, &p));
    vg_node_free(n);
}

Test(pool, an_unknown_name_gets_a_suggestion) {
    struct vg_conf c;
    struct vg_err err = VG_ERR_INIT;
    cr_assert_eq(vg_conf_default(&c), 0);
    cr_assert(vg_pool_find(&c, NULL, &err));
    cr_assert(vg_pool_find(&c, "", &err));
    cr_assert_null(vg_pool_find(&c, "defualt", &err));
    cr_assert_str_eq(err.msg, "there is no pool 'defualt'; did you mean 'default'? ('virga pool "
                              "list' shows all)");
    vg_conf_done(&c);
}
