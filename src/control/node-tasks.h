#pragma once
/* What agents say about tasks. */
#include "control/job.h"

/* The current attempt runs since then (wall time; 0: now). */
void vg_node_task_started(struct vg_job *j, uint64_t started_usec);
/* The current attempt has ended. May free the job. */
void vg_node_task_exited(struct vg_job *j, const Vg__Pb__TaskExited *x);
