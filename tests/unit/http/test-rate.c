/* Token buckets: a burst, then so many a second, each name for itself. */
#include "http/rate.h"

#include <criterion/criterion.h>
#include <stdio.h>

#define SEC 1000000ULL

Test(rate, a_burst_and_then_so_many_a_second) {
    struct vg_rate r;
    uint64_t now = 5 * SEC;
    vg_rate_init(&r, 10, 5);
    for (int i = 0; i < 5; i++)
        cr_assert_eq(vg_rate_take(&r, "a", 1, now), 0u);
    uint64_t wait = vg_rate_take(&r, "a", 1, now);
    cr_assert(wait >= 100 && wait <= 101, "%llu", (unsigned long long)wait);
    cr_expect_eq(vg_rate_take(&r, "b", 1, now), 0u, "another name has its own");
    cr_expect_eq(vg_rate_take(&r, "a", 1, now + wait * 1000), 0u);
    cr_expect_neq(vg_rate_wait(&r, "a", 1, now + wait * 1000), 0u);
    /* A long rest fills it, and no more than that. */
    now += 3600 * SEC;
    for (int i = 0; i < 5; i++)
        cr_assert_eq(vg_rate_take(&r, "a", 1, now), 0u);
    cr_expect_neq(vg_rate_take(&r, "a", 1, now), 0u);
    cr_expect_neq(vg_rate_take(&r, "a", 1, now - SEC), 0u, "time that goes back gives nothing");
    vg_rate_done(&r);
}

Test(rate, no_limit_is_none) {
    struct vg_rate r;
    vg_rate_init(&r, 0, 1);
    for (int i = 0; i < 1000; i++)
        cr_assert_eq(vg_rate_take(&r, "a", 1, 1), 0u);
    vg_rate_done(&r);
}

Test(rate, names_are_bounded) {
    struct vg_rate r;
    char name[32];
    vg_rate_init(&r, 1, 1);
    cr_assert_eq(vg_rate_take(&r, "first", 1, 0), 0u);
    for (int i = 0; i < VG_RATE_NAMES_MAX + 10; i++) {
        snprintf(name, sizeof name, "n%d", i);
        cr_assert_eq(vg_rate_take(&r, name, 1, 0), 0u);
    }
    cr_expect_eq(vg_map_len(&r.names), (size_t)VG_RATE_NAMES_MAX);
    cr_expect_neq(vg_rate_wait(&r, name, 1, 0), 0u, "the newest is known");
    cr_expect_eq(vg_rate_wait(&r, "first", 1, 0), 0u, "the oldest is forgotten");
    vg_rate_done(&r);
}
