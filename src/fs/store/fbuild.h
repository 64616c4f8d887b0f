#pragma once
/* Building a tree (ftree.h) by hand, path by path: images are laid down layer upon layer. Paths are
   relative or absolute, cleaned here; ".." is refused (-EINVAL). Links on the way are followed
   inside the tree, as the layers' makers do; the last component never is. */
#include "fs/store/ftree.h"

/* A file (id of content that is in the store), folder, link or device. Folders on the way that are
   not there are made. What is there is replaced; a folder that becomes a folder keeps what lies in
   it. */
int vg_fbuild_put(struct vg_ftree *t, const char *path, const struct vg_mstat *st,
                  const char *target, const uint8_t *id);
/* Another name for a file. */
int vg_fbuild_link(struct vg_ftree *t, const char *path, const char *to);
int vg_fbuild_xattr(struct vg_ftree *t, const char *path, const char *name, const void *value,
                    size_t n);
/* 0 also when it was not there. */
int vg_fbuild_remove(struct vg_ftree *t, const char *path);
int vg_fbuild_clear(struct vg_ftree *t, const char *path); /* all that lies in a folder */
