#include "fs/client/memo.h"

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/list.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/util.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/uio.h>

/* The file: magic, then records of 80 bytes: dev, ino, size, mtime, ctime, id, check. Of one
   inode the last record holds. */
static const char magic[8] = "VGMEMO1";
#define REC 80u
#define ENTRIES_MAX 400000u
#define PARTIAL_BYTES (64u << 20)

struct entry {
    struct entry *next; /* same key */
    uint64_t dev, ino, size;
    int64_t mtime, ctime;
    uint8_t id[VG_HASH];
};
struct partial { /* a big file of which not all leaves have come */
    struct vg_list link;
    struct entry e;
    uint64_t n, have;
    uint8_t *hash, *bits;
};
struct vg_memo {
    char *path;
    struct vg_map map; /* key(dev, ino) to a chain of entries */
    size_t count;
    struct vg_buf unsaved;
    struct vg_list partials; /* newest first */
    size_t partial_bytes;
};

static uint64_t key(uint64_t dev, uint64_t ino) {
    uint64_t h = (ino + 0x9e3779b97f4a7c15u) * 0xff51afd7ed558ccdu;
    return (h ^ (h >> 29) ^ (dev * 0xc4ceb9fe1a85ec53u)) | 1;
}

static uint64_t check(const uint8_t *rec) {
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < REC - 8; i++)
        h = (h ^ rec[i]) * 0x100000001b3u;
    return h;
}

static void entry_of(struct entry *e, const struct vg_mstat *st) {
    *e = (struct entry){
        .dev = st->dev, .ino = st->ino, .size = st->size, .mtime = st->mtime, .ctime = st->ctime};
}

static bool same(const struct entry *a, const struct entry *b) {
    return a->dev == b->dev && a->ino == b->ino && a->size == b->size && a->mtime == b->mtime &&
           a->ctime == b->ctime;
}

static void pack(const struct entry *e, uint8_t rec[REC]) {
    memcpy(rec, &e->dev, 40);
    memcpy(rec + 40, e->id, VG_HASH);
    uint64_t c = check(rec);
    memcpy(rec + 72, &c, 8);
}

static bool unpack(struct entry *e, const uint8_t rec[REC]) {
    uint64_t c;
    memcpy(&c, rec + 72, 8);
    *e = (struct entry){0};
    memcpy(&e->dev, rec, 40);
    memcpy(e->id, rec + 40, VG_HASH);
    return c == check(rec);
}
_Static_assert(offsetof(struct entry, id) - offsetof(struct entry, dev) == 40, "packed as it lies");

static struct entry *find(const struct vg_memo *m, uint64_t dev, uint64_t ino) {
    for (struct entry *e = vg_map_get_u64(&m->map, key(dev, ino)); e; e = e->next)
        if (e->dev == dev && e->ino == ino)
            return e;
    return NULL;
}

static int put(struct vg_memo *m, const struct entry *new) {
    struct entry *e = find(m, new->dev, new->ino);
    if (e) {
        struct entry *next = e->next;
        *e = *new;
        e->next = next;
        return 0;
    }
    if (m->count >= ENTRIES_MAX)
        return 0; /* full: what is known stays, the file is made anew at the next start */
    e = vg_memdup(new, sizeof(*new));
    if (!e)
        return -ENOMEM;
    e->next = vg_map_get_u64(&m->map, key(e->dev, e->ino));
    if (vg_map_put_u64(&m->map, key(e->dev, e->ino), e) < 0) {
        free(e);
        return -ENOMEM;
    }
    m->count++;
    return 0;
}

static int compact(struct vg_memo *m) {
    struct vg_buf all = {0};
    int r = vg_buf_append(&all, magic, sizeof(magic));
    vg_map_for_each (s, &m->map)
        for (struct entry *e = s->value; e && r == 0; e = e->next) {
            uint8_t rec[REC];
            pack(e, rec);
            r = vg_buf_append(&all, rec, REC);
        }
    if (r == 0)
        r = vg_write_file(m->path, vg_buf_data(&all), vg_buf_len(&all), 0600);
    vg_buf_done(&all);
    return r;
}

static int load(struct vg_memo *m) {
    vg_auto_free char *data = NULL;
    size_t n, seen = 0;
    int r = vg_read_file(m->path, sizeof(magic) + 3ul * ENTRIES_MAX * REC, &data, &n);
    if (r == -ENOENT)
        return compact(m);
    /* Too large or unreadable as a memo: it is only a memo. */
    if (r < 0 || n < sizeof(magic) || memcmp(data, magic, sizeof(magic)) != 0)
        return compact(m);
    size_t at = sizeof(magic);
    for (; at + REC <= n; at += REC, seen++) {
        struct entry e;
        if (!unpack(&e, (const uint8_t *)data + at))
            break;
        r = put(m, &e);
        if (r < 0)
            return r;
    }
    /* A full memo starts over: what is used will come again. */
    if (m->count >= ENTRIES_MAX) {
        vg_map_for_each (s, &m->map)
            for (struct entry *e = s->value, *next; e; e = next) {
                next = e->next;
                free(e);
            }
        vg_map_done(&m->map);
        m->map = (struct vg_map){0};
        m->count = 0;
        return compact(m);
    }
    return at != n || seen > 2 * m->count + 1000 ? compact(m) : 0;
}

int vg_memo_open(const char *path, struct vg_memo **ret) {
    struct vg_memo *m = vg_alloc(sizeof(*m));
    if (!m)
        return -ENOMEM;
    vg_list_init(&m->partials);
    int r = 0;
    if (path) {
        m->path = vg_strdup(path);
        r = m->path ? load(m) : -ENOMEM;
    }
    if (r < 0) {
        vg_memo_free(m);
        return r;
    }
    *ret = m;
    return 0;
}

static void partial_free(struct vg_memo *m, struct partial *p) {
    vg_list_remove(&p->link);
    m->partial_bytes -= p->n * VG_HASH;
    free(p->hash);
    free(p->bits);
    free(p);
}

void vg_memo_free(struct vg_memo *m) {
    if (!m)
        return;
    vg_memo_flush(m);
    vg_list_for_each_safe (it, &m->partials)
        partial_free(m, vg_list_entry(it, struct partial, link));
    vg_map_for_each (s, &m->map)
        for (struct entry *e = s->value, *next; e; e = next) {
            next = e->next;
            free(e);
        }
    vg_map_done(&m->map);
    vg_buf_done(&m->unsaved);
    free(m->path);
    free(m);
}

bool vg_memo_id(const struct vg_memo *m, const struct vg_mstat *st, uint8_t out[VG_HASH]) {
    struct entry want;
    entry_of(&want, st);
    const struct entry *e = find(m, st->dev, st->ino);
    if (!e || !same(e, &want))
        return false;
    memcpy(out, e->id, VG_HASH);
    return true;
}

static int known(struct vg_memo *m, struct entry *e, const uint8_t *hashes, uint64_t n) {
    uint8_t rec[REC];
    vg_file_id(e->size, hashes, n, e->id);
    int r = put(m, e);
    if (r < 0)
        return r;
    pack(e, rec);
    if (m->path && vg_buf_append(&m->unsaved, rec, REC) < 0)
        return -ENOMEM;
    if (vg_buf_len(&m->unsaved) >= 1000 * REC)
        (void)vg_memo_flush(m); /* a memo that cannot be kept is still good for this life */
    return 1;
}

static struct partial *partial_of(struct vg_memo *m, const struct entry *e, uint64_t n) {
    vg_list_for_each (it, &m->partials) {
        struct partial *p = vg_list_entry(it, struct partial, link);
        if (p->e.dev != e->dev || p->e.ino != e->ino)
            continue;
        if (same(&p->e, e)) {
            vg_list_remove(&p->link);
            vg_list_push_front(&m->partials, &p->link);
            return p;
        }
        partial_free(m, p); /* another state of the same file */
        break;
    }
    if (n * VG_HASH > PARTIAL_BYTES / 2)
        return NULL; /* beyond 256 GiB: known by its stamp alone */
    while (m->partial_bytes + n * VG_HASH > PARTIAL_BYTES)
        partial_free(m, vg_list_entry(m->partials.prev, struct partial, link));
    struct partial *p = vg_alloc(sizeof(*p));
    if (!p)
        return NULL;
    p->e = *e;
    p->n = n;
    p->hash = vg_alloc(n * VG_HASH);
    p->bits = vg_alloc(n / 8 + 1);
    vg_list_push_front(&m->partials, &p->link);
    m->partial_bytes += n * VG_HASH;
    if (!p->hash || !p->bits) {
        partial_free(m, p);
        return NULL;
    }
    return p;
}

int vg_memo_leaf(struct vg_memo *m, const struct vg_mstat *st, uint64_t leaf,
                 const uint8_t hash[VG_HASH], int64_t now_ns) {
    struct entry e;
    uint8_t id[VG_HASH];
    uint64_t n = vg_leaves(st->size);
    if (leaf >= n || st->mtime > now_ns - VG_MEMO_SETTLED || st->ctime > now_ns - VG_MEMO_SETTLED ||
        vg_memo_id(m, st, id))
        return 0;
    entry_of(&e, st);
    if (n == 1)
        return known(m, &e, hash, 1);
    struct partial *p = partial_of(m, &e, n);
    if (!p || (p->bits[leaf / 8] & (1u << (leaf % 8))))
        return 0;
    p->bits[leaf / 8] |= (uint8_t)(1u << (leaf % 8));
    memcpy(p->hash + leaf * VG_HASH, hash, VG_HASH);
    if (++p->have < n)
        return 0;
    int r = known(m, &e, p->hash, n);
    partial_free(m, p);
    return r;
}

int vg_memo_flush(struct vg_memo *m) {
    if (!m->path || vg_buf_len(&m->unsaved) == 0)
        return 0;
    vg_auto_fd int fd = open(m->path, O_WRONLY | O_APPEND | O_CLOEXEC | O_NOFOLLOW);
    int r = fd < 0 ? -errno : vg_write_full(fd, vg_buf_data(&m->unsaved), vg_buf_len(&m->unsaved));
    vg_buf_clear(&m->unsaved);
    return r;
}

size_t vg_memo_count(const struct vg_memo *m) {
    return m->count;
}
