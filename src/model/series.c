/* How something went over time; see the header. Numbers are kept as floats: a plot needs no more
   than seven digits, and a day of ten thousand tasks has to fit into memory. */
#include "model/series.h"

#include "base/cleanup.h"
#include "base/mem.h"

#include <errno.h>
#include <string.h>

#define FIRST_CAP 16u

struct vg_span {
    uint32_t at_sec; /* of its first sample, since the series' begin */
    uint32_t weight; /* samples */
    float value[VG_SERIES_VALUES];
};

struct vg_fine {
    uint32_t n, next; /* a ring */
    struct vg_point point[VG_SERIES_FINE];
};

/* ------------------------------------------------------------------ means */

static void merge(struct vg_span *to, const struct vg_span *from) {
    double a = to->weight, b = from->weight;
    for (size_t i = 0; i < VG_SERIES_VALUES; i++) {
        float x = to->value[i], y = from->value[i];
        if (x < 0)
            to->value[i] = y;
        else if (y >= 0)
            to->value[i] = (float)((x * a + y * b) / (a + b));
    }
    to->weight += from->weight;
}

/* Twice as long spans. */
static void fold(struct vg_series *s) {
    uint32_t n = 0;
    s->step_sec *= 2;
    for (uint32_t i = 0; i < s->n; i++)
        if (n && s->span[n - 1].at_sec / s->step_sec == s->span[i].at_sec / s->step_sec)
            merge(&s->span[n - 1], &s->span[i]);
        else
            s->span[n++] = s->span[i];
    s->n = n;
}

/* Room for one more: by growing, else by folding. */
static int make_room(struct vg_series *s, size_t *room) {
    uint32_t cap = s->cap ? VG_MIN(s->cap * 2, (uint32_t)VG_SERIES_POINTS) : FIRST_CAP;
    size_t more = (cap - s->cap) * sizeof *s->span;
    struct vg_span *p = more && more <= *room ? vg_realloc(s->span, cap * sizeof *p) : NULL;
    if (p) {
        *room -= more;
        s->span = p;
        s->cap = cap;
    }
    if (!s->cap)
        return -ENOMEM;
    while (s->n == s->cap)
        fold(s);
    return 0;
}

/* ------------------------------------------------------------------ adding */

static void add_fine(struct vg_series *s, const struct vg_point *p, size_t *room) {
    if (!s->fine && *room >= sizeof *s->fine && (s->fine = vg_alloc(sizeof *s->fine)))
        *room -= sizeof *s->fine;
    if (!s->fine)
        return;
    s->fine->point[s->fine->next] = *p;
    s->fine->next = (s->fine->next + 1) % VG_SERIES_FINE;
    s->fine->n = VG_MIN(s->fine->n + 1, (uint32_t)VG_SERIES_FINE);
}

int vg_series_add(struct vg_series *s, const struct vg_point *p, bool fine, size_t *room) {
    struct vg_span one = {.weight = 1};
    if (!s->n && !s->step_sec) {
        s->begin_usec = p->when_usec;
        s->step_sec = 1;
    }
    struct vg_span *last = s->n ? &s->span[s->n - 1] : NULL;
    uint64_t since = p->when_usec > s->begin_usec ? p->when_usec - s->begin_usec : 0;
    one.at_sec = (uint32_t)VG_MIN(since / 1000000, (uint64_t)UINT32_MAX);
    for (size_t i = 0; i < VG_SERIES_VALUES; i++)
        one.value[i] = p->value[i] < 0 ? -1 : (float)p->value[i];
    if (fine)
        add_fine(s, p, room);
    if (last && one.at_sec < last->at_sec)
        one.at_sec = last->at_sec; /* a clock was set back */
    if (last && last->at_sec / s->step_sec == one.at_sec / s->step_sec) {
        merge(last, &one);
        return 0;
    }
    if (s->n == s->cap && make_room(s, room) < 0)
        return -ENOMEM;
    s->span[s->n++] = one;
    return 0;
}

void vg_series_coarse(struct vg_series *s, size_t *room) {
    if (s->fine)
        *room += sizeof *s->fine;
    free(vg_take_ptr(s->fine));
}

void vg_series_done(struct vg_series *s, size_t *room) {
    vg_series_coarse(s, room);
    *room += s->cap * sizeof *s->span;
    free(s->span);
    *s = (struct vg_series){0};
}

/* ------------------------------------------------------------------ reading */

static struct vg_point of_span(const struct vg_series *s, const struct vg_span *b) {
    struct vg_point p = {.when_usec = s->begin_usec + b->at_sec * 1000000ULL};
    for (size_t i = 0; i < VG_SERIES_VALUES; i++)
        p.value[i] = b->value[i] < 0 ? -1 : (int64_t)b->value[i];
    return p;
}

static const struct vg_point *fine_at(const struct vg_fine *f, uint32_t i) {
    return &f->point[(f->next + VG_SERIES_FINE - f->n + i) % VG_SERIES_FINE];
}

/* Everything, spans first and then the fine points that are younger than the span they begin in. */
static size_t read_all(const struct vg_series *s, uint64_t since_usec, struct vg_point *to) {
    uint64_t fine_from = s->fine && s->fine->n ? fine_at(s->fine, 0)->when_usec : UINT64_MAX;
    size_t n = 0;
    for (uint32_t i = 0; i < s->n; i++) {
        struct vg_point p = of_span(s, &s->span[i]);
        if (p.when_usec >= since_usec && p.when_usec < fine_from)
            to[n++] = p;
    }
    for (uint32_t i = 0; s->fine && i < s->fine->n; i++)
        if (fine_at(s->fine, i)->when_usec >= since_usec)
            to[n++] = *fine_at(s->fine, i);
    return n;
}

static struct vg_point mean(const struct vg_point *p, size_t n) {
    struct vg_point m = {.when_usec = p[0].when_usec};
    for (size_t v = 0; v < VG_SERIES_VALUES; v++) {
        double sum = 0;
        size_t told = 0;
        for (size_t i = 0; i < n; i++)
            if (p[i].value[v] >= 0) {
                sum += (double)p[i].value[v];
                told++;
            }
        m.value[v] = told ? (int64_t)(sum / (double)told) : -1;
    }
    return m;
}

size_t vg_points_thin(struct vg_point *p, size_t n, size_t max) {
    if (!max || n <= max)
        return n;
    for (size_t i = 0; i < max; i++) {
        size_t from = n * i / max, until = n * (i + 1) / max;
        p[i] = mean(p + from, until - from);
    }
    return max;
}

size_t vg_series_read(const struct vg_series *s, uint64_t since_usec, struct vg_point *to,
                      size_t max) {
    vg_auto_free struct vg_point *all = vg_alloc((VG_SERIES_POINTS + VG_SERIES_FINE) * sizeof *all);
    size_t n = all ? vg_points_thin(all, read_all(s, since_usec, all), max) : 0;
    if (n)
        memcpy(to, all, n * sizeof *all);
    return n;
}
