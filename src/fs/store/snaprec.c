/* Folders of snapshots: writing, checking, walking. */
#include "fs/store/snaprec.h"

#include <errno.h>
#include <string.h>

#define MAGIC "VGS1"
#define HEAD 8u
#define EXT_HEAD 12u

static uint32_t get32(const uint8_t *p) {
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static void put32(uint8_t *p, uint32_t v) {
    for (int i = 0; i < 4; i++)
        p[i] = (uint8_t)(v >> (8 * i));
}

static size_t read_ext(const uint8_t *p, size_t left, struct vg_snapext *e) {
    if (left < EXT_HEAD)
        return 0;
    *e = (struct vg_snapext){.entry = get32(p),
                             .kind = p[4],
                             .name_len = (uint16_t)(p[6] | p[7] << 8),
                             .value_len = get32(p + 8)};
    if (p[5] != 0 || e->name_len > left - EXT_HEAD || e->value_len > left - EXT_HEAD - e->name_len)
        return 0;
    e->name = (const char *)p + EXT_HEAD;
    e->value = p + EXT_HEAD + e->name_len;
    return EXT_HEAD + e->name_len + e->value_len;
}

/* The folder itself comes first although its number is the last. */
static uint32_t rank(uint32_t entry) {
    return entry == VG_SNAP_SELF ? 0 : entry + 1;
}

static int ext_order(const struct vg_snapext *a, const struct vg_snapext *b) {
    if (a->entry != b->entry)
        return rank(a->entry) < rank(b->entry) ? -1 : 1;
    if (a->kind != b->kind)
        return a->kind < b->kind ? -1 : 1;
    int c = memcmp(a->name, b->name, a->name_len < b->name_len ? a->name_len : b->name_len);
    return c ? c : (a->name_len > b->name_len) - (a->name_len < b->name_len);
}

static bool ext_good(const struct vg_snapext *e, uint32_t entries) {
    if (e->entry != VG_SNAP_SELF && e->entry >= entries)
        return false;
    if (e->kind == VG_SNAP_CHILD)
        return e->entry != VG_SNAP_SELF && e->name_len == 0 && e->value_len == VG_HASH;
    return e->kind == VG_SNAP_XATTR && e->name_len > 0 && e->name_len <= VG_XATTR_NAME_MAX &&
           !memchr(e->name, '\0', e->name_len) && e->value_len <= VG_XATTR_VALUE_MAX;
}

/* Hashes of children belong to folders. */
static bool children_good(const struct vg_snaprec *r) {
    struct vg_dirent e;
    size_t at = 0, ext_at = 0;
    uint32_t i = 0;
    struct vg_snapext x;
    bool more = vg_snaprec_next_ext(r, &ext_at, &x);
    for (; vg_dirrec_next(&r->rec, &at, &e); i++)
        for (; more && (x.entry == VG_SNAP_SELF || x.entry == i);
             more = vg_snaprec_next_ext(r, &ext_at, &x))
            if (x.kind == VG_SNAP_CHILD && !S_ISDIR(e.st.mode))
                return false;
    return true;
}

int vg_snaprec_open(struct vg_snaprec *r, const void *data, size_t n) {
    const uint8_t *p = data;
    if (n < HEAD || memcmp(p, MAGIC, 4) != 0)
        return -EBADMSG;
    size_t len = get32(p + 4);
    if (len > n - HEAD || vg_dirrec_open(&r->rec, p + HEAD, len) < 0)
        return -EBADMSG;
    r->ext = p + HEAD + len;
    r->ext_len = n - HEAD - len;
    struct vg_snapext prev = {0}, e;
    bool any = false;
    for (size_t at = 0; at < r->ext_len;) {
        size_t took = read_ext(r->ext + at, r->ext_len - at, &e);
        if (!took || !ext_good(&e, r->rec.n) || (any && ext_order(&prev, &e) >= 0))
            return -EBADMSG;
        any = true;
        prev = e;
        at += took;
    }
    return children_good(r) ? 0 : -EBADMSG;
}

bool vg_snaprec_next_ext(const struct vg_snaprec *r, size_t *at, struct vg_snapext *ret) {
    size_t took = *at < r->ext_len ? read_ext(r->ext + *at, r->ext_len - *at, ret) : 0;
    *at += took;
    return took != 0;
}

const uint8_t *vg_snaprec_child(const struct vg_snaprec *r, uint32_t entry) {
    struct vg_snapext e;
    for (size_t at = 0; vg_snaprec_next_ext(r, &at, &e);)
        if (e.entry == entry && e.kind == VG_SNAP_CHILD)
            return e.value;
    return NULL;
}

void vg_snap_stat(struct vg_mstat *st) {
    st->dev = st->ino = st->blocks = 0;
    st->ctime = st->atime = 0;
    if (S_ISDIR(st->mode))
        st->size = 0;
    st->nlink = S_ISDIR(st->mode) ? 2 : 1;
}

int vg_snapbuild_begin(struct vg_snapbuild *b, const struct vg_mstat *st) {
    *b = (struct vg_snapbuild){0};
    struct vg_mstat s = *st;
    vg_snap_stat(&s);
    return vg_dirrec_begin(&b->rec, 0, 0, &s);
}

static int add_ext(struct vg_snapbuild *b, uint8_t kind, const char *name, size_t name_len,
                   const void *value, size_t n) {
    uint8_t head[EXT_HEAD] = {0};
    put32(head, b->n ? b->n - 1 : VG_SNAP_SELF);
    head[4] = kind;
    head[6] = (uint8_t)name_len;
    head[7] = (uint8_t)(name_len >> 8);
    put32(head + 8, (uint32_t)n);
    int r = vg_buf_append(&b->ext, head, sizeof(head));
    if (r == 0)
        r = vg_buf_append(&b->ext, name, name_len);
    return r == 0 ? vg_buf_append(&b->ext, value, n) : r;
}

int vg_snapbuild_add(struct vg_snapbuild *b, const struct vg_dirent *e, const uint8_t *child) {
    struct vg_dirent c = *e;
    c.object = 0;
    vg_snap_stat(&c.st);
    int r = vg_dirrec_add(&b->rec, &c);
    if (r < 0)
        return r;
    b->n++;
    return child ? add_ext(b, VG_SNAP_CHILD, "", 0, child, VG_HASH) : 0;
}

int vg_snapbuild_xattr(struct vg_snapbuild *b, const char *name, size_t name_len, const void *value,
                       size_t n) {
    if (name_len == 0 || name_len > VG_XATTR_NAME_MAX || n > VG_XATTR_VALUE_MAX)
        return -EINVAL;
    return add_ext(b, VG_SNAP_XATTR, name, name_len, value, n);
}

int vg_snapbuild_end(struct vg_snapbuild *b, struct vg_buf *out) {
    int r = vg_dirrec_end(&b->rec);
    uint8_t head[HEAD];
    memcpy(head, MAGIC, 4);
    put32(head + 4, (uint32_t)vg_buf_len(&b->rec));
    if (r == 0)
        r = vg_buf_append(out, head, sizeof(head));
    if (r == 0)
        r = vg_buf_append(out, vg_buf_data(&b->rec), vg_buf_len(&b->rec));
    if (r == 0)
        r = vg_buf_append(out, vg_buf_data(&b->ext), vg_buf_len(&b->ext));
    struct vg_snaprec check;
    if (r == 0 && vg_snaprec_open(&check, vg_buf_data(out), vg_buf_len(out)) < 0)
        r = -EINVAL;
    return r;
}

void vg_snapbuild_done(struct vg_snapbuild *b) {
    vg_buf_done(&b->rec);
    vg_buf_done(&b->ext);
}
