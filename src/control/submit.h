#pragma once
/* From a request to a task that is accepted: what it resolves to, whether there is room for it, its
   job (a group's members with it), its acceptance. The request comes from a client or a schedule.
 */
#include "control/job.h"

struct vg_new {
    uint64_t id;
    const struct vg_user *user;
    Vg__Pb__TaskSpec *spec; /* consumed, whatever happens */
    Vg__Pb__Identity *who;  /* likewise; NULL: there was no memory for it */
    uint64_t parent;        /* the task it is made in, or 0 */
    struct vg_res grant;
    bool durable; /* a group is durable in any case */
};

/* Pool, resources, time limit and dependencies as they will be. Sentences. */
int vg_submit_resolve(struct vg_control *c, const struct vg_user *u, uint64_t parent,
                      Vg__Pb__TaskSpec *spec, struct vg_res *ret_grant, struct vg_err *err);
/* Whether the cloud and the user may have so many more unfinished tasks. */
int vg_submit_limits(struct vg_control *c, const struct vg_user *u, const Vg__Pb__TaskSpec *spec,
                     struct vg_err *err);
/* The job, not begun. NULL: no memory. */
struct vg_job *vg_submit_make(struct vg_control *c, struct vg_new *n);
/* Stores it when it is durable, tells its followers that it is accepted, begins it. */
void vg_submit_go(struct vg_job *j);

/* Whether the user has a task of the spec's key: 1 and the job, or the task (owned by the caller)
   when it has left memory; 0; -EEXIST with a sentence: it asks for something else. Environment,
   terminal and limits of the shell may differ. */
int vg_idem_find(struct vg_control *c, const struct vg_user *u, const Vg__Pb__TaskSpec *spec,
                 struct vg_job **ret_job, struct vg_task **ret_task, struct vg_err *err);
