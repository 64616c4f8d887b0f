/* The supervisor. One thread, no loop library: a signalfd, a pidfd for each program that was
   adopted, and the time of the next restart.

   What holds: a program is either running (pid > 0), or due to be started at `start_at`.
   A program that lives long is restarted at once; one that keeps dying waits twice as long each
   time. Both programs outlive this one and are found again by their locks. */
#include "cli/supervise.h"

#include "base/cleanup.h"
#include "base/log.h"
#include "base/util.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define DELAY_FIRST_MS 20
#define KNOWN_MAX_MS 5000
#define DELAY_MAX_MS 5000
#define LIVES_LONG_USEC (10 * VG_USEC)
#define LOG_ROTATE_BYTES (16 << 20)
#define ARGS_MAX 12

struct proc {
    enum vg_part part;
    const char *log; /* below home/log */
    bool wanted;
    pid_t pid; /* 0: not running */
    int pidfd; /* owned; of an adopted program, else -1 */
    bool ours; /* our child: its status comes by SIGCHLD */
    uint64_t started_at, start_at;
    unsigned delay_ms;
};

struct sup {
    const struct vg_up *up;
    struct proc procs[2];
    int report_fd, signal_fd;
};

static void rotate(const char *path) {
    char old[VG_HOME_MAX + 64];
    struct stat st;
    if (stat(path, &st) < 0 || st.st_size < LOG_ROTATE_BYTES)
        return;
    snprintf(old, sizeof(old), "%s.1", path);
    rename(path, old);
}

static void child_io(const struct sup *s, const struct proc *p) {
    char path[VG_HOME_MAX + 32];
    int null = open("/dev/null", O_RDWR);
    if (null >= 0)
        dup2(null, STDIN_FILENO);
    if (s->up->foreground) {
        dup2(STDERR_FILENO, STDOUT_FILENO);
    } else {
        snprintf(path, sizeof(path), "%s/log/%s", s->up->home, p->log);
        rotate(path);
        int log = open(path, O_WRONLY | O_CREAT | O_APPEND, 0600);
        dup2(log >= 0 ? log : null, STDOUT_FILENO);
        dup2(log >= 0 ? log : null, STDERR_FILENO);
    }
    syscall(SYS_close_range, 3u, ~0u, 0u);
}

static void child_exec(const struct sup *s, const struct proc *p) {
    const struct vg_up *up = s->up;
    const char *argv[ARGS_MAX] = {0};
    char control[VG_HOME_MAX + 16];
    int n = 0;
    if (p->part == VG_PART_VIRGAD) {
        argv[n++] = "virgad", argv[n++] = "--web", argv[n++] = "127.0.0.1:0";
        if (up->listen)
            argv[n++] = "--listen", argv[n++] = up->listen;
    } else {
        snprintf(control, sizeof(control), "unix:%s/sock", up->home);
        argv[n++] = "virga", argv[n++] = "agent", argv[n++] = "--control", argv[n++] = control;
        if (up->gpus)
            argv[n++] = "--gpus", argv[n++] = up->gpus;
    }
    execv(p->part == VG_PART_VIRGAD ? up->virgad : up->virga, (char *const *)argv);
    vg_error("cannot run %s: %s", p->part == VG_PART_VIRGAD ? up->virgad : up->virga,
             strerror(errno));
    _exit(127);
}

static void due(struct proc *p, unsigned delay_ms) {
    p->start_at = vg_now_usec() + delay_ms * 1000ULL;
}

static void spawn(struct sup *s, struct proc *p) {
    pid_t pid = fork();
    if (pid < 0) {
        due(p, p->delay_ms = DELAY_MAX_MS);
        vg_warn("cannot start %s: %s", vg_part_name(p->part), strerror(errno));
        return;
    }
    if (pid == 0) {
        sigset_t none;
        sigemptyset(&none);
        signal(SIGPIPE, SIG_DFL);
        signal(SIGHUP, SIG_DFL);
        signal(SIGUSR2, SIG_IGN); /* until its handler is there; see vg_part_stop() */
        sigprocmask(SIG_SETMASK, &none, NULL);
        setsid();
        child_io(s, p);
        child_exec(s, p);
    }
    p->pid = pid;
    p->ours = true;
    p->started_at = vg_now_usec();
    vg_info("started %s pid=%d", vg_part_name(p->part), (int)pid);
}

static void start(struct sup *s, struct proc *p) {
    pid_t pid;
    int fd = vg_part_open(s->up->home, p->part, &pid);
    if (fd == -EAGAIN) {
        due(p, DELAY_FIRST_MS);
        return;
    }
    if (fd < 0) {
        spawn(s, p);
        return;
    }
    p->pid = pid;
    p->pidfd = fd;
    p->ours = false;
    p->started_at = vg_now_usec();
    vg_info("adopted %s pid=%d", vg_part_name(p->part), (int)p->pid);
}

static void ended(struct sup *s, struct proc *p, int status) {
    char line[64];
    bool long_lived = vg_now_usec() - p->started_at > LIVES_LONG_USEC;
    p->delay_ms = long_lived || !p->delay_ms ? DELAY_FIRST_MS
                                             : VG_MIN(p->delay_ms * 2, (unsigned)DELAY_MAX_MS);
    vg_close(&p->pidfd);
    p->pid = 0;
    due(p, p->delay_ms);
    vg_warn("%s ended status=%d restart_ms=%u", vg_part_name(p->part), status, p->delay_ms);
    int n = snprintf(line, sizeof(line), "%d %d\n", (int)p->part, status);
    if (s->report_fd >= 0 && write(s->report_fd, line, (size_t)n) < 0)
        vg_close(&s->report_fd); /* nobody listens any more */
}

static int exit_status(int wait_status) {
    return WIFSIGNALED(wait_status) ? 128 + WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
}

/* Our own children, and keepers whose agent died: they became ours as we are the subreaper. */
static void reap(struct sup *s) {
    int status;
    for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;)
        for (unsigned i = 0; i < VG_COUNT(s->procs); i++)
            if (s->procs[i].pid == pid && s->procs[i].ours)
                ended(s, &s->procs[i], exit_status(status));
}

/* A program that was started a moment ago and has not taken its lock yet would be taken for gone,
   and stay: it is waited for until it is known, or over. */
static void wait_until_known(const struct sup *s) {
    for (unsigned i = 0; i < VG_COUNT(s->procs); i++) {
        const struct proc *p = &s->procs[i];
        for (unsigned waited = 0; p->pid && p->ours && waited < KNOWN_MAX_MS; waited += 5) {
            siginfo_t over = {0};
            int fd = vg_part_open(s->up->home, p->part, NULL);
            if (fd >= 0)
                close(fd);
            if (fd >= 0 || waitid(P_PID, (id_t)p->pid, &over, WEXITED | WNOHANG | WNOWAIT) < 0 ||
                over.si_pid)
                break;
            poll(NULL, 0, 5);
        }
    }
}

static int stop(struct sup *s, bool keep_tasks) {
    struct vg_err err = VG_ERR_INIT;
    vg_info("stopping%s", keep_tasks ? ", tasks stay" : "");
    wait_until_known(s);
    int r = vg_cloud_stop(s->up->home, keep_tasks, &err);
    if (r < 0)
        vg_error("%s", err.msg);
    while (waitpid(-1, NULL, WNOHANG) > 0)
        continue;
    vg_info("stopped");
    return r < 0 ? 1 : 0;
}

/* Milliseconds until the next start is due, -1 for none. */
static int next_due(const struct sup *s) {
    int64_t best = -1, now = (int64_t)vg_now_usec();
    for (unsigned i = 0; i < VG_COUNT(s->procs); i++) {
        const struct proc *p = &s->procs[i];
        if (!p->wanted || p->pid)
            continue;
        int64_t ms = VG_MAX(((int64_t)p->start_at - now + 999) / 1000, (int64_t)0);
        best = best < 0 ? ms : VG_MIN(best, ms);
    }
    return (int)best;
}

/* One turn: -1, or the exit status when told to stop. */
static int turn(struct sup *s) {
    struct pollfd fds[3] = {{.fd = s->signal_fd, .events = POLLIN}};
    for (unsigned i = 0; i < 2; i++) {
        struct proc *p = &s->procs[i];
        if (p->wanted && !p->pid && vg_now_usec() >= p->start_at)
            start(s, p);
        fds[i + 1] = (struct pollfd){.fd = p->pidfd, .events = POLLIN};
    }
    if (poll(fds, 3, next_due(s)) <= 0)
        return -1;
    for (unsigned i = 0; i < 2; i++)
        if (fds[i + 1].revents)
            ended(s, &s->procs[i], 0);
    struct signalfd_siginfo si;
    if (!fds[0].revents || read(s->signal_fd, &si, sizeof(si)) != sizeof(si))
        return -1;
    if (si.ssi_signo == SIGTERM)
        return stop(s, true);
    if (si.ssi_signo == SIGINT || si.ssi_signo == SIGUSR2)
        return stop(s, false);
    reap(s);
    return -1;
}

int vg_supervise(const struct vg_up *up, int report_fd) {
    struct sup s = {.up = up,
                    .procs = {{.part = VG_PART_VIRGAD, .log = "virgad.log", .wanted = true},
                              {.part = VG_PART_AGENT, .log = "agent.log", .wanted = !up->no_agent}},
                    .report_fd = report_fd};
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGUSR2);
    sigprocmask(SIG_BLOCK, &set, NULL);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGHUP, SIG_IGN);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    s.signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    if (s.signal_fd < 0) {
        vg_error("cannot watch signals: %s", strerror(errno));
        return 1;
    }
    for (unsigned i = 0; i < VG_COUNT(s.procs); i++)
        s.procs[i].pidfd = -1;
    int status;
    while ((status = turn(&s)) < 0)
        continue;
    return status;
}
