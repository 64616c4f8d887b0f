/* Keeping: what a power failure may have torn, stamps without objects, scrubbing.

   `mark` tells up to when everything is known to be on the disk, and in which boot that was. In the
   same boot the kernel has everything that was written. In another one, objects younger than the
   mark are suspect: looking one up drops it, the sweep reads all others and drops what is torn.
   Only after the sweep a new mark may be made. */
#include "fs/node/cache-int.h"

#include "base/mem.h"
#include "base/util.h"

#include <fcntl.h>
#include <string.h>

/* Reads an object and computes the name it must have. 1: as it is, 0: not, -errno. */
static int verify(struct vg_cache *c, const char *name, uint64_t *ret_size) {
    char path[VG_CACHE_PATH], right[VG_NAME];
    struct stat st;
    vg_cache_path(path, "id", name);
    vg_auto_fd int fd = openat(c->dir, path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0 || fstat(fd, &st) < 0)
        return -errno;
    uint64_t size = (uint64_t)st.st_size, leaves = vg_leaves(size);
    *ret_size = size;
    if (!S_ISREG(st.st_mode) || size > VG_CACHE_FILE_MAX)
        return 0;
    vg_auto_free uint8_t *hash = vg_alloc((size_t)leaves * VG_HASH);
    vg_auto_free uint8_t *leaf = vg_alloc(VG_LEAF);
    if (!hash || !leaf)
        return -ENOMEM;
    (void)posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL);
    for (uint64_t i = 0; i < leaves; i++) {
        ssize_t n = vg_read_full(fd, leaf, VG_LEAF);
        if (n == -EIO)
            return 0; /* the disk has lost it */
        if (n < 0)
            return (int)n;
        vg_leaf_hash(leaf, (size_t)n, hash + i * VG_HASH);
    }
    uint8_t id[VG_HASH];
    vg_file_id(size, hash, leaves, id);
    vg_cache_name(c->key, id, right);
    return strcmp(right, name) == 0;
}

/* A bad object loses its name; whoever has it open keeps what he has. */
static void drop_bad(struct vg_cache *c, const char *name, uint64_t size) {
    char path[VG_CACHE_PATH];
    vg_cache_path(path, "id", name);
    struct stat st;
    pthread_mutex_lock(&c->lock);
    if (fstatat(c->dir, path, &st, AT_SYMLINK_NOFOLLOW) == 0 && st.st_nlink > 1)
        vg_disk_shun(c, &st); /* it would be linked here again */
    bool gone = vg_disk_drop(c, path, size) == 0;
    c->st.bad += gone;
    pthread_mutex_unlock(&c->lock);
    if (!gone)
        return;
    atomic_fetch_sub(&c->objects, 1);
    atomic_fetch_sub(&c->bytes, (int64_t)vg_cache_cost(size));
    atomic_fetch_add(&c->evicted_since, 1);
}

static int sweep_one(void *user, const char *name) {
    struct vg_cache *c = user;
    char path[VG_CACHE_PATH];
    struct stat st;
    uint64_t size = 0;
    if (strlen(name) != VG_NAME - 1)
        return 0;
    vg_cache_path(path, "id", name);
    if (fstatat(c->dir, path, &st, AT_SYMLINK_NOFOLLOW) < 0 || !vg_disk_suspect(c, &st))
        return 0;
    int r = verify(c, name, &size);
    if (r == 0)
        drop_bad(c, name, size);
    return r < 0 && r != -ENOENT ? r : 0;
}

int vg_keep_sweep(struct vg_cache *c) {
    if (atomic_load(&c->suspect_from) == INT64_MAX)
        return 0;
    int r = vg_disk_walk(c, "id", sweep_one, c);
    if (r == 0)
        atomic_store(&c->suspect_from, INT64_MAX);
    return r;
}

int vg_keep_mark(struct vg_cache *c) {
    if (atomic_load(&c->suspect_from) != INT64_MAX)
        return -EAGAIN;
    atomic_store(&c->dirty, false);
    /* The mark's own time is taken before the sync, by the clock that stamps the objects. */
    vg_auto_fd int fd = openat(c->dir, "mark.new", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0)
        return -errno;
    int r = vg_fault("cache/mark");
    r = r < 0 ? r : vg_write_full(fd, c->boot, strlen(c->boot));
    if (r == 0 && (syncfs(c->dir) < 0 || renameat(c->dir, "mark.new", c->dir, "mark") < 0))
        r = -errno;
    return r;
}

static int stamp_one(void *user, const char *name) {
    struct vg_cache *c = user;
    uint8_t id[VG_HASH];
    char path[VG_CACHE_PATH], id_name[VG_NAME];
    if (strlen(name) != VG_NAME - 1)
        return 0;
    pthread_mutex_lock(&c->lock);
    int r = vg_disk_unstamp(c, name, id);
    if (r == 0)
        vg_cache_name(c->key, id, id_name);
    if (r == -EBADMSG || (r == 0 && !vg_disk_has(c, id, id_name))) {
        vg_cache_path(path, "stamp", name);
        unlinkat(c->dir, path, 0);
    }
    pthread_mutex_unlock(&c->lock);
    return 0;
}

int vg_keep_stamps(struct vg_cache *c) {
    if (!atomic_exchange(&c->evicted_since, 0))
        return 0;
    return vg_disk_walk(c, "stamp", stamp_one, c);
}

/* Names of one folder, in order, for a scrub that goes on where it stopped. */
struct names {
    char (*name)[VG_NAME]; /* owned */
    size_t n, cap;
};

static int add_name(void *user, const char *name) {
    struct names *l = user;
    if (strlen(name) != VG_NAME - 1)
        return 0;
    char(*p)[VG_NAME] = vg_grow(l->name, &l->cap, l->n + 1, sizeof *p);
    if (!p)
        return -ENOMEM;
    l->name = p;
    memcpy(p[l->n++], name, VG_NAME);
    return 0;
}

static int by_name(const void *a, const void *b) {
    return strcmp(a, b);
}

/* Scrubs on in one folder until it is through or the budget is spent. */
static int scrub_folder(struct vg_cache *c, unsigned at, uint64_t *budget) {
    char folder[16];
    struct names l = {0};
    int bad = 0;
    snprintf(folder, sizeof folder, "id/%x", at);
    int r = vg_disk_list(c, folder, add_name, &l);
    if (r == 0 && l.n)
        qsort(l.name, l.n, sizeof *l.name, by_name);
    for (size_t i = 0; r == 0 && i < l.n && *budget; i++) {
        uint64_t size = 0;
        if (strcmp(l.name[i], c->scrub_name) <= 0)
            continue;
        int ok = verify(c, l.name[i], &size);
        if (ok == 0) {
            drop_bad(c, l.name[i], size);
            bad++;
        }
        r = ok < 0 && ok != -ENOENT ? ok : 0;
        memcpy(c->scrub_name, l.name[i], VG_NAME);
        *budget -= VG_MIN(*budget, vg_cache_cost(size));
        pthread_mutex_lock(&c->lock);
        c->st.scrubbed_bytes += size;
        pthread_mutex_unlock(&c->lock);
    }
    free(l.name);
    return r < 0 ? r : bad;
}

int vg_cache_scrub(struct vg_cache *c, uint64_t budget) {
    int bad = 0, r = 0;
    pthread_mutex_lock(&c->evict);
    for (unsigned i = 0; i < VG_CACHE_FOLDERS && budget && r >= 0; i++) {
        r = scrub_folder(c, c->scrub_dir, &budget);
        bad += VG_MAX(r, 0);
        if (r >= 0 && budget) {
            c->scrub_dir = (c->scrub_dir + 1) % VG_CACHE_FOLDERS;
            c->scrub_name[0] = '\0';
        }
    }
    pthread_mutex_unlock(&c->evict);
    return r < 0 ? r : bad;
}
