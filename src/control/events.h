#pragma once
/* Whatever changes, told to those who listen: the wire's `events`, and /api/v1/events.

   Tasks are told soon after they changed, to whoever may see them and asked for such ones, by the
   rules of task_watch. Nodes, GPUs, the queue, budgets and the status are looked at every second or
   so through the very requests that list them, so that a reader sees what it would be shown, and
   told when they differ from what was told last.

   A reader that does not keep up gets the newest state of what it missed, not the history; when it
   missed too much it is told `resync` and had better ask for lists again. Loop thread. */
#include "control/api.h"

#define VG_EVENT_TOPICS_MAX 16

void vg_api_events(struct vg_call *call);
/* A task changed (from vg_watch_tell). */
void vg_events_changed(struct vg_control *c, uint64_t task);
/* Of the event that is being told: the same for all readers of one, never 0, and never used again
   in this process. */
uint64_t vg_events_number(const struct vg_control *c);
void vg_events_stop(struct vg_control *c);
