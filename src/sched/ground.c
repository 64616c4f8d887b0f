/* Who may be stopped for whom.

   A running task v may be stopped for a waiting task t when v is not fixed, has run for its minimum
   and
     - they are of one tenant (or one's is above the other's) and t's priority is larger; or else,
       with A and B the tenants on t's and v's side just below the first one they have in common:
     - reclaim: A is within its quota with t, nobody from v's tenant up to B is within its own, and
       t is not preemptible (those gave up their guarantee);
     - priority: t's is larger, and everybody from v's tenant up to B is beyond its quota even
       without v;
     - v is preemptible, t is not, and v's priority is not larger.
   By priority a preemptible task only stops preemptible ones.

   Why it ends. What runs within a quota is stopped by nobody outside of it, and priority takes no
   tenant below its quota, so reclaim only ever fills quotas up. Otherwise the one that is stopped
   has the smaller priority or is preemptible where the other is not, and is the larger in neither.
   A circle would need somebody who reclaimed to be stopped from outside, or priority and firmness
   to fall: neither can be. Pure. */
#include "base/cleanup.h"
#include "base/mem.h"
#include "sched/deal.h"

/* --- whether there is anybody at all --- */

#define RANKS_MAX 64

struct ranks { /* of running tasks */
    uint32_t preemptible, n;
    bool more; /* there were more priorities than fit: any may be there */
    struct {
        uint32_t priority, tasks;
    } rank[RANKS_MAX];
};

int vg_ranks_add(struct vg_eng *e, const struct etask *t, int n) {
    for (struct etenant *up = t->preemptible ? t->tenant : NULL; up; up = up->parent)
        up->yielding += (uint32_t)n;
    struct ranks *r = e->ranks;
    if (!r && !(r = e->ranks = vg_alloc(sizeof *r)))
        return -ENOMEM;
    r->preemptible += t->preemptible ? (uint32_t)n : 0;
    uint32_t i = 0;
    while (i < r->n && r->rank[i].priority != t->priority)
        i++;
    if (i == r->n && n < 0)
        return 0; /* one of those that did not fit */
    if (i == RANKS_MAX) {
        r->more = true;
        return 0;
    }
    if (i == r->n)
        r->rank[r->n++].priority = t->priority;
    r->rank[i].tasks += (uint32_t)n;
    if (!r->rank[i].tasks)
        r->rank[i] = r->rank[--r->n];
    return 0;
}

static bool somebody_below(const struct vg_eng *e, uint32_t priority) {
    const struct ranks *r = e->ranks;
    for (uint32_t i = 0; r && i < r->n; i++)
        if (r->rank[i].priority < priority)
            return true;
    return !r || r->more;
}

bool vg_may_reclaim(const struct vg_eng *e, const struct etask *t) {
    for (const struct etenant *a = t->tenant; a->parent && !t->preemptible; a = a->parent)
        if (vg_tenant_in_quota(e, a, t->fit, t->shape->members))
            return true;
    return false;
}

bool vg_may_stop_somebody(const struct vg_eng *e, const struct etask *t) {
    if ((!t->preemptible && e->ranks && e->ranks->preemptible) || somebody_below(e, t->priority))
        return true;
    return vg_may_reclaim(e, t);
}

/* --- by what right --- */

static uint64_t lead(const struct vg_eng_amount *of, const struct fit *f) {
    if (f->res.gpus || f->res.gpu_milli)
        return of->gpu_milli;
    return f->res.cpu_milli ? of->cpu_milli : of->mem_bytes;
}

static bool is_below(const struct etenant *t, const struct etenant *above) {
    while (t && t != above)
        t = t->parent;
    return t != NULL;
}

static uint64_t held_by(struct etask *const *v, size_t n, const struct etenant *b,
                        const struct fit *f) {
    uint64_t held = 0;
    for (size_t i = 0; i < n; i++) {
        struct vg_eng_amount a = vg_fit_amount(v[i]->fit, 1);
        held += is_below(v[i]->tenant, b) ? lead(&a, f) : 0;
    }
    return held;
}

/* What the tenant will still hold of v's leading resource when all that are agreed on or planned
   have left. */
static uint64_t holds_after(const struct deal *d, const struct etenant *b, const struct fit *f,
                            const struct plan *p) {
    uint64_t held = lead(&b->held, f), gone = held_by(d->victim, d->n_victims, b, f);
    gone += held_by(p->victim, p->n, b, f);
    return held > gone ? held - gone : 0;
}

static uint64_t min_run(const struct vg_eng *e, const struct etenant *t) {
    for (; t; t = t->parent)
        if (t->min_run_usec)
            return t->min_run_usec;
    return e->conf.min_run_usec;
}

bool vg_sides(const struct etenant **a, const struct etenant **b) {
    while ((*a)->depth > (*b)->depth)
        *a = (*a)->parent;
    while ((*b)->depth > (*a)->depth)
        *b = (*b)->parent;
    if (*a == *b)
        return false;
    while ((*a)->parent != (*b)->parent) {
        *a = (*a)->parent;
        *b = (*b)->parent;
    }
    return true;
}

/* v's leading resource, with all of its gang that would be stopped with it. */
static uint64_t lot(const struct etask *v) {
    struct vg_eng_amount a = vg_fit_amount(v->fit, 1);
    uint64_t n = 0;
    if (!v->gang)
        return lead(&a, v->fit);
    vg_list_for_each (i, &v->gang->members)
        n += vg_list_entry(i, struct etask, on_gang)->place == TASK_RUNS;
    return n * lead(&a, v->fit);
}

/* How much at least everybody from v's tenant up to `b` is beyond its quota; 0: one is within: a
   guarantee given below stands even where the one above has more than its own. */
static uint64_t beyond(const struct deal *d, const struct etask *v, const struct etenant *b,
                       const struct plan *p) {
    uint64_t least = UINT64_MAX;
    for (const struct etenant *x = v->tenant; x != b->parent; x = x->parent) {
        uint64_t held = holds_after(d, x, v->fit, p), quota = lead(&x->quota, v->fit);
        least = VG_MIN(least, held > quota ? held - quota : 0);
    }
    return least;
}

enum ground vg_ground(const struct deal *d, const struct etask *v, const struct plan *p) {
    const struct etask *t = d->t;
    const struct etenant *a = t->tenant, *b = v->tenant;
    if (v->fixed || v->leaving)
        return NOT_AT_ALL;
    bool outranks = t->priority > v->priority && (!t->preemptible || v->preemptible);
    if (!vg_sides(&a, &b))
        return outranks ? BY_PRIORITY : NOT_AT_ALL;
    uint64_t over = beyond(d, v, b, p);
    if (over && !t->preemptible && vg_tenant_in_quota(d->e, a, t->fit, d->members))
        return BY_QUOTA;
    if (outranks && over && over >= lot(v))
        return BY_PRIORITY;
    return v->preemptible && !t->preemptible && t->priority >= v->priority ? BY_WISH : NOT_AT_ALL;
}

bool vg_may_stop(struct deal *d, const struct etask *v, const struct plan *p) {
    if (v->fixed || v->leaving)
        return false;
    uint64_t least = min_run(d->e, v->tenant);
    if (v->pool)
        least = VG_MAX(least, v->pool->min_run_usec);
    uint64_t from = v->started_usec + least;
    if (from <= d->e->now)
        return vg_ground(d, v, p) != NOT_AT_ALL;
    d->soonest = VG_MIN(d->soonest, from); /* it may be asked then */
    return false;
}

/* Its gang would be stopped with it: all of them may be. */
bool vg_may_stop_all(struct deal *d, const struct etask *v, const struct plan *p) {
    if (!v->gang)
        return vg_may_stop(d, v, p);
    vg_list_for_each (i, &v->gang->members) {
        const struct etask *m = vg_list_entry(i, struct etask, on_gang);
        if (m->place == TASK_RUNS && !vg_may_stop(d, m, p))
            return false;
    }
    return true;
}
