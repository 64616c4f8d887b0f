#pragma once
/* Which content a file has, remembered by what stat says of it: (device, inode, size, mtime,
   ctime). Kept in one file across lives of the service. Loop thread.

   What is so young that a later write could leave the same times is not remembered: times must lie
   VG_MEMO_SETTLED behind the moment the file was read. */
#include "mirror/stamp.h"

#define VG_MEMO_SETTLED INT64_C(2000000000) /* ns: the coarsest clock a file system has */

struct vg_memo;
/* path NULL: in memory only. A damaged file loses what stands behind the damage. */
int vg_memo_open(const char *path, struct vg_memo **ret);
void vg_memo_free(struct vg_memo *m); /* writes what is new */
bool vg_memo_id(const struct vg_memo *m, const struct vg_mstat *st, uint8_t out[VG_HASH]);
/* One leaf's hash; the id is known when all have come. now_ns: wall clock before the read. 0, 1
   when the id became known, -ENOMEM. */
int vg_memo_leaf(struct vg_memo *m, const struct vg_mstat *st, uint64_t leaf,
                 const uint8_t hash[VG_HASH], int64_t now_ns);
int vg_memo_flush(struct vg_memo *m); /* 0 or -errno */
size_t vg_memo_count(const struct vg_memo *m);
