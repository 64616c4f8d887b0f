#pragma once
/* What a task changed, as `virga env` shows and applies it. */
#include "cli/cmd-env.h"
#include "fs/store/keep.h"

/* Everything that changed and the folders on the way, in the tree's order: what lies in a folder
   follows it. */
struct vg_changes {
    struct vg_fitem *item; /* owned, as are their paths; the rest is the tree's */
    size_t n, cap;
    struct vg_ftree *tree; /* owned */
};
/* `names`: without contents. */
int vg_changes_load(struct vg_estore *box, const char *name, bool names, struct vg_changes *ret,
                    struct vg_err *err);
void vg_changes_done(struct vg_changes *c);

/* The name that a task's changes are kept under; TASK as everywhere, or that name itself. */
int vg_ecmd_task_ref(const char *arg, char name[VG_ENV_NAME_MAX + 1], uint64_t *ret_task,
                     struct vg_err *err);
int vg_ecmd_changes_run(struct vg_cmd_line *l); /* `env diff TASK` */
int vg_ecmd_apply_run(struct vg_cmd_line *l);
