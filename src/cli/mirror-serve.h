#pragma once
/* The program around the file service (fs/client/client.h): the socket that vrun calls, the
   connection to the cloud, status and the end. */
#include "base/err.h"
#include "cli/endpoint.h"
#include "fs/client/client.h"
#include "proto/virga.pb-c.h"

#include <stdbool.h>

struct vg_serve_conf {
    struct vg_mirror_conf mirror;
    const char *sock;
    uint64_t idle_usec; /* leaves when nothing was to do for so long */
    int ready_fd;       /* gets "ok" or a sentence; -1: none */
};
/* Where a user's service keeps its things: $XDG_STATE_HOME/virga and the like. */
int vg_serve_state(char *ret, size_t n, struct vg_err *err);
/* Until it is idle or told to stop: exit status. Another that serves already: 0. */
int vg_serve_run(const struct vg_serve_conf *conf);
/* One link over a descriptor, without a cloud: until it ends. */
struct vg_serve_fd {
    struct vg_mirror_conf mirror;
    struct vg_mirror_run run;
    int fd;
};
int vg_serve_fd(const struct vg_serve_fd *conf);

/* mirror-cloud.c: links to tasks by way of the control plane. */
struct vg_mcloud;
int vg_mcloud_new(uv_loop_t *loop, struct vg_mirror *m, struct vg_mcloud **ret);
void vg_mcloud_free(struct vg_mcloud *c);
/* Takes the task: brings links for it until it has ended. `spec` is copied. 0 or -ENOMEM; the task
   is the caller's then. */
int vg_mcloud_offer(struct vg_mcloud *c, struct vg_mirror_task *t, uint64_t task,
                    const Vg__Pb__MirrorSpec *spec);
/* The task has ended: in a moment, when its trace has come, it is let go. */
void vg_mcloud_over(struct vg_mcloud *c, uint64_t task);
bool vg_mcloud_idle(const struct vg_mcloud *c);
bool vg_mcloud_is_connected(const struct vg_mcloud *c);
/* "connected", or what stands in the way. */
const char *vg_mcloud_state(const struct vg_mcloud *c);
