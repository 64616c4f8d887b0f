#pragma once
/* "Fail the Nth": runs `body` with the first, second, third ... passage of a fault point failing,
   until a run in which none fired. Returns how many passages there were: 0 means the test tests
   nothing. */
#include "base/fault.h"

#include <criterion/criterion.h>

#define FAULT_RUNS_MAX 100000

static inline unsigned fault_each(int error, const char *only, void (*body)(void *ctx, bool armed),
                                  void *ctx) {
    for (unsigned n = 1; n < FAULT_RUNS_MAX; n++) {
        vg_fault_arm(n, error, only);
        body(ctx, true);
        if (!vg_fault_disarm())
            return n - 1;
    }
    cr_assert(false, "the faults never end");
    return 0;
}
