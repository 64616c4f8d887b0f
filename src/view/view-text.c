/* Views outwards, straight to text: what vg_view_json() makes, without the tree between. For
   answers that are asked for thousands of times a second. */
#include "base/cleanup.h"
#include "view/view-int.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define PAIRS_MAX 128

static int put(struct vg_buf *b, const char *s) {
    return vg_buf_append(b, s, strlen(s));
}

/* By jansson: what is rare, or made elsewhere. Takes j. */
static int put_json(struct vg_buf *b, json_t *j) {
    vg_auto_free char *text = j ? json_dumps(j, JSON_COMPACT | JSON_ENCODE_ANY) : NULL;
    json_decref(j);
    return text ? put(b, text) : -ENOMEM;
}

static bool plain(const char *s, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (s[i] < 0x20 || s[i] == 0x7f || s[i] == '"' || s[i] == '\\')
            return false;
    return true;
}

static int put_bytes(struct vg_buf *b, const void *p, size_t n) {
    if (!n)
        return put(b, "\"\"");
    if (!plain(p, n))
        return put_json(b, vg_json_bytes(p, n));
    int r = put(b, "\"") | vg_buf_append(b, p, n) | put(b, "\"");
    return r < 0 ? -ENOMEM : 0;
}

static int put_text(struct vg_buf *b, const char *s) {
    return s ? put_bytes(b, s, strlen(s)) : put(b, "null");
}

static int put_number(struct vg_buf *b, int64_t v) {
    char text[24], *p = text + sizeof text;
    uint64_t u = v < 0 ? 0 - (uint64_t)v : (uint64_t)v;
    do
        *--p = (char)('0' + u % 10);
    while (u /= 10);
    if (v < 0)
        *--p = '-';
    return vg_buf_append(b, p, (size_t)(text + sizeof text - p));
}

static int put_id(struct vg_buf *b, uint64_t id) {
    static const char digits[] = "0123456789abcdef";
    char text[18] = "\"";
    if (!id)
        return put(b, "null");
    for (int i = 0; i < 16; i++)
        text[1 + i] = digits[id >> (60 - 4 * i) & 15];
    text[17] = '"';
    return vg_buf_append(b, text, sizeof text);
}

static int put_value(struct vg_buf *b, const struct vg_view_field *f, const void *at) {
    const ProtobufCBinaryData *bytes = at;
    switch (f->pb->type) {
    case PROTOBUF_C_TYPE_STRING:
        return put_text(b, *(char *const *)at);
    case PROTOBUF_C_TYPE_BYTES:
        return f->kind == VG_VIEW_HEX ? put_json(b, vg_view_hex(bytes))
                                      : put_bytes(b, bytes->data, bytes->len);
    case PROTOBUF_C_TYPE_MESSAGE:
        return vg_view_text(b, f->of, *(void *const *)at);
    case PROTOBUF_C_TYPE_BOOL:
        return put(b, *(const protobuf_c_boolean *)at ? "true" : "false");
    case PROTOBUF_C_TYPE_ENUM:
        return put_json(b, vg_view_enum(f->pb->descriptor, *(const int *)at));
    case PROTOBUF_C_TYPE_INT32:
    case PROTOBUF_C_TYPE_SINT32:
        return put_number(b, *(const int32_t *)at);
    case PROTOBUF_C_TYPE_INT64:
    case PROTOBUF_C_TYPE_SINT64:
        return put_number(b, *(const int64_t *)at);
    case PROTOBUF_C_TYPE_UINT32:
        return put_number(b, *(const uint32_t *)at);
    case PROTOBUF_C_TYPE_UINT64:
        return f->kind == VG_VIEW_ID ? put_id(b, *(const uint64_t *)at)
                                     : put_number(b, (int64_t) * (const uint64_t *)at);
    default:
        return put(b, "null");
    }
}

struct pair {
    const char *key, *value;
    size_t key_len, len;
};

/* Pairs "k=v" as jansson would keep them; false: it had better do so itself (a key that is there
   twice, bytes that are no text). */
static bool read_pairs(const struct vg_view_field *f, const char *at, size_t n, struct pair *ret) {
    for (size_t i = 0; i < n; i++) {
        const ProtobufCBinaryData *v = (const ProtobufCBinaryData *)at + i;
        bool bytes = f->pb->type == PROTOBUF_C_TYPE_BYTES;
        const char *text = bytes ? (const char *)v->data : ((char *const *)at)[i];
        size_t len = bytes ? v->len : strlen(text);
        const char *eq = len ? memchr(text, '=', len) : NULL;
        if (!eq || eq == text || eq - text > 255 || !plain(text, len))
            return false;
        ret[i] = (struct pair){text, eq + 1, (size_t)(eq - text), len - (size_t)(eq - text) - 1};
        for (size_t k = 0; k < i; k++)
            if (ret[k].key_len == ret[i].key_len && memcmp(ret[k].key, text, ret[k].key_len) == 0)
                return false;
    }
    return true;
}

static int put_pairs(struct vg_buf *b, const struct vg_view_field *f, const char *m, const char *at,
                     size_t n) {
    struct pair pair[PAIRS_MAX];
    if (n > PAIRS_MAX || !read_pairs(f, at, n, pair))
        return put_json(b, vg_view_list(f, m));
    int r = put(b, "{");
    for (size_t i = 0; i < n && r >= 0; i++) {
        r = i ? put(b, ",") : 0;
        r |= put_bytes(b, pair[i].key, pair[i].key_len) | put(b, ":") |
             put_bytes(b, pair[i].value, pair[i].len);
    }
    return r < 0 ? -ENOMEM : put(b, "}");
}

static int put_list(struct vg_buf *b, const struct vg_view_field *f, const char *m) {
    size_t n = *(const size_t *)(m + f->pb->quantifier_offset), step = vg_view_size(f->pb->type);
    const char *at = *(char *const *)(m + f->pb->offset);
    if (f->kind == VG_VIEW_LABELS)
        return put_pairs(b, f, m, at, n);
    int r = put(b, "[");
    for (size_t i = 0; i < n && r >= 0; i++) {
        r = i ? put(b, ",") : 0;
        if (r >= 0)
            r = put_value(b, f, at + i * step);
    }
    return r < 0 ? r : put(b, "]");
}

static int put_name(struct vg_buf *b, const char *name, bool *first) {
    int r = put(b, *first ? "\"" : ",\"") | put(b, name) | put(b, "\":");
    *first = false;
    return r < 0 ? -ENOMEM : 0;
}

static int put_all(struct vg_buf *b, struct vg_view *v, const char *m, bool *first);

static int put_member(struct vg_buf *b, const struct vg_view_field *f, const char *m, bool *first) {
    if (f->kind == VG_VIEW_MADE) {
        json_t *made = f->make ? f->make((const ProtobufCMessage *)m) : NULL;
        if (!made)
            return 0;
        int r = put_name(b, f->name, first);
        return put_json(b, made) < 0 ? -ENOMEM : r;
    }
    if (f->kind == VG_VIEW_SPREAD) {
        const char *inner = *(char *const *)(m + f->pb->offset);
        return inner ? put_all(b, f->of, inner, first) : 0;
    }
    int r = put_name(b, f->name, first);
    if (r < 0)
        return r;
    if (f->pb->label == PROTOBUF_C_LABEL_REPEATED)
        return put_list(b, f, m);
    return vg_view_absent(f, m) ? put(b, "null") : put_value(b, f, m + f->pb->offset);
}

static int put_all(struct vg_buf *b, struct vg_view *v, const char *m, bool *first) {
    int r = 0;
    vg_view_ready(v);
    for (size_t i = 0; i < v->n && r >= 0; i++)
        r = put_member(b, &v->fields[i], m, first);
    return r;
}

int vg_view_text(struct vg_buf *b, struct vg_view *v, const void *message) {
    bool first = true;
    if (!message)
        return put(b, "null");
    int r = put(b, "{");
    if (r >= 0)
        r = put_all(b, v, message, &first);
    return r < 0 ? r : put(b, "}");
}
