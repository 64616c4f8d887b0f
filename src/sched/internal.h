#pragma once
/* Inside sched: what it remembers. Every waiting task is in exactly one place:

   WAITS   in its pool's queue
   ASIDE   in its pool's aside tree: no usable node of the pool could hold it even when empty
   PINNED  in its node's queue (sessions)
   ASTRAY  in the list of tasks whose node is unknown or too small for them
   PLACED  in its node's list of tasks */
#include "base/list.h"
#include "base/map.h"
#include "sched/sched.h"
#include "sched/tree.h"

enum place { WAITS, ASIDE, PINNED, ASTRAY, PLACED };

struct spool {
    const struct vg_pool_conf *conf; /* borrowed */
    struct tree queue, aside;        /* of struct stask */
    struct tree open;                /* of struct member: nodes that take tasks now */
    struct member **member;          /* owned array; members belong to their nodes */
    size_t n_members, members_cap;
    uint32_t usable, running, waiting;
    uint64_t generation; /* grows when a node comes, goes or changes its size */
    struct vg_list dirty;
    struct spool *next; /* in the order they were set */
};

/* A node in a pool. */
struct member {
    struct tree_item item;
    struct snode *node;
    struct spool *pool;
    size_t at;          /* in pool->member */
    bool open;          /* is in pool->open */
    struct vg_res most; /* free in the subtree, each amount by itself */
};

struct snode {
    uint64_t id;
    char *name; /* owned */
    struct vg_res total;
    uint64_t gpus, gpus_used;
    uint64_t cpu_used, mem_used;
    struct vg_res free;         /* follows from the above, never below 0 */
    bool usable, held, overlap; /* held: kept free for the first pinned task; overlap: see adopt */
    uint32_t max_tasks, n_tasks;
    struct vg_list tasks;
    struct tree pinned;    /* of struct stask */
    struct member *member; /* owned array */
    size_t n_members;
    struct vg_list dirty;
};

struct stask {
    struct tree_item item;
    struct vg_list link; /* ASTRAY, PLACED */
    uint64_t id, order, pin;
    uint32_t priority;
    struct vg_res res;
    struct spool *pool;
    enum place place;
    struct snode *node;  /* PINNED, PLACED */
    uint64_t gpus;       /* PLACED */
    uint64_t generation; /* of the pool, when it was last found to fit some empty node */
};

struct vg_sched {
    struct vg_map tasks, nodes; /* by id */
    struct spool *pools;
    struct vg_list dirty_pools, dirty_nodes, astray;
    size_t n_waiting;
};

static inline struct stask *task_of(const struct tree_item *i) {
    return i ? vg_container_of(i, struct stask, item) : NULL;
}
static inline struct member *member_of(const struct tree_item *i) {
    return i ? vg_container_of(i, struct member, item) : NULL;
}

struct spool *vg_sched_find_pool(const struct vg_sched *s, const char *name);
/* Any member (usable ones only if asked) that could hold `res` when empty. */
bool vg_sched_could_hold(const struct spool *p, const struct vg_res *res, bool usable);
/* "no node of pool 'p' has 8 GPUs (largest has 4)". */
void vg_sched_say_too_big(const struct spool *p, const struct vg_res *res, char *out, size_t n);

/* nodes.c: what is free, and where a node stands in its pools. */
int vg_tree_cmp_tasks(const struct tree_item *a, const struct tree_item *b);
void vg_snode_update(struct vg_sched *s, struct snode *n); /* after any change of it */
void vg_snode_take(struct vg_sched *s, struct snode *n, struct stask *t, uint64_t gpus);
void vg_snode_give(struct vg_sched *s, struct snode *n, struct stask *t);
struct snode *vg_snode_find_open(const struct spool *p, const struct vg_res *res);
uint64_t vg_snode_pick_gpus(const struct snode *n, uint32_t count);

/* sched.c */
void vg_sched_enqueue(struct vg_sched *s, struct stask *t); /* to WAITS, PINNED or ASTRAY */
void vg_sched_dequeue(struct vg_sched *s, struct stask *t); /* out of any place but PLACED */
void vg_sched_stray(struct vg_sched *s, struct stask *t);   /* from PINNED to ASTRAY */
void vg_sched_dirty_pool(struct vg_sched *s, struct spool *p);
void vg_sched_dirty_node(struct vg_sched *s, struct snode *n);
