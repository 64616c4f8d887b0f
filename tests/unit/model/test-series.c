/* What was used over time: bounded, in order, and the mean stays the mean. */
#include "model/series.h"

#include "base/cleanup.h"

#include <criterion/criterion.h>
#include <errno.h>

#define SECOND 1000000ULL
#define ALL (VG_SERIES_POINTS + VG_SERIES_FINE)

static struct vg_point point(uint64_t sec, int64_t cpu) {
    struct vg_point p = {.when_usec = 1000 * SECOND + sec * SECOND};
    for (size_t i = 0; i < VG_SERIES_VALUES; i++)
        p.value[i] = -1;
    p.value[VG_SERIES_CPU_MILLI] = cpu;
    return p;
}

Test(series, a_short_one_is_told_as_it_was) {
    struct vg_series s = {0};
    struct vg_point got[ALL];
    size_t room = 1 << 20;
    for (uint64_t i = 0; i < 100; i++) {
        struct vg_point p = point(i * 10, (int64_t)i);
        cr_assert_eq(vg_series_add(&s, &p, false, &room), 0);
    }
    cr_assert_eq(vg_series_read(&s, 0, got, ALL), 100);
    for (uint64_t i = 0; i < 100; i++) {
        cr_expect_eq(got[i].when_usec, (1000 + i * 10) * SECOND);
        cr_expect_eq(got[i].value[VG_SERIES_CPU_MILLI], (int64_t)i);
        cr_expect_eq(got[i].value[VG_SERIES_MEM_BYTES], -1);
    }
    cr_expect_eq(vg_series_read(&s, 1500 * SECOND, got, ALL), 50);
    cr_expect_eq(got[0].when_usec, 1500 * SECOND);
    vg_series_done(&s, &room);
    cr_expect_eq(room, 1 << 20, "what was taken is given back");
}

Test(series, a_long_one_stays_bounded_in_order_and_true) {
    struct vg_series s = {0};
    struct vg_point got[ALL];
    size_t room = 1 << 20;
    for (uint64_t i = 0; i < 200000; i++) { /* 23 days */
        struct vg_point p = point(i * 10, i % 2 ? 3000 : 1000);
        cr_assert_eq(vg_series_add(&s, &p, false, &room), 0);
    }
    size_t n = vg_series_read(&s, 0, got, ALL);
    cr_assert(n > VG_SERIES_POINTS / 2 - 1 && n <= VG_SERIES_POINTS, "%zu", n);
    for (size_t i = 0; i < n; i++) {
        cr_assert(!i || got[i].when_usec > got[i - 1].when_usec);
        cr_assert(got[i].value[0] > 1900 && got[i].value[0] < 2100, "%ld", (long)got[i].value[0]);
    }
    cr_expect_lt((1 << 20) - room, 16384);
    cr_expect_eq(vg_series_read(&s, 0, got, 10), 10);
    vg_series_done(&s, &room);
}

Test(series, what_is_looked_at_is_kept_fine_at_its_end) {
    struct vg_series s = {0};
    struct vg_point got[ALL];
    size_t room = 1 << 20;
    for (uint64_t i = 0; i < 10000; i++) {
        struct vg_point p = point(i, (int64_t)i);
        cr_assert_eq(vg_series_add(&s, &p, i >= 9000, &room), 0);
    }
    size_t n = vg_series_read(&s, 0, got, ALL);
    for (size_t i = 0; i < VG_SERIES_FINE; i++)
        cr_assert_eq(got[n - VG_SERIES_FINE + i].value[0], 9400 + (int64_t)i);
    for (size_t i = 1; i < n; i++)
        cr_assert(got[i].when_usec > got[i - 1].when_usec);
    size_t before = room;
    vg_series_coarse(&s, &room);
    cr_expect_gt(room, before);
    cr_expect_leq(vg_series_read(&s, 0, got, ALL), VG_SERIES_POINTS);
    vg_series_done(&s, &room);
}

Test(series, without_room_it_gets_coarser_and_not_longer) {
    struct vg_series s = {0}, other = {0};
    struct vg_point got[ALL], p = point(0, 1);
    size_t room = 16 * 36;
    for (uint64_t i = 0; i < 5000; i++) {
        p = point(i, 7);
        cr_assert_eq(vg_series_add(&s, &p, true, &room), 0);
    }
    size_t n = vg_series_read(&s, 0, got, ALL);
    cr_assert(n >= 8 && n <= 16, "%zu", n);
    cr_expect_eq(got[n - 1].value[0], 7);
    cr_expect_eq(vg_series_add(&other, &p, false, &room), -ENOMEM);
    vg_series_done(&other, &room);
    vg_series_done(&s, &room);
    cr_expect_eq(room, 16 * 36);
}

Test(series, a_clock_that_is_set_back_changes_no_order) {
    struct vg_series s = {0};
    struct vg_point got[ALL];
    size_t room = 1 << 20;
    const uint64_t secs[] = {50, 60, 20, 0, 61, 70};
    for (size_t i = 0; i < VG_COUNT(secs); i++) {
        struct vg_point p = point(secs[i], 1);
        cr_assert_eq(vg_series_add(&s, &p, false, &room), 0);
    }
    size_t n = vg_series_read(&s, 0, got, ALL);
    cr_expect_eq(n, 4);
    for (size_t i = 1; i < n; i++)
        cr_assert(got[i].when_usec > got[i - 1].when_usec);
    vg_series_done(&s, &room);
}

Test(series, thinning_takes_means_of_what_was_told) {
    struct vg_point p[5] = {point(0, 2), point(1, 4), point(2, -1), point(3, 6), point(4, 8)};
    cr_assert_eq(vg_points_thin(p, 5, 2), 2);
    cr_expect_eq(p[0].value[0], 3);
    cr_expect_eq(p[1].value[0], 7);
    cr_expect_eq(p[1].when_usec, 1002 * SECOND);
    cr_expect_eq(p[1].value[1], -1);
    cr_expect_eq(vg_points_thin(p, 2, 0), 2);
}
