#pragma once
/* How vrun and `virga mirror` talk to the file service: packets over a unix socket of the user's
   own, each a list of "key=value" strings. One service a user and cloud. No loop, no TLS: this is
   part of the small vrun, too. */
#include "base/err.h"
#include "cli/endpoint.h"

#include <stddef.h>
#include <stdint.h>

#define VG_MPKT_MAX (96u << 10)

struct vg_mpkt {
    size_t n;
    char text[VG_MPKT_MAX];
};
void vg_mpkt_clear(struct vg_mpkt *p);
int vg_mpkt_add(struct vg_mpkt *p, const char *key, const char *value); /* 0 or -E2BIG */
/* The value of the next such key behind *at (0 at first); NULL: no more. */
const char *vg_mpkt_next(const struct vg_mpkt *p, const char *key, size_t *at);
const char *vg_mpkt_get(const struct vg_mpkt *p, const char *key); /* the first; NULL: none */
/* with_fd: goes along, and stays the caller's; -1: none. */
int vg_mpkt_send(int fd, const struct vg_mpkt *p, int with_fd);
/* 1; 0 when the other end is gone; -EAGAIN (of a non-blocking one), -EBADMSG, -errno. ret_fd (may
   be NULL): what came along, the caller's; -1: nothing. */
int vg_mpkt_recv(int fd, struct vg_mpkt *p, int *ret_fd);

/* $XDG_RUNTIME_DIR/virga/mirror-<cloud>, or below the home folder's run/; the folder is made and
   checked (0700, ours). */
int vg_mirror_sock_path(const struct vg_endpoint *e, char *ret, size_t n, struct vg_err *err);
/* A connection to the service, which must be this user's; -ENOENT, -ECONNREFUSED: there is none. */
int vg_mirror_sock_connect(const char *path);
/* The same; starts the service when there is none and waits until it listens. */
int vg_mirror_sock_start(const char *path, struct vg_err *err);
/* One packet out, one back, within 30 s. An "error" in the answer becomes err. ret_fd: as above. */
int vg_mirror_sock_call(int fd, struct vg_mpkt *p, int *ret_fd, struct vg_err *err);
