#pragma once
/* Plays the keeper of a task that has ended: whoever attaches sees the stored output and the exit,
   as if he had been there. */
#include "control/control.h"
#include "model/task.h"

/* Takes the channel's descriptor; works on its own until the client has it all or leaves. */
void vg_replay_start(struct vg_control *c, int fd, const struct vg_task *t);
/* The control plane stops: all end. */
void vg_replay_stop_all(struct vg_control *c);
