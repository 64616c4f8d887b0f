#pragma once
/* What agents say about tasks. */
#include "control/job.h"

/* How long its attempt can have been under way, at most, by our clock. */
uint64_t vg_node_task_age_usec(const struct vg_job *j);
/* The current attempt runs since then (wall time; 0: now). */
void vg_node_task_started(struct vg_job *j, uint64_t started_usec);
/* The node reports an attempt of our earlier life: output that was acknowledged then may not have
   reached the disk, so its keeper is asked for everything beyond what is there. */
void vg_node_task_ask_output(struct vg_job *j);
/* Whether it is this attempt's end that the store is still writing: then the node is told when it
   is done. */
bool vg_node_task_ending(struct vg_job *j, uint32_t attempt, uint64_t node);
/* The current attempt has ended. May free the job. */
void vg_node_task_exited(struct vg_job *j, const Vg__Pb__TaskExited *x);
