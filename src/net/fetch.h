#pragma once
/* Asks other servers: HTTP and HTTPS requests, and mail by SMTP, on a libuv loop by libcurl's multi
   interface. Loop thread only; never blocks (names are resolved in a thread of libcurl's).

   What always holds: a call that was accepted is told its answer exactly once, never from within
   the function that began it, or is cancelled and told nothing. At most `at_once` calls are under
   way; VG_FETCH_WAITING_MAX more wait in line; the next is refused. An answer beyond its size, its
   time or its number of redirections is an error, as is a server whose certificate does not fit.
   The environment's proxies are not used: only what the caller names. */
#include "base/err.h"

#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <uv.h>

#define VG_FETCH_WAITING_MAX 1024
#define VG_FETCH_BODY_MAX (1u << 20)    /* of an answer, unless the caller says otherwise */
#define VG_FETCH_USEC (30 * 1000000ULL) /* likewise, from begin to end */
#define VG_FETCH_URL_MAX 2048

struct vg_fetcher;
struct vg_fetch; /* one call */

struct vg_fetcher_opts {
    size_t at_once;    /* 0: 16 */
    const char *proxy; /* http://host:port; NULL: none. Copied. */
};

int vg_fetcher_new(uv_loop_t *loop, const struct vg_fetcher_opts *opts, struct vg_fetcher **ret,
                   struct vg_err *err);
/* Whatever is under way is cancelled; accepts NULL. Not from within a call's answer. */
void vg_fetcher_free(struct vg_fetcher *f);

/* Whether a connection to this address may be made. Asked for each address that is tried, so a
   name that means another address a moment later changes nothing. */
typedef bool (*vg_fetch_guard)(void *user, const struct sockaddr *to);

struct vg_fetch_req {
    const char *method;         /* NULL: GET, or POST with a body */
    const char *url;            /* http:// or https:// */
    const char *const *headers; /* "Name: value", NULL at the end; NULL: none */
    const void *body;
    size_t body_bytes;
    const char *ca_file;         /* who is trusted; NULL: whom the system trusts */
    const char *user, *password; /* basic authentication; NULL: none */
    uint64_t usec;               /* 0: VG_FETCH_USEC */
    size_t max_bytes;            /* 0: VG_FETCH_BODY_MAX */
    const char *proxy;           /* as the fetcher's, of this call alone; NULL: the fetcher's */
    unsigned redirects;          /* 0: one is an answer like any other */
    vg_fetch_guard guard;        /* NULL: every address; not asked for a proxy's */
    void *guard_user;
};

/* `answer` is valid within the callback only. Any HTTP status is success: err is about what came
   before one. */
struct vg_fetch_answer {
    const struct vg_err *err; /* NULL: there is a status */
    int status;               /* 200 */
    const char *body;         /* NUL-ended, never NULL */
    size_t body_bytes;
    struct vg_fetch *call;
};
typedef void (*vg_fetch_fn)(void *user, const struct vg_fetch_answer *answer);

/* Everything in `req` is copied, but for the guard. `ret` may be NULL. A failure calls nobody. */
int vg_fetch_start(struct vg_fetcher *f, const struct vg_fetch_req *req, vg_fetch_fn fn, void *user,
                   struct vg_fetch **ret, struct vg_err *err);
/* Nobody is told; accepts NULL. Only before its answer. */
void vg_fetch_cancel(struct vg_fetch *call);
/* A header of the answer, NULL when it has none of that name. Valid within the callback. */
const char *vg_fetch_header(const struct vg_fetch_answer *answer, const char *name);

enum vg_mail_tls {
    VG_MAIL_TLS_START, /* in the clear until STARTTLS, without which nothing is sent */
    VG_MAIL_TLS_WHOLE, /* from the first byte (smtps) */
    VG_MAIL_TLS_NONE,
};

struct vg_mail_req {
    const char *server; /* HOST or HOST:PORT */
    enum vg_mail_tls tls;
    const char *user, *password; /* NULL: the server is not told who sends */
    const char *ca_file;         /* NULL: whom the system trusts */
    const char *from;            /* addresses, without names or brackets */
    const char *const *to;       /* NULL at the end */
    const char *text;            /* the whole message, headers first, lines ended by CR LF */
    size_t text_bytes;
    uint64_t usec; /* 0: VG_FETCH_USEC */
};
/* As vg_fetch_start; the answer's status is SMTP's (250). */
int vg_fetch_mail(struct vg_fetcher *f, const struct vg_mail_req *req, vg_fetch_fn fn, void *user,
                  struct vg_fetch **ret, struct vg_err *err);

/* How many calls are under way or wait. */
size_t vg_fetcher_load(const struct vg_fetcher *f);
