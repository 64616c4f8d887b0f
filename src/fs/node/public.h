#pragma once
/* The operator's store: content that everybody may know to be on this node, such as the files of
   its own packages. Filled by `virga node seed`, read by every tenant's cache, by id alone. What
   tenants bring never gets here.

       dir/lock  dir/id/xx/<file id in hex>  dir/new/  (not yet on the disk for certain) */
#include "base/err.h"

#include <stdint.h>

struct vg_public_stat {
    uint64_t files, bytes;       /* looked at: what is public */
    uint64_t added, added_bytes; /* were not there */
    uint64_t skipped;            /* not public, or changing while they were read */
    uint64_t bad;                /* did not have the content of their name: removed */
};

/* Takes in each file, or everything below each folder: regular files that belong to root and that
   all may read, in folders that belong to root, that all may enter and nobody else may write; no
   link is followed (but a path given here) and no other file system entered. Paths end with NULL.
   After a power failure the store holds nothing torn. -EBUSY: somebody else is at it. -ENOSPC: the
   disk has less than what is kept free. What was taken in before an error stays. */
int vg_public_seed(const char *dir, char *const *paths, struct vg_public_stat *st,
                   struct vg_err *err);
/* Reads everything and removes what is not as its name says. */
int vg_public_check(const char *dir, struct vg_public_stat *st, struct vg_err *err);
