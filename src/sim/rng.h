#pragma once
/* Random numbers of the simulator: xoshiro256** seeded by splitmix64, so that a seed gives the same
   story on every machine. Never used below the programs' layer. */
#include <stddef.h>
#include <stdint.h>

struct vg_rng {
    uint64_t s[4];
};

static inline struct vg_rng vg_rng_seeded(uint64_t seed) {
    struct vg_rng r;
    for (int i = 0; i < 4; i++) {
        uint64_t z = (seed += 0x9e3779b97f4a7c15ULL);
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
        r.s[i] = z ^ (z >> 31);
    }
    return r;
}

static inline uint64_t vg_rng_next(struct vg_rng *r) {
    uint64_t *s = r->s, x = s[1] * 5, t = s[1] << 17;
    uint64_t out = ((x << 7) | (x >> 57)) * 9;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = (s[3] << 45) | (s[3] >> 19);
    return out;
}

/* 0 .. n-1, every value equally likely; n > 0. */
static inline uint64_t vg_rng_below(struct vg_rng *r, uint64_t n) {
    uint64_t skip = -n % n, v; /* the values that would favour the small ones */
    do
        v = vg_rng_next(r);
    while (v < skip);
    return v % n;
}

/* 0 <= x < 1. */
static inline double vg_rng_unit(struct vg_rng *r) {
    return (double)(vg_rng_next(r) >> 11) * 0x1p-53;
}
