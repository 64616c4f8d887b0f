/* Sets of cards by distance, against going through all sets, on machines as they are built. */
#include "sched/near.h"

#include "conf/conf.h"
#include "engine-kit.h"

#include <stdlib.h>

enum {
    LINK1 = 144,
    LINK2 = 136,
    LINK18 = 8,
    PIX = 184,
    PXB = 196,
    PHB = 208,
    NODE = 220,
    SYS = 232
};

static uint8_t dist[VG_NODE_GPUS_MAX][VG_NODE_GPUS_MAX];
static struct near *machine;

static void finish(void) {
    free(machine);
}

TestSuite(near, .fini = finish);

static void set(uint32_t a, uint32_t b, uint8_t d) {
    dist[a][b] = dist[b][a] = d;
}

/* Eight cards behind NVSwitches, four a socket. */
static uint8_t switched(uint32_t a, uint32_t b) {
    return LINK18 + (a / 4 == b / 4 ? 5 : 6);
}
/* Two sockets, on each two PCIe switches with two cards each. */
static uint8_t pcie(uint32_t a, uint32_t b) {
    return a / 2 == b / 2 ? PIX : a / 4 == b / 4 ? NODE : SYS;
}
/* A cube of NVLinks: two quads, each of which is joined all over, and an edge to the other. */
static uint8_t cube(uint32_t a, uint32_t b) {
    if (a / 4 == b / 4)
        return (a ^ b) == 3 || (a ^ b) == 1 ? LINK2 : LINK1;
    return a % 4 == b % 4 ? LINK2 : SYS;
}
/* Pairs with a bridge over each, all else by PCIe. */
static uint8_t bridged(uint32_t a, uint32_t b) {
    return a / 2 == b / 2 ? LINK1 : a / 4 == b / 4 ? PHB : SYS;
}

static void build(uint8_t (*far)(uint32_t, uint32_t), uint32_t n) {
    for (uint32_t a = 0; a < n; a++)
        for (uint32_t b = 0; b < n; b++)
            dist[a][b] = a == b ? 0 : far(a, b);
    free(machine);
    machine = vg_near_new((const uint8_t(*)[VG_NODE_GPUS_MAX])dist, n);
    cr_assert(machine);
}

/* What the header says of a set, as one number: smaller is better. */
struct merit {
    uint32_t worst, total, rest; /* rest: distance to what stays free */
};

static struct merit merit(uint64_t set, uint64_t free) {
    struct merit m = {0};
    for (uint32_t a = 0; a < VG_NODE_GPUS_MAX; a++)
        for (uint32_t b = 0; (set >> a & 1) && b < VG_NODE_GPUS_MAX; b++) {
            if (a < b && (set >> b & 1)) {
                m.worst = VG_MAX(m.worst, dist[a][b]);
                m.total += dist[a][b];
            }
            if ((free & ~set) >> b & 1)
                m.rest += dist[a][b];
        }
    return m;
}

static int compare(struct merit a, struct merit b) {
    if (a.worst != b.worst)
        return a.worst < b.worst ? -1 : 1;
    if (a.total != b.total)
        return a.total < b.total ? -1 : 1;
    return a.rest == b.rest ? 0 : a.rest > b.rest ? -1 : 1;
}

static uint64_t best_of_all(uint64_t free, uint32_t count) {
    uint64_t best = 0;
    for (uint64_t set = free; set; set = (set - 1) & free) {
        if ((uint32_t)__builtin_popcountll(set) != count)
            continue;
        int c = best ? compare(merit(set, free), merit(best, free)) : -1;
        uint64_t differ = set ^ best;
        if (c < 0 || (c == 0 && (set & differ & -differ)))
            best = set;
    }
    return best;
}

static void try_all(const char *name, uint8_t (*far)(uint32_t, uint32_t)) {
    build(far, 8);
    for (uint64_t free = 0; free < 256; free++)
        for (uint32_t k = 1; k <= (uint32_t)__builtin_popcountll(free); k++) {
            uint64_t got = vg_near_pick(machine, free, k), want = best_of_all(free, k);
            cr_assert_eq(got, want, "%s: %u of %#llx: %#llx, not %#llx", name, k,
                         (unsigned long long)free, (unsigned long long)got,
                         (unsigned long long)want);
        }
}

Test(near, eight_cards_are_chosen_exactly) {
    try_all("switched", switched);
    try_all("pcie", pcie);
    try_all("cube", cube);
    try_all("bridged", bridged);
}

static uint32_t noise;
static uint8_t any(uint32_t a, uint32_t b) {
    uint32_t lo = VG_MIN(a, b), hi = VG_MAX(a, b);
    return (uint8_t)(1 + (noise * 2654435761u ^ (lo * 64 + hi) * 40503u) / 977 % 250);
}

Test(near, so_are_those_of_machines_that_nobody_would_build) {
    for (noise = 1; noise <= 6; noise++)
        try_all("noise", any);
}

Test(near, a_single_card_is_taken_where_it_breaks_up_least) {
    build(pcie, 8);
    cr_assert_eq(vg_near_pick(machine, 0xfe, 1), 0x02u, "its pair is gone already");
    cr_assert_eq(vg_near_pick(machine, 0xfc, 1), 0x04u, "the smaller socket");
    cr_assert_eq(vg_near_pick(machine, 0xf3, 2), 0x03u, "a pair that is alone, not half a quad");
    build(cube, 8);
    cr_assert_eq(vg_near_pick(machine, 0xff, 4), 0x0fu);
    cr_assert_eq(vg_near_pick(machine, 0xf1, 1), 0x01u);
}

Test(near, four_of_a_machine_with_switches_stay_on_one_socket) {
    build(switched, 8);
    cr_assert_eq(vg_near_pick(machine, 0xff, 4), 0x0fu);
    cr_assert_eq(vg_near_pick(machine, 0xfe, 4), 0xf0u);
    cr_assert_eq(vg_near_pick(machine, 0xee, 2), 0x06u);
}

/* More cards than can be gone through: never worse than neighbours, and the groups are seen. */
static uint8_t large(uint32_t a, uint32_t b) {
    return a / 8 == b / 8 ? LINK18 : a / 32 == b / 32 ? NODE : SYS;
}

Test(near, many_cards_are_chosen_by_neighbourhood) {
    build(large, 64);
    cr_assert_eq(vg_near_pick(machine, UINT64_MAX, 8), 0xffu);
    cr_assert_eq(vg_near_pick(machine, UINT64_MAX ^ 1, 8), 0xff00u);
    cr_assert_eq(vg_near_pick(machine, UINT64_MAX ^ 1, 7), 0xfeu);
    cr_assert_eq(vg_near_pick(machine, UINT64_MAX ^ 1, 32), 0xffffffffull << 32);
    cr_assert_eq(__builtin_popcountll(vg_near_pick(machine, UINT64_MAX, 33)), 33);
    cr_assert_eq(vg_near_pick(machine, UINT64_MAX, 64), UINT64_MAX);
}

Test(near, nothing_is_known_of_some_and_nothing_is_asked) {
    cr_assert_eq(vg_near_pick(NULL, 0xf0, 2), 0x30u, "the lowest");
    build(pcie, 8);
    cr_assert_eq(vg_near_pick(machine, 0xf0, 0), 0u);
    cr_assert_eq(vg_near_pick(machine, 0x30, 5), 0x30u, "all there are");
    cr_assert_eq(vg_near_pick(machine, 0xff00, 1), 0u, "cards that it does not have");
    set(0, 1, 0);
    cr_assert(!vg_near_flat(machine, 0x0f));
    cr_assert(vg_near_flat(machine, 0x03));
    cr_assert(vg_near_flat(machine, 0));
}

/* ------------------------------------------------------------------ in the engine */

static struct vg_eng *one_node(const uint8_t (*far)[VG_NODE_GPUS_MAX]) {
    struct vg_eng *e = kit_new(0, 0);
    struct vg_eng_gpu g[8];
    for (uint32_t i = 0; i < 8; i++)
        g[i] = (struct vg_eng_gpu){.index = i, .mem_bytes = 80ULL << 30, .numa = i / 4};
    struct vg_eng_node n = {.id = 1,
                            .name = "node",
                            .total = {.cpu_milli = 64000, .mem_bytes = 512ULL << 30},
                            .gpu = g,
                            .n_gpus = 8,
                            .far = far,
                            .usable = true};
    cr_assert_eq(vg_eng_set_node(e, &n), 0);
    return e;
}

static uint64_t started_on(struct vg_eng *e, uint64_t task) {
    struct vg_eng_decision d;
    cr_assert(vg_eng_next(e, &d));
    cr_assert_eq(d.what, VG_ENG_START);
    cr_assert_eq(d.task, task);
    return d.gpus;
}

Test(near, the_engine_places_by_distance) {
    build(pcie, 8);
    struct vg_eng *e = one_node((const uint8_t(*)[VG_NODE_GPUS_MAX])dist);
    kit_submit(e, 1, 1, 1);
    cr_assert_eq(started_on(e, 1), 0x01u);
    kit_submit(e, 2, 1, 2);
    cr_assert_eq(started_on(e, 2), 0x0cu, "a pair on the socket that is begun");
    kit_submit(e, 3, 1, 4);
    cr_assert_eq(started_on(e, 3), 0xf0u);
    vg_eng_free(e);
}

Test(near, without_distances_islands_and_sockets_tell) {
    struct vg_eng *e = one_node(NULL);
    kit_submit(e, 1, 1, 1);
    cr_assert_eq(started_on(e, 1), 0x01u);
    kit_submit(e, 2, 1, 4);
    cr_assert_eq(started_on(e, 2), 0xf0u);
    vg_eng_free(e);
}

/* ------------------------------------------------------------------ parts of cards */

static void add_node(struct vg_eng *e, uint64_t id, bool parts) {
    struct vg_eng_gpu g[2] = {{.index = 0, .mem_bytes = 16ULL << 30},
                              {.index = 1, .mem_bytes = 16ULL << 30}};
    struct vg_eng_node n = {.id = id,
                            .name = "node",
                            .total = {.cpu_milli = 64000, .mem_bytes = 512ULL << 30},
                            .gpu = g,
                            .n_gpus = 2,
                            .parts = parts,
                            .usable = true};
    cr_assert_eq(vg_eng_set_node(e, &n), 0);
}

static uint64_t node_for(struct vg_eng *e, uint64_t task, uint32_t gpus, uint8_t class) {
    struct vg_eng_req r = kit_req(task, 1, gpus);
    struct vg_eng_decision d;
    r.gpu_class = class;
    kit_send(e, &r);
    return vg_eng_next(e, &d) ? d.node : 0;
}

Test(near, parts_of_cards_are_for_those_who_ask_for_parts) {
    struct vg_eng *e = kit_new(0, 0);
    add_node(e, 1, true);
    add_node(e, 2, false);
    cr_assert_eq(node_for(e, 1, 1, VG_CLASS_DEDICATED), 2u);
    cr_assert_eq(node_for(e, 2, 1, VG_CLASS_MIG), 1u);
    cr_assert_eq(node_for(e, 3, 1, VG_CLASS_MIG), 1u);
    cr_assert_eq(node_for(e, 4, 1, VG_CLASS_MIG), 0u, "the whole card that is free is not for it");
    cr_assert_eq(node_for(e, 5, 1, VG_CLASS_DEDICATED), 2u);
    cr_assert_eq(node_for(e, 6, 1, VG_CLASS_DEDICATED), 0u);
    add_node(e, 1, false); /* the same machine, its card whole again, once its parts are free */
    vg_eng_release(e, 2, VG_ENG_ENDED);
    struct vg_eng_decision d;
    cr_assert(vg_eng_next(e, &d));
    cr_assert_eq(d.task, 6u);
    cr_assert_eq(d.node, 1u);
    vg_eng_free(e);
}

Test(near, members_on_one_node_get_neighbours) {
    /* Pairs are (0,4), (1,5), (2,6), (3,7): not as they are counted. */
    for (uint32_t a = 0; a < 8; a++)
        for (uint32_t b = 0; b < 8; b++)
            dist[a][b] = a == b ? 0 : a % 4 == b % 4 ? PIX : SYS;
    struct vg_eng *e = one_node((const uint8_t(*)[VG_NODE_GPUS_MAX])dist);
    struct vg_eng_req r = kit_req(1, 1, 2);
    uint64_t ids[] = {1, 2, 3};
    struct vg_err err = VG_ERR_INIT;
    r.gang = 1;
    cr_assert_eq(vg_eng_submit_gang(e, &r, ids, 3, &err), 0, "%s", err.msg);
    for (uint64_t i = 1; i <= 3; i++)
        cr_assert_eq(started_on(e, i), 0x11ull << (i - 1));
    vg_eng_free(e);
}
