/* A client's channel: frames of docs/protocol.md section 3 over a socket. Output is written
   straight from the task's ring; only small control frames are buffered. What the client sends is
   untrusted: a malformed frame ends the channel, never the task. */
#include "agent/keeper-int.h"
#include "base/cleanup.h"
#include "base/util.h"
#include "net/tio.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#define CHAN_READ (320u << 10)
#define CHAN_CONTROL_MAX (1u << 20)
#define CHANS_MAX 64
#define SHARE_FROM (32u << 10) /* output waiting from which on sharing pays */

void kchan_frame(struct kchan *c, int kind, const void *a, size_t an, const void *b, size_t bn) {
    uint8_t h[VG_TIO_HEADER];
    vg_tio_header(h, (enum vg_tio_kind)kind, (uint32_t)(an + bn));
    if (vg_buf_len(&c->out) + an + bn > CHAN_CONTROL_MAX ||
        vg_buf_append(&c->out, h, sizeof(h)) < 0 || vg_buf_append(&c->out, a, an) < 0 ||
        vg_buf_append(&c->out, b, bn) < 0)
        c->left = true; /* no memory, or a client that reads nothing: it goes at the next flush */
}

/* Takes the rest of the frame under way out of the ring, which nothing holds back for this channel:
   what was begun ends whole, whatever the ring forgets meanwhile. Nothing is queued before it. */
static void frame_keep(struct kchan *c) {
    struct iovec v[3];
    size_t done = c->frame_done, len = c->frame_len;
    c->frame_len = c->frame_done = 0;
    if (len == 0 || done == 0)
        return;
    struct vg_buf after = c->out; /* control frames that came meanwhile */
    c->out = (struct vg_buf){0};
    int n = 0;
    if (done < sizeof(c->frame_head))
        v[n++] = (struct iovec){c->frame_head + done, sizeof(c->frame_head) - done};
    size_t at = done > sizeof(c->frame_head) ? done - sizeof(c->frame_head) : 0;
    n += vg_ring_iov(&c->task->ring, c->sent + at, len - at, v + n);
    for (int i = 0; i < n; i++)
        if (vg_buf_append(&c->out, v[i].iov_base, v[i].iov_len) < 0)
            c->left = true;
    if (vg_buf_append(&c->out, vg_buf_data(&after), vg_buf_len(&after)) < 0)
        c->left = true;
    vg_buf_done(&after);
    c->sent += len;
    if (c->observe)
        c->acked = c->sent;
}

void kchan_drop(struct keeper *k, struct kchan *c) {
    struct ktask *t = c->task;
    if (t->owner == c)
        t->owner = NULL;
    keeper_close(k, &c->src);
    c->src.fn = NULL;
    vg_list_remove(&c->link);
    vg_list_push_back(&k->graves, &c->link);
}

/* The owning client is gone without a word. A local one is dead; a remote one may come back. */
static void owner_lost(struct keeper *k, struct ktask *t, struct kchan *c) {
    bool local = c->local;
    bool complete =
        c->exit_sent && (local || (c->acked == t->ring.end && !vg_buf_len(&t->data_buf)));
    uint64_t acked = c->acked;
    kchan_drop(k, c);
    if (t->detached || complete) {
        ktask_pace(k, t);
        return;
    }
    uint64_t hold = local ? 0 : t->start->spec->hold_usec;
    if (hold == 0) {
        t->detached = true;
        if (t->state != KT_EXITED) {
            t->hangup = true;
            ktask_kill(k, t, 1 /* SIGHUP */, HANGUP_GRACE, "its client went away");
        }
    } else {
        t->held = true;
        t->held_acked = acked;
        t->hold_until = vg_now_usec() + hold;
    }
    ktask_pace(k, t);
}

static void chan_broken(struct keeper *k, struct kchan *c) {
    struct ktask *t = c->task;
    if (t->owner == c)
        owner_lost(k, t, c);
    else
        kchan_drop(k, c);
}

/* Gives a client on this machine the ring itself. Not now (a full socket) is as good as later. */
static void share_ring(struct kchan *c) {
    struct vg_ring *r = &c->task->ring;
    uint8_t f[VG_TIO_HEADER + 8];
    vg_tio_header(f, VG_TIO_RING, 8);
    vg_put64(f + VG_TIO_HEADER, r->size);
    if (vg_send_fds(c->src.fd, f, sizeof(f), &r->fd, 1, MSG_DONTWAIT) == (ssize_t)sizeof(f))
        c->shares = true;
}

/* Names whole records to a client that sees the ring. */
static void name_records(struct kchan *c) {
    uint8_t p[12];
    size_t n = vg_ring_whole(&c->task->ring, c->sent, OWNER_AHEAD);
    vg_put64(p, c->sent);
    vg_put32(p + 8, (uint32_t)n);
    kchan_frame(c, VG_TIO_OUTPUT_AT, p, sizeof(p), NULL, 0);
    c->sent += n;
}

/* Starts a frame with as many whole records as fit. False when there is nothing to send. */
static bool frame_begin(struct kchan *c) {
    struct vg_ring *r = &c->task->ring;
    if (c->owner && kdata_is(c->task)) { /* what it prints is for its log */
        c->sent = c->acked = r->end;
        return false;
    }
    if (c->sent < r->begin) {
        uint8_t at[8];
        vg_put64(at, r->begin);
        c->sent = c->acked = r->begin;
        kchan_frame(c, VG_TIO_GAP, at, sizeof(at), NULL, 0);
        return false; /* it goes first */
    }
    if (c->sent >= r->end)
        return false;
    if (c->local && c->owner && !c->shares && r->end - c->sent >= SHARE_FROM &&
        vg_buf_len(&c->out) == 0)
        share_ring(c);
    if (c->shares) {
        name_records(c);
        return false;
    }
    c->frame_len = vg_ring_whole(r, c->sent, VG_TIO_MAX - 8);
    c->frame_done = 0;
    vg_tio_header(c->frame_head, VG_TIO_OUTPUT, (uint32_t)(8 + c->frame_len));
    vg_put64(c->frame_head + 8, c->sent);
    return true;
}

static ssize_t frame_write(struct kchan *c) {
    struct iovec v[3];
    int n = 0;
    size_t done = c->frame_done;
    if (done < sizeof(c->frame_head)) {
        v[n++] = (struct iovec){c->frame_head + done, sizeof(c->frame_head) - done};
        done = sizeof(c->frame_head);
    }
    size_t at = done - sizeof(c->frame_head);
    n += vg_ring_iov(&c->task->ring, c->sent + at, c->frame_len - at, v + n);
    struct msghdr m = {.msg_iov = v, .msg_iovlen = (size_t)n};
    return sendmsg(c->src.fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
}

static void send_exit(struct kchan *c) {
    struct ktask *t = c->task;
    uint8_t p[16];
    vg_put32(p, (uint32_t)t->status);
    vg_put64(p + 4, t->ring.end);
    vg_put32(p + 12, t->reason);
    kchan_frame(c, VG_TIO_EXIT, p, sizeof(p), t->text, strlen(t->text));
    c->exit_sent = true;
}

/* A node without room takes no task with files of another machine. The control plane gives it to
   another, or again to this one: that is no end, and its client comes back. */
static bool goes_elsewhere(const struct ktask *t) {
    return t->mirror && !t->started_usec && t->reason == VG_DISK_FULL;
}

void kchan_flush(struct keeper *k, struct kchan *c) {
    if (!c->src.fn || c->src.fd < 0)
        return;
    while (c->welcomed && !c->left) {
        if (c->taken && vg_buf_len(&c->out) == 0) {
            kchan_drop(k, c);
            return;
        }
        if (c->frame_len == 0 && vg_buf_len(&c->out) > 0) {
            ssize_t n = send(c->src.fd, vg_buf_data(&c->out), vg_buf_len(&c->out),
                             MSG_NOSIGNAL | MSG_DONTWAIT);
            if (n < 0)
                break;
            vg_buf_consume(&c->out, (size_t)n);
            continue;
        }
        if (c->frame_len == 0 && !frame_begin(c)) {
            if (vg_buf_len(&c->out) > 0)
                continue;
            if (kdata_queue(c))
                continue;
            if (c->task->finished && goes_elsewhere(c->task)) {
                kchan_drop(k, c);
                return;
            }
            if (c->task->finished && !c->exit_sent) {
                send_exit(c);
                continue;
            }
            keeper_watch(k, &c->src, EPOLLIN);
            return;
        }
        if (c->frame_len == 0)
            continue;
        ssize_t n = frame_write(c);
        if (n < 0)
            break;
        c->frame_done += (size_t)n;
        if (c->frame_done == sizeof(c->frame_head) + c->frame_len) {
            c->sent += c->frame_len;
            c->frame_len = 0;
            if (c->observe)
                c->acked = c->sent;
        }
    }
    if (c->left || (c->welcomed && errno != EAGAIN && errno != EINTR)) {
        chan_broken(k, c);
        return;
    }
    if (!c->owner)
        frame_keep(c);
    keeper_watch(k, &c->src, c->welcomed ? EPOLLIN | EPOLLOUT : EPOLLIN);
}

void kchan_flush_all(struct keeper *k, struct ktask *t) {
    vg_list_for_each_safe (it, &t->chans)
        kchan_flush(k, vg_list_entry(it, struct kchan, link));
}

/* Another client owns the task from here on. This one must hear that, or it would come back and
   take the task again: its channel stays until the word is out. */
static void oust(struct keeper *k, struct kchan *old) {
    old->owner = false;
    old->task->owner = NULL;
    if (!old->welcomed) {
        kchan_drop(k, old);
        return;
    }
    frame_keep(old);
    kchan_frame(old, VG_TIO_TAKEN, NULL, 0, NULL, 0);
    old->taken = true;
    kchan_flush(k, old);
}

static void on_hello(struct keeper *k, struct kchan *c, const uint8_t *p, size_t n) {
    struct ktask *t = c->task;
    if (n < 12 || c->welcomed) {
        c->left = true;
        return;
    }
    uint64_t want = vg_get64(p);
    uint32_t flags = vg_get32(p + 8);
    if (flags & VG_HELLO_OBSERVE)
        c->observe = true;
    c->sent = want < t->ring.begin ? t->ring.begin : want;
    if (c->sent > t->ring.end)
        c->sent = t->ring.end;
    c->sent = vg_ring_seek(&t->ring, c->sent);
    if (!c->observe && kdata_is(t)) {
        c->sent = want; /* it wants none */
        kdata_hello(c, n >= 20 ? vg_get64(p + 12) : 0);
    }
    c->acked = c->sent;
    if (!c->observe) {
        struct kchan *old = t->owner;
        if (old && old != c)
            oust(k, old);
        c->owner = true;
        t->owner = c;
        t->held = false;
        t->hold_until = KEEPER_NEVER;
    }
    uint8_t w[20];
    vg_put64(w, t->in_taken);
    vg_put64(w + 8, c->sent);
    vg_put32(w + 16, (t->tty ? 1u : 0) | (t->state != KT_STARTING ? 2u : 0) |
                         (t->finished ? 4u : 0) | (t->in_channel ? 8u : 0));
    kchan_frame(c, VG_TIO_WELCOME, w, sizeof(w), NULL, 0);
    c->welcomed = true;
}

static void on_detach(struct keeper *k, struct kchan *c) {
    struct ktask *t = c->task;
    if (t->owner == c) {
        t->detached = true;
        t->owner = NULL;
    }
    kchan_drop(k, c);
    ktask_pace(k, t);
}

static void on_signal(struct keeper *k, struct ktask *t, const uint8_t *p) {
    int signo = (int)vg_get32(p);
    if (signo >= 1 && signo <= 64 && t->state != KT_EXITED && !kmirror_signal(k, t, signo, 0, NULL))
        vg_sandbox_signal(k->sb, t->id, signo, vg_get32(p + 4) == 1);
}

static void on_frame(struct keeper *k, struct kchan *c, unsigned kind, const uint8_t *p, size_t n) {
    struct ktask *t = c->task;
    bool mine = t->owner == c;
    if (c->taken)
        return; /* an ousted client's words are late */
    if (kind == VG_TIO_HELLO) {
        on_hello(k, c, p, n);
        return;
    }
    if (kind == VG_TIO_DETACH) {
        on_detach(k, c);
        return;
    }
    if (kind == VG_TIO_OUTPUT_ACK && n == 8) {
        uint64_t at = vg_get64(p);
        if (at > c->acked && at <= c->sent)
            c->acked = at;
        return;
    }
    if (!mine)
        return; /* observers only look */
    if (kind == VG_TIO_DATA_ACK && n == 8) {
        kdata_acked(k, c, vg_get64(p));
        return;
    }
    if (kind == VG_TIO_INPUT && n >= 8)
        ktask_input(k, t, vg_get64(p), p + 8, n - 8);
    else if (kind == VG_TIO_INPUT_END && n == 8)
        ktask_input_end(k, t, vg_get64(p));
    else if (kind == VG_TIO_SIGNAL && n == 8)
        on_signal(k, t, p);
    else if (kind == VG_TIO_WINSIZE && n == 8)
        ktask_winsize(t, p);
    else if (kind == VG_TIO_CLOSE_OUTPUT && n == 4)
        ktask_close_output(k, t, vg_get32(p));
    else if (kind == VG_TIO_CONTINUE && t->state == KT_RUNNING)
        vg_sandbox_signal(k->sb, t->id, 18 /* SIGCONT */, true);
    else if (kind != VG_TIO_CONTINUE)
        c->left = true;
}

/* Handles every whole frame in the buffer. */
static void chan_parse(struct keeper *k, struct kchan *c) {
    while (c->src.fn && !c->left && vg_buf_len(&c->in) >= VG_TIO_HEADER) {
        const uint8_t *p = vg_buf_data(&c->in);
        uint32_t len = vg_get32(p), kind = vg_get32(p + 4);
        if (len > VG_TIO_MAX) {
            c->left = true;
            return;
        }
        if (vg_buf_len(&c->in) < VG_TIO_HEADER + (size_t)len)
            return;
        on_frame(k, c, kind, p + VG_TIO_HEADER, len);
        vg_buf_consume(&c->in, VG_TIO_HEADER + (size_t)len);
    }
}

static void chan_ready(struct keeper *k, void *obj, uint32_t events) {
    struct kchan *c = obj;
    struct ktask *t = c->task;
    if (events & (EPOLLIN | EPOLLHUP | EPOLLERR)) {
        uint8_t *p = vg_buf_reserve(&c->in, vg_buf_len(&c->in) ? CHAN_READ : 4096);
        if (!p)
            return;
        ssize_t n = recv(c->src.fd, p, vg_buf_room(&c->in), MSG_DONTWAIT);
        if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) {
            chan_broken(k, c);
            return;
        }
        if (n > 0)
            vg_buf_commit(&c->in, (size_t)n);
        chan_parse(k, c);
        if (!c->src.fn)
            return;
    }
    kchan_flush(k, c);
    ktask_pace(k, t);
}

struct kchan *kchan_new(struct keeper *k, struct ktask *t, int fd, bool observe, bool local) {
    size_t n = 0;
    vg_list_for_each (it, &t->chans)
        n++;
    struct kchan *c = n < CHANS_MAX ? calloc(1, sizeof(*c)) : NULL;
    if (!c) {
        close(fd);
        return NULL;
    }
    c->task = t;
    c->observe = observe;
    c->local = local;
    c->src = (struct source){.fn = chan_ready, .obj = c, .fd = fd};
    vg_set_nonblock(fd, true);
    vg_list_push_back(&t->chans, &c->link);
    keeper_watch(k, &c->src, EPOLLIN);
    return c;
}

void kchan_note(struct keeper *k, struct ktask *t, const char *fmt, ...) {
    char text[400];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    if (n <= 0)
        return;
    vg_list_for_each_safe (it, &t->chans) {
        struct kchan *c = vg_list_entry(it, struct kchan, link);
        kchan_frame(c, VG_TIO_NOTE, text, VG_MIN((size_t)n, sizeof(text) - 1), NULL, 0);
        kchan_flush(k, c);
    }
}
