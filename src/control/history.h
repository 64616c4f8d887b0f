#pragma once
/* What was held and the load as it came, for later questions: docs/history.md. */
#include "control/job.h"
#include "sched/engine.h"

const char *vg_history_how(enum vg_eng_end how); /* "ended" */
/* The job's attempt is over; called while the task still has its node. */
/* As it was told, from what was stored of it. */
void vg_gpu_usage_from_row(const struct vg_gpu_row *row, Vg__Pb__GpuUsage *ret);
void vg_history_attempt(struct vg_job *j, enum vg_eng_end how);
/* All of them in one text; caller frees; NULL: no memory. */
char *vg_history_join(const char *first, char *const *more, size_t n, char between);
/* The task has ended. Groups have no row (their members do), nor has what never ran. */
void vg_history_task(const struct vg_job *j);
/* What is older than limits.history goes, in portions. */
void vg_history_prune(struct vg_control *c, uint64_t before_usec, uint32_t limit);
