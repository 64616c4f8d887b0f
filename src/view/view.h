#pragma once
/* Messages of the wire as JSON, by tables: what `virga … -o json` prints and what the REST
   interface answers and takes is written once, in views*.c. A table has one line for each member;
   the rest (types, where it lies in the message, whether it repeats) is the message's own
   description. The schemas that /api/v1/openapi.json shows come from the same tables.

   Tables are made ready at their first use: one thread. */
#include "base/buf.h"
#include "base/err.h"
#include "view/json.h"

#include <stdbool.h>

enum vg_view_kind {
    VG_VIEW_PLAIN,  /* as it is: text (absent: null), number (absent: 0), flag, an enum's name */
    VG_VIEW_MAYBE,  /* a number or flag; absent: null */
    VG_VIEW_FILLED, /* a text; empty: null */
    VG_VIEW_ID,     /* 16 hex digits; 0: null */
    VG_VIEW_LABELS, /* "k=v" strings as an object */
    VG_VIEW_HEX,    /* bytes in hex digits */
    VG_VIEW_INSIDE, /* a message by its own view; absent: null */
    VG_VIEW_SPREAD, /* a message whose members stand among these */
    VG_VIEW_MADE,   /* made or taken by functions of its own */
};

#define VG_VIEW_NEED 1u /* taking: it must be given */
#define VG_VIEW_RARE 2u /* answering: it may be left out */

struct vg_view_field {
    const char *name; /* in JSON */
    enum vg_view_kind kind;
    const char *from; /* in the message; NULL: the same name */
    struct vg_view *of;
    const char *const *words; /* the only texts that are taken, ended by NULL */
    json_t *(*make)(const ProtobufCMessage *m);
    int (*take)(ProtobufCMessage *m, const json_t *value, struct vg_err *err);
    const char *schema;  /* of what is MADE: JSON */
    const char *pattern; /* taking: for the schema; handlers look for themselves */
    unsigned flags;
    uint64_t most; /* taking: the largest number, or the longest text in characters; 0: default */
    const ProtobufCFieldDescriptor *pb; /* found when the table is made ready */
};

struct vg_view {
    const char *name; /* of the schema */
    const ProtobufCMessageDescriptor *pb;
    struct vg_view_field *fields;
    size_t n;
    bool taken; /* it comes in; its schema says what may be given */
    bool ready;
};

#define VG_VIEW_TEXT_MAX 1024 /* characters of a text that is taken, unless the table says more */
#define VG_VIEW_BYTES_MAX (1u << 17) /* of one argument or variable */
#define VG_VIEW_ITEMS_MAX 100000     /* of a list that is taken */

/* An object; NULL message: null. */
json_t *vg_view_json(struct vg_view *v, const void *message);
/* The same as compact text, appended, without the tree between: several times as fast. 0 or
   -ENOMEM. */
int vg_view_text(struct vg_buf *to, struct vg_view *v, const void *message);
/* Each message of the list as one more element of the array. */
/* The same of the first list of `message`, by the view of the whole. */
void vg_view_elements(json_t *array, struct vg_view *v, const void *message);
void vg_view_append(json_t *array, struct vg_view *v, void *const *message, size_t n);

/* The members of `j` into a new message (free: protobuf_c_message_free_unpacked). INVALID with a
   sentence: an unknown member, a wrong type, a number out of range, something missing. */
int vg_view_take(struct vg_view *v, const json_t *j, ProtobufCMessage **ret, struct vg_err *err);
/* One text (of a query or a path) into the member that has this name. */
int vg_view_take_text(struct vg_view *v, ProtobufCMessage *m, const char *name, const char *text,
                      struct vg_err *err);
/* A new empty message of that kind; NULL: out of memory. */
ProtobufCMessage *vg_view_new(const ProtobufCMessageDescriptor *pb);

const struct vg_view_field *vg_view_find(struct vg_view *v, const char *name); /* NULL: none */
/* JSON schemas of a member and of a whole view. References are to #/components/schemas/NAME. */
json_t *vg_view_field_schema(struct vg_view *v, const struct vg_view_field *f);
json_t *vg_view_schema(struct vg_view *v);
/* The first line of a table that names nothing in its message, or has a kind that does not fit;
   NULL: all is well. For tests. */
const char *vg_view_fault(struct vg_view *v);
