/* Numbers of what the control plane does for others: the web port, sign-ins, hooks, money. */
#include "base/cleanup.h"
#include "control/budget-int.h"
#include "control/hooks.h"
#include "control/metrics-int.h"
#include "control/ready.h"
#include "control/series.h"
#include "control/webport.h"

#include <stdio.h>
#include <string.h>

#define BUDGETS_MAX 256 /* shown; the first by name */

int vg_metrics_ready(struct vg_control *c, const struct vg_family *f, struct vg_buf *to) {
    return vg_metric_put(to, f, NULL, NULL, vg_ready(c));
}

int vg_metrics_backlog(struct vg_control *c, const struct vg_family *f, struct vg_buf *to) {
    return vg_metric_put(to, f, NULL, NULL, (double)vg_store_backlog(c->store));
}

int vg_metrics_series(struct vg_control *c, const struct vg_family *f, struct vg_buf *to) {
    return vg_metric_put(to, f, NULL, NULL, (double)(VG_SERIES_ROOM - c->series_room));
}

int vg_metrics_requests(struct vg_control *c, const struct vg_family *f, struct vg_buf *to) {
    struct vg_web_numbers n = vg_webport_numbers(c);
    int r = 0;
    for (size_t i = 1; r >= 0 && i < VG_COUNT(n.status); i++) {
        char class[8];
        snprintf(class, sizeof class, "%zuxx", i);
        r = vg_metric_put(to, f, "class", class, (double)n.status[i]);
    }
    return r;
}

int vg_metrics_web(struct vg_control *c, const struct vg_family *f, struct vg_buf *to) {
    struct vg_web_numbers n = vg_webport_numbers(c);
    uint64_t v = strstr(f->name, "limited")   ? n.limited
                 : strstr(f->name, "streams") ? n.streams_now + n.sockets_now
                                              : n.conns_now;
    return vg_metric_put(to, f, NULL, NULL, (double)v);
}

int vg_metrics_logins(struct vg_control *c, const struct vg_family *f, struct vg_buf *to) {
    int r = vg_metric_put(to, f, "result", "good", (double)c->counts.logins);
    return r < 0 ? r : vg_metric_put(to, f, "result", "refused", (double)c->counts.logins_refused);
}

int vg_metrics_hooks(struct vg_control *c, const struct vg_family *f, struct vg_buf *to) {
    struct vg_hook_counts n = vg_hooks_count(c);
    int r = vg_metric_put(to, f, "state", "active", (double)(n.hooks - n.paused));
    return r < 0 ? r : vg_metric_put(to, f, "state", "paused", (double)n.paused);
}

int vg_metrics_hook(struct vg_control *c, const struct vg_family *f, struct vg_buf *to) {
    struct vg_hook_counts n = vg_hooks_count(c);
    double v = strstr(f->name, "waiting")  ? (double)n.waiting
               : strstr(f->name, "sent")   ? (double)n.sent
               : strstr(f->name, "failed") ? (double)n.failed
                                           : (double)n.dropped;
    return vg_metric_put(to, f, NULL, NULL, v);
}

int vg_metrics_charged(struct vg_control *c, const struct vg_family *f, struct vg_buf *to) {
    int r = 0;
    vg_map_for_each (s, &c->counts.charges) {
        const struct vg_charge_sum *m = s->value;
        if (r >= 0)
            r = vg_buf_printf(to, "%s{", f->name);
        if (r >= 0)
            r = vg_metric_label(to, "", "pool", m->pool);
        if (r >= 0)
            r = vg_metric_label(to, ",", "currency", m->currency);
        if (r >= 0)
            r = vg_buf_append(to, "}", 1);
        if (r >= 0)
            r = vg_metric_value(to, (double)m->micro / 1e6);
    }
    return r;
}

int vg_metrics_budgets(struct vg_control *c, const struct vg_family *f, struct vg_buf *to) {
    int r = 0;
    for (size_t i = 0; r >= 0 && c->budgets && i < c->budgets->n && i < BUDGETS_MAX; i++) {
        const struct vg_budget *b = c->budgets->list[i];
        double limit = b->limit_micro ? (double)b->limit_micro : 1;
        r = vg_metric_put(to, f, "budget", b->name, (double)vg_budget_spent(b) / limit);
    }
    return r;
}
