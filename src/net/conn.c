/* A connection: its life and its states. Reading is conn-in.c, writing conn-out.c, TLS conn-tls.c,
   streams stream.c. Loop thread only.

   Always:
   1. Callbacks may do anything with this or another connection: nothing of a connection is freed
      before its handles are closed, and after every callback the state is looked at again.
   2. on_close comes from the wake handler alone, so never from inside a call of the user.
   3. A connection at rest owns no buffer: bytes are read into a block that all connections of the
      thread share, and only the beginning of an incomplete message is kept.
   4. Bytes of a DATA frame are passed on as they arrive; only messages are assembled. */
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

void conn_die(struct vg_conn *c) {
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
    conn_die(c);
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
        conn_die(c);
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
        conn_die(c);
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
        conn_die(c);
}

static void write_some(struct vg_conn *c) {
    if (c->state == CONN_OPEN || c->state == CONN_FLUSH)
        out_flush(c);
    if (c->write_broken && c->state == CONN_OPEN && !uv_is_active((uv_handle_t *)&c->timer))
        uv_timer_start(&c->timer, on_timeout, CONN_LINGER_MSEC, 0);
    if (c->write_broken && c->state == CONN_FLUSH)
        conn_die(c);
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
        in_read_linger(c);
    else if (c->state == CONN_OPEN && (events & (UV_READABLE | UV_DISCONNECT)) && !c->paused)
        in_read(c);
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
    in_drop(c);
    vg_map_done(&c->streams);
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
        in_feed_kept(c);
    if (c->state == CONN_OPEN && c->read_more)
        in_read(c);
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
    conn_die(c);
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
