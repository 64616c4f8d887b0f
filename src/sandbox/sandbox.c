/* The keeper's side of a sandbox: birth, requests, events, death. See sandbox.h.

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

/* One message of init; descriptors that did not come are -1. 0 bytes: init is gone. */
static ssize_t receive(int sock, struct vg_sb_msg *m, int fds[VG_SB_READY_FDS], int flags) {
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

/* ---- birth
 * --------------------------------------------------------------------------------------- */

/* A home is bound when it is the caller's own; remote strangers have none here. */
static int take_home(struct vg_sandbox *sb, const struct vg_sandbox_profile *p, int *ret_fd) {
    char link[32], path[PATH_MAX];
    struct stat st;
    if (!p->home || p->home[0] != '/' || (!p->uid && !p->local_root))
        return 0;
    vg_auto_fd int src = open(p->home, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (src < 0 || fstat(src, &st) < 0 || st.st_uid != p->uid)
        return 0;
    snprintf(link, sizeof(link), "/proc/self/fd/%d", src);
    ssize_t n = readlink(link, path, sizeof(path) - 1);
    if (n <= 1)
        return 0;
    path[n] = 0;
    int fd = vg_sb_detach(src, sb->userns_fd, false);
    if (fd < 0)
        return fd;
    sb->covers[0].path = vg_strdup(path);
    if (!sb->covers[0].path) {
        close(fd);
        return -ENOMEM;
    }
    sb->n_covers = 1;
    *ret_fd = fd;
    return 0;
}

static bool root_fits(const struct vg_sandbox_profile *p) {
    const struct vg_sandbox_root *r = p->root;
    if (!r)
        return true;
    if (p->uid || p->gid || p->local_root || p->home || !r->n_lower ||
        r->n_lower + r->n_data > VG_SB_LAYERS_MAX || r->n_views > VG_SB_BINDS_MAX)
        return false;
    for (size_t i = 0; i < r->n_views; i++)
        if (r->views[i].path[0] != '/' || !r->views[i].path[1])
            return false;
    for (size_t i = 0; i < r->n_libraries; i++)
        if (r->libraries[i][0] != '/')
            return false;
    return true;
}

static int start_init(struct vg_sandbox *sb, const struct vg_sandbox_profile *p,
                      const struct vg_sb_seed *seed, int home_fd,
                      const struct vg_sb_folders *folders, struct vg_err *err) {
    int pair[2];
    int r = vg_fault("sandbox.start");
    if (r >= 0 && socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        r = -errno;
    if (r < 0)
        return vg_err_sys(err, r, "cannot make a socket pair");
    vg_auto_fd int cgroup = vg_cg_clone_fd(&sb->node->cg, sb->name);
    struct vg_sb_files files;
    if (p->root)
        vg_sb_read_files(&files);
    struct vg_clone_args a = {
        .flags = CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_PIDFD |
                 (cgroup >= 0 ? CLONE_INTO_CGROUP : 0),
        .pidfd = (uintptr_t)&sb->pidfd,
        .exit_signal = SIGCHLD,
        .cgroup = cgroup >= 0 ? (uint64_t)cgroup : 0,
    };
    long pid = vg_sys_clone3(&a);
    if (pid == 0) {
        struct vg_sb_birth b = {.node = sb->node,
                                .profile = p,
                                .seed = seed,
                                .name = sb->name,
                                .sock = pair[1],
                                .home_fd = home_fd,
                                .home = sb->n_covers ? sb->covers[0].path : NULL,
                                .files = p->root ? &files : NULL,
                                .folders = folders};
        close(pair[0]);
        vg_sb_init_main(&b);
    }
    int e = errno;
    close(pair[1]);
    sb->sock = pair[0];
    if (pid < 0)
        return vg_err_sys(err, e, "cannot make the namespaces of a sandbox");
    sb->pid = (pid_t)pid;
    return 0;
}

int vg_sandbox_await(struct vg_sandbox *sb, struct vg_err *err) {
    struct vg_sb_msg m;
    int fds[VG_SB_READY_FDS];
    ssize_t n = receive(sb->sock, &m, fds, 0);
    sb->pts_fd = fds[0];
    sb->scratch_fd = fds[1];
    sb->root_fd = fds[2];
    sb->merged_fd = fds[3];
    if (n >= (ssize_t)VG_SB_MSG_MIN && m.kind == VG_SB_MSG_READY && fds[2] >= 0) {
        if (!sb->mirrored)
            vg_sb_trace_first(sb);
        return 0;
    }
    if (n >= (ssize_t)VG_SB_MSG_MIN && m.kind == VG_SB_MSG_FAILED) {
        vg_err_sys(err, m.code, "x"); /* for the reason and code; the text has it all */
        snprintf(err->msg, sizeof(err->msg), "%s", m.text);
        return err->code;
    }
    return vg_err_sys(err, n < 0 ? (int)n : -EIO, "the init process of a sandbox died at birth");
}

static struct vg_sandbox *sandbox_new(struct vg_sandbox_node *node,
                                      const struct vg_sandbox_profile *p, const char *name) {
    struct vg_sandbox *sb = vg_alloc(sizeof(*sb));
    if (!sb)
        return NULL;
    sb->node = node;
    sb->slot = p->slot;
    sb->uid = p->uid;
    sb->gid = p->gid;
    sb->local_root = p->local_root;
    sb->mirrored = p->root != NULL;
    sb->netns_fd = p->netns_fd;
    sb->given_fd = sb->pidfd = sb->sock = sb->userns_fd = sb->pts_fd = sb->scratch_fd =
        sb->shared_ids = -1;
    sb->own_mnt_fd = sb->own_net_fd = sb->root_fd = sb->merged_fd = sb->peak_fd = -1;
    sb->name = vg_strdup(name);
    bool whole = sb->name != NULL;
    for (size_t i = 0; whole && p->root && i < p->root->n_views; i++)
        whole = (sb->covers[sb->n_covers++].path = vg_strdup(p->root->views[i].path)) != NULL;
    if (!whole) {
        vg_sandbox_destroy(sb);
        return NULL;
    }
    return sb;
}

int vg_sandbox_begin(struct vg_sandbox_node *node, const struct vg_sandbox_profile *p,
                     const char *name, struct vg_sandbox **ret, struct vg_err *err) {
    struct vg_sb_seed *seed;
    struct vg_sb_folders folders = {0};
    vg_auto_fd int home_fd = -1;
    if (!*name || strchr(name, '/') || name[0] == '.' || strlen(name) > 100)
        return vg_err_set(err, VG_INVALID, "'%s' cannot be the name of a sandbox", name);
    if (!root_fits(p))
        return vg_err_set(err, VG_INVALID, "the mirrored root of a sandbox makes no sense");
    struct vg_sandbox *sb = sandbox_new(node, p, name);
    if (!sb)
        return vg_err_sys(err, ENOMEM, "cannot prepare a sandbox");
    int r = vg_sb_seed_get(node, p, &seed, err);
    if (r >= 0) {
        sb->userns_fd = fcntl(seed->userns_fd, F_DUPFD_CLOEXEC, 3);
        sb->own_mnt_fd = open("/proc/self/ns/mnt", O_RDONLY | O_CLOEXEC);
        if (sb->userns_fd < 0 || sb->own_mnt_fd < 0)
            r = vg_err_sys(err, errno, "cannot prepare a sandbox");
    }
    if (r >= 0 && p->root && p->root->host_uid) {
        sb->host_uid = p->root->host_uid;
        sb->host_gid = p->root->host_gid;
        r = sb->shared_ids = vg_sb_shared_ids(p->slot, p->root, err);
    }
    if (r >= 0 && (r = take_home(sb, p, &home_fd)) < 0)
        vg_err_sys(err, r, "cannot bind the home folder %s", p->home);
    if (r >= 0 && p->root)
        r = vg_sb_open_folders(&folders, p->root, err);
    if (r >= 0 && (r = vg_cg_make(&node->cg, name)) < 0)
        vg_err_sys(err, r, "cannot make the cgroup of a sandbox");
    if (r >= 0) {
        sb->in_cgroup = true;
        r = start_init(sb, p, seed, home_fd, &folders, err);
    }
    sb->shown = folders; /* the names only */
    vg_sb_close_folders(&folders);
    if (r < 0) {
        vg_sandbox_destroy(sb);
        return r;
    }
    *ret = sb;
    return 0;
}

int vg_sandbox_prepare(struct vg_sandbox_node *node, const struct vg_sandbox_profile *p,
                       const char *name, struct vg_sandbox **ret, struct vg_err *err) {
    struct vg_sandbox *sb = NULL;
    int r = vg_sandbox_begin(node, p, name, &sb, err);
    if (r >= 0 && (r = vg_sandbox_await(sb, err)) < 0)
        vg_sandbox_destroy(vg_take_ptr(sb));
    if (r >= 0)
        *ret = sb;
    return r;
}

/* ---- commands
 * -------------------------------------------------------------------------------------- */

struct blob {
    char *p;
    size_t len;
    int memfd; /* owned */
    uint32_t argc, envc;
};

static size_t count_strings(char *const *v, uint32_t *ret_n) {
    size_t bytes = 0;
    uint32_t n = 0;
    for (; v && v[n] && n < VG_SB_ARGS_MAX; n++)
        bytes += strlen(v[n]) + 1;
    *ret_n = n;
    return bytes;
}

static char *add_string(char *p, const char *s) {
    size_t n = strlen(s) + 1;
    memcpy(p, s, n);
    return p + n;
}

static void fill_blob(char *p, const struct vg_exec *x, const char *other_cwd,
                      const struct blob *b) {
    if (x->near)
        p = (char *)memcpy(p, x->near, sizeof(*x->near)) + sizeof(*x->near);
    for (size_t i = 0; i < x->n_rlimits; i++, p += sizeof(struct vg_sb_rlimit))
        memcpy(p,
               &(struct vg_sb_rlimit){(uint64_t)x->rlimits[i].which, x->rlimits[i].soft,
                                      x->rlimits[i].hard},
               sizeof(struct vg_sb_rlimit));
    memcpy(p, x->groups ? (const void *)x->groups : "", x->n_groups * sizeof(uint32_t));
    p += x->n_groups * sizeof(uint32_t);
    p = add_string(p, x->cwd);
    p = add_string(p, other_cwd ? other_cwd : "");
    for (uint32_t i = 0; i < b->argc; i++)
        p = add_string(p, x->argv[i]);
    for (uint32_t i = 0; i < b->envc; i++)
        p = add_string(p, x->env[i]);
}

/* In the caller's buffer when it fits, else in a memfd. */
static int make_blob(const struct vg_exec *x, const char *other_cwd, char *small, struct blob *b) {
    size_t n = x->n_rlimits * sizeof(struct vg_sb_rlimit) + x->n_groups * sizeof(uint32_t);
    n += x->near ? sizeof(*x->near) : 0;
    n += strlen(x->cwd) + 1 + (other_cwd ? strlen(other_cwd) : 0) + 1;
    n += count_strings(x->argv, &b->argc);
    n += count_strings(x->env, &b->envc);
    b->len = n;
    if (!b->argc)
        return -EINVAL;
    if (n > VG_SB_BLOB_MAX || b->argc == VG_SB_ARGS_MAX || b->envc == VG_SB_ARGS_MAX)
        return -E2BIG;
    if (n <= VG_SB_INLINE_MAX) {
        fill_blob(b->p = small, x, other_cwd, b);
        return 0;
    }
    b->memfd = memfd_create("virga-args", MFD_CLOEXEC);
    if (b->memfd < 0 || ftruncate(b->memfd, (off_t)n) < 0)
        return -errno;
    char *map = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_SHARED, b->memfd, 0);
    if (map == MAP_FAILED)
        return -errno;
    fill_blob(map, x, other_cwd, b);
    munmap(map, n);
    return 0;
}

static int send_request(struct vg_sandbox *sb, uint64_t tag, const struct vg_exec *x, bool gone,
                        const char *other_cwd) {
    static char small[VG_SB_INLINE_MAX];
    struct blob b = {.memfd = -1};
    int fds[4], r = make_blob(x, other_cwd, small, &b);
    size_t n_fds = 0;
    if (r < 0) {
        vg_close(&b.memfd);
        return r;
    }
    struct vg_sb_req q = {.tag = tag,
                          .flags =
                              (x->tty ? VG_SB_REQ_TTY : 0u) | (x->watched ? VG_SB_REQ_WATCH : 0u) |
                              (x->near ? VG_SB_REQ_NEAR : 0u) | (gone ? VG_SB_REQ_CWD_GONE : 0u) |
                              (b.memfd >= 0 ? VG_SB_REQ_MEMFD : 0u),
                          .argc = b.argc,
                          .envc = b.envc,
                          .n_groups = (uint32_t)x->n_groups,
                          .n_rlimits = (uint32_t)x->n_rlimits,
                          .uid = x->uid,
                          .gid = x->gid,
                          .umask = x->umask,
                          .nice = x->nice,
                          .sig_ignored = x->sig_ignored,
                          .blob_len = (uint32_t)b.len};
    for (unsigned i = 0; i < 3; i++)
        if (x->fds[i] >= 0) {
            q.fd_mask |= 1u << i;
            fds[n_fds++] = x->fds[i];
        }
    if (b.memfd >= 0)
        fds[n_fds++] = b.memfd;
    ssize_t sent = vg_sb_send(sb->sock, &q, sizeof(q), b.p, b.p ? b.len : 0, fds, n_fds);
    if (b.p)
        explicit_bzero(small, b.len); /* secrets may be among the variables */
    vg_close(&b.memfd);
    return sent < 0 ? (int)sent : 0;
}

static struct vg_sb_running *find_running(struct vg_sandbox *sb, uint64_t tag) {
    for (size_t i = 0; i < sb->n_running; i++)
        if (sb->running[i].tag == tag)
            return &sb->running[i];
    return NULL;
}

static void forget_running(struct vg_sandbox *sb, struct vg_sb_running *r) {
    vg_close(&r->pidfd);
    *r = sb->running[--sb->n_running];
}

static int apply_limits(struct vg_sandbox *sb, const struct vg_limits *l, struct vg_err *err) {
    struct vg_limits now = *l;
    if (!now.disk_bytes)
        now.disk_bytes = now.mem_bytes / 2;
    if (!memcmp(&now, &sb->limits, sizeof(now)))
        return 0;
    int r = vg_cg_limit(&sb->node->cg, sb->name, &now, err);
    if (r >= 0 && now.disk_bytes && now.disk_bytes != sb->limits.disk_bytes)
        r = vg_sb_set_disk(sb, now.disk_bytes, err);
    if (r >= 0)
        sb->limits = now;
    return r;
}

static int check_exec(const struct vg_sandbox *sb, uint64_t tag, const struct vg_exec *x,
                      struct vg_err *err) {
    if (sb->dead)
        return vg_err_set(err, VG_LOST, "the sandbox has ended");
    if (!x->cwd || x->cwd[0] != '/' || x->n_groups > VG_SB_GROUPS_MAX ||
        x->n_rlimits > VG_SB_RLIMITS_MAX)
        return vg_err_set(err, VG_INVALID, "the command's directory or limits make no sense");
    for (size_t i = 0; i < x->n_rlimits; i++)
        if (x->rlimits[i].which < 0 || x->rlimits[i].which >= RLIM_NLIMITS)
            return vg_err_set(err, VG_INVALID, "there is no resource limit %d",
                              x->rlimits[i].which);
    /* A user's files are mapped to the user; as root inside it would be root on them outside. */
    if (!sb->local_root && sb->uid && x->uid != sb->uid)
        return vg_err_set(err, VG_FORBIDDEN, "this sandbox runs commands of user %u only", sb->uid);
    if (sb->n_running >= VG_SB_COMMANDS_MAX)
        return vg_err_set(err, VG_NO_CAPACITY, "the sandbox runs %zu commands already",
                          sb->n_running);
    if (find_running((struct vg_sandbox *)sb, tag))
        return vg_err_set(err, VG_EXISTS, "the sandbox runs that command already");
    return 0;
}

int vg_sandbox_exec(struct vg_sandbox *sb, uint64_t tag, const struct vg_exec *x,
                    struct vg_err *err) {
    bool gone = false;
    vg_auto_free char *other_cwd = NULL;
    int r = check_exec(sb, tag, x, err);
    if (r < 0)
        return r;
    void *p = vg_grow(sb->running, &sb->cap_running, sb->n_running + 1, sizeof(*sb->running));
    if (!p)
        return vg_err_sys(err, ENOMEM, "cannot start the command");
    sb->running = p;
    if (x->limits && (r = apply_limits(sb, x->limits, err)) < 0)
        return r;
    if ((r = vg_sb_add_binds(sb, x, &gone, &other_cwd, err)) < 0)
        return r;
    if ((r = vg_sb_add_devices(sb, x, err)) < 0)
        return r;
    if (x->lay && (r = vg_sb_lay(sb, x->lay, err)) < 0)
        return r;
    if (x->n_given && (r = vg_sb_give(sb, x, err)) < 0)
        return r;
    vg_sb_refresh(sb);
    vg_sb_trace_exec(sb);
    r = send_request(sb, tag, x, gone, other_cwd);
    if (r < 0)
        return vg_err_sys(err, r, "cannot start the command");
    sb->running[sb->n_running++] = (struct vg_sb_running){.tag = tag, .pidfd = -1};
    return 0;
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
    struct vg_sb_running *r = find_running(sb, m->tag);
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
        ssize_t n = receive(sb->sock, &m, fds, MSG_DONTWAIT);
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
    struct vg_sb_running *r = find_running(sb, tag);
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
