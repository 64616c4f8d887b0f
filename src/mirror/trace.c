/* Traces: building, folding, packing, keys.

   A packed trace is a zstd frame around
       u32 magic "VGT1"  u32 items
       item: u8 bits (1: folder)  u8 unused  u16 length of path  u32 leaves  path
             leaves as varints, each the distance from the one before */
#include "mirror/trace.h"

#include "base/map.h"
#include "base/mem.h"
#include "mirror/le.h"

#include <errno.h>
#include <openssl/evp.h>
#include <stdlib.h>
#include <zstd.h>

#define MAGIC 0x31544756u /* "VGT1" */
#define ITEM_HEAD 8u
#define UNPACKED_MAX (64u << 20)
#define PATH_BYTES 4095u
#define FORGET_AFTER 3

static void item_done(struct vg_trace_item *i) {
    free(i->path);
    free(i->leaf);
}

void vg_trace_done(struct vg_trace *t) {
    for (size_t i = 0; i < t->n; i++)
        item_done(&t->item[i]);
    free(t->item);
    *t = (struct vg_trace){0};
}

static int by_number(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static uint32_t unique(uint32_t *leaf, size_t n) {
    uint32_t k = 0;
    qsort(leaf, n, sizeof(*leaf), by_number);
    for (size_t i = 0; i < n; i++)
        if (k == 0 || leaf[k - 1] != leaf[i])
            leaf[k++] = leaf[i];
    return k;
}

/* Adds leaves to those an item has. */
static int item_use(struct vg_trace_item *i, const uint32_t *leaf, uint32_t n) {
    if (n == 0)
        return 0;
    if (n > VG_TRACE_LEAVES - i->n_leaf)
        return -E2BIG;
    uint32_t *all = vg_realloc(i->leaf, ((size_t)i->n_leaf + n) * sizeof(*all));
    if (!all)
        return -ENOMEM;
    memcpy(all + i->n_leaf, leaf, n * sizeof(*all));
    i->leaf = all;
    i->n_leaf = unique(all, (size_t)i->n_leaf + n);
    return 0;
}

static int push(struct vg_trace *t, const struct vg_trace_item *item) {
    if (t->n == VG_TRACE_ITEMS)
        return -E2BIG;
    if ((t->n & (t->n - 1)) == 0) { /* the room is the next power of two */
        void *grown = vg_realloc(t->item, (t->n ? t->n * 2 : 1) * sizeof(*t->item));
        if (!grown)
            return -ENOMEM;
        t->item = grown;
    }
    t->item[t->n++] = *item;
    return 0;
}

int vg_trace_add(struct vg_trace *t, const char *path, bool folder, const uint32_t *leaf,
                 uint32_t n_leaf) {
    size_t len = strlen(path);
    if (path[0] != '/' || len > PATH_BYTES || (folder && n_leaf))
        return -EINVAL;
    struct vg_trace_item i = {.path = vg_strdup(path), .folder = folder};
    int r = i.path ? item_use(&i, leaf, n_leaf) : -ENOMEM;
    if (r == 0)
        r = push(t, &i);
    if (r < 0)
        item_done(&i);
    return r;
}

struct folding { /* several traces into one */
    struct vg_trace to;
    struct vg_map last; /* path to the number of its last item, from 2: 0 and 1 are "nothing" */
    size_t *before;     /* by item: the path's item before it, SIZE_MAX: none */
};

static bool has_leaf(const struct folding *f, size_t item, uint32_t leaf) {
    for (; item != SIZE_MAX; item = f->before[item]) {
        const struct vg_trace_item *i = &f->to.item[item];
        if (i->n_leaf && bsearch(&leaf, i->leaf, i->n_leaf, sizeof(leaf), by_number))
            return true;
    }
    return false;
}

/* Moves it behind what is there. */
static int fold_push(struct folding *f, struct vg_trace_item *x, size_t before) {
    int r = push(&f->to, x);
    if (r < 0)
        return r;
    f->before[f->to.n - 1] = before;
    r = vg_map_put(&f->last, x->path, (void *)(uintptr_t)(f->to.n + 1));
    *x = (struct vg_trace_item){0};
    return r;
}

/* Only leaves that are not known yet count: they go to where the path is named already when nothing
   else was used in between, or when it was only opened there; else behind, so that the order in
   which files took turns stays. */
static int fold_item(struct folding *f, struct vg_trace_item *x) {
    void *slot = vg_map_get(&f->last, x->path);
    if (!slot)
        return fold_push(f, x, SIZE_MAX);
    size_t at = (size_t)(uintptr_t)slot - 2;
    struct vg_trace_item *have = &f->to.item[at];
    uint32_t n = 0;
    for (uint32_t i = 0; have->folder == x->folder && i < x->n_leaf; i++)
        if (!has_leaf(f, at, x->leaf[i]))
            x->leaf[n++] = x->leaf[i];
    x->n_leaf = n;
    if (n == 0)
        return 0;
    bool follows = at + 1 == f->to.n && have->n_leaf && x->leaf[0] > have->leaf[have->n_leaf - 1];
    return have->n_leaf == 0 || follows ? item_use(have, x->leaf, n) : fold_push(f, x, at);
}

static int fold(struct folding *f, struct vg_trace *from) {
    int r = 0;
    for (size_t i = 0; r == 0 && i < from->n; i++)
        r = fold_item(f, &from->item[i]);
    return r;
}

static int copy(struct vg_trace *to, const struct vg_trace *from) {
    for (size_t i = 0; i < from->n; i++) {
        const struct vg_trace_item *x = &from->item[i];
        int r = vg_trace_add(to, x->path, x->folder, x->leaf, x->n_leaf);
        if (r < 0)
            return r;
    }
    return 0;
}

/* One older, or gone. */
static void age(struct vg_trace *kept, const struct vg_map *used) {
    size_t k = 0;
    for (size_t i = 0; i < kept->n; i++) {
        struct vg_trace_item *x = &kept->item[i];
        if (!vg_map_get(used, x->path) && ++x->unused >= FORGET_AFTER) {
            item_done(x);
            continue;
        }
        kept->item[k++] = *x;
    }
    kept->n = k;
}

static int index_of(const struct vg_trace *t, struct vg_map *m) {
    for (size_t i = 0; i < t->n; i++) {
        int r = vg_map_put(m, t->item[i].path, (void *)(uintptr_t)(i + 2));
        if (r < 0)
            return r;
    }
    return 0;
}

/* A whole run decides the order: what it used comes first, as it used it. Else what is new comes
   behind what was known. Everything is put together aside, so that a failure changes nothing. */
int vg_trace_merge(struct vg_trace *kept, const struct vg_trace *run, bool whole) {
    struct vg_trace old = {0}, now = {0};
    struct vg_map used = {0};
    struct folding f = {.before = vg_alloc((kept->n + run->n + 1) * sizeof(size_t))};
    int r = f.before ? copy(&old, kept) : -ENOMEM;
    if (r == 0)
        r = copy(&now, run);
    if (r == 0)
        r = index_of(run, &used);
    if (r == 0) {
        for (size_t i = 0; i < old.n; i++)
            old.item[i].unused = vg_map_get(&used, old.item[i].path) ? 0 : kept->item[i].unused;
        if (whole)
            age(&old, &used);
        r = fold(&f, whole ? &now : &old);
    }
    if (r == 0)
        r = fold(&f, whole ? &old : &now);
    if (r == 0) {
        vg_trace_done(kept);
        *kept = f.to;
        f.to = (struct vg_trace){0};
    }
    vg_map_done(&used);
    vg_map_done(&f.last);
    vg_trace_done(&old);
    vg_trace_done(&now);
    vg_trace_done(&f.to);
    free(f.before);
    return r;
}

static int put_varint(struct vg_buf *b, uint32_t v) {
    uint8_t p[5];
    size_t n = 0;
    for (; v >= 128; v >>= 7)
        p[n++] = (uint8_t)(v | 128);
    p[n++] = (uint8_t)v;
    return vg_buf_append(b, p, n);
}

static int put_item(struct vg_buf *b, const struct vg_trace_item *i) {
    uint8_t head[ITEM_HEAD] = {i->folder, i->unused};
    size_t len = strlen(i->path);
    vg_le_put16(head + 2, (uint16_t)len);
    vg_le_put32(head + 4, i->n_leaf);
    int r = vg_buf_append(b, head, sizeof(head));
    if (r == 0)
        r = vg_buf_append(b, i->path, len);
    uint32_t last = 0;
    for (uint32_t k = 0; k < i->n_leaf && r == 0; k++) {
        r = put_varint(b, i->leaf[k] - last);
        last = i->leaf[k];
    }
    return r;
}

int vg_trace_pack(const struct vg_trace *t, struct vg_buf *out) {
    struct vg_buf b = {0};
    uint8_t head[8];
    vg_le_put32(head, MAGIC);
    vg_le_put32(head + 4, (uint32_t)t->n);
    int r = vg_buf_append(&b, head, sizeof(head));
    for (size_t i = 0; i < t->n && r == 0; i++)
        r = put_item(&b, &t->item[i]);
    size_t len = vg_buf_len(&b), room = ZSTD_compressBound(len);
    if (r == 0 && len > UNPACKED_MAX)
        r = -EFBIG;
    uint8_t *to = r == 0 ? vg_buf_reserve(out, room) : NULL;
    if (r == 0 && !to)
        r = -ENOMEM;
    if (r == 0) {
        size_t n = ZSTD_compress(to, room, vg_buf_data(&b), len, 3);
        if (ZSTD_isError(n))
            r = -ENOMEM; /* there is room enough: nothing else can be wrong */
        else
            vg_buf_commit(out, n);
    }
    vg_buf_done(&b);
    return r;
}

struct reader {
    const uint8_t *p;
    size_t n;
};

static const uint8_t *take(struct reader *in, size_t n) {
    if (in->n < n)
        return NULL;
    const uint8_t *p = in->p;
    in->p += n;
    in->n -= n;
    return p;
}

static bool get_varint(struct reader *in, uint32_t *ret) {
    uint64_t v = 0;
    for (unsigned shift = 0; shift < 35; shift += 7) {
        const uint8_t *p = take(in, 1);
        if (!p)
            return false;
        v |= (uint64_t)(*p & 127) << shift;
        if (!(*p & 128)) {
            *ret = (uint32_t)v;
            return v <= UINT32_MAX;
        }
    }
    return false;
}

static int get_leaves(struct reader *in, struct vg_trace_item *i, uint32_t n) {
    if (n > in->n || n > VG_TRACE_LEAVES || (n && i->folder)) /* a leaf takes a byte at least */
        return -EBADMSG;
    if (n && !(i->leaf = vg_alloc(n * sizeof(*i->leaf))))
        return -ENOMEM;
    for (uint32_t k = 0; k < n; k++) {
        uint32_t step, last = k ? i->leaf[k - 1] : 0;
        if (!get_varint(in, &step) || (k && step == 0) || step > UINT32_MAX - last)
            return -EBADMSG;
        i->leaf[k] = last + step;
    }
    i->n_leaf = n;
    return 0;
}

static int get_item(struct reader *in, struct vg_trace *t) {
    const uint8_t *head = take(in, ITEM_HEAD);
    size_t len = head ? vg_le_get16(head + 2) : 0;
    const char *path = (const char *)take(in, len);
    if (!head || !path || head[0] > 1 || head[1] >= FORGET_AFTER || len == 0 || len > PATH_BYTES ||
        path[0] != '/' || memchr(path, '\0', len))
        return -EBADMSG;
    struct vg_trace_item i = {.path = vg_strndup(path, len), .folder = head[0], .unused = head[1]};
    int r = i.path ? get_leaves(in, &i, vg_le_get32(head + 4)) : -ENOMEM;
    if (r == 0)
        r = push(t, &i);
    if (r < 0)
        item_done(&i);
    return r == -E2BIG ? -EBADMSG : r;
}

static int get_all(struct reader in, struct vg_trace *t) {
    const uint8_t *head = take(&in, 8);
    if (!head || vg_le_get32(head) != MAGIC)
        return -EBADMSG;
    uint32_t n = vg_le_get32(head + 4);
    for (uint32_t i = 0; i < n; i++) {
        int r = get_item(&in, t);
        if (r < 0)
            return r;
    }
    return in.n ? -EBADMSG : 0;
}

int vg_trace_unpack(struct vg_trace *t, const void *data, size_t n) {
    unsigned long long size = ZSTD_getFrameContentSize(data, n);
    if (size == ZSTD_CONTENTSIZE_UNKNOWN || size == ZSTD_CONTENTSIZE_ERROR || size > UNPACKED_MAX)
        return -EBADMSG;
    uint8_t *p = vg_realloc(NULL, (size_t)size + 1);
    if (!p)
        return -ENOMEM;
    struct vg_trace got = {0};
    int r = -EBADMSG;
    if (ZSTD_decompress(p, (size_t)size, data, n) == size)
        r = get_all((struct reader){p, (size_t)size}, &got);
    free(p);
    if (r < 0) {
        vg_trace_done(&got);
        return r;
    }
    vg_trace_done(t);
    *t = got;
    return 0;
}

static bool is_number(const char *s) {
    char *end;
    if (!*s)
        return true;
    strtod(s, &end);
    return *end == '\0';
}

static void update(EVP_MD_CTX *c, const char *s, size_t n) {
    if (EVP_DigestUpdate(c, s, n) != 1 || EVP_DigestUpdate(c, "", 1) != 1)
        abort();
}

/* "--name=value" counts as "--name"; numbers do not count. */
static void key(const char *kind, const char *const *argv, size_t n, const char *project,
                char out[65]) {
    uint8_t h[VG_HASH];
    EVP_MD_CTX *c = EVP_MD_CTX_new();
    if (!c || EVP_DigestInit_ex(c, EVP_sha256(), NULL) != 1)
        abort(); /* no memory: as in stamp.c */
    update(c, kind, strlen(kind));
    for (size_t i = 0, took = 0; i < n && took < 3; i++) {
        if (i && is_number(argv[i]))
            continue;
        const char *eq = i && argv[i][0] == '-' ? strchr(argv[i], '=') : NULL;
        update(c, argv[i], eq ? (size_t)(eq - argv[i]) : strlen(argv[i]));
        took++;
    }
    if (project) {
        update(c, "in", 2);
        update(c, project, strlen(project));
    }
    if (EVP_DigestFinal_ex(c, h, NULL) != 1)
        abort();
    EVP_MD_CTX_free(c);
    vg_hex(h, sizeof(h), out);
}

size_t vg_trace_keys(const char *const *argv, size_t n, const char *project, char out[3][65]) {
    size_t k = 0;
    if (n) {
        key("command", argv, n, project, out[k++]);
        key("program", argv, 1, NULL, out[k++]);
    }
    if (project)
        key("project", NULL, 0, project, out[k++]);
    return k;
}
