/* A growable byte buffer with a read cursor. */
#include "base/buf.h"

#include "base/mem.h"

#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void vg_buf_done(struct vg_buf *b) {
    free(b->base);
    *b = (struct vg_buf){0};
}

uint8_t *vg_buf_reserve(struct vg_buf *b, size_t n) {
    if (b->base && b->cap - b->tail >= n)
        return b->base + b->tail;
    size_t len = b->tail - b->head;
    if (b->head && b->cap - len >= n && b->head >= len) {
        memmove(b->base, b->base + b->head, len);
        b->head = 0;
        b->tail = len;
        return b->base + b->tail;
    }
    size_t cap = b->cap ? b->cap : 256;
    while (cap - len < n) {
        if (cap > SIZE_MAX / 2)
            return NULL;
        cap *= 2;
    }
    uint8_t *p = vg_realloc(NULL, cap); /* not zeroed: it will be written */
    if (!p)
        return NULL;
    if (len)
        memcpy(p, b->base + b->head, len);
    free(b->base);
    *b = (struct vg_buf){.base = p, .cap = cap, .head = 0, .tail = len};
    return p + len;
}

int vg_buf_append(struct vg_buf *b, const void *data, size_t n) {
    if (n == 0)
        return 0;
    uint8_t *p = vg_buf_reserve(b, n);
    if (!p)
        return -ENOMEM;
    memcpy(p, data, n);
    b->tail += n;
    return 0;
}

int vg_buf_printf(struct vg_buf *b, const char *fmt, ...) {
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    int r = -EINVAL;
    if (n >= 0) {
        uint8_t *p = vg_buf_reserve(b, (size_t)n + 1);
        r = p ? 0 : -ENOMEM;
        if (p) {
            vsnprintf((char *)p, (size_t)n + 1, fmt, again);
            b->tail += (size_t)n;
        }
    }
    va_end(again);
    return r;
}

void vg_buf_consume(struct vg_buf *b, size_t n) {
    assert(n <= b->tail - b->head);
    b->head += n;
    if (b->head == b->tail)
        b->head = b->tail = 0;
}

void vg_buf_clear(struct vg_buf *b) {
    b->head = b->tail = 0;
}
