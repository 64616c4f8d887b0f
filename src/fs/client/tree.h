#pragma once
/* The service's numbers for the files of its machine, and what it has told about them. Loop thread.
   An object is a parent and a name; renames that the service makes or sees keep its number. A name
   that means another inode than before gets a new one.

   A view's root is a root of its own: the same folder has one number in the environment and another
   in a project, so that the two never meet at a node. */
#include "fs/client/scan.h"
#include "mirror/dirrec.h"
#include "mirror/policy.h"

struct vg_ctree;
struct vg_cobj; /* folders, and what lies in folders that were served */
struct vg_memo;

int vg_ctree_new(const char *root, struct vg_mpolicy *policy, const uint8_t machine[VG_MID],
                 struct vg_ctree **ret);
void vg_ctree_free(struct vg_ctree *t);
const uint8_t *vg_ctree_machine(const struct vg_ctree *t);
struct vg_mpolicy *vg_ctree_policy(const struct vg_ctree *t);
int vg_ctree_root_fd(const struct vg_ctree *t); /* O_PATH; for threads that open by path */

struct vg_cobj *vg_ctree_get(struct vg_ctree *t, uint64_t object); /* NULL: unknown */
uint64_t vg_cobj_number(const struct vg_cobj *o);
struct vg_cobj *vg_cobj_parent(const struct vg_cobj *o);    /* NULL: a root */
const struct vg_cobj *vg_cobj_top(const struct vg_cobj *o); /* its root, or what is gone */
struct vg_cobj *vg_cobj_kid(const struct vg_cobj *folder, const char *name);
bool vg_cobj_gone(const struct vg_cobj *o);    /* has no name any more */
bool vg_cobj_in_view(const struct vg_cobj *o); /* of a project, not of the environment */

/* The root of a view, made when there is none; its id is the same while the tree lives, from 1.
 * NULL: errno (ENOTDIR, ENOENT, ELOOP, ...). */
struct vg_cobj *vg_ctree_view(struct vg_ctree *t, const char *path);
uint32_t vg_cobj_view_id(const struct vg_cobj *root); /* 0: the environment */
/* The policy says something else of this path now, in the environment and in every view that has
   it: what was told of it, of the folders above and of those in it is not so any more. */
void vg_ctree_judged_anew(struct vg_ctree *t, const char *path);
/* By path, from the root, adding what is on the way; never through a link. NULL: errno. */
struct vg_cobj *vg_ctree_walk(struct vg_ctree *t, const char *path);
/* The same below a root; `rel` without a leading '/', "" is the root itself. */
struct vg_cobj *vg_ctree_walk_in(struct vg_ctree *t, struct vg_cobj *root, const char *rel);
/* The same for who has it open or looked at it just now: the disk is not asked. */
struct vg_cobj *vg_ctree_named(struct vg_ctree *t, struct vg_cobj *root, const char *rel);
/* Absolute, as seen from the tree's root. 0 or -ENAMETOOLONG. */
int vg_cobj_path(const struct vg_cobj *o, char *out, size_t n);
/* Opens the thing beneath the root, without following links, as it is called now. fd or -errno. */
int vg_cobj_open(struct vg_ctree *t, const struct vg_cobj *o, int flags);
/* The folder an object lies in, opened O_PATH, and its name there: for *at() calls. -EXDEV: it is a
   view's root. */
int vg_cobj_open_parent(struct vg_ctree *t, const struct vg_cobj *o, const char **ret_name);
/* Any thread: opens an absolute path beneath root_fd, never through a link. fd or -errno. */
int vg_open_beneath(int root_fd, const char *path, int flags);

/* What is known of it since it was last told or seen; NULL: never. */
const struct vg_mstat *vg_cobj_told(const struct vg_cobj *o);

/* Whose operations are performed just now (NULL: nobody's): the calls below are then no news for
   that daemon, only for others. */
void vg_ctree_actor(struct vg_ctree *t, const uint8_t *daemon);
/* After the service changed something for a node: that node knows, so the coming inotify event is
   no news. Others are told. */
void vg_cobj_set_told(struct vg_ctree *t, struct vg_cobj *o, const struct vg_mstat *st);
/* Writes to it are under way: events about it mean nothing until the end. */
void vg_cobj_set_busy(struct vg_cobj *o, bool busy);
bool vg_cobj_busy(const struct vg_cobj *o);
/* 0 or -ENOMEM. What was called so before is gone. */
int vg_cobj_moved(struct vg_ctree *t, struct vg_cobj *o, struct vg_cobj *parent, const char *name);
void vg_cobj_removed(struct vg_ctree *t, struct vg_cobj *o);

/* Changes are counted by one sequence through the whole tree. */
uint64_t vg_ctree_seq(const struct vg_ctree *t);
/* A folder is not as it was told: counts, and calls the hook. */
void vg_cobj_changed(struct vg_ctree *t, struct vg_cobj *folder);
uint64_t vg_cobj_changed_at(const struct vg_cobj *folder);
/* Called for each changed folder; `actor` knows it already (NULL: nobody does). */
void vg_ctree_on_change(struct vg_ctree *t,
                        void (*hook)(void *user, struct vg_cobj *folder, const uint8_t *actor),
                        void *user);

/* Counted before a scan begins. It is the record's sequence: changes up to it are in the record for
   sure, later ones (of a file's other names, of the folder itself, of those in it) may not be. */
uint64_t vg_ctree_scan_begins(struct vg_ctree *t);
/* A folder's record from the scan that got the sequence `seq`; entries get their numbers. -EAGAIN:
   the folder changed since, scan it again; -ENOENT: hidden; -EACCES: denied. */
/* The record that was made last, where it is known to be true still, under a new sequence. Of the
   environment alone: in projects, nodes' operations are counted against what records say. */
bool vg_ctree_kept(struct vg_ctree *t, struct vg_cobj *folder, struct vg_buf *out,
                   uint64_t *ret_seq);
/* It could say more now. */
void vg_cobj_drop_record(struct vg_ctree *t, struct vg_cobj *folder);
/* Changes may have been missed. */
void vg_ctree_drop_records(struct vg_ctree *t);
int vg_ctree_take(struct vg_ctree *t, struct vg_cobj *folder, const struct vg_scan *scan,
                  uint64_t seq, struct vg_memo *memo, struct vg_buf *out);
/* Makes the folder's record from the disk now (readdir, lstat of each, policy, ids from the memo).
 */
int vg_ctree_record(struct vg_ctree *t, struct vg_cobj *folder, struct vg_memo *memo,
                    struct vg_buf *out);

/* For the watch. */
int vg_cobj_wd(const struct vg_cobj *folder); /* -1: not watched */
void vg_cobj_set_wd(struct vg_cobj *folder, int wd);
bool vg_cobj_served(const struct vg_cobj *folder); /* its record was made at least once */
void vg_cobj_set_served(struct vg_cobj *folder);   /* a node made it, and so knows what is in it */
void vg_ctree_each(struct vg_ctree *t, void (*each)(void *user, struct vg_cobj *o), void *user);
