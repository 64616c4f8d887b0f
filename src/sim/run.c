/* The loop over virtual time. */
#include "sim/run.h"

#include "base/cleanup.h"
#include "base/mem.h"
#include "sim/heap.h"
#include "sim/sim.h"

#include <inttypes.h>
#include <string.h>

enum state { TO_COME, WAITS, RUNS, ENDED };

struct job_state {
    enum state state;
    uint32_t attempt;
    uint64_t start_usec;
    uint64_t done_usec; /* useful work kept over stops */
};

struct loop {
    const struct vg_workload *w;
    const struct vg_policy_ops *ops;
    const struct vg_run_opts *o;
    void *policy;
    struct vg_account account;
    struct vg_heap ends;
    struct job_state *job; /* owned */
    uint32_t *free;        /* owned; by node: our own books */
    uint32_t **nodes;      /* owned; of running jobs */
    size_t next;           /* arrival */
    uint64_t now;
    double policy_s;
};

static void loop_done(struct loop *l) {
    for (size_t i = 0; l->nodes && i < l->w->n_jobs; i++)
        free(l->nodes[i]);
    free(l->nodes);
    free(l->job);
    free(l->free);
    vg_heap_done(&l->ends);
    vg_account_done(&l->account);
    if (l->policy)
        l->ops->free(l->policy);
}

static int loop_init(struct loop *l, struct vg_err *err) {
    const struct vg_workload *w = l->w;
    l->job = vg_alloc(VG_MAX(w->n_jobs, 1u) * sizeof(*l->job));
    l->nodes = vg_alloc(VG_MAX(w->n_jobs, 1u) * sizeof(*l->nodes));
    l->free = vg_alloc(VG_MAX(w->n_nodes, 1u) * sizeof(*l->free));
    if (!l->job || !l->nodes || !l->free || vg_account_init(&l->account, w, l->o->fairness) < 0)
        return vg_err_sys(err, -ENOMEM, "cannot begin the simulation");
    for (size_t i = 0; i < w->n_nodes; i++)
        l->free[i] = w->node[i].units;
    return l->ops->make(w, &l->o->policy, &l->policy, err);
}

static int broken(const struct loop *l, uint32_t job, struct vg_err *err, const char *what) {
    return vg_err_set(err, VG_INTERNAL,
                      "policy '%s' broke a rule at %" PRIu64 " us: job %" PRIu32 " %s",
                      l->ops->name, l->now, job, what);
}

static int submit(struct loop *l, uint32_t job, struct vg_err *err) {
    l->job[job].state = WAITS;
    int r = l->ops->submit(l->policy, l->now, job);
    return r < 0 ? vg_err_sys(err, r, "policy '%s' cannot take job %" PRIu32, l->ops->name, job)
                 : 0;
}

static int on_start(struct loop *l, const struct vg_decision *d, struct vg_err *err) {
    const struct vg_work_job *j = &l->w->job[d->job];
    struct job_state *s = &l->job[d->job];
    if (s->state != WAITS)
        return broken(l, d->job, err, "was started but does not wait");
    for (uint32_t m = 0; m < j->members; m++) {
        uint32_t n = d->node[m];
        if (n >= l->w->n_nodes || l->w->node[n].pool != j->pool || l->free[n] < j->units)
            return broken(l, d->job, err, "was placed where there is no room for it");
        l->free[n] -= j->units;
    }
    l->nodes[d->job] = vg_memdup(d->node, j->members * sizeof(*d->node));
    s->state = RUNS;
    s->start_usec = l->now;
    s->attempt++;
    if (!l->nodes[d->job] ||
        vg_heap_put(&l->ends, l->now + j->run_usec - s->done_usec, d->job, s->attempt) < 0)
        return vg_err_sys(err, -ENOMEM, "cannot go on with the simulation");
    vg_account_start(&l->account, d->job);
    return 0;
}

static void free_nodes(struct loop *l, uint32_t job) {
    const struct vg_work_job *j = &l->w->job[job];
    for (uint32_t m = 0; m < j->members; m++)
        l->free[l->nodes[job][m]] += j->units;
    free(l->nodes[job]);
    l->nodes[job] = NULL;
}

static int on_stop(struct loop *l, uint32_t job, struct vg_err *err) {
    struct job_state *s = &l->job[job];
    if (s->state != RUNS)
        return broken(l, job, err, "was stopped but does not run");
    uint64_t had = s->done_usec + (l->now - s->start_usec);
    uint64_t keep = l->o->checkpoint_usec ? had - had % l->o->checkpoint_usec : 0;
    s->done_usec = VG_MAX(keep, s->done_usec);
    s->attempt++; /* its end in the heap is stale now */
    free_nodes(l, job);
    vg_account_stop(&l->account, job, had - s->done_usec);
    return submit(l, job, err);
}

static int on_end(struct loop *l, const struct vg_event *e) {
    struct job_state *s = &l->job[e->job];
    if (s->state != RUNS || s->attempt != e->attempt)
        return 0;
    s->state = ENDED;
    free_nodes(l, e->job);
    vg_account_end(&l->account, e->job, l->now);
    l->ops->finish(l->policy, l->now, e->job, l->now - s->start_usec);
    return 1;
}

static int decide(struct loop *l, struct vg_err *err) {
    struct vg_decision d;
    int r;
    while ((r = l->ops->next(l->policy, l->now, &d, err)) > 0) {
        l->account.r.decisions++;
        if (d.job >= l->w->n_jobs)
            return broken(l, d.job, err, "does not exist");
        r = d.kind == VG_DECIDE_START ? on_start(l, &d, err) : on_stop(l, d.job, err);
        if (r < 0)
            return r;
    }
    return r;
}

/* The time of the next thing that happens; UINT64_MAX: nothing more. */
static uint64_t next_time(struct loop *l) {
    uint64_t t = UINT64_MAX;
    if (l->next < l->w->n_jobs)
        t = l->w->job[l->next].arrive_usec;
    if (l->ends.n && l->ends.e[0].at_usec < t)
        t = l->ends.e[0].at_usec;
    if (l->ops->wake && t != UINT64_MAX) {
        uint64_t wake = l->ops->wake(l->policy);
        if (wake > l->now && wake < t)
            t = wake;
    }
    return t;
}

static int step(struct loop *l, struct vg_err *err) {
    int r = 0;
    while (l->ends.n && l->ends.e[0].at_usec == l->now) {
        struct vg_event e = vg_heap_take(&l->ends);
        on_end(l, &e);
    }
    for (; !r && l->next < l->w->n_jobs && l->w->job[l->next].arrive_usec == l->now; l->next++) {
        vg_account_arrive(&l->account, (uint32_t)l->next);
        r = submit(l, (uint32_t)l->next, err);
    }
    return r < 0 ? r : decide(l, err);
}

int vg_run(const struct vg_workload *w, const struct vg_policy_ops *ops,
           const struct vg_run_opts *o, struct vg_result *ret, struct vg_err *err) {
    struct loop l = {.w = w, .ops = ops, .o = o};
    double cpu = vg_sim_cpu_seconds();
    int r = loop_init(&l, err);
    for (uint64_t t; r == 0 && (t = next_time(&l)) != UINT64_MAX;) {
        vg_account_to(&l.account, t);
        l.now = t;
        double before = vg_sim_wall_seconds();
        r = step(&l, err);
        l.policy_s += vg_sim_wall_seconds() - before;
    }
    if (r == 0) {
        *ret = vg_account_take(&l.account);
        ret->policy_cpu_s = l.policy_s;
        ret->total_cpu_s = vg_sim_cpu_seconds() - cpu;
    }
    loop_done(&l);
    return r;
}
