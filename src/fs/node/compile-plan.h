#pragma once
/* What goes into an image: gathered from the view under its lock, completed from the cache without
   it, then written. */
#include "fs/node/env-int.h"
#include "fs/node/machine.h"

#define VG_RESTLESS_USEC (600ull * 1000000) /* how long a folder that changed is left out */

struct vg_plan_folder { /* what must still be so for the image to be true */
    uint64_t number, changes;
    uint32_t parent; /* in the same list */
    uint32_t mode, uid, gid;
    bool restless; /* only the way to its folders */
    size_t name;
    uint16_t name_len;
};

struct vg_plan {
    struct vg_plan_folder *folder; /* owned; parents before their kids, the root first */
    size_t n_folder, cap_folder;
    struct vg_plan_item *item; /* owned */
    size_t n, cap;
    struct vg_blob **blob; /* owned references */
    size_t n_blob, cap_blob;
    struct vg_map by_inode; /* (device, inode) of files with several names: number of the item */
    struct vg_buf text;
    uint64_t held_bytes, files;
    uint64_t *missing; /* owned; numbers of files that were used but are not complete */
    size_t n_missing, cap_missing;
    size_t max_items;
    bool narrow;
    uint64_t opens; /* the view's count when it was gathered */
};

/* Under the view's lock, which it takes. At most max_items: -E2BIG; `narrow` then leaves out what
   nobody used. -EAGAIN: the root is not known. */
int vg_plan_gather(struct vg_plan *p, struct vg_env *e, uint64_t now_usec, size_t max_items,
                   bool narrow);
/* Finds the files' content; those that are not complete are left out. At most max_bytes are held.
 */
int vg_plan_complete(struct vg_plan *p, const uint8_t machine[VG_MID], struct vg_cache *cache,
                     uint64_t max_bytes);
/* Folders that turned out to be empty go; the image's bytes into an empty buffer. */
int vg_plan_write(struct vg_plan *p, struct vg_buf *out);
/* With the view's lock held: everything in the plan is as it was. */
bool vg_plan_holds(const struct vg_plan *p, struct vg_env *e);
void vg_plan_done(struct vg_plan *p);
