/* Exact charges; see the header. */
#include "meter/charge.h"

#include <string.h>

#define HOUR_UNIT ((vg_wide)VG_MONEY_HOUR * VG_DISCOUNT_ALL)

void vg_money_add(struct vg_money *m, const struct vg_money *more) {
    m->rest += more->rest;
    uint64_t carry = m->rest >= VG_MONEY_UNIT;
    m->rest -= carry ? VG_MONEY_UNIT : 0;
    m->micro += more->micro + carry; /* each is at most 2^62 */
    if (m->micro > VG_MONEY_MAX)
        m->micro = VG_MONEY_MAX;
}

int64_t vg_micro_add(int64_t a, int64_t b) {
    int64_t sum;
    if (__builtin_add_overflow(a, b, &sum))
        return b > 0 ? INT64_MAX : -INT64_MAX;
    return sum;
}

/* `an_hour` in millionths and fractions (VG_MONEY_HOLD) of one, for `usec`, times
   share / VG_DISCOUNT_ALL. The largest values (a petabyte at a million an hour, for a hundred
   years) fit: whole millionths and fractions are multiplied apart. */
static struct vg_money for_time(vg_wide an_hour, uint64_t usec, uint32_t share) {
    vg_wide whole = an_hour / VG_MONEY_HOLD, part = an_hour % VG_MONEY_HOLD;
    vg_wide time = (vg_wide)usec * share;
    vg_wide a;
    if (__builtin_mul_overflow(whole, time, &a))
        return (struct vg_money){VG_MONEY_MAX, 0};
    vg_wide b = (a % HOUR_UNIT) * VG_MONEY_HOLD + part * time;
    vg_wide micro = a / HOUR_UNIT + b / VG_MONEY_UNIT;
    if (micro > VG_MONEY_MAX)
        return (struct vg_money){VG_MONEY_MAX, 0};
    return (struct vg_money){(uint64_t)micro, b % VG_MONEY_UNIT};
}

static uint32_t share_of(const struct vg_tariff *t, const struct vg_hold *h) {
    return h->preemptible ? VG_DISCOUNT_ALL - t->preemptible_milli : VG_DISCOUNT_ALL;
}

static vg_wide gpus_an_hour(const struct vg_tariff *t, const struct vg_hold *h) {
    return (vg_wide)t->gpu_hour_micro * h->gpu_milli * (VG_MONEY_HOLD / 1000);
}

struct vg_money vg_charge(const struct vg_tariff *t, const struct vg_hold *h, uint64_t usec) {
    if (!t)
        return (struct vg_money){0};
    vg_wide an_hour = gpus_an_hour(t, h) +
                      (vg_wide)t->cpu_hour_micro * h->cpu_milli * (VG_MONEY_HOLD / 1000) +
                      (vg_wide)t->gib_hour_micro * h->mem_bytes * (VG_MONEY_HOLD >> 30) +
                      (vg_wide)t->storage_gib_month_micro * h->kept_bytes *
                          ((VG_MONEY_HOLD >> 30) / VG_MONTH_HOURS);
    return for_time(an_hour, usec, share_of(t, h));
}

struct vg_money vg_charge_gpus(const struct vg_tariff *t, const struct vg_hold *h, uint64_t usec) {
    return t ? for_time(gpus_an_hour(t, h), usec, share_of(t, h)) : (struct vg_money){0};
}

struct vg_money vg_charge_unused(const struct vg_tariff *t, const struct vg_hold *h,
                                 uint64_t usec) {
    if (!t)
        return (struct vg_money){0};
    /* The one place where two discounts meet: the second is taken of whole units. */
    uint64_t share = (uint64_t)share_of(t, h) * t->idle_milli / VG_DISCOUNT_ALL;
    return for_time(gpus_an_hour(t, h), usec, (uint32_t)share);
}

/* ------------------------------------------------------------------ pieces */

static uint64_t piece_end(const struct vg_book *b, const char *pool, const char *class,
                          uint64_t from, uint64_t until) {
    uint64_t day = (from / VG_DAY_USEC + 1) * VG_DAY_USEC, change = from;
    const struct vg_tariff *now = vg_book_at(b, pool, class, from);
    do { /* an entry of a line that does not count here changes nothing */
        change = vg_book_next(b, pool, class, change);
    } while (change < until && change < day && vg_book_at(b, pool, class, change) == now);
    uint64_t end = day < change ? day : change;
    return end < until ? end : until;
}

static bool same_money(const struct vg_tariff *a, const struct vg_tariff *b) {
    return a && b && !strcmp(a->currency, b->currency);
}

int vg_charge_walk(const struct vg_book *b, const char *pool, const char *class,
                   const struct vg_hold *h, uint64_t from_usec, uint64_t until_usec, vg_wide *rest,
                   vg_piece_fn *fn, void *arg) {
    const struct vg_tariff *before = NULL;
    if (until_usec > from_usec && until_usec - from_usec > VG_CHARGE_USEC_MAX)
        until_usec = from_usec + VG_CHARGE_USEC_MAX;
    for (uint64_t at = from_usec; at < until_usec;) {
        struct vg_piece p = {.from_usec = at,
                             .until_usec = piece_end(b, pool, class, at, until_usec),
                             .tariff = vg_book_at(b, pool, class, at)};
        struct vg_money cost = vg_charge(p.tariff, h, p.until_usec - at);
        struct vg_money left = {.rest = before && !same_money(before, p.tariff) ? 0 : *rest};
        vg_money_add(&left, &cost);
        p.cost_micro = left.micro;
        *rest = p.rest = left.rest;
        before = p.tariff ? p.tariff : before;
        at = p.until_usec;
        int r = fn(arg, &p);
        if (r != 0)
            return r;
    }
    return 0;
}

static int add_piece(void *arg, const struct vg_piece *p) {
    struct vg_money *sum = arg;
    struct vg_money one = {.micro = p->cost_micro};
    vg_money_add(sum, &one);
    return 0;
}

struct vg_money vg_charge_total(const struct vg_book *b, const char *pool, const char *class,
                                const struct vg_hold *h, uint64_t from_usec, uint64_t until_usec) {
    struct vg_money sum = {0};
    vg_wide rest = 0;
    vg_charge_walk(b, pool, class, h, from_usec, until_usec, &rest, add_piece, &sum);
    sum.rest = rest;
    return sum;
}

vg_wide vg_charge_rest_before(const struct vg_book *b, const char *pool, const char *class,
                              const struct vg_hold *h, uint64_t from_usec, uint64_t until_usec,
                              vg_wide rest) {
    struct vg_money sum = vg_charge_total(b, pool, class, h, from_usec, until_usec);
    return rest >= sum.rest ? rest - sum.rest : rest + VG_MONEY_UNIT - sum.rest;
}

/* The last moment of from..until at which no more than `micro` is due, `due` being so at from. */
static uint64_t pays_until(const struct vg_tariff *t, const struct vg_hold *h, uint64_t from,
                           uint64_t until, const struct vg_money *due, uint64_t micro) {
    uint64_t low = from, high = until;
    while (high - low > 1) {
        uint64_t mid = low + (high - low) / 2;
        struct vg_money m = vg_charge(t, h, mid - from);
        vg_money_add(&m, due);
        if (m.micro <= micro)
            low = mid;
        else
            high = mid;
    }
    return low;
}

uint64_t vg_charge_until(const struct vg_book *b, const char *pool, const char *class,
                         const struct vg_hold *h, uint64_t from_usec, uint64_t micro) {
    struct vg_money due = {0};
    uint64_t most = from_usec + VG_CHARGE_USEC_MAX;
    for (uint64_t at = from_usec; at < most;) { /* from one price to the next: days do not matter */
        const struct vg_tariff *t = vg_book_at(b, pool, class, at);
        uint64_t next = vg_book_next(b, pool, class, at);
        next = next < most ? next : most;
        struct vg_money then = vg_charge(t, h, next - at);
        vg_money_add(&then, &due);
        if (then.micro > micro)
            return pays_until(t, h, at, next, &due, micro);
        due = then;
        at = next;
    }
    return UINT64_MAX;
}

uint64_t vg_part(uint64_t v, uint64_t part, uint64_t whole) {
    return whole ? (uint64_t)((vg_wide)v * part / whole) : 0;
}
