#pragma once
/* What the engine's tests share: a pool 1 named "p" with every node, a tenant 1, equal nodes. */
#include "base/cleanup.h"
#include "base/util.h"
#include "sched/engine.h"

#include <criterion/criterion.h>
#include <string.h>

static inline void kit_node(struct vg_eng *e, uint64_t id, uint32_t gpus, bool usable) {
    struct vg_eng_gpu g[VG_NODE_GPUS_MAX] = {0};
    for (uint32_t i = 0; i < gpus; i++)
        g[i] = (struct vg_eng_gpu){.index = i, .mem_bytes = 80ULL << 30, .island = 1 + i / 4};
    struct vg_eng_node n = {.id = id,
                            .name = "node",
                            .total = {.cpu_milli = 64000, .mem_bytes = 512ULL << 30},
                            .gpu = g,
                            .n_gpus = gpus,
                            .model = "A100",
                            .usable = usable};
    cr_assert_eq(vg_eng_set_node(e, &n), 0);
}

static inline void kit_tenant(struct vg_eng *e, uint64_t id, uint64_t parent, uint32_t weight) {
    struct vg_eng_tenant t = {
        .id = id, .parent = parent, .name = "tenant", .limit = VG_ENG_NO_LIMIT, .weight = weight};
    cr_assert_eq(vg_eng_set_tenant(e, &t), 0);
}

static inline struct vg_eng *kit_new(uint64_t nodes, uint32_t gpus) {
    struct vg_eng *e = vg_eng_new();
    cr_assert(e);
    struct vg_eng_pool p = {.name = "p", .id = 1};
    cr_assert_eq(vg_eng_set_pool(e, &p), 0);
    kit_tenant(e, 1, 0, 1);
    for (uint64_t i = 1; i <= nodes; i++)
        kit_node(e, i, gpus, true);
    return e;
}

static inline struct vg_eng_req kit_req(uint64_t id, uint64_t tenant, uint32_t gpus) {
    return (struct vg_eng_req){.task = id,
                               .tenant = tenant,
                               .pool = {1},
                               .n_pools = 1,
                               .res = {.gpus = gpus, .cpu_milli = 100},
                               .order = id};
}

static inline void kit_send(struct vg_eng *e, const struct vg_eng_req *r) {
    struct vg_err err = VG_ERR_INIT;
    cr_assert_eq(vg_eng_submit(e, r, &err), 0, "%s", err.msg);
}

static inline void kit_submit(struct vg_eng *e, uint64_t id, uint64_t tenant, uint32_t gpus) {
    struct vg_eng_req r = kit_req(id, tenant, gpus);
    kit_send(e, &r);
}

/* The next that starts; 0: none. */
static inline uint64_t kit_next(struct vg_eng *e) {
    struct vg_eng_decision d;
    if (!vg_eng_next(e, &d))
        return 0;
    cr_assert_eq(d.what, VG_ENG_START);
    return d.task;
}
