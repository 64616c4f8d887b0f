/* Allocation through the fault points. */
#include "base/mem.h"

#include "base/fault.h"

#ifdef __GLIBC__
#include <malloc.h>
#endif
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

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

void vg_mem_huge_heap(size_t bytes) {
#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__)
    enum { PAGE = 2 << 20, PIECE = 16 << 20, PIECES = 64 };
    void *held[PIECES];
    size_t n = 0, want = bytes / PIECE < PIECES ? bytes / PIECE : PIECES;
    /* Pieces below the threshold come from the heap, one after another, and go back to its end,
       which is kept. Nothing of them is touched. */
    if (!mallopt(M_MMAP_THRESHOLD, 2 * PIECE) || !mallopt(M_TRIM_THRESHOLD, PIECES * PIECE))
        return;
    while (n < want && (held[n] = malloc(PIECE)))
        n++;
    if (n) {
        uintptr_t from = ((uintptr_t)held[0] + PAGE - 1) & ~(uintptr_t)(PAGE - 1);
        uintptr_t to = ((uintptr_t)held[n - 1] + PIECE) & ~(uintptr_t)(PAGE - 1);
        if (to > from && to - from <= (size_t)PIECES * (PIECE + PAGE))
            madvise((void *)from, to - from, MADV_HUGEPAGE);
    }
    while (n)
        free(held[--n]);
#else
    (void)bytes;
#endif
}
