#pragma once
/* Who belongs under whom: members under their group, tasks made inside a task under that task.

   What always holds:
   1. A head (group or parent) is in memory as long as anything under it has not ended.
   2. The head's progress counts everything that was ever under it, each in its present state.
   3. A group ends exactly when its last member has ended, and that is queued for the store after
   the member's own end. */
#include "control/job.h"

/* Puts a new or loaded job under its head, if it has one in memory, and counts it. 0 or -ENOMEM. */
int vg_family_join(struct vg_job *j);
/* The job leaves memory. */
void vg_family_leave(struct vg_job *j);
/* The job's state may have changed: its head's counters follow. Before an end is given to the
   store. */
void vg_family_count(struct vg_job *j);
/* What follows from the counters for the head: a group starts or ends, a parent that was only kept
   for its children leaves memory. After the end was given to the store. */
void vg_family_settle(struct vg_job *j);
/* Whether something under it has not ended. */
bool vg_family_open(const struct vg_job *j);
/* Asks for the end of everything under it. */
void vg_family_cancel(struct vg_job *j, uint64_t grace_usec, const char *why);

/* The group was accepted: makes its members. 0 or -ENOMEM (those that were made stay). */
int vg_group_make(struct vg_job *group);
/* After loading: counts what had ended, makes the members that have no row, keeps parents that have
   open children. -errno of the store. */
int vg_family_restore(struct vg_control *c);
