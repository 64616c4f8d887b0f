/* The engine's order: priorities, fair shares, quotas, limits, gangs, sessions; each property by
   hand. The seeded storms are in test-engine-storm.c. */
#include "engine-kit.h"

#include <criterion/criterion.h>

Test(engine, first_come_is_first_served) {
    struct vg_eng *e = kit_new(1, 1);
    for (uint64_t i = 5; i >= 1; i--)
        kit_submit(e, i, 1, 1);
    for (uint64_t i = 1; i <= 5; i++) {
        cr_assert_eq(kit_next(e), i);
        cr_assert_eq(kit_next(e), 0);
        vg_eng_release(e, i, VG_ENG_ENDED);
    }
    cr_assert_eq(vg_eng_queued(e), 0);
    vg_eng_free(e);
}

Test(engine, a_larger_priority_goes_first) {
    struct vg_eng *e = kit_new(1, 1);
    for (uint32_t i = 1; i <= 3; i++) {
        struct vg_eng_req r = kit_req(i, 1, 1);
        r.priority = i;
        kit_send(e, &r);
    }
    for (uint64_t i = 3; i >= 1; i--) {
        cr_assert_eq(kit_next(e), i);
        vg_eng_release(e, i, VG_ENG_ENDED);
    }
    vg_eng_free(e);
}

Test(engine, waiting_adds_to_the_priority) {
    struct vg_eng *e = kit_new(1, 1);
    struct vg_eng_conf c = vg_eng_conf_default();
    c.age_usec = 100;
    vg_eng_set_conf(e, &c);
    struct vg_eng_req old = kit_req(9, 1, 1), young = kit_req(1, 1, 1);
    young.priority = 3;
    kit_submit(e, 100, 1, 1); /* holds the GPU */
    cr_assert_eq(kit_next(e), 100);
    kit_send(e, &old);
    vg_eng_now(e, 500);
    kit_send(e, &young);
    vg_eng_release(e, 100, VG_ENG_ENDED);
    cr_assert_eq(kit_next(e), 9, "five steps older is worth more than three");
    c.age_usec = 0;
    kit_submit(e, 2, 1, 1);
    vg_eng_set_conf(e, &c);
    vg_eng_release(e, 9, VG_ENG_ENDED);
    cr_assert_eq(kit_next(e), 1);
    vg_eng_free(e);
}

Test(engine, tenants_take_turns_by_what_they_hold) {
    struct vg_eng *e = kit_new(1, 8);
    kit_tenant(e, 2, 0, 1);
    for (uint64_t i = 1; i <= 20; i++)
        kit_submit(e, i, 1, 1);
    for (uint64_t i = 21; i <= 40; i++)
        kit_submit(e, i, 2, 1);
    size_t second = 0;
    for (uint64_t t; (t = kit_next(e));)
        second += t > 20;
    cr_assert_eq(second, 4, "each holds half of 8, got %zu", second);
    vg_eng_free(e);
}

Test(engine, weights_divide_what_is_beyond_quotas) {
    struct vg_eng *e = kit_new(1, 8);
    kit_tenant(e, 2, 0, 3);
    for (uint64_t i = 1; i <= 40; i++)
        kit_submit(e, i, 1 + (i > 20), 1);
    size_t second = 0;
    for (uint64_t t; (t = kit_next(e));)
        second += t > 20;
    cr_assert_eq(second, 6, "three quarters, got %zu", second);
    vg_eng_free(e);
}

Test(engine, a_tenant_below_its_quota_goes_before_others) {
    struct vg_eng *e = kit_new(1, 8);
    struct vg_eng_tenant q = {.id = 2, .name = "q", .weight = 1, .limit = VG_ENG_NO_LIMIT};
    q.quota.gpu_milli = 6000;
    vg_eng_set_tenant(e, &q);
    for (uint64_t i = 1; i <= 40; i++)
        kit_submit(e, i, 1 + (i > 20), 1);
    for (int i = 0; i < 6; i++)
        cr_assert_gt(kit_next(e), 20);
    size_t second = 6;
    for (uint64_t t; (t = kit_next(e));)
        second += t > 20;
    cr_assert_eq(second, 7, "its quota and half of the rest, got %zu", second);
    vg_eng_free(e);
}

Test(engine, fairness_goes_level_by_level) {
    struct vg_eng *e = kit_new(1, 8);
    kit_tenant(e, 10, 0, 1);
    kit_tenant(e, 11, 10, 1);
    kit_tenant(e, 12, 10, 1);
    for (uint64_t i = 1; i <= 60; i++)
        kit_submit(e, i, i <= 20 ? 1 : i <= 40 ? 11 : 12, 1);
    size_t n[3] = {0};
    for (uint64_t t; (t = kit_next(e));)
        n[(t - 1) / 20]++;
    cr_assert(n[0] == 4 && n[1] == 2 && n[2] == 2, "%zu %zu %zu", n[0], n[1], n[2]);
    vg_eng_free(e);
}

Test(engine, past_use_counts_and_fades) {
    struct vg_eng *e = kit_new(1, 1);
    struct vg_eng_conf c = vg_eng_conf_default();
    c.half_life_usec = 1000;
    vg_eng_set_conf(e, &c);
    kit_tenant(e, 2, 0, 1);
    kit_submit(e, 1, 1, 1);
    cr_assert_eq(kit_next(e), 1);
    vg_eng_now(e, 2000);
    vg_eng_release(e, 1, VG_ENG_ENDED);
    kit_submit(e, 3, 1, 1);
    kit_submit(e, 4, 2, 1);
    cr_assert_eq(kit_next(e), 4, "the other has not had anything yet");
    vg_eng_now(e, 6000);
    vg_eng_release(e, 4, VG_ENG_ENDED);
    kit_submit(e, 5, 2, 1);
    cr_assert_eq(kit_next(e), 3, "by now the second had more, lately");
    vg_eng_free(e);
}

Test(engine, a_tenant_at_its_limit_waits_and_holds_up_nobody) {
    struct vg_eng *e = kit_new(1, 4);
    struct vg_eng_tenant t = {.id = 2, .name = "t", .weight = 1, .limit = VG_ENG_NO_LIMIT};
    t.limit.gpu_milli = 1000;
    vg_eng_set_tenant(e, &t);
    for (uint64_t i = 1; i <= 3; i++)
        kit_submit(e, i, 2, 1);
    kit_submit(e, 4, 1, 1);
    cr_assert_eq(kit_next(e), 4, "equal shares: the first tenant");
    cr_assert_eq(kit_next(e), 1);
    cr_assert_eq(kit_next(e), 0);
    cr_assert_null(vg_eng_check(e));
    vg_eng_release(e, 1, VG_ENG_ENDED);
    cr_assert_eq(kit_next(e), 2);
    cr_assert_eq(kit_next(e), 0);
    t.limit.gpu_milli = 2000;
    vg_eng_set_tenant(e, &t);
    cr_assert_eq(kit_next(e), 3, "a raised limit is seen at once");
    vg_eng_free(e);
}

Test(engine, without_weight_there_is_nothing_beyond_the_quota) {
    struct vg_eng *e = kit_new(1, 4);
    struct vg_eng_tenant t = {.id = 2, .name = "t", .weight = 0, .limit = VG_ENG_NO_LIMIT};
    t.quota.gpu_milli = 2000;
    vg_eng_set_tenant(e, &t);
    for (uint64_t i = 1; i <= 3; i++)
        kit_submit(e, i, 2, 1);
    cr_assert_eq(kit_next(e), 1);
    cr_assert_eq(kit_next(e), 2);
    cr_assert_eq(kit_next(e), 0);
    vg_eng_free(e);
}

Test(engine, a_gang_starts_whole_or_not_at_all) {
    struct vg_eng *e = kit_new(2, 2);
    kit_submit(e, 1, 1, 1);
    cr_assert_eq(kit_next(e), 1);
    struct vg_eng_req r = kit_req(0, 1, 1);
    uint64_t ids[4] = {11, 12, 13, 14};
    struct vg_err err = VG_ERR_INIT;
    r.gang = 7;
    r.order = 2;
    cr_assert_eq(vg_eng_submit_gang(e, &r, ids, 4, &err), 0, "%s", err.msg);
    cr_assert_eq(kit_next(e), 0);
    cr_assert_eq(vg_eng_queued(e), 4);
    cr_assert_null(vg_eng_check(e));
    vg_eng_release(e, 1, VG_ENG_ENDED);
    struct vg_eng_decision d;
    for (uint32_t i = 0; i < 4; i++) {
        cr_assert_eq(vg_eng_next(e, &d), 1);
        cr_assert(d.task == ids[i] && d.gang == 7 && d.member == i && d.of == 4);
    }
    cr_assert_eq(vg_eng_next(e, &d), 0);
    cr_assert_null(vg_eng_check(e));
    vg_eng_free(e);
}

Test(engine, a_lost_member_goes_before_everybody) {
    struct vg_eng *e = kit_new(2, 2);
    struct vg_eng_req r = kit_req(0, 1, 1);
    uint64_t ids[4] = {11, 12, 13, 14};
    struct vg_err err = VG_ERR_INIT;
    struct vg_eng_decision d;
    r.gang = 7;
    cr_assert_eq(vg_eng_submit_gang(e, &r, ids, 4, &err), 0);
    while (vg_eng_next(e, &d))
        ;
    struct vg_eng_req urgent = kit_req(1, 1, 1);
    urgent.priority = 1000;
    kit_send(e, &urgent);
    vg_eng_release(e, 12, VG_ENG_LOST);
    r.task = 12;
    cr_assert_eq(vg_eng_submit(e, &r, &err), 0);
    cr_assert_eq(kit_next(e), 12);
    cr_assert_null(vg_eng_check(e));
    vg_eng_free(e);
}

Test(engine, a_gang_that_loses_a_member_while_it_waits_goes_on_without) {
    struct vg_eng *e = kit_new(2, 2);
    struct vg_eng_req r = kit_req(0, 1, 1);
    uint64_t ids[4] = {11, 12, 13, 14};
    struct vg_err err = VG_ERR_INIT;
    struct vg_eng_decision d;
    kit_submit(e, 1, 1, 1);
    cr_assert_eq(kit_next(e), 1);
    r.gang = 7;
    cr_assert_eq(vg_eng_submit_gang(e, &r, ids, 4, &err), 0);
    cr_assert_eq(kit_next(e), 0);
    vg_eng_release(e, 11, VG_ENG_CANCELLED);
    cr_assert_null(vg_eng_check(e));
    for (uint32_t i = 0; i < 3; i++) {
        cr_assert_eq(vg_eng_next(e, &d), 1);
        cr_assert(d.task == ids[i + 1] && d.member == i && d.of == 3);
    }
    cr_assert_null(vg_eng_check(e));
    vg_eng_free(e);
}

Test(engine, a_sessions_task_waits_for_its_node) {
    struct vg_eng *e = kit_new(2, 1);
    struct vg_eng_req r = kit_req(1, 1, 1);
    struct vg_eng_decision d;
    r.node = 2;
    kit_send(e, &r);
    cr_assert_eq(vg_eng_next(e, &d), 1);
    cr_assert_eq(d.node, 2);
    r.task = 2;
    kit_send(e, &r);
    cr_assert_eq(vg_eng_next(e, &d), 0, "the other node is free, but not its own");
    vg_eng_release(e, 1, VG_ENG_ENDED);
    cr_assert_eq(vg_eng_next(e, &d), 1);
    cr_assert(d.task == 2 && d.node == 2);
    r.task = 3;
    r.node = 99; /* not there yet */
    kit_send(e, &r);
    cr_assert_eq(vg_eng_next(e, &d), 0);
    kit_node(e, 99, 1, true);
    cr_assert_eq(vg_eng_next(e, &d), 1);
    cr_assert(d.task == 3 && d.node == 99);
    cr_assert_null(vg_eng_check(e));
    vg_eng_free(e);
}

Test(engine, what_no_node_could_hold_is_refused_with_a_sentence) {
    struct vg_eng *e = kit_new(2, 4);
    struct vg_eng_req r = kit_req(1, 1, 5);
    struct vg_err err = VG_ERR_INIT;
    cr_assert_lt(vg_eng_submit(e, &r, &err), 0);
    cr_assert_eq(err.reason, VG_NO_CAPACITY);
    cr_assert(strstr(err.msg, "5 GPUs") && strstr(err.msg, "'p'"), "%s", err.msg);
    r = kit_req(1, 77, 1);
    cr_assert_lt(vg_eng_submit(e, &r, &err), 0);
    cr_assert_eq(err.reason, VG_NOT_FOUND);
    r = kit_req(1, 1, 1);
    r.pool[0] = 77;
    cr_assert_lt(vg_eng_submit(e, &r, &err), 0);
    cr_assert_eq(err.reason, VG_NOT_FOUND);
    r = kit_req(0, 1, 2);
    r.gang = 1;
    uint64_t ids[5] = {1, 2, 3, 4, 5};
    cr_assert_lt(vg_eng_submit_gang(e, &r, ids, 5, &err), 0);
    cr_assert(strstr(err.msg, "4 of the 5 members"), "%s", err.msg);
    kit_submit(e, 1, 1, 1);
    r = kit_req(1, 1, 1);
    cr_assert_eq(vg_eng_submit(e, &r, &err), -EEXIST);
    cr_assert_null(vg_eng_check(e));
    vg_eng_free(e);
}

Test(engine, adopted_tasks_are_counted_even_beyond_what_there_is) {
    struct vg_eng *e = kit_new(1, 1);
    struct vg_eng_req a = kit_req(1, 1, 1), b = kit_req(2, 1, 1);
    cr_assert_eq(vg_eng_adopt(e, &a, 1, 1, 0), 0);
    cr_assert_eq(vg_eng_adopt(e, &a, 1, 1, 0), -EEXIST);
    kit_send(e, &b);
    cr_assert_eq(kit_next(e), 0);
    cr_assert_eq(vg_eng_adopt(e, &b, 1, 1, 0), 0, "it leaves the queue");
    cr_assert_eq(vg_eng_adopt(e, &(struct vg_eng_req){.task = 3}, 99, 1, 0), -ENOENT);
    cr_assert_eq(vg_eng_queued(e), 0);
    cr_assert_null(vg_eng_check(e));
    kit_submit(e, 3, 1, 1);
    vg_eng_release(e, 1, VG_ENG_ENDED);
    cr_assert_eq(kit_next(e), 0);
    vg_eng_release(e, 2, VG_ENG_ENDED);
    cr_assert_eq(kit_next(e), 3);
    vg_eng_free(e);
}

Test(engine, tenants_come_move_and_go_with_what_they_hold) {
    struct vg_eng *e = kit_new(1, 8);
    kit_tenant(e, 10, 0, 1);
    kit_tenant(e, 11, 10, 1);
    kit_tenant(e, 20, 0, 1);
    for (uint64_t i = 1; i <= 12; i++)
        kit_submit(e, i, 11, 1);
    while (kit_next(e))
        ;
    cr_assert_null(vg_eng_check(e));
    struct vg_eng_tenant t = {.id = 11, .parent = 20, .name = "x", .weight = 1};
    t.limit = VG_ENG_NO_LIMIT;
    cr_assert_eq(vg_eng_set_tenant(e, &t), 0);
    cr_assert_null(vg_eng_check(e));
    t = (struct vg_eng_tenant){.id = 20, .parent = 11, .weight = 1};
    cr_assert_eq(vg_eng_set_tenant(e, &t), -EINVAL);
    t.parent = 99;
    cr_assert_eq(vg_eng_set_tenant(e, &t), -ENOENT);
    cr_assert_eq(vg_eng_remove_tenant(e, 11), 0);
    struct vg_err err = VG_ERR_INIT;
    struct vg_eng_req r = kit_req(50, 11, 1);
    cr_assert_eq(vg_eng_submit(e, &r, &err), -ENOENT);
    for (uint64_t i = 1; i <= 12; i++)
        vg_eng_release(e, i, VG_ENG_ENDED);
    cr_assert_null(vg_eng_check(e));
    cr_assert_eq(vg_eng_remove_tenant(e, 11), -ENOENT, "it went with its last task");
    vg_eng_free(e);
}

static void keep(void *arg, uint32_t kind, uint64_t key, const uint64_t value[4]) {
    vg_eng_restore(arg, kind, key, value);
}

Test(engine, past_use_survives_a_restart) {
    struct vg_eng *e = kit_new(1, 1), *again = kit_new(1, 1);
    vg_eng_now(e, 1000);
    kit_submit(e, 1, 1, 1);
    cr_assert_eq(kit_next(e), 1);
    vg_eng_now(e, 1000 + 86400ULL * 1000000);
    vg_eng_release(e, 1, VG_ENG_ENDED);
    vg_eng_now(again, 1000 + 86400ULL * 1000000);
    vg_eng_save(e, keep, again);
    kit_tenant(again, 2, 0, 1);
    kit_submit(again, 3, 1, 1);
    kit_submit(again, 4, 2, 1);
    cr_assert_eq(kit_next(again), 4);
    vg_eng_free(e);
    vg_eng_free(again);
}

Test(engine, a_promise_holds_back_those_after_it_and_nobody_else) {
    struct vg_eng *e = kit_new(1, 8);
    struct vg_eng_req urgent = kit_req(4, 1, 1);
    vg_eng_now(e, VG_USEC);
    kit_submit(e, 1, 1, 6);
    cr_assert_eq(kit_next(e), 1);
    kit_submit(e, 2, 1, 8); /* is promised the whole node once 1 has ended */
    kit_submit(e, 3, 1, 1); /* would fit, and is expected to outlast 1 */
    cr_assert_eq(kit_next(e), 0);
    urgent.priority = 1;
    kit_send(e, &urgent);
    cr_assert_eq(kit_next(e), 4, "nobody waits for somebody whose turn comes later");
    cr_assert_eq(kit_next(e), 0);
    vg_eng_release(e, 1, VG_ENG_ENDED);
    vg_eng_release(e, 4, VG_ENG_ENDED);
    cr_assert_eq(kit_next(e), 2);
    cr_assert_null(vg_eng_check(e));
    vg_eng_free(e);
}

/* --- shares --- */

Test(engine, a_gang_of_shares_that_memory_forbids_is_refused_at_once) {
    struct vg_eng *e = kit_new(1, 2);
    struct vg_err err = VG_ERR_INIT;
    struct vg_eng_req r = kit_req(0, 1, 0);
    uint64_t ids[] = {1, 2, 3, 4, 5};
    r.res.gpu_milli = 100;
    r.res.gpu_mem_bytes = 40ULL << 30;
    r.gang = 9;
    cr_assert_lt(vg_eng_submit_gang(e, &r, ids, 5, &err), 0);
    cr_assert_str_eq(err.msg, "all nodes of pool 'p' together could hold 4 of the 5 members even "
                              "when empty; ask for fewer");
    cr_assert_eq(vg_eng_submit_gang(e, &r, ids, 4, &err), 0, "%s", err.msg);
    cr_assert_eq(kit_next(e), 1);
    cr_assert_null(vg_eng_check(e));
    vg_eng_free(e);
}

static struct vg_eng_req share_req(uint64_t id, uint32_t milli, uint64_t gib) {
    struct vg_eng_req r = kit_req(id, 1, 0);
    r.res.gpu_milli = milli;
    r.res.gpu_mem_bytes = gib << 30;
    r.gpu_class = 1;
    return r;
}

static int reshare(struct vg_eng *e, uint64_t id, uint32_t milli, uint64_t gib,
                   struct vg_err *err) {
    *err = (struct vg_err)VG_ERR_INIT;
    int r = vg_eng_reshare(e, id, milli, gib << 30, false, err);
    cr_assert_null(vg_eng_check(e), "%s", vg_eng_check(e));
    return r;
}

static uint64_t gpu_milli_held(const struct vg_eng *e) {
    struct vg_eng_tenant_info t;
    cr_assert_eq(vg_eng_tenants(e, &t, 1), 1);
    return t.held.gpu_milli;
}

Test(engine, a_share_grows_into_what_its_card_has_free_and_no_further) {
    struct vg_eng *e = kit_new(1, 1);
    struct vg_err err;
    struct vg_eng_req r = share_req(1, 300, 0), other = share_req(2, 500, 20);
    kit_send(e, &r);
    kit_send(e, &other);
    cr_assert_eq(kit_next(e), 1);
    cr_assert_eq(kit_next(e), 2);
    cr_assert_eq(gpu_milli_held(e), 800);
    cr_assert_lt(reshare(e, 1, 501, 24, &err), 0);
    cr_assert_str_eq(err.msg,
                     "GPU 0 of node node has no room for that: with what is free there the "
                     "task can have at most 0.5 of it and 60 GiB of its memory");
    cr_assert_lt(reshare(e, 1, 500, 61, &err), 0);
    cr_assert_eq(gpu_milli_held(e), 800, "nothing changed");
    cr_assert_eq(reshare(e, 1, 500, 60, &err), 0, "%s", err.msg);
    cr_assert_eq(gpu_milli_held(e), 1000);
    cr_assert_eq(reshare(e, 2, 100, 10, &err), 0, "%s", err.msg);
    cr_assert_eq(gpu_milli_held(e), 600);
    cr_assert_lt(reshare(e, 3, 100, 1, &err), 0, "there is no such task");
    vg_eng_release(e, 1, VG_ENG_ENDED);
    vg_eng_release(e, 2, VG_ENG_ENDED);
    cr_assert_null(vg_eng_check(e));
    cr_assert_eq(gpu_milli_held(e), 0);
    vg_eng_free(e);
}

Test(engine, what_a_share_gives_up_goes_to_who_waits) {
    struct vg_eng *e = kit_new(1, 1);
    struct vg_err err;
    struct vg_eng_req r = share_req(1, 800, 0), other = share_req(2, 500, 0);
    kit_send(e, &r);
    kit_send(e, &other);
    cr_assert_eq(kit_next(e), 1);
    cr_assert_eq(kit_next(e), 0);
    cr_assert_eq(reshare(e, 1, 500, 40, &err), 0, "%s", err.msg);
    cr_assert_eq(kit_next(e), 2);
    cr_assert_null(vg_eng_check(e));
    vg_eng_free(e);
}

Test(engine, a_share_does_not_grow_beyond_its_tenants_limit_unless_an_admin_says_so) {
    struct vg_eng *e = kit_new(1, 1);
    struct vg_eng_tenant t = {
        .id = 1, .name = "ann", .limit = {400, UINT64_MAX, UINT64_MAX}, .weight = 1};
    struct vg_err err;
    struct vg_eng_req r = share_req(1, 300, 0);
    cr_assert_eq(vg_eng_set_tenant(e, &t), 0);
    kit_send(e, &r);
    cr_assert_eq(kit_next(e), 1);
    cr_assert_eq(reshare(e, 1, 400, 24, &err), 0, "%s", err.msg);
    cr_assert_lt(reshare(e, 1, 500, 24, &err), 0);
    cr_assert_str_eq(err.msg, "ann holds 0.4 GPUs and may hold 0.4: end something first, or ask an "
                              "administrator");
    cr_assert_eq(reshare(e, 1, 400, 50, &err), 0, "memory is not limited: %s", err.msg);
    cr_assert_eq(vg_eng_reshare(e, 1, 900, 70ULL << 30, true, &err), 0);
    cr_assert_lt(vg_eng_reshare(e, 1, 900, 81ULL << 30, true, &err), 0, "the card is what it is");
    cr_assert_null(vg_eng_check(e));
    vg_eng_free(e);
}
