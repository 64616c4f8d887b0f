#pragma once
/* Shared by fuse.c (mount, threads) and fuse-req.c (requests, answers, notifications). */
#include "base/list.h"
#include "fs/node/fuse.h"

#include <pthread.h>
#include <stdatomic.h>

#define FUSE_WORKERS 16u

struct fuse_worker {
    struct vg_fuse *fuse;
    int fd;    /* the first worker's is the mount's own, others have clones */
    char *buf; /* owned */
    pthread_t thread;
    bool running;
};

struct vg_fuse {
    struct vg_fuse_ops ops;
    void *user;
    char *at; /* owned */
    int fd;
    uint64_t flags;
    uint32_t minor;
    bool mounted;
    atomic_bool gone;
    struct fuse_worker workers[FUSE_WORKERS];
    unsigned n_workers;
    pthread_mutex_t lock; /* kept */
    struct vg_list kept;  /* struct vg_fuse_req */
};

struct vg_fuse_req {
    struct vg_list link; /* in fuse->kept, while kept */
    struct vg_fuse *fuse;
    int fd;
    bool kept;
    bool signalled; /* a signal came for its process */
    bool answered;  /* with EINTR, ahead of its keeper */
    const char *in; /* a worker's buffer, or copy */
    size_t len;
    char copy[];
};

int vg_fuse_write(int fd, uint64_t unique, int err, const void *data, size_t n);
void vg_fuse_interrupted(struct vg_fuse *f, uint64_t unique);
