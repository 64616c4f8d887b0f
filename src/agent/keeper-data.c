/* A standard input that goes both ways: the command has a socket, and what it writes there goes to
   the client that owns the task and to nobody else. It is not output: no log has it and no
   looker-on sees it. Offsets count its bytes; what the client has not acknowledged is kept, and
   sent again by its next channel. A client of this machine is not served here: the command has its
   socket. */
#include "agent/keeper-int.h"
#include "base/cleanup.h"
#include "base/util.h"
#include "net/tio.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#define DATA_READ (256u << 10)   /* at once */
#define DATA_AHEAD VG_TIO_WINDOW /* unacknowledged bytes before the task is slowed */

bool kdata_is(const struct ktask *t) {
    return t->start->spec->duplex;
}

/* Whether somebody is there to have it, or may come back. */
static bool is_heard(const struct ktask *t) {
    return t->owner || t->held;
}

static void data_ready(struct keeper *k, void *obj, uint32_t events) {
    (void)events;
    kdata_read(k, obj);
}

int kdata_make(struct ktask *t, int *ret_ours, int *ret_theirs) {
    int s[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, s) < 0)
        return -errno;
    int ours = fcntl(s[0], F_DUPFD_CLOEXEC, 3);
    int r = ours < 0 ? -errno : vg_set_nonblock(ours, true); /* both: it is one socket */
    if (r < 0) {
        vg_close(&ours);
        vg_close(&s[0]);
        vg_close(&s[1]);
        return r;
    }
    t->data = (struct source){.fn = data_ready, .obj = t, .fd = s[0]};
    *ret_ours = ours;
    *ret_theirs = s[1];
    return 0;
}

static void forget(struct ktask *t) {
    t->data_acked += vg_buf_len(&t->data_buf);
    vg_buf_clear(&t->data_buf);
}

/* Takes what is there until that is enough. */
static void take(struct keeper *k, struct ktask *t) {
    while (t->data.fd >= 0 && vg_buf_len(&t->data_buf) < DATA_AHEAD) {
        uint8_t *p = vg_buf_reserve(&t->data_buf, DATA_READ);
        ssize_t n = p ? read(t->data.fd, p, DATA_READ) : -ENOMEM;
        if (p && n < 0 && errno == EINTR)
            continue;
        if (p && n < 0 && errno == EAGAIN && !ktask_ends_here(k, t))
            return;
        if (n <= 0) {
            keeper_close(k, &t->data);
            return;
        }
        vg_buf_commit(&t->data_buf, (size_t)n);
        if (!is_heard(t))
            forget(t);
    }
}

void kdata_read(struct keeper *k, struct ktask *t) {
    if (t->data.fd < 0)
        return;
    if (!is_heard(t))
        forget(t);
    take(k, t);
    if (t->owner)
        kchan_flush(k, t->owner);
    kdata_pace(k, t);
    ktask_finish(k, t);
}

void kdata_pace(struct keeper *k, struct ktask *t) {
    if (t->data.fd < 0)
        return;
    if (!is_heard(t))
        forget(t);
    if (vg_buf_len(&t->data_buf) >= DATA_AHEAD)
        keeper_unwatch(k, &t->data);
    else
        keeper_watch(k, &t->data, EPOLLIN);
}

bool kdata_queue(struct kchan *c) {
    struct ktask *t = c->task;
    uint64_t end = t->data_acked + vg_buf_len(&t->data_buf);
    if (!c->owner || c->data_sent >= end)
        return false;
    uint8_t at[8];
    c->data_sent = VG_MAX(c->data_sent, t->data_acked);
    size_t n = (size_t)VG_MIN(end - c->data_sent, (uint64_t)(VG_TIO_MAX - sizeof(at)));
    vg_put64(at, c->data_sent);
    kchan_frame(c, VG_TIO_DATA, at, sizeof(at),
                vg_buf_data(&t->data_buf) + (c->data_sent - t->data_acked), n);
    c->data_sent += n;
    return true;
}

void kdata_hello(struct kchan *c, uint64_t want) {
    struct ktask *t = c->task;
    uint64_t end = t->data_acked + vg_buf_len(&t->data_buf);
    c->data_sent = VG_MIN(VG_MAX(want, t->data_acked), end);
}

void kdata_acked(struct keeper *k, struct kchan *c, uint64_t offset) {
    struct ktask *t = c->task;
    if (offset <= t->data_acked || offset > c->data_sent)
        return;
    vg_buf_consume(&t->data_buf, (size_t)(offset - t->data_acked));
    t->data_acked = offset;
    if (ktask_ends_here(k, t)) /* nothing will wake us: others may hold the socket */
        kdata_read(k, t);
    else
        kdata_pace(k, t);
}
