/* Files that come in leaf by leaf. */
#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"
#include "fs/store/estore-int.h"

#include <fcntl.h>
#include <string.h>

#define FILE_MAX (UINT64_C(1) << 44) /* 16 TiB */

struct vg_einto {
    struct vg_estore *store;
    int fd;
    char temp[40];
    uint64_t size, leaves, have;
    uint8_t *hash; /* VG_HASH bytes a leaf */
    uint8_t *got;  /* a bit a leaf */
    bool kept;
};

/* Bytes that are coming in count, so that many at once cannot exceed what one may have. */
static int reserve(struct vg_estore *s, uint64_t size) {
    pthread_mutex_lock(&s->lock);
    int r = s->quota_bytes && s->bytes + s->reserved + size > s->quota_bytes ? -EDQUOT : 0;
    if (r == 0)
        s->reserved += size;
    pthread_mutex_unlock(&s->lock);
    return r;
}

static void unreserve(struct vg_estore *s, uint64_t size) {
    pthread_mutex_lock(&s->lock);
    s->reserved -= size;
    pthread_mutex_unlock(&s->lock);
}

int vg_einto_new(struct vg_estore *s, uint64_t size, struct vg_einto **ret) {
    if (size > FILE_MAX)
        return -EFBIG;
    struct vg_einto *w = vg_alloc(sizeof(*w));
    if (!w)
        return -ENOMEM;
    int r = reserve(s, size);
    if (r < 0) {
        free(w);
        return r;
    }
    *w = (struct vg_einto){.store = s, .fd = -1, .size = size, .leaves = vg_leaves(size)};
    w->hash = vg_alloc((size_t)w->leaves * VG_HASH);
    w->got = vg_alloc((size_t)(w->leaves + 7) / 8);
    w->fd = w->hash && w->got ? vg_e_temp(s, w->temp) : -ENOMEM;
    if (w->fd < 0) {
        r = w->fd;
        w->temp[0] = '\0';
        vg_einto_free(w);
        return r;
    }
    *ret = w;
    return 0;
}

bool vg_einto_has(const struct vg_einto *w, uint64_t leaf) {
    return leaf < w->leaves && (w->got[leaf / 8] >> (leaf % 8) & 1);
}

static int write_at(int fd, const uint8_t *p, size_t n, uint64_t off) {
    while (n) {
        ssize_t k = pwrite(fd, p, n, (off_t)off);
        if (k < 0 && errno == EINTR)
            continue;
        if (k < 0)
            return -errno;
        p += k;
        n -= (size_t)k;
        off += (uint64_t)k;
    }
    return 0;
}

int vg_einto_write(struct vg_einto *w, uint64_t off, const void *data, size_t n) {
    const uint8_t *p = data;
    if (off % VG_LEAF || off > w->size || n > w->size - off ||
        (n % VG_LEAF && off + n != w->size) || (n == 0 && w->size))
        return -EINVAL;
    do {
        size_t len = VG_MIN(n, (size_t)VG_LEAF);
        uint64_t leaf = off / VG_LEAF;
        if (!vg_einto_has(w, leaf)) {
            int r = write_at(w->fd, p, len, off);
            if (r < 0)
                return r;
            vg_leaf_hash(p, len, w->hash + leaf * VG_HASH);
            w->got[leaf / 8] |= (uint8_t)(1u << (leaf % 8));
            w->have++;
        }
        p += len;
        off += len;
        n -= len;
    } while (n);
    return w->have == w->leaves;
}

int vg_einto_read(struct vg_einto *w, uint64_t off, void *data, size_t n) {
    ssize_t k = pread(w->fd, data, n, (off_t)off);
    return k < 0 ? -errno : (size_t)k == n ? 0 : -EIO;
}

int vg_einto_keep(struct vg_einto *w, uint8_t ret_id[VG_HASH]) {
    if (w->have != w->leaves || w->kept)
        return -EINVAL;
    uint8_t id[VG_HASH];
    vg_file_id(w->size, w->hash, w->leaves, id);
    int r = vg_e_place(w->store, w->temp, w->fd, w->size, VG_E_DATA, id);
    if (r < 0)
        return r;
    w->kept = true;
    memcpy(ret_id, id, VG_HASH);
    return 0;
}

void vg_einto_free(struct vg_einto *w) {
    if (!w)
        return;
    if (!w->kept && w->temp[0])
        unlinkat(w->store->dir, w->temp, 0);
    unreserve(w->store, w->size);
    vg_close(&w->fd);
    free(w->hash);
    free(w->got);
    free(w);
}
