#pragma once
/* One-shot timers on the loop. Loop thread. */
#include <stdint.h>
#include <uv.h>

struct vg_timer;
/* NULL: no memory. The timer frees itself after fn. */
struct vg_timer *vg_timer_start(uv_loop_t *loop, uint64_t usec, void (*fn)(void *user), void *user);
/* Stops and forgets; *t may be NULL and becomes NULL. Must not be called on one that has fired: fn
   clears the owner's pointer. */
void vg_timer_stop(struct vg_timer **t);
