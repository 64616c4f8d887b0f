/* Two daemons' caches joined by several links that break and come again, both asking at once from
   several threads while their contents come and go. For the thread sanitizer, like stress-cache. */
#include "base/cleanup.h"
#include "base/util.h"
#include "fs/node/peer.h"

#include <ftw.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#define CONTENTS 48u
#define ROUNDS 60

static struct vg_cache *cache[2];
static struct vg_peers *peers[2];
static atomic_uint announced, failed;

static uint64_t size_of(unsigned i) {
    return i % 5 == 0 ? 2 * VG_LEAF + i : 6000 + i;
}

static void content(unsigned i, uint8_t *out, uint8_t id[VG_HASH]) {
    uint8_t hash[4 * VG_HASH];
    uint64_t size = size_of(i), n = vg_leaves(size);
    memset(out, (int)i + 1, (size_t)size);
    for (uint64_t k = 0; k < n; k++)
        vg_leaf_hash(out + k * VG_LEAF, (size_t)VG_MIN(size - k * VG_LEAF, (uint64_t)VG_LEAF),
                     hash + k * VG_HASH);
    vg_file_id(size, hash, n, id);
}

static void put(struct vg_cache *c, unsigned i) {
    static _Thread_local uint8_t data[3 * VG_LEAF];
    uint8_t id[VG_HASH], stamp[VG_HASH];
    struct vg_blob *b;
    content(i, data, id);
    vg_leaf_hash(&i, sizeof i, stamp);
    if (vg_blob_get(c, stamp, id, size_of(i), false, &b) < 0) {
        atomic_fetch_add(&failed, 1);
        return;
    }
    int r = vg_blob_write(b, 0, data, (size_t)size_of(i), true);
    if (r < 0 && r != -ENOSPC)
        atomic_fetch_add(&failed, 1);
    vg_blob_put(b);
}

static void have(void *user, const uint64_t *object, size_t n) {
    (void)user;
    for (size_t i = 0; i < n; i++)
        if (object[i] >= CONTENTS)
            atomic_fetch_add(&failed, 1);
    atomic_fetch_add(&announced, (unsigned)n);
}

static void join(void) {
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
        return;
    for (int i = 0; i < 2; i++) {
        int r = vg_peers_add(peers[i], pair[i]);
        if (r < 0 && r != -EBUSY)
            atomic_fetch_add(&failed, 1);
    }
}

static void *run(void *arg) {
    static _Thread_local uint8_t data[3 * VG_LEAF];
    unsigned x = (unsigned)(uintptr_t)arg, side = x & 1;
    char me;
    for (int round = 0; round < ROUNDS; round++) {
        struct vg_peer_file file[8];
        for (size_t k = 0; k < VG_COUNT(file); k++) {
            x = x * 1664525u + 1013904223u;
            unsigned i = (x >> 8) % CONTENTS;
            file[k] = (struct vg_peer_file){.object = i, .size = size_of(i)};
            content(i, data, file[k].id);
        }
        put(cache[side], (x >> 9) % CONTENTS);
        vg_peers_ask(peers[side], file, VG_COUNT(file), have, &me);
        struct vg_buf b = {0};
        if (vg_peers_json(peers[side], &b) < 0)
            atomic_fetch_add(&failed, 1);
        vg_buf_done(&b);
        if (round % 20 == 5)
            join();
        nanosleep(&(struct timespec){.tv_nsec = 500000}, NULL);
    }
    vg_peers_forget(peers[side], &me);
    return NULL;
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *w) {
    (void)st, (void)type, (void)w;
    return remove(path);
}

int main(void) {
    char dir[2][64];
    struct vg_err err = VG_ERR_INIT;
    pthread_t t[4];
    for (int i = 0; i < 2; i++) {
        snprintf(dir[i], sizeof dir[i], "%s/vg-stress-XXXXXX",
                 access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
        struct vg_cache_conf conf = {.dir = mkdtemp(dir[i]), .max_bytes = 4 << 20, .keep_free = 1};
        if (!conf.dir || vg_cache_open(&conf, &cache[i], &err) < 0 ||
            vg_peers_new(cache[i], &peers[i]) < 0)
            return 1;
    }
    join();
    for (uintptr_t i = 0; i < VG_COUNT(t); i++)
        if (pthread_create(&t[i], NULL, run, (void *)(i + 1)) != 0)
            return 1;
    for (size_t i = 0; i < VG_COUNT(t); i++)
        pthread_join(t[i], NULL);
    int bad = 0;
    for (int i = 0; i < 2; i++) {
        struct vg_cache_stat s;
        vg_peers_free(peers[i]);
        bad += vg_cache_scrub(cache[i], UINT64_MAX);
        vg_cache_stats(cache[i], &s);
        bad += (int)s.bad;
        vg_cache_close(cache[i]);
        nftw(dir[i], remove_one, 16, FTW_DEPTH | FTW_PHYS);
    }
    printf("stress-peer: announced=%u failed=%u bad=%d\n", announced, failed, bad);
    return failed || bad || !announced;
}
