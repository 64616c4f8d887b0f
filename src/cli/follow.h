#pragma once
/* Follows a task or group to its end: its output on standard output and error, its progress on a
   terminal's last line. A connection that breaks is made again and nothing is shown twice. */
#include "cli/endpoint.h"

#include <stdbool.h>

struct vg_follow_how {
    const char *program; /* in front of what is said: "vbatch" */
    bool logs;           /* show its output, too */
    bool alone;          /* not a group: why it begins again is said */
    bool quiet;          /* no progress, no words of our own */
};

/* Returns the task's exit status, or what a failure of ours exits with (it was said). */
int vg_follow_task(const struct vg_endpoint *ep, const char *task, const struct vg_follow_how *how);
