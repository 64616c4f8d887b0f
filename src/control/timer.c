/* One-shot timers: a uv_timer_t in memory of its own, because libuv wants handles to outlive their
   owners by one turn of the loop. */
#include "control/timer.h"

#include "base/cleanup.h"
#include "base/mem.h"

struct vg_timer {
    uv_timer_t handle;
    void (*fn)(void *user);
    void *user;
};

static void on_closed(uv_handle_t *h) {
    free(h->data);
}

static void on_fire(uv_timer_t *h) {
    struct vg_timer *t = h->data;
    uv_close((uv_handle_t *)h, on_closed);
    t->fn(t->user);
}

struct vg_timer *vg_timer_start(uv_loop_t *loop, uint64_t usec, void (*fn)(void *user),
                                void *user) {
    struct vg_timer *t = vg_alloc(sizeof *t);
    if (!t)
        return NULL;
    t->fn = fn;
    t->user = user;
    uv_timer_init(loop, &t->handle);
    t->handle.data = t;
    uv_timer_start(&t->handle, on_fire, (usec + 999) / 1000, 0);
    uv_unref((uv_handle_t *)&t->handle); /* a stop does not wait until next week's task is due */
    return t;
}

void vg_timer_stop(struct vg_timer **t) {
    if (*t)
        uv_close((uv_handle_t *)&(*t)->handle, on_closed);
    *t = NULL;
}
