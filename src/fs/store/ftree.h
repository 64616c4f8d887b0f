#pragma once
/* A snapshot as a tree in memory: of a root in the store, or one that is being filled by a puller
   from a file service (pull.h). Thread-safe, counted. Objects are numbered as they become known;
   the numbers are good within this tree's life (its epoch). */
#include "base/err.h"
#include "fs/store/estore.h"

struct vg_ftree;
struct vg_pull;
struct vg_keep_conf;

#define VG_FTREE_NODES_MAX (8u << 20)

/* root NULL: empty, to be filled. The store must outlive it; the root is held while it lives. */
int vg_ftree_new(struct vg_estore *store, const uint8_t *root, struct vg_ftree **ret,
                 struct vg_err *err);
struct vg_ftree *vg_ftree_ref(struct vg_ftree *t);
void vg_ftree_unref(struct vg_ftree *t);
/* Names a snapshot to a node: from its root, the same for ever; of one being filled: random. */
void vg_ftree_machine(struct vg_ftree *t, uint8_t out[VG_MID]);
void vg_ftree_set_machine(struct vg_ftree *t,
                          const uint8_t machine[VG_MID]); /* before it is served */
void vg_snap_machine(const uint8_t root[VG_HASH], uint8_t out[VG_MID]);

/* Whoever fills it ends that now. */
void vg_ftree_stop_pull(struct vg_ftree *t);

/* Writes what is there now as a snapshot: root, files, bytes, missing of *ret. */
int vg_ftree_seal(struct vg_ftree *t, struct vg_eversion *ret, struct vg_err *err);

/* Paths whose content was asked for and is not here, newest last, a line each; "" for none. */
int vg_ftree_missed(struct vg_ftree *t, struct vg_buf *out);

/* Serves it over a link (docs/mirror.md) until the other end closes; blocking: a thread of its own.
   Takes fd. `keep`: where what tasks changed in it is put (keep.h); NULL: nowhere. 0 after an
   orderly end, -EPROTO, -errno. */
int vg_fserve(struct vg_ftree *t, int fd, uint64_t task, const struct vg_keep_conf *keep);

/* Every file, link and folder, parents first, sorted by name: for lists and archives. Loads what is
   needed. `path` starts with '/'; the root is "/". A negative return ends it. */
struct vg_fxattr {
    struct vg_fxattr *next;
    uint16_t name_len;
    uint32_t value_len;
    char bytes[]; /* name, value */
};
struct vg_fitem {
    const char *path;
    struct vg_mstat st;
    const char *target;
    size_t target_len;
    const uint8_t *id; /* of a file whose content is here */
    const struct vg_fxattr *xattrs;
    uint8_t flags;
};
int vg_ftree_each(struct vg_ftree *t, int (*each)(void *user, const struct vg_fitem *i), void *user,
                  struct vg_err *err);
