#pragma once
/* What the scheduler counts of a shared GPU's memory. A task whose limit was lowered may hold more
   than it still: what it gives up is others' only when its node has said that it holds the new
   limit, and then only what is not in use. */
#include "control/job.h"

/* What is to be counted for the task when its limit becomes `mem_bytes`. */
uint64_t vg_share_to_count(const struct vg_job *j, uint64_t mem_bytes);
/* Its node told what it uses (job->gpu_use): what is counted follows. */
void vg_share_used(struct vg_job *j);
