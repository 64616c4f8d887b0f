/* The connection to the control plane: dial, greet, heartbeat, and dial again when it breaks.
   Messages are handed to the files that own their subject. Loop thread.

       away ──timer──▶ dialling ──connected──▶ greeting ──AgentHelloOk──▶ up
         ▲                 │                       │                      │
         └────back-off─────┴──────10 s are over────┴──silence, an error───┘

   The lease runs from the moment a hello or heartbeat was sent, never from its answer: the control
   plane counts from a later moment, so it never calls a node lost that may still run. */
#include "agent/agent-int.h"

#include "base/cleanup.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/util.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define GREETING_MS 10000
#define DIAL_USEC (10 * VG_USEC)
#define DEFAULT_HEARTBEAT_USEC (2 * VG_USEC)
#define DEFAULT_LEASE_USEC (30 * VG_USEC)
#define QUEUE_HIGH (8u << 20) /* bytes to the control plane at which keepers have to wait */
#define QUEUE_LOW (2u << 20)
#define DRAIN_MS 5 /* only while they wait */
#define REQ_HELLO 1
#define REQ_JOIN 2
#define REQ_RENEW 3

static void dial(struct vg_agent *a);

/* ------------------------------------------------------------------ sending */

static void on_drain(uv_timer_t *timer) {
    struct vg_agent *a = timer->data;
    if (a->link.conn && vg_conn_queued(a->link.conn) > QUEUE_LOW)
        return;
    uv_timer_stop(timer);
    vg_keepers_pause(a, false);
}

bool vg_link_send(struct vg_agent *a, const Vg__Pb__Envelope *env) {
    struct vg_link *l = &a->link;
    if (!l->up || vg_conn_send(l->conn, env, NULL, 0) < 0)
        return false;
    if (!a->paused && vg_conn_queued(l->conn) > QUEUE_HIGH) {
        vg_keepers_pause(a, true);
        uv_timer_start(&l->drain, on_drain, DRAIN_MS, DRAIN_MS);
    }
    return true;
}

void vg_link_reply(struct vg_agent *a, uint32_t req, enum vg_reason reason, const char *text) {
    Vg__Pb__Envelope env = VG__PB__ENVELOPE__INIT;
    Vg__Pb__Error error = VG__PB__ERROR__INIT;
    Vg__Pb__Ok ok = VG__PB__OK__INIT;
    if (!req)
        return;
    env.has_req = true;
    env.req = req;
    if (reason == VG_OK) {
        env.body_case = VG__PB__ENVELOPE__BODY_OK;
        env.ok = &ok;
    } else {
        error.has_reason = true;
        error.reason = (uint32_t)reason;
        error.text = (char *)text;
        env.body_case = VG__PB__ENVELOPE__BODY_ERROR;
        env.error = &error;
    }
    vg_link_send(a, &env);
}

static void send_heartbeat(struct vg_agent *a) {
    Vg__Pb__Heartbeat beat = VG__PB__HEARTBEAT__INIT;
    Vg__Pb__Envelope env = VG__PB__ENVELOPE__INIT;
    size_t rss = 0;
    uv_resident_set_memory(&rss);
    beat.has_sent_usec = beat.has_rss_bytes = true;
    beat.sent_usec = vg_now_usec();
    beat.rss_bytes = rss;
    beat.has_leaving = beat.leaving = a->stopping;
    beat.unfit = (char *)vg_bare_unfit(a);
    env.body_case = VG__PB__ENVELOPE__BODY_HEARTBEAT;
    env.heartbeat = &beat;
    vg_link_send(a, &env);
}

void vg_link_beat(struct vg_agent *a) {
    if (a->link.up)
        send_heartbeat(a);
}

static void renew_certificate(struct vg_agent *a) {
    struct vg_link *l = &a->link;
    if (!l->renew_wall_usec || l->renewing || vg_wall_usec() < l->renew_wall_usec)
        return;
    struct vg_err err = VG_ERR_INIT;
    Vg__Pb__CertReq req = VG__PB__CERT_REQ__INIT;
    Vg__Pb__Envelope env = VG__PB__ENVELOPE__INIT;
    vg_auto_free uint8_t *der = NULL;
    size_t len = 0;
    if (vg_cert_request(a, &der, &len, &err) < 0) {
        vg_warn("cannot renew the certificate: %s", err.msg);
        return;
    }
    req.has_csr_der = true;
    req.csr_der = (ProtobufCBinaryData){len, der};
    env.has_req = true;
    env.req = REQ_RENEW;
    env.body_case = VG__PB__ENVELOPE__BODY_CERT_RENEW;
    env.cert_renew = &req;
    l->renewing = vg_link_send(a, &env);
}

static void on_beat(uv_timer_t *timer) {
    struct vg_agent *a = timer->data;
    struct vg_link *l = &a->link;
    uint64_t silence = vg_now_usec() - vg_conn_last_heard_usec(l->conn);
    if (silence > VG_MAX(4 * l->heartbeat_usec, VG_USEC)) {
        vg_conn_abort(l->conn, VG_TIMEOUT, "the control plane does not answer");
        return;
    }
    send_heartbeat(a);
    renew_certificate(a);
    vg_meter_beat(a);
    vg_fslink_tend(a);
}

/* ------------------------------------------------------------------ greeting */

static void send_hello(struct vg_agent *a) {
    Vg__Pb__Hello hello = VG__PB__HELLO__INIT;
    Vg__Pb__Envelope env = VG__PB__ENVELOPE__INIT;
    hello.has_protocol = true;
    hello.protocol = 1;
    hello.program = "virga-agent " VG_VERSION;
    env.body_case = VG__PB__ENVELOPE__BODY_HELLO;
    env.hello = &hello;
    vg_conn_send(a->link.conn, &env, NULL, 0);
}

static void fill_gpus(struct vg_agent *a, Vg__Pb__AgentHello *hello, Vg__Pb__GpuInfo *info,
                      Vg__Pb__GpuInfo **list, char (*path)[VG_GPU_PATH], char **device) {
    for (size_t i = 0; i < a->gpus.n; i++) {
        const struct vg_gpu *g = &a->gpus.gpu[i];
        vg__pb__gpu_info__init(&info[i]);
        info[i].has_index = true;
        info[i].index = g->index;
        info[i].model = (char *)g->model;
        info[i].vendor = (char *)vg_card_vendor_name(g->vendor);
        info[i].has_part = info[i].part = g->part != 0;
        info[i].has_mem_bytes = a->card[i].known && a->card[i].facts.mem_bytes != VG_NONE64;
        info[i].mem_bytes = a->card[i].facts.mem_bytes;
        if (g->minor >= 0) {
            snprintf(path[i], VG_GPU_PATH, "/dev/nvidia%d", g->minor);
            device[i] = path[i];
            info[i].device = &device[i];
            info[i].n_device = 1;
        }
        list[i] = &info[i];
    }
    hello->gpu = list;
    hello->n_gpu = a->gpus.n;
}

static void fill_hello(struct vg_agent *a, Vg__Pb__AgentHello *h, Vg__Pb__Resources *total) {
    total->has_cpu_milli = total->has_mem_bytes = total->has_gpus = true;
    total->cpu_milli = (uint32_t)VG_MIN(a->conf.cpus * 1000, (uint64_t)UINT32_MAX);
    total->mem_bytes = a->conf.mem_bytes;
    total->gpus = (uint32_t)a->gpus.n;
    h->total = total;
    h->node_id = a->node_id;
    h->name = a->name;
    h->version = VG_VERSION;
    h->boot_id = a->boot_id;
    h->machine_id = a->machine_id;
    h->label = a->conf.labels;
    h->n_label = a->conf.n_labels;
    h->shared_path = a->conf.shared;
    h->n_shared_path = a->conf.n_shared;
    h->has_direct_port = a->direct_port != 0;
    h->direct_port = a->direct_port;
    h->has_log_rounds = h->log_rounds = true;
    h->unfit = (char *)vg_bare_unfit(a);
}

static int send_agent_hello(struct vg_agent *a) {
    Vg__Pb__AgentHello h = VG__PB__AGENT_HELLO__INIT;
    Vg__Pb__Resources total = VG__PB__RESOURCES__INIT;
    Vg__Pb__Envelope env = VG__PB__ENVELOPE__INIT;
    Vg__Pb__GpuInfo info[VG_GPUS_MAX], *list[VG_GPUS_MAX];
    char path[VG_GPUS_MAX][VG_GPU_PATH], *device[VG_GPUS_MAX];
    uint8_t fingerprint[VG_FINGERPRINT];
    struct vg_err err = VG_ERR_INIT;
    fill_hello(a, &h, &total);
    fill_gpus(a, &h, info, list, path, device);
    if (a->direct_port && vg_ca_fingerprint(a->ca_pem, fingerprint, &err) == 0) {
        h.has_direct_fingerprint = true;
        h.direct_fingerprint = (ProtobufCBinaryData){sizeof(fingerprint), fingerprint};
    }
    int r = vg_tasks_report(a, &h);
    env.has_req = true;
    env.req = REQ_HELLO;
    env.body_case = VG__PB__ENVELOPE__BODY_AGENT_HELLO;
    env.agent_hello = &h;
    a->link.hello_usec = h.sent_usec = vg_now_usec();
    h.has_sent_usec = true;
    if (r == 0)
        r = vg_conn_send(a->link.conn, &env, NULL, 0);
    vg_tasks_report_done(&h);
    return r;
}

static void send_join(struct vg_agent *a) {
    Vg__Pb__JoinReq req = VG__PB__JOIN_REQ__INIT;
    Vg__Pb__Envelope env = VG__PB__ENVELOPE__INIT;
    struct vg_err err = VG_ERR_INIT;
    vg_auto_free uint8_t *der = NULL;
    size_t len = 0;
    if (vg_cert_request(a, &der, &len, &err) < 0) {
        vg_error("cannot join: %s", err.msg);
        vg_agent_quit(a, 1);
        return;
    }
    req.token = (char *)a->conf.token;
    req.name = a->name;
    req.has_csr_der = true;
    req.csr_der = (ProtobufCBinaryData){len, der};
    env.has_req = true;
    env.req = REQ_JOIN;
    env.body_case = VG__PB__ENVELOPE__BODY_JOIN;
    env.join = &req;
    vg_conn_send(a->link.conn, &env, NULL, 0);
}

static void on_ready(struct vg_conn *c, void *user) {
    struct vg_agent *a = user;
    send_hello(a);
    if (a->link.joining)
        send_join(a);
    else if (send_agent_hello(a) < 0)
        vg_conn_abort(c, VG_INTERNAL, "the node is out of memory");
}

static void on_hello_ok(struct vg_agent *a, const Vg__Pb__AgentHelloOk *ok) {
    struct vg_link *l = &a->link;
    l->lease_usec = ok->lease_usec ? ok->lease_usec : DEFAULT_LEASE_USEC;
    l->heartbeat_usec = ok->heartbeat_usec ? ok->heartbeat_usec : DEFAULT_HEARTBEAT_USEC;
    if (ok->node_id && *ok->node_id)
        vg_cert_set_id(a, ok->node_id);
    if (ok->name && *ok->name)
        snprintf(a->name, sizeof(a->name), "%s", ok->name);
    if (ok->has_log_head_bytes || ok->has_log_tail_bytes) {
        a->log_head_bytes = ok->log_head_bytes;
        a->log_tail_bytes = ok->log_tail_bytes;
        vg_list_for_each (it, &a->keepers)
            vg_keeper_send(vg_list_entry(it, struct vg_agent_keeper, link), VG_K_LIMITS, 0,
                           a->log_head_bytes, a->log_tail_bytes, NULL, 0, NULL, 0);
    }
    vg_fslink_configure(a, ok->library, ok->n_library, ok->fs_cache_bytes);
    vg_lease_renew(a, l->hello_usec + l->lease_usec);
    l->up = true;
    l->said = false;
    vg_backoff_reset(&l->backoff);
    uv_timer_stop(&l->timer);
    uint64_t ms = VG_MAX(l->heartbeat_usec / 1000, (uint64_t)10);
    uv_timer_start(&l->beat, on_beat, ms, ms);
    vg_info("joined the cloud node=%s name=%s tasks=%zu", a->node_id, a->name,
            vg_map_len(&a->tasks));
    vg_tasks_resend(a);
    vg_meter_report(a);
}

static void on_join_ok(struct vg_agent *a, const Vg__Pb__JoinOk *ok) {
    struct vg_err err = VG_ERR_INIT;
    if (vg_cert_joined(a, ok, &err) < 0 || vg_io_listen(a, &err) < 0) {
        vg_error("cannot join: %s", err.msg);
        vg_agent_quit(a, 1);
        return;
    }
    a->link.joining = false;
    a->link.said = true; /* the next connection follows at once */
    vg_backoff_reset(&a->link.backoff);
    vg_conn_close(a->link.conn);
}

static void on_error(struct vg_agent *a, uint32_t req, const Vg__Pb__Error *e) {
    const char *text = e->text ? e->text : vg_reason_name(vg_reason_from_wire(e->reason));
    if (a->link.joining) {
        vg_error("cannot join: %s", text);
        vg_agent_quit(a, 1);
    } else if (req == REQ_RENEW) {
        vg_warn("cannot renew the certificate: %s", text);
        a->link.renewing = false;
    } else {
        vg_warn("the control plane refuses: %s", text);
    }
}

/* ------------------------------------------------------------------ messages */

static void on_cert_ok(struct vg_agent *a, const Vg__Pb__CertOk *ok) {
    struct vg_err err = VG_ERR_INIT;
    a->link.renewing = false;
    if (vg_cert_renewed(a, ok, &err) < 0 || vg_io_listen(a, &err) < 0)
        vg_warn("cannot renew the certificate: %s", err.msg);
}

static void on_control(struct vg_agent *a, const Vg__Pb__Envelope *env, int *fds, size_t n_fds) {
    switch (env->body_case) {
    case VG__PB__ENVELOPE__BODY_HEARTBEAT_OK:
        if (env->heartbeat_ok->sent_usec <= vg_now_usec())
            vg_lease_renew(a, env->heartbeat_ok->sent_usec + a->link.lease_usec);
        break;
    case VG__PB__ENVELOPE__BODY_START:
        vg_tasks_on_start(a, env->start, fds, n_fds);
        break;
    case VG__PB__ENVELOPE__BODY_TASK_GO:
        vg_tasks_on_go(a, env->task_go);
        break;
    case VG__PB__ENVELOPE__BODY_TASK_SHARE:
        vg_share_on_change(a, env->task_share);
        break;
    case VG__PB__ENVELOPE__BODY_KILL:
        vg_tasks_on_kill(a, env->kill);
        break;
    case VG__PB__ENVELOPE__BODY_LOG_ACK:
        vg_tasks_on_log_ack(a, env->log_ack);
        break;
    case VG__PB__ENVELOPE__BODY_EXIT_ACK:
        vg_tasks_on_exit_ack(a, env->exit_ack);
        break;
    case VG__PB__ENVELOPE__BODY_TASK_ATTACH:
        vg_io_on_attach(a, env->task_attach, env->req, fds, n_fds);
        break;
    case VG__PB__ENVELOPE__BODY_MIRROR_LINK:
        vg_fslink_on_link(a, env->mirror_link);
        break;
    case VG__PB__ENVELOPE__BODY_TASK_FORWARD:
        vg_io_on_forward(a, env->task_forward, env->req);
        break;
    case VG__PB__ENVELOPE__BODY_END_SESSION:
        vg_tasks_on_end_session(a, env->end_session->name);
        break;
    case VG__PB__ENVELOPE__BODY_SESSION_EXTEND:
        vg_tasks_on_session_extend(a, env->session_extend);
        break;
    case VG__PB__ENVELOPE__BODY_GPU_POLL:
        vg_watch_live(a, env->gpu_poll->usec);
        break;
    case VG__PB__ENVELOPE__BODY_USE_POLL:
        vg_use_live(a, env->use_poll->usec);
        break;
    case VG__PB__ENVELOPE__BODY_GPU_CLEAR:
        vg_watch_clear(a, env->gpu_clear->index);
        break;
    case VG__PB__ENVELOPE__BODY_CERT_OK:
        on_cert_ok(a, env->cert_ok);
        break;
    default:
        vg_debug("a message the agent does not know: %d", (int)env->body_case);
    }
}

static void on_msg(struct vg_conn *c, void *user, const Vg__Pb__Envelope *env, int *fds,
                   size_t n_fds) {
    struct vg_agent *a = user;
    (void)c;
    if (env->body_case == VG__PB__ENVELOPE__BODY_ERROR)
        on_error(a, env->req, env->error);
    else if (env->body_case == VG__PB__ENVELOPE__BODY_JOIN_OK && a->link.joining)
        on_join_ok(a, env->join_ok);
    else if (env->body_case == VG__PB__ENVELOPE__BODY_AGENT_HELLO_OK && !a->link.joining)
        on_hello_ok(a, env->agent_hello_ok);
    else if (a->link.up)
        on_control(a, env, fds, n_fds);
}

/* ------------------------------------------------------------------ dialling */

static void on_timer_dial(uv_timer_t *timer) {
    dial(timer->data);
}

static void on_timer_limit(uv_timer_t *timer) {
    struct vg_agent *a = timer->data;
    if (a->link.conn)
        vg_conn_abort(a->link.conn, VG_TIMEOUT, "no answer to the greeting");
}

static void try_later(struct vg_agent *a, const char *why) {
    struct vg_link *l = &a->link;
    uint32_t random;
    vg_random(&random, sizeof(random));
    uint64_t pause = vg_backoff_next_usec(&l->backoff, random);
    if (!l->said)
        vg_info("the control plane at %s is away (%s); trying again", l->address, why);
    l->said = true;
    uv_timer_start(&l->timer, on_timer_dial, pause / 1000, 0);
}

static void on_close(struct vg_conn *c, void *user, const struct vg_err *why) {
    struct vg_agent *a = user;
    struct vg_link *l = &a->link;
    (void)c;
    l->conn = NULL;
    l->up = false;
    l->renewing = false;
    vg_io_link_lost(a);
    uv_timer_stop(&l->beat);
    uv_timer_stop(&l->drain);
    if (a->paused)
        vg_keepers_pause(a, false);
    if (!uv_loop_alive(&a->loop) || a->status >= 0)
        return;
    try_later(a, why->reason == VG_OK ? "it closed the connection" : why->msg);
}

static const struct vg_conn_ops ops = {
    .on_ready = on_ready,
    .on_msg = on_msg,
    .on_close = on_close,
};

static void connected(struct vg_agent *a, int fd) {
    struct vg_link *l = &a->link;
    struct vg_err err = VG_ERR_INIT;
    if (vg_conn_new(&a->loop, fd, l->local ? NULL : l->tls, true, &ops, a, &l->conn, &err) < 0) {
        l->conn = NULL;
        try_later(a, err.msg);
        return;
    }
    uv_timer_start(&l->timer, on_timer_limit, GREETING_MS, 0);
}

static void on_dialled(int fd, const struct vg_err *err, void *user) {
    struct vg_agent *a = user;
    a->link.dial = NULL;
    if (fd < 0)
        try_later(a, err->msg);
    else
        connected(a, fd);
}

static void dial(struct vg_agent *a) {
    struct vg_link *l = &a->link;
    if (l->conn || l->dial)
        return;
    if (!l->local) {
        l->dial = vg_dial_tcp(&a->loop, l->address, DIAL_USEC, on_dialled, a);
        if (!l->dial)
            try_later(a, "out of memory");
        return;
    }
    int fd = vg_unix_connect(l->address, SOCK_STREAM | SOCK_NONBLOCK);
    if (fd < 0)
        try_later(a, strerror(-fd));
    else
        connected(a, fd);
}

void vg_link_start(struct vg_agent *a) {
    dial(a);
}

static int choose_address(struct vg_agent *a, struct vg_err *err) {
    struct vg_link *l = &a->link;
    vg_auto_free char *path = vg_agent_path(a, "control");
    vg_auto_free char *known = NULL;
    size_t len;
    const char *at = a->conf.join ? a->conf.join : a->conf.control;
    if (!at && path && vg_read_file(path, 4096, &known, &len) == 0 && len > 0)
        at = known;
    if (!at)
        l->address = vg_fmt("%s/sock", a->conf.home);
    else
        l->address = vg_strdup(strncmp(at, "unix:", 5) == 0 ? at + 5 : at);
    if (!l->address)
        return vg_err_sys(err, -ENOMEM, "cannot start the agent");
    l->address[strcspn(l->address, "\n")] = 0;
    l->local = !at || strncmp(at, "unix:", 5) == 0;
    return 0;
}

int vg_link_open(struct vg_agent *a, struct vg_err *err) {
    struct vg_link *l = &a->link;
    uv_timer_t *timers[] = {&l->timer, &l->beat, &l->drain};
    for (size_t i = 0; i < VG_COUNT(timers); i++) {
        uv_timer_init(&a->loop, timers[i]);
        timers[i]->data = a;
    }
    l->heartbeat_usec = DEFAULT_HEARTBEAT_USEC;
    int r = choose_address(a, err);
    return r < 0 ? r : vg_cert_load(a, err);
}

void vg_link_close(struct vg_agent *a) {
    struct vg_link *l = &a->link;
    if (l->dial)
        vg_dial_cancel(l->dial);
    l->dial = NULL;
    if (l->conn)
        vg_conn_close(l->conn);
    uv_timer_stop(&l->timer);
    uv_timer_stop(&l->beat);
    uv_timer_stop(&l->drain);
}
