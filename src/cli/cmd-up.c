/* `virga up`: starts the cloud of this machine and waits until a node is ready. */
#include "base/cleanup.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/util.h"
#include "cli/client.h"
#include "cli/cmd.h"
#include "cli/supervise.h"
#include "cli/up-memory.h"

#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define READY_USEC (20 * VG_USEC)
#define LOG_TAIL 4096

static int find_program(const char *dir, const char *name, char *ret, size_t n) {
    const char *path = getenv("PATH");
    if ((size_t)snprintf(ret, n, "%s/%s", dir, name) < n && access(ret, X_OK) == 0)
        return 0;
    for (const char *p = path ? path : ""; *p;) {
        size_t len = strcspn(p, ":");
        if (len && (size_t)snprintf(ret, n, "%.*s/%s", (int)len, p, name) < n &&
            access(ret, X_OK) == 0)
            return 0;
        p += len + (p[len] == ':');
    }
    return -ENOENT;
}

static int find_programs(struct vg_up *up, struct vg_err *err) {
    char dir[sizeof(up->virga)];
    ssize_t n = readlink("/proc/self/exe", up->virga, sizeof(up->virga) - 1);
    if (n < 0)
        return vg_err_sys(err, errno, "cannot tell which program this is");
    up->virga[n] = 0;
    memcpy(dir, up->virga, (size_t)n + 1);
    *strrchr(dir, '/') = 0;
    if (find_program(dir, "virgad", up->virgad, sizeof(up->virgad)) < 0)
        return vg_err_set(err, VG_NOT_FOUND,
                          "virgad is neither in %s nor in PATH: install it beside virga", dir);
    return 0;
}

/* The home folder can be passed through by everybody (its socket checks who calls) but listed by
   its owner only. */
static int make_home(const struct vg_up *up, struct vg_err *err) {
    char log[VG_HOME_MAX + 8];
    snprintf(log, sizeof(log), "%s/log", up->home);
    int r = vg_mkdir_p(up->home, 0711);
    if (r >= 0)
        r = vg_mkdir_p(log, 0700);
    if (r < 0)
        return vg_err_sys(err, r, "cannot create %s", up->home);
    return 0;
}

/* The lock that says a supervisor runs; -EBUSY when one does. */
static int take_lock(const struct vg_up *up, struct vg_err *err) {
    char path[VG_HOME_MAX + 16];
    snprintf(path, sizeof(path), "%s/up.pid", up->home);
    vg_auto_fd int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (fd < 0)
        return vg_err_sys(err, errno, "cannot open %s", path);
    if (flock(fd, LOCK_EX | LOCK_NB) < 0)
        return errno == EWOULDBLOCK ? -EBUSY : vg_err_sys(err, errno, "cannot lock %s", path);
    if (ftruncate(fd, 0) < 0) /* nobody may take an old number for ours */
        return vg_err_sys(err, errno, "cannot write %s", path);
    return vg_take_fd(fd);
}

static int supervise(const struct vg_up *up, int lock_fd, int report_fd) {
    char pid[24];
    int n = snprintf(pid, sizeof(pid), "%d\n", (int)getpid());
    setenv("VIRGA_HOME", up->home, 1);
    unsetenv("VIRGA_TOKEN");
    unsetenv("VIRGA_TASK_ID");
    unsetenv("VIRGA_SOCKET");
    umask(022);
    vg_log_init("virga-up");
    if (ftruncate(lock_fd, 0) < 0 || pwrite(lock_fd, pid, (size_t)n, 0) < 0)
        vg_warn("cannot write the pid file: %s", strerror(errno));
    int status = vg_supervise(up, report_fd);
    if (ftruncate(lock_fd, 0) < 0)
        vg_warn("cannot empty the pid file: %s", strerror(errno));
    return status;
}

static void daemon_io(const struct vg_up *up) {
    char path[VG_HOME_MAX + 16];
    snprintf(path, sizeof(path), "%s/log/up.log", up->home);
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    int log = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    dup2(null, STDIN_FILENO);
    dup2(log >= 0 ? log : null, STDOUT_FILENO);
    dup2(log >= 0 ? log : null, STDERR_FILENO);
    vg_close(&null);
    vg_close(&log);
}

/* Leaves the supervisor behind as a daemon. Returns the read end of its reports. */
static int launch(const struct vg_up *up, int lock_fd, struct vg_err *err) {
    int report[2];
    if (pipe2(report, O_CLOEXEC) < 0)
        return vg_err_sys(err, errno, "cannot start the supervisor");
    pid_t pid = fork();
    if (pid < 0) {
        int e = errno;
        close(report[0]);
        close(report[1]);
        return vg_err_sys(err, e, "cannot start the supervisor");
    }
    if (pid == 0) {
        setsid();
        if (fork() != 0)
            _exit(0);
        daemon_io(up);
        close(report[0]);
        if (chdir("/") < 0)
            _exit(1);
        _exit(supervise(up, lock_fd, report[1]));
    }
    close(report[1]);
    waitpid(pid, NULL, 0);
    return report[0];
}

/* The last line of a program's log without its time and level, which is where it said why. */
static const char *last_words(const struct vg_up *up, const char *name, char *out, size_t n) {
    char path[VG_HOME_MAX + 32];
    snprintf(path, sizeof(path), "%s/log/%s.log", up->home, name);
    vg_auto_fd int fd = open(path, O_RDONLY | O_CLOEXEC);
    char tail[LOG_TAIL + 1];
    off_t end = fd < 0 ? 0 : lseek(fd, 0, SEEK_END);
    ssize_t got = fd < 0 ? -1 : pread(fd, tail, LOG_TAIL, VG_MAX(end - LOG_TAIL, (off_t)0));
    if (got <= 0)
        return "it said nothing";
    while (got > 0 && tail[got - 1] == '\n')
        got--;
    tail[got] = 0;
    char *line = strrchr(tail, '\n');
    line = line ? line + 1 : tail;
    char *text = strstr(line, ": ");
    snprintf(out, n, "%.400s", text ? text + 2 : line);
    return out;
}

static int explain_death(const struct vg_up *up, int report_fd, struct vg_err *err) {
    char line[64], words[512], where[VG_HOME_MAX];
    ssize_t n = read(report_fd, line, sizeof(line) - 1);
    if (n <= 0)
        return vg_err_set(err, VG_INTERNAL, "the supervisor ended: see %s/log/up.log",
                          vg_home_short(up->home, where, sizeof(where)));
    line[n] = 0;
    bool agent = line[0] == '0' + VG_PART_AGENT;
    const char *name = agent ? "agent" : "virgad";
    return vg_err_set(err, VG_INTERNAL, "%s could not start: %s (log: %s/log/%s.log)",
                      agent ? "the agent" : "virgad", last_words(up, name, words, sizeof(words)),
                      vg_home_short(up->home, where, sizeof(where)), name);
}

struct readiness {
    uint32_t nodes_ready;
    char address[VG_ENDPOINT_ADDRESS_MAX];
    char version[64];
    char url[320];
};

static int on_status(const Vg__Pb__Envelope *env, void *user, struct vg_err *err) {
    struct readiness *r = user;
    if (env->body_case != VG__PB__ENVELOPE__BODY_STATUS_INFO)
        return vg_unexpected(env, err);
    r->nodes_ready = env->status_info->nodes_ready;
    snprintf(r->address, sizeof(r->address), "%s",
             env->status_info->address ? env->status_info->address : "");
    snprintf(r->url, sizeof(r->url), "%s", env->status_info->url ? env->status_info->url : "");
    snprintf(r->version, sizeof(r->version), "%s",
             env->status_info->version ? env->status_info->version : VG_VERSION);
    return 0;
}

/* Asks once; keeps the connection for the next time. True: the cloud is ready. */
static bool ask(const struct vg_up *up, struct vg_client **c, struct readiness *ret) {
    struct vg_endpoint e = {.kind = VG_ENDPOINT_UNIX};
    struct vg_err err = VG_ERR_INIT;
    Vg__Pb__Empty body = VG__PB__EMPTY__INIT;
    Vg__Pb__Envelope req = vg_request(STATUS, status, &body);
    snprintf(e.path, sizeof(e.path), "%s/sock", up->home);
    if (!*c && (access(e.path, F_OK) < 0 || vg_client_open_at(&e, c, &err) < 0))
        return false;
    if (vg_call(*c, &req, READY_USEC, on_status, ret, &err) < 0) {
        vg_client_close(*c);
        *c = NULL;
        return false;
    }
    return up->no_agent || ret->nodes_ready > 0;
}

/* Waits for the socket to appear (inotify) and then for a node (asked again after short waits that
   grow); a program that dies meanwhile ends the wait. */
static int await_ready(const struct vg_up *up, int report_fd, struct readiness *ret,
                       struct vg_err *err) {
    struct vg_client *c = NULL;
    uint64_t until = vg_now_usec() + READY_USEC;
    vg_auto_fd int watch = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    inotify_add_watch(watch, up->home, IN_CREATE | IN_MOVED_TO);
    int r = -EAGAIN;
    for (int wait_ms = 2; r == -EAGAIN; wait_ms = VG_MIN(wait_ms * 2, 40)) {
        if (ask(up, &c, ret)) {
            r = 0;
        } else if (vg_now_usec() > until) {
            r = vg_err_set(err, VG_TIMEOUT, "the cloud at %s is not ready after 20 s: see %s/log",
                           up->home, up->home);
        } else {
            struct pollfd p[2] = {{.fd = watch, .events = POLLIN},
                                  {.fd = report_fd, .events = POLLIN}};
            char drop[4096];
            poll(p, 2, wait_ms);
            while (read(watch, drop, sizeof(drop)) > 0)
                continue;
            if (p[1].revents)
                r = explain_death(up, report_fd, err);
        }
    }
    vg_client_close(c);
    return r;
}

static void print_ready(const struct vg_up *up, const struct readiness *r, bool already) {
    char where[VG_HOME_MAX];
    vg_home_short(up->home, where, sizeof(where));
    printf("Virga %s %s at %s\n", r->version, already ? "is already up" : "is up", where);
    if (up->no_agent)
        printf("address %s, no node yet: 'virga node invite' lets one in\n",
               *r->address ? r->address : "none");
    else
        printf("%u node%s ready, address %s\n", r->nodes_ready, r->nodes_ready == 1 ? "" : "s",
               *r->address ? r->address : "none");
    if (*r->url)
        printf("dashboard %s ('virga dashboard' signs you in)\n", r->url);
    printf("next: vrun hostname\n");
}

static int up_foreground(const struct vg_up *up, int lock_fd) {
    return supervise(up, lock_fd, -1);
}

/* What was said this time is kept; what was not said is as last time ("auto" forgets it). */
static int recall(struct vg_up *up, struct vg_up_memory *m, struct vg_err *err) {
    int r = vg_up_memory_read(up->home, m, err);
    if (r < 0)
        return r;
    const struct {
        const char **said;
        char *kept;
        size_t room;
    } all[] = {{&up->listen, m->listen, sizeof(m->listen)}, {&up->gpus, m->gpus, sizeof(m->gpus)}};
    bool changed = false;
    for (unsigned i = 0; i < VG_COUNT(all); i++) {
        if (*all[i].said) {
            const char *value = strcmp(*all[i].said, "auto") == 0 ? "" : *all[i].said;
            if (strlen(value) >= all[i].room || strchr(value, '\n'))
                return vg_err_set(err, VG_INVALID, "'%.60s' is too long or holds a line break",
                                  value);
            changed |= strcmp(value, all[i].kept) != 0;
            snprintf(all[i].kept, all[i].room, "%s", value);
        }
        *all[i].said = *all[i].kept ? all[i].kept : NULL;
    }
    return changed ? vg_up_memory_write(up->home, m, err) : 0;
}

static int up_run(struct vg_up *up, const char *group, struct vg_err *err) {
    struct readiness ready = {0};
    struct vg_up_memory memory;
    int r = find_programs(up, err);
    if (r >= 0)
        r = make_home(up, err);
    bool said = up->listen || up->gpus || group;
    if (r >= 0)
        r = recall(up, &memory, err);
    if (r >= 0 && group)
        r = vg_up_let_in(up->home, group, err);
    if (r < 0)
        return r;
    vg_auto_fd int lock_fd = take_lock(up, err);
    bool already = lock_fd == -EBUSY;
    if (lock_fd < 0 && !already)
        return lock_fd;
    if (up->foreground && already)
        return vg_err_set(err, VG_CONFLICT, "the cloud at %s is already up: 'virga down' ends it",
                          up->home);
    if (up->foreground)
        return up_foreground(up, lock_fd);
    /* A failed start leaves alive what an earlier run left alive, and otherwise nothing. */
    bool fresh = !vg_cloud_left_behind(up->home);
    vg_auto_fd int report_fd = already ? -1 : launch(up, lock_fd, err);
    if (report_fd < 0 && !already)
        return report_fd;
    vg_close(&lock_fd);
    r = await_ready(up, report_fd, &ready, err);
    if (r >= 0)
        print_ready(up, &ready, already);
    if (r >= 0 && already && said)
        vg_cmd_say("the options are remembered and take effect after 'virga down' and 'virga up'");
    if (r < 0 && !already)
        vg_part_stop(up->home, VG_PART_UP, fresh ? SIGUSR2 : SIGTERM, READY_USEC / 1000);
    return r;
}

static const struct vg_opt opts[] = {
    {"listen", 0, "HOST:PORT", "where other machines reach this cloud (TLS)", 'l'},
    {"group", 0, "GROUP", "let the members of this unix group use it", 'g'},
    {"gpus", 0, "N",
     "offer N GPUs instead of what is found; auto: as found; fake:N: simulated ones", 'n'},
    {"foreground", 'f', NULL, "stay, and log to stderr (for service managers)", 'f'},
    {"no-agent", 0, NULL, "control plane only", 'a'},
};

static int parse(struct vg_cmd_line *l, struct vg_up *up, const char **group) {
    const char *arg;
    uint64_t n;
    for (int id; (id = vg_cmd_next(l, &arg)) != VG_OPT_END;) {
        if (id == VG_OPT_ERROR)
            return -1;
        if (id == 'l')
            up->listen = arg;
        if (id == 'g')
            *group = arg;
        if (id == 'f')
            up->foreground = true;
        if (id == 'a')
            up->no_agent = true;
        const char *digits = id == 'n' && strncmp(arg, "fake:", 5) == 0 ? arg + 5 : arg;
        if (id == 'n' && strcmp(arg, "auto") != 0 && vg_opt_u64(&l->st, digits, 0, 64, &n) < 0) {
            l->exit = vg_cmd_fail_opt(l);
            return -1;
        }
        if (id == 'n')
            up->gpus = arg;
    }
    return vg_cmd_args(l, 0, 0) ? 0 : -1;
}

static int run(struct vg_cmd_line *l) {
    struct vg_up up = {0};
    struct vg_err err = VG_ERR_INIT;
    const char *group = NULL;
    if (parse(l, &up, &group) < 0)
        return l->exit;
    if (group && !getgrnam(group)) {
        vg_err_set(&err, VG_NOT_FOUND,
                   "there is no group '%.60s' on this machine: create it with 'groupadd'", group);
        return vg_cmd_fail(&err);
    }
    if (geteuid() != 0) {
        vg_err_set(&err, VG_NEEDS_ROOT,
                   "virga up needs root to build sandboxes: run it with sudo, or join an existing "
                   "cloud with 'virga login'");
        return vg_cmd_fail(&err);
    }
    int r = vg_home_dir(up.home, sizeof(up.home), &err);
    if (r >= 0)
        r = up_run(&up, group, &err);
    return r < 0 ? vg_cmd_fail(&err) : r;
}

const struct vg_cmd vg_cmd_up = {.name = "up",
                                 .args = "",
                                 .summary = "start the cloud of this machine",
                                 .opts = opts,
                                 .n_opts = VG_COUNT(opts),
                                 .run = run};
