/* Lists and numbers about the state, for people: the order, the tenants, pools and nodes. Pure. */
#include "base/cleanup.h"
#include "base/mem.h"
#include "sched/place.h"
#include "sched/turns.h"

#include <string.h>

/* ------------------------------------------------------------------ the order */

/* Sessions' tasks start as soon as their node has room, whoever else waits: they come first. */
static size_t list_pinned(const struct vg_eng *e, const uint64_t pools[4], uint64_t *task,
                          size_t max) {
    size_t n = 0;
    for (size_t i = 0; i < e->n_nodes && n < max; i++) {
        if (!e->node[i])
            continue;
        vg_list_for_each (k, &e->node[i]->pinned) {
            const struct etask *t = vg_list_entry(k, struct etask, link);
            uint32_t p = t->fit->pool[0];
            if (n < max && (pools[p / 64] >> (p % 64) & 1))
                task[n++] = t->id;
        }
    }
    return n;
}

static size_t list_tree(const struct tree_item *i, uint64_t *task, size_t max) {
    if (!i || !max)
        return 0;
    size_t n = list_tree(i->left, task, max);
    if (n < max)
        task[n++] = vg_container_of(i, struct etask, in_lane)->id;
    return n + list_tree(i->right, task + n, max - n);
}

/* The lanes at and below a bough. */
static size_t list_lanes(const struct bough *b, uint64_t *task, size_t max) {
    size_t n = 0;
    vg_list_for_each (i, &b->column->lanes) {
        const struct bough *lane = vg_list_entry(i, struct bough, on_column), *up = lane;
        while (up && up != b)
            up = up->parent;
        if (up && n < max)
            n += list_tree(lane->tasks.root, task + n, max - n);
    }
    return n;
}

/* Those whose tenant is at its limit come last: nobody knows when their turn is. */
static size_t list_capped(const struct etenant *t, const uint64_t pools[4], uint64_t *task,
                          size_t max) {
    size_t n = 0;
    vg_list_for_each (i, &t->capped) {
        const struct bough *b = vg_list_entry(i, struct bough, on_capped);
        uint32_t p = b->column->shape->fit->pool[0];
        if (n < max && (pools[p / 64] >> (p % 64) & 1))
            n += list_lanes(b, task + n, max - n);
    }
    vg_list_for_each (i, &t->children)
        n += list_capped(vg_list_entry(i, struct etenant, sibling), pools, task + n, max - n);
    return n;
}

size_t vg_eng_order(const struct vg_eng *e, uint64_t pool, uint64_t *task, size_t max) {
    uint64_t pools[4] = {0};
    const struct epool *p = pool ? vg_map_get_u64(&e->pools, pool) : NULL;
    if (pool && !p)
        return 0;
    if (p)
        pools[p->at / 64] |= 1ULL << (p->at % 64);
    else
        memset(pools, 0xff, sizeof pools);
    size_t n = list_pinned(e, pools, task, max);
    struct turns *t = vg_turns_new(e, pools, NULL);
    for (struct etask *x; t && n < max && (x = vg_turns_next(t));)
        task[n++] = x->id;
    vg_turns_free(t);
    return n + list_capped(&e->root, pools, task + n, max - n);
}

/* ------------------------------------------------------------------ tenants */

/* What counts as the whole: GPUs where there are any, else CPUs. */
static uint64_t measure(const struct vg_eng *e, struct vg_eng_amount a) {
    return e->capacity.gpu_milli ? a.gpu_milli : a.cpu_milli;
}

struct claim { /* of one tenant in its siblings' division */
    struct etenant *tenant;
    double want, quota, weight, fair;
};

/* What it holds and what its waiting tasks ask for. */
static double wants(const struct vg_eng *e, const struct etenant *t) {
    double sum = (double)measure(e, t->held);
    vg_list_for_each (i, &t->boughs) {
        const struct bough *b = vg_list_entry(i, struct bough, on_tenant);
        struct vg_eng_amount a = vg_fit_amount(b->column->shape->fit, b->column->shape->members);
        sum += (double)measure(e, a) * (double)tree_size(&b->tasks);
    }
    vg_list_for_each (i, &t->children) {
        const struct etenant *c = vg_list_entry(i, struct etenant, sibling);
        sum += wants(e, c) - (double)measure(e, c->held);
    }
    double limit = (double)measure(e, t->limit);
    return VG_MIN(sum, limit);
}

/* First the guaranteed part of what everybody wants, then the rest by weight, in rounds, since
   nobody gets more than wanted. */
static void divide(struct claim *c, size_t n, double all) {
    for (size_t i = 0; i < n; i++) {
        c[i].fair = VG_MIN(VG_MIN(c[i].quota, c[i].want), all);
        all -= c[i].fair;
    }
    for (size_t round = 0; round < n && all > 0.5; round++) {
        double weights = 0, given = 0;
        for (size_t i = 0; i < n; i++)
            weights += c[i].fair < c[i].want ? c[i].weight : 0;
        for (size_t i = 0; i < n && weights > 0; i++) {
            if (c[i].fair >= c[i].want)
                continue;
            double more = VG_MIN(all * c[i].weight / weights, c[i].want - c[i].fair);
            c[i].fair += more;
            given += more;
        }
        all -= given;
        if (given < 0.5)
            return;
    }
}

struct listing {
    const struct vg_eng *e;
    struct vg_eng_tenant_info *ret;
    size_t n, max;
};

static uint32_t ppm(double x) {
    return x <= 0 ? 0 : x >= 4e9 / 1e6 ? 4000000000U : (uint32_t)(x * 1e6 + 0.5);
}

static void list_one(struct listing *l, const struct etenant *t, double fair) {
    const struct vg_eng *e = l->e;
    double whole = (double)measure(e, e->capacity);
    if (l->n < l->max)
        l->ret[l->n] = (struct vg_eng_tenant_info){
            .id = t->id,
            .parent = t->parent ? t->parent->id : 0,
            .name = t->name,
            .quota = t->quota,
            .limit = t->limit,
            .held = t->held,
            .weight = t->weight,
            .queued = t->queued,
            .running = t->running,
            .fair_ppm = whole > 0 ? ppm(fair / whole) : 0,
            .share_ppm = ppm(t->rate),
            .usage_ppm = ppm(vg_tenant_past(e, t)),
        };
    l->n++;
}

/* Parents first; without memory for the division, tenants are listed without a fair share. */
static void list_below(struct listing *l, const struct etenant *t, double all) {
    size_t n = 0;
    vg_list_for_each (i, &t->children)
        n++;
    vg_auto_free struct claim *c = n ? vg_alloc(n * sizeof *c) : NULL;
    n = 0;
    vg_list_for_each (i, &t->children) {
        struct etenant *x = vg_list_entry(i, struct etenant, sibling);
        if (c)
            c[n++] = (struct claim){.tenant = x,
                                    .want = wants(l->e, x),
                                    .quota = (double)measure(l->e, x->quota),
                                    .weight = x->weight};
    }
    if (c)
        divide(c, n, all);
    n = 0;
    vg_list_for_each (i, &t->children) {
        double fair = c ? c[n++].fair : 0;
        list_one(l, vg_list_entry(i, struct etenant, sibling), fair);
        list_below(l, vg_list_entry(i, struct etenant, sibling), fair);
    }
}

size_t vg_eng_tenants(const struct vg_eng *e, struct vg_eng_tenant_info *ret, size_t max) {
    struct listing l = {.e = e, .ret = ret, .max = max};
    if (!max)
        return vg_map_len(&e->tenants);
    list_below(&l, &e->root, (double)measure(e, e->capacity));
    return l.n;
}

/* ------------------------------------------------------------------ pools and nodes */

static void least(uint64_t have, uint64_t want, uint64_t *slots) {
    if (want)
        *slots = VG_MIN(*slots, have / want);
}

static uint64_t shares_of(const struct enode *n, const struct epool *p, bool free) {
    uint64_t all = 0;
    for (uint32_t i = 0; i < n->n_gpus; i++) {
        const struct egpu *g = &n->gpu[i];
        uint64_t k = UINT32_MAX;
        if (g->bad || (free && !vg_card_takes_class(g, p->gpu_class)))
            continue;
        least(free ? (uint64_t)VG_MAX(g->free_milli, 0) : 1000, p->shape.gpu_milli, &k);
        least(free ? (uint64_t)VG_MAX(g->free_mem, 0) : g->mem, p->shape.gpu_mem_bytes, &k);
        all += k;
    }
    return all;
}

/* How many tasks of the pool's shape fit, in all or now; 0 when it reserves nothing. */
static uint32_t slots(const struct enode *n, const struct epool *p, bool free) {
    const struct vg_res *s = &p->shape;
    uint64_t k = UINT32_MAX;
    least(free ? (uint64_t)VG_MAX(n->cpu_free, 0) : n->total.cpu_milli, s->cpu_milli, &k);
    least(free ? (uint64_t)VG_MAX(n->mem_free, 0) : n->total.mem_bytes, s->mem_bytes, &k);
    least(free ? n->whole_free : n->n_gpus, s->gpus, &k);
    if (!s->gpus && s->gpu_milli)
        k = VG_MIN(k, shares_of(n, p, free));
    if (p->whole)
        return k && (!free || vg_node_is_empty(n));
    return k == UINT32_MAX ? 0 : (uint32_t)k;
}

int vg_eng_pool_info(const struct vg_eng *e, uint64_t pool, struct vg_eng_pool_info *ret) {
    const struct epool *p = vg_map_get_u64(&e->pools, pool);
    if (!p)
        return -ENOENT;
    *ret = (struct vg_eng_pool_info){
        .nodes = p->nodes, .usable = p->usable, .queued = p->queued, .running = p->running};
    for (size_t i = 0; i < e->n_nodes; i++) {
        const struct enode *n = e->node[i];
        if (!n || n->ghost || !(n->pools[p->at / 64] >> (p->at % 64) & 1))
            continue;
        ret->total_slots += slots(n, p, false);
        ret->free_slots += n->usable ? slots(n, p, true) : 0;
    }
    return 0;
}

int vg_eng_node_info(const struct vg_eng *e, uint64_t node, struct vg_eng_node_info *ret) {
    const struct enode *n = vg_map_get_u64(&e->nodes, node);
    if (!n || n->ghost)
        return -ENOENT;
    *ret = (struct vg_eng_node_info){.total = n->total, .tasks = n->n_tasks};
    ret->used.cpu_milli = (uint32_t)((int64_t)n->total.cpu_milli - n->cpu_free);
    ret->used.mem_bytes = (uint64_t)((int64_t)n->total.mem_bytes - n->mem_free);
    for (uint32_t i = 0; i < n->n_gpus; i++)
        if (n->gpu[i].tasks)
            ret->gpus_used |= 1ULL << n->gpu[i].index;
    ret->used.gpus = (uint32_t)__builtin_popcountll(ret->gpus_used);
    return 0;
}

uint64_t vg_eng_ends(const struct vg_eng *e, uint64_t task) {
    const struct etask *t = vg_map_get_u64(&e->tasks, task);
    return t && t->place == TASK_RUNS ? VG_MAX(t->end_usec, e->now) : VG_ENG_NEVER;
}
