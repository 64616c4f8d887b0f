#pragma once
/* Leaves as they were packed for a link, kept for the next: the same command on another node costs
   neither reading nor hashing nor packing. A leaf belongs to a state of its file, so nothing here
   is ever out of date, only of no use. Loop thread. */
#include "mirror/stamp.h"

#include "base/buf.h"

struct vg_packed;
int vg_packed_new(size_t max_bytes, struct vg_packed **ret);
void vg_packed_free(struct vg_packed *p);
/* Copies a DATA frame. What was used within the last minute makes room for nothing: a command that
   reads more than there is room for still finds its beginning. Without memory it is not kept. */
void vg_packed_put(struct vg_packed *p, uint64_t object, uint64_t leaf, const struct vg_mstat *st,
                   const struct vg_buf *frame, uint64_t now_usec);
/* The frame for a demand, or for a push (req 0), into an empty buffer. False: it is not here. */
bool vg_packed_get(struct vg_packed *p, uint64_t object, uint64_t leaf, const struct vg_mstat *st,
                   uint64_t req, struct vg_buf *out, uint64_t now_usec);
size_t vg_packed_bytes(const struct vg_packed *p);
