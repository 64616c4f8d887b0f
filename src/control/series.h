#pragma once
/* What tasks and nodes used over time, as their nodes report it: kept in memory while they run, and
   of a task that ended as a plot's worth of points in the store. Loop thread. */
#include "control/job.h"
#include "control/nodes.h"
#include "model/series.h"

#define VG_SERIES_ROOM (128u << 20) /* bytes, of all tasks and nodes together */

/* A task's node may have told something of it: what was kept is forgotten. */
void vg_series_forget(struct vg_job *j);
void vg_series_forget_node(struct vg_nodelink *a);
/* The task has ended: its points go to the store, ahead of its end. */
void vg_series_ended(struct vg_job *j);
/* What nobody has looked at for a while gets coarser. Once a second or so. */
void vg_series_tick(struct vg_control *c);
