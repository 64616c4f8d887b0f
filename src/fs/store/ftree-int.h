#pragma once
/* What the tree, those who serve it and those who fill it share. Everything of a node is read and
   written under the tree's lock. */
#include "base/list.h"
#include "base/map.h"
#include "fs/store/ftree.h"
#include "fs/store/snaprec.h"

#include <pthread.h>

enum vg_fnode_state {
    VG_F_UNKNOWN, /* a folder whose record, a file whose content is not here */
    VG_F_ASKED,   /* a puller is getting it */
    VG_F_HERE,
    VG_F_NEVER, /* it will not come: `error` says why */
};

struct vg_fnode {
    uint64_t object;
    struct vg_fnode *parent; /* NULL: the root */
    struct vg_fnode **child; /* owned; sorted by name */
    uint32_t n_child;
    enum vg_fnode_state state;
    int error;
    struct vg_mstat st;
    uint8_t flags;
    bool has_hash;         /* file: content in the store by this id; folder: record by this hash */
    bool take;             /* puller: it and all below is wanted */
    bool wanted;           /* puller: counted in its `open` */
    bool pushed;           /* puller: content came unasked: the rest of it is wanted, too */
    bool missed;           /* asked for and not here */
    uint8_t hash[VG_HASH]; /* id of a file, hash of a folder */
    uint64_t up;           /* puller: the other side's number */
    uint64_t asked;        /* puller: content up to here has been asked for */
    struct vg_einto *into; /* content that is coming in */
    struct vg_fxattr *xattrs;
    struct vg_list todo; /* puller's queues: its record or content, */
    struct vg_list attr; /* and its extended attributes */
    uint16_t name_len, target_len;
    char name[]; /* name, NUL, target, NUL */
};

struct vg_ftree {
    pthread_mutex_t lock;
    pthread_cond_t changed; /* something became HERE or NEVER, or the puller left */
    unsigned refs;
    struct vg_estore *store;
    struct vg_fnode *root;
    struct vg_map by_object; /* object -> struct vg_fnode */
    uint64_t last_object;
    uint8_t machine[VG_MID], epoch[VG_MID];
    bool has_root; /* made from a root of the store, which it holds */
    uint8_t root_hash[VG_HASH];
    struct vg_pull *pull;  /* borrowed; NULL: nobody fills it (any more) */
    struct vg_buf missed;  /* lines */
    unsigned missed_lines; /* bounded */
};

/* With the lock held. */
struct vg_fnode *vg_fnode_new(struct vg_ftree *t, struct vg_fnode *parent,
                              const struct vg_dirent *e);
void vg_fnode_free(struct vg_ftree *t, struct vg_fnode *n); /* and all below */
struct vg_fnode *vg_fnode_child(const struct vg_fnode *n, const char *name, size_t len);
int vg_fnode_path(const struct vg_fnode *n, char *out, size_t size);
void vg_fnode_miss(struct vg_ftree *t, struct vg_fnode *n);
int vg_fnode_xattr(struct vg_fnode *n, const char *name, size_t name_len, const void *value,
                   size_t value_len);
void vg_fnode_xattrs_free(struct vg_fnode *n);
/* A folder's children from the store, or waits until the puller has brought them. 0, -EIO, ... May
   let go of the lock meanwhile. */
int vg_fnode_load(struct vg_ftree *t, struct vg_fnode *n);
/* Asks the puller (pull.c). */
void vg_pull_demand(struct vg_pull *p, struct vg_fnode *n, uint64_t off, uint64_t len);
