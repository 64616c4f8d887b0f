/* Dialling: resolve off the loop, then try each address until one answers. Loop thread only; the
   callback always comes from the loop. A finished or cancelled dial is silent and frees itself
   when its resolver and handles have let go of it. */
#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"
#include "net/conn.h"

#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

/* The poll handle of one attempt; libuv keeps it longer than the attempt lasts. */
struct attempt {
    uv_poll_t poll;
    struct vg_dial *dial;
    int fd; /* owned */
};

struct vg_dial {
    uv_loop_t *loop;
    uv_timer_t timer;
    uv_getaddrinfo_t resolve;
    bool resolving, finished;
    unsigned refs;                /* timer, attempts, resolver */
    struct attempt *attempt;      /* the one under way */
    struct addrinfo *list, *next; /* list owned */
    struct vg_err err;
    char host[256], port[8];
    void (*done)(int fd, const struct vg_err *err, void *user);
    void *user;
};

static void try_next(struct vg_dial *d);

static void unref(struct vg_dial *d) {
    if (--d->refs)
        return;
    if (d->list)
        freeaddrinfo(d->list);
    free(d);
}

static void on_timer_closed(uv_handle_t *handle) {
    unref(handle->data);
}

static void on_attempt_closed(uv_handle_t *handle) {
    struct attempt *a = handle->data;
    unref(a->dial);
    free(a);
}

/* Ends the attempt under way and returns its descriptor, which is the caller's. */
static int attempt_end(struct vg_dial *d) {
    struct attempt *a = vg_take_ptr(d->attempt);
    if (!a)
        return -1;
    uv_close((uv_handle_t *)&a->poll, on_attempt_closed);
    return vg_take_fd(a->fd);
}

static void finish(struct vg_dial *d, int fd) {
    d->finished = true;
    if (d->resolving)
        (void)uv_cancel((uv_req_t *)&d->resolve);
    uv_close((uv_handle_t *)&d->timer, on_timer_closed);
    d->done(fd, &d->err, d->user);
}

static void on_timeout(uv_timer_t *handle) {
    struct vg_dial *d = handle->data;
    int fd = attempt_end(d);
    vg_close(&fd);
    if (d->err.reason == VG_OK)
        vg_err_set(&d->err, VG_TIMEOUT,
                   "cannot reach %s:%s in time; check the address and the network between", d->host,
                   d->port);
    finish(d, d->err.code);
}

/* Failures are told from the loop: the timer is at hand. */
static void fail_soon(struct vg_dial *d) {
    uv_timer_start(&d->timer, on_timeout, 0, 0);
}

static void on_writable(uv_poll_t *handle, int status, int events) {
    struct attempt *a = handle->data;
    struct vg_dial *d = a->dial;
    int error = 0;
    socklen_t len = sizeof(error);
    (void)events;
    if (d->attempt != a)
        return;
    /* The socket knows why; the loop's own status for a refused connect is a bad descriptor. */
    if (getsockopt(a->fd, SOL_SOCKET, SO_ERROR, &error, &len) < 0)
        error = errno;
    if (!error && status < 0)
        error = -status;
    int fd = attempt_end(d);
    if (error == 0) {
        d->err = VG_ERR_INIT;
        finish(d, fd);
        return;
    }
    vg_close(&fd);
    vg_err_sys(&d->err, error, "cannot connect to %s:%s", d->host, d->port);
    d->err.reason = VG_UNAVAILABLE;
    try_next(d);
}

static int attempt_start(struct vg_dial *d, const struct addrinfo *ai) {
    vg_auto_free struct attempt *a = vg_alloc(sizeof(*a));
    if (!a)
        return -ENOMEM;
    vg_auto_fd int fd = socket(ai->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -errno;
    if (connect(fd, ai->ai_addr, ai->ai_addrlen) < 0 && errno != EINPROGRESS)
        return -errno;
    int r = uv_poll_init(d->loop, &a->poll, fd);
    if (r < 0)
        return r;
    a->poll.data = a;
    a->dial = d;
    a->fd = vg_take_fd(fd);
    d->refs++;
    d->attempt = vg_take_ptr(a);
    r = uv_poll_start(&d->attempt->poll, UV_WRITABLE, on_writable);
    if (r < 0) {
        int gone = attempt_end(d);
        vg_close(&gone);
    }
    return r;
}

static void try_next(struct vg_dial *d) {
    while (d->next) {
        struct addrinfo *ai = d->next;
        d->next = ai->ai_next;
        int r = attempt_start(d, ai);
        if (r == 0)
            return;
        vg_err_sys(&d->err, r, "cannot connect to %s:%s", d->host, d->port);
        d->err.reason = VG_UNAVAILABLE;
    }
    fail_soon(d);
}

static void resolved(struct vg_dial *d, int status, struct addrinfo *list) {
    d->list = d->next = list;
    if (status != 0)
        vg_err_set(&d->err, VG_UNAVAILABLE,
                   "cannot find the address of '%s': %s; check the name and the name service",
                   d->host, uv_strerror(status));
    try_next(d);
}

static void on_resolved(uv_getaddrinfo_t *req, int status, struct addrinfo *list) {
    struct vg_dial *d = req->data;
    d->resolving = false;
    if (d->finished) {
        if (list)
            uv_freeaddrinfo(list);
    } else {
        resolved(d, status, list);
    }
    unref(d);
}

/* "host:port", "[v6]:port". */
static int split(struct vg_dial *d, const char *address) {
    const char *colon = strrchr(address, ':');
    uint64_t port;
    if (!colon || vg_parse_u64(colon + 1, &port) < 0 || port == 0 || port > 65535)
        return -EINVAL;
    size_t n = (size_t)(colon - address);
    if (n >= 2 && address[0] == '[' && address[n - 1] == ']') {
        address++;
        n -= 2;
    }
    if (n == 0 || n >= sizeof(d->host))
        return -EINVAL;
    memcpy(d->host, address, n);
    (void)snprintf(d->port, sizeof(d->port), "%u", (unsigned)port);
    return 0;
}

static void start(struct vg_dial *d, const char *address) {
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST};
    struct addrinfo *list = NULL;
    if (split(d, address) < 0) {
        vg_err_set(&d->err, VG_INVALID, "'%.200s' is not an address; write host:port", address);
        fail_soon(d);
        return;
    }
    if (getaddrinfo(d->host, d->port, &hints, &list) == 0) {
        resolved(d, 0, list);
        return;
    }
    hints.ai_flags = 0;
    d->resolve.data = d;
    int r = uv_getaddrinfo(d->loop, &d->resolve, on_resolved, d->host, d->port, &hints);
    if (r < 0) {
        vg_err_set(&d->err, VG_UNAVAILABLE, "cannot look up '%s': %s", d->host, uv_strerror(r));
        fail_soon(d);
        return;
    }
    d->resolving = true;
    d->refs++;
}

struct vg_dial *vg_dial_tcp(uv_loop_t *loop, const char *address, uint64_t timeout_usec,
                            void (*done)(int fd, const struct vg_err *err, void *user),
                            void *user) {
    struct vg_dial *d = vg_alloc(sizeof(*d));
    if (!d)
        return NULL;
    *d = (struct vg_dial){.loop = loop, .refs = 1, .done = done, .user = user};
    uv_timer_init(loop, &d->timer);
    d->timer.data = d;
    if (timeout_usec)
        uv_timer_start(&d->timer, on_timeout, (timeout_usec + 999) / 1000, 0);
    start(d, address);
    return d;
}

void vg_dial_cancel(struct vg_dial *d) {
    if (!d || d->finished)
        return;
    d->finished = true;
    int fd = attempt_end(d);
    vg_close(&fd);
    if (d->resolving)
        (void)uv_cancel((uv_req_t *)&d->resolve);
    uv_close((uv_handle_t *)&d->timer, on_timer_closed);
}
