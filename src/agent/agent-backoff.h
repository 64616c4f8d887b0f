#pragma once
/* How long to wait before dialling again: doubling from 50 ms to 5 s, with jitter so that a
   thousand agents do not return in one moment. Pure. */
#include <stdint.h>

#define VG_BACKOFF_MIN_USEC 50000ULL
#define VG_BACKOFF_MAX_USEC 5000000ULL

struct vg_backoff {
    uint32_t tries;
};

/* The next pause: between half and all of the doubled step. `random` is any 32 random bits. */
uint64_t vg_backoff_next_usec(struct vg_backoff *b, uint32_t random);
static inline void vg_backoff_reset(struct vg_backoff *b) {
    b->tries = 0;
}
