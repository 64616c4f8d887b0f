#pragma once
/* HTTP/1.1 requests from bytes; pure, so that they are tested and fuzzed from memory.

   Strict where leniency has let requests be smuggled: lines end with CRLF and nothing else, no
   folded headers, one Content-Length or chunks but not both, no control bytes anywhere. */
#include "http/web.h"

struct vg_web_head {
    int minor;       /* HTTP/1.minor: 0 or 1 */
    bool keep_alive; /* the connection may bring another request */
    bool expect;     /* 100-continue */
    bool chunked;
    uint64_t length; /* of the body, when not in chunks */
};

/* Where the head ends. 0: more must come; 200: *ret_len bytes with the empty line; else the status
   of the refusal (400, 431). */
int vg_web_head_find(const char *text, size_t n, size_t head_max, size_t *ret_len);
/* Bytes that vg_web_head_parse() needs at `mem` for a head of `len`. */
#define VG_WEB_HEAD_MEM(len) (2 * (len) + 4)
/* Fills req's method, path, target, query and headers, all of them in `mem`, from a head that was
   found. 200 or the status of the refusal. */
int vg_web_head_parse(const char *text, size_t len, char *mem, struct vg_web_req *req,
                      struct vg_web_head *ret);

/* In place; `plus`: '+' is a space. -EINVAL: a broken escape or NUL. */
int vg_web_decode(char *s, bool plus);

enum vg_web_chunk_state {
    VG_WEB_CHUNK_SIZE,
    VG_WEB_CHUNK_EXT,
    VG_WEB_CHUNK_SIZE_LF,
    VG_WEB_CHUNK_DATA,
    VG_WEB_CHUNK_DATA_CR,
    VG_WEB_CHUNK_DATA_LF,
    VG_WEB_CHUNK_TRAILER,
    VG_WEB_CHUNK_TRAILER_LF,
    VG_WEB_CHUNK_DONE,
};
struct vg_web_chunks { /* zeroed is the beginning */
    enum vg_web_chunk_state state;
    uint64_t left; /* of this chunk */
    unsigned digits, line, trailer;
};
/* Takes bytes of a body in chunks: their contents go to `out`, which may hold `max`. 0: more must
   come; 1: complete (what is behind *ret_used belongs to the next request); else the status of the
   refusal (400, 413, 500). */
int vg_web_chunks_feed(struct vg_web_chunks *k, const uint8_t *p, size_t n, size_t *ret_used,
                       struct vg_buf *out, size_t max);
