#pragma once
/* What one person's tasks have in common is kept once. A shell that submits a hundred thousand
   tasks gives each the same variables, limits, directory and identity; what differs (a variable,
   say) costs only itself. Pure; the tasks of one pool belong to one thread. */
#include "base/map.h"
#include "model/task.h"

struct vg_alike {
    struct vg_map texts;  /* by hash: variables; borrowed from whoever uses them */
    struct vg_map blocks; /* by hash: everything that is shared whole; likewise */
};

/* Lets a task's submission share with the pool's others; its spec reads as before but must not be
   changed any more. A submission that several tasks have already is left alone. Where there is no
   memory the task simply keeps what it has. The pool must outlive the task. */
void vg_alike_share(struct vg_alike *pool, struct vg_task *t);
void vg_alike_done(struct vg_alike *pool); /* when no task is left */
