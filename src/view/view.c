/* Views outwards: messages to JSON; see the header. */
#include "view/view.h"

#include "base/cleanup.h"
#include "base/mem.h"
#include "view/view-int.h"

#include <stdio.h>
#include <string.h>

void vg_view_ready(struct vg_view *v) {
    if (v->ready)
        return;
    v->ready = true;
    for (size_t i = 0; i < v->n; i++) {
        struct vg_view_field *f = &v->fields[i];
        f->pb = protobuf_c_message_descriptor_get_field_by_name(v->pb, f->from ? f->from : f->name);
    }
}

const char *vg_view_fault(struct vg_view *v) {
    vg_view_ready(v);
    for (size_t i = 0; i < v->n; i++) {
        const struct vg_view_field *f = &v->fields[i];
        bool made = f->kind == VG_VIEW_MADE;
        bool inside = f->kind == VG_VIEW_INSIDE || f->kind == VG_VIEW_SPREAD;
        if (made ? !f->schema || !(f->make || f->take) : !f->pb)
            return f->name;
        if (inside && (!f->of || f->pb->descriptor != f->of->pb))
            return f->name;
        if (!made && !inside && f->pb->type == PROTOBUF_C_TYPE_MESSAGE)
            return f->name;
    }
    return NULL;
}

const struct vg_view_field *vg_view_find(struct vg_view *v, const char *name) {
    vg_view_ready(v);
    for (size_t i = 0; i < v->n; i++)
        if (strcmp(v->fields[i].name, name) == 0)
            return &v->fields[i];
    return NULL;
}

/* ------------------------------------------------------------------ values */

json_t *vg_view_hex(const ProtobufCBinaryData *b) {
    vg_auto_free char *text = vg_alloc(2 * b->len + 1);
    for (size_t i = 0; text && i < b->len; i++)
        snprintf(text + 2 * i, 3, "%02x", b->data[i]);
    return vg_json_text(text);
}

json_t *vg_view_enum(const ProtobufCEnumDescriptor *e, int value) {
    const ProtobufCEnumValue *v = protobuf_c_enum_descriptor_get_value(e, value);
    char name[32];
    vg_view_word(v ? v->name : "?", name, sizeof name);
    return json_string(name);
}

void vg_view_word(const char *name, char *out, size_t n) {
    size_t i = 0;
    for (; name[i] && i + 1 < n; i++)
        out[i] = name[i] == '_' ? '-' : (char)(name[i] | 0x20);
    out[i] = 0;
}

/* One value that lies at `at`. */
static json_t *value(const struct vg_view_field *f, const void *at) {
    const ProtobufCFieldDescriptor *pb = f->pb;
    const ProtobufCBinaryData *b = at;
    switch (pb->type) {
    case PROTOBUF_C_TYPE_STRING:
        return vg_json_text(*(char *const *)at);
    case PROTOBUF_C_TYPE_BYTES:
        return f->kind == VG_VIEW_HEX ? vg_view_hex(b) : vg_json_bytes(b->data, b->len);
    case PROTOBUF_C_TYPE_MESSAGE:
        return vg_view_json(f->of, *(void *const *)at);
    case PROTOBUF_C_TYPE_BOOL:
        return json_boolean(*(const protobuf_c_boolean *)at);
    case PROTOBUF_C_TYPE_ENUM:
        return vg_view_enum(pb->descriptor, *(const int *)at);
    case PROTOBUF_C_TYPE_INT32:
    case PROTOBUF_C_TYPE_SINT32:
        return json_integer(*(const int32_t *)at);
    case PROTOBUF_C_TYPE_INT64:
    case PROTOBUF_C_TYPE_SINT64:
        return json_integer(*(const int64_t *)at);
    case PROTOBUF_C_TYPE_UINT32:
        return json_integer(*(const uint32_t *)at);
    case PROTOBUF_C_TYPE_UINT64:
        return f->kind == VG_VIEW_ID ? vg_json_id(*(const uint64_t *)at)
                                     : vg_json_u64(*(const uint64_t *)at);
    default:
        return json_null();
    }
}

size_t vg_view_size(ProtobufCType type) {
    switch (type) {
    case PROTOBUF_C_TYPE_STRING:
    case PROTOBUF_C_TYPE_MESSAGE:
        return sizeof(void *);
    case PROTOBUF_C_TYPE_BYTES:
        return sizeof(ProtobufCBinaryData);
    case PROTOBUF_C_TYPE_UINT64:
    case PROTOBUF_C_TYPE_INT64:
    case PROTOBUF_C_TYPE_SINT64:
        return sizeof(uint64_t);
    default:
        return sizeof(uint32_t);
    }
}

/* KEY=VALUE, of which the environment of a command consists. */
static json_t *variables(const ProtobufCBinaryData *v, size_t n) {
    json_t *j = json_object();
    for (size_t i = 0; i < n; i++) {
        const uint8_t *eq = v[i].len ? memchr(v[i].data, '=', v[i].len) : NULL;
        size_t len = eq ? (size_t)(eq - v[i].data) : v[i].len;
        json_t *key = vg_json_bytes(v[i].data, len);
        json_object_set_new(j, json_string_value(key),
                            vg_json_bytes(eq ? eq + 1 : NULL, eq ? v[i].len - len - 1 : 0));
        json_decref(key);
    }
    return j;
}

json_t *vg_view_list(const struct vg_view_field *f, const char *m) {
    size_t n = *(const size_t *)(m + f->pb->quantifier_offset), step = vg_view_size(f->pb->type);
    const char *at = *(char *const *)(m + f->pb->offset);
    if (f->kind == VG_VIEW_LABELS)
        return f->pb->type == PROTOBUF_C_TYPE_BYTES ? variables((const ProtobufCBinaryData *)at, n)
                                                    : vg_json_labels((char **)at, n);
    json_t *a = json_array();
    for (size_t i = 0; i < n; i++)
        json_array_append_new(a, value(f, at + i * step));
    return a;
}

bool vg_view_absent(const struct vg_view_field *f, const char *m) {
    const char *at = m + f->pb->offset;
    switch (f->pb->type) {
    case PROTOBUF_C_TYPE_STRING:
        return f->kind == VG_VIEW_FILLED && *(char *const *)at && !**(char *const *)at;
    case PROTOBUF_C_TYPE_MESSAGE:
        return !*(void *const *)at;
    case PROTOBUF_C_TYPE_ENUM:
        return !*(const protobuf_c_boolean *)(m + f->pb->quantifier_offset);
    default:
        return f->kind == VG_VIEW_MAYBE &&
               !*(const protobuf_c_boolean *)(m + f->pb->quantifier_offset);
    }
}

static void add_all(json_t *j, struct vg_view *v, const char *m) {
    vg_view_ready(v);
    for (size_t i = 0; i < v->n; i++) {
        const struct vg_view_field *f = &v->fields[i];
        if (f->kind == VG_VIEW_MADE) {
            json_t *made = f->make ? f->make((const ProtobufCMessage *)m) : NULL;
            if (made)
                json_object_set_new_nocheck(j, f->name, made);
        } else if (f->kind == VG_VIEW_SPREAD) {
            const char *inner = *(char *const *)(m + f->pb->offset);
            if (inner)
                add_all(j, f->of, inner);
        } else if (f->pb->label == PROTOBUF_C_LABEL_REPEATED) {
            json_object_set_new_nocheck(j, f->name, vg_view_list(f, m));
        } else {
            json_object_set_new_nocheck(
                j, f->name, vg_view_absent(f, m) ? json_null() : value(f, m + f->pb->offset));
        }
    }
}

json_t *vg_view_json(struct vg_view *v, const void *message) {
    if (!message)
        return json_null();
    json_t *j = json_object();
    add_all(j, v, message);
    return j;
}

void vg_view_append(json_t *array, struct vg_view *v, void *const *message, size_t n) {
    for (size_t i = 0; i < n; i++)
        json_array_append_new(array, vg_view_json(v, message[i]));
}

void vg_view_elements(json_t *array, struct vg_view *v, const void *message) {
    vg_view_ready(v);
    json_t *all = vg_view_list(&v->fields[0], message);
    json_array_extend(array, all);
    json_decref(all);
}
