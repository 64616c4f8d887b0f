/* Folder records: writing, checking, walking, hashing. */
#include "mirror/dirrec.h"

#include "mirror/le.h"

#include <errno.h>
#include <openssl/evp.h>
#include <stdlib.h>

#define MAGIC 0x31444756u /* "VGD1" */
#define STAT_BYTES 80u
#define HEAD_BYTES (24u + STAT_BYTES)
#define ENTRY_BYTES (16u + STAT_BYTES)
#define FLAGS_KNOWN \
    (VG_DE_ID | VG_DE_DENIED | VG_DE_SECRET | VG_DE_OTHER | VG_DE_EMPTY | VG_DE_XATTR)

static void put_stat(uint8_t *p, const struct vg_mstat *s) {
    const uint64_t v[8] = {s->dev,
                           s->ino,
                           s->rdev,
                           s->size,
                           s->blocks,
                           (uint64_t)s->mtime,
                           (uint64_t)s->ctime,
                           (uint64_t)s->atime};
    const uint32_t w[4] = {s->mode, s->nlink, s->uid, s->gid};
    for (size_t i = 0; i < 8; i++)
        vg_le_put64(p + 8 * i, v[i]);
    for (size_t i = 0; i < 4; i++)
        vg_le_put32(p + 64 + 4 * i, w[i]);
}

static void get_stat(const uint8_t *p, struct vg_mstat *s) {
    *s = (struct vg_mstat){
        .dev = vg_le_get64(p),
        .ino = vg_le_get64(p + 8),
        .rdev = vg_le_get64(p + 16),
        .size = vg_le_get64(p + 24),
        .blocks = vg_le_get64(p + 32),
        .mtime = (int64_t)vg_le_get64(p + 40),
        .ctime = (int64_t)vg_le_get64(p + 48),
        .atime = (int64_t)vg_le_get64(p + 56),
        .mode = vg_le_get32(p + 64),
        .nlink = vg_le_get32(p + 68),
        .uid = vg_le_get32(p + 72),
        .gid = vg_le_get32(p + 76),
    };
}

int vg_dirrec_begin(struct vg_buf *b, uint64_t object, uint64_t seq, const struct vg_mstat *st) {
    if (vg_buf_len(b))
        return -EINVAL;
    uint8_t *p = vg_buf_reserve(b, HEAD_BYTES);
    if (!p)
        return -ENOMEM;
    vg_le_put32(p, MAGIC);
    vg_le_put32(p + 4, 0);
    vg_le_put64(p + 8, object);
    vg_le_put64(p + 16, seq);
    put_stat(p + 24, st);
    vg_buf_commit(b, HEAD_BYTES);
    return 0;
}

void vg_dirrec_set_seq(struct vg_buf *b, uint64_t seq) {
    if (vg_buf_len(b) >= HEAD_BYTES)
        vg_le_put64(b->base + b->head + 16, seq);
}

static bool name_good(const char *s, size_t n) {
    if (n == 0 || n > VG_NAME_MAX || memchr(s, '/', n) || memchr(s, '\0', n))
        return false;
    return !(s[0] == '.' && (n == 1 || (n == 2 && s[1] == '.')));
}

static bool entry_good(const struct vg_dirent *e) {
    bool is_link = S_ISLNK(e->st.mode);
    if (!name_good(e->name, e->name_len) || (e->flags & ~FLAGS_KNOWN))
        return false;
    if (is_link ? e->target_len == 0 || e->target_len > VG_TARGET_MAX : e->target_len != 0)
        return false;
    if (e->target_len && memchr(e->target, '\0', e->target_len))
        return false;
    return !(e->flags & VG_DE_ID) || S_ISREG(e->st.mode);
}

int vg_dirrec_add(struct vg_buf *b, const struct vg_dirent *e) {
    struct vg_dirent c = *e;
    c.flags = (uint8_t)(e->id ? e->flags | VG_DE_ID : e->flags & ~VG_DE_ID);
    if (!entry_good(&c) || vg_buf_len(b) < HEAD_BYTES)
        return -EINVAL;
    size_t n = ENTRY_BYTES + (c.id ? VG_HASH : 0) + c.name_len + c.target_len;
    if (vg_buf_len(b) + n > VG_DIRREC_MAX)
        return -EFBIG;
    uint8_t *p = vg_buf_reserve(b, n);
    if (!p)
        return -ENOMEM;
    vg_le_put16(p, (uint16_t)n);
    p[2] = c.flags;
    p[3] = 0;
    vg_le_put16(p + 4, c.name_len);
    vg_le_put16(p + 6, c.target_len);
    vg_le_put64(p + 8, c.object);
    put_stat(p + 16, &c.st);
    p += ENTRY_BYTES;
    if (c.id) {
        memcpy(p, c.id, VG_HASH);
        p += VG_HASH;
    }
    memcpy(p, c.name, c.name_len);
    if (c.target_len)
        memcpy(p + c.name_len, c.target, c.target_len);
    vg_buf_commit(b, n);
    uint8_t *count = vg_buf_data(b) + 4;
    vg_le_put32(count, vg_le_get32(count) + 1);
    return 0;
}

int vg_dirrec_end(struct vg_buf *b) {
    struct vg_dirrec r;
    return vg_dirrec_open(&r, vg_buf_data(b), vg_buf_len(b)) < 0 ? -EINVAL : 0;
}

/* Bytes of the entry at p, 0 when it is broken. */
static size_t read_entry(const uint8_t *p, size_t left, struct vg_dirent *e) {
    if (left < ENTRY_BYTES)
        return 0;
    size_t n = vg_le_get16(p);
    *e = (struct vg_dirent){.flags = p[2],
                            .name_len = vg_le_get16(p + 4),
                            .target_len = vg_le_get16(p + 6),
                            .object = vg_le_get64(p + 8)};
    size_t id = e->flags & VG_DE_ID ? VG_HASH : 0;
    if (n > left || p[3] != 0 || n != ENTRY_BYTES + id + e->name_len + e->target_len)
        return 0;
    get_stat(p + 16, &e->st);
    e->id = id ? p + ENTRY_BYTES : NULL;
    e->name = (const char *)p + ENTRY_BYTES + id;
    e->target = e->name + e->name_len;
    return n;
}

static int compare(const char *a, size_t an, const char *b, size_t bn) {
    int c = memcmp(a, b, an < bn ? an : bn);
    return c ? c : (an > bn) - (an < bn);
}

int vg_dirrec_open(struct vg_dirrec *r, const void *rec, size_t len) {
    const uint8_t *p = rec;
    if (len < HEAD_BYTES || len > VG_DIRREC_MAX || vg_le_get32(p) != MAGIC)
        return -EBADMSG;
    uint32_t n = 0;
    struct vg_dirent prev = {0};
    for (size_t at = HEAD_BYTES; at < len; n++) {
        struct vg_dirent e;
        size_t took = read_entry(p + at, len - at, &e);
        if (!took || !entry_good(&e))
            return -EBADMSG;
        if (n && compare(prev.name, prev.name_len, e.name, e.name_len) >= 0)
            return -EBADMSG;
        prev = e;
        at += took;
    }
    if (n != vg_le_get32(p + 4))
        return -EBADMSG;
    *r = (struct vg_dirrec){
        .base = p, .len = len, .object = vg_le_get64(p + 8), .seq = vg_le_get64(p + 16), .n = n};
    get_stat(p + 24, &r->st);
    return S_ISDIR(r->st.mode) ? 0 : -EBADMSG;
}

bool vg_dirrec_next(const struct vg_dirrec *r, size_t *at, struct vg_dirent *ret) {
    size_t pos = *at ? *at : HEAD_BYTES;
    size_t took = pos < r->len ? read_entry(r->base + pos, r->len - pos, ret) : 0;
    *at = pos + took;
    return took != 0;
}

bool vg_dirrec_find(const struct vg_dirrec *r, const char *name, size_t n, struct vg_dirent *ret) {
    for (size_t at = 0; vg_dirrec_next(r, &at, ret);) {
        int c = compare(ret->name, ret->name_len, name, n);
        if (c >= 0)
            return c == 0;
    }
    return false;
}

/* What a hash must not depend on becomes zero. */
static void blank(struct vg_mstat *s, bool state) {
    s->blocks = 0;
    s->atime = 0;
    if (state)
        return;
    s->dev = 0;
    s->ino = 0;
    s->ctime = 0;
}

static void update(EVP_MD_CTX *c, const void *p, size_t n) {
    if (EVP_DigestUpdate(c, p, n) != 1)
        abort();
}

static void hash(const struct vg_dirrec *r, bool state, uint8_t out[VG_HASH]) {
    EVP_MD_CTX *c = EVP_MD_CTX_new();
    if (!c || EVP_DigestInit_ex(c, EVP_sha256(), NULL) != 1)
        abort(); /* no memory: as in stamp.c */
    uint8_t b[ENTRY_BYTES];
    struct vg_mstat st = r->st;
    blank(&st, state);
    put_stat(b, &st);
    update(c, b, STAT_BYTES);
    struct vg_dirent e;
    for (size_t at = 0; vg_dirrec_next(r, &at, &e);) {
        uint8_t flags = state ? (uint8_t)(e.flags & ~VG_DE_ID) : e.flags;
        const uint8_t fixed[5] = {flags, (uint8_t)e.name_len, (uint8_t)(e.name_len >> 8),
                                  (uint8_t)e.target_len, (uint8_t)(e.target_len >> 8)};
        update(c, fixed, sizeof(fixed));
        blank(&e.st, state);
        put_stat(b, &e.st);
        update(c, b, STAT_BYTES);
        if (flags & VG_DE_ID)
            update(c, e.id, VG_HASH);
        update(c, e.name, (size_t)e.name_len + e.target_len);
    }
    if (EVP_DigestFinal_ex(c, out, NULL) != 1)
        abort();
    EVP_MD_CTX_free(c);
}

void vg_dirrec_hash(const struct vg_dirrec *r, uint8_t out[VG_HASH]) {
    hash(r, false, out);
}

void vg_dirrec_state(const struct vg_dirrec *r, uint8_t out[VG_HASH]) {
    hash(r, true, out);
}
