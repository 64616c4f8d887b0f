#pragma once
/* Between the files of this folder. */
#include "view/view.h"

void vg_view_ready(struct vg_view *v);
/* "AFTER_ANY" as people read and write it: "after-any". */
void vg_view_word(const char *name, char *out, size_t n);
json_t *vg_view_enum(const ProtobufCEnumDescriptor *e, int value);
json_t *vg_view_hex(const ProtobufCBinaryData *b);
json_t *vg_view_list(const struct vg_view_field *f, const char *m); /* of the message */
bool vg_view_absent(const struct vg_view_field *f, const char *m);  /* its value is null */
size_t vg_view_size(ProtobufCType type);                            /* of one value in a list */
/* What may be given: the longest text in characters, the smallest and the largest number. */
uint64_t vg_view_text_max(const struct vg_view_field *f);
void vg_view_range(const struct vg_view_field *f, int64_t *least, int64_t *most);

/* Tables: SHOWN(task, "Task", task_info, lines…) is vg_view_task. */
#define SHOWN(var, schema_name, message, ...)                               \
    static struct vg_view_field var##_fields[] = {__VA_ARGS__};             \
    struct vg_view vg_view_##var = {.name = schema_name,                    \
                                    .pb = &vg__pb__##message##__descriptor, \
                                    .fields = var##_fields,                 \
                                    .n = sizeof var##_fields / sizeof var##_fields[0]}
/* Likewise of what is taken. */
#define TAKEN(var, schema_name, message, ...)                                          \
    static struct vg_view_field var##_fields[] = {__VA_ARGS__};                        \
    struct vg_view vg_view_##var = {.name = schema_name,                               \
                                    .pb = &vg__pb__##message##__descriptor,            \
                                    .fields = var##_fields,                            \
                                    .n = sizeof var##_fields / sizeof var##_fields[0], \
                                    .taken = true}
#define PLAIN(n) \
    { .name = n }
#define MAYBE(n) \
    { .name = n, .kind = VG_VIEW_MAYBE }
#define FILLED(n) \
    { .name = n, .kind = VG_VIEW_FILLED }
#define AS(n, f) \
    { .name = n, .from = f }
#define ID(n, f) \
    { .name = n, .kind = VG_VIEW_ID, .from = f }
#define HEX(n) \
    { .name = n, .kind = VG_VIEW_HEX }
#define LABELS(n, f) \
    { .name = n, .kind = VG_VIEW_LABELS, .from = f }
#define INSIDE(n, f, v) \
    { .name = n, .kind = VG_VIEW_INSIDE, .from = f, .of = &vg_view_##v }
#define SPREAD(f, v) \
    { .name = f, .kind = VG_VIEW_SPREAD, .of = &vg_view_##v }
#define MADE(n, how, type) \
    { .name = n, .kind = VG_VIEW_MADE, .make = how, .schema = type }
