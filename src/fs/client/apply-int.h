#pragma once
/* Applying inside. What always holds:

   1. `done` is the last number that was performed; `closed` the last one that ends a group (BEGIN,
      WRITE…, END): only that is acknowledged, so a group that broke off is sent again whole.
   2. The number that is about to be performed is written down before: after a restart it may or may
      not have been done, and "it is so already" is no conflict then.
   3. A file is changed only when it is as the node believed (`before`), or as we left it (`mine`).
 */
#include "fs/client/apply.h"

#include "base/cleanup.h"
#include "base/map.h"

#define APPLY_STRAYS 200000
#define APPLY_MINE_MAX 2000000
#define APPLY_KEPT 16384

struct amine { /* the state in which we left an inode */
    uint64_t dev, size;
    int64_t mtime, ctime;
};
#define APPLY_LEFT 16384 /* of these, so many last ones outlive the service */
struct aleft {
    uint64_t count, ino;
    struct amine m;
};
struct achange {
    uint64_t object, number;
    uint64_t op, last; /* the first and the last operation that it tells of */
    struct vg_mstat st;
    bool has_st;
    uint32_t err;
    char *text;
};
struct aview {
    uint32_t id;
    struct vg_cobj *root;
    int fd;
    char *path;
    bool said_ignored; /* that what the task writes there stays on the node */
};

struct vg_apply {
    struct vg_apply_conf conf;
    char *node;
    int state_fd, left_fd;
    uint64_t n_left;
    struct aview *views;
    size_t n_views;
    uint64_t done, closed, said, strays;
    uint64_t redo;     /* may have been done in an earlier life */
    uint64_t redo_ino; /* the inode that operation was about, where that matters */
    bool resumed, say_again;
    struct vg_map mine;    /* inode to struct amine */
    struct vg_map refused; /* the node's numbers whose operations are passed over */
    struct achange *change;
    size_t n_change, cap_change;
    struct achange *kept; /* a ring of what was said */
    uint64_t n_kept, resay;
    struct vg_map change_at; /* the node's number to index + 2 */
    /* the group */
    int fd;
    uint64_t object;
    struct vg_cobj *cobj;
    int group_err;
    /* the folder that was used last, and the file that was made last */
    int dir_fd;
    uint32_t dir_view;
    char *dir_path;
    int made_fd;
    uint64_t made;
};

/* One operation while it is performed. */
struct aop {
    const Vg__Mr__Op *op;
    struct aview *view;
    char *path, *path2; /* owned */
    int dir, dir2;      /* borrowed and owned (dir2) */
    const char *leaf, *leaf2;
    bool redo;
};

/* What is about to be done, before it is done. */
void apply_remember(struct vg_apply *a, uint64_t doing, uint64_t ino);

/* apply-path.c */
int apply_split(struct vg_apply *a, struct aop *o);
void apply_unsplit(struct aop *o);
void apply_drop_dir(struct vg_apply *a);
/* Is it as the node believed, or as we left it? */
bool apply_expected(struct vg_apply *a, const struct aop *o, const struct stat *st);
bool apply_is_mine(const struct vg_apply *a, const struct stat *st);
void apply_left(struct vg_apply *a, const struct stat *st);
void apply_load_left(struct vg_apply *a); /* what an earlier life left */
/* Says in the next Ack what became of it, and to the tree that this was us. */
void apply_tell(struct vg_apply *a, const struct aop *o, const char *path, uint64_t object,
                const struct stat *st);
void apply_tell_dir(struct vg_apply *a, int fd, uint64_t object);
void apply_failed(struct vg_apply *a, const struct aop *o, uint64_t object, int err,
                  const char *what);
void apply_refuse(struct vg_apply *a, const struct aop *o);
struct achange *apply_change(struct vg_apply *a, uint64_t object);
int apply_policy(struct vg_apply *a, const struct aop *o, const char *path, const struct stat *st);
int apply_set_mtime(int dir, const char *leaf, int64_t mtime);

/* apply-name.c, apply-file.c: 0 or -errno; -ESTALE: refuse it */
int apply_make(struct vg_apply *a, struct aop *o);
int apply_link(struct vg_apply *a, struct aop *o);
int apply_unlink(struct vg_apply *a, struct aop *o);
int apply_rename(struct vg_apply *a, struct aop *o);
int apply_begin(struct vg_apply *a, struct aop *o);
int apply_end(struct vg_apply *a, struct aop *o);
int apply_truncate(struct vg_apply *a, struct aop *o);
int apply_setattr(struct vg_apply *a, struct aop *o);
int apply_xattr(struct vg_apply *a, struct aop *o);
int apply_fallocate(struct vg_apply *a, struct aop *o);
int apply_sync(struct vg_apply *a, struct aop *o);
void apply_group_close(struct vg_apply *a);
