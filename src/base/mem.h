#pragma once
/* Allocation through the fault points. NULL means no memory; the caller returns -ENOMEM. */
#include <stddef.h>

void *vg_alloc(size_t size);                                   /* zeroed */
void *vg_realloc(void *p, size_t size);                        /* as realloc */
void *vg_grow(void *p, size_t *cap, size_t need, size_t item); /* doubles; NULL keeps p valid */
char *vg_strdup(const char *s);                                /* NULL in, NULL out */
char *vg_strndup(const char *s, size_t n);
void *vg_memdup(const void *p, size_t n);
char *vg_fmt(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
