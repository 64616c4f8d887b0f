/* Time, chance and the queue of everything that will happen. What always holds: events happen in
   the order of (time, number); an event of a process that is gone does not happen; one of a process
   that is stalled waits. */
#include "sim/faults/world.h"

#include "base/cleanup.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/util.h"

#include <string.h>

struct vg_world *vg_w;

#define WALL_ZERO (1767225600ULL * VG_USEC) /* 2026-01-01 */

/* ------------------------------------------------------------------ clocks */

static uint64_t drifted(const struct vg_w_machine *m, uint64_t usec) {
    return usec + (uint64_t)((int64_t)usec / 1000 * m->drift_ppm / 1000);
}

uint64_t vg_w_boot(const struct vg_w_machine *m) {
    return (uint64_t)m->boot_usec + drifted(m, vg_w->now);
}

uint64_t vg_w_wall(const struct vg_w_machine *m) {
    return WALL_ZERO + (uint64_t)m->wall_usec + drifted(m, vg_w->now);
}

uint64_t vg_w_span(const struct vg_w_machine *m, uint64_t usec) {
    return usec * 1000000 / (uint64_t)(1000000 + m->drift_ppm);
}

uint64_t vg_w_when(const struct vg_w_machine *m, uint64_t boot) {
    uint64_t now = vg_w_boot(m);
    return boot <= now ? vg_w->now : vg_w->now + vg_w_span(m, boot - now) + 1;
}

uint64_t __real_vg_now_usec(void);
uint64_t __wrap_vg_now_usec(void);
uint64_t __wrap_vg_now_usec(void) {
    if (!vg_w)
        return __real_vg_now_usec();
    return vg_w->cur ? vg_w_boot(vg_w->cur->machine) : vg_w->now;
}

uint64_t __real_vg_wall_usec(void);
uint64_t __wrap_vg_wall_usec(void);
uint64_t __wrap_vg_wall_usec(void) {
    if (!vg_w)
        return __real_vg_wall_usec();
    return vg_w->cur ? vg_w_wall(vg_w->cur->machine) : WALL_ZERO + vg_w->now;
}

void vg_w_machine_init(struct vg_w_machine *m, const char *name, uint64_t salt, bool skewed) {
    struct vg_rng r = vg_rng_seeded(vg_w->plan->seed * 1000003 + salt);
    *m = (struct vg_w_machine){.net = r};
    snprintf(m->name, sizeof m->name, "%s", name);
    m->boot_usec = (int64_t)vg_w_between(&r, 1, 100000 * VG_USEC);
    if (!skewed)
        return;
    m->wall_usec = (int64_t)vg_w_between(&r, 0, 20 * VG_USEC) - (int64_t)(10 * VG_USEC);
    m->drift_ppm = (int64_t)vg_w_between(&r, 0, 20000) - 10000; /* one per cent either way */
    m->net = r;
}

void vg_w_proc_init(struct vg_w_proc *p, struct vg_w_machine *m, const char *name) {
    *p = (struct vg_w_proc){.machine = m};
    snprintf(p->name, sizeof p->name, "%s", name);
    p->loop.data = p;
    vg_list_init(&p->conns);
}

/* ------------------------------------------------------------------ chance */

uint64_t vg_w_between(struct vg_rng *r, uint64_t lo, uint64_t hi) {
    return hi <= lo ? lo : lo + vg_rng_below(r, hi - lo + 1);
}

bool vg_w_chance(struct vg_rng *r, unsigned percent) {
    return vg_rng_below(r, 100) < percent;
}

void __real_vg_random(void *p, size_t n);
void __wrap_vg_random(void *p, size_t n);
void __wrap_vg_random(void *p, size_t n) {
    if (!vg_w) {
        __real_vg_random(p, n);
        return;
    }
    uint8_t *out = p;
    for (size_t i = 0; i < n; i += 8) {
        uint64_t v = vg_rng_next(&vg_w->ids);
        memcpy(out + i, &v, VG_MIN(n - i, sizeof v));
    }
}

uint64_t __real_vg_id_new(void);
uint64_t __wrap_vg_id_new(void);
uint64_t __wrap_vg_id_new(void) {
    return vg_w ? vg_rng_next(&vg_w->ids) | 1 : __real_vg_id_new();
}

/* ------------------------------------------------------------------ events */

static bool before(const struct vg_w_event *a, const struct vg_w_event *b) {
    return a->at != b->at ? a->at < b->at : a->seq < b->seq;
}

static void push(const struct vg_w_event *e) {
    struct vg_world *w = vg_w;
    struct vg_w_event *h = vg_grow(w->heap, &w->cap_heap, w->n_heap + 1, sizeof *h);
    if (!h)
        abort();
    w->heap = h;
    size_t i = w->n_heap++;
    for (; i && before(e, &h[(i - 1) / 2]); i = (i - 1) / 2)
        h[i] = h[(i - 1) / 2];
    h[i] = *e;
}

static struct vg_w_event pop(void) {
    struct vg_world *w = vg_w;
    struct vg_w_event first = w->heap[0], last = w->heap[--w->n_heap];
    size_t i = 0, n = w->n_heap;
    for (size_t c; (c = 2 * i + 1) < n; i = c) {
        if (c + 1 < n && before(&w->heap[c + 1], &w->heap[c]))
            c++;
        if (!before(&w->heap[c], &last))
            break;
        w->heap[i] = w->heap[c];
    }
    if (n)
        w->heap[i] = last;
    return first;
}

void vg_w_at(uint64_t at, struct vg_w_proc *p, void (*fn)(void *a, uint64_t b), void *a,
             uint64_t b) {
    push(&(struct vg_w_event){.at = VG_MAX(at, vg_w->now),
                              .seq = ++vg_w->seq,
                              .proc = p,
                              .life = p ? p->life : 0,
                              .fn = fn,
                              .a = a,
                              .b = b});
}

bool vg_w_step(void) {
    struct vg_world *w = vg_w;
    if (!w->n_heap || w->over)
        return false;
    struct vg_w_event e = pop();
    w->now = e.at;
    if (e.proc && (!e.proc->alive || e.proc->life != e.life))
        return true;
    if (e.proc && e.proc->stall_until > w->now) {
        e.at = e.proc->stall_until; /* its number stays: order is kept */
        push(&e);
        return true;
    }
    w->steps++;
    w->cur = e.proc;
    e.fn(e.a, e.b);
    w->cur = NULL;
    return true;
}

/* ------------------------------------------------------------------ words */

static void tell(const char *who, const char *fmt, va_list ap) {
    uint64_t t = vg_w->now;
    fprintf(vg_w->tell, "%4llu.%06llu  %-9s ", (unsigned long long)(t / VG_USEC),
            (unsigned long long)(t % VG_USEC), who);
    vfprintf(vg_w->tell, fmt, ap);
    fputc('\n', vg_w->tell);
}

void vg_w_story(const char *fmt, ...) {
    if (!vg_w->tell)
        return;
    va_list ap;
    va_start(ap, fmt);
    tell("-", fmt, ap);
    va_end(ap);
}

void __real_vg_log_at(enum vg_log_level level, const char *fmt, ...);
void __wrap_vg_log_at(enum vg_log_level level, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
void __wrap_vg_log_at(enum vg_log_level level, const char *fmt, ...) {
    char line[1024];
    va_list ap;
    va_start(ap, fmt);
    if (vg_w && vg_w->tell) {
        tell(vg_w->cur ? vg_w->cur->name : "?", fmt, ap);
    } else if (!vg_w) {
        vsnprintf(line, sizeof line, fmt, ap);
        __real_vg_log_at(level, "%s", line);
    }
    va_end(ap);
}

void vg_w_violate(const char *promise, const char *fmt, ...) {
    struct vg_world *w = vg_w;
    va_list ap;
    if (w->broken[0])
        return;
    snprintf(w->broken, sizeof w->broken, "%s", promise);
    va_start(ap, fmt);
    vsnprintf(w->why, sizeof w->why, fmt, ap);
    va_end(ap);
    w->over = true;
    if (w->tell)
        fprintf(w->tell, "%4llu.%06llu  BROKEN    %s: %s\n", (unsigned long long)(w->now / VG_USEC),
                (unsigned long long)(w->now % VG_USEC), w->broken, w->why);
}
