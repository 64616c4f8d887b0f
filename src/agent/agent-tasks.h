#pragma once
/* What agent-tasks.c (the life of a task) and agent-start.c (its Start) share. Loop thread. */
#include "agent/agent-int.h"

/* agent-tasks.c; NULL: out of memory. */
struct vg_agent_task *vg_tasks_new(struct vg_agent *a, uint64_t id, uint32_t attempt);
/* Whether this Start must not be taken; then it has been answered. */
bool vg_tasks_refuse(struct vg_agent *a, const Vg__Pb__Start *start);

/* agent-start.c; -EINVAL: no such network. */
int vg_start_network(const Vg__Pb__Start *start, enum vg_net_kind *ret);
