/* The keeper's side of a sandbox: messages, events, death. See sandbox.h.

   Invariants: `running` holds every command between its exec request and its EXITED or EXEC_FAILED;
   an event whose tag is not there is dropped; after DEAD nothing is sent. One thread. */
#include "base/cleanup.h"
#include "base/fault.h"
#include "base/mem.h"
#include "sandbox/sandbox-priv.h"
#include "sandbox/sys.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>

#ifndef P_PIDFD
#define P_PIDFD 3
#endif

ssize_t vg_sb_send(int sock, const void *data, size_t n, const void *more, size_t more_n,
                   const int *fds, size_t n_fds) {
    union {
        char buf[CMSG_SPACE(sizeof(int) * VG_SB_FDS_MAX)];
        struct cmsghdr align;
    } ctl;
    struct iovec v[2] = {{(void *)data, n}, {(void *)more, more_n}};
    struct msghdr h = {.msg_iov = v, .msg_iovlen = more_n ? 2 : 1};
    if (n_fds) {
        h.msg_control = ctl.buf;
        h.msg_controllen = CMSG_SPACE(sizeof(int) * n_fds);
        struct cmsghdr *m = CMSG_FIRSTHDR(&h);
        m->cmsg_level = SOL_SOCKET;
        m->cmsg_type = SCM_RIGHTS;
        m->cmsg_len = CMSG_LEN(sizeof(int) * n_fds);
        memcpy(CMSG_DATA(m), fds, sizeof(int) * n_fds);
    }
    ssize_t r = sendmsg(sock, &h, MSG_NOSIGNAL);
    return r < 0 ? -errno : r;
}

ssize_t vg_sb_receive(int sock, struct vg_sb_msg *m, int fds[VG_SB_READY_FDS], int flags) {
    union {
        char buf[CMSG_SPACE(sizeof(int) * VG_SB_READY_FDS)];
        struct cmsghdr align;
    } ctl;
    struct iovec v = {m, sizeof(*m) - 1};
    struct msghdr h = {
        .msg_iov = &v, .msg_iovlen = 1, .msg_control = ctl.buf, .msg_controllen = sizeof(ctl.buf)};
    for (int i = 0; i < VG_SB_READY_FDS; i++)
        fds[i] = -1;
    memset(m, 0, sizeof(*m));
    ssize_t n;
    do
        n = recvmsg(sock, &h, flags | MSG_CMSG_CLOEXEC);
    while (n < 0 && errno == EINTR);
    if (n < 0)
        return -errno;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(&h); c; c = CMSG_NXTHDR(&h, c))
        if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS)
            memcpy(fds, CMSG_DATA(c),
                   VG_MIN(c->cmsg_len - CMSG_LEN(0), sizeof(int) * VG_SB_READY_FDS));
    return n;
}

struct vg_sb_running *vg_sb_find_running(struct vg_sandbox *sb, uint64_t tag) {
    for (size_t i = 0; i < sb->n_running; i++)
        if (sb->running[i].tag == tag)
            return &sb->running[i];
    return NULL;
}

static void forget_running(struct vg_sandbox *sb, struct vg_sb_running *r) {
    vg_close(&r->pidfd);
    *r = sb->running[--sb->n_running];
}

/* ---- events
 * ------------------------------------------------------------------------------------------ */

int vg_sandbox_fd(const struct vg_sandbox *sb) {
    return sb->sock;
}

struct pidfd_info_v0 { /* Linux 6.13 */
    uint64_t mask, cgroupid;
    uint32_t pid, tgid, ppid, ids[8], unused;
};

/* The pid here of a process that another namespace knows by another. 0: it has ended. */
static pid_t outside_pid(int pidfd) {
    struct pidfd_info_v0 info = {.mask = 1};
    if (ioctl(pidfd, _IOWR(0xFF, 11, struct pidfd_info_v0), &info) == 0)
        return (pid_t)info.pid;
    char path[48], text[512];
    snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", pidfd);
    vg_auto_fd int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);
    if (n <= 0)
        return 0;
    text[n] = 0;
    const char *p = strstr(text, "\nPid:");
    long pid = p ? strtol(p + 5, NULL, 10) : 0;
    return pid > 0 ? (pid_t)pid : 0;
}

static int send_signal(const struct vg_sb_running *r, int signo, bool group) {
    if (!group)
        return vg_sys_pidfd_send_signal(r->pidfd, signo, 0) < 0 ? -errno : 0;
    if (vg_sys_pidfd_send_signal(r->pidfd, signo, VG_PIDFD_SIGNAL_GROUP) == 0)
        return 0;
    if (errno != EINVAL)
        return -errno;
    /* Before Linux 6.9: it has not been reaped (we would know), so its number is still its own. */
    return r->pid > 1 ? (kill(-r->pid, signo) < 0 ? -errno : 0) : -ESRCH;
}

static void send_early(struct vg_sb_running *r) {
    for (int group = 0; group < 2; group++)
        for (int signo = 1; r->early[group] && signo < _NSIG; signo++)
            if (r->early[group] >> (signo - 1) & 1)
                (void)send_signal(r, signo, group);
}

/* True when the message is a proper event of a command that we asked for. */
static bool take_event(struct vg_sandbox *sb, const struct vg_sb_msg *m, int *fd,
                       struct vg_sandbox_event *ret) {
    struct vg_sb_running *r = vg_sb_find_running(sb, m->tag);
    if (!r || m->kind > VG_SB_WATCHED || (m->kind == VG_SB_WATCHED && (r->pidfd >= 0 || *fd < 0)))
        return false;
    *ret = (struct vg_sandbox_event){
        .kind = (enum vg_sandbox_event_kind)m->kind, .tag = m->tag, .code = m->code, .fd = -1};
    memcpy(ret->text, m->text, sizeof(ret->text));
    ret->text[sizeof(ret->text) - 1] = 0;
    if (m->kind == VG_SB_STARTED) {
        if (r->pidfd >= 0 || *fd < 0)
            return false;
        r->pidfd = vg_take_fd(*fd);
        r->pid = outside_pid(r->pidfd);
        send_early(r);
    }
    if (m->kind == VG_SB_WATCHED)
        ret->fd = vg_take_fd(*fd);
    ret->pid = r->pid;
    if (m->kind == VG_SB_EXITED || m->kind == VG_SB_EXEC_FAILED)
        forget_running(sb, r);
    return true;
}

int vg_sandbox_next_event(struct vg_sandbox *sb, struct vg_sandbox_event *ret) {
    while (!sb->dead) {
        struct vg_sb_msg m;
        int fds[VG_SB_READY_FDS];
        ssize_t n = vg_sb_receive(sb->sock, &m, fds, MSG_DONTWAIT);
        if (n == -EAGAIN)
            return 0;
        bool good = n >= (ssize_t)VG_SB_MSG_MIN && take_event(sb, &m, &fds[0], ret);
        for (size_t i = 0; i < VG_COUNT(fds); i++)
            vg_close(&fds[i]);
        if (good)
            return 1;
        if (n <= 0) {
            sb->dead = true;
            *ret = (struct vg_sandbox_event){.kind = VG_SB_DEAD, .fd = -1};
            return 1;
        }
    }
    return 0;
}

int vg_sandbox_signal(struct vg_sandbox *sb, uint64_t tag, int signo, bool group) {
    struct vg_sb_running *r = vg_sb_find_running(sb, tag);
    if (!r)
        return -ESRCH;
    if (signo < 0 || signo >= _NSIG)
        return -EINVAL;
    if (r->pidfd >= 0)
        return send_signal(r, signo, group);
    if (signo)
        r->early[group] |= 1ull << (signo - 1);
    return 0;
}

/* The end of pid 1 is the end of its pid namespace: the kernel kills all of it, and nobody inside
   can have left it. */
int vg_sandbox_kill_all(struct vg_sandbox *sb) {
    if (sb->pidfd < 0)
        return -ESRCH;
    return vg_sys_pidfd_send_signal(sb->pidfd, SIGKILL, 0) < 0 ? -errno : 0;
}

/* Objects of the sandbox's System V interfaces: /proc shows those of whoever reads. */
static uint32_t count_sysv(const struct vg_sandbox *sb) {
    static const char *const files[] = {"/proc/sysvipc/shm", "/proc/sysvipc/sem",
                                        "/proc/sysvipc/msg"};
    vg_auto_fd int own = open("/proc/self/ns/ipc", O_RDONLY | O_CLOEXEC);
    uint32_t n = 0;
    if (own < 0 || setns(sb->pidfd, CLONE_NEWIPC) < 0)
        return UINT32_MAX;
    for (size_t i = 0; i < VG_COUNT(files); i++) {
        FILE *f = fopen(files[i], "re");
        char line[512];
        uint32_t lines = 0;
        while (f && fgets(line, sizeof(line), f))
            lines++;
        n += lines ? lines - 1 : 0; /* the heading */
        if (f)
            fclose(f);
    }
    if (setns(own, CLONE_NEWIPC) < 0)
        abort(); /* a keeper must never stay in a sandbox's namespaces */
    return n;
}

static uint32_t count_queues(const struct vg_sandbox *sb) {
    char path[64];
    uint32_t n = 0;
    snprintf(path, sizeof(path), "/proc/%d/root/dev/mqueue", (int)sb->pid);
    DIR *d = opendir(path);
    if (!d)
        return UINT32_MAX;
    for (struct dirent *e; (e = readdir(d));)
        n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

void vg_sandbox_left(struct vg_sandbox *sb, struct vg_left *ret) {
    struct statvfs v;
    int n = vg_cg_count(&sb->node->cg, sb->name);
    *ret = (struct vg_left){.processes = n < 0 ? UINT32_MAX
                                         : n   ? (uint32_t)n - 1
                                               : 0,
                            .sysv = count_sysv(sb),
                            .queues = count_queues(sb)};
    if (sb->scratch_fd >= 0 && fstatvfs(sb->scratch_fd, &v) == 0)
        ret->scratch_bytes = (uint64_t)(v.f_blocks - v.f_bfree) * v.f_frsize;
}

int vg_sandbox_end(struct vg_sandbox *sb, int timeout_ms) {
    struct pollfd p = {.fd = sb->pidfd, .events = POLLIN};
    if (sb->pidfd < 0)
        return 0;
    (void)vg_sandbox_kill_all(sb);
    int n;
    do /* init is dead when the last of its namespace is */
        n = poll(&p, 1, timeout_ms);
    while (n < 0 && errno == EINTR);
    return n == 1 ? 0 : n < 0 ? -errno : -ETIMEDOUT;
}

void vg_sandbox_let_go(struct vg_sandbox *sb) {
    vg_close(&sb->given_fd);
    vg_close(&sb->pts_fd);
    vg_close(&sb->scratch_fd);
    vg_close(&sb->root_fd);
    vg_close(&sb->merged_fd);
}

/* ---- terminals, ports, usage
 * ------------------------------------------------------------------------- */

int vg_sandbox_open_pty(struct vg_sandbox *sb, uid_t uid, gid_t gid, int *ret_master,
                        int *ret_slave) {
    (void)gid; /* terminals belong to group tty */
    vg_auto_fd int master = openat(sb->pts_fd, "ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (master < 0)
        return -errno;
    int unlock = 0;
    if (ioctl(master, TIOCSPTLCK, &unlock) < 0)
        return -errno;
    vg_auto_fd int slave = ioctl(master, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (slave < 0 || fchown(slave, vg_sandbox_map_uid(sb, uid), vg_sandbox_map_gid(sb, 5)) < 0)
        return -errno;
    *ret_master = vg_take_fd(master);
    *ret_slave = vg_take_fd(slave);
    return 0;
}

#define DIAL_MS 1000

static int dial(int family, uint16_t port) {
    vg_auto_fd int fd = socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    struct sockaddr_in v4 = {.sin_family = AF_INET,
                             .sin_port = htons(port),
                             .sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)}};
    struct sockaddr_in6 v6 = {
        .sin6_family = AF_INET6, .sin6_port = htons(port), .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    const void *a = family == AF_INET ? (const void *)&v4 : &v6;
    int e = 0;
    socklen_t len = sizeof(e);
    if (fd < 0 ||
        (connect(fd, a, family == AF_INET ? sizeof(v4) : sizeof(v6)) < 0 && errno != EINPROGRESS))
        return -errno;
    /* Loopback answers at once, or (on a busy machine) as soon as the kernel finds the time. */
    struct pollfd answered = {.fd = fd, .events = POLLOUT};
    if (poll(&answered, 1, DIAL_MS) <= 0)
        return -ETIMEDOUT;
    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &e, &len) < 0 || e)
        return e ? -e : -errno;
    return vg_take_fd(fd);
}

/* Whether somebody listens is known when this returns. */
int vg_sandbox_connect(struct vg_sandbox *sb, uint16_t port) {
    if (sb->own_net_fd < 0)
        sb->own_net_fd = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
    if (sb->own_net_fd < 0 || setns(sb->pidfd, CLONE_NEWNET) < 0)
        return -errno;
    int fd = dial(AF_INET, port);
    if (fd < 0)
        fd = dial(AF_INET6, port);
    if (setns(sb->own_net_fd, CLONE_NEWNET) < 0)
        abort(); /* a keeper must never stay in a sandbox's network */
    return fd;
}

int vg_sandbox_usage(struct vg_sandbox *sb, struct vg_usage *ret) {
    struct statvfs v;
    *ret = (struct vg_usage){0};
    if (sb->scratch_fd >= 0 && fstatvfs(sb->scratch_fd, &v) == 0)
        ret->disk_bytes = (uint64_t)(v.f_blocks - v.f_bfree) * v.f_frsize;
    int r = vg_cg_usage(&sb->node->cg, sb->name, ret);
    ret->cpu_usec -= VG_MIN(ret->cpu_usec, sb->base.cpu_usec);
    if (sb->peak_fd >= 0)
        ret->mem_peak_bytes = vg_cg_peak(sb->peak_fd);
    return r;
}

uid_t vg_sandbox_map_uid(const struct vg_sandbox *sb, uid_t inside) {
    return vg_sb_map_id(sb->slot, sb->uid, inside);
}

gid_t vg_sandbox_map_gid(const struct vg_sandbox *sb, gid_t inside) {
    return vg_sb_map_id(sb->slot, sb->gid, inside);
}

int vg_sandbox_changes(const struct vg_sandbox *sb) {
    if (!sb->mirrored)
        return -ENOTSUP;
    int fd = openat(sb->root_fd, "u0", O_PATH | O_DIRECTORY | O_CLOEXEC);
    return fd < 0 ? -errno : fd;
}

int vg_sandbox_merged(const struct vg_sandbox *sb) {
    return sb->merged_fd < 0 ? -ENOTSUP : sb->merged_fd;
}

/* ---- death
 * ------------------------------------------------------------------------------------------- */

void vg_sandbox_destroy(struct vg_sandbox *sb) {
    if (!sb)
        return;
    vg_sandbox_let_go(sb);
    vg_close(&sb->peak_fd);
    free(sb->trace);
    if (sb->pidfd >= 0) {
        siginfo_t info;
        struct pollfd p = {.fd = sb->pidfd, .events = POLLIN};
        vg_sys_pidfd_send_signal(sb->pidfd, SIGKILL, 0);
        /* waitid alone would spin on a lock that the dying namespace holds */
        while (poll(&p, 1, -1) < 0 && errno == EINTR)
            continue;
        while (waitid(P_PIDFD, (id_t)sb->pidfd, &info, WEXITED | __WALL) < 0 && errno == EINTR)
            continue;
    }
    if (sb->in_cgroup)
        vg_cg_remove(&sb->node->cg, sb->name);
    while (sb->n_running)
        forget_running(sb, &sb->running[sb->n_running - 1]);
    for (size_t i = 0; i < sb->n_covers; i++)
        free(sb->covers[i].path);
    vg_close(&sb->sock);
    vg_close(&sb->pidfd);
    vg_close(&sb->userns_fd);
    vg_close(&sb->shared_ids);
    vg_close(&sb->own_mnt_fd);
    vg_close(&sb->own_net_fd);
    free(sb->running);
    free(sb->name);
    free(sb);
}
