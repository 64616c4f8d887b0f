#include "fs/client/read.h"

#include "fs/client/tree.h"

#include "base/cleanup.h"

#include <errno.h>
#include <fcntl.h>
#include <time.h>
#include <zstd.h>

#define SAMPLE (32u << 10)

bool vg_mstat_same(const struct vg_mstat *a, const struct vg_mstat *b) {
    return a->dev == b->dev && a->ino == b->ino && a->size == b->size && a->mtime == b->mtime &&
           a->ctime == b->ctime;
}

static int64_t clock_ns(clockid_t id) {
    struct timespec t;
    clock_gettime(id, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Two writes within one tick of the kernel's clock leave the same times. What is read after the
   tick of the last change cannot be overtaken by a change that looks the same. */
static void let_tick_pass(const struct vg_mstat *st) {
    for (int i = 0; i < 20 && st->ctime >= clock_ns(CLOCK_REALTIME_COARSE); i++)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

static int stat_now(int fd, struct vg_mstat *ret) {
    struct stat st;
    if (fstat(fd, &st) < 0)
        return -errno;
    if (!S_ISREG(st.st_mode))
        return S_ISDIR(st.st_mode) ? -EISDIR : -ESTALE;
    vg_mstat_from(ret, &st);
    return 0;
}

static int read_leaf(struct vg_leaf_read *r, int fd, uint8_t *into) {
    size_t want = r->offset >= r->want.size ? 0 : VG_MIN(r->want.size - r->offset, VG_LEAF);
    for (r->len = 0; r->len < want;) {
        ssize_t n = pread(fd, into + r->len, want - r->len, (off_t)(r->offset + r->len));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -errno;
        if (n == 0 && !r->torn_is_fine)
            return -ESTALE;
        if (n == 0) {
            memset(into + r->len, 0, want - r->len);
            n = (ssize_t)(want - r->len);
        }
        r->len += (size_t)n;
    }
    return 0;
}

int vg_leaf_read(struct vg_leaf_read *r, uint8_t *into) {
    vg_auto_fd int fd = vg_open_beneath(r->root_fd, r->path, O_RDONLY | O_NONBLOCK | O_NOCTTY);
    if (fd < 0)
        return fd == -ELOOP ? -ESTALE : fd;
    int e = stat_now(fd, &r->st);
    if (e < 0)
        return e;
    if (r->torn_is_fine)
        r->want = r->st;
    if (!vg_mstat_same(&r->st, &r->want))
        return -ESTALE;
    let_tick_pass(&r->st);
    r->began_ns = clock_ns(CLOCK_REALTIME);
    e = read_leaf(r, fd, into);
    if (e < 0)
        return e;
    e = stat_now(fd, &r->st);
    if (e < 0)
        return e;
    if (!r->torn_is_fine && !vg_mstat_same(&r->st, &r->want))
        return -ESTALE;
    vg_leaf_hash(into, r->len, r->hash);
    return 0;
}

bool vg_leaf_shrinks(const uint8_t *data, size_t n) {
    uint8_t out[SAMPLE];
    if (n <= 2 * SAMPLE)
        return true; /* trying costs as much as doing it */
    /* Into less room than it should take: fails when it does not shrink. */
    return !ZSTD_isError(ZSTD_compress(out, SAMPLE - SAMPLE / 20, data, SAMPLE, -5));
}
