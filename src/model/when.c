#include "model/when.h"

#include "base/cleanup.h"
#include "base/util.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#define TEXT_MAX 256
#define SECOND 1000000ULL
#define YEARS_AHEAD 9 /* a 29th of February comes within eight */

struct field {
    const char *what;
    unsigned low, high;
    const char *const *names; /* from `low` on; NULL: none */
};

static const char *const month_names[] = {"jan", "feb", "mar", "apr", "may", "jun", "jul",
                                          "aug", "sep", "oct", "nov", "dec", NULL};
static const char *const day_names[] = {"sun", "mon", "tue", "wed", "thu", "fri", "sat", NULL};
static const struct field fields[] = {{"minute", 0, 59, NULL},
                                      {"hour", 0, 23, NULL},
                                      {"day of month", 1, 31, NULL},
                                      {"month", 1, 12, month_names},
                                      {"day of week", 0, 7, day_names}};

static const struct {
    const char *word, *means;
} shorthands[] = {{"@hourly", "0 * * * *"},  {"@daily", "0 0 * * *"},   {"@midnight", "0 0 * * *"},
                  {"@weekly", "0 0 * * 0"},  {"@monthly", "0 0 1 * *"}, {"@yearly", "0 0 1 1 *"},
                  {"@annually", "0 0 1 1 *"}};

/* ------------------------------------------------------------------ reading */

static int read_number(const char *s, const struct field *f, unsigned *ret) {
    uint64_t n;
    for (unsigned i = 0; f->names && f->names[i]; i++)
        if (strcasecmp(s, f->names[i]) == 0) {
            *ret = f->low + i;
            return 0;
        }
    if (vg_parse_u64(s, &n) < 0 || n < f->low || n > f->high)
        return -EINVAL;
    *ret = (unsigned)n;
    return 0;
}

/* One of a list: "*", "5", "mon-fri", each perhaps with "/step". */
static int read_part(char *s, const struct field *f, uint64_t *set) {
    unsigned from = f->low, to = f->high;
    uint64_t step = 1;
    char *slash = strchr(s, '/');
    if (slash) {
        *slash = 0;
        if (vg_parse_u64(slash + 1, &step) < 0 || step == 0 || step > f->high)
            return -EINVAL;
    }
    if (strcmp(s, "*") != 0) {
        char *dash = strchr(s, '-');
        if (dash)
            *dash = 0;
        if (read_number(s, f, &from) < 0 || (dash && read_number(dash + 1, f, &to) < 0))
            return -EINVAL;
        if (!dash && !slash)
            to = from;
    }
    if (from > to)
        return -EINVAL;
    for (unsigned i = from; i <= to; i += (unsigned)step)
        *set |= 1ULL << i;
    return 0;
}

static int read_field(char *s, const struct field *f, uint64_t *set) {
    *set = 0;
    if (!*s || s[strlen(s) - 1] == ',')
        return -EINVAL;
    for (char *rest = s; rest;) {
        char *part = strsep(&rest, ",");
        if (read_part(part, f, set) < 0)
            return -EINVAL;
    }
    return 0;
}

static int read_cron(char *text, const char *whole, struct vg_cron *w, struct vg_err *err) {
    uint64_t set[5];
    char *word[5], *save = NULL;
    size_t n = 0;
    for (char *s = strtok_r(text, " \t", &save); s; s = strtok_r(NULL, " \t", &save))
        if (n++ < 5)
            word[n - 1] = s;
    if (n != 5)
        return vg_err_set(err, VG_INVALID,
                          "'%.64s' is no schedule: write 'every 30m' or cron's five fields, minute "
                          "hour day month weekday, for example '0 3 * * *'",
                          whole);
    for (size_t i = 0; i < 5; i++) {
        char copy[TEXT_MAX];
        snprintf(copy, sizeof copy, "%s", word[i]);
        if (read_field(copy, &fields[i], &set[i]) < 0)
            return vg_err_set(err, VG_INVALID,
                              "'%.32s' is no %s of a schedule: give numbers from %u to %u, with "
                              "',', '-' and '/' between them, or *",
                              word[i], fields[i].what, fields[i].low, fields[i].high);
    }
    if (set[4] & 1 << 7) /* Sunday has two numbers */
        set[4] |= 1;
    *w = (struct vg_cron){.minutes = set[0],
                          .hours = (uint32_t)set[1],
                          .days = (uint32_t)set[2],
                          .months = (uint32_t)set[3],
                          .weekdays = (uint32_t)set[4] & 0x7f,
                          .any_day = word[2][0] == '*',
                          .any_weekday = word[4][0] == '*'};
    return 0;
}

static int read_every(const char *s, struct vg_cron *w, struct vg_err *err) {
    uint64_t usec;
    while (*s == ' ')
        s++;
    if (vg_parse_duration(s, &usec) < 0)
        return vg_err_set(err, VG_INVALID,
                          "'%.32s' is no duration: write 'every 30m' or 'every 2h'", s);
    if (usec < VG_WHEN_EVERY_MIN_USEC)
        return vg_err_set(err, VG_INVALID,
                          "a schedule comes at most once a second, not every %.32s", s);
    *w = (struct vg_cron){.every_usec = usec};
    return 0;
}

int vg_cron_parse(const char *text, struct vg_cron *ret, struct vg_err *err) {
    char copy[TEXT_MAX];
    if (strlen(text) >= sizeof copy)
        return vg_err_set(err, VG_INVALID, "a schedule has at most %d characters", TEXT_MAX - 1);
    if (strncmp(text, "every ", 6) == 0)
        return read_every(text + 6, ret, err);
    snprintf(copy, sizeof copy, "%s", text);
    for (size_t i = 0; i < VG_COUNT(shorthands); i++)
        if (strcasecmp(text, shorthands[i].word) == 0)
            snprintf(copy, sizeof copy, "%s", shorthands[i].means);
    return read_cron(copy, text, ret, err);
}

/* ------------------------------------------------------------------ when */

static bool day_fits(const struct vg_cron *w, const struct tm *t) {
    bool day = w->days >> t->tm_mday & 1, weekday = w->weekdays >> t->tm_wday & 1;
    if (w->any_day || w->any_weekday) /* a '*' leaves it to the other */
        return day && weekday;
    return day || weekday;
}

/* Moves to the next day, month, ... as a calendar without clock changes does. */
static void settle(struct tm *t) {
    struct tm utc = *t;
    time_t s = timegm(&utc);
    gmtime_r(&s, t);
}

static bool find(const struct vg_cron *w, struct tm *t) {
    int last = t->tm_year + YEARS_AHEAD;
    settle(t);
    while (t->tm_year < last) {
        if (!(w->months >> (t->tm_mon + 1) & 1)) {
            *t = (struct tm){.tm_year = t->tm_year, .tm_mon = t->tm_mon + 1, .tm_mday = 1};
        } else if (!day_fits(w, t)) {
            *t = (struct tm){.tm_year = t->tm_year, .tm_mon = t->tm_mon, .tm_mday = t->tm_mday + 1};
        } else if (!(w->hours >> t->tm_hour & 1)) {
            t->tm_hour++;
            t->tm_min = 0;
        } else if (!(w->minutes >> t->tm_min & 1)) {
            t->tm_min++;
        } else {
            return true;
        }
        settle(t);
    }
    return false;
}

/* The moment of a local time: the first of two, and after a gap as much later as the gap is long.
 */
static time_t moment(const struct tm *local) {
    struct tm summer = *local, winter = *local, guess = *local;
    summer.tm_isdst = 1;
    winter.tm_isdst = 0;
    guess.tm_isdst = -1;
    time_t a = mktime(&summer), b = mktime(&winter), g = mktime(&guess);
    struct tm back;
    if (a != (time_t)-1 && a < g && localtime_r(&a, &back) && back.tm_hour == local->tm_hour &&
        back.tm_min == local->tm_min && back.tm_mday == local->tm_mday)
        return a;
    if (b != (time_t)-1 && b < g && localtime_r(&b, &back) && back.tm_hour == local->tm_hour &&
        back.tm_min == local->tm_min && back.tm_mday == local->tm_mday)
        return b;
    if (localtime_r(&g, &back) && back.tm_hour == local->tm_hour && back.tm_min == local->tm_min)
        return g;
    return VG_MAX(a, b); /* in the gap: the clocks have jumped by then */
}

static uint64_t next_every(const struct vg_cron *w, uint64_t begin, uint64_t after) {
    if (after < begin)
        return begin;
    uint64_t n = (after - begin) / w->every_usec + 1;
    return begin + n * w->every_usec;
}

uint64_t vg_cron_next(const struct vg_cron *w, uint64_t begin_usec, uint64_t after_usec) {
    if (w->every_usec)
        return next_every(w, begin_usec, after_usec);
    time_t after = (time_t)(after_usec / SECOND);
    struct tm t;
    if (!localtime_r(&after, &t))
        return 0;
    /* From the minute after, by the clock on the wall; what the clock shows twice was due before.
     */
    for (t.tm_sec = 0, t.tm_min++; find(w, &t); t.tm_min++) {
        time_t at = moment(&t);
        if (at > after)
            return (uint64_t)at * SECOND;
    }
    return 0;
}
