/* The jobs of Microsoft's Philly cluster, one row each, in any order. */
#include "base/cleanup.h"
#include "base/mem.h"
#include "sim/trace-csv.h"
#include "sim/trace.h"

#include <string.h>

#define HEADER "timestamp,duration,num_gpus,gpu_time,cluster"
#define RUN_MAX_S (10ull * 365 * 86400)

/* What a row holds until all are sorted. */
struct row {
    uint64_t at_sec; /* since the epoch, read as UTC: only differences count */
    uint64_t run_sec;
    uint32_t gpus;
    unsigned line;
    const char *tenant;
};

struct rows {
    struct row *row; /* owned */
    size_t n, cap;
};

/* Days since 1970-01-01 of a date in the Gregorian calendar; years begin in March here. */
static uint64_t days(unsigned y, unsigned m, unsigned d) {
    y -= m <= 2;
    unsigned of_year = (153 * (m > 2 ? m - 3 : m + 9) + 2) / 5 + d - 1;
    return (uint64_t)y * 365 + y / 4 - y / 100 + y / 400 + of_year - 719468;
}

/* "2017-10-09 07:01:55". */
static int parse_time(struct vg_csv *c, uint64_t *ret, struct vg_err *err) {
    unsigned y, m, d, h, min, s;
    int used = 0;
    const char *text = c->col[0];
    if (strlen(text) != 19 ||
        sscanf(text, "%4u-%2u-%2u %2u:%2u:%2u%n", &y, &m, &d, &h, &min, &s, &used) != 6 ||
        used != 19 || y < 1970 || m < 1 || m > 12 || d < 1 || d > 31 || h > 23 || min > 59 ||
        s > 60)
        return vg_csv_bad(c, err, "column 1: '%.40s' is no time like 2017-10-09 07:01:55", text);
    *ret = days(y, m, d) * 86400 + h * 3600 + min * 60 + s;
    return 0;
}

static int read_row(struct vg_csv *c, struct rows *t, struct vg_err *err) {
    struct row j = {.line = c->line, .tenant = c->col[4]};
    uint64_t gpus, gpu_time;
    int r;
    if ((r = parse_time(c, &j.at_sec, err)) < 0 ||
        (r = vg_csv_number(c, 1, RUN_MAX_S, 0, &j.run_sec, err)) < 0 ||
        (r = vg_csv_number(c, 2, 1u << 20, 0, &gpus, err)) < 0 ||
        (r = vg_csv_number(c, 3, UINT64_MAX / 16, 0, &gpu_time, err)) < 0)
        return r;
    if (!gpus)
        return vg_csv_bad(c, err, "column 3: a job of 0 GPUs: at least 1 belongs here");
    if (!*j.tenant)
        return vg_csv_bad(c, err, "column 5: the tenant is missing");
    struct row *grown = vg_grow(t->row, &t->cap, t->n + 1, sizeof(j));
    if (!grown)
        return vg_err_sys(err, -ENOMEM, "cannot read trace '%s'", c->path);
    t->row = grown;
    j.run_sec = VG_MAX(j.run_sec, 1u);
    j.gpus = (uint32_t)gpus;
    t->row[t->n++] = j;
    return 0;
}

static int by_arrival(const void *a, const void *b) {
    const struct row *x = a, *y = b;
    if (x->at_sec != y->at_sec)
        return x->at_sec < y->at_sec ? -1 : 1;
    return x->line < y->line ? -1 : 1;
}

static int tenant_index(struct vg_trace_jobs *t, const char *name, uint32_t *ret) {
    for (size_t i = 0; i < t->n_tenants; i++)
        if (strcmp(t->tenant[i], name) == 0) {
            *ret = (uint32_t)i;
            return 0;
        }
    const char **grown = vg_grow(t->tenant, &t->tenants_cap, t->n_tenants + 1, sizeof(*grown));
    if (!grown)
        return -ENOMEM;
    t->tenant = grown;
    *ret = (uint32_t)t->n_tenants;
    t->tenant[t->n_tenants++] = name;
    return 0;
}

static int to_jobs(struct rows *rows, struct vg_trace_jobs *t) {
    qsort(rows->row, rows->n, sizeof(*rows->row), by_arrival);
    t->job = vg_alloc(rows->n * sizeof(*t->job));
    if (!t->job)
        return -ENOMEM;
    t->n = t->cap = rows->n;
    for (size_t i = 0; i < rows->n; i++) {
        const struct row *r = &rows->row[i];
        t->job[i] = (struct vg_trace_job){
            .arrive_sec = r->at_sec - rows->row[0].at_sec, .run_sec = r->run_sec, .gpus = r->gpus};
        int e = tenant_index(t, r->tenant, &t->job[i].tenant);
        if (e < 0)
            return e;
    }
    return 0;
}

int vg_trace_read_jobs(const char *path, struct vg_trace_jobs *ret, struct vg_err *err) {
    struct vg_csv c;
    struct rows rows = {0};
    *ret = (struct vg_trace_jobs){0};
    int r = vg_csv_open(&c, path, HEADER, err);
    if (r < 0)
        return r;
    while ((r = vg_csv_next(&c, err)) > 0 && (r = read_row(&c, &rows, err)) == 0)
        ;
    if (r == 0 && !rows.n)
        r = vg_csv_bad(&c, err, "no job follows the header");
    if (r == 0 && to_jobs(&rows, ret) < 0)
        r = vg_err_sys(err, -ENOMEM, "cannot read trace '%s'", path);
    free(rows.row);
    ret->text = vg_take_ptr(c.text);
    if (r < 0)
        vg_trace_jobs_done(ret);
    return r;
}

void vg_trace_jobs_done(struct vg_trace_jobs *t) {
    free(t->job);
    free(t->tenant);
    free(t->text);
    *t = (struct vg_trace_jobs){0};
}
