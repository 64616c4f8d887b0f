#pragma once
/* How good the engine's estimates are: when each job that had to wait was expected to start, as it
   was told right after it came, against when it did. */
#include "sched/engine.h"

#include <stdbool.h>
#include <stdint.h>

struct vg_estimate {
    uint64_t came_usec, expected_usec; /* expected: VG_ENG_NEVER: unknown */
    uint64_t started_usec;             /* 0: not yet */
};

struct vg_estimates {
    struct vg_estimate *job; /* owned; by job; came_usec 0: it did not wait */
    size_t n;
};

struct vg_estimate_summary {
    size_t told, unknown;      /* jobs that waited a minute or more; of them without an estimate */
    double median_error;       /* |expected wait - wait| / wait */
    double within_2;           /* part whose wait was within half and twice what was expected */
    double median_ratio;       /* expected wait / wait: above 1 is too careful */
    uint64_t median_wait_usec; /* of those */
    double naive_error;        /* of always saying the median wait of the last 100 that started, for
                                * comparison
                                */
};

int vg_estimates_init(struct vg_estimates *e, size_t jobs); /* 0 or -ENOMEM */
void vg_estimates_done(struct vg_estimates *e);
void vg_estimates_tell(struct vg_estimates *e, uint32_t job, uint64_t now, uint64_t expected);
void vg_estimates_started(struct vg_estimates *e, uint32_t job, uint64_t now);
int vg_estimates_sum(const struct vg_estimates *e,
                     struct vg_estimate_summary *ret); /* or -ENOMEM */
void vg_estimates_print(const struct vg_estimate_summary *s, bool json);
