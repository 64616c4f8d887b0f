#pragma once
/* Sessions in memory and in the store. */
#include "control/job.h"
#include "model/session.h"

#define VG_SESSION_KEEP_USEC (3600 * 1000000ULL) /* unless --keep says otherwise */

/* Binds a job to the session its spec names; makes it when there is none. -ENOMEM. */
int vg_sessions_bind(struct vg_job *j);
/* The job was placed: its session belongs to that node from now on. */
void vg_sessions_enter(struct vg_job *j, uint64_t node);
void vg_sessions_leave(struct vg_job *j);
/* The node says it is over, or the node is gone. */
void vg_sessions_forget(struct vg_control *c, const char *key);
void vg_sessions_node_lost(struct vg_control *c, uint64_t node);
