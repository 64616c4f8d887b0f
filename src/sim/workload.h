#pragma once
/* What a simulation is about: nodes, tenants and the jobs that will arrive. Plain data, made by a
   trace, a load shape or a recording, and read by every policy. */
#include "base/err.h"
#include "sim/trace.h"

#include <stdint.h>

#define VG_WORK_MEMBERS_MAX 4096
#define VG_WORK_CLASSES_MAX 8

struct vg_work_job {
    uint64_t arrive_usec;
    uint64_t run_usec;           /* true run time: known to the loop, not to the policies */
    uint32_t tenant, pool, kind; /* jobs of one kind look alike to whoever guesses run times */
    uint32_t members;            /* start together; more than one: a gang */
    uint32_t units;              /* GPUs of each member */
    uint32_t priority;           /* larger first */
    uint32_t class;              /* for the account: see class_name */
};

struct vg_work_tenant {
    char *name; /* owned */
    uint32_t weight;
    uint32_t pool;         /* where its quota counts */
    uint32_t quota, limit; /* units; limit 0: none */
};

struct vg_work_node {
    uint32_t units, pool;
};

struct vg_work_shape { /* what a kind asks for */
    uint32_t tenant, pool, members, units;
};

struct vg_workload {
    struct vg_work_job *job; /* owned; by arrival */
    size_t n_jobs;
    struct vg_work_tenant *tenant; /* owned */
    size_t n_tenants;
    struct vg_work_node *node; /* owned */
    size_t n_nodes;
    struct vg_work_shape *kind; /* owned */
    size_t n_kinds, kinds_cap;
    uint32_t n_pools;
    const char *class_name[VG_WORK_CLASSES_MAX]; /* borrowed; NULL: not used */
    uint64_t dropped; /* jobs that ask for more than there is; not among job[] */
};

/* Jobs of a trace on `gpus` GPUs in nodes of `per_node` (and one with the rest). A job wider than a
   node is a gang of equal members. `load` > 0 squeezes (or stretches) the arrivals so that the work
   that arrives is `load` times what the GPUs can do in that time; 0 leaves them as recorded.
   `take` > 0: only the first so many jobs. */
struct vg_work_trace_opts {
    uint32_t gpus, per_node;
    double load;
    size_t take;
};
int vg_workload_from_trace(const struct vg_trace_jobs *t, const struct vg_work_trace_opts *o,
                           struct vg_workload *ret, struct vg_err *err);
/* The number of jobs' kinds is small: finds or adds one. -ENOMEM. */
int vg_workload_kind(struct vg_workload *w, const struct vg_work_shape *shape, uint32_t *ret);
uint64_t vg_workload_units(const struct vg_workload *w); /* of all nodes */
/* Work offered while jobs arrive, over what the nodes can do in that time. */
double vg_workload_load(const struct vg_workload *w);
void vg_workload_done(struct vg_workload *w); /* accepts zeroed and half-built */
