/* Tables and JSON lines. */
#include "sim/report.h"

#include "base/cleanup.h"
#include "base/mem.h"
#include "cli/table.h"
#include "view/json.h"

#include <inttypes.h>

static int keep_names(struct vg_report *r, const struct vg_workload *w) {
    if (r->tenant)
        return 0;
    r->tenant = vg_alloc(VG_MAX(w->n_tenants, 1u) * sizeof(*r->tenant));
    if (!r->tenant)
        return -ENOMEM;
    r->n_tenants = w->n_tenants;
    r->units = vg_workload_units(w);
    for (size_t i = 0; i < w->n_tenants; i++)
        if (!(r->tenant[i] = vg_strdup(w->tenant[i].name)))
            return -ENOMEM;
    return 0;
}

int vg_report_add(struct vg_report *r, struct vg_report_row *row, const struct vg_workload *w) {
    struct vg_report_row *grown = vg_grow(r->row, &r->cap, r->n + 1, sizeof(*r->row));
    if (!grown) {
        vg_result_done(&row->result);
        return -ENOMEM;
    }
    r->row = grown;
    r->row[r->n++] = *row;
    return keep_names(r, w);
}

void vg_report_done(struct vg_report *r) {
    for (size_t i = 0; i < r->n; i++)
        vg_result_done(&r->row[i].result);
    for (size_t i = 0; r->tenant && i < r->n_tenants; i++)
        free(r->tenant[i]);
    free(r->tenant);
    free(r->row);
    *r = (struct vg_report){0};
}

/* Cells of one row; a table has at most this many columns. */
struct cells {
    char text[16][48];
    const char *at[16];
    size_t n;
};

static void cell(struct cells *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void cell(struct cells *c, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(c->text[c->n], sizeof(c->text[0]), fmt, ap);
    va_end(ap);
    c->at[c->n] = c->text[c->n];
    c->n++;
}

static void seconds(struct cells *c, double s) {
    if (s < 600)
        cell(c, "%.1f s", s);
    else if (s < 7200)
        cell(c, "%.1f min", s / 60);
    else if (s < 5 * 86400.0)
        cell(c, "%.2f h", s / 3600);
    else
        cell(c, "%.2f d", s / 86400);
}

static const char *mode(const struct vg_report_row *row) {
    return row->preempt ? "on" : "off";
}

static void print_waits(const struct vg_report *r, size_t first, const struct vg_workload *w) {
    static const char *const head[] = {"POLICY",  "PREEMPT", "KNOWS", "WAIT MEAN",     "P50",
                                       "P95",     "LONGEST", "BY",    "SLOWDOWN MEAN", "P95",
                                       "STOPPED", "CPU",     NULL};
    struct vg_table *t = vg_table_new(head);
    for (size_t i = first; t && i < r->n; i++) {
        const struct vg_report_row *row = &r->row[i];
        const struct vg_result *x = &row->result;
        struct cells c = {.n = 0};
        cell(&c, "%s", row->policy);
        cell(&c, "%s", mode(row));
        cell(&c, "%s", row->oracle ? "truth" : "learnt");
        seconds(&c, x->wait_mean_s);
        seconds(&c, x->wait_p50_s);
        seconds(&c, x->wait_p95_s);
        seconds(&c, x->wait_max_s);
        if (x->longest_units)
            cell(&c, "%s, %u GPUs", w->tenant[x->longest_tenant].name, x->longest_units);
        else
            cell(&c, "-");
        cell(&c, "%.2f", x->slowdown_mean);
        cell(&c, "%.2f", x->slowdown_p95);
        cell(&c, "%" PRIu64, x->stops);
        cell(&c, "%.2f s", x->total_cpu_s);
        vg_table_row(t, c.at);
    }
    if (t)
        vg_table_print(t, stdout, 0);
}

static void print_fairness(const struct vg_report *r, size_t first, const struct vg_workload *w) {
    static const char *const head[] = {
        "POLICY",   "PREEMPT", "WORST SERVICE", "OF TENANT", "JAIN", "GPUS USED",
        "MAKESPAN", "LOST",    "DECISIONS",     "A SECOND",  NULL};
    struct vg_table *t = vg_table_new(head);
    for (size_t i = first; t && i < r->n; i++) {
        const struct vg_report_row *row = &r->row[i];
        const struct vg_result *x = &row->result;
        struct cells c = {.n = 0};
        cell(&c, "%s", row->policy);
        cell(&c, "%s", mode(row));
        cell(&c, "%.3f", x->service_worst);
        cell(&c, "%s", w->tenant[x->worst_tenant].name);
        cell(&c, "%.3f", x->jain);
        cell(&c, "%.1f %%", 100 * x->utilisation);
        seconds(&c, x->makespan_s);
        cell(&c, "%.0f GPU h", x->lost_s / 3600);
        cell(&c, "%" PRIu64, x->decisions);
        cell(&c, "%.0f", x->policy_cpu_s > 0 ? (double)x->decisions / x->policy_cpu_s : 0);
        vg_table_row(t, c.at);
    }
    if (t)
        vg_table_print(t, stdout, 0);
}

static void print_tenants(const struct vg_report *r, size_t first, const struct vg_workload *w) {
    static const char *const head[] = {"TENANT",    "POLICY",        "PREEMPT", "JOBS",
                                       "WAIT MEAN", "SLOWDOWN MEAN", "SERVICE", NULL};
    struct vg_table *t = vg_table_new(head);
    for (size_t k = 0; t && k < w->n_tenants; k++)
        for (size_t i = first; i < r->n; i++) {
            const struct vg_account_tenant *x = &r->row[i].result.tenant[k];
            struct cells c = {.n = 0};
            double jobs = (double)VG_MAX(x->jobs, (uint64_t)1);
            cell(&c, "%s", w->tenant[k].name);
            cell(&c, "%s", r->row[i].policy);
            cell(&c, "%s", mode(&r->row[i]));
            cell(&c, "%" PRIu64, x->jobs);
            seconds(&c, x->wait_sum_s / jobs);
            cell(&c, "%.2f", x->slowdown_sum / jobs);
            cell(&c, "%.3f", x->service);
            vg_table_row(t, c.at);
        }
    if (t)
        vg_table_print(t, stdout, 0);
}

void vg_report_print_tables(const struct vg_report *r, size_t first, const struct vg_workload *w,
                            bool tenants) {
    if (first == r->n)
        return;
    printf("%zu jobs of %zu tenants on %" PRIu64 " GPUs of %zu nodes, arrivals %s (work offered: "
           "%.2f of capacity), %" PRIu64 " dropped because they ask for more than there is\n\n",
           w->n_jobs, w->n_tenants, vg_workload_units(w), w->n_nodes,
           r->row[first].load[0] == 'r' ? "as recorded" : "squeezed", vg_workload_load(w),
           w->dropped);
    print_waits(r, first, w);
    printf("\n");
    print_fairness(r, first, w);
    if (tenants) {
        printf("\n");
        print_tenants(r, first, w);
    }
    printf("\n");
}

static json_t *tenants_json(const struct vg_result *x, const struct vg_workload *w) {
    json_t *all = json_array();
    for (size_t k = 0; k < w->n_tenants; k++) {
        const struct vg_account_tenant *t = &x->tenant[k];
        double jobs = (double)VG_MAX(t->jobs, (uint64_t)1);
        json_array_append_new(all, json_pack("{s:s, s:I, s:f, s:f, s:f}", "tenant",
                                             w->tenant[k].name, "jobs", (json_int_t)t->jobs,
                                             "wait_mean_s", t->wait_sum_s / jobs, "slowdown_mean",
                                             t->slowdown_sum / jobs, "service_ratio", t->service));
    }
    return all;
}

void vg_report_print_json(const struct vg_report *r, size_t at, const struct vg_workload *w) {
    const struct vg_report_row *row = &r->row[at];
    const struct vg_result *x = &row->result;
    json_t *j = json_pack("{s:s, s:b, s:s, s:s, s:f, s:I, s:I, s:I, s:I}", "policy", row->policy,
                          "preempt", (int)row->preempt, "knows", row->oracle ? "truth" : "learnt",
                          "arrivals", row->load, "load", vg_workload_load(w), "gpus",
                          (json_int_t)vg_workload_units(w), "jobs", (json_int_t)x->jobs, "dropped",
                          (json_int_t)x->dropped, "unfinished", (json_int_t)x->unfinished);
    json_t *k =
        json_pack("{s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:s, s:f, s:f, s:f}", "wait_mean_s",
                  x->wait_mean_s, "wait_p50_s", x->wait_p50_s, "wait_p95_s", x->wait_p95_s,
                  "wait_max_s", x->wait_max_s, "slowdown_mean", x->slowdown_mean, "slowdown_p95",
                  x->slowdown_p95, "jain", x->jain, "service_worst", x->service_worst,
                  "service_worst_tenant", w->tenant[x->worst_tenant].name, "utilisation",
                  x->utilisation, "makespan_s", x->makespan_s, "lost_gpu_s", x->lost_s);
    json_t *l =
        json_pack("{s:s?, s:I, s:I, s:I, s:I, s:f, s:f}", "wait_max_tenant",
                  x->longest_units ? w->tenant[x->longest_tenant].name : NULL, "wait_max_gpus",
                  (json_int_t)x->longest_units, "starts", (json_int_t)x->starts, "stops",
                  (json_int_t)x->stops, "decisions", (json_int_t)x->decisions, "decide_seconds",
                  x->policy_cpu_s, "cpu_seconds", x->total_cpu_s);
    if (j && k && l) {
        json_object_update(j, k);
        json_object_update(j, l);
        json_object_set_new(j, "tenants", tenants_json(x, w));
    }
    json_decref(k);
    json_decref(l);
    vg_json_print_line(j);
}
