/* Baselines that keep no plan.

   fifo    strictly first come, first served: while the first does not fit, nobody starts
   random  any waiting job that fits, drawn evenly: the order of schedulers that have none
   drf     dominant resource fairness: the tenant that holds least for its weight starts its oldest
           job; tenants whose oldest does not fit are passed over */
#include "base/cleanup.h"
#include "base/mem.h"
#include "sim/cluster.h"
#include "sim/policy.h"
#include "sim/rng.h"

#include <string.h>

/* Waiting jobs in order of arrival. A job that was started leaves a hole until the front moves. */
struct queue {
    uint32_t *job; /* owned ring-free array: jobs only come once, so it never wraps */
    size_t head, n, cap;
};

struct plain {
    const struct vg_workload *w;
    struct vg_cluster cluster;
    struct vg_rng rng;
    struct queue queue; /* fifo, random */
    struct queue *of;   /* drf: by tenant */
    uint64_t *held;     /* drf: units by tenant */
    bool *stuck;        /* drf: by tenant; random: by kind */
};

static int push(struct queue *q, uint32_t job) {
    uint32_t *grown = vg_grow(q->job, &q->cap, q->n + 1, sizeof(*q->job));
    if (!grown)
        return -ENOMEM;
    q->job = grown;
    q->job[q->n++] = job;
    return 0;
}

static void plain_free(void *arg) {
    struct plain *p = arg;
    if (!p)
        return;
    for (size_t i = 0; p->of && i < p->w->n_tenants; i++)
        free(p->of[i].job);
    free(p->of);
    free(p->held);
    free(p->stuck);
    free(p->queue.job);
    vg_cluster_done(&p->cluster);
    free(p);
}

static int plain_make(const struct vg_workload *w, const struct vg_policy_opts *o, void **ret,
                      struct vg_err *err) {
    struct plain *p = vg_alloc(sizeof(*p));
    if (!p)
        return vg_err_sys(err, -ENOMEM, "cannot make a policy");
    p->w = w;
    p->rng = vg_rng_seeded(o->seed);
    p->of = vg_alloc(VG_MAX(w->n_tenants, 1u) * sizeof(*p->of));
    p->held = vg_alloc(VG_MAX(w->n_tenants, 1u) * sizeof(*p->held));
    p->stuck = vg_alloc(VG_MAX(VG_MAX(w->n_tenants, w->n_kinds), 1u) * sizeof(*p->stuck));
    if (!p->of || !p->held || !p->stuck || vg_cluster_init(&p->cluster, w) < 0) {
        plain_free(p);
        return vg_err_sys(err, -ENOMEM, "cannot make a policy");
    }
    *ret = p;
    return 0;
}

static int plain_submit(void *arg, uint64_t now, uint32_t job) {
    struct plain *p = arg;
    (void)now;
    return push(&p->queue, job);
}

static void plain_finish(void *arg, uint64_t now, uint32_t job, uint64_t ran) {
    struct plain *p = arg;
    (void)now, (void)ran;
    vg_cluster_stop(&p->cluster, job);
}

static int started(struct plain *p, uint32_t job, struct vg_decision *ret) {
    *ret = (struct vg_decision){
        .kind = VG_DECIDE_START, .job = job, .node = vg_cluster_nodes(&p->cluster, job)};
    return 1;
}

static int fifo_next(void *arg, uint64_t now, struct vg_decision *ret, struct vg_err *err) {
    struct plain *p = arg;
    struct queue *q = &p->queue;
    (void)now, (void)err;
    if (q->head == q->n || !vg_cluster_start(&p->cluster, q->job[q->head], NULL))
        return 0;
    return started(p, q->job[q->head++], ret);
}

/* Draws until something fits or every kind that waits was seen not to fit. */
static int random_next(void *arg, uint64_t now, struct vg_decision *ret, struct vg_err *err) {
    struct plain *p = arg;
    struct queue *q = &p->queue;
    (void)now, (void)err;
    memset(p->stuck, 0, p->w->n_kinds * sizeof(*p->stuck));
    for (size_t left = q->n; left > 0;) {
        size_t i = vg_rng_below(&p->rng, left);
        uint32_t job = q->job[i];
        bool *stuck = &p->stuck[p->w->job[job].kind];
        if (!*stuck && vg_cluster_start(&p->cluster, job, NULL)) {
            q->job[i] = q->job[--q->n];
            return started(p, job, ret);
        }
        *stuck = true;
        q->job[i] = q->job[--left]; /* out of this draw, still waiting */
        q->job[left] = job;
    }
    return 0;
}

static int drf_submit(void *arg, uint64_t now, uint32_t job) {
    struct plain *p = arg;
    (void)now;
    return push(&p->of[p->w->job[job].tenant], job);
}

static uint64_t units_of(const struct plain *p, uint32_t job) {
    return (uint64_t)p->w->job[job].members * p->w->job[job].units;
}

static void drf_finish(void *arg, uint64_t now, uint32_t job, uint64_t ran) {
    struct plain *p = arg;
    p->held[p->w->job[job].tenant] -= units_of(p, job);
    plain_finish(arg, now, job, ran);
}

static int drf_next(void *arg, uint64_t now, struct vg_decision *ret, struct vg_err *err) {
    struct plain *p = arg;
    (void)now, (void)err;
    memset(p->stuck, 0, p->w->n_tenants * sizeof(*p->stuck));
    for (;;) {
        size_t best = SIZE_MAX;
        double least = 0;
        for (size_t i = 0; i < p->w->n_tenants; i++) {
            double share = (double)p->held[i] / VG_MAX(p->w->tenant[i].weight, 1u);
            if (p->of[i].head == p->of[i].n || p->stuck[i] || (best != SIZE_MAX && share >= least))
                continue;
            best = i;
            least = share;
        }
        if (best == SIZE_MAX)
            return 0;
        struct queue *q = &p->of[best];
        uint32_t job = q->job[q->head];
        if (vg_cluster_start(&p->cluster, job, NULL)) {
            q->head++;
            p->held[best] += units_of(p, job);
            return started(p, job, ret);
        }
        p->stuck[best] = true;
    }
}

const struct vg_policy_ops vg_policy_fifo = {.name = "fifo",
                                             .about = "strictly first come, first served",
                                             .make = plain_make,
                                             .free = plain_free,
                                             .submit = plain_submit,
                                             .finish = plain_finish,
                                             .next = fifo_next};
const struct vg_policy_ops vg_policy_random = {.name = "random",
                                               .about = "any waiting job that fits",
                                               .make = plain_make,
                                               .free = plain_free,
                                               .submit = plain_submit,
                                               .finish = plain_finish,
                                               .next = random_next};
const struct vg_policy_ops vg_policy_drf = {.name = "drf",
                                            .about = "the tenant that holds least goes first",
                                            .make = plain_make,
                                            .free = plain_free,
                                            .submit = drf_submit,
                                            .finish = drf_finish,
                                            .next = drf_next};
