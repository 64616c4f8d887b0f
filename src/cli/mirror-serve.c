#include "cli/mirror-serve.h"

#include "base/cleanup.h"
#include "base/list.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/util.h"
#include "cli/mirror-sock.h"
#include "cli/mirror-way.h"
#include "net/conn.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>

#define CALLERS_MAX 1024
#define LIST_MAX 1024
#define LOCK_AGAIN_MS 3
#define LOCK_TRIES 2000

struct serve {
    uv_loop_t loop;
    struct vg_mirror *m;
    struct vg_mcloud *cloud;
    struct vg_listener *listener;
    struct vg_way *way; /* for the next vrun */
    uv_timer_t idle;
    uv_signal_t term;
    uint64_t idle_usec, busy_at;
    uint64_t looked_at, alone_usec; /* without the cloud and without anybody who waits */
    size_t n_callers;
    struct vg_list callers;
    bool stop;
};
struct caller {
    struct vg_list link;
    struct serve *s;
    int fd;
    bool runs; /* it began a task, and waits for its end */
    uv_poll_t poll;
};

/* ---- callers ---- */

static void caller_closed(uv_handle_t *h) {
    struct caller *c = h->data;
    close(c->fd);
    free(c);
}

static void caller_close(struct caller *c) {
    vg_list_remove(&c->link);
    c->s->n_callers--;
    uv_poll_stop(&c->poll);
    uv_close((uv_handle_t *)&c->poll, caller_closed);
}

static void answer_error(struct vg_mpkt *p, const struct vg_err *err) {
    char reason[12];
    snprintf(reason, sizeof(reason), "%u", (unsigned)err->reason);
    vg_mpkt_clear(p);
    vg_mpkt_add(p, "error", err->msg);
    vg_mpkt_add(p, "reason", reason);
}

/* All values of a key; the array is the caller's, the strings are the packet's. */
static size_t values(const struct vg_mpkt *p, const char *key, const char **list) {
    size_t at = 0, n = 0;
    const char *v;
    while (n < LIST_MAX - 1 && (v = vg_mpkt_next(p, key, &at)))
        list[n++] = v;
    list[n] = NULL;
    return n;
}

struct begin {
    const char *argv[LIST_MAX], *writable[LIST_MAX], *allow[LIST_MAX], *group[LIST_MAX];
    uint32_t groups[LIST_MAX];
};

static uint32_t number(const char *text) {
    uint64_t v = 0;
    return text && vg_parse_u64(text, &v) == 0 ? (uint32_t)v : 0;
}

/* For a task that was submitted without: what vrun would have said. */
static int spec_of(const struct vg_mpkt *p, struct begin *b, const uint8_t *machine,
                   struct vg_mirror_task *t, Vg__Pb__MirrorSpec *spec, Vg__Pb__MirrorView *view,
                   Vg__Pb__MirrorView **each) {
    const char *home = vg_mpkt_get(p, "home");
    const char *const *path;
    *spec = (Vg__Pb__MirrorSpec)VG__PB__MIRROR_SPEC__INIT;
    spec->has_machine = spec->has_uid = spec->has_gid = spec->has_offered = true;
    spec->machine = (ProtobufCBinaryData){VG_MID, (uint8_t *)machine};
    spec->offered = true;
    spec->uid = number(vg_mpkt_get(p, "uid"));
    spec->gid = number(vg_mpkt_get(p, "gid"));
    spec->n_groups = values(p, "group", b->group);
    for (size_t i = 0; i < spec->n_groups; i++)
        b->groups[i] = number(b->group[i]);
    spec->groups = b->groups;
    if (home) {
        spec->has_home = true;
        spec->home = (ProtobufCBinaryData){strlen(home), (uint8_t *)home};
    }
    spec->has_strict = spec->strict = vg_mpkt_get(p, "strict") != NULL;
    spec->has_sync = spec->sync = vg_mpkt_get(p, "sync") != NULL;
    spec->n_view = vg_mirror_views(t, &path);
    for (size_t i = 0; i < spec->n_view; i++) {
        view[i] = (Vg__Pb__MirrorView)VG__PB__MIRROR_VIEW__INIT;
        view[i].has_path = view[i].has_write = view[i].write = true;
        view[i].path = (ProtobufCBinaryData){strlen(path[i]), (uint8_t *)path[i]};
        each[i] = &view[i];
    }
    spec->view = each;
    return 0;
}

static void answer_begun(struct vg_mpkt *p, const struct vg_mirror_task *t,
                         const uint8_t *machine) {
    char hex[2 * VG_MID + 1];
    const char *const *path;
    for (int i = 0; i < VG_MID; i++)
        snprintf(hex + 2 * i, 3, "%02x", machine[i]);
    vg_mpkt_clear(p);
    vg_mpkt_add(p, "machine", hex);
    size_t n = vg_mirror_views(t, &path);
    for (size_t i = 0; i < n; i++)
        vg_mpkt_add(p, "view", path[i]);
    if (vg_mirror_note(t))
        vg_mpkt_add(p, "note", vg_mirror_note(t));
}

static bool begin(struct serve *s, struct vg_mpkt *p) {
    struct vg_err err = VG_ERR_INIT;
    struct begin *b = vg_alloc(sizeof(*b));
    struct vg_mirror_task *t = NULL;
    Vg__Pb__MirrorSpec spec;
    Vg__Pb__MirrorView view[16], *each[16];
    const char *id = vg_mpkt_get(p, "task");
    struct vg_mirror_run run = {.cwd = vg_mpkt_get(p, "cwd"),
                                .path_env = vg_mpkt_get(p, "path"),
                                .strict = vg_mpkt_get(p, "strict") != NULL,
                                .sync = vg_mpkt_get(p, "sync") != NULL};
    int r = b ? 0 : vg_err_set(&err, VG_INTERNAL, "out of memory");
    if (r == 0 && (!id || vg_id_parse(id, &run.task) < 0))
        r = vg_err_set(&err, VG_INVALID, "the request names no task");
    if (r == 0) {
        values(p, "arg", b->argv);
        run.argv = (char *const *)b->argv;
        run.writable = b->writable;
        run.n_writable = values(p, "writable", b->writable);
        run.allow = b->allow;
        run.n_allow = values(p, "allow", b->allow);
        r = vg_mirror_begin(s->m, &run, &t, &err);
    }
    uint8_t machine[VG_MID];
    memcpy(machine, vg_mirror_machine(s->m), VG_MID);
    if (r == 0) {
        bool pin = vg_mpkt_get(p, "pin") != NULL;
        if (pin)
            vg_mirror_pinned(run.task, machine);
        spec_of(p, b, machine, t, &spec, view, each);
        spec.has_pin = spec.pin = pin;
        if (vg_mcloud_offer(s->cloud, t, run.task, &spec) < 0) {
            vg_mirror_end(t);
            r = vg_err_set(&err, VG_INTERNAL, "out of memory");
        }
    }
    if (r < 0)
        answer_error(p, &err);
    else
        answer_begun(p, t, machine);
    free(b);
    return r == 0;
}

static void stop(struct serve *s, struct vg_mpkt *p) {
    struct vg_err err = VG_ERR_INIT;
    size_t n = 0;
    vg_list_for_each (it, &s->callers)
        n += vg_list_entry(it, struct caller, link)->runs;
    if (n && !vg_mpkt_get(p, "force")) {
        vg_err_set(&err, VG_CONFLICT,
                   "%zu running commands use it: wait for them, or end them first", n);
        answer_error(p, &err);
        return;
    }
    vg_mpkt_clear(p);
    vg_mpkt_add(p, "ok", "1");
    s->stop = true;
}

static void take(struct caller *c, struct vg_mpkt *p) {
    struct serve *s = c->s;
    const char *op = vg_mpkt_get(p, "op");
    struct vg_err err = VG_ERR_INIT;
    char counts[48];
    s->busy_at = vg_now_usec();
    vg_auto_fd int way = -1;
    if (op && strcmp(op, "begin") == 0) {
        if (vg_mpkt_get(p, "way"))
            way = vg_way_take(s->way);
        c->runs |= begin(s, p);
        vg_way_prepare(s->way);
    } else if (op && strcmp(op, "status") == 0) {
        char *text = vg_mirror_status(s->m);
        vg_mpkt_clear(p);
        vg_mpkt_add(p, "cloud", vg_mcloud_state(s->cloud));
        vg_mpkt_add(p, "ways", vg_way_counts(s->way, counts, sizeof(counts)));
        if (!text || vg_mpkt_add(p, "json", text) < 0)
            vg_mpkt_add(p, "json", "{}");
        free(text);
    } else if (op && strcmp(op, "end") == 0) {
        const char *id = vg_mpkt_get(p, "task");
        uint64_t task;
        if (id && vg_id_parse(id, &task) == 0)
            vg_mcloud_over(s->cloud, task);
        c->runs = false;
        return; /* whoever says so is about to leave */
    } else if (op && strcmp(op, "stop") == 0) {
        stop(s, p);
    } else {
        vg_err_set(&err, VG_UNSUPPORTED,
                   "the file service is of another version: 'virga mirror stop' ends it, the next "
                   "vrun starts the right one");
        answer_error(p, &err);
    }
    if (vg_mpkt_send(c->fd, p, way) < 0)
        caller_close(c);
    if (s->stop)
        uv_stop(&s->loop);
}

static void on_packet(uv_poll_t *poll, int status, int events) {
    static struct vg_mpkt p; /* loop thread only */
    struct caller *c = poll->data;
    (void)events;
    int r = status < 0 ? status : vg_mpkt_recv(c->fd, &p, NULL);
    if (r == -EAGAIN)
        return;
    if (r <= 0)
        caller_close(c);
    else
        take(c, &p);
}

static void accepted(int fd, void *user) {
    struct serve *s = user;
    struct ucred who;
    socklen_t n = sizeof(who);
    struct caller *c = NULL;
    if (s->n_callers < CALLERS_MAX && getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &n) == 0 &&
        (who.uid == geteuid() || who.uid == 0))
        c = vg_alloc(sizeof(*c));
    if (!c || uv_poll_init(&s->loop, &c->poll, fd) < 0) {
        free(c);
        close(fd);
        return;
    }
    c->s = s;
    c->fd = fd;
    c->poll.data = c;
    vg_list_push_back(&s->callers, &c->link);
    s->n_callers++;
    uv_poll_start(&c->poll, UV_READABLE, on_packet);
}

/* ---- the program ---- */

static bool is_waited_for(const struct serve *s) {
    vg_list_for_each (it, &s->callers)
        if (vg_list_entry(it, struct caller, link)->runs)
            return true;
    return false;
}

/* A task whose vrun has left is offered again and again to a cloud that may never come back; nodes
   wait as long for us. Time that this machine slept is not counted. */
static bool is_forsaken(struct serve *s, uint64_t now) {
    uint64_t tick = 2000 * uv_timer_get_repeat(&s->idle);
    s->alone_usec += VG_MIN(now - s->looked_at, tick);
    s->looked_at = now;
    if (vg_mcloud_is_connected(s->cloud) || is_waited_for(s))
        s->alone_usec = 0;
    return s->alone_usec >= s->idle_usec;
}

static void on_idle(uv_timer_t *t) {
    struct serve *s = t->data;
    uint64_t now = vg_now_usec();
    if (!vg_mirror_idle(s->m) || !vg_mcloud_idle(s->cloud))
        s->busy_at = now;
    if (now - s->busy_at >= s->idle_usec || is_forsaken(s, now))
        uv_stop(&s->loop);
}

static void on_term(uv_signal_t *h, int signo) {
    struct serve *s = h->data;
    (void)signo;
    uv_stop(&s->loop);
}

static void say_ready(const struct vg_serve_conf *conf, const char *text) {
    if (conf->ready_fd < 0)
        return;
    (void)vg_write_full(conf->ready_fd, text, strlen(text)); /* who asked may be gone */
    close(conf->ready_fd);
}

static bool is_served(const char *sock) {
    vg_auto_fd int fd = vg_mirror_sock_connect(sock);
    return fd >= 0;
}

/* One at a time: whoever holds the lock. One that holds it and does not listen is about to do so,
   or about to end: who sees to it stays until it is clear which. 1: another serves. */
static int take_lock(const char *sock, int *ret) {
    char path[PATH_MAX];
    if (snprintf(path, sizeof(path), "%s.lock", sock) >= (int)sizeof(path))
        return -ENAMETOOLONG;
    *ret = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (*ret < 0)
        return -errno;
    for (int tries = 0; flock(*ret, LOCK_EX | LOCK_NB) < 0; tries++) {
        if (errno != EWOULDBLOCK || tries == LOCK_TRIES)
            return -errno;
        if (is_served(sock))
            return 1;
        poll(NULL, 0, LOCK_AGAIN_MS);
    }
    return 0;
}

static int set_up(struct serve *s, const struct vg_serve_conf *conf, struct vg_err *err) {
    int r = uv_loop_init(&s->loop);
    if (r < 0)
        return vg_err_sys(err, r, "cannot make a loop");
    vg_list_init(&s->callers);
    s->idle_usec = conf->idle_usec;
    s->busy_at = s->looked_at = vg_now_usec();
    if (vg_mirror_new(&s->loop, &conf->mirror, &s->m, err) < 0)
        return err->code;
    r = vg_mcloud_new(&s->loop, s->m, &s->cloud);
    r = r < 0 ? r : vg_way_new(&s->loop, &s->way);
    int fd = r < 0 ? r : vg_unix_listen(conf->sock, SOCK_SEQPACKET, 0600);
    if (fd >= 0) {
        vg_set_nonblock(fd, true);
        r = vg_listen_fd(&s->loop, fd, accepted, s, &s->listener);
    }
    if (fd < 0 || r < 0)
        return vg_err_sys(err, fd < 0 ? fd : r, "cannot listen at %s", conf->sock);
    uv_timer_init(&s->loop, &s->idle);
    s->idle.data = s;
    uint64_t every = VG_MAX(conf->idle_usec / 10000, (uint64_t)50);
    uv_timer_start(&s->idle, on_idle, every, every);
    uv_signal_init(&s->loop, &s->term);
    s->term.data = s;
    uv_signal_start(&s->term, on_term, SIGTERM);
    return 0;
}

static void tear_down(struct serve *s) {
    if (s->listener)
        vg_listener_free(s->listener);
    vg_list_for_each_safe (it, &s->callers)
        caller_close(vg_list_entry(it, struct caller, link));
    if (s->idle.data)
        uv_close((uv_handle_t *)&s->idle, NULL);
    if (s->term.data)
        uv_close((uv_handle_t *)&s->term, NULL);
    vg_way_free(s->way);
    vg_mcloud_free(s->cloud);
    vg_mirror_free(s->m);
    for (int i = 0; i < 100 && uv_loop_close(&s->loop) == UV_EBUSY; i++)
        uv_run(&s->loop, UV_RUN_NOWAIT);
}

int vg_serve_run(const struct vg_serve_conf *conf) {
    struct serve s = {0};
    struct vg_err err = VG_ERR_INIT;
    vg_auto_fd int lock = -1;
    signal(SIGPIPE, SIG_IGN);
    int r = take_lock(conf->sock, &lock);
    if (r > 0) {
        say_ready(conf, "ok");
        return 0;
    }
    r = r < 0 ? vg_err_sys(&err, r, "cannot lock %s.lock", conf->sock) : set_up(&s, conf, &err);
    if (r < 0) {
        vg_error("%s", err.msg);
        say_ready(conf, err.msg);
        if (s.m)
            tear_down(&s);
        return vg_reason_exit(err.reason);
    }
    say_ready(conf, "ok");
    uv_run(&s.loop, UV_RUN_DEFAULT);
    unlink(conf->sock); /* before the lock goes: the next makes its own */
    tear_down(&s);
    return 0;
}

int vg_serve_state(char *ret, size_t n, struct vg_err *err) {
    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    char own[PATH_MAX];
    int len;
    if (getenv("VIRGA_HOME")) {
        int r = vg_home_dir(own, sizeof(own), err);
        if (r < 0)
            return r;
        len = snprintf(ret, n, "%s/mirror", own);
    } else if (state && state[0] == '/') {
        len = snprintf(ret, n, "%s/virga", state);
    } else if (home && home[0] == '/') {
        len = snprintf(ret, n, "%s/.local/state/virga", home);
    } else {
        return vg_err_set(err, VG_INVALID,
                          "HOME is not set: the file service needs a place for "
                          "what it learns");
    }
    return len >= (int)n ? vg_err_set(err, VG_INVALID, "the state folder's path is too long") : 0;
}

/* ---- without a cloud ---- */

static void fd_idle(uv_timer_t *t) {
    struct serve *s = t->data;
    if (vg_mirror_linkless(s->m))
        uv_stop(&s->loop);
}

int vg_serve_fd(const struct vg_serve_fd *conf) {
    struct serve s = {0};
    struct vg_err err = VG_ERR_INIT;
    struct vg_mirror_task *t;
    signal(SIGPIPE, SIG_IGN);
    int r = uv_loop_init(&s.loop);
    if (r < 0)
        r = vg_err_sys(&err, r, "cannot make a loop");
    if (r == 0)
        r = vg_mirror_new(&s.loop, &conf->mirror, &s.m, &err);
    if (r == 0)
        r = vg_mirror_begin(s.m, &conf->run, &t, &err);
    if (r == 0 && (r = vg_mirror_link(t, conf->fd)) < 0)
        vg_err_sys(&err, r, "descriptor %d cannot carry a link", conf->fd);
    if (r < 0) {
        vg_error("%s", err.msg);
        return vg_reason_exit(err.reason);
    }
    uv_timer_init(&s.loop, &s.idle);
    s.idle.data = &s;
    uv_timer_start(&s.idle, fd_idle, 20, 20);
    uv_run(&s.loop, UV_RUN_DEFAULT);
    uv_close((uv_handle_t *)&s.idle, NULL);
    vg_mirror_free(s.m);
    while (uv_loop_close(&s.loop) == UV_EBUSY)
        uv_run(&s.loop, UV_RUN_NOWAIT);
    return 0;
}
