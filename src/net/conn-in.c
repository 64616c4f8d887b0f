/* What comes on a connection: bytes in blocks, descriptors with the frame they came with, messages
   unpacked within a budget. See conn.c for what always holds. Loop thread only. */
#include "base/fault.h"
#include "base/mem.h"
#include "base/util.h"
#include "net/conn-internal.h"
#include "proto/unpack.h"

#include <string.h>
#include <sys/socket.h>

/* ------------------------------------------------------------------ messages */

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
    struct vg_unpack_budget budget = {.left = (1u << 20) + (size_t)f->len * 16};
    ProtobufCAllocator alloc = vg_unpack_within(&budget);
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
        conn_die(c);
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

void in_feed_kept(struct vg_conn *c) {
    if (!vg_buf_len(&c->in))
        return;
    size_t k = feed(c, vg_buf_data(&c->in), vg_buf_len(&c->in));
    vg_buf_consume(&c->in, k);
    if (!vg_buf_len(&c->in))
        vg_buf_done(&c->in);
}

/* Takes r bytes that were read as planned. */
static void take_read(struct vg_conn *c, const struct iovec *iov, size_t n_iov, size_t r) {
    const uint8_t *scratch = conn_scratch(); /* there since the read was planned */
    size_t first = n_iov == 2 || iov[0].iov_base != scratch ? VG_MIN(r, iov[0].iov_len) : 0;
    size_t rest = r - first;
    c->received += r;
    c->last_heard_usec = vg_now_usec();
    if (first) {
        vg_buf_commit(&c->in, first);
        in_feed_kept(c);
    }
    size_t k = vg_buf_len(&c->in) ? 0 : feed(c, scratch, rest);
    if (k < rest && c->state == CONN_OPEN && vg_buf_append(&c->in, scratch + k, rest - k) < 0)
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

void in_read(struct vg_conn *c) {
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

void in_read_linger(struct vg_conn *c) {
    uint8_t *scratch = conn_scratch();
    ssize_t r = scratch ? recv(c->fd, scratch, CONN_IO, MSG_DONTWAIT) : 0;
    if (r == 0 || (r < 0 && errno != EAGAIN && errno != EINTR))
        conn_die(c);
}

void in_drop(struct vg_conn *c) {
    vg_buf_done(&c->in);
    for (size_t i = 0; i < c->n_groups; i++)
        close_fds(c->groups[i].fds, c->groups[i].n);
}
