/* When schedules are due. Times are written as people in Berlin see them. */
#include "model/when.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SECOND 1000000ULL

static void in_berlin(void) {
    setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3", 1);
    tzset();
}

TestSuite(when, .init = in_berlin);

static uint64_t utc(const char *text) {
    struct tm t = {0};
    cr_assert(strptime(text, "%Y-%m-%d %H:%M:%S", &t), "%s", text);
    return (uint64_t)timegm(&t) * SECOND;
}

static const char *show(uint64_t usec) {
    static char out[32];
    time_t s = (time_t)(usec / SECOND);
    struct tm t;
    strftime(out, sizeof out, "%Y-%m-%d %H:%M:%S", gmtime_r(&s, &t));
    return usec ? out : "never";
}

static struct vg_cron parsed(const char *text) {
    struct vg_cron w;
    struct vg_err err = VG_ERR_INIT;
    cr_assert_eq(vg_cron_parse(text, &w, &err), 0, "%s: %s", text, err.msg);
    return w;
}

static void expect(const char *text, const char *after, const char *next) {
    struct vg_cron w = parsed(text);
    uint64_t got = vg_cron_next(&w, 0, utc(after));
    cr_expect_str_eq(show(got), next, "%s after %s: %s, not %s", text, after, show(got), next);
}

static void refused(const char *text, const char *part) {
    struct vg_cron w;
    struct vg_err err = VG_ERR_INIT;
    cr_expect_lt(vg_cron_parse(text, &w, &err), 0, "%s", text);
    cr_expect(strstr(err.msg, part), "%s: %s", text, err.msg);
}

Test(when, fields) {
    expect("0 3 * * *", "2026-01-10 12:00:00", "2026-01-11 02:00:00");
    expect("0 3 * * *", "2026-01-11 02:00:00", "2026-01-12 02:00:00");
    expect("*/15 * * * *", "2026-01-10 12:14:59", "2026-01-10 12:15:00");
    expect("5/20 * * * *", "2026-01-10 12:26:00", "2026-01-10 12:45:00");
    expect("0,30 8-10/2 * * mon-fri", "2026-01-09 09:31:00", "2026-01-12 07:00:00");
    expect("0 0 1 jan *", "2026-01-10 00:00:00", "2026-12-31 23:00:00");
    expect("0 0 29 2 *", "2026-01-10 00:00:00", "2028-02-28 23:00:00");
    expect("0 0 31 2 *", "2026-01-10 00:00:00", "never");
    expect("59 23 31 12 *", "2026-12-31 22:58:30", "2026-12-31 22:59:00");
}

Test(when, two_day_fields_are_either_one) {
    expect("0 12 13 * fri", "2026-01-10 00:00:00", "2026-01-13 11:00:00");
    expect("0 12 13 * fri", "2026-01-13 11:00:00", "2026-01-16 11:00:00");
    expect("0 12 * * 7", "2026-01-10 00:00:00", "2026-01-11 11:00:00");
    expect("0 12 * * 0", "2026-01-10 00:00:00", "2026-01-11 11:00:00");
    expect("0 12 */2 * mon", "2026-01-10 00:00:00", "2026-01-19 11:00:00");
}

Test(when, shorthands) {
    expect("@hourly", "2026-01-10 12:00:00", "2026-01-10 13:00:00");
    expect("@weekly", "2026-01-10 12:00:00", "2026-01-10 23:00:00");
    expect("@yearly", "2026-01-10 12:00:00", "2026-12-31 23:00:00");
}

/* On 29 March 2026 Berlin's clocks go from 2:00 to 3:00. */
Test(when, a_skipped_time_is_due_after_the_jump) {
    expect("30 2 * * *", "2026-03-28 12:00:00", "2026-03-29 01:30:00");
    expect("30 2 * * *", "2026-03-29 01:30:00", "2026-03-30 00:30:00");
}

/* On 25 October 2026 they go from 3:00 back to 2:00. */
Test(when, a_time_that_comes_twice_is_due_once) {
    expect("30 2 * * *", "2026-10-24 12:00:00", "2026-10-25 00:30:00");
    expect("30 2 * * *", "2026-10-25 00:30:00", "2026-10-26 01:30:00");
    expect("30 2 * * *", "2026-10-25 01:10:00", "2026-10-26 01:30:00");
}

Test(when, every_counts_from_its_beginning) {
    struct vg_cron w = parsed("every 30m");
    uint64_t begin = utc("2026-01-10 12:07:00");
    cr_expect_eq(vg_cron_next(&w, begin, begin), utc("2026-01-10 12:37:00"));
    cr_expect_eq(vg_cron_next(&w, begin, utc("2026-01-10 15:00:00")), utc("2026-01-10 15:07:00"));
    cr_expect_eq(vg_cron_next(&w, begin, utc("2026-01-10 15:07:00")), utc("2026-01-10 15:37:00"));
    cr_expect_eq(vg_cron_next(&w, begin, begin - 1), begin);
}

Test(when, what_is_wrong_is_said) {
    refused("", "five fields");
    refused("* * * *", "five fields");
    refused("* * * * * *", "five fields");
    refused("60 * * * *", "'60' is no minute");
    refused("* 24 * * *", "'24' is no hour");
    refused("* * 0 * *", "no day of month");
    refused("* * * 13 *", "no month");
    refused("* * * * 8", "no day of week");
    refused("*/0 * * * *", "no minute");
    refused("5-1 * * * *", "no minute");
    refused("1,,2 * * * *", "no minute");
    refused("1, * * * *", "no minute");
    refused("every", "five fields");
    refused("every day", "no duration");
    refused("every 5ms", "at most once a second");
    char longest[400];
    memset(longest, '1', sizeof longest - 1);
    longest[sizeof longest - 1] = 0;
    refused(longest, "at most 255");
}
