#pragma once
/* NVIDIA's MPS program and the files of its daemon for one card, in node/mps/CARD: `pipe`, which
 * tasks see, and `log`. */
#include "agent/agent-int.h"

#define VG_MPS_PROGRAM "nvidia-cuda-mps-control"

/* node/mps/CARD/name, to be freed; NULL: no memory. */
char *vg_mps_path(const struct vg_agent *a, uint32_t card, const char *name);
/* Makes the folders, and empties that of the pipes. */
int vg_mps_make_folders(const struct vg_agent *a, uint32_t card);
/* Starts the program: the daemon, as the leader of a session, or one that brings it a command.
   -ENOENT: the node has none. */
int vg_mps_run(const struct vg_agent *a, uint32_t card, const char *const *argv, const int fds[3],
               bool session, pid_t *ret);
/* The daemon that an earlier agent started, or 0. */
pid_t vg_mps_find_daemon(const struct vg_agent *a, uint32_t card);
