/* A client's connection to the control plane. One thread; the private loop runs only inside the
   calls below, so nothing happens between them.

   What holds: `conn` is NULL before the connect and after on_close; `why` is set once it closed;
   at most one vg_call() is under way, or several requests whose answers vg_client_turn() sees. */
#include "cli/client.h"

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"
#include "cli/cloud.h"
#include "cli/cmd.h"
#include "net/conn.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#define CONNECT_USEC (10 * VG_USEC)
#define SAY_AWAY_USEC (2 * VG_USEC) /* a restart is over sooner and is not worth a word */
#define PATIENCE_USEC (60 * VG_USEC)
#define HELLO_REQ 1

struct call {
    uint32_t req;
    vg_answer_fn *answer;
    void *user;
    struct vg_err *err;
    uint64_t timeout_usec;
    int result;
    bool done;
};

struct turn {
    vg_answer_fn *each;
    void *user;
    struct vg_err *err;
    int result;
};

struct vg_client {
    uv_loop_t loop;
    uv_timer_t timer;
    struct vg_endpoint endpoint;
    struct vg_tls *tls;   /* owned; NULL on unix sockets */
    struct vg_conn *conn; /* owned by itself: gone after on_close */
    struct call *call;    /* borrowed from the caller's frame */
    struct turn *turn;    /* likewise */
    uint32_t next_req;
    bool ready, closed, expired;
    struct vg_err why;
    int dialled_fd;
    bool dial_done;
};

int vg_unexpected(const Vg__Pb__Envelope *env, struct vg_err *err) {
    return vg_err_set(
        err, VG_PROTOCOL,
        "the control plane gave an answer of kind %d that this program does not know: "
        "install the same version on both sides",
        (int)env->body_case);
}

static void finish(struct vg_client *c, int result) {
    if (!c->call)
        return;
    c->call->result = result;
    c->call->done = true;
    c->call = NULL;
}

static void on_expire(uv_timer_t *t) {
    struct vg_client *c = t->data;
    c->expired = true;
    if (c->call)
        finish(c, vg_err_set(c->call->err, VG_TIMEOUT,
                             "the control plane did not answer in time: try again, or look at its "
                             "log with 'virga status'"));
}

static void arm(struct vg_client *c, uint64_t usec) {
    c->expired = false;
    if (usec)
        uv_timer_start(&c->timer, on_expire, usec / 1000 + 1, 0);
    else
        uv_timer_stop(&c->timer);
}

static void on_ready(struct vg_conn *conn, void *user) {
    (void)conn;
    ((struct vg_client *)user)->ready = true;
}

int vg_client_said(const Vg__Pb__Error *e, struct vg_err *err) {
    enum vg_reason reason = vg_reason_from_wire(e->reason);
    return vg_err_set(err, reason, "%s", e->text && *e->text ? e->text : vg_reason_name(reason));
}

static void on_msg(struct vg_conn *conn, void *user, const Vg__Pb__Envelope *env, int *fds,
                   size_t n_fds) {
    struct vg_client *c = user;
    struct call *call = c->call;
    (void)conn, (void)fds, (void)n_fds;
    if (c->turn) {
        if (!c->turn->result && env->body_case != VG__PB__ENVELOPE__BODY_HELLO_OK)
            c->turn->result = c->turn->each(env, c->turn->user, c->turn->err);
        return;
    }
    bool error = env->body_case == VG__PB__ENVELOPE__BODY_ERROR && env->error;
    bool mine = call && env->req == call->req;
    /* A greeting that was refused, or a complaint about the connection, ends any call. */
    if (!call || (!mine && !(error && (env->req == HELLO_REQ || env->req == 0))))
        return;
    if (error) {
        finish(c, vg_client_said(env->error, call->err));
        return;
    }
    int r = call->answer ? call->answer(env, call->user, call->err) : 0;
    if (r < 0 || !env->more)
        finish(c, r < 0 ? r : 0);
    else
        arm(c, call->timeout_usec);
}

static const char *where(const struct vg_client *c, char *out, size_t n) {
    if (c->endpoint.kind == VG_ENDPOINT_TLS)
        snprintf(out, n, "%s", c->endpoint.address);
    else
        vg_home_short(c->endpoint.path, out, n);
    return out;
}

static void on_close(struct vg_conn *conn, void *user, const struct vg_err *why) {
    struct vg_client *c = user;
    char at[VG_ENDPOINT_PATH_MAX];
    (void)conn;
    c->conn = NULL;
    c->closed = true;
    c->why = *why;
    if (c->call)
        finish(c, vg_err_set(c->call->err, VG_LOST,
                             "the control plane at %.200s went away%s%.200s: try again in a moment",
                             where(c, at, sizeof(at)), *why->msg ? ", " : "", why->msg));
}

static const struct vg_conn_ops ops = {
    .on_ready = on_ready, .on_msg = on_msg, .on_close = on_close};

static void on_dialled(int fd, const struct vg_err *err, void *user) {
    struct vg_client *c = user;
    c->dialled_fd = fd;
    c->dial_done = true;
    if (fd < 0)
        c->why = *err;
}

static int dial(struct vg_client *c, struct vg_err *err) {
    char tickets[VG_ENDPOINT_PATH_MAX];
    int r = vg_home_dir(tickets, sizeof(tickets) - 16, err);
    if (r < 0)
        return r;
    memcpy(tickets + strlen(tickets), "/client.tickets", sizeof("/client.tickets"));
    r = vg_tls_client_new_prefix(c->endpoint.ca, NULL, NULL, tickets, &c->tls, err);
    if (r < 0)
        return r;
    if (!vg_dial_tcp(&c->loop, c->endpoint.address, CONNECT_USEC, on_dialled, c))
        return vg_err_sys(err, ENOMEM, "cannot connect to %s", c->endpoint.address);
    while (!c->dial_done)
        uv_run(&c->loop, UV_RUN_ONCE);
    if (c->dialled_fd >= 0)
        return c->dialled_fd;
    if (strncmp(c->why.msg, "cannot connect", 14) == 0)
        return vg_endpoint_refused(&c->endpoint, c->why.code, err);
    *err = c->why; /* a name that is not known, or no answer in time: it says so itself */
    return err->code;
}

static int greet(struct vg_client *c) {
    Vg__Pb__Hello hello = VG__PB__HELLO__INIT;
    hello.has_protocol = true;
    hello.protocol = 1;
    hello.program = (char *)"virga " VG_VERSION;
    if (*c->endpoint.token)
        hello.token = c->endpoint.token;
    Vg__Pb__Envelope env = vg_request(HELLO, hello, &hello);
    env.has_req = true;
    env.req = HELLO_REQ;
    return vg_conn_send(c->conn, &env, NULL, 0);
}

/* Waits for the handshake, so that a server that is not ours is told apart from one that left. */
static int await_ready(struct vg_client *c, struct vg_err *err) {
    arm(c, CONNECT_USEC);
    while (!c->ready && !c->closed && !c->expired)
        uv_run(&c->loop, UV_RUN_ONCE);
    arm(c, 0);
    if (c->ready)
        return 0;
    if (c->closed)
        return vg_err_set(err, VG_UNAVAILABLE, "cannot talk to the cloud: %.600s", c->why.msg);
    return vg_endpoint_refused(&c->endpoint, -ETIMEDOUT, err);
}

static int connect_now(struct vg_client *c, struct vg_err *err) {
    bool tls = c->endpoint.kind == VG_ENDPOINT_TLS;
    int fd = tls ? dial(c, err) : vg_endpoint_connect(&c->endpoint);
    if (fd < 0)
        return tls ? fd : vg_endpoint_refused(&c->endpoint, fd, err);
    int r = vg_set_nonblock(fd, true);
    if (r >= 0)
        r = vg_conn_new(&c->loop, vg_take_fd(fd), c->tls, true, &ops, c, &c->conn, err);
    if (r < 0) {
        vg_close(&fd);
        return r;
    }
    r = greet(c);
    if (r < 0)
        return vg_err_sys(err, r, "cannot greet the control plane");
    return tls ? await_ready(c, err) : 0;
}

int vg_client_open_at(const struct vg_endpoint *e, struct vg_client **ret, struct vg_err *err) {
    struct vg_client *c = vg_alloc(sizeof(*c));
    if (!c)
        return vg_err_sys(err, ENOMEM, "cannot connect");
    signal(SIGPIPE, SIG_IGN); /* writes tell; see vg_main() for standard output */
    c->endpoint = *e;
    c->next_req = HELLO_REQ + 1;
    int r = uv_loop_init(&c->loop);
    if (r < 0) {
        free(c);
        return vg_err_sys(err, r, "cannot connect: no event loop");
    }
    uv_timer_init(&c->loop, &c->timer);
    c->timer.data = c;
    r = connect_now(c, err);
    if (r < 0) {
        vg_client_close(c);
        return r;
    }
    *ret = c;
    return 0;
}

int vg_client_open(struct vg_client **ret, struct vg_err *err) {
    struct vg_endpoint e;
    int r = vg_endpoint_find(&e, err);
    return r < 0 ? r : vg_client_open_at(&e, ret, err);
}

void vg_client_close(struct vg_client *c) {
    if (!c)
        return;
    c->call = NULL;
    if (c->conn)
        vg_conn_abort(c->conn, VG_OK, "");
    uv_close((uv_handle_t *)&c->timer, NULL);
    uv_run(&c->loop, UV_RUN_DEFAULT);
    uv_loop_close(&c->loop);
    vg_tls_unref(c->tls);
    free(c);
}

int vg_client_stream(struct vg_client *c, int fd, uint32_t *ret_stream, struct vg_err *err) {
    struct vg_stream *s = c->conn ? vg_stream_new(c->conn, 0, NULL, NULL) : NULL;
    if (!s) {
        close(fd);
        return vg_err_set(err, VG_LOST, "the connection to the control plane is gone");
    }
    uint32_t id = vg_stream_id(s);
    vg_set_nonblock(fd, true);
    int r = vg_pump_fd(&c->loop, fd, s, NULL, NULL);
    if (r < 0)
        return vg_err_sys(err, r, "cannot open a stream to the control plane");
    *ret_stream = id;
    return 0;
}

const struct vg_endpoint *vg_client_endpoint(const struct vg_client *c) {
    return &c->endpoint;
}

int vg_call(struct vg_client *c, Vg__Pb__Envelope *req, uint64_t timeout_usec, vg_answer_fn *answer,
            void *user, struct vg_err *err) {
    struct call call = {.req = c->next_req++,
                        .answer = answer,
                        .user = user,
                        .err = err,
                        .timeout_usec = timeout_usec};
    req->has_req = true;
    req->req = call.req;
    c->call = &call;
    int r = c->conn ? vg_conn_send(c->conn, req, NULL, 0) : -EPIPE;
    if (r < 0) {
        c->call = NULL;
        return vg_err_set(err, VG_LOST, "the control plane went away: try again in a moment");
    }
    arm(c, timeout_usec);
    while (!call.done)
        uv_run(&c->loop, UV_RUN_ONCE);
    arm(c, 0);
    return call.result;
}

int vg_client_send(struct vg_client *c, Vg__Pb__Envelope *req, uint32_t *ret_req,
                   struct vg_err *err) {
    req->has_req = true;
    req->req = c->next_req++;
    if (!c->conn || vg_conn_send(c->conn, req, NULL, 0) < 0)
        return vg_err_set(err, VG_LOST, "the control plane went away: try again in a moment");
    *ret_req = req->req;
    return 0;
}

int vg_client_turn(struct vg_client *c, uint64_t timeout_usec, vg_answer_fn *each, void *user,
                   struct vg_err *err) {
    struct turn t = {.each = each, .user = user, .err = err};
    c->turn = &t;
    arm(c, timeout_usec);
    while (!t.result && !c->closed && !c->expired)
        uv_run(&c->loop, UV_RUN_ONCE);
    arm(c, 0);
    c->turn = NULL;
    if (t.result || !c->closed)
        return t.result;
    return vg_err_set(err, VG_LOST, "the control plane went away: try again in a moment");
}

int vg_call_once(Vg__Pb__Envelope *req, vg_answer_fn *answer, void *user, struct vg_err *err) {
    struct vg_client *c;
    int r = vg_client_open(&c, err);
    if (r < 0)
        return r;
    r = vg_call(c, req, VG_CALL_TIMEOUT_USEC, answer, user, err);
    vg_client_close(c);
    return r;
}

int vg_call_patient(Vg__Pb__Envelope *req, vg_answer_fn *answer, void (*again)(void *user),
                    void *user, struct vg_err *err) {
    struct vg_client *c;
    uint64_t gave_up = 0;
    bool said = false;
    int wait_ms = 50, r = vg_client_open(&c, err);
    if (r < 0)
        return r;
    for (;;) {
        if (r >= 0) {
            r = vg_call(c, req, 0, answer, user, err);
            vg_client_close(c);
            if (err->reason == VG_LOST || !gave_up)
                gave_up = vg_now_usec() + PATIENCE_USEC, wait_ms = 50, said = false;
        }
        if (r >= 0 || (err->reason != VG_LOST && err->reason != VG_UNAVAILABLE) ||
            vg_now_usec() > gave_up)
            return r;
        if (!said && vg_now_usec() + PATIENCE_USEC > gave_up + SAY_AWAY_USEC) {
            said = true;
            vg_cmd_say(
                "the control plane went away: waiting for it to come back (Ctrl-C ends the wait)");
        }
        poll(NULL, 0, wait_ms);
        wait_ms = VG_MIN(wait_ms * 2, 1000);
        r = vg_client_open(&c, err);
        if (r >= 0 && again)
            again(user);
    }
}
