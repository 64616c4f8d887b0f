#pragma once
/* A growable byte buffer with a read cursor: bytes are appended at the end and consumed from the
   front. The storage is compacted when it pays. Zero-initialised is empty and valid. */
#include <stddef.h>
#include <stdint.h>

struct vg_buf {
    uint8_t *base; /* owned */
    size_t cap;
    size_t head; /* first unread byte */
    size_t tail; /* end of data */
};

void vg_buf_done(struct vg_buf *b);
static inline size_t vg_buf_len(const struct vg_buf *b) {
    return b->tail - b->head;
}
static inline uint8_t *vg_buf_data(struct vg_buf *b) {
    return b->base + b->head;
}
/* Makes room for at least n more bytes and returns where to write; NULL when out of memory. */
uint8_t *vg_buf_reserve(struct vg_buf *b, size_t n);
/* Bytes that can be written at the pointer that the last reserve returned. */
static inline size_t vg_buf_room(const struct vg_buf *b) {
    return b->cap - b->tail;
}
static inline void vg_buf_commit(struct vg_buf *b, size_t n) {
    b->tail += n;
}
int vg_buf_append(struct vg_buf *b, const void *data, size_t n); /* 0 or -ENOMEM */
int vg_buf_printf(struct vg_buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void vg_buf_consume(struct vg_buf *b, size_t n); /* n <= len */
void vg_buf_clear(struct vg_buf *b);
