#pragma once
/* Raw /dev/fuse: mounting, reading requests on several threads, answering. What a request means is
   the view's business (env.c, proj*.c). */
#include "base/err.h"

#include <linux/fuse.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct vg_fuse;     /* one mount */
struct vg_fuse_req; /* one request that has not been answered */

/* Called on a worker thread. The callee answers now (vg_fuse_ok/err/none) or keeps the request with
   vg_fuse_keep() and answers later from any thread. A kept request holds a copy of its input. */
struct vg_fuse_ops {
    void (*request)(void *user, struct vg_fuse_req *r);
    void (*gone)(void *user); /* the kernel has let go of it (unmounted everywhere) */
};
struct vg_fuse_conf {
    const char *name; /* fsname in /proc/mounts */
    bool writable;    /* project: writes, atomic O_TRUNC, no kernel permission shortcuts lost */
    bool no_passthrough;
    unsigned threads;
};
/* Mounts it in the caller's mount namespace under a private place and starts the threads. */
int vg_fuse_new(const struct vg_fuse_conf *conf, const struct vg_fuse_ops *ops, void *user,
                const char *at, struct vg_fuse **ret, struct vg_err *err);
void vg_fuse_free(struct vg_fuse *f);       /* aborts what is pending */
int vg_fuse_clone_mount(struct vg_fuse *f); /* a detached mount of it: fd or -errno */
bool vg_fuse_has_passthrough(const struct vg_fuse *f);

const struct fuse_in_header *vg_fuse_head(const struct vg_fuse_req *r);
const void *vg_fuse_arg(const struct vg_fuse_req *r, size_t *ret_len);
struct vg_fuse_req *vg_fuse_keep(struct vg_fuse_req *r); /* NULL: out of memory (answered) */
void vg_fuse_ok(struct vg_fuse_req *r, const void *data, size_t n);
void vg_fuse_ok_fd(struct vg_fuse_req *r, int fd, uint64_t off,
                   size_t n);                     /* pread into the answer */
void vg_fuse_err(struct vg_fuse_req *r, int err); /* positive errno */
void vg_fuse_none(struct vg_fuse_req *r);         /* FORGET and such */

/* Passthrough: registers fd; id > 0 or -errno. */
int vg_fuse_backing_open(struct vg_fuse *f, int fd);
void vg_fuse_backing_close(struct vg_fuse *f, int id);
/* Notifications. Never call them while answering a request on the same folder under its lock in
   the kernel: they may wait for it. */
int vg_fuse_inval_entry(struct vg_fuse *f, uint64_t parent, const char *name, size_t n);
int vg_fuse_inval_inode(struct vg_fuse *f, uint64_t node, int64_t off, int64_t len);
