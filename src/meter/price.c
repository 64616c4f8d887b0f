/* The price book; see the header. */
#include "meter/price.h"

#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

void vg_book_done(struct vg_book *b) {
    free(b->tariff);
    *b = (struct vg_book){0};
}

int vg_book_add(struct vg_book *b, const struct vg_tariff *t) {
    if (b->n == VG_BOOK_MAX)
        return -E2BIG;
    struct vg_tariff *more = vg_grow(b->tariff, &b->cap, b->n + 1, sizeof *more);
    if (!more)
        return -ENOMEM;
    b->tariff = more;
    b->tariff[b->n] = *t;
    if (!t->id)
        b->tariff[b->n].id = b->n ? b->tariff[b->n - 1].id + 1 : 1;
    b->n++;
    return 0;
}

void vg_book_drop(struct vg_book *b, uint64_t id) {
    if (b->n && b->tariff[b->n - 1].id == id)
        b->n--;
}

/* How exactly the entry's line names the place; 0: it is about another one. */
static int rank(const struct vg_tariff *t, const char *pool, const char *class) {
    bool of_pool = t->pool[0] != '\0', of_class = t->class[0] != '\0';
    if ((of_pool && strcmp(t->pool, pool) != 0) || (of_class && strcmp(t->class, class) != 0))
        return 0;
    return 1 + 2 * of_pool + of_class;
}

const struct vg_tariff *vg_book_at(const struct vg_book *b, const char *pool, const char *class,
                                   uint64_t usec) {
    const struct vg_tariff *best = NULL;
    int best_rank = 0;
    for (size_t i = 0; i < b->n; i++) {
        const struct vg_tariff *t = &b->tariff[i];
        int r = t->from_usec <= usec ? rank(t, pool, class) : 0;
        if (r && (r > best_rank || (r == best_rank && t->from_usec >= best->from_usec))) {
            best = t;
            best_rank = r;
        }
    }
    return best;
}

const struct vg_tariff *vg_book_get(const struct vg_book *b, uint64_t id) {
    for (size_t i = 0; i < b->n; i++)
        if (b->tariff[i].id == id)
            return &b->tariff[i];
    return NULL;
}

uint64_t vg_book_next(const struct vg_book *b, const char *pool, const char *class, uint64_t usec) {
    uint64_t next = UINT64_MAX;
    for (size_t i = 0; i < b->n; i++) {
        const struct vg_tariff *t = &b->tariff[i];
        if (t->from_usec > usec && t->from_usec < next && rank(t, pool, class))
            next = t->from_usec;
    }
    return next;
}

const struct vg_tariff *vg_book_newest(const struct vg_book *b, const char *pool, const char *class,
                                       const char *who) {
    for (size_t i = b->n; i--;) {
        const struct vg_tariff *t = &b->tariff[i];
        if (!strcmp(t->pool, pool) && !strcmp(t->class, class) && !strcmp(t->who, who))
            return t;
    }
    return NULL;
}

bool vg_tariff_same(const struct vg_tariff *a, const struct vg_tariff *b) {
    return a->gpu_hour_micro == b->gpu_hour_micro && a->cpu_hour_micro == b->cpu_hour_micro &&
           a->gib_hour_micro == b->gib_hour_micro &&
           a->storage_gib_month_micro == b->storage_gib_month_micro &&
           a->idle_milli == b->idle_milli && a->preemptible_milli == b->preemptible_milli &&
           !strcmp(a->currency, b->currency);
}

int vg_tariff_check(const struct vg_tariff *t, struct vg_err *err) {
    if (t->gpu_hour_micro > VG_TARIFF_MICRO_MAX || t->cpu_hour_micro > VG_TARIFF_MICRO_MAX ||
        t->gib_hour_micro > VG_TARIFF_MICRO_MAX || t->storage_gib_month_micro > VG_TARIFF_MICRO_MAX)
        return vg_err_set(err, VG_INVALID, "a price is at most 1000000 an hour (or a month)");
    if (t->idle_milli > VG_DISCOUNT_ALL || t->preemptible_milli > VG_DISCOUNT_ALL)
        return vg_err_set(err, VG_INVALID, "a discount is at most 100 percent");
    return 0;
}
