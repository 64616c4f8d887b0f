/* Pid 1 of a sandbox: a fork of the keeper that executes nothing. It enters cgroups and namespaces,
   builds the mounts (build.c), then gives all power over them up for good: it moves into the user
   namespace, drops capabilities, takes the seccomp filter. Only then it answers READY and waits for
   commands, reaps what they leave, and ends, taking everything with it, when the keeper is gone.

   Invariants: no user code runs before READY; after it init can do nothing that a task could not,
   except die; init never blocks but in ppoll and (shortly) in a command's exec. */
#include "base/cleanup.h"
#include "base/fault.h"
#include "base/mem.h"
#include "sandbox/sandbox-priv.h"
#include "sandbox/sys.h"

#include <errno.h>
#include <grp.h>
#include <linux/capability.h>
#include <net/if.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/msg.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

#define INIT_SOCK 3
#define INIT_SCRATCH 4 /* until READY was said */

/* ---- becoming powerless --------------------------------------------------------------------- */

static const unsigned kept_caps[] = {
    CAP_CHOWN, CAP_DAC_OVERRIDE, CAP_FOWNER,           CAP_FSETID,     CAP_SETUID, CAP_SETGID,
    CAP_KILL,  CAP_SETPCAP,      CAP_NET_BIND_SERVICE, CAP_SYS_CHROOT, CAP_SETFCAP};

static int drop_caps(void) {
    uint64_t keep = 0;
    for (size_t i = 0; i < VG_COUNT(kept_caps); i++)
        keep |= 1ull << kept_caps[i];
    for (int cap = 0; cap < 64; cap++)
        if (!(keep >> cap & 1) && prctl(PR_CAPBSET_DROP, cap, 0, 0, 0) < 0)
            break; /* past the last one this kernel knows */
    struct __user_cap_header_struct h = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct d[2] = {{(uint32_t)keep, (uint32_t)keep, 0},
                                          {(uint32_t)(keep >> 32), (uint32_t)(keep >> 32), 0}};
    return syscall(SYS_capset, &h, d) < 0 ? -errno : 0;
}

static int give_up_power(const struct vg_sb_birth *b, struct vg_err *err) {
    int r = vg_fault("sandbox.init");
    if (r < 0)
        return vg_err_sys(err, r, "cannot give up privileges");
    if (setns(b->seed->userns_fd, CLONE_NEWUSER) < 0)
        return vg_err_sys(err, errno, "cannot enter the user namespace of a sandbox");
    if (setgroups(0, NULL) < 0 || setresgid(0, 0, 0) < 0 || setresuid(0, 0, 0) < 0)
        return vg_err_sys(err, errno, "cannot become the sandbox's root");
    r = drop_caps();
    if (r < 0)
        return vg_err_sys(err, r, "cannot drop capabilities");
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 || prctl(PR_SET_DUMPABLE, 0) < 0 ||
        prctl(PR_SET_PDEATHSIG, SIGKILL) < 0)
        return vg_err_sys(err, errno, "cannot set process attributes");
    r = vg_seccomp_install(&b->node->prog);
    return r < 0 ? vg_err_sys(err, r, "cannot install the system call filter") : 0;
}

/* ---- namespaces and cgroups ----------------------------------------------------------------- */

static int loopback_up(void) {
    vg_auto_fd int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    struct ifreq q = {.ifr_name = "lo", .ifr_flags = IFF_UP | IFF_RUNNING};
    return fd < 0 || ioctl(fd, SIOCSIFFLAGS, &q) < 0 ? -errno : 0;
}

static int enter(const struct vg_sb_birth *b, struct vg_err *err) {
    int r = vg_fault("sandbox.init");
    if (r >= 0)
        r = vg_cg_enter(&b->node->cg, b->name);
    if (r < 0)
        return vg_err_sys(err, r, "cannot enter the cgroup of a sandbox");
    if (unshare(CLONE_NEWCGROUP) < 0)
        return vg_err_sys(err, errno, "cannot make a cgroup namespace");
    if (b->profile->netns_fd >= 0 && setns(b->profile->netns_fd, CLONE_NEWNET) < 0)
        return vg_err_sys(err, errno, "cannot enter the network of a sandbox");
    if (b->profile->netns_fd == -2 && (unshare(CLONE_NEWNET) < 0 || loopback_up() < 0))
        return vg_err_sys(err, errno, "cannot make an empty network");
    return 0;
}

static struct sock_fprog watch; /* borrowed; for commands that are watched */
static uint64_t hard_limits[RLIM_NLIMITS];
static bool hard_raised;

/* A caller's hard limits may be above the agent's. Later nobody has the privilege, so the room is
   made now; each command is given its own limits or what was here before. */
static void raise_hard_limits(void) {
    const struct rlimit none = {0, 0};
    (void)setrlimit(RLIMIT_RTPRIO, &none); /* these two would let a task starve its neighbours */
    (void)setrlimit(RLIMIT_NICE, &none);
    for (int i = 0; i < RLIM_NLIMITS; i++) {
        struct rlimit l;
        if (getrlimit(i, &l) < 0)
            continue;
        hard_limits[i] = l.rlim_max;
        if (l.rlim_max == RLIM_INFINITY || i == RLIMIT_RTPRIO || i == RLIMIT_NICE ||
            i == RLIMIT_SIGPENDING || i == RLIMIT_MSGQUEUE)
            continue;
        l.rlim_max = i == RLIMIT_NOFILE ? 1u << 20 : RLIM_INFINITY;
        if (l.rlim_max > hard_limits[i] && setrlimit(i, &l) == 0)
            hard_raised = true;
    }
}

/* ---- talking -------------------------------------------------------------------------------- */

static void say(uint32_t kind, uint64_t tag, int code, const char *text, const int *fds,
                size_t n_fds) {
    struct vg_sb_msg m = {.kind = kind, .code = code, .tag = tag};
    size_t len = text ? (size_t)snprintf(m.text, sizeof(m.text), "%s", text) : 0;
    len = VG_MIN(len, sizeof(m.text) - 1);
    while (vg_sb_send(INIT_SOCK, &m, VG_SB_MSG_MIN + len, NULL, 0, fds, n_fds) == -EINTR)
        continue;
}

struct child {
    pid_t pid;
    uint64_t tag;
    bool shepherd;
};
static struct child *children;
static size_t n_children, cap_children;

static volatile sig_atomic_t unused_flag;
static void on_chld(int signo) {
    unused_flag = signo;
}

/* ---- the shepherd of a terminal -------------------------------------------------------------- */

/* Session leader between init and the command: with a parent in its session the command's group is
   not orphaned, so that Ctrl-Z stops it. It says what the command does and ends with it. */
_Noreturn static void shepherd(const struct vg_sb_command *c) {
    int tty = -1;
    for (int i = 0; tty < 0 && i < 3; i++)
        if (c->fds[i] >= 0 && isatty(c->fds[i]))
            tty = c->fds[i];
    sigset_t all;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, NULL);
    prctl(PR_SET_NAME, "virga-tty");
    setsid();
    if (tty >= 0)
        ioctl(tty, TIOCSCTTY, 0);
    struct vg_sb_spawned s = {0};
    vg_sb_spawn(c, tty, &s);
    if (s.error) {
        say(VG_SB_EXEC_FAILED, c->req.tag, s.error, s.text, NULL, 0);
        _exit(0);
    }
    say(VG_SB_STARTED, c->req.tag, 0, NULL, &s.pidfd, 1);
    for (int i = 0; i < 3; i++)
        if (c->fds[i] >= 0)
            close(c->fds[i]);
    close(s.pidfd);
    for (;;) {
        int status;
        pid_t pid = waitpid(s.pid, &status, WUNTRACED | __WALL);
        if (pid < 0 && errno != EINTR)
            _exit(1);
        if (pid == s.pid && WIFSTOPPED(status)) {
            say(VG_SB_STOPPED, c->req.tag, WSTOPSIG(status), NULL, NULL, 0);
        } else if (pid == s.pid) {
            say(VG_SB_EXITED, c->req.tag, status, NULL, NULL, 0);
            _exit(0);
        }
    }
}

/* ---- commands ---------------------------------------------------------------------------------
 */

static void remember(pid_t pid, uint64_t tag, bool is_shepherd) {
    void *p = vg_grow(children, &cap_children, n_children + 1, sizeof(*children));
    if (!p) /* nobody could be told of its end: end everything rather than hang its caller */
        _exit(1);
    children = p;
    children[n_children++] = (struct child){pid, tag, is_shepherd};
}

static void run(const struct vg_sb_command *c) {
    if (c->req.flags & VG_SB_REQ_TTY) {
        /* Not fork(): the loop library's handler would close two of the command's fds. */
        pid_t pid = _Fork();
        if (pid == 0)
            shepherd(c);
        if (pid > 0)
            remember(pid, c->req.tag, true);
        else
            say(VG_SB_EXEC_FAILED, c->req.tag, errno, "cannot start a process", NULL, 0);
        return;
    }
    struct vg_sb_spawned s = {0};
    vg_sb_spawn(c, -1, &s);
    if (s.error) {
        say(VG_SB_EXEC_FAILED, c->req.tag, s.error, s.text, NULL, 0);
        return;
    }
    remember(s.pid, c->req.tag, false);
    say(VG_SB_STARTED, c->req.tag, 0, NULL, &s.pidfd, 1);
    close(s.pidfd);
}

/* The next string of the blob; NULL past its end. */
static char *next_string(char **p, const char *end) {
    char *s = *p, *nul = s < end ? memchr(s, 0, (size_t)(end - s)) : NULL;
    if (nul)
        *p = nul + 1;
    return nul ? s : NULL;
}

static int parse(struct vg_sb_command *c, char *blob, char ***ret_vec) {
    const struct vg_sb_req *q = &c->req;
    const char *end = blob + q->blob_len;
    size_t near = q->flags & VG_SB_REQ_NEAR ? sizeof(*c->near) : 0;
    size_t fixed = q->n_rlimits * sizeof(struct vg_sb_rlimit) + q->n_groups * sizeof(uint32_t);
    if (near + fixed > q->blob_len || q->argc < 1)
        return -EPROTO;
    c->near = near ? (const void *)blob : NULL;
    blob += near;
    c->rlimits = (const void *)blob;
    c->groups = (const void *)(blob + q->n_rlimits * sizeof(struct vg_sb_rlimit));
    char *p = blob + fixed;
    char **vec = vg_alloc(sizeof(*vec) * ((size_t)q->argc + q->envc + 4));
    if (!vec)
        return -ENOMEM;
    *ret_vec = vec;
    c->cwd = next_string(&p, end);
    c->other_cwd = next_string(&p, end);
    c->argv = vec + 1;
    c->env = vec + 1 + q->argc + 1;
    bool whole = c->cwd && c->other_cwd;
    for (uint32_t i = 0; whole && i < q->argc; i++)
        whole = (c->argv[i] = next_string(&p, end)) != NULL;
    for (uint32_t i = 0; whole && i < q->envc; i++)
        whole = (c->env[i] = next_string(&p, end)) != NULL;
    return whole ? 0 : -EPROTO;
}

static void take_fds(struct msghdr *h, int *fds, size_t *n_fds) {
    *n_fds = 0;
    for (struct cmsghdr *m = CMSG_FIRSTHDR(h); m; m = CMSG_NXTHDR(h, m))
        if (m->cmsg_level == SOL_SOCKET && m->cmsg_type == SCM_RIGHTS) {
            *n_fds = (m->cmsg_len - CMSG_LEN(0)) / sizeof(int);
            memcpy(fds, CMSG_DATA(m), *n_fds * sizeof(int));
        }
}

/* ---- being used again ------------------------------------------------------------------------ */

static off_t queues_empty; /* size of /dev/mqueue without a queue in it; -1: it is not there */

static off_t queues_size(void) {
    struct stat st;
    return stat("/dev/mqueue", &st) < 0 ? -1 : st.st_size;
}

static bool ipc_is_empty(void) {
    struct shm_info shm;
    struct seminfo sem;
    struct msginfo msg;
    if (shmctl(0, SHM_INFO, (void *)&shm) < 0 || semctl(0, 0, SEM_INFO, &sem) < 0 ||
        msgctl(0, MSG_INFO, (void *)&msg) < 0)
        return false;
    if (shm.used_ids || sem.semusz || msg.msgpool)
        return false;
    return queues_empty >= 0 && queues_size() == queues_empty;
}

/* Ends everything but ourselves and says whether the sandbox is as it was before any command. */
static void reset(void) {
    while (kill(-1, SIGKILL) == 0 || errno == EPERM) {
        if (waitpid(-1, NULL, __WALL) < 0 && errno != EINTR)
            break;
    }
    while (waitpid(-1, NULL, __WALL | WNOHANG) > 0)
        continue;
    n_children = 0;
    say(VG_SB_MSG_RESET, 0, ipc_is_empty() ? 0 : EBUSY, NULL, NULL, 0);
}

static void handle(char *data, size_t n, int *fds, size_t n_fds) {
    struct vg_sb_command c = {.fds = {-1, -1, -1},
                              .hard_restore = hard_raised ? hard_limits : NULL,
                              .watch = &watch,
                              .sock = INIT_SOCK};
    char **vec = NULL, *blob = data + sizeof(c.req), *map = NULL;
    size_t used = 0;
    if (n < sizeof(c.req))
        return;
    memcpy(&c.req, data, sizeof(c.req));
    if (c.req.flags & VG_SB_REQ_RESET) {
        reset();
        return;
    }
    for (int i = 0; i < 3; i++)
        if (c.req.fd_mask >> i & 1 && used < n_fds)
            c.fds[i] = fds[used++];
    int r = 0;
    if (c.req.flags & VG_SB_REQ_MEMFD) {
        map = used < n_fds
                  ? mmap(NULL, c.req.blob_len, PROT_READ | PROT_WRITE, MAP_PRIVATE, fds[used], 0)
                  : MAP_FAILED;
        if (map == MAP_FAILED)
            map = NULL, r = -ENOMEM;
        blob = map;
    } else if (c.req.blob_len > n - sizeof(c.req)) {
        r = -EPROTO;
    }
    if (r >= 0)
        r = parse(&c, blob, &vec);
    if (r < 0)
        say(VG_SB_EXEC_FAILED, c.req.tag, -r, "the request could not be taken", NULL, 0);
    else
        run(&c);
    free(vec);
    if (map)
        munmap(map, c.req.blob_len);
    for (size_t i = 0; i < n_fds; i++)
        close(fds[i]);
}

static void receive(void) {
    static char data[sizeof(struct vg_sb_req) + VG_SB_INLINE_MAX] __attribute__((aligned(16)));
    union {
        char buf[CMSG_SPACE(sizeof(int) * VG_SB_FDS_MAX)];
        struct cmsghdr align;
    } ctl;
    struct iovec v = {data, sizeof(data)};
    struct msghdr h = {
        .msg_iov = &v, .msg_iovlen = 1, .msg_control = ctl.buf, .msg_controllen = sizeof(ctl.buf)};
    ssize_t n = recvmsg(INIT_SOCK, &h, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
        _exit(0); /* the keeper is gone */
    if (n < 0)
        return;
    int fds[VG_SB_FDS_MAX];
    size_t n_fds;
    take_fds(&h, fds, &n_fds);
    handle(data, (size_t)n, fds, n_fds);
    explicit_bzero(data, (size_t)n); /* secrets may be among the variables */
}

static void reap_all(void) {
    int status;
    pid_t pid;
    while ((pid = waitpid(-1, &status, WNOHANG | __WALL)) > 0) {
        for (size_t i = 0; i < n_children; i++) {
            if (children[i].pid != pid)
                continue;
            struct child c = children[i];
            children[i] = children[--n_children];
            /* A shepherd that ended well has told the end of its command itself. */
            if (!c.shepherd || status != 0)
                say(VG_SB_EXITED, c.tag, status, NULL, NULL, 0);
            break;
        }
    }
}

_Noreturn static void serve(void) {
    sigset_t chld, none;
    sigemptyset(&none);
    sigfillset(&chld);
    sigprocmask(SIG_SETMASK, &chld, NULL);
    struct sigaction a = {.sa_handler = on_chld, .sa_flags = SA_NOCLDSTOP};
    sigaction(SIGCHLD, &a, NULL);
    for (;;) {
        struct pollfd p = {.fd = INIT_SOCK, .events = POLLIN};
        int n = ppoll(&p, 1, NULL, &none);
        if (n < 0)
            reap_all();
        else if (p.revents)
            receive();
    }
}

/* ---- birth ------------------------------------------------------------------------------------
 */

static void reset_signals(void) {
    struct sigaction dfl = {.sa_handler = SIG_DFL};
    for (int i = 1; i < _NSIG; i++)
        sigaction(i, &dfl, NULL);
}

/* Leaves nothing open but the socket and the scratch root; 0 to 2 are /dev/null. */
static int keep_only(int sock, int scratch) {
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (null < 0)
        return -errno;
    for (int i = 0; i < 3; i++)
        if (dup2(null, i) < 0)
            return -errno;
    vg_auto_fd int s = fcntl(sock, F_DUPFD_CLOEXEC, INIT_SCRATCH + 1);
    vg_auto_fd int root = fcntl(scratch, F_DUPFD_CLOEXEC, INIT_SCRATCH + 1);
    if (s < 0 || root < 0 || dup3(s, INIT_SOCK, O_CLOEXEC) < 0 ||
        dup3(root, INIT_SCRATCH, O_CLOEXEC) < 0)
        return -errno;
    vg_sys_close_range(INIT_SCRATCH + 1, ~0u);
    s = root = -1;
    return 0;
}

void vg_sb_init_main(const struct vg_sb_birth *b) {
    struct vg_err err = VG_ERR_INIT;
    int fds[VG_SB_READY_FDS] = {-1, -1, INIT_SCRATCH, -1}, sock = b->sock, scratch = -1;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    prctl(PR_SET_DUMPABLE, 0);
    prctl(PR_SET_NAME, "virga-init");
    reset_signals();
    setsid();
    umask(0);
    raise_hard_limits();
    watch = b->node->watch;
    int r = enter(b, &err);
    if (r >= 0)
        r = scratch = vg_sb_build(b, &err);
    if (r >= 0)
        r = give_up_power(b, &err);
    if (r >= 0 && (r = keep_only(sock, scratch)) < 0)
        vg_err_sys(&err, r, "cannot set up the init process of a sandbox");
    if (r < 0) {
        struct vg_sb_msg m = {.kind = VG_SB_MSG_FAILED, .code = r};
        snprintf(m.text, sizeof(m.text), "%.250s", err.msg);
        (void)vg_sb_send(sock, &m, sizeof(m), NULL, 0, NULL, 0);
        _exit(1);
    }
    fds[0] = open("/dev/pts", O_PATH | O_DIRECTORY | O_CLOEXEC);
    fds[1] = open("/dev/shm", O_PATH | O_DIRECTORY | O_CLOEXEC);
    size_t n_fds = 3;
    if (b->profile->root)
        fds[n_fds++] = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
    queues_empty = queues_size();
    say(VG_SB_MSG_READY, 0, 0, NULL, fds, n_fds);
    for (size_t i = 0; i < n_fds; i++)
        close(fds[i]);
    serve();
}
