/* Learnt run times: the 75th percentile of the last ended jobs of a kind, an hour before any. A
   high quantile, because a plan that is too short breaks its reservation. */
#include "sim/guess.h"

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"

#include <string.h>

#define UNKNOWN_USEC (3600 * VG_USEC)

int vg_guess_init(struct vg_guess *g, const struct vg_workload *w, bool oracle) {
    *g = (struct vg_guess){.w = w, .oracle = oracle};
    g->kind = vg_alloc(VG_MAX(w->n_kinds, 1u) * sizeof(*g->kind));
    return g->kind ? 0 : -ENOMEM;
}

void vg_guess_done(struct vg_guess *g) {
    free(g->kind);
    g->kind = NULL;
}

static int by_size(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

void vg_guess_note(struct vg_guess *g, uint32_t job, uint64_t ran_usec) {
    struct vg_guess_kind *k = &g->kind[g->w->job[job].kind];
    uint64_t sorted[VG_GUESS_RECENT];
    k->recent_usec[k->at] = ran_usec;
    k->at = (k->at + 1) % VG_GUESS_RECENT;
    k->n = VG_MIN(k->n + 1, (uint32_t)VG_GUESS_RECENT);
    memcpy(sorted, k->recent_usec, k->n * sizeof(*sorted));
    qsort(sorted, k->n, sizeof(*sorted), by_size);
    k->guess_usec = VG_MAX(sorted[(k->n * 3 - 1) / 4], (uint64_t)1);
}

uint64_t vg_guess_run_usec(const struct vg_guess *g, uint32_t job) {
    if (g->oracle)
        return VG_MAX(g->w->job[job].run_usec, (uint64_t)1);
    uint64_t guess = g->kind[g->w->job[job].kind].guess_usec;
    return guess ? guess : UNKNOWN_USEC;
}
