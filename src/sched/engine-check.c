/* The invariants of the engine, counted from scratch. Passes over everything: for tests. */
#include "base/mem.h"
#include "sched/claim.h"

#include <string.h>

struct sums {
    struct vg_eng_amount held;
    uint32_t queued, running, yielding, own;
};

static const struct etask *first_of(const struct etask *t) {
    return t->gang && t->gang->waits ? vg_list_entry(t->gang->members.next, struct etask, on_gang)
                                     : t;
}

/* Those who are being stopped are no longer charged; those who will get their places are. */
static bool charged(const struct etask *t) {
    return t->place == TASK_RUNS ? !t->leaving : t->place == TASK_CLAIMS && first_of(t)->claim;
}

/* What one tenant and those below it hold by their tasks. */
static void sum_tasks(const struct vg_eng *e, const struct etenant *of, struct sums *s) {
    vg_map_for_each (i, &e->tasks) {
        const struct etask *t = i->value;
        s->own += t->tenant == of;
        const struct etenant *up = t->tenant;
        while (up && up != of)
            up = up->parent;
        if (!up)
            continue;
        s->queued += t->place != TASK_RUNS;
        s->running += t->place == TASK_RUNS;
        s->yielding += t->place == TASK_RUNS && t->preemptible;
        if (!charged(t))
            continue;
        struct vg_eng_amount a = vg_fit_amount(t->fit, 1);
        s->held.gpu_milli += a.gpu_milli;
        s->held.cpu_milli += a.cpu_milli;
        s->held.mem_bytes += a.mem_bytes;
    }
}

static const char *check_tenant(const struct vg_eng *e, const struct etenant *t) {
    struct sums s = {0};
    sum_tasks(e, t, &s);
    if (memcmp(&s.held, &t->held, sizeof s.held) != 0)
        return "a tenant's sums differ from what its tasks hold";
    if (s.queued != t->queued || s.running != t->running || s.yielding != t->yielding ||
        s.own != t->own)
        return "a tenant's counts differ from its tasks";
    if (t->parent && t->depth != t->parent->depth + 1)
        return "a tenant's depth is wrong";
    return NULL;
}

/* Bits and counts of one bough, from those below it. */
static const char *check_bough(const struct vg_eng *e, const struct bough *b) {
    uint32_t kids = 0, live = 0;
    vg_map_for_each (i, &e->boughs) {
        const struct bough *k = i->value;
        kids += k->parent == b;
        live += k->parent == b && k->set;
    }
    if (kids != b->kids || live != b->live || (!kids && !b->tasks.root))
        return "a bough's counts differ from those below it";
    if (b->set != (!b->capped && (b->tasks.root || live)) ||
        b->set != vg_tenant_bit(b->tenant, b->column))
        return "a tenant's bit is wrong";
    if ((b->parent ? b->parent->tenant : NULL) != b->tenant->parent)
        return "a bough is below another tenant's";
    return NULL;
}

static const char *check_column(const struct vg_eng *e, struct column *c, uint64_t *n) {
    uint32_t boughs = 0, lanes = 0;
    const char *bad = NULL;
    vg_map_for_each (i, &e->boughs) {
        const struct bough *b = i->value;
        if (b->column != c)
            continue;
        boughs++;
        lanes += b->tasks.root != NULL;
        *n += tree_size(&b->tasks);
        bad = bad ? bad : check_bough(e, b);
    }
    if (!bad && (boughs != c->n_boughs || lanes != c->n_lanes || e->column[c->no] != c))
        bad = "a column's counts are wrong";
    if (!bad && vg_pick_by_walk(e, &c, 1) != vg_pick_by_lane(e, &c, 1))
        bad = "the two ways to the first of a column differ";
    return bad;
}

static const char *check_shape(const struct vg_eng *e, const struct shape *s) {
    uint64_t n = 0;
    int64_t last = INT64_MAX;
    const char *bad = NULL;
    vg_list_for_each (i, &s->columns) {
        struct column *c = vg_list_entry(i, struct column, on_shape);
        if (c->shape != s || (i->prev != &s->columns && c->level >= last))
            return "a shape's columns are out of order";
        last = c->level;
        bad = bad ? bad : check_column(e, c, &n);
    }
    if (bad)
        return bad;
    if (n != s->queued || !n)
        return "a shape's count differs from its lanes";
    bool any = vg_shape_top(e, s) != NULL;
    if (s->state == SHAPE_READY ? !any || e->ready[s->ready_at] != s : s->state != SHAPE_ASLEEP)
        return "a shape with waiting tasks is neither ready nor asleep";
    if (s->state == SHAPE_ASLEEP && (s->code == VG_ENG_AT_LIMIT) == any)
        return "a shape is at a limit, but somebody in it is not, or the other way round";
    return NULL;
}

/* Both ways to the first of all who are ready. */
static const char *check_ready(const struct vg_eng *e) {
    size_t n = 0;
    for (uint32_t i = 0; i < e->n_ready; i++) {
        struct column *top = vg_shape_top(e, e->ready[i]);
        if (n && top->level > e->wanted[0]->level)
            n = 0;
        if (!n || top->level == e->wanted[0]->level)
            e->wanted[n++] = top;
    }
    if (n && vg_pick_by_walk(e, e->wanted, n) != vg_pick_by_lane(e, e->wanted, n))
        return "the two ways to the first of all differ";
    return NULL;
}

static const char *check_gang(const struct gang *g) {
    uint32_t n = 0, running = 0, lanes = 0;
    vg_list_for_each (i, &g->members) {
        const struct etask *t = vg_list_entry(i, struct etask, on_gang);
        n++;
        running += t->place == TASK_RUNS;
        lanes += t->lane != NULL;
    }
    if (n != g->here || !n)
        return "a gang's count differs from its members";
    if (g->waits && running)
        return "a gang is placed in part";
    bool claims = vg_list_entry(g->members.next, struct etask, on_gang)->place == TASK_CLAIMS;
    if (g->waits && lanes != !claims)
        return "a waiting gang is not in one lane";
    return NULL;
}

static const char *check_gpus(const struct enode *n, bool *over) {
    for (uint32_t i = 0; i < n->n_gpus; i++) {
        const struct egpu *g = &n->gpu[i];
        int64_t milli = 1000;
        uint32_t tasks = 0;
        bool mixed = false;
        vg_list_for_each (k, &n->tasks) {
            const struct etask *t = vg_list_entry(k, struct etask, on_node);
            if (!(t->gpus >> g->index & 1))
                continue;
            struct vg_res r = vg_fit_res(t->fit, n);
            milli -= r.gpus ? 1000 : r.gpu_milli;
            tasks++;
            mixed |= t->fit->gpu_class != g->gpu_class;
        }
        if (mixed && g->gpu_class != VG_GPU_MIXED)
            return "a GPU has tasks of another class than it says";
        *over |= mixed;
        if (milli != g->free_milli || tasks != g->tasks)
            return "a GPU's free part differs from what its tasks hold";
        *over |= milli < 0;
    }
    return NULL;
}

static const char *check_node(const struct vg_eng *e, const struct enode *n) {
    int64_t cpu = n->total.cpu_milli, mem = (int64_t)n->total.mem_bytes;
    uint32_t tasks = 0, alone = 0;
    bool over = false, adopted = false;
    if (n->ghost)
        return vg_list_empty((struct vg_list *)&n->tasks) ? NULL : "a task runs on no node";
    vg_list_for_each (k, &n->tasks) {
        const struct etask *t = vg_list_entry(k, struct etask, on_node);
        if (t->node != n || t->place != TASK_RUNS || vg_map_get_u64(&e->tasks, t->id) != t)
            return "a node has a task that is not there";
        struct vg_res r = vg_fit_res(t->fit, n);
        cpu -= r.cpu_milli;
        mem -= (int64_t)r.mem_bytes;
        alone += t->fit->whole;
        adopted |= t->adopted;
        tasks++;
    }
    if (cpu != n->cpu_free || mem != n->mem_free || tasks != n->n_tasks || alone != n->alone)
        return "a node's free amounts differ from what its tasks hold";
    const char *bad = check_gpus(n, &over);
    if (bad)
        return bad;
    if (alone && tasks > 1 && !adopted)
        return "somebody is beside a task that has a whole node";
    if (!adopted && !n->shrunk && (over || cpu < 0 || mem < 0))
        return "more is held on a node than it has";
    return NULL;
}

static const char *check_tasks(const struct vg_eng *e) {
    size_t waiting = 0;
    vg_map_for_each (i, &e->tasks) {
        const struct etask *t = i->value;
        if (t->place != TASK_RUNS)
            waiting++;
        else if (!t->node || vg_map_get_u64(&e->nodes, t->node->id) != t->node)
            return "a task runs on a node that is not there";
        if (t->place == TASK_WAITS && (!t->shape || (!t->lane && !(t->gang && t->gang->waits))))
            return "a waiting task is in no lane";
        if (t->claim && (t->place != TASK_CLAIMS || t->claim->task != t))
            return "a claim is not its task's";
        if (t->place != TASK_WAITS && (t->lane || t->shape))
            return "a task is in two places";
    }
    return waiting == e->n_waiting ? NULL : "the number of waiting tasks is wrong";
}

const char *vg_eng_check(const struct vg_eng *e) {
    const char *bad = check_tasks(e);
    if (!bad)
        bad = check_tenant(e, &e->root);
    vg_map_for_each (i, &e->tenants)
        bad = bad ? bad : check_tenant(e, i->value);
    vg_map_for_each (i, &e->gangs)
        bad = bad ? bad : check_gang(i->value);
    for (size_t i = 0; i < e->n_nodes && !bad; i++)
        bad = e->node[i] ? check_node(e, e->node[i]) : NULL;
    size_t shapes = 0;
    vg_list_for_each (i, &e->fits)
        vg_list_for_each (k, &vg_list_entry(i, struct fit, link)->shapes) {
            bad = bad ? bad : check_shape(e, vg_list_entry(k, struct shape, on_fit));
            shapes++;
        }
    if (!bad && shapes != e->n_shapes)
        bad = "a shape is lost";
    if (!bad)
        bad = check_ready(e);
    if (!bad)
        bad = vg_place_check(e);
    return bad ? bad : vg_time_check(e);
}
