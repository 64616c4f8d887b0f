/* Talking to a node's file daemon, and starting it. Used by agents and keepers, and the packets by
   the daemon itself. Any thread; no state. */
#include "fs/fsd.h"

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#define PACKET_MAX (64u << 10)

/* ------------------------------------------------------------------ packets */

int vg_fsd_send(int fd, enum vg_fsd_kind kind, const void *payload, size_t n, const int *fds,
                size_t n_fds) {
    union {
        char buf[CMSG_SPACE(sizeof(int) * VG_FSD_FDS)];
        struct cmsghdr align;
    } ctl = {0};
    struct vg_fsd_head head = {.kind = kind, .len = (uint32_t)n};
    struct iovec v[2] = {{&head, sizeof head}, {(void *)payload, n}};
    struct msghdr h = {.msg_iov = v, .msg_iovlen = n ? 2 : 1};
    if (n > PACKET_MAX - sizeof head || n_fds > VG_FSD_FDS)
        return -EMSGSIZE;
    if (n_fds) {
        h.msg_control = ctl.buf;
        h.msg_controllen = CMSG_SPACE(sizeof(int) * n_fds);
        struct cmsghdr *c = CMSG_FIRSTHDR(&h);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int) * n_fds);
        memcpy(CMSG_DATA(c), fds, sizeof(int) * n_fds);
    }
    ssize_t r;
    do
        r = sendmsg(fd, &h, MSG_NOSIGNAL);
    while (r < 0 && errno == EINTR);
    return r < 0 ? -errno : 0;
}

/* Takes what came along; what does not fit is closed. */
static size_t take_fds(struct msghdr *h, int *fds, size_t max) {
    size_t n = 0;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(h); c; c = CMSG_NXTHDR(h, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        size_t got = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < got; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof fd);
            if (n < max)
                fds[n++] = fd;
            else
                close(fd);
        }
    }
    return n;
}

int vg_fsd_recv(int fd, struct vg_fsd_head *head, void *payload, size_t max, int *fds,
                size_t *n_fds) {
    union {
        char buf[CMSG_SPACE(sizeof(int) * VG_FSD_FDS)];
        struct cmsghdr align;
    } ctl;
    struct iovec v[2] = {{head, sizeof *head}, {payload, max}};
    struct msghdr h = {
        .msg_iov = v, .msg_iovlen = 2, .msg_control = ctl.buf, .msg_controllen = sizeof ctl.buf};
    ssize_t r;
    do
        r = recvmsg(fd, &h, MSG_CMSG_CLOEXEC);
    while (r < 0 && errno == EINTR);
    size_t room = n_fds ? *n_fds : 0, n = r < 0 ? 0 : take_fds(&h, fds, room);
    if (n_fds)
        *n_fds = n;
    if (r == 0 || (r < 0 && errno == ECONNRESET))
        return 0;
    if (r < 0)
        return -errno;
    if ((size_t)r >= sizeof *head && head->len == (size_t)r - sizeof *head &&
        !(h.msg_flags & (MSG_TRUNC | MSG_CTRUNC)))
        return 1;
    for (size_t i = 0; i < n; i++)
        close(fds[i]);
    if (n_fds)
        *n_fds = 0;
    return -EBADMSG;
}

/* ------------------------------------------------------------------ finding the daemon */

static char *path_of(const char *dir, uint32_t slot, const char *name) {
    return vg_fmt("%s/%u/%s", dir, slot, name);
}

int vg_fsd_connect_running(const char *dir, uint32_t slot, int *ret_fd) {
    vg_auto_free char *path = path_of(dir, slot, "sock");
    if (!path)
        return -ENOMEM;
    int fd = vg_unix_connect(path, SOCK_SEQPACKET);
    if (fd < 0)
        return fd;
    *ret_fd = fd;
    return 0;
}

/* ------------------------------------------------------------------ starting it */

struct start {
    char *argv[16];
    char slot[16], cache[24];
    int listen;
};

static void fill_argv(struct start *s, const struct vg_fsd_conf *c) {
    size_t n = 0;
    snprintf(s->slot, sizeof s->slot, "%u", c->slot);
    snprintf(s->cache, sizeof s->cache, "%llu", (unsigned long long)c->cache_bytes);
    s->argv[n++] = (char *)"virga";
    s->argv[n++] = (char *)"fsd";
    s->argv[n++] = (char *)"--dir";
    s->argv[n++] = (char *)c->dir;
    s->argv[n++] = (char *)"--slot";
    s->argv[n++] = s->slot;
    s->argv[n++] = (char *)"--node";
    s->argv[n++] = (char *)(c->node ? c->node : "");
    s->argv[n++] = (char *)"--cache";
    s->argv[n++] = s->cache;
    if (c->no_passthrough)
        s->argv[n++] = (char *)"--no-passthrough";
    if (c->no_erofs)
        s->argv[n++] = (char *)"--no-erofs";
}

/* In the grandchild: nothing but system calls, the parent may have threads. */
_Noreturn static void become(const struct start *s, const char *program) {
    sigset_t none;
    sigemptyset(&none);
    for (int i = 1; i < 32; i++)
        if (i != SIGKILL && i != SIGSTOP)
            signal(i, SIG_DFL);
    sigprocmask(SIG_SETMASK, &none, NULL);
    int null = open("/dev/null", O_RDWR);
    if (null >= 0)
        dup2(null, 0);
    int at = s->listen == VG_FSD_LISTEN_FD ? fcntl(s->listen, F_SETFD, 0)
                                           : dup2(s->listen, VG_FSD_LISTEN_FD);
    if (at < 0 || close_range(VG_FSD_LISTEN_FD + 1, ~0u, 0) < 0)
        _exit(126);
    execv(program, s->argv);
    _exit(127);
}

/* Nobody's child: whoever starts it does not wait for it, nor does it end with him. */
static int spawn(const struct start *s, const char *program) {
    pid_t pid = _Fork();
    if (pid < 0)
        return -errno;
    if (pid == 0) {
        setsid();
        pid = _Fork();
        if (pid == 0)
            become(s, program);
        _exit(pid < 0);
    }
    int status = 0;
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR)
            return 0; /* the caller's own reaper was quicker */
    return status ? -EAGAIN : 0;
}

static int start_daemon(const struct vg_fsd_conf *c, const char *path) {
    struct start s = {.listen = -1};
    unlink(path);
    vg_auto_fd int fd = vg_unix_listen(path, SOCK_SEQPACKET, 0600);
    if (fd < 0)
        return fd;
    s.listen = fd;
    fill_argv(&s, c);
    int r = spawn(&s, c->program);
    if (r < 0)
        unlink(path);
    return r;
}

/* Under the lock: another may have started it while we waited. */
static int connect_locked(const struct vg_fsd_conf *c, const char *path, int *ret_fd) {
    int r = vg_fsd_connect_running(c->dir, c->slot, ret_fd);
    if (r != -ECONNREFUSED && r != -ENOENT)
        return r;
    r = start_daemon(c, path);
    return r < 0 ? r : vg_fsd_connect_running(c->dir, c->slot, ret_fd);
}

int vg_fsd_connect(const struct vg_fsd_conf *c, int *ret_fd, struct vg_err *err) {
    int r = vg_fsd_connect_running(c->dir, c->slot, ret_fd);
    if (r == 0)
        return 0;
    vg_auto_free char *folder = path_of(c->dir, c->slot, "");
    vg_auto_free char *path = path_of(c->dir, c->slot, "sock");
    vg_auto_free char *lock_path = path_of(c->dir, c->slot, "start.lock");
    if (!folder || !path || !lock_path)
        return vg_err_sys(err, -ENOMEM, "cannot reach the node's file daemon");
    r = vg_mkdir_p(folder, 0700);
    vg_auto_fd int lock = r < 0 ? -1 : open(lock_path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (r >= 0 && (lock < 0 || flock(lock, LOCK_EX) < 0))
        r = -errno;
    if (r >= 0)
        r = connect_locked(c, path, ret_fd);
    return r < 0 ? vg_err_sys(err, r, "cannot start the node's file daemon in %s", folder) : 0;
}
