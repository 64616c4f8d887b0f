/* A task in the keeper: its pipes or terminal, its start, its input and output, its end. */
#include "agent/keeper-int.h"
#include "base/cleanup.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/util.h"
#include "gpu/rdma.h"
#include "net/tio.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#define READ_BUDGET (1u << 20) /* bytes a task may bring in before others get their turn */
#define PIPE_BIG (1 << 20)

struct ktask *ktask_find(struct keeper *k, uint64_t id) {
    vg_list_for_each (it, &k->tasks) {
        struct ktask *t = vg_list_entry(it, struct ktask, link);
        if (t->id == id && !t->exit_acked) /* its next attempt may be here already */
            return t;
    }
    return NULL;
}

uint64_t ktask_floor(const struct ktask *t) {
    uint64_t client = t->owner ? t->owner->acked : t->held ? t->held_acked : t->ring.end;
    /* Between head and tail the log wants nothing; what it has not acknowledged may go again. */
    bool between = t->log_tail && !t->log_tail_begun && t->log_acked == t->log_sent;
    uint64_t log = between ? t->ring.end : t->log_acked;
    return VG_MIN(client, log);
}

static void output_closed(struct keeper *k, struct ktask *t, int i) {
    keeper_close(k, &t->out[i]);
    ktask_finish(k, t);
}

/* The most data in one record: the log keeps whole records, so a small log needs small ones. */
static size_t record_max(const struct keeper *k) {
    uint64_t part = VG_MIN(k->birth.log_head_bytes, k->birth.log_tail_bytes) / 4;
    return (size_t)VG_MAX(VG_MIN(part, (uint64_t)VG_REC_MAX), 1024u);
}

/* In a session others may hold the pipes after the command has ended: what was in them then counts
   as its output (no more than a pipe holds), and nothing later. */
static bool ends_here(const struct keeper *k, const struct ktask *t) {
    return t->wait_known && k->session_key[0];
}

/* Reads one of the outputs into the ring until it is dry, the ring is full, or the budget is spent.
 */
static void read_one(struct keeper *k, struct ktask *t, int i) {
    size_t budget = READ_BUDGET;
    uint64_t now = vg_wall_usec();
    while (t->out[i].fd >= 0 && budget > 0) {
        uint64_t unread = t->owner ? t->ring.end - t->owner->acked : 0;
        size_t room = vg_ring_make_room(&t->ring, VG_REC_HEADER + VG_REC_MAX, ktask_floor(t));
        if (room <= VG_REC_HEADER + 4096 || unread >= OWNER_AHEAD) {
            ktask_pace(k, t);
            return;
        }
        ssize_t n = vg_ring_read(&t->ring, t->out[i].fd, i == 0 ? VG_REC_STDOUT : VG_REC_STDERR,
                                 VG_MIN(room, VG_REC_HEADER + record_max(k)), now);
        if (n == -EAGAIN && !ends_here(k, t))
            return;
        if (n <= 0) { /* EIO is a terminal's way of saying end of file */
            output_closed(k, t, i);
            return;
        }
        if (n == VG_REC_MAX && !(t->tty && i == 0))
            (void)fcntl(t->out[i].fd, F_SETPIPE_SZ, PIPE_BIG);
        budget -= VG_MIN(budget, (size_t)n);
        if (t->owner)
            kchan_flush(k, t->owner);
        if (ends_here(k, t) && (t->late[i] += (size_t)n) >= PIPE_BIG)
            output_closed(k, t, i);
    }
}

static void out_ready(struct keeper *k, void *obj, uint32_t events) {
    (void)events;
    ktask_read_output(k, obj);
}

void ktask_read_output(struct keeper *k, struct ktask *t) {
    for (int i = 0; i < 2 && !t->paused; i++)
        if (t->out[i].fd >= 0)
            read_one(k, t, i);
    kchan_flush_all(k, t);
    if (k->agent.fd >= 0 && !k->agent.events)
        keeper_watch(k, &k->agent, EPOLLIN);
    keeper_flush_agent(k);
}

void ktask_pace(struct keeper *k, struct ktask *t) {
    uint64_t unread = t->owner ? t->ring.end - t->owner->acked : 0;
    size_t room = vg_ring_make_room(&t->ring, VG_REC_HEADER + VG_REC_MAX, ktask_floor(t));
    t->paused = room <= VG_REC_HEADER + 4096 || unread >= OWNER_AHEAD;
    for (int i = 0; i < 2; i++) {
        if (t->out[i].fd < 0)
            continue;
        if (t->paused)
            keeper_unwatch(k, &t->out[i]);
        else
            keeper_watch(k, &t->out[i], EPOLLIN);
    }
}

/* ---- input ---- */

static void input_ack(struct keeper *k, struct ktask *t) {
    if (!t->owner || t->in_done == t->in_told)
        return;
    uint8_t p[8];
    vg_put64(p, t->in_done);
    t->in_told = t->in_done;
    kchan_frame(t->owner, VG_TIO_INPUT_ACK, p, sizeof(p), NULL, 0);
    kchan_flush(k, t->owner);
}

/* Nobody reads any more: what comes is swallowed, as a broken pipe would. */
static void input_broken(struct keeper *k, struct ktask *t) {
    keeper_close(k, &t->in);
    vg_buf_clear(&t->in_buf);
    t->in_done = t->in_taken;
    input_ack(k, t);
}

static void input_pump(struct keeper *k, struct ktask *t) {
    while (t->in.fd >= 0 && vg_buf_len(&t->in_buf) > 0) {
        ssize_t n = write(t->in.fd, vg_buf_data(&t->in_buf), vg_buf_len(&t->in_buf));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN) {
            keeper_watch(k, &t->in, EPOLLOUT);
            input_ack(k, t);
            return;
        }
        if (n < 0) {
            input_broken(k, t);
            return;
        }
        vg_buf_consume(&t->in_buf, (size_t)n);
        t->in_done += (uint64_t)n;
    }
    keeper_unwatch(k, &t->in);
    if (t->in.fd >= 0 && t->in_done >= t->in_end) {
        if (t->tty) {
            uint8_t eof = 4; /* Ctrl-D: what end of input is on a terminal */
            if (!t->in_ended && write(t->in.fd, &eof, 1) < 0)
                vg_debug("terminal input is gone: errno=%d", errno);
            t->in_ended = true; /* a client that comes back says it again */
            t->in_end = KEEPER_NEVER;
        } else {
            keeper_close(k, &t->in);
        }
    }
    input_ack(k, t);
}

static void in_ready(struct keeper *k, void *obj, uint32_t events) {
    struct ktask *t = obj;
    if (events & EPOLLERR && !t->tty)
        input_broken(k, t);
    else
        input_pump(k, t);
}

void ktask_input(struct keeper *k, struct ktask *t, uint64_t offset, const uint8_t *p, size_t n) {
    if (offset > t->in_taken)
        return; /* a hole: the client did not follow WELCOME; it will be told by the ack */
    size_t skip = (size_t)VG_MIN(t->in_taken - offset, (uint64_t)n);
    p += skip;
    n -= skip;
    if (n == 0)
        return;
    if (vg_buf_len(&t->in_buf) + n > 2 * VG_TIO_WINDOW)
        return; /* beyond the window: not taken, the client resends after its next WELCOME */
    t->in_taken += n;
    bool early = kmirror_waits(t); /* kept until the command is there to read it */
    if (t->in.fd < 0 && !early) {
        t->in_done = t->in_taken;
        input_ack(k, t);
        return;
    }
    if (vg_buf_len(&t->in_buf) == 0 && !early) {
        ssize_t w = write(t->in.fd, p, n);
        if (w > 0) {
            t->in_done += (uint64_t)w;
            p += w;
            n -= (size_t)w;
        } else if (w < 0 && errno != EAGAIN && errno != EINTR) {
            input_broken(k, t);
            return;
        }
    }
    if (n > 0 && vg_buf_append(&t->in_buf, p, n) < 0) {
        input_broken(k, t);
        return;
    }
    input_pump(k, t);
}

void ktask_input_end(struct keeper *k, struct ktask *t, uint64_t offset) {
    t->in_end = offset;
    input_pump(k, t);
}

void ktask_close_output(struct keeper *k, struct ktask *t, uint32_t stream) {
    int i = stream == VG_REC_STDERR ? 1 : 0;
    if (stream != VG_REC_STDOUT && stream != VG_REC_STDERR)
        return;
    if (t->tty && i == 0)
        return;
    keeper_close(k, &t->out[i]);
    ktask_finish(k, t);
}

void ktask_winsize(struct ktask *t, const uint8_t *p) {
    struct winsize w;
    Vg__Pb__Terminal *early = kmirror_waits(t) ? t->start->spec->tty : NULL;
    memcpy(&w, p, sizeof(w));
    if (early) {
        early->rows = w.ws_row;
        early->cols = w.ws_col;
        return;
    }
    if (t->tty && t->in.fd >= 0)
        ioctl(t->in.fd, TIOCSWINSZ, &w);
    else if (t->out[0].fd >= 0)
        ioctl(t->out[0].fd, TIOCSWINSZ, &w);
}

/* ---- start ---- */

struct stdio {
    int child[3];
};

static void stdio_close(struct stdio *s) {
    for (int i = 0; i < 3; i++)
        vg_close(&s->child[i]);
}

static void set_terminal(int master, int slave, const Vg__Pb__Terminal *tt, bool raw) {
    struct termios tio;
    if (tt && tt->termios.len == sizeof(tio)) {
        memcpy(&tio, tt->termios.data, sizeof(tio));
        tcsetattr(slave, TCSANOW, &tio);
    }
    if (raw && tcgetattr(slave, &tio) == 0) {
        cfmakeraw(&tio);
        tcsetattr(slave, TCSANOW, &tio);
    }
    struct winsize w = {24, 80, 0, 0};
    if (tt && tt->rows)
        w = (struct winsize){(unsigned short)tt->rows, (unsigned short)tt->cols,
                             (unsigned short)tt->xpixel, (unsigned short)tt->ypixel};
    ioctl(master, TIOCSWINSZ, &w);
}

static int open_terminal(struct keeper *k, struct ktask *t, bool raw, int *ret_master,
                         int *ret_slave) {
    const Vg__Pb__Identity *who = t->start->who;
    int r = vg_sandbox_open_pty(k->sb, who->uid, who->gid, ret_master, ret_slave);
    if (r < 0)
        return r;
    set_terminal(*ret_master, *ret_slave, t->start->spec->tty, raw);
    return vg_set_nonblock(*ret_master, true);
}

static int make_pipe(struct keeper *k, struct ktask *t, int *ret_ours, int *ret_theirs,
                     bool input) {
    int p[2];
    const Vg__Pb__Identity *who = t->start->who;
    if (pipe2(p, O_CLOEXEC) < 0)
        return -errno;
    /* So that the command may open /dev/stdout by name. */
    if (fchown(p[0], vg_sandbox_map_uid(k->sb, who->uid), vg_sandbox_map_gid(k->sb, who->gid)) < 0)
        vg_debug("cannot chown a pipe: errno=%d", errno);
    *ret_ours = input ? p[1] : p[0];
    *ret_theirs = input ? p[0] : p[1];
    return vg_set_nonblock(*ret_ours, true);
}

static int make_output(struct keeper *k, struct ktask *t, struct stdio *s, int fd, bool tty) {
    int ours = -1;
    if (t->start->spec->closed >> fd & 1)
        return 0; /* closed for the command too */
    int r = tty ? open_terminal(k, t, true, &ours, &s->child[fd])
                : make_pipe(k, t, &ours, &s->child[fd], false);
    t->out[fd - 1] = (struct source){.fn = out_ready, .obj = t, .fd = ours};
    return r;
}

static int make_stdin(struct keeper *k, struct ktask *t, struct stdio *s, int stdin_fd) {
    if (stdin_fd >= 0) {
        struct stat st;
        const Vg__Pb__Identity *who = t->start->who;
        /* A pipe is handed on as it is, so that the command takes no more than it reads. Root's
           pipes get the inside root as owner: /dev/stdin can be opened, outside root still can. */
        if (fstat(stdin_fd, &st) == 0 && S_ISFIFO(st.st_mode) && who->uid == 0 &&
            fchown(stdin_fd, vg_sandbox_map_uid(k->sb, 0), (gid_t)-1) < 0)
            vg_debug("cannot chown stdin: errno=%d", errno);
        s->child[0] = stdin_fd;
        return 0;
    }
    if (t->start->spec->stdin_open) {
        int ours = -1;
        int r = make_pipe(k, t, &ours, &s->child[0], true);
        t->in = (struct source){.fn = in_ready, .obj = t, .fd = ours};
        t->in_channel = true;
        return r;
    }
    if (t->start->spec->closed & 1)
        return 0;
    s->child[0] = open("/dev/null", O_RDONLY | O_CLOEXEC);
    return s->child[0] < 0 ? -errno : 0;
}

static int make_stdio(struct keeper *k, struct ktask *t, int stdin_fd, struct stdio *s) {
    const Vg__Pb__TaskSpec *spec = t->start->spec;
    int r;
    *s = (struct stdio){{-1, -1, -1}};
    if (!spec->tty || spec->tty_out) {
        r = make_stdin(k, t, s, stdin_fd);
        if (r >= 0)
            r = make_output(k, t, s, 1, spec->tty_out & 1);
        if (r >= 0 && !(spec->stderr_joined && s->child[1] >= 0))
            r = make_output(k, t, s, 2, spec->tty_out & 2);
        else if (r >= 0 && (s->child[2] = fcntl(s->child[1], F_DUPFD_CLOEXEC, 3)) < 0)
            r = -errno;
        return r;
    }
    t->tty = true;
    vg_close(&stdin_fd);
    int master = -1;
    r = open_terminal(k, t, false, &master, &s->child[0]);
    if (r < 0)
        return r;
    t->in = (struct source){.fn = in_ready, .obj = t, .fd = master};
    t->out[0] = (struct source){.fn = out_ready, .obj = t, .fd = fcntl(master, F_DUPFD_CLOEXEC, 3)};
    s->child[1] = fcntl(s->child[0], F_DUPFD_CLOEXEC, 3);
    if (spec->stderr_apart)
        return make_output(k, t, s, 2, false);
    s->child[2] = fcntl(s->child[0], F_DUPFD_CLOEXEC, 3);
    return s->child[2] < 0 || s->child[1] < 0 || t->out[0].fd < 0 ? -errno : 0;
}

static char *bytes_dup(const ProtobufCBinaryData *d) {
    return d->len ? vg_strndup((const char *)d->data, d->len) : vg_strdup("");
}

static void strv_free(char **v) {
    for (size_t i = 0; v && v[i]; i++)
        free(v[i]);
    free(v);
}

static bool is_ours(const ProtobufCBinaryData *d) {
    static const char *const names[] = {"VIRGA_TASK_ID=", "VIRGA_TOKEN=", "VIRGA_SOCKET="};
    for (size_t i = 0; i < VG_COUNT(names); i++)
        if (d->len >= strlen(names[i]) && memcmp(d->data, names[i], strlen(names[i])) == 0)
            return true;
    return false;
}

/* Whether one of `more` sets the same variable: a program takes the first that it finds. */
static bool is_replaced(const ProtobufCBinaryData *d, const ProtobufCBinaryData *more, size_t n) {
    const uint8_t *eq = d->len ? memchr(d->data, '=', d->len) : NULL;
    size_t len = eq ? (size_t)(eq - d->data) + 1 : 0;
    for (size_t i = 0; i < n && len; i++)
        if (more[i].len >= len && memcmp(more[i].data, d->data, len) == 0)
            return true;
    return false;
}

static char **make_env(const struct ktask *t) {
    const Vg__Pb__Start *st = t->start;
    size_t cap = st->spec->n_env + st->n_extra_env + st->n_secret + 9, n = 0;
    char **v = vg_alloc(cap * sizeof(*v));
    if (!v)
        return NULL;
    for (size_t i = 0; i < st->spec->n_env; i++)
        if (!is_ours(&st->spec->env[i]) && !ksecret_replaces(st, &st->spec->env[i]) &&
            !is_replaced(&st->spec->env[i], st->extra_env, st->n_extra_env))
            v[n++] = bytes_dup(&st->spec->env[i]);
    for (size_t i = 0; i < st->n_extra_env; i++)
        if (!is_replaced(&st->extra_env[i], st->extra_env + i + 1, st->n_extra_env - i - 1))
            v[n++] = bytes_dup(&st->extra_env[i]);
    n += ksecret_env(st, v + n);
    char id[VG_ID_LEN + 1];
    vg_id_format(t->id, id);
    v[n++] = vg_fmt("VIRGA_TASK_ID=%s", id);
    v[n++] = vg_strdup("VIRGA_SOCKET=/run/virga/sock");
    if (st->task_token)
        v[n++] = vg_fmt("VIRGA_TOKEN=%s", st->task_token);
    for (size_t i = 0; i < n; i++)
        if (!v[i])
            v[i] = vg_strdup("VIRGA_LOST=1"); /* out of memory: execve will say so itself */
    return v;
}

static char **make_argv(const Vg__Pb__TaskSpec *spec) {
    char **v = vg_alloc((spec->n_argv + 1) * sizeof(*v));
    for (size_t i = 0; v && i < spec->n_argv; i++)
        v[i] = bytes_dup(&spec->argv[i]);
    return v;
}

#define RLIMITS_MAX 16

/* The node's adapters for a task with whole GPUs. They work on memory that stays where it is, so
   there is no limit to that, whatever the caller's is. */
static size_t add_rdma(const struct keeper *k, char (*path)[VG_GPU_PATH], size_t max,
                       struct vg_rlimit *rl, size_t *n_rl) {
    struct vg_rdma r;
    size_t i = 0;
    vg_rdma_find(k->birth.gpus->root, &r);
    if (!r.n || r.n > max)
        return 0;
    memcpy(path, r.node, r.n * sizeof(r.node[0]));
    while (i < *n_rl && rl[i].which != RLIMIT_MEMLOCK)
        i++;
    if (i == RLIMITS_MAX)
        i--;
    rl[i] = (struct vg_rlimit){RLIMIT_MEMLOCK, RLIM_INFINITY, RLIM_INFINITY};
    *n_rl = VG_MAX(*n_rl, i + 1);
    return r.n;
}

static int do_exec(struct keeper *k, struct ktask *t, struct stdio *s, int cwd_fd,
                   struct vg_err *err) {
    const Vg__Pb__Start *st = t->start;
    const Vg__Pb__TaskSpec *spec = st->spec;
    const Vg__Pb__Resources *g = st->grant;
    char **argv = make_argv(spec), **env = make_env(t);
    vg_auto_free char *cwd = bytes_dup(&spec->cwd);
    struct vg_bind binds[18 + VG_FSD_FDS];
    char *paths[16] = {0};
    size_t n_binds = 0;
    for (size_t i = 0; i < st->n_shared_path && i < VG_COUNT(paths); i++)
        if ((paths[i] = bytes_dup(&st->shared_path[i])))
            binds[n_binds++] = (struct vg_bind){.path = paths[i], .fd = -1};
    /* Without a descriptor (the task outlived a restart) the path is opened with the user's rights.
     */
    if (cwd && (cwd_fd >= 0 || st->who->local))
        binds[n_binds++] = (struct vg_bind){.path = cwd, .fd = cwd_fd};
    struct vg_bind mps = {.fd = -1};
    int r = kmps_bind(k, t, &mps, err);
    vg_auto_fd int mps_fd = mps.fd;
    if (r > 0)
        binds[n_binds++] = mps;
    n_binds += kmirror_binds(t, binds + n_binds, VG_COUNT(binds) - n_binds);
    struct vg_rlimit rl[RLIMITS_MAX];
    size_t n_rl = 0;
    for (size_t i = 0; i < spec->n_rlimit && n_rl < VG_COUNT(rl); i++)
        rl[n_rl++] = (struct vg_rlimit){(int)spec->rlimit[i]->which, spec->rlimit[i]->soft,
                                        spec->rlimit[i]->hard};
    char dev_paths[VG_GPU_NODES_MAX][VG_GPU_PATH];
    struct vg_device devices[VG_COUNT(dev_paths)];
    size_t n_dev = 0;
    if (st->n_gpu && k->birth.gpus)
        n_dev = vg_gpu_devices(k->birth.gpus, k->birth.gpus->root, st->gpu, st->n_gpu, dev_paths,
                               VG_COUNT(dev_paths));
    if (st->rdma && n_dev)
        n_dev += add_rdma(k, dev_paths + n_dev, VG_COUNT(dev_paths) - n_dev, rl, &n_rl);
    for (size_t i = 0; i < n_dev; i++)
        devices[i] = (struct vg_device){.path = dev_paths[i], .root = k->birth.gpus->root};
    struct vg_near_cpus near = {.numa = st->near_numa};
    if (st->has_near_cpus && st->near_cpus.len == sizeof(near.cpus))
        memcpy(near.cpus, st->near_cpus.data, sizeof(near.cpus));
    struct vg_limits lim = {0};
    if (g && !kbare_is(t)) /* who has all of the node is limited by the node */
        lim = (struct vg_limits){g->cpu_milli, g->mem_bytes, g->pids, g->disk_bytes};
    vg_auto_free struct vg_given_file *given = NULL;
    size_t n_given = 0;
    if (r >= 0)
        r = ksecret_files(st, &given, &n_given, err);
    struct kgpu_lay *lay = NULL;
    bool share = kgpu_is_held(k, t);
    if (r >= 0 && share)
        r = kgpu_lay(k, t, &lay, err);
    struct vg_exec x = {
        .argv = argv,
        .env = env,
        .cwd = cwd && *cwd ? cwd : "/",
        .uid = st->who->uid,
        .gid = st->who->gid,
        .groups = st->who->groups,
        .n_groups = st->who->n_groups,
        .umask = spec->has_umask ? spec->umask : 022,
        .rlimits = rl,
        .n_rlimits = n_rl,
        .nice = (int)spec->nice,
        .sig_ignored = spec->sig_ignored,
        .fds = {s->child[0], s->child[1], s->child[2]},
        .tty = t->tty,
        .limits = &lim,
        .binds = binds,
        .n_binds = n_binds,
        .devices = devices,
        .n_devices = n_dev,
        .lay = kgpu_laid(lay),
        .given = given,
        .n_given = n_given,
        .near = st->has_near_cpus ? &near : NULL,
        .watched = share,
        .open_devices = kbare_is(t),
    };
    if (r >= 0)
        r = argv && env && argv[0] ? vg_sandbox_exec(k->sb, t->id, &x, err)
                                   : vg_err_set(err, VG_INVALID, "there is no command to run");
    free(lay);
    strv_free(argv);
    if (st->n_secret)
        ksecret_wipe(t->start, env);
    strv_free(env);
    for (size_t i = 0; i < VG_COUNT(paths); i++)
        free(paths[i]);
    return r;
}

static Vg__Pb__Start *read_start(int fd) {
    struct stat st;
    if (fstat(fd, &st) < 0 || st.st_size <= 0 || st.st_size > (32 << 20))
        return NULL;
    void *p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (p == MAP_FAILED)
        return NULL;
    Vg__Pb__Start *s = vg__pb__start__unpack(NULL, (size_t)st.st_size, p);
    munmap(p, (size_t)st.st_size);
    if (s && (!s->spec || !s->who)) {
        vg__pb__start__free_unpacked(s, NULL);
        return NULL;
    }
    return s;
}

void ktask_share(struct ktask *t, int start_fd) {
    Vg__Pb__Start *start = read_start(start_fd);
    if (!start || !vg_start_is_share(start) || start->task_id != t->id ||
        start->attempt != t->attempt || !vg_start_is_share(t->start)) {
        vg_close(&start_fd);
        if (start)
            vg__pb__start__free_unpacked(start, NULL);
        return;
    }
    /* What else it says is as it was; other parts point into the old one. */
    t->start->grant->gpu_milli = start->grant->gpu_milli;
    t->start->grant->gpu_mem_bytes = start->grant->gpu_mem_bytes;
    vg__pb__start__free_unpacked(start, NULL);
    vg_close(&t->start_fd);
    t->start_fd = start_fd;
    kgpu_changed(t);
}

static struct ktask *task_new(struct keeper *k, Vg__Pb__Start *start, int start_fd) {
    struct ktask *t = calloc(1, sizeof(*t));
    if (!t)
        return NULL;
    t->id = start->task_id;
    t->attempt = start->attempt;
    t->start = start;
    t->start_fd = start_fd;
    t->out[0].fd = t->out[1].fd = t->in.fd = -1;
    t->in_end = t->hold_until = t->kill_at = KEEPER_NEVER;
    t->detached = start->spec->detached;
    vg_list_init(&t->chans);
    vg_ring_init(&t->ring, k->birth.log_tail_bytes);
    vg_list_push_back(&k->tasks, &t->link);
    k->had_task = true;
    return t;
}

void ktask_start(struct keeper *k, int start_fd, uint64_t bytes, int chan_fd, int cwd_fd,
                 int stdin_fd, const void *words, size_t words_len) {
    Vg__Pb__Start *start = read_start(start_fd);
    if (start && start->n_secret)
        ksecret_take(start_fd, bytes);
    struct ktask *t = start && !ktask_find(k, start->task_id) ? task_new(k, start, start_fd) : NULL;
    if (!t) {
        if (start)
            vg__pb__start__free_unpacked(start, NULL);
        vg_close(&start_fd);
        vg_close(&chan_fd);
        vg_close(&cwd_fd);
        vg_close(&stdin_fd);
        return;
    }
    if (words_len && (t->share_words = vg_memdup(words, words_len)))
        t->share_len = words_len; /* without them it does not start */
    if (start->session_key && !k->session_key[0]) {
        snprintf(k->session_key, sizeof(k->session_key), "%s", start->session_key);
        k->keep_usec = start->spec->session_keep_usec;
    }
    k->session_until = KEEPER_NEVER;
    if (chan_fd >= 0) {
        /* A channel that somebody relays is not a client of this machine: its end is not his. */
        bool local = start->stream == 0 && !(start->fd_mask & 8);
        struct kchan *c = kchan_new(k, t, chan_fd, false, local);
        if (c) {
            c->owner = true;
            t->owner = c;
        }
    }
    if (!start->spec->mirror) {
        ktask_launch(k, t, stdin_fd, cwd_fd);
        return;
    }
    struct vg_err err = VG_ERR_INIT;
    vg_close(&cwd_fd); /* of another machine */
    t->state_dirty = true;
    t->tty = start->spec->tty && !start->spec->tty_out; /* a client is told before it begins */
    t->in_channel = !t->tty && stdin_fd < 0 && start->spec->stdin_open;
    if (kmirror_begin(k, t, stdin_fd, &err) < 0)
        ktask_fail(k, t, err.reason, "%s", err.msg);
}

void ktask_launch(struct keeper *k, struct ktask *t, int stdin_fd, int cwd_fd) {
    struct stdio s;
    struct vg_err err = VG_ERR_INIT;
    int r = make_stdio(k, t, stdin_fd, &s);
    if (r < 0)
        vg_err_sys(&err, r, "cannot make the task's pipes");
    else
        r = do_exec(k, t, &s, cwd_fd, &err);
    stdio_close(&s);
    vg_close(&cwd_fd);
    if (r < 0) {
        ktask_fail(k, t, err.reason, "%s", err.msg);
        return;
    }
    for (int i = 0; i < 2; i++)
        if (t->out[i].fd >= 0)
            keeper_watch(k, &t->out[i], EPOLLIN);
    if (t->in.fd < 0 && t->in_done < t->in_taken)
        input_broken(k, t);
    else if (t->in_taken || t->in_end != KEEPER_NEVER)
        input_pump(k, t); /* came while it waited for its files */
}

/* ---- end ---- */

void ktask_fail(struct keeper *k, struct ktask *t, enum vg_reason reason, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(t->text, sizeof(t->text), fmt, ap);
    va_end(ap);
    t->reason = reason;
    t->status = vg_reason_exit(reason);
    t->wait_known = true;
    keeper_close(k, &t->out[0]);
    keeper_close(k, &t->out[1]);
    keeper_close(k, &t->in);
    ktask_finish(k, t);
}

/* When status and all output are there, the task has ended: tell everybody, in K2's order. */
void ktask_finish(struct keeper *k, struct ktask *t) {
    if (t->finished || !t->wait_known || t->out[0].fd >= 0 || t->out[1].fd >= 0)
        return;
    if (kmirror_settle(k, t)) /* comes back here */
        return;
    t->finished = true;
    t->state = KT_EXITED;
    t->ended_usec = vg_wall_usec();
    t->kill_at = KEEPER_NEVER;
    keeper_close(k, &t->in);
    kgpu_end(k, t);
    bool killed = t->status == 128 + SIGKILL;
    if (!killed) /* then the client need not wait for the numbers */
        kchan_flush_all(k, t);
    if (k->sb)
        vg_sandbox_usage(k->sb, &t->usage);
    kbare_let_go(k, t);
    if (t->usage.oom && !t->text[0] && killed)
        snprintf(t->text, sizeof(t->text), "it used more memory than its limit and was killed");
    if (t->status && !t->text[0] && t->mirror && t->detached)
        snprintf(t->text, sizeof(t->text), "%s", t->mirror->note);
    if (killed)
        kchan_flush_all(k, t);
    t->state_dirty = true;
    keeper_flush_agent(k);
}

static void exec_failed(struct keeper *k, struct ktask *t, const struct vg_sandbox_event *ev) {
    enum vg_reason reason = ev->code == ENOENT   ? VG_NO_COMMAND
                            : ev->code == EACCES ? VG_NOT_EXECUTABLE
                            : ev->code == ENOEXEC || ev->code == EISDIR || ev->code == ENOTDIR
                                ? VG_NOT_EXECUTABLE
                            : ev->code == E2BIG ? VG_NOT_EXECUTABLE
                                                : VG_INTERNAL;
    ktask_fail(k, t, reason, "%s", ev->text);
}

static void command_exited(struct keeper *k, struct ktask *t, int wait_status) {
    t->status = WIFSIGNALED(wait_status) ? 128 + WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
    t->wait_known = true;
    if (t->kill_text[0])
        snprintf(t->text, sizeof(t->text), "%s", t->kill_text);
    kbare_end(k, t);
    if (t->out[0].fd >= 0 || t->out[1].fd >= 0)
        ktask_read_output(k, t);
    /* Pipes may be held by processes the command left behind: the task ends with its command. */
    if (!k->session_key[0] && (t->out[0].fd >= 0 || t->out[1].fd >= 0))
        vg_sandbox_kill_all(k->sb);
    ktask_finish(k, t);
}

void ktask_event(struct keeper *k, const struct vg_sandbox_event *ev) {
    if (ev->kind == VG_SB_DEAD) {
        k->sb_dead = true;
        vg_list_for_each_safe (it, &k->tasks) {
            struct ktask *t = vg_list_entry(it, struct ktask, link);
            if (t->wait_known)
                continue;
            t->status = 128 + SIGKILL;
            t->wait_known = true;
            snprintf(t->text, sizeof(t->text), "%s",
                     t->kill_text[0] ? t->kill_text : "every process of the task was killed");
            kbare_end(k, t);
            ktask_finish(k, t);
        }
        return;
    }
    struct ktask *t = ktask_find(k, ev->tag);
    if (!t || t->wait_known) {
        if (ev->fd >= 0)
            close(ev->fd);
        return;
    }
    uint8_t p[4];
    switch (ev->kind) {
    case VG_SB_WATCHED:
        kgpu_watched(k, t, ev->fd);
        break;
    case VG_SB_STARTED:
        t->state = KT_RUNNING;
        t->started_usec = vg_wall_usec();
        vg_put32(p, (uint32_t)ev->pid);
        vg_list_for_each_safe (it, &t->chans) {
            struct kchan *c = vg_list_entry(it, struct kchan, link);
            kchan_frame(c, VG_TIO_STARTED, p, sizeof(p), NULL, 0);
            kchan_flush(k, c);
        }
        t->state_dirty = true;
        keeper_flush_agent(k);
        break;
    case VG_SB_EXEC_FAILED:
        exec_failed(k, t, ev);
        break;
    case VG_SB_STOPPED:
        vg_put32(p, (uint32_t)ev->code);
        if (t->owner) {
            kchan_frame(t->owner, VG_TIO_STOPPED, p, sizeof(p), NULL, 0);
            kchan_flush(k, t->owner);
        }
        break;
    case VG_SB_EXITED:
        command_exited(k, t, ev->code);
        break;
    case VG_SB_DEAD:
        break;
    }
}

void ktask_kill(struct keeper *k, struct ktask *t, int signo, uint64_t grace_usec,
                const char *text) {
    if (kmirror_signal(k, t, signo, grace_usec, text) || t->wait_known)
        return;
    if (text && *text && !t->kill_text[0])
        snprintf(t->kill_text, sizeof(t->kill_text), "%s", text);
    t->killed = true;
    if (signo == SIGKILL && !k->session_key[0])
        vg_sandbox_kill_all(k->sb);
    else if (vg_sandbox_signal(k->sb, t->id, signo, true) < 0)
        vg_debug("cannot signal a task: signal=%d", signo);
    if (grace_usec)
        t->kill_at = VG_MIN(t->kill_at, vg_now_usec() + grace_usec);
}

int ktask_report(struct keeper *k, struct ktask *t, bool with_start) {
    static const int states[] = {VG__PB__TASK_REPORT__STATE__STARTING,
                                 VG__PB__TASK_REPORT__STATE__RUNNING,
                                 VG__PB__TASK_REPORT__STATE__EXITED};
    Vg__Pb__TaskReport r = VG__PB__TASK_REPORT__INIT;
    Vg__Pb__TaskExited e = VG__PB__TASK_EXITED__INIT;
    char *wiped[VG_COUNT(t->wiped)];
    r.has_task_id = r.has_attempt = r.has_state = r.has_started_usec = true;
    r.task_id = t->id;
    r.attempt = t->attempt;
    enum ktask_state state = t->state == KT_EXITED && !klog_done(k, t) ? KT_RUNNING : t->state;
    r.state = (Vg__Pb__TaskReport__State)states[state];
    r.started_usec = t->started_usec;
    r.has_out_begin = r.has_out_end = true;
    r.out_begin = t->ring.begin;
    r.out_end = t->ring.end;
    if (state == KT_EXITED) {
        e.has_task_id = e.has_attempt = e.has_status = e.has_started_usec = e.has_ended_usec = true;
        e.task_id = t->id;
        e.attempt = t->attempt;
        e.status = t->status;
        e.started_usec = t->started_usec;
        e.ended_usec = t->ended_usec;
        e.has_out_end = e.has_cpu_usec = e.has_mem_peak_bytes = e.has_oom = e.has_never_ran = true;
        e.out_end = t->ring.end;
        e.cpu_usec = t->usage.cpu_usec;
        e.mem_peak_bytes = t->usage.mem_peak_bytes;
        e.oom = t->usage.oom;
        e.never_ran = t->started_usec == 0;
        e.reason = t->lost && t->status == 128 + SIGKILL ? VG_LOST : t->reason;
        e.has_reason = e.reason != 0;
        e.text = t->text;
        e.has_log_round = t->log_round != 0;
        e.log_round = t->log_round;
        for (; e.n_wiped < t->n_wiped; e.n_wiped++)
            wiped[e.n_wiped] = t->wiped[e.n_wiped];
        e.wiped = wiped;
        r.exited = &e;
    }
    uint8_t buf[2048];
    if (vg__pb__task_report__get_packed_size(&r) > sizeof(buf))
        return -E2BIG;
    size_t n = vg__pb__task_report__pack(&r, buf);
    return keeper_tell(k, VG_K_STATE, t->id, 0, 0, buf, n, &t->start_fd, with_start ? 1 : 0);
}

void ktask_free(struct keeper *k, struct ktask *t) {
    kmirror_free(k, t);
    kgpu_end(k, t);
    vg_list_for_each_safe (it, &t->chans)
        kchan_drop(k, vg_list_entry(it, struct kchan, link));
    keeper_close(k, &t->out[0]);
    keeper_close(k, &t->out[1]);
    keeper_close(k, &t->in);
    vg_buf_done(&t->in_buf);
    vg_ring_done(&t->ring);
    vg_list_remove(&t->link);
    vg_close(&t->start_fd);
    ksecret_wipe(t->start, NULL);
    vg__pb__start__free_unpacked(t->start, NULL);
    free(t->share_words);
    free(t);
}
