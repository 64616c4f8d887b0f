/* Workloads out of traces. */
#include "sim/workload.h"

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"

#include <math.h>
#include <string.h>

int vg_workload_kind(struct vg_workload *w, const struct vg_work_shape *shape, uint32_t *ret) {
    for (size_t i = 0; i < w->n_kinds; i++)
        if (memcmp(&w->kind[i], shape, sizeof(*shape)) == 0) {
            *ret = (uint32_t)i;
            return 0;
        }
    struct vg_work_shape *grown = vg_grow(w->kind, &w->kinds_cap, w->n_kinds + 1, sizeof(*w->kind));
    if (!grown)
        return -ENOMEM;
    w->kind = grown;
    *ret = (uint32_t)w->n_kinds;
    w->kind[w->n_kinds++] = *shape;
    return 0;
}

uint64_t vg_workload_units(const struct vg_workload *w) {
    uint64_t sum = 0;
    for (size_t i = 0; i < w->n_nodes; i++)
        sum += w->node[i].units;
    return sum;
}

double vg_workload_load(const struct vg_workload *w) {
    double work = 0;
    for (size_t i = 0; i < w->n_jobs; i++)
        work += (double)w->job[i].run_usec * w->job[i].members * w->job[i].units;
    double span = w->n_jobs ? (double)w->job[w->n_jobs - 1].arrive_usec : 0;
    return span > 0 ? work / (span * (double)vg_workload_units(w)) : 0;
}

static int make_nodes(struct vg_workload *w, uint32_t gpus, uint32_t per_node) {
    w->n_nodes = (gpus + per_node - 1) / per_node;
    w->node = vg_alloc(w->n_nodes * sizeof(*w->node));
    if (!w->node)
        return -ENOMEM;
    for (size_t i = 0; i < w->n_nodes; i++) {
        w->node[i].units = VG_MIN(per_node, gpus);
        gpus -= w->node[i].units;
    }
    return 0;
}

static int make_tenants(struct vg_workload *w, const struct vg_trace_jobs *t, uint32_t gpus) {
    w->tenant = vg_alloc(t->n_tenants * sizeof(*w->tenant));
    if (!w->tenant)
        return -ENOMEM;
    w->n_tenants = t->n_tenants;
    for (size_t i = 0; i < t->n_tenants; i++) {
        w->tenant[i] = (struct vg_work_tenant){.weight = 1, .quota = gpus / (uint32_t)t->n_tenants};
        w->tenant[i].name = vg_strdup(t->tenant[i]);
        if (!w->tenant[i].name)
            return -ENOMEM;
    }
    return 0;
}

/* As few equal members as nodes allow. */
static uint32_t members_of(uint32_t gpus, uint32_t per_node) {
    uint32_t m = (gpus + per_node - 1) / per_node;
    while (gpus % m)
        m++;
    return m;
}

static int make_jobs(struct vg_workload *w, const struct vg_trace_jobs *t,
                     const struct vg_work_trace_opts *o) {
    size_t n = o->take ? VG_MIN(o->take, t->n) : t->n;
    uint32_t full_nodes = o->gpus / o->per_node;
    w->job = vg_alloc(n * sizeof(*w->job));
    if (!w->job)
        return -ENOMEM;
    w->n_pools = 1;
    for (size_t i = 0; i < n; i++) {
        const struct vg_trace_job *j = &t->job[i];
        uint32_t m = members_of(j->gpus, o->per_node);
        struct vg_work_shape shape = {.tenant = j->tenant, .members = m, .units = j->gpus / m};
        uint32_t rest = o->gpus % o->per_node, a_node = o->per_node / shape.units;
        if (m > full_nodes * a_node + rest / shape.units || m > VG_WORK_MEMBERS_MAX) {
            w->dropped++;
            continue;
        }
        struct vg_work_job *to = &w->job[w->n_jobs++];
        *to = (struct vg_work_job){.arrive_usec = j->arrive_sec * VG_USEC,
                                   .run_usec = j->run_sec * VG_USEC,
                                   .tenant = j->tenant,
                                   .members = m,
                                   .units = shape.units};
        if (vg_workload_kind(w, &shape, &to->kind) < 0)
            return -ENOMEM;
    }
    return 0;
}

static void squeeze(struct vg_workload *w, double load) {
    double factor = vg_workload_load(w) / load;
    for (size_t i = 0; i < w->n_jobs; i++)
        w->job[i].arrive_usec = (uint64_t)llround((double)w->job[i].arrive_usec * factor);
}

int vg_workload_from_trace(const struct vg_trace_jobs *t, const struct vg_work_trace_opts *o,
                           struct vg_workload *ret, struct vg_err *err) {
    *ret = (struct vg_workload){0};
    if (make_nodes(ret, o->gpus, o->per_node) < 0 || make_tenants(ret, t, o->gpus) < 0 ||
        make_jobs(ret, t, o) < 0) {
        vg_workload_done(ret);
        return vg_err_sys(err, -ENOMEM, "cannot hold the trace's jobs");
    }
    if (o->load > 0)
        squeeze(ret, o->load);
    return 0;
}

void vg_workload_done(struct vg_workload *w) {
    for (size_t i = 0; w->tenant && i < w->n_tenants; i++)
        free(w->tenant[i].name);
    free(w->tenant);
    free(w->job);
    free(w->node);
    free(w->kind);
    *w = (struct vg_workload){0};
}
