/* Placement: the index answers as a search of every node does, books are right after every event,
   GPU sets and shares go where they should, gangs stay together. */
#include "engine-kit.h"
#include "sched/place.h"

#include <stdlib.h>

/* --- a world to draw from --- */

#define NODES 48
#define TASKS_MAX 400

struct world {
    struct vg_eng *e;
    uint64_t rng;
    struct etask *task[TASKS_MAX];
    size_t n_tasks;
    uint64_t next_id;
};

static uint64_t draw(struct world *w, uint64_t below) {
    w->rng += 0x9e3779b97f4a7c15ULL;
    return tree_mix(w->rng) % below;
}

static void put_node(struct world *w, uint64_t id) {
    static const char *const models[] = {"A100", "H100", "T4", ""};
    static const char *const racks[] = {"r1", "r2", "r3", NULL};
    static char *labels[][2] = {{"zone=a", "disk=fast"}, {"zone=b", "disk=slow"}};
    struct vg_eng_gpu g[16] = {0};
    uint64_t h = tree_mix(id); /* what a node is stays; what happens to it is drawn */
    uint32_t n_gpus = (uint32_t)(h % 5 * 2);
    for (uint32_t i = 0; i < n_gpus; i++)
        g[i] = (struct vg_eng_gpu){.index = i,
                                   .mem_bytes = (h >> 8 & 1 ? 80ULL : 16ULL) << 30,
                                   .island = h >> 9 & 1 ? 1 + i / 4 : 0,
                                   .numa = i / 2,
                                   .bad = draw(w, 12) == 0};
    struct vg_eng_node n = {
        .id = id,
        .name = "n",
        .total = {.cpu_milli = 8000 + (uint32_t)(h >> 16 & 7) * 8000, .mem_bytes = 64ULL << 30},
        .gpu = g,
        .n_gpus = n_gpus,
        .model = models[h >> 20 & 3],
        .rack = racks[h >> 24 & 3],
        .labels = labels[h >> 28 & 1],
        .n_labels = 2,
        .usable = draw(w, 6) != 0,
        .max_tasks = h >> 32 & 1 ? 0 : 7};
    cr_assert_eq(vg_eng_set_node(w->e, &n), 0);
}

static struct world make(uint64_t seed) {
    struct world w = {.e = vg_eng_new(), .rng = seed};
    static char *zone_a[] = {"zone=a"}, *fast[] = {"disk=fast"};
    struct vg_eng_pool p[] = {{.name = "a", .id = 1, .labels = zone_a, .n_labels = 1},
                              {.name = "fast", .id = 2, .labels = fast, .n_labels = 1},
                              {.name = "all", .id = 3}};
    for (size_t i = 0; i < VG_COUNT(p); i++)
        cr_assert_eq(vg_eng_set_pool(w.e, &p[i]), 0);
    for (uint64_t id = 1; id <= NODES; id++)
        put_node(&w, id);
    return w;
}

static void unmake(struct world *w) {
    for (size_t i = 0; i < w->n_tasks; i++) {
        vg_node_give(w->e, w->task[i]->node, w->task[i]);
        vg_fit_put(w->e, w->task[i]->fit);
        free(w->task[i]);
    }
    vg_eng_free(w->e);
}

/* One of a few, so that their indexes are asked again and again. */
static struct vg_eng_req some_request(struct world *from) {
    struct world like = {.rng = tree_mix(draw(from, 24) + 1)}, *w = &like;
    static const char *const models[] = {"", "", "", "A100", "A100|H100", "T4|A100"};
    static char *slow[] = {"disk=slow"};
    struct vg_eng_req r = {.tenant = 1, .model = models[draw(w, VG_COUNT(models))]};
    r.n_pools = 1 + (uint32_t)draw(w, 2);
    for (uint32_t i = 0; i < r.n_pools; i++)
        r.pool[i] = 1 + (draw(w, 3) + i) % 3;
    if (draw(w, 8) == 0) {
        r.labels = slow;
        r.n_labels = 1;
    }
    r.res.cpu_milli = 500 * (uint32_t)draw(w, 8);
    r.res.mem_bytes = draw(w, 4) << 30;
    switch (draw(w, 4)) {
    case 0:
        break;
    case 1:
        r.res.gpus = 1u << draw(w, 4);
        r.res.gpu_mem_bytes = draw(w, 3) == 0 ? 40ULL << 30 : 0;
        break;
    default:
        r.res.gpu_milli = 50 * (1 + (uint32_t)draw(w, 19));
        r.gpu_class = (uint8_t)draw(w, 3);
        r.res.gpu_mem_bytes = draw(w, 3) == 0 ? (2 + draw(w, 20)) << 30 : 0;
    }
    return r;
}

/* --- books --- */

/* What a node says is free, against what its tasks hold. */
static void check_node(const struct enode *n) {
    int64_t cpu = n->total.cpu_milli, mem = (int64_t)n->total.mem_bytes;
    int32_t milli[VG_NODE_GPUS_MAX];
    int64_t gpu_mem[VG_NODE_GPUS_MAX];
    uint32_t holders[VG_NODE_GPUS_MAX] = {0}, tasks = 0, whole = 0;
    for (uint32_t i = 0; i < n->n_gpus; i++) {
        milli[i] = 1000;
        gpu_mem[i] = (int64_t)n->gpu[i].mem;
    }
    vg_list_for_each (it, &n->tasks) {
        const struct etask *t = vg_list_entry(it, struct etask, on_node);
        cpu -= t->fit->res.cpu_milli;
        mem -= (int64_t)t->fit->res.mem_bytes;
        tasks++;
        for (uint32_t i = 0; i < n->n_gpus; i++)
            if (t->gpus >> i & 1) {
                milli[i] -= t->fit->res.gpus ? 1000 : (int32_t)t->fit->res.gpu_milli;
                gpu_mem[i] -= (int64_t)vg_fit_card_mem(t->fit, n->gpu[i].mem);
                holders[i]++;
                cr_assert_eq(t->fit->gpu_class, n->gpu[i].gpu_class, "classes are not mixed");
            }
    }
    cr_assert_eq(cpu, n->cpu_free);
    cr_assert_eq(mem, n->mem_free);
    cr_assert_geq(cpu, 0);
    cr_assert_geq(mem, 0);
    cr_assert_eq(tasks, n->n_tasks);
    cr_assert_leq(tasks, n->max_tasks);
    for (uint32_t i = 0; i < n->n_gpus; i++) {
        const struct egpu *g = &n->gpu[i];
        cr_assert(g->free_milli == milli[i] && g->free_mem == gpu_mem[i] && g->tasks == holders[i]);
        cr_assert(milli[i] >= 0 && gpu_mem[i] >= 0);
        cr_assert_eq(g->room, vg_card_room(g));
        whole += !g->bad && holders[i] == 0;
    }
    cr_assert_eq(whole, n->whole_free);
}

/* The GPUs are what was asked for, healthy and free. */
static void check_spot(const struct fit *f, const struct spot *s) {
    uint32_t want = f->res.gpus ? f->res.gpus : f->res.gpu_milli ? 1 : 0;
    cr_assert_eq((uint32_t)__builtin_popcountll(s->gpus), want);
    for (uint32_t i = 0; i < VG_NODE_GPUS_MAX; i++) {
        if (!(s->gpus >> i & 1))
            continue;
        cr_assert_lt(i, s->node->n_gpus);
        const struct egpu *g = &s->node->gpu[i];
        cr_assert(!g->bad);
        cr_assert(f->res.gpus ? g->tasks == 0 && g->mem >= f->res.gpu_mem_bytes
                              : vg_card_takes_share(f, g));
    }
}

/* --- the index against a search of every node --- */

static void ask(struct world *w) {
    struct vg_eng_req r = some_request(w);
    struct fit *f = vg_fit_get(w->e, &r);
    struct spot a = {0}, b = {0};
    enum vg_eng_code ca = VG_ENG_FREE, cb = VG_ENG_FREE;
    uint64_t env = draw(w, 3), until = draw(w, 2) ? 50 : VG_ENG_NEVER;
    int found = vg_fit_find(w->e, f, NULL, until, env, &a, &ca);
    cr_assert_eq(found, vg_fit_find_plain(w->e, f, NULL, until, env, &b, &cb));
    if (!found) {
        cr_assert_eq(ca, cb);
        vg_fit_put(w->e, f);
        return;
    }
    cr_assert(a.node == b.node && a.pool == b.pool && a.gpus == b.gpus);
    check_spot(f, &a);
    struct etask *t = w->n_tasks < TASKS_MAX ? calloc(1, sizeof *t) : NULL;
    if (!t) {
        vg_fit_put(w->e, f);
        return;
    }
    t->id = ++w->next_id;
    t->fit = f;
    vg_node_take(w->e, a.node, t, a.gpus);
    w->task[w->n_tasks++] = t;
    check_node(a.node);
}

static void end_one(struct world *w) {
    if (!w->n_tasks)
        return;
    size_t k = draw(w, w->n_tasks);
    struct etask *t = w->task[k];
    struct enode *n = t->node;
    w->task[k] = w->task[--w->n_tasks];
    vg_node_give(w->e, n, t);
    vg_fit_put(w->e, t->fit);
    free(t);
    check_node(n);
}

static void close_for_maintenance(struct world *w) {
    uint64_t id = 1 + draw(w, 5);
    struct vg_eng_window x = {
        .id = id, .from_usec = 100, .until_usec = 200, .node = 1 + draw(w, NODES), .why = "test"};
    if (draw(w, 2))
        cr_assert_eq(vg_eng_set_window(w->e, &x), 0);
    else
        vg_eng_remove_window(w->e, id);
}

static void learn(struct world *w) {
    struct vg_eng_mix mix[6];
    for (size_t i = 0; i < VG_COUNT(mix); i++) {
        struct vg_eng_req r = some_request(w);
        mix[i] = (struct vg_eng_mix){.res = r.res, .model = r.model, .count = 1 + draw(w, 50)};
    }
    cr_assert_eq(vg_eng_set_mix(w->e, mix, VG_COUNT(mix)), 0);
}

static void storm(uint64_t seed, enum vg_eng_placing placing) {
    struct world w = make(seed);
    struct vg_eng_conf c = vg_eng_conf_default();
    c.placing = placing;
    cr_assert_eq(vg_eng_set_conf(w.e, &c), 0);
    for (int i = 0; i < 4000; i++) {
        uint64_t what = draw(&w, 100);
        if (what < 60)
            ask(&w);
        else if (what < 85)
            end_one(&w);
        else if (what < 90)
            vg_eng_set_cached(w.e, 1 + draw(&w, NODES), 1 + draw(&w, 2), draw(&w, 3) != 0);
        else if (what < 95)
            put_node(&w, 1 + draw(&w, NODES));
        else if (what < 98)
            close_for_maintenance(&w);
        else
            learn(&w);
        if (i % 16 == 0)
            cr_assert_null(vg_place_check(w.e), "%s", vg_place_check(w.e));
    }
    for (size_t i = 0; i < w.e->n_nodes; i++)
        check_node(w.e->node[i]);
    unmake(&w);
}

Test(place, the_index_answers_as_a_search_of_every_node) {
    for (uint64_t seed = 1; seed <= 4; seed++)
        storm(seed, VG_ENG_LEAST_STRANDED);
}

Test(place, so_it_does_for_the_other_policies) {
    storm(11, VG_ENG_BEST_FIT);
    storm(12, VG_ENG_SPREAD);
}

/* --- cards --- */

static struct spot find_class(struct vg_eng *e, struct vg_res res, uint8_t gpu_class) {
    struct vg_eng_req r = {.pool = {1}, .n_pools = 1, .res = res, .gpu_class = gpu_class};
    struct fit *f = vg_fit_get(e, &r);
    struct spot s = {0};
    enum vg_eng_code c;
    if (!vg_fit_find(e, f, NULL, 0, 0, &s, &c))
        s.node = NULL;
    vg_fit_put(e, f);
    return s;
}

static struct spot find(struct vg_eng *e, struct vg_res res) {
    return find_class(e, res, 0);
}

/* Finds and takes; the task stays until the test ends. */
static struct etask *take_class(struct vg_eng *e, struct vg_res res, uint8_t gpu_class) {
    static struct etask tasks[64];
    static size_t n;
    struct vg_eng_req r = {.pool = {1}, .n_pools = 1, .res = res, .gpu_class = gpu_class};
    struct spot s = find_class(e, res, gpu_class);
    cr_assert(s.node);
    struct etask *t = &tasks[n++];
    t->fit = vg_fit_get(e, &r);
    vg_node_take(e, s.node, t, s.gpus);
    return t;
}

static struct spot take(struct vg_eng *e, struct vg_res res) {
    struct etask *t = take_class(e, res, 0);
    return (struct spot){.node = t->node, .gpus = t->gpus};
}

Test(place, whole_cards_stay_within_one_island) {
    struct vg_eng *e = kit_new(1, 8); /* islands 0-3 and 4-7 */
    cr_assert_eq(take(e, (struct vg_res){.gpus = 1}).gpus, 0x01u);
    cr_assert_eq(take(e, (struct vg_res){.gpus = 4}).gpus, 0xf0u);
    cr_assert_eq(take(e, (struct vg_res){.gpus = 2}).gpus, 0x06u);
    cr_assert_eq(take(e, (struct vg_res){.gpus = 1}).gpus, 0x08u);
    vg_eng_free(e);
}

Test(place, a_node_whose_free_cards_are_linked_goes_first) {
    struct vg_eng *e = kit_new(2, 8);
    for (int i = 0; i < 2; i++) /* node 1: two free in each island */
        cr_assert_eq(take(e, (struct vg_res){.gpus = 1}).node->id, 1u);
    struct enode *n = vg_map_get_u64(&e->nodes, 1);
    struct vg_eng_req r = {.pool = {1}, .n_pools = 1, .res = {.gpus = 2}};
    static struct etask t;
    t.fit = vg_fit_get(e, &r);
    vg_node_take(e, n, &t, 0x30);
    cr_assert_eq(find(e, (struct vg_res){.gpus = 2}).node->id, 1u);
    cr_assert_eq(find(e, (struct vg_res){.gpus = 4}).node->id, 2u, "its four are not linked");
    vg_eng_free(e);
}

Test(place, shares_keep_to_milli_and_to_memory) {
    struct vg_eng *e = kit_new(1, 1);
    uint64_t gib = 1ULL << 30;
    take(e, (struct vg_res){.gpu_milli = 300, .gpu_mem_bytes = 60 * gib});
    cr_assert(find(e, (struct vg_res){.gpu_milli = 700, .gpu_mem_bytes = 20 * gib}).node);
    cr_assert(!find(e, (struct vg_res){.gpu_milli = 100, .gpu_mem_bytes = 21 * gib}).node);
    cr_assert(!find(e, (struct vg_res){.gpu_milli = 300}).node, "a share's part of memory is 24");
    cr_assert(find(e, (struct vg_res){.gpu_milli = 250}).node);
    cr_assert(!find(e, (struct vg_res){.gpu_milli = 701, .gpu_mem_bytes = gib}).node);
    cr_assert(!find(e, (struct vg_res){.gpus = 1}).node, "somebody is on it");
    vg_eng_free(e);
}

Test(place, a_share_joins_others_before_it_opens_a_card) {
    struct vg_eng *e = kit_new(4, 4);
    struct spot first = take(e, (struct vg_res){.gpu_milli = 500});
    struct spot second = take(e, (struct vg_res){.gpu_milli = 500});
    cr_assert(first.node == second.node && first.gpus == second.gpus);
    vg_eng_free(e);
}

Test(place, shares_of_two_classes_are_never_on_one_card) {
    struct vg_eng *e = kit_new(1, 2);
    struct vg_res fifth = {.gpu_milli = 200};
    struct etask *a = take_class(e, fifth, 1), *b = take_class(e, fifth, 2);
    cr_assert_neq(a->gpus, b->gpus, "each opens a card");
    cr_assert_eq(take_class(e, fifth, 1)->gpus, a->gpus);
    cr_assert_eq(take_class(e, fifth, 2)->gpus, b->gpus);
    cr_assert_not(find_class(e, fifth, 3).node, "both cards are of another class");
    cr_assert_not(find(e, (struct vg_res){.gpus = 1}).node);
    vg_node_give(e, b->node, b);
    cr_assert_not(find_class(e, fifth, 3).node, "one of the second class is left there");
    vg_eng_free(e);
}

Test(place, a_card_that_is_free_again_takes_another_class) {
    struct vg_eng *e = kit_new(1, 1);
    struct etask *a = take_class(e, (struct vg_res){.gpu_milli = 10}, 1);
    cr_assert_not(find_class(e, (struct vg_res){.gpu_milli = 10}, 2).node);
    vg_node_give(e, a->node, a);
    take_class(e, (struct vg_res){.gpu_milli = 10}, 2);
    cr_assert_not(find_class(e, (struct vg_res){.gpu_milli = 10}, 1).node);
    vg_eng_free(e);
}

Test(place, a_card_of_unknown_memory_is_not_divided) {
    struct vg_eng *e = kit_new(0, 0);
    struct vg_eng_gpu g = {.index = 0};
    struct vg_eng_node n = {
        .id = 1, .total = {.cpu_milli = 1000}, .gpu = &g, .n_gpus = 1, .usable = true};
    struct vg_eng_req r = {.task = 1, .tenant = 1, .pool = {1}, .n_pools = 1, .gpu_class = 1};
    struct vg_err err = VG_ERR_INIT;
    r.res = (struct vg_res){.gpu_milli = 100, .gpu_mem_bytes = 8ULL << 30};
    cr_assert_eq(vg_eng_set_node(e, &n), 0);
    cr_assert_eq(vg_eng_submit(e, &r, &err), 0, "it may turn out to be large enough: %s", err.msg);
    cr_assert_eq(kit_next(e), 0);
    g.mem_bytes = 80ULL << 30;
    cr_assert_eq(vg_eng_set_node(e, &n), 0);
    cr_assert_eq(kit_next(e), 1);
    cr_assert_null(vg_eng_check(e));
    r.task = 2;
    r.res.gpu_mem_bytes = 81ULL << 30;
    cr_assert_lt(vg_eng_submit(e, &r, &err), 0);
    cr_assert_str_eq(err.msg,
                     "no node of pool 'p' has a GPU with 81 GiB of memory (the largest has "
                     "80 GiB); ask for less or another pool");
    vg_eng_free(e);
}

Test(place, what_adoption_mixed_takes_nothing_until_it_is_free) {
    struct vg_eng *e = kit_new(1, 1);
    struct vg_eng_req r = {.tenant = 1, .pool = {1}, .n_pools = 1, .res = {.gpu_milli = 100}};
    for (uint8_t i = 1; i <= 2; i++) {
        r.task = r.gpu_class = i;
        cr_assert_eq(vg_eng_adopt(e, &r, 1, 1, 0), 0);
        cr_assert_null(vg_eng_check(e));
    }
    for (uint8_t i = 1; i <= 2; i++)
        cr_assert_not(find_class(e, r.res, i).node);
    vg_eng_release(e, 1, VG_ENG_ENDED);
    cr_assert_not(find_class(e, r.res, 2).node, "who is left there is not known any more");
    vg_eng_release(e, 2, VG_ENG_ENDED);
    cr_assert(find_class(e, r.res, 2).node);
    cr_assert_null(vg_eng_check(e));
    vg_eng_free(e);
}

Test(place, a_bad_card_takes_nothing) {
    struct vg_eng *e = kit_new(0, 0);
    struct vg_eng_gpu g[2] = {{.index = 0, .bad = true}, {.index = 1}};
    struct vg_eng_node n = {
        .id = 1, .total = {.cpu_milli = 1000}, .gpu = g, .n_gpus = 2, .usable = true};
    cr_assert_eq(vg_eng_set_node(e, &n), 0);
    cr_assert_eq(take(e, (struct vg_res){.gpu_milli = 600}).gpus, 0x2u);
    cr_assert(!find(e, (struct vg_res){.gpu_milli = 600}).node);
    cr_assert(!find(e, (struct vg_res){.gpus = 1}).node);
    g[0].bad = false;
    cr_assert_eq(vg_eng_set_node(e, &n), 0);
    cr_assert_eq(find(e, (struct vg_res){.gpus = 1}).gpus, 0x1u);
    vg_eng_free(e);
}

Test(place, tasks_without_a_gpu_stay_off_nodes_that_have_them) {
    struct vg_eng *e = kit_new(3, 8);
    struct vg_eng_node n = {.id = 9, .total = {.cpu_milli = 64000}, .usable = true};
    cr_assert_eq(vg_eng_set_node(e, &n), 0);
    cr_assert_eq(find(e, (struct vg_res){.cpu_milli = 4000}).node->id, 9u);
    vg_eng_free(e);
}

/* --- pools, hints --- */

Test(place, pools_are_tried_in_order) {
    struct vg_eng *e = vg_eng_new();
    static char *label[][1] = {{"p=1"}, {"p=2"}};
    for (uint64_t i = 1; i <= 2; i++) {
        struct vg_eng_pool p = {.name = "p", .id = i, .labels = label[i - 1], .n_labels = 1};
        struct vg_eng_node n = {.id = i,
                                .total = {.cpu_milli = 1000},
                                .labels = label[i - 1],
                                .n_labels = 1,
                                .usable = true};
        cr_assert_eq(vg_eng_set_pool(e, &p), 0);
        cr_assert_eq(vg_eng_set_node(e, &n), 0);
    }
    for (uint64_t first = 1; first <= 2; first++) {
        struct vg_eng_req r = {.pool = {first, 3 - first}, .n_pools = 2, .res.cpu_milli = 1000};
        struct fit *f = vg_fit_get(e, &r);
        struct spot s;
        enum vg_eng_code c;
        cr_assert_eq(vg_fit_find(e, f, NULL, 0, 0, &s, &c), 1);
        cr_assert_eq(s.node->id, first);
        cr_assert_eq(s.pool->id, first);
        cr_assert_eq(vg_eng_remove_pool(e, first), -EBUSY);
        vg_fit_put(e, f);
    }
    cr_assert_eq(vg_eng_remove_pool(e, 1), 0);
    vg_eng_free(e);
}

Test(place, among_equals_the_one_that_has_the_bytes) {
    struct vg_eng *e = kit_new(20, 8);
    struct vg_eng_req r = {.pool = {1}, .n_pools = 1, .res = {.gpus = 1}};
    struct fit *f = vg_fit_get(e, &r);
    struct spot s;
    enum vg_eng_code c;
    vg_eng_set_cached(e, 13, 77, true);
    cr_assert_eq(vg_fit_find(e, f, NULL, 0, 77, &s, &c), 1);
    cr_assert_eq(s.node->id, 13u);
    vg_eng_set_cached(e, 13, 77, false);
    cr_assert_eq(vg_fit_find(e, f, NULL, 0, 77, &s, &c), 1);
    cr_assert_eq(s.node->id, 1u);
    vg_fit_put(e, f);
    vg_eng_free(e);
}

Test(place, why_nothing_was_found_is_said) {
    struct vg_eng *e = kit_new(1, 2);
    struct vg_eng_req r = {.pool = {1}, .n_pools = 1, .res = {.gpus = 2}};
    struct fit *f = vg_fit_get(e, &r);
    struct spot s;
    enum vg_eng_code c;
    take(e, (struct vg_res){.gpus = 1});
    cr_assert_eq(vg_fit_find(e, f, NULL, 0, 0, &s, &c), 0);
    cr_assert_eq(c, VG_ENG_BUSY);
    kit_node(e, 1, 2, false);
    cr_assert_eq(vg_fit_find(e, f, NULL, 0, 0, &s, &c), 0);
    cr_assert_eq(c, VG_ENG_NO_NODES);
    kit_node(e, 1, 1, true);
    cr_assert_eq(vg_fit_find(e, f, NULL, 0, 0, &s, &c), 0);
    cr_assert_eq(c, VG_ENG_TOO_BIG);
    vg_fit_put(e, f);
    vg_eng_free(e);
}

/* --- what is kept --- */

Test(place, equal_requests_are_one_fit_and_few_unused_ones_are_kept) {
    struct vg_eng *e = kit_new(4, 8);
    struct vg_eng_req r = {.pool = {1}, .n_pools = 1, .res = {.gpus = 1}};
    struct fit *a = vg_fit_get(e, &r), *b = vg_fit_get(e, &r);
    cr_assert_eq(a, b);
    r.res.pids = 99; /* limited, not reserved */
    cr_assert_eq(vg_fit_get(e, &r), a);
    for (int i = 0; i < 3; i++)
        vg_fit_put(e, a);
    for (uint32_t i = 1; i <= 2000; i++) {
        r.res.cpu_milli = i;
        struct fit *f = vg_fit_get(e, &r);
        struct spot s;
        enum vg_eng_code c;
        cr_assert_eq(vg_fit_find(e, f, NULL, 0, 0, &s, &c), 1);
        vg_fit_put(e, f);
    }
    cr_assert_leq(e->place->n_idle, 128u);
    cr_assert_leq(vg_map_len(&e->place->fits), 128u);
    vg_eng_free(e);
}

Test(place, a_mix_of_many_kinds_stays_bounded_and_usable) {
    struct vg_eng *e = kit_new(4, 8);
    for (uint32_t i = 0; i < 20000; i++) {
        struct vg_eng_req r = {.pool = {1}, .n_pools = 1, .res = {.gpu_milli = 1 + i % 999}};
        struct fit *f = vg_fit_get(e, &r);
        vg_score_note(e, f);
        vg_fit_put(e, f);
    }
    const struct worth *w = vg_mix_worth(e->place, e->node[0]);
    for (uint32_t i = 1; i <= 1000; i++)
        cr_assert(w->card[i] >= 0 && w->card[i] <= i);
    vg_eng_free(e);
}

/* Tasks of one GPU come and go at three fifths of the capacity; how many of 100 requests for a
   whole node would find one meanwhile. */
static uint32_t wide_found(enum vg_eng_placing placing) {
    struct vg_eng *e = kit_new(16, 8);
    struct world w = {.rng = 3};
    struct vg_eng_conf conf = vg_eng_conf_default();
    struct vg_eng_req one = {.pool = {1}, .n_pools = 1, .res = {.gpus = 1}};
    struct vg_eng_req all = {.pool = {1}, .n_pools = 1, .res = {.gpus = 8}};
    struct fit *narrow = vg_fit_get(e, &one), *wide = vg_fit_get(e, &all);
    struct etask task[77] = {0};
    struct spot s;
    enum vg_eng_code c;
    uint32_t found = 0;
    conf.placing = placing;
    cr_assert_eq(vg_eng_set_conf(e, &conf), 0);
    for (uint32_t i = 0; i < 5000; i++) {
        struct etask *t = &task[i < VG_COUNT(task) ? i : draw(&w, VG_COUNT(task))];
        if (t->node)
            vg_node_give(e, t->node, t);
        vg_score_note(e, narrow);
        cr_assert_eq(vg_fit_find(e, narrow, NULL, 0, 0, &s, &c), 1);
        t->fit = narrow;
        vg_node_take(e, s.node, t, s.gpus);
        if (i % 50 != 49)
            continue;
        vg_score_note(e, wide);
        found += (uint32_t)vg_fit_find(e, wide, NULL, 0, 0, &s, &c);
    }
    for (size_t i = 0; i < VG_COUNT(task); i++)
        vg_node_give(e, task[i].node, &task[i]);
    vg_fit_put(e, narrow);
    vg_fit_put(e, wide);
    vg_eng_free(e);
    return found;
}

Test(place, narrow_tasks_leave_whole_nodes_to_wide_ones) {
    uint32_t ours = wide_found(VG_ENG_LEAST_STRANDED);
    cr_expect_geq(ours, 95u, "%u", ours);
    cr_expect_leq(wide_found(VG_ENG_SPREAD), 50u, "as it would be if they were spread");
}

/* --- gangs --- */

static void rack_node(struct vg_eng *e, uint64_t id, const char *rack, uint32_t gpus) {
    struct vg_eng_gpu g[VG_NODE_GPUS_MAX] = {0};
    for (uint32_t i = 0; i < gpus; i++)
        g[i].index = i;
    struct vg_eng_node n = {.id = id,
                            .name = "n",
                            .total = {.cpu_milli = 64000},
                            .gpu = g,
                            .n_gpus = gpus,
                            .rack = rack,
                            .usable = true};
    cr_assert_eq(vg_eng_set_node(e, &n), 0);
}

static int gang(struct vg_eng *e, uint32_t gpus, uint32_t members, struct spot *ret) {
    struct vg_eng_req r = {.pool = {1}, .n_pools = 1, .res = {.gpus = gpus}};
    struct fit *f = vg_fit_get(e, &r);
    enum vg_eng_code c;
    int found = vg_fit_find_gang(e, f, NULL, members, 0, 0, ret, &c);
    vg_fit_put(e, f);
    return found;
}

Test(place, a_gang_goes_to_one_node_then_one_rack_then_few) {
    struct vg_eng *e = kit_new(0, 0);
    struct spot s[32];
    rack_node(e, 1, "r1", 4);
    rack_node(e, 2, "r2", 8);
    rack_node(e, 3, "r2", 4);
    rack_node(e, 4, "r3", 4);
    rack_node(e, 5, "r3", 8);
    rack_node(e, 6, "r3", 8);
    cr_assert_eq(gang(e, 2, 2, s), 1);
    cr_assert(s[0].node == s[1].node && s[0].node->n_gpus == 4, "the tightest that holds both");
    cr_assert_eq(s[0].gpus & s[1].gpus, 0u);
    cr_assert_eq(gang(e, 4, 3, s), 1);
    for (int i = 0; i < 3; i++)
        cr_assert_str_eq(s[i].node->rack, "r2");
    cr_assert_eq(gang(e, 4, 5, s), 1);
    for (int i = 0; i < 5; i++)
        cr_assert_str_eq(s[i].node->rack, "r3");
    cr_assert_eq(gang(e, 4, 8, s), 1);
    uint32_t r1 = 0;
    for (int i = 0; i < 8; i++)
        r1 += strcmp(s[i].node->rack, "r1") == 0;
    cr_assert_eq(r1, 0u, "two racks are enough");
    cr_assert_eq(gang(e, 4, 9, s), 1);
    cr_assert_eq(gang(e, 4, 10, s), 0);
    vg_eng_free(e);
}

Test(place, a_gang_is_found_exactly_when_one_pool_has_room_for_all) {
    struct world w = make(5);
    for (int i = 0; i < 600; i++) {
        if (draw(&w, 3))
            ask(&w);
        struct vg_eng_req r = some_request(&w);
        struct fit *f = vg_fit_get(w.e, &r);
        uint32_t n = 2 + (uint32_t)draw(&w, 12), most = 0;
        struct spot s[16];
        enum vg_eng_code c;
        for (uint32_t p = 0; p < f->n_pools; p++) { /* what each pool holds, node by node */
            uint32_t room = 0;
            for (size_t k = 0; k < w.e->n_nodes; k++) {
                struct enode copy, *x = w.e->node[k];
                struct egpu gpu[VG_NODE_GPUS_MAX];
                bool ok = vg_fit_rank(w.e, f, x) == p + 1;
                vg_node_imagine(x, &copy, gpu);
                while (ok) {
                    uint64_t gpus = vg_fit_gpus(w.e, f, &copy, &ok);
                    if (ok && ++room)
                        vg_node_imagine_with(&copy, f, gpus);
                }
            }
            most = VG_MAX(most, room);
        }
        int found = vg_fit_find_gang(w.e, f, NULL, n, 0, 0, s, &c);
        cr_assert_eq(found, most >= n);
        for (uint32_t k = 0; found && k < n; k++) {
            cr_assert_eq(s[k].pool, s[0].pool);
            for (uint32_t j = 0; j < k; j++)
                if (s[j].node == s[k].node && f->res.gpus)
                    cr_assert_eq(s[j].gpus & s[k].gpus, 0u);
        }
        vg_fit_put(w.e, f);
    }
    unmake(&w);
}

/* --- nodes come and go --- */

Test(place, a_node_that_shrinks_and_grows_keeps_its_tasks) {
    struct vg_eng *e = kit_new(1, 8);
    struct spot s = take(e, (struct vg_res){.gpus = 4, .cpu_milli = 1000});
    kit_node(e, 1, 2, true);
    cr_assert_eq(s.node->whole_free, 0u);
    cr_assert_eq(s.node->cpu_free, 63000);
    kit_node(e, 1, 8, true);
    cr_assert_eq(s.node->whole_free, 4u);
    check_node(s.node);
    vg_eng_free(e);
}

Test(place, slots_of_nodes_that_left_are_used_again) {
    struct vg_eng *e = kit_new(8, 1);
    for (uint64_t id = 9; id < 200; id++) {
        vg_eng_remove_node(e, id - 8);
        kit_node(e, id, 1, true);
        cr_assert_eq(find(e, (struct vg_res){.gpus = 1}).node != NULL, true);
        cr_assert_null(vg_eng_check(e), "%s", vg_eng_check(e));
    }
    cr_assert_eq(e->n_nodes, 8u);
    cr_assert_eq(e->capacity.gpu_milli, 8000u);
    vg_eng_free(e);
}

Test(place, nodes_that_change_over_and_over_are_still_found) {
    struct vg_eng *e = kit_new(4, 0);
    struct vg_eng_pool other = {.name = "q", .id = 2};
    cr_assert_eq(vg_eng_set_pool(e, &other), 0);
    for (uint32_t i = 1; i <= 3000; i++) {
        struct vg_eng_node n = {
            .id = 1 + i % 4, .total = {.cpu_milli = 1000 + i}, .usable = true, .name = "n"};
        cr_assert_eq(vg_eng_set_node(e, &n), 0);
        struct spot s = find(e, (struct vg_res){.cpu_milli = 1000 + i});
        cr_assert(s.node && s.node->id == n.id);
        cr_assert(!find(e, (struct vg_res){.cpu_milli = 1001 + VG_MAX(i, 63000u)}).node);
        cr_assert_null(vg_eng_check(e), "%s", vg_eng_check(e));
    }
    cr_assert_lt(e->place->classes.n, 2000u);
    cr_assert_eq(vg_eng_remove_pool(e, 2), 0);
    cr_assert_null(vg_eng_check(e), "%s", vg_eng_check(e));
    vg_eng_free(e);
}
