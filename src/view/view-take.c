/* Views inwards: JSON and texts of queries into messages. Nothing is believed: types, ranges and
   lengths are checked, unknown members refused. */
#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"
#include "view/view-int.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#define EXACT 9007199254740992.0 /* every whole number up to this one is a double */

ProtobufCMessage *vg_view_new(const ProtobufCMessageDescriptor *pb) {
    ProtobufCMessage *m = vg_alloc(pb->sizeof_message);
    if (m)
        protobuf_c_message_init(pb, m);
    return m;
}

/* ------------------------------------------------------------------ limits */

static size_t characters(const char *s, size_t n) {
    size_t count = 0;
    for (size_t i = 0; i < n; i++)
        count += ((unsigned char)s[i] & 0xc0) != 0x80;
    return count;
}

uint64_t vg_view_text_max(const struct vg_view_field *f) {
    return f->most                                ? f->most
           : f->pb->type == PROTOBUF_C_TYPE_BYTES ? VG_VIEW_BYTES_MAX
                                                  : VG_VIEW_TEXT_MAX;
}

void vg_view_range(const struct vg_view_field *f, int64_t *least, int64_t *most) {
    *least = 0;
    *most = INT64_MAX;
    switch (f->pb->type) {
    case PROTOBUF_C_TYPE_INT32:
    case PROTOBUF_C_TYPE_SINT32:
        *least = INT32_MIN;
        *most = INT32_MAX;
        break;
    case PROTOBUF_C_TYPE_INT64:
    case PROTOBUF_C_TYPE_SINT64:
        *least = INT64_MIN;
        break;
    case PROTOBUF_C_TYPE_UINT32:
        *most = UINT32_MAX;
        break;
    default:
        break;
    }
    if (f->most)
        *most = (int64_t)f->most;
}

static int no_memory(struct vg_err *err) {
    return vg_err_sys(err, ENOMEM, "cannot take the request");
}

static int wrong(const struct vg_view_field *f, const char *what, struct vg_err *err) {
    return vg_err_set(err, VG_INVALID, "'%s' must be %s", f->name, what);
}

/* ------------------------------------------------------------------ one value, at its place */

static int put_word(const struct vg_view_field *f, const char *text, struct vg_err *err) {
    char list[300] = "";
    size_t at = 0;
    for (size_t i = 0; f->words[i]; i++) {
        if (strcmp(f->words[i], text) == 0)
            return 0;
        at += (size_t)snprintf(list + at, sizeof list - at, "%s%s", i ? ", " : "", f->words[i]);
        at = VG_MIN(at, sizeof list - 1);
    }
    return vg_err_set(err, VG_INVALID, "'%s' must be one of %s, not '%.64s'", f->name, list, text);
}

static int put_enum(const struct vg_view_field *f, void *at, const char *text, struct vg_err *err) {
    const ProtobufCEnumDescriptor *e = f->pb->descriptor;
    char word[32], list[300] = "";
    size_t n = 0;
    for (unsigned i = 0; i < e->n_values; i++) {
        vg_view_word(e->values[i].name, word, sizeof word);
        if (strcmp(word, text) == 0) {
            *(int *)at = e->values[i].value;
            return 0;
        }
        n += (size_t)snprintf(list + n, sizeof list - n, "%s%s", i ? ", " : "", word);
        n = VG_MIN(n, sizeof list - 1);
    }
    return vg_err_set(err, VG_INVALID, "'%s' must be one of %s, not '%.64s'", f->name, list, text);
}

static unsigned digit(char ch) {
    return (unsigned)(ch <= '9' ? ch - '0' : ch - 'a' + 10);
}

/* Bytes as their hex digits. */
static int put_hex(const struct vg_view_field *f, ProtobufCBinaryData *at, const char *text,
                   size_t n, struct vg_err *err) {
    uint8_t *bytes = n % 2 ? NULL : vg_alloc(n / 2 + 1);
    if (n % 2 || strspn(text, "0123456789abcdef") != n) {
        free(bytes);
        return wrong(f, "pairs of the digits 0 to 9 and a to f", err);
    }
    if (!bytes)
        return no_memory(err);
    for (size_t i = 0; i < n; i += 2)
        bytes[i / 2] = (uint8_t)(digit(text[i]) << 4 | digit(text[i + 1]));
    *at = (ProtobufCBinaryData){.data = bytes, .len = n / 2};
    return 0;
}

static int put_text(const struct vg_view_field *f, void *at, const char *text, size_t n,
                    struct vg_err *err) {
    if (characters(text, n) > vg_view_text_max(f))
        return vg_err_set(err, VG_INVALID, "'%s' is longer than %llu characters", f->name,
                          (unsigned long long)vg_view_text_max(f));
    if (memchr(text, 0, n))
        return wrong(f, "text without a NUL", err);
    if (f->words && put_word(f, text, err) < 0)
        return err->code;
    if (f->kind == VG_VIEW_HEX)
        return put_hex(f, at, text, n, err);
    if (f->pb->type == PROTOBUF_C_TYPE_ENUM)
        return put_enum(f, at, text, err);
    char *copy = vg_strndup(text, n);
    if (!copy)
        return no_memory(err);
    if (f->pb->type == PROTOBUF_C_TYPE_BYTES)
        *(ProtobufCBinaryData *)at = (ProtobufCBinaryData){.data = (uint8_t *)copy, .len = n};
    else
        *(char **)at = copy;
    return 0;
}

static int put_number(const struct vg_view_field *f, void *at, int64_t v, struct vg_err *err) {
    int64_t least, most;
    vg_view_range(f, &least, &most);
    if (v < least || v > most)
        return vg_err_set(err, VG_INVALID, "'%s' must be a whole number from %lld to %lld", f->name,
                          (long long)least, (long long)most);
    if (vg_view_size(f->pb->type) == sizeof(uint64_t))
        *(int64_t *)at = v;
    else
        *(int32_t *)at = (int32_t)(uint32_t)v;
    return 0;
}

/* 3.0 is whole, too: some programs know no other numbers. */
static int put_whole(const struct vg_view_field *f, void *at, const json_t *v, struct vg_err *err) {
    double real = json_real_value(v);
    bool whole =
        json_is_real(v) && real >= -EXACT && real <= EXACT && (double)(int64_t)real == real;
    if (!json_is_integer(v) && !whole)
        return wrong(f, "a whole number", err);
    return put_number(f, at, whole ? (int64_t)real : json_integer_value(v), err);
}

static int put_value(const struct vg_view_field *f, void *at, const json_t *v, struct vg_err *err) {
    uint64_t id = 0;
    switch (f->pb->type) {
    case PROTOBUF_C_TYPE_STRING:
    case PROTOBUF_C_TYPE_BYTES:
    case PROTOBUF_C_TYPE_ENUM:
        return json_is_string(v) ? put_text(f, at, json_string_value(v), json_string_length(v), err)
                                 : wrong(f, "text", err);
    case PROTOBUF_C_TYPE_MESSAGE:
        if (!json_is_object(v))
            return wrong(f, "an object", err);
        return vg_view_take(f->of, v, at, err) < 0 ? vg_err_wrap(err, "in '%s'", f->name) : 0;
    case PROTOBUF_C_TYPE_BOOL:
        if (!json_is_boolean(v))
            return wrong(f, "true or false", err);
        *(protobuf_c_boolean *)at = json_is_true(v);
        return 0;
    default:
        if (f->kind == VG_VIEW_ID) {
            if (!json_is_string(v) || vg_id_parse(json_string_value(v), &id) < 0)
                return wrong(f, "an id of 16 hex digits", err);
            *(uint64_t *)at = id;
            return 0;
        }
        return put_whole(f, at, v, err);
    }
}

static void set_has(const struct vg_view_field *f, ProtobufCMessage *m) {
    ProtobufCType t = f->pb->type;
    if (t != PROTOBUF_C_TYPE_STRING && t != PROTOBUF_C_TYPE_MESSAGE)
        *(protobuf_c_boolean *)((char *)m + f->pb->quantifier_offset) = true;
}

/* ------------------------------------------------------------------ lists */

/* Room for `more` further elements; the count is raised as they are filled. */
static char *more_room(const struct vg_view_field *f, ProtobufCMessage *m, size_t more) {
    size_t *n = (size_t *)((char *)m + f->pb->quantifier_offset);
    char **base = (char **)((char *)m + f->pb->offset);
    size_t step = vg_view_size(f->pb->type);
    char *grown = vg_realloc(*base, (*n + more) * step + 1);
    if (!grown)
        return NULL;
    memset(grown + *n * step, 0, more * step);
    *base = grown;
    return grown + *n * step;
}

static size_t *count_of(const struct vg_view_field *f, ProtobufCMessage *m) {
    return (size_t *)((char *)m + f->pb->quantifier_offset);
}

static int put_list(const struct vg_view_field *f, ProtobufCMessage *m, const json_t *v,
                    struct vg_err *err) {
    size_t n = json_array_size(v), step = vg_view_size(f->pb->type);
    if (!json_is_array(v))
        return wrong(f, "a list", err);
    if (n > VG_VIEW_ITEMS_MAX)
        return vg_err_set(err, VG_INVALID, "'%s' has more than %d elements", f->name,
                          VG_VIEW_ITEMS_MAX);
    char *at = more_room(f, m, n);
    if (!at)
        return no_memory(err);
    for (size_t i = 0; i < n; i++) {
        int r = put_value(f, at + i * step, json_array_get(v, i), err);
        if (r < 0)
            return r;
        ++*count_of(f, m);
    }
    return 0;
}

static int put_pair(const struct vg_view_field *f, void *at, const char *key, const json_t *v,
                    struct vg_err *err) {
    if (!*key || strchr(key, '='))
        return vg_err_set(err, VG_INVALID, "'%.64s' cannot be a name in '%s'", key, f->name);
    if (!json_is_string(v))
        return vg_err_set(err, VG_INVALID, "'%s' must have texts: '%.64s' is none", f->name, key);
    if (json_string_length(v) > VG_VIEW_BYTES_MAX)
        return vg_err_set(err, VG_INVALID, "'%s' in '%s' is too long", key, f->name);
    char *pair = vg_fmt("%s=%s", key, json_string_value(v));
    if (!pair)
        return no_memory(err);
    if (f->pb->type == PROTOBUF_C_TYPE_BYTES)
        *(ProtobufCBinaryData *)at =
            (ProtobufCBinaryData){.data = (uint8_t *)pair, .len = strlen(pair)};
    else
        *(char **)at = pair;
    return 0;
}

static int put_labels(const struct vg_view_field *f, ProtobufCMessage *m, const json_t *v,
                      struct vg_err *err) {
    size_t step = vg_view_size(f->pb->type);
    if (!json_is_object(v))
        return wrong(f, "an object of texts", err);
    if (json_object_size(v) > VG_VIEW_ITEMS_MAX)
        return vg_err_set(err, VG_INVALID, "'%s' has more than %d members", f->name,
                          VG_VIEW_ITEMS_MAX);
    char *at = more_room(f, m, json_object_size(v));
    const char *key;
    json_t *value;
    if (!at)
        return no_memory(err);
    json_object_foreach((json_t *)v, key, value) {
        int r = put_pair(f, at, key, value, err);
        if (r < 0)
            return r;
        at += step;
        ++*count_of(f, m);
    }
    return 0;
}

/* ------------------------------------------------------------------ whole objects */

static int put_member(const struct vg_view_field *f, ProtobufCMessage *m, const json_t *v,
                      struct vg_err *err) {
    if (json_is_null(v))
        return f->flags & VG_VIEW_NEED ? vg_err_set(err, VG_INVALID, "'%s' is missing", f->name)
                                       : 0;
    if (f->kind == VG_VIEW_MADE)
        return f->take(m, v, err);
    if (f->kind == VG_VIEW_LABELS)
        return put_labels(f, m, v, err);
    if (f->pb->label == PROTOBUF_C_LABEL_REPEATED)
        return put_list(f, m, v, err);
    int r = put_value(f, (char *)m + f->pb->offset, v, err);
    if (r >= 0)
        set_has(f, m);
    return r;
}

static int check_needed(struct vg_view *v, const json_t *j, struct vg_err *err) {
    for (size_t i = 0; i < v->n; i++)
        if (v->fields[i].flags & VG_VIEW_NEED && !json_object_get(j, v->fields[i].name))
            return vg_err_set(err, VG_INVALID, "'%s' is missing", v->fields[i].name);
    return 0;
}

static int unknown(struct vg_view *v, const char *key, struct vg_err *err) {
    char list[600] = "";
    size_t n = 0;
    for (size_t i = 0; i < v->n; i++) {
        n += (size_t)snprintf(list + n, sizeof list - n, "%s%s", i ? ", " : "", v->fields[i].name);
        n = VG_MIN(n, sizeof list - 1);
    }
    return vg_err_set(err, VG_INVALID, "'%.64s' is not known here: there are %s", key, list);
}

int vg_view_take(struct vg_view *v, const json_t *j, ProtobufCMessage **ret, struct vg_err *err) {
    const char *key;
    json_t *value;
    if (!json_is_object(j))
        return vg_err_set(err, VG_INVALID, "the body must be a JSON object");
    vg_view_ready(v);
    ProtobufCMessage *m = vg_view_new(v->pb);
    int r = m ? check_needed(v, j, err) : no_memory(err);
    json_object_foreach((json_t *)j, key, value) {
        if (r < 0)
            break;
        const struct vg_view_field *f = vg_view_find(v, key);
        r = f && (f->kind != VG_VIEW_MADE || f->take) ? put_member(f, m, value, err)
                                                      : unknown(v, key, err);
    }
    if (r < 0) {
        protobuf_c_message_free_unpacked(m, NULL);
        return r;
    }
    *ret = m;
    return 0;
}

/* ------------------------------------------------------------------ texts */

static int put_from_text(const struct vg_view_field *f, void *at, const char *text, size_t n,
                         struct vg_err *err) {
    bool yes = strcmp(text, "1") == 0 || strcmp(text, "true") == 0 || !*text;
    uint64_t number;
    switch (f->pb->type) {
    case PROTOBUF_C_TYPE_STRING:
    case PROTOBUF_C_TYPE_BYTES:
    case PROTOBUF_C_TYPE_ENUM:
        return put_text(f, at, text, n, err);
    case PROTOBUF_C_TYPE_BOOL:
        if (!yes && strcmp(text, "0") != 0 && strcmp(text, "false") != 0)
            return wrong(f, "true or false", err);
        *(protobuf_c_boolean *)at = yes;
        return 0;
    case PROTOBUF_C_TYPE_MESSAGE:
        return wrong(f, "given in the body", err);
    default: {
        bool minus = *text == '-';
        if (vg_parse_u64(text + minus, &number) < 0 || number > INT64_MAX)
            return wrong(f, "a whole number", err);
        return put_number(f, at, minus ? -(int64_t)number : (int64_t)number, err);
    }
    }
}

int vg_view_take_text(struct vg_view *v, ProtobufCMessage *m, const char *name, const char *text,
                      struct vg_err *err) {
    const struct vg_view_field *f = vg_view_find(v, name);
    if (!f)
        return unknown(v, name, err);
    if (f->pb->label != PROTOBUF_C_LABEL_REPEATED) {
        void *at = (char *)m + f->pb->offset;
        if ((f->pb->type == PROTOBUF_C_TYPE_STRING && *(char **)at) ||
            (f->pb->type == PROTOBUF_C_TYPE_BYTES && ((ProtobufCBinaryData *)at)->data))
            return vg_err_set(err, VG_INVALID, "'%s' was given twice", name);
        int r = put_from_text(f, at, text, strlen(text), err);
        if (r >= 0)
            set_has(f, m);
        return r;
    }
    /* A list: "a,b", or the parameter again; labels have commas of their own. */
    for (const char *s = text; *s;) {
        size_t n = f->kind == VG_VIEW_LABELS ? strlen(s) : strcspn(s, ",");
        vg_auto_free char *one = vg_strndup(s, n);
        char *at = one ? more_room(f, m, 1) : NULL;
        if (!at)
            return no_memory(err);
        if (*count_of(f, m) >= 1000)
            return vg_err_set(err, VG_INVALID, "'%s' has too many values", name);
        if (n && put_from_text(f, at, one, n, err) < 0)
            return err->code;
        *count_of(f, m) += n > 0;
        s += n + (s[n] == ',');
    }
    return 0;
}
