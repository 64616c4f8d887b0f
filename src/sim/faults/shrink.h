#pragma once
/* Makes a plan that breaks a promise as small as it can be while it still breaks the same one. */
#include "sim/faults/plan.h"

struct vg_shrunk {
    int runs;
    int tasks, faults; /* that are left */
};
/* `promise` as the whole plan broke it. *plan is changed in place. */
void vg_plan_shrink(struct vg_plan *plan, const char *promise, struct vg_shrunk *ret);
