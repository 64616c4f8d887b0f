/* Pumps: they join two carriers. Loop thread only. */
#include "base/mem.h"
#include "net/conn-internal.h"

int vg_pump_streams(struct vg_stream *a, struct vg_stream *b, void (*done)(void *), void *user) {
    (void)a, (void)b, (void)done, (void)user;
    return -ENOSYS;
}

int vg_pump_fd(uv_loop_t *loop, int fd, struct vg_stream *s, void (*done)(void *), void *user) {
    (void)loop, (void)fd, (void)s, (void)done, (void)user;
    return -ENOSYS;
}
