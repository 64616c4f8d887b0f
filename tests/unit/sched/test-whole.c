/* Whole nodes: a task that gets one is alone on it and counts as all that it has. */
#include "engine-kit.h"

#include <stdio.h>

static struct vg_eng_req whole(uint64_t id, uint32_t gpus) {
    struct vg_eng_req r = kit_req(id, 1, gpus);
    r.whole = true;
    return r;
}

static void holds(const struct vg_eng *e) {
    const char *bad = vg_eng_check(e);
    cr_assert_null(bad, "%s", bad);
}

static struct vg_eng_node_info info(const struct vg_eng *e, uint64_t node) {
    struct vg_eng_node_info i;
    cr_assert_eq(vg_eng_node_info(e, node, &i), 0);
    return i;
}

Test(whole, gets_everything_whatever_was_asked) {
    struct vg_eng *e = kit_new(1, 8);
    struct vg_eng_req r = whole(1, 0);
    struct vg_eng_decision d;
    kit_send(e, &r);
    cr_assert(vg_eng_next(e, &d));
    cr_assert_eq(d.gpus, 0xff);
    cr_assert_eq(d.res.gpus, 8);
    cr_assert_eq(d.res.cpu_milli, 64000);
    cr_assert_eq(d.res.mem_bytes, 512ULL << 30);
    cr_assert_eq(info(e, 1).used.gpus, 8);
    struct vg_eng_tenant_info t[2];
    cr_assert_eq(vg_eng_tenants(e, t, 2), 1);
    cr_assert_eq(t[0].held.gpu_milli, 8000);
    cr_assert_eq(t[0].held.cpu_milli, 64000);
    holds(e);
    vg_eng_release(e, 1, VG_ENG_ENDED);
    cr_assert_eq(vg_eng_tenants(e, t, 2), 1);
    cr_assert_eq(t[0].held.gpu_milli, 0);
    cr_assert_eq(info(e, 1).used.cpu_milli, 0);
    holds(e);
    vg_eng_free(e);
}

Test(whole, nobody_is_beside_it) {
    struct vg_eng *e = kit_new(1, 2);
    struct vg_eng_req nothing = kit_req(2, 1, 0);
    struct vg_eng_req r = whole(1, 0);
    nothing.res = (struct vg_res){0}; /* reserves nothing, and still has no place there */
    kit_send(e, &r);
    cr_assert_eq(kit_next(e), 1);
    kit_send(e, &nothing);
    cr_assert_eq(kit_next(e), 0);
    holds(e);
    vg_eng_release(e, 1, VG_ENG_ENDED);
    cr_assert_eq(kit_next(e), 2);
    holds(e);
    vg_eng_free(e);
}

Test(whole, waits_until_the_node_is_empty_and_says_so) {
    struct vg_eng *e = kit_new(1, 2);
    struct vg_eng_req small = kit_req(1, 1, 0), r = whole(2, 2);
    struct vg_eng_why w;
    small.res = (struct vg_res){0};
    kit_send(e, &small);
    cr_assert_eq(kit_next(e), 1);
    kit_send(e, &r);
    cr_assert_eq(kit_next(e), 0);
    cr_assert_eq(vg_eng_why(e, 2, &w), 0);
    cr_assert(strstr(w.text, "a whole node with 2 GPUs"), "%s", w.text);
    cr_assert_eq(w.n_holders, 1);
    holds(e);
    vg_eng_release(e, 1, VG_ENG_ENDED);
    cr_assert_eq(kit_next(e), 2);
    vg_eng_free(e);
}

/* Small tasks that come all the time must not keep it waiting for ever. */
Test(whole, a_promise_of_a_node_holds_off_small_ones) {
    struct vg_eng *e = kit_new(1, 2);
    struct vg_eng_req first = kit_req(1, 1, 1), r = whole(2, 0), later = kit_req(3, 1, 1);
    first.known_usec = later.known_usec = 3600ULL * 1000000;
    vg_eng_now(e, 1000000);
    kit_send(e, &first);
    cr_assert_eq(kit_next(e), 1);
    kit_send(e, &r);
    cr_assert_eq(kit_next(e), 0);
    vg_eng_now(e, 60000000);
    kit_send(e, &later);
    cr_assert_eq(kit_next(e), 0, "a task that runs into the promise started");
    holds(e);
    vg_eng_release(e, 1, VG_ENG_ENDED);
    cr_assert_eq(kit_next(e), 2);
    cr_assert_eq(kit_next(e), 0);
    holds(e);
    vg_eng_free(e);
}

Test(whole, a_gang_gets_a_node_each) {
    struct vg_eng *e = kit_new(3, 2);
    struct vg_eng_req r = whole(0, 0);
    struct vg_err err = VG_ERR_INIT;
    const uint64_t ids[3] = {11, 12, 13};
    uint64_t nodes = 0;
    r.gang = 5;
    kit_submit(e, 1, 1, 1);
    cr_assert_eq(kit_next(e), 1);
    cr_assert_eq(vg_eng_submit_gang(e, &r, ids, 3, &err), 0, "%s", err.msg);
    cr_assert_eq(kit_next(e), 0, "one node is not empty");
    vg_eng_release(e, 1, VG_ENG_ENDED);
    for (int i = 0; i < 3; i++) {
        struct vg_eng_decision d;
        cr_assert(vg_eng_next(e, &d));
        cr_assert_eq(d.gang, 5);
        cr_assert_eq(d.res.gpus, 2);
        nodes |= 1ULL << d.node;
    }
    cr_assert_eq(nodes, 0xe);
    holds(e);
    vg_eng_free(e);
}

Test(whole, more_members_than_nodes_are_refused) {
    struct vg_eng *e = kit_new(2, 2);
    struct vg_eng_req r = whole(0, 0);
    struct vg_err err = VG_ERR_INIT;
    const uint64_t ids[3] = {11, 12, 13};
    r.gang = 5;
    cr_assert_lt(vg_eng_submit_gang(e, &r, ids, 3, &err), 0);
    cr_assert_eq(err.reason, VG_NO_CAPACITY);
    vg_eng_free(e);
}

Test(whole, takes_the_smallest_node_that_will_do) {
    struct vg_eng *e = kit_new(0, 0);
    kit_node(e, 1, 8, true);
    kit_node(e, 2, 2, true);
    struct vg_eng_req r = whole(1, 1);
    struct vg_eng_decision d;
    kit_send(e, &r);
    cr_assert(vg_eng_next(e, &d));
    cr_assert_eq(d.node, 2);
    vg_eng_free(e);
}

Test(whole, a_node_with_a_bad_card_is_not_whole) {
    struct vg_eng *e = kit_new(0, 0);
    struct vg_eng_gpu g[2] = {{.index = 0, .mem_bytes = 1 << 30},
                              {.index = 1, .mem_bytes = 1 << 30, .bad = true}};
    struct vg_eng_node n = {.id = 1, .name = "n", .gpu = g, .n_gpus = 2, .usable = true};
    struct vg_eng_req r = whole(1, 0);
    n.total.cpu_milli = 1000;
    cr_assert_eq(vg_eng_set_node(e, &n), 0);
    kit_send(e, &r);
    cr_assert_eq(kit_next(e), 0);
    g[1].bad = false;
    cr_assert_eq(vg_eng_set_node(e, &n), 0);
    cr_assert_eq(kit_next(e), 1);
    holds(e);
    vg_eng_free(e);
}

Test(whole, counts_against_the_limit_as_what_the_node_has) {
    struct vg_eng *e = kit_new(2, 8);
    struct vg_eng_tenant t = {
        .id = 1, .name = "tenant", .limit = {12000, UINT64_MAX, UINT64_MAX}, .weight = 1};
    struct vg_eng_req a = whole(1, 0), b = whole(2, 0);
    struct vg_eng_why w;
    cr_assert_eq(vg_eng_set_tenant(e, &t), 0);
    kit_send(e, &a);
    kit_send(e, &b);
    cr_assert_eq(kit_next(e), 1);
    cr_assert_eq(kit_next(e), 0, "16 GPUs are more than 12");
    cr_assert_eq(vg_eng_why(e, 2, &w), 0);
    cr_assert(strstr(w.text, "limit"), "%s", w.text);
    holds(e);
    vg_eng_release(e, 1, VG_ENG_ENDED);
    cr_assert_eq(kit_next(e), 2);
    holds(e);
    vg_eng_free(e);
}

Test(whole, slots_of_such_a_pool_are_its_nodes) {
    struct vg_eng *e = kit_new(3, 2);
    struct vg_eng_pool p = {.name = "p", .id = 1, .whole = true};
    struct vg_eng_pool_info i;
    cr_assert_eq(vg_eng_set_pool(e, &p), 0);
    kit_submit(e, 1, 1, 0);
    cr_assert_eq(kit_next(e), 1);
    cr_assert_eq(vg_eng_pool_info(e, 1, &i), 0);
    cr_assert(i.total_slots == 3 && i.free_slots == 2);
    vg_eng_free(e);
}

Test(whole, is_adopted_with_all_that_its_node_has) {
    struct vg_eng *e = kit_new(1, 4);
    struct vg_eng_req r = whole(1, 0);
    cr_assert_eq(vg_eng_adopt(e, &r, 1, 0xf, 1000), 0);
    cr_assert_eq(info(e, 1).used.gpus, 4);
    kit_submit(e, 2, 1, 0);
    cr_assert_eq(kit_next(e), 0);
    holds(e);
    vg_eng_free(e);
}

/* By priority, several small ones make way for it, and nobody comes in between. */
Test(whole, others_are_stopped_for_it) {
    struct vg_eng *e = kit_new(1, 2);
    struct vg_eng_req r = whole(9, 0);
    struct vg_eng_decision d;
    for (uint64_t i = 1; i <= 2; i++) {
        struct vg_eng_req small = kit_req(i, 1, 1);
        small.preemptible = true;
        small.priority = 1;
        kit_send(e, &small);
        cr_assert_eq(kit_next(e), i);
    }
    vg_eng_now(e, 3600ULL * 1000000);
    r.priority = 50;
    kit_send(e, &r);
    for (int i = 0; i < 2; i++) {
        cr_assert(vg_eng_next(e, &d));
        cr_assert_eq(d.what, VG_ENG_PREEMPT);
        cr_assert_eq(d.for_task, 9);
    }
    vg_eng_release(e, 1, VG_ENG_PREEMPTED);
    kit_submit(e, 3, 1, 1);
    cr_assert_eq(kit_next(e), 0);
    vg_eng_release(e, 2, VG_ENG_PREEMPTED);
    cr_assert_eq(kit_next(e), 9);
    holds(e);
    vg_eng_free(e);
}
