#pragma once
/* WebSocket frames (RFC 6455 §5) from and to bytes; pure. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum vg_ws_op {
    VG_WS_CONT = 0,
    VG_WS_TEXT = 1,
    VG_WS_BINARY = 2,
    VG_WS_CLOSE = 8,
    VG_WS_PING = 9,
    VG_WS_PONG = 10,
};
#define VG_WS_CONTROL_MAX 125 /* bytes of a close, ping or pong */
#define VG_WS_HEAD_MAX 14

struct vg_ws_frame {
    enum vg_ws_op op;
    bool fin;
    uint8_t mask[4];
    size_t head_len;
    uint64_t len;
};
/* The head of a client's frame. 0: more must come; 1: it is whole; else the code to close with
   (1002, or 1009 when it is longer than `max`). */
int vg_ws_frame_parse(const uint8_t *p, size_t n, uint64_t max, struct vg_ws_frame *ret);
void vg_ws_unmask(uint8_t *p, size_t n, const uint8_t mask[static 4]);
/* The head of a server's frame; returns its length. */
size_t vg_ws_frame_head(enum vg_ws_op op, uint64_t len, uint8_t out[static VG_WS_HEAD_MAX]);
bool vg_utf8_valid(const uint8_t *p, size_t n);
/* Whether a peer may send this code in a close frame. */
bool vg_ws_code_valid(unsigned code);
/* The answer to Sec-WebSocket-Key; -EINVAL when it is none. `out` takes 29 bytes. */
int vg_ws_key_answer(const char *key, char out[static 29]);
