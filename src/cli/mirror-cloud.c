/* The file service's connection to the cloud: one, made when there is a task; a stream a task. A
   stream that ends before its task has is offered again. */
#include "cli/mirror-serve.h"

#include "base/cleanup.h"
#include "base/list.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/util.h"
#include "net/conn.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#define DIAL_TIMEOUT (10 * VG_USEC)
#define WIDTH (8u << 20) /* bytes that a node may be ahead with what it writes back */
#define AGAIN_MIN 100u   /* ms */
#define AGAIN_MAX 5000u
#define LINGER 2000u /* what a node sends at a task's end may come after vrun's own end */
/* Offers in a row that no node took up: of a task that was never heard of, each of which waited a
   minute; of one that had a link before, some 10 s for a cloud that starts again. */
#define FRUITLESS_NEW 2u
#define FRUITLESS_AGAIN 7u

struct offer {
    struct vg_list link;
    struct vg_mcloud *c;
    struct vg_mirror_task *t;
    uint64_t task;
    uint8_t *spec; /* packed */
    size_t spec_len;
    uint32_t req;
    struct vg_stream *stream; /* the pump's; NULL: none */
    unsigned greetings, fruitless, wait_ms;
    bool over;
    uv_timer_t again;
};

struct vg_mcloud {
    uv_loop_t *loop;
    struct vg_mirror *m;
    struct vg_endpoint ep;
    struct vg_tls *tls;
    struct vg_conn *conn;
    struct vg_dial *dial;
    bool ready, closing;
    uint32_t last_req;
    unsigned wait_ms;
    uv_timer_t again;
    struct vg_list offers;
    char state[VG_ERR_MAX + 32];
};

static void dial(struct vg_mcloud *c);
static void offer_make(struct offer *o);

/* ---- the connection ---- */

static void on_again(uv_timer_t *t) {
    dial(t->data);
}

static void dial_later(struct vg_mcloud *c) {
    if (c->closing || vg_list_empty(&c->offers))
        return; /* the next task dials */
    c->wait_ms = VG_MIN(VG_MAX(c->wait_ms * 2, AGAIN_MIN), AGAIN_MAX);
    uv_timer_start(&c->again, on_again, c->wait_ms, 0);
}

static void on_ready(struct vg_conn *conn, void *user) {
    struct vg_mcloud *c = user;
    Vg__Pb__Envelope env = VG__PB__ENVELOPE__INIT;
    Vg__Pb__Hello hello = VG__PB__HELLO__INIT;
    hello.has_protocol = true;
    hello.protocol = 1;
    hello.program = (char *)"virga mirror " VG_VERSION;
    if (c->ep.token[0])
        hello.token = c->ep.token;
    env.body_case = VG__PB__ENVELOPE__BODY_HELLO;
    env.hello = &hello;
    vg_conn_send(conn, &env, NULL, 0);
    c->ready = true;
    c->wait_ms = 0;
    snprintf(c->state, sizeof(c->state), "connected");
    vg_list_for_each_safe (it, &c->offers)
        offer_make(vg_list_entry(it, struct offer, link));
}

static void on_close(struct vg_conn *conn, void *user, const struct vg_err *why) {
    struct vg_mcloud *c = user;
    (void)conn;
    c->conn = NULL;
    c->ready = false;
    snprintf(c->state, sizeof(c->state), "not connected: %s",
             why->msg[0] ? why->msg : "the cloud hung up");
    dial_later(c);
}

static void on_msg(struct vg_conn *conn, void *user, const Vg__Pb__Envelope *env, int *fds,
                   size_t n_fds);
static const struct vg_conn_ops ops = {
    .on_ready = on_ready, .on_msg = on_msg, .on_close = on_close};

static void connected(int fd, const struct vg_err *why, void *user) {
    struct vg_mcloud *c = user;
    struct vg_err err = VG_ERR_INIT;
    c->dial = NULL;
    if (fd < 0)
        snprintf(c->state, sizeof(c->state), "not connected: %s", why->msg);
    else if (vg_conn_new(c->loop, fd, c->tls, true, &ops, c, &c->conn, &err) < 0)
        snprintf(c->state, sizeof(c->state), "not connected: %s", err.msg);
    if (!c->conn)
        dial_later(c);
}

/* The login may be another one than the last time. */
static int find_cloud(struct vg_mcloud *c, struct vg_err *err) {
    int r = vg_endpoint_find(&c->ep, err);
    if (r < 0 || c->ep.kind != VG_ENDPOINT_TLS)
        return r;
    vg_tls_unref(c->tls);
    c->tls = NULL;
    return vg_tls_client_new_prefix(c->ep.ca, NULL, NULL, NULL, &c->tls, err);
}

static void dial(struct vg_mcloud *c) {
    struct vg_err err = VG_ERR_INIT;
    if (c->conn || c->dial || c->closing)
        return;
    if (find_cloud(c, &err) < 0) {
        snprintf(c->state, sizeof(c->state), "not connected: %s", err.msg);
        dial_later(c);
        return;
    }
    if (c->ep.kind == VG_ENDPOINT_TLS) {
        c->dial = vg_dial_tcp(c->loop, c->ep.address, DIAL_TIMEOUT, connected, c);
        if (!c->dial)
            dial_later(c);
        return;
    }
    int fd = vg_unix_connect(c->ep.path, SOCK_STREAM);
    if (fd >= 0)
        vg_set_nonblock(fd, true);
    else
        vg_endpoint_refused(&c->ep, fd, &err);
    connected(fd, &err, c);
}

/* ---- offers ---- */

static void offer_closed(uv_handle_t *h) {
    struct offer *o = h->data;
    free(o->spec);
    free(o);
}

static void offer_end(struct offer *o) {
    vg_list_remove(&o->link);
    vg_mirror_end(o->t);
    uv_close((uv_handle_t *)&o->again, offer_closed);
}

static void on_offer_again(uv_timer_t *t) {
    offer_make(t->data);
}

/* The link is over, for whatever reason. */
static void link_over(void *user) {
    struct offer *o = user;
    unsigned greetings = vg_mirror_greetings(o->t);
    o->stream = NULL;
    vg_mirror_unlink(o->t);
    if (greetings > o->greetings)
        o->fruitless = o->wait_ms = 0;
    else if (o->c->ready)
        o->fruitless++;
    o->greetings = greetings;
    if (o->over || o->c->closing || o->fruitless >= (greetings ? FRUITLESS_AGAIN : FRUITLESS_NEW)) {
        offer_end(o);
        return;
    }
    o->wait_ms = VG_MIN(VG_MAX(o->wait_ms * 2, AGAIN_MIN), AGAIN_MAX);
    uv_timer_start(&o->again, on_offer_again, o->wait_ms, 0);
}

static void send_offer(struct offer *o) {
    Vg__Pb__Envelope env = VG__PB__ENVELOPE__INIT;
    Vg__Pb__MirrorOffer m = VG__PB__MIRROR_OFFER__INIT;
    m.has_task_id = m.has_stream = m.has_machine = true;
    m.task_id = o->task;
    m.stream = vg_stream_id(o->stream);
    m.has_again = m.again = o->greetings > 0;
    m.machine = (ProtobufCBinaryData){VG_MID, (uint8_t *)vg_mirror_machine(o->c->m)};
    m.spec = vg__pb__mirror_spec__unpack(NULL, o->spec_len, o->spec);
    if (m.spec && m.spec->pin)
        m.machine = m.spec->machine;
    env.has_req = true;
    env.req = o->req = ++o->c->last_req;
    env.body_case = VG__PB__ENVELOPE__BODY_MIRROR_OFFER;
    env.mirror_offer = &m;
    vg_conn_send(o->c->conn, &env, NULL, 0);
    if (m.spec)
        vg__pb__mirror_spec__free_unpacked(m.spec, NULL);
}

static void offer_make(struct offer *o) {
    int pair[2];
    if (o->stream || !o->c->ready || o->over)
        return;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0) {
        uv_timer_start(&o->again, on_offer_again, AGAIN_MAX, 0);
        return;
    }
    o->stream = vg_stream_new(o->c->conn, 0, NULL, NULL);
    if (!o->stream) {
        close(pair[0]);
        close(pair[1]);
        uv_timer_start(&o->again, on_offer_again, AGAIN_MAX, 0);
        return;
    }
    vg_stream_widen(o->stream, WIDTH);
    send_offer(o);
    /* The first flight follows at once: who gets it is the cloud's business. */
    if (vg_pump_fd(o->c->loop, pair[1], o->stream, link_over, o) < 0) {
        o->stream = NULL;
        close(pair[0]);
        uv_timer_start(&o->again, on_offer_again, AGAIN_MAX, 0);
        return;
    }
    if (vg_mirror_link(o->t, pair[0]) < 0)
        vg_warn("no memory for a link: it is tried again");
}

static void on_msg(struct vg_conn *conn, void *user, const Vg__Pb__Envelope *env, int *fds,
                   size_t n_fds) {
    struct vg_mcloud *c = user;
    (void)conn, (void)fds, (void)n_fds;
    if (env->body_case != VG__PB__ENVELOPE__BODY_ERROR)
        return;
    const char *text = env->error->text ? env->error->text : "refused";
    enum vg_reason reason = vg_reason_from_wire(env->error->reason);
    if (!env->req)
        snprintf(c->state, sizeof(c->state), "refused: %s", text);
    vg_list_for_each_safe (it, &c->offers) {
        struct offer *o = vg_list_entry(it, struct offer, link);
        if (!env->req || o->req != env->req || !o->stream)
            continue;
        vg_debug("offer: %s", text);
        o->over = !vg_reason_may_retry(reason);
        vg_pump_stop(o->stream, reason);
        return;
    }
}

int vg_mcloud_offer(struct vg_mcloud *c, struct vg_mirror_task *t, uint64_t task,
                    const Vg__Pb__MirrorSpec *spec) {
    struct offer *o = vg_alloc(sizeof(*o));
    size_t n = vg__pb__mirror_spec__get_packed_size(spec);
    if (!o || !(o->spec = vg_alloc(n + 1))) {
        free(o);
        return -ENOMEM;
    }
    o->spec_len = vg__pb__mirror_spec__pack(spec, o->spec);
    o->c = c;
    o->t = t;
    o->task = task;
    uv_timer_init(c->loop, &o->again);
    o->again.data = o;
    vg_list_push_back(&c->offers, &o->link);
    if (c->ready)
        offer_make(o);
    else
        dial(c);
    return 0;
}

static void on_linger(uv_timer_t *t) {
    struct offer *o = t->data;
    if (o->c->ready)
        vg_mirror_settled(o->t); /* the node has seen the task's end, and time has passed */
    if (o->stream)
        vg_pump_stop(o->stream, VG_OK); /* link_over() does the rest */
    else
        offer_end(o);
}

void vg_mcloud_over(struct vg_mcloud *c, uint64_t task) {
    vg_list_for_each_safe (it, &c->offers) {
        struct offer *o = vg_list_entry(it, struct offer, link);
        if (o->task != task || o->over)
            continue;
        o->over = true;
        vg_mirror_over(o->t);
        uv_timer_start(&o->again, on_linger, LINGER, 0);
    }
}

bool vg_mcloud_idle(const struct vg_mcloud *c) {
    return vg_list_empty(&c->offers);
}

bool vg_mcloud_is_connected(const struct vg_mcloud *c) {
    return c->ready;
}

const char *vg_mcloud_state(const struct vg_mcloud *c) {
    return c->state;
}

int vg_mcloud_new(uv_loop_t *loop, struct vg_mirror *m, struct vg_mcloud **ret) {
    struct vg_mcloud *c = vg_alloc(sizeof(*c));
    if (!c)
        return -ENOMEM;
    c->loop = loop;
    c->m = m;
    vg_list_init(&c->offers);
    snprintf(c->state, sizeof(c->state), "not connected yet");
    uv_timer_init(loop, &c->again);
    c->again.data = c;
    *ret = c;
    return 0;
}

static void cloud_closed(uv_handle_t *h) {
    free(h->data);
}

void vg_mcloud_free(struct vg_mcloud *c) {
    if (!c)
        return;
    c->closing = true;
    vg_list_for_each_safe (it, &c->offers) {
        struct offer *o = vg_list_entry(it, struct offer, link);
        if (o->stream)
            vg_pump_stop(o->stream, VG_OK);
        else
            offer_end(o);
    }
    if (c->dial)
        vg_dial_cancel(c->dial);
    if (c->conn)
        vg_conn_close(c->conn);
    for (int i = 0; i < 1000 && (c->conn || !vg_list_empty(&c->offers)); i++)
        uv_run(c->loop, UV_RUN_ONCE);
    vg_tls_unref(c->tls);
    uv_timer_stop(&c->again);
    uv_close((uv_handle_t *)&c->again, cloud_closed);
}
