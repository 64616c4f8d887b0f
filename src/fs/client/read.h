#pragma once
/* A leaf of a file, read so that it is known of which state it is. Any thread. */
#include "base/buf.h"
#include "mirror/stamp.h"

struct vg_leaf_read {
    /* in */
    int root_fd;
    const char *path;
    struct vg_mstat want; /* the state that was told */
    bool torn_is_fine;    /* it changes all the time: what was read is good enough */
    uint64_t offset;      /* of a leaf */
    /* out */
    struct vg_mstat st; /* as it is */
    size_t len;
    uint8_t hash[VG_HASH];
    int64_t began_ns; /* wall clock before the read */
};
/* Reads into `into` (VG_LEAF bytes). 0; -ESTALE: it is another one than told (st says which), or
   changed under the read; other -errno. */
int vg_leaf_read(struct vg_leaf_read *r, uint8_t *into);
/* Whether packing pays, by the first 64 KiB. */
bool vg_leaf_shrinks(const uint8_t *data, size_t n);
bool vg_mstat_same(const struct vg_mstat *a, const struct vg_mstat *b); /* what a stamp covers */
