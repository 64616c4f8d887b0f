/* vrun, vbatch and virga attach: options into one request, then the session. Everything the request
   points at lives until the process ends, so nothing is copied and nothing is freed. */
#include "cli/run.h"

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"
#include "cli/opt.h"
#include "cli/run-int.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

extern char **environ;

#define PORTS_MAX 64
#define LABELS_MAX 64
#define HOLD_REMOTE (300 * VG_USEC)

enum {
    O_POOL = 1,
    O_GPUS,
    O_CPUS,
    O_MEM,
    O_SESSION,
    O_KEEP,
    O_DETACH,
    O_ENV,
    O_DIR,
    O_PORT,
    O_TTY,
    O_NOINPUT,
    O_QUIET,
    O_NAME,
    O_LABEL,
    O_PRIORITY,
    O_TIME,
    O_RETRIES,
    O_FOLLOW,
};

#define COMMON_OPTS                                                                                \
    {"pool", 'P', "NAME", "run on this pool (virga pool list)", O_POOL},                           \
        {"gpus", 0, "N", "GPUs to hold", O_GPUS},                                                  \
        {"cpus", 0, "N", "CPUs to hold; 0.5 is half of one", O_CPUS},                              \
        {"mem", 0, "SIZE", "memory to hold, and the limit: 512M, 8G", O_MEM},                      \
        {"session", 's', "NAME", "run in this named session; made when there is none", O_SESSION}, \
        {"keep", 0, "DURATION", "how long the session stays after its last command", O_KEEP},      \
        {"env", 'e', "KEY[=V]", "set a variable for the command", O_ENV},                          \
        {"directory", 'C', "DIR", "start in this directory", O_DIR},                               \
        {"name", 'n', "NAME", "name the task", O_NAME},                                            \
        {"label", 'l', "K=V", "label the task; may be given again", O_LABEL},                      \
        {"priority", 0, "P", "0 to 100, default 50; higher goes first", O_PRIORITY},               \
        {"time", 0, "LIMIT", "end it after this long: 90s, 10m, 2h", O_TIME},                      \
        {"retries", 0, "N", "start it again up to N times when it fails", O_RETRIES}, {            \
        "quiet", 'q', NULL, "say nothing of our own", O_QUIET                                      \
    }

static const struct vg_opt run_opts[] = {
    COMMON_OPTS,
    {"detach", 'd', NULL, "print the task's id and leave it running", O_DETACH},
    {"publish", 'p', "[HOST:]LOCAL:REMOTE", "forward a local port to one of the task's", O_PORT},
    {"tty", 0, "auto|yes|no", "give the command a terminal", O_TTY},
    {"no-input", 'I', NULL, "leave standard input alone", O_NOINPUT},
};

static const struct vg_opt batch_opts[] = {
    COMMON_OPTS,
    {"follow", 'f', NULL, "show its output; exit with its status", O_FOLLOW},
};

struct settings {
    int tty; /* 0 auto, 1 yes, 2 no */
    bool no_input;
    const char *dir;
    const char *ports[PORTS_MAX];
    size_t n_ports;
    const char *set_env[1024];
    size_t n_set_env;
    char *labels[LABELS_MAX];
    size_t n_labels;
};

static struct run the_run;
static Vg__Pb__Resources want = VG__PB__RESOURCES__INIT;
static struct settings set;
static uint32_t closed_fds; /* of 0, 1, 2 */

const struct vg_opt *vg_run_options(bool batch, size_t *ret_n) {
    *ret_n = batch ? VG_COUNT(batch_opts) : VG_COUNT(run_opts);
    return batch ? batch_opts : run_opts;
}

static void usage(bool batch) {
    printf("Usage: %s [options] [--] COMMAND [ARGUMENT...]\n\n%s\n\nOptions:\n",
           batch ? "vbatch" : "vrun",
           batch ? "Queues a command; prints the task's id. The cloud runs it when there is room."
                 : "Runs a command on the cloud as if it ran here.");
    if (batch)
        vg_opt_help(stdout, batch_opts, VG_COUNT(batch_opts));
    else
        vg_opt_help(stdout, run_opts, VG_COUNT(run_opts));
    printf("\nMore: man %s, virga help\n", batch ? "vbatch" : "vrun");
}

static int add_label(struct vg_opt_state *st, const char *arg) {
    if (!strchr(arg, '=') || arg[0] == '=')
        return vg_opt_bad(st, "'%s' is not of the form KEY=VALUE", arg);
    if (set.n_labels == LABELS_MAX)
        return vg_opt_bad(st, "at most %d labels", LABELS_MAX);
    set.labels[set.n_labels++] = (char *)arg;
    return 0;
}

static int add_port(struct vg_opt_state *st, const char *arg) {
    struct vg_err err = VG_ERR_INIT;
    struct run_port port;
    if (set.n_ports == PORTS_MAX)
        return vg_opt_bad(st, "at most %d ports", PORTS_MAX);
    if (run_port_parse(arg, &port, &err) < 0)
        return vg_opt_bad(st, "%s", err.msg);
    set.ports[set.n_ports++] = arg;
    return 0;
}

static int add_env(struct vg_opt_state *st, const char *arg) {
    if (arg[0] == '=' || !*arg)
        return vg_opt_bad(st, "'%s' names no variable", arg);
    if (set.n_set_env == VG_COUNT(set.set_env))
        return vg_opt_bad(st, "too many");
    if (strchr(arg, '='))
        set.set_env[set.n_set_env++] = arg; /* a bare KEY is carried anyway, as all are */
    return 0;
}

static int set_gpus(struct vg_opt_state *st, const char *arg) {
    uint64_t n;
    if (strchr(arg, '.'))
        return vg_opt_bad(st,
                          "shares of a GPU are not offered by this version; ask for whole ones");
    int r = vg_opt_u64(st, arg, 0, 1024, &n);
    want.has_gpus = true;
    want.gpus = (uint32_t)n;
    return r;
}

static int set_cpus(struct vg_opt_state *st, const char *arg) {
    uint64_t n;
    int r = vg_opt_milli(st, arg, &n);
    if (r == 0 && (n == 0 || n > 4096000))
        return vg_opt_bad(st, "'%s' is not a number of CPUs: give for example 2 or 0.5", arg);
    want.has_cpu_milli = true;
    want.cpu_milli = (uint32_t)n;
    return r;
}

static int take_option(struct run *r, struct vg_opt_state *st, int id, const char *arg) {
    static const char *const ttys[] = {"auto", "yes", "no", NULL};
    Vg__Pb__TaskSpec *s = &r->spec;
    uint64_t n = 0;
    int e = 0;
    switch (id) {
    case O_POOL:
        s->pool = (char *)arg;
        return 0;
    case O_GPUS:
        return set_gpus(st, arg);
    case O_CPUS:
        return set_cpus(st, arg);
    case O_MEM:
        e = vg_opt_size(st, arg, &want.mem_bytes);
        want.has_mem_bytes = true;
        return e;
    case O_SESSION:
        s->session = (char *)arg;
        return 0;
    case O_KEEP:
        s->has_session_keep_usec = true;
        return vg_opt_duration(st, arg, &s->session_keep_usec);
    case O_DETACH:
        r->detach = true;
        return 0;
    case O_FOLLOW:
        r->follow = true;
        return 0;
    case O_ENV:
        return add_env(st, arg);
    case O_DIR:
        set.dir = arg;
        return 0;
    case O_PORT:
        return add_port(st, arg);
    case O_TTY:
        return vg_opt_choice(st, arg, ttys, &set.tty);
    case O_NOINPUT:
        set.no_input = true;
        return 0;
    case O_QUIET:
        r->quiet = true;
        return 0;
    case O_NAME:
        s->name = (char *)arg;
        return 0;
    case O_LABEL:
        return add_label(st, arg);
    case O_PRIORITY:
        e = vg_opt_u64(st, arg, 0, 100, &n);
        s->has_priority = true;
        s->priority = (uint32_t)n;
        return e;
    case O_TIME:
        s->has_time_limit_usec = true;
        return vg_opt_duration(st, arg, &s->time_limit_usec);
    case O_RETRIES:
        e = vg_opt_u64(st, arg, 0, 1000, &n);
        s->has_retries = true;
        s->retries = (uint32_t)n;
        return e;
    default:
        return 0;
    }
}

/* ---- what the command would find here ---- */

static ProtobufCBinaryData bytes_of(const char *s) {
    return (ProtobufCBinaryData){.len = strlen(s), .data = (uint8_t *)s};
}

static int take_argv(struct run *r, char **argv, int argc) {
    ProtobufCBinaryData *v = vg_alloc((size_t)argc * sizeof(*v));
    if (!v)
        return -ENOMEM;
    for (int i = 0; i < argc; i++)
        v[i] = bytes_of(argv[i]);
    r->spec.argv = v;
    r->spec.n_argv = (size_t)argc;
    return 0;
}

static bool is_overridden(const char *var) {
    size_t name = strcspn(var, "=");
    for (size_t i = 0; i < set.n_set_env; i++)
        if (strncmp(set.set_env[i], var, name) == 0 && set.set_env[i][name] == '=')
            return true;
    return false;
}

static int take_env(struct run *r) {
    size_t n = 0, k = 0;
    while (environ[n])
        n++;
    ProtobufCBinaryData *v = vg_alloc((n + set.n_set_env + 1) * sizeof(*v));
    if (!v)
        return -ENOMEM;
    for (size_t i = 0; i < n; i++)
        if (!set.n_set_env || !is_overridden(environ[i]))
            v[k++] = bytes_of(environ[i]);
    for (size_t i = 0; i < set.n_set_env; i++)
        v[k++] = bytes_of(set.set_env[i]);
    r->spec.env = v;
    r->spec.n_env = k;
    return 0;
}

static int take_cwd(struct run *r, struct vg_err *err) {
    static char path[PATH_MAX + 16];
    if (set.dir && chdir(set.dir) < 0)
        return vg_err_sys(err, errno, "cannot enter '%s'", set.dir);
    r->cwd_fd = open(".", O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (!getcwd(path, sizeof(path))) {
        ssize_t n = readlink("/proc/self/cwd", path, sizeof(path) - 1);
        path[n > 0 ? n : 0] = 0;
    }
    if (path[0] != '/')
        path[0] = '/', path[1] = 0;
    r->spec.has_cwd = true;
    r->spec.cwd = bytes_of(path);
    return 0;
}

static void take_limits(struct run *r) {
    static Vg__Pb__Rlimit rows[RLIM_NLIMITS];
    static Vg__Pb__Rlimit *list[RLIM_NLIMITS];
    for (unsigned i = 0; i < RLIM_NLIMITS; i++) {
        struct rlimit rl;
        if (prlimit(0, (int)i, NULL, &rl) < 0)
            continue;
        rows[i] = (Vg__Pb__Rlimit)VG__PB__RLIMIT__INIT;
        rows[i].has_which = rows[i].has_soft = rows[i].has_hard = true;
        rows[i].which = i;
        rows[i].soft = rl.rlim_cur;
        rows[i].hard = rl.rlim_max;
        list[r->spec.n_rlimit++] = &rows[i];
    }
    r->spec.rlimit = list;
    mode_t mask = umask(0);
    umask(mask);
    r->spec.has_umask = true;
    r->spec.umask = mask;
    int nice_now = getpriority(PRIO_PROCESS, 0);
    r->spec.has_nice = nice_now > 0;
    r->spec.nice = nice_now > 0 ? (uint32_t)nice_now : 0;
}

static void take_terminal(struct run *r) {
    static Vg__Pb__Terminal t = VG__PB__TERMINAL__INIT;
    static struct termios tio;
    uint16_t size[4];
    if (run_tty_size(size)) {
        t.has_rows = t.has_cols = t.has_xpixel = t.has_ypixel = true;
        t.rows = size[0];
        t.cols = size[1];
        t.xpixel = size[2];
        t.ypixel = size[3];
    }
    if (tcgetattr(STDIN_FILENO, &tio) == 0) {
        t.has_termios = true;
        t.termios = (ProtobufCBinaryData){.len = sizeof(tio), .data = (uint8_t *)&tio};
    }
    r->spec.tty = &t;
}

/* A pipe or file can be handed on as it is: the command then reads what it reads and no more. */
static bool can_hand_on(int fd) {
    struct stat st;
    if (fstat(fd, &st) < 0)
        return false;
    return S_ISFIFO(st.st_mode) || S_ISREG(st.st_mode);
}

/* One open file under two numbers, as after 2>&1? Two openings of one file are not that, but where
   the kernel does not tell, they are taken for it. */
static bool same_file(int a, int b) {
    struct stat x, y;
    if (fstat(a, &x) < 0 || fstat(b, &y) < 0 || x.st_dev != y.st_dev || x.st_ino != y.st_ino)
        return false;
    long r = syscall(SYS_kcmp, getpid(), getpid(), 0 /* KCMP_FILE */, a, b);
    return r <= 0;
}

static void take_signals(struct run *r) {
    struct sigaction sa;
    r->spec.has_sig_ignored = true;
    for (int i = 1; i < 32; i++)
        if (sigaction(i, NULL, &sa) == 0 && sa.sa_handler == SIG_IGN)
            r->spec.sig_ignored |= 1ull << (i - 1);
}

static void take_stdio(struct run *r) {
    bool in = isatty(0), out = isatty(1), errs = isatty(2);
    Vg__Pb__TaskSpec *s = &r->spec;
    r->tty = set.tty == 1 || (set.tty == 0 && in && out && run_tty_foreground());
    if (r->tty && !r->batch && !r->detach) {
        take_terminal(r);
        s->has_stderr_apart = true;
        s->stderr_apart = !errs;
        r->tty = in;
    } else {
        r->tty = false;
        uint32_t bits = set.tty == 2 ? 0 : (out ? 1u : 0) | (errs ? 2u : 0);
        if (bits && !r->batch && !r->detach) {
            take_terminal(r);
            s->has_tty_out = true;
            s->tty_out = bits;
        }
    }
    s->has_stderr_joined = true;
    s->stderr_joined = same_file(1, 2);
    s->has_closed = true;
    s->closed = closed_fds;
    struct stat st;
    bool open_in =
        !(closed_fds & 1) && !set.no_input && !r->batch && !r->detach && fstat(0, &st) == 0;
    if (open_in && in && !run_tty_foreground())
        open_in = false;
    if (open_in && !s->tty_out && s->tty) {
        r->read_stdin = true;
    } else if (open_in && can_hand_on(0)) {
        r->stdin_fd = 0;
    } else if (open_in) {
        r->read_stdin = true;
    }
    s->has_stdin_open = true;
    s->stdin_open = open_in;
}

static int fill(struct run *r, char **argv, int argc, struct vg_err *err) {
    static char host[256];
    int e = take_cwd(r, err);
    if (e < 0)
        return e;
    if (take_argv(r, argv, argc) < 0 || take_env(r) < 0)
        return vg_err_set(err, VG_INTERNAL, "out of memory");
    take_limits(r);
    take_signals(r);
    take_stdio(r);
    Vg__Pb__TaskSpec *s = &r->spec;
    s->want = &want;
    s->label = set.labels;
    s->n_label = set.n_labels;
    s->has_interactive = s->has_detached = true;
    s->interactive = !r->batch && !r->detach;
    s->detached = r->batch || r->detach;
    if (gethostname(host, sizeof(host) - 1) == 0)
        s->client_host = host;
    bool far = r->ep.kind == VG_ENDPOINT_TLS || r->ep.token[0];
    s->has_hold_usec = true;
    s->hold_usec = far ? HOLD_REMOTE : 0;
    if (far && r->stdin_fd >= 0) {
        r->stdin_fd = -1;
        r->read_stdin = true;
    }
    r->req.has_task_id = true;
    r->req.task_id = r->task_id = vg_id_new();
    r->req.spec = s;
    r->req.has_wait_durable = true;
    r->req.wait_durable = s->detached;
    return 0;
}

static int fail(struct run *r, const struct vg_err *err) {
    run_say(r, "%s", err->msg);
    return vg_reason_exit(err->reason);
}

static int print_id(struct run *r) {
    char line[VG_ID_LEN + 2];
    vg_id_format(r->task_id, line);
    line[VG_ID_LEN] = '\n';
    return vg_write_full(STDOUT_FILENO, line, VG_ID_LEN + 1);
}

/* Our own sockets must not become standard input: fill what the caller left closed. */
static void plug_holes(void) {
    for (int fd = 0; fd < 3; fd++) {
        if (fcntl(fd, F_GETFD) >= 0)
            continue;
        closed_fds |= 1u << fd;
        if (open("/dev/null", fd == 0 ? O_WRONLY : O_RDONLY) < 0)
            return;
    }
}

static void init(struct run *r, const char *program) {
    plug_holes();
    r->program = program;
    r->req = (Vg__Pb__RunReq)VG__PB__RUN_REQ__INIT;
    r->spec = (Vg__Pb__TaskSpec)VG__PB__TASK_SPEC__INIT;
    r->ctl = r->cwd_fd = r->stdin_fd = -1;
    r->chan[0].fd = r->chan[1].fd = r->chan[0].ring_fd = r->chan[1].ring_fd = -1;
}

int vg_run_main(int argc, char **argv, bool batch) {
    struct run *r = &the_run;
    struct vg_err err = VG_ERR_INIT;
    init(r, batch ? "vbatch" : "vrun");
    r->batch = batch;
    struct vg_opt_state st = {.program = r->program,
                              .opts = batch ? batch_opts : run_opts,
                              .n_opts = batch ? VG_COUNT(batch_opts) : VG_COUNT(run_opts),
                              .argc = argc,
                              .argv = argv,
                              .index = 1,
                              .stop_at_first = true};
    const char *arg;
    for (int id; (id = vg_opt_next(&st, &arg)) != VG_OPT_END;) {
        if (id == VG_OPT_HELP) {
            usage(batch);
            return 0;
        }
        if (id == VG_OPT_ERROR || take_option(r, &st, id, arg) < 0)
            return fail(r, &st.err);
    }
    if (st.index >= argc) {
        vg_err_set(&err, VG_INVALID, "no command given: try '%s hostname', or '%s --help'",
                   r->program, r->program);
        return fail(r, &err);
    }
    r->detach |= batch;
    if (vg_endpoint_find(&r->ep, &err) < 0)
        return fail(r, &err);
    bool far = r->ep.kind == VG_ENDPOINT_TLS || r->ep.token[0];
    if ((far || set.n_ports) && run_become_full(argv, &err) < 0)
        return fail(r, &err);
    if (fill(r, argv + st.index, argc - st.index, &err) < 0 || run_connect(r, false, &err) < 0)
        return fail(r, &err);
    if (set.n_ports && run_forward(&r->ep, r->task_id, set.ports, set.n_ports, &err) < 0)
        return fail(r, &err);
    int status = run_session(r);
    if (r->detach && !r->follow && status == 0 && print_id(r) < 0)
        return 1;
    return status;
}

int vg_attach_main(int argc, char **argv) {
    struct run *r = &the_run;
    struct vg_err err = VG_ERR_INIT;
    static const struct vg_opt opts[] = {
        {"no-input", 'I', NULL, "look only; send nothing", O_NOINPUT},
        {"quiet", 'q', NULL, "say nothing of our own", O_QUIET},
    };
    init(r, "virga");
    r->attach = true;
    struct vg_opt_state st = {.program = r->program,
                              .opts = opts,
                              .n_opts = VG_COUNT(opts),
                              .argc = argc,
                              .argv = argv,
                              .index = 1,
                              .stop_at_first = true};
    const char *arg;
    for (int id; (id = vg_opt_next(&st, &arg)) != VG_OPT_END;) {
        if (id == VG_OPT_HELP) {
            printf("Usage: virga attach [options] TASK\n\n"
                   "Shows a running task's output from its beginning and types into it.\n"
                   "Ctrl-C leaves it running when it has no terminal of its own; in a terminal, "
                   "type Enter ~ . to leave.\n\nOptions:\n");
            vg_opt_help(stdout, opts, VG_COUNT(opts));
            return 0;
        }
        if (id == VG_OPT_ERROR || take_option(r, &st, id, arg) < 0)
            return fail(r, &st.err);
    }
    if (st.index + 1 != argc) {
        vg_err_set(&err, VG_INVALID, "name one task: see 'virga task list'");
        return fail(r, &err);
    }
    r->attach_ref = argv[st.index];
    r->read_stdin = !set.no_input && (!isatty(0) || run_tty_foreground());
    if (vg_endpoint_find(&r->ep, &err) < 0 || run_connect(r, false, &err) < 0)
        return fail(r, &err);
    return run_session(r);
}
