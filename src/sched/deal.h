#pragma once
/* Inside preempt.c and ground.c: a transaction that stops some for another. */
#include "sched/claim.h"

#define NODES_MAX 128  /* candidate nodes of one search */
#define VICTIMS_MAX 64 /* on one node */
#define ALL_MAX 1024   /* of one transaction, with the gangs they belong to */

enum ground { NOT_AT_ALL, BY_PRIORITY, BY_QUOTA, BY_WISH };

struct deal {
    struct vg_eng *e;
    struct etask *t; /* for whom */
    uint32_t members;
    bool promised; /* it would fit somewhere, but for promises to those before it */
    struct claim *claim;
    struct enode *node[NODES_MAX];
    size_t n_nodes, looks;
    struct etask *victim[ALL_MAX]; /* agreed on; marked as leaving meanwhile */
    size_t n_victims;
    uint64_t soonest; /* when somebody will have run long enough */
};

struct plan { /* for one member on one node */
    struct enode *node;
    uint64_t gpus;
    struct etask *victim[VICTIMS_MAX];
    size_t n;
    uint64_t tasks, work; /* stopped with their gangs; lost, in GPU-milliseconds */
    uint32_t priority;    /* the largest among them */
};

/* By what right, minimum run time aside; as if what is agreed on and planned had left. */
enum ground vg_ground(const struct deal *d, const struct etask *v, const struct plan *p);
bool vg_may_stop(struct deal *d, const struct etask *v, const struct plan *p);
/* With all of its gang. */
bool vg_may_stop_all(struct deal *d, const struct etask *v, const struct plan *p);
/* The tenants on both sides just below the first common one; false: one is the other or above it.
 */
bool vg_sides(const struct etenant **a, const struct etenant **b);
/* Cheap questions about a waiting task, since most can stop nobody. */
bool vg_may_reclaim(const struct vg_eng *e, const struct etask *t);
bool vg_may_stop_somebody(const struct vg_eng *e, const struct etask *t);
