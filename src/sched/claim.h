#pragma once
/* Inside the engine: places that are being freed. A claim belongs to one task, or to a gang by its
   first member; once everything on its spots has left, all of them start there. Until then the
   spots are kept (vg_profile_keep), and its tenant is charged for them, so that nobody reclaims
   more than its quota. */
#include "sched/lanes.h"

struct claim_spot {
    struct vg_list on_node; /* in enode.claims */
    struct claim *claim;
    struct spot at;
};

struct claim {
    struct etask *task; /* the first member of a gang */
    struct vg_list due; /* in vg_eng.claims_due */
    uint32_t n;         /* spots that are set */
    struct claim_spot spot[];
};

struct claim *vg_claim_new(struct etask *t, uint32_t members); /* NULL: no memory */
void vg_claim_add(struct claim *c, const struct spot *at);     /* a spot more, on its node's list */
void vg_claim_pop(struct claim *c);                            /* the last one is not wanted */
void vg_claim_free(struct claim *c);
/* The task leaves its lane for its spots. 0, or -ENOMEM and nothing has changed. */
int vg_claim_commit(struct vg_eng *e, struct claim *c);
/* It has no spots any more and goes astray: it waits again from the next decision on. */
void vg_claim_lose(struct vg_eng *e, struct claim *c);
void vg_claims_node_changed(struct vg_eng *e, struct enode *n);
/* Claims whose spots are free start, into `out`; those astray wait again. */
void vg_claims_run(struct vg_eng *e);
/* A claiming task goes: its claim with it, the gang's others go astray. */
void vg_claim_leave(struct vg_eng *e, struct etask *t);

/* preempt.c */
struct ranks;
int vg_ranks_add(struct vg_eng *e, const struct etask *t, int n); /* begins (1) or leaves (-1) */
void vg_preempt_want(struct vg_eng *e, struct shape *s); /* blocked, or its head is another */
void vg_preempt_run(struct vg_eng *e);                   /* those that are due, into `out` */
void vg_preempt_all(struct vg_eng *e);                   /* the policy changed: all look again */
