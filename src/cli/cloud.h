#pragma once
/* A one-machine cloud as its home folder shows it: which of its programs run, and how to end them.
   A program runs when its lock file is locked (flock); its pid stands in the pid file. Pids are
   turned into pidfds before they are used, so a number that was reused is never signalled. */
#include "base/err.h"

#include <stdbool.h>
#include <sys/types.h>

#define VG_HOME_MAX 3072

enum vg_part { VG_PART_UP, VG_PART_VIRGAD, VG_PART_AGENT };

const char *vg_part_name(enum vg_part p); /* for people: "virgad" */

/* The part's pidfd (its pid in *ret_pid, which may be NULL); -ESRCH when it does not
   run, -EAGAIN when it holds its lock but has not written its pid yet. */
int vg_part_open(const char *home, enum vg_part p, pid_t *ret_pid);
bool vg_part_runs(const char *home, enum vg_part p);

/* Ends one part: the signal, then KILL when the limit has passed. Waits until it is gone. 0 also
   when it does not run. */
int vg_part_stop(const char *home, enum vg_part p, int signo, unsigned limit_ms);

/* Ends agent and control plane, in this order: tasks too (the agent ends every keeper before it
   leaves) unless keep_tasks. The supervisor must not run, or be the caller. */
int vg_cloud_stop(const char *home, bool keep_tasks, struct vg_err *err);

/* Something of a node is left that only an agent can clear up. */
bool vg_cloud_left_behind(const char *home);

/* Waits on a pidfd for at most limit_ms: true when the process is gone. */
bool vg_pidfd_wait(int pidfd, unsigned limit_ms);
