/* Leaves coming in. A content of one leaf is written and named at once; a larger one grows in
   part/, its leaves' hashes in a map beside it, and is named when the last leaf has come.

       nothing --first leaf--> part and map --last leaf, id as wanted--> object
                                   |  ^ another id: emptied, begins again
                                   +--+

   The map says of a leaf that it is there only after its bytes were written; both are in the
   kernel's hands then, so the order holds whatever happens to this process. */
#include "fs/node/cache-int.h"

#include "base/mem.h"
#include "base/util.h"
#include "mirror/le.h"

#include <fcntl.h>
#include <stddef.h>
#include <string.h>

#define MAP_MAGIC 0x314d4756u /* VGM1 */
#define MAP_READ 4096u        /* hashes at a time */

void vg_part_path(const struct vg_blob *b, bool map, char out[VG_CACHE_PATH]) {
    snprintf(out, VG_CACHE_PATH, "part/%s%s", b->stamp, map ? ".map" : "");
}

static void map_head(const struct vg_blob *b, uint8_t out[VG_MAP_HEAD]) {
    memset(out, 0, VG_MAP_HEAD);
    vg_le_put32(out, MAP_MAGIC);
    vg_le_put64(out + 8, b->size);
    memcpy(out + 16, b->cache->boot, VG_BOOT - 1);
}

static int open_in(struct vg_cache *c, const char *path, int flags) {
    int r = vg_fault("cache/open");
    if (r < 0)
        return r;
    r = openat(c->dir, path, flags | O_CLOEXEC | O_NOFOLLOW, 0600);
    return r < 0 ? -errno : r;
}

static int write_at(const char *point, int fd, const void *data, size_t n, uint64_t off) {
    const char *p = data;
    int r = vg_fault(point);
    if (r < 0)
        return r;
    while (n) {
        ssize_t k = pwrite(fd, p, n, (off_t)off);
        if (k < 0 && errno == EINTR)
            continue;
        if (k <= 0)
            return k < 0 ? -errno : -EIO;
        p += k;
        off += (uint64_t)k;
        n -= (size_t)k;
    }
    return 0;
}

static void remove_files(struct vg_blob *b) {
    char path[VG_CACHE_PATH];
    vg_part_path(b, true, path); /* the claim first */
    unlinkat(b->cache->dir, path, 0);
    vg_part_path(b, false, path);
    unlinkat(b->cache->dir, path, 0);
}

int vg_part_create(struct vg_blob *b) {
    char path[VG_CACHE_PATH];
    uint8_t head[VG_MAP_HEAD];
    remove_files(b);
    vg_part_path(b, false, path);
    vg_auto_fd int fd = open_in(b->cache, path, O_RDWR | O_CREAT | O_EXCL);
    int r = fd < 0 ? fd : 0;
    if (r == 0 && ftruncate(fd, (off_t)b->size) < 0)
        r = -errno;
    vg_part_path(b, true, path);
    vg_auto_fd int map = r < 0 ? -1 : open_in(b->cache, path, O_RDWR | O_CREAT | O_EXCL);
    if (r == 0 && map < 0)
        r = map;
    map_head(b, head);
    if (r == 0)
        r = write_at("cache/map", map, head, sizeof head, 0);
    if (r < 0) {
        remove_files(b);
        return r;
    }
    b->part = true;
    atomic_fetch_add(&b->cache->partial, 1);
    return 0;
}

static void set_bit(struct vg_blob *b, uint64_t leaf) {
    atomic_fetch_or_explicit(&b->have[leaf / 64], UINT64_C(1) << (leaf % 64), memory_order_release);
    b->n_have++;
}

/* Takes over what a map says. */
static int load_map(struct vg_blob *b, int map) {
    vg_auto_free uint8_t *h = vg_alloc((size_t)MAP_READ * VG_HASH);
    static const uint8_t none[VG_HASH];
    if (!h)
        return -ENOMEM;
    for (uint64_t leaf = 0; leaf < b->leaves;) {
        size_t want = (size_t)VG_MIN(b->leaves - leaf, MAP_READ) * VG_HASH;
        ssize_t k = pread(map, h, want, (off_t)(VG_MAP_HEAD + leaf * VG_HASH));
        if (k < 0)
            return -errno;
        for (size_t i = 0; i < (size_t)k / VG_HASH; i++) /* half a hash is none */
            if (memcmp(h + i * VG_HASH, none, VG_HASH) != 0)
                set_bit(b, leaf + i);
        if ((size_t)k < want)
            break;
        leaf += (size_t)k / VG_HASH;
    }
    return 0;
}

int vg_part_load(struct vg_blob *b) {
    char path[VG_CACHE_PATH];
    uint8_t head[VG_MAP_HEAD], want[VG_MAP_HEAD];
    struct stat st;
    vg_part_path(b, true, path);
    vg_auto_fd int map = openat(b->cache->dir, path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (map < 0)
        return errno == ENOENT ? 0 : -errno;
    map_head(b, want);
    vg_part_path(b, false, path);
    if (pread(map, head, sizeof head, 0) == sizeof head && memcmp(head, want, sizeof head) == 0 &&
        fstatat(b->cache->dir, path, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st.st_mode) &&
        (uint64_t)st.st_size == b->size) {
        int r = load_map(b, map);
        b->part = r == 0;
        return r < 0 ? r : 1;
    }
    remove_files(b); /* of another boot, or half made */
    return 0;
}

void vg_part_forget(struct vg_blob *b) {
    remove_files(b);
    b->part = false;
    atomic_fetch_sub(&b->cache->partial, 1);
}

/* What came is not what was promised. The file stays the same one, because somebody may have it
   open: it is emptied, and begins again. */
static void reset(struct vg_blob *b) {
    char path[VG_CACHE_PATH];
    for (uint64_t i = 0; i < (b->leaves + 63) / 64; i++)
        atomic_store(&b->have[i], 0);
    b->n_have = 0;
    if (b->secret) {
        if (ftruncate(b->fd, 0) == 0)
            (void)!ftruncate(b->fd, (off_t)b->size);
        return;
    }
    vg_part_path(b, true, path);
    vg_auto_fd int map = openat(b->cache->dir, path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    vg_part_path(b, false, path);
    vg_auto_fd int fd = openat(b->cache->dir, path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (map < 0 || fd < 0 || ftruncate(map, VG_MAP_HEAD) < 0 || ftruncate(fd, 0) < 0 ||
        ftruncate(fd, (off_t)b->size) < 0)
        vg_part_forget(b);
    atomic_fetch_sub(&b->cache->bytes, (int64_t)b->size);
}

/* All hashes, in order. */
static int all_hashes(struct vg_blob *b, uint8_t **ret) {
    char path[VG_CACHE_PATH];
    size_t n = (size_t)b->leaves * VG_HASH;
    vg_part_path(b, true, path);
    vg_auto_fd int map = open_in(b->cache, path, O_RDONLY);
    if (map < 0)
        return map;
    vg_auto_free uint8_t *h = vg_alloc(n);
    if (!h)
        return -ENOMEM;
    if (lseek(map, VG_MAP_HEAD, SEEK_SET) < 0)
        return -errno;
    ssize_t k = vg_read_full(map, h, n);
    if (k != (ssize_t)n)
        return k < 0 ? (int)k : -EIO;
    *ret = vg_take_ptr(h);
    return 0;
}

/* Is it what was promised? Then it is held under its id from now on, before the object has that
   name, so that nobody evicts it in between. 1 when this call has registered it, 0 when it was. */
static int claim(struct vg_blob *b, const uint8_t id[VG_HASH], char ret_name[VG_NAME]) {
    struct vg_cache *c = b->cache;
    int r = 0;
    vg_cache_name(c->key, id, ret_name);
    pthread_mutex_lock(&c->lock);
    if (b->wanted && memcmp(b->want, id, VG_HASH) != 0) {
        c->st.bad++;
        r = -EBADMSG;
    } else if (!b->secret && !b->id_name[0]) {
        r = vg_blob_register_id(b, ret_name);
        r = r < 0 ? r : 1;
    }
    pthread_mutex_unlock(&c->lock);
    return r;
}

/* The names of a complete content. */
static void settle(struct vg_blob *b, const uint8_t id[VG_HASH]) {
    struct vg_cache *c = b->cache;
    pthread_mutex_lock(&c->lock);
    memcpy(b->id, id, VG_HASH);
    /* A stamp that could not be written down only costs a fetch later. */
    (void)vg_disk_stamp(c, b->stamp, id);
    for (struct vg_alias *a = b->alias; a; a = a->next)
        (void)vg_disk_stamp(c, a->name, id);
    atomic_store(&b->complete, true);
    pthread_mutex_unlock(&c->lock);
}

/* `data`: a content of one leaf that is nowhere yet; NULL: the part file. */
static int publish(struct vg_blob *b, const uint8_t id[VG_HASH], const void *data) {
    struct vg_cache *c = b->cache;
    char name[VG_NAME], path[VG_CACHE_PATH];
    int claimed = claim(b, id, name);
    if (claimed < 0)
        return claimed;
    vg_part_path(b, false, path);
    int r = data ? vg_disk_ingest(c, data, (size_t)b->size, name)
                 : vg_disk_adopt(c, path, b->size, name);
    if (r < 0) {
        pthread_mutex_lock(&c->lock);
        if (claimed)
            vg_blob_unregister_id(b);
        pthread_mutex_unlock(&c->lock);
        return r;
    }
    if (r == 0) {
        atomic_fetch_add(&c->objects, 1);
        atomic_fetch_add(&c->bytes, (int64_t)vg_cache_cost(b->size));
    }
    settle(b, id);
    return 0;
}

static int finish_secret(struct vg_blob *b) {
    char name[VG_NAME];
    uint8_t id[VG_HASH];
    vg_file_id(b->size, b->hash, b->leaves, id);
    int r = claim(b, id, name);
    if (r < 0)
        return r;
    memcpy(b->id, id, VG_HASH);
    (void)fcntl(b->fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK);
    atomic_store(&b->complete, true);
    return 0;
}

static int finish_part(struct vg_blob *b) {
    vg_auto_free uint8_t *h = NULL;
    uint8_t id[VG_HASH];
    int r = all_hashes(b, &h);
    if (r < 0)
        return r;
    vg_file_id(b->size, h, b->leaves, id);
    r = publish(b, id, NULL);
    if (r < 0)
        return r;
    atomic_fetch_sub(&b->cache->bytes, (int64_t)b->size);
    vg_part_forget(b);
    return 0;
}

int vg_part_finish(struct vg_blob *b) {
    int r = b->secret ? finish_secret(b) : finish_part(b);
    if (r == -EBADMSG)
        reset(b);
    return r < 0 ? r : 1;
}

/* One leaf is all: no part, no map. */
static int write_whole(struct vg_blob *b, const void *data, const uint8_t hash[VG_HASH]) {
    uint8_t id[VG_HASH];
    vg_file_id(b->size, hash, 1, id);
    int r = publish(b, id, data);
    if (r < 0)
        return r;
    set_bit(b, 0);
    return 1;
}

static int write_part(struct vg_blob *b, uint64_t leaf, const void *data, size_t n,
                      const uint8_t hash[VG_HASH]) {
    char path[VG_CACHE_PATH];
    int r = b->part ? 0 : vg_part_create(b);
    if (r < 0)
        return r;
    vg_part_path(b, false, path);
    vg_auto_fd int fd = open_in(b->cache, path, O_WRONLY);
    if (fd < 0)
        return fd;
    vg_part_path(b, true, path);
    vg_auto_fd int map = open_in(b->cache, path, O_WRONLY);
    if (map < 0)
        return map;
    r = write_at("cache/write", fd, data, n, leaf * VG_LEAF);
    if (r == 0)
        r = write_at("cache/map", map, hash, VG_HASH, VG_MAP_HEAD + leaf * VG_HASH);
    if (r < 0)
        return r;
    atomic_fetch_add(&b->cache->bytes, (int64_t)n);
    set_bit(b, leaf);
    return 0;
}

static int write_secret(struct vg_blob *b, uint64_t leaf, const void *data, size_t n,
                        const uint8_t hash[VG_HASH]) {
    int r = write_at("cache/write", b->fd, data, n, leaf * VG_LEAF);
    if (r < 0)
        return r;
    memcpy(b->hash + leaf * VG_HASH, hash, VG_HASH);
    set_bit(b, leaf);
    return 0;
}

static int put_leaf(struct vg_blob *b, uint64_t leaf, const void *data, size_t n,
                    const uint8_t hash[VG_HASH]) {
    if (b->secret)
        return write_secret(b, leaf, data, n, hash);
    if (b->leaves == 1 && !b->part)
        return write_whole(b, data, hash);
    return write_part(b, leaf, data, n, hash);
}

static int write_leaf(struct vg_blob *b, uint64_t leaf, const void *data, size_t n, bool wanted) {
    uint8_t hash[VG_HASH];
    vg_leaf_hash(data, n, hash);
    int r = b->secret ? 0 : vg_cache_room(b->cache, n, wanted);
    if (r < 0)
        return r;
    pthread_mutex_lock(&b->lock);
    if (!atomic_load(&b->complete) && !vg_blob_bit(b, leaf)) {
        r = put_leaf(b, leaf, data, n, hash);
        if (r == -ENOSPC && !b->secret && (r = vg_cache_press(b->cache, n)) == 0)
            r = put_leaf(b, leaf, data, n, hash);
    }
    /* When the last step fails the content can be read all the same; the next holder tries again.
     */
    if (r == 0 && b->n_have == b->leaves && !atomic_load(&b->complete)) {
        r = vg_part_finish(b);
        r = r < 0 && r != -EBADMSG ? 0 : r;
    }
    pthread_mutex_unlock(&b->lock);
    return r;
}

int vg_blob_write(struct vg_blob *b, uint64_t off, const void *data, size_t n, bool wanted) {
    if (off % VG_LEAF || off > b->size || n > b->size - off || (!n && b->size) ||
        (n % VG_LEAF && off + n != b->size))
        return -EINVAL;
    int done = 0;
    size_t at = 0;
    do {
        size_t k = VG_MIN(n - at, (size_t)VG_LEAF);
        if (atomic_load(&b->complete))
            return done;
        int r = write_leaf(b, (off + at) / VG_LEAF, (const uint8_t *)data + at, k, wanted);
        if (r < 0)
            return r;
        done |= r;
        at += k;
    } while (at < n);
    return done;
}
