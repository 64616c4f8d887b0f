#pragma once
/* A way to the cloud that is ready before it is needed: connected, handshaken and greeted, so that
   the next vrun's request leaves at once instead of after two round trips. It is a bridge as vrun
   makes one for itself (run-bridge.c); its near end goes to vrun with the service's answer, and
   ends with vrun. Loop thread. */
#include <stddef.h>
#include <uv.h>

struct vg_way;
int vg_way_new(uv_loop_t *loop, struct vg_way **ret);
void vg_way_free(struct vg_way *w);
void vg_way_prepare(struct vg_way *w); /* soon, where none is ready */
int vg_way_take(struct vg_way *w);     /* the caller's; -1: none is ready */
/* For the status: "READY TAKEN", how many there are and how many vruns got one. */
const char *vg_way_counts(const struct vg_way *w, char *out, size_t n);
