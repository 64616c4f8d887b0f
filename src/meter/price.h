#pragma once
/* The price book: what holding things costs, where and since when. Entries are only ever added; the
   one that holds at a moment is found among those that had begun by then. Pure.

   Every pool and class has a line of entries of its own, and so have "every class of this pool",
   "every pool of this class" and "everything else". The most exact line that has begun counts, and
   of that line the newest entry. */
#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

#define VG_BOOK_MAX 100000 /* entries: each lookup walks them */
#define VG_TARIFF_MICRO_MAX (1000000ULL * 1000000)
#define VG_DISCOUNT_ALL 100000 /* discounts: thousandths of a percent */
#define VG_CURRENCY_MAX 8

struct vg_tariff {
    uint64_t id;        /* from 1 */
    char pool[64];      /* "": every pool that has no line of its own */
    char class[16];     /* "": every class */
    uint64_t from_usec; /* wall time */
    uint64_t gpu_hour_micro, cpu_hour_micro, gib_hour_micro, storage_gib_month_micro;
    uint32_t idle_milli;        /* off what GPUs cost while they are held and do nothing */
    uint32_t preemptible_milli; /* off everything, of tasks that may be preempted */
    char currency[VG_CURRENCY_MAX + 1];
    char who[64]; /* set it */
    uint64_t set_usec;
};

struct vg_book {
    struct vg_tariff *tariff; /* owned; in the order in which they were set */
    size_t n, cap;
};

void vg_book_done(struct vg_book *b);
/* 0, -ENOMEM, or -E2BIG: it is full. The id is given when it is 0. */
int vg_book_add(struct vg_book *b, const struct vg_tariff *t);
/* Undoes the newest addition. */
void vg_book_drop(struct vg_book *b, uint64_t id);
/* What holds for that pool and class then; NULL: nothing is charged. Borrowed until the next
   addition. */
const struct vg_tariff *vg_book_at(const struct vg_book *b, const char *pool, const char *class,
                                   uint64_t usec);
const struct vg_tariff *vg_book_get(const struct vg_book *b, uint64_t id); /* NULL: none */
/* When after `usec` another entry may begin to hold there; UINT64_MAX: never. */
uint64_t vg_book_next(const struct vg_book *b, const char *pool, const char *class, uint64_t usec);
/* The newest of exactly that line set by `who`; NULL: none. */
const struct vg_tariff *vg_book_newest(const struct vg_book *b, const char *pool, const char *class,
                                       const char *who);
/* Whether both charge the same. */
bool vg_tariff_same(const struct vg_tariff *a, const struct vg_tariff *b);
/* 0, or a sentence about what is wrong with it. */
int vg_tariff_check(const struct vg_tariff *t, struct vg_err *err);
