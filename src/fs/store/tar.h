#pragma once
/* Tar archives as a stream: ustar, pax and GNU's long names, read; ustar with pax where it is
   needed, written. Nothing that comes is trusted. */
#include "base/buf.h"
#include "base/err.h"
#include "mirror/stamp.h"

#define VG_TAR_PATH_MAX 4096
#define VG_TAR_XATTRS_MAX 64

struct vg_tar_xattr {
    char *name; /* owned */
    void *value;
    size_t n;
};
struct vg_tar_entry {
    char path[VG_TAR_PATH_MAX];
    char link[VG_TAR_PATH_MAX]; /* of a link: where it leads; of a hard link: the other name */
    struct vg_mstat st;         /* mode with type; size of what follows */
    bool hard;                  /* another name for `link` */
    struct vg_tar_xattr xattr[VG_TAR_XATTRS_MAX];
    size_t n_xattr;
};

struct vg_tar {
    /* Reads exactly up to n bytes; fewer only at the end; -errno. */
    ssize_t (*read)(void *user, void *data, size_t n);
    void *user;
    struct vg_tar_entry e; /* the present one */
    uint64_t left, pad;    /* of its content */
    struct vg_buf pax;
};
/* 1: t->e is the next; 0: the end; -EBADMSG, -errno. */
int vg_tar_next(struct vg_tar *t);
/* Up to n bytes of the present one's content; 0 at its end. */
ssize_t vg_tar_read(struct vg_tar *t, void *data, size_t n);
void vg_tar_done(struct vg_tar *t);

/* Appends a header (pax first, where names or numbers need it). */
int vg_tar_header(struct vg_buf *out, const char *path, const struct vg_mstat *st,
                  const char *link);
int vg_tar_pad(struct vg_buf *out, uint64_t size); /* after so much content */
int vg_tar_end(struct vg_buf *out);
