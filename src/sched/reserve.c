/* Promises: the earliest place of each of the first blocked shapes, so that what is let past them
   does not push them back; and room that is kept for a task while others leave it.

   A promise stands until its shape starts, until something earlier by a good part of the wait turns
   up, or until it is broken: a task there takes longer than expected, or the node goes. What was
   let past on the strength of its estimate and keeps it breaks nothing. */
#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"
#include "sched/profile.h"

#define GAIN_PART                                                                                 \
    8               /* a promise moves when the wait becomes shorter by more than this part of it \
                     */
#define STAY_PART 2 /* a broken one moves when it then waits only for this part */
#define CREDIT_EVENT 2       /* nodes that may be looked at for each task that begins or ends, */
#define CREDIT_SEC 2         /*   and for each second, */
#define CREDIT_MAX (1 << 13) /*   saved up to this: so promises cost a bounded part of the time */
#define LOOKS_MAX 64         /* (promise, freed node) pairs looked at in one tick */

struct reservation *vg_reservation_new(void) {
    struct reservation *r = vg_alloc(sizeof *r);
    if (!r)
        return NULL;
    vg_list_init(&r->link);
    vg_list_init(&r->holds);
    return r;
}

int vg_reservation_hold(struct reservation *r, struct enode *n, const struct fit *f,
                        uint64_t gpus) {
    struct hold *h = vg_alloc(sizeof *h);
    if (!h)
        return -ENOMEM;
    *h = (struct hold){.of = r, .node = n, .fit = f, .gpus = gpus};
    vg_list_for_each (i, &n->holds)
        vg_list_entry(i, struct hold, on_node)->valid = false;
    vg_list_push_back(&n->holds, &h->on_node);
    vg_list_push_back(&r->holds, &h->link);
    return 0;
}

void vg_hold_free(struct hold *h) {
    vg_list_remove(&h->on_node);
    vg_list_remove(&h->link);
    vg_list_for_each (i, &h->node->holds)
        vg_list_entry(i, struct hold, on_node)->valid = false;
    free(h);
}

void vg_reservation_drop(struct reservation *r) {
    vg_list_for_each_safe (i, &r->holds)
        vg_hold_free(vg_list_entry(i, struct hold, link));
}

void vg_reservation_free(struct reservation *r) {
    if (!r)
        return;
    vg_reservation_drop(r);
    vg_list_remove(&r->link);
    free(r);
}

/* ------------------------------------------------------------------ of shapes */

static uint64_t after(uint64_t at, uint64_t usec) {
    return usec > VG_ENG_NEVER - at ? VG_ENG_NEVER : at + usec;
}

static struct ask ask_for(const struct shape *s, uint64_t before) {
    return (struct ask){.fit = s->fit,
                        .members = s->members,
                        .run_usec = vg_run_class_max(s->run_class),
                        .who = s,
                        .before = before};
}

static void set_times(struct vg_eng *e, struct reservation *r, uint64_t from) {
    const struct etask *head = vg_shape_head(e, r->shape);
    uint64_t run =
        head && head->expect_usec ? head->expect_usec : vg_run_class_max(r->shape->run_class);
    r->from = from;
    r->until = after(VG_MAX(from, e->now), run);
    r->broken = false;
    /* Due at once, and yet it did not start: only what happens next can help it. */
    r->told = from <= e->now;
    if (!r->told)
        e->profile->next_due = VG_MIN(e->profile->next_due, from);
}

static int put_on(struct vg_eng *e, struct reservation *r, const struct opening *o, size_t n) {
    vg_reservation_drop(r);
    set_times(e, r, o[n - 1].at);
    for (size_t i = 0; i < n; i++)
        if (vg_reservation_hold(r, o[i].node, r->shape->fit, o[i].gpus) < 0)
            return -ENOMEM;
    for (size_t i = 0; i < n; i++) /* those after it may have to look for another place */
        vg_holds_recheck(e, o[i].node);
    return 0;
}

static bool same(const struct reservation *r, const struct opening *o, size_t n) {
    const struct vg_list *i = r->holds.next;
    for (size_t k = 0; k < n; k++, i = i->next) {
        const struct hold *h = vg_list_entry(i, struct hold, link);
        if (i == &r->holds || h->node != o[k].node || h->gpus != o[k].gpus)
            return false;
    }
    return i == &r->holds;
}

static void forget(struct vg_eng *e, struct shape *s) {
    vg_reservation_free(s->reservation);
    s->reservation = NULL;
    e->profile->moved = true;
}

/* Looks for a place; keeps the present one when there is nothing before `before`. */
static int make(struct vg_eng *e, struct shape *s, uint64_t before) {
    struct ask a = ask_for(s, before);
    struct opening one;
    vg_auto_free struct opening *several =
        s->members > 1 ? vg_alloc(s->members * sizeof *several) : NULL;
    struct opening *o = s->members > 1 ? several : &one;
    if (!o)
        return -ENOMEM;
    size_t looks, n = vg_search(e, &a, o, &looks);
    e->profile->credit -= (int64_t)looks;
    struct reservation *r = s->reservation;
    if (!n) {
        if (r && before == VG_ENG_NEVER)
            forget(e, s);
        return 0;
    }
    if (r && same(r, o, n)) {
        set_times(e, r, o[n - 1].at);
        return 0;
    }
    if (!r) {
        if (!(r = vg_reservation_new()))
            return -ENOMEM;
        r->shape = s;
        s->reservation = r;
        vg_list_push_back(&e->profile->reservations, &r->link);
    } else {
        e->profile->moved = true;
    }
    int rc = put_on(e, r, o, n);
    if (rc < 0)
        forget(e, s);
    return rc;
}

/* Earlier than this is worth moving for. */
static uint64_t better_than(const struct vg_eng *e, const struct reservation *r) {
    uint64_t wait = r->from > e->now ? r->from - e->now : 0;
    return wait > VG_USEC ? r->from - VG_MAX(wait / GAIN_PART, VG_USEC) : 0;
}

void vg_profile_unreserve(struct vg_eng *e, struct shape *s) {
    if (s->reservation)
        forget(e, s);
}

/* ------------------------------------------------------------------ what happens to them */

/* The node is one for it still, and at its beginning there is room beside the tasks that run then.
 */
static bool feasible(const struct vg_eng *e, const struct hold *h) {
    struct egpu gpu[VG_NODE_GPUS_MAX];
    struct enode copy;
    if (!h->node->usable || !vg_fit_belongs(e, h->fit, h->node))
        return false;
    vg_room_at(e, h->node, VG_MAX(h->of->from, e->now), h->of->shape, true, &copy, gpu);
    if ((h->fit->res.cpu_milli && copy.cpu_free < 0) ||
        (h->fit->res.mem_bytes && copy.mem_free < 0) || (copy.alone && copy.n_tasks > 1))
        return false;
    uint64_t there = 0;
    for (uint32_t i = 0; i < copy.n_gpus; i++) {
        bool ours = h->gpus >> gpu[i].index & 1;
        there |= (uint64_t)ours << gpu[i].index;
        if (ours && (gpu[i].bad || gpu[i].free_milli < 0 || gpu[i].free_mem < 0 ||
                     (h->fit->res.gpu_milli && gpu[i].gpu_class != h->fit->gpu_class) ||
                     (h->fit->res.gpus && gpu[i].tasks != 1)))
            return false;
    }
    return there == h->gpus;
}

void vg_holds_recheck(struct vg_eng *e, struct enode *n) {
    vg_list_for_each (i, &n->holds)
        vg_list_entry(i, struct hold, on_node)->valid = false;
    vg_list_for_each (i, &n->holds) {
        const struct hold *h = vg_list_entry(i, struct hold, on_node);
        if (h->of->shape && !h->of->broken && !feasible(e, h))
            h->of->broken = e->profile->any_broken = true;
    }
}

void vg_profile_node_set(struct vg_eng *e, struct enode *n, bool gone) {
    vg_holds_recheck(e, n);
    if (gone)
        vg_list_for_each_safe (i, &n->holds) {
            struct hold *h = vg_list_entry(i, struct hold, on_node);
            if (h->of->shape)
                h->of->broken = e->profile->any_broken = true;
            vg_hold_free(h);
        }
    vg_window_node_set(e);
}

/* A node gained room: is it the earlier place for somebody? */
static void improve(struct vg_eng *e, struct enode *n, size_t *looks) {
    vg_list_for_each (i, &e->profile->reservations) {
        struct reservation *r = vg_list_entry(i, struct reservation, link);
        struct opening o;
        struct ask a = ask_for(r->shape, better_than(e, r));
        if (!*looks)
            return;
        if (r->broken || a.members > 1 || a.before <= e->now)
            continue;
        (*looks)--;
        if (!vg_search_node(e, n, &a, &o, 1))
            continue;
        e->profile->moved = true;
        if (put_on(e, r, &o, 1) < 0) /* no memory: it has no place until one is looked for again */
            r->broken = e->profile->any_broken = true;
    }
}

static void improve_all(struct vg_eng *e) {
    struct profile *p = e->profile;
    size_t looks = LOOKS_MAX;
    for (size_t i = 0; i < p->n_freed; i++) {
        struct enode *n = vg_map_get_u64(&e->nodes, p->freed[i]);
        if (n && n->usable)
            improve(e, n, &looks);
    }
    p->n_freed = 0;
}

/* The same places, however much later they are free: what has been kept free there already is not
   given up lightly, and the place that seems the earliest is too often the one that is guessed
   worst. */
static bool put_off(struct vg_eng *e, struct reservation *r) {
    uint64_t from = 0;
    struct ask a = ask_for(r->shape, VG_ENG_NEVER);
    if (vg_list_empty(&r->holds))
        return false;
    vg_list_for_each (i, &r->holds) {
        struct opening o;
        struct hold *h = vg_list_entry(i, struct hold, link);
        if (a.members > 1 && i->next != &r->holds &&
            vg_list_entry(i->next, struct hold, link)->node == h->node)
            return false; /* several on one node: the second is not looked at here */
        if (!vg_search_node(e, h->node, &a, &o, 1))
            return false;
        h->gpus = o.gpus;
        from = VG_MAX(from, o.at);
    }
    vg_list_for_each (i, &r->holds) {
        struct hold *h = vg_list_entry(i, struct hold, link);
        vg_list_for_each (k, &h->node->holds)
            vg_list_entry(k, struct hold, on_node)->valid = false;
    }
    set_times(e, r, from);
    return true;
}

/* Elsewhere only if that is much earlier. */
static int move_on(struct vg_eng *e, struct reservation *r) {
    uint64_t wait;
    if (!put_off(e, r))
        return make(e, r->shape, VG_ENG_NEVER);
    wait = r->from > e->now ? r->from - e->now : 0;
    e->profile->moved = true;
    return wait > VG_USEC ? make(e, r->shape, e->now + wait / STAY_PART) : 0;
}

int vg_profile_reserve(struct vg_eng *e, struct shape *s) {
    struct reservation *r = s->reservation;
    if (e->profile->credit <= 0)
        return 0;
    if (!r || r->broken || r->from <= e->now)
        return make(e, s, VG_ENG_NEVER);
    /* Single places are improved as nodes gain room; a gang's need a search of their own. */
    return s->members > 1 && better_than(e, r) ? make(e, s, better_than(e, r)) : 0;
}

/* Broken ones get another place (or, without memory, none until they ask again). False: some are
   left for later. */
static bool remake(struct vg_eng *e) {
    vg_list_for_each_safe (i, &e->profile->reservations) {
        struct reservation *r = vg_list_entry(i, struct reservation, link);
        struct shape *s = r->shape;
        if (!r->broken)
            continue;
        if (e->profile->credit <= 0)
            return false;
        if (move_on(e, r) < 0 && s->reservation)
            forget(e, s);
    }
    return true;
}

static void earn(struct vg_eng *e) {
    struct profile *p = e->profile;
    uint64_t passed = VG_MIN(e->now - p->credit_at, 3600 * VG_USEC);
    p->credit += (int64_t)(CREDIT_EVENT * p->events + passed * CREDIT_SEC / VG_USEC);
    p->events = 0;
    p->credit = VG_MIN(p->credit, CREDIT_MAX);
    p->credit_at = e->now;
}

uint64_t vg_reserve_tick(struct vg_eng *e) {
    struct profile *p = e->profile;
    earn(e);
    if (p->n_freed)
        improve_all(e);
    if (p->any_broken)
        p->any_broken = !remake(e);
    if (p->next_due > e->now)
        return p->next_due;
    p->next_due = VG_ENG_NEVER;
    vg_list_for_each (i, &p->reservations) {
        struct reservation *r = vg_list_entry(i, struct reservation, link);
        if (!r->told && r->from <= e->now) {
            r->told = true;
            vg_shape_wake(e, r->shape);
        } else if (!r->told) {
            p->next_due = VG_MIN(p->next_due, r->from);
        }
    }
    return p->next_due;
}

/* ------------------------------------------------------------------ kept for a task */

int vg_profile_keep(struct vg_eng *e, struct etask *t, struct enode *n, uint64_t gpus) {
    struct reservation *r = NULL;
    vg_list_for_each (i, &e->profile->kept)
        if (vg_list_entry(i, struct reservation, link)->task == t)
            r = vg_list_entry(i, struct reservation, link);
    bool fresh = !r;
    if (fresh && !(r = vg_reservation_new()))
        return -ENOMEM;
    r->task = t;
    r->until = after(e->now, vg_run_class_max(vg_run_class(t->expect_usec)));
    if (vg_reservation_hold(r, n, t->fit, gpus) < 0) {
        if (fresh)
            vg_reservation_free(r);
        return -ENOMEM;
    }
    if (fresh)
        vg_list_push_back(&e->profile->kept, &r->link);
    vg_holds_recheck(e, n);
    return 0;
}

void vg_profile_unkeep(struct vg_eng *e, struct etask *t) {
    vg_list_for_each_safe (i, &e->profile->kept) {
        struct reservation *r = vg_list_entry(i, struct reservation, link);
        if (r->task != t)
            continue;
        vg_reservation_free(r);
        e->profile->moved = true;
    }
}
