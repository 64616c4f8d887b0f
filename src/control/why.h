#pragma once
/* Why a task waits and what will become of it, for people. */
#include "control/job.h"
#include "sched/engine.h"

/* What a WhyInfo borrows. */
struct vg_why {
    Vg__Pb__WhyInfo pb;
    Vg__Pb__Holder holder[VG_ENG_HOLDERS_MAX];
    Vg__Pb__Holder *holders[VG_ENG_HOLDERS_MAX];
    char text[768], basis[160];
};

/* Of any task; `j` is NULL when it is not in memory. `ret` borrows from the task, too. */
void vg_why_task(struct vg_control *c, const struct vg_job *j, const struct vg_task *t,
                 struct vg_why *ret);
/* The same as reason and expected times of a task that waits; others stay as they are. */
void vg_why_info(struct vg_control *c, const struct vg_task *t, struct vg_task_info *info,
                 struct vg_why *room);
/* "queued: 2 ahead of you on a100-1, about 4 min (virga task why 3f2a90c1)". -ENOENT: it does not
   wait. */
int vg_why_brief(const struct vg_job *j, char *out, size_t n);
/* What would happen to such a task of `members` members if it came now. A refusal is `err`. */
int vg_why_forecast(struct vg_control *c, const struct vg_user *u, Vg__Pb__TaskSpec *spec,
                    const struct vg_res *grant, uint32_t members, struct vg_why *ret,
                    struct vg_err *err);
