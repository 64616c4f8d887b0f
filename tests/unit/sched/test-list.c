/* What people see of the engine: the order, the tenants' shares, pools and nodes. */
#include "engine-kit.h"
#include "sched/engine-int.h"

static uint64_t seed;
static uint64_t below(uint64_t n) {
    seed = tree_mix(seed + 0x9e3779b97f4a7c15ULL);
    return seed % n;
}

static struct vg_eng *make(uint32_t gpus) {
    struct vg_eng *e = kit_new(1, gpus);
    struct vg_eng_conf c = vg_eng_conf_default();
    c.preempt = false;
    c.reserve = 0;
    cr_assert_eq(vg_eng_set_conf(e, &c), 0);
    vg_eng_now(e, 1000 * VG_USEC);
    return e;
}

static void tenant(struct vg_eng *e, uint64_t id, uint64_t parent, uint32_t weight, uint64_t quota,
                   uint64_t limit) {
    struct vg_eng_tenant t = {.id = id,
                              .parent = parent,
                              .name = "tenant",
                              .limit = VG_ENG_NO_LIMIT,
                              .quota.gpu_milli = quota * 1000,
                              .weight = weight};
    t.limit.gpu_milli = limit ? limit * 1000 : UINT64_MAX;
    cr_assert_eq(vg_eng_set_tenant(e, &t), 0);
}

/* The node is full; then it is empty, and everybody starts in the order that was shown. */
static void shown_is_what_happens(uint64_t with) {
    seed = with;
    struct vg_eng *e = make(64);
    tenant(e, 2, 0, 1, 0, 0);
    for (uint64_t id = 3; id < 10; id++)
        tenant(e, id, below(2) ? 2 : 0, 1 + (uint32_t)below(4), below(3) * below(4), 0);
    kit_submit(e, 1000, 1, 64);
    cr_assert_eq(kit_next(e), 1000);
    for (uint64_t id = 1; id <= 64; id++) {
        struct vg_eng_req r = kit_req(id, 3 + below(7), 1);
        r.priority = (uint32_t)below(3);
        r.res.cpu_milli = 100 * (1 + (uint32_t)below(2)); /* two shapes */
        kit_send(e, &r);
    }
    cr_assert_eq(kit_next(e), 0);
    uint64_t shown[100];
    cr_assert_eq(vg_eng_order(e, 1, shown, VG_COUNT(shown)), 64);
    cr_assert_eq(vg_eng_order(e, 0, shown, VG_COUNT(shown)), 64);
    vg_eng_release(e, 1000, VG_ENG_CANCELLED);
    for (int i = 0; i < 64; i++) {
        uint64_t id = kit_next(e);
        cr_assert_eq(id, shown[i], "seed %llu: turn %d: %llu started, %llu was shown",
                     (unsigned long long)with, i, (unsigned long long)id,
                     (unsigned long long)shown[i]);
    }
    vg_eng_free(e);
}

Test(list, the_order_shown_is_the_order_in_which_they_start) {
    for (uint64_t i = 1; i <= 200; i++)
        shown_is_what_happens(i);
}

Test(list, the_order_is_of_one_pool_and_bounded) {
    struct vg_eng *e = make(1);
    struct vg_eng_pool other = {.name = "q", .id = 2};
    uint64_t shown[8];
    cr_assert_eq(vg_eng_set_pool(e, &other), 0);
    kit_submit(e, 100, 1, 1);
    cr_assert_eq(kit_next(e), 100);
    for (uint64_t id = 1; id <= 6; id++) {
        struct vg_eng_req r = kit_req(id, 1, 1);
        r.pool[0] = id > 4 ? 2 : 1;
        kit_send(e, &r);
    }
    cr_assert_eq(kit_next(e), 0);
    cr_expect_eq(vg_eng_order(e, 1, shown, 8), 4);
    cr_expect_eq(vg_eng_order(e, 2, shown, 8), 2);
    cr_expect_eq(shown[0], 5);
    cr_expect_eq(vg_eng_order(e, 0, shown, 3), 3);
    cr_expect_eq(vg_eng_order(e, 77, shown, 8), 0, "no such pool");
    vg_eng_free(e);
}

Test(list, sessions_come_first_and_those_at_a_limit_last) {
    struct vg_eng *e = make(2);
    uint64_t shown[8];
    tenant(e, 2, 0, 1, 0, 1);
    kit_submit(e, 100, 1, 1);
    kit_submit(e, 101, 2, 1);
    cr_assert_neq(kit_next(e), 0);
    cr_assert_neq(kit_next(e), 0);
    kit_submit(e, 1, 2, 1);
    kit_submit(e, 2, 1, 1);
    struct vg_eng_req r = kit_req(3, 1, 1);
    r.node = 1;
    kit_send(e, &r);
    cr_assert_eq(kit_next(e), 0);
    cr_assert_eq(vg_eng_order(e, 0, shown, 8), 3);
    cr_expect_eq(shown[0], 3);
    cr_expect_eq(shown[1], 2);
    cr_expect_eq(shown[2], 1, "its tenant is at its limit of 1");
    vg_eng_free(e);
}

static const struct vg_eng_tenant_info *info(const struct vg_eng_tenant_info *i, size_t n,
                                             uint64_t id) {
    for (size_t k = 0; k < n; k++)
        if (i[k].id == id)
            return &i[k];
    cr_assert_fail("no tenant %llu", (unsigned long long)id);
    return NULL;
}

Test(list, fair_shares_are_quota_first_then_weight_among_those_who_want) {
    struct vg_eng *e = make(10);
    tenant(e, 2, 0, 1, 4, 0); /* wants 8, has a quota of 4 */
    tenant(e, 3, 0, 2, 0, 0); /* wants all it can get, weighs 2 */
    tenant(e, 4, 0, 1, 2, 0); /* wants 1 of its quota of 2 */
    tenant(e, 5, 0, 5, 5, 0); /* wants nothing */
    tenant(e, 6, 3, 1, 0, 0); /* below 3 */
    kit_submit(e, 900, 1, 10);
    cr_assert_eq(kit_next(e), 900);
    vg_eng_release(e, 900, VG_ENG_CANCELLED);
    uint64_t id = 1;
    for (int i = 0; i < 8; i++)
        kit_submit(e, id++, 2, 1);
    for (int i = 0; i < 20; i++)
        kit_submit(e, id++, 6, 1);
    kit_submit(e, id++, 4, 1);
    struct vg_eng_tenant_info t[16];
    cr_assert_eq(vg_eng_tenants(e, NULL, 0), 6);
    size_t n = vg_eng_tenants(e, t, VG_COUNT(t));
    cr_assert_eq(n, 6);
    /* 4 + 1 by quota, then 5 are left for 2 (weight 1) and 3 (weight 2) */
    cr_expect_eq(info(t, n, 2)->fair_ppm, 400000 + 166667);
    cr_expect_eq(info(t, n, 3)->fair_ppm, 333333);
    cr_expect_eq(info(t, n, 6)->fair_ppm, 333333, "all of it to the only one below");
    cr_expect_eq(info(t, n, 6)->parent, 3);
    cr_expect_eq(info(t, n, 4)->fair_ppm, 100000);
    cr_expect_eq(info(t, n, 5)->fair_ppm, 0);
    cr_expect_eq(info(t, n, 2)->queued, 8);
    cr_expect_eq(info(t, n, 3)->queued, 20, "with those below it");
    for (int i = 0; i < 5; i++)
        cr_assert_neq(kit_next(e), 0);
    n = vg_eng_tenants(e, t, VG_COUNT(t));
    uint32_t held = 0;
    for (size_t i = 0; i < n; i++)
        held += t[i].parent ? 0 : t[i].share_ppm;
    cr_expect_eq(held, 500000, "5 of 10 are held");
    vg_eng_free(e);
}

Test(list, pools_and_nodes_are_counted) {
    struct vg_eng *e = kit_new(2, 8);
    struct vg_eng_pool p = {.name = "p", .id = 1, .shape = {.gpus = 2, .cpu_milli = 1000}};
    struct vg_eng_pool_info pi;
    struct vg_eng_node_info ni;
    cr_assert_eq(vg_eng_set_pool(e, &p), 0);
    kit_submit(e, 1, 1, 3);
    uint64_t at = kit_next(e);
    cr_assert_eq(at, 1);
    cr_assert_eq(vg_eng_pool_info(e, 1, &pi), 0);
    cr_expect_eq(pi.nodes, 2);
    cr_expect_eq(pi.running, 1);
    cr_expect_eq(pi.total_slots, 8);
    cr_expect_eq(pi.free_slots, 6, "5 cards are 2 slots, 8 are 4");
    cr_expect_eq(vg_eng_pool_info(e, 9, &pi), -ENOENT);
    const struct etask *t = vg_map_get_u64(&e->tasks, 1);
    cr_assert_eq(vg_eng_node_info(e, t->node->id, &ni), 0);
    cr_expect_eq(ni.used.gpus, 3);
    cr_expect_eq(ni.gpus_used, t->gpus);
    cr_expect_eq(ni.used.cpu_milli, 100);
    cr_expect_eq(ni.tasks, 1);
    cr_expect_eq(vg_eng_node_info(e, 99, &ni), -ENOENT);
    p.shape = (struct vg_res){.gpu_milli = 250};
    cr_assert_eq(vg_eng_set_pool(e, &p), 0);
    cr_assert_eq(vg_eng_pool_info(e, 1, &pi), 0);
    cr_expect_eq(pi.free_slots, 4 * 13);
    vg_eng_free(e);
}
