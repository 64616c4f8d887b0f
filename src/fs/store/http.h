#pragma once
/* As much of HTTP/1.1 as registries and buckets take: TLS against the system's authorities or given
   ones, lengths and chunks, one connection for many requests, everything bounded. Blocking, with
   time limits; a connection belongs to one thread at a time. */
#include "base/buf.h"
#include "base/err.h"

#define VG_HTTP_URL_MAX 4096

struct vg_http_answer {
    int status;
    char location[VG_HTTP_URL_MAX];     /* of a redirection */
    char authenticate[VG_HTTP_URL_MAX]; /* WWW-Authenticate */
    char content_type[256];
    char digest[128]; /* Docker-Content-Digest */
    char etag[256];
    uint64_t length; /* of a HEAD's answer, or of the body that came */
};

struct vg_http_conf {
    const char *ca;        /* a file of certificates to trust besides the system's; NULL: none */
    unsigned patience_sec; /* for a connection and for every byte; 0: a minute */
};

struct vg_http_req {
    const char *method;  /* NULL: GET */
    const char *target;  /* path and query; NULL: those of the URL */
    const char *headers; /* lines that end in \r\n; NULL: none */
    /* what is sent: bytes, or `body_len` of `body_fd` from `body_off` on when `body` is NULL */
    const void *body;
    int body_fd;
    uint64_t body_off, body_len;
    /* What comes goes to `fd` when the status is 200, else (and with fd < 0) into `out`, which may
       be NULL. More than `max` bytes, of another status more than a few KiB, are an error. */
    int fd;
    struct vg_buf *out;
    uint64_t max;
};
#define VG_HTTP_REQ_INIT ((struct vg_http_req){.body_fd = -1, .fd = -1})

struct vg_http;
/* Only parses the URL; a connection is made by the first request, and made anew after any that the
   server ended. */
int vg_http_open(const char *url, const struct vg_http_conf *conf, struct vg_http **ret,
                 struct vg_err *err);
/* On a socket that is connected already: for tests. Takes it. */
int vg_http_open_fd(int fd, struct vg_http **ret);
void vg_http_close(struct vg_http *h);
const char *vg_http_host(const struct vg_http *h); /* "host" or "host:port", as in Host: */
bool vg_http_is_tls(const struct vg_http *h);
/* One request and its answer. err->reason is TIMEOUT or UNAVAILABLE when trying again may help. A
   request on a connection that had been kept and was closed meanwhile is sent again on another. */
int vg_http_do(struct vg_http *h, const struct vg_http_req *q, struct vg_http_answer *ret,
               struct vg_err *err);

/* Appends a text as it stands in a URL: everything but letters, digits, -._~ and what is to be kept
   becomes %XX. */
int vg_http_escape(struct vg_buf *b, const char *s, const char *keep);

/* A single GET of a URL. `auth` and `accept` (header values) may be NULL. No redirection is
   followed here. */
int vg_http_get(const char *url, const struct vg_http_conf *conf, const char *auth,
                const char *accept, int fd, struct vg_buf *out, uint64_t max,
                struct vg_http_answer *ret, struct vg_err *err);
