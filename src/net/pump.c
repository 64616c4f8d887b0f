/* Pumps: they join two carriers, a stream with a stream, a socket or a duct. Loop thread.

   Always:
   1. Credit of a stream is returned when its bytes have been passed on, so what waits in a pump is
      at most one credit a direction; from a socket only as much is read as the stream has room for.
   2. Calls into streams never call back, so a pump is entered by one event at a time; finish() is
      the last thing an event does. */
#include "base/fault.h"
#include "base/mem.h"
#include "base/util.h"
#include "net/conn-internal.h"
#include "net/duct.h"

#include <string.h>
#include <sys/socket.h>

struct pump;

struct side {
    struct pump *pump;
    struct vg_stream *stream; /* owned; NULL: this side is the socket, or gone */
    struct vg_buf out;        /* from the other side, waiting to enter this one */
    bool source_ended;        /* nothing more comes from this side */
    bool end_passed;          /* the other side's end was passed on to this one */
};

struct pump {
    struct side side[2];
    uv_poll_t poll;       /* of the socket or duct */
    int fd;               /* owned; -1: two streams. The socket or duct is side[0] */
    struct vg_duct *duct; /* owned, and the owner of fd; NULL: a socket */
    int events;
    void (*done)(void *user);
    void *user;
};

static struct side *other(struct side *s) {
    return &s->pump->side[s == &s->pump->side[0]];
}

/* ------------------------------------------------------------------ the end */

static void on_closed(uv_handle_t *handle) {
    free(handle->data);
}

/* Closes everything and tells; the pump is gone afterwards. */
static void finish(struct pump *p, enum vg_reason reason) {
    for (int i = 0; i < 2; i++) {
        vg_stream_free(vg_take_ptr(p->side[i].stream), reason);
        vg_buf_done(&p->side[i].out);
    }
    void (*done)(void *) = p->done;
    void *user = p->user;
    if (p->fd >= 0) {
        uv_close((uv_handle_t *)&p->poll, on_closed);
        if (p->duct)
            vg_duct_close(vg_take_ptr(p->duct));
        else
            vg_close(&p->fd);
    } else {
        free(p);
    }
    if (done)
        done(user);
}

static bool is_complete(const struct pump *p) {
    return p->side[0].end_passed && p->side[1].end_passed;
}

/* ------------------------------------------------------------------ moving bytes */

/* Bytes that entered this side, or -errno. */
static ssize_t side_write(struct side *s, const uint8_t *data, size_t n) {
    if (s->stream) {
        size_t k = VG_MIN(n, vg_stream_room(s->stream));
        int r = k ? vg_stream_send(s->stream, data, k) : 0;
        return r < 0 ? r : (ssize_t)k;
    }
    ssize_t r = vg_fault("net.send");
    if (r < 0)
        return r;
    if (s->pump->duct)
        return vg_duct_write(s->pump->duct, &(struct iovec){(void *)data, n}, 1);
    do
        r = send(s->pump->fd, data, n, MSG_NOSIGNAL | MSG_DONTWAIT);
    while (r < 0 && errno == EINTR);
    if (r < 0)
        return errno == EAGAIN || errno == ENOBUFS ? 0 : -errno;
    return r;
}

static void side_end(struct side *s) {
    s->end_passed = true;
    if (s->stream)
        vg_stream_end(s->stream);
    else if (s->pump->duct)
        vg_duct_shut(s->pump->duct);
    else
        (void)shutdown(s->pump->fd, SHUT_WR);
}

/* Bytes of `from` have left the pump. */
static void passed_on(struct side *from, size_t n) {
    if (from->stream && n)
        vg_stream_consumed(from->stream, n);
}

/* Empties what waits for `to`, then passes the end on. 0 or -errno. */
static int drain(struct side *to) {
    struct side *from = other(to);
    while (vg_buf_len(&to->out)) {
        ssize_t k = side_write(to, vg_buf_data(&to->out), vg_buf_len(&to->out));
        if (k < 0)
            return (int)k;
        if (k == 0)
            return 0;
        vg_buf_consume(&to->out, (size_t)k);
        passed_on(from, (size_t)k);
    }
    vg_buf_done(&to->out);
    if (from->source_ended && !to->end_passed)
        side_end(to);
    return 0;
}

static int push(struct side *from, const uint8_t *data, size_t n) {
    struct side *to = other(from);
    ssize_t k = 0;
    while (n && !vg_buf_len(&to->out) && (k = side_write(to, data, n)) > 0) {
        passed_on(from, (size_t)k);
        data += k;
        n -= (size_t)k;
    }
    if (k < 0)
        return (int)k;
    return n ? vg_buf_append(&to->out, data, n) : 0;
}

/* ------------------------------------------------------------------ the socket */

static void on_poll(uv_poll_t *handle, int status, int events);

/* A duct is always polled. What is there already is looked at in the next turn of the loop, after
   others had theirs. */
static int watch_duct(struct pump *p, bool reads) {
    const uint8_t *at;
    ssize_t have = vg_duct_peek(p->duct, &at);
    if (have < 0)
        return (int)have;
    if (vg_duct_arm(p->duct, reads ? 0 : (size_t)have, vg_buf_len(&p->side[0].out) > 0))
        vg_duct_nudge(p->duct);
    if (p->events)
        return 0;
    p->events = UV_READABLE;
    return uv_poll_start(&p->poll, UV_READABLE, on_poll);
}

static int watch(struct pump *p) {
    struct side *sock = &p->side[0], *stream = &p->side[1];
    if (p->fd < 0)
        return 0;
    bool reads = !sock->source_ended && vg_stream_room(stream->stream) > 0;
    if (p->duct)
        return watch_duct(p, reads);
    int events = (reads ? UV_READABLE : 0) | (vg_buf_len(&sock->out) ? UV_WRITABLE : 0);
    if (events == p->events)
        return 0;
    p->events = events;
    return events ? uv_poll_start(&p->poll, events, on_poll) : uv_poll_stop(&p->poll);
}

/* Every event ends here. */
static void settle(struct pump *p, int r) {
    if (r == 0 && !is_complete(p))
        r = watch(p);
    if (r < 0)
        finish(p, VG_LOST);
    else if (is_complete(p))
        finish(p, VG_OK);
}

static int socket_read(struct pump *p) {
    uint8_t *scratch = conn_scratch();
    if (!scratch)
        return -ENOMEM;
    for (int i = 0; i < CONN_READS; i++) {
        size_t room = VG_MIN(vg_stream_room(p->side[1].stream), (size_t)CONN_IO);
        if (room == 0)
            return 0;
        ssize_t r = vg_fault("net.recv");
        if (r < 0)
            return (int)r;
        r = recv(p->fd, scratch, room, MSG_DONTWAIT);
        if (r < 0)
            return errno == EAGAIN || errno == EINTR ? 0 : -errno;
        if (r == 0) {
            p->side[0].source_ended = true;
            return drain(&p->side[1]);
        }
        int e = vg_stream_send(p->side[1].stream, scratch, (size_t)r);
        if (e < 0 || (size_t)r < room)
            return e;
    }
    return 0;
}

static int duct_read(struct pump *p) {
    const uint8_t *at;
    ssize_t have = vg_duct_peek(p->duct, &at);
    if (have < 0)
        return (int)have;
    size_t n = VG_MIN((size_t)have, vg_stream_room(p->side[1].stream));
    int r = n ? vg_stream_send(p->side[1].stream, at, n) : 0;
    if (r < 0)
        return r;
    vg_duct_consume(p->duct, n);
    if (!vg_duct_ended(p->duct, 0))
        return 0;
    p->side[0].source_ended = true;
    return drain(&p->side[1]);
}

static void on_duct(struct pump *p) {
    int r = drain(&p->side[0]);
    if (r == 0 && !p->side[0].source_ended)
        r = duct_read(p);
    settle(p, r);
}

static void on_poll(uv_poll_t *handle, int status, int events) {
    struct pump *p = handle->data;
    int r = status < 0 ? status : 0;
    if (r == 0 && p->duct) {
        on_duct(p);
        return;
    }
    if (r == 0 && (events & UV_WRITABLE))
        r = drain(&p->side[0]);
    if (r == 0 && (events & UV_READABLE) && !p->side[0].source_ended)
        r = socket_read(p);
    settle(p, r);
}

/* ------------------------------------------------------------------ streams' events */

static void on_data(struct vg_stream *s, void *user, const uint8_t *data, size_t n) {
    struct side *from = user;
    (void)s;
    settle(from->pump, push(from, data, n));
}

static void on_end(struct vg_stream *s, void *user) {
    struct side *from = user;
    (void)s;
    from->source_ended = true;
    settle(from->pump, drain(other(from)));
}

static void on_reset(struct vg_stream *s, void *user, enum vg_reason reason) {
    struct side *from = user;
    (void)s;
    from->stream = NULL; /* its connection frees it */
    finish(from->pump, reason);
}

static void on_writable(struct vg_stream *s, void *user) {
    struct side *to = user;
    (void)s;
    settle(to->pump, drain(to));
}

static const struct vg_stream_ops pump_ops = {
    .on_data = on_data, .on_end = on_end, .on_reset = on_reset, .on_writable = on_writable};

void vg_pump_stop(struct vg_stream *s, enum vg_reason reason) {
    if (s->ops == &pump_ops)
        finish(((struct side *)s->user)->pump, reason);
}

/* ------------------------------------------------------------------ starting */

static struct pump *pump_new(void (*done)(void *), void *user) {
    struct pump *p = vg_alloc(sizeof(*p));
    if (!p)
        return NULL;
    *p = (struct pump){.fd = -1, .done = done, .user = user};
    p->side[0].pump = p->side[1].pump = p;
    return p;
}

int vg_pump_streams(struct vg_stream *a, struct vg_stream *b, void (*done)(void *), void *user) {
    vg_auto_free struct pump *p = pump_new(done, user);
    int r = p ? 0 : -ENOMEM;
    if (r == 0)
        r = vg_stream_set_ops(a, &pump_ops, &p->side[0]);
    if (r == 0)
        r = vg_stream_set_ops(b, &pump_ops, &p->side[1]);
    if (r < 0) {
        vg_stream_free(a, VG_LOST);
        vg_stream_free(b, VG_LOST);
        return r;
    }
    p->side[0].stream = a;
    p->side[1].stream = b;
    (void)vg_take_ptr(p); /* its streams' events own it now */
    return 0;
}

static int pump_open_fd(uv_loop_t *loop, struct pump *p, int fd, struct vg_stream *s) {
    int type;
    socklen_t len = sizeof(type);
    if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &len) < 0)
        return -errno;
    int r = vg_set_nonblock(fd, true);
    if (r == 0)
        r = vg_stream_set_ops(s, &pump_ops, &p->side[1]);
    return r < 0 ? r : uv_poll_init(loop, &p->poll, fd);
}

int vg_pump_fd(uv_loop_t *loop, int fd_in, struct vg_stream *s, void (*done)(void *), void *user) {
    vg_auto_fd int fd = fd_in;
    vg_auto_free struct pump *p = pump_new(done, user);
    int r = p ? pump_open_fd(loop, p, fd, s) : -ENOMEM;
    if (r < 0) {
        vg_stream_free(s, VG_LOST);
        return r;
    }
    p->poll.data = p;
    p->fd = vg_take_fd(fd);
    p->side[1].stream = s;
    struct pump *made = vg_take_ptr(p);
    r = watch(made);
    if (r < 0) {
        made->done = NULL;
        finish(made, VG_LOST);
    }
    return r;
}

int vg_pump_duct(uv_loop_t *loop, struct vg_duct *d, struct vg_stream *s, void (*done)(void *),
                 void *user) {
    vg_auto_free struct pump *p = pump_new(done, user);
    int r = p ? vg_stream_set_ops(s, &pump_ops, &p->side[1]) : -ENOMEM;
    if (r == 0)
        r = uv_poll_init(loop, &p->poll, vg_duct_fd(d));
    if (r < 0) {
        vg_stream_free(s, VG_LOST);
        vg_duct_close(d);
        return r;
    }
    p->poll.data = p;
    p->fd = vg_duct_fd(d);
    p->duct = d;
    p->side[1].stream = s;
    struct pump *made = vg_take_ptr(p);
    r = watch(made);
    if (r < 0) {
        made->done = NULL;
        finish(made, VG_LOST);
    }
    return r;
}
