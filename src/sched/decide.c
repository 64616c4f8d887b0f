/* The loop of decisions: the best shape that may start, its head, a place for it; until nobody is
   ready. Pure. */
#include "base/mem.h"
#include "sched/claim.h"

#define ROUNDS_MAX 2

/* --- decisions that wait to be taken --- */

int vg_out_room(struct vg_eng *e, size_t n) {
    struct vg_eng_decision *more = vg_grow(e->out, &e->out_cap, e->out_n + n, sizeof *more);
    if (!more)
        return -ENOMEM;
    e->out = more;
    return 0;
}

struct vg_eng_decision *vg_out_add(struct vg_eng *e) {
    return &e->out[e->out_n++];
}

static bool take(struct vg_eng *e, struct vg_eng_decision *ret) {
    if (e->out_at == e->out_n)
        return false;
    *ret = e->out[e->out_at++];
    if (e->out_at == e->out_n)
        e->out_at = e->out_n = 0;
    return true;
}

static void started(struct vg_eng_decision *ret, const struct etask *t) {
    ret->what = VG_ENG_START;
    ret->task = t->id;
    ret->node = t->node->id;
    ret->pool = t->pool->id;
    ret->gpus = t->gpus;
    ret->res = t->fit->res;
    ret->gang = t->gang ? t->gang->id : 0;
    ret->member = ret->of = 0; /* alone, though it may be a gang's missing member */
    ret->for_task = 0;
    ret->why[0] = 0;
}

/* --- sessions' tasks --- */

static uint64_t until_of(const struct vg_eng *e, uint64_t run) {
    return run > UINT64_MAX - e->now ? VG_ENG_NEVER : e->now + run;
}

/* Whether this one can start on its node now. */
static bool pinned_spot(struct vg_eng *e, struct enode *n, struct etask *t, struct spot *at) {
    bool ok = false;
    enum vg_eng_code code;
    if (n->ghost || !n->usable || !vg_fit_now(t->fit, n))
        return false;
    at->node = n;
    at->gpus = vg_fit_gpus(e, t->fit, n, &ok);
    at->pool = vg_fit_pool(e, t->fit, n);
    if (!at->pool)
        at->pool = e->pool[t->fit->pool[0]];
    return ok &&
           vg_profile_allows(e, t->fit, n, at->gpus, until_of(e, t->expect_usec), NULL, &code);
}

static struct etask *try_pinned(struct vg_eng *e, struct enode *n) {
    bool capped = false;
    struct etask *found = NULL;
    struct spot at;
    vg_list_for_each (i, &n->pinned) {
        struct etask *t = vg_list_entry(i, struct etask, link);
        if (vg_tenant_at_limit(e, t->tenant, t->fit, 1)) {
            capped = true;
            continue;
        }
        if (pinned_spot(e, n, t, &at))
            found = t;
        break; /* nobody overtakes the first that waits for room */
    }
    if (found) {
        vg_task_unwait(e, found);
        vg_task_start(e, found, &at, e->now);
        return found;
    }
    vg_list_remove(&n->pin_due);
    if (capped)
        vg_list_push_back(&e->pin_capped, &n->pin_due);
    return NULL;
}

static struct etask *next_pinned(struct vg_eng *e) {
    struct etask *t = NULL;
    while (!t && !vg_list_empty(&e->pin_due))
        t = try_pinned(e, vg_list_entry(e->pin_due.next, struct enode, pin_due));
    return t;
}

/* --- shapes --- */

static void wait_at_limit(struct vg_eng *e, struct etenant *full, struct shape *s) {
    vg_tenant_cap(e, full, s);
    vg_shape_settle(e, s);
}

/* Tries the shape's head. Starting it is either *single, or several decisions in `out`. */
static void try_shape(struct vg_eng *e, struct shape *s, struct etask **single) {
    struct etask *t = vg_shape_head(e, s);
    enum vg_eng_code code = VG_ENG_BUSY;
    struct spot at;
    struct etenant *full = vg_tenant_at_limit(e, t->tenant, s->fit, s->members);
    if (full) {
        wait_at_limit(e, full, s);
        return;
    }
    if (t->gang && t->gang->waits) {
        if (vg_gang_try(e, s, t, &full, &code))
            return;
    } else if (vg_fit_find(e, s->fit, s, until_of(e, vg_run_class_max(s->run_class)), t->env, &at,
                           &code) &&
               !(full = vg_tenant_at_limit_there(t->tenant, s->fit, &at, 1))) {
        vg_task_unwait(e, t);
        vg_task_start(e, t, &at, e->now);
        *single = t;
        return;
    }
    if (full) {
        wait_at_limit(e, full, s);
        return;
    }
    vg_shape_sleep(e, s, code);
    vg_shape_blocked(e, s);
    vg_preempt_want(e, s);
}

static void look_around(struct vg_eng *e) {
    const struct vg_eng_amount *a = &e->capacity, *b = &e->capacity_seen;
    if (a->gpu_milli != b->gpu_milli || a->cpu_milli != b->cpu_milli ||
        a->mem_bytes != b->mem_bytes)
        vg_tenants_rekey(e);
    e->tick_at = vg_profile_tick(e);
}

/* One start at most. Reservations that moved let others look again, but only so often: what moves
   them to and fro must not keep us here. */
static struct etask *decide(struct vg_eng *e) {
    vg_claims_run(e);
    struct etask *t = e->out_at == e->out_n ? next_pinned(e) : NULL;
    for (int rounds = 0; !t && e->out_at == e->out_n;) {
        struct shape *s = vg_shapes_best(e);
        if (s) {
            try_shape(e, s, &t);
            continue;
        }
        vg_shapes_top_up(e);
        if (rounds++ == ROUNDS_MAX)
            break;
        e->tick_at = vg_profile_tick(e);
        if (e->n_ready)
            continue;
        if (e->due_usec > e->now)
            break;
        vg_preempt_run(e);
    }
    return t;
}

int vg_eng_next(struct vg_eng *e, struct vg_eng_decision *ret) {
    if (take(e, ret))
        return 1;
    look_around(e);
    struct etask *t = decide(e);
    if (!t)
        return take(e, ret);
    started(ret, t);
    return 1;
}

uint64_t vg_eng_wake(const struct vg_eng *e) {
    bool more = e->n_ready || !vg_list_empty(&e->pin_due) || e->out_at < e->out_n;
    return more ? e->now : VG_MIN(e->tick_at, e->due_usec);
}
