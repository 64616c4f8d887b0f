#pragma once
/* Events by time; equal times in the order in which they were put. */
#include <stddef.h>
#include <stdint.h>

struct vg_event {
    uint64_t at_usec, seq;
    uint32_t job, attempt;
};

struct vg_heap {
    struct vg_event *e; /* owned */
    size_t n, cap;
    uint64_t seq;
};

void vg_heap_done(struct vg_heap *h);
int vg_heap_put(struct vg_heap *h, uint64_t at_usec, uint32_t job, uint32_t attempt); /* -ENOMEM */
struct vg_event vg_heap_take(struct vg_heap *h);                                      /* n > 0 */
