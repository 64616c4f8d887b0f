/* Contents that only the bucket has are fetched, compared with their names, and kept as long as the
   cache has room. */
#include "base/cleanup.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/util.h"
#include "fs/store/estore-bucket.h"
#include "fs/store/s3.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static int file_id(int fd, uint64_t size, uint8_t out[VG_HASH]) {
    uint64_t leaves = vg_leaves(size);
    vg_auto_free uint8_t *leaf = vg_alloc(VG_LEAF), *hash = vg_alloc((size_t)leaves * VG_HASH);
    if (!leaf || !hash)
        return -ENOMEM;
    if (lseek(fd, 0, SEEK_SET) < 0)
        return -errno;
    for (uint64_t i = 0; i < leaves; i++) {
        ssize_t n = vg_read_full(fd, leaf, VG_LEAF);
        if (n < 0)
            return (int)n;
        vg_leaf_hash(leaf, (size_t)n, hash + i * VG_HASH);
    }
    vg_file_id(size, hash, leaves, out);
    return 0;
}

/* SHA-256 of a record, which is not in leaves. */
static int rec_hash(int fd, uint64_t size, uint8_t out[VG_HASH]) {
    vg_auto_free uint8_t *all = size <= VG_SNAP_REC_MAX ? vg_alloc((size_t)size + 1) : NULL;
    if (!all)
        return size <= VG_SNAP_REC_MAX ? -ENOMEM : -EBADMSG;
    if (lseek(fd, 0, SEEK_SET) < 0)
        return -errno;
    ssize_t n = vg_read_full(fd, all, (size_t)size);
    if (n < 0)
        return (int)n;
    vg_leaf_hash(all, (size_t)n, out);
    return 0;
}

static int check(int fd, enum vg_ekind kind, uint64_t size, const uint8_t want[VG_HASH]) {
    uint8_t is[VG_HASH];
    struct stat st;
    if (fstat(fd, &st) < 0)
        return -errno;
    if ((uint64_t)st.st_size != size)
        return -EBADMSG;
    int r = kind == VG_E_DATA ? file_id(fd, size, is) : rec_hash(fd, size, is);
    return r < 0 ? r : memcmp(is, want, VG_HASH) == 0 ? 0 : -EBADMSG;
}

/* Puts the fetched file where it belongs, unless it was collected or fetched by another meanwhile.
 */
static void keep_copy(struct vg_estore *s, const char *temp, const char *path, int fd,
                      uint64_t size) {
    char suffix[VG_EB_SUFFIX + 1];
    uint64_t marked;
    bool kept = false;
    pthread_mutex_lock(&s->lock);
    if (vg_eb_mark(s, path, suffix, &marked) == 0 &&
        faccessat(s->dir, path, F_OK, AT_SYMLINK_NOFOLLOW) < 0 && fchmod(fd, 0400) == 0 &&
        renameat(s->dir, temp, s->dir, path) == 0) {
        kept = true;
        if (strncmp(path, "dat/", 4) == 0)
            s->bucket->cached += size;
    }
    pthread_mutex_unlock(&s->lock);
    if (!kept)
        unlinkat(s->dir, temp, 0); /* who has it open reads on */
}

static int fetch(struct vg_estore *s, enum vg_ekind kind, const uint8_t hash[VG_HASH],
                 const char *path) {
    struct vg_err err = VG_ERR_INIT;
    char suffix[VG_EB_SUFFIX + 1], temp[40];
    uint64_t size;
    int r = vg_eb_mark(s, path, suffix, &size);
    if (r < 0)
        return r;
    vg_auto_free char *key = vg_eb_key(s, path, suffix);
    vg_auto_fd int fd = key ? vg_e_temp(s, temp) : -ENOMEM;
    if (fd < 0)
        return fd;
    r = vg_s3_get(s->bucket->s3, key, fd, NULL, size, &err);
    if (r == 0)
        r = check(fd, kind, size, hash);
    if (r == 0 && lseek(fd, 0, SEEK_SET) < 0)
        r = -errno;
    if (r == -EBADMSG)
        vg_err_set(&err, VG_PROTOCOL, "%s: %s is not what was stored there",
                   vg_s3_name(s->bucket->s3), key);
    if (r < 0) {
        vg_error("%s", err.msg[0] ? err.msg : strerror(-r));
        unlinkat(s->dir, temp, 0);
        return r == -ENOMEM || r == -EBADMSG ? r : -EIO;
    }
    keep_copy(s, temp, path, fd, size);
    vg_eb_evict(s);
    return vg_take_fd(fd);
}

/* A copy that is not as long as the bucket's is what a power failure left of one. */
static bool is_whole(struct vg_estore *s, const char *path, int fd) {
    char suffix[VG_EB_SUFFIX + 1];
    uint64_t size;
    struct stat st;
    if (vg_eb_mark(s, path, suffix, &size) < 0)
        return true;
    if (fstat(fd, &st) == 0 && (uint64_t)st.st_size == size) {
        futimens(fd, NULL); /* used now */
        return true;
    }
    pthread_mutex_lock(&s->lock);
    if (unlinkat(s->dir, path, 0) == 0 && path[0] == 'd')
        s->bucket->cached -= VG_MIN((uint64_t)st.st_size, s->bucket->cached);
    pthread_mutex_unlock(&s->lock);
    return false;
}

int vg_eb_open(struct vg_estore *s, enum vg_ekind kind, const uint8_t hash[VG_HASH],
               const char *path) {
    vg_auto_fd int fd = openat(s->dir, path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd >= 0 && is_whole(s, path, fd))
        return vg_take_fd(fd);
    return fd < 0 && errno != ENOENT ? -errno : fetch(s, kind, hash, path);
}

/* ------------------------------------------------------------------ eviction */

struct copy {
    time_t used;
    uint64_t size;
    char name[65];
};
struct copies {
    struct vg_estore *s;
    struct copy *v; /* owned */
    size_t n, cap;
};

static int note_copy(void *user, int dir, const char *name) {
    struct copies *c = user;
    struct stat st;
    char mark[VG_EB_MARK_MAX];
    snprintf(mark, sizeof(mark), "up/dat/%.2s/%s", name, name);
    if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) < 0 ||
        faccessat(c->s->dir, mark, F_OK, AT_SYMLINK_NOFOLLOW) < 0)
        return 0;
    void *grown = vg_grow(c->v, &c->cap, c->n + 1, sizeof(*c->v));
    if (!grown)
        return -ENOMEM;
    c->v = grown;
    c->v[c->n] = (struct copy){.used = st.st_mtime, .size = (uint64_t)st.st_size};
    memcpy(c->v[c->n++].name, name, 65);
    return 0;
}

static int older_first(const void *a, const void *b) {
    const struct copy *x = a, *y = b;
    return x->used < y->used ? -1 : x->used > y->used;
}

static void drop_copy(struct vg_estore *s, const struct copy *c) {
    char path[80], suffix[VG_EB_SUFFIX + 1];
    uint64_t size;
    snprintf(path, sizeof(path), "dat/%.2s/%s", c->name, c->name);
    if (vg_eb_mark(s, path, suffix, &size) == 0 && unlinkat(s->dir, path, 0) == 0)
        s->bucket->cached -= VG_MIN(c->size, s->bucket->cached);
}

static bool over_limit(const struct vg_ebucket *b) {
    return b->cache_bytes && b->cached > b->cache_bytes;
}

/* The least recently used go until a tenth is free again. */
static void evict_some(struct vg_estore *s) {
    struct vg_ebucket *b = s->bucket;
    struct copies c = {.s = s};
    (void)vg_e_each_name(s, "dat", note_copy, &c); /* those found will do */
    if (c.n)
        qsort(c.v, c.n, sizeof(*c.v), older_first);
    pthread_mutex_lock(&s->lock);
    for (size_t i = 0; i < c.n && b->cached > b->cache_bytes - b->cache_bytes / 10; i++)
        drop_copy(s, &c.v[i]);
    pthread_mutex_unlock(&s->lock);
    free(c.v);
}

/* One at a time; what others add meanwhile is seen in the end. */
void vg_eb_evict(struct vg_estore *s) {
    struct vg_ebucket *b = s->bucket;
    pthread_mutex_lock(&s->lock);
    b->evict_asked++;
    while (over_limit(b) && !b->evicting) {
        uint64_t before = b->cached, asked = b->evict_asked;
        b->evicting = true;
        pthread_mutex_unlock(&s->lock);
        evict_some(s);
        pthread_mutex_lock(&s->lock);
        b->evicting = false;
        if (b->cached >= before && b->evict_asked == asked)
            break; /* nothing can go; else somebody stored more behind our look, and left */
    }
    pthread_mutex_unlock(&s->lock);
}
