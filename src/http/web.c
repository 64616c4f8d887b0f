/* The server: its sockets, its connections, its clock. */
#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"
#include "http/web-int.h"
#include "net/conn.h"

#include <string.h>

static const struct vg_web_limits usual = {
    .head_max = 16u << 10,
    .body_max = 1u << 20,
    .queue_max = 256u << 10,
    .conns_max = 8192,
    .conns_peer_max = 4096,
    .first_msec = 10000,
    .head_msec = 10000,
    .body_msec = 60000,
    .idle_msec = 75000,
    .stall_msec = 30000,
};

static void set_limits(struct vg_web_limits *l) {
#define USUAL(name) l->name = l->name ? l->name : usual.name
    USUAL(head_max);
    USUAL(body_max);
    USUAL(queue_max);
    USUAL(conns_max);
    USUAL(conns_peer_max);
    USUAL(first_msec);
    USUAL(head_msec);
    USUAL(body_msec);
    USUAL(idle_msec);
    USUAL(stall_msec);
#undef USUAL
}

static void on_closed(uv_handle_t *handle) {
    struct vg_web *w = handle->data;
    if (--w->open_handles)
        return;
    vg_tls_unref(w->tls);
    vg_map_done(&w->peers);
    free(w->common);
    free(w);
}

static void on_tick(uv_timer_t *timer) {
    struct vg_web *w = timer->data;
    uint64_t now = uv_now(w->loop);
    if (vg_list_empty(&w->conns)) /* nobody is here: nothing wakes the loop */
        (void)uv_timer_stop(timer);
    vg_list_for_each_safe (it, &w->conns)
        conn_late(vg_list_entry(it, struct vg_web_conn, link), now);
}

/* What was written since the loop last slept goes out together. */
static void on_prepare(uv_prepare_t *prepare) {
    struct vg_web *w = prepare->data;
    while (!vg_list_empty(&w->ripe))
        conn_run(vg_list_entry(vg_list_first(&w->ripe), struct vg_web_conn, on_ripe));
}

static void on_accepted(int fd, void *user) {
    struct vg_web *w = user;
    conn_accept(w, fd);
    if (!w->stopping && !uv_is_active((uv_handle_t *)&w->tick))
        (void)uv_timer_start(&w->tick, on_tick, TICK_MSEC, TICK_MSEC);
}

static struct vg_web *web_new(uv_loop_t *loop, const struct vg_web_limits *limits,
                              const struct vg_web_ops *ops, void *user) {
    struct vg_web *w = vg_alloc(sizeof(*w));
    if (!w)
        return NULL;
    w->loop = loop;
    w->ops = *ops;
    w->user = user;
    if (limits)
        w->limits = *limits;
    set_limits(&w->limits);
    vg_list_init(&w->conns);
    vg_list_init(&w->ripe);
    uv_timer_init(loop, &w->tick);
    uv_prepare_init(loop, &w->prepare);
    w->tick.data = w->prepare.data = w;
    w->open_handles = 2;
    uv_prepare_start(&w->prepare, on_prepare);
    uv_unref((uv_handle_t *)&w->tick);
    uv_unref((uv_handle_t *)&w->prepare);
    return w;
}

int vg_web_start(uv_loop_t *loop, const char *host, uint16_t port, struct vg_tls *tls,
                 const struct vg_web_limits *limits, const struct vg_web_ops *ops, void *user,
                 struct vg_web **ret, uint16_t *ret_port, struct vg_err *err) {
    struct vg_web *w = web_new(loop, limits, ops, user);
    if (!w)
        return vg_err_sys(err, -ENOMEM, "cannot listen on %s:%u", host, port);
    w->tls = tls ? vg_tls_ref(tls) : NULL;
    int r = vg_listen_tcp(loop, host, port, on_accepted, w, &w->listener, ret_port, err);
    if (r < 0) {
        vg_web_stop(w);
        return r;
    }
    *ret = w;
    return 0;
}

void vg_web_set_tls(struct vg_web *w, struct vg_tls *tls) {
    struct vg_tls *old = w->tls;
    w->tls = vg_tls_ref(tls);
    vg_tls_unref(old);
}

int vg_web_set_common(struct vg_web *w, const char *headers) {
    char *copy = vg_strdup(headers);
    if (!copy)
        return -ENOMEM;
    free(w->common);
    w->common = copy;
    return 0;
}

void vg_web_stop(struct vg_web *w) {
    if (!w || w->stopping)
        return;
    w->stopping = true;
    vg_listener_free(vg_take_ptr(w->listener));
    while (!vg_list_empty(&w->conns)) {
        struct vg_web_conn *c = vg_list_entry(vg_list_first(&w->conns), struct vg_web_conn, link);
        (void)io_flush(c); /* answers that are ready still go */
        conn_drop(c);
    }
    uv_close((uv_handle_t *)&w->tick, on_closed);
    uv_close((uv_handle_t *)&w->prepare, on_closed);
}

struct vg_web_numbers vg_web_numbers(const struct vg_web *w) {
    return w->numbers;
}
