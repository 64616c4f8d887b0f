#pragma once
/* What a task left changed under a root that nobody writes back: its overlay's upper layer, told
   thing by thing (mirror.proto, Keep). Blocking: a thread of its own.

   The upper layer says what changed; content is read from the merged root, because a file that was
   only renamed has none of it above. */
#include "proto/mirror.pb-c.h"

#include <stddef.h>
#include <stdint.h>

#define VG_KEEP_PATH_MAX 4095
#define VG_KEEP_DEPTH_MAX 500

struct vg_keep_walk {
    int upper, merged; /* O_PATH descriptors; borrowed */
    /* Absolute and clean: only what lies below one of these. None: everything, but for what the
       node itself puts into every root. */
    const char *const *path;
    size_t n_path;
    uint32_t (*id_in)(void *user, uint32_t id); /* the person's number of an id here */
    /* A THING or GONE; after a file's, its bytes in order. A negative return ends the walk. */
    int (*tell)(void *user, Vg__Mr__Keep *k);
    int (*write)(void *user, uint64_t number, uint64_t off, const void *data, size_t n);
    void *user;
    char failed[256]; /* which path, when the walk fails by itself */
};
/* 0; -E2BIG: too many things, or too deep; -errno. */
int vg_keep_walk(struct vg_keep_walk *w);
