/* How good the engine's estimates are: see estimate.h. */
#include "sim/estimate.h"

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define WAITED (60 * VG_USEC) /* less is no wait: nobody asks for an estimate */
#define LAST 100              /* waits that the naive estimate remembers */

int vg_estimates_init(struct vg_estimates *e, size_t jobs) {
    *e = (struct vg_estimates){.job = vg_alloc((jobs + 1) * sizeof(*e->job)), .n = jobs};
    return e->job ? 0 : -ENOMEM;
}

void vg_estimates_done(struct vg_estimates *e) {
    free(e->job);
    *e = (struct vg_estimates){0};
}

/* Only the first time counts: a job that was stopped and waits again had its estimate. */
void vg_estimates_tell(struct vg_estimates *e, uint32_t job, uint64_t now, uint64_t expected) {
    if (!e->job[job].came_usec)
        e->job[job] = (struct vg_estimate){.came_usec = VG_MAX(now, 1), .expected_usec = expected};
}

void vg_estimates_started(struct vg_estimates *e, uint32_t job, uint64_t now) {
    if (!e->job[job].started_usec)
        e->job[job].started_usec = now;
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *v, size_t n) {
    if (!n)
        return NAN;
    qsort(v, n, sizeof(*v), by_size);
    return v[n / 2];
}

static uint64_t wait_of(const struct vg_estimate *x) {
    return x->came_usec && x->started_usec > x->came_usec ? x->started_usec - x->came_usec : 0;
}

static int by_start(const void *a, const void *b) {
    const struct vg_estimate *x = *(const struct vg_estimate *const *)a,
                             *y = *(const struct vg_estimate *const *)b;
    return (x->started_usec > y->started_usec) - (x->started_usec < y->started_usec);
}

/* Jobs come in order; `waited` is by start. What had started when one came is known to it. */
static double naive(const struct vg_estimates *e, const struct vg_estimate **waited, size_t n,
                    double *scratch) {
    double last[LAST];
    size_t seen = 0, k = 0;
    qsort(waited, n, sizeof(*waited), by_start);
    for (size_t i = 0; i < e->n; i++) {
        const struct vg_estimate *x = &e->job[i];
        uint64_t wait = wait_of(x);
        if (wait < WAITED)
            continue;
        while (seen < n && waited[seen]->started_usec <= x->came_usec)
            seen++;
        size_t m = VG_MIN(seen, (size_t)LAST);
        for (size_t j = 0; j < m; j++)
            last[j] = (double)wait_of(waited[seen - 1 - j]);
        if (m)
            scratch[k++] = fabs(median(last, m) - (double)wait) / (double)wait;
    }
    return median(scratch, k);
}

int vg_estimates_sum(const struct vg_estimates *e, struct vg_estimate_summary *ret) {
    vg_auto_free double *error = vg_alloc((e->n + 1) * sizeof(*error));
    vg_auto_free double *ratio = vg_alloc((e->n + 1) * sizeof(*ratio));
    vg_auto_free double *waits = vg_alloc((e->n + 1) * sizeof(*waits));
    vg_auto_free const struct vg_estimate **waited = vg_alloc((e->n + 1) * sizeof(*waited));
    size_t n = 0, close = 0, all = 0;
    if (!error || !ratio || !waits || !waited)
        return -ENOMEM;
    *ret = (struct vg_estimate_summary){0};
    for (size_t i = 0; i < e->n; i++) {
        const struct vg_estimate *x = &e->job[i];
        uint64_t wait = wait_of(x);
        if (wait < WAITED)
            continue;
        waited[all] = x;
        waits[all++] = (double)wait;
        if (x->expected_usec == VG_ENG_NEVER) {
            ret->unknown++;
            continue;
        }
        double r = (double)(x->expected_usec - x->came_usec) / (double)wait;
        close += r >= 0.5 && r <= 2;
        error[n] = fabs(r - 1);
        ratio[n++] = r;
    }
    ret->told = all;
    ret->median_error = median(error, n);
    ret->median_ratio = median(ratio, n);
    ret->within_2 = n ? (double)close / (double)n : NAN;
    ret->naive_error = naive(e, waited, all, error);
    ret->median_wait_usec = all ? (uint64_t)median(waits, all) : 0;
    return 0;
}

void vg_estimates_print(const struct vg_estimate_summary *s, bool json) {
    char wait[32];
    if (json) {
        printf("{\"estimates\": %zu, \"unknown\": %zu, \"median_wait_s\": %.1f, "
               "\"median_relative_error\": %.3f, \"within_a_factor_of_2\": %.3f, "
               "\"median_expected_by_real\": %.3f, \"naive_median_relative_error\": %.3f}\n",
               s->told, s->unknown, (double)s->median_wait_usec / 1e6, s->median_error, s->within_2,
               s->median_ratio, s->naive_error);
        return;
    }
    printf("Estimates of virga, told to %zu jobs when they came that then waited a minute or more "
           "(half of them over %s):\n",
           s->told, vg_format_duration(s->median_wait_usec, wait, sizeof(wait)));
    printf("  half were off by less than %.0f %% of the wait; %.0f %% waited between half of and "
           "twice what they were told; half were told more than %.2f of their wait; %zu were told "
           "nothing.\n",
           100 * s->median_error, 100 * s->within_2, s->median_ratio, s->unknown);
    printf("  For comparison, saying the median of the last %d waits: off by %.0f %%.\n\n", LAST,
           100 * s->naive_error);
}
