/* Any bytes as a keeper that vrun listens to: parsed by its real loop, with a ring to share, input
   to send and no cloud to ask. The first byte chooses; the rest is what the keeper says. */
#include "base/cleanup.h"
#include "cli/run-int.h"
#include "net/tio.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#define RING (1u << 16)
#define TALK_MAX 4096 /* what is longer has nobody who hears the answers */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

void run_mirror_ready(struct run *r) {
    (void)r;
}
int run_connect(struct run *r, bool again, struct vg_err *err) {
    (void)again, (void)err;
    r->exited = true; /* the channel is over, and so is the run */
    return 0;
}

int run_ctl_ready(struct run *r, struct vg_err *err) {
    (void)r, (void)err;
    return 0;
}

/* A descriptor that rides along: a ring whose records are the input itself. */
static int make_ring(const uint8_t *data, size_t size) {
    int fd = memfd_create("ring", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0 || ftruncate(fd, RING) < 0 || write(fd, data, VG_MIN(size, (size_t)RING)) < 0 ||
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) < 0)
        abort();
    return fd;
}

static void say(int fd, const uint8_t *p, size_t n, bool with_ring) {
    int ring = with_ring ? make_ring(p, n) : -1;
    union {
        struct cmsghdr align;
        char buf[CMSG_SPACE(sizeof(int))];
    } u = {0};
    struct iovec v = {(void *)p, n};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1};
    if (ring >= 0) {
        m.msg_control = u.buf;
        m.msg_controllen = sizeof(u.buf);
        struct cmsghdr *c = CMSG_FIRSTHDR(&m);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(c), &ring, sizeof(int));
    }
    if (n && sendmsg(fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
        abort();
    vg_close(&ring);
}

static void be_quiet(int saved[2]) {
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    for (int i = 0; i < 2; i++) {
        saved[i] = fcntl(1 + i, F_DUPFD_CLOEXEC, 3);
        dup2(null, 1 + i);
    }
    close(null);
}

static void be_heard(int saved[2]) {
    for (int i = 0; i < 2; i++) {
        dup2(saved[i], 1 + i);
        close(saved[i]);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static struct run r;
    int pair[2], saved[2];
    if (size < 1 || size > 65536 || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
        return 0;
    signal(SIGTSTP, SIG_IGN); /* STOPPED stops vrun; here it must not */
    memset(&r, 0, sizeof(r));
    r.program = "vrun";
    r.ctl = r.cwd_fd = r.stdin_fd = r.chan[1].fd = r.chan[1].ring_fd = -1;
    r.attach = data[0] & 1;
    r.stdin_eof = data[0] & 2;
    if (data[0] & 4 && vg_buf_append(&r.in, "input that waits for its turn", 29) < 0)
        abort();
    run_chan_open(&r, &r.chan[0], pair[0], NULL);
    say(pair[1], data + 1, size - 1, data[0] & 8);
    if (size > TALK_MAX)
        vg_close(&pair[1]);
    else
        shutdown(pair[1], SHUT_WR);
    be_quiet(saved);
    run_session(&r);
    be_heard(saved);
    for (int i = 0; i < 2; i++)
        run_chan_close(&r.chan[i]);
    vg_buf_done(&r.in);
    vg_close(&pair[1]);
    return 0;
}
