/* mirror-try: the file service and a node's file daemon joined by a socket pair, without a cloud.
   Mounts the views of a folder that plays a machine's root and runs a command in them; prints what
   it took as one JSON object a run. Needs root; everything is mounted in a namespace of its own.

       mirror-try [options] -- COMMAND...
         --root DIR        what is served as the machine's root (default /)
         --project DIR     working folder as seen in the root: written back (default: none)
         --rtt-ms N        delay line between the two
         --mbit N          and its rate
         --runs N          how often (default 1); the second run finds what the first one left
         --state DIR       the service's state (traces, memo); default: fresh
         --cache DIR       the node's cache; default: fresh
         --public DIR      its operator's store, as `virga node seed` fills it
         --no-passthrough  as on kernels that lack it
         --deep            passthrough for the environment, too
         --compile         environments become images between the runs
         --fresh-node      every run meets a node that has nothing (the state stays)
         --asked           names what the node asked for in each run, and why it had to
         --level N         zstd: -1 by the speed of the link (default), 0 never, 1 ...
         --cut-ms N        the link breaks so often, and another takes its place */
#include "base/cleanup.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/util.h"
#include "delay.h"
#include "fs/client/client.h"
#include "fs/node/machine.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <jansson.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <uv.h>

struct options {
    const char *root, *project, *state, *cache, *public;
    uint64_t rtt_usec, rate, runs, cut_usec;
    int level;
    bool no_passthrough, deep, fresh_node, compile, asked;
    char **argv;
};
static struct options opt = {.root = "/", .runs = 1, .level = -1};
static char base[64] = "/tmp/mirror-try-XXXXXX";

_Noreturn static void die(const char *what, int code) {
    fprintf(stderr, "mirror-try: %s: %s\n", what, strerror(code < 0 ? -code : code));
    exit(125);
}

static char *below(const char *name) {
    char *p = vg_fmt("%s/%s", base, name);
    if (!p)
        die("out of memory", ENOMEM);
    return p;
}

/* ------------------------------------------------------------------ the service's process */

enum order { BEGIN, LINK, END };
struct order_packet {
    enum order kind;
    uint64_t task;
};
struct service {
    uv_loop_t loop;
    uv_poll_t poll;
    struct vg_mirror *mirror;
    struct vg_mirror_task *task;
    int fd;
};

static int begin(struct service *s, uint64_t id) {
    struct vg_err err = VG_ERR_INIT;
    struct vg_mirror_run run = {.task = id,
                                .argv = opt.argv,
                                .cwd = opt.project ? opt.project : "/",
                                .path_env = getenv("PATH")};
    int r = vg_mirror_begin(s->mirror, &run, &s->task, &err);
    if (r < 0)
        fprintf(stderr, "mirror-try: %s\n", err.msg);
    return r;
}

static void print_asked(const struct vg_mirror *m) {
    char *status = vg_mirror_status(m);
    json_t *j = status ? json_loads(status, 0, NULL) : NULL, *asked = json_object_get(j, "asked");
    size_t i;
    json_t *x;
    json_array_foreach(asked, i, x) {
        char *text = json_dumps(x, JSON_COMPACT);
        fprintf(stderr, "asked: %s\n", text ? text : "?");
        free(text);
    }
    json_decref(j);
    free(status);
}

static void on_order(uv_poll_t *poll, int status, int events) {
    struct service *s = poll->data;
    struct order_packet p;
    int fd = -1, r = 0;
    size_t n_fds = 1;
    (void)status, (void)events;
    ssize_t n = vg_recv_fds(s->fd, &p, sizeof(p), &fd, &n_fds, 0);
    if (n != sizeof(p)) {
        uv_stop(&s->loop);
        return;
    }
    if (p.kind == BEGIN)
        r = begin(s, p.task);
    else if (p.kind == LINK && s->task)
        r = vg_mirror_link(s->task, fd);
    else if (p.kind == END && s->task) {
        if (opt.asked)
            print_asked(s->mirror);
        vg_mirror_end(vg_take_ptr(s->task));
    }
    if (send(s->fd, &r, sizeof(r), MSG_NOSIGNAL) < 0)
        uv_stop(&s->loop);
}

static void serve(int fd) {
    struct service s = {.fd = fd};
    struct vg_err err = VG_ERR_INIT;
    struct vg_mirror_conf conf = {
        .root = opt.root, .home = "/root", .state = opt.state, .level = opt.level};
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    uv_loop_init(&s.loop);
    if (vg_mirror_new(&s.loop, &conf, &s.mirror, &err) < 0) {
        fprintf(stderr, "mirror-try: %s\n", err.msg);
        _exit(125);
    }
    if (send(fd, vg_mirror_machine(s.mirror), VG_MID, 0) != VG_MID)
        _exit(125);
    uv_poll_init(&s.loop, &s.poll, fd);
    s.poll.data = &s;
    uv_poll_start(&s.poll, UV_READABLE, on_order);
    uv_run(&s.loop, UV_RUN_DEFAULT);
    vg_mirror_free(s.mirror);
    _exit(0);
}

static void order(int fd, enum order kind, uint64_t task, int link) {
    struct order_packet p = {.kind = kind, .task = task};
    int r = -EPIPE;
    if (vg_send_fds(fd, &p, sizeof(p), &link, link >= 0, 0) != sizeof(p) ||
        recv(fd, &r, sizeof(r), 0) != sizeof(r) || r < 0)
        die("the service", r);
}

/* ------------------------------------------------------------------ the node */

struct node {
    struct vg_cache *cache;
    struct vg_machine *machine;
    int service;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int ready, safe, code;
    bool cutting;
    int cut_fd; /* of the link in use, ours to shut down */
    uint64_t task, cuts;
};

static void on_ready(void *user, uint64_t task, int code, const char *text) {
    struct node *n = user;
    (void)task;
    if (code)
        fprintf(stderr, "mirror-try: not ready: %s: %s\n", strerror(code), text);
    pthread_mutex_lock(&n->lock);
    n->ready = 1;
    n->code = code;
    pthread_cond_broadcast(&n->changed);
    pthread_mutex_unlock(&n->lock);
}

static void on_safe(void *user, uint64_t task, int code, const char *text) {
    struct node *n = user;
    (void)task;
    if (code)
        fprintf(stderr, "mirror-try: not safe: %s: %s\n", strerror(code), text ? text : "");
    pthread_mutex_lock(&n->lock);
    n->safe = 1;
    pthread_cond_broadcast(&n->changed);
    pthread_mutex_unlock(&n->lock);
}

static void on_note(void *user, uint64_t task, const char *text) {
    (void)user, (void)task;
    fprintf(stderr, "mirror-try: note: %s\n", text);
}

static void new_link(struct node *n, uint64_t task) {
    int ends[2];
    int r = opt.rtt_usec || opt.rate ? delay_pair(opt.rtt_usec, opt.rate, ends)
            : socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) < 0 ? -errno
                                                                           : 0;
    if (r < 0)
        die("no line", r);
    if (n->cut_fd >= 0)
        close(n->cut_fd);
    n->cut_fd = dup(ends[1]);
    order(n->service, LINK, task, ends[1]);
    close(ends[1]);
    r = vg_machine_link(n->machine, ends[0], task);
    if (r < 0)
        die("no link", r);
}

static void *cutter(void *arg) {
    struct node *n = arg;
    for (;;) {
        struct timespec t = {.tv_sec = (time_t)(opt.cut_usec / VG_USEC),
                             .tv_nsec = (long)(opt.cut_usec % VG_USEC * 1000)};
        nanosleep(&t, NULL);
        pthread_mutex_lock(&n->lock);
        bool on = n->cutting;
        pthread_mutex_unlock(&n->lock);
        if (!on)
            return NULL;
        shutdown(n->cut_fd, SHUT_RDWR);
        n->cuts++;
        new_link(n, n->task);
    }
}

static void open_node(struct node *n, const uint8_t machine[VG_MID], uint64_t number) {
    struct vg_err err = VG_ERR_INIT;
    vg_auto_free char *name = vg_fmt("node-%llu", (unsigned long long)number);
    vg_auto_free char *dir = below(name), *own = vg_fmt("%s/cache", dir);
    const char *cache = opt.cache && !opt.fresh_node ? opt.cache : own;
    struct vg_cache_conf cc = {.dir = cache, .max_bytes = 64ull << 30, .public_dir = opt.public};
    int r = vg_mkdir_p(cache, 0700);
    if (r < 0)
        die(cache, r);
    if (vg_cache_open(&cc, &n->cache, &err) < 0)
        die(err.msg, err.code);
    struct vg_machine_conf conf = {.cache = n->cache,
                                   .ids = {.slot = VG_FS_SLOT_NONE},
                                   .node = "try",
                                   .dir = dir,
                                   .cache_dir = opt.compile ? cache : NULL,
                                   .no_passthrough = opt.no_passthrough,
                                   .deep = opt.deep,
                                   .ready = on_ready,
                                   .note = on_note,
                                   .user = n};
    memcpy(conf.machine, machine, VG_MID);
    vg_random(conf.daemon, VG_MID);
    if (vg_machine_new(&conf, &n->machine, &err) < 0)
        die(err.msg, err.code);
}

static void close_node(struct node *n) {
    vg_machine_free(n->machine);
    vg_cache_close(n->cache);
}

/* ------------------------------------------------------------------ the command */

static void attach(int mount_fd, const char *path) {
    if (syscall(SYS_move_mount, mount_fd, "", AT_FDCWD, path, 4 /* MOVE_MOUNT_F_EMPTY_PATH */) < 0)
        die(path, errno);
}

_Noreturn static void command(const struct vg_machine_mounts *m) {
    vg_auto_free char *lower = below("l"), *scratch = below("s"), *root = below("r");
    vg_auto_free char *image = below("i"), *data = below("d");
    bool compiled = m->image >= 0;
    vg_auto_free char *opts =
        vg_fmt("lowerdir=%s%s%s%s%s,upperdir=%s/u,workdir=%s/w,index=off,xino=off,redirect_dir=on,"
               "metacopy=on",
               compiled ? image : "", compiled ? ":" : "", lower, compiled ? "::" : "",
               compiled ? data : "", scratch, scratch);
    vg_auto_free char *up = vg_fmt("%s/u", scratch), *work = vg_fmt("%s/w", scratch);
    static const char *const binds[] = {"proc", "sys", "dev", "tmp"};
    if (unshare(CLONE_NEWNS) < 0 || vg_mkdir_p(lower, 0755) < 0 || vg_mkdir_p(root, 0755) < 0 ||
        vg_mkdir_p(image, 0755) < 0 || vg_mkdir_p(data, 0755) < 0 ||
        vg_mkdir_p(scratch, 0755) < 0 || mount("s", scratch, "tmpfs", 0, NULL) < 0 ||
        mkdir(up, 0755) < 0 || mkdir(work, 0755) < 0)
        die("cannot prepare", errno);
    attach(m->env, lower);
    if (compiled) {
        attach(m->image, image);
        attach(m->data, data);
    }
    if (mount("o", root, "overlay", 0, opts) < 0)
        die("overlay", errno);
    for (size_t i = 0; i < VG_COUNT(binds); i++) {
        vg_auto_free char *from = vg_fmt("/%s", binds[i]), *to = vg_fmt("%s/%s", root, binds[i]);
        if (access(to, F_OK) == 0 && mount(from, to, NULL, MS_BIND | MS_REC, NULL) < 0)
            die(to, errno);
    }
    for (size_t i = 0; i < m->n_proj; i++) {
        vg_auto_free char *to = vg_fmt("%s%s", root, m->path[i]);
        if (access(to, F_OK) < 0 && vg_mkdir_p(to, 0755) < 0)
            die(to, errno);
        attach(m->proj[i], to);
    }
    if (chroot(root) < 0 || chdir(opt.project ? opt.project : "/") < 0)
        die("cannot enter", errno);
    execvp(opt.argv[0], opt.argv);
    fprintf(stderr, "mirror-try: %s: %s\n", opt.argv[0], strerror(errno));
    _exit(127);
}

static void await(struct node *n, const int *what) {
    pthread_mutex_lock(&n->lock);
    while (!*what)
        pthread_cond_wait(&n->changed, &n->lock);
    pthread_mutex_unlock(&n->lock);
}

static void *ticker(void *arg) {
    struct node *n = arg;
    for (;;) {
        struct timespec t = {.tv_nsec = 250000000};
        nanosleep(&t, NULL);
        pthread_mutex_lock(&n->lock);
        if (n->machine)
            vg_machine_tick(n->machine, vg_now_usec());
        pthread_mutex_unlock(&n->lock);
    }
    return NULL;
}

static int run_once(struct node *n, uint64_t task) {
    struct vg_machine_mounts m;
    pthread_t thread;
    int status = 0;
    n->ready = n->safe = 0;
    n->task = task;
    uint64_t t0 = vg_now_usec();
    order(n->service, BEGIN, task, -1);
    int r = vg_machine_task(n->machine, task, false);
    if (r < 0)
        die("task", r);
    new_link(n, task);
    await(n, &n->ready);
    if (n->code || (r = vg_machine_mounts(n->machine, task, &m)) < 0)
        die("no mounts", n->code ? n->code : r);
    n->cutting = opt.cut_usec;
    if (n->cutting && pthread_create(&thread, NULL, cutter, n))
        die("no thread", EAGAIN);
    uint64_t t1 = vg_now_usec();
    pid_t pid = fork();
    if (!pid)
        command(&m);
    vg_machine_mounts_done(&m);
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    uint64_t t2 = vg_now_usec();
    vg_machine_ended(n->machine, task);
    r = vg_machine_barrier(n->machine, task, on_safe);
    if (r < 0)
        die("barrier", r);
    await(n, &n->safe);
    uint64_t t3 = vg_now_usec();
    pthread_mutex_lock(&n->lock);
    n->cutting = false;
    pthread_mutex_unlock(&n->lock);
    if (opt.cut_usec)
        pthread_join(thread, NULL);
    vg_machine_gone(n->machine, task);
    /* The news of the end travels as far as the trace that was sent before it. */
    if (opt.rtt_usec)
        usleep((useconds_t)opt.rtt_usec);
    order(n->service, END, task, -1);
    vg_machine_settle(n->machine);
    json_t *j = vg_machine_json(n->machine);
    int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    json_object_set_new(j, "exit", json_integer(code));
    json_object_set_new(j, "ready_ms", json_real((double)(t1 - t0) / 1e3));
    json_object_set_new(j, "run_ms", json_real((double)(t2 - t1) / 1e3));
    json_object_set_new(j, "barrier_ms", json_real((double)(t3 - t2) / 1e3));
    json_object_set_new(j, "total_ms", json_real((double)(t3 - t0) / 1e3));
    json_object_set_new(j, "cuts", json_integer((json_int_t)n->cuts));
    char *text = json_dumps(j, JSON_COMPACT);
    fprintf(stderr, "%s\n", text);
    free(text);
    json_decref(j);
    return code;
}

/* ------------------------------------------------------------------ */

static int parse(int argc, char **argv) {
    static const struct option list[] = {{"root", 1, 0, 'r'},   {"project", 1, 0, 'p'},
                                         {"rtt-ms", 1, 0, 't'}, {"mbit", 1, 0, 'm'},
                                         {"runs", 1, 0, 'n'},   {"state", 1, 0, 's'},
                                         {"cache", 1, 0, 'c'},  {"public", 1, 0, 'U'},
                                         {"level", 1, 0, 'l'},  {"no-passthrough", 0, 0, 'P'},
                                         {"deep", 0, 0, 'D'},   {"compile", 0, 0, 'C'},
                                         {"cut-ms", 1, 0, 'x'}, {"fresh-node", 0, 0, 'f'},
                                         {"asked", 0, 0, 'A'},  {0}};
    for (int o; (o = getopt_long(argc, argv, "+", list, NULL)) != -1;) {
        uint64_t n = 0;
        bool number = strchr("tmnx", o);
        if (o == '?' || (number && vg_parse_u64(optarg, &n) < 0))
            return -EINVAL;
        if (o == 'r')
            opt.root = optarg;
        else if (o == 'p')
            opt.project = optarg;
        else if (o == 't')
            opt.rtt_usec = n * 1000;
        else if (o == 'm')
            opt.rate = n * 125000;
        else if (o == 'n')
            opt.runs = n;
        else if (o == 's')
            opt.state = optarg;
        else if (o == 'c')
            opt.cache = optarg;
        else if (o == 'U')
            opt.public = optarg;
        else if (o == 'l')
            opt.level = (int)strtol(optarg, NULL, 10);
        else if (o == 'x')
            opt.cut_usec = n * 1000;
        else if (o == 'P')
            opt.no_passthrough = true;
        else if (o == 'D')
            opt.deep = true;
        else if (o == 'C')
            opt.compile = true;
        else if (o == 'A')
            opt.asked = true;
        else
            opt.fresh_node = true;
    }
    opt.argv = argv + optind;
    return optind < argc ? 0 : -EINVAL;
}

int main(int argc, char **argv) {
    uint8_t machine[VG_MID];
    int pair[2], code = 0;
    pthread_t thread;
    static struct node n = {
        .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER, .cut_fd = -1};
    vg_log_init("mirror-try");
    if (parse(argc, argv) < 0) {
        fprintf(
            stderr,
            "usage: mirror-try [--root DIR] [--project DIR] [--rtt-ms N] [--mbit N] "
            "[--runs N] [--state DIR] [--cache DIR] [--public DIR] [--level N] [--no-passthrough] "
            "[--compile] [--fresh-node] [--asked] [--cut-ms N] -- COMMAND...\n");
        return 125;
    }
    if (!mkdtemp(base))
        die(base, errno);
    vg_auto_free char *state = below("state");
    if (!opt.state)
        opt.state = state;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        die("no socket", errno);
    pid_t service = fork();
    if (!service) {
        close(pair[0]);
        serve(pair[1]);
    }
    close(pair[1]);
    n.service = pair[0];
    if (recv(n.service, machine, VG_MID, 0) != VG_MID)
        die("the service did not start", EPIPE);
    if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
        die("no mount namespace", errno);
    signal(SIGPIPE, SIG_IGN);
    if (pthread_create(&thread, NULL, ticker, &n))
        die("no thread", EAGAIN);
    for (uint64_t i = 0; i < opt.runs; i++) {
        if (i == 0 || opt.fresh_node) {
            pthread_mutex_lock(&n.lock);
            if (n.machine)
                close_node(&n);
            open_node(&n, machine, i);
            pthread_mutex_unlock(&n.lock);
        }
        code = run_once(&n, i + 1);
    }
    pthread_mutex_lock(&n.lock);
    close_node(&n);
    n.machine = NULL;
    pthread_mutex_unlock(&n.lock);
    close(n.service);
    waitpid(service, NULL, 0);
    pid_t rm = fork();
    if (!rm)
        execlp("rm", "rm", "-rf", "--one-file-system", base, NULL);
    waitpid(rm, NULL, 0);
    return code;
}
