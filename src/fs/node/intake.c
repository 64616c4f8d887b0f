/* Contents that another node has read and sends by id. They are believed only as a whole: leaves go
   to a file without a name, which gets one when its hash is the id that was asked for. */
#include "fs/node/cache-int.h"

#include "base/mem.h"
#include "base/util.h"

#include <fcntl.h>
#include <string.h>

struct vg_intake {
    struct vg_cache *c;
    uint8_t id[VG_HASH];
    char id_name[VG_NAME], name[VG_CACHE_PATH];
    uint64_t size, at;
    uint8_t *hash; /* owned */
    int fd;
};

int vg_cache_open_id(struct vg_cache *c, const uint8_t id[VG_HASH], uint64_t size) {
    char name[VG_NAME], path[VG_CACHE_PATH];
    struct stat st;
    vg_cache_name(c->key, id, name);
    vg_cache_path(path, "id", name);
    vg_auto_fd int fd = openat(c->dir, path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return -errno;
    if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || (uint64_t)st.st_size != size ||
        vg_disk_suspect(c, &st))
        return -ENOENT;
    return vg_take_fd(fd);
}

void vg_intake_free(struct vg_intake *in) {
    if (!in)
        return;
    if (in->name[0])
        unlinkat(in->c->dir, in->name, 0);
    vg_close(&in->fd);
    free(in->hash);
    free(in);
}

int vg_intake_new(struct vg_cache *c, const uint8_t id[VG_HASH], uint64_t size,
                  struct vg_intake **ret) {
    if (size > VG_CACHE_FILE_MAX)
        return -EFBIG;
    int there = vg_cache_open_id(c, id, size);
    if (there >= 0) {
        close(there);
        return -EEXIST;
    }
    struct vg_intake *in = vg_alloc(sizeof *in);
    if (!in)
        return -ENOMEM;
    *in = (struct vg_intake){.c = c, .size = size, .fd = -1};
    memcpy(in->id, id, VG_HASH);
    vg_cache_name(c->key, id, in->id_name);
    in->hash = vg_alloc((size_t)vg_leaves(size) * VG_HASH);
    in->fd = in->hash ? vg_disk_nameless(c, in->name) : -ENOMEM;
    if (in->fd < 0) {
        int r = in->fd;
        in->fd = -1;
        vg_intake_free(in);
        return r;
    }
    *ret = in;
    return 0;
}

/* Somebody has it open in part: what is missing there is here. */
static void complete_held(struct vg_intake *in) {
    vg_auto_free uint8_t *leaf = vg_alloc(VG_LEAF);
    pthread_mutex_lock(&in->c->lock);
    struct vg_blob *b = vg_map_get(&in->c->by_id, in->id_name);
    if (b)
        b->refs++;
    pthread_mutex_unlock(&in->c->lock);
    for (uint64_t i = 0; b && leaf && i < b->leaves && b->size == in->size; i++) {
        size_t n = (size_t)VG_MIN(in->size - i * VG_LEAF, (uint64_t)VG_LEAF);
        if (vg_blob_has_leaf(b, i))
            continue;
        if (pread(in->fd, leaf, n, (off_t)(i * VG_LEAF)) != (ssize_t)n ||
            vg_blob_write(b, i * VG_LEAF, leaf, n, false) < 0)
            break; /* it goes on as before: from the client */
    }
    vg_blob_put(b);
}

static int finish(struct vg_intake *in) {
    uint8_t id[VG_HASH];
    struct vg_cache *c = in->c;
    vg_file_id(in->size, in->hash, vg_leaves(in->size), id);
    if (memcmp(id, in->id, VG_HASH) != 0) {
        pthread_mutex_lock(&c->lock);
        c->st.bad++;
        pthread_mutex_unlock(&c->lock);
        return -EBADMSG;
    }
    int r = vg_disk_name(c, in->fd, in->name, in->size, in->id_name);
    if (r < 0)
        return r;
    if (r == 0) {
        atomic_fetch_add(&c->objects, 1);
        atomic_fetch_add(&c->bytes, (int64_t)vg_cache_cost(in->size));
    }
    complete_held(in);
    return 1;
}

int vg_intake_write(struct vg_intake *in, uint64_t off, const void *data, size_t n) {
    uint64_t left = in->size - in->at;
    if (off != in->at || n != VG_MIN(left, (uint64_t)VG_LEAF))
        return -EINVAL;
    int r = vg_cache_room(in->c, n, false);
    r = r < 0 ? r : vg_fault("cache/write");
    r = r < 0 ? r : vg_write_full(in->fd, data, n);
    if (r < 0)
        return r;
    vg_leaf_hash(data, n, in->hash + off / VG_LEAF * VG_HASH);
    in->at += n;
    return in->at == in->size ? finish(in) : 0;
}
