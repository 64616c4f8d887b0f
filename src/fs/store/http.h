#pragma once
/* As much of HTTP/1.1 as fetching from a registry takes: GET, TLS with the system's authorities,
   lengths and chunks, bounded. Blocking, with time limits. */
#include "base/buf.h"
#include "base/err.h"

#define VG_HTTP_URL_MAX 4096

struct vg_http_answer {
    int status;
    char location[VG_HTTP_URL_MAX];     /* of a redirection */
    char authenticate[VG_HTTP_URL_MAX]; /* WWW-Authenticate */
    char content_type[256];
    char digest[128]; /* Docker-Content-Digest */
};
/* The body goes to `fd`, or with fd < 0 into `out`; more than `max` bytes are an error. Only a body
   of status 200 goes to fd; others are put into `out` (may be NULL) up to a few KiB. `auth` and
   `accept` (header values) may be NULL. No redirection is followed here. */
int vg_http_get(const char *url, const char *auth, const char *accept, int fd, struct vg_buf *out,
                uint64_t max, struct vg_http_answer *ret, struct vg_err *err);
