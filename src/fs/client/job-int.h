#pragma once
/* Inside job.c, job-work.c and job-tell.c: one thing that a worker thread does. */
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

/* job-tell.c */
/* The record's frames, for this link's node, which counts as told. */
int vg_job_tell(struct vg_mlink *l, struct vg_cobj *folder, uint64_t req, uint64_t seq, int level,
                struct vg_buf *rec, struct vg_buf *frames);
/* What was told before and is still so need not be read again: 1, 0, or -errno. */
int vg_job_tell_kept(struct vg_mlink *l, uint64_t req, struct vg_cobj *folder,
                     struct vg_mitem *slot);
void vg_job_send_leaf(struct vg_mlink *l, const struct vg_cobj *o, uint64_t leaf,
                      enum vg_mprio prio, bool urgent, struct vg_buf *frame);
/* Refused content: says why. True when it was. */
bool vg_job_refused(struct vg_mlink *l, const struct vg_mitem *it, const struct vg_cobj *o);
