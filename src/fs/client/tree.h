#pragma once
/* The service's numbers for the files of its machine, and what it has told about them. Loop thread.
   An object is a parent and a name; renames that the service makes or sees keep its number. */
#include "mirror/dirrec.h"
#include "mirror/policy.h"

struct vg_ctree;
struct vg_cobj; /* folders, and what lies in folders that were served */

int vg_ctree_new(const char *root, struct vg_policy *policy, const uint8_t machine[VG_MID],
                 struct vg_ctree **ret);
void vg_ctree_free(struct vg_ctree *t);
struct vg_cobj *vg_ctree_get(struct vg_ctree *t, uint64_t object); /* NULL: unknown */
uint64_t vg_cobj_number(const struct vg_cobj *o);
/* By path, from the root, adding what is on the way; never through a link. NULL: errno. */
struct vg_cobj *vg_ctree_walk(struct vg_ctree *t, const char *path);
int vg_cobj_path(const struct vg_cobj *o, char *out, size_t n);
/* Opens the thing beneath the root, without following links, as it is called now. fd or -errno. */
int vg_cobj_open(struct vg_ctree *t, const struct vg_cobj *o, int flags);
/* The folder an object lies in, opened O_PATH, and its name there: for *at() calls. */
int vg_cobj_open_parent(struct vg_ctree *t, const struct vg_cobj *o, const char **ret_name);
const struct vg_mstat *
vg_cobj_told(const struct vg_cobj *o); /* what a node believes; NULL: never */
/* After the service changed something for a node: that node knows, so the coming inotify event is
   no news. Others are told by the watch as usual. */
void vg_cobj_set_told(struct vg_cobj *o, const struct vg_mstat *st);
/* The node made it and gave it this number (VG_OBJ_NEW set). `daemon` tells nodes' numbers apart.
 */
struct vg_cobj *vg_ctree_adopt(struct vg_ctree *t, const uint8_t daemon[VG_MID], uint64_t number,
                               struct vg_cobj *parent, const char *name);
struct vg_cobj *vg_ctree_get_of(struct vg_ctree *t, const uint8_t daemon[VG_MID], uint64_t number);
void vg_cobj_moved(struct vg_ctree *t, struct vg_cobj *o, struct vg_cobj *parent, const char *name);
void vg_cobj_removed(struct vg_ctree *t, struct vg_cobj *o);
/* Makes the folder's record from the disk now (readdir, lstat of each, policy, ids from the memo).
 */
struct vg_memo;
int vg_ctree_record(struct vg_ctree *t, struct vg_cobj *folder, struct vg_memo *memo,
                    struct vg_buf *out);
