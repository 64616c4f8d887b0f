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

#define VG_FUSE_IO (1u << 20)        /* the most bytes of a READ or WRITE */
#define VG_FUSE_FOREVER (1ull << 30) /* seconds: entries and attributes until told otherwise */

/* Of kernels newer than the headers we may be built with. */
#define VG_FOPEN_NOFLUSH (1u << 5)
#define VG_FOPEN_PASSTHROUGH (1u << 7)
struct vg_fuse_open_out { /* struct fuse_open_out of 7.40 */
    uint64_t fh;
    uint32_t open_flags;
    int32_t backing_id;
};

/* Called on a worker thread. The callee answers now (vg_fuse_ok/err/none) or keeps the request with
   vg_fuse_keep() and answers later from any thread. A kept request holds a copy of its input. */
struct vg_fuse_ops {
    void (*request)(void *user, struct vg_fuse_req *r);
    void (*gone)(void *user); /* may be NULL; the kernel has let go of it, or it was aborted */
};
struct vg_fuse_conf {
    const char *name; /* fsname in /proc/mounts */
    bool writable;    /* project: atomic O_TRUNC, not MS_RDONLY */
    bool no_passthrough;
    unsigned threads;    /* 0: two */
    uint64_t want_flags; /* more FUSE_* bits of INIT, taken where the kernel has them */
};
/* Mounts it at the folder `at` in the caller's mount namespace and starts the threads. Needs
   root. */
int vg_fuse_new(const struct vg_fuse_conf *conf, const struct vg_fuse_ops *ops, void *user,
                const char *at, struct vg_fuse **ret, struct vg_err *err);
/* Cuts the mount off, everywhere: programs that use it get ENOTCONN (ECONNABORTED while they wait).
   Returns when no thread is in `request` any more, so never call it from there. */
void vg_fuse_abort(struct vg_fuse *f);
/* Aborts, frees. Kept requests must have been answered or dropped (vg_fuse_none) by then: abort,
   drop them, free. */
void vg_fuse_free(struct vg_fuse *f);
int vg_mount_clone(const char *path);       /* a detached mount of what is there: fd or -errno */
int vg_fuse_clone_mount(struct vg_fuse *f); /* a detached mount of it: fd or -errno */
bool vg_fuse_has_passthrough(const struct vg_fuse *f);
uint64_t vg_fuse_flags(const struct vg_fuse *f); /* what was agreed with the kernel at INIT */

const struct fuse_in_header *vg_fuse_head(const struct vg_fuse_req *r);
const void *vg_fuse_arg(const struct vg_fuse_req *r, size_t *ret_len); /* what follows it */
/* The argument as a structure of n bytes, NULL when it is shorter. */
const void *vg_fuse_in(const struct vg_fuse_req *r, size_t n);
/* A name within the argument, `skip` bytes in: NUL-terminated inside the request, or NULL. */
const char *vg_fuse_str(const struct vg_fuse_req *r, size_t skip, size_t *ret_len);

/* Keeping one that is kept already returns it as it is. NULL: out of memory (answered). */
struct vg_fuse_req *vg_fuse_keep(struct vg_fuse_req *r);
bool vg_fuse_is_kept(const struct vg_fuse_req *r);
/* Answers end the request. 0, or -ENOENT when nobody waits for it any more (its process was
   killed): what the answer gave away (a lookup, an open) must be taken back. */
int vg_fuse_ok(struct vg_fuse_req *r, const void *data, size_t n);
int vg_fuse_err(struct vg_fuse_req *r, int err); /* positive errno */
int vg_fuse_ok_fd(struct vg_fuse_req *r, int fd, uint64_t off,
                  size_t n);              /* pread into the answer */
void vg_fuse_none(struct vg_fuse_req *r); /* FORGET and such */
/* Some times a second: kept requests whose process is being killed are answered with EINTR (the
   request stays its keeper's until answered; that answer goes nowhere). */
void vg_fuse_tick(struct vg_fuse *f);

/* Passthrough: registers fd (which may be closed then); id > 0 or -errno. */
int vg_fuse_backing_open(struct vg_fuse *f, int fd);
void vg_fuse_backing_close(struct vg_fuse *f, int id);
/* Notifications. They may wait for the kernel's lock of the folder, which a kept LOOKUP or READDIR
   of it holds: never call them from `request`, nor from the thread whose work such a request
   waits for. 0, -ENOENT when the kernel knows no such thing, or -errno. */
int vg_fuse_inval_entry(struct vg_fuse *f, uint64_t parent, const char *name, size_t n);
/* The same, but what is in use stays where it is: only the next use asks again. */
int vg_fuse_expire_entry(struct vg_fuse *f, uint64_t parent, const char *name, size_t n);
int vg_fuse_inval_inode(struct vg_fuse *f, uint64_t node, int64_t off, int64_t len);
/* Every cached name is asked for again when used next; waits for nothing. -ENOSYS: too old. */
int vg_fuse_inval_names(struct vg_fuse *f);
