#pragma once
/* What holding something costs, exactly. Pure; integers only.

   Money is a number of millionths of the currency and what is left of one, as a fraction of
   VG_MONEY_UNIT. A charge is cut where the price changes and where days begin (UTC). Each piece
   costs whole millionths; what is left goes over to the next piece. So, however an attempt is
   cut,

       sum of its pieces = floor(sum of held * price)

   to the last millionth. What is left when the currency changes is dropped. */
#include "meter/price.h"

typedef unsigned __int128 vg_wide;

/* 1000, 2^30 and 2^30 times the hours of a month in one, microseconds of an hour, discounts. */
#define VG_MONEY_HOLD (1125ULL << 34)
#define VG_MONTH_HOURS 720 /* of 30 days, whatever the calendar says */
#define VG_MONEY_HOUR (3600ULL * 1000000)
#define VG_MONEY_UNIT ((vg_wide)VG_MONEY_HOLD * VG_MONEY_HOUR * VG_DISCOUNT_ALL)
#define VG_MONEY_MAX ((uint64_t)1 << 62) /* more is as much as that */
#define VG_DAY_USEC (86400ULL * 1000000)
#define VG_CHARGE_USEC_MAX (36500 * VG_DAY_USEC) /* of one charge; what is longer is cut off */

struct vg_money {
    uint64_t micro;
    vg_wide rest; /* below VG_MONEY_UNIT */
};

struct vg_hold {
    uint64_t gpu_milli, cpu_milli, mem_bytes;
    bool preemptible;
    uint64_t kept_bytes; /* in the store of environments, by the month */
};

void vg_money_add(struct vg_money *m, const struct vg_money *more);
/* a + b, or the nearest that there is: sums stay where they are rather than turn around. */
int64_t vg_micro_add(int64_t a, int64_t b);
/* What `usec` of it costs; a NULL tariff charges nothing. */
struct vg_money vg_charge(const struct vg_tariff *t, const struct vg_hold *h, uint64_t usec);
/* Of that: for GPUs. */
struct vg_money vg_charge_gpus(const struct vg_tariff *t, const struct vg_hold *h, uint64_t usec);
/* Of that: what would be taken off if the GPUs did nothing at all. */
struct vg_money vg_charge_unused(const struct vg_tariff *t, const struct vg_hold *h, uint64_t usec);

/* A part of what was held, at one price and on one day. */
struct vg_piece {
    uint64_t from_usec, until_usec;
    const struct vg_tariff *tariff; /* borrowed from the book; NULL: nothing was charged */
    uint64_t cost_micro;
    vg_wide rest; /* what is left after it */
};
typedef int vg_piece_fn(void *arg, const struct vg_piece *p);

/* Cuts from..until. `rest` is what was left before and is left after; what `fn` returns when it is
   not 0 ends the walk and is returned. */
int vg_charge_walk(const struct vg_book *b, const char *pool, const char *class,
                   const struct vg_hold *h, uint64_t from_usec, uint64_t until_usec, vg_wide *rest,
                   vg_piece_fn *fn, void *arg);
/* The same as a sum. */
struct vg_money vg_charge_total(const struct vg_book *b, const char *pool, const char *class,
                                const struct vg_hold *h, uint64_t from_usec, uint64_t until_usec);
/* What is left of a millionth at `from`, when `rest` is left at `until`. */
vg_wide vg_charge_rest_before(const struct vg_book *b, const char *pool, const char *class,
                              const struct vg_hold *h, uint64_t from_usec, uint64_t until_usec,
                              vg_wide rest);
/* Until when `micro` pays for it from `from` on (the moment before it would cost one more);
   UINT64_MAX: for ever, or for longer than a charge can be. */
uint64_t vg_charge_until(const struct vg_book *b, const char *pool, const char *class,
                         const struct vg_hold *h, uint64_t from_usec, uint64_t micro);
/* v * part / whole, rounded down, for 0 <= part <= whole: pieces that follow each other add up. */
uint64_t vg_part(uint64_t v, uint64_t part, uint64_t whole);
