#pragma once
/* When a schedule is due: "every 30m", or the five fields of cron (minute, hour, day of month,
   month, day of week) in the local time of whoever asks; also @hourly, @daily, @weekly, @monthly,
   @yearly. Fields take *, numbers, names (jan, mon), ranges, lists and steps: "0,30 8-18/2 * *
   mon-fri". Where both day fields are given, a day that satisfies either will do, as cron has it.

   A time that the clocks skip in spring is due when they have jumped; one that comes twice in
   autumn is due once, the first time. */
#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>

#define VG_WHEN_EVERY_MIN_USEC 1000000ULL

struct vg_cron {
    uint64_t every_usec; /* not 0: nothing else counts */
    uint64_t minutes;    /* sets of bits */
    uint32_t hours, days, months, weekdays;
    bool any_day, any_weekday;
};

/* -EINVAL with a sentence. */
int vg_cron_parse(const char *text, struct vg_cron *ret, struct vg_err *err);
/* The first time after `after_usec` (wall time); for "every", counted from `begin_usec`. 0: never
   (the 31st of February). */
uint64_t vg_cron_next(const struct vg_cron *w, uint64_t begin_usec, uint64_t after_usec);
