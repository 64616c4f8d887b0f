#pragma once
/* Inside metrics: metrics.c (the page, and what tasks, nodes and GPUs do), metrics-services.c (what
   the control plane does for others). Loop thread. */
#include "base/buf.h"
#include "control/control.h"

struct vg_nodelink;
struct vg_node_gpu;

struct vg_family {
    const char *name, *type, *help;
    int (*fill)(struct vg_control *c, const struct vg_family *f, struct vg_buf *to);
    /* Of one GPU; false: nobody tells it. For families of GPUs. */
    bool (*of_gpu)(const struct vg_nodelink *n, const struct vg_node_gpu *g, double *ret);
};

/* One line without labels, or with one. */
int vg_metric_put(struct vg_buf *to, const struct vg_family *f, const char *label, const char *text,
                  double v);
/* Parts of a line with several. */
int vg_metric_label(struct vg_buf *to, const char *before, const char *name, const char *value);
int vg_metric_value(struct vg_buf *to, double v);

/* ---- metrics-services.c: `fill` of families ---- */
int vg_metrics_ready(struct vg_control *c, const struct vg_family *f, struct vg_buf *to);
int vg_metrics_backlog(struct vg_control *c, const struct vg_family *f, struct vg_buf *to);
int vg_metrics_series(struct vg_control *c, const struct vg_family *f, struct vg_buf *to);
int vg_metrics_requests(struct vg_control *c, const struct vg_family *f, struct vg_buf *to);
int vg_metrics_web(struct vg_control *c, const struct vg_family *f, struct vg_buf *to);
int vg_metrics_logins(struct vg_control *c, const struct vg_family *f, struct vg_buf *to);
int vg_metrics_hooks(struct vg_control *c, const struct vg_family *f, struct vg_buf *to);
int vg_metrics_hook(struct vg_control *c, const struct vg_family *f, struct vg_buf *to);
int vg_metrics_budgets(struct vg_control *c, const struct vg_family *f, struct vg_buf *to);
int vg_metrics_charged(struct vg_control *c, const struct vg_family *f, struct vg_buf *to);
