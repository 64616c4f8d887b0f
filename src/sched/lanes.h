#pragma once
/* Inside the engine: the order of those who wait.

   Tasks that ask for the same with the same level (priority and age) are a column of their shape. A
   tenant's tasks in a column are its lane, in order of submission. For every tenant a set of bits
   says in which columns it, or somebody below it, waits and is not at a limit; and the children of
   every tenant stand in two trees, by how far their quotas are used up and by their shares. So the
   first of any set of columns is found by walking down from the root: at each level the first child
   that has one of the bits. What a tenant holds changes its place among its siblings, and nothing
   else.

   A bough is a tenant's part in a column: its lane, and how many below it wait. */
#include "sched/engine-int.h"

struct column {
    struct shape *shape;
    int64_t level;
    uint32_t no; /* in vg_eng.column, and of its bit */
    uint32_t n_boughs, n_lanes;
    uint64_t asked;          /* pick.c: the search that asked for it last */
    struct vg_list on_shape; /* in shape.columns: largest level first */
    struct vg_list lanes;    /* bough.on_column: those with tasks of their own */
};

struct bough {
    struct etenant *tenant;
    struct column *column;
    struct bough *parent;     /* NULL: the root's */
    struct vg_list on_tenant; /* in etenant.boughs */
    struct vg_list on_column, on_capped;
    struct tree tasks;   /* of etask.in_lane: its own */
    struct etask *first; /* of them; NULL: none */
    uint32_t kids;       /* boughs right below it */
    uint32_t live;       /* of these, whose bit is set */
    bool set;            /* its tenant's bit: somebody waits here who is not at a limit */
    bool capped;         /* its tenant is at its limit */
};

/* The lane of a tenant in a shape at a level; made with all that is above it. NULL: no memory. */
struct bough *vg_lane_get(struct vg_eng *e, struct etenant *t, struct shape *s, int64_t level);
void vg_lane_add(struct vg_eng *e, struct bough *lane, struct etask *t);
/* Takes the task out; what nobody needs any more is freed (the lane, the column). */
void vg_lane_remove(struct vg_eng *e, struct etask *t);
void vg_lane_prune(struct vg_eng *e, struct bough *b); /* frees it and those above if empty */
bool vg_lane_is_live(const struct bough *lane);        /* nobody from it upwards is capped */
static inline struct etask *vg_lane_first(const struct bough *lane) {
    return lane->first;
}
/* The tenant is at its limit for this shape: nobody below it counts until vg_bough_uncap(). */
void vg_tenant_cap(struct vg_eng *e, struct etenant *t, const struct shape *s);
void vg_bough_uncap(struct vg_eng *e, struct bough *b);
/* The tenant has another parent: its boughs move with it. 0, or -ENOMEM before anything moved. */
int vg_lanes_replant(struct vg_eng *e, struct etenant *t, struct etenant *parent);

/* pick.c: the lane whose turn is first, of `n` columns of one level; NULL: nobody waits there who
   is not at a limit. */
struct bough *vg_pick(const struct vg_eng *e, struct column *const *col, size_t n);
/* The same by comparing all lanes; the cheaper way is chosen by vg_pick. Both are the same. */
struct bough *vg_pick_by_walk(const struct vg_eng *e, struct column *const *col, size_t n);
struct bough *vg_pick_by_lane(const struct vg_eng *e, struct column *const *col, size_t n);
/* Whether a's turn comes before b's: see the head of engine.h. */
bool vg_lane_before(const struct vg_eng *e, const struct bough *a, const struct bough *b);
/* The first column of a shape in which somebody waits who is not at a limit; NULL: none. */
struct column *vg_shape_top(const struct vg_eng *e, const struct shape *s);
static inline bool vg_tenant_bit(const struct etenant *t, const struct column *c) {
    return c->no / 64 < t->n_bits && t->bits[c->no / 64] >> (c->no % 64) & 1;
}

static inline void vg_sum_add(struct sum *to, const struct sum *s) {
    for (size_t i = 0; i < VG_SUM_WORDS; i++)
        to->w[i] |= s->w[i];
}
static inline bool vg_sums_meet(const struct sum *a, const struct sum *b) {
    uint64_t both = 0;
    for (size_t i = 0; i < VG_SUM_WORDS; i++)
        both |= a->w[i] & b->w[i];
    return both != 0;
}

/* Larger goes first; does not change while a task waits. */
int64_t vg_task_level(const struct vg_eng *e, const struct vg_eng_req *r);
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
void vg_tenant_bits_changed(struct etenant *t);
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
int vg_gang_try(struct vg_eng *e, struct shape *s, struct etask *first, struct etenant **full,
                enum vg_eng_code *code);

/* decide.c */
int vg_out_room(struct vg_eng *e, size_t n); /* so that vg_out_add cannot fail */
struct vg_eng_decision *vg_out_add(struct vg_eng *e);
