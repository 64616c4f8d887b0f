/* Learnt run times: what is expected of a task before anything ran, after a few runs, when it runs
   longer than expected, and after a restart. */
#include "base/cleanup.h"
#include "base/util.h"
#include "sched/profile.h"

#include <criterion/criterion.h>
#include <string.h>

#define MINUTE (60 * VG_USEC)
#define HOUR (60 * MINUTE)

static struct vg_eng eng;
static struct etenant alice = {.id = 7}, bob = {.id = 8};
static struct fit one = {.res.gpus = 1}, eight = {.res.gpus = 8};

static void setup(void) {
    eng = (struct vg_eng){0};
    cr_assert_eq(vg_learn_init(&eng), 0);
}

static void teardown(void) {
    vg_learn_done(&eng);
}

TestSuite(learn, .init = setup, .fini = teardown);

static struct etask task(struct etenant *who, struct fit *f, uint64_t kin) {
    return (struct etask){.tenant = who, .fit = f, .kin = kin};
}

static void ran(struct etask t, uint64_t usec, unsigned times) {
    for (unsigned i = 0; i < times; i++)
        vg_learn_note(&eng, &t, usec);
}

static uint64_t expect(struct etask t) {
    return vg_learn_expect(&eng, &t);
}

static bool about(uint64_t is, uint64_t want) {
    return is > want - want / 8 && is < want + want / 8;
}

static const char *basis(struct etask t) {
    static char text[160];
    vg_learn_basis(&eng, &t, text, sizeof text);
    return text;
}

Test(learn, before_anything_ran_it_is_a_guess_within_the_limit) {
    struct etask t = task(&alice, &one, 1);
    cr_expect_eq(expect(t), 30 * MINUTE);
    cr_expect_str_eq(basis(t), "a guess, since nothing like it has run yet");
    t.known_usec = 7 * MINUTE;
    cr_assert_eq(expect(t), 7 * MINUTE, "from one who knows");
    cr_assert_eq(vg_learn_expect_given(&eng, &t, 2 * MINUTE), 7 * MINUTE);
    t.known_usec = 0;
    t.limit_usec = 5 * MINUTE;
    cr_expect_eq(expect(t), 5 * MINUTE);
    cr_expect_str_eq(basis(t), "its time limit, since nothing like it has run yet");
}

Test(learn, a_command_is_expected_to_run_as_long_as_it_did) {
    ran(task(&alice, &one, 2), 3 * HOUR, 50);
    ran(task(&alice, &one, 1), 10 * MINUTE, 3);
    cr_expect(about(expect(task(&alice, &one, 1)), 10 * MINUTE));
    cr_expect(about(expect(task(&bob, &eight, 1)), 10 * MINUTE), "the command counts most");
    cr_expect_str_eq(basis(task(&alice, &one, 1)), "the last 3 runs of this command");
}

Test(learn, one_run_does_not_outweigh_everything) {
    ran(task(&alice, &one, 2), 2 * HOUR, 50);
    ran(task(&alice, &one, 1), 10 * VG_USEC, 1);
    uint64_t x = expect(task(&alice, &one, 1));
    cr_expect_gt(x, 5 * VG_USEC);
    cr_expect_lt(x, HOUR);
    cr_expect_gt(vg_learn_upper(&eng, &(struct etask){.tenant = &alice, .fit = &one, .kin = 1}),
                 HOUR, "it may still be one of the long ones");
}

Test(learn, an_unknown_command_takes_after_its_size_then_its_tenant_then_all) {
    ran(task(&alice, &one, 0), 2 * MINUTE, 40);
    ran(task(&alice, &eight, 0), 20 * HOUR, 40);
    uint64_t small = expect(task(&alice, &one, 99)), large = expect(task(&alice, &eight, 99));
    cr_expect_lt(small, 5 * MINUTE);
    cr_expect_gt(large, 8 * HOUR);
    uint64_t other = expect(task(&bob, &one, 99));
    cr_expect(other >= small && other <= large, "bob is judged by everybody");
    cr_expect_str_eq(basis(task(&alice, &one, 99)),
                     "the last 30 runs of such tasks of this team or user");
    cr_expect_str_eq(basis(task(&bob, &one, 99)), "the last 77 runs of tasks here");
}

Test(learn, newer_runs_count_more) {
    ran(task(&alice, &one, 1), 10 * MINUTE, 200);
    ran(task(&alice, &one, 1), 10 * HOUR, 24);
    cr_expect_gt(expect(task(&alice, &one, 1)), 5 * HOUR);
}

Test(learn, four_in_five_end_by_the_upper_value) {
    struct etask t = task(&alice, &one, 0);
    for (unsigned i = 0; i < 1000; i++)
        vg_learn_note(&eng, &t, (i * 37 % 100 < 70 ? 1 : 100) * MINUTE);
    cr_expect_lt(expect(t), 2 * MINUTE);
    cr_expect_gt(vg_learn_upper(&eng, &t), 60 * MINUTE);
}

Test(learn, an_overdue_task_never_ends_any_moment_now) {
    struct etask t = task(&alice, &one, 0);
    for (unsigned i = 0; i < 64; i++)
        vg_learn_note(&eng, &t, MINUTE << (i % 8));
    uint64_t last = 0;
    for (uint64_t at = MINUTE; at < 400 * HOUR; at += at / 3) {
        uint64_t whole = vg_learn_expect_given(&eng, &t, at);
        cr_expect_geq(whole, at + at / 16);
        cr_expect_geq(whole, last, "the longer it ran, the longer it will have run");
        last = whole;
    }
    cr_expect_geq(vg_learn_expect_given(&eng, &t, 400 * HOUR), 590 * HOUR,
                  "beyond everything seen: half as long again");
    t.limit_usec = 3 * HOUR;
    cr_expect_eq(vg_learn_expect_given(&eng, &t, 2 * HOUR + 50 * MINUTE), 3 * HOUR);
    cr_expect_gt(vg_learn_expect_given(&eng, &t, 4 * HOUR), 4 * HOUR, "being stopped takes time");
}

struct record {
    uint32_t kind;
    uint64_t key, value[4];
};
static struct record records[1000];
static size_t n_records;

static void keep(void *arg, uint32_t kind, uint64_t key, const uint64_t value[4]) {
    (void)arg;
    cr_assert_lt(n_records, VG_COUNT(records));
    records[n_records] = (struct record){.kind = kind, .key = key};
    memcpy(records[n_records++].value, value, sizeof records[0].value);
}

Test(learn, a_restart_forgets_nothing) {
    struct etask kin = task(&alice, &one, 1), size = task(&bob, &eight, 0);
    ran(kin, 10 * MINUTE, 5);
    for (unsigned i = 0; i < 40; i++)
        vg_learn_note(&eng, &size, MINUTE << (i % 10));
    uint64_t a = expect(kin), b = expect(size), c = vg_learn_upper(&eng, &size);
    vg_learn_save(&eng, keep, NULL);
    cr_assert_eq(n_records, 2 * (1 + 3 + 2), "two records each: all, alice's 3, bob's 2");
    teardown();
    setup();
    for (size_t i = n_records; i-- > 0;) /* in any order */
        cr_assert(vg_learn_restore(&eng, records[i].kind, records[i].key, records[i].value));
    cr_expect(about(expect(kin), a));
    cr_expect(about(expect(size), b));
    cr_expect(about(vg_learn_upper(&eng, &size), c));
}

Test(learn, broken_records_are_dropped) {
    uint64_t nan[4] = {~0ULL, ~0ULL, ~0ULL, ~0ULL}, zero[4] = {0};
    struct etask t = task(&alice, &one, 1);
    ran(t, 10 * MINUTE, 3);
    vg_learn_save(&eng, keep, NULL);
    teardown();
    setup();
    for (size_t i = 0; i < n_records; i++) {
        cr_assert(vg_learn_restore(&eng, records[i].kind, records[i].key, zero));
        if (records[i].kind % 2 == 0)
            cr_assert(vg_learn_restore(&eng, records[i].kind, records[i].key, nan));
    }
    cr_expect_eq(expect(t), 30 * MINUTE, "as if nothing had been learnt");
    cr_expect_not(vg_learn_restore(&eng, 1, 1, zero), "somebody else's record");
}

Test(learn, the_number_of_commands_it_remembers_is_bounded) {
    struct etask t = task(&alice, &one, 1);
    ran(t, 10 * HOUR, 3);
    for (uint64_t kin = 2; kin < 40000; kin++)
        ran(task(&alice, &one, kin), MINUTE, 1);
    cr_expect_lt(expect(t), 2 * MINUTE, "the one that was not seen for longest is forgotten");
    cr_expect_gt(expect(task(&alice, &one, 39999)), MINUTE / 2);
}

Test(learn, classes_differ_fourfold_and_cover_everything) {
    cr_expect_eq(vg_run_class(0), 0);
    for (uint32_t c = 0; c + 1 < VG_RUN_CLASSES; c++) {
        cr_expect_eq(vg_run_class(vg_run_class_max(c)), c);
        cr_expect_eq(vg_run_class(vg_run_class_max(c) + 1), c + 1);
    }
    cr_expect_eq(vg_run_class(VG_ENG_NEVER), VG_RUN_CLASSES - 1);
    cr_expect_eq(vg_run_class_max(VG_RUN_CLASSES - 1), VG_ENG_NEVER);
}
