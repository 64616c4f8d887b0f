/* Shapes: what is asked for, once for all who ask for it. A shape with waiting tasks is READY (in
   vg_eng.ready, to be tried) or ASLEEP with the reason. It lies in a bed in each of its pools, by
   what it needs, so that a node that gained room finds those it may satisfy. Pure. */
#include "base/mem.h"
#include "sched/claim.h"

#define SIZES 7

struct beds {
    struct vg_list bed[256][SIZES]; /* of shape_bed, by the GPUs that are needed */
    struct vg_list reserved[256];   /* of shape.reserved: by first pool */
    uint32_t n_reserved[256];
    bool short_of[256]; /* a reservation was given up: others may have it */
    uint32_t any_short;
};

static uint32_t size_of(const struct vg_res *r) {
    if (!r->gpus)
        return r->gpu_milli ? 1 : 0;
    return r->gpus == 1 ? 2 : r->gpus == 2 ? 3 : r->gpus <= 4 ? 4 : r->gpus <= 8 ? 5 : 6;
}

/* The largest bed that a node with so many whole GPUs can help. */
static uint32_t helps(const struct enode *n) {
    if (!n->n_gpus)
        return 0;
    uint32_t k = n->whole_free;
    return k == 0 ? 1 : k == 1 ? 2 : k == 2 ? 3 : k <= 4 ? 4 : k <= 8 ? 5 : 6;
}

int vg_shapes_init(struct vg_eng *e) {
    vg_list_init(&e->kept);
    if (!(e->beds = vg_alloc(sizeof *e->beds)))
        return -ENOMEM;
    for (size_t p = 0; p < 256; p++) {
        vg_list_init(&e->beds->reserved[p]);
        for (size_t i = 0; i < SIZES; i++)
            vg_list_init(&e->beds->bed[p][i]);
    }
    return 0;
}

void vg_shapes_done(struct vg_eng *e) {
    free(e->beds);
    free(e->ready);
    free(e->wanted);
    free(e->column);
    vg_map_done(&e->boughs);
}

/* --- making and freeing --- */

static struct shape *find(struct fit *f, uint32_t members, uint32_t run_class, uint64_t grant) {
    vg_list_for_each (i, &f->shapes) {
        struct shape *s = vg_list_entry(i, struct shape, on_fit);
        if (s->members == members && s->run_class == run_class && s->grant == grant)
            return s;
    }
    return NULL;
}

struct shape *vg_shape_get(struct vg_eng *e, struct fit *f, uint32_t members, uint32_t run_class,
                           uint64_t grant) {
    struct shape *s = find(f, members, run_class, grant);
    if (s)
        return s;
    struct shape **ready = vg_grow(e->ready, &e->ready_cap, e->n_shapes + 1, sizeof *ready);
    if (!ready)
        return NULL;
    e->ready = ready;
    struct column **wanted = vg_grow(e->wanted, &e->wanted_cap, e->n_shapes + 1, sizeof *wanted);
    if (!wanted)
        return NULL;
    e->wanted = wanted;
    if (!(s = vg_alloc(sizeof *s)))
        return NULL;
    *s = (struct shape){
        .fit = f, .members = members, .run_class = run_class, .grant = grant, .state = SHAPE_EMPTY};
    f->refs++;
    e->n_shapes++;
    vg_list_push_back(&f->shapes, &s->on_fit);
    vg_list_init(&s->columns);
    s->head_epoch = UINT64_MAX;
    vg_list_init(&s->kept);
    vg_list_init(&s->reserved);
    vg_list_init(&s->due);
    for (uint32_t i = 0; i < f->n_pools; i++) {
        s->bed[i].shape = s;
        vg_list_push_back(&e->beds->bed[f->pool[i]][size_of(&f->res)], &s->bed[i].link);
    }
    return s;
}

static void unready(struct vg_eng *e, struct shape *s) {
    struct shape *last = e->ready[--e->n_ready];
    e->ready[s->ready_at] = last;
    last->ready_at = s->ready_at;
}

void vg_shape_drop_if_empty(struct vg_eng *e, struct shape *s) {
    if (s->queued || !vg_list_empty(&s->columns))
        return;
    vg_shape_unreserve(e, s);
    if (s->state == SHAPE_READY)
        unready(e, s);
    for (uint32_t i = 0; i < s->fit->n_pools; i++)
        vg_list_remove(&s->bed[i].link);
    vg_list_remove(&s->kept);
    vg_list_remove(&s->due);
    vg_list_remove(&s->on_fit);
    e->n_shapes--;
    vg_fit_put(e, s->fit);
    free(s);
}

/* --- awake and asleep --- */

static void ready(struct vg_eng *e, struct shape *s, uint32_t waker) {
    s->state = SHAPE_READY;
    s->waker = waker;
    s->ready_at = e->n_ready;
    e->ready[e->n_ready++] = s;
    vg_list_remove(&s->kept);
}

void vg_shape_wake(struct vg_eng *e, struct shape *s) {
    if (s->state == SHAPE_READY)
        s->waker = 0;
    else if (vg_shape_top(e, s))
        ready(e, s, 0);
}

void vg_shape_sleep(struct vg_eng *e, struct shape *s, enum vg_eng_code code) {
    if (s->state == SHAPE_READY)
        unready(e, s);
    s->state = SHAPE_ASLEEP;
    s->code = code;
    if (code == VG_ENG_KEPT || code == VG_ENG_WINDOW)
        vg_list_push_back(&e->kept, &s->kept);
}

void vg_shape_settle(struct vg_eng *e, struct shape *s) {
    bool any = vg_shape_top(e, s) != NULL;
    if (!any && s->queued && (s->state != SHAPE_ASLEEP || s->code != VG_ENG_AT_LIMIT)) {
        vg_shape_unreserve(e, s);
        vg_list_remove(&s->kept);
        vg_shape_sleep(e, s, VG_ENG_AT_LIMIT);
    } else if (any && (s->state == SHAPE_EMPTY ||
                       (s->state == SHAPE_ASLEEP && s->code == VG_ENG_AT_LIMIT))) {
        ready(e, s, 0);
    }
}

static void wake_for(struct vg_eng *e, struct shape *s, struct enode *n) {
    if (s->state == SHAPE_READY) {
        if (s->waker != n->at + 1)
            s->waker = 0;
    } else if (s->state == SHAPE_ASLEEP && s->code != VG_ENG_AT_LIMIT && vg_fit_now(s->fit, n) &&
               vg_fit_belongs(e, s->fit, n)) {
        ready(e, s, n->at + 1);
    }
}

void vg_shapes_node_changed(struct vg_eng *e, struct enode *n, bool more) {
    if (!vg_list_empty(&n->claims))
        vg_claims_node_changed(e, n);
    if (!more)
        return;
    if (!vg_list_empty(&n->pinned) && vg_list_empty(&n->pin_due))
        vg_list_push_back(&e->pin_due, &n->pin_due);
    if (!n->usable || n->ghost)
        return;
    uint32_t top = helps(n);
    for (uint32_t w = 0; w < 4; w++)
        for (uint64_t set = n->pools[w]; set; set &= set - 1) {
            uint32_t p = 64 * w + (uint32_t)__builtin_ctzll(set);
            for (uint32_t i = 0; i <= top; i++)
                vg_list_for_each (k, &e->beds->bed[p][i])
                    wake_for(e, vg_list_entry(k, struct shape_bed, link)->shape, n);
        }
}

void vg_shapes_wake_kept(struct vg_eng *e) {
    vg_list_for_each_safe (i, &e->kept)
        vg_shape_wake(e, vg_list_entry(i, struct shape, kept));
}

/* --- who is first --- */

/* The room that woke it is gone again, and nothing else was gained. */
static bool too_late(const struct vg_eng *e, const struct shape *s) {
    const struct enode *n = s->waker ? e->node[s->waker - 1] : NULL;
    /* Whoever had no node at all must learn that now there is one, though it is busy. */
    if (s->code == VG_ENG_NO_NODES || s->code == VG_ENG_TOO_BIG)
        return false;
    return s->waker && (!n || !vg_fit_now(s->fit, n));
}

/* Those that come too late go back to sleep on the way. Of the others, the columns with the largest
   level are asked together. */
struct shape *vg_shapes_best(struct vg_eng *e) {
    size_t n = 0;
    for (uint32_t i = 0; i < e->n_ready;) {
        struct shape *s = e->ready[i];
        if (too_late(e, s)) {
            vg_shape_sleep(e, s, s->code); /* another takes its place in `ready` */
            continue;
        }
        struct column *top = vg_shape_top(e, s);
        if (n && top->level > e->wanted[0]->level)
            n = 0;
        if (!n || top->level == e->wanted[0]->level)
            e->wanted[n++] = top;
        i++;
    }
    struct bough *first = n ? vg_pick(e, e->wanted, n) : NULL;
    if (!first)
        return NULL;
    struct shape *s = first->column->shape; /* first of all, so first of its shape */
    s->head = vg_lane_first(first);
    s->head_epoch = e->order_epoch;
    return s;
}

/* --- reservations --- */

void vg_shape_unreserve(struct vg_eng *e, struct shape *s) {
    uint32_t p = s->fit->pool[0];
    if (vg_list_empty(&s->reserved))
        return;
    vg_list_remove(&s->reserved);
    e->beds->n_reserved[p]--;
    e->beds->any_short += !e->beds->short_of[p];
    e->beds->short_of[p] = true;
    vg_profile_unreserve(e, s);
}

/* Without memory for a promise it waits without one. */
static void reserve(struct vg_eng *e, struct shape *s) {
    uint32_t p = s->fit->pool[0];
    if (vg_profile_reserve(e, s) < 0)
        return;
    if (!vg_list_empty(&s->reserved))
        return;
    vg_list_push_back(&e->beds->reserved[p], &s->reserved);
    e->beds->n_reserved[p]++;
}

static struct shape *last_reserved(struct vg_eng *e, uint32_t p) {
    struct shape *last = NULL;
    vg_list_for_each (i, &e->beds->reserved[p]) {
        struct shape *s = vg_list_entry(i, struct shape, reserved);
        if (!last || vg_shape_before(e, last, s))
            last = s;
    }
    return last;
}

void vg_shape_blocked(struct vg_eng *e, struct shape *s) {
    uint32_t p = s->fit->pool[0];
    if (!e->conf.reserve || s->code == VG_ENG_NO_NODES || s->code == VG_ENG_TOO_BIG)
        return;
    if (vg_list_empty(&s->reserved) && e->beds->n_reserved[p] >= e->conf.reserve) {
        struct shape *last = last_reserved(e, p);
        if (!vg_shape_before(e, s, last))
            return;
        vg_shape_unreserve(e, last);
    }
    reserve(e, s);
}

static struct shape *first_without(struct vg_eng *e, uint32_t p) {
    struct shape *first = NULL;
    for (uint32_t k = 0; k < SIZES; k++)
        vg_list_for_each (i, &e->beds->bed[p][k]) {
            struct shape *s = vg_list_entry(i, struct shape_bed, link)->shape;
            if (s->state != SHAPE_ASLEEP || s->fit->pool[0] != p || !vg_list_empty(&s->reserved) ||
                (s->code != VG_ENG_BUSY && s->code != VG_ENG_KEPT && s->code != VG_ENG_WINDOW))
                continue;
            if (!first || vg_shape_before(e, s, first))
                first = s;
        }
    return first;
}

void vg_shapes_top_up(struct vg_eng *e) {
    for (uint32_t p = 0; p < 256 && e->beds->any_short; p++) {
        if (!e->beds->short_of[p])
            continue;
        struct shape *s = NULL;
        while (e->beds->n_reserved[p] < e->conf.reserve && (s = first_without(e, p))) {
            reserve(e, s);
            if (vg_list_empty(&s->reserved))
                break; /* no memory, or nothing to promise */
        }
        e->beds->short_of[p] = false;
        e->beds->any_short--;
    }
}
