/* A project view and the file service it mirrors, joined by socket pairs, without a cloud:

       proj-try DIR PROGRAM [ARGUMENTS…]

   DIR/client is the person's machine (its project is DIR/client/p), DIR/mnt the view. PROGRAM runs
   with VIEW, CLIENT and CTL in its environment; CTL is a socket that takes a line and answers one:
       barrier   everything written is at the client: "CODE TEXT"
       cut       the link breaks, and another one is made
       away      the link breaks;  back: another one is made
       restart   the service is killed, and another one is started
       run       another task begins;  settle: the last one has ended
       allow P   tasks from now on may read P, a path of the client that is private
       fault X   the next passage of the fault point X fails: no memory
       notes     what was said to the person since */
#include "fs/client/client.h"
#include "fs/node/machine.h"

#include "base/buf.h"
#include "base/fault.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/util.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

static const char *top;
static struct vg_links *links;
static struct vg_cache *cache;
static struct vg_oplog *oplog;
static struct vg_proj *proj;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static uint64_t next_task = 0x1234567800000001, runs_seen;
static int cut_fd = -1, service_ctl = -1;
static pid_t service;
static bool other_epoch;
static uint8_t machine[VG_MID];
static char notes[1 << 16], allowed[128], fault[64];

static void die(const char *what, const struct vg_err *err) {
    fprintf(stderr, "proj-try: %s: %s\n", what, err && err->msg[0] ? err->msg : strerror(errno));
    exit(125);
}

/* Paths are needed to the end: kept where the search for leaks finds them. */
static char *in_top(const char *name) {
    static char *made[32];
    static size_t count;
    char *p = count < sizeof(made) / sizeof(made[0]) ? vg_fmt("%s/%s", top, name) : NULL;
    if (!p)
        die(name, NULL);
    made[count++] = p;
    return p;
}

/* ---- the person's machine: a process of its own, which gets links over `ctl` ---- */

struct begin {
    uint64_t task;
    char allow[128];
};

static struct vg_mirror *mirror;
static uv_loop_t loop;

static void on_ctl(uv_poll_t *poll, int status, int events) {
    (void)status;
    (void)events;
    int ctl;
    uv_fileno((uv_handle_t *)poll, &ctl);
    int fd = -1;
    size_t n = 1;
    struct begin b;
    ssize_t got = vg_recv_fds(ctl, &b, sizeof(b), &fd, &n, 0);
    if (got <= 0)
        _exit(0);
    uint64_t task = b.task;
    struct vg_err err = VG_ERR_INIT;
    static char *argv[] = {"true", NULL};
    const char *allow[] = {b.allow};
    struct vg_mirror_run run = {.task = task,
                                .argv = argv,
                                .cwd = "/p",
                                .path_env = "/bin",
                                .allow = allow,
                                .n_allow = b.allow[0] != 0};
    static struct vg_mirror_task *tasks[1024];
    static uint64_t ids[1024];
    static size_t count;
    size_t i = 0;
    while (i < count && ids[i] != task)
        i++;
    if (i == count) {
        static char before[sizeof(b.allow)];
        if (strcmp(before, b.allow) != 0) /* what was allowed goes with the tasks it was for */
            for (size_t k = 0; k < count; k++)
                if (tasks[k])
                    vg_mirror_end(tasks[k]), tasks[k] = NULL;
        memcpy(before, b.allow, sizeof(before));
        if (count == 1024 || vg_mirror_begin(mirror, &run, &tasks[i], &err) < 0)
            die("begin", &err);
        ids[count++] = task;
    }
    if (vg_mirror_link(tasks[i], fd) < 0)
        die("link", NULL);
}

static void serve(int ctl) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    vg_log_init("service");
    struct vg_err err = VG_ERR_INIT;
    struct vg_mirror_conf conf = {.root = in_top("client"), .home = "/p", .state = in_top("state")};
    uv_loop_init(&loop);
    if (vg_mirror_new(&loop, &conf, &mirror, &err) < 0)
        die("service", &err);
    if (write(ctl, vg_mirror_machine(mirror), VG_MID) != VG_MID)
        _exit(1);
    uv_poll_t poll;
    uv_poll_init(&loop, &poll, ctl);
    uv_poll_start(&poll, UV_READABLE, on_ctl);
    uv_run(&loop, UV_RUN_DEFAULT);
    _exit(0);
}

static void start_service(void) {
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        die("socketpair", NULL);
    service = fork();
    if (service == 0) {
        close(pair[0]);
        serve(pair[1]);
    }
    close(pair[1]);
    service_ctl = pair[0];
    if (read(service_ctl, machine, VG_MID) != VG_MID)
        die("the service did not start", NULL);
}

/* ---- the node ---- */

/* Nobody is shifted here: the view shows the client's own numbers. */
uint32_t vg_fs_id_out(const struct vg_fs_ids *ids, uint32_t id) {
    (void)ids;
    return id;
}
uint32_t vg_fs_id_in(const struct vg_fs_ids *ids, uint32_t id) {
    (void)ids;
    return id;
}

static void on_hello(void *user, const Vg__Mr__Hello *m, bool same) {
    (void)user;
    (void)m;
    if (!same && proj) {
        vg_proj_new_epoch(proj, 0, 0); /* until its Run tells */
        other_epoch = true;
    }
}

static void note(void *user, const char *text) {
    (void)user;
    pthread_mutex_lock(&lock);
    size_t n = strlen(notes);
    snprintf(notes + n, sizeof(notes) - n, "%s; ", text);
    pthread_mutex_unlock(&lock);
}

static void on_run(void *user, const Vg__Mr__Run *m) {
    (void)user;
    for (size_t i = 0; i < m->n_view; i++) {
        const Vg__Mr__View *v = m->view[i];
        if (!v->id)
            continue;
        struct vg_mstat st;
        vg_mw_stat_from(&st, v->stat);
        if (!proj) {
            struct vg_err err = VG_ERR_INIT;
            struct vg_view_conf conf = {.links = links,
                                        .cache = cache,
                                        .dir = in_top("backing"),
                                        .at = in_top("mnt"),
                                        .note = note};
            memcpy(conf.machine, machine, VG_MID);
            if (vg_proj_new(&conf, oplog, v->id, v->root, &st, getenv("PROJ_SYNC") != NULL, &proj,
                            &err) < 0)
                die("view", &err);
        } else if (other_epoch) {
            vg_proj_new_epoch(proj, v->id, v->root);
        }
        other_epoch = false;
        break;
    }
    pthread_mutex_lock(&lock);
    runs_seen = m->task;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

static void on_inval(void *user, const Vg__Mr__Inval *m) {
    (void)user;
    if (!proj)
        return;
    if (m->all)
        vg_proj_inval(proj, 0);
    for (size_t i = 0; i < m->n_folder; i++)
        vg_proj_inval(proj, m->folder[i]);
}

static void on_dir(void *user, uint64_t req, const struct vg_dirrec *rec) {
    (void)user;
    if (proj)
        vg_proj_dir(proj, req, rec);
}

static void on_missed(void *user, uint64_t object) {
    (void)user;
    if (proj)
        vg_proj_missed(proj, object);
}
static bool on_data(void *user, uint64_t req, uint64_t object, uint64_t off, uint64_t size,
                    uint32_t tag, const void *data, size_t n) {
    (void)user;
    (void)req;
    return !proj || vg_proj_data(proj, object, off, size, tag, data, n) >= 0;
}

static void on_fail(void *user, const Vg__Mr__Fail *m) {
    (void)user;
    if (proj)
        vg_proj_fail(proj, m);
}

static void on_ack(void *user, const Vg__Mr__Ack *m) {
    (void)user;
    vg_oplog_ack(oplog, m);
}

static void on_note(void *user, const Vg__Mr__Note *m) {
    note(user, m->text ? m->text : "");
}

static void on_resend(void *user) {
    (void)user;
    vg_oplog_resend(oplog);
}

static uint64_t on_next(void *user) {
    (void)user;
    return vg_oplog_next(oplog);
}

static void cut(void) {
    if (cut_fd >= 0) {
        shutdown(cut_fd, SHUT_RDWR);
        close(cut_fd);
    }
    cut_fd = -1;
}

static void join(uint64_t task) {
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
        die("socketpair", NULL);
    struct begin b = {.task = task};
    memcpy(b.allow, allowed, sizeof(b.allow));
    if (vg_send_fds(service_ctl, &b, sizeof(b), &pair[1], 1, 0) < 0)
        die("the service is gone", NULL);
    close(pair[1]);
    cut();
    cut_fd = fcntl(pair[0], F_DUPFD_CLOEXEC, 0);
    if (vg_links_add(links, pair[0], task) < 0)
        die("link", NULL);
}

static void run_task(uint64_t task) {
    join(task);
    pthread_mutex_lock(&lock);
    while (runs_seen != task)
        pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
    int rc = vg_proj_begin(proj, task, false);
    if (rc < 0)
        fprintf(stderr, "proj-try: begin: %s\n", strerror(-rc));
}

struct waiting {
    int code;
    char text[256];
    bool done;
};

static void safe(void *user, int code, const char *text) {
    struct waiting *w = user;
    pthread_mutex_lock(&lock);
    w->code = code;
    snprintf(w->text, sizeof(w->text), "%s", text);
    w->done = true;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

static int barrier(char *text, size_t max) {
    struct waiting w = {0};
    vg_proj_flush(proj);
    vg_oplog_barrier(oplog, safe, &w);
    pthread_mutex_lock(&lock);
    while (!w.done)
        pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
    snprintf(text, max, "%s", w.text);
    return w.code;
}

static void restart(void) {
    kill(service, SIGKILL);
    waitpid(service, NULL, 0);
    close(service_ctl);
    start_service();
    run_task(++next_task);
}

static void command(char *line, char *out, size_t max) {
    snprintf(out, max, "ok");
    if (!strcmp(line, "barrier")) {
        char text[300];
        int code = barrier(text, sizeof(text));
        snprintf(out, max, "%d %s", code, text);
    } else if (!strcmp(line, "cut") || !strcmp(line, "back")) {
        cut();
        join(next_task);
    } else if (!strcmp(line, "away")) {
        cut();
    } else if (!strcmp(line, "restart")) {
        restart();
    } else if (!strcmp(line, "run")) {
        run_task(++next_task);
    } else if (!strncmp(line, "allow ", 6)) {
        snprintf(allowed, sizeof(allowed), "%.100s", line + 6);
    } else if (!strncmp(line, "fault ", 6)) {
        snprintf(fault, sizeof(fault), "%.60s", line + 6);
        vg_fault_arm(1, ENOMEM, fault);
    } else if (!strcmp(line, "settle")) {
        vg_proj_settle(proj);
    } else if (!strcmp(line, "notes")) {
        pthread_mutex_lock(&lock);
        snprintf(out, max, "%s", notes);
        notes[0] = 0;
        pthread_mutex_unlock(&lock);
    } else {
        snprintf(out, max, "what is %s?", line);
    }
}

static void *ctl_main(void *arg) {
    int listener = *(int *)arg;
    for (;;) {
        int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        if (fd < 0 && errno == EINTR)
            continue;
        if (fd < 0)
            return NULL;
        FILE *f = fdopen(fd, "r+");
        char line[256], out[1 << 16];
        while (f && fgets(line, sizeof(line), f)) {
            line[strcspn(line, "\n")] = 0;
            command(line, out, sizeof(out));
            fseek(f, 0, SEEK_CUR);
            fprintf(f, "%s\n", out);
            fflush(f);
        }
        if (f)
            fclose(f);
    }
}

static void start_node(void) {
    static const struct vg_link_ops ops = {.hello = on_hello,
                                           .run = on_run,
                                           .inval = on_inval,
                                           .dir = on_dir,
                                           .data = on_data,
                                           .missed = on_missed,
                                           .fail = on_fail,
                                           .ack = on_ack,
                                           .note = on_note,
                                           .resend = on_resend,
                                           .next_op = on_next};
    struct vg_err err = VG_ERR_INIT;
    uint8_t daemon[VG_MID];
    vg_random(daemon, sizeof(daemon));
    struct vg_cache_conf cc = {
        .dir = in_top("cache"), .max_bytes = UINT64_C(1) << 34, .keep_free = 1 << 20};
    if (vg_cache_open(&cc, &cache, &err) < 0)
        die("cache", &err);
    if (vg_links_new(&ops, NULL, daemon, "node", &links) < 0 ||
        vg_oplog_new(links, in_top("log"), &oplog) < 0)
        die("links", NULL);
}

int main(int argc, char **argv) {
    if (argc < 3) {
        fprintf(stderr, "usage: proj-try DIR PROGRAM [ARGUMENTS...]\n");
        return 125;
    }
    top = argv[1];
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* a mount that nobody serves is worse than none */
    vg_log_init("node");
    if (unshare(CLONE_NEWNS) < 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
        die("this needs root: a mount namespace", NULL);
    const char *dirs[] = {"client/p", "mnt", "backing", "cache", "state", "log"};
    for (size_t i = 0; i < sizeof(dirs) / sizeof(dirs[0]); i++)
        if (vg_mkdir_p(in_top(dirs[i]), 0755) < 0)
            die(dirs[i], NULL);
    signal(SIGPIPE, SIG_IGN);
    start_service();
    start_node();
    run_task(next_task);
    int listener = vg_unix_listen(in_top("ctl"), SOCK_STREAM, 0600);
    pthread_t ctl;
    if (listener < 0 || vg_set_nonblock(listener, false) < 0 ||
        pthread_create(&ctl, NULL, ctl_main, &listener) != 0)
        die("ctl", NULL);
    setenv("VIEW", in_top("mnt"), 1);
    setenv("CLIENT", in_top("client/p"), 1);
    setenv("CTL", in_top("ctl"), 1);
    pid_t child = fork();
    if (child == 0) {
        execvp(argv[2], argv + 2);
        _exit(127);
    }
    int status = 0;
    waitpid(child, &status, 0);
    char text[300] = "";
    int code = barrier(text, sizeof(text));
    if (code)
        fprintf(stderr, "proj-try: %s\n", text);
    /* Nothing may come for the view while it ends: first its peer, then the links, then it. The
       log's thread uses the links to the last. */
    kill(service, SIGKILL);
    waitpid(service, NULL, 0);
    cut();
    vg_links_stop(links);
    vg_proj_free(proj);
    vg_oplog_free(oplog);
    vg_links_free(links);
    vg_cache_close(cache);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
