/* Periods; see the header. */
#include "meter/period.h"

#include "base/cleanup.h"
#include "meter/charge.h"

#include <errno.h>
#include <string.h>
#include <time.h>

static const char *const names[] = {
    [VG_PERIOD_DAY] = "day",   [VG_PERIOD_WEEK] = "week", [VG_PERIOD_MONTH] = "month",
    [VG_PERIOD_YEAR] = "year", [VG_PERIOD_ONCE] = "once",
};

const char *vg_period_name(enum vg_period p) {
    return names[p];
}

int vg_period_parse(const char *s, enum vg_period *ret) {
    for (size_t i = 0; i < VG_COUNT(names); i++)
        if (strcmp(names[i], s) == 0) {
            *ret = (enum vg_period)i;
            return 0;
        }
    return -EINVAL;
}

/* Midnight of a day whose parts may be beyond their bounds. */
static uint64_t midnight(struct tm tm) {
    tm.tm_hour = tm.tm_min = tm.tm_sec = 0;
    time_t t = timegm(&tm);
    return t < 0 ? 0 : (uint64_t)t * 1000000;
}

void vg_period_at(enum vg_period p, uint64_t now_usec, uint64_t set_usec, uint64_t *ret_from,
                  uint64_t *ret_until) {
    time_t now = (time_t)(now_usec / 1000000);
    struct tm from, until;
    if (p == VG_PERIOD_ONCE) {
        *ret_from = set_usec;
        *ret_until = UINT64_MAX;
        return;
    }
    gmtime_r(&now, &from);
    if (p == VG_PERIOD_WEEK)
        from.tm_mday -= (from.tm_wday + 6) % 7;
    if (p == VG_PERIOD_MONTH || p == VG_PERIOD_YEAR)
        from.tm_mday = 1;
    if (p == VG_PERIOD_YEAR)
        from.tm_mon = 0;
    until = from;
    until.tm_mday += p == VG_PERIOD_DAY ? 1 : p == VG_PERIOD_WEEK ? 7 : 0;
    until.tm_mon += p == VG_PERIOD_MONTH;
    until.tm_year += p == VG_PERIOD_YEAR;
    *ret_from = midnight(from);
    *ret_until = midnight(until);
}

uint64_t vg_spent_at(uint64_t now_usec, uint64_t left_micro, uint64_t rate_micro_hour) {
    if (!rate_micro_hour)
        return UINT64_MAX;
    vg_wide usec = (vg_wide)left_micro * VG_MONEY_HOUR / rate_micro_hour;
    return usec > INT64_MAX - now_usec ? UINT64_MAX : now_usec + (uint64_t)usec;
}
