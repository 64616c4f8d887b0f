/* Pauses between dials: they grow, stay within their limits, and differ. */
#include "agent/agent-backoff.h"

#include <criterion/criterion.h>

Test(backoff, first_pause_is_short) {
    struct vg_backoff b = {0};
    uint64_t p = vg_backoff_next_usec(&b, UINT32_MAX);
    cr_assert_leq(p, VG_BACKOFF_MIN_USEC);
    cr_assert_geq(p, VG_BACKOFF_MIN_USEC / 2);
}

Test(backoff, every_pause_lies_between_half_and_whole_step) {
    const uint32_t randoms[] = {0, 1, 0x7fffffff, 0xfffffffe, UINT32_MAX};
    for (size_t r = 0; r < 5; r++) {
        struct vg_backoff b = {0};
        uint64_t step = VG_BACKOFF_MIN_USEC;
        for (int i = 0; i < 200; i++) {
            uint64_t p = vg_backoff_next_usec(&b, randoms[r]);
            cr_assert_geq(p, step / 2);
            cr_assert_leq(p, step);
            step = step * 2 > VG_BACKOFF_MAX_USEC ? VG_BACKOFF_MAX_USEC : step * 2;
        }
    }
}

Test(backoff, jitter_spreads_pauses) {
    struct vg_backoff a = {.tries = 4}, b = {.tries = 4};
    cr_assert_neq(vg_backoff_next_usec(&a, 1u << 30), vg_backoff_next_usec(&b, 3u << 30));
}

Test(backoff, reset_starts_over) {
    struct vg_backoff b = {0};
    for (int i = 0; i < 10; i++)
        vg_backoff_next_usec(&b, UINT32_MAX);
    vg_backoff_reset(&b);
    cr_assert_leq(vg_backoff_next_usec(&b, UINT32_MAX), VG_BACKOFF_MIN_USEC);
}
