/* The few things of libuv that the control plane and the agent use, in virtual time: timers,
   wake-ups from the store, closing, and syncing a file. The real library is linked but never
   reached from inside the world. */
#include "sim/faults/world.h"

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"
#include "sim/faults/files.h"

#define CLOSED 1u /* in uv_handle_t.flags */

static struct vg_w_proc *proc_of(const uv_loop_t *loop) {
    return loop->data;
}

/* ------------------------------------------------------------------ timers */

int __wrap_uv_timer_init(uv_loop_t *loop, uv_timer_t *t);
int __wrap_uv_timer_start(uv_timer_t *t, uv_timer_cb cb, uint64_t ms, uint64_t repeat);
int __wrap_uv_timer_stop(uv_timer_t *t);
uint64_t __wrap_uv_timer_get_due_in(const uv_timer_t *t);

int __wrap_uv_timer_init(uv_loop_t *loop, uv_timer_t *t) {
    t->loop = loop;
    t->type = UV_TIMER;
    t->flags = 0;
    t->start_id = 0;
    return 0;
}

static void arm(uv_timer_t *t, uint64_t ms);

static void fire(void *unused, uint64_t token) {
    uv_timer_t *t = vg_map_get_u64(&vg_w->timers, token);
    (void)unused;
    if (!t)
        return;
    vg_map_del_u64(&vg_w->timers, token);
    t->start_id = 0;
    if (t->repeat)
        arm(t, t->repeat);
    t->timer_cb(t);
}

static void arm(uv_timer_t *t, uint64_t ms) {
    struct vg_w_proc *p = proc_of(t->loop);
    t->start_id = ++vg_w->next_token;
    t->timeout = vg_w->now + vg_w_span(p->machine, ms * 1000);
    if (vg_map_put_u64(&vg_w->timers, t->start_id, t) < 0)
        abort();
    vg_w_at(t->timeout, p, fire, NULL, t->start_id);
}

int __wrap_uv_timer_start(uv_timer_t *t, uv_timer_cb cb, uint64_t ms, uint64_t repeat) {
    __wrap_uv_timer_stop(t);
    t->timer_cb = cb;
    t->repeat = repeat;
    arm(t, ms);
    return 0;
}

int __wrap_uv_timer_stop(uv_timer_t *t) {
    if (t->start_id)
        vg_map_del_u64(&vg_w->timers, t->start_id);
    t->start_id = 0;
    return 0;
}

uint64_t __wrap_uv_timer_get_due_in(const uv_timer_t *t) {
    return t->timeout > vg_w->now ? (t->timeout - vg_w->now) / 1000 : 0;
}

/* ------------------------------------------------------------------ handles */

int __wrap_uv_is_active(const uv_handle_t *h);
int __wrap_uv_is_closing(const uv_handle_t *h);
void __wrap_uv_close(uv_handle_t *h, uv_close_cb cb);
void __wrap_uv_unref(uv_handle_t *h);
int __wrap_uv_run(uv_loop_t *loop, uv_run_mode mode);
int __wrap_uv_loop_alive(const uv_loop_t *loop);
int __wrap_uv_resident_set_memory(size_t *rss);

int __wrap_uv_is_active(const uv_handle_t *h) {
    return h->type == UV_TIMER && ((const uv_timer_t *)h)->start_id != 0;
}

int __wrap_uv_is_closing(const uv_handle_t *h) {
    return (h->flags & CLOSED) != 0;
}

static void closed(void *loop, uint64_t unused) {
    (void)unused;
    vg_w_uv_drain(loop);
}

void __wrap_uv_close(uv_handle_t *h, uv_close_cb cb) {
    struct vg_world *w = vg_w;
    if (h->type == UV_TIMER)
        __wrap_uv_timer_stop((uv_timer_t *)h);
    h->flags |= CLOSED;
    if (!cb)
        return;
    struct vg_w_closing *c = vg_grow(w->closing, &w->cap_closing, w->n_closing + 1, sizeof *c);
    if (!c)
        abort();
    w->closing = c;
    c[w->n_closing++] = (struct vg_w_closing){h->loop, h, cb};
    vg_w_at(w->now, proc_of(h->loop), closed, h->loop, 0);
}

void vg_w_uv_drain(uv_loop_t *loop) {
    struct vg_world *w = vg_w;
    for (size_t i = 0; i < w->n_closing;) {
        struct vg_w_closing c = w->closing[i];
        if (c.loop != loop) {
            i++;
            continue;
        }
        w->closing[i] = w->closing[--w->n_closing];
        c.cb(c.handle);
    }
}

void vg_w_uv_forget(uv_loop_t *loop) {
    vg_map_for_each (s, &vg_w->timers) {
        uv_timer_t *t = s->value;
        if (t->loop == loop)
            vg_map_del_u64(&vg_w->timers, s->hash);
    }
}

void __wrap_uv_unref(uv_handle_t *h) {
    (void)h;
}

/* Only at an end: what waits to be closed is closed. */
int __wrap_uv_run(uv_loop_t *loop, uv_run_mode mode) {
    (void)mode;
    vg_w_net_finish(proc_of(loop));
    vg_w_uv_drain(loop);
    return 0;
}

int __wrap_uv_loop_alive(const uv_loop_t *loop) {
    return proc_of(loop)->alive;
}

int __wrap_uv_resident_set_memory(size_t *rss) {
    *rss = 0;
    return 0;
}

/* ------------------------------------------------------------------ waking the loop */

int __wrap_uv_async_init(uv_loop_t *loop, uv_async_t *a, uv_async_cb cb);
int __wrap_uv_async_send(uv_async_t *a);

int __wrap_uv_async_init(uv_loop_t *loop, uv_async_t *a, uv_async_cb cb) {
    a->loop = loop;
    a->type = UV_ASYNC;
    a->flags = 0;
    a->async_cb = cb;
    a->pending = 0;
    return 0;
}

static void woken(void *async, uint64_t unused) {
    uv_async_t *a = async;
    (void)unused;
    a->pending = 0;
    if (!(a->flags & CLOSED))
        a->async_cb(a);
}

int __wrap_uv_async_send(uv_async_t *a) {
    if (a->pending)
        return 0;
    a->pending = 1;
    vg_w_at(vg_w->now, proc_of(a->loop), woken, a, 0);
    return 0;
}

/* ------------------------------------------------------------------ signals: nobody sends any */

int __wrap_uv_signal_init(uv_loop_t *loop, uv_signal_t *s);
int __wrap_uv_signal_start(uv_signal_t *s, uv_signal_cb cb, int signum);

int __wrap_uv_signal_init(uv_loop_t *loop, uv_signal_t *s) {
    s->loop = loop;
    s->type = UV_SIGNAL;
    s->flags = 0;
    return 0;
}

int __wrap_uv_signal_start(uv_signal_t *s, uv_signal_cb cb, int signum) {
    (void)s;
    (void)cb;
    (void)signum;
    return 0;
}

/* ------------------------------------------------------------------ syncing a log */

struct fsync {
    struct vg_list link; /* in vg_world.fsyncs */
    uv_fs_t *req;
    uv_fs_cb cb;
    int fd;
};

int __wrap_uv_fs_fdatasync(uv_loop_t *loop, uv_fs_t *req, uv_file fd, uv_fs_cb cb);
void __wrap_uv_fs_req_cleanup(uv_fs_t *req);

static void synced(void *f, uint64_t unused) {
    struct fsync *s = f;
    (void)unused;
    vg_list_remove(&s->link);
    vg_w_fd_sync(s->fd);
    s->cb(s->req);
    free(s);
}

int __wrap_uv_fs_fdatasync(uv_loop_t *loop, uv_fs_t *req, uv_file fd, uv_fs_cb cb) {
    struct vg_world *w = vg_w;
    struct fsync *s = w->control ? vg_alloc(sizeof *s) : NULL;
    if (!s)
        return UV_EIO; /* a virgad that is being given back has no disk any more */
    *s = (struct fsync){.req = req, .cb = cb, .fd = fd};
    vg_list_push_back(&w->fsyncs, &s->link);
    uint64_t slow = w->disk_slow_until > w->now ? 300000 : 3000;
    vg_w_at(w->now + vg_w_between(&w->disk_rng, 50, slow), proc_of(loop), synced, s, 0);
    return 0;
}

void __wrap_uv_fs_req_cleanup(uv_fs_t *req) {
    (void)req;
}

void vg_w_uv_reset(void) {
    /* Whoever waited is told, so that he gives back what he holds; his disk is no longer there. */
    while (!vg_list_empty(&vg_w->fsyncs)) {
        struct fsync *s = vg_list_entry(vg_list_first(&vg_w->fsyncs), struct fsync, link);
        vg_list_remove(&s->link);
        s->cb(s->req);
        free(s);
    }
}
