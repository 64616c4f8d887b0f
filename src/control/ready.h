#pragma once
/* Whether the control plane can do its work now: what /readyz answers. Loop thread. */
#include "control/control.h"

bool vg_ready(struct vg_control *c);
/* {"ready": …, "why": […]}, one sentence for each thing that is missing; NULL: no memory. Caller
   frees. */
char *vg_ready_text(struct vg_control *c);
