#pragma once
/* A cache in a folder of its own, contents made from a seed. */
#include "base/cleanup.h"
#include "base/util.h"
#include "fs/node/cache-int.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <sys/wait.h>

struct place {
    char dir[64];
    struct vg_cache_conf conf;
};

static inline struct place place_new(void) {
    struct place p = {.conf = {.max_bytes = 64 << 20, .keep_free = 1, .inline_work = true}};
    /* In memory where there is such a place: the tests are about what is written, not about disks.
     */
    snprintf(p.dir, sizeof p.dir, "%s/vg-cache-XXXXXX",
             access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    cr_assert(mkdtemp(p.dir));
    return p;
}

static inline int place_remove(const char *path, const struct stat *st, int type, struct FTW *w) {
    (void)st, (void)type, (void)w;
    return remove(path);
}

static inline void place_done(struct place *p) {
    nftw(p->dir, place_remove, 16, FTW_DEPTH | FTW_PHYS);
}

static inline struct vg_cache *place_open(struct place *p) {
    struct vg_cache *c = NULL;
    struct vg_err err = VG_ERR_INIT;
    p->conf.dir = p->dir;
    cr_assert_eq(vg_cache_open(&p->conf, &c, &err), 0, "%s", err.msg);
    return c;
}

/* Content number `seed`: bytes, stamp and id follow from it. */
struct content {
    uint8_t stamp[VG_HASH], id[VG_HASH];
    uint64_t size;
    uint8_t *data; /* owned */
};

static inline struct content content_new(uint32_t seed, uint64_t size) {
    struct content t = {.size = size, .data = malloc(size ? size : 1)};
    uint32_t x = seed * 2654435761u + 1;
    for (uint64_t i = 0; i < size; i++) {
        x = x * 1664525u + 1013904223u;
        t.data[i] = (uint8_t)(x >> 24);
    }
    vg_leaf_hash(&seed, sizeof seed, t.stamp);
    uint64_t n = vg_leaves(size);
    uint8_t *h = malloc((size_t)n * VG_HASH);
    for (uint64_t i = 0; i < n; i++) {
        uint64_t off = i * VG_LEAF;
        vg_leaf_hash(t.data + off, (size_t)VG_MIN(size - off, (uint64_t)VG_LEAF), h + i * VG_HASH);
    }
    vg_file_id(size, h, n, t.id);
    free(h);
    return t;
}

static inline size_t leaf_len(const struct content *t, uint64_t leaf) {
    return (size_t)VG_MIN(t->size - leaf * VG_LEAF, (uint64_t)VG_LEAF);
}

static inline int put_leaf_of(struct vg_blob *b, const struct content *t, uint64_t leaf) {
    return vg_blob_write(b, leaf * VG_LEAF, t->data + leaf * VG_LEAF, leaf_len(t, leaf), true);
}

/* Gets it and writes every leaf; the caller puts. */
static inline struct vg_blob *fill(struct vg_cache *c, const struct content *t, bool with_id) {
    struct vg_blob *b;
    cr_assert_eq(vg_blob_get(c, t->stamp, with_id ? t->id : NULL, t->size, false, &b), 0);
    for (uint64_t i = 0; i < vg_leaves(t->size) && !vg_blob_complete(b); i++)
        cr_assert_geq(put_leaf_of(b, t, i), 0);
    cr_assert(vg_blob_complete(b));
    return b;
}

static inline void store(struct vg_cache *c, uint32_t seed, uint64_t size) {
    struct content t = content_new(seed, size);
    vg_blob_put(fill(c, &t, true));
    free(t.data);
}

/* What the blob's descriptor gives is what the content says, as far as the blob claims to have it.
   Returns the leaves compared. */
static inline uint64_t check_bytes(struct vg_blob *b, const struct content *t) {
    static uint8_t got[VG_LEAF];
    uint64_t n = 0;
    int fd = vg_blob_pin(b);
    cr_assert_geq(fd, 0);
    for (uint64_t i = 0; i < vg_leaves(t->size); i++) {
        if (!vg_blob_has_leaf(b, i))
            continue;
        size_t len = leaf_len(t, i);
        cr_assert_eq(pread(fd, got, sizeof got, (off_t)(i * VG_LEAF)),
                     (ssize_t)VG_MIN((uint64_t)sizeof got, t->size - i * VG_LEAF));
        cr_assert_eq(memcmp(got, t->data + i * VG_LEAF, len), 0, "leaf %lu", (unsigned long)i);
        n++;
    }
    vg_blob_unpin(b);
    return n;
}

static inline struct vg_cache_stat stat_of(struct vg_cache *c) {
    struct vg_cache_stat s;
    vg_cache_stats(c, &s);
    return s;
}

/* Is it there, complete, for who asks now? */
static inline bool kept(struct vg_cache *c, uint32_t seed, uint64_t size) {
    struct content t = content_new(seed, size);
    bool there = vg_cache_has(c, t.stamp, NULL);
    free(t.data);
    return there;
}

static inline void path_of(struct vg_cache *c, const struct content *t, char out[VG_CACHE_PATH]) {
    char name[VG_NAME];
    vg_cache_name(c->key, t->id, name);
    vg_cache_path(out, "id", name);
}
