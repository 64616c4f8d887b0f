#pragma once
/* A task as the store keeps it, and back. Includes the store's row types only; no I/O. */
#include "model/task.h"
#include "store/rows.h"

/* Memory that a row borrows; zero-initialised is empty. */
struct vg_task_pack {
    void *data; /* owned */
    char gpus[4 * VG_NODE_GPUS_MAX];
};

/* Fills *ret, borrowing from `t` and `pack`. Without `whole` spec, who and grant are left out: for
   updates of a row that is stored already. 0 or -ENOMEM. */
int vg_task_to_row(const struct vg_task *t, bool whole, struct vg_task_pack *pack,
                   struct vg_task_row *ret);
void vg_task_pack_done(struct vg_task_pack *pack);

/* A new task from a row that carries spec. -EBADMSG: the row is not one of ours. -ENOMEM. */
int vg_task_from_row(const struct vg_task_row *row, struct vg_task **ret);
