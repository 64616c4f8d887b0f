/* A cloud far away, seen as if it were near: a thread speaks frames over TLS (or through the socket
   inside a task) and offers vrun what the local path has, a control descriptor and a channel. The
   rest of vrun does not know the difference. When the far connection breaks, the near one closes,
   and vrun asks for a new bridge.

   The thread owns everything here; the main thread only holds its end of the socket pair. */
#include "base/cleanup.h"
#include "base/list.h"
#include "base/log.h"
#include "base/util.h"
#include "cli/run-int.h"
#include "net/conn.h"
#include "net/duct.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define DIAL_TIMEOUT (10 * VG_USEC)

/* A message from vrun that waits for the far connection. */
struct waiting {
    struct vg_list link;
    uint8_t *packed; /* owned */
    size_t len;
    struct vg_duct *chan; /* owned, or NULL */
};

struct bridge {
    uv_loop_t loop;
    struct vg_endpoint ep;
    struct vg_conn *near, *far, *direct;
    struct vg_tls *tls;
    struct vg_list waiting;
    bool far_ready, tried_direct;
    char direct_ticket[130];
    uint64_t task_id;
};

static const struct vg_conn_ops far_ops, near_ops, direct_ops;

static void say_error(struct bridge *b, const struct vg_err *why) {
    Vg__Pb__Envelope env = VG__PB__ENVELOPE__INIT;
    Vg__Pb__Error e = VG__PB__ERROR__INIT;
    e.has_reason = true;
    e.reason = why->reason;
    e.text = (char *)why->msg;
    env.body_case = VG__PB__ENVELOPE__BODY_ERROR;
    env.error = &e;
    if (b->near)
        vg_conn_send(b->near, &env, NULL, 0);
}

/* Sends a request on, its channel becoming a stream. */
static void pass_on(struct bridge *b, const uint8_t *packed, size_t len, struct vg_duct *chan) {
    Vg__Pb__Envelope *env = vg__pb__envelope__unpack(NULL, len, packed);
    struct vg_stream *s = NULL;
    if (!env) {
        vg_duct_close(chan);
        return;
    }
    if (chan) {
        s = vg_stream_new(b->far, 0, NULL, NULL);
        uint32_t id = s ? vg_stream_id(s) : 0;
        if (env->body_case == VG__PB__ENVELOPE__BODY_RUN) {
            env->run->has_fd_mask = false;
            env->run->has_stream = true;
            env->run->stream = id;
            b->task_id = env->run->task_id;
        } else if (env->body_case == VG__PB__ENVELOPE__BODY_ATTACH) {
            env->attach->has_fd_mask = false;
            env->attach->has_stream = true;
            env->attach->stream = id;
        }
    }
    if (env->body_case != VG__PB__ENVELOPE__BODY_HELLO)
        vg_conn_send(b->far, env, NULL, 0);
    if (s)
        vg_pump_duct(&b->loop, chan, s, NULL, NULL);
    else
        vg_duct_close(chan);
    vg__pb__envelope__free_unpacked(env, NULL);
}

static void near_msg(struct vg_conn *c, void *user, const Vg__Pb__Envelope *env, int *fds,
                     size_t n) {
    struct bridge *b = user;
    struct waiting *w = calloc(1, sizeof(*w));
    (void)c;
    if (!w)
        return;
    w->len = vg__pb__envelope__get_packed_size(env);
    w->packed = malloc(w->len ? w->len : 1);
    if (n == VG_DUCT_FDS && vg_duct_open(fds, &w->chan) < 0)
        vg_warn("a request's channel cannot be opened");
    if (w->packed)
        vg__pb__envelope__pack(env, w->packed);
    if (b->far_ready && w->packed) {
        pass_on(b, w->packed, w->len, w->chan);
        free(w->packed);
        free(w);
    } else {
        vg_list_push_back(&b->waiting, &w->link);
    }
}

static void near_close(struct vg_conn *c, void *user, const struct vg_err *why) {
    struct bridge *b = user;
    (void)c;
    (void)why;
    b->near = NULL;
    if (b->far)
        vg_conn_close(b->far);
}

static void send_hello(struct vg_conn *c, const char *token) {
    Vg__Pb__Envelope env = VG__PB__ENVELOPE__INIT;
    Vg__Pb__Hello hello = VG__PB__HELLO__INIT;
    hello.has_protocol = true;
    hello.protocol = 1;
    hello.program = (char *)"virga " VG_VERSION;
    hello.token = (char *)token;
    env.body_case = VG__PB__ENVELOPE__BODY_HELLO;
    env.hello = &hello;
    vg_conn_send(c, &env, NULL, 0);
}

static void far_up(struct vg_conn *c, void *user) {
    struct bridge *b = user;
    b->far_ready = true;
    send_hello(c, b->ep.token[0] ? b->ep.token : NULL);
    vg_list_for_each_safe (it, &b->waiting) {
        struct waiting *w = vg_list_entry(it, struct waiting, link);
        vg_list_remove(it);
        pass_on(b, w->packed, w->len, w->chan);
        free(w->packed);
        free(w);
    }
}

/* ---- straight to the node, when it can be reached ---- */

static void direct_up(struct vg_conn *c, void *user) {
    struct bridge *b = user;
    int far[VG_DUCT_FDS];
    struct vg_duct *near;
    char id[VG_ID_LEN + 1];
    struct vg_stream *s = b->near ? vg_stream_new(c, 0, NULL, NULL) : NULL;
    if (!s)
        return;
    if (vg_duct_new(&near, far) < 0) {
        vg_stream_free(s, VG_INTERNAL);
        return;
    }
    send_hello(c, b->direct_ticket);
    Vg__Pb__Envelope env = VG__PB__ENVELOPE__INIT;
    Vg__Pb__AttachReq req = VG__PB__ATTACH_REQ__INIT;
    vg_id_format(b->task_id, id);
    req.task = id;
    req.has_stream = true;
    req.stream = vg_stream_id(s);
    env.has_req = true;
    env.req = 1;
    env.body_case = VG__PB__ENVELOPE__BODY_ATTACH;
    env.attach = &req;
    vg_conn_send(c, &env, NULL, 0);
    vg_pump_duct(&b->loop, near, s, NULL, NULL);
    /* vrun takes the new channel when it is welcomed there; until then the relayed one serves. */
    vg_conn_send(b->near, &env, far, VG_DUCT_FDS);
}

static void direct_msg(struct vg_conn *c, void *user, const Vg__Pb__Envelope *env, int *fds,
                       size_t n) {
    (void)c, (void)user, (void)env, (void)fds, (void)n;
}

static void direct_close(struct vg_conn *c, void *user, const struct vg_err *why) {
    (void)c;
    (void)why;
    ((struct bridge *)user)->direct = NULL;
}

static void direct_dialled(int fd, const struct vg_err *err, void *user) {
    struct bridge *b = user;
    struct vg_err mine = VG_ERR_INIT;
    if (fd < 0) {
        vg_debug("no direct way to the node: %s", err->msg);
        return;
    }
    if (!b->near || vg_conn_new(&b->loop, fd, b->tls, true, &direct_ops, b, &b->direct, &mine) < 0)
        vg_debug("no direct way to the node: %s", mine.msg);
}

static void try_direct(struct bridge *b, const Vg__Pb__RunEvent *ev) {
    if (b->tried_direct || !ev->direct || !*ev->direct || !b->tls || getenv("VIRGA_NO_DIRECT") ||
        ev->ticket.len == 0 || ev->ticket.len > 64)
        return;
    b->tried_direct = true;
    for (size_t i = 0; i < ev->ticket.len; i++)
        snprintf(b->direct_ticket + 2 * i, 3, "%02x", ev->ticket.data[i]);
    vg_dial_tcp(&b->loop, ev->direct, DIAL_TIMEOUT, direct_dialled, b);
}

static void far_msg(struct vg_conn *c, void *user, const Vg__Pb__Envelope *env, int *fds,
                    size_t n) {
    struct bridge *b = user;
    (void)c, (void)fds, (void)n;
    if (env->body_case == VG__PB__ENVELOPE__BODY_RUN_EVENT &&
        env->run_event->kind == VG__PB__RUN_EVENT__KIND__PLACED)
        try_direct(b, env->run_event);
    if (b->near)
        vg_conn_send(b->near, env, NULL, 0);
}

static void far_close(struct vg_conn *c, void *user, const struct vg_err *why) {
    struct bridge *b = user;
    (void)c;
    /* Before the handshake is over a failure is final (wrong CA, no TLS); after it, a break. */
    if (!b->far_ready && why->reason != VG_OK && why->reason != VG_LOST &&
        why->reason != VG_UNAVAILABLE && why->reason != VG_TIMEOUT)
        say_error(b, why);
    b->far = NULL;
    if (b->near)
        vg_conn_close(b->near);
    if (b->direct)
        vg_debug("the relay is gone; the direct channel stays");
}

static const struct vg_conn_ops near_ops = {.on_msg = near_msg, .on_close = near_close};
static const struct vg_conn_ops far_ops = {
    .on_ready = far_up, .on_msg = far_msg, .on_close = far_close};
static const struct vg_conn_ops direct_ops = {
    .on_ready = direct_up, .on_msg = direct_msg, .on_close = direct_close};

static void far_connected(struct bridge *b, int fd) {
    struct vg_err err = VG_ERR_INIT;
    if (vg_conn_new(&b->loop, fd, b->tls, true, &far_ops, b, &b->far, &err) < 0) {
        say_error(b, &err);
        if (b->near)
            vg_conn_close(b->near);
    }
}

static void dialled(int fd, const struct vg_err *err, void *user) {
    struct bridge *b = user;
    if (fd >= 0) {
        far_connected(b, fd);
        return;
    }
    vg_debug("dial: %s", err->msg);
    if (b->near)
        vg_conn_close(b->near);
}

static void drop_waiting(struct bridge *b) {
    vg_list_for_each_safe (it, &b->waiting) {
        struct waiting *w = vg_list_entry(it, struct waiting, link);
        vg_list_remove(it);
        vg_duct_close(w->chan);
        free(w->packed);
        free(w);
    }
}

static void *bridge_main(void *arg) {
    struct bridge *b = arg;
    uv_run(&b->loop, UV_RUN_DEFAULT);
    drop_waiting(b);
    vg_tls_unref(b->tls);
    uv_loop_close(&b->loop);
    free(b);
    return NULL;
}

/* The very first dial is made here, in the caller's time, so that "nobody answers" is said at once.
 */
static int first_dial(struct bridge *b, struct vg_err *err) {
    if (b->ep.kind == VG_ENDPOINT_UNIX) {
        int fd = vg_unix_connect(b->ep.path, SOCK_STREAM);
        if (fd < 0)
            return vg_endpoint_refused(&b->ep, fd, err);
        vg_set_nonblock(fd, true);
        far_connected(b, fd);
        return 0;
    }
    char home[VG_ENDPOINT_PATH_MAX], tickets[VG_ENDPOINT_PATH_MAX + 16];
    bool have = vg_home_dir(home, sizeof(home), err) >= 0;
    snprintf(tickets, sizeof(tickets), "%s/tickets", home);
    int r = vg_tls_client_new_prefix(b->ep.ca, NULL, NULL, have ? tickets : NULL, &b->tls, err);
    if (r < 0)
        return r;
    return vg_dial_tcp(&b->loop, b->ep.address, DIAL_TIMEOUT, dialled, b)
               ? 0
               : vg_err_set(err, VG_INTERNAL, "out of memory");
}

/* Signals are for the thread that passes them on to the command: another one that takes them would
   end the program instead. */
int run_thread(void *(*fn)(void *), void *arg) {
    sigset_t all, old;
    pthread_t thread;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int r = pthread_create(&thread, NULL, fn, arg);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (r == 0)
        pthread_detach(thread);
    return -r;
}

int run_bridge(const struct vg_endpoint *ep, struct vg_err *err) {
    int pair[2];
    struct bridge *b = calloc(1, sizeof(*b));
    if (!b || uv_loop_init(&b->loop) < 0 ||
        socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0) {
        free(b);
        return vg_err_set(err, VG_INTERNAL, "cannot set up a connection: out of memory or files");
    }
    b->ep = *ep;
    vg_list_init(&b->waiting);
    vg_set_nonblock(pair[1], true);
    int r = vg_conn_new(&b->loop, pair[1], NULL, false, &near_ops, b, &b->near, err);
    if (r >= 0)
        r = first_dial(b, err);
    if (r >= 0 && (r = run_thread(bridge_main, b)) < 0)
        vg_err_sys(err, r, "cannot start a thread");
    if (r < 0) { /* the loop is turned here, once more, so that its handles close */
        close(pair[0]);
        if (b->near)
            vg_conn_abort(b->near, VG_UNAVAILABLE, "no bridge");
        if (b->far)
            vg_conn_abort(b->far, VG_UNAVAILABLE, "no bridge");
        bridge_main(b);
        return r;
    }
    return pair[0];
}
