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
    uint64_t seen;    /* sequence of the scan that saw it last */
    int wd;
    bool known; /* st is */
    bool gone, busy, root, served, ignore;
    uint32_t view; /* of a view's root: its id */
};

struct vg_ctree {
    int root_fd;
    uint8_t machine[VG_MID];
    struct vg_policy *policy;
    struct vg_map by_number;
    struct vg_map views; /* by path */
    uint64_t last, seq;
    uint32_t last_view;
    const uint8_t *actor;
    void (*hook)(void *user, struct vg_cobj *folder, const uint8_t *actor);
    void *hook_user;
};

struct vg_cobj *vg_cobj_new(struct vg_ctree *t, struct vg_cobj *parent, const char *name);
void vg_cobj_detach(struct vg_ctree *t, struct vg_cobj *o);
