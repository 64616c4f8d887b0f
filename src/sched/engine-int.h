#pragma once
/* Inside the engine: what it remembers, and who does what.

   enodes.c gpus.c near.c fit.c score.c together.c
                                   pools, nodes, what is free, where a shape fits best (and the
                                   public calls that change pools, nodes and the mix)
   tenants.c lanes.c shapes.c      who is next
   gang.c preempt.c decide.c       all-or-nothing, making room, the loop of decisions
   engine.c submit.c reshare.c     tasks come and go, and what they hold changes
   learn.c profile.c window.c      how long things run, what is promised to whom when
   engine-explain.c                sentences and lists for people

   A waiting task is in one lane: (tenant, shape). A shape is (fit, members, run class); a fit is
   what a node must have. While a shape cannot start anywhere it sleeps; a node that gained room
   wakes the shapes whose fit it may now satisfy. */
#include "base/list.h"
#include "base/map.h"
#include "sched/engine.h"
#include "sched/tree.h"

/* ------------------------------------------------------------------ nodes */

struct egpu {
    int32_t free_milli; /* of 1000; below 0 only through adopted tasks */
    int32_t room;       /* for shares, 0 .. 1000: the scarcer of milli and memory; bad: 0 */
    uint32_t index, island, numa;
    uint64_t mem;
    int64_t free_mem;
    uint32_t tasks;    /* that hold it or a share of it, */
    uint8_t gpu_class; /*   all of this class; MIXED only through adopted tasks */
    bool bad;
};
#define VG_GPU_MIXED UINT8_MAX /* takes nothing until it is free */

struct enode {
    uint64_t id;
    uint32_t at;               /* in vg_eng.node; stays while it lives */
    char *name, *model, *rack; /* owned; "" when none */
    char **label;              /* owned */
    size_t n_labels;
    uint32_t rack_no;              /* racks.c; 0: in none */
    uint32_t rack_next, rack_prev; /* 1 + slot of others in it; 0: none */
    uint32_t model_no;             /* equal ones have equal numbers; 0: none */
    uint32_t class_no;             /* nclass.c */
    bool parts;                    /* its GPUs are parts of cards, for class mig alone */
    bool linked;                   /* some of its cards reach each other by NVLink */
    struct vg_res total;
    int64_t cpu_free, mem_free;  /* below 0 only through adopted tasks */
    struct egpu *gpu;            /* owned, by index ascending */
    struct near *near;           /* owned; NULL: all are equally far from each other */
    uint32_t n_gpus, whole_free; /* GPUs that nobody holds any of */
    bool usable;
    bool shrunk; /* became smaller than what was held on it, once */
    bool ghost;  /* not there (yet, or any more); only holds its `pinned` */
    uint32_t n_tasks, max_tasks;
    uint32_t alone;         /* tasks that have all of it: 1 at most, but for adopted ones */
    uint64_t pools[4];      /* set of epool.at */
    struct vg_list tasks;   /* etask.on_node: by expected end, earliest first */
    struct vg_list pinned;  /* etask.link: sessions' tasks that wait for this node, in order */
    struct vg_list ghosts;  /* fit_world.ghosts, while it is one */
    struct vg_list holds;   /* hold.on_node: what is promised here */
    struct vg_map cached;   /* environments */
    uint64_t changed;       /* vg_eng.change of its last change */
    struct vg_list pin_due; /* in vg_eng.pin_due: its pinned tasks should be tried */
    struct vg_list claims;  /* claim_spot.on_node */
    uint64_t weighed;       /* preempt.c: the search that looked at it last */
    uint64_t seen;          /* profile.c: the search that looked at it last */
};

struct epool {
    uint64_t id;
    uint32_t at; /* < 256 */
    char *name;  /* owned */
    char **label;
    size_t n_labels;
    struct vg_res shape;
    uint8_t gpu_class;
    uint64_t min_run_usec;
    uint32_t nodes, usable, queued, running, refs;
    bool whole;
};

/* ------------------------------------------------------------------ shapes */

/* What one member needs of a node; equal ones are one. fit.c owns the index behind it. */
struct fit {
    uint32_t refs; /* shapes and running tasks */
    uint64_t hash;
    struct vg_res res;
    bool whole; /* a node of its own */
    uint8_t gpu_class;
    uint32_t pool[VG_ENG_POOLS_MAX]; /* epool.at, in order of preference */
    uint32_t n_pools;
    char *model; /* owned; "" any */
    char **label;
    size_t n_labels;
    struct fit *same; /* another of the same hash */
    uint8_t *rank;    /* owned; by enode.class_no: 0 unknown, 255 does not belong, else
                         1 + which of its pools */
    uint32_t n_rank;
    struct vg_eng_amount most;    /* vg_fit_most, */
    uint64_t most_layout;         /* found at this fit_world.layout */
    const struct enode *could[2]; /* vg_fit_could, by `usable`, */
    uint64_t could_layout[2];     /* found at this fit_world.layout */
    uint32_t mix_at;              /* where the mix counts it */
    struct fit_index *index; /* owned by fit.c: eligible nodes, ordered by score, kept up lazily */
    struct vg_list shapes;   /* shape.on_fit */
    struct vg_list link;     /* in vg_eng.fits */
};

/* How long a task is expected to run, in classes that differ about fourfold: what fits before a
   reservation is the same for a whole class (its upper end). */
#define VG_RUN_CLASSES 12
uint32_t vg_run_class(uint64_t usec);  /* learn.c */
uint64_t vg_run_class_max(uint32_t c); /* VG_ENG_NEVER for the last */

enum shape_state { SHAPE_READY, SHAPE_ASLEEP, SHAPE_EMPTY };

struct shape {
    struct fit *fit;
    uint32_t members; /* 1, or of a gang */
    uint32_t run_class;
    uint64_t grant; /* part of its identity, vg_window_grant(): 0, or the tenant whose advance
                       reservation its tasks may use */
    struct vg_list on_fit;
    enum shape_state state;
    enum vg_eng_code code; /* why it sleeps: BUSY, KEPT, WINDOW, ... AT_LIMIT: all who wait are */
    uint64_t queued;       /* tasks or gangs that wait */
    struct reservation *reservation; /* profile.c; NULL: none */
    struct vg_list columns;          /* lanes.c: of column.on_shape, largest level first */
    struct etask *head;              /* pick.c: remembered, as of head_epoch */
    uint64_t head_epoch;
    uint32_t ready_at; /* SHAPE_READY: place in vg_eng.ready */
    uint32_t waker;    /* READY: enode.at + 1 of the only node that gained since it slept; 0: any */
    struct shape_bed {
        struct vg_list link; /* in vg_eng.beds */
        struct shape *shape;
    } bed[VG_ENG_POOLS_MAX];    /* one a pool of its fit */
    struct vg_list kept;        /* in vg_eng.kept while it sleeps by KEPT or WINDOW */
    struct vg_list reserved;    /* in vg_eng.reserved of its first pool */
    struct vg_list due;         /* preempt.c: in vg_eng.due, to be tried by stopping others */
    uint64_t retry_usec;        /*   not before then */
    uint64_t tried, tried_usec; /*   for this head, then */
    uint32_t tried_priority, tried_tenant;
};

/* ------------------------------------------------------------------ tenants, tasks */

/* A set of columns in little room: their bits, laid over one another. What is not in it is not in
   the set. */
#define VG_SUM_WORDS 4
struct sum {
    uint64_t w[VG_SUM_WORDS];
};

struct etenant {
    uint64_t id;
    char *name;
    struct etenant *parent; /* NULL: the root */
    struct vg_list children, sibling;
    struct vg_eng_amount quota, limit, held; /* held: by it and those below */
    uint32_t weight;
    uint64_t min_run_usec;
    double usage; /* decayed share of the capacity, as of usage_at: see tenants.c */
    uint64_t usage_at;
    double rate;              /* the share that it holds since usage_at */
    double fill;              /* how far its quota is used up */
    double key;               /* its share for the order among siblings, smaller first */
    uint64_t served;          /* vg_eng.starts when it was last given something */
    uint32_t no;              /* of its own, for the map of boughs */
    uint32_t depth;           /* the root's is 0 */
    uint32_t queued, running; /* tasks of it and those below */
    uint32_t yielding;        /* of those that run, preemptible ones */
    uint32_t own;             /* its own tasks, waiting or running */
    struct vg_list boughs;    /* lanes.c: its part in the columns */
    uint64_t *bits;           /* owned: columns in which somebody here waits, by column.no */
    size_t n_bits;            /* words */
    uint32_t own_lanes;
    struct tree by_share, by_fill;      /* its children; by_fill: those with a quota */
    struct tree_item in_share, in_fill; /* in its parent's */
    bool sorted;                        /* is in them */
    struct sum sum;                     /* of its bits */
    struct vg_eng_amount room;          /* left of its quota */
    /* Of it and those below it in these trees: who need not be looked at. */
    struct sum share_sum, fill_sum;
    struct vg_eng_amount fill_room;
    struct vg_list capped; /* boughs that are out because it is at its limit */
    struct vg_list stale;  /* in vg_eng.stale: keys by age */
    struct vg_list runs;   /* etask.on_tenant: its own that run, newest first */
    bool removed;
};

/* CLAIMS: others are being stopped for it; it is in no lane, and its places are known. */
enum etask_place { TASK_WAITS, TASK_PINNED, TASK_RUNS, TASK_CLAIMS };

struct gang { /* gang.c */
    uint64_t id;
    uint32_t size, here;    /* asked for; members that wait or run */
    struct vg_list members; /* etask.on_gang; while it waits, the first is in the lane */
    bool waits;             /* as a whole: none runs */
};

struct etask {
    uint64_t id, order, kin, env;
    uint32_t priority;
    struct etenant *tenant;
    struct shape *shape; /* WAITS; NULL while it is PINNED or CLAIMS */
    struct fit *fit;     /* while it is here */
    int64_t level;       /* priority and age: larger first; see vg_task_level() */
    struct bough *lane;  /* while it waits; of a gang, only the first member is in it */
    struct tree_item in_lane;
    struct gang *gang;
    struct vg_list on_gang, on_node, on_tenant, link;
    struct claim *claim; /* CLAIMS: its places; NULL: they are lost, it waits to wait again */
    enum etask_place place;
    uint32_t member;                        /* of its gang, from 0 */
    bool preemptible, fixed, leaving, heal; /* leaving: preempted, not yet released */
    bool adopted;
    uint64_t limit_usec, known_usec;
    uint64_t expect_usec; /* how long it will run: known or learnt */
    uint64_t since_usec;  /* waits since then, for ageing */
    uint64_t pin;         /* node id of its session */
    /* on a node */
    struct enode *node;
    struct epool *pool;
    uint64_t gpus;
    uint64_t started_usec, end_usec; /* end: expected; moves on when it is overdue */
    uint32_t end_at;                 /* profile.c: its place in the heap of ends */
    struct etask *for_task;          /* leaving: who gets the place */
};

struct spot {
    struct enode *node;
    struct epool *pool;
    uint64_t gpus;
};

struct vg_eng {
    struct vg_eng_conf conf;
    vg_eng_knows_fn *knows; /* NULL: everybody knows everybody */
    void *knows_arg;
    uint64_t now;
    struct vg_map tasks, nodes, tenants, pools, gangs, windows; /* by id */
    struct enode **node;                                        /* dense; holes are NULL */
    size_t n_nodes, nodes_cap;
    struct epool *pool[256];
    uint32_t n_pools;
    struct etenant root;
    struct vg_list fits;
    struct vg_list stale;            /* of etenant.stale */
    struct vg_map boughs;            /* by (tenant.no, column.no) */
    struct column **column;          /* by number; holes are NULL */
    uint32_t n_columns, column_hint; /* hint: no hole before it */
    size_t columns_cap;
    struct column **wanted; /* scratch of vg_shapes_best: room for one a shape */
    size_t wanted_cap;
    uint64_t picks;       /* counts searches */
    uint64_t order_epoch; /* counts whatever may change whose turn it is */
    uint32_t last_no;
    uint64_t starts;           /* counts */
    struct vg_list claims_due; /* claim.due: their nodes changed */
    struct vg_list astray;     /* etask.link: lost their claim */
    struct vg_list due;        /* shape.due */
    uint64_t due_usec;         /* when the first of them is */
    struct ranks *ranks;       /* preempt.c: who runs, by priority */
    uint64_t weighings;        /* counts preempt.c's searches */
    struct shape **ready;      /* shapes to try, in no order */
    uint32_t n_ready;
    size_t ready_cap, n_shapes;
    struct beds *beds;                  /* shapes.c: shapes with waiting tasks, by pool and size */
    struct vg_list kept;                /* of shape.kept */
    struct vg_list pin_due;             /* of enode.pin_due */
    struct vg_list pin_capped;          /* likewise, where a pinned task's tenant is at its limit */
    struct vg_map restored;             /* usage of tenants that have not come yet */
    uint64_t change;                    /* counts changes of nodes */
    struct vg_eng_amount capacity;      /* of usable nodes */
    struct vg_eng_amount capacity_seen; /* that the tenants' keys were made with */
    struct vg_eng_decision *out;        /* decisions that wait to be taken: [out_at, out_n) */
    size_t out_at, out_n, out_cap;
    uint64_t tick_at; /* when vg_profile_tick has something to do */
    size_t n_waiting;
    struct fit_world *place; /* nodes.c/fit.c/score.c: change log, mix of recent requests */
    struct learn *learn;     /* learn.c */
    struct profile *profile; /* profile.c, window.c */
};

/* ------------------------------------------------------------------ place: enodes.c gpus.c fit.c
 * score.c */

int vg_place_init(struct vg_eng *e);
void vg_place_done(struct vg_eng *e); /* frees nodes, pools and fits, too; tasks are gone before */
/* For vg_eng_check: NULL, or what is wrong. */
const char *vg_place_check(const struct vg_eng *e);
/* The node with this id, or a ghost for tasks pinned to a node that is not there. NULL: no memory.
 */
struct enode *vg_node_get(struct vg_eng *e, uint64_t id);
/* Holding and letting go; both say so to vg_shapes_node_changed(). `take` links the task at the end
   of node->tasks (vg_profile_begin, which the engine calls next, moves it to its place) and sets
   its place, node and gpus; `give` unlinks it. */
void vg_node_take(struct vg_eng *e, struct enode *n, struct etask *t, uint64_t gpus);
void vg_node_give(struct vg_eng *e, struct enode *n, struct etask *t);
/* It holds what another fit says from now on, on the same cards. */
void vg_node_refit(struct vg_eng *e, struct etask *t, struct fit *f);
/* A copy to try things on: vg_fit_now and vg_fit_gpus work on it as on the node. `gpu` has room for
   VG_NODE_GPUS_MAX. The lists of the copy are empty. */
void vg_node_imagine(const struct enode *n, struct enode *copy, struct egpu *gpu);
void vg_node_imagine_without(struct enode *copy, const struct fit *f, uint64_t gpus); /* one left */
void vg_node_imagine_with(struct enode *copy, const struct fit *f, uint64_t gpus);    /* one came */
/* The fit of a request; counts a reference. NULL: no memory. `vg_fit_put` drops one. */
struct fit *vg_fit_get(struct vg_eng *e, const struct vg_eng_req *r);
void vg_fit_put(struct vg_eng *e, struct fit *f);
/* Nobody is there and no card is bad: it can be given whole. */
bool vg_node_is_empty(const struct enode *n);
/* What one member takes of a node: what it asks for, or all. */
struct vg_res vg_fit_res(const struct fit *f, const struct enode *n);
/* The most that so many members may come to hold: more than they ask for when they get whole nodes.
 */
struct vg_eng_amount vg_fit_most(const struct vg_eng *e, const struct fit *f, uint32_t members);
/* Some node of its pools, usable ones only if asked, could hold it when empty; NULL: none. */
const struct enode *vg_fit_could(const struct vg_eng *e, const struct fit *f, bool usable);
bool vg_fit_belongs(const struct vg_eng *e, const struct fit *f,
                    const struct enode *n); /* pool, model, labels, size when empty */
bool vg_fit_suits(const struct fit *f, const struct enode *n); /* model and labels only */
/* The first of its pools that the node is in; NULL: none. */
struct epool *vg_fit_pool(const struct vg_eng *e, const struct fit *f, const struct enode *n);
bool vg_fit_now(const struct fit *f, const struct enode *n); /* has room this moment */
/* The GPUs it would get there; 0 and !*ok: no room. */
uint64_t vg_fit_gpus(const struct vg_eng *e, const struct fit *f, const struct enode *n, bool *ok);
/* The best spot for one member that vg_profile_allows until `until`. 1; 0 and *code (BUSY, KEPT,
   WINDOW, NO_NODES, TOO_BIG). The pools are tried in order of preference. `env`: cache hint. */
int vg_fit_find(struct vg_eng *e, struct fit *f, const struct shape *who, uint64_t until,
                uint64_t env, struct spot *ret, enum vg_eng_code *code);
/* All `n` members in one pool, close together, or none; does not take them. Without memory to look:
   0 and what is known (BUSY). */
int vg_fit_find_gang(struct vg_eng *e, struct fit *f, const struct shape *who, uint32_t n,
                     uint64_t until, uint64_t env, struct spot *ret, enum vg_eng_code *code);
/* A task was asked for: it is part of the mix that score.c measures stranded capacity by. */
void vg_score_note(struct vg_eng *e, const struct fit *f);

/* ------------------------------------------------------------------ who is next: tenants.c lanes.c
 * shapes.c */

/* A node changed; `more`: it may now take what it could not. Wakes sleeping shapes. */
void vg_shapes_node_changed(struct vg_eng *e, struct enode *n, bool more);
void vg_shape_wake(struct vg_eng *e, struct shape *s);
/* A waiting task's grant changed: it waits in the shape that fits it now. 0, or -ENOMEM and it
 * stays. */
int vg_shape_move(struct vg_eng *e, struct etask *t);
/* Everybody whose answer was KEPT or WINDOW looks again: reservations moved. */
void vg_shapes_wake_kept(struct vg_eng *e);
/* Adds (or, negative, takes back) what a task holds, along the tenant's path. */
void vg_tenant_charge(struct vg_eng *e, struct etenant *t, const struct fit *f, int sign);
double vg_tenant_share(const struct vg_eng *e,
                       const struct etenant *t); /* the fair-share key, without weight 0 special */
bool vg_tenant_in_quota(const struct vg_eng *e, const struct etenant *t, const struct fit *f,
                        uint32_t members);
/* NULL, or the tenant of the path whose limit one more of these would break. */
struct etenant *vg_tenant_at_limit(const struct vg_eng *e, struct etenant *t, const struct fit *f,
                                   uint32_t members);
/* The same once the places are known, for those who get whole nodes: only then it is known how much
   that is. */
struct etenant *vg_tenant_at_limit_there(struct etenant *t, const struct fit *f,
                                         const struct spot *at, uint32_t n);
/* The next waiting task of a shape, in order; NULL: none (or all are at a limit). */
struct etask *vg_shape_head(const struct vg_eng *e, const struct shape *s);
/* Whether the head of `a` goes before that of `b`; both have one. */
bool vg_shape_before(const struct vg_eng *e, const struct shape *a, const struct shape *b);
/* Forgets a task wherever it is, as if it had never been: for nodes that are removed. */
void vg_task_forget(struct vg_eng *e, struct etask *t);

/* ------------------------------------------------------------------ time: learn.c profile.c
 * window.c */

int vg_time_init(struct vg_eng *e);
void vg_time_done(struct vg_eng *e);
/* How long it will run: by kin, then by tenant and fit, then by tenant, then by all; never above
   its limit; a default before anything is known. */
uint64_t vg_learn_expect(const struct vg_eng *e, const struct etask *t);
uint64_t vg_learn_expect_given(const struct vg_eng *e, const struct etask *t,
                               uint64_t ran_usec); /* the whole, once it ran so long */
uint64_t vg_learn_upper(const struct vg_eng *e,
                        const struct etask *t); /* four in five end by then */
/* How many runs that rests on, and of whom: "3 earlier runs of this command", for people. */
void vg_learn_basis(const struct vg_eng *e, const struct etask *t, char *out, size_t n);
void vg_learn_note(struct vg_eng *e, const struct etask *t, uint64_t ran_usec);
void vg_learn_save(const struct vg_eng *e, vg_eng_save_fn *fn, void *arg);
/* Whether the record was one of ours; broken ones are dropped. */
bool vg_learn_restore(struct vg_eng *e, uint32_t kind, uint64_t key, const uint64_t value[4]);
/* A task has begun (after vg_node_take) or leaves (before vg_node_give): its place in node->tasks
   and its node's profile. */
void vg_profile_begin(struct vg_eng *e, struct etask *t);
void vg_profile_end(struct vg_eng *e, struct etask *t);
/* Whether something that holds `gpus` (and f's CPU and memory) on `n` until `until` leaves every
   reservation on that node in place and runs into no window. `who` does not stand in its own way.
 */
bool vg_profile_allows(const struct vg_eng *e, const struct fit *f, const struct enode *n,
                       uint64_t gpus, uint64_t until, const struct shape *who,
                       enum vg_eng_code *code);
/* The shape sleeps and is among the first: promise it the earliest place. Moves an older promise
   only when that is earlier, or was broken by what happened. 0 or -ENOMEM. */
int vg_profile_reserve(struct vg_eng *e, struct shape *s);
void vg_profile_unreserve(struct vg_eng *e, struct shape *s); /* it started, or nobody waits */
/* Earliest expected time at which so many members fit, and where the first goes; bounded search. */
uint64_t vg_profile_when(const struct vg_eng *e, struct fit *f, uint32_t members,
                         const struct enode **ret);
/* What happens by itself (windows begin and end, tasks become overdue, reservations come due, those
   whom a promise that moved kept back look again): does what is due now, which may wake shapes, and
   returns when the next is. Cheap when nothing is: called whenever there is nothing else to decide.
 */
uint64_t vg_profile_tick(struct vg_eng *e);
/* A node came, changed or (gone) leaves: promises on it that no longer hold are broken. */
void vg_profile_node_set(struct vg_eng *e, struct enode *n, bool gone);
/* The nearest tenant at or above `t` that has an advance reservation; 0: none. A waiting task's
   shape carries it; window.c calls vg_shape_move() when that changes. */
uint64_t vg_window_grant(const struct vg_eng *e, const struct etenant *t);
const char *vg_time_check(const struct vg_eng *e); /* for vg_eng_check */
/* Room that is kept for a task whose victims are leaving. */
int vg_profile_keep(struct vg_eng *e, struct etask *t, struct enode *n, uint64_t gpus);
void vg_profile_unkeep(struct vg_eng *e, struct etask *t);
