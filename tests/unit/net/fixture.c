/* Two ends of a connection on one loop. */
#include "fixture.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <netinet/in.h>
#include <stdio.h>

static void on_ready(struct vg_conn *c, void *user) {
    struct peer *p = user;
    (void)c;
    cr_assert(!p->ready);
    p->ready = true;
}

static void on_msg(struct vg_conn *c, void *user, const Vg__Pb__Envelope *env, int *fds,
                   size_t n_fds) {
    struct peer *p = user;
    (void)c;
    p->msgs++;
    const char *text = NULL;
    if (env->body_case == VG__PB__ENVELOPE__BODY_OK)
        text = env->ok->text;
    if (env->body_case == VG__PB__ENVELOPE__BODY_ERROR)
        text = env->error->text;
    (void)snprintf(p->last_text, sizeof(p->last_text), "%s", text ? text : "");
    if (p->on_msg)
        p->on_msg(p, env, fds, n_fds);
}

static void on_close(struct vg_conn *c, void *user, const struct vg_err *why) {
    struct peer *p = user;
    (void)c;
    p->closes++;
    p->why = *why;
    p->conn = NULL;
}

const struct vg_conn_ops peer_ops = {.on_ready = on_ready, .on_msg = on_msg, .on_close = on_close};

static void on_watchdog(uv_timer_t *t) {
    ((struct pair *)t->data)->late = true;
}

void pair_init_loop(struct pair *p) {
    *p = (struct pair){0};
    cr_assert_eq(uv_loop_init(&p->loop), 0);
    uv_timer_init(&p->loop, &p->watchdog);
    p->watchdog.data = p;
    uv_timer_start(&p->watchdog, on_watchdog, 30000, 0);
    uv_unref((uv_handle_t *)&p->watchdog);
}

void pair_init(struct pair *p) {
    int fds[2];
    struct vg_err err = VG_ERR_INIT;
    pair_init_loop(p);
    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    cr_assert_eq(vg_conn_new(&p->loop, fds[0], NULL, true, &peer_ops, &p->a, &p->a.conn, &err), 0);
    cr_assert_eq(vg_conn_new(&p->loop, fds[1], NULL, false, &peer_ops, &p->b, &p->b.conn, &err), 0);
}

int pair_init_raw(struct pair *p) {
    int fds[2];
    struct vg_err err = VG_ERR_INIT;
    pair_init_loop(p);
    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    cr_assert_eq(vg_conn_new(&p->loop, fds[0], NULL, true, &peer_ops, &p->a, &p->a.conn, &err), 0);
    return fds[1];
}

void pair_turn(struct pair *p) {
    uv_ref((uv_handle_t *)&p->watchdog);
    uv_run(&p->loop, UV_RUN_ONCE);
    uv_unref((uv_handle_t *)&p->watchdog);
}

void pair_done(struct pair *p) {
    if (p->a.conn)
        vg_conn_abort(p->a.conn, VG_OK, NULL);
    if (p->b.conn)
        vg_conn_abort(p->b.conn, VG_OK, NULL);
    uv_run(&p->loop, UV_RUN_DEFAULT);
    uv_close((uv_handle_t *)&p->watchdog, NULL);
    uv_run(&p->loop, UV_RUN_DEFAULT);
    cr_assert_eq(uv_loop_close(&p->loop), 0, "a handle is left on the loop");
    cr_assert_leq(p->a.closes, 1u);
    cr_assert_leq(p->b.closes, 1u);
}

int send_text_fds(struct vg_conn *c, uint32_t number, const char *text, const int *fds, size_t n) {
    Vg__Pb__Ok ok = VG__PB__OK__INIT;
    Vg__Pb__Envelope env = VG__PB__ENVELOPE__INIT;
    ok.text = (char *)text;
    env.has_req = true;
    env.req = number;
    env.body_case = VG__PB__ENVELOPE__BODY_OK;
    env.ok = &ok;
    return vg_conn_send(c, &env, fds, n);
}

int send_text(struct vg_conn *c, uint32_t number, const char *text) {
    return send_text_fds(c, number, text, NULL, 0);
}

int make_tcp_pair(int fds[2]) {
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(in);
    vg_auto_fd int l = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    fds[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bind(l, (struct sockaddr *)&in, len) < 0 || listen(l, 1) < 0 ||
        getsockname(l, (struct sockaddr *)&in, &len) < 0 ||
        connect(fds[0], (struct sockaddr *)&in, len) < 0)
        return -errno;
    fds[1] = accept4(l, NULL, NULL, SOCK_CLOEXEC);
    return fds[1] < 0 ? -errno : 0;
}

size_t count_fds(void) {
    size_t n = 0;
    uv_loop_t warm; /* libuv opens a pipe for the life of the process with its first loop */
    cr_assert_eq(uv_loop_init(&warm), 0);
    uv_loop_close(&warm);
    DIR *d = opendir("/proc/self/fd");
    while (d && readdir(d))
        n++;
    if (d)
        closedir(d);
    return n;
}

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/lsan_interface.h>
void check_leaks(void) {
    cr_assert_eq(__lsan_do_recoverable_leak_check(), 0);
}
#else
void check_leaks(void) {
}
#endif

/* ------------------------------------------------------------------ flows */

static uint8_t byte_at(uint64_t seed, uint64_t offset) {
    uint64_t x = (offset >> 3) * 0x9e3779b97f4a7c15ULL + seed;
    x ^= x >> 29;
    return (uint8_t)(x >> (8 * (offset & 7)));
}

void flow_push(struct flow *f) {
    static uint8_t block[300000];
    while (f->stream && f->sent < f->to_send) {
        size_t n = VG_MIN(vg_stream_room(f->stream), sizeof(block));
        n = (size_t)VG_MIN((uint64_t)n, f->to_send - f->sent);
        if (n == 0)
            return;
        for (size_t i = 0; i < n; i++)
            block[i] = byte_at(f->seed_out, f->sent + i);
        if (vg_stream_send(f->stream, block, n) < 0) {
            vg_stream_free(vg_take_ptr(f->stream), VG_INTERNAL);
            f->reset = true;
            return;
        }
        f->sent += n;
    }
    if (f->stream && !f->sent_end) {
        f->sent_end = true;
        vg_stream_end(f->stream);
    }
}

static void flow_data(struct vg_stream *s, void *user, const uint8_t *data, size_t n) {
    struct flow *f = user;
    for (size_t i = 0; i < n; i++)
        f->wrong |= data[i] != byte_at(f->seed_in, f->got + i);
    f->got += n;
    if (f->hold)
        f->held += n;
    else
        vg_stream_consumed(s, n);
}

static void flow_end(struct vg_stream *s, void *user) {
    struct flow *f = user;
    (void)s;
    cr_assert(!f->ended);
    f->ended = true;
}

static void flow_reset(struct vg_stream *s, void *user, enum vg_reason reason) {
    struct flow *f = user;
    (void)s;
    cr_assert(!f->reset);
    f->reset = true;
    f->reason = reason;
    f->stream = NULL;
}

static void flow_writable(struct vg_stream *s, void *user) {
    (void)s;
    flow_push(user);
}

const struct vg_stream_ops flow_ops = {
    .on_data = flow_data, .on_end = flow_end, .on_reset = flow_reset, .on_writable = flow_writable};
