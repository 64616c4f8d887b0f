#pragma once
/* A store in a folder of its own, and snapshots made up from numbers. */
#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"
#include "fs/store/estore.h"
#include "fs/store/snaprec.h"

#include <criterion/criterion.h>
#include <ftw.h>
#include <stdio.h>
#include <string.h>

static inline int rm_one(const char *p, const struct stat *st, int flag, struct FTW *f) {
    (void)st, (void)flag, (void)f;
    return remove(p);
}

struct box {
    char dir[64];
    struct vg_estore *s;
};

static inline struct box box_new(uint64_t quota) {
    struct box b = {.dir = "/tmp/virga-estore-XXXXXX"};
    struct vg_err err = VG_ERR_INIT;
    cr_assert(mkdtemp(b.dir));
    cr_assert_eq(vg_estore_open(b.dir, quota, &b.s, &err), 0, "%s", err.msg);
    return b;
}

static inline void box_done(struct box *b) {
    vg_estore_close(b->s);
    nftw(b->dir, rm_one, 16, FTW_DEPTH | FTW_PHYS);
}

/* A file of `size` bytes made from `seed`. */
static inline int put_file(struct vg_estore *s, uint64_t size, unsigned seed, uint8_t id[VG_HASH]) {
    struct vg_einto *w;
    int r = vg_einto_new(s, size, &w);
    if (r < 0)
        return r;
    vg_auto_free uint8_t *leaf = vg_alloc(VG_LEAF);
    if (!leaf)
        r = -ENOMEM;
    for (uint64_t off = 0; r == 0 && (off < size || size == 0); off += VG_LEAF) {
        size_t n = (size_t)VG_MIN(size - off, (uint64_t)VG_LEAF);
        for (size_t i = 0; i < n; i++)
            leaf[i] = (uint8_t)(seed * 31 + (off + i) * 7 + (off >> 18));
        r = vg_einto_write(w, off, leaf, n);
        if (size == 0)
            break;
    }
    if (r == 1)
        r = vg_einto_keep(w, id);
    vg_einto_free(w);
    return r;
}

/* A folder "top" with one file "file" and, when child is given, one folder "sub". */
static inline int put_folder(struct vg_estore *s, const uint8_t *id, uint64_t size,
                             const uint8_t *child, uint8_t hash[VG_HASH]) {
    struct vg_snapbuild b;
    struct vg_buf out = {0};
    struct vg_mstat st = {.mode = S_IFDIR | 0755, .mtime = 5};
    struct vg_dirent f = {.name = "file",
                          .name_len = 4,
                          .id = id,
                          .st = {.mode = S_IFREG | 0644, .size = size, .ino = 77, .ctime = 9}};
    struct vg_dirent d = {.name = "sub", .name_len = 3, .st = st};
    int r = vg_snapbuild_begin(&b, &st);
    if (r == 0)
        r = vg_snapbuild_add(&b, &f, NULL);
    if (r == 0 && child)
        r = vg_snapbuild_add(&b, &d, child);
    if (r == 0)
        r = vg_snapbuild_end(&b, &out);
    if (r == 0)
        r = vg_estore_put_rec(s, vg_buf_data(&out), vg_buf_len(&out), hash);
    vg_snapbuild_done(&b);
    vg_buf_done(&out);
    return r;
}

/* root/file, root/sub/file: two files, two records. */
static inline int put_tree(struct vg_estore *s, unsigned seed, uint8_t root[VG_HASH]) {
    uint8_t a[VG_HASH], b[VG_HASH], sub[VG_HASH];
    int r = put_file(s, 1000 + seed, seed, a);
    if (r == 0)
        r = put_file(s, 10 + seed, seed + 1000, b);
    if (r == 0)
        r = put_folder(s, b, 10 + seed, NULL, sub);
    return r == 0 ? put_folder(s, a, 1000 + seed, sub, root) : r;
}
