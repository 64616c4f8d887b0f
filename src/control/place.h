#pragma once
/* Between the scheduling engine and agents: submits jobs, carries decisions out. */
#include "control/job.h"

struct vg_policy;

/* Gives the job to the scheduler. NO_CAPACITY and so on as sentences. */
int vg_place_submit(struct vg_job *j, struct vg_err *err);
/* The members of a gang, all together or not at all; n >= 1. */
int vg_place_submit_gang(struct vg_job *const *member, size_t n, struct vg_err *err);
/* Takes decisions until there are none. Safe to call from anywhere: nested calls are folded. */
void vg_place_all(struct vg_control *c);
/* A node reported that it has this attempt, which it was told to begin with `start` (NULL: it does
   not say): counts it there. */
int vg_place_adopt(struct vg_job *j, uint64_t node, uint32_t attempt, const Vg__Pb__Start *start);
/* Tells the job's followers where it stands in the queue. */
void vg_place_tell(struct vg_job *j);
/* Tells whoever waits when that has changed; from housekeeping. */
void vg_place_tick(struct vg_control *c);
/* Its session has got a node: it waits for that one now. */
void vg_place_repin(struct vg_job *j);
/* After loading: placed tasks are counted on their nodes again. */
void vg_place_restore(struct vg_control *c);
/* The next attempt's number may have been used in an earlier life: it is left out. */
void vg_place_skip(struct vg_job *j);
/* Lets the tasks go that waited for nodes to report. */
void vg_place_unhold(struct vg_control *c);
/* The job holds nothing any more (ended, or its attempt is over). */
void vg_place_release(struct vg_job *j);

/* The same with an engine that is being prepared to take over (vg_policy_reload). */
int vg_place_submit_to(struct vg_policy *p, struct vg_job *j, struct vg_err *err);
int vg_place_submit_gang_to(struct vg_policy *p, struct vg_job *const *member, size_t n,
                            struct vg_err *err);
int vg_place_adopt_in(struct vg_policy *p, struct vg_job *j);
