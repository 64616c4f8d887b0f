/* The node's own stream port: TLS, and a ticket that the control plane gave to one client for one
   task. Nothing but that one stream is served. Loop thread.

   Hello{token: ticket in hex}, AttachReq{task, stream}: one flight, then bytes. A connection that
   has not shown a ticket after a few seconds is dropped. */
#include "agent/agent-int.h"

#include "base/cleanup.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/util.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ADMISSION_MS 10000

struct direct {
    struct vg_agent *agent;
    struct vg_conn *conn; /* NULL after its end */
    uv_timer_t timer;
    uint64_t task; /* what the ticket opens; 0: none shown */
    bool attached;
};

static void refuse(struct direct *d, uint32_t req, enum vg_reason reason, const char *text) {
    Vg__Pb__Envelope env = VG__PB__ENVELOPE__INIT;
    Vg__Pb__Error error = VG__PB__ERROR__INIT;
    error.has_reason = true;
    error.reason = (uint32_t)reason;
    error.text = (char *)text;
    env.has_req = req != 0;
    env.req = req;
    env.body_case = VG__PB__ENVELOPE__BODY_ERROR;
    env.error = &error;
    vg_conn_send(d->conn, &env, NULL, 0);
    vg_conn_close(d->conn);
}

static void accept_stream(struct direct *d, uint32_t req) {
    Vg__Pb__Envelope env = VG__PB__ENVELOPE__INIT;
    Vg__Pb__Ok ok = VG__PB__OK__INIT;
    d->attached = true;
    uv_timer_stop(&d->timer);
    env.has_req = req != 0;
    env.req = req;
    env.body_case = VG__PB__ENVELOPE__BODY_OK;
    env.ok = &ok;
    vg_conn_send(d->conn, &env, NULL, 0);
}

static void on_hello(struct direct *d, const Vg__Pb__Envelope *env) {
    uint8_t ticket[VG_TICKET_MAX_BYTES];
    int n = env->hello->token ? vg_ticket_parse(env->hello->token, ticket) : -EINVAL;
    if (d->task || n < 0 ||
        vg_tickets_use(&d->agent->tickets, ticket, (size_t)n, vg_now_usec(), &d->task) < 0)
        refuse(d, env->req, VG_UNAUTHENTICATED, "the ticket for this stream is not valid");
}

static void on_attach(struct direct *d, const Vg__Pb__Envelope *env) {
    const Vg__Pb__AttachReq *x = env->attach;
    uint64_t id = 0;
    bool named = x->task && *x->task;
    if (!d->task || d->attached || (named && (vg_id_parse(x->task, &id) < 0 || id != d->task))) {
        refuse(d, env->req, VG_UNAUTHENTICATED, "the ticket for this stream is not valid");
        return;
    }
    struct vg_agent_task *t = vg_tasks_get(d->agent, d->task);
    struct vg_stream *s = t ? vg_stream_new(d->conn, x->stream, NULL, NULL) : NULL;
    int fd = s ? vg_io_channel(d->agent, s) : -ENOENT;
    if (fd < 0 || vg_tasks_attach(t, fd, x->observe ? 1 : 0) < 0)
        refuse(d, env->req, VG_NOT_FOUND, "the task is not on this node any more");
    else
        accept_stream(d, env->req);
}

static void on_msg(struct vg_conn *c, void *user, const Vg__Pb__Envelope *env, int *fds,
                   size_t n_fds) {
    struct direct *d = user;
    (void)c;
    (void)fds;
    (void)n_fds;
    if (env->body_case == VG__PB__ENVELOPE__BODY_HELLO)
        on_hello(d, env);
    else if (env->body_case == VG__PB__ENVELOPE__BODY_ATTACH)
        on_attach(d, env);
    else
        refuse(d, env->req, VG_UNSUPPORTED, "this port serves streams of tasks only");
}

static void on_timer_closed(uv_handle_t *h) {
    free(h->data);
}

static void on_close(struct vg_conn *c, void *user, const struct vg_err *why) {
    struct direct *d = user;
    (void)c;
    (void)why;
    d->conn = NULL;
    d->agent->n_direct--;
    uv_close((uv_handle_t *)&d->timer, on_timer_closed);
}

static void on_late(uv_timer_t *timer) {
    struct direct *d = timer->data;
    if (d->conn)
        vg_conn_abort(d->conn, VG_TIMEOUT, "no ticket was shown");
}

static const struct vg_conn_ops ops = {.on_msg = on_msg, .on_close = on_close};

static void on_accept(int fd, void *user) {
    struct vg_agent *a = user;
    struct vg_err err = VG_ERR_INIT;
    struct direct *d = a->n_direct < VG_AGENT_DIRECT_MAX ? vg_alloc(sizeof(*d)) : NULL;
    if (!d) {
        close(fd);
        return;
    }
    d->agent = a;
    uv_timer_init(&a->loop, &d->timer);
    d->timer.data = d;
    if (vg_conn_new(&a->loop, fd, a->direct_tls, false, &ops, d, &d->conn, &err) < 0) {
        vg_debug("direct stream: %s", err.msg);
        uv_close((uv_handle_t *)&d->timer, on_timer_closed);
        return;
    }
    a->n_direct++;
    uv_timer_start(&d->timer, on_late, ADMISSION_MS, 0);
}

/* "[::1]:70", "10.0.0.1:70", ":70" */
static int split_address(const char *text, char *host, size_t cap, uint16_t *ret_port) {
    const char *colon = strrchr(text, ':');
    uint64_t port;
    if (!colon || vg_parse_u64(colon + 1, &port) < 0 || port > 65535)
        return -EINVAL;
    size_t n = (size_t)(colon - text);
    if (n >= 2 && text[0] == '[' && text[n - 1] == ']') {
        text++;
        n -= 2;
    }
    if (n >= cap)
        return -EINVAL;
    memcpy(host, n ? text : "0.0.0.0", n ? n : 8);
    host[n ? n : 7] = 0;
    *ret_port = (uint16_t)port;
    return 0;
}

int vg_io_listen(struct vg_agent *a, struct vg_err *err) {
    const char *at = a->conf.listen ? a->conf.listen : "0.0.0.0:0";
    char host[256];
    uint16_t port;
    struct vg_tls *tls;
    if (!a->cert_pem || strcmp(at, "none") == 0)
        return 0;
    if (split_address(at, host, sizeof(host), &port) < 0)
        return vg_err_set(err, VG_INVALID, "--listen %s is not HOST:PORT", at);
    int r = vg_tls_server_new(a->cert_pem, a->key_pem, a->ca_pem, &tls, err);
    if (r < 0)
        return r;
    vg_tls_unref(a->direct_tls);
    a->direct_tls = tls;
    if (a->direct)
        return 0; /* connections to come use the new certificate */
    return vg_listen_tcp(&a->loop, host, port, on_accept, a, &a->direct, &a->direct_port, err);
}
