#pragma once
/* The times that budgets are for (UTC), and when one is used up. Pure. */
#include <stdbool.h>
#include <stdint.h>

enum vg_period { VG_PERIOD_DAY, VG_PERIOD_WEEK, VG_PERIOD_MONTH, VG_PERIOD_YEAR, VG_PERIOD_ONCE };

const char *vg_period_name(enum vg_period p);
int vg_period_parse(const char *s, enum vg_period *ret); /* -EINVAL */
/* The one that `now` is in. Weeks begin on Monday; ONCE begins at `set` and has no end. */
void vg_period_at(enum vg_period p, uint64_t now_usec, uint64_t set_usec, uint64_t *ret_from,
                  uint64_t *ret_until);
/* When `left` is spent at so much an hour; UINT64_MAX: never. */
uint64_t vg_spent_at(uint64_t now_usec, uint64_t left_micro, uint64_t rate_micro_hour);
