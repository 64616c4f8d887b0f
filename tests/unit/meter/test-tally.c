/* Sums are the rows', however they are grouped and divided; periods follow the calendar. */
#include "meter/period.h"
#include "meter/tally.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#define HOUR (3600ULL * 1000000)
#define DAY0 (20000 * VG_DAY_USEC) /* 2024-10-04 */

static struct vg_ledger_row row(uint64_t from, uint64_t until, int64_t cost) {
    return (struct vg_ledger_row){.task = from,
                                  .kind = cost < 0 ? "back" : "held",
                                  .from_usec = from,
                                  .until_usec = until,
                                  .user = "ann",
                                  .team = "t",
                                  .org = "o",
                                  .project = "",
                                  .pool = "p",
                                  .class_name = "c",
                                  .node = "n",
                                  .labels = "a=1\nexp=x=y",
                                  .gpu_milli = 1500,
                                  .cpu_milli = 1000,
                                  .currency = "EUR",
                                  .cost_micro = cost};
}

static struct vg_tally tally(const char *by, uint64_t from, uint64_t until) {
    struct vg_err err = VG_ERR_INIT;
    struct vg_tally t = {.from_usec = from, .until_usec = until, .currency = "EUR"};
    cr_assert_eq(vg_tally_by(&t, by, &err), 0, "%s", err.msg);
    return t;
}

Test(tally, days_divide_a_row_and_add_up_to_it) {
    struct vg_tally t = tally("day", DAY0, DAY0 + 9 * VG_DAY_USEC);
    t.zone_usec = -5 * 1800LL * 1000000; /* midnight at 02:30 UTC */
    struct vg_ledger_row r = row(DAY0 + HOUR, DAY0 + 4 * HOUR, 1000001);
    size_t n;
    cr_assert_eq(vg_tally_add(&t, &r), 0);
    struct vg_group **g = vg_tally_sorted(&t, &n);
    cr_assert_eq(n, 2);
    cr_assert_str_eq(vg_group_part(g[0], 0), "2024-10-03");
    cr_assert_str_eq(vg_group_part(g[1], 0), "2024-10-04");
    cr_assert_str_eq(vg_group_part(g[1], 1), "EUR");
    cr_assert_eq(g[0]->sums.cost_micro + g[1]->sums.cost_micro, 1000001);
    cr_assert_eq(g[0]->sums.cost_micro, 500000);
    cr_assert_eq(g[0]->sums.held_usec, 3 * (int64_t)HOUR / 2);
    free(g);
    vg_tally_done(&t);
}

/* Where clocks are put back an hour at 01:00 UTC: that day has 25 hours, and none begins wrongly.
 */
Test(tally, days_begin_where_people_are_also_when_clocks_change) {
    struct vg_err err = VG_ERR_INIT;
    struct vg_tally t = tally("day", 0, DAY0 + 9 * VG_DAY_USEC);
    char text[64];
    size_t n;
    snprintf(text, sizeof text, "%llu:60", (unsigned long long)(DAY0 + HOUR));
    t.zone_usec = 2 * (int64_t)HOUR;
    cr_assert_eq(vg_tally_zones(&t, text, &err), 0, "%s", err.msg);
    struct vg_ledger_row r = row(DAY0 - 4 * HOUR, DAY0 + 30 * HOUR, 34);
    cr_assert_eq(vg_tally_add(&t, &r), 0);
    struct vg_group **g = vg_tally_sorted(&t, &n);
    cr_assert_eq(n, 3);
    cr_assert_eq(g[0]->sums.cost_micro, 2, "until 22:00 UTC");
    cr_assert_eq(g[1]->sums.cost_micro, 25);
    cr_assert_eq(g[2]->sums.cost_micro, 7, "from 23:00 UTC");
    cr_assert_str_lt(vg_group_part(g[0], 0), vg_group_part(g[1], 0));
    free(g);
    vg_tally_done(&t);
}

Test(tally, changes_of_the_clock_are_checked) {
    static const char *const wrong[] = {"x",       "1",        "1:",   "1:60x", "1:1441",
                                        "2:0,1:0", "1:0,,2:0", "-1:0", " 1:0"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        struct vg_tally t = {0};
        struct vg_err err = VG_ERR_INIT;
        cr_assert_lt(vg_tally_zones(&t, wrong[i], &err), 0, "%s", wrong[i]);
    }
    char many[VG_TALLY_ZONES_MAX * 8] = "";
    for (int i = 0; i <= VG_TALLY_ZONES_MAX; i++)
        snprintf(many + strlen(many), sizeof many - strlen(many), "%s%d:0", i ? "," : "", i);
    struct vg_tally t = {0};
    struct vg_err err = VG_ERR_INIT;
    cr_assert_lt(vg_tally_zones(&t, many, &err), 0, "one too many");
}

static void one_peak(void *arg, const char *pool, const char *class, uint64_t gpu_milli) {
    cr_assert_str_eq(pool, "p");
    cr_assert_str_eq(class, "c");
    *(uint64_t *)arg = gpu_milli;
}

Test(tally, edges_cut_rows_and_what_is_taken_back_is_taken_off) {
    struct vg_tally t = tally("label:exp", DAY0, DAY0 + HOUR);
    struct vg_ledger_row a = row(DAY0 - HOUR, DAY0 + HOUR, 200),
                         b = row(DAY0, DAY0 + HOUR / 2, -10);
    struct vg_ledger_row credit = row(DAY0 + 1, DAY0 + 1, 0), out = row(DAY0 - HOUR, DAY0, 7);
    uint64_t peak = 0;
    size_t n;
    credit.kind = "credit";
    credit.cost_micro = -3;
    vg_tally_add(&t, &a);
    vg_tally_add(&t, &b);
    vg_tally_add(&t, &credit);
    vg_tally_add(&t, &out);
    struct vg_group **g = vg_tally_sorted(&t, &n);
    cr_assert_eq(n, 1);
    cr_assert_str_eq(vg_group_part(g[0], 0), "x=y");
    cr_assert_eq(g[0]->sums.cost_micro, 100 - 10 - 3);
    cr_assert_eq(g[0]->sums.held_usec, (int64_t)HOUR / 2);
    vg_tally_peaks(&t, one_peak, &peak);
    cr_assert_eq(peak, 750);
    free(g);
    vg_tally_done(&t);
}

Test(tally, other_currencies_and_unknown_words_stay_apart) {
    struct vg_err err = VG_ERR_INIT;
    struct vg_tally t = tally("user", 0, UINT64_MAX / 4);
    struct vg_ledger_row a = row(DAY0, DAY0 + HOUR, 5), b = a;
    size_t n;
    b.currency = "USD";
    vg_tally_add(&t, &a);
    vg_tally_add(&t, &b);
    free(vg_tally_sorted(&t, &n));
    cr_assert_eq(n, 2);
    cr_assert_lt(vg_tally_by(&t, "colour", &err), 0);
    cr_assert(strstr(err.msg, "cannot add up by 'colour'"), "%s", err.msg);
    vg_tally_done(&t);
}

Test(period, each_is_the_one_that_now_is_in) {
    uint64_t from, until, now = DAY0 + 5 * HOUR; /* Friday */
    vg_period_at(VG_PERIOD_DAY, now, 0, &from, &until);
    cr_assert(from == DAY0 && until == DAY0 + VG_DAY_USEC);
    vg_period_at(VG_PERIOD_WEEK, now, 0, &from, &until);
    cr_assert(from == DAY0 - 4 * VG_DAY_USEC && until == DAY0 + 3 * VG_DAY_USEC);
    vg_period_at(VG_PERIOD_MONTH, now, 0, &from, &until);
    cr_assert(from == DAY0 - 3 * VG_DAY_USEC && until == DAY0 + 28 * VG_DAY_USEC);
    vg_period_at(VG_PERIOD_YEAR, now, 0, &from, &until);
    cr_assert(from < now && until - from == 366 * VG_DAY_USEC);
    vg_period_at(VG_PERIOD_ONCE, now, 7, &from, &until);
    cr_assert(from == 7 && until == UINT64_MAX);
    cr_assert_eq(vg_spent_at(now, 500000, 1000000), now + HOUR / 2);
    cr_assert_eq(vg_spent_at(now, 1, 0), UINT64_MAX);
}
