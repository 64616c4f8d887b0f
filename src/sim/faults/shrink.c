/* Delta debugging over the list of faults, then over the list of tasks: halves first, then smaller
   pieces, as long as leaving something out changes nothing. Parts are switched off, not removed, so
   that what is left keeps its number and its chances. */
#include "sim/faults/shrink.h"

#include "base/cleanup.h"
#include "sim/faults/world.h"

#include <string.h>

#define RUNS_MAX 600

struct shrinking {
    struct vg_plan *plan;
    const char *promise;
    int runs;
    bool *off[VG_PLAN_TASKS_MAX + VG_PLAN_FAULTS_MAX];
    int n;
};

static bool still_breaks(struct shrinking *s) {
    struct vg_w_result r;
    s->runs++;
    vg_w_run(s->plan, NULL, &r);
    return strcmp(r.broken, s->promise) == 0;
}

/* Whether the switches [from, from + n) can all be off. */
static bool try_without(struct shrinking *s, int from, int n) {
    bool was[VG_PLAN_TASKS_MAX + VG_PLAN_FAULTS_MAX], any = false;
    for (int i = from; i < from + n; i++) {
        was[i] = *s->off[i];
        any |= !was[i];
        *s->off[i] = true;
    }
    if (any && s->runs < RUNS_MAX && still_breaks(s))
        return true;
    for (int i = from; i < from + n; i++)
        *s->off[i] = was[i];
    return false;
}

static void reduce(struct shrinking *s) {
    for (int piece = s->n; piece; piece /= 2) {
        bool changed = true;
        while (changed) {
            changed = false;
            for (int from = 0; from < s->n; from += piece)
                changed |= try_without(s, from, VG_MIN(piece, s->n - from));
        }
    }
}

void vg_plan_shrink(struct vg_plan *plan, const char *promise, struct vg_shrunk *ret) {
    struct shrinking s = {.plan = plan, .promise = promise};
    for (int round = 0; round < 2; round++) { /* fewer tasks may need fewer faults */
        s.n = 0;
        for (int i = 0; i < plan->n_faults; i++)
            s.off[s.n++] = &plan->fault[i].off;
        reduce(&s);
        s.n = 0;
        for (int i = 0; i < plan->n_tasks; i++)
            s.off[s.n++] = &plan->task[i].off;
        reduce(&s);
    }
    *ret = (struct vg_shrunk){.runs = s.runs};
    for (int i = 0; i < plan->n_faults; i++)
        ret->faults += !plan->fault[i].off;
    for (int i = 0; i < plan->n_tasks; i++)
        ret->tasks += !plan->task[i].off;
}
