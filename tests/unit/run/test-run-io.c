/* vrun's half of task I/O against a keeper played here: what a change of channels must not lose or
   repeat. vrun's loop runs in a child whose standard output is a pipe of ours; its control
   connection is a socket by which we hand it new channels. */
#include "base/cleanup.h"
#include "base/util.h"
#include "cli/run-int.h"
#include "net/tio.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define REQUEUED 'r' /* any other byte without a descriptor is the task's exit status */

static bool patient; /* what the next stage plays */

/* vrun may ask before our first channel is there: it is put off, and ctl stays for the answer. */
void run_mirror_ready(struct run *r) {
    (void)r;
}
int run_connect(struct run *r, bool again, struct vg_err *err) {
    (void)r, (void)again, (void)err;
    return -ECONNREFUSED;
}

int run_ctl_ready(struct run *r, struct vg_err *err) {
    int fd = -1;
    size_t n = 1;
    char c;
    (void)err;
    if (vg_recv_fds(r->ctl, &c, 1, &fd, &n, 0) <= 0)
        vg_close(&r->ctl);
    else if (n == 1)
        run_chan_open(r, &r->chan[r->chan[0].fd < 0 ? 0 : 1], fd, NULL);
    else if (c == REQUEUED)
        run_requeued(r);
    else { /* ENDED with this status */
        r->ended = true;
        r->status = c;
    }
    return 0;
}

struct stage {
    int ctl, out; /* ours; out: what vrun writes */
    pid_t pid;
};

static void play(int ctl, int out, int in) {
    static struct run r;
    dup2(in, 0);
    dup2(out, 1);
    r.program = "vrun";
    r.ctl = ctl;
    r.cwd_fd = r.stdin_fd = -1;
    r.chan[0].fd = r.chan[1].fd = r.chan[0].ring_fd = r.chan[1].ring_fd = -1;
    r.read_stdin = true;
    r.patient = patient;
    _exit(run_session(&r));
}

static void open_stage(struct stage *s, const char *input) {
    int ctl[2], out[2], in[2];
    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ctl), 0);
    cr_assert_eq(pipe2(out, O_CLOEXEC), 0);
    cr_assert_eq(pipe2(in, O_CLOEXEC), 0);
    cr_assert_eq(write(in[1], input, strlen(input)), (ssize_t)strlen(input));
    close(in[1]);
    signal(SIGPIPE, SIG_IGN);
    s->pid = fork();
    if (s->pid == 0) {
        close(out[0]);
        play(ctl[1], out[1], in[0]);
    }
    close(ctl[1]);
    close(out[1]);
    close(in[0]);
    s->ctl = ctl[0];
    s->out = out[0];
}

static int close_stage(struct stage *s) {
    int status = 0;
    cr_assert_eq(waitpid(s->pid, &status, 0), s->pid);
    vg_close(&s->ctl);
    vg_close(&s->out);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void put(int fd, unsigned kind, const void *a, size_t an, const void *b, size_t bn) {
    uint8_t h[VG_TIO_HEADER];
    vg_tio_header(h, (enum vg_tio_kind)kind, (uint32_t)(an + bn));
    cr_assert_eq(vg_write_full(fd, h, sizeof(h)), 0);
    cr_assert_eq(vg_write_full(fd, a, an), 0);
    cr_assert_eq(vg_write_full(fd, b, bn), 0);
}

/* The next frame of this kind, whatever comes before it. Returns its length. */
static size_t expect(int fd, unsigned kind, uint8_t *ret, size_t max) {
    static uint8_t skip[VG_TIO_MAX];
    for (;;) {
        uint8_t h[VG_TIO_HEADER];
        cr_assert_eq(recv(fd, h, sizeof(h), MSG_WAITALL), (ssize_t)sizeof(h), "no frame of kind %u",
                     kind);
        size_t n = vg_get32(h);
        bool it = vg_get32(h + 4) == kind;
        cr_assert_leq(n, it ? max : sizeof(skip));
        cr_assert_eq(n ? recv(fd, it ? ret : skip, n, MSG_WAITALL) : 0, (ssize_t)n);
        if (it)
            return n;
    }
}

/* Hands vrun a channel and reads its HELLO. Returns our end; *ret_from is what it asked for. */
static int give_channel(struct stage *s, uint64_t *ret_from) {
    int pair[2];
    uint8_t hello[12];
    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    cr_assert_eq(vg_send_fds(s->ctl, "c", 1, &pair[1], 1, 0), 1);
    close(pair[1]);
    cr_assert_eq(expect(pair[0], VG_TIO_HELLO, hello, sizeof(hello)), sizeof(hello));
    *ret_from = vg_get64(hello);
    return pair[0];
}

static void welcome(int fd, uint64_t in_taken, uint64_t out_from) {
    uint8_t w[20];
    vg_put64(w, in_taken);
    vg_put64(w + 8, out_from);
    vg_put32(w + 16, 2 | 8);
    put(fd, VG_TIO_WELCOME, w, sizeof(w), NULL, 0);
}

static void put_exit(int fd, int status, uint64_t end) {
    uint8_t p[16] = {0};
    vg_put32(p, (uint32_t)status);
    vg_put64(p + 4, end);
    put(fd, VG_TIO_EXIT, p, sizeof(p), NULL, 0);
}

/* Three records of the largest size, more than a pipe holds, as one OUTPUT frame. */
#define REC (VG_REC_HEADER + VG_REC_MAX)
static void put_records(int fd) {
    static uint8_t frame[8 + 3 * REC];
    for (size_t i = 0; i < 3; i++) {
        uint8_t *rec = frame + 8 + i * REC;
        vg_rec_header(rec, VG_REC_STDOUT, VG_REC_MAX, 0);
        for (size_t j = 0; j < VG_REC_MAX; j++)
            rec[VG_REC_HEADER + j] = (uint8_t)((i * VG_REC_MAX + j) % 251);
    }
    put(fd, VG_TIO_OUTPUT, frame, 8, frame + 8, 3 * REC);
}

/* Waits until the pipe holds all it can: vrun is in the middle of a record. */
static void wait_full(int fd) {
    int n = 0, size = fcntl(fd, F_GETPIPE_SZ);
    while (n < size - 4096) {
        struct pollfd pf = {.fd = fd, .events = POLLIN};
        cr_assert_eq(poll(&pf, 1, 60000), 1);
        cr_assert_eq(ioctl(fd, FIONREAD, &n), 0);
    }
}

Test(run_io, a_record_half_written_is_finished_on_another_channel, .timeout = 60) {
    struct stage s;
    uint64_t from;
    open_stage(&s, "");
    int old = give_channel(&s, &from);
    cr_assert_eq(fcntl(s.out, F_SETPIPE_SZ, 16384), 16384);
    welcome(old, 0, 0);
    put_records(old);
    wait_full(s.out);
    int new = give_channel(&s, &from);
    cr_assert_eq(from, 0u, "the first record is not written whole: it must come again");
    welcome(new, 0, 0);
    put_records(new);
    put_exit(new, 5, 3 * REC);
    size_t sum = 0;
    uint8_t buf[65536];
    for (ssize_t n; (n = read(s.out, buf, sizeof(buf))) > 0; sum += (size_t)n)
        for (ssize_t i = 0; i < n; i++)
            if (buf[i] != (sum + (size_t)i) % 251)
                cr_assert_fail("byte %zu is not the one that was written", sum + (size_t)i);
    cr_assert_eq(sum, 3u * VG_REC_MAX);
    cr_assert_eq(close_stage(&s), 5);
    close(old);
    close(new);
}

Test(run_io, input_goes_on_where_the_keeper_says, .timeout = 60) {
    struct stage s;
    uint64_t from;
    uint8_t p[64];
    open_stage(&s, "0123456789");
    int old = give_channel(&s, &from);
    welcome(old, 0, 0);
    cr_assert_eq(expect(old, VG_TIO_INPUT, p, sizeof(p)), 18u);
    cr_assert_eq(memcmp(p + 8, "0123456789", 10), 0);
    expect(old, VG_TIO_INPUT_END, p, sizeof(p));
    int new = give_channel(&s, &from);
    welcome(new, 4, 0);
    cr_assert_eq(expect(new, VG_TIO_INPUT, p, sizeof(p)), 14u);
    cr_assert_eq(vg_get64(p), 4u);
    cr_assert_eq(memcmp(p + 8, "456789", 6), 0);
    expect(new, VG_TIO_INPUT_END, p, sizeof(p));
    cr_assert_eq(vg_get64(p), 10u);
    put_exit(new, 0, 0);
    cr_assert_eq(close_stage(&s), 0);
    close(old);
    close(new);
}

Test(run_io, a_keeper_is_told_again_that_nobody_reads, .timeout = 60) {
    struct stage s;
    uint64_t from;
    uint8_t p[8];
    open_stage(&s, "");
    vg_close(&s.out);
    int old = give_channel(&s, &from);
    welcome(old, 0, 0);
    put_records(old);
    cr_assert_eq(expect(old, VG_TIO_CLOSE_OUTPUT, p, sizeof(p)), 4u);
    int new = give_channel(&s, &from);
    welcome(new, 0, from);
    cr_assert_eq(expect(new, VG_TIO_CLOSE_OUTPUT, p, sizeof(p)), 4u);
    cr_assert_eq(vg_get32(p), (uint32_t)VG_REC_STDOUT);
    put_exit(new, 141, from);
    cr_assert_eq(close_stage(&s), 141);
    close(old);
    close(new);
}

static void put_line(int fd, const char *text) {
    uint8_t head[8 + VG_REC_HEADER] = {0};
    vg_rec_header(head + 8, VG_REC_STDOUT, (uint32_t)strlen(text), 0);
    put(fd, VG_TIO_OUTPUT, head, sizeof(head), text, strlen(text));
}

static void expect_line(struct stage *s, const char *text) {
    char got[64] = "";
    cr_assert_eq(vg_read_full(s->out, got, strlen(text)), (ssize_t)strlen(text));
    cr_assert_str_eq(got, text);
}

/* vrun has handled everything on this channel and closed it. */
static void expect_end(int fd) {
    uint8_t skip[256];
    while (recv(fd, skip, sizeof(skip), 0) > 0)
        ;
}

static void say(struct stage *s, char what) {
    cr_assert_eq(write(s->ctl, &what, 1), 1);
}

Test(run_io, an_attempt_that_is_tried_again_is_not_the_end, .timeout = 60) {
    struct stage s;
    uint64_t from;
    patient = true;
    open_stage(&s, "");
    int first = give_channel(&s, &from);
    welcome(first, 0, 0);
    put_line(first, "first\n");
    put_exit(first, 3, 0);
    expect_line(&s, "first\n");
    say(&s, REQUEUED);
    int second = give_channel(&s, &from);
    cr_assert_eq(from, 0u, "another attempt's output begins anew");
    welcome(second, 0, 0);
    put_line(second, "second\n");
    put_exit(second, 143, 0);
    expect_line(&s, "second\n");
    say(&s, 7); /* not 143: the control plane knows how the task ended */
    cr_assert_eq(close_stage(&s), 7);
    close(first);
    close(second);
}

Test(run_io, what_the_old_attempt_wrote_comes_before_the_next_one, .timeout = 60) {
    struct stage s;
    uint64_t from;
    patient = true;
    open_stage(&s, "");
    int first = give_channel(&s, &from);
    welcome(first, 0, 0);
    put_line(first, "one\n");
    expect_line(&s, "one\n");
    say(&s, REQUEUED); /* faster than the rest of the output */
    put(first, VG_TIO_OUTPUT, (uint8_t[8]){0}, 8, NULL, 0);
    uint8_t rest[8 + VG_REC_HEADER] = {0};
    vg_put64(rest, VG_REC_HEADER + 4);
    vg_rec_header(rest + 8, VG_REC_STDOUT, 4, 0);
    put(first, VG_TIO_OUTPUT, rest, sizeof(rest), "two\n", 4);
    put_exit(first, 1, 0);
    expect_line(&s, "two\n");
    expect_end(first);
    int second = give_channel(&s, &from);
    cr_assert_eq(from, 0u);
    welcome(second, 0, 0);
    put_exit(second, 0, 0);
    say(&s, 0);
    cr_assert_eq(close_stage(&s), 0);
    close(first);
    close(second);
}
