#pragma once
/* Numbers for Prometheus, by plain HTTP on an address of their own (`metrics` of the
   configuration): docs/metrics.md. Loop thread. */
#include "base/buf.h"
#include "control/control.h"

/* Does nothing where the configuration names no address. */
int vg_metrics_start(struct vg_control *c, struct vg_err *err);
void vg_metrics_stop(struct vg_control *c);
/* The page: part `i` is one family of numbers; as struct vg_web_page.part. */
int vg_metrics_part(void *control, size_t i, struct vg_buf *to);
