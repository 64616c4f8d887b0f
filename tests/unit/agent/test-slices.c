/* Time slices of a shared card: in the ratio of the weights, none too short or longer than was
   asked for, no round too long. */
#include "agent/agent-slices.h"

#include <criterion/criterion.h>
#include <stdlib.h>

static void divides(size_t n, const uint32_t *weight, uint64_t turn, bool exact,
                    const uint32_t *want) {
    uint32_t got[VG_SLICES_MAX];
    cr_assert_eq(vg_slices_divide(weight, n, turn, got), exact);
    for (size_t i = 0; i < n; i++)
        cr_expect_eq(got[i], want[i], "sharer %zu of %zu: %u, not %u", i, n, got[i], want[i]);
}

#define U(...) ((const uint32_t[]){__VA_ARGS__})

Test(slices, the_smallest_share_gets_the_base_and_others_their_multiple) {
    divides(2, U(300, 700), 0, true, U(3000, 7000));
    divides(2, U(700, 300), 0, true, U(7000, 3000));
    divides(2, U(100, 900), 0, true, U(3000, 27000));
    divides(3, U(100, 200, 300), 0, true, U(3000, 6000, 9000));
    divides(1, U(50), 0, true, U(3000));
    divides(2, U(1, 1), 0, true, U(3000, 3000));
}

Test(slices, a_round_is_no_longer_than_its_limit) {
    uint32_t weight[16], want[16];
    for (size_t i = 0; i < 16; i++)
        weight[i] = 60, want[i] = 2500;
    divides(16, weight, 0, true, want);
    divides(2, U(50, 950), 0, true, U(2000, 38000));
}

Test(slices, a_share_that_would_be_too_short_is_not_and_that_is_said) {
    divides(2, U(1, 999), 0, false, U(1000, 39000));
    divides(3, U(1, 99, 900), 0, false, U(1000, 3865, 35135));
    uint32_t weight[100], want[100]; /* the minimum goes before the round */
    for (size_t i = 0; i < 100; i++)
        weight[i] = 10, want[i] = 1000;
    divides(100, weight, 0, false, want);
}

Test(slices, nobody_gets_a_longer_turn_than_was_asked_for) {
    divides(2, U(500, 500), 500, true, U(500, 500));
    divides(2, U(300, 700), 500, true, U(214, 500));
    divides(2, U(10, 990), 500, false, U(100, 500));
    divides(2, U(300, 700), 60000, true, U(3000, 7000)); /* a wish that asks for nothing */
    divides(2, U(500, 500), 1, true, U(100, 100));       /* no card switches that fast */
    divides(1, U(200), 500, true, U(500));
}

Test(slices, whatever_the_weights_no_slice_is_nothing_and_a_larger_share_gets_no_less) {
    srand(7);
    for (int round = 0; round < 2000; round++) {
        uint32_t weight[64], got[64];
        size_t n = 1 + (size_t)rand() % 64;
        uint64_t turn = rand() % 2 ? 0 : (uint64_t)(1 + rand() % 5000), sum = 0;
        for (size_t i = 0; i < n; i++)
            weight[i] = 1 + (uint32_t)rand() % 999;
        bool exact = vg_slices_divide(weight, n, turn, got);
        uint32_t least = turn ? VG_SLICE_SHORT_USEC : VG_SLICE_MIN_USEC;
        for (size_t i = 0; i < n; i++) {
            sum += got[i];
            cr_assert_geq(got[i], least);
            cr_assert(!turn || got[i] <= (turn > least ? turn : least));
            for (size_t j = 0; j < i; j++) {
                cr_assert(weight[i] < weight[j] || got[i] >= got[j]);
                /* within the half microsecond that each was rounded by */
                double off = (double)got[i] * weight[j] - (double)got[j] * weight[i];
                cr_assert(!exact ||
                          (off <= weight[i] + weight[j] && -off <= weight[i] + weight[j]));
            }
        }
        cr_assert_leq(sum, n * least > VG_SLICE_ROUND_USEC ? n * least : VG_SLICE_ROUND_USEC + n);
    }
}

Test(slices, as_many_as_a_card_can_have_are_divided) {
    static uint32_t weight[VG_SLICES_MAX], got[VG_SLICES_MAX];
    for (size_t i = 0; i < VG_SLICES_MAX; i++)
        weight[i] = 1;
    cr_assert_not(vg_slices_divide(weight, VG_SLICES_MAX, 0, got));
    cr_assert_eq(got[VG_SLICES_MAX - 1], VG_SLICE_MIN_USEC);
    cr_assert(vg_slices_divide(NULL, 0, 0, NULL));
}
