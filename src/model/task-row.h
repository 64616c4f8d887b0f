#pragma once
/* A task as the store keeps it, and back. Includes the store's row types only; no I/O. */
#include "model/task.h"
#include "store/rows.h"

/* Memory that a row borrows; zero-initialised is empty. */
struct vg_task_pack {
    void *data; /* owned */
    char gpus[4 * VG_NODE_GPUS_MAX + 120];
    char progress[VG_PROGRESS_TEXT];
};

/* Fills *ret, borrowing from `t` and `pack`. Without `whole` spec, who and grant are left out: for
   updates of a row that is stored already. A member's row never carries them: its group's does. 0
   or -ENOMEM. */
int vg_task_to_row(const struct vg_task *t, bool whole, struct vg_task_pack *pack,
                   struct vg_task_row *ret);
void vg_task_pack_done(struct vg_task_pack *pack);

/* A new task from a row that carries spec; for a member's row `group` is the task it shares with,
   else NULL. -EBADMSG: the row is not one of ours, or the group is missing or another. -ENOMEM. */
int vg_task_from_row(const struct vg_task_row *row, const struct vg_task *group,
                     struct vg_task **ret);
