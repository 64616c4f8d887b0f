#pragma once
/* Matching paths against patterns, part by part. Pure; time is bounded by the product of the
   lengths, whatever the pattern. */
#include <stdbool.h>
#include <stddef.h>

struct vg_part { /* between two slashes; borrowed, not terminated */
    const char *s;
    size_t n;
};
#define VG_PARTS_MAX 2048 /* PATH_MAX leaves no room for more */

/* Splits at slashes, leaves out empty parts. More than max: returns max + 1. */
size_t vg_parts(const char *path, size_t len, struct vg_part *out, size_t max);
/* One part: `*`, `?`, `[a-z]`, `[!a-z]`, backslash. */
bool vg_glob(const struct vg_part *pattern, const struct vg_part *s);
/* A bracket that is not closed, a backslash at the end: false. */
bool vg_glob_valid(const struct vg_part *pattern);
/* All parts; `**` is any number of them, a last one at least one. `below`: the pattern may also
   name a folder above the path. */
bool vg_parts_match(const struct vg_part *pattern, size_t n_pattern, const struct vg_part *path,
                    size_t n, bool below);
