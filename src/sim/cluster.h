#pragma once
/* Free GPUs of the nodes, for the baselines: best fit (the fitting node with the fewest free, then
   the lowest number), gangs whole or not at all. */
#include "sim/workload.h"

#include <stdbool.h>

struct vg_cluster {
    const struct vg_workload *w; /* borrowed */
    uint32_t *free;              /* owned; by node */
    uint32_t *held;              /* owned; nodes of running jobs, w->job order: see at[] */
    size_t *at;                  /* owned; by job: where its nodes begin in held */
    uint64_t units_free;
};

int vg_cluster_init(struct vg_cluster *c, const struct vg_workload *w); /* 0 or -ENOMEM */
void vg_cluster_done(struct vg_cluster *c);
/* Finds a place in `free` (the cluster's own or a supposed one) without taking it: one node a
   member, in `ret` (room for the members). A node must also have the units in `also` where that is
   not NULL. */
bool vg_cluster_find(const struct vg_cluster *c, const uint32_t *free, const uint32_t *also,
                     const struct vg_work_job *j, uint32_t *ret);
/* Starts a job if it fits now; its nodes are then vg_cluster_nodes. */
bool vg_cluster_start(struct vg_cluster *c, uint32_t job, const uint32_t *also);
void vg_cluster_stop(struct vg_cluster *c, uint32_t job);
static inline const uint32_t *vg_cluster_nodes(const struct vg_cluster *c, uint32_t job) {
    return c->held + c->at[job];
}
