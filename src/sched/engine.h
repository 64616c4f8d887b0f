#pragma once
/* The scheduling engine: events in, decisions out. Pure and deterministic: no I/O, no clock, no
   randomness; the same events at the same times give the same decisions. virgad and virga-sim run
   this very code. The caller says what time it is (vg_eng_now), what happened, and then takes
   decisions with vg_eng_next() until there are none; vg_eng_wake() says when to look again though
   nothing happened.

   Who is next. Waiting tasks are ordered by
     1. missing members of gangs that run (a gang heals before anybody else starts);
     2. priority, larger first, plus one for each `age_usec` waited (counted in whole steps of the
        clock, so that those who came in the same step are equals);
     3. level by level down the tenant tree: tenants below their guaranteed quota before others,
        then the smaller share (held now and decayed past, dominant resource, divided by weight),
        then who was served longest ago;
     4. within a tenant, submission order.
   A tenant at its limit waits, and does not hold up others. Tasks that cannot start now are passed
   over only by tasks that do not delay the reservations of those before them: the first `reserve`
   blocked shapes of each pool hold one, in the time profile of the very GPUs they will get.

   Where it runs: on the node (and card) where the least GPU capacity becomes useless for the recent
   mix of requests; gangs close together (NVLink island, then rack); among equals, where the
   environment is cached.

   Shapes: tasks that ask for the same are one shape and share one answer. An event costs
   microseconds: it touches its node, its tenant's path and the shapes that may fit that node, never
   all nodes or all tasks.

   What always holds (vg_eng_check): what is held on a node sums to at most what it has, except for
   adopted tasks; a GPU is held whole by one task or shared up to 1000 milli and its memory, by
   tasks of one class; a task that has a whole node shares it with nobody, and counts as all that
   the node has; a task is in one place; a gang is placed whole; every tenant's sums equal those of
   its tasks. */
#include "base/err.h"
#include "conf/res.h"

#include <stddef.h>

#define VG_ENG_NODE_TASKS_MAX 100000
#define VG_ENG_POOLS_MAX 8 /* acceptable pools of one task */
#define VG_ENG_NEVER UINT64_MAX

struct vg_eng;

struct vg_eng *vg_eng_new(void); /* NULL: no memory */
void vg_eng_free(struct vg_eng *e);

/* ------------------------------------------------------------------ policy */

enum vg_eng_placing { /* LEAST_STRANDED is for use; the others are there to be compared with */
                      VG_ENG_LEAST_STRANDED,
                      VG_ENG_BEST_FIT,
                      VG_ENG_SPREAD,
                      VG_ENG_RANDOM, /* from `seed` */
};

struct vg_eng_conf {
    uint64_t half_life_usec; /* of the memory of past usage; 0: only what is held now counts */
    uint64_t age_usec;       /* waiting this long adds one to the priority; 0: never */
    uint32_t reserve;        /* blocked shapes of a pool that hold a reservation; 0: none, so that
                                whatever fits starts */
    bool preempt;            /* reclaim between tenants and preemption by priority */
    uint64_t min_run_usec;   /* no attempt is preempted before it has run so long */
    enum vg_eng_placing placing;
    uint64_t seed;
};
struct vg_eng_conf vg_eng_conf_default(void); /* 7 days, 0, 2, true, 5 min, LEAST_STRANDED */
int vg_eng_set_conf(struct vg_eng *e, const struct vg_eng_conf *c);

struct vg_eng_amount {
    uint64_t gpu_milli, cpu_milli, mem_bytes;
};
#define VG_ENG_NO_LIMIT ((struct vg_eng_amount){UINT64_MAX, UINT64_MAX, UINT64_MAX})

struct vg_eng_tenant {
    uint64_t id;                /* not 0 */
    uint64_t parent;            /* 0: directly below the root */
    const char *name;           /* for sentences; copied */
    struct vg_eng_amount quota; /* guaranteed: others' tasks above theirs give way; 0: none */
    struct vg_eng_amount limit; /* never more than this is held; UINT64_MAX: no limit */
    uint32_t weight;            /* of what is beyond quotas, among siblings; 0: nothing beyond the
                                   quota */
    uint64_t min_run_usec;      /* its tasks' own minimum; 0: the parent's, then vg_eng_conf's */
};
/* Comes or changes; parents first. A tenant with children or tasks stays when removed until they
   are gone. 0, -ENOMEM, -ENOENT (no such parent), -EINVAL (a cycle). */
int vg_eng_set_tenant(struct vg_eng *e, const struct vg_eng_tenant *t);
int vg_eng_remove_tenant(struct vg_eng *e, uint64_t tenant);

struct vg_eng_pool {
    const char *name;    /* copied */
    uint64_t id;         /* not 0; what requests name */
    char *const *labels; /* "k=v": a node belongs when it carries all of these; copied */
    size_t n_labels;
    struct vg_res shape;   /* for counting slots for people, */
    uint8_t gpu_class;     /*   shares being of this class */
    uint64_t min_run_usec; /* none of its tasks is preempted before; 0: as their tenant says */
    bool whole;            /* its slots are nodes */
};
int vg_eng_set_pool(struct vg_eng *e, const struct vg_eng_pool *p); /* comes or changes */
int vg_eng_remove_pool(struct vg_eng *e, uint64_t pool);            /* -EBUSY: tasks name it */

/* ------------------------------------------------------------------ nodes */

struct vg_eng_gpu {
    uint32_t index; /* < VG_NODE_GPUS_MAX */
    uint64_t mem_bytes;
    uint32_t island; /* GPUs with the same number reach each other by NVLink; 0: none */
    uint32_t numa;
    bool bad; /* unhealthy: takes nothing new */
};

struct vg_eng_node {
    uint64_t id; /* not 0 */
    const char *name;
    struct vg_res total; /* gpus follows from n_gpus */
    const struct vg_eng_gpu *gpu;
    size_t n_gpus;
    /* How far any two are from each other, by index: 1 .. 255. NULL: as islands and NUMA nodes say.
     */
    const uint8_t (*far)[VG_NODE_GPUS_MAX];
    bool parts; /* its GPUs are parts of cards: for requests of class mig, and for no others */
    const char *model; /* of its GPUs; NULL or "": none */
    const char *rack;  /* or whatever else gangs should stay within; NULL: unknown */
    char *const *labels;
    size_t n_labels;
    bool usable;        /* takes new tasks now: ready, connected, not draining */
    uint32_t max_tasks; /* 0: VG_ENG_NODE_TASKS_MAX */
};
/* Came or changed; the tasks on it stay. 0 or -ENOMEM, then the node is as before. */
int vg_eng_set_node(struct vg_eng *e, const struct vg_eng_node *n);
/* Gone for good: whatever was on it is forgotten (the caller releases and submits again); tasks
   pinned to it wait until it comes back or they are released. */
void vg_eng_remove_node(struct vg_eng *e, uint64_t node);
/* It holds (or no longer holds) an environment's bytes. */
void vg_eng_set_cached(struct vg_eng *e, uint64_t node, uint64_t env, bool cached);

/* A time in which a node takes no task that would run into it (maintenance), or in which capacity
   is kept for one tenant (advance reservation). */
struct vg_eng_window {
    uint64_t id;
    uint64_t from_usec, until_usec;
    uint64_t node;   /* maintenance of this node; 0: by pool */
    uint64_t pool;   /* 0: every node */
    uint64_t tenant; /* not 0: kept for it and those below it */
    uint32_t gpus;   /* of a reservation; 0: whole nodes */
    const char *why; /* for sentences; copied */
};
int vg_eng_set_window(struct vg_eng *e, const struct vg_eng_window *w);
void vg_eng_remove_window(struct vg_eng *e, uint64_t id);

/* What requests are likely to come, by which placement judges what is stranded. What is submitted
   teaches it all the time; this puts knowledge from elsewhere (history) in its place as if it had
   just been seen. */
struct vg_eng_mix {
    struct vg_res res;
    const char *model; /* as in a request */
    uint64_t count;
};
int vg_eng_set_mix(struct vg_eng *e, const struct vg_eng_mix *mix, size_t n); /* 0 or -ENOMEM */

/* ------------------------------------------------------------------ tasks */

struct vg_eng_req {
    uint64_t task;                   /* id, not 0 */
    uint64_t tenant;                 /* a leaf of the tree */
    uint64_t pool[VG_ENG_POOLS_MAX]; /* acceptable, in order of preference */
    uint32_t n_pools;
    struct vg_res res; /* resolved; of each member */
    bool whole;        /* a node of its own with all that it has; `res` is the least that will do */
    uint8_t gpu_class; /* of its share: how the card is divided. Shares of different classes are
                          never on one card at one time; other than 0: and on none whose memory is
                          not known */
    const char *model; /* GPU models that will do, as whole words of the node's, separated by
                          '|'; NULL or "": any */
    char *const *labels; /* "k=v" that the node must carry */
    size_t n_labels;
    uint32_t priority;   /* larger first */
    uint64_t order;      /* submission: smaller first; kept when requeued */
    uint64_t since_usec; /* waits since then, for ageing; 0: now */
    uint64_t node;       /* not 0: only there (session) */
    bool preemptible;    /* may be stopped for others though its tenant is within its quota */
    bool fixed;          /* never preempted (a person is at its terminal) */
    uint64_t limit_usec; /* --time; 0: none */
    uint64_t known_usec; /* how long it will run, from one who knows (simulations); 0: is learnt */
    uint64_t kin;        /* tasks that are likely to run equally long: hash of user, name, command;
                            0: unknown */
    uint64_t env;        /* environment, for the cache hint; 0: none */
    uint64_t gang;       /* not 0: a member (vg_eng_submit_gang; alone: a missing one, which goes
                            before everybody) */
};

/* A task waits. -ENOENT with a sentence (NOT_FOUND): no such pool or tenant; NO_CAPACITY: no node
   of its pools, usable or not, could hold it even when empty (pools without nodes queue); EXISTS.
 */
int vg_eng_submit(struct vg_eng *e, const struct vg_eng_req *r, struct vg_err *err);
/* `n` members with the ids `task`, placed all together or not at all; r->gang is the gang's id,
   r->task is ignored. */
int vg_eng_submit_gang(struct vg_eng *e, const struct vg_eng_req *r, const uint64_t *task, size_t n,
                       struct vg_err *err);
/* The checks only. */
int vg_eng_check_fit(const struct vg_eng *e, const struct vg_eng_req *r, size_t members,
                     struct vg_err *err);
/* A task is known to be on a node already (after a restart, reported by its agent), since
   `started_usec`: it is counted there even when that is more than the node has. Takes it out of a
   queue if it waits. 0, -ENOENT (no such node), -ENOMEM, -EEXIST (on a node already). */
int vg_eng_adopt(struct vg_eng *e, const struct vg_eng_req *r, uint64_t node, uint64_t gpus,
                 uint64_t started_usec);

enum vg_eng_end {
    VG_ENG_ENDED,     /* ran to its end: its run time teaches */
    VG_ENG_CANCELLED, /* or killed, or failed to start: teaches nothing */
    VG_ENG_PREEMPTED, /* the caller submits it again with its old order */
    VG_ENG_LOST,      /* likewise */
};
/* Leaves its queue or frees its node. Unknown tasks are ignored. */
void vg_eng_release(struct vg_eng *e, uint64_t task, enum vg_eng_end how);

/* The share of a task that runs becomes so large, on the card where it is. `unbound`: whatever its
   tenant's limits and the places promised to others say; the card's own size always counts.
   CONFLICT: it has none or is being stopped; NO_CAPACITY with what is in the way. */
int vg_eng_reshare(struct vg_eng *e, uint64_t task, uint32_t milli, uint64_t mem_bytes,
                   bool unbound, struct vg_err *err);

/* ------------------------------------------------------------------ decisions */

/* The time of everything that follows; never goes back (an earlier time counts as the last). */
void vg_eng_now(struct vg_eng *e, uint64_t now_usec);
/* When vg_eng_next may have more to say without an event; VG_ENG_NEVER. */
uint64_t vg_eng_wake(const struct vg_eng *e);

enum vg_eng_what { VG_ENG_START, VG_ENG_PREEMPT };

struct vg_eng_decision {
    enum vg_eng_what what;
    uint64_t task, node, pool;
    uint64_t gpus; /* START: set of indices; a share: the one card */
    struct vg_res res;
    uint64_t gang;       /* START: members follow one another without a break */
    uint32_t member, of; /* 0 .. of - 1; 0, 0 when alone */
    uint64_t for_task;   /* PREEMPT: who gets the place */
    char why[160];       /* PREEMPT: "reclaimed for team 'nlp', which is below its quota" */
};
/* 1 and *ret, or 0. A started task is counted on its node at once. A preempted one stays counted
   until it is released; what it frees is kept for `for_task`. */
int vg_eng_next(struct vg_eng *e, struct vg_eng_decision *ret);

/* ------------------------------------------------------------------ explanations */

enum vg_eng_code {
    VG_ENG_FREE,     /* would start now */
    VG_ENG_BUSY,     /* capacity is held by others */
    VG_ENG_AHEAD,    /* others are before it */
    VG_ENG_AT_LIMIT, /* its tenant (or one above it) is at its limit */
    VG_ENG_KEPT,     /* it would fit, but delay a reservation */
    VG_ENG_WINDOW,   /* maintenance or a reservation is in the way */
    VG_ENG_NO_NODES, /* no usable node in its pools */
    VG_ENG_TOO_BIG,  /* no usable node could hold it even when empty */
    VG_ENG_PINNED,   /* its session's node is busy or away */
    VG_ENG_FREEING,  /* tasks are being preempted for it */
};
#define VG_ENG_HOLDERS_MAX 4

struct vg_eng_why {
    enum vg_eng_code code;
    char text[512];      /* "2 ahead of you on a100-1; alice and bob hold its 8 GPUs" */
    uint32_t ahead;      /* tasks before it that compete for the same nodes */
    uint64_t start_usec; /* expected; VG_ENG_NEVER: unknown */
    char basis[160];     /* what the estimate rests on */
    uint64_t run_usec;   /* expected run time; 0: unknown */
    uint64_t node;       /* where it is expected; 0: unknown */
    size_t n_holders;
    uint32_t more_holders; /* that are not among them */
    struct {
        uint64_t tenant, gpu_milli, until_usec;
        uint32_t tasks;
    } holder[VG_ENG_HOLDERS_MAX]; /* largest first */
};
/* Whether the one tenant may be told the other's name in a sentence; who may not reads "another
   team". Not set: everybody is told everything. */
typedef bool vg_eng_knows_fn(void *arg, uint64_t viewer, uint64_t tenant);
void vg_eng_tell(struct vg_eng *e, vg_eng_knows_fn *knows, void *arg);
/* Of a waiting task; -ENOENT: it does not wait. May pass over a bounded number of tasks and nodes.
 */
int vg_eng_why(const struct vg_eng *e, uint64_t task, struct vg_eng_why *ret);
/* What would happen if this came now. */
int vg_eng_forecast(const struct vg_eng *e, const struct vg_eng_req *r, size_t members,
                    struct vg_eng_why *ret);
/* One line for QUEUED events: "2 ahead of you on a100-1, about 4 min". Cheap: no search. */
int vg_eng_brief(const struct vg_eng *e, uint64_t task, char *out, size_t n);

/* The first `max` waiting tasks in order, of one pool or (0) all. Returns how many were written. */
size_t vg_eng_order(const struct vg_eng *e, uint64_t pool, uint64_t *task, size_t max);

struct vg_eng_tenant_info {
    uint64_t id, parent;
    const char *name;
    struct vg_eng_amount quota, limit, held;
    uint32_t weight, queued, running;
    uint32_t
        fair_ppm; /* its fair share of the whole now, by quota and weight among those who want */
    uint32_t share_ppm; /* what it holds, by its dominant resource */
    uint32_t usage_ppm; /* decayed usage, of the capacity over the same time */
};
/* All of them, parents first; returns how many there are. */
size_t vg_eng_tenants(const struct vg_eng *e, struct vg_eng_tenant_info *ret, size_t max);

struct vg_eng_pool_info {
    uint32_t nodes, usable; /* that belong to it; of them usable */
    uint32_t queued, running;
    uint32_t free_slots, total_slots; /* of the pool's shape; both 0 when it reserves nothing */
};
int vg_eng_pool_info(const struct vg_eng *e, uint64_t pool, struct vg_eng_pool_info *ret);

struct vg_eng_node_info {
    struct vg_res total, used;
    uint64_t gpus_used; /* set of indices, shared ones included */
    uint32_t tasks;
};
int vg_eng_node_info(const struct vg_eng *e, uint64_t node, struct vg_eng_node_info *ret);
size_t vg_eng_queued(const struct vg_eng *e);
/* When a task that runs is expected to end; VG_ENG_NEVER: it does not run. */
uint64_t vg_eng_ends(const struct vg_eng *e, uint64_t task);

/* ------------------------------------------------------------------ memory across restarts */

/* Decayed usage and learnt run times as records for the caller to keep; restored before tasks come.
   `kind` and `key` name a record; equal ones replace each other. */
typedef void vg_eng_save_fn(void *arg, uint32_t kind, uint64_t key, const uint64_t value[4]);
void vg_eng_save(const struct vg_eng *e, vg_eng_save_fn *fn, void *arg);
void vg_eng_restore(struct vg_eng *e, uint32_t kind, uint64_t key, const uint64_t value[4]);

/* NULL, or the invariant that is broken. Passes over everything: for tests. */
const char *vg_eng_check(const struct vg_eng *e);
