/* A connection: reading, dispatching, and its life. Writing is conn-out.c, TLS conn-tls.c, streams
   stream.c. Loop thread only.

   Always:
   1. Callbacks may do anything with this or another connection: nothing of a connection is freed
      before its handles are closed, and after every callback the state is looked at again.
   2. on_close comes from the wake handler alone, so never from inside a call of the user.
   3. A connection at rest owns no buffer: bytes are read into a block that all connections of the
      thread share, and only the beginning of an incomplete message is kept.
   4. Bytes of a DATA frame are passed on as they arrive; only messages are assembled. */
#include "base/fault.h"
#include "base/mem.h"
#include "base/util.h"
#include "net/conn-internal.h"

#include <arpa/inet.h>
#include <assert.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

/* ------------------------------------------------------------------ blocks shared by a thread */

#define SPARE_BLOCKS 4

static _Thread_local struct {
    unsigned users; /* connections */
    uint8_t *scratch;
    uint8_t *spare[SPARE_BLOCKS];
    size_t n_spare;
} blocks;

uint8_t *conn_scratch(void) {
    if (!blocks.scratch)
        blocks.scratch = vg_realloc(NULL, CONN_IO);
    return blocks.scratch;
}

int block_get(struct io_block *b) {
    if (b->base)
        return 0;
    b->base = blocks.n_spare ? blocks.spare[--blocks.n_spare] : vg_realloc(NULL, CONN_BLOCK);
    b->head = b->tail = 0;
    return b->base ? 0 : -ENOMEM;
}

void block_put(struct io_block *b) {
    if (b->base && blocks.n_spare < SPARE_BLOCKS)
        blocks.spare[blocks.n_spare++] = b->base;
    else
        free(b->base);
    *b = (struct io_block){0};
}

static void blocks_unuse(void) {
    if (--blocks.users)
        return;
    while (blocks.n_spare)
        free(blocks.spare[--blocks.n_spare]);
    free(blocks.scratch);
    blocks.scratch = NULL;
}

/* ------------------------------------------------------------------ state */

static void on_wake(uv_idle_t *handle);
static void on_poll(uv_poll_t *handle, int status, int events);

void conn_wake(struct vg_conn *c) {
    if (c->state != CONN_GONE)
        uv_idle_start(&c->wake, on_wake);
}

bool vg_conn_can_send(const struct vg_conn *c) {
    return (c->state == CONN_HANDSHAKE || c->state == CONN_OPEN) && !c->write_broken &&
           !c->close_due;
}

static void die(struct vg_conn *c) {
    if (c->state >= CONN_DEAD)
        return;
    c->state = CONN_DEAD;
    out_drop(c);
    conn_watch(c);
    conn_wake(c);
}

/* The connection cannot go on; the first cause stays. */
void conn_fail(struct vg_conn *c, enum vg_reason reason, const char *fmt, ...) {
    if (c->state >= CONN_DEAD)
        return;
    if (c->why.reason == VG_OK) {
        char text[VG_ERR_MAX];
        va_list ap;
        va_start(ap, fmt);
        vsnprintf(text, sizeof(text), fmt, ap);
        va_end(ap);
        vg_err_set(&c->why, reason, "%s", text);
    }
    die(c);
}

void conn_protocol_error(struct vg_conn *c, const struct vg_err *err) {
    if (c->state != CONN_OPEN)
        return;
    Vg__Pb__Error body = VG__PB__ERROR__INIT;
    Vg__Pb__Envelope env = VG__PB__ENVELOPE__INIT;
    body.has_reason = true;
    body.reason = err->reason;
    body.text = (char *)err->msg;
    env.body_case = VG__PB__ENVELOPE__BODY_ERROR;
    env.error = &body;
    c->why = *err;
    if (vg_conn_send(c, &env, NULL, 0) < 0)
        die(c);
    else
        vg_conn_close(c);
}

static int wanted_events(const struct vg_conn *c) {
    bool reads = c->state == CONN_HANDSHAKE || (c->state == CONN_OPEN && !c->paused) ||
                 c->state == CONN_LINGER;
    if (c->state >= CONN_DEAD)
        return 0;
    return (reads ? UV_READABLE : 0) | (c->blocked ? UV_WRITABLE : 0);
}

void conn_watch(struct vg_conn *c) {
    int events = wanted_events(c);
    if (events == c->events)
        return;
    c->events = events;
    int r = events ? uv_poll_start(&c->poll, events, on_poll) : uv_poll_stop(&c->poll);
    if (r < 0 && events)
        conn_fail(c, VG_INTERNAL, "cannot watch the connection to %s: %s", c->address,
                  uv_strerror(r));
}

static void on_timeout(uv_timer_t *handle) {
    struct vg_conn *c = handle->data;
    if (c->state == CONN_HANDSHAKE)
        conn_fail(c, VG_TIMEOUT, "%s did not finish the TLS handshake in %d s", c->address,
                  CONN_HANDSHAKE_MSEC / 1000);
    else
        die(c);
}

/* ------------------------------------------------------------------ messages */

/* Memory a message may take when unpacked: a small one on the wire must not become a huge one. */
struct unpack_budget {
    size_t left;
};

static void *unpack_alloc(void *data, size_t size) {
    struct unpack_budget *budget = data;
    if (size > budget->left)
        return NULL;
    budget->left -= size;
    return vg_alloc(size);
}

static void unpack_free(void *data, void *p) {
    (void)data;
    free(p);
}

static void close_fds(int *fds, size_t n) {
    for (size_t i = 0; i < n; i++)
        vg_close(&fds[i]);
}

/* Descriptors belong to the last frame that begins in the bytes they came with. */
static size_t take_fds(struct vg_conn *c, size_t frame_len, int fds[CONN_FDS]) {
    uint64_t begin = c->parsed, end = c->parsed + frame_len;
    struct fd_group *g = &c->groups[0];
    if (!c->n_groups || begin < g->begin || begin >= g->end || end < g->end)
        return 0;
    size_t n = g->n;
    memcpy(fds, g->fds, n * sizeof(int));
    memmove(g, g + 1, --c->n_groups * sizeof(*g));
    return n;
}

static bool stray_fds(struct vg_conn *c) {
    return c->n_groups && c->groups[0].end <= c->parsed;
}

static void dispatch_msg(struct vg_conn *c, const struct vg_frame *f) {
    int fds[CONN_FDS] = {-1, -1, -1, -1};
    size_t n_fds = take_fds(c, VG_WIRE_HEADER + f->len, fds);
    struct unpack_budget budget = {.left = (1u << 20) + (size_t)f->len * 16};
    ProtobufCAllocator alloc = {
        .alloc = unpack_alloc, .free = unpack_free, .allocator_data = &budget};
    Vg__Pb__Envelope *env = vg__pb__envelope__unpack(&alloc, f->len, f->payload);
    if (env)
        c->ops->on_msg(c, c->user, env, fds, n_fds);
    else {
        struct vg_err err = VG_ERR_INIT;
        vg_err_set(&err, VG_PROTOCOL, "%s sent a message that cannot be read", c->address);
        conn_protocol_error(c, &err);
    }
    close_fds(fds, n_fds);
    if (env)
        vg__pb__envelope__free_unpacked(env, &alloc);
}

static void dispatch(struct vg_conn *c, const struct vg_frame *f) {
    switch (f->kind) {
    case VG_FRAME_MSG:
        dispatch_msg(c, f);
        break;
    case VG_FRAME_PING:
        if (vg_conn_can_send(c) && out_frame(c, VG_FRAME_PONG, 0, f->payload, f->len) < 0)
            conn_fail(c, VG_INTERNAL, "out of memory");
        if (c->queued > CONN_QUEUE_HARD)
            conn_fail(c, VG_PROTOCOL, "%s asks and does not read", c->address);
        break;
    case VG_FRAME_PONG:
        break;
    case VG_FRAME_DATA:
    case VG_FRAME_CREDIT:
    case VG_FRAME_END:
    case VG_FRAME_RESET:
        stream_frame(c, f);
        break;
    }
}

/* Handles what is complete; returns the bytes taken. */
static size_t feed(struct vg_conn *c, const uint8_t *data, size_t n) {
    size_t at = 0;
    while (at < n && c->state == CONN_OPEN && !c->paused) {
        if (c->data_left) {
            uint32_t k = (uint32_t)VG_MIN((size_t)c->data_left, n - at);
            c->data_left -= k;
            c->parsed += k;
            at += k;
            stream_data(c, c->data_stream, data + at - k, k);
            continue;
        }
        struct vg_frame f = {0};
        struct vg_err err = VG_ERR_INIT;
        int r = vg_frame_parse(data + at, n - at, &f, &c->need, &err);
        if (r < 0)
            conn_protocol_error(c, &err);
        if (r == 0 && f.kind != VG_FRAME_DATA)
            break;
        if (f.kind == VG_FRAME_DATA) {
            c->data_left = f.len;
            c->data_stream = f.stream;
            r = VG_WIRE_HEADER;
        } else if (r > 0) {
            dispatch(c, &f);
        }
        if (r > 0) {
            c->parsed += (uint64_t)r;
            at += (size_t)r;
        }
        if (r > 0 && stray_fds(c)) {
            vg_err_set(&err, VG_PROTOCOL, "%s sent descriptors without a message", c->address);
            conn_protocol_error(c, &err);
        }
    }
    return at;
}

/* ------------------------------------------------------------------ reading */

static int keep_fds(struct vg_conn *c, struct msghdr *msg, uint64_t begin, uint64_t end) {
    struct fd_group g = {.begin = begin, .end = end};
    bool surplus = msg->msg_flags & MSG_CTRUNC;
    for (struct cmsghdr *h = CMSG_FIRSTHDR(msg); h; h = CMSG_NXTHDR(msg, h)) {
        if (h->cmsg_level != SOL_SOCKET || h->cmsg_type != SCM_RIGHTS)
            continue;
        size_t count = (h->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < count; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(h) + i * sizeof(int), sizeof(int));
            if (g.n < CONN_FDS) {
                g.fds[g.n++] = fd;
            } else {
                close(fd);
                surplus = true;
            }
        }
    }
    if (g.n == 0 && !surplus)
        return 0;
    if (surplus || c->n_groups == CONN_GROUPS) {
        close_fds(g.fds, g.n);
        return -EPROTO;
    }
    c->groups[c->n_groups++] = g;
    return 0;
}

static ssize_t plain_read(struct vg_conn *c, struct iovec *iov, size_t n_iov) {
    union {
        struct cmsghdr align;
        char buf[CMSG_SPACE(sizeof(int) * (CONN_FDS + 1))];
    } u;
    struct msghdr msg = {.msg_iov = iov, .msg_iovlen = n_iov};
    if (c->unix_socket) {
        msg.msg_control = u.buf;
        msg.msg_controllen = sizeof(u.buf);
    }
    ssize_t r = vg_fault("net.recv");
    if (r < 0)
        return r;
    do
        r = recvmsg(c->fd, &msg, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    while (r < 0 && errno == EINTR);
    if (r < 0)
        return -errno;
    if (c->unix_socket && keep_fds(c, &msg, c->received, c->received + (uint64_t)r) < 0) {
        struct vg_err err = VG_ERR_INIT;
        vg_err_set(&err, VG_PROTOCOL, "%s sent more than %d descriptors with a message", c->address,
                   CONN_FDS);
        conn_protocol_error(c, &err);
        return -EPROTO;
    }
    return r;
}

/* A TLS record holds 16 KiB: several are gathered, so that streams move in large pieces. */
static ssize_t cipher_read(struct vg_conn *c, struct iovec *iov, size_t n_iov) {
    size_t total = 0;
    for (size_t i = 0; i < n_iov; i++)
        for (size_t done = 0; done < iov[i].iov_len;) {
            ssize_t r = tls_read(c, (uint8_t *)iov[i].iov_base + done, iov[i].iov_len - done);
            if (r <= 0)
                return total ? (ssize_t)total : r;
            done += (size_t)r;
            total += (size_t)r;
        }
    return (ssize_t)total;
}

static void read_ended(struct vg_conn *c, ssize_t r) {
    if (r == -EAGAIN)
        return;
    if (r < 0)
        conn_fail(c, VG_LOST, "the connection to %s broke: %s", c->address, strerror((int)-r));
    else if (c->in.tail > c->in.head || c->data_left)
        conn_fail(c, VG_LOST, "%s closed the connection in the middle of a frame", c->address);
    else {
        c->why = VG_ERR_INIT; /* an orderly end, even where the last words did not get through */
        die(c);
    }
}

/* Where the next bytes go: first what is missing of the frame in c->in, then the shared block. */
static int plan_read(struct vg_conn *c, struct iovec iov[2], size_t *ret_n) {
    size_t have = vg_buf_len(&c->in), n = 0;
    uint8_t *scratch = conn_scratch();
    if (!scratch)
        return -ENOMEM;
    if (have && c->need > have) {
        size_t want = c->need - have, room = VG_MIN(want, VG_MAX(have, (size_t)CONN_IO));
        uint8_t *p = vg_buf_reserve(&c->in, room);
        if (!p)
            return -ENOMEM;
        iov[n++] = (struct iovec){.iov_base = p, .iov_len = room};
        if (room < want) {
            *ret_n = n;
            return 0;
        }
    }
    iov[n++] = (struct iovec){.iov_base = scratch, .iov_len = CONN_IO};
    *ret_n = n;
    return 0;
}

static void feed_kept(struct vg_conn *c) {
    if (!vg_buf_len(&c->in))
        return;
    size_t k = feed(c, vg_buf_data(&c->in), vg_buf_len(&c->in));
    vg_buf_consume(&c->in, k);
    if (!vg_buf_len(&c->in))
        vg_buf_done(&c->in);
}

/* Takes r bytes that were read as planned. */
static void take_read(struct vg_conn *c, const struct iovec *iov, size_t n_iov, size_t r) {
    size_t first = n_iov == 2 || iov[0].iov_base != blocks.scratch ? VG_MIN(r, iov[0].iov_len) : 0;
    size_t rest = r - first;
    c->received += r;
    c->last_heard_usec = vg_now_usec();
    if (first) {
        vg_buf_commit(&c->in, first);
        feed_kept(c);
    }
    size_t k = vg_buf_len(&c->in) ? 0 : feed(c, blocks.scratch, rest);
    if (k < rest && c->state == CONN_OPEN &&
        vg_buf_append(&c->in, blocks.scratch + k, rest - k) < 0)
        conn_fail(c, VG_INTERNAL, "out of memory");
}

static ssize_t read_once(struct vg_conn *c, bool *ret_full) {
    struct iovec iov[2];
    size_t n_iov = 0, room = 0;
    if (plan_read(c, iov, &n_iov) < 0) {
        conn_fail(c, VG_INTERNAL, "out of memory");
        return -ENOMEM;
    }
    ssize_t r = c->ssl ? cipher_read(c, iov, n_iov) : plain_read(c, iov, n_iov);
    for (size_t i = 0; i < n_iov; i++)
        room += iov[i].iov_len;
    *ret_full = r > 0 && (size_t)r == room;
    if (r > 0)
        take_read(c, iov, n_iov, (size_t)r);
    return r;
}

static void read_some(struct vg_conn *c) {
    bool full = true;
    ssize_t r = 1;
    for (int i = 0; i < CONN_READS && full && c->state == CONN_OPEN && !c->paused; i++)
        r = read_once(c, &full);
    if (c->state == CONN_OPEN && r <= 0)
        read_ended(c, r);
    /* A part of a record also counts as pending; its rest is told by the socket. */
    c->read_more = r > 0 && c->ssl && c->state == CONN_OPEN && !c->paused && tls_pending(c);
    if (c->read_more)
        conn_wake(c);
}

/* After our own end: what the peer still sends is dropped, so that the kernel does not answer it
   with a reset that would overtake our last words. */
static void read_linger(struct vg_conn *c) {
    uint8_t *scratch = conn_scratch();
    ssize_t r = scratch ? recv(c->fd, scratch, CONN_IO, MSG_DONTWAIT) : 0;
    if (r == 0 || (r < 0 && errno != EAGAIN && errno != EINTR))
        die(c);
}

/* ------------------------------------------------------------------ events */

static void begin_linger(struct vg_conn *c) {
    if (c->ssl) {
        tls_goodbye(c);
        if (c->blocked)
            return;
    }
    c->state = CONN_LINGER;
    if (c->write_broken || shutdown(c->fd, SHUT_WR) < 0)
        die(c);
}

static void write_some(struct vg_conn *c) {
    if (c->state == CONN_OPEN || c->state == CONN_FLUSH)
        out_flush(c);
    if (c->write_broken && c->state == CONN_OPEN && !uv_is_active((uv_handle_t *)&c->timer))
        uv_timer_start(&c->timer, on_timeout, CONN_LINGER_MSEC, 0);
    if (c->write_broken && c->state == CONN_FLUSH)
        die(c);
    if (c->state == CONN_FLUSH && !out_total(c))
        begin_linger(c);
    if (c->notify_due && c->state == CONN_OPEN) {
        c->notify_due = false;
        stream_notify(c);
    }
}

static void tell_ready(struct vg_conn *c) {
    if (c->ready_told || c->state != CONN_OPEN)
        return;
    c->ready_told = true;
    if (c->ops->on_ready)
        c->ops->on_ready(c, c->user);
}

static void shake(struct vg_conn *c) {
    tls_handshake(c);
    if (c->state != CONN_OPEN)
        return;
    uv_timer_stop(&c->timer);
    c->last_heard_usec = vg_now_usec();
    tell_ready(c);
}

static void on_poll(uv_poll_t *handle, int status, int events) {
    struct vg_conn *c = handle->data;
    if (status < 0)
        conn_fail(c, VG_LOST, "the connection to %s broke: %s", c->address, uv_strerror(status));
    if (c->state == CONN_HANDSHAKE) {
        c->blocked = false;
        shake(c);
    }
    if (events & UV_WRITABLE)
        write_some(c);
    if (c->state == CONN_LINGER && (events & (UV_READABLE | UV_DISCONNECT)))
        read_linger(c);
    else if (c->state == CONN_OPEN && (events & (UV_READABLE | UV_DISCONNECT)) && !c->paused)
        read_some(c);
    conn_watch(c);
}

static void on_handle_closed(uv_handle_t *handle) {
    struct vg_conn *c = handle->data;
    if (--c->handles)
        return;
    blocks_unuse();
    free(c);
}

/* Gives back everything but the struct, which waits for its handles. */
static void release(struct vg_conn *c) {
    c->state = CONN_GONE;
    out_drop(c);
    tls_done(c);
    block_put(&c->cipher_in);
    block_put(&c->cipher_out);
    vg_buf_done(&c->in);
    vg_map_done(&c->streams);
    for (size_t i = 0; i < c->n_groups; i++)
        close_fds(c->groups[i].fds, c->groups[i].n);
    free(c->peer_cn);
    c->peer_cn = NULL;
    uv_close((uv_handle_t *)&c->poll, on_handle_closed);
    uv_close((uv_handle_t *)&c->wake, on_handle_closed);
    uv_close((uv_handle_t *)&c->timer, on_handle_closed);
    vg_close(&c->fd);
}

static void on_wake(uv_idle_t *handle) {
    struct vg_conn *c = handle->data;
    uv_idle_stop(&c->wake);
    tell_ready(c);
    if (c->state == CONN_OPEN)
        stream_tell_late(c);
    if (c->state == CONN_OPEN && !c->paused)
        feed_kept(c);
    if (c->state == CONN_OPEN && c->read_more)
        read_some(c);
    if (c->state == CONN_HANDSHAKE && c->ssl && !c->blocked)
        shake(c);
    if (!c->blocked)
        write_some(c);
    if (c->state == CONN_DEAD) {
        enum vg_reason reason = c->why.reason;
        stream_reset_all(c, reason == VG_OK ? VG_LOST : reason);
        c->ops->on_close(c, c->user, &c->why);
        release(c);
        return;
    }
    conn_watch(c);
}

/* ------------------------------------------------------------------ the public face */

static void describe_peer(struct vg_conn *c) {
    struct sockaddr_storage ss;
    socklen_t len = sizeof(ss);
    char host[INET6_ADDRSTRLEN] = "?";
    c->local = c->unix_socket = true;
    (void)snprintf(c->address, sizeof(c->address), "unix");
    if (getpeername(c->fd, (struct sockaddr *)&ss, &len) < 0 || ss.ss_family == AF_UNIX)
        return;
    c->local = c->unix_socket = false;
    int one = 1;
    (void)setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    if (ss.ss_family == AF_INET) {
        struct sockaddr_in *in = (struct sockaddr_in *)&ss;
        inet_ntop(AF_INET, &in->sin_addr, host, sizeof(host));
        (void)snprintf(c->address, sizeof(c->address), "%s:%u", host, ntohs(in->sin_port));
    } else {
        struct sockaddr_in6 *in6 = (struct sockaddr_in6 *)&ss;
        inet_ntop(AF_INET6, &in6->sin6_addr, host, sizeof(host));
        (void)snprintf(c->address, sizeof(c->address), "[%s]:%u", host, ntohs(in6->sin6_port));
    }
}

static int init_handles(struct vg_conn *c) {
    int r = uv_poll_init(c->loop, &c->poll, c->fd);
    if (r < 0)
        return r;
    uv_idle_init(c->loop, &c->wake);
    uv_timer_init(c->loop, &c->timer);
    c->poll.data = c->wake.data = c->timer.data = c;
    c->handles = 3;
    return 0;
}

int vg_conn_new(uv_loop_t *loop, int fd_in, struct vg_tls *tls, bool dialled,
                const struct vg_conn_ops *ops, void *user, struct vg_conn **ret,
                struct vg_err *err) {
    vg_auto_fd int fd = fd_in;
    vg_auto_free struct vg_conn *c = vg_alloc(sizeof(*c));
    if (!c)
        return vg_err_sys(err, -ENOMEM, "cannot make a connection");
    int r = vg_set_nonblock(fd, true);
    if (r < 0)
        return vg_err_sys(err, r, "cannot make a connection");
    *c = (struct vg_conn){.loop = loop,
                          .fd = fd,
                          .dialled = dialled,
                          .ops = ops,
                          .user = user,
                          .state = tls ? CONN_HANDSHAKE : CONN_OPEN,
                          .next_id = dialled ? 1 : 2,
                          .last_heard_usec = vg_now_usec()};
    vg_list_init(&c->all);
    vg_list_init(&c->starved);
    vg_list_init(&c->late);
    describe_peer(c);
    r = init_handles(c);
    if (r < 0)
        return vg_err_sys(err, r, "cannot watch a connection");
    blocks.users++;
    fd = -1; /* the connection's from here on */
    struct vg_conn *made = vg_take_ptr(c);
    made->tls = tls ? vg_tls_ref(tls) : NULL;
    r = tls ? tls_start(made, err) : 0;
    if (r < 0) {
        release(made);
        return r;
    }
    if (tls)
        uv_timer_start(&made->timer, on_timeout, CONN_HANDSHAKE_MSEC, 0);
    conn_watch(made);
    conn_wake(made);
    *ret = made;
    return 0;
}

int vg_conn_send(struct vg_conn *c, const Vg__Pb__Envelope *env, const int *fds, size_t n_fds) {
    size_t n = vg__pb__envelope__get_packed_size(env);
    int r = 0;
    if (!vg_conn_can_send(c))
        r = -EPIPE;
    else if (n > VG_WIRE_MSG_MAX)
        r = -E2BIG;
    else if (n_fds > CONN_FDS || (n_fds && !c->unix_socket))
        r = -EINVAL;
    uint8_t *p = r < 0 ? NULL : out_frame_space(c, VG_FRAME_MSG, 0, n, fds, n_fds);
    if (p) {
        vg__pb__envelope__pack(env, p);
        if (c->queued > CONN_QUEUE_HARD) {
            conn_fail(c, VG_LOST, "%s does not read its messages", c->address);
            return -EPIPE;
        }
        return 0;
    }
    for (size_t i = 0; i < n_fds; i++)
        close(fds[i]);
    return r < 0 ? r : -ENOMEM;
}

void vg_conn_close(struct vg_conn *c) {
    if (c->state == CONN_HANDSHAKE)
        c->close_due = true; /* what is queued goes out after the handshake, which has a limit */
    if (c->state != CONN_OPEN)
        return;
    c->state = CONN_FLUSH;
    uv_timer_start(&c->timer, on_timeout, CONN_LINGER_MSEC, 0);
    conn_watch(c);
    conn_wake(c);
}

void vg_conn_abort(struct vg_conn *c, enum vg_reason reason, const char *text) {
    if (c->state >= CONN_DEAD)
        return;
    c->why = VG_ERR_INIT;
    if (reason != VG_OK)
        vg_err_set(&c->why, reason, "%s", text ? text : vg_reason_name(reason));
    die(c);
}

void vg_conn_pause(struct vg_conn *c, bool pause) {
    if (c->paused == pause)
        return;
    c->paused = pause;
    if (!pause)
        c->read_more = c->ssl != NULL;
    conn_watch(c);
    conn_wake(c);
}

bool vg_conn_is_local(const struct vg_conn *c) {
    return c->local;
}

int vg_conn_peer_cred(const struct vg_conn *c, pid_t *pid, uid_t *uid, gid_t *gid) {
    struct ucred cred;
    socklen_t len = sizeof(cred);
    if (!c->unix_socket)
        return -ENOTSUP;
    if (getsockopt(c->fd, SOL_SOCKET, SO_PEERCRED, &cred, &len) < 0)
        return -errno;
    *pid = cred.pid;
    *uid = cred.uid;
    *gid = cred.gid;
    return 0;
}

const char *vg_conn_peer_cn(const struct vg_conn *c) {
    return c->peer_cn;
}

const char *vg_conn_peer_address(const struct vg_conn *c) {
    return c->address;
}

size_t vg_conn_queued(const struct vg_conn *c) {
    return out_total(c);
}

uint64_t vg_conn_last_heard_usec(const struct vg_conn *c) {
    return c->last_heard_usec;
}
