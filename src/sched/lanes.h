#pragma once
/* Inside the engine: the order of those who wait for the same.

   A bough is where a tenant stands in a shape's tournament: its own waiting tasks (the lane) in
   order, and the boughs of the tenants below it in a heap. The winner of the root's bough is the
   shape's head. What a tenant holds changes its key in every shape it waits for; such boughs are
   only marked, and sorted in when their shape is looked at (vg_lanes_flush). */
#include "sched/engine-int.h"

struct limb { /* a child in a heap, with the key it was sorted in by */
    struct bough *bough;
    int64_t level;
    double share;
    uint64_t served;
    uint32_t no;
    bool in_quota;
};

struct bough {
    struct etenant *tenant;
    struct shape *shape;
    struct bough *parent; /* NULL: the root's */
    struct vg_list on_tenant;
    struct tree tasks;      /* of etask.in_lane: its own */
    struct limb *child;     /* owned: heap of those that have a head and are not capped */
    uint32_t n_child, kids; /* in the heap; all that exist */
    size_t child_cap;
    uint32_t at;        /* in parent->child; VG_NOT_IN_HEAP */
    struct etask *head; /* the winner of its own and those below; NULL: none */
    double share;       /* the key, as sorted in: in quota first, then the smaller share */
    uint64_t served;
    bool in_quota;
    bool capped; /* out: its tenant is at its limit */
    struct vg_list dirty, on_capped;
};
#define VG_NOT_IN_HEAP UINT32_MAX

/* The lane of a tenant in a shape; made with all boughs above it. NULL: no memory. */
struct bough *vg_lane_get(struct vg_eng *e, struct etenant *t, struct shape *s);
struct bough *vg_lane_find(const struct vg_eng *e, const struct etenant *t, const struct shape *s);
void vg_lane_add(struct vg_eng *e, struct bough *lane, struct etask *t);
void vg_lane_lift(struct etask *t, int64_t level); /* another level; it stays in its lane */
/* Takes the task out; boughs that nobody needs any more are freed (the lane may be, too). */
void vg_lane_remove(struct vg_eng *e, struct etask *t);
void vg_lane_prune(struct vg_eng *e, struct bough *b); /* frees it and those above if empty */
/* The tenant is at its limit for this shape: its bough leaves until vg_bough_uncap(). */
void vg_bough_cap(struct vg_eng *e, struct bough *b);
void vg_bough_uncap(struct vg_eng *e, struct bough *b);
/* A tenant's key changed. */
void vg_lanes_mark(struct etenant *t);
void vg_lanes_flush(struct vg_eng *e, struct shape *s);
/* The tenant has another parent: its boughs move with it. 0, or -ENOMEM before anything moved. */
int vg_lanes_replant(struct vg_eng *e, struct etenant *t, struct etenant *parent);

/* Larger goes first; does not change while a task waits. */
int64_t vg_task_level(const struct vg_eng *e, const struct vg_eng_req *r);
/* Whether a's turn comes before b's, both heads of boughs: see the head of engine.h. */
bool vg_bough_before(const struct bough *a, const struct bough *b);

/* shapes.c: the shape of a waiting task; made when missing. NULL: no memory. */
struct shape *vg_shape_get(struct vg_eng *e, struct fit *f, uint32_t members, uint32_t run_class,
                           uint64_t grant);
void vg_shape_drop_if_empty(struct vg_eng *e, struct shape *s);
/* After its tournament changed: it is READY, or sleeps because all are at a limit. */
void vg_shape_settle(struct vg_eng *e, struct shape *s);
void vg_shape_sleep(struct vg_eng *e, struct shape *s, enum vg_eng_code code);
struct shape *vg_shapes_best(struct vg_eng *e); /* of those READY; NULL: none */
int vg_shapes_init(struct vg_eng *e);
void vg_shapes_done(struct vg_eng *e);
/* Reservations: the first `reserve` blocked shapes of a pool hold one. */
void vg_shape_blocked(struct vg_eng *e, struct shape *s);
void vg_shape_unreserve(struct vg_eng *e, struct shape *s);
void vg_shapes_top_up(struct vg_eng *e);

/* tenants.c */
void vg_tenants_init(struct vg_eng *e);
void vg_etenants_done(struct vg_eng *e);
struct vg_eng_amount vg_fit_amount(const struct fit *f, uint32_t members);
/* One more of these would break its own limit (or quota, where it may have nothing beyond). */
bool vg_tenant_blocks(const struct vg_eng *e, const struct etenant *t, const struct fit *f,
                      uint32_t members);
double vg_tenant_fill(const struct etenant *t); /* how far its quota is used up */
double vg_tenant_past(const struct vg_eng *e, const struct etenant *t); /* decayed share */
void vg_tenant_count(struct etenant *t, int queued, int running, int own);
void vg_tenant_drop_if_gone(struct vg_eng *e, struct etenant *t);
void vg_tenants_refresh(struct vg_eng *e); /* keys that are old, a few at a time */
void vg_tenants_rekey(struct vg_eng *e);   /* all of them: the capacity or the policy changed */
void vg_tenants_save(const struct vg_eng *e, vg_eng_save_fn *fn, void *arg);
bool vg_tenants_restore(struct vg_eng *e, uint32_t kind, uint64_t key, const uint64_t value[4]);

/* engine.c */
int vg_task_wait(struct vg_eng *e, struct etask *t); /* into its lane or node->pinned */
void vg_task_unwait(struct vg_eng *e, struct etask *t);
void vg_task_delane(struct vg_eng *e, struct etask *t); /* out of its lane; counted all the same */
/* Counts those who wait: this one, with the gang it is the first of; or just this one. */
void vg_task_recount(struct vg_eng *e, struct etask *t);
void vg_task_uncount(struct vg_eng *e, struct etask *t);
void vg_task_uncount_one(struct vg_eng *e, struct etask *t);
void vg_task_start(struct vg_eng *e, struct etask *t, const struct spot *at, uint64_t started_usec);
void vg_task_leave(struct vg_eng *e, struct etask *t); /* frees its node and what it holds */
void vg_etask_free(struct vg_eng *e, struct etask *t);

/* gang.c */
struct gang *vg_gang_get(struct vg_eng *e, uint64_t id, uint32_t size);
void vg_gang_join(struct gang *g, struct etask *t);
void vg_gang_leave(struct vg_eng *e, struct etask *t); /* frees the gang with its last member */
/* A task that waits nowhere any more, or a gang by its first member, starts; `out` has room. */
void vg_gang_start(struct vg_eng *e, struct etask *first, const struct spot *at);
int vg_gang_try(struct vg_eng *e, struct shape *s, struct etask *first, enum vg_eng_code *code);

/* decide.c */
int vg_out_room(struct vg_eng *e, size_t n); /* so that vg_out_add cannot fail */
struct vg_eng_decision *vg_out_add(struct vg_eng *e);
