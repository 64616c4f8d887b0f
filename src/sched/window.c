/* Windows: times in which nodes are away for maintenance, and times in which capacity is kept for a
   tenant.

   Maintenance takes no task that would run into it. An advance reservation of whole nodes does the
   same to everybody else's tasks; one of some GPUs holds that many cards, those first that are
   expected to be free when it begins, on as few nodes as possible. While it lasts, cards that the
   tenant's tasks got elsewhere in the pool count: the same number is let go. Nothing is stopped for
   it: a task that runs longer than expected keeps its card. Pure. */
#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"
#include "sched/profile.h"

struct window {
    struct vg_list link;
    struct vg_eng_window w;   /* why: owned */
    struct reservation *held; /* owned; NULL: whole nodes, or maintenance */
    struct fit card;          /* what each hold is of: cards without CPU or memory */
    bool begun, stale;        /* stale: its cards are to be chosen again */
};

static struct window *window_of(struct vg_list *i) {
    return vg_list_entry(i, struct window, link);
}

static bool applies(const struct vg_eng *e, const struct vg_eng_window *w, const struct enode *n) {
    if (w->node)
        return w->node == n->id;
    if (!w->pool)
        return true;
    const struct epool *p = vg_map_get_u64(&e->pools, w->pool);
    return p && (n->pools[p->at / 64] >> (p->at % 64) & 1);
}

/* `grant`'s tasks may use what is kept for `tenant`: it is that tenant, or below it. */
bool vg_window_granted(const struct vg_eng *e, uint64_t tenant, uint64_t grant) {
    if (tenant == grant)
        return true;
    const struct etenant *t = grant ? vg_map_get_u64(&e->tenants, grant) : NULL;
    while (t && t->id != tenant)
        t = t->parent;
    return t != NULL;
}

static bool closes(const struct vg_eng *e, const struct window *x, const struct enode *n,
                   uint64_t grant) {
    return !x->held && applies(e, &x->w, n) &&
           !(x->w.tenant && vg_window_granted(e, x->w.tenant, grant));
}

uint64_t vg_window_clear(const struct vg_eng *e, const struct enode *n, uint64_t at, uint64_t until,
                         uint64_t grant) {
    uint64_t run = until == VG_ENG_NEVER ? VG_ENG_NEVER : until - at;
    for (bool again = true; again;) {
        again = false;
        uint64_t end = run > VG_ENG_NEVER - at ? VG_ENG_NEVER : at + run;
        vg_list_for_each (i, &e->profile->windows) {
            const struct window *x = window_of(i);
            if (at < x->w.until_usec && end > x->w.from_usec && closes(e, x, n, grant)) {
                at = x->w.until_usec;
                again = true;
                break;
            }
        }
    }
    return at;
}

const struct vg_eng_window *vg_window_next(const struct vg_eng *e, const struct enode *n,
                                           uint64_t until, uint64_t grant) {
    const struct vg_eng_window *first = NULL;
    vg_list_for_each (i, &e->profile->windows) {
        const struct window *x = window_of(i);
        bool shut = x->held ? !vg_window_granted(e, x->w.tenant, grant) && applies(e, &x->w, n)
                            : closes(e, x, n, grant);
        if (shut && x->w.from_usec < until && x->w.until_usec > e->now &&
            (!first || x->w.from_usec < first->from_usec))
            first = &x->w;
    }
    return first;
}

/* ------------------------------------------------------------------ cards for a tenant */

static uint32_t cards_held(const struct window *x) {
    uint32_t k = 0;
    vg_list_for_each (i, &x->held->holds)
        k += (uint32_t)__builtin_popcountll(vg_list_entry(i, struct hold, link)->gpus);
    return k;
}

static bool belongs_to(const struct vg_eng *e, const struct window *x, const struct etask *t) {
    return vg_window_granted(e, x->w.tenant, t->tenant->id);
}

/* Cards in the pool that the tenant's tasks hold. */
static uint32_t cards_used(const struct vg_eng *e, const struct window *x) {
    uint32_t k = 0;
    for (size_t i = 0; i < e->n_nodes; i++) {
        if (!e->node[i] || !applies(e, &x->w, e->node[i]))
            continue;
        vg_list_for_each (j, &e->node[i]->tasks) {
            const struct etask *t = vg_list_entry(j, struct etask, on_node);
            if (belongs_to(e, x, t))
                k += (uint32_t)__builtin_popcountll(t->gpus);
        }
    }
    return k;
}

/* Cards of the node that are free at that time and held by no promise to others. */
static uint64_t free_cards(const struct vg_eng *e, const struct enode *n, uint64_t at) {
    struct egpu gpu[VG_NODE_GPUS_MAX];
    struct enode copy;
    uint64_t set = 0;
    vg_room_at(e, n, at, NULL, false, &copy, gpu);
    for (uint32_t i = 0; i < copy.n_gpus; i++)
        set |= (uint64_t)(!gpu[i].bad && gpu[i].tasks == 0) << gpu[i].index;
    vg_list_for_each (i, &n->holds) {
        const struct hold *h = vg_list_entry(i, struct hold, on_node);
        set &= h->of->grant ? ~h->gpus : ~0ULL;
    }
    return set;
}

static uint64_t first_of(uint64_t set, uint32_t n) {
    uint64_t r = 0;
    for (; set && n; set &= set - 1, n--)
        r |= set & -set;
    return r;
}

/* Takes cards that are free at `at`: nodes that have at least `least` of them. */
static int take_cards(struct vg_eng *e, struct window *x, uint64_t at, uint32_t least,
                      uint32_t *want) {
    for (size_t i = 0; i < e->n_nodes && *want; i++) {
        struct enode *n = e->node[i];
        if (!n || !n->usable || !applies(e, &x->w, n))
            continue;
        uint64_t set = free_cards(e, n, at);
        uint32_t k = (uint32_t)__builtin_popcountll(set);
        if (!k || k < VG_MIN(least, *want))
            continue;
        set = first_of(set, *want);
        if (vg_reservation_hold(x->held, n, &x->card, set) < 0)
            return -ENOMEM;
        *want -= (uint32_t)__builtin_popcountll(set);
    }
    return 0;
}

/* Free in time first, then those that are free soonest after; full nodes before scattered cards. */
static int choose_cards(struct vg_eng *e, struct window *x) {
    static const uint64_t later[] = {0, 3600 * VG_USEC, 8 * 3600 * VG_USEC, VG_ENG_NEVER / 2};
    uint64_t from = VG_MAX(x->w.from_usec, e->now);
    uint32_t used = x->begun ? cards_used(e, x) : 0;
    uint32_t want = x->w.gpus > used ? x->w.gpus - used : 0;
    vg_reservation_drop(x->held);
    for (size_t i = 0; i < VG_COUNT(later) && want; i++)
        for (uint32_t least = 8; least && want; least /= 2)
            if (take_cards(e, x, from + later[i], least, &want) < 0)
                return -ENOMEM;
    e->profile->moved = true;
    return 0;
}

/* A card of theirs is taken: of the held ones that one, or else any. */
static void let_go(struct window *x, const struct enode *n, uint64_t gpus) {
    uint32_t more = (uint32_t)__builtin_popcountll(gpus);
    vg_list_for_each_safe (i, &x->held->holds) {
        struct hold *h = vg_list_entry(i, struct hold, link);
        if (h->node != n)
            continue;
        more -= (uint32_t)__builtin_popcountll(h->gpus & gpus);
        h->gpus &= ~gpus;
        if (!h->gpus)
            vg_hold_free(h);
    }
    vg_list_for_each_safe (i, &x->held->holds) {
        struct hold *h = vg_list_entry(i, struct hold, link);
        uint64_t some = first_of(h->gpus, more);
        more -= (uint32_t)__builtin_popcountll(some);
        h->gpus &= ~some;
        if (!h->gpus)
            vg_hold_free(h);
    }
}

void vg_window_task(struct vg_eng *e, struct etask *t, bool begins) {
    vg_list_for_each (i, &e->profile->windows) {
        struct window *x = window_of(i);
        if (!x->held || !x->begun || !t->gpus || !applies(e, &x->w, t->node) ||
            !belongs_to(e, x, t))
            continue;
        if (begins) {
            let_go(x, t->node, t->gpus);
        } else {
            uint32_t used = cards_used(e, x) - (uint32_t)__builtin_popcountll(t->gpus);
            uint32_t have = used + cards_held(x), want = x->w.gpus > have ? x->w.gpus - have : 0;
            uint64_t back = first_of(t->gpus, want);
            if (back) /* without memory the tenant has a card less kept for it */
                (void)vg_reservation_hold(x->held, t->node, &x->card, back);
        }
        e->profile->moved = true;
    }
}

/* ------------------------------------------------------------------ coming and going */

static void free_window(struct vg_eng *e, struct window *x) {
    vg_list_remove(&x->link);
    vg_map_del_u64(&e->windows, x->w.id);
    vg_reservation_free(x->held);
    free((char *)x->w.why);
    free(x);
    e->profile->moved = true;
}

void vg_windows_done(struct vg_eng *e) {
    vg_list_for_each_safe (i, &e->profile->windows)
        free_window(e, window_of(i));
    vg_map_done(&e->windows);
}

uint64_t vg_window_grant(const struct vg_eng *e, const struct etenant *t) {
    if (vg_list_empty(&e->profile->windows))
        return 0;
    for (; t && t->id; t = t->parent)
        vg_list_for_each (i, &e->profile->windows)
            if (window_of(i)->w.tenant == t->id)
                return t->id;
    return 0;
}

/* The tenant's waiting tasks are (no longer) apart from others that ask for the same. A task for
   which there is no memory stays where it is, and at worst does not use the reservation. */
static void regrant(struct vg_eng *e, uint64_t tenant) {
    if (!tenant)
        return;
    vg_map_for_each (s, &e->tasks) {
        struct etask *t = s->value;
        if (t->lane && t->shape && vg_window_granted(e, tenant, t->tenant->id) &&
            t->shape->grant != vg_window_grant(e, t->tenant))
            (void)vg_shape_move(e, t);
    }
}

/* Promises that run into it are made anew. */
static void recheck_all(struct vg_eng *e) {
    vg_list_for_each (i, &e->profile->reservations)
        vg_list_entry(i, struct reservation, link)->broken = true;
    e->profile->any_broken = !vg_list_empty(&e->profile->reservations);
}

static struct window *new_window(struct vg_eng *e, const struct vg_eng_window *in) {
    struct window *x = vg_alloc(sizeof *x);
    if (!x)
        return NULL;
    vg_list_init(&x->link);
    x->w = *in;
    x->w.why = vg_strdup(in->why ? in->why : "");
    x->card.res.gpus = 1;
    if (in->tenant && in->gpus && (x->held = vg_reservation_new())) {
        x->held->grant = in->tenant;
        x->held->from = in->from_usec;
        x->held->until = in->until_usec;
    }
    if (!x->w.why || (in->tenant && in->gpus && !x->held) ||
        vg_map_put_u64(&e->windows, in->id, x) < 0) {
        vg_reservation_free(x->held);
        free((char *)x->w.why);
        free(x);
        return NULL;
    }
    vg_list_push_back(&e->profile->windows, &x->link);
    return x;
}

int vg_eng_set_window(struct vg_eng *e, const struct vg_eng_window *w) {
    if (!w->id || w->from_usec >= w->until_usec)
        return -EINVAL;
    if (w->tenant && !vg_map_get_u64(&e->tenants, w->tenant))
        return -ENOENT;
    vg_eng_remove_window(e, w->id);
    if (w->until_usec <= e->now)
        return 0;
    struct window *x = new_window(e, w);
    if (!x)
        return -ENOMEM;
    x->begun = x->w.from_usec <= e->now;
    int r = x->held ? choose_cards(e, x) : 0;
    if (r < 0)
        free_window(e, x);
    regrant(e, w->tenant);
    recheck_all(e);
    return r;
}

void vg_eng_remove_window(struct vg_eng *e, uint64_t id) {
    struct window *x = vg_map_get_u64(&e->windows, id);
    if (!x)
        return;
    uint64_t tenant = x->w.tenant;
    free_window(e, x);
    regrant(e, tenant);
    recheck_all(e);
}

/* Cards are chosen again: with the nodes that are there now. */
void vg_window_node_set(struct vg_eng *e) {
    vg_list_for_each (i, &e->profile->windows)
        if (window_of(i)->held)
            window_of(i)->stale = true;
}

uint64_t vg_window_tick(struct vg_eng *e) {
    uint64_t next = VG_ENG_NEVER;
    vg_list_for_each_safe (i, &e->profile->windows) {
        struct window *x = window_of(i);
        if (x->w.until_usec <= e->now) {
            vg_eng_remove_window(e, x->w.id);
            continue;
        }
        if (!x->begun && x->w.from_usec <= e->now)
            x->begun = x->stale = true;
        if (x->stale && x->held && choose_cards(e, x) == 0)
            x->stale = false;
        next = VG_MIN(next, x->begun ? x->w.until_usec : x->w.from_usec);
    }
    return next;
}
