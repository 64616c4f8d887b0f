#pragma once
/* JSON: small helpers over jansson that never fail on text from outside. */
#include "proto/virga.pb-c.h"

#include <jansson.h>
#include <stddef.h>

/* A string; bytes that are not UTF-8 become U+FFFD. NULL text: JSON null. */
json_t *vg_json_text(const char *text);
json_t *vg_json_bytes(const void *p, size_t n);
json_t *vg_json_id(uint64_t id);                /* 16 hex digits; 0: null */
json_t *vg_json_labels(char **label, size_t n); /* ["k=v"] to {"k": "v"} */
static inline json_t *vg_json_u64(uint64_t v) {
    return json_integer((json_int_t)v);
}
/* Prints with a newline and frees. Returns 0, or 125 when it could not be written. */
int vg_json_print(json_t *j);
int vg_json_print_line(json_t *j); /* compact, one line, flushed */
