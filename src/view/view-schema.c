/* JSON schemas (2020-12, as OpenAPI 3.1 has them) from the tables. */
#include "base/cleanup.h"
#include "view/view-int.h"

#include <string.h>

static json_t *typed(const char *type, bool nullable) {
    return nullable ? json_pack("{s:[s, s]}", "type", type, "null")
                    : json_pack("{s:s}", "type", type);
}

static json_t *reference(const struct vg_view *v) {
    json_t *j = json_object();
    json_object_set_new(j, "$ref", json_sprintf("#/components/schemas/%s", v->name));
    return j;
}

static void add_words(json_t *s, const struct vg_view_field *f, bool nullable) {
    json_t *all = json_array();
    const ProtobufCEnumDescriptor *e = f->pb->descriptor;
    char word[32];
    for (size_t i = 0; f->words && f->words[i]; i++)
        json_array_append_new(all, json_string(f->words[i]));
    for (unsigned i = 0; !f->words && i < e->n_values; i++) {
        vg_view_word(e->values[i].name, word, sizeof word);
        json_array_append_new(all, json_string(word));
    }
    if (nullable)
        json_array_append_new(all, json_null());
    json_object_set_new(s, "enum", all);
}

static json_t *number(const struct vg_view_field *f, bool taken, bool nullable) {
    int64_t least, most;
    vg_view_range(f, &least, &most);
    json_t *s = typed("integer", nullable);
    json_object_set_new(s, "minimum", json_integer(least));
    if (taken)
        json_object_set_new(s, "maximum", json_integer(most));
    if (vg_view_size(f->pb->type) == sizeof(uint64_t))
        json_object_set_new(s, "format", json_string("int64"));
    return s;
}

static json_t *text(const struct vg_view_field *f, bool taken, bool nullable) {
    json_t *s = typed("string", nullable);
    if (f->pb->type == PROTOBUF_C_TYPE_ENUM || (taken && f->words))
        add_words(s, f, nullable);
    else if (taken)
        json_object_set_new(s, "maxLength", json_integer((json_int_t)vg_view_text_max(f)));
    if (taken && f->pattern)
        json_object_set_new(s, "pattern", json_string(f->pattern));
    if (f->kind == VG_VIEW_HEX)
        json_object_set_new(s, "pattern", json_string("^([0-9a-f]{2})*$"));
    return s;
}

/* One value, not the list of them. */
static json_t *single(const struct vg_view_field *f, bool taken, bool nullable) {
    if (f->kind == VG_VIEW_ID) {
        json_t *s = typed("string", nullable);
        json_object_set_new(s, "pattern", json_string("^[0-9a-f]{16}$"));
        return s;
    }
    switch (f->pb->type) {
    case PROTOBUF_C_TYPE_MESSAGE:
        return nullable ? json_pack("{s:[o, o]}", "anyOf", reference(f->of), typed("null", false))
                        : reference(f->of);
    case PROTOBUF_C_TYPE_BOOL:
        return typed("boolean", nullable);
    case PROTOBUF_C_TYPE_STRING:
    case PROTOBUF_C_TYPE_BYTES:
    case PROTOBUF_C_TYPE_ENUM:
        return text(f, taken, nullable);
    default:
        return number(f, taken, nullable);
    }
}

/* Whether null may stand for it: on the way in for whatever need not be given. */
static bool may_be_null(const struct vg_view_field *f, bool taken) {
    if (taken)
        return !(f->flags & VG_VIEW_NEED);
    ProtobufCType t = f->pb->type;
    return f->kind == VG_VIEW_MAYBE || f->kind == VG_VIEW_ID || t == PROTOBUF_C_TYPE_STRING ||
           t == PROTOBUF_C_TYPE_MESSAGE || t == PROTOBUF_C_TYPE_ENUM;
}

json_t *vg_view_field_schema(struct vg_view *v, const struct vg_view_field *f) {
    bool taken = v->taken;
    vg_view_ready(v);
    if (f->kind == VG_VIEW_MADE)
        return json_loads(f->schema, 0, NULL);
    bool null = may_be_null(f, taken);
    if (f->kind == VG_VIEW_LABELS) {
        json_t *s = typed("object", null && taken);
        json_object_set_new(s, "additionalProperties", typed("string", false));
        if (taken)
            json_object_set_new(s, "propertyNames", json_pack("{s:s}", "pattern", "^[^=]+$"));
        return s;
    }
    if (f->pb->label != PROTOBUF_C_LABEL_REPEATED)
        return single(f, taken, null);
    json_t *s = typed("array", null && taken);
    json_object_set_new(s, "items", single(f, taken, false));
    return s;
}

static void add_all(struct vg_view *v, json_t *members, json_t *required) {
    vg_view_ready(v);
    for (size_t i = 0; i < v->n; i++) {
        const struct vg_view_field *f = &v->fields[i];
        if (f->kind == VG_VIEW_SPREAD) {
            add_all(f->of, members, required);
            continue;
        }
        if (v->taken && f->kind == VG_VIEW_MADE && !f->take)
            continue;
        json_object_set_new(members, f->name, vg_view_field_schema(v, f));
        if (v->taken ? f->flags & VG_VIEW_NEED : !(f->flags & VG_VIEW_RARE))
            json_array_append_new(required, json_string(f->name));
    }
}

json_t *vg_view_schema(struct vg_view *v) {
    json_t *s = typed("object", false), *members = json_object(), *required = json_array();
    add_all(v, members, required);
    json_object_set_new(s, "properties", members);
    if (json_array_size(required))
        json_object_set(s, "required", required);
    json_decref(required);
    if (v->taken)
        json_object_set_new(s, "additionalProperties", json_false());
    return s;
}
