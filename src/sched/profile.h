#pragma once
/* Inside the engine's time part: what is promised to whom, when and where.

   A reservation belongs to a sleeping shape, to a task for which others are being stopped (kept),
   or to a window for a tenant. It is made of holds: so much of one node, on these GPUs, from `from`
   on. */
#include "sched/engine-int.h"

struct reservation {
    struct vg_list link; /* in profile.reservations or profile.kept; a window's is in neither */
    struct shape *shape; /* whose it is; NULL: */
    const struct etask *task; /*   kept for it; or NULL: */
    uint64_t grant;           /*   a tenant's, by a window */
    uint64_t from, until;
    struct vg_list holds; /* hold.link */
    bool broken;          /* something happened that leaves no room for it then */
    bool told;            /* it came due, and its shape was woken */
};

struct hold {
    struct vg_list on_node, link;
    struct reservation *of;
    struct enode *node;
    const struct fit *fit; /* borrowed from the shape, task or window */
    uint64_t gpus;
    /* What is left there at its beginning, beside everything promised; kept while `valid`. */
    bool valid;
    int64_t spare_cpu, spare_mem;
    uint64_t spare_gpus;
};

struct ending { /* of a running task */
    uint64_t at;
    struct etask *task;
};

#define FREED_MAX 64

struct profile {
    struct ending *heap; /* owned: running tasks, earliest expected end first */
    size_t n_heap, heap_cap;
    struct vg_list reservations, kept; /* reservation.link */
    struct vg_list windows;            /* window.link */
    uint64_t freed[FREED_MAX];         /* ids of nodes that gained room since the last tick */
    size_t n_freed;
    struct eta_cache *eta; /* owned; eta.c */
    uint64_t searches;     /* counts; enode.seen */
    int64_t credit;        /* nodes that searches for promises may still look at: see reserve.c */
    uint64_t credit_at;
    uint32_t events; /* since then */
    bool moved;      /* a promise moved or went: those that were kept back look again */
    bool any_broken;
    uint64_t next_due; /* no promise that was not told comes due before */
};

/* A place that becomes free. */
struct opening {
    uint64_t at, gpus;
    struct enode *node;
};

struct ask { /* what is searched for */
    const struct fit *fit;
    uint32_t members;
    uint64_t run_usec;       /* how long the place is needed */
    const struct shape *who; /* not in its own way; may be NULL */
    uint64_t before;         /* later than this is of no interest */
};

/* profile.c: whether the hold stands in the way of that shape: it is not its own, and not of one
   that comes after it. `who` may be NULL: then everything does. */
bool vg_hold_blocks(const struct vg_eng *e, const struct hold *h, const struct shape *who);
/* The state of a node at a time, with everything that is promised by then (`who` NULL), or only
   what stands in the way of `who`, and its own if asked. `copy` with its `gpu` is the caller's. */
void vg_room_at(const struct vg_eng *e, const struct enode *n, uint64_t at, const struct shape *who,
                bool own_too, struct enode *copy, struct egpu *gpu);

/* search.c: the earliest `members` openings, written to `ret` in order of time. How many were
   found: all or 0. *cost: of the search, in nodes looked at. */
size_t vg_search(const struct vg_eng *e, const struct ask *a, struct opening *ret, size_t *cost);
/* The openings of one node, up to `max`. */
size_t vg_search_node(const struct vg_eng *e, struct enode *n, const struct ask *a,
                      struct opening *ret, size_t max);

/* reserve.c */
struct reservation *vg_reservation_new(void);
int vg_reservation_hold(struct reservation *r, struct enode *n, const struct fit *f, uint64_t gpus);
void vg_reservation_drop(struct reservation *r); /* its holds */
void vg_reservation_free(struct reservation *r);
void vg_hold_free(struct hold *h);
/* What is promised on the node is looked at again: a task came, went, or takes longer. */
void vg_holds_recheck(struct vg_eng *e, struct enode *n);
uint64_t vg_reserve_tick(struct vg_eng *e);

/* window.c */
void vg_windows_done(struct vg_eng *e);
/* When a task that would run there from `at` to `until` can begin at the earliest, as far as
   windows that close whole nodes go: `at` itself when none is in the way. `grant`: as shape.grant.
 */
uint64_t vg_window_clear(const struct vg_eng *e, const struct enode *n, uint64_t at, uint64_t until,
                         uint64_t grant);
/* The first window on the node that begins before `until`, for sentences; NULL: none. */
const struct vg_eng_window *vg_window_next(const struct vg_eng *e, const struct enode *n,
                                           uint64_t until, uint64_t grant);
bool vg_window_granted(const struct vg_eng *e, uint64_t tenant, uint64_t grant);
void vg_window_task(struct vg_eng *e, struct etask *t, bool begins);
void vg_window_node_set(struct vg_eng *e);
uint64_t vg_window_tick(struct vg_eng *e);

/* eta.c */
void vg_eta_done(struct profile *p);

/* learn.c */
int vg_learn_init(struct vg_eng *e);
void vg_learn_done(struct vg_eng *e);
