/* Task I/O of vrun: what is typed or piped in goes to the keeper, what the task writes comes out
   here, signals and window sizes follow. One poll loop; see run-int.h for what always holds. */
#include "base/cleanup.h"
#include "base/util.h"
#include "cli/run-int.h"
#include "net/duct.h"
#include "net/tio.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define CHAN_READ (512u << 10)
#define CHAN_IN_MAX (1u << 20)
#define RING_MAX (1u << 30)
#ifndef RWF_NOWAIT
#define RWF_NOWAIT 8
#endif
#define RETRY_FIRST 20000ULL
#define RETRY_MOST 1000000ULL
#define GIVE_UP (300 * VG_USEC)
#define SAY_LOST (2 * VG_USEC)

static const int passed_on[] = {SIGINT,  SIGTERM, SIGHUP,  SIGQUIT,  SIGUSR1, SIGUSR2,
                                SIGALRM, SIGCONT, SIGTSTP, SIGWINCH, SIGURG,  SIGIO};

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

/* ---- channels ---- */

static void put_frame(struct run_chan *c, enum vg_tio_kind kind, const void *p, size_t n) {
    uint8_t h[VG_TIO_HEADER];
    vg_tio_header(h, kind, (uint32_t)n);
    if (c->fd < 0)
        return;
    if (vg_buf_append(&c->out, h, sizeof(h)) < 0 || vg_buf_append(&c->out, p, n) < 0)
        c->broken = true;
}

static void put_winsize(struct run_chan *c) {
    uint16_t size[4];
    if (run_tty_size(size))
        put_frame(c, VG_TIO_WINSIZE, size, sizeof(size));
}

static void put_signal(struct run *r, struct run_chan *c, int signo, bool group) {
    uint8_t p[8];
    vg_put32(p, (uint32_t)signo);
    vg_put32(p + 4, group ? 1 : 0);
    if (c->fd >= 0)
        put_frame(c, VG_TIO_SIGNAL, p, sizeof(p));
    else if (signo < 32)
        r->unsent_signals |= 1ull << (signo - 1 + (group ? 32 : 0));
}

static void put_close_output(struct run_chan *c, int fd) {
    uint8_t which[4];
    vg_put32(which, fd == STDOUT_FILENO ? VG_REC_STDOUT : VG_REC_STDERR);
    put_frame(c, VG_TIO_CLOSE_OUTPUT, which, sizeof(which));
}

void run_chan_open(struct run *r, struct run_chan *c, int fd, struct vg_duct *duct) {
    uint8_t hello[12];
    *c = (struct run_chan){.fd = fd, .duct = duct, .ring_fd = -1, .in_sent = r->in_acked};
    if (duct)
        c->fd = vg_duct_fd(duct);
    else
        vg_set_nonblock(fd, true);
    vg_put64(hello, r->out_offset);
    vg_put32(hello + 8, VG_HELLO_INPUT | VG_HELLO_TAKE);
    put_frame(c, VG_TIO_HELLO, hello, sizeof(hello));
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

/* What has come and was not handled yet. */
static size_t chan_have(struct run_chan *c, const uint8_t **p) {
    if (!c->duct) {
        *p = vg_buf_data(&c->in);
        return vg_buf_len(&c->in);
    }
    ssize_t n = vg_duct_peek(c->duct, p);
    if (n < 0)
        c->broken = true;
    return n < 0 ? 0 : (size_t)n;
}

static void chan_consume(struct run_chan *c, size_t n) {
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
        put_frame(c, VG_TIO_INPUT_END, p, sizeof(p));
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

/* Writes what can be written. Returns whether the socket is full. */
static bool chan_flush(struct run *r, struct run_chan *c) {
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

/* ---- output ---- */

/* Writes without waiting where the kernel can; a terminal or file is simply written. */
static ssize_t write_some(int fd, const struct iovec *v, int n) {
    /* Not every C library has pwritev2(). */
    ssize_t w = syscall(SYS_pwritev2, fd, v, n, -1L, -1L, RWF_NOWAIT);
    struct stat st;
    if (w < 0 && errno == EAGAIN) { /* a file that would wait for its disk is always "ready" */
        if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode))
            return writev(fd, v, n);
        errno = EAGAIN;
    }
    if (w < 0 && (errno == EOPNOTSUPP || errno == ESPIPE || errno == EINVAL || errno == ENOSYS)) {
        struct pollfd pf = {.fd = fd, .events = POLLOUT};
        if (poll(&pf, 1, 0) == 0) {
            errno = EAGAIN;
            return -1;
        }
        w = writev(fd, v, n);
    }
    return w;
}

/* n bytes at `at`, which wrap around at the end of a ring. */
static int pieces(const struct run_chan *c, const uint8_t *p, uint64_t at, size_t n,
                  struct iovec v[2]) {
    if (p) {
        v[0] = (struct iovec){(void *)p, n};
        return 1;
    }
    size_t from = (size_t)(at & (c->ring_size - 1)), first = VG_MIN(n, c->ring_size - from);
    v[0] = (struct iovec){(void *)(c->ring + from), first};
    v[1] = (struct iovec){(void *)c->ring, n - first};
    return first < n ? 2 : 1;
}

/* Writes a record's data, at p or (p NULL) in the ring. 1 written whole, 0 the reader is slow,
   progress is kept in rec_done. */
static int write_record(struct run *r, struct run_chan *c, unsigned stream, const uint8_t *p,
                        uint64_t at, size_t n) {
    int fd = stream == VG_REC_STDOUT ? STDOUT_FILENO : STDERR_FILENO;
    while (r->rec_done < n && !r->out_closed[fd]) {
        struct iovec v[2];
        int k = pieces(c, p ? p + r->rec_done : NULL, at + r->rec_done, n - r->rec_done, v);
        ssize_t w = write_some(fd, v, k);
        if (w < 0 && errno == EINTR)
            continue;
        if (w < 0 && errno == EAGAIN) {
            r->out_full[fd] = true;
            return 0;
        }
        if (w < 0) { /* nobody reads (or the disk is full): the task's pipe closes too */
            int no = errno;
            r->out_closed[fd] = true;
            put_close_output(c, fd);
            if (no != EPIPE && no != EBADF) {
                r->out_failed = true;
                run_say(r, "cannot write to standard %s: %s", fd == 1 ? "output" : "error",
                        strerror(no));
            }
            break;
        }
        r->rec_done += (size_t)w;
    }
    r->rec_done = 0;
    return 1;
}

static void put_ack(struct run *r, struct run_chan *c) {
    uint8_t p[8];
    vg_put64(p, r->out_offset);
    put_frame(c, VG_TIO_OUTPUT_ACK, p, sizeof(p));
}

/* Handles n bytes of whole records, the first at offset base; they lie at p, or (p NULL) in the
   ring. frame_pos keeps the progress. 1 done, 0 the reader is slow. */
static int on_records(struct run *r, struct run_chan *c, uint64_t base, const uint8_t *p,
                      size_t n) {
    while (c->frame_pos + VG_REC_HEADER <= n) {
        uint8_t copy[VG_REC_HEADER];
        const uint8_t *rec = p ? p + c->frame_pos : copy;
        uint64_t at = base + c->frame_pos;
        if (!p) {
            struct iovec v[2];
            int k = pieces(c, NULL, at, sizeof(copy), v);
            memcpy(copy, v[0].iov_base, v[0].iov_len);
            if (k == 2)
                memcpy(copy + v[0].iov_len, v[1].iov_base, v[1].iov_len);
        }
        size_t len = vg_get32(rec);
        unsigned stream = vg_get32(rec + 4);
        if (c->frame_pos + VG_REC_HEADER + len > n) {
            c->broken = true;
            return 1;
        }
        if (at >= r->out_offset) {
            if ((stream == VG_REC_STDOUT || stream == VG_REC_STDERR || stream == VG_REC_NOTE) &&
                write_record(r, c, stream, p ? rec + VG_REC_HEADER : NULL, at + VG_REC_HEADER,
                             len) == 0)
                return 0;
            r->out_offset = at + VG_REC_HEADER + len;
        }
        c->frame_pos += VG_REC_HEADER + len;
    }
    c->frame_pos = 0;
    put_ack(r, c);
    return 1;
}

/* The frame at the front of the buffer, when it is output. 1 done, 0 the reader is slow. */
static int on_output(struct run *r, struct run_chan *c, unsigned kind, const uint8_t *p, size_t n) {
    if (kind == VG_TIO_OUTPUT)
        return on_records(r, c, vg_get64(p), p + 8, n - 8);
    if (n != 12 || !c->ring || vg_get32(p + 8) > c->ring_size) {
        c->broken = true;
        return 1;
    }
    return on_records(r, c, vg_get64(p), NULL, vg_get32(p + 8));
}

/* Whether all `size` bytes are there and will stay. */
static bool is_whole(int fd, uint64_t size) {
    struct stat st;
    int seals = fcntl(fd, F_GET_SEALS);
    return seals >= 0 && seals & F_SEAL_SHRINK && fstat(fd, &st) == 0 &&
           (uint64_t)st.st_size >= size;
}

static void on_ring(struct run_chan *c, const uint8_t *p, size_t n) {
    uint64_t size = n == 8 ? vg_get64(p) : 0;
    void *map = MAP_FAILED;
    if (size && size <= RING_MAX && (size & (size - 1)) == 0 && c->ring_fd >= 0 && !c->ring &&
        is_whole(c->ring_fd, size))
        map = mmap(NULL, (size_t)size, PROT_READ, MAP_SHARED, c->ring_fd, 0);
    vg_close(&c->ring_fd);
    if (map == MAP_FAILED) {
        c->broken = true;
        return;
    }
    c->ring = map;
    c->ring_size = (size_t)size;
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
        put_winsize(c);
    for (int fd = 1; fd <= 2; fd++)
        if (r->out_closed[fd]) /* the word may have been lost with the old channel */
            put_close_output(c, fd);
    for (int i = 0; i < 64; i++)
        if (r->unsent_signals >> i & 1)
            put_signal(r, c, i % 32 + 1, i >= 32);
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

/* The task was stopped from its terminal: stop too, so that the shell gets its prompt. */
static void stop_here(struct run *r, bool raw_again) {
    sigset_t tstp;
    run_tty_restore(r);
    sigemptyset(&tstp);
    sigaddset(&tstp, SIGTSTP);
    kill(getpid(), SIGTSTP);
    sigprocmask(SIG_UNBLOCK, &tstp, NULL); /* here we stop, and here we go on */
    sigprocmask(SIG_BLOCK, &tstp, NULL);
    if (raw_again)
        run_tty_raw(r);
}

static void on_stopped(struct run *r) {
    stop_here(r, true);
    put_winsize(&r->chan[0]);
    put_frame(&r->chan[0], VG_TIO_CONTINUE, NULL, 0);
}

/* The next attempt is another run of the command: its output begins anew. Input that the last one
   has read is gone. */
static void begin_anew(struct run *r) {
    r->requeued = r->attempt_over = r->started = false;
    r->owed = true;
    r->out_offset = 0;
    r->rec_done = 0;
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
        chan_flush(r, c); /* the last acknowledgement */
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
        on_ring(c, p, n);
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
    while (!r->exited && !c->broken && (c->seen = have = chan_have(c, &p)) >= VG_TIO_HEADER) {
        size_t len = vg_get32(p);
        unsigned kind = vg_get32(p + 4);
        if (len > VG_TIO_MAX + 64) {
            c->broken = true;
            return;
        }
        if (have < VG_TIO_HEADER + len)
            return;
        if ((kind == VG_TIO_OUTPUT && len >= 8) || kind == VG_TIO_OUTPUT_AT) {
            if (on_output(r, c, kind, p + VG_TIO_HEADER, len) == 0)
                return;
        } else if (small_frame(r, c, kind, p + VG_TIO_HEADER, len)) {
            c = &r->chan[0];
        }
        chan_consume(c, VG_TIO_HEADER + len);
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

/* ---- input and signals ---- */

/* SIGINT, SIGTERM, SIGHUP and SIGQUIT as unsent_signals has them. */
static uint64_t deadly(void) {
    uint64_t one =
        1ull << (SIGINT - 1) | 1ull << (SIGTERM - 1) | 1ull << (SIGHUP - 1) | 1ull << (SIGQUIT - 1);
    return one | one << 32;
}

/* In an attached terminal, Enter ~ . leaves the task. Returns how many bytes to send of the n at p,
   which has room for one more: a tilde that was held back before. */
static size_t escape(struct run *r, uint8_t *p, size_t n) {
    static enum { LINE_START, TILDE, INSIDE } at = LINE_START;
    size_t out = 0, i = 0;
    if (at == TILDE && n > 0 && p[0] != '~' && p[0] != '.') {
        memmove(p + 1, p, n++);
        p[0] = '~';
        at = INSIDE;
    }
    for (; i < n; i++) {
        if (at == TILDE && p[i] == '.') {
            put_frame(&r->chan[0], VG_TIO_DETACH, NULL, 0);
            r->exited = true;
            return out;
        }
        if (at == LINE_START && p[i] == '~') {
            at = TILDE;
            continue;
        }
        if (at == TILDE && p[i] != '~')
            p[out++] = '~'; /* there is room: it was skipped above, in these bytes */
        at = p[i] == '\r' || p[i] == '\n' ? LINE_START : INSIDE;
        p[out++] = p[i];
    }
    return out;
}

static void stdin_ready(struct run *r) {
    size_t room = VG_TIO_WINDOW - VG_MIN(vg_buf_len(&r->in), (size_t)VG_TIO_WINDOW);
    uint8_t *p = vg_buf_reserve(&r->in, VG_MIN(room, (size_t)(256u << 10)) + 1);
    if (!p || room == 0)
        return;
    ssize_t n = read(STDIN_FILENO, p, VG_MIN(room, (size_t)(256u << 10)));
    if (n == 64 << 10 && !r->wide_stdin) { /* a whole pipe of it: larger pieces cost less */
        r->wide_stdin = true;
        (void)fcntl(STDIN_FILENO, F_SETPIPE_SZ, 1 << 20);
    }
    if (n > 0)
        vg_buf_commit(&r->in, r->attach && r->tty ? escape(r, p, (size_t)n) : (size_t)n);
    else if (n == 0 || (errno != EINTR && errno != EAGAIN))
        r->stdin_eof = true;
}

/* With no way to the task a first signal waits for one; whoever asks again wants to go. */
static bool leaves(struct run *r, int signo) {
    if (signo != r->got_signal || !(r->unsent_signals & deadly()))
        return false;
    char id[VG_ID_LEN + 1];
    vg_id_format(r->task_id, id);
    run_say(r, "left without an answer; task %s may still run, see 'virga task get %s' later", id,
            id);
    r->exited = true;
    r->status = 128 + signo;
    return true;
}

static void on_signal(struct run *r, const struct signalfd_siginfo *si) {
    int signo = (int)si->ssi_signo;
    struct run_chan *c = &r->chan[0];
    bool from_terminal = si->ssi_code == SI_KERNEL;
    if (signo == SIGWINCH && r->spec.tty) {
        put_winsize(c);
        return;
    }
    if (r->batch || r->attach) { /* only a looker-on: leaving does not touch the task */
        if (signo == SIGINT || signo == SIGTERM || signo == SIGHUP || signo == SIGQUIT) {
            put_frame(c, VG_TIO_DETACH, NULL, 0);
            r->exited = true;
            r->status = 128 + signo;
        }
        return;
    }
    if (signo == SIGINT || signo == SIGTERM || signo == SIGHUP || signo == SIGQUIT)
        r->got_signal = signo;
    if (!r->started && !c->welcomed && r->got_signal) { /* still waiting: leave the queue */
        r->exited = true;
        r->status = 128 + signo;
        return;
    }
    if (c->fd < 0 && leaves(r, signo))
        return;
    put_signal(r, c, signo, from_terminal);
    if (signo == SIGTSTP) {
        chan_flush(r, c);
        stop_here(r, false);
    } else if (signo == SIGCONT) {
        run_tty_raw(r);
    }
}

/* What we were told to ignore stays ignored here, as it does for the command. */
static int open_signals(const struct run *r) {
    sigset_t set;
    sigemptyset(&set);
    for (size_t i = 0; i < VG_COUNT(passed_on); i++)
        if (!(r->spec.sig_ignored >> (passed_on[i] - 1) & 1))
            sigaddset(&set, passed_on[i]);
    sigprocmask(SIG_BLOCK, &set, NULL);
    signal(SIGPIPE, SIG_IGN);
    return signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
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

/* A channel that has ended is over when all it brought was handled; a slow reader delays that. */
static void drop_broken(struct run *r) {
    bool blocked = r->out_full[1] || r->out_full[2];
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
    if (r->chan[0].fd < 0 && r->ended && !r->owed && !r->exited && (!r->detach || r->follow)) {
        r->exited =
            true; /* it ended without a keeper: cancelled in the queue, or its node was lost */
        r->end_refused |= !r->attempt_over;
        say_end(r);
    }
}

struct polls {
    struct pollfd p[8];
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
    bool full = chan_flush(r, c), blocked = r->out_full[1] || r->out_full[2];
    if (c->fd < 0 || c->broken || c->eof)
        return false;
    size_t have = chan_have(c, &rest);
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
    for (int fd = 1; fd <= 2; fd++)
        if (r->out_full[fd])
            i_out[fd] = add(&ps, fd, POLLOUT);
    if (poll(ps.p, ps.n, at_once[0] || at_once[1] ? 0 : wait_msec(r, linking)) < 0 &&
        errno != EINTR)
        return vg_err_sys(err, errno, "cannot wait for events");

    struct signalfd_siginfo si;
    while (ready(&ps, i_sig) && read(sigs, &si, sizeof(si)) == (ssize_t)sizeof(si))
        on_signal(r, &si);
    if (ready(&ps, i_ctl)) {
        int e = run_ctl_ready(r, err);
        if (e < 0)
            return e;
    }
    for (int fd = 1; fd <= 2; fd++)
        if (ready(&ps, i_out[fd]))
            r->out_full[fd] = false;
    for (int i = 0; i < 2; i++) {
        const uint8_t *rest;
        short came = i_chan[i] >= 0 ? ps.p[i_chan[i]].revents : 0;
        if (at_once[i] || came & (POLLIN | POLLHUP | POLLERR))
            chan_ready(r, &r->chan[i]);
        else if (r->chan[i].fd >= 0 && chan_have(&r->chan[i], &rest))
            chan_parse(r, &r->chan[i]);
    }
    if (ready(&ps, i_in))
        stdin_ready(r);
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
    for (int i = 0; i < 10 && chan_flush(r, c); i++) {
        struct pollfd pf = {.fd = c->fd, .events = c->duct ? POLLIN : POLLOUT};
        const uint8_t *rest;
        if (!c->duct || !vg_duct_arm(c->duct, chan_have(c, &rest), true))
            poll(&pf, 1, 100);
    }
    if (c->duct)
        wait_for_bridge(c->duct);
}

int run_session(struct run *r) {
    struct vg_err err = VG_ERR_INIT;
    vg_auto_fd int sigs = open_signals(r);
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
