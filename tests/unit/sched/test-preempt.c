/* Reclaim and preemption: who is stopped, who is not, and what becomes of the place. */
#include "engine-kit.h"

#include <criterion/criterion.h>

/* Tenant 1 holds everything with tasks of one GPU, 1 .. n, started one second apart; tenant 2 has
   the quota. */
static struct vg_eng *crowded(uint64_t nodes, uint32_t gpus, uint64_t quota_gpus) {
    struct vg_eng *e = kit_new(nodes, gpus);
    struct vg_eng_tenant q = {.id = 2, .name = "nlp", .weight = 1, .limit = VG_ENG_NO_LIMIT};
    q.quota.gpu_milli = 1000 * quota_gpus;
    cr_assert_eq(vg_eng_set_tenant(e, &q), 0);
    for (uint64_t i = 1; i <= nodes * gpus; i++) {
        vg_eng_now(e, i * VG_USEC);
        kit_submit(e, i, 1, 1);
        cr_assert_eq(kit_next(e), i);
    }
    return e;
}

static uint64_t stopped(struct vg_eng *e, struct vg_eng_decision *d) {
    if (!vg_eng_next(e, d))
        return 0;
    cr_assert_eq(d->what, VG_ENG_PREEMPT);
    return d->task;
}

Test(preempt, a_tenant_below_its_quota_gets_it_back) {
    struct vg_eng *e = crowded(1, 4, 2);
    struct vg_eng_decision d;
    vg_eng_now(e, 3600 * VG_USEC);
    kit_submit(e, 10, 2, 1);
    cr_assert_eq(stopped(e, &d), 4, "the newest has the least to lose");
    cr_assert_eq(d.for_task, 10);
    cr_assert_str_eq(d.why, "reclaimed for 'nlp', which is below its quota");
    cr_assert_eq(kit_next(e), 0, "it has not left yet");
    cr_assert_null(vg_eng_check(e));
    kit_submit(e, 11, 1, 1);
    vg_eng_release(e, 4, VG_ENG_PREEMPTED);
    cr_assert_eq(kit_next(e), 10, "the place was kept");
    cr_assert_eq(kit_next(e), 0);
    cr_assert_null(vg_eng_check(e));
    vg_eng_free(e);
}

Test(preempt, nobody_reclaims_more_than_the_quota) {
    struct vg_eng *e = crowded(1, 4, 2);
    struct vg_eng_decision d;
    vg_eng_now(e, 3600 * VG_USEC);
    for (uint64_t i = 10; i < 20; i++)
        kit_submit(e, i, 2, 1);
    cr_assert_eq(stopped(e, &d), 4);
    cr_assert_eq(stopped(e, &d), 3);
    cr_assert_eq(stopped(e, &d), 0);
    cr_assert_null(vg_eng_check(e));
    vg_eng_free(e);
}

Test(preempt, nothing_is_stopped_before_its_minimum) {
    struct vg_eng *e = crowded(1, 2, 2);
    struct vg_eng_decision d;
    kit_submit(e, 10, 2, 1);
    cr_assert_eq(stopped(e, &d), 0);
    uint64_t wake = vg_eng_wake(e);
    cr_assert_gt(wake, 2 * VG_USEC);
    for (int i = 0; i < 100 && wake < 301 * VG_USEC; i++) {
        vg_eng_now(e, wake);
        cr_assert_eq(stopped(e, &d), 0);
        wake = vg_eng_wake(e);
    }
    vg_eng_now(e, 301 * VG_USEC);
    cr_assert_eq(stopped(e, &d), 1, "five minutes after it started, and it says when to look");
    vg_eng_free(e);
}

Test(preempt, a_pool_may_ask_for_more_than_the_tenant) {
    struct vg_eng *e = crowded(1, 2, 2);
    struct vg_eng_decision d;
    struct vg_eng_pool p = {.id = 1, .name = "p", .min_run_usec = 3600 * VG_USEC};
    cr_assert_eq(vg_eng_set_pool(e, &p), 0);
    vg_eng_now(e, 600 * VG_USEC);
    kit_submit(e, 10, 2, 1);
    cr_assert_eq(stopped(e, &d), 0);
    vg_eng_now(e, 3602 * VG_USEC);
    cr_assert_neq(stopped(e, &d), 0);
    vg_eng_free(e);
}

Test(preempt, as_few_as_possible_and_none_in_vain) {
    struct vg_eng *e = kit_new(2, 4);
    struct vg_eng_decision d;
    struct vg_eng_tenant q = {.id = 2, .name = "nlp", .weight = 1, .limit = VG_ENG_NO_LIMIT};
    q.quota.gpu_milli = 8000;
    cr_assert_eq(vg_eng_set_tenant(e, &q), 0);
    struct vg_eng_req r = kit_req(1, 1, 2); /* node 1: two of two GPUs; node 2: four of one */
    for (uint64_t i = 1; i <= 6; i++) {
        r = kit_req(i, 1, i <= 2 ? 2 : 1);
        kit_send(e, &r);
        cr_assert_eq(kit_next(e), i);
    }
    vg_eng_now(e, 3600 * VG_USEC);
    kit_submit(e, 10, 2, 2);
    uint64_t first = stopped(e, &d);
    cr_assert(first == 1 || first == 2, "one task of two GPUs, not two of one: %lu", first);
    cr_assert_eq(stopped(e, &d), 0);
    vg_eng_free(e);
}

Test(preempt, a_larger_priority_stops_the_smallest) {
    struct vg_eng *e = kit_new(1, 3);
    struct vg_eng_decision d;
    for (uint32_t i = 1; i <= 3; i++) {
        struct vg_eng_req r = kit_req(i, 1, 1);
        r.priority = 3 - i % 3; /* 2, 1, 3 */
        kit_send(e, &r);
        cr_assert_eq(kit_next(e), i);
    }
    vg_eng_now(e, 3600 * VG_USEC);
    struct vg_eng_req r = kit_req(10, 1, 1);
    r.priority = 1;
    kit_send(e, &r);
    cr_assert_eq(stopped(e, &d), 0, "nobody is below it");
    r = kit_req(11, 1, 1);
    r.priority = 2;
    kit_send(e, &r);
    cr_assert_eq(stopped(e, &d), 2);
    cr_assert_str_eq(d.why, "a task of 'tenant' with priority 2 goes before priority 1");
    struct vg_eng_why w;
    char line[256];
    cr_assert_eq(vg_eng_why(e, 11, &w), 0, "who is made room for can be asked about, too");
    cr_assert_eq(w.code, VG_ENG_FREEING);
    cr_assert_eq(vg_eng_brief(e, 11, line, sizeof line), 0);
    cr_assert_str_eq(line, w.text);
    vg_eng_free(e);
}

Test(preempt, priority_takes_nobody_below_its_quota) {
    struct vg_eng *e = crowded(1, 2, 0);
    struct vg_eng_decision d;
    struct vg_eng_tenant t = {.id = 1, .name = "t", .weight = 1, .limit = VG_ENG_NO_LIMIT};
    t.quota.gpu_milli = 1000;
    cr_assert_eq(vg_eng_set_tenant(e, &t), 0);
    vg_eng_now(e, 3600 * VG_USEC);
    for (uint64_t i = 10; i < 12; i++) {
        struct vg_eng_req r = kit_req(i, 2, 1);
        r.priority = 9;
        kit_send(e, &r);
    }
    cr_assert_eq(stopped(e, &d), 2);
    cr_assert_eq(stopped(e, &d), 0, "the other one is within its quota");
    vg_eng_free(e);
}

Test(preempt, what_is_preemptible_gives_way_and_what_is_fixed_does_not) {
    struct vg_eng *e = kit_new(1, 2);
    struct vg_eng_decision d;
    struct vg_eng_req r = kit_req(1, 1, 1);
    r.preemptible = true;
    kit_send(e, &r);
    r = kit_req(2, 1, 1);
    r.fixed = true;
    kit_send(e, &r);
    cr_assert_eq(kit_next(e), 1);
    cr_assert_eq(kit_next(e), 2);
    kit_tenant(e, 2, 0, 1);
    vg_eng_now(e, 3600 * VG_USEC);
    r = kit_req(3, 2, 1);
    r.preemptible = true;
    kit_send(e, &r);
    cr_assert_eq(stopped(e, &d), 0, "it would itself be the next to go");
    r = kit_req(4, 2, 1);
    r.priority = 5;
    kit_send(e, &r);
    cr_assert_eq(stopped(e, &d), 1);
    r = kit_req(5, 2, 1);
    r.priority = 9;
    kit_send(e, &r);
    cr_assert_eq(stopped(e, &d), 0, "the other one is fixed");
    vg_eng_free(e);
}

Test(preempt, a_gang_is_stopped_whole) {
    struct vg_eng *e = kit_new(2, 2);
    struct vg_eng_decision d;
    struct vg_err err = VG_ERR_INIT;
    struct vg_eng_tenant q = {.id = 2, .name = "nlp", .weight = 1, .limit = VG_ENG_NO_LIMIT};
    q.quota.gpu_milli = 1000;
    cr_assert_eq(vg_eng_set_tenant(e, &q), 0);
    struct vg_eng_req r = kit_req(0, 1, 1);
    uint64_t ids[4] = {1, 2, 3, 4};
    r.gang = 7;
    cr_assert_eq(vg_eng_submit_gang(e, &r, ids, 4, &err), 0);
    for (int i = 0; i < 4; i++)
        cr_assert_neq(kit_next(e), 0);
    vg_eng_now(e, 3600 * VG_USEC);
    kit_submit(e, 10, 2, 1);
    for (int i = 0; i < 4; i++) {
        cr_assert_neq(stopped(e, &d), 0);
        cr_assert_eq(d.gang, 7);
    }
    cr_assert_eq(stopped(e, &d), 0);
    for (uint64_t i = 1; i <= 4; i++)
        vg_eng_release(e, i, VG_ENG_PREEMPTED);
    cr_assert_eq(kit_next(e), 10);
    cr_assert_null(vg_eng_check(e));
    vg_eng_free(e);
}

Test(preempt, a_gang_gets_its_places_together) {
    struct vg_eng *e = crowded(2, 2, 4);
    struct vg_eng_decision d;
    struct vg_err err = VG_ERR_INIT;
    struct vg_eng_req r = kit_req(0, 2, 1);
    uint64_t ids[3] = {11, 12, 13};
    r.gang = 9;
    vg_eng_now(e, 3600 * VG_USEC);
    cr_assert_eq(vg_eng_submit_gang(e, &r, ids, 3, &err), 0);
    uint64_t v[3];
    for (int i = 0; i < 3; i++)
        cr_assert_neq((v[i] = stopped(e, &d)), 0);
    cr_assert_eq(stopped(e, &d), 0);
    for (int i = 0; i < 3; i++) {
        cr_assert_eq(kit_next(e), 0, "not before all of them have left");
        vg_eng_release(e, v[i], VG_ENG_PREEMPTED);
    }
    for (uint32_t i = 0; i < 3; i++) {
        cr_assert_eq(vg_eng_next(e, &d), 1);
        cr_assert(d.what == VG_ENG_START && d.gang == 9 && d.member == i && d.of == 3);
    }
    cr_assert_null(vg_eng_check(e));
    vg_eng_free(e);
}

Test(preempt, a_cancelled_claim_frees_the_place_for_others) {
    struct vg_eng *e = crowded(1, 2, 1);
    struct vg_eng_decision d;
    vg_eng_now(e, 3600 * VG_USEC);
    kit_submit(e, 10, 2, 1);
    cr_assert_eq(stopped(e, &d), 2);
    vg_eng_release(e, 10, VG_ENG_CANCELLED);
    cr_assert_null(vg_eng_check(e));
    cr_assert_eq(vg_eng_queued(e), 0);
    kit_submit(e, 11, 1, 1);
    vg_eng_release(e, 2, VG_ENG_PREEMPTED);
    cr_assert_eq(kit_next(e), 11);
    cr_assert_null(vg_eng_check(e));
    vg_eng_free(e);
}

Test(preempt, a_claim_on_a_node_that_goes_waits_again) {
    struct vg_eng *e = crowded(1, 2, 1);
    struct vg_eng_decision d;
    vg_eng_now(e, 3600 * VG_USEC);
    kit_submit(e, 10, 2, 1);
    cr_assert_eq(stopped(e, &d), 2);
    vg_eng_remove_node(e, 1);
    cr_assert_null(vg_eng_check(e));
    cr_assert_eq(kit_next(e), 0);
    cr_assert_eq(vg_eng_queued(e), 1);
    kit_node(e, 5, 1, true);
    cr_assert_eq(kit_next(e), 10);
    cr_assert_null(vg_eng_check(e));
    vg_eng_free(e);
}
