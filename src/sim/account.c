/* Sums over time and jobs. */
#include "sim/account.h"

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"

#define SLOWDOWN_BOUND_S 10.0

int vg_account_init(struct vg_account *a, const struct vg_workload *w, bool fairness) {
    *a = (struct vg_account){.w = w, .fairness = fairness};
    a->r.dropped = w->dropped;
    a->r.tenant = vg_alloc(VG_MAX(w->n_tenants, 1u) * sizeof(*a->r.tenant));
    a->r.wait_s = vg_alloc(VG_MAX(w->n_jobs, 1u) * sizeof(*a->r.wait_s));
    a->slowdown = vg_alloc(VG_MAX(w->n_jobs, 1u) * sizeof(*a->slowdown));
    a->level = vg_alloc(VG_MAX(w->n_tenants, 1u) * sizeof(*a->level));
    if (!a->r.tenant || !a->r.wait_s || !a->slowdown || !a->level) {
        vg_account_done(a);
        return -ENOMEM;
    }
    a->last_arrival_usec = w->n_jobs ? w->job[w->n_jobs - 1].arrive_usec : 0;
    a->bin_usec = VG_MAX(a->last_arrival_usec / (VG_ACCOUNT_BINS / 2), (uint64_t)1);
    return 0;
}

void vg_account_done(struct vg_account *a) {
    free(a->slowdown);
    free(a->level);
    vg_result_done(&a->r);
    *a = (struct vg_account){0};
}

void vg_result_done(struct vg_result *r) {
    free(r->tenant);
    free(r->wait_s);
    r->tenant = NULL;
    r->wait_s = NULL;
}

/* Max-min: raises one level for all until every GPU is given away or nobody wants more. */
static void entitle(struct vg_account *a, double seconds) {
    double left = (double)vg_workload_units(a->w), weights = 0;
    size_t n = a->w->n_tenants;
    for (size_t i = 0; i < n; i++) {
        a->level[i] = a->r.tenant[i].wants ? -1 : 0;
        weights += a->r.tenant[i].wants ? a->w->tenant[i].weight : 0;
    }
    for (bool again = true; again && weights > 0;) {
        again = false;
        for (size_t i = 0; i < n; i++) {
            double wants = (double)a->r.tenant[i].wants, weight = a->w->tenant[i].weight;
            if (a->level[i] >= 0 || wants > left * weight / weights)
                continue;
            a->level[i] = wants;
            left -= wants;
            weights -= weight;
            again = true;
        }
    }
    for (size_t i = 0; i < n; i++) {
        struct vg_account_tenant *t = &a->r.tenant[i];
        double fair = a->level[i] >= 0 ? a->level[i] : left * a->w->tenant[i].weight / weights;
        t->entitled_s += fair * seconds;
        t->served_s += (double)t->runs * seconds;
    }
}

static void fill_bins(struct vg_account *a, uint64_t until) {
    for (uint64_t t = a->last_usec; t < until;) {
        while (t / a->bin_usec >= VG_ACCOUNT_BINS) {
            for (size_t i = 0; i < VG_ACCOUNT_BINS / 2; i++)
                a->r.busy[i] = a->r.busy[2 * i] + a->r.busy[2 * i + 1];
            for (size_t i = VG_ACCOUNT_BINS / 2; i < VG_ACCOUNT_BINS; i++)
                a->r.busy[i] = 0;
            a->bin_usec *= 2;
        }
        uint64_t bin = t / a->bin_usec, end = VG_MIN(until, (bin + 1) * a->bin_usec);
        a->r.busy[bin] += (double)(end - t) / 1e6 * (double)a->busy_units;
        t = end;
    }
}

void vg_account_to(struct vg_account *a, uint64_t now) {
    if (now <= a->last_usec)
        return;
    double seconds = (double)(now - a->last_usec) / 1e6;
    if (a->last_usec < a->last_arrival_usec)
        a->arrive_busy += (double)a->busy_units *
                          (double)(VG_MIN(now, a->last_arrival_usec) - a->last_usec) / 1e6;
    if (a->fairness)
        entitle(a, seconds);
    fill_bins(a, now);
    a->last_usec = now;
}

static uint64_t units_of(const struct vg_account *a, uint32_t job) {
    return (uint64_t)a->w->job[job].members * a->w->job[job].units;
}

static struct vg_account_tenant *tenant_of(struct vg_account *a, uint32_t job) {
    return &a->r.tenant[a->w->job[job].tenant];
}

void vg_account_arrive(struct vg_account *a, uint32_t job) {
    tenant_of(a, job)->wants += units_of(a, job);
    tenant_of(a, job)->jobs++;
}

void vg_account_start(struct vg_account *a, uint32_t job) {
    tenant_of(a, job)->runs += units_of(a, job);
    a->busy_units += units_of(a, job);
    a->r.starts++;
}

static void leave(struct vg_account *a, uint32_t job) {
    tenant_of(a, job)->runs -= units_of(a, job);
    a->busy_units -= units_of(a, job);
}

void vg_account_stop(struct vg_account *a, uint32_t job, uint64_t lost_usec) {
    leave(a, job);
    a->r.stops++;
    a->r.lost_s += (double)lost_usec / 1e6 * (double)units_of(a, job);
}

void vg_account_end(struct vg_account *a, uint32_t job, uint64_t now) {
    const struct vg_work_job *j = &a->w->job[job];
    double run = (double)j->run_usec / 1e6;
    double wait = (double)(now - j->arrive_usec - j->run_usec) / 1e6;
    double slowdown = VG_MAX((wait + run) / VG_MAX(run, SLOWDOWN_BOUND_S), 1.0);
    struct vg_account_tenant *t = tenant_of(a, job);
    leave(a, job);
    t->wants -= units_of(a, job);
    t->wait_sum_s += wait;
    t->slowdown_sum += slowdown;
    if (wait > a->longest_s) {
        a->longest_s = wait;
        a->r.longest_tenant = j->tenant;
        a->r.longest_units = j->members * j->units;
    }
    a->r.class_jobs[j->class]++;
    a->r.class_wait_s[j->class] += wait;
    a->r.wait_s[a->n_ended] = wait;
    a->slowdown[a->n_ended++] = slowdown;
}

static int by_size(const void *x, const void *y) {
    double a = *(const double *)x, b = *(const double *)y;
    return (a > b) - (a < b);
}

static double mean(const double *v, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += v[i];
    return n ? sum / (double)n : 0;
}

static double quantile(const double *sorted, size_t n, double q) {
    return n ? sorted[VG_MIN((size_t)((double)n * q), n - 1)] : 0;
}

static void sum_tenants(struct vg_account *a) {
    double sum = 0, squares = 0;
    size_t n = 0;
    a->r.service_worst = 1;
    for (size_t i = 0; i < a->w->n_tenants; i++) {
        struct vg_account_tenant *t = &a->r.tenant[i];
        t->service = t->entitled_s > 0 ? t->served_s / t->entitled_s : 1;
        if (t->entitled_s <= 0)
            continue;
        if (t->service < a->r.service_worst || !n) {
            a->r.service_worst = t->service;
            a->r.worst_tenant = i;
        }
        sum += t->service;
        squares += t->service * t->service;
        n++;
    }
    a->r.jain = squares > 0 ? sum * sum / ((double)n * squares) : 1;
}

struct vg_result vg_account_take(struct vg_account *a) {
    struct vg_result *r = &a->r;
    size_t n = a->n_ended;
    qsort(r->wait_s, n, sizeof(*r->wait_s), by_size);
    qsort(a->slowdown, n, sizeof(*a->slowdown), by_size);
    r->jobs = n;
    r->unfinished = a->w->n_jobs - n;
    r->wait_mean_s = mean(r->wait_s, n);
    r->wait_p50_s = quantile(r->wait_s, n, 0.5);
    r->wait_p95_s = quantile(r->wait_s, n, 0.95);
    r->wait_max_s = quantile(r->wait_s, n, 1);
    r->slowdown_mean = mean(a->slowdown, n);
    r->slowdown_p95 = quantile(a->slowdown, n, 0.95);
    sum_tenants(a);
    double span = (double)a->last_arrival_usec / 1e6 * (double)vg_workload_units(a->w);
    r->utilisation = span > 0 ? a->arrive_busy / span : 0;
    r->makespan_s = (double)a->last_usec / 1e6;
    r->bin_s = (double)a->bin_usec / 1e6;
    struct vg_result out = *r;
    r->tenant = NULL;
    r->wait_s = NULL;
    return out;
}
