#pragma once
/* Task I/O between client and keeper: layouts of docs/protocol.md section 3. Header-only: both
   sides build frames straight into their own buffers. */
#include <stdint.h>
#include <string.h>

#define VG_TIO_HEADER 8
#define VG_TIO_MAX (256u << 10)
#define VG_TIO_WINDOW (1u << 20) /* input bytes in flight */

enum vg_tio_kind {
    VG_TIO_HELLO = 1,
    VG_TIO_WELCOME = 2,
    VG_TIO_INPUT = 3,
    VG_TIO_INPUT_END = 4,
    VG_TIO_INPUT_ACK = 5,
    VG_TIO_OUTPUT = 6,
    VG_TIO_OUTPUT_ACK = 7,
    VG_TIO_SIGNAL = 8,
    VG_TIO_WINSIZE = 9,
    VG_TIO_CLOSE_OUTPUT = 10,
    VG_TIO_STOPPED = 11,
    VG_TIO_CONTINUE = 12,
    VG_TIO_DETACH = 13,
    VG_TIO_STARTED = 14,
    VG_TIO_EXIT = 15,
    VG_TIO_NOTE = 16,
    VG_TIO_TAKEN = 17,
    VG_TIO_GAP = 18,
    VG_TIO_RING = 19,
    VG_TIO_OUTPUT_AT = 20,
    VG_TIO_DATA = 21,
    VG_TIO_DATA_ACK = 22,
};

enum { VG_HELLO_OBSERVE = 1, VG_HELLO_INPUT = 2, VG_HELLO_TAKE = 4 };

#define VG_REC_HEADER 16
#define VG_REC_MAX (64u << 10)
enum vg_rec_stream { VG_REC_STDOUT = 1, VG_REC_STDERR = 2, VG_REC_NOTE = 3, VG_REC_GAP = 9 };

static inline void vg_put32(uint8_t *p, uint32_t v) {
    memcpy(p, &v, 4);
}
static inline void vg_put64(uint8_t *p, uint64_t v) {
    memcpy(p, &v, 8);
}
static inline uint32_t vg_get32(const uint8_t *p) {
    uint32_t v;
    memcpy(&v, p, 4);
    return v;
}
static inline uint64_t vg_get64(const uint8_t *p) {
    uint64_t v;
    memcpy(&v, p, 8);
    return v;
}

static inline void vg_tio_header(uint8_t *out, enum vg_tio_kind kind, uint32_t len) {
    vg_put32(out, len);
    vg_put32(out + 4, (uint32_t)kind);
}
static inline void vg_rec_header(uint8_t *out, enum vg_rec_stream stream, uint32_t len,
                                 uint64_t wall_usec) {
    vg_put32(out, len);
    vg_put32(out + 4, (uint32_t)stream);
    vg_put64(out + 8, wall_usec);
}
