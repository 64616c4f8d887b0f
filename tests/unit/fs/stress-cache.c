/* Many threads on one small cache: getting, filling, reading, letting go, evicting, scrubbing, all
   at once. Every byte that a thread reads from a leaf it was told to be there must be right.
   A program of its own, so that the thread sanitizer sees nothing but the cache. */
#include "base/cleanup.h"
#include "base/util.h"
#include "fs/node/cache.h"

#include <ftw.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define THREADS 4
#define ROUNDS 400
#define CONTENTS 24

static struct vg_cache *cache;
static atomic_uint completed, compared, refused, failed;

static void name_of(unsigned i, unsigned what, uint8_t out[VG_HASH]) {
    unsigned key[2] = {i, what};
    vg_leaf_hash(key, sizeof key, out);
}

static uint64_t size_of(unsigned i) {
    return i % 3 == 0 ? 1000 + i : (uint64_t)(1 + i % 4) * VG_LEAF - i;
}

static void leaf_of(unsigned i, uint64_t leaf, uint8_t *out, size_t n) {
    memset(out, (int)(i * 16 + leaf), n);
}

static void id_of(unsigned i, uint8_t out[VG_HASH]) {
    static _Thread_local uint8_t data[VG_LEAF];
    uint8_t hash[8 * VG_HASH];
    uint64_t n = vg_leaves(size_of(i));
    for (uint64_t k = 0; k < n; k++) {
        size_t len = (size_t)VG_MIN(size_of(i) - k * VG_LEAF, (uint64_t)VG_LEAF);
        leaf_of(i, k, data, len);
        vg_leaf_hash(data, len, hash + k * VG_HASH);
    }
    vg_file_id(size_of(i), hash, n, out);
}

static void one_leaf(struct vg_blob *b, unsigned i, uint64_t leaf, int fd) {
    static _Thread_local uint8_t data[VG_LEAF], got[VG_LEAF];
    size_t n = (size_t)VG_MIN(size_of(i) - leaf * VG_LEAF, (uint64_t)VG_LEAF);
    leaf_of(i, leaf, data, n);
    int r = vg_blob_write(b, leaf * VG_LEAF, data, n, true);
    if (r == 1)
        atomic_fetch_add(&completed, 1);
    else if (r == -ENOSPC)
        atomic_fetch_add(&refused, 1);
    else if (r < 0)
        atomic_fetch_add(&failed, 1);
    if (!vg_blob_has_leaf(b, leaf))
        return;
    if (pread(fd, got, n, (off_t)(leaf * VG_LEAF)) != (ssize_t)n || memcmp(got, data, n) != 0)
        atomic_fetch_add(&failed, 1);
    atomic_fetch_add(&compared, 1);
}

static void one(unsigned x) {
    unsigned i = x % CONTENTS;
    uint8_t stamp[VG_HASH], id[VG_HASH];
    struct vg_blob *b;
    name_of(i, x >> 8 & 1, stamp); /* two stamps a content */
    id_of(i, id);
    (void)vg_cache_has(cache, stamp, NULL);
    if (vg_blob_get(cache, stamp, x >> 9 & 1 ? id : NULL, size_of(i), (x >> 10 & 7) == 0, &b) < 0) {
        atomic_fetch_add(&failed, 1);
        return;
    }
    int fd = vg_blob_pin(b);
    if (fd < 0 && fd != -ENOSPC)
        atomic_fetch_add(&failed, 1);
    for (uint64_t leaf = 0; fd >= 0 && leaf < vg_leaves(size_of(i)); leaf++)
        if ((x >> (leaf + 12) & 3) != 0)
            one_leaf(b, i, leaf, fd);
    if (vg_blob_complete(b) && memcmp(vg_blob_id(b), id, VG_HASH) != 0)
        atomic_fetch_add(&failed, 1);
    if (fd >= 0)
        vg_blob_unpin(b);
    vg_blob_put(b);
}

static void *run(void *arg) {
    unsigned x = (unsigned)(uintptr_t)arg * 2654435761u + 1;
    for (int i = 0; i < ROUNDS; i++) {
        x = x * 1664525u + 1013904223u;
        one(x >> 3);
        if (i % 50 == 7)
            (void)vg_cache_full(cache);
        if (i % 50 == 33 && vg_cache_scrub(cache, 1 << 20) != 0)
            atomic_fetch_add(&failed, 1);
    }
    return NULL;
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *w) {
    (void)st, (void)type, (void)w;
    return remove(path);
}

int main(void) {
    char dir[64];
    struct vg_err err = VG_ERR_INIT;
    pthread_t t[THREADS];
    snprintf(dir, sizeof dir, "%s/vg-stress-XXXXXX",
             access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    if (!mkdtemp(dir))
        return 1;
    struct vg_cache_conf conf = {.dir = dir, .max_bytes = 4 << 20, .keep_free = 1};
    if (vg_cache_open(&conf, &cache, &err) < 0) {
        fprintf(stderr, "%s\n", err.msg);
        return 1;
    }
    for (uintptr_t i = 0; i < THREADS; i++)
        if (pthread_create(&t[i], NULL, run, (void *)(i + 1)) != 0)
            return 1;
    for (int i = 0; i < THREADS; i++)
        pthread_join(t[i], NULL);
    int bad = vg_cache_scrub(cache, UINT64_MAX);
    struct vg_cache_stat s;
    vg_cache_stats(cache, &s);
    printf("stress-cache: completed=%u compared=%u refused=%u failed=%u bad=%d evicted=%llu\n",
           completed, compared, refused, failed, bad, (unsigned long long)s.evicted);
    vg_cache_close(cache);
    nftw(dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    return failed || bad || s.bad || !s.evicted || completed < CONTENTS || compared < ROUNDS;
}
