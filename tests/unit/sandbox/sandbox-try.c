/* sandbox-try [options] -- COMMAND...: prepares a sandbox, runs a command in it with our own stdio,
   and exits with its status (128+n for a signal, 126/127 when it could not be executed, 125 when
   the sandbox could not). For people who work on the sandbox, and for the tests.

   --uid N --gid N --group N   who runs inside (default 0 0)      --slot N     id range (default 7)
   --home DIR --cwd DIR        --bind DIR --bind-ro DIR            --device PATH
   --remote                    the caller is not this machine's root
   --cpu MILLI --mem SIZE --pids N --disk SIZE                    --net host|none
   --resolv TEXT               --tty                               --virga-home DIR --sock PATH
   --env K=V                   --usage                             --repeat N (timings on stderr)
   --warm N                    commands per sandbox with --repeat
   --root DIR                  a mirrored root, made of this folder as it is (below other --root)
   --view DIR=AT               with it: DIR as a folder that is written back
   --library PATH              with it: a driver library of the node
   --lay FILE=AT               a file of the node that lies over another inside (VG_SANDBOX_SHARE)
   --host-uid N --host-gid N   with it: who owns the person's files in what is bound */
#include "base/cleanup.h"
#include "base/fault.h"
#include "base/util.h"
#include "gpu/warden-notify.h"
#include "sandbox/sandbox.h"
#include "sandbox/sys.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>

#define BINDS 16

struct opts {
    struct vg_sandbox_profile profile;
    struct vg_sandbox_node_conf conf;
    struct vg_exec x;
    struct vg_limits limits;
    struct vg_bind binds[BINDS];
    struct vg_device devices[BINDS];
    gid_t groups[BINDS];
    char *env[64];
    size_t n_env;
    unsigned repeat, warm;
    bool usage, faults;
    const char *roots[BINDS], *view_dirs[BINDS], *libraries[BINDS];
    struct vg_sandbox_root root;
    struct vg_sandbox_view views[BINDS];
    int layers[BINDS];
    size_t n_roots, n_views;
    struct vg_lay lay;
    struct vg_lay_file laid[BINDS];
    uint64_t share_bytes; /* of a GPU; 0: it is not shared */
    struct vg_warden_watch *watch;
};

static double now_usec(clockid_t id) {
    struct timespec t;
    clock_gettime(id, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

/* CPU of this process and of all children it has waited for. */
static double cpu_usec(void) {
    double sum = 0;
    for (int i = 0; i < 2; i++) {
        struct rusage u;
        getrusage(i ? RUSAGE_CHILDREN : RUSAGE_SELF, &u);
        sum += (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) * 1e6 +
               (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
    }
    return sum;
}

static int die(const struct vg_err *err) {
    fprintf(stderr, "sandbox-try: %s\n", err->msg);
    return 125;
}

static void pump(int from, int to) {
    char buf[65536];
    ssize_t n = read(from, buf, sizeof(buf));
    if (n > 0)
        (void)vg_write_full(to, buf, (size_t)n);
}

/* As a keeper does it for a share of a GPU. */
static void be_warden(struct opts *o, int listener) {
    struct stat st = {0};
    struct vg_err err = VG_ERR_INIT;
    const char *devices[BINDS];
    size_t n = 0;
    for (size_t i = 0; i < o->x.n_devices; i++)
        if (!strncmp(o->devices[i].path, "/dev/nvidia", 11) && o->devices[i].path[11] >= '0' &&
            o->devices[i].path[11] <= '9')
            devices[n++] = o->devices[i].path;
    (void)stat("/dev/nvidia-uvm", &st);
    const struct vg_warden_setup setup = {.listener = listener,
                                          .devices = devices,
                                          .n_devices = n,
                                          .limit_bytes = o->share_bytes,
                                          .managed_device = st.st_rdev};
    if (vg_warden_start(&setup, &o->watch, &err) < 0)
        fprintf(stderr, "sandbox-try: %s\n", err.msg);
}

static void end_warden(struct opts *o) {
    struct vg_warden_stat s;
    if (!o->watch)
        return;
    vg_warden_look(o->watch, &s);
    fprintf(stderr, "warden peak=%llu refused=%llu strange=%llu\n",
            (unsigned long long)s.peak_bytes, (unsigned long long)s.refused,
            (unsigned long long)s.strange);
    vg_warden_stop(o->watch);
    o->watch = NULL;
}

/* Waits for the end of the command; returns its exit status. */
static int follow(struct vg_sandbox *sb, struct opts *o, int master, double *ret_started) {
    for (;;) {
        struct pollfd p[3] = {
            {vg_sandbox_fd(sb), POLLIN, 0}, {master, POLLIN, 0}, {master >= 0 ? 0 : -1, POLLIN, 0}};
        if (poll(p, 3, -1) < 0)
            continue;
        if (p[1].revents & POLLIN)
            pump(master, 1);
        if (p[2].revents & POLLIN)
            pump(0, master);
        struct vg_sandbox_event e;
        while (p[0].revents && vg_sandbox_next_event(sb, &e) == 1) {
            if (e.kind == VG_SB_WATCHED)
                be_warden(o, e.fd);
            if (e.kind == VG_SB_STARTED && ret_started)
                *ret_started = now_usec(CLOCK_MONOTONIC);
            if (e.kind == VG_SB_STOPPED)
                fprintf(stderr, "sandbox-try: stopped by signal %d\n", e.code);
            if (e.kind == VG_SB_STOPPED)
                vg_sandbox_signal(sb, e.tag, SIGCONT, true);
            if (e.kind == VG_SB_EXEC_FAILED) {
                fprintf(stderr, "sandbox-try: %s\n", e.text);
                return e.code == ENOENT ? 127 : 126;
            }
            if (e.kind == VG_SB_DEAD) {
                fprintf(stderr, "sandbox-try: the sandbox died\n");
                return 125;
            }
            if (e.kind != VG_SB_EXITED)
                continue;
            while (master >= 0 && poll(&p[1], 1, 0) > 0 && p[1].revents & POLLIN)
                pump(master, 1);
            return WIFEXITED(e.code) ? WEXITSTATUS(e.code) : 128 + WTERMSIG(e.code);
        }
    }
}

static int fill(void *ud, int folder, struct vg_err *err) {
    (void)ud;
    vg_auto_fd int fd = openat(folder, "page", O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0444);
    if (fd < 0 || write(fd, "shown\n", 6) != 6)
        return vg_err_sys(err, -errno, "cannot write the page");
    return 0;
}

static int run_once(struct vg_sandbox *sb, struct opts *o, uint64_t tag, double *ret_started,
                    struct vg_err *err) {
    int master = -1, slave = -1;
    if (o->x.tty) {
        int r = vg_sandbox_open_pty(sb, o->x.uid, o->x.gid, &master, &slave);
        if (r < 0)
            return vg_err_sys(err, r, "cannot open a terminal"), 125;
        for (int i = 0; i < 3; i++)
            o->x.fds[i] = slave;
    }
    int r = vg_sandbox_exec(sb, tag, &o->x, err);
    vg_close(&slave);
    if (r < 0)
        return die(err);
    r = follow(sb, o, master, ret_started);
    end_warden(o);
    vg_close(&master);
    return r;
}

static void show_usage(struct vg_sandbox *sb) {
    struct vg_usage u;
    vg_sandbox_usage(sb, &u);
    fprintf(stderr, "usage cpu_usec=%llu mem=%llu peak=%llu disk=%llu pids=%u oom=%d\n",
            (unsigned long long)u.cpu_usec, (unsigned long long)u.mem_bytes,
            (unsigned long long)u.mem_peak_bytes, (unsigned long long)u.disk_bytes, u.pids, u.oom);
    struct vg_left left;
    vg_sandbox_left(sb, &left);
    fprintf(stderr, "left processes=%u sysv=%u queues=%u\n", left.processes, left.sysv,
            left.queues);
}

static int detach(const char *dir) {
    int fd = (int)vg_sys_open_tree(AT_FDCWD, dir, OPEN_TREE_CLONE | O_CLOEXEC);
    if (fd < 0)
        fprintf(stderr, "sandbox-try: cannot take %s: %s\n", dir, strerror(errno));
    return fd;
}

/* As a keeper does it; with --root the mounts are made anew each time. */
static int prepare(struct vg_sandbox_node *node, struct opts *o, const char *name,
                   struct vg_sandbox **ret, struct vg_err *err) {
    for (size_t i = 0; i < o->n_roots; i++)
        o->layers[i] = detach(o->roots[i]);
    for (size_t i = 0; i < o->n_views; i++)
        o->views[i].fd = detach(o->view_dirs[i]);
    o->root.layers = o->layers;
    o->root.n_lower = o->n_roots;
    o->root.views = o->views;
    o->root.n_views = o->n_views;
    o->root.libraries = o->libraries;
    o->root.uid = o->x.uid;
    o->root.gid = o->x.gid;
    if (o->n_roots) {
        o->profile.root = &o->root;
        o->profile.uid = 0;
        o->profile.gid = 0;
        o->profile.local_root = false;
    }
    int r = vg_sandbox_prepare(node, &o->profile, name, ret, err);
    for (size_t i = 0; i < o->n_roots; i++)
        vg_close(&o->layers[i]);
    for (size_t i = 0; i < o->n_views; i++)
        vg_close(&o->views[i].fd);
    return r;
}

enum phase { PREPARE, STARTED, EXITED, DESTROYED, PHASES };
static const char *const phase_names[] = {"prepare", "exec to started", "started to exited",
                                          "destroy"};

static int cmp(const void *a, const void *b) {
    double d = *(const double *)a - *(const double *)b;
    return d < 0 ? -1 : d > 0;
}

static void report(double *t[PHASES], unsigned n, double cpu) {
    for (int i = 0; i < PHASES; i++) {
        qsort(t[i], n, sizeof(double), cmp);
        fprintf(stderr, "%-18s p50 %7.0f us  p90 %7.0f us  max %7.0f us\n", phase_names[i],
                t[i][n / 2], t[i][n * 9 / 10], t[i][n - 1]);
    }
    fprintf(stderr, "cpu per round      %.0f us (this process and its children)\n", cpu / n);
}

static int repeat(struct vg_sandbox_node *node, struct opts *o, struct vg_err *err) {
    double *t[PHASES];
    int status = 0;
    for (int i = 0; i < PHASES; i++)
        if (!(t[i] = calloc(o->repeat, sizeof(double))))
            return 125;
    double cpu = cpu_usec();
    for (unsigned i = 0; i < o->repeat; i++) {
        char name[32];
        struct vg_sandbox *sb;
        snprintf(name, sizeof(name), "try-%d-%u", (int)getpid(), i);
        double a = now_usec(CLOCK_MONOTONIC), b, c = 0, d;
        if (prepare(node, o, name, &sb, err) < 0)
            return die(err);
        t[PREPARE][i] = now_usec(CLOCK_MONOTONIC) - a;
        for (unsigned k = 0; k < o->warm; k++) {
            b = now_usec(CLOCK_MONOTONIC);
            status = run_once(sb, o, 1 + k, &c, err);
            d = now_usec(CLOCK_MONOTONIC);
            t[STARTED][i] = c - b;
            t[EXITED][i] = d - c;
        }
        d = now_usec(CLOCK_MONOTONIC);
        vg_sandbox_destroy(sb);
        t[DESTROYED][i] = now_usec(CLOCK_MONOTONIC) - d;
    }
    report(t, o->repeat, cpu_usec() - cpu);
    for (int i = 0; i < PHASES; i++)
        free(t[i]);
    return status;
}

static int once(struct vg_sandbox_node *node, struct opts *o, struct vg_err *err) {
    char name[32];
    struct vg_sandbox *sb;
    snprintf(name, sizeof(name), "try-%d", (int)getpid());
    if (prepare(node, o, name, &sb, err) < 0)
        return die(err);
    int status = run_once(sb, o, 1, NULL, err);
    if (o->usage)
        show_usage(sb);
    vg_sandbox_destroy(sb);
    return status;
}

/* Fails the 1st, 2nd, ... step of prepare until none is left to fail. */
static int faults(struct vg_sandbox_node *node, struct opts *o, struct vg_err *err) {
    unsigned n = 1;
    for (; n < 1000; n++) {
        struct vg_sandbox *sb = NULL;
        vg_fault_arm(n, ENOMEM, NULL);
        int r = prepare(node, o, "fault", &sb, err);
        vg_fault_disarm();
        vg_sandbox_destroy(r < 0 ? NULL : sb);
        if (r >= 0)
            break;
    }
    printf("%u steps failed cleanly\n", n - 1);
    return n < 2 || n == 1000;
}

static const struct option long_opts[] = {
    {"uid", 1, 0, 'u'},      {"gid", 1, 0, 'g'},          {"group", 1, 0, 'G'},
    {"slot", 1, 0, 's'},     {"home", 1, 0, 'h'},         {"cwd", 1, 0, 'C'},
    {"bind", 1, 0, 'b'},     {"bind-ro", 1, 0, 'B'},      {"device", 1, 0, 'd'},
    {"remote", 0, 0, 'r'},   {"cpu", 1, 0, 'c'},          {"mem", 1, 0, 'm'},
    {"pids", 1, 0, 'p'},     {"disk", 1, 0, 'D'},         {"net", 1, 0, 'n'},
    {"resolv", 1, 0, 'R'},   {"tty", 0, 0, 't'},          {"usage", 0, 0, 'U'},
    {"repeat", 1, 0, 'x'},   {"virga-home", 1, 0, 'H'},   {"warm", 1, 0, 'w'},
    {"env", 1, 0, 'e'},      {"sock", 1, 0, 'S'},         {"faults", 0, 0, 'F'},
    {"root", 1, 0, '1'},     {"view", 1, 0, '2'},         {"library", 1, 0, '3'},
    {"host-uid", 1, 0, '4'}, {"host-gid", 1, 0, '5'},     {"share", 1, 0, '6'},
    {"lay", 1, 0, '7'},      {"open-devices", 0, 0, '8'}, {0}};

static int parse(int argc, char **argv, struct opts *o) {
    uint64_t v = 0;
    for (int c; (c = getopt_long(argc, argv, "+", long_opts, NULL)) != -1;) {
        bool number = strchr("ugGscmpDxw456", c), size = c == 'm' || c == 'D' || c == '6';
        if (number && (size ? vg_parse_size(optarg, &v) : vg_parse_u64(optarg, &v)) < 0)
            return -1;
        struct vg_bind *b = &o->binds[o->x.n_binds];
        switch (c) {
        case 'u':
            o->x.uid = o->profile.uid = (uid_t)v;
            break;
        case 'g':
            o->x.gid = o->profile.gid = (gid_t)v;
            break;
        case 'G':
            o->groups[o->x.n_groups++ % BINDS] = (gid_t)v;
            break;
        case 's':
            o->profile.slot = (uint32_t)v;
            break;
        case 'h':
            o->profile.home = optarg;
            break;
        case 'C':
            o->x.cwd = optarg; /* fall through */
        case 'b':
        case 'B':
            *b = (struct vg_bind){optarg, open(optarg, O_PATH | O_CLOEXEC), c == 'B'};
            o->x.n_binds += o->x.n_binds < BINDS - 1;
            break;
        case 'd':
            o->devices[o->x.n_devices++ % BINDS].path = optarg;
            break;
        case '8':
            o->x.open_devices = true;
            break;
        case 'r':
            o->profile.local_root = false;
            break;
        case 'c':
            o->limits.cpu_milli = (uint32_t)v;
            break;
        case 'm':
            o->limits.mem_bytes = v;
            break;
        case 'p':
            o->limits.pids = (uint32_t)v;
            break;
        case 'D':
            o->limits.disk_bytes = v;
            break;
        case 'n':
            o->profile.netns_fd = strcmp(optarg, "host") ? -2 : -1;
            break;
        case 'R':
            o->profile.resolv_conf = optarg;
            break;
        case 't':
            o->x.tty = true;
            break;
        case 'U':
            o->usage = true;
            break;
        case 'x':
            o->repeat = (unsigned)v;
            break;
        case 'w':
            o->warm = (unsigned)v;
            break;
        case 'e':
            o->env[o->n_env++ % 60] = optarg;
            break;
        case 'H':
            o->conf.home = optarg;
            break;
        case 'S':
            o->conf.agent_sock = optarg;
            break;
        case 'F':
            o->faults = true;
            break;
        case '1':
            o->roots[o->n_roots++ % BINDS] = optarg;
            break;
        case '2':
            if (!strchr(optarg, '='))
                return -1;
            o->view_dirs[o->n_views % BINDS] = strsep(&optarg, "=");
            o->views[o->n_views++ % BINDS].path = optarg;
            break;
        case '7':
            if (!strchr(optarg, '=') || o->lay.n_files == BINDS)
                return -1;
            o->laid[o->lay.n_files].from = strsep(&optarg, "=");
            o->laid[o->lay.n_files++].at = optarg;
            o->lay.folder = VG_SANDBOX_SHARE;
            o->lay.files = o->laid;
            o->lay.fill = fill;
            o->x.lay = &o->lay;
            break;
        case '4':
            o->root.host_uid = (uid_t)v;
            break;
        case '5':
            o->root.host_gid = (gid_t)v;
            break;
        case '6':
            o->share_bytes = v;
            o->x.watched = true;
            vg_warden_filter(&o->conf.watch);
            break;
        case '3':
            o->libraries[o->root.n_libraries++ % BINDS] = optarg;
            break;
        default:
            return -1;
        }
    }
    o->x.argv = argv + optind;
    return optind < argc || o->faults ? 0 : -1;
}

int main(int argc, char **argv) {
    static char path_env[] = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
    static struct opts o = {.profile = {.slot = 7, .local_root = true, .netns_fd = -1},
                            .x = {.cwd = "/", .umask = 022, .fds = {0, 1, 2}},
                            .warm = 1};
    char dir[] = "/tmp/sandbox-try-XXXXXX", sub[64], tag[16];
    o.env[o.n_env++] = path_env;
    if (parse(argc, argv, &o) < 0) {
        fprintf(stderr, "usage: sandbox-try [options] -- COMMAND... (see its source)\n");
        return 125;
    }
    if (!o.conf.home && !(o.conf.home = mkdtemp(dir)))
        return 125;
    snprintf(sub, sizeof(sub), "%s/node", o.conf.home);
    snprintf(tag, sizeof(tag), "try%d", (int)getpid());
    o.conf.dir = sub;
    o.conf.tag = tag;
    o.conf.self_exe = "/proc/self/exe";
    o.x.env = o.env;
    o.x.binds = o.binds;
    o.x.devices = o.devices;
    o.x.groups = o.groups;
    o.x.limits = &o.limits;
    struct vg_err err = VG_ERR_INIT;
    struct vg_sandbox_node *node;
    int status = 125;
    if (vg_sandbox_node_open(&o.conf, &node, &err) < 0) {
        die(&err);
    } else {
        if (vg_sandbox_node_warm(node, &o.profile, &err) < 0)
            die(&err);
        else
            status = o.faults   ? faults(node, &o, &err)
                     : o.repeat ? repeat(node, &o, &err)
                                : once(node, &o, &err);
        vg_sandbox_node_close(node);
    }
    rmdir(sub);
    if (o.conf.home == dir)
        rmdir(dir);
    return status;
}
