/* A one-machine cloud as its home folder shows it. No state; one thread. */
#include "cli/cloud.h"

#include "base/cleanup.h"
#include "base/util.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define AGENT_LIMIT_MS 20000
#define CONTROL_LIMIT_MS 15000
#define PID_WAIT_MS 1000
#define REPEAT_MS 250
#define SWEEP_START_MS 5000

static const struct {
    const char *name, *lock, *pid;
} parts[] = {
    [VG_PART_UP] = {"the supervisor", "up.pid", "up.pid"},
    [VG_PART_VIRGAD] = {"virgad", "control/lock", "control/pid"},
    [VG_PART_AGENT] = {"the agent", "node/lock", "node/pid"},
};

const char *vg_part_name(enum vg_part p) {
    return parts[p].name;
}

/* Whether somebody holds the lock. The test takes it for an instant, shared, so that two tests do
   not see each other. */
static bool locked(const char *home, enum vg_part p) {
    char path[VG_HOME_MAX + 32];
    snprintf(path, sizeof(path), "%s/%s", home, parts[p].lock);
    vg_auto_fd int fd = open(path, O_RDONLY | O_CLOEXEC);
    return fd >= 0 && flock(fd, LOCK_SH | LOCK_NB) < 0 && errno == EWOULDBLOCK;
}

bool vg_part_runs(const char *home, enum vg_part p) {
    return locked(home, p);
}

static int read_pid(const char *home, enum vg_part p, pid_t *ret) {
    char path[VG_HOME_MAX + 32];
    vg_auto_free char *text = NULL;
    uint64_t v;
    snprintf(path, sizeof(path), "%s/%s", home, parts[p].pid);
    if (vg_read_file(path, 64, &text, NULL) < 0)
        return -EAGAIN;
    text[strcspn(text, " \n")] = 0;
    if (vg_parse_u64(text, &v) < 0 || v < 2 || v > INT32_MAX)
        return -EAGAIN;
    *ret = (pid_t)v;
    return 0;
}

int vg_part_open(const char *home, enum vg_part p, pid_t *ret_pid) {
    pid_t pid;
    if (!locked(home, p))
        return -ESRCH;
    int r = read_pid(home, p, &pid);
    if (r < 0)
        return r;
    vg_auto_fd int fd = (int)syscall(SYS_pidfd_open, pid, 0);
    if (fd < 0 || vg_pidfd_wait(fd, 0)) /* dead: the file is older than the holder of the lock */
        return -EAGAIN;
    if (!locked(home, p))
        return -ESRCH;
    if (ret_pid)
        *ret_pid = pid;
    return vg_take_fd(fd);
}

bool vg_pidfd_wait(int pidfd, unsigned limit_ms) {
    uint64_t until = vg_now_usec() + limit_ms * 1000ULL;
    for (;;) {
        uint64_t now = vg_now_usec();
        int ms = now < until ? (int)((until - now) / 1000) + 1 : 0;
        struct pollfd p = {.fd = pidfd, .events = POLLIN};
        int n = poll(&p, 1, ms);
        if (n > 0)
            return true;
        if (n == 0 || errno != EINTR)
            return false;
    }
}

/* The signal is repeated: one that came before the program had its handlers was ignored. */
static bool signal_until_gone(int pidfd, int signo, unsigned limit_ms) {
    for (unsigned waited = 0; waited < limit_ms; waited += REPEAT_MS) {
        syscall(SYS_pidfd_send_signal, pidfd, signo, NULL, 0);
        if (vg_pidfd_wait(pidfd, REPEAT_MS))
            return true;
    }
    return false;
}

int vg_part_stop(const char *home, enum vg_part p, int signo, unsigned limit_ms) {
    vg_auto_fd int fd = -1;
    for (unsigned waited = 0; (fd = vg_part_open(home, p, NULL)) == -EAGAIN; waited += 5) {
        if (waited > PID_WAIT_MS)
            return -EBUSY;
        poll(NULL, 0, 5); /* it is between its lock and its pid file */
    }
    if (fd < 0)
        return 0;
    if (signal_until_gone(fd, signo, limit_ms))
        return 0;
    syscall(SYS_pidfd_send_signal, fd, SIGKILL, NULL, 0);
    return vg_pidfd_wait(fd, 5000) ? 0 : -ETIMEDOUT;
}

static bool has_keepers(const char *home) {
    char path[VG_HOME_MAX + 32];
    bool found = false;
    snprintf(path, sizeof(path), "%s/node/keepers", home);
    DIR *dir = opendir(path);
    for (struct dirent *e; dir && !found && (e = readdir(dir));)
        found = e->d_name[0] != '.';
    if (dir)
        closedir(dir);
    return found;
}

/* An agent that stopped in order leaves no lease; one that was killed leaves that, and perhaps
   cgroups, links and rules. */
bool vg_cloud_left_behind(const char *home) {
    char path[VG_HOME_MAX + 32];
    snprintf(path, sizeof(path), "%s/node/lease", home);
    return access(path, F_OK) == 0 || has_keepers(home);
}

static void run_agent(const char *home) {
    char control[VG_HOME_MAX + 16], log[VG_HOME_MAX + 32];
    snprintf(control, sizeof(control), "unix:%s/sock", home);
    snprintf(log, sizeof(log), "%s/log/agent.log", home);
    int in = open("/dev/null", O_RDWR), out = open(log, O_WRONLY | O_CREAT | O_APPEND, 0600);
    dup2(in, STDIN_FILENO);
    dup2(out >= 0 ? out : in, STDOUT_FILENO);
    dup2(out >= 0 ? out : in, STDERR_FILENO);
    syscall(SYS_close_range, 3u, ~0u, 0u);
    setenv("VIRGA_HOME", home, 1);
    signal(SIGUSR2, SIG_IGN); /* until its handler is there */
    setsid();
    execl("/proc/self/exe", "virga", "agent", "--control", control, NULL);
    _exit(127);
}

/* Tasks whose agent is dead are ended by a new one: only an agent knows how to clear up after
   them. */
static int sweep(const char *home) {
    pid_t pid = fork();
    if (pid == 0)
        run_agent(home);
    if (pid < 0)
        return -errno;
    int fd;
    for (unsigned waited = 0; (fd = vg_part_open(home, VG_PART_AGENT, NULL)) < 0; waited += 5) {
        if (waited > SWEEP_START_MS || waitpid(pid, NULL, WNOHANG) == pid)
            return -ESRCH;
        poll(NULL, 0, 5);
    }
    close(fd);
    int r = vg_part_stop(home, VG_PART_AGENT, SIGUSR2, AGENT_LIMIT_MS);
    waitpid(pid, NULL, WNOHANG);
    return r;
}

int vg_cloud_stop(const char *home, bool keep_tasks, struct vg_err *err) {
    char sock[VG_HOME_MAX + 8];
    int r = vg_part_stop(home, VG_PART_AGENT, keep_tasks ? SIGTERM : SIGUSR2, AGENT_LIMIT_MS);
    if (r < 0)
        return vg_err_sys(err, r, "cannot end the agent of %s", home);
    if (!keep_tasks && vg_cloud_left_behind(home) && (r = sweep(home)) < 0)
        return vg_err_sys(err, r, "cannot end the tasks of %s: see its log/agent.log", home);
    r = vg_part_stop(home, VG_PART_VIRGAD, SIGTERM, CONTROL_LIMIT_MS);
    if (r < 0)
        return vg_err_sys(err, r, "cannot end virgad of %s", home);
    snprintf(sock, sizeof(sock), "%s/sock", home);
    unlink(sock); /* of one that was killed */
    return 0;
}
