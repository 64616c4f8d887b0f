#pragma once
/* .virgaignore: gitignore's language. Pure. */
#include "base/err.h"
#include "mirror/glob.h"

#include <sys/types.h>

#define VG_IGNORE_FILES 4096 /* .virgaignore files of a policy */
#define VG_IGNORE_LINES 16384
#define VG_IGNORE_LINE 4096 /* bytes */

struct vg_ignore; /* the rules of one folder's file */

/* A bad line is left out: -EINVAL, err names the first one, *ret holds the others. *ret is NULL
   only when there is no memory. */
int vg_ignore_new(const char *folder, const char *text, size_t n, struct vg_ignore **ret,
                  struct vg_err *err);
void vg_ignore_free(struct vg_ignore *g);
const char *vg_ignore_folder(const struct vg_ignore *g);
size_t vg_ignore_depth(const struct vg_ignore *g); /* parts of the folder's path */
/* Says the last rule of this file about the path itself, not about folders above it: 1 ignore,
   0 keep, -1 nothing. *ret_why: the line in words. */
int vg_ignore_ask(const struct vg_ignore *g, const struct vg_part *path, size_t n, bool is_folder,
                  const char **ret_why);
