#pragma once
/* A small HTTP server for texts: GET of a few pages, one request a connection, no bodies. For
   programs that look from outside, not for people or tasks. Loop thread only; never blocks.

   Bounded: 32 connections, requests of 4 KiB, ten seconds from first to last byte. A page is made
   in parts, the next one when the last was taken: a large page holds up the loop no longer than its
   largest part, and a slow reader holds the memory of one. */
#include "base/buf.h"
#include "base/err.h"

#include <stdbool.h>
#include <uv.h>

#define VG_HTTP_CONNS_MAX 32
#define VG_HTTP_REQUEST_MAX 4096
#define VG_HTTP_USEC (10 * 1000000ULL)

struct vg_http_page {
    const char *path; /* "/metrics" */
    const char *type; /* of its content */
    /* Appends part `i`, counted from 0. 1: done, more may follow; 0: there is no such part, the
       page is complete; -errno: the answer is broken off. */
    int (*part)(void *user, size_t i, struct vg_buf *to);
    int (*status)(void *user); /* 200 or 503, asked before its first part; NULL: 200 */
};

struct vg_http;
/* `pages` ends with one without a path, and outlives the server. `host` "": every address. */
int vg_http_start(uv_loop_t *loop, const char *host, uint16_t port,
                  const struct vg_http_page *pages, void *user, struct vg_http **ret,
                  uint16_t *ret_port, struct vg_err *err);
/* Nobody is answered any more; accepts NULL. */
void vg_http_stop(struct vg_http *h);

/* The head of a request. 0: more must come; else the status of the answer: 200 and the length of
   the path, which is at text + 4, or 400, 405 (another method), 431 (too long), 505. */
int vg_http_parse(const char *text, size_t n, size_t *ret_path);
