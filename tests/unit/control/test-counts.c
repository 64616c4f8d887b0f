/* What is counted for those who look from outside is bounded, whatever pools and teams are called.
 */
#include "control/counts.h"

#include <criterion/criterion.h>
#include <stdio.h>

Test(counts, one_sum_for_a_pool_and_a_team) {
    struct vg_counts c = {0};
    struct vg_sum *a = vg_counts_sum(&c, "p", "vision");
    cr_assert(a);
    cr_assert_str_eq(a->pool, "p");
    cr_assert_str_eq(a->team, "vision");
    cr_assert_eq(vg_counts_sum(&c, "p", "vision"), a);
    cr_assert_neq(vg_counts_sum(&c, "q", "vision"), a);
    cr_assert_neq(vg_counts_sum(&c, "p", "nlp"), a);
    vg_used_add(&a->over, &(struct vg_used){.gpu_milli_usec = 1, .cpu_usec = 2, .energy_mj = 3});
    vg_used_add(&a->over, &(struct vg_used){.gpu_milli_usec = 1, .cpu_usec = 2, .energy_mj = 3});
    cr_assert_eq(a->over.gpu_milli_usec, 2u);
    cr_assert_eq(a->over.cpu_usec, 4u);
    cr_assert_eq(a->over.energy_mj, 6u);
    vg_counts_done(&c);
}

Test(counts, too_many_are_told_as_one) {
    struct vg_counts c = {0};
    char team[32];
    for (int i = 0; i < VG_COUNTS_SUMS_MAX; i++) {
        snprintf(team, sizeof team, "t%d", i);
        cr_assert_str_eq(vg_counts_sum(&c, "p", team)->team, team);
    }
    struct vg_sum *rest = vg_counts_sum(&c, "p", "one-more");
    cr_assert_str_eq(rest->pool, "others");
    cr_assert_str_eq(rest->team, "others");
    cr_assert_eq(vg_counts_sum(&c, "q", "another"), rest);
    cr_assert_str_eq(vg_counts_sum(&c, "p", "t7")->team, "t7", "those that are known stay");
    cr_assert_leq(vg_map_len(&c.sums), (size_t)VG_COUNTS_SUMS_MAX + 1);
    vg_counts_done(&c);
}

Test(counts, charges_are_summed_by_pool_and_currency_and_only_grow) {
    struct vg_counts c = {0};
    vg_counts_charge(&c, "a", "EUR", 5);
    vg_counts_charge(&c, "a", "EUR", 7);
    vg_counts_charge(&c, "a", "EUR", -3);
    vg_counts_charge(&c, "a", "USD", 1);
    vg_counts_charge(&c, "b", "EUR", 2);
    cr_expect_eq(vg_map_len(&c.charges), 3);
    cr_expect_eq(((struct vg_charge_sum *)vg_map_get(&c.charges, "a\nEUR"))->micro, 12);
    for (int i = 0; i < VG_COUNTS_SUMS_MAX + 5; i++) {
        char pool[16];
        snprintf(pool, sizeof pool, "p%d", i);
        vg_counts_charge(&c, pool, "EUR", 1);
    }
    cr_expect_eq(vg_map_len(&c.charges), VG_COUNTS_SUMS_MAX);
    vg_counts_done(&c);
}
