#pragma once
/* Frames: one end of a connection without any I/O. Bytes from the peer go in, calls come out;
   frames to send are queued as bytes for the caller to write. docs/protocol.md section 1 is the
   format. One thread. */
#include "base/buf.h"
#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>

#define VG_WIRE_HEADER 8
#define VG_WIRE_MSG_MAX (16u << 20)
#define VG_WIRE_DATA_MAX (256u << 10)
#define VG_WIRE_CREDIT (1u << 20)
#define VG_WIRE_CREDIT_MAX (16u << 20) /* of a stream that was widened */
#define VG_WIRE_STREAMS_MAX 65536

enum vg_frame_kind {
    VG_FRAME_MSG = 1,
    VG_FRAME_DATA = 2,
    VG_FRAME_CREDIT = 3,
    VG_FRAME_END = 4,
    VG_FRAME_RESET = 5,
    VG_FRAME_PING = 6,
    VG_FRAME_PONG = 7,
};

struct vg_frame {
    enum vg_frame_kind kind;
    uint32_t stream;
    const uint8_t *payload; /* borrowed from the buffer that was parsed */
    uint32_t len;
};

/* Writes a frame header. */
void vg_frame_header(uint8_t out[static VG_WIRE_HEADER], enum vg_frame_kind kind, uint32_t stream,
                     uint32_t len);

/* Looks at the front of `data`. Returns the bytes the frame takes (> 0) and fills *ret; 0 when more
   bytes are needed (*ret_need then says how many in all, at least); -EPROTO on a frame that breaks
   the format or a limit. Never reads past n. */
int vg_frame_parse(const uint8_t *data, size_t n, struct vg_frame *ret, size_t *ret_need,
                   struct vg_err *err);
