/* Text straight from messages is the text of the tree, for every view and whatever is in them. */
#include "base/cleanup.h"
#include "base/mem.h"
#include "view/views.h"

#include <criterion/criterion.h>
#include <string.h>

#define DEPTH 4

static uint64_t seed;

static uint64_t roll(uint64_t below) { /* xorshift: the same in every run */
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return seed % below;
}

static const char *const texts[] = {"",
                                    "plain",
                                    "quo\"te\\",
                                    "line\nbreak\ttab",
                                    "\x01\x1f\x7f",
                                    "h\xc3\xa9h\xc3\xa9",
                                    "\xff\xfe broken",
                                    "k=v",
                                    "HOME=/root",
                                    "a=b=c",
                                    "=",
                                    "a/b"};

static void *message(const ProtobufCMessageDescriptor *d, int depth);

static void fill_one(const ProtobufCFieldDescriptor *f, void *at, int depth) {
    const char *text = texts[roll(VG_COUNT(texts))];
    switch (f->type) {
    case PROTOBUF_C_TYPE_STRING:
        *(char **)at = vg_strdup(text);
        break;
    case PROTOBUF_C_TYPE_BYTES:
        *(ProtobufCBinaryData *)at =
            (ProtobufCBinaryData){.len = strlen(text), .data = vg_memdup(text, strlen(text) + 1)};
        break;
    case PROTOBUF_C_TYPE_MESSAGE:
        *(void **)at = message(f->descriptor, depth + 1);
        break;
    case PROTOBUF_C_TYPE_BOOL:
        *(protobuf_c_boolean *)at = roll(2) != 0;
        break;
    case PROTOBUF_C_TYPE_ENUM:
        *(int *)at = ((const ProtobufCEnumDescriptor *)f->descriptor)->values[0].value;
        break;
    case PROTOBUF_C_TYPE_UINT64:
    case PROTOBUF_C_TYPE_INT64:
    case PROTOBUF_C_TYPE_SINT64:
        *(uint64_t *)at = roll(3) ? roll(UINT64_MAX) : 0;
        break;
    default:
        *(uint32_t *)at = roll(3) ? (uint32_t)roll(UINT32_MAX) : 0;
    }
}

static size_t size_of(ProtobufCType type) {
    switch (type) {
    case PROTOBUF_C_TYPE_STRING:
    case PROTOBUF_C_TYPE_MESSAGE:
    case PROTOBUF_C_TYPE_UINT64:
    case PROTOBUF_C_TYPE_INT64:
    case PROTOBUF_C_TYPE_SINT64:
        return 8;
    case PROTOBUF_C_TYPE_BYTES:
        return sizeof(ProtobufCBinaryData);
    default:
        return 4;
    }
}

static void fill_list(const ProtobufCFieldDescriptor *f, char *m, int depth) {
    size_t n = roll(3), step = size_of(f->type);
    char *list = vg_alloc(step * 3);
    for (size_t i = 0; i < n; i++)
        fill_one(f, list + i * step, depth);
    *(size_t *)(m + f->quantifier_offset) = n;
    if (n)
        *(void **)(m + f->offset) = list;
    else
        free(list);
}

static void *message(const ProtobufCMessageDescriptor *d, int depth) {
    char *m = (char *)vg_view_new(d);
    for (unsigned i = 0; i < d->n_fields; i++) {
        const ProtobufCFieldDescriptor *f = &d->fields[i];
        bool deep = f->type == PROTOBUF_C_TYPE_MESSAGE && depth >= DEPTH;
        if (deep || roll(4) == 0 || f->flags & PROTOBUF_C_FIELD_FLAG_ONEOF)
            continue;
        if (f->label == PROTOBUF_C_LABEL_REPEATED) {
            fill_list(f, m, depth);
            continue;
        }
        fill_one(f, m + f->offset, depth);
        if (f->quantifier_offset)
            *(protobuf_c_boolean *)(m + f->quantifier_offset) = 1;
    }
    return m;
}

Test(view_text, is_the_text_of_the_tree) {
    for (size_t i = 0; vg_views[i]; i++) {
        for (int round = 0; round < 40; round++) {
            seed = 88172645463325252ULL + i * 1000 + (uint64_t)round;
            void *m = message(vg_views[i]->pb, 0);
            json_t *j = vg_view_json(vg_views[i], m);
            char *want = json_dumps(j, JSON_COMPACT);
            struct vg_buf b = {0};
            cr_assert_eq(vg_view_text(&b, vg_views[i], m), 0);
            vg_buf_append(&b, "", 1);
            cr_assert_str_eq((char *)vg_buf_data(&b), want, "%s, round %d", vg_views[i]->name,
                             round);
            vg_buf_done(&b);
            free(want);
            json_decref(j);
            protobuf_c_message_free_unpacked((ProtobufCMessage *)m, NULL);
        }
    }
    struct vg_buf b = {0};
    cr_assert_eq(vg_view_text(&b, vg_views[0], NULL), 0);
    cr_assert_eq(memcmp(vg_buf_data(&b), "null", 4), 0);
    vg_buf_done(&b);
}
