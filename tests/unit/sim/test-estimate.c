/* How estimates are judged against what happened. */
#include "base/cleanup.h"
#include "base/util.h"
#include "sim/estimate.h"

#include <criterion/criterion.h>
#include <math.h>

#define MINUTE (60 * VG_USEC)

static struct vg_estimates all;

static void setup(void) {
    cr_assert_eq(vg_estimates_init(&all, 10), 0);
}

static void teardown(void) {
    vg_estimates_done(&all);
}

TestSuite(estimate, .init = setup, .fini = teardown);

static void waited(uint32_t job, uint64_t told_min, uint64_t real_min) {
    uint64_t came = (job + 1) * 1000 * MINUTE;
    vg_estimates_tell(&all, job, came, told_min ? came + told_min * MINUTE : VG_ENG_NEVER);
    vg_estimates_started(&all, job, came + real_min * MINUTE);
}

static bool about(double is, double want) {
    return fabs(is - want) < 1e-9;
}

Test(estimate, the_error_is_relative_to_the_wait) {
    struct vg_estimate_summary s;
    waited(0, 10, 10); /* just so */
    waited(1, 15, 10); /* half too much */
    waited(2, 4, 16);  /* a quarter of it */
    cr_assert_eq(vg_estimates_sum(&all, &s), 0);
    cr_expect_eq(s.told, 3);
    cr_expect_eq(s.unknown, 0);
    cr_expect(about(s.median_error, 0.5), "%g", s.median_error);
    cr_expect(about(s.median_ratio, 1.0), "%g", s.median_ratio);
    cr_expect(about(s.within_2, 2.0 / 3), "%g", s.within_2);
    cr_expect_eq(s.median_wait_usec, 10 * MINUTE);
    cr_expect(about(s.naive_error, 0.375), "the second would say 10, the third 10: %g",
              s.naive_error);
}

Test(estimate, who_did_not_wait_or_was_told_nothing_does_not_count) {
    struct vg_estimate_summary s;
    waited(0, 10, 0);
    waited(1, 0, 10);
    vg_estimates_started(&all, 2, 5 * MINUTE);      /* started at once: nobody asked */
    vg_estimates_tell(&all, 3, MINUTE, 2 * MINUTE); /* never started */
    cr_assert_eq(vg_estimates_sum(&all, &s), 0);
    cr_expect_eq(s.told, 1);
    cr_expect_eq(s.unknown, 1);
    cr_expect(isnan(s.median_error));
}

Test(estimate, only_the_first_estimate_and_the_first_start_count) {
    struct vg_estimate_summary s;
    waited(0, 10, 10);
    waited(0, 99, 99);
    cr_assert_eq(vg_estimates_sum(&all, &s), 0);
    cr_expect(about(s.median_error, 0));
}
