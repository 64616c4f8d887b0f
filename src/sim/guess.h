#pragma once
/* How long jobs will run, for policies that plan: learnt from ended jobs of the same kind (tenant
   and shape), the same knowledge that the engine learns from. */
#include "sim/workload.h"

#include <stdbool.h>

#define VG_GUESS_RECENT 32 /* ended jobs of a kind that are remembered */

struct vg_guess_kind {
    uint64_t recent_usec[VG_GUESS_RECENT];
    uint32_t n, at;
    uint64_t guess_usec; /* 0: nothing learnt yet */
};

struct vg_guess {
    const struct vg_workload *w; /* borrowed */
    bool oracle;
    struct vg_guess_kind *kind; /* owned */
};

int vg_guess_init(struct vg_guess *g, const struct vg_workload *w, bool oracle); /* -ENOMEM */
void vg_guess_done(struct vg_guess *g);
void vg_guess_note(struct vg_guess *g, uint32_t job, uint64_t ran_usec);
/* Never 0. With `oracle` the truth. */
uint64_t vg_guess_run_usec(const struct vg_guess *g, uint32_t job);
