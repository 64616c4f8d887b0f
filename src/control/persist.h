#pragma once
/* The only place that writes tasks, nodes and sessions to the store. State changes are written
   behind (within 10 ms, several changes of a task as one); accepted durable tasks and ends are
   waited for. */
#include "control/job.h"

struct vg_nodelink;

/* The row will be written soon. */
void vg_persist_later(struct vg_job *j);
/* Likewise, but not before the next round of housekeeping: the store has just failed. */
void vg_persist_sometime(struct vg_job *j);
/* Written at once; then cb(job, result). `sync` as the store has it. While it is under way the job
   must not be freed. -errno: not queued, cb will not run. */
int vg_persist_now(struct vg_job *j, enum vg_store_sync sync,
                   void (*cb)(struct vg_job *j, uint64_t cookie, int result), uint64_t cookie);
/* Its counts changed: watchers hear of it with the next round of writing, however many changes that
   are. */
void vg_persist_news(struct vg_job *j);
/* Handed to the store now, lazily: it is written before whatever is handed over later. */
void vg_persist_write(struct vg_job *j);
void vg_persist_flush(struct vg_control *c); /* hands everything that is dirty to the store */
void vg_persist_node(struct vg_nodelink *a, enum vg_store_sync sync);
/* Likewise; cb when the store has it. -errno: cb will not run. */
int vg_persist_node_then(struct vg_nodelink *a, vg_store_cb *cb, void *arg);
/* The node may hold tasks from now on: when that is durable it is `kept`, and only then it gets
   any. Else a loss of power could make us forget a node that runs something, and run it elsewhere.
 */
void vg_persist_node_kept(struct vg_nodelink *a);
/* Labels as the store keeps them: "k=v" lines. */
int vg_persist_set_labels(struct vg_nodelink *a, const char *lines);
/* The highest id range that was ever given out, before a user is removed. */
int vg_persist_last_slot(struct vg_control *c);
/* Tasks from rows: a member's row needs its group, which is remembered for the next one.
   Zero-initialised (but for ctl) is empty. */
struct vg_row_tasks {
    struct vg_control *ctl;
    struct vg_task *group; /* owned; the last that was read from the store */
};
/* -EBADMSG: the row cannot be read; -ENOMEM; -errno of the store. */
int vg_row_tasks_get(struct vg_row_tasks *r, const struct vg_task_row *row, struct vg_task **ret);
void vg_row_tasks_done(struct vg_row_tasks *r);
/* A task from the store by id. -ENOENT. */
int vg_persist_get(struct vg_control *c, uint64_t id, struct vg_task **ret);
/* Everything that the store knows into memory. */
int vg_persist_load(struct vg_control *c, struct vg_err *err);
