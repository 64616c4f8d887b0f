/* vrun, vbatch and virga attach: options into one request, then the session. Everything the request
   points at lives until the process ends, so nothing is copied and nothing is freed. */
#include "cli/run.h"

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"
#include "cli/run-int.h"
#include "cli/spec-opts.h"

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

#define HOLD_REMOTE (300 * VG_USEC)

static struct run the_run;
static struct vg_spec_opts set;
static uint32_t closed_fds; /* of 0, 1, 2 */

const struct vg_opt *vg_run_options(bool batch, size_t *ret_n) {
    return vg_spec_table(batch, ret_n);
}

static void usage(bool batch) {
    size_t n;
    const struct vg_opt *opts = vg_spec_table(batch, &n);
    printf("Usage: %s [options] [--] COMMAND [ARGUMENT...]\n\n%s\n\nOptions:\n",
           batch ? "vbatch" : "vrun",
           batch ? "Queues a command; prints the task's id. The cloud runs it when there is room."
                 : "Runs a command on the cloud as if it ran here.");
    vg_opt_help(stdout, opts, n);
    printf("\nMore: man %s, virga help\n", batch ? "vbatch" : "vrun");
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
    return S_ISFIFO(st.st_mode) || S_ISREG(st.st_mode) || (set.duplex && S_ISSOCK(st.st_mode));
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

static int check_duplex(struct run *r, struct vg_err *err) {
    struct stat st;
    if (!set.duplex)
        return 0;
    if (!r->spec.stdin_open || r->tty || fstat(0, &st) < 0 || !S_ISSOCK(st.st_mode))
        return vg_err_set(err, VG_INVALID,
                          "--duplex is for a program that gives a socket as standard input");
    r->spec.has_duplex = r->spec.duplex = true;
    return 0;
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
    if ((e = check_duplex(r, err)) < 0)
        return e;
    Vg__Pb__TaskSpec *s = &r->spec;
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
    r->req.task_id = r->task_id;
    r->req.spec = s;
    r->req.has_wait_durable = true;
    r->req.wait_durable = s->detached;
    r->req.has_dry_run = r->req.dry_run = set.dry_run;
    r->req.has_mirrors = r->req.mirrors = !set.node_files && !set.environment && !set.image;
    return 0;
}

static int fail(struct run *r, const struct vg_err *err) {
    run_say(r, "%s", err->msg);
    return vg_reason_exit(err->reason);
}

/* Files are served to one task, a copy of them to a group; others have the nodes' own. */
static bool without_files(struct run *r) {
    if (!vg_spec_opts_several(&r->spec) || vg_spec_opts_pins(&set))
        return false;
    run_note(r, r->spec.schedule
                    ? "a schedule's tasks find the nodes' own files, not this machine's: for "
                      "others give --env NAME (see 'virga env save')"
                    : "--live, --allow and --sync are for one task: several find the nodes' own "
                      "files then, not this machine's");
    r->spec.has_node_files = r->spec.node_files = true;
    return true;
}

static int print_id(struct run *r, int fd) {
    char line[VG_ID_LEN + 2];
    vg_id_format(r->task_id, line);
    line[VG_ID_LEN] = '\n';
    return vg_write_full(fd, line, VG_ID_LEN + 1);
}

/* For programs that run vrun and want to speak of its task. The name is as it was typed here, so
   the file is opened before -C is followed. */
static int tell_id(struct run *r, struct vg_err *err) {
    if (!set.id_file)
        return 0;
    vg_auto_fd int fd = open(set.id_file, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0 || print_id(r, fd) < 0)
        return vg_err_sys(err, errno, "cannot write the task's id to '%s'", set.id_file);
    return 0;
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
    r->ctl = r->cwd_fd = r->stdin_fd = r->mirror_fd = r->way = -1;
    r->set = &set;
    r->chan[0].fd = r->chan[1].fd = r->chan[0].ring_fd = r->chan[1].ring_fd = -1;
}

/* Options into `set`. 0, 1 help was shown, or -errno with err. *ret_index is the command's. */
static int parse(struct run *r, int argc, char **argv, int *ret_index, struct vg_err *err) {
    struct vg_opt_state st = {
        .program = r->program, .argc = argc, .argv = argv, .index = 1, .stop_at_first = true};
    const char *arg;
    vg_spec_opts_init(&set, r->batch);
    st.opts = vg_spec_table(r->batch, &st.n_opts);
    for (int id; (id = vg_opt_next(&st, &arg)) != VG_OPT_END;) {
        if (id == VG_OPT_HELP) {
            usage(r->batch);
            return 1;
        }
        if (id == VG_OPT_ERROR || vg_spec_opt(&set, &st, id, arg) < 0) {
            *err = st.err;
            return err->code;
        }
    }
    if (st.index >= argc)
        return vg_err_set(err, VG_INVALID, "no command given: try '%s hostname', or '%s --help'",
                          r->program, r->program);
    *ret_index = st.index;
    return vg_spec_opts_check(&set, err);
}

static void take_options(struct run *r) {
    r->spec = set.spec;
    r->quiet = set.quiet;
    r->follow = set.follow && !set.dry_run;
    r->detach = r->batch || set.detach || set.dry_run;
    r->dry_run = set.dry_run;
    r->patient = r->batch || set.spec.retries > 0;
}

int vg_run_main(int argc, char **argv, bool batch) {
    struct run *r = &the_run;
    struct vg_err err = VG_ERR_INIT;
    int command = 0;
    init(r, batch ? "vbatch" : "vrun");
    r->batch = batch;
    int e = parse(r, argc, argv, &command, &err);
    if (e)
        return e > 0 ? 0 : fail(r, &err);
    take_options(r);
    /* A channel shows one attempt of one task; where there may be more, the stored output does. */
    bool stored = r->follow && (vg_spec_count(&r->spec) > 1 || r->spec.gang || r->spec.n_sweep ||
                                r->spec.retries || r->spec.preemptible);
    if (vg_endpoint_find(&r->ep, &err) < 0)
        return fail(r, &err);
    bool far = r->ep.kind == VG_ENDPOINT_TLS || r->ep.token[0];
    bool saved = set.environment || set.image;
    if ((far || saved || set.n_ports || stored || r->dry_run) && run_become_full(argv, &err) < 0)
        return fail(r, &err);
    if (stored)
        r->follow = false;
    r->task_id = vg_id_new();
    if (tell_id(r, &err) < 0 || fill(r, argv + command, argc - command, &err) < 0)
        return fail(r, &err);
    /* A cloud that is another machine finds this one's files there. */
    if (saved && !r->dry_run && run_environment(r, &set, &err) < 0)
        return fail(r, &err);
    if (r->ep.kind == VG_ENDPOINT_TLS && !saved && !set.node_files && !r->dry_run &&
        !without_files(r) && run_mirror(r, &set, &err) < 0)
        return fail(r, &err);
    if (run_connect(r, false, &err) < 0)
        return fail(r, &err);
    if (set.n_ports && run_forward(&r->ep, r->task_id, set.ports, set.n_ports, &err) < 0)
        return fail(r, &err);
    int status = run_session(r);
    run_mirror_end(r);
    bool followed = r->follow || (status == 0 && stored);
    if (status == 0 && stored)
        status = run_follow_stored(r);
    if (followed && r->pinned && !r->quiet)
        run_say_kept(r);
    if (followed)
        return status;
    if (r->detach && !r->dry_run && status == 0 && print_id(r, STDOUT_FILENO) < 0)
        return 1;
    return status;
}

int vg_attach_main(int argc, char **argv) {
    struct run *r = &the_run;
    struct vg_err err = VG_ERR_INIT;
    static const struct vg_opt opts[] = {
        {"no-input", 'I', NULL, "look only; send nothing", 'I'},
        {"quiet", 'q', NULL, "say nothing of our own", 'q'},
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
        if (id == VG_OPT_ERROR)
            return fail(r, &st.err);
        set.no_input |= id == 'I';
        r->quiet |= id == 'q';
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
