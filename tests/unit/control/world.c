/* The played world: everything on one loop, real sockets, real store. */
#include "world.h"

#include "base/cleanup.h"
#include "base/log.h"
#include "base/util.h"

#include <ftw.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/lsan_interface.h>
#endif

#define PATIENCE_USEC (60 * VG_USEC) /* only a failing test waits that long */

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *ftw) {
    (void)st;
    (void)kind;
    (void)ftw;
    return remove(path);
}

void world_start(struct world *w) {
    struct vg_err err = VG_ERR_INIT;
    struct vg_control_opts o = {.home = w->home};
    int r = vg_control_start(&w->c, &w->loop, &o, &err);
    cr_assert_eq(r, 0, "%s", err.msg);
    w->up = true;
}

void world_up(struct world *w, const char *config) {
    memset(w, 0, sizeof *w);
    vg_log_max = VG_LOG_ERROR;
    snprintf(w->home, sizeof w->home, "/tmp/vg-ctl-XXXXXX");
    cr_assert(mkdtemp(w->home));
    if (config) {
        char path[96];
        snprintf(path, sizeof path, "%s/config.yaml", w->home);
        cr_assert_eq(vg_write_file(path, config, strlen(config), 0600), 0);
    }
    cr_assert_eq(uv_loop_init(&w->loop), 0);
    world_start(w);
}

void world_stop(struct world *w) {
    if (!w->up)
        return;
    w->up = false;
    vg_control_stop(&w->c, NULL);
    uv_run(&w->loop, UV_RUN_DEFAULT);
    vg_control_done(&w->c);
}

void world_down(struct world *w) {
    world_stop(w);
    uv_run(&w->loop, UV_RUN_DEFAULT);
    cr_assert_eq(uv_loop_close(&w->loop), 0, "a handle is still open");
    nftw(w->home, remove_one, 16, FTW_DEPTH | FTW_PHYS);
#ifdef __SANITIZE_ADDRESS__
    cr_assert_eq(__lsan_do_recoverable_leak_check(), 0);
#endif
}

/* ------------------------------------------------------------------ connections */

void (*side_hook)(struct side *s, const Vg__Pb__Envelope *env);

static void on_msg(struct vg_conn *c, void *user, const Vg__Pb__Envelope *env, int *fds,
                   size_t n_fds) {
    struct side *s = user;
    (void)c;
    if (side_hook)
        side_hook(s, env);
    cr_assert_lt(s->n, VG_COUNT(s->inbox));
    struct msg *m = &s->inbox[s->n++];
    size_t n = vg__pb__envelope__get_packed_size(env);
    uint8_t *packed = malloc(n + 1);
    vg__pb__envelope__pack(env, packed);
    m->env = vg__pb__envelope__unpack(NULL, n, packed);
    free(packed);
    m->n_fds = n_fds;
    for (size_t i = 0; i < n_fds && i < VG_COUNT(m->fds); i++)
        m->fds[i] = vg_take_fd(fds[i]);
}

static void on_close(struct vg_conn *c, void *user, const struct vg_err *why) {
    struct side *s = user;
    (void)c;
    (void)why;
    s->conn = NULL;
}

static const struct vg_conn_ops ops = {.on_msg = on_msg, .on_close = on_close};

void side_open(struct world *w, struct side *s) {
    struct vg_err err = VG_ERR_INIT;
    char path[96];
    memset(s, 0, sizeof *s);
    snprintf(path, sizeof path, "%s/sock", w->home);
    int fd = vg_unix_connect(path, SOCK_STREAM);
    cr_assert_geq(fd, 0);
    vg_set_nonblock(fd, true);
    int r = vg_conn_new(&w->loop, fd, NULL, true, &ops, s, &s->conn, &err);
    cr_assert_eq(r, 0, "%s", err.msg);
}

static void note_tcp(int fd, const struct vg_err *err, void *user) {
    cr_assert_geq(fd, 0, "%s", err->msg);
    *(int *)user = fd;
}

void side_open_tls(struct world *w, struct side *s, const char *cert, const char *key) {
    struct vg_err err = VG_ERR_INIT;
    struct vg_tls *tls = NULL;
    int fd = -1;
    memset(s, 0, sizeof *s);
    cr_assert(vg_dial_tcp(&w->loop, w->c.address, 30 * VG_USEC, note_tcp, &fd));
    while (fd < 0)
        uv_run(&w->loop, UV_RUN_ONCE);
    int r = vg_tls_client_new(w->c.ca.fingerprint, cert, key, NULL, &tls, &err);
    cr_assert_eq(r, 0, "%s", err.msg);
    r = vg_conn_new(&w->loop, fd, tls, true, &ops, s, &s->conn, &err);
    cr_assert_eq(r, 0, "%s", err.msg);
    vg_tls_unref(tls);
}

void side_hello(struct side *s, const char *token) {
    Vg__Pb__Hello h = VG__PB__HELLO__INIT;
    h.has_protocol = 1;
    h.protocol = 1;
    h.token = (char *)token;
    ENV(env, HELLO, hello, &h);
    side_send(s, &env, NULL, 0);
}

void msg_done(struct msg *m) {
    if (m->env)
        vg__pb__envelope__free_unpacked(m->env, NULL);
    for (size_t i = 0; i < m->n_fds; i++)
        vg_close(&m->fds[i]);
    memset(m, 0, sizeof *m);
}

void side_close(struct world *w, struct side *s) {
    if (s->conn)
        vg_conn_abort(s->conn, VG_OK, "bye");
    while (s->conn)
        uv_run(&w->loop, UV_RUN_ONCE);
    for (size_t i = 0; i < s->n; i++)
        msg_done(&s->inbox[i]);
    s->n = 0;
}

uint32_t side_send(struct side *s, Vg__Pb__Envelope *env, const int *fds, size_t n_fds) {
    env->has_req = 1;
    env->req = ++s->req;
    cr_assert_eq(vg_conn_send(s->conn, env, fds, n_fds), 0);
    return s->req;
}

static bool take(struct side *s, int body_case, struct msg *ret) {
    for (size_t i = 0; i < s->n; i++)
        if ((int)s->inbox[i].env->body_case == body_case) {
            *ret = s->inbox[i];
            memmove(&s->inbox[i], &s->inbox[i + 1], (--s->n - i) * sizeof s->inbox[0]);
            return true;
        }
    return false;
}

static void out_of_patience(uv_timer_t *t) {
    *(bool *)t->data = true;
}

static void closed(uv_handle_t *h) {
    *(bool *)h->data = true;
}

struct msg side_expect(struct world *w, struct side *s, int body_case) {
    struct msg m = {0};
    bool late = false, gone = false;
    uv_timer_t timer;
    uv_timer_init(&w->loop, &timer);
    timer.data = &late;
    uv_timer_start(&timer, out_of_patience, PATIENCE_USEC / 1000, 0);
    bool found;
    while (!(found = take(s, body_case, &m)) && !late && s->conn)
        uv_run(&w->loop, UV_RUN_ONCE);
    timer.data = &gone;
    uv_close((uv_handle_t *)&timer, closed);
    while (!gone)
        uv_run(&w->loop, UV_RUN_NOWAIT);
    struct msg e = {0};
    if (!found && take(s, BODY(ERROR), &e))
        cr_assert_fail("an error came instead of %d: %s", body_case, e.env->error->text);
    cr_assert(found, "message %d did not come", body_case);
    return m;
}

bool side_has(const struct side *s, int body_case) {
    for (size_t i = 0; i < s->n; i++)
        if ((int)s->inbox[i].env->body_case == body_case)
            return true;
    return false;
}

void side_sync(struct world *w, struct side *s) {
    Vg__Pb__Ping ping = VG__PB__PING__INIT;
    ENV(env, PING, ping, &ping);
    side_send(s, &env, NULL, 0);
    struct msg m = side_expect(w, s, BODY(PONG));
    msg_done(&m);
}

/* ------------------------------------------------------------------ roles */

uint64_t play_agent(struct world *w, struct side *s, const char *name, uint64_t id,
                    Vg__Pb__TaskReport **reports, size_t n) {
    return play_gpu_node(w, s, name, id, 0, 0, reports, n);
}

uint64_t play_gpu_node(struct world *w, struct side *s, const char *name, uint64_t id,
                       uint32_t gpus, uint64_t gpu_mem_bytes, Vg__Pb__TaskReport **reports,
                       size_t n) {
    Vg__Pb__AgentHello h = VG__PB__AGENT_HELLO__INIT;
    Vg__Pb__Resources total = VG__PB__RESOURCES__INIT;
    Vg__Pb__GpuInfo info[8], *list[8];
    char text[VG_ID_LEN + 1] = "";
    for (uint32_t i = 0; i < gpus && i < VG_COUNT(info); i++) {
        vg__pb__gpu_info__init(&info[i]);
        info[i].has_index = 1;
        info[i].index = i;
        info[i].has_mem_bytes = gpu_mem_bytes != 0;
        info[i].mem_bytes = gpu_mem_bytes;
        list[h.n_gpu++] = &info[i];
    }
    h.gpu = list;
    total.has_cpu_milli = total.has_mem_bytes = 1;
    total.cpu_milli = 2000;
    total.mem_bytes = 8ULL << 30;
    if (id)
        vg_id_format(id, text);
    h.node_id = text;
    h.name = (char *)name;
    h.total = &total;
    h.machine_id = w->c.machine_id;
    h.task = reports;
    h.n_task = n;
    ENV(env, AGENT_HELLO, agent_hello, &h);
    side_open(w, s);
    side_send(s, &env, NULL, 0);
    struct msg m = side_expect(w, s, BODY(AGENT_HELLO_OK));
    cr_assert_eq(vg_id_parse(m.env->agent_hello_ok->node_id, &id), 0);
    msg_done(&m);
    return id;
}

uint32_t play_run(struct side *s, uint64_t task, void (*tweak)(Vg__Pb__RunReq *)) {
    Vg__Pb__RunReq r = VG__PB__RUN_REQ__INIT;
    Vg__Pb__TaskSpec spec = VG__PB__TASK_SPEC__INIT;
    ProtobufCBinaryData argv[1] = {{.data = (uint8_t *)"true", .len = 4}};
    spec.argv = argv;
    spec.n_argv = 1;
    spec.has_interactive = 1;
    spec.interactive = 1;
    r.has_task_id = 1;
    r.task_id = task;
    r.spec = &spec;
    if (tweak)
        tweak(&r);
    ENV(env, RUN, run, &r);
    return side_send(s, &env, NULL, 0);
}

void play_started(struct side *agent, uint64_t task, uint32_t attempt) {
    Vg__Pb__TaskStarted m = VG__PB__TASK_STARTED__INIT;
    m.has_task_id = m.has_attempt = 1;
    m.task_id = task;
    m.attempt = attempt;
    ENV(env, TASK_STARTED, task_started, &m);
    side_send(agent, &env, NULL, 0);
}

void play_exited(struct side *agent, uint64_t task, uint32_t attempt, int32_t status) {
    Vg__Pb__TaskExited m = VG__PB__TASK_EXITED__INIT;
    m.has_task_id = m.has_attempt = m.has_status = m.has_started_usec = 1;
    m.task_id = task;
    m.attempt = attempt;
    m.status = status;
    m.started_usec = 1;
    ENV(env, TASK_EXITED, task_exited, &m);
    side_send(agent, &env, NULL, 0);
}

void expect_event(struct world *w, struct side *s, Vg__Pb__RunEvent__Kind kind, struct msg *ret) {
    for (;;) {
        struct msg m = side_expect(w, s, BODY(RUN_EVENT));
        if (m.env->run_event->kind == kind) {
            *ret = m;
            return;
        }
        msg_done(&m);
    }
}
