/* -p: local ports that lead into the task. A thread of its own listens, and for every connection
   opens a stream that the control plane joins to the task's port. */
#include "base/cleanup.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/util.h"
#include "cli/run-int.h"
#include "net/conn.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define DIAL_TIMEOUT (10 * VG_USEC)

struct port {
    struct forward *f;
    struct run_port at;
    struct vg_listener *listener;
};

struct forward {
    uv_loop_t loop;
    struct vg_endpoint ep;
    char task[VG_ID_LEN + 1];
    struct vg_conn *conn;
    struct vg_tls *tls;
    bool ready;
    struct port *ports;
    size_t n_ports;
};

static void accepted(int fd, void *user) {
    struct port *p = user;
    struct forward *f = p->f;
    struct vg_stream *s = f->ready && f->conn ? vg_stream_new(f->conn, 0, NULL, NULL) : NULL;
    if (!s) {
        close(fd);
        return;
    }
    Vg__Pb__Envelope env = VG__PB__ENVELOPE__INIT;
    Vg__Pb__ForwardReq req = VG__PB__FORWARD_REQ__INIT;
    req.task = f->task;
    req.has_port = req.has_stream = true;
    req.port = p->at.remote;
    req.stream = vg_stream_id(s);
    env.has_req = true;
    env.req = req.stream;
    env.body_case = VG__PB__ENVELOPE__BODY_FORWARD;
    env.forward = &req;
    vg_conn_send(f->conn, &env, NULL, 0);
    vg_pump_fd(&f->loop, fd, s, NULL, NULL);
}

static void up(struct vg_conn *c, void *user) {
    struct forward *f = user;
    Vg__Pb__Envelope env = VG__PB__ENVELOPE__INIT;
    Vg__Pb__Hello hello = VG__PB__HELLO__INIT;
    hello.has_protocol = true;
    hello.protocol = 1;
    hello.program = (char *)"virga " VG_VERSION;
    if (f->ep.token[0])
        hello.token = f->ep.token;
    env.body_case = VG__PB__ENVELOPE__BODY_HELLO;
    env.hello = &hello;
    vg_conn_send(c, &env, NULL, 0);
    f->ready = true;
}

static void on_msg(struct vg_conn *c, void *user, const Vg__Pb__Envelope *env, int *fds, size_t n) {
    (void)c, (void)user, (void)fds, (void)n;
    if (env->body_case == VG__PB__ENVELOPE__BODY_ERROR)
        fprintf(stderr, "vrun: port forwarding: %s\n",
                env->error->text ? env->error->text : "refused");
}

static void dial(struct forward *f);

static void on_retry(uv_timer_t *t) {
    struct forward *f = t->data;
    uv_close((uv_handle_t *)t, (uv_close_cb)free);
    dial(f);
}

static void dial_later(struct forward *f) {
    uv_timer_t *t = malloc(sizeof(*t));
    if (!t)
        return;
    uv_timer_init(&f->loop, t);
    t->data = f;
    uv_timer_start(t, on_retry, 500, 0);
}

static void on_close(struct vg_conn *c, void *user, const struct vg_err *why) {
    struct forward *f = user;
    (void)c;
    vg_debug("forward: %s", why->msg);
    f->conn = NULL;
    f->ready = false;
    dial_later(f);
}

static const struct vg_conn_ops ops = {.on_ready = up, .on_msg = on_msg, .on_close = on_close};

static void connected(int fd, const struct vg_err *why, void *user) {
    struct forward *f = user;
    struct vg_err err = VG_ERR_INIT;
    (void)why;
    if (fd < 0 || vg_conn_new(&f->loop, fd, f->tls, true, &ops, f, &f->conn, &err) < 0)
        dial_later(f);
}

static void dial(struct forward *f) {
    struct vg_err none = VG_ERR_INIT;
    if (f->ep.kind == VG_ENDPOINT_TLS) {
        if (!vg_dial_tcp(&f->loop, f->ep.address, DIAL_TIMEOUT, connected, f))
            dial_later(f);
        return;
    }
    int fd = vg_unix_connect(f->ep.path, SOCK_STREAM);
    if (fd >= 0)
        vg_set_nonblock(fd, true);
    connected(fd, &none, f);
}

static void *forward_main(void *arg) {
    struct forward *f = arg;
    uv_run(&f->loop, UV_RUN_DEFAULT);
    return NULL;
}

int run_forward(const struct vg_endpoint *ep, uint64_t task_id, const char *const *specs, size_t n,
                struct vg_err *err) {
    struct forward *f = vg_alloc(sizeof(*f));
    if (!f || !(f->ports = vg_alloc(n * sizeof(*f->ports))) || uv_loop_init(&f->loop) < 0)
        return vg_err_set(err, VG_INTERNAL, "out of memory");
    f->ep = *ep;
    vg_id_format(task_id, f->task);
    int r = 0;
    if (ep->kind == VG_ENDPOINT_TLS)
        r = vg_tls_client_new_prefix(ep->ca, NULL, NULL, NULL, &f->tls, err);
    for (size_t i = 0; i < n && r >= 0; i++) {
        struct port *p = &f->ports[f->n_ports++];
        uint16_t real;
        p->f = f;
        r = run_port_parse(specs[i], &p->at, err);
        if (r >= 0)
            r = vg_listen_tcp(&f->loop, p->at.host, p->at.local, accepted, p, &p->listener, &real,
                              err);
    }
    if (r < 0)
        return vg_err_wrap(err, "cannot forward a port");
    dial(f);
    r = run_thread(forward_main, f);
    if (r < 0)
        return vg_err_sys(err, r, "cannot start a thread");
    return 0;
}
