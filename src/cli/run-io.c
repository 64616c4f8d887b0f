/* Task I/O of vrun: what the keeper says, and the one poll loop around channels, input, output and
   signals. See run-int.h for what always holds. */
#include "base/cleanup.h"
#include "base/util.h"
#include "cli/run-chan.h"
#include "net/duct.h"
#include "net/tio.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

#define CHAN_READ (512u << 10)
#define CHAN_IN_MAX (1u << 20)
#define RETRY_FIRST 20000ULL
#define RETRY_MOST 1000000ULL
#define GIVE_UP (300 * VG_USEC)
#define SAY_LOST (2 * VG_USEC)

void run_say(const struct run *r, const char *fmt, ...) {
    char line[VG_ERR_MAX + 64];
    va_list ap;
    int n = snprintf(line, sizeof(line) - 2, "%s: ", r->program);
    va_start(ap, fmt);
    int m = vsnprintf(line + n, sizeof(line) - (size_t)n - 2, fmt, ap);
    va_end(ap);
    size_t len = VG_MIN((size_t)(n + (m > 0 ? m : 0)), sizeof(line) - 3);
    if (r->raw)
        line[len++] = '\r';
    line[len++] = '\n';
    if (write(STDERR_FILENO, line, len) < 0)
        return; /* nobody listens */
}

/* ---- frames from the keeper ---- */

static void on_welcome(struct run *r, struct run_chan *c, const uint8_t *p, size_t n) {
    if (n < 20 || c->welcomed) {
        c->broken = true;
        return;
    }
    uint64_t in_taken = vg_get64(p), out_from = vg_get64(p + 8);
    uint32_t state = vg_get32(p + 16);
    if (r->attach && (state & 1) && isatty(STDIN_FILENO) && isatty(STDOUT_FILENO))
        r->tty = true;
    c->welcomed = true;
    r->requeued = r->owed = false; /* this is the attempt that was announced */
    if (state & 8 && r->stdin_fd >= 0)
        r->read_stdin = true; /* our descriptor could not be handed on: the node is elsewhere */
    if (out_from > r->out_offset) {
        if (r->out_offset > 0 || !r->attach)
            run_say(r, "%llu bytes of older output are gone",
                    (unsigned long long)(out_from - r->out_offset));
        r->out_offset = out_from;
        r->rec_done = 0;
    }
    if (in_taken > r->in_acked) {
        uint64_t d = VG_MIN(in_taken - r->in_acked, (uint64_t)vg_buf_len(&r->in));
        vg_buf_consume(&r->in, (size_t)d);
        r->in_acked = in_taken; /* beyond what we sent: others have typed meanwhile */
    }
    c->in_sent = r->in_acked;
    r->eof_sent = false;
    run_linked(r);
    if (c == &r->chan[1]) {
        run_chan_close(&r->chan[0]);
        r->chan[0] = *c;
        r->chan[1] = (struct run_chan){.fd = -1, .ring_fd = -1};
        c = &r->chan[0];
    }
    run_tty_raw(r);
    if (r->tty)
        run_put_winsize(c);
    for (int fd = 1; fd <= 2; fd++)
        if (r->out_closed[fd]) /* the word may have been lost with the old channel */
            run_put_close_output(c, fd);
    for (int i = 0; i < 64; i++)
        if (r->unsent_signals >> i & 1)
            run_put_signal(r, c, i % 32 + 1, i >= 32);
    r->unsent_signals = 0;
}

static void on_input_ack(struct run *r, struct run_chan *c, const uint8_t *p) {
    uint64_t at = vg_get64(p);
    if (c != &r->chan[0] || !c->welcomed || at <= r->in_acked)
        return;
    if (at > c->in_sent) { /* what was never sent cannot be acknowledged */
        c->broken = true;
        return;
    }
    vg_buf_consume(&r->in, (size_t)(at - r->in_acked));
    r->in_acked = at;
}

static void on_stopped(struct run *r) {
    run_stop_here(r, true);
    run_put_winsize(&r->chan[0]);
    run_put(&r->chan[0], VG_TIO_CONTINUE, NULL, 0);
}

/* The next attempt is another run of the command: its output begins anew. Input that the last one
   has read is gone. */
static void begin_anew(struct run *r) {
    r->requeued = r->attempt_over = r->started = false;
    r->owed = true;
    r->out_offset = 0;
    r->rec_done = 0;
    r->data_offset = 0;
    r->in_acked = 0;
    r->eof_sent = false;
    r->end_text[0] = 0;
}

void run_requeued(struct run *r) {
    if (!r->patient)
        return;
    r->requeued = true;
    if (r->chan[0].fd < 0)
        begin_anew(r); /* else what the old channel still holds comes first */
}

static void say_end(struct run *r) {
    if (r->end_text[0] && (r->end_refused || !r->quiet))
        run_say(r, "%s", r->end_text);
}

static void on_exit_frame(struct run *r, struct run_chan *c, const uint8_t *p, size_t n) {
    if (r->patient) {
        run_chan_flush(r, c); /* the last acknowledgement */
        r->attempt_over = c->broken = true;
    } else {
        r->exited = true;
    }
    run_tty_restore(r);
    if (r->ended && r->patient)
        return; /* all is said */
    size_t len = VG_MIN(n - 16, sizeof(r->end_text) - 1);
    memcpy(r->end_text, p + 16, len);
    r->end_text[len] = 0;
    r->end_refused = vg_get32(p + 12) != 0;
    r->status = (int32_t)vg_get32(p);
    if (!r->patient) /* else the control plane may know better what it meant */
        say_end(r);
}

static bool small_frame(struct run *r, struct run_chan *c, unsigned kind, const uint8_t *p,
                        size_t n) {
    switch (kind) {
    case VG_TIO_WELCOME:
        on_welcome(r, c, p, n);
        return c->fd < 0; /* moved to the first place: parse there */
    case VG_TIO_INPUT_ACK:
        if (n == 8)
            on_input_ack(r, c, p);
        break;
    case VG_TIO_STARTED:
        r->started = true;
        break;
    case VG_TIO_STOPPED:
        on_stopped(r);
        break;
    case VG_TIO_EXIT:
        if (n >= 16)
            on_exit_frame(r, c, p, n);
        break;
    case VG_TIO_NOTE:
        run_say(r, "%.*s", (int)n, (const char *)p);
        break;
    case VG_TIO_RING:
        run_on_ring(c, p, n);
        break;
    case VG_TIO_GAP:
        if (n == 8 && vg_get64(p) > r->out_offset) {
            r->out_offset = vg_get64(p);
            r->rec_done = 0;
        }
        break;
    case VG_TIO_TAKEN:
        if (r->chan[1].fd < 0) {
            run_say(r, "another client took over this task");
            r->exited = true;
            r->status = 125;
        }
        c->broken = true;
        break;
    default:
        break;
    }
    return false;
}

static void chan_parse(struct run *r, struct run_chan *c) {
    const uint8_t *p;
    size_t have;
    while (!r->exited && !c->broken && (c->seen = have = run_chan_have(c, &p)) >= VG_TIO_HEADER) {
        size_t len = vg_get32(p);
        unsigned kind = vg_get32(p + 4);
        if (len > VG_TIO_MAX + 64) {
            c->broken = true;
            return;
        }
        if (have < VG_TIO_HEADER + len)
            return;
        if ((kind == VG_TIO_OUTPUT && len >= 8) || kind == VG_TIO_OUTPUT_AT) {
            if (run_on_output(r, c, kind, p + VG_TIO_HEADER, len) == 0)
                return;
        } else if (kind == VG_TIO_DATA && len >= 8 && r->spec.duplex) {
            if (run_data(r, c, p + VG_TIO_HEADER, len) == 0)
                return;
        } else if (small_frame(r, c, kind, p + VG_TIO_HEADER, len)) {
            c = &r->chan[0];
        }
        run_chan_consume(c, VG_TIO_HEADER + len);
    }
}

static void chan_ready(struct run *r, struct run_chan *c) {
    if (c->duct) {
        chan_parse(r, c);
        c->eof = c->duct && vg_duct_ended(c->duct, c->seen);
        return;
    }
    uint8_t *p = vg_buf_reserve(&c->in, c->welcomed ? CHAN_READ : 4096);
    if (!p)
        return;
    int fd = -1;
    size_t n_fds = 1;
    ssize_t n = vg_recv_fds(c->fd, p, vg_buf_room(&c->in), &fd, &n_fds, MSG_DONTWAIT);
    if (n > 0 && n_fds == 1) {
        vg_close(&c->ring_fd);
        c->ring_fd = fd;
    }
    if (n == 0 || (n < 0 && n != -EAGAIN))
        c->eof = true;
    if (n > 0)
        vg_buf_commit(&c->in, (size_t)n);
    chan_parse(r, c);
}

/* ---- the loop ---- */

void run_linked(struct run *r) {
    r->give_up_at = 0;
    r->said_lost = false;
    r->retry_usec = RETRY_FIRST;
}

/* Whether the way to the task is broken and must be made again. */
static bool needs_link(const struct run *r) {
    if (r->exited)
        return false;
    if (r->detach && !r->follow)
        return r->ctl < 0 && !r->accepted;
    if (r->attempt_over)
        return r->ctl < 0; /* it will say what comes next */
    if (r->chan[0].fd >= 0 && r->chan[0].welcomed)
        return false;
    return r->ctl < 0 || (r->chan[0].fd < 0 && r->chan[1].fd < 0);
}

static void relink(struct run *r) {
    uint64_t now = vg_now_usec();
    struct vg_err err = VG_ERR_INIT;
    if (r->retry_at > now)
        return;
    if (!r->give_up_at)
        r->give_up_at = now + GIVE_UP;
    /* A way that breaks at once, again and again, is no reason to hurry. */
    r->retry_usec = VG_MIN(r->retry_usec * 2, RETRY_MOST);
    r->retry_at = now + r->retry_usec;
    if (run_connect(r, true, &err) >= 0) {
        if (r->ended)
            r->owed = false; /* what is stored comes now, if there is anything */
        return;
    }
    if (now + GIVE_UP > r->give_up_at + SAY_LOST && !r->said_lost) {
        r->said_lost = true;
        run_say(r, "the cloud does not answer; still trying (%s)", err.msg);
    }
    if (now > r->give_up_at) {
        char id[VG_ID_LEN + 1];
        vg_id_format(r->task_id, id);
        run_say(r, "gave up: %s; task %s may still run, see 'virga task get %s' later", err.msg, id,
                id);
        r->exited = true;
        r->status = 125;
    }
}

static bool is_blocked(const struct run *r) {
    return r->out_full[0] || r->out_full[1] || r->out_full[2];
}

/* A channel that has ended is over when all it brought was handled; a slow reader delays that. */
static void drop_broken(struct run *r) {
    bool blocked = is_blocked(r);
    for (int i = 0; i < 2; i++)
        if (r->chan[i].broken || (r->chan[i].eof && !blocked))
            run_chan_close(&r->chan[i]);
    if (r->chan[0].fd < 0 && r->chan[1].fd >= 0) {
        r->chan[0] = r->chan[1];
        r->chan[1] = (struct run_chan){.fd = -1, .ring_fd = -1};
    }
    if (r->chan[0].fd < 0)
        run_tty_restore(r); /* so that Ctrl-C reaches us */
    if (r->chan[0].fd < 0 && r->requeued)
        begin_anew(r);
    bool stays = !r->detach || r->follow || !r->accepted;
    if (r->chan[0].fd < 0 && r->ended && !r->owed && !r->exited && stays) {
        /* It ended without a keeper: cancelled in the queue, its node was lost, or it was refused.
         */
        r->exited = true;
        r->end_refused |= !r->attempt_over;
        say_end(r);
    }
}

struct polls {
    struct pollfd p[9];
    nfds_t n;
};

static int add(struct polls *ps, int fd, short events) {
    ps->p[ps->n] = (struct pollfd){.fd = fd, .events = events};
    return (int)ps->n++;
}

static bool ready(const struct polls *ps, int i) {
    return i >= 0 && ps->p[i].revents != 0;
}

static int wait_msec(const struct run *r, bool linking) {
    if (!linking)
        return -1;
    uint64_t now = vg_now_usec();
    return r->retry_at > now ? (int)((r->retry_at - now) / 1000 + 1) : 0;
}

/* Waits for a channel; true: there is something to do at once. */
static bool chan_wait(struct run *r, struct run_chan *c, struct polls *ps, int *ret_at) {
    const uint8_t *rest;
    bool full = run_chan_flush(r, c), blocked = is_blocked(r);
    if (c->fd < 0 || c->broken || c->eof)
        return false;
    size_t have = run_chan_have(c, &rest);
    short in = blocked && have > CHAN_IN_MAX ? 0 : POLLIN;
    *ret_at = add(ps, c->fd, (short)((full && !c->duct ? POLLOUT : 0) | in));
    /* Not `have`: what came since the last look was not looked at. */
    return c->duct && vg_duct_arm(c->duct, c->seen, full);
}

/* One turn. Returns -errno with err when the cloud refused. */
static int turn(struct run *r, int sigs, struct vg_err *err) {
    struct polls ps = {.n = 0};
    int i_ctl = -1, i_chan[2] = {-1, -1}, i_in = -1, i_out[3] = {-1, -1, -1};
    bool linking = needs_link(r);
    int i_sig = add(&ps, sigs, POLLIN);
    int i_mirror = r->mirror_fd > 0 && ((!r->ended && !r->exited) || r->by_way)
                       ? add(&ps, r->mirror_fd, POLLIN)
                       : -1;
    if (r->ctl >= 0)
        i_ctl = add(&ps, r->ctl, POLLIN);
    bool at_once[2];
    for (int i = 0; i < 2; i++)
        at_once[i] = chan_wait(r, &r->chan[i], &ps, &i_chan[i]);
    if (r->read_stdin && !r->stdin_eof && r->chan[0].welcomed &&
        vg_buf_len(&r->in) < VG_TIO_WINDOW && (!r->tty || r->raw))
        i_in = add(&ps, STDIN_FILENO, POLLIN);
    for (int fd = 0; fd <= 2; fd++)
        if (r->out_full[fd])
            i_out[fd] = add(&ps, fd, POLLOUT);
    if (poll(ps.p, ps.n, at_once[0] || at_once[1] ? 0 : wait_msec(r, linking)) < 0 &&
        errno != EINTR)
        return vg_err_sys(err, errno, "cannot wait for events");

    struct signalfd_siginfo si;
    while (ready(&ps, i_sig) && read(sigs, &si, sizeof(si)) == (ssize_t)sizeof(si))
        run_on_signal(r, &si);
    if (ready(&ps, i_ctl)) {
        int e = run_ctl_ready(r, err);
        if (e < 0)
            return e;
    }
    for (int fd = 0; fd <= 2; fd++)
        if (ready(&ps, i_out[fd]))
            r->out_full[fd] = false;
    for (int i = 0; i < 2; i++) {
        const uint8_t *rest;
        short came = i_chan[i] >= 0 ? ps.p[i_chan[i]].revents : 0;
        if (at_once[i] || came & (POLLIN | POLLHUP | POLLERR))
            chan_ready(r, &r->chan[i]);
        else if (r->chan[i].fd >= 0 && run_chan_have(&r->chan[i], &rest))
            chan_parse(r, &r->chan[i]);
    }
    if (ready(&ps, i_in))
        run_stdin_ready(r);
    if (ready(&ps, i_mirror))
        run_mirror_ready(r);
    drop_broken(r);
    if (needs_link(r))
        relink(r);
    return 0;
}

/* Dies of the signal we were sent when the task died of the same: a shell's loop then ends too. */
static int die_alike(struct run *r) {
    if (r->got_signal && r->status == 128 + r->got_signal) {
        struct rlimit none = {0, 0};
        sigset_t set;
        setrlimit(RLIMIT_CORE, &none);
        signal(r->got_signal, SIG_DFL);
        kill(getpid(), r->got_signal);
        sigemptyset(&set);
        sigaddset(&set, r->got_signal);
        sigprocmask(SIG_UNBLOCK, &set, NULL);
    }
    return r->status;
}

/* The bridge has its own thread: when our end is shut and it has passed everything on, it ends. */
static void wait_for_bridge(struct vg_duct *d) {
    vg_duct_shut(d);
    for (;;) {
        struct pollfd pf = {.fd = vg_duct_fd(d), .events = POLLIN};
        const uint8_t *p;
        ssize_t n = vg_duct_peek(d, &p);
        if (n > 0)
            vg_duct_consume(d, (size_t)n);
        if (n < 0 || vg_duct_ended(d, 0) || (!vg_duct_arm(d, 0, false) && poll(&pf, 1, 500) <= 0))
            return;
    }
}

/* The last acknowledgement must leave before we do; a peer that reads nothing is not waited for. */
static void say_goodbye(struct run *r) {
    struct run_chan *c = &r->chan[0];
    for (int i = 0; i < 10 && run_chan_flush(r, c); i++) {
        struct pollfd pf = {.fd = c->fd, .events = c->duct ? POLLIN : POLLOUT};
        const uint8_t *rest;
        if (!c->duct || !vg_duct_arm(c->duct, run_chan_have(c, &rest), true))
            poll(&pf, 1, 100);
    }
    if (c->duct)
        wait_for_bridge(c->duct);
}

int run_session(struct run *r) {
    struct vg_err err = VG_ERR_INIT;
    vg_auto_fd int sigs = run_open_signals(r);
    r->retry_usec = RETRY_FIRST;
    for (;;) {
        int e = turn(r, sigs, &err);
        if (e < 0) {
            run_tty_restore(r);
            run_say(r, "%s", err.msg);
            return vg_reason_exit(err.reason);
        }
        if (r->exited)
            break;
        if (!r->detach || r->follow || !r->accepted || (r->pinning && r->ctl >= 0))
            continue;
        if (r->pinning)
            run_say(r,
                    "the connection broke: the file service goes on copying what the task needs, "
                    "stay connected for a while");
        return 0;
    }
    run_tty_restore(r);
    say_goodbye(r);
    if (r->out_failed && r->status == 0)
        r->status = 1; /* the command would have met the error itself */
    return die_alike(r);
}
