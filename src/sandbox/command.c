/* Starting one command inside: the child shares init's memory until it executes (as vfork), so that
   nothing is copied and an error comes back through a variable. The child therefore allocates
   nothing and makes raw calls where libc would tell other threads.

   Capabilities, no_new_privs, the seccomp filter and the bounding set are init's own already. */
#include "base/cleanup.h"
#include "sandbox/sandbox-priv.h"
#include "sandbox/sys.h"

#include <errno.h>
#include <limits.h>
#include <paths.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

struct start {
    const struct vg_sb_command *c;
    struct vg_sb_spawned *out;
    int tty_fd;
};

_Noreturn static void give_up(struct start *s, int error, const char *what, const char *which) {
    s->out->error = error;
    snprintf(s->out->text, sizeof(s->out->text), "cannot %s %.180s: %s", what, which,
             strerrordesc_np(error));
    _exit(127);
}

/* 0, 1 and 2 may be among the sources; init keeps its own descriptors above them, so that lifting
   and lowering never collide. Missing ones stay closed, as they were for the caller. */
static void place_fds(struct start *s) {
    int fds[3];
    for (int i = 0; i < 3; i++) {
        fds[i] = s->c->fds[i];
        if (fds[i] >= 0 && fds[i] < 3 && (fds[i] = fcntl(fds[i], F_DUPFD, 3)) < 0)
            give_up(s, errno, "set up", "standard streams");
    }
    for (int i = 0; i < 3; i++) {
        if (fds[i] < 0)
            close(i);
        else if (dup2(fds[i], i) < 0)
            give_up(s, errno, "set up", "standard streams");
    }
    vg_sys_close_range(3, ~0u);
}

/* Raising a hard limit may be refused; the lower one then stays. */
static void set_rlimits(const struct vg_sb_command *c) {
    uint64_t given = 0;
    for (uint32_t i = 0; i < c->req.n_rlimits; i++) {
        struct rlimit l = {c->rlimits[i].soft, c->rlimits[i].hard}, old;
        int which = (int)c->rlimits[i].which;
        if (setrlimit(which, &l) < 0 && getrlimit(which, &old) == 0) {
            l.rlim_max = VG_MIN(l.rlim_max, old.rlim_max);
            l.rlim_cur = VG_MIN(l.rlim_cur, l.rlim_max);
            (void)setrlimit(which, &l);
        }
        given |= 1ull << which;
    }
    for (int i = 0; c->hard_restore && i < RLIM_NLIMITS; i++) {
        struct rlimit l;
        if (given >> i & 1 || getrlimit(i, &l) < 0 || l.rlim_max == c->hard_restore[i])
            continue;
        l.rlim_max = c->hard_restore[i];
        (void)setrlimit(i, &l);
    }
}

#define PREFER_ONE 1  /* MPOL_PREFERRED */
#define PREFER_MANY 5 /* MPOL_PREFERRED_MANY, Linux 5.15 */

/* Nearer is better, and farther works: what the kernel refuses is left. */
static void stay_near(const struct vg_near_cpus *n) {
    uint64_t any = 0;
    if (!n)
        return;
    for (size_t i = 0; i < VG_COUNT(n->cpus); i++)
        any |= n->cpus[i];
    if (any)
        (void)syscall(SYS_sched_setaffinity, 0, sizeof(n->cpus), n->cpus);
    unsigned long nodes = n->numa;
    /* The kernel takes one bit less than it is told. */
    if (nodes && syscall(SYS_set_mempolicy, PREFER_MANY, &nodes, 8 * sizeof(nodes) + 1) < 0)
        (void)syscall(SYS_set_mempolicy, PREFER_ONE, &nodes, 8 * sizeof(nodes) + 1);
}

static void become_user(struct start *s) {
    const struct vg_sb_req *q = &s->c->req;
    if (syscall(SYS_setgroups, q->n_groups, s->c->groups) < 0)
        give_up(s, errno, "take", "the user's groups");
    if (syscall(SYS_setresgid, q->gid, q->gid, q->gid) < 0)
        give_up(s, errno, "take", "the user's group");
    if (q->uid && syscall(SYS_setresuid, q->uid, q->uid, q->uid) < 0)
        give_up(s, errno, "take", "the user's id");
}

/* What the command asks of its devices somebody outside answers. */
static void be_watched(struct start *s) {
    const struct vg_sb_command *c = s->c;
    if (!(c->req.flags & VG_SB_REQ_WATCH))
        return;
    int fd = c->watch->len ? vg_seccomp_watch(c->watch) : -ENOTSUP;
    if (fd < 0)
        give_up(s, -fd, "watch over", c->argv[0]);
    struct vg_sb_msg m = {.kind = VG_SB_WATCHED, .tag = c->req.tag};
    ssize_t sent;
    do
        sent = vg_sb_send(c->sock, &m, VG_SB_MSG_MIN, NULL, 0, &fd, 1);
    while (sent == -EINTR);
    close(fd);
    if (sent < 0)
        give_up(s, (int)-sent, "watch over", c->argv[0]);
}

static void enter_cwd(struct start *s) {
    const struct vg_sb_command *c = s->c;
    if (c->req.flags & VG_SB_REQ_CWD_GONE) {
        /* A folder that was removed under the caller stays removed: nothing can be made in it. */
        char gone[] = "/tmp/.virga-gone-XXXXXXXXXXXX";
        snprintf(gone, sizeof(gone), "/tmp/.virga-gone-%lx",
                 (unsigned long)c->req.tag & 0xffffffff);
        if (mkdir(gone, 0700) < 0 || chdir(gone) < 0 || rmdir(gone) < 0)
            give_up(s, ENOENT, "enter", c->cwd);
        return;
    }
    if (chdir(c->cwd) == 0)
        return;
    int e = errno;
    if (*c->other_cwd && chdir(c->other_cwd) == 0)
        return;
    give_up(s, e, "enter", c->cwd);
}

static void own_group(struct start *s) {
    setpgid(0, 0);
    if (s->tty_fd >= 0) {
        pid_t me = getpid();
        ioctl(s->tty_fd, TIOCSPGRP, &me); /* SIGTTOU is blocked here */
    }
}

/* As execvp: a file without a known format is a shell script. */
static int try_exec(const struct vg_sb_command *c, const char *path) {
    execve(path, c->argv, c->env);
    if (errno != ENOEXEC)
        return errno;
    char *first = c->argv[0];
    char **with_shell = c->argv - 1;
    with_shell[0] = (char *)_PATH_BSHELL;
    c->argv[0] = (char *)path;
    execve(_PATH_BSHELL, with_shell, c->env);
    int e = errno;
    c->argv[0] = first;
    return e;
}

static const char *find_path(char *const *env) {
    for (; *env; env++)
        if (!strncmp(*env, "PATH=", 5))
            return *env + 5;
    return "/bin:/usr/bin";
}

/* Returns the errno that execvp would have left. */
static int exec_search(const struct vg_sb_command *c) {
    const char *name = c->argv[0];
    if (!*name)
        return ENOENT;
    if (strchr(name, '/'))
        return try_exec(c, name);
    size_t name_len = strlen(name);
    if (name_len > NAME_MAX)
        return ENAMETOOLONG;
    bool denied = false;
    char path[PATH_MAX];
    for (const char *p = find_path(c->env);; p++) {
        size_t len = strcspn(p, ":");
        if (len + name_len + 2 <= sizeof(path)) {
            memcpy(path, p, len);
            path[len] = '/';
            memcpy(path + (len ? len + 1 : 0), name, name_len + 1);
            int e = try_exec(c, path);
            if (e == EACCES)
                denied = true;
            else if (e != ENOENT && e != ESTALE && e != ENOTDIR && e != ENODEV && e != ETIMEDOUT)
                return e;
        }
        p += len;
        if (!*p)
            break;
    }
    return denied ? EACCES : ENOENT;
}

static int child_main(void *arg) {
    struct start *s = arg;
    const struct vg_sb_command *c = s->c;
    own_group(s);
    be_watched(s);
    place_fds(s);
    set_rlimits(c);
    if (c->req.nice)
        (void)setpriority(PRIO_PROCESS, 0, c->req.nice);
    stay_near(c->near);
    become_user(s);
    umask(c->req.umask);
    enter_cwd(s);
    struct sigaction dfl = {.sa_handler = SIG_DFL}, ign = {.sa_handler = SIG_IGN};
    sigaction(SIGCHLD, &dfl, NULL);
    for (int i = 1; i < 32; i++)
        if (c->req.sig_ignored >> (i - 1) & 1)
            sigaction(i, &ign, NULL);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    give_up(s, exec_search(c), "execute", c->argv[0]);
}

void vg_sb_spawn(const struct vg_sb_command *c, int tty_fd, struct vg_sb_spawned *ret) {
    static char stack[65536] __attribute__((aligned(64)));
    struct start s = {.c = c, .out = ret, .tty_fd = tty_fd};
    sigset_t all, old;
    ret->pidfd = -1;
    ret->error = 0;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, &old);
    ret->pid = clone(child_main, stack + sizeof(stack),
                     CLONE_VM | CLONE_VFORK | CLONE_PIDFD | SIGCHLD, &s, &ret->pidfd);
    int e = errno;
    /* The child's change of ids resets this for the memory it shared with us. */
    prctl(PR_SET_DUMPABLE, 0);
    if (ret->pid < 0) {
        ret->error = e;
        snprintf(ret->text, sizeof(ret->text), "cannot start a process: %s", strerrordesc_np(e));
    } else if (ret->error) {
        while (waitpid(ret->pid, NULL, __WALL) < 0 && errno == EINTR)
            continue;
        vg_close(&ret->pidfd);
    }
    sigprocmask(SIG_SETMASK, &old, NULL);
}
