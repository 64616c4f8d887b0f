#include "cli/mirror-way.h"

#include "base/cleanup.h"
#include "base/log.h"
#include "base/mem.h"
#include "cli/run-int.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>

#define SOON_MS 30u    /* the command that begins just now has the machine first */
#define KEEP_MS 60000u /* routers on the way forget connections that are not used */

struct vg_way {
    uv_timer_t timer;
    int fd; /* owned; -1: none */
    unsigned long taken;
};

static void on_expired(uv_timer_t *t) {
    struct vg_way *w = t->data;
    vg_close(&w->fd);
}

static void on_soon(uv_timer_t *t) {
    struct vg_way *w = t->data;
    struct vg_endpoint ep;
    struct vg_err err = VG_ERR_INIT;
    if (vg_endpoint_find(&ep, &err) < 0 || ep.kind != VG_ENDPOINT_TLS)
        return;
    w->fd = run_bridge(&ep, &err);
    if (w->fd < 0) {
        vg_debug("no way ahead of need: %s", err.msg);
        w->fd = -1;
        return;
    }
    uv_timer_start(&w->timer, on_expired, KEEP_MS, 0);
}

int vg_way_new(uv_loop_t *loop, struct vg_way **ret) {
    struct vg_way *w = vg_alloc(sizeof(*w));
    if (!w)
        return -ENOMEM;
    uv_timer_init(loop, &w->timer);
    uv_unref((uv_handle_t *)&w->timer);
    w->timer.data = w;
    w->fd = -1;
    *ret = w;
    return 0;
}

static void on_closed(uv_handle_t *h) {
    free(h->data);
}

void vg_way_free(struct vg_way *w) {
    if (!w)
        return;
    vg_close(&w->fd); /* its thread sees that and ends */
    uv_close((uv_handle_t *)&w->timer, on_closed);
}

void vg_way_prepare(struct vg_way *w) {
    if (w->fd < 0)
        uv_timer_start(&w->timer, on_soon, SOON_MS, 0);
}

int vg_way_take(struct vg_way *w) {
    struct pollfd p = {.fd = w->fd, .events = POLLRDHUP};
    if (w->fd < 0)
        return -1;
    uv_timer_stop(&w->timer);
    if (poll(&p, 1, 0) != 0) { /* the cloud hung up meanwhile */
        vg_close(&w->fd);
        return -1;
    }
    w->taken++;
    return vg_take_fd(w->fd);
}

const char *vg_way_counts(const struct vg_way *w, char *out, size_t n) {
    snprintf(out, n, "%d %lu", w->fd >= 0, w->taken);
    return out;
}
