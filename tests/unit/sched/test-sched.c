/* The scheduler: order, fit, sessions, explanations, and a seeded random run with the invariants
   checked after every step. */
#include "base/cleanup.h"
#include "base/util.h"
#include "sched/sched.h"

#include <criterion/criterion.h>

static struct vg_pool_conf pool = {.name = "a100-1", .description = ""};
static struct vg_pool_conf cpu_pool = {.name = "cpu", .description = ""};

static struct vg_sched *make(void) {
    struct vg_sched *s = vg_sched_new();
    cr_assert(s);
    cr_assert_eq(vg_sched_set_pool(s, &pool), 0);
    return s;
}

static void node(struct vg_sched *s, uint64_t id, uint32_t cpu_milli, uint32_t gpus, bool usable) {
    struct vg_sched_node n = {.id = id,
                              .name = id == 1 ? "n1" : "nx",
                              .total = {.cpu_milli = cpu_milli, .mem_bytes = 1 << 30, .gpus = gpus},
                              .gpus = gpus == 64 ? ~0ULL : (1ULL << gpus) - 1,
                              .usable = usable};
    cr_assert_eq(vg_sched_set_node(s, &n), 0);
}

static int submit(struct vg_sched *s, uint64_t id, uint32_t cpu_milli, uint32_t gpus,
                  uint64_t pin) {
    struct vg_err err = VG_ERR_INIT;
    struct vg_sched_req r = {.task = id,
                             .pool = "a100-1",
                             .res = {.cpu_milli = cpu_milli, .gpus = gpus},
                             .order = id,
                             .node = pin};
    return vg_sched_submit(s, &r, &err);
}

static uint64_t next(struct vg_sched *s, uint64_t *node_id) {
    struct vg_sched_place p;
    if (!vg_sched_next(s, &p))
        return 0;
    cr_assert_eq((uint32_t)__builtin_popcountll(p.gpus), p.res.gpus);
    if (node_id)
        *node_id = p.node;
    return p.task;
}

static const char *why(struct vg_sched *s, uint64_t task) {
    static char text[256];
    vg_sched_explain(s, task, text, sizeof text);
    return text;
}

Test(sched, first_come_is_first_served) {
    struct vg_sched *s = make();
    node(s, 1, 1000, 0, true);
    for (uint64_t i = 5; i >= 1; i--)
        cr_assert_eq(submit(s, i, 1000, 0, 0), 0);
    for (uint64_t i = 1; i <= 5; i++) {
        cr_assert_eq(next(s, NULL), i);
        cr_assert_eq(next(s, NULL), 0);
        vg_sched_release(s, i);
    }
    cr_assert_eq(vg_sched_queued(s), 0);
    vg_sched_free(s);
}

Test(sched, higher_priority_goes_first) {
    struct vg_sched *s = make();
    struct vg_err err = VG_ERR_INIT;
    for (uint32_t i = 1; i <= 3; i++) {
        struct vg_sched_req r = {.task = i, .pool = "a100-1", .priority = i, .order = i};
        cr_assert_eq(vg_sched_submit(s, &r, &err), 0);
    }
    node(s, 1, 1000, 0, true);
    cr_assert_eq(next(s, NULL), 3);
    cr_assert_eq(next(s, NULL), 2);
    cr_assert_eq(next(s, NULL), 1);
    vg_sched_free(s);
}

Test(sched, nobody_overtakes_the_first) {
    struct vg_sched *s = make();
    node(s, 1, 4000, 0, true);
    submit(s, 1, 3000, 0, 0);
    submit(s, 2, 4000, 0, 0);
    submit(s, 3, 500, 0, 0);
    cr_assert_eq(next(s, NULL), 1);
    cr_assert_eq(next(s, NULL), 0, "task 3 fits, but would delay task 2");
    vg_sched_release(s, 1);
    cr_assert_eq(next(s, NULL), 2);
    vg_sched_release(s, 2);
    cr_assert_eq(next(s, NULL), 3);
    vg_sched_free(s);
}

Test(sched, what_fits_no_usable_node_holds_nobody_up_and_returns_to_its_place) {
    struct vg_sched *s = make();
    node(s, 1, 1000, 0, true);
    node(s, 2, 8000, 0, false);
    cr_assert_eq(submit(s, 1, 8000, 0, 0), 0);
    submit(s, 2, 1000, 0, 0);
    submit(s, 3, 1000, 0, 0);
    cr_assert_eq(next(s, NULL), 2);
    cr_assert_eq(next(s, NULL), 0);
    cr_assert_str_eq(why(s, 1), "queued: the nodes of pool 'a100-1' that are large enough take no "
                                "tasks now");
    cr_assert_null(vg_sched_check(s));
    node(s, 2, 8000, 0, true);
    uint64_t at;
    cr_assert_eq(next(s, &at), 1);
    cr_assert_eq(at, 2);
    vg_sched_free(s);
}

Test(sched, gpus_are_packed_and_never_shared) {
    struct vg_sched *s = make();
    uint64_t at;
    node(s, 1, 8000, 8, true);
    node(s, 2, 8000, 2, true);
    submit(s, 1, 0, 2, 0);
    cr_assert_eq(next(s, &at), 1);
    cr_assert_eq(at, 2, "the node where the fewest stay free");
    submit(s, 2, 0, 8, 0);
    cr_assert_eq(next(s, &at), 2);
    cr_assert_eq(at, 1);
    submit(s, 3, 0, 1, 0);
    cr_assert_eq(next(s, NULL), 0);
    struct vg_sched_node_info info;
    cr_assert_eq(vg_sched_node_info(s, 1, &info), 0);
    cr_assert_eq(info.gpus_used, 0xff);
    cr_assert_null(vg_sched_check(s));
    vg_sched_free(s);
}

Test(sched, tasks_without_gpus_spread_over_nodes) {
    struct vg_sched *s = make();
    uint64_t at, count[3] = {0};
    node(s, 1, 8000, 0, true);
    node(s, 2, 8000, 0, true);
    for (uint64_t i = 1; i <= 10; i++) {
        submit(s, i, 0, 0, 0);
        cr_assert_eq(next(s, &at), i);
        count[at]++;
    }
    cr_assert(count[1] == 5 && count[2] == 5);
    vg_sched_free(s);
}

Test(sched, a_thousand_tasks_that_reserve_nothing_fit_on_one_small_node) {
    struct vg_sched *s = make();
    node(s, 1, 2000, 0, true);
    for (uint64_t i = 1; i <= 1000; i++) {
        cr_assert_eq(submit(s, i, 0, 0, 0), 0);
        cr_assert_eq(next(s, NULL), i);
    }
    vg_sched_free(s);
}

Test(sched, a_session_stays_on_its_node_and_its_node_is_kept_for_it) {
    struct vg_sched *s = make();
    uint64_t at;
    node(s, 1, 1000, 0, true);
    node(s, 2, 1000, 0, true);
    submit(s, 1, 500, 0, 1);
    cr_assert_eq(next(s, &at), 1);
    cr_assert_eq(at, 1);
    submit(s, 2, 800, 0, 1);
    cr_assert_eq(next(s, NULL), 0);
    cr_assert_str_eq(why(s, 2),
                     "queued: waiting for 0.8 CPUs on node n1, where the session is (0.5 free)");
    submit(s, 3, 100, 0, 0);
    cr_assert_eq(next(s, &at), 3);
    cr_assert_eq(at, 2, "node 1 is kept for task 2");
    vg_sched_release(s, 1);
    cr_assert_eq(next(s, &at), 2);
    cr_assert_eq(at, 1);
    cr_assert_null(vg_sched_check(s));
    vg_sched_release(s, 2);
    submit(s, 4, 1000, 0, 0);
    cr_assert_eq(next(s, &at), 4);
    cr_assert_eq(at, 1, "and free again for everybody");
    vg_sched_free(s);
}

Test(sched, a_session_waits_for_a_node_that_is_away) {
    struct vg_sched *s = make();
    uint64_t at;
    node(s, 1, 1000, 0, true);
    submit(s, 1, 0, 0, 7);
    cr_assert_eq(next(s, NULL), 0);
    cr_assert_str_eq(why(s, 1), "queued: the session's node is away or too small now");
    node(s, 7, 1000, 0, true);
    cr_assert_eq(next(s, &at), 1);
    cr_assert_eq(at, 7);
    submit(s, 2, 1000, 0, 7);
    submit(s, 3, 1000, 0, 7);
    cr_assert_eq(next(s, NULL), 2);
    vg_sched_remove_node(s, 7);
    cr_assert_null(vg_sched_check(s));
    cr_assert_eq(next(s, NULL), 0);
    node(s, 7, 1000, 0, true);
    cr_assert_eq(next(s, NULL), 3);
    vg_sched_free(s);
}

Test(sched, draining_keeps_tasks_and_takes_none) {
    struct vg_sched *s = make();
    struct vg_sched_node_info info;
    node(s, 1, 1000, 0, true);
    submit(s, 1, 500, 0, 0);
    cr_assert_eq(next(s, NULL), 1);
    node(s, 1, 1000, 0, false);
    submit(s, 2, 100, 0, 0);
    cr_assert_eq(next(s, NULL), 0);
    cr_assert_str_eq(why(s, 2),
                     "queued: no node of pool 'a100-1' takes tasks now (1 draining, lost or away)");
    cr_assert_eq(vg_sched_node_info(s, 1, &info), 0);
    cr_assert_eq(info.tasks, 1);
    node(s, 1, 1000, 0, true);
    cr_assert_eq(next(s, NULL), 2);
    vg_sched_free(s);
}

Test(sched, explains_waiting_and_refuses_what_can_never_run) {
    struct vg_sched *s = make();
    struct vg_err err = VG_ERR_INIT;
    char text[256];
    cr_assert_eq(submit(s, 1, 0, 8, 0), 0);
    cr_assert_str_eq(why(s, 1),
                     "queued: pool 'a100-1' has no nodes yet; 'virga node invite' adds one");
    node(s, 1, 4000, 4, true);
    cr_assert_eq(next(s, NULL), 0);
    cr_assert_str_eq(why(s, 1), "queued: no node of pool 'a100-1' has 8 GPUs (largest has 4)");
    struct vg_sched_req r = {.task = 9, .pool = "a100-1", .res = {.gpus = 8}};
    cr_assert_eq(vg_sched_submit(s, &r, &err), -ENOSPC);
    cr_assert_eq(err.reason, VG_NO_CAPACITY);
    cr_assert_str_eq(err.msg,
                     "no node of pool 'a100-1' has 8 GPUs (largest has 4); ask for less or "
                     "choose another pool");
    r.pool = "nowhere";
    cr_assert_eq(vg_sched_submit(s, &r, &err), -ENOENT);
    submit(s, 2, 0, 4, 0);
    cr_assert_eq(next(s, NULL), 2);
    submit(s, 3, 0, 1, 0);
    submit(s, 4, 0, 1, 0);
    submit(s, 5, 0, 1, 0);
    cr_assert_eq(next(s, NULL), 0);
    cr_assert_str_eq(why(s, 3),
                     "queued: you are next on a100-1, waiting for 1 GPU (the most free on "
                     "a node is 0)");
    cr_assert_eq(vg_sched_explain(s, 5, text, sizeof text), 2);
    cr_assert_str_eq(text, "queued: 2 ahead of you on a100-1");
    cr_assert_eq(vg_sched_explain(s, 2, text, sizeof text), -ENOENT);
    cr_assert_str_eq(text, "");
    vg_sched_free(s);
}

Test(sched, adopted_tasks_count_even_beyond_the_node) {
    struct vg_sched *s = make();
    struct vg_sched_node_info info;
    node(s, 1, 1000, 1, true);
    struct vg_sched_req r = {.task = 1, .pool = "a100-1", .res = {.cpu_milli = 800, .gpus = 1}};
    cr_assert_eq(vg_sched_adopt(s, &r, 2, 1), -ENOENT);
    cr_assert_eq(vg_sched_adopt(s, &r, 1, 1), 0);
    cr_assert_eq(vg_sched_adopt(s, &r, 1, 1), -EEXIST);
    r.task = 2;
    cr_assert_eq(vg_sched_adopt(s, &r, 1, 1), 0);
    vg_sched_node_info(s, 1, &info);
    cr_assert_eq(info.used.cpu_milli, 1600);
    vg_sched_release(s, 1);
    cr_assert_null(vg_sched_check(s));
    submit(s, 3, 0, 1, 0);
    cr_assert_eq(next(s, NULL), 0, "the other adopted task still holds the GPU");
    vg_sched_release(s, 2);
    cr_assert_eq(next(s, NULL), 3);
    submit(s, 4, 500, 0, 0);
    r.task = 4;
    cr_assert_eq(vg_sched_adopt(s, &r, 1, 0), 0, "a waiting task may turn out to run");
    cr_assert_eq(vg_sched_queued(s), 0);
    vg_sched_free(s);
}

Test(sched, pools_choose_nodes_by_label) {
    struct vg_label want = {"gpu", "a100"};
    struct vg_pool_conf chosen = {
        .name = "a100-1", .nodes = {.item = &want, .n = 1}, .shape = {.cpu_milli = 500}};
    struct vg_sched *s = vg_sched_new();
    struct vg_sched_pool_info info;
    vg_sched_set_pool(s, &chosen);
    vg_sched_set_pool(s, &cpu_pool);
    char *labels[] = {"rack=1", "gpu=a100"};
    struct vg_sched_node n = {.id = 1, .name = "a", .total = {.cpu_milli = 2000}, .usable = true};
    vg_sched_set_node(s, &n);
    submit(s, 1, 100, 0, 0);
    cr_assert_eq(next(s, NULL), 0);
    n.labels = labels;
    n.n_labels = 2;
    vg_sched_set_node(s, &n);
    cr_assert_eq(next(s, NULL), 1);
    cr_assert_eq(vg_sched_pool_info(s, "a100-1", &info), 0);
    cr_assert(info.nodes == 1 && info.running == 1 && info.total_slots == 4 &&
              info.free_slots == 3);
    cr_assert_eq(vg_sched_pool_info(s, "cpu", &info), 0);
    cr_assert(info.nodes == 1 && info.running == 0);
    vg_sched_free(s);
}

/* --- a seeded random run --- */

static uint64_t rng;
static uint32_t roll(uint32_t n) {
    rng ^= rng << 13;
    rng ^= rng >> 7;
    rng ^= rng << 17;
    return (uint32_t)(rng >> 32) % n;
}

#define NODES 12
#define TASKS 300

/* One step of the storm; also keeps its own books of who holds what. */
struct books {
    uint64_t cpu[NODES + 1], gpus[NODES + 1], on[TASKS + 1], held[TASKS + 1];
    uint32_t need[TASKS + 1];
};

static void random_event(struct vg_sched *s, struct books *b) {
    uint64_t id = 1 + roll(TASKS), n = 1 + roll(NODES);
    switch (roll(10)) {
    case 0:
        node(s, n, 4000, 4, roll(4) != 0);
        break;
    case 1:
    case 2:
    case 3:
    case 4:
        vg_sched_release(s, id);
        if (b->on[id]) {
            b->cpu[b->on[id]] -= b->need[id];
            b->gpus[b->on[id]] &= ~b->held[id];
            b->on[id] = 0;
        }
        break;
    default: {
        uint32_t cpu = roll(5) * 500;
        if (submit(s, id, cpu, roll(3) ? 0 : 1 + roll(4), roll(8) ? 0 : n) == 0)
            b->need[id] = cpu;
    }
    }
}

static void take_all(struct vg_sched *s, struct books *b) {
    struct vg_sched_place p;
    while (vg_sched_next(s, &p)) {
        cr_assert_eq(b->on[p.task], 0, "task %llu is placed twice", (unsigned long long)p.task);
        cr_assert_eq(b->gpus[p.node] & p.gpus, 0, "a GPU is promised twice");
        b->on[p.task] = p.node;
        b->held[p.task] = p.gpus;
        b->gpus[p.node] |= p.gpus;
        b->cpu[p.node] += p.res.cpu_milli;
        cr_assert_leq(b->cpu[p.node], 4000, "node %llu is promised beyond its CPUs",
                      (unsigned long long)p.node);
    }
}

Test(sched, random_events_never_promise_anything_twice) {
    for (uint64_t seed = 1; seed <= 20; seed++) {
        struct vg_sched *s = make();
        struct books b = {0};
        rng = seed * 0x9e3779b97f4a7c15ULL;
        for (uint64_t i = 1; i <= NODES; i++)
            node(s, i, 4000, 4, true);
        for (int step = 0; step < 2000; step++) {
            random_event(s, &b);
            take_all(s, &b);
            const char *bad = vg_sched_check(s);
            cr_assert_null(bad, "seed %llu step %d: %s", (unsigned long long)seed, step, bad);
        }
        vg_sched_free(s);
    }
}

Test(sched, the_same_events_give_the_same_decisions) {
    uint64_t sum[2] = {0};
    for (int run = 0; run < 2; run++) {
        struct vg_sched *s = make();
        struct vg_sched_place p;
        rng = 42;
        for (uint64_t i = 1; i <= NODES; i++)
            node(s, i, 4000, 4, true);
        for (int step = 0; step < 3000; step++) {
            uint64_t id = 1 + roll(TASKS);
            if (roll(2))
                vg_sched_release(s, id);
            else
                submit(s, id, roll(5) * 500, roll(3), 0);
            while (vg_sched_next(s, &p))
                sum[run] = sum[run] * 31 + p.task * 7 + p.node * 3 + p.gpus;
        }
        vg_sched_free(s);
    }
    cr_assert_eq(sum[0], sum[1]);
    cr_assert_neq(sum[0], 0);
}

/* Counts, not seconds: a pass over everything for each event would be 10^4 x 10^3 steps each and
   would not end within the test's limit. */
Test(sched, ten_thousand_tasks_on_a_thousand_nodes, .timeout = 60) {
    struct vg_sched *s = make();
    struct vg_sched_place p;
    size_t placed = 0;
    for (uint64_t i = 1; i <= 1000; i++)
        node(s, i, 1000, 0, true);
    for (uint64_t i = 1; i <= 100000; i++)
        cr_assert_eq(submit(s, i, 1000, 0, 0), 0);
    for (uint64_t done = 0; done < 100000; placed = 0) {
        static uint64_t batch[1000];
        while (vg_sched_next(s, &p))
            batch[placed++] = p.task;
        cr_assert_eq(placed, 1000);
        for (size_t i = 0; i < placed; i++)
            vg_sched_release(s, batch[i]);
        done += placed;
    }
    cr_assert_eq(vg_sched_queued(s), 0);
    vg_sched_free(s);
}
