/* A task's pipes or terminal: made for its command, read into the ring, written from channels. */
#include "agent/keeper-int.h"
#include "base/cleanup.h"
#include "base/log.h"
#include "base/util.h"
#include "net/tio.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <termios.h>
#include <unistd.h>

#define READ_BUDGET (1u << 20) /* bytes a task may bring in before others get their turn */
#define PIPE_BIG (1 << 20)

/* ---- output ---- */

static void output_closed(struct keeper *k, struct ktask *t, int i) {
    keeper_close(k, &t->out[i]);
    ktask_finish(k, t);
}

/* The most data in one record: the log keeps whole records, so a small log needs small ones. */
static size_t record_max(const struct keeper *k) {
    uint64_t part = VG_MIN(k->birth.log_head_bytes, k->birth.log_tail_bytes) / 4;
    return (size_t)VG_MAX(VG_MIN(part, (uint64_t)VG_REC_MAX), 1024u);
}

/* In a session others may hold the pipes after the command has ended: what was in them then counts
   as its output (no more than a pipe holds), and nothing later. */
bool ktask_ends_here(const struct keeper *k, const struct ktask *t) {
    return t->wait_known && k->session_key[0];
}

/* Reads one of the outputs into the ring until it is dry, the ring is full, or the budget is spent.
 */
static void read_one(struct keeper *k, struct ktask *t, int i) {
    size_t budget = READ_BUDGET;
    uint64_t now = vg_wall_usec();
    while (t->out[i].fd >= 0 && budget > 0) {
        uint64_t unread = t->owner ? t->ring.end - t->owner->acked : 0;
        size_t room = vg_ring_make_room(&t->ring, VG_REC_HEADER + VG_REC_MAX, ktask_floor(t));
        if (room <= VG_REC_HEADER + 4096 || unread >= OWNER_AHEAD) {
            ktask_pace(k, t);
            return;
        }
        ssize_t n = vg_ring_read(&t->ring, t->out[i].fd, i == 0 ? VG_REC_STDOUT : VG_REC_STDERR,
                                 VG_MIN(room, VG_REC_HEADER + record_max(k)), now);
        if (n == -EAGAIN && !ktask_ends_here(k, t))
            return;
        if (n <= 0) { /* EIO is a terminal's way of saying end of file */
            output_closed(k, t, i);
            return;
        }
        if (n == VG_REC_MAX && !(t->tty && i == 0))
            (void)fcntl(t->out[i].fd, F_SETPIPE_SZ, PIPE_BIG);
        budget -= VG_MIN(budget, (size_t)n);
        if (t->owner)
            kchan_flush(k, t->owner);
        if (ktask_ends_here(k, t) && (t->late[i] += (size_t)n) >= PIPE_BIG)
            output_closed(k, t, i);
    }
}

static void out_ready(struct keeper *k, void *obj, uint32_t events) {
    (void)events;
    ktask_read_output(k, obj);
}

void ktask_read_output(struct keeper *k, struct ktask *t) {
    for (int i = 0; i < 2 && !t->paused; i++)
        if (t->out[i].fd >= 0)
            read_one(k, t, i);
    kchan_flush_all(k, t);
    if (k->agent.fd >= 0 && !k->agent.events)
        keeper_watch(k, &k->agent, EPOLLIN);
    keeper_flush_agent(k);
}

void ktask_pace(struct keeper *k, struct ktask *t) {
    uint64_t unread = t->owner ? t->ring.end - t->owner->acked : 0;
    size_t room = vg_ring_make_room(&t->ring, VG_REC_HEADER + VG_REC_MAX, ktask_floor(t));
    t->paused = room <= VG_REC_HEADER + 4096 || unread >= OWNER_AHEAD;
    for (int i = 0; i < 2; i++) {
        if (t->out[i].fd < 0)
            continue;
        if (t->paused)
            keeper_unwatch(k, &t->out[i]);
        else
            keeper_watch(k, &t->out[i], EPOLLIN);
    }
    kdata_pace(k, t);
}

/* ---- input ---- */

static void input_ack(struct keeper *k, struct ktask *t) {
    if (!t->owner || t->in_done == t->in_told)
        return;
    uint8_t p[8];
    vg_put64(p, t->in_done);
    t->in_told = t->in_done;
    kchan_frame(t->owner, VG_TIO_INPUT_ACK, p, sizeof(p), NULL, 0);
    kchan_flush(k, t->owner);
}

/* Nobody reads any more: what comes is swallowed, as a broken pipe would. */
static void input_broken(struct keeper *k, struct ktask *t) {
    keeper_close(k, &t->in);
    vg_buf_clear(&t->in_buf);
    t->in_done = t->in_taken;
    input_ack(k, t);
}

static void input_pump(struct keeper *k, struct ktask *t) {
    while (t->in.fd >= 0 && vg_buf_len(&t->in_buf) > 0) {
        ssize_t n = write(t->in.fd, vg_buf_data(&t->in_buf), vg_buf_len(&t->in_buf));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN) {
            keeper_watch(k, &t->in, EPOLLOUT);
            input_ack(k, t);
            return;
        }
        if (n < 0) {
            input_broken(k, t);
            return;
        }
        vg_buf_consume(&t->in_buf, (size_t)n);
        t->in_done += (uint64_t)n;
    }
    keeper_unwatch(k, &t->in);
    if (t->in.fd >= 0 && t->in_done >= t->in_end) {
        if (t->tty) {
            uint8_t eof = 4; /* Ctrl-D: what end of input is on a terminal */
            if (!t->in_ended && write(t->in.fd, &eof, 1) < 0)
                vg_debug("terminal input is gone: errno=%d", errno);
            t->in_ended = true; /* a client that comes back says it again */
            t->in_end = KEEPER_NEVER;
        } else {
            if (kdata_is(t)) /* the other way stays */
                shutdown(t->in.fd, SHUT_WR);
            keeper_close(k, &t->in);
        }
    }
    input_ack(k, t);
}

static void in_ready(struct keeper *k, void *obj, uint32_t events) {
    struct ktask *t = obj;
    if (events & EPOLLERR && !t->tty)
        input_broken(k, t);
    else
        input_pump(k, t);
}

void ktask_input(struct keeper *k, struct ktask *t, uint64_t offset, const uint8_t *p, size_t n) {
    if (offset > t->in_taken)
        return; /* a hole: the client did not follow WELCOME; it will be told by the ack */
    size_t skip = (size_t)VG_MIN(t->in_taken - offset, (uint64_t)n);
    p += skip;
    n -= skip;
    if (n == 0)
        return;
    if (vg_buf_len(&t->in_buf) + n > 2 * VG_TIO_WINDOW)
        return; /* beyond the window: not taken, the client resends after its next WELCOME */
    t->in_taken += n;
    bool early = kmirror_waits(t); /* kept until the command is there to read it */
    if (t->in.fd < 0 && !early) {
        t->in_done = t->in_taken;
        input_ack(k, t);
        return;
    }
    if (vg_buf_len(&t->in_buf) == 0 && !early) {
        ssize_t w = write(t->in.fd, p, n);
        if (w > 0) {
            t->in_done += (uint64_t)w;
            p += w;
            n -= (size_t)w;
        } else if (w < 0 && errno != EAGAIN && errno != EINTR) {
            input_broken(k, t);
            return;
        }
    }
    if (n > 0 && vg_buf_append(&t->in_buf, p, n) < 0) {
        input_broken(k, t);
        return;
    }
    input_pump(k, t);
}

void ktask_input_end(struct keeper *k, struct ktask *t, uint64_t offset) {
    t->in_end = offset;
    input_pump(k, t);
}

void ktask_close_output(struct keeper *k, struct ktask *t, uint32_t stream) {
    int i = stream == VG_REC_STDERR ? 1 : 0;
    if (stream != VG_REC_STDOUT && stream != VG_REC_STDERR)
        return;
    if (t->tty && i == 0)
        return;
    keeper_close(k, &t->out[i]);
    ktask_finish(k, t);
}

void ktask_winsize(struct ktask *t, const uint8_t *p) {
    struct winsize w;
    Vg__Pb__Terminal *early = kmirror_waits(t) ? t->start->spec->tty : NULL;
    memcpy(&w, p, sizeof(w));
    if (early) {
        early->rows = w.ws_row;
        early->cols = w.ws_col;
        return;
    }
    if (t->tty && t->in.fd >= 0)
        ioctl(t->in.fd, TIOCSWINSZ, &w);
    else if (t->out[0].fd >= 0)
        ioctl(t->out[0].fd, TIOCSWINSZ, &w);
}

/* ---- for the command ---- */

void kstdio_close(struct kstdio *s) {
    for (int i = 0; i < 3; i++)
        vg_close(&s->child[i]);
}

static void set_terminal(int master, int slave, const Vg__Pb__Terminal *tt, bool raw) {
    struct termios tio;
    if (tt && tt->termios.len == sizeof(tio)) {
        memcpy(&tio, tt->termios.data, sizeof(tio));
        tcsetattr(slave, TCSANOW, &tio);
    }
    if (raw && tcgetattr(slave, &tio) == 0) {
        cfmakeraw(&tio);
        tcsetattr(slave, TCSANOW, &tio);
    }
    struct winsize w = {24, 80, 0, 0};
    if (tt && tt->rows)
        w = (struct winsize){(unsigned short)tt->rows, (unsigned short)tt->cols,
                             (unsigned short)tt->xpixel, (unsigned short)tt->ypixel};
    ioctl(master, TIOCSWINSZ, &w);
}

static int open_terminal(struct keeper *k, struct ktask *t, bool raw, int *ret_master,
                         int *ret_slave) {
    const Vg__Pb__Identity *who = t->start->who;
    int r = vg_sandbox_open_pty(k->sb, who->uid, who->gid, ret_master, ret_slave);
    if (r < 0)
        return r;
    set_terminal(*ret_master, *ret_slave, t->start->spec->tty, raw);
    return vg_set_nonblock(*ret_master, true);
}

static int make_pipe(struct keeper *k, struct ktask *t, int *ret_ours, int *ret_theirs,
                     bool input) {
    int p[2];
    const Vg__Pb__Identity *who = t->start->who;
    if (pipe2(p, O_CLOEXEC) < 0)
        return -errno;
    /* So that the command may open /dev/stdout by name. */
    if (fchown(p[0], vg_sandbox_map_uid(k->sb, who->uid), vg_sandbox_map_gid(k->sb, who->gid)) < 0)
        vg_debug("cannot chown a pipe: errno=%d", errno);
    *ret_ours = input ? p[1] : p[0];
    *ret_theirs = input ? p[0] : p[1];
    return vg_set_nonblock(*ret_ours, true);
}

static int make_output(struct keeper *k, struct ktask *t, struct kstdio *s, int fd, bool tty) {
    int ours = -1;
    if (t->start->spec->closed >> fd & 1)
        return 0; /* closed for the command too */
    int r = tty ? open_terminal(k, t, true, &ours, &s->child[fd])
                : make_pipe(k, t, &ours, &s->child[fd], false);
    t->out[fd - 1] = (struct source){.fn = out_ready, .obj = t, .fd = ours};
    return r;
}

static int make_stdin(struct keeper *k, struct ktask *t, struct kstdio *s, int stdin_fd) {
    if (stdin_fd >= 0) {
        struct stat st;
        const Vg__Pb__Identity *who = t->start->who;
        /* A pipe is handed on as it is, so that the command takes no more than it reads. Root's
           pipes get the inside root as owner: /dev/stdin can be opened, outside root still can. */
        if (fstat(stdin_fd, &st) == 0 && S_ISFIFO(st.st_mode) && who->uid == 0 &&
            fchown(stdin_fd, vg_sandbox_map_uid(k->sb, 0), (gid_t)-1) < 0)
            vg_debug("cannot chown stdin: errno=%d", errno);
        s->child[0] = stdin_fd;
        return 0;
    }
    if (t->start->spec->stdin_open) {
        int ours = -1;
        int r = kdata_is(t) ? kdata_make(t, &ours, &s->child[0])
                            : make_pipe(k, t, &ours, &s->child[0], true);
        t->in = (struct source){.fn = in_ready, .obj = t, .fd = ours};
        t->in_channel = true;
        return r;
    }
    if (t->start->spec->closed & 1)
        return 0;
    s->child[0] = open("/dev/null", O_RDONLY | O_CLOEXEC);
    return s->child[0] < 0 ? -errno : 0;
}

int kstdio_make(struct keeper *k, struct ktask *t, int stdin_fd, struct kstdio *s) {
    const Vg__Pb__TaskSpec *spec = t->start->spec;
    int r;
    *s = (struct kstdio){{-1, -1, -1}};
    if (!spec->tty || spec->tty_out) {
        r = make_stdin(k, t, s, stdin_fd);
        if (r >= 0)
            r = make_output(k, t, s, 1, spec->tty_out & 1);
        if (r >= 0 && !(spec->stderr_joined && s->child[1] >= 0))
            r = make_output(k, t, s, 2, spec->tty_out & 2);
        else if (r >= 0 && (s->child[2] = fcntl(s->child[1], F_DUPFD_CLOEXEC, 3)) < 0)
            r = -errno;
        return r;
    }
    t->tty = true;
    vg_close(&stdin_fd);
    int master = -1;
    r = open_terminal(k, t, false, &master, &s->child[0]);
    if (r < 0)
        return r;
    t->in = (struct source){.fn = in_ready, .obj = t, .fd = master};
    t->out[0] = (struct source){.fn = out_ready, .obj = t, .fd = fcntl(master, F_DUPFD_CLOEXEC, 3)};
    s->child[1] = fcntl(s->child[0], F_DUPFD_CLOEXEC, 3);
    if (spec->stderr_apart)
        return make_output(k, t, s, 2, false);
    s->child[2] = fcntl(s->child[0], F_DUPFD_CLOEXEC, 3);
    return s->child[2] < 0 || s->child[1] < 0 || t->out[0].fd < 0 ? -errno : 0;
}

void kstdio_begin(struct keeper *k, struct ktask *t) {
    for (int i = 0; i < 2; i++)
        if (t->out[i].fd >= 0)
            keeper_watch(k, &t->out[i], EPOLLIN);
    kdata_pace(k, t);
    if (t->in.fd < 0 && t->in_done < t->in_taken)
        input_broken(k, t);
    else if (t->in_taken || t->in_end != KEEPER_NEVER)
        input_pump(k, t); /* came while it waited for its files */
}
