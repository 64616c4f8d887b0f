/* What is held, and by which names: the structs of the cache. */
#include "fs/node/cache.h"

#include "base/mem.h"
#include "base/util.h"
#include "fs/node/cache-int.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>

static void blob_free(struct vg_blob *b) {
    if (!b)
        return;
    while (b->alias) {
        struct vg_alias *a = b->alias;
        b->alias = a->next;
        free(a);
    }
    vg_close(&b->fd);
    free(b->hash);
    free((void *)b->have);
    pthread_mutex_destroy(&b->lock);
    free(b);
}

static struct vg_blob *blob_new(struct vg_cache *c, const char *stamp, uint64_t size, bool secret) {
    struct vg_blob *b = vg_alloc(sizeof *b);
    if (!b)
        return NULL;
    *b = (struct vg_blob){.cache = c, .size = size, .leaves = vg_leaves(size), .secret = secret};
    b->fd = -1;
    b->refs = 1;
    memcpy(b->stamp, stamp, VG_NAME);
    pthread_mutex_init(&b->lock, NULL);
    return b;
}

static int blob_empty(struct vg_blob *b) {
    b->have = vg_alloc((size_t)((b->leaves + 63) / 64) * sizeof *b->have);
    return b->have ? 0 : -ENOMEM;
}

/* by_id has the first of those with an id, `same` the others: while one lives, the id is held. */
int vg_blob_register_id(struct vg_blob *b, const char *id_name) {
    struct vg_map *m = &b->cache->by_id;
    struct vg_blob *first = vg_map_get(m, id_name);
    memcpy(b->id_name, id_name, VG_NAME);
    if (first) {
        b->same = first->same;
        first->same = b;
        return 0;
    }
    int r = vg_map_put(m, b->id_name, b);
    if (r < 0)
        b->id_name[0] = '\0';
    return r;
}

void vg_blob_unregister_id(struct vg_blob *b) {
    struct vg_map *m = &b->cache->by_id;
    if (!b->id_name[0])
        return;
    struct vg_blob *first = vg_map_get(m, b->id_name);
    if (first == b) {
        vg_map_del(m, b->id_name);
        if (b->same) /* the slot that has just become free takes it: this needs no memory */
            (void)vg_map_put(m, b->same->id_name, b->same);
    } else {
        while (first && first->same != b)
            first = first->same;
        if (first)
            first->same = b->same;
    }
    b->same = NULL;
    b->id_name[0] = '\0';
}

static struct vg_map *stamps_of(struct vg_blob *b) {
    return b->secret ? &b->cache->by_secret : &b->cache->by_stamp;
}

static int add_alias(struct vg_blob *b, const char *stamp) {
    struct vg_alias *a = vg_alloc(sizeof *a);
    if (!a)
        return -ENOMEM;
    memcpy(a->name, stamp, VG_NAME);
    int r = vg_map_put(&b->cache->by_stamp, a->name, b);
    if (r < 0) {
        free(a);
        return r;
    }
    a->next = b->alias;
    b->alias = a;
    if (atomic_load(&b->complete))
        (void)vg_disk_stamp(b->cache, stamp, b->id);
    return 0;
}

static void unregister(struct vg_blob *b) {
    if (vg_map_get(stamps_of(b), b->stamp) == b)
        vg_map_del(stamps_of(b), b->stamp);
    for (struct vg_alias *a = b->alias; a; a = a->next)
        vg_map_del(&b->cache->by_stamp, a->name);
    vg_blob_unregister_id(b);
}

/* What one asks for: names of the stamp and of the ids it may have. */
struct ask {
    char stamp[VG_NAME];
    uint64_t size;
    size_t n;
    uint8_t id[2][VG_HASH];
    char id_name[2][VG_NAME];
};

static void ask_id(struct vg_cache *c, struct ask *q, const uint8_t id[VG_HASH]) {
    memcpy(q->id[q->n], id, VG_HASH);
    vg_cache_name(c->key, id, q->id_name[q->n]);
    q->n++;
}

/* The id the asker knows comes first, then the one that was found for this stamp before. */
static void ask_names(struct vg_cache *c, struct ask *q, const uint8_t *id) {
    uint8_t found[VG_HASH];
    if (id)
        ask_id(c, q, id);
    if (vg_disk_unstamp(c, q->stamp, found) == 0 && !(id && memcmp(found, id, VG_HASH) == 0))
        ask_id(c, q, found);
}

/* Somebody knows by now what it must turn out to be. */
static void want(struct vg_blob *b, const uint8_t *id, const char *id_name) {
    if (!id || b->wanted || atomic_load(&b->complete) || b->id_name[0])
        return;
    if (!b->secret && vg_blob_register_id(b, id_name) < 0)
        return; /* it is then not verified, as if nobody knew */
    b->wanted = true;
    memcpy(b->want, id, VG_HASH);
}

static struct vg_blob *find_held(struct vg_cache *c, const struct ask *q) {
    struct vg_blob *b = vg_map_get(&c->by_stamp, q->stamp);
    for (size_t i = 0; !b && i < q->n; i++) {
        struct vg_blob *with = vg_map_get(&c->by_id, q->id_name[i]);
        if (with && with->size == q->size && add_alias(with, q->stamp) == 0)
            b = with;
    }
    return b;
}

/* From the disk: complete, or what there is of it, or nothing. */
static int load(struct vg_cache *c, const struct ask *q, struct vg_blob *b) {
    for (size_t i = 0; i < q->n; i++) {
        if (!vg_disk_find(c, q->id[i], q->id_name[i], q->size, &b->foreign))
            continue;
        memcpy(b->id, q->id[i], VG_HASH);
        (void)vg_disk_stamp(c, q->stamp, b->id);
        int r = vg_blob_register_id(b, q->id_name[i]);
        atomic_store(&b->complete, r == 0);
        return r;
    }
    int r = blob_empty(b);
    r = r < 0 ? r : vg_part_load(b);
    return r < 0 ? r : 0;
}

static int load_secret(struct vg_blob *b) {
    int r = blob_empty(b);
    if (r < 0)
        return r;
    b->hash = vg_alloc((size_t)b->leaves * VG_HASH);
    if (!b->hash)
        return -ENOMEM;
    b->fd = memfd_create("virga-secret", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (b->fd < 0 || ftruncate(b->fd, (off_t)b->size) < 0)
        return -errno;
    return 0;
}

/* Cache's lock held. */
static int get(struct vg_cache *c, struct ask *q, const uint8_t *id, bool secret,
               struct vg_blob **ret) {
    struct vg_blob *b = NULL;
    if (secret) {
        b = vg_map_get(&c->by_secret, q->stamp);
        if (!b && id)
            ask_id(c, q, id);
    } else {
        ask_names(c, q, id);
        b = find_held(c, q);
    }
    if (b && b->size != q->size)
        return -EBADMSG;
    if (b) {
        b->refs++;
    } else {
        b = blob_new(c, q->stamp, q->size, secret);
        int r = !b ? -ENOMEM : secret ? load_secret(b) : load(c, q, b);
        r = r < 0 ? r : vg_map_put(stamps_of(b), b->stamp, b);
        if (r < 0) {
            if (b)
                vg_blob_unregister_id(b);
            blob_free(b);
            return r;
        }
    }
    want(b, id, q->id_name[0]);
    if (atomic_load(&b->complete))
        c->st.hits++;
    else
        c->st.misses++;
    *ret = b;
    return 0;
}

int vg_blob_get(struct vg_cache *c, const uint8_t stamp[VG_HASH], const uint8_t *id, uint64_t size,
                bool secret, struct vg_blob **ret) {
    struct ask q = {.size = size};
    struct vg_blob *b;
    if (size > (secret ? VG_CACHE_SECRET_MAX : VG_CACHE_FILE_MAX))
        return -EFBIG;
    vg_cache_name(c->key, stamp, q.stamp);
    pthread_mutex_lock(&c->lock);
    int r = get(c, &q, id, secret, &b);
    pthread_mutex_unlock(&c->lock);
    if (r < 0)
        return r;
    /* All there, but whoever wrote the last leaf could not name it. */
    pthread_mutex_lock(&b->lock);
    if (!atomic_load(&b->complete) && b->part && b->n_have == b->leaves)
        (void)vg_part_finish(b);
    pthread_mutex_unlock(&b->lock);
    *ret = b;
    return 0;
}

bool vg_cache_has(struct vg_cache *c, const uint8_t stamp[VG_HASH], const uint8_t *id) {
    struct ask q = {0};
    vg_cache_name(c->key, stamp, q.stamp);
    pthread_mutex_lock(&c->lock);
    struct vg_blob *b = vg_map_get(&c->by_stamp, q.stamp);
    bool there = b && atomic_load(&b->complete);
    if (!there)
        ask_names(c, &q, id);
    for (size_t i = 0; !there && i < q.n; i++)
        there = vg_disk_has(c, q.id[i], q.id_name[i]);
    pthread_mutex_unlock(&c->lock);
    return there;
}

struct vg_blob *vg_blob_ref(struct vg_blob *b) {
    pthread_mutex_lock(&b->cache->lock);
    b->refs++;
    pthread_mutex_unlock(&b->cache->lock);
    return b;
}

void vg_blob_put(struct vg_blob *b) {
    if (!b)
        return;
    struct vg_cache *c = b->cache;
    pthread_mutex_lock(&c->lock);
    if (--b->refs) {
        pthread_mutex_unlock(&c->lock);
        return;
    }
    if (atomic_load(&b->complete) && !b->secret && !b->foreign)
        vg_disk_used(c, b->id_name);
    unregister(b);
    atomic_fetch_add(&c->released, 1);
    if (b->part && !b->n_have)
        vg_part_forget(b);
    pthread_mutex_unlock(&c->lock);
    blob_free(b);
}

uint64_t vg_blob_size(const struct vg_blob *b) {
    return b->size;
}

bool vg_blob_complete(const struct vg_blob *b) {
    return atomic_load(&b->complete);
}

bool vg_blob_has_leaf(const struct vg_blob *b, uint64_t leaf) {
    if (leaf >= b->leaves)
        return false;
    return atomic_load(&b->complete) || vg_blob_bit(b, leaf);
}

bool vg_blob_has(const struct vg_blob *b, uint64_t off, uint64_t len) {
    if (atomic_load(&b->complete) || off >= b->size || !len)
        return true;
    uint64_t last = (len > b->size - off ? b->size - 1 : off + len - 1) / VG_LEAF;
    for (uint64_t leaf = off / VG_LEAF; leaf <= last; leaf++)
        if (!vg_blob_bit(b, leaf))
            return atomic_load(&b->complete); /* a content of one leaf has no bits on its way */
    return true;
}

static int open_content(struct vg_blob *b) {
    char path[VG_CACHE_PATH];
    if (atomic_load(&b->complete))
        return vg_disk_open(b->cache, b->id_name, b->id, b->foreign);
    int r = b->part ? 0 : vg_part_create(b);
    if (r < 0)
        return r;
    vg_part_path(b, false, path);
    r = openat(b->cache->dir, path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    return r < 0 ? -errno : r;
}

int vg_blob_pin(struct vg_blob *b) {
    pthread_mutex_lock(&b->lock);
    int r = b->fd >= 0 ? b->fd : open_content(b);
    if (r >= 0) {
        b->fd = r;
        b->pins++;
    }
    pthread_mutex_unlock(&b->lock);
    return r;
}

void vg_blob_unpin(struct vg_blob *b) {
    pthread_mutex_lock(&b->lock);
    if (--b->pins == 0 && !b->secret)
        vg_close(&b->fd);
    pthread_mutex_unlock(&b->lock);
}

const uint8_t *vg_blob_id(const struct vg_blob *b) {
    return atomic_load(&b->complete) ? b->id : NULL;
}

int vg_blob_path(const struct vg_blob *b, char out[80]) {
    if (!atomic_load(&b->complete))
        return -EAGAIN;
    if (b->secret || b->foreign)
        return -EXDEV;
    snprintf(out, 80, "id/%.1s/%s", b->id_name, b->id_name);
    return 0;
}

void vg_cache_stats(struct vg_cache *c, struct vg_cache_stat *ret) {
    pthread_mutex_lock(&c->lock);
    *ret = c->st;
    pthread_mutex_unlock(&c->lock);
    ret->bytes = (uint64_t)VG_MAX(atomic_load(&c->bytes), 0);
    ret->objects = (uint64_t)VG_MAX(atomic_load(&c->objects), 0);
    ret->partial = (uint64_t)VG_MAX(atomic_load(&c->partial), 0);
    ret->max_bytes = c->max_bytes;
    ret->keep_free = c->keep_free;
    ret->disk_free = vg_cache_disk_free(c);
    ret->full = ret->bytes > ret->max_bytes || ret->disk_free < ret->keep_free;
}

int vg_cache_json(struct vg_cache *c, struct vg_buf *out) {
    struct vg_cache_stat s;
    vg_cache_stats(c, &s);
    return vg_buf_printf(
        out,
        "{\"bytes\":%llu,\"max_bytes\":%llu,\"objects\":%llu,\"partial\":%llu,\"hits\":%llu,"
        "\"misses\":%llu,\"public_hits\":%llu,\"evicted\":%llu,\"bad\":%llu,"
        "\"scrubbed_bytes\":%llu,\"disk_free\":%llu,\"keep_free\":%llu,\"full\":%s}",
        (unsigned long long)s.bytes, (unsigned long long)s.max_bytes, (unsigned long long)s.objects,
        (unsigned long long)s.partial, (unsigned long long)s.hits, (unsigned long long)s.misses,
        (unsigned long long)s.public_hits, (unsigned long long)s.evicted, (unsigned long long)s.bad,
        (unsigned long long)s.scrubbed_bytes, (unsigned long long)s.disk_free,
        (unsigned long long)s.keep_free, s.full ? "true" : "false");
}
