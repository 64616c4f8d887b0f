#pragma once
/* Inside the tree: tree.c, tree-record.c. */
#include "fs/client/tree.h"

#include "base/list.h"
#include "base/map.h"

struct vg_cobj {
    uint64_t number;
    struct vg_cobj *parent; /* NULL: a root, or gone */
    char *name;             /* of a root: its absolute path */
    struct vg_map kids;
    struct vg_mstat st;
    uint64_t changed; /* folders: sequence of the last change */
    uint64_t scanned; /* and of the scan whose record was made last */
    uint64_t seen;    /* sequence of the scan that saw it last */
    int wd;
    bool known; /* st is */
    bool gone, busy, root, served, ignore;
    uint32_t view; /* of a view's root: its id */
    /* A folder's last record, while the watch that saw it made has seen no change. */
    uint8_t *record; /* owned */
    size_t record_len;
    uint64_t record_at; /* its sequence */
    int64_t record_ctime;
    int record_wd;
};

struct vg_ctree {
    int root_fd;
    uint8_t machine[VG_MID];
    struct vg_mpolicy *policy;
    struct vg_map by_number;
    struct vg_map views;   /* by path */
    struct vg_map by_file; /* device and inode to the file's object that was told last */
    struct vg_map linked; /* files with several names, by number: looked at when a command starts */
    uint64_t last, seq;
    uint32_t last_view;
    size_t record_bytes;   /* of all that are kept */
    uint64_t records_from; /* older ones are not believed */
    const uint8_t *actor;
    void (*hook)(void *user, struct vg_cobj *folder, const uint8_t *actor);
    void *hook_user;
};

struct vg_cobj *vg_cobj_new(struct vg_ctree *t, struct vg_cobj *parent, const char *name);
/* Its stat was told. */
void vg_cobj_know(struct vg_ctree *t, struct vg_cobj *o, const struct vg_mstat *st);
/* A file with several names is seen like this by one of them: what was told of another may be old.
 */
void vg_ctree_other_names(struct vg_ctree *t, const struct vg_mstat *st);
bool vg_cobj_as_told(const struct vg_cobj *o, const struct vg_mstat *st);
void vg_cobj_detach(struct vg_ctree *t, struct vg_cobj *o);
