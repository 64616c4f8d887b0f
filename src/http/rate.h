#pragma once
/* Token buckets by name: at most `burst` at once, and so many a second in the long run. Bounded:
   of more names than VG_RATE_NAMES_MAX the one that was not heard of the longest is forgotten.
   Time is passed in; no I/O. */
#include "base/list.h"
#include "base/map.h"

#include <stdint.h>

#define VG_RATE_NAMES_MAX 65536
#define VG_RATE_NAME_MAX 95 /* longer ones are cut, and share a bucket */

struct vg_rate {
    uint64_t per_sec, burst; /* per_sec 0: no limit */
    struct vg_map names;     /* name -> struct bucket, owned */
    struct vg_list by_age;   /* the one that was asked for last is last */
};

void vg_rate_init(struct vg_rate *r, uint64_t per_sec, uint64_t burst);
void vg_rate_done(struct vg_rate *r); /* zeroed is fine */
/* Takes `cost` for this name: 0, or in how many milliseconds it may be asked for again (nothing
   was taken then). Without memory nobody is held up. */
uint64_t vg_rate_take(struct vg_rate *r, const char *name, uint64_t cost, uint64_t now_usec);
/* The same question without taking anything. */
uint64_t vg_rate_wait(struct vg_rate *r, const char *name, uint64_t cost, uint64_t now_usec);
