/* A channel of vrun's to its task's keeper: opening and closing, frames out, input within the
   window. See run-int.h for what always holds. */
#include "cli/run-chan.h"
#include "base/cleanup.h"
#include "base/util.h"
#include "net/duct.h"
#include "net/tio.h"

#include <errno.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>

void run_put(struct run_chan *c, enum vg_tio_kind kind, const void *p, size_t n) {
    uint8_t h[VG_TIO_HEADER];
    vg_tio_header(h, kind, (uint32_t)n);
    if (c->fd < 0)
        return;
    if (vg_buf_append(&c->out, h, sizeof(h)) < 0 || vg_buf_append(&c->out, p, n) < 0)
        c->broken = true;
}

void run_put_winsize(struct run_chan *c) {
    uint16_t size[4];
    if (run_tty_size(size))
        run_put(c, VG_TIO_WINSIZE, size, sizeof(size));
}

void run_put_signal(struct run *r, struct run_chan *c, int signo, bool group) {
    uint8_t p[8];
    vg_put32(p, (uint32_t)signo);
    vg_put32(p + 4, group ? 1 : 0);
    if (c->fd >= 0)
        run_put(c, VG_TIO_SIGNAL, p, sizeof(p));
    else if (signo < 32)
        r->unsent_signals |= 1ull << (signo - 1 + (group ? 32 : 0));
}

void run_put_close_output(struct run_chan *c, int fd) {
    uint8_t which[4];
    vg_put32(which, fd == STDOUT_FILENO ? VG_REC_STDOUT : VG_REC_STDERR);
    run_put(c, VG_TIO_CLOSE_OUTPUT, which, sizeof(which));
}

void run_chan_open(struct run *r, struct run_chan *c, int fd, struct vg_duct *duct) {
    uint8_t hello[20];
    *c = (struct run_chan){.fd = fd, .duct = duct, .ring_fd = -1, .in_sent = r->in_acked};
    if (duct)
        c->fd = vg_duct_fd(duct);
    else
        vg_set_nonblock(fd, true);
    vg_put64(hello, r->out_offset);
    vg_put32(hello + 8, VG_HELLO_INPUT | VG_HELLO_TAKE);
    vg_put64(hello + 12, r->data_offset);
    run_put(c, VG_TIO_HELLO, hello, r->spec.duplex ? 20 : 12);
}

void run_chan_close(struct run_chan *c) {
    if (c->duct)
        vg_duct_close(c->duct);
    else
        vg_close(&c->fd);
    vg_buf_done(&c->in);
    vg_buf_done(&c->out);
    vg_close(&c->ring_fd);
    if (c->ring)
        munmap((void *)c->ring, c->ring_size);
    *c = (struct run_chan){.fd = -1, .ring_fd = -1};
}

/* As sendmsg() without waiting. */
static ssize_t chan_send(struct run_chan *c, struct iovec *v, size_t n) {
    struct msghdr m = {.msg_iov = v, .msg_iovlen = n};
    if (!c->duct)
        return sendmsg(c->fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
    ssize_t done = vg_duct_write(c->duct, v, (int)n);
    if (done > 0)
        return done;
    errno = done ? (int)-done : EAGAIN;
    return -1;
}

size_t run_chan_have(struct run_chan *c, const uint8_t **p) {
    if (!c->duct) {
        *p = vg_buf_data(&c->in);
        return vg_buf_len(&c->in);
    }
    ssize_t n = vg_duct_peek(c->duct, p);
    if (n < 0)
        c->broken = true;
    return n < 0 ? 0 : (size_t)n;
}

void run_chan_consume(struct run_chan *c, size_t n) {
    if (c->duct)
        vg_duct_consume(c->duct, n);
    else
        vg_buf_consume(&c->in, n);
}

/* The next INPUT frame, or end of input, when the window and the channel allow. */
static bool input_begin(struct run *r, struct run_chan *c) {
    uint64_t have = r->in_acked + vg_buf_len(&r->in);
    if (!c->welcomed || c != &r->chan[0])
        return false;
    if (c->in_sent < have) {
        size_t n = (size_t)VG_MIN(have - c->in_sent, (uint64_t)(VG_TIO_MAX - 8));
        vg_tio_header(c->head, VG_TIO_INPUT, (uint32_t)(8 + n));
        vg_put64(c->head + 8, c->in_sent);
        c->head_left = sizeof(c->head);
        c->frame_left = n;
        return true;
    }
    if (r->stdin_eof && !r->eof_sent) {
        uint8_t p[8];
        vg_put64(p, have);
        run_put(c, VG_TIO_INPUT_END, p, sizeof(p));
        r->eof_sent = true;
    }
    return false;
}

static ssize_t input_write(struct run *r, struct run_chan *c) {
    struct iovec v[2] = {
        {c->head + sizeof(c->head) - c->head_left, c->head_left},
        {vg_buf_data(&r->in) + (c->in_sent - r->in_acked), c->frame_left},
    };
    ssize_t n = chan_send(c, v, 2);
    if (n <= 0)
        return n;
    size_t h = VG_MIN((size_t)n, c->head_left);
    c->head_left -= h;
    c->frame_left -= (size_t)n - h;
    c->in_sent += (size_t)n - h;
    return n;
}

bool run_chan_flush(struct run *r, struct run_chan *c) {
    while (c->fd >= 0 && !c->broken && !c->shut) {
        ssize_t n;
        if (c->head_left || c->frame_left) {
            n = input_write(r, c);
        } else if (vg_buf_len(&c->out)) {
            n = chan_send(c, &(struct iovec){vg_buf_data(&c->out), vg_buf_len(&c->out)}, 1);
            if (n > 0)
                vg_buf_consume(&c->out, (size_t)n);
        } else if (input_begin(r, c) || vg_buf_len(&c->out)) {
            continue;
        } else {
            return false;
        }
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return true;
        if (n < 0)
            c->shut = true; /* the keeper may have left after its last word: that is still read */
    }
    return false;
}
