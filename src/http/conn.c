/* A connection's life: who may come, what it is at, when it ends.

   What always holds:
   1. At most one request of a connection is with the program (state BUSY).
   2. The program's functions are called from the loop only, never from inside a call of its own.
   3. A connection that ends has told whom it concerns: the request's owner or the WebSocket's. */
#include "base/mem.h"
#include "base/util.h"
#include "http/web-int.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>

#define KEPT 4096 /* of a connection's empty buffers */

static void on_poll(uv_poll_t *poll, int status, int events);

/* ------------------------------------------------------------------ the end */

static void on_closed(uv_handle_t *handle) {
    struct vg_web_conn *c = handle->data;
    vg_buf_done(&c->in);
    vg_buf_done(&c->out);
    SSL_free(c->ssl);
    vg_close(&c->fd);
    free(c);
}

static void peer_leave(struct vg_web *w, struct peer *p) {
    if (!p || --p->conns)
        return;
    vg_map_del(&w->peers, p->address);
    free(p);
}

/* The program hears that its client is away, and keeps the request until it answers. */
static void request_gone(struct vg_web_conn *c) {
    struct request *q = c->req;
    c->req = NULL;
    if (!q)
        return;
    if (c->state != BUSY) {
        request_free(q);
        return;
    }
    c->web->numbers.requests_now--;
    c->web->numbers.streams_now -= q->begun;
    q->pub.conn = NULL;
    q->pub.gone = true;
    q->pub.peer = "";
    if (q->begun && q->stream && q->stream->on_gone)
        q->stream->on_gone(&q->pub, q->stream_user);
    else if (q->gone)
        q->gone(&q->pub, q->gone_user);
}

void conn_drop(struct vg_web_conn *c) {
    struct vg_web *w = c->web;
    if (c->state == ENDED)
        return;
    if (c->ws)
        ws_gone(c);
    request_gone(c);
    c->state = ENDED;
    c->broken = true;
    vg_list_remove(&c->link);
    vg_list_remove(&c->on_ripe);
    peer_leave(w, c->peer);
    w->numbers.conns_now--;
    c->web = NULL;
    uv_close((uv_handle_t *)&c->poll, on_closed);
}

/* The last answer arrives before the end does: unread bytes would turn it into a reset. */
static void linger(struct vg_web_conn *c) {
    io_goodbye(c);
    c->state = LINGER;
    c->deadline_msec = uv_now(c->web->loop) + LINGER_MSEC;
    c->stall_msec = 0;
    c->broken = c->broken || c->eof;
}

/* ------------------------------------------------------------------ requests */

static void idle(struct vg_web_conn *c) {
    const struct vg_web_limits *l = &c->web->limits;
    c->state = HEAD;
    c->deadline_msec = uv_now(c->web->loop) + (vg_buf_len(&c->in) ? l->head_msec : l->idle_msec);
}

void conn_refuse(struct vg_web_conn *c, int status) {
    struct request *q = c->req ? c->req : request_new(c, 0);
    if (!q) {
        c->broken = true;
        return;
    }
    c->req = q;
    c->state = BUSY;
    c->web->numbers.requests_now++;
    c->web->numbers.refused++;
    q->head.keep_alive = false;
    vg_web_refuse(&q->pub, status);
}

static void to_program(struct vg_web_conn *c) {
    struct vg_web *w = c->web;
    struct request *q = c->req;
    uint64_t wait = w->ops.limit ? w->ops.limit(c->peer->address, w->user) : 0;
    /* A byte behind the body's end, so that it may be read as a string. */
    if (vg_buf_append(&q->body, "", 1) < 0) {
        conn_refuse(c, 503);
        return;
    }
    q->pub.body = vg_buf_data(&q->body);
    q->pub.body_len = vg_buf_len(&q->body) - 1;
    c->state = BUSY;
    c->deadline_msec = 0;
    w->numbers.requests++;
    w->numbers.requests_now++;
    if (wait) {
        char text[24];
        snprintf(text, sizeof(text), "%llu", (unsigned long long)(wait + 999) / 1000);
        w->numbers.limited++;
        (void)vg_web_set(&q->pub, "Retry-After", text);
        vg_web_refuse(&q->pub, 429);
        return;
    }
    w->ops.on_request(&q->pub, w->user);
}

/* 100 Continue, or the refusal of a body that would be too large. */
static void begin_body(struct vg_web_conn *c) {
    struct vg_web *w = c->web;
    struct request *q = c->req;
    q->body_max = w->ops.body_max ? w->ops.body_max(&q->pub, w->user) : w->limits.body_max;
    if (!q->head.chunked && q->head.length > q->body_max) {
        conn_refuse(c, 413);
        return;
    }
    if (!q->head.chunked && !q->head.length) {
        to_program(c);
        return;
    }
    if (q->head.expect && !vg_buf_len(&c->in) &&
        vg_buf_printf(&c->out, "HTTP/1.1 100 Continue\r\n\r\n") < 0)
        c->broken = true;
    c->state = BODY;
    c->deadline_msec = uv_now(w->loop) + w->limits.body_msec;
}

static void skip_empty_lines(struct vg_buf *in) {
    while (vg_buf_len(in) >= 2 && memcmp(vg_buf_data(in), "\r\n", 2) == 0)
        vg_buf_consume(in, 2);
}

/* False: more bytes must come. */
static bool take_head(struct vg_web_conn *c) {
    size_t len = 0;
    skip_empty_lines(&c->in);
    if (!vg_buf_len(&c->in))
        return false;
    const char *text = (char *)vg_buf_data(&c->in);
    int status = vg_web_head_find(text, vg_buf_len(&c->in), c->web->limits.head_max, &len);
    if (status == 0)
        return false;
    if (status != 200) {
        conn_refuse(c, status);
        return true;
    }
    struct request *q = request_new(c, len);
    if (!q) {
        conn_refuse(c, 503);
        return true;
    }
    c->req = q;
    status = vg_web_head_parse(text, len, q->mem, &q->pub, &q->head);
    vg_buf_consume(&c->in, len);
    if (status != 200)
        conn_refuse(c, status);
    else
        begin_body(c);
    return true;
}

static bool take_body(struct vg_web_conn *c) {
    struct request *q = c->req;
    size_t n = vg_buf_len(&c->in), used = 0;
    if (!n)
        return false;
    int status;
    if (q->head.chunked) {
        status =
            vg_web_chunks_feed(&q->chunks, vg_buf_data(&c->in), n, &used, &q->body, q->body_max);
    } else {
        used = VG_MIN(n, (size_t)q->head.length - vg_buf_len(&q->body));
        status = vg_buf_append(&q->body, vg_buf_data(&c->in), used) < 0 ? 503
                 : vg_buf_len(&q->body) == q->head.length               ? 1
                                                                        : 0;
    }
    vg_buf_consume(&c->in, used);
    if (status == 1)
        to_program(c);
    else if (status)
        conn_refuse(c, status);
    return status != 0;
}

/* Everything that the bytes at hand allow. Answers that nobody reads hold up later requests. */
static void process(struct vg_web_conn *c) {
    bool on = true;
    while (on && !c->broken && !c->closing) {
        switch (c->state) {
        case HEAD:
            on = vg_buf_len(&c->out) < c->web->limits.queue_max && take_head(c);
            break;
        case BODY:
            on = take_body(c);
            break;
        case SOCKET:
            ws_input(c);
            on = false;
            break;
        default:
            on = false;
        }
    }
    if (c->state == LINGER || c->closing)
        vg_buf_clear(&c->in);
}

/* ------------------------------------------------------------------ reading and writing */

static bool may_read(const struct vg_web_conn *c) {
    if (c->eof)
        return false;
    switch (c->state) {
    case SHAKE:
    case LINGER:
    case BODY:
        return true;
    case HEAD: /* behind an answer that is not read */
    case BUSY: /* a client that goes away is noticed by what it sends, or no more */
        return vg_buf_len(&c->in) < c->web->limits.head_max;
    case SOCKET:
        return !c->paused;
    default:
        return false;
    }
}

static void took(struct vg_web_conn *c, size_t n) {
    if (c->state == LINGER) {
        c->lingered += n;
        c->broken = c->lingered > LINGER_BYTES_MAX;
        return;
    }
    if (c->state == HEAD && !vg_buf_len(&c->in))
        c->deadline_msec = uv_now(c->web->loop) + c->web->limits.head_msec;
    if (vg_buf_append(&c->in, c->web->scratch, n) < 0)
        c->broken = true;
    process(c);
}

static void read_on(struct vg_web_conn *c) {
    while (!c->broken && may_read(c)) {
        ssize_t n = io_read(c, c->web->scratch, SCRATCH);
        if (n == -EAGAIN)
            return;
        if (n < 0)
            c->broken = true;
        if (n == 0)
            c->eof = true;
        if (n <= 0)
            return;
        took(c, (size_t)n);
        if (c->ssl ? !io_pending(c) : (size_t)n < SCRATCH)
            return; /* what comes later wakes us */
    }
}

static void shake(struct vg_web_conn *c) {
    int r = io_shake(c);
    if (r < 0)
        c->broken = true;
    if (r > 0)
        c->state = HEAD; /* the deadline of its first byte stands */
}

static void tell_room(struct vg_web_conn *c) {
    if (c->broken || !c->room_due || vg_buf_len(&c->out) > c->web->limits.queue_max / 2)
        return;
    c->room_due = false;
    if (c->state == SOCKET)
        ws_room(c);
    else if (c->state == BUSY && c->req->begun && c->req->stream->on_room)
        c->req->stream->on_room(&c->req->pub, c->req->stream_user);
}

static void poll_for(struct vg_web_conn *c) {
    int events = c->eof || c->state == LINGER ? 0 : UV_DISCONNECT;
    if (may_read(c) && !c->wants_out)
        events |= UV_READABLE;
    if (vg_buf_len(&c->out) || c->wants_out)
        events |= UV_WRITABLE;
    if (events == c->events)
        return;
    c->events = events;
    if (uv_poll_start(&c->poll, events, on_poll) < 0)
        conn_drop(c);
}

static void flush(struct vg_web_conn *c) {
    if (c->state == SHAKE || c->broken)
        return;
    if (vg_buf_len(&c->out) && io_flush(c) < 0)
        c->broken = true;
    if (vg_buf_len(&c->out) > OUT_BREAK)
        c->broken = true;
    if (vg_buf_len(&c->out) && !c->stall_msec)
        c->stall_msec = uv_now(c->web->loop) + c->web->limits.stall_msec;
    if (!vg_buf_len(&c->out) && c->out.cap > KEPT)
        vg_buf_done(&c->out);
    if (!vg_buf_len(&c->in) && c->in.cap > KEPT)
        vg_buf_done(&c->in);
}

/* After whatever happened: write, look at what was sent meanwhile, end if it is due. */
void conn_run(struct vg_web_conn *c) {
    if (c->turn || c->state == ENDED)
        return;
    c->turn = true;
    vg_list_remove(&c->on_ripe);
    do {
        flush(c);
        tell_room(c);
        if (!c->broken && (vg_buf_len(&c->in) || io_pending(c)) && !c->paused) {
            process(c);
            if (io_pending(c))
                read_on(c);
        }
    } while (!c->broken && !vg_list_empty(&c->on_ripe) && (vg_list_remove(&c->on_ripe), true));
    c->turn = false;
    if (c->eof && c->state == HEAD && vg_buf_len(&c->out))
        c->closing = true; /* it has sent all that it wants to, and reads on */
    else if (c->eof)
        c->broken = true;
    if (!c->broken && c->closing && !vg_buf_len(&c->out) && c->state != LINGER)
        linger(c);
    if (c->broken)
        conn_drop(c);
    else
        poll_for(c);
}

void conn_ripe(struct vg_web_conn *c) {
    if (vg_list_empty(&c->on_ripe))
        vg_list_push_back(&c->web->ripe, &c->on_ripe);
}

static void on_poll(uv_poll_t *poll, int status, int events) {
    struct vg_web_conn *c = poll->data;
    (void)events;
    c->turn = true;
    if (status < 0)
        c->broken = true;
    else if (c->state == SHAKE)
        shake(c);
    if (!c->broken && c->state != SHAKE)
        read_on(c);
    if ((events & UV_DISCONNECT) && !may_read(c))
        c->eof = true; /* it is full of what it sent, and leaves */
    c->turn = false;
    conn_run(c);
}

/* ------------------------------------------------------------------ time */

void conn_late(struct vg_web_conn *c, uint64_t now) {
    bool stalled = c->stall_msec && now >= c->stall_msec;
    if (c->ws && !stalled)
        ws_tick(c, now);
    if (stalled) {
        conn_drop(c);
        return;
    }
    if (!c->deadline_msec || now < c->deadline_msec)
        return;
    if (c->state == BODY || (c->state == HEAD && vg_buf_len(&c->in))) {
        conn_refuse(c, 408);
        conn_run(c);
    } else {
        conn_drop(c);
    }
}

void answered(struct vg_web_conn *c) {
    struct request *q = c->req;
    c->req = NULL;
    c->web->numbers.requests_now--;
    c->web->numbers.streams_now -= q->begun;
    if (!q->head.keep_alive || c->web->stopping)
        c->closing = true;
    request_free(q);
    idle(c);
    conn_ripe(c);
}

/* ------------------------------------------------------------------ the beginning */

static void address_of(int fd, char out[static 64]) {
    struct sockaddr_storage ss = {0};
    socklen_t len = sizeof(ss);
    snprintf(out, 64, "?");
    if (getpeername(fd, (struct sockaddr *)&ss, &len) < 0)
        return;
    if (ss.ss_family == AF_INET) {
        (void)inet_ntop(AF_INET, &((struct sockaddr_in *)&ss)->sin_addr, out, 64);
    } else if (ss.ss_family == AF_INET6) {
        const struct in6_addr *a = &((struct sockaddr_in6 *)&ss)->sin6_addr;
        if (IN6_IS_ADDR_V4MAPPED(a))
            (void)inet_ntop(AF_INET, a->s6_addr + 12, out, 64);
        else
            (void)inet_ntop(AF_INET6, a, out, 64);
    }
}

/* NULL: it has its fill of connections, or there is no memory. */
static struct peer *peer_join(struct vg_web *w, const char *address) {
    struct peer *p = vg_map_get(&w->peers, address);
    if (!p) {
        p = vg_alloc(sizeof(*p));
        if (!p)
            return NULL;
        snprintf(p->address, sizeof(p->address), "%s", address);
        if (vg_map_put(&w->peers, p->address, p) < 0) {
            free(p);
            return NULL;
        }
    }
    if (p->conns >= w->limits.conns_peer_max)
        return NULL;
    p->conns++;
    return p;
}

static struct vg_web_conn *conn_new(struct vg_web *w, int fd) {
    char address[64];
    int one = 1;
    address_of(fd, address);
    struct peer *peer =
        w->numbers.conns_now < w->limits.conns_max && !w->stopping ? peer_join(w, address) : NULL;
    struct vg_web_conn *c = peer ? vg_alloc(sizeof(*c)) : NULL;
    if (!c || uv_poll_init(w->loop, &c->poll, fd) < 0) {
        peer_leave(w, peer);
        free(c);
        return NULL;
    }
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    c->web = w;
    c->fd = fd;
    c->peer = peer;
    c->state = SHAKE;
    c->poll.data = c;
    c->deadline_msec = uv_now(w->loop) + w->limits.first_msec;
    vg_list_init(&c->on_ripe);
    vg_list_push_back(&w->conns, &c->link);
    w->numbers.conns++;
    w->numbers.conns_now++;
    return c;
}

void conn_accept(struct vg_web *w, int fd) {
    struct vg_err err = VG_ERR_INIT;
    struct vg_web_conn *c = conn_new(w, fd);
    if (!c) {
        w->numbers.refused++;
        vg_close(&fd);
        return;
    }
    if (io_start(c, &err) < 0) {
        conn_drop(c);
        return;
    }
    if (!c->ssl)
        c->state = HEAD;
    poll_for(c);
}
