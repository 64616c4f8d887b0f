/* The out queue of a connection. Frames are gathered in segments and written once a turn of the
   loop; large stream data is written at once, from the caller's memory, when nothing waits.

   Always: bytes leave in the order of the calls. A segment with descriptors is a system call of
   its own (together with the rest of the queue neither before nor behind), because the receiver
   gives descriptors to the last frame that begins in what it received with them. */
#include "base/fault.h"
#include "base/mem.h"
#include "base/util.h"
#include "net/conn-internal.h"

#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#define OUT_IOV 64

static void segment_free(struct out_segment *s) {
    for (size_t i = 0; i < s->n_fds; i++)
        vg_close(&s->fds[i]);
    free(s);
}

void out_drop(struct vg_conn *c) {
    while (c->out_head) {
        struct out_segment *s = c->out_head;
        c->out_head = s->next;
        segment_free(s);
    }
    c->out_tail = NULL;
    c->queued = 0;
}

size_t out_total(const struct vg_conn *c) {
    return c->queued + (c->cipher_out.tail - c->cipher_out.head);
}

static struct out_segment *segment_new(struct vg_conn *c, size_t n) {
    size_t cap = VG_MAX(n, (size_t)CONN_SEGMENT);
    struct out_segment *s = vg_realloc(NULL, sizeof(*s) + cap);
    if (!s)
        return NULL;
    *s = (struct out_segment){.cap = cap};
    if (c->out_tail)
        c->out_tail->next = s;
    else
        c->out_head = s;
    c->out_tail = s;
    return s;
}

/* Room for n bytes at the end of the queue; they count as queued from now on. */
static uint8_t *out_space(struct vg_conn *c, size_t n, const int *fds, size_t n_fds) {
    struct out_segment *s = c->out_tail;
    if (!s || n_fds || s->n_fds || s->cap - s->len < n)
        s = segment_new(c, n);
    if (!s)
        return NULL;
    if (n_fds)
        memcpy(s->fds, fds, n_fds * sizeof(int));
    s->n_fds += n_fds;
    uint8_t *p = s->data + s->len;
    s->len += n;
    c->queued += n;
    conn_wake(c);
    return p;
}

uint8_t *out_frame_space(struct vg_conn *c, enum vg_frame_kind kind, uint32_t stream, size_t n,
                         const int *fds, size_t n_fds) {
    uint8_t *p = out_space(c, VG_WIRE_HEADER + n, fds, n_fds);
    if (!p)
        return NULL;
    vg_frame_header(p, kind, stream, (uint32_t)n);
    return p + VG_WIRE_HEADER;
}

int out_frame(struct vg_conn *c, enum vg_frame_kind kind, uint32_t stream, const void *payload,
              size_t n) {
    uint8_t *p = out_frame_space(c, kind, stream, n, NULL, 0);
    if (!p)
        return -ENOMEM;
    if (n)
        memcpy(p, payload, n);
    return 0;
}

/* The peer no longer reads. What it has sent before may still say why, so reading goes on until
   its end, for a limited time. */
void out_write_error(struct vg_conn *c, int code) {
    if (c->write_broken)
        return;
    c->write_broken = true;
    c->blocked = false;
    out_drop(c);
    block_put(&c->cipher_out);
    vg_err_sys(&c->why, code, "the connection to %s broke while sending", c->address);
    c->why.reason = VG_LOST;
    (void)shutdown(c->fd, SHUT_WR); /* so that a peer that is still there ends it, too */
    uv_timer_stop(&c->timer);
    conn_wake(c);
}

static ssize_t out_sendmsg(struct vg_conn *c, struct iovec *iov, size_t n_iov, const int *fds,
                           size_t n_fds) {
    union {
        struct cmsghdr align;
        char buf[CMSG_SPACE(sizeof(int) * CONN_FDS)];
    } u;
    struct msghdr msg = {.msg_iov = iov, .msg_iovlen = n_iov};
    if (n_fds) {
        memset(&u, 0, sizeof(u));
        msg.msg_control = u.buf;
        msg.msg_controllen = CMSG_SPACE(sizeof(int) * n_fds);
        struct cmsghdr *h = CMSG_FIRSTHDR(&msg);
        h->cmsg_level = SOL_SOCKET;
        h->cmsg_type = SCM_RIGHTS;
        h->cmsg_len = CMSG_LEN(sizeof(int) * n_fds);
        memcpy(CMSG_DATA(h), fds, sizeof(int) * n_fds);
    }
    int r = vg_fault("net.send");
    if (r < 0)
        return r;
    ssize_t n;
    do
        n = sendmsg(c->fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);
    while (n < 0 && errno == EINTR);
    return n < 0 ? -errno : n;
}

static void out_consume(struct vg_conn *c, size_t n) {
    c->queued -= n;
    while (n || (c->out_head && c->out_head->off == c->out_head->len)) {
        struct out_segment *s = c->out_head;
        size_t k = VG_MIN(n, s->len - s->off);
        s->off += k;
        n -= k;
        for (size_t i = 0; i < s->n_fds; i++)
            vg_close(&s->fds[i]);
        s->n_fds = 0;
        if (s->off < s->len)
            return;
        c->out_head = s->next;
        if (!c->out_head)
            c->out_tail = NULL;
        free(s);
    }
}

/* One system call's worth of the queue. False when the socket is full or broken. */
static bool plain_flush_once(struct vg_conn *c) {
    struct iovec iov[OUT_IOV];
    size_t n = 0;
    for (struct out_segment *s = c->out_head; s && n < OUT_IOV; s = s->next) {
        if (n && s->n_fds)
            break;
        iov[n++] = (struct iovec){.iov_base = s->data + s->off, .iov_len = s->len - s->off};
        if (s->n_fds)
            break;
    }
    ssize_t r = out_sendmsg(c, iov, n, c->out_head->fds, c->out_head->n_fds);
    if (r == -EAGAIN || r == -ENOBUFS)
        c->blocked = true;
    else if (r < 0)
        out_write_error(c, (int)r);
    if (r <= 0)
        return false;
    out_consume(c, (size_t)r);
    return true;
}

static void cipher_flush(struct vg_conn *c) {
    while (c->out_head && !c->write_broken) {
        struct out_segment *s = c->out_head;
        size_t n = tls_write(c, s->data + s->off, s->len - s->off);
        if (n == 0 || c->write_broken) /* a broken connection has dropped its queue */
            break;
        out_consume(c, n);
    }
    if (!c->write_broken)
        tls_flush(c);
}

void out_flush(struct vg_conn *c) {
    bool was_full = out_total(c) >= CONN_QUEUE_SOFT / 2;
    c->blocked = false;
    if (c->write_broken)
        return;
    if (c->ssl)
        cipher_flush(c);
    else
        while (c->out_head && plain_flush_once(c))
            ;
    if (was_full && !vg_list_empty(&c->starved)) {
        c->notify_due = true;
        conn_wake(c);
    }
}

static ssize_t direct_plain(struct vg_conn *c, uint8_t header[VG_WIRE_HEADER], const uint8_t *data,
                            size_t n) {
    struct iovec iov[2] = {{.iov_base = header, .iov_len = VG_WIRE_HEADER},
                           {.iov_base = (void *)data, .iov_len = n}};
    return out_sendmsg(c, iov, 2, NULL, 0);
}

/* The header shares the first record with the first bytes of data. */
static ssize_t direct_tls(struct vg_conn *c, uint8_t header[VG_WIRE_HEADER], const uint8_t *data,
                          size_t n) {
    uint8_t first[CONN_RECORD];
    size_t k = VG_MIN(n, sizeof(first) - VG_WIRE_HEADER);
    memcpy(first, header, VG_WIRE_HEADER);
    memcpy(first + VG_WIRE_HEADER, data, k);
    size_t done = tls_write(c, first, VG_WIRE_HEADER + k);
    if (done == VG_WIRE_HEADER + k && k < n)
        done += tls_write(c, data + k, n - k);
    /* Frames that come in a row leave in one system call. */
    if (!c->write_broken && c->cipher_out.tail - c->cipher_out.head >= CONN_IO / 2)
        tls_flush(c);
    else
        conn_wake(c);
    return (ssize_t)done;
}

/* Queues what is left of a frame of which `done` bytes, header included, are written. */
static int out_rest(struct vg_conn *c, const uint8_t header[VG_WIRE_HEADER], const uint8_t *data,
                    size_t n, size_t done) {
    size_t total = VG_WIRE_HEADER + n;
    if (done == total)
        return 0;
    uint8_t *p = out_space(c, total - done, NULL, 0);
    if (!p && done)
        conn_fail(c, VG_INTERNAL, "out of memory in the middle of a frame to %s", c->address);
    if (!p)
        return -ENOMEM;
    if (done < VG_WIRE_HEADER) {
        memcpy(p, header + done, VG_WIRE_HEADER - done);
        memcpy(p + VG_WIRE_HEADER - done, data, n);
    } else {
        memcpy(p, data + (done - VG_WIRE_HEADER), total - done);
    }
    return 0;
}

int out_data(struct vg_conn *c, uint32_t stream, const uint8_t *data, size_t n) {
    uint8_t header[VG_WIRE_HEADER];
    vg_frame_header(header, VG_FRAME_DATA, stream, (uint32_t)n);
    bool direct = n >= CONN_DIRECT && c->state == CONN_OPEN && !c->blocked;
    if (direct && c->out_head)
        out_flush(c);
    if (!direct || c->out_head || c->blocked || c->write_broken)
        return c->write_broken ? -EPIPE : out_rest(c, header, data, n, 0);
    ssize_t r = c->ssl ? direct_tls(c, header, data, n) : direct_plain(c, header, data, n);
    if (c->write_broken)
        return -EPIPE;
    if (r == -EAGAIN || r == -ENOBUFS) {
        c->blocked = true;
        r = 0;
    }
    if (r < 0) {
        out_write_error(c, (int)r);
        return -EPIPE;
    }
    int e = out_rest(c, header, data, n, (size_t)r);
    conn_watch(c);
    return e;
}
