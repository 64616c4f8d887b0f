#pragma once
/* Keeps the tree's told state honest: inotify on every folder that was served, a new look at each
   run for those that cannot be watched. Loop thread. */
#include "fs/client/tree.h"

#include <uv.h>

struct vg_watch;
struct vg_watch_ops {
    /* Events were taken; vg_cobj_changed() has been called for what they mean. */
    void (*taken)(void *user);
    /* The kernel lost events: nothing that was told can be believed. */
    void (*lost)(void *user);
};
/* limit: watches at most, 0: as many as the kernel gives. */
int vg_watch_new(uv_loop_t *loop, struct vg_ctree *tree, const struct vg_watch_ops *ops, void *user,
                 size_t limit, struct vg_watch **ret);
void vg_watch_free(struct vg_watch *w); /* closes its handles; the loop must turn once more */
/* Before a folder is scanned, so that no change falls between. What cannot be watched is looked at
   by vg_watch_recheck(). 0, or -errno when the folder cannot be opened. */
int vg_watch_add(struct vg_watch *w, struct vg_cobj *folder);
/* It is on a file system that others may change unseen. */
void vg_watch_far(struct vg_watch *w, struct vg_cobj *folder);
void vg_watch_forget(struct vg_watch *w, struct vg_cobj *folder);
/* Takes all events that wait, now. By itself it does so at once after a quiet time, else some 50
   times a second. */
void vg_watch_drain(struct vg_watch *w);
/* Looks at the folders that are not watched, and at files with several names. */
void vg_watch_recheck(struct vg_watch *w);
uint64_t vg_watch_rounds(const struct vg_watch *w); /* how often events were taken */
void vg_watch_counts(const struct vg_watch *w, size_t *ret_watched, size_t *ret_unwatched);
