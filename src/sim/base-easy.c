/* EASY backfill (Lifka 1995; Mu'alem and Feitelson 2001), over nodes: first come, first served, and
   the first job that does not fit gets a reservation at the earliest time at which running jobs are
   expected to have left room for it. Later jobs may start now if they are expected to end before
   that time, or leave room for the reserved job at that time.

   Run times are guessed (guess.h). A job that outlives its guess is expected to run once more as
   long as it has run already. */
#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"
#include "sim/cluster.h"
#include "sim/guess.h"
#include "sim/policy.h"

#include <string.h>

struct running {
    uint64_t end_usec; /* expected */
    uint64_t start_usec;
    uint32_t job;
};

struct easy {
    const struct vg_workload *w;
    struct vg_cluster cluster;
    struct vg_guess guess;
    uint32_t *wait; /* owned; in order of arrival */
    size_t n_wait, wait_cap;
    struct running *run; /* owned; by expected end */
    size_t n_run, run_cap;
    uint32_t *then;       /* owned; by node: free at the reserved time, without the reserved job */
    uint32_t *spot;       /* owned; scratch: nodes of the reserved job */
    uint32_t *alike;      /* owned; by kind: the first kind that asks for the same */
    uint64_t *failed;     /* owned; by alike: jobs guessed at least so long do not fit now */
    uint64_t shadow_usec; /* the reserved time */
    size_t at;            /* how far backfilling has come since the last event; 0: at the first */
    bool planned;
};

static void easy_free(void *arg) {
    struct easy *p = arg;
    if (!p)
        return;
    vg_cluster_done(&p->cluster);
    vg_guess_done(&p->guess);
    free(p->wait);
    free(p->run);
    free(p->then);
    free(p->spot);
    free(p->failed);
    free(p->alike);
    free(p);
}

static uint32_t first_alike(const struct vg_workload *w, size_t kind) {
    const struct vg_work_shape *k = &w->kind[kind], *i = w->kind;
    while (i->pool != k->pool || i->members != k->members || i->units != k->units)
        i++;
    return (uint32_t)(i - w->kind);
}

static int easy_make(const struct vg_workload *w, const struct vg_policy_opts *o, void **ret,
                     struct vg_err *err) {
    struct easy *p = vg_alloc(sizeof(*p));
    if (!p)
        return vg_err_sys(err, -ENOMEM, "cannot make a policy");
    p->w = w;
    p->then = vg_alloc(VG_MAX(w->n_nodes, 1u) * sizeof(*p->then));
    p->spot = vg_alloc(VG_WORK_MEMBERS_MAX * sizeof(*p->spot));
    p->failed = vg_alloc(VG_MAX(w->n_kinds, 1u) * sizeof(*p->failed));
    p->alike = vg_alloc(VG_MAX(w->n_kinds, 1u) * sizeof(*p->alike));
    if (!p->then || !p->spot || !p->failed || !p->alike || vg_cluster_init(&p->cluster, w) < 0 ||
        vg_guess_init(&p->guess, w, o->oracle) < 0) {
        easy_free(p);
        return vg_err_sys(err, -ENOMEM, "cannot make a policy");
    }
    for (size_t i = 0; i < w->n_kinds; i++)
        p->alike[i] = first_alike(w, i);
    *ret = p;
    return 0;
}

/* Something happened: look at everybody again. */
static void restart(struct easy *p) {
    p->at = 0;
    p->planned = false;
    memset(p->failed, 0xff, p->w->n_kinds * sizeof(*p->failed));
}

static int easy_submit(void *arg, uint64_t now, uint32_t job) {
    struct easy *p = arg;
    (void)now;
    uint32_t *grown = vg_grow(p->wait, &p->wait_cap, p->n_wait + 1, sizeof(*p->wait));
    if (!grown)
        return -ENOMEM;
    p->wait = grown;
    p->wait[p->n_wait++] = job;
    restart(p);
    return 0;
}

static void insert_running(struct easy *p, struct running r) {
    size_t lo = 0, hi = p->n_run;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (p->run[mid].end_usec <= r.end_usec)
            lo = mid + 1;
        else
            hi = mid;
    }
    memmove(&p->run[lo + 1], &p->run[lo], (p->n_run - lo) * sizeof(*p->run));
    p->run[lo] = r;
    p->n_run++;
}

static void remove_running(struct easy *p, size_t i) {
    p->n_run--;
    memmove(&p->run[i], &p->run[i + 1], (p->n_run - i) * sizeof(*p->run));
}

static void easy_finish(void *arg, uint64_t now, uint32_t job, uint64_t ran) {
    struct easy *p = arg;
    (void)now;
    for (size_t i = 0; i < p->n_run; i++)
        if (p->run[i].job == job) {
            remove_running(p, i);
            break;
        }
    vg_cluster_stop(&p->cluster, job);
    vg_guess_note(&p->guess, job, ran);
    restart(p);
}

static void extend_overdue(struct easy *p, uint64_t now) {
    while (p->n_run && p->run[0].end_usec <= now) {
        struct running r = p->run[0];
        remove_running(p, 0);
        r.end_usec = now + VG_MAX(now - r.start_usec, VG_USEC);
        insert_running(p, r);
    }
}

/* Members of `units` that fit into n free ones. */
static uint64_t rooms(const struct easy *p, const struct vg_work_job *j, size_t node, uint32_t n) {
    return p->w->node[node].pool == j->pool ? n / j->units : 0;
}

/* Reserves for the first: when, and what is then left for others. */
static void plan(struct easy *p, uint64_t now) {
    const struct vg_work_job *first = &p->w->job[p->wait[0]];
    uint64_t room = 0;
    memcpy(p->then, p->cluster.free, p->w->n_nodes * sizeof(*p->then));
    for (size_t n = 0; n < p->w->n_nodes; n++)
        room += rooms(p, first, n, p->then[n]);
    extend_overdue(p, now);
    p->shadow_usec = now;
    for (size_t i = 0; i < p->n_run && room < first->members; i++) {
        const struct vg_work_job *j = &p->w->job[p->run[i].job];
        const uint32_t *node = vg_cluster_nodes(&p->cluster, p->run[i].job);
        for (uint32_t m = 0; m < j->members; m++) {
            room -= rooms(p, first, node[m], p->then[node[m]]);
            p->then[node[m]] += j->units;
            room += rooms(p, first, node[m], p->then[node[m]]);
        }
        p->shadow_usec = p->run[i].end_usec;
    }
    if (vg_cluster_find(&p->cluster, p->then, NULL, first, p->spot))
        for (uint32_t m = 0; m < first->members; m++)
            p->then[p->spot[m]] -= first->units;
    p->planned = true;
}

static int start(struct easy *p, uint64_t now, size_t i, struct vg_decision *ret) {
    uint32_t job = p->wait[i];
    struct running *grown = vg_grow(p->run, &p->run_cap, p->n_run + 1, sizeof(*p->run));
    if (!grown)
        return -ENOMEM;
    p->run = grown;
    insert_running(p, (struct running){.end_usec = now + vg_guess_run_usec(&p->guess, job),
                                       .start_usec = now,
                                       .job = job});
    p->n_wait--;
    memmove(&p->wait[i], &p->wait[i + 1], (p->n_wait - i) * sizeof(*p->wait));
    *ret = (struct vg_decision){
        .kind = VG_DECIDE_START, .job = job, .node = vg_cluster_nodes(&p->cluster, job)};
    return 1;
}

/* Whether job i may start now without delaying the first; takes its place if so. */
static bool backfill(struct easy *p, uint64_t now, size_t i) {
    uint32_t job = p->wait[i];
    const struct vg_work_job *j = &p->w->job[job];
    uint64_t guess = vg_guess_run_usec(&p->guess, job);
    uint64_t *failed = &p->failed[p->alike[j->kind]];
    if (guess >= *failed)
        return false;
    bool ends_before = now + guess <= p->shadow_usec;
    if (!vg_cluster_start(&p->cluster, job, ends_before ? NULL : p->then)) {
        *failed = guess;
        return false;
    }
    if (!ends_before) {
        const uint32_t *node = vg_cluster_nodes(&p->cluster, job);
        for (uint32_t m = 0; m < j->members; m++)
            p->then[node[m]] -= j->units;
    }
    return true;
}

static int easy_next(void *arg, uint64_t now, struct vg_decision *ret, struct vg_err *err) {
    struct easy *p = arg;
    int r = 0;
    if (!p->planned && p->n_wait && vg_cluster_start(&p->cluster, p->wait[0], NULL)) {
        r = start(p, now, 0, ret);
    } else if (p->n_wait && p->cluster.units_free) {
        if (!p->planned)
            plan(p, now);
        for (size_t i = VG_MAX(p->at, (size_t)1); i < p->n_wait && !r; i++) {
            p->at = i;
            if (backfill(p, now, i))
                r = start(p, now, i, ret);
        }
        if (!r)
            p->at = p->n_wait;
    }
    return r < 0 ? vg_err_sys(err, r, "cannot start a job") : r;
}

const struct vg_policy_ops vg_policy_easy = {.name = "easy",
                                             .about = "EASY backfill with one reservation",
                                             .make = easy_make,
                                             .free = easy_free,
                                             .submit = easy_submit,
                                             .finish = easy_finish,
                                             .next = easy_next};
