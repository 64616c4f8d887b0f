#pragma once
/* The states of a task, from task-states.tbl. */
enum vg_task_state {
#define TASK_STATE(name, text, final) VG_TASK_##name,
#include "model/task-states.tbl"
#undef TASK_STATE
    VG_TASK_STATES
};
