/* Frames of a link, in and out. A peer can make a reader hold one frame (1 MiB), what it unpacks
   to (1 MiB, or a message of 16 times its size), and nothing else. */
#include "mirror/mwire.h"

#include "base/mem.h"
#include "mirror/le.h"
#include "proto/unpack.h"

#include <errno.h>
#include <stdlib.h>
#include <threads.h>
#include <zstd.h>

#define DIR_HEAD 24u
#define DATA_HEAD 40u
#define WRITE_HEAD 24u
#define PIECE (VG_MW_MAX - 64u) /* of a record, before packing: leaves room for the heads */

int vg_mw_feed(struct vg_mw_in *in, const void *data, size_t n) {
    return vg_buf_append(&in->buf, data, n);
}

static int next_msg(struct vg_mw_frame *f, const uint8_t *p, size_t n) {
    struct vg_unpack_budget budget = {.left = (64u << 10) + n * 16};
    ProtobufCAllocator alloc = vg_unpack_within(&budget);
    f->msg = vg__mr__msg__unpack(&alloc, n, p);
    return f->msg ? 1 : -EBADMSG;
}

/* The bytes behind the head, unpacked when the flag says so; at most `max` of them. */
static int payload(struct vg_mw_in *in, struct vg_mw_frame *f, const uint8_t *p, size_t n,
                   size_t max) {
    f->data = p;
    f->len = n;
    if (!(f->flags & VG_MW_ZSTD))
        return n <= max ? 0 : -EBADMSG;
    unsigned long long size = ZSTD_getFrameContentSize(p, n);
    if (size == ZSTD_CONTENTSIZE_UNKNOWN || size == ZSTD_CONTENTSIZE_ERROR || size > max)
        return -EBADMSG;
    if (!in->zstd && !(in->zstd = ZSTD_createDCtx()))
        return -ENOMEM;
    vg_buf_clear(&in->unpacked);
    uint8_t *to = vg_buf_reserve(&in->unpacked, (size_t)size + 1);
    if (!to)
        return -ENOMEM;
    if (ZSTD_decompressDCtx(in->zstd, to, (size_t)size, p, n) != size)
        return -EBADMSG;
    f->data = to;
    f->len = (size_t)size;
    return 0;
}

static int next_dir(struct vg_mw_in *in, struct vg_mw_frame *f, const uint8_t *p, size_t n) {
    if (n < DIR_HEAD)
        return -EBADMSG;
    f->req = vg_le_get64(p);
    f->object = vg_le_get64(p + 8);
    f->seq = vg_le_get64(p + 16);
    int r = payload(in, f, p + DIR_HEAD, n - DIR_HEAD, VG_MW_MAX);
    return r < 0 ? r : 1;
}

/* Exactly one leaf, or what is left of the file. */
static int next_data(struct vg_mw_in *in, struct vg_mw_frame *f, const uint8_t *p, size_t n) {
    if (n < DATA_HEAD)
        return -EBADMSG;
    f->req = vg_le_get64(p);
    f->object = vg_le_get64(p + 8);
    f->offset = vg_le_get64(p + 16);
    f->size = vg_le_get64(p + 24);
    f->tag = vg_le_get32(p + 36);
    if (f->size > INT64_MAX || f->offset % VG_LEAF || f->offset > f->size ||
        (f->offset == f->size && f->size != 0))
        return -EBADMSG;
    uint64_t want = f->size - f->offset < VG_LEAF ? f->size - f->offset : VG_LEAF;
    if (vg_le_get32(p + 32) != want)
        return -EBADMSG;
    int r = payload(in, f, p + DATA_HEAD, n - DATA_HEAD, VG_LEAF);
    return r < 0 ? r : f->len == want ? 1 : -EBADMSG;
}

static int next_write(struct vg_mw_in *in, struct vg_mw_frame *f, const uint8_t *p, size_t n) {
    if (n < WRITE_HEAD)
        return -EBADMSG;
    f->op = vg_le_get64(p);
    f->object = vg_le_get64(p + 8);
    f->offset = vg_le_get64(p + 16);
    int r = payload(in, f, p + WRITE_HEAD, n - WRITE_HEAD, VG_MW_MAX);
    if (r < 0)
        return r;
    return f->offset <= INT64_MAX - f->len ? 1 : -EBADMSG;
}

int vg_mw_next(struct vg_mw_in *in, struct vg_mw_frame *ret) {
    *ret = (struct vg_mw_frame){0};
    if (vg_buf_len(&in->buf) < VG_MW_HEADER)
        return 0;
    const uint8_t *p = vg_buf_data(&in->buf);
    uint32_t n = vg_le_get32(p);
    ret->kind = p[4];
    ret->flags = p[5];
    if (n > VG_MW_MAX || vg_le_get16(p + 6) != 0 || (ret->flags & ~(VG_MW_MORE | VG_MW_ZSTD)) ||
        ((ret->flags & VG_MW_MORE) && ret->kind != VG_MW_DIR) ||
        (ret->flags && ret->kind == VG_MW_MSG))
        return -EBADMSG;
    if (vg_buf_len(&in->buf) - VG_MW_HEADER < n)
        return 0;
    p += VG_MW_HEADER;
    int r = -EBADMSG;
    switch (ret->kind) {
    case VG_MW_MSG:
        r = next_msg(ret, p, n);
        break;
    case VG_MW_DIR:
        r = next_dir(in, ret, p, n);
        break;
    case VG_MW_DATA:
        r = next_data(in, ret, p, n);
        break;
    case VG_MW_WRITE:
        r = next_write(in, ret, p, n);
        break;
    }
    if (r > 0) /* the bytes stay where they are until something is fed */
        vg_buf_consume(&in->buf, VG_MW_HEADER + n);
    return r;
}

void vg_mw_frame_done(struct vg_mw_frame *f) {
    ProtobufCAllocator alloc = vg_unpack_within(NULL);
    if (f->msg)
        vg__mr__msg__free_unpacked(f->msg, &alloc);
    *f = (struct vg_mw_frame){0};
}

void vg_mw_in_done(struct vg_mw_in *in) {
    vg_buf_done(&in->buf);
    vg_buf_done(&in->unpacked);
    ZSTD_freeDCtx(in->zstd);
    in->zstd = NULL;
}

static void put_head(uint8_t *p, enum vg_mw_kind kind, int flags, size_t n) {
    vg_le_put32(p, (uint32_t)n);
    p[4] = (uint8_t)kind;
    p[5] = (uint8_t)flags;
    vg_le_put16(p + 6, 0);
}

int vg_mw_msg(struct vg_buf *out, const Vg__Mr__Msg *m) {
    size_t n = vg__mr__msg__get_packed_size(m);
    if (n > VG_MW_MAX)
        return -EMSGSIZE;
    uint8_t *p = vg_buf_reserve(out, VG_MW_HEADER + n);
    if (!p)
        return -ENOMEM;
    put_head(p, VG_MW_MSG, 0, n);
    vg__mr__msg__pack(m, p + VG_MW_HEADER);
    vg_buf_commit(out, VG_MW_HEADER + n);
    return 0;
}

static once_flag once = ONCE_FLAG_INIT;
static tss_t context;
static bool has_context;

static void context_free(void *ctx) {
    ZSTD_freeCCtx(ctx);
}

static void context_init(void) {
    has_context = tss_create(&context, context_free) == thrd_success;
}

/* One a thread, made at its first use and gone with the thread, or NULL: setting up the tables anew
   costs as much as a small file. It holds nothing of what went through it. */
static ZSTD_CCtx *context_of_thread(void) {
    call_once(&once, context_init);
    ZSTD_CCtx *ctx = has_context ? tss_get(context) : NULL;
    if (ctx || !has_context || !(ctx = ZSTD_createCCtx()))
        return ctx;
    if (tss_set(context, ctx) == thrd_success)
        return ctx;
    ZSTD_freeCCtx(ctx);
    return NULL;
}

static size_t squeeze(void *to, size_t room, const void *data, size_t len, int level) {
    ZSTD_CCtx *ctx = context_of_thread();
    return ctx ? ZSTD_compressCCtx(ctx, to, room, data, len, level)
               : ZSTD_compress(to, room, data, len, level);
}

/* A frame: head, then the bytes, packed where that saves at least 5 %. */
static int put_frame(struct vg_buf *out, enum vg_mw_kind kind, int flags, const uint8_t *head,
                     size_t head_len, const void *data, size_t len, int level) {
    size_t room = level ? ZSTD_compressBound(len) : len;
    uint8_t *p = vg_buf_reserve(out, VG_MW_HEADER + head_len + (room > len ? room : len));
    if (!p)
        return -ENOMEM;
    uint8_t *to = p + VG_MW_HEADER + head_len;
    size_t n = level ? squeeze(to, room, data, len, level) : len;
    if (level && !ZSTD_isError(n) && n + len / 20 < len)
        flags |= VG_MW_ZSTD;
    else {
        n = len;
        if (len)
            memcpy(to, data, len);
    }
    put_head(p, kind, flags, head_len + n);
    memcpy(p + VG_MW_HEADER, head, head_len);
    vg_buf_commit(out, VG_MW_HEADER + head_len + n);
    return 0;
}

int vg_mw_dir(struct vg_buf *out, uint64_t req, uint64_t object, uint64_t seq, const void *rec,
              size_t len, int level) {
    if (len > VG_MW_DIR_MAX)
        return -EMSGSIZE;
    uint8_t head[DIR_HEAD];
    vg_le_put64(head, req);
    vg_le_put64(head + 8, object);
    vg_le_put64(head + 16, seq);
    for (size_t at = 0;;) {
        size_t n = len - at < PIECE ? len - at : PIECE;
        int r = put_frame(out, VG_MW_DIR, at + n < len ? VG_MW_MORE : 0, head, DIR_HEAD,
                          (const uint8_t *)rec + at, n, level);
        at += n;
        if (r < 0 || at == len)
            return r;
    }
}

static int put_data(struct vg_buf *out, uint64_t req, uint64_t object, uint64_t offset,
                    uint64_t size, uint32_t tag, const void *data, size_t len, int level) {
    if (offset % VG_LEAF || offset > size || len > size - offset || (len == 0 && size != 0) ||
        (len % VG_LEAF && offset + len != size))
        return -EINVAL;
    uint8_t head[DATA_HEAD];
    vg_le_put64(head, req);
    vg_le_put64(head + 8, object);
    vg_le_put64(head + 24, size);
    vg_le_put32(head + 36, tag);
    for (size_t at = 0;;) {
        size_t n = len - at < VG_LEAF ? len - at : VG_LEAF;
        vg_le_put64(head + 16, offset + at);
        vg_le_put32(head + 32, (uint32_t)n);
        int r =
            put_frame(out, VG_MW_DATA, 0, head, DATA_HEAD, (const uint8_t *)data + at, n, level);
        at += n;
        if (r < 0 || at == len)
            return r;
    }
}

int vg_mw_data(struct vg_buf *out, uint64_t req, uint64_t object, uint64_t offset, uint64_t size,
               const void *data, size_t len, int level) {
    return put_data(out, req, object, offset, size, 0, data, len, level);
}

int vg_mw_data_of(struct vg_buf *out, uint64_t req, uint64_t object, uint64_t offset,
                  const struct vg_mstat *st, const void *data, size_t len, int level) {
    return put_data(out, req, object, offset, st->size, vg_state_tag(st), data, len, level);
}

void vg_mw_data_for(struct vg_buf *frame, uint64_t req) {
    if (vg_buf_len(frame) >= VG_MW_HEADER + DATA_HEAD)
        vg_le_put64(vg_buf_data(frame) + VG_MW_HEADER, req);
}

int vg_mw_write(struct vg_buf *out, uint64_t op, uint64_t object, uint64_t offset, const void *data,
                size_t len, int level) {
    if (len > VG_MW_WRITE_MAX)
        return -EMSGSIZE;
    uint8_t head[WRITE_HEAD];
    vg_le_put64(head, op);
    vg_le_put64(head + 8, object);
    vg_le_put64(head + 16, offset);
    return put_frame(out, VG_MW_WRITE, 0, head, WRITE_HEAD, data, len, level);
}

void vg_mw_stat_to(Vg__Mr__Stat *out, const struct vg_mstat *st) {
    vg__mr__stat__init(out);
#define PUT(field)        \
    out->has_##field = 1; \
    out->field = st->field;
    PUT(dev)
    PUT(ino)
    PUT(mode)
    PUT(nlink)
    PUT(uid)
    PUT(gid)
    PUT(rdev)
    PUT(size)
    PUT(blocks)
    PUT(mtime)
    PUT(ctime)
    PUT(atime)
#undef PUT
}

void vg_mw_stat_from(struct vg_mstat *out, const Vg__Mr__Stat *st) {
    *out = (struct vg_mstat){.dev = st->dev,
                             .ino = st->ino,
                             .rdev = st->rdev,
                             .size = st->size,
                             .blocks = st->blocks,
                             .mtime = st->mtime,
                             .ctime = st->ctime,
                             .atime = st->atime,
                             .mode = st->mode,
                             .nlink = st->nlink,
                             .uid = st->uid,
                             .gid = st->gid};
}
