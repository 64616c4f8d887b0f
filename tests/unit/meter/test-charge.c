/* What is charged is exact, however it is cut; prices are found by place and time. */
#include "meter/charge.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#define USEC 1000000ULL
#define HOUR (3600 * USEC)

static uint64_t seed;

static uint64_t draw(uint64_t below) {
    seed = seed * 6364136223846793005ULL + 1442695040888963407ULL;
    return below ? (seed >> 11) % below : 0;
}

static struct vg_tariff tariff(const char *pool, uint64_t from, uint64_t gpu) {
    struct vg_tariff t = {.from_usec = from, .gpu_hour_micro = gpu, .currency = "EUR"};
    snprintf(t.pool, sizeof t.pool, "%s", pool);
    return t;
}

static void add(struct vg_book *b, struct vg_tariff t) {
    cr_assert_eq(vg_book_add(b, &t), 0);
}

Test(charge, an_hour_costs_what_the_price_says) {
    struct vg_tariff t = {
        .gpu_hour_micro = 2500000, .cpu_hour_micro = 40000, .gib_hour_micro = 125};
    struct vg_hold h = {.gpu_milli = 2000, .cpu_milli = 4000, .mem_bytes = 16ULL << 30};
    struct vg_money m = vg_charge(&t, &h, HOUR);
    cr_assert(m.micro == 5000000 + 160000 + 2000 && m.rest == 0);
    m = vg_charge(&t, &h, 1);
    cr_assert(m.micro == 0 && m.rest > 0, "a part of a millionth is not lost");
    struct vg_hold share = {.gpu_milli = 250};
    cr_assert_eq(vg_charge(&t, &share, HOUR / 2).micro, 312500);
    cr_assert_eq(vg_charge(NULL, &h, HOUR).micro, 0);
}

Test(charge, discounts_are_taken_off) {
    struct vg_tariff t = {.gpu_hour_micro = 1000000,
                          .cpu_hour_micro = 1000000,
                          .idle_milli = 30000,
                          .preemptible_milli = 50000};
    struct vg_hold h = {.gpu_milli = 1000, .cpu_milli = 1000, .preemptible = true};
    cr_assert_eq(vg_charge(&t, &h, HOUR).micro, 1000000);
    cr_assert_eq(vg_charge_gpus(&t, &h, HOUR).micro, 500000);
    cr_assert_eq(vg_charge_unused(&t, &h, HOUR).micro, 150000);
    h.preemptible = false;
    cr_assert_eq(vg_charge_unused(&t, &h, HOUR).micro, 300000);
    t.storage_gib_month_micro = 720000;
    struct vg_hold kept = {.kept_bytes = 10ULL << 30};
    cr_assert_eq(vg_charge(&t, &kept, HOUR).micro, 10000);
    cr_assert_eq(vg_charge(&t, &kept, 30 * 24 * HOUR).micro, 7200000, "a month is 30 days");
}

Test(charge, the_largest_values_stay_in_bounds) {
    struct vg_tariff t = {.gpu_hour_micro = VG_TARIFF_MICRO_MAX,
                          .cpu_hour_micro = VG_TARIFF_MICRO_MAX,
                          .gib_hour_micro = VG_TARIFF_MICRO_MAX};
    struct vg_hold h = {.gpu_milli = 64000, .cpu_milli = 4096000, .mem_bytes = 1ULL << 50};
    struct vg_money m = vg_charge(&t, &h, VG_CHARGE_USEC_MAX), twice = m;
    cr_assert_eq(m.micro, VG_MONEY_MAX);
    vg_money_add(&twice, &m);
    cr_assert_eq(twice.micro, VG_MONEY_MAX);
    m = vg_charge(&t, &h, HOUR);
    cr_assert_eq(m.micro, VG_TARIFF_MICRO_MAX * (64 + 4096) + VG_TARIFF_MICRO_MAX * (1ULL << 20));
}

/* The price of one microsecond, added up by hand, over a common denominator that is another one
   than the code's. */
static vg_wide slow_total(const struct vg_book *b, const struct vg_hold *h, uint64_t from,
                          uint64_t until) {
    vg_wide sum = 0;
    for (uint64_t at = from; at < until; at++) {
        const struct vg_tariff *t = vg_book_at(b, "p", "shared", at);
        if (!t)
            continue;
        uint64_t share = h->preemptible ? 100000 - t->preemptible_milli : 100000;
        sum += ((vg_wide)t->gpu_hour_micro * h->gpu_milli * (1ULL << 30) +
                (vg_wide)t->cpu_hour_micro * h->cpu_milli * (1ULL << 30) +
                (vg_wide)t->gib_hour_micro * h->mem_bytes * 1000) *
               share;
    }
    return sum / ((vg_wide)1000 << 30) / 100000 / HOUR;
}

Test(charge, every_microsecond_is_charged_at_its_own_price) {
    for (seed = 1; seed < 40; seed++) {
        struct vg_book b = {0};
        uint64_t keep = seed, day = 20000 * VG_DAY_USEC, from = day - draw(500);
        for (int i = 0; i < 6; i++) {
            struct vg_tariff t =
                tariff(draw(2) ? "p" : "", day - 600 + draw(1500), draw(VG_TARIFF_MICRO_MAX));
            t.cpu_hour_micro = draw(VG_TARIFF_MICRO_MAX);
            t.gib_hour_micro = draw(VG_TARIFF_MICRO_MAX / 1000);
            t.preemptible_milli = (uint32_t)draw(100001);
            if (draw(3) == 0)
                snprintf(t.class, sizeof t.class, "%s", draw(2) ? "shared" : "dedicated");
            add(&b, t);
        }
        struct vg_hold h = {.gpu_milli = draw(64000),
                            .cpu_milli = draw(1000000),
                            .mem_bytes = draw(1ULL << 40),
                            .preemptible = draw(2)};
        uint64_t until = from + draw(1500);
        cr_assert(vg_charge_total(&b, "p", "shared", &h, from, until).micro ==
                      (uint64_t)slow_total(&b, &h, from, until),
                  "seed %llu", (unsigned long long)keep);
        vg_book_done(&b);
        seed = keep;
    }
}

static int sum_piece(void *arg, const struct vg_piece *p) {
    uint64_t *sum = arg;
    *sum += p->cost_micro;
    cr_assert(p->from_usec < p->until_usec);
    cr_assert_eq(p->from_usec / VG_DAY_USEC, (p->until_usec - 1) / VG_DAY_USEC);
    return 0;
}

Test(charge, cutting_changes_nothing) {
    for (seed = 1; seed < 300; seed++) {
        struct vg_book b = {0};
        uint64_t keep = seed, start = 20000 * VG_DAY_USEC - draw(3 * VG_DAY_USEC);
        for (int i = 0; i < 5; i++)
            add(&b, tariff("", start + draw(4 * VG_DAY_USEC) - VG_DAY_USEC, draw(9999999)));
        struct vg_hold h = {.gpu_milli = 1 + draw(8000), .preemptible = draw(2)};
        uint64_t until = start + draw(5 * VG_DAY_USEC), sum = 0;
        vg_wide rest = 0;
        for (uint64_t at = start; at < until;) {
            uint64_t next = at + 1 + draw(draw(2) ? 1000 : VG_DAY_USEC);
            next = next < until ? next : until;
            vg_charge_walk(&b, "p", "c", &h, at, next, &rest, sum_piece, &sum);
            at = next;
        }
        struct vg_money whole = vg_charge_total(&b, "p", "c", &h, start, until);
        cr_assert(sum == whole.micro && rest == whole.rest, "seed %llu", (unsigned long long)keep);

        /* Taking back what lies beyond an earlier end leaves what that end would have cost. */
        uint64_t end = start + draw(until - start + 1), back = 0;
        vg_wide before = vg_charge_rest_before(&b, "p", "c", &h, end, until, rest);
        vg_charge_walk(&b, "p", "c", &h, end, until, &before, sum_piece, &back);
        cr_assert_eq(sum - back, vg_charge_total(&b, "p", "c", &h, start, end).micro, "seed %llu",
                     (unsigned long long)keep);
        cr_assert(before == rest);

        /* Money lasts until the moment before one more would be due. */
        uint64_t micro = draw(whole.micro + 10);
        uint64_t lasts = vg_charge_until(&b, "p", "c", &h, start, micro);
        if (lasts != UINT64_MAX) {
            cr_assert(vg_charge_total(&b, "p", "c", &h, start, lasts).micro <= micro);
            cr_assert(vg_charge_total(&b, "p", "c", &h, start, lasts + 1).micro > micro);
        }
        vg_book_done(&b);
        seed = keep;
    }
}

Test(charge, another_currency_begins_anew) {
    struct vg_book b = {0};
    add(&b, tariff("", 0, 1));
    struct vg_tariff usd = tariff("", HOUR + HOUR / 2, 1);
    snprintf(usd.currency, sizeof usd.currency, "%s", "USD");
    add(&b, usd);
    struct vg_hold h = {.gpu_milli = 1000};
    uint64_t sum = 0;
    vg_wide rest = 0;
    vg_charge_walk(&b, "p", "c", &h, 0, 3 * HOUR, &rest, sum_piece, &sum);
    cr_assert_eq(sum, 1 + 1, "an hour and a half of each: halves of two currencies make no whole");
    vg_book_done(&b);
}

Test(charge, the_most_exact_line_that_has_begun_counts) {
    struct vg_book b = {0};
    struct vg_tariff both = tariff("p", 500, 5);
    snprintf(both.class, sizeof both.class, "%s", "mig");
    struct vg_tariff class = tariff("", 0, 3);
    snprintf(class.class, sizeof class.class, "%s", "mig");
    cr_assert_null(vg_book_at(&b, "p", "mig", 1000));
    add(&b, tariff("", 100, 1));
    add(&b, class);
    add(&b, tariff("p", 300, 4));
    add(&b, both);
    add(&b, tariff("", 100, 2)); /* the same moment again: the newer counts */
    cr_assert_null(vg_book_at(&b, "p", "shared", 99));
    cr_assert_eq(vg_book_at(&b, "p", "shared", 100)->gpu_hour_micro, 2);
    cr_assert_eq(vg_book_at(&b, "p", "shared", 300)->gpu_hour_micro, 4);
    cr_assert_eq(vg_book_at(&b, "q", "mig", 300)->gpu_hour_micro, 3);
    cr_assert_eq(vg_book_at(&b, "p", "mig", 299)->gpu_hour_micro, 3);
    cr_assert_eq(vg_book_at(&b, "p", "mig", 499)->gpu_hour_micro, 4);
    cr_assert_eq(vg_book_at(&b, "p", "mig", 500)->gpu_hour_micro, 5);
    cr_assert_eq(vg_book_next(&b, "p", "mig", 300), 500);
    cr_assert_eq(vg_book_next(&b, "p", "shared", 300), UINT64_MAX);
    cr_assert_eq(vg_book_newest(&b, "p", "", "")->gpu_hour_micro, 4);
    cr_assert_eq(vg_book_get(&b, 2)->gpu_hour_micro, 3);
    cr_assert_null(vg_book_get(&b, 9));
    vg_book_drop(&b, 5);
    cr_assert_eq(vg_book_at(&b, "p", "shared", 100)->gpu_hour_micro, 1);
    vg_book_done(&b);
}

Test(charge, parts_add_up) {
    for (seed = 1; seed < 200; seed++) {
        uint64_t keep = seed, v = draw(1ULL << 60), whole = 1 + draw(1ULL << 40), sum = 0, at = 0;
        while (at < whole) {
            uint64_t next = at + 1 + draw(whole);
            next = next < whole ? next : whole;
            sum += vg_part(v, next, whole) - vg_part(v, at, whole);
            at = next;
        }
        cr_assert_eq(sum, v);
        seed = keep;
    }
    cr_assert_eq(vg_part(5, 0, 0), 0);
}
