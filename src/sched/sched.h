#pragma once
/* Placement: events in, decisions out. Pure and deterministic: no I/O, no clock, no randomness; the
   same events give the same decisions. The caller tells what happened and then takes decisions with
   vg_sched_next() until there are none.

   Now: per pool first come, first served by (priority down, order up, id up); nobody overtakes the
   first of a pool, except past a task that no usable node of the pool could hold even when empty.
   A task without GPUs goes to the fitting node with the fewest free GPUs, then the fewest tasks;
   one with GPUs to the node where the fewest stay free. A task of a session that has a node goes
   there and nowhere else: it waits beside the pool's queue, and while the first such task does not
   fit, its node takes nothing else. An event costs O(log tasks + log nodes).

   What always holds (vg_sched_check): the reservations on a node sum to at most its total, except
   for adopted tasks; a GPU is held by one task; a task is in one place: a queue or a node. */
#include "base/err.h"
#include "conf/conf.h"

#define VG_SCHED_NODE_TASKS_MAX 100000

struct vg_sched;

struct vg_sched_req {
    uint64_t task;     /* id, not 0 */
    const char *pool;  /* name; borrowed for the call */
    struct vg_res res; /* resolved: vg_pool_grant */
    uint32_t priority; /* larger first */
    uint64_t order;    /* submission: smaller first (created_usec); kept when requeued */
    uint64_t node;     /* not 0: only there (session) */
};

struct vg_sched_node {
    uint64_t id; /* not 0 */
    const char *name;
    struct vg_res total;
    uint64_t gpus;       /* set of GPU indices; their number is total.gpus */
    char *const *labels; /* "k=v" */
    size_t n_labels;
    bool usable;        /* takes new tasks now: ready, connected, not draining */
    uint32_t max_tasks; /* 0: VG_SCHED_NODE_TASKS_MAX */
};

struct vg_sched_place {
    uint64_t task, node;
    uint64_t gpus; /* set of indices */
    struct vg_res res;
};

struct vg_sched *vg_sched_new(void); /* NULL: no memory */
void vg_sched_free(struct vg_sched *s);

/* A pool came or changed its selector; `conf` is borrowed until vg_sched_free. Pools are set before
   nodes. 0 or -ENOMEM. */
int vg_sched_set_pool(struct vg_sched *s, const struct vg_pool_conf *conf);

/* A node came or changed (resources, labels, usable). Tasks that are on it stay. 0 or -ENOMEM, then
   the node is as before. */
int vg_sched_set_node(struct vg_sched *s, const struct vg_sched_node *n);
/* A node is gone for good: whatever was on it is forgotten (the caller requeues with
   vg_sched_submit); tasks pinned to it wait until it comes back or they are released. */
void vg_sched_remove_node(struct vg_sched *s, uint64_t node);

/* A task waits. NOT_FOUND: no such pool; NO_CAPACITY (as a sentence): no node of the pool, usable
   or not, could hold it even when empty; a pool without nodes queues. EXISTS: it is here already.
   vg_sched_check_fit does the checks only, for dry runs. */
int vg_sched_submit(struct vg_sched *s, const struct vg_sched_req *r, struct vg_err *err);
int vg_sched_check_fit(const struct vg_sched *s, const struct vg_sched_req *r, struct vg_err *err);
/* A task is known to be on a node already (after a restart, reported by its agent): it is counted
   there even when that is more than the node has. Takes it out of a queue if it waits. 0, -ENOENT
   (no such node or pool), -ENOMEM, -EEXIST (on a node already). */
int vg_sched_adopt(struct vg_sched *s, const struct vg_sched_req *r, uint64_t node, uint64_t gpus);
/* A task ended, was cancelled, or its attempt is surely over: leaves its queue or frees its node.
   Unknown tasks are ignored. */
void vg_sched_release(struct vg_sched *s, uint64_t task);

/* The next decision: 1 and *ret (the task is now counted on the node), or 0. */
int vg_sched_next(struct vg_sched *s, struct vg_sched_place *ret);

/* One sentence about a waiting task: "queued: 2 ahead of you on a100-1"; "queued: no node of pool
   'a100-1' has 8 GPUs (largest has 4)". Returns how many are ahead, or -ENOENT (not waiting; `out`
   is then ""). */
int vg_sched_explain(const struct vg_sched *s, uint64_t task, char *out, size_t n);

struct vg_sched_pool_info {
    uint32_t nodes, usable; /* that belong to it; of them usable */
    uint32_t queued, running;
    uint32_t free_slots,
        total_slots; /* tasks of the pool's shape; both 0 when it reserves nothing */
};
/* Passes over the pool's nodes: for people's lists. -ENOENT. */
int vg_sched_pool_info(const struct vg_sched *s, const char *pool, struct vg_sched_pool_info *ret);

struct vg_sched_node_info {
    struct vg_res total, used;
    uint64_t gpus_used; /* set of indices */
    uint32_t tasks;
};
int vg_sched_node_info(const struct vg_sched *s, uint64_t node, struct vg_sched_node_info *ret);
size_t vg_sched_queued(const struct vg_sched *s);

/* NULL, or the invariant that is broken. Passes over everything: for tests. */
const char *vg_sched_check(const struct vg_sched *s);
