#pragma once
/* Driver libraries of this node, for tasks that brought another machine's files: that machine may
   have no such card, and if it has, its driver is another. */
#include <stdbool.h>
#include <stddef.h>

#define VG_LIBS_MAX 256

struct vg_libs {
    char **path; /* owned, absolute; no two with the same name */
    size_t n, cap;
};

/* What the patterns find: names where a loader looks, absolute ones as they are. No patterns:
   NVIDIA's, when there is such a card. `root` is put before every path ("" but for tests). */
int vg_libs_find(const char *root, char *const *patterns, size_t n, struct vg_libs *ret);
void vg_libs_done(struct vg_libs *l);
