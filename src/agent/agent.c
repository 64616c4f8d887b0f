/* `virga agent`: what must be there before anything runs, signals, the end. Loop thread.

   Order at the start, each step a condition of the next: lock; lease; sandbox node; networks;
   living keepers report; their leftovers are swept; the control plane is dialled.

   SIGTERM leaves keepers and their tasks alone: another agent takes them over. SIGINT and SIGUSR2
   end every task, wait for the keepers and remove what the node made. */
#include "agent/agent.h"

#include "agent/agent-int.h"
#include "base/cleanup.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/util.h"
#include "gpu/warden-notify.h"

#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define STOP_MS 1000 /* how often a stop looks after keepers that do not end by themselves */
#define STOP_TICKS 5
#define GOING_DOWN "the node is going down"

char *vg_agent_path(const struct vg_agent *a, const char *name) {
    return vg_fmt("%s/%s", a->node_dir, name);
}

/* ------------------------------------------------------------------ the machine */

static void read_line(const char *path, char *out, size_t cap) {
    vg_auto_free char *text = NULL;
    size_t len;
    out[0] = 0;
    if (vg_read_file(path, 4096, &text, &len) < 0)
        return;
    text[strcspn(text, "\n")] = 0;
    snprintf(out, cap, "%s", text);
}

static uint64_t memory_bytes(void) {
    long pages = sysconf(_SC_PHYS_PAGES), size = sysconf(_SC_PAGESIZE);
    return pages > 0 && size > 0 ? (uint64_t)pages * (uint64_t)size : 0;
}

static uint64_t cpu_count(void) {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof(set), &set) == 0 && CPU_COUNT(&set) > 0)
        return (uint64_t)CPU_COUNT(&set);
    return (uint64_t)VG_MAX(sysconf(_SC_NPROCESSORS_ONLN), 1L);
}

static void know_machine(struct vg_agent *a) {
    read_line("/proc/sys/kernel/random/boot_id", a->boot_id, sizeof(a->boot_id));
    read_line("/etc/machine-id", a->machine_id, sizeof(a->machine_id));
    if (!a->machine_id[0])
        memcpy(a->machine_id, a->boot_id, sizeof(a->machine_id));
    if (!a->conf.cpus)
        a->conf.cpus = cpu_count();
    if (!a->conf.mem_bytes)
        a->conf.mem_bytes = memory_bytes();
    if (a->conf.name)
        snprintf(a->name, sizeof(a->name), "%s", a->conf.name);
    else if (gethostname(a->name, sizeof(a->name) - 1) < 0)
        snprintf(a->name, sizeof(a->name), "node");
    vg_auto_free char *fake_root = vg_agent_path(a, "fake-gpus");
    if (a->conf.fake_gpus)
        vg_gpus_fake((size_t)a->conf.gpus, fake_root, &a->gpus);
    else
        vg_gpus_find("", a->conf.gpus, a->conf.gpu_model, &a->gpus);
    if (a->gpus.n_left_out)
        vg_warn("%zu whole GPUs are not offered, since others are cut in parts (MIG): a node gives "
                "the one or the other",
                a->gpus.n_left_out);
    vg_agent_find_driver(a, NULL, 0);
}

/* Names links, tables and cgroups of this home; the same after every restart. */
static void make_tag(struct vg_agent *a) {
    uint32_t h = 2166136261u;
    for (const char *p = a->conf.home; *p; p++)
        h = (h ^ (uint8_t)*p) * 16777619u;
    snprintf(a->tag, sizeof(a->tag), "%06x", (h ^ h >> 24) & 0xffffffu);
}

static void raise_fd_limit(void) {
    struct rlimit rl;
    if (getrlimit(RLIMIT_NOFILE, &rl) == 0 && rl.rlim_cur < rl.rlim_max) {
        rl.rlim_cur = rl.rlim_max;
        setrlimit(RLIMIT_NOFILE, &rl);
    }
}

/* ------------------------------------------------------------------ folders and lock */

static int open_home(struct vg_agent *a, struct vg_err *err) {
    char real[PATH_MAX];
    const char *home = a->conf.home ? a->conf.home : getenv("VIRGA_HOME");
    const char *user = getenv("HOME");
    vg_auto_free char *path =
        home && *home ? vg_strdup(home) : vg_fmt("%s/.virga", user ? user : "/root");
    if (!path)
        return vg_err_sys(err, -ENOMEM, "cannot start the agent");
    int r = vg_mkdir_p(path, 0711);
    if (r < 0)
        return vg_err_sys(err, r, "cannot make %s", path);
    if (!realpath(path, real))
        return vg_err_sys(err, errno, "cannot use %s", path);
    a->conf.home = vg_strdup(real);
    a->node_dir = vg_fmt("%s/node", real);
    a->keepers_dir = vg_fmt("%s/node/keepers", real);
    a->lease_path = vg_fmt("%s/node/lease", real);
    a->fs_dir = vg_fmt("%s/node/fs", real);
    if (!a->fs_dir || !a->conf.home || !a->node_dir || !a->keepers_dir || !a->lease_path)
        return vg_err_sys(err, -ENOMEM, "cannot start the agent");
    vg_auto_free char *inside = vg_agent_path(a, VG_AGENT_INSIDE);
    if ((r = vg_mkdir_p(a->node_dir, 0711)) < 0 || (r = vg_mkdir_p(a->keepers_dir, 0700)) < 0 ||
        (r = inside ? vg_mkdir_p(inside, 0755) : -ENOMEM) < 0)
        return vg_err_sys(err, r, "cannot make the folders of the node in %s", a->node_dir);
    return 0;
}

/* Two locks on one file. The record lock is this process's alone and decides. The flock is what
   other programs ask; a keeper that was just forked from a dead agent may hold it for a moment
   more. */
static int take_lock(struct vg_agent *a, struct vg_err *err) {
    vg_auto_free char *path = vg_agent_path(a, "lock");
    vg_auto_free char *pid_path = vg_agent_path(a, "pid");
    struct flock record = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    char pid[16];
    if (!path || !pid_path)
        return vg_err_sys(err, -ENOMEM, "cannot start the agent");
    a->lock_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (a->lock_fd < 0)
        return vg_err_sys(err, errno, "cannot open %s", path);
    if (fcntl(a->lock_fd, F_SETLK, &record) < 0) {
        if (errno != EAGAIN && errno != EACCES)
            return vg_err_sys(err, errno, "cannot lock %s", path);
        read_line(pid_path, pid, sizeof(pid));
        return vg_err_set(err, VG_CONFLICT, "an agent already runs for %s (process %s)",
                          a->conf.home, pid[0] ? pid : "?");
    }
    while (flock(a->lock_fd, LOCK_EX) < 0)
        if (errno != EINTR)
            return vg_err_sys(err, errno, "cannot lock %s", path);
    int n = snprintf(pid, sizeof(pid), "%d\n", (int)getpid());
    int r = vg_write_file(pid_path, pid, (size_t)n, 0644);
    return r < 0 ? vg_err_sys(err, r, "cannot write %s", pid_path) : 0;
}

/* ------------------------------------------------------------------ sandbox and networks */

static int open_node(struct vg_agent *a, struct vg_err *err) {
    char exe[PATH_MAX];
    vg_auto_free char *sock = vg_agent_path(a, VG_AGENT_INSIDE "/agent.sock");
    ssize_t n = readlink("/proc/self/exe", exe, sizeof(exe) - 1);
    if (n < 0 || !sock)
        return vg_err_sys(err, n < 0 ? errno : ENOMEM, "cannot find this program");
    exe[n] = 0;
    if (!(a->self_exe = vg_strdup(exe)))
        return vg_err_sys(err, ENOMEM, "cannot find this program");
    struct vg_sandbox_node_conf conf = {.dir = a->node_dir,
                                        .home = a->conf.home,
                                        .tag = a->tag,
                                        .agent_sock = sock,
                                        .self_exe = exe};
    vg_warden_filter(&conf.watch);
    struct vg_agent_fresh fresh;
    vg_agent_note_fds_begin(&fresh);
    int r = vg_sandbox_node_open(&conf, &a->node, err);
    vg_agent_note_fds_end(a, &fresh);
    a->n_fixed_fds = a->n_keep_fds;
    return r;
}

static void open_networks(struct vg_agent *a) {
    struct vg_err err = VG_ERR_INIT;
    if (vg_netpool_open(a->tag, NULL, &a->net, &err) == 0)
        return;
    a->net = NULL;
    vg_err_wrap(&err, "the node has no networks for tasks");
    memcpy(a->net_error, err.msg, sizeof(a->net_error));
    vg_warn("%s", a->net_error);
}

/* ------------------------------------------------------------------ the end */

void vg_agent_quit(struct vg_agent *a, int status) {
    a->status = status;
    uv_stop(&a->loop);
}

/* A keeper says goodbye a moment before it is gone: whoever sees the agent end may rely on it. */
static void wait_for_keepers(void) {
    while (waitpid(-1, NULL, 0) > 0 || errno == EINTR)
        ;
}

/* The node is empty: nothing of it stays behind. */
void vg_agent_stopped(struct vg_agent *a) {
    static const char *const files[] = {VG_AGENT_INSIDE "/agent.sock", "lease", "lease.boot",
                                        "pid"};
    uv_timer_stop(&a->stop_timer);
    vg_watch_stop(a); /* it is waited for, too */
    vg_fslink_stop(a);
    if (a->net)
        vg_netpool_close(a->net);
    a->net = NULL;
    vg_use_stop(a);
    vg_sandbox_node_close(a->node);
    a->node = NULL;
    for (size_t i = 0; i < VG_COUNT(files); i++) {
        vg_auto_free char *path = vg_agent_path(a, files[i]);
        if (path)
            unlink(path);
    }
    vg_auto_free char *inside = vg_agent_path(a, VG_AGENT_INSIDE);
    vg_ssh_forget(a);
    if (inside)
        rmdir(inside);
    rmdir(a->keepers_dir);
    vg_watch_stop(a); /* a child, too, which ends when it is told to */
    vg_mps_close(a);
    vg_bare_stop(a);
    wait_for_keepers();
    vg_agent_quit(a, 0);
}

/* Every second of a stop. Without a control plane nobody will acknowledge exits; a keeper without
   tasks waits for a client that shall not come. At the end whoever is left has had its time; the
   next agent's report tells what is not here any more. */
static void on_stop_tick(uv_timer_t *timer) {
    struct vg_agent *a = timer->data;
    if (!a->link.up)
        vg_tasks_forget_exited(a);
    vg_keepers_kill_rest(a, ++a->stop_ticks >= STOP_TICKS);
}

static void on_stop(uv_signal_t *sig, int signo) {
    struct vg_agent *a = sig->data;
    (void)signo;
    if (a->stopping)
        return;
    a->stopping = true;
    vg_info("going down: %zu tasks are ended", vg_map_len(&a->tasks));
    vg_tasks_kill_all(a, GOING_DOWN);
    uv_timer_start(&a->stop_timer, on_stop_tick, STOP_MS, STOP_MS);
    if (!a->adopted)
        vg_keepers_stop(a);
}

static void on_term(uv_signal_t *sig, int signo) {
    (void)signo;
    vg_agent_quit(sig->data, 0);
}

static void on_child(uv_signal_t *sig, int signo) {
    (void)signo;
    vg_keepers_reap(sig->data);
}

static int watch_signals(struct vg_agent *a) {
    struct {
        uv_signal_t *handle;
        int signo;
        uv_signal_cb cb;
    } list[] = {{&a->sig_term, SIGTERM, on_term},
                {&a->sig_int, SIGINT, on_stop},
                {&a->sig_stop, SIGUSR2, on_stop},
                {&a->sig_child, SIGCHLD, on_child}};
    int r = 0;
    for (size_t i = 0; r == 0 && i < VG_COUNT(list); i++) {
        uv_signal_init(&a->loop, list[i].handle);
        list[i].handle->data = a;
        r = uv_signal_start(list[i].handle, list[i].cb, list[i].signo);
    }
    signal(SIGPIPE, SIG_IGN);
    signal(SIGHUP, SIG_IGN);
    return r;
}

/* ------------------------------------------------------------------ start */

static void on_adopted(struct vg_agent *a) {
    if (vg_map_len(&a->tasks))
        vg_info("took over %zu tasks of %zu keepers", vg_map_len(&a->tasks), a->n_keepers);
    vg_bare_ready(a);
    vg_link_start(a);
    vg_meter_sweep(a);
    vg_mps_adopt(a);
    vg_watch_start(a);
    if (vg_map_len(&a->tasks))
        vg_use_begin(a);
    if (a->stopping) { /* it was told to before it knew its tasks */
        vg_tasks_kill_all(a, GOING_DOWN);
        vg_keepers_stop(a);
    } else {
        vg_keepers_warm_up(a);
    }
}

static void init_timers(struct vg_agent *a) {
    uv_timer_t *timers[] = {&a->refill, &a->decay, &a->adopt_timer, &a->stop_timer};
    for (size_t i = 0; i < VG_COUNT(timers); i++) {
        uv_timer_init(&a->loop, timers[i]);
        timers[i]->data = a;
    }
}

static int set_up(struct vg_agent *a, struct vg_err *err) {
    int r = open_home(a, err);
    if (r < 0 || (r = take_lock(a, err)) < 0)
        return r;
    raise_fd_limit();
    know_machine(a);
    make_tag(a);
    if (uv_loop_init(&a->loop) < 0 || !(a->packet = vg_alloc(VG_KPKT_MAX)))
        return vg_err_sys(err, -ENOMEM, "cannot start the agent");
    init_timers(a);
    vg_meter_init(a);
    vg_use_init(a);
    vg_bare_open(a);
    vg_list_init(&a->keepers);
    vg_list_init(&a->forwards);
    vg_list_init(&a->guests);
    vg_warm_init(&a->warm, a->conf.warm);
    vg_tasks_init(a);
    a->log_head_bytes = a->log_tail_bytes = 8u << 20;
    if ((r = watch_signals(a)) < 0)
        return vg_err_sys(err, r, "cannot watch signals");
    if ((r = vg_lease_open(a, err)) < 0 || (r = vg_link_open(a, err)) < 0 ||
        (r = open_node(a, err)) < 0)
        return r;
    open_networks(a);
    if ((r = vg_io_open(a, err)) < 0 || (r = vg_io_listen(a, err)) < 0)
        return r;
    return vg_keepers_open(a, on_adopted, err);
}

int vg_agent_main(int argc, char **argv) {
    static struct vg_agent agent; /* large, and for the life of the program */
    struct vg_agent *a = &agent;
    struct vg_err err = VG_ERR_INIT;
    *a = (struct vg_agent){
        .conf = {.gpus = -1, .warm = VG_WARM_BASE, .gpu_silence_usec = 30 * VG_USEC},
        .watch = {.fd = -1},
        .lock_fd = -1,
        .status = -1};
    vg_log_init("agent");
    int r = vg_agent_options(argc, argv, &a->conf, &err);
    if (r == 1) {
        fputs(vg_agent_usage, stdout);
        return 0;
    }
    if (r == 0 && geteuid() != 0)
        r = vg_err_set(&err, VG_NEEDS_ROOT,
                       "the agent makes sandboxes and needs root: run it with sudo");
    if (r == 0)
        r = set_up(a, &err);
    if (r < 0) {
        fprintf(stderr, "virga agent: %s\n", err.msg);
        return vg_reason_exit(err.reason);
    }
    if (a->status < 0) /* a stop may come before the first turn */
        uv_run(&a->loop, UV_RUN_DEFAULT);
    vg_watch_stop(a);
    vg_mps_close(a);
    vg_link_close(a);
    uv_run(&a->loop, UV_RUN_NOWAIT); /* lets the connection say its last words */
    vg_io_close(a);
    vg_lease_close(a);
    return VG_MAX(a->status, 0);
}
