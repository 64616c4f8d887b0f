/* Allocation through the fault points. */
#include "base/mem.h"

#include "base/fault.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void *vg_alloc(size_t size) {
    if (vg_fault("alloc") < 0)
        return NULL;
    return calloc(1, size ? size : 1);
}

void *vg_realloc(void *p, size_t size) {
    if (vg_fault("alloc") < 0)
        return NULL;
    return realloc(p, size ? size : 1);
}

void *vg_grow(void *p, size_t *cap, size_t need, size_t item) {
    if (need <= *cap && p)
        return p;
    size_t n = *cap ? *cap : 8;
    while (n < need)
        n *= 2;
    void *q = vg_realloc(p, n * item);
    if (q)
        *cap = n;
    return q;
}

char *vg_strndup(const char *s, size_t n) {
    char *d = vg_alloc(n + 1);
    if (d)
        memcpy(d, s, n);
    return d;
}

char *vg_strdup(const char *s) {
    return s ? vg_strndup(s, strlen(s)) : NULL;
}

void *vg_memdup(const void *p, size_t n) {
    return vg_strndup(p, n);
}

char *vg_fmt(const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    char *s = NULL;
    int n = vg_fault("alloc") < 0 ? -1 : vasprintf(&s, fmt, ap);
    va_end(ap);
    return n < 0 ? NULL : s;
}
