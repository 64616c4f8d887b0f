#pragma once
/* Inside job.c and job-work.c: one thing that a worker thread does. */
#include "fs/client/read.h"
#include "fs/client/svc.h"

struct vg_job {
    struct vg_list link;
    uv_work_t work;
    struct vg_mirror *m;
    struct vg_mlink *l; /* NULL: nobody waits any more */
    enum vg_mitem_kind kind;
    enum vg_mprio prio;
    uint64_t waits; /* of a push: the demand that it will meet */
    uint64_t req, object;
    unsigned tries;
    struct vg_mitem *slot; /* of the ordered queue */
    int level, err;
    /* DIR */
    struct vg_scan scan;
    uint64_t seq;
    bool xattrs;
    /* DATA */
    struct vg_leaf_read read;
    bool packs;
    struct vg_buf frame;
    char path[];
};

/* job-work.c, on a worker: touches nothing but the job. */
void vg_job_work(uv_work_t *w);
