#pragma once
/* An HTTP/1.1 server on a libuv loop: TLS or plain, keep-alive, pipelining, streams with
   back-pressure, WebSockets. Loop thread only; nothing here blocks.

   A request comes whole (head and body) to on_request(), which owns it from then on and gives it
   back by exactly one of
       vg_web_answer()                      now or at any time later
       vg_web_begin() … vg_web_end()        a body in parts (text/event-stream, exports)
       vg_web_upgrade()                     a WebSocket (ws.h)
   The client may go away before: the request stays valid, `gone` is set, vg_web_on_gone()'s
   function is called once, and what is answered then goes nowhere. No other function frees a
   request.

   Of one connection one request at a time is with the program; those that were sent behind it wait
   in the connection's buffer. HEAD comes as GET with `head` set; its body is left out here.

   Bounded: see struct vg_web_limits. What breaks HTTP is answered here (400, 408, 413, 414, 417,
   431, 501, 505) and never seen by the program. */
#include "base/buf.h"
#include "base/err.h"
#include "net/tls.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

struct vg_web_limits {     /* 0: what is written behind it */
    size_t head_max;       /* 16 KiB: the request's line and headers */
    size_t body_max;       /* 1 MiB; see also vg_web_ops.body_max */
    size_t queue_max;      /* 256 KiB: of a stream, unread by its client */
    size_t conns_max;      /* 8,192 */
    size_t conns_peer_max; /* 4,096 of one address */
    uint64_t first_msec;   /* 10 s: from the connection to the first request's first byte */
    uint64_t head_msec;    /* 10 s: for a whole head */
    uint64_t body_msec;    /* 60 s: for a whole body */
    uint64_t idle_msec;    /* 75 s: between two requests */
    uint64_t stall_msec;   /* 30 s: a client that takes no byte of what waits for it */
};
#define VG_WEB_HEADERS_MAX 96
#define VG_WEB_QUERY_MAX 64

enum vg_web_method {
    VG_WEB_GET,
    VG_WEB_POST,
    VG_WEB_PUT,
    VG_WEB_PATCH,
    VG_WEB_DELETE,
    VG_WEB_OPTIONS,
    VG_WEB_METHODS
};
const char *vg_web_method_name(enum vg_web_method m); /* "GET" */

struct vg_web_pair {
    const char *name;  /* of headers in lower case */
    const char *value; /* never NULL */
};

struct vg_web_conn;
struct vg_web_req {
    enum vg_web_method method;
    bool head;          /* was HEAD */
    bool gone;          /* the client is: what is answered goes nowhere */
    bool secure;        /* came through TLS */
    const char *path;   /* percent-decoded; begins with '/', no NUL, no "." or ".." part */
    const char *target; /* as it was sent: path?query */
    struct vg_web_pair query[VG_WEB_QUERY_MAX]; /* decoded, '+' is a space, in order */
    size_t n_query;
    struct vg_web_pair header[VG_WEB_HEADERS_MAX];
    size_t n_headers;
    const uint8_t *body; /* NUL behind its end */
    size_t body_len;
    const char *peer;         /* address without port */
    void *user;               /* the program's own */
    struct vg_web_conn *conn; /* NULL when gone */
};

struct vg_web_ops {
    void (*on_request)(struct vg_web_req *req, void *user);
    /* The most bytes of body that this head may bring; it has no body yet. NULL: body_max of the
       limits for all. Called before "100 Continue" is sent. */
    size_t (*body_max)(const struct vg_web_req *req, void *user);
    /* A caller's address, asked once a request before on_request: 0, or in how many milliseconds
       it may come again, which is answered here (429). NULL: no limit. */
    uint64_t (*limit)(const char *peer, void *user);
};

/* ------------------------------------------------------------------ the server */

struct vg_web;
/* tls NULL: plain. The server keeps a reference to it. port 0 picks one. */
int vg_web_start(uv_loop_t *loop, const char *host, uint16_t port, struct vg_tls *tls,
                 const struct vg_web_limits *limits, const struct vg_web_ops *ops, void *user,
                 struct vg_web **ret, uint16_t *ret_port, struct vg_err *err);
/* From now on: another certificate for new connections. */
void vg_web_set_tls(struct vg_web *w, struct vg_tls *tls);
/* Headers that every answer of this server carries: "Name: value\r\n…"; copied. */
int vg_web_set_common(struct vg_web *w, const char *headers);
/* Every connection ends now (requests are gone, WebSockets closed); accepts NULL. Requests that
   the program still holds may be answered afterwards. */
void vg_web_stop(struct vg_web *w);
struct vg_web_numbers {
    uint64_t conns_now, requests_now, streams_now, sockets_now; /* open */
    uint64_t conns, requests, refused, limited;                 /* since the start */
    uint64_t status[6];                                         /* answers 1xx … 5xx */
};
struct vg_web_numbers vg_web_numbers(const struct vg_web *w);

/* ------------------------------------------------------------------ requests */

const char *vg_web_header(const struct vg_web_req *req, const char *lower_name); /* NULL: none */
const char *vg_web_query(const struct vg_web_req *req, const char *name);        /* NULL: none */
/* A cookie's value; 0, -ENOENT, or -ENOBUFS. */
int vg_web_cookie(const struct vg_web_req *req, const char *name, char *out, size_t n);
/* Whether the Accept header prefers nothing to this type ("text/csv"); without one: false. */
bool vg_web_accepts(const struct vg_web_req *req, const char *type);
/* Whether a browser's page of this very host sent it: no Origin header, or one whose host is
   Host's. What changes something and is signed in by cookie must ask; WebSockets too. */
bool vg_web_same_origin(const struct vg_web_req *req);
/* Called once, from the loop, when the client goes away before the answer is complete. */
void vg_web_on_gone(struct vg_web_req *req, void (*gone)(struct vg_web_req *req, void *user),
                    void *user);

/* ------------------------------------------------------------------ answers */

/* A header of the answer to come; copied. Line ends in a value are refused (-EINVAL). */
int vg_web_set(struct vg_web_req *req, const char *name, const char *value);
/* The whole answer. type NULL: no body. Frees req. */
void vg_web_answer(struct vg_web_req *req, int status, const char *type, const void *body,
                   size_t n);
void vg_web_text(struct vg_web_req *req, int status, const char *text); /* text/plain, and "\n" */
/* What the server itself refuses, as a problem (RFC 9457), so that programs read one kind of error.
 */
void vg_web_refuse(struct vg_web_req *req, int status);

/* An answer in parts. on_room: vg_web_room() was 0 and is not any more; on_gone: the client is
   away; vg_web_end() is still due. Both may be NULL. */
struct vg_web_stream_ops {
    void (*on_room)(struct vg_web_req *req, void *user);
    void (*on_gone)(struct vg_web_req *req, void *user);
};
int vg_web_begin(struct vg_web_req *req, int status, const char *type,
                 const struct vg_web_stream_ops *ops, void *user);
/* How much may be written; 0: wait for on_room. A write may be larger than it, once. */
size_t vg_web_room(const struct vg_web_req *req);
size_t vg_web_queued(const struct vg_web_req *req); /* bytes that the client has not taken */
/* -EPIPE: the client is gone; -ENOMEM: it is now. Never calls back. */
int vg_web_write(struct vg_web_req *req, const void *data, size_t n);
/* The body is complete (broken: it is not, and the client can tell). Frees req. */
void vg_web_end(struct vg_web_req *req, bool broken);

const char *vg_web_phrase(int status); /* "Not Found" */
