#pragma once
/* Made loads: cohorts of queues into which classes of jobs are put at a steady pace, as Kueue's own
   performance tests do it. A cohort is a pool with the nodes of all its queues' quotas; a queue is
   a tenant with a guaranteed quota that may borrow what the others of its cohort leave. */
#include "sim/workload.h"

struct vg_shape_class {
    const char *name;
    uint32_t count; /* in each queue */
    uint32_t every_ms, run_ms;
    uint32_t request, priority;
};

struct vg_shape {
    const char *name, *about;
    uint32_t cohorts, queues; /* queues of each cohort */
    uint32_t quota, borrow;   /* units of each queue */
    struct vg_shape_class class[VG_WORK_CLASSES_MAX];
    uint32_t n_classes;
};

extern const struct vg_shape vg_shapes[];
extern const size_t vg_n_shapes;

/* `node_units`: size of the nodes. 0 or -ENOMEM with a sentence. */
int vg_shape_workload(const struct vg_shape *s, uint32_t node_units, struct vg_workload *ret,
                      struct vg_err *err);

/* No schedule can drain the load earlier: for every moment r, what arrives from then on takes at
   least its work over the cohort's units; and no job ends before its arrival plus its run time. */
struct vg_shape_floor {
    double seconds;
    double from_s, work_s; /* seconds = from_s + work_s */
};
struct vg_shape_floor vg_shape_floor(const struct vg_workload *w);
