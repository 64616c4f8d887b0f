/* Kueue's performance shapes, restated, and the floor of a load. The numbers are those of
   kubernetes-sigs/kueue, test/performance/scheduler/configs (baseline; large-scale as of the
   version with 1,000 queues). */
#include "sim/shape.h"

#include "base/cleanup.h"
#include "base/mem.h"

const struct vg_shape vg_shapes[] = {
    {.name = "kueue-baseline",
     .about = "15,000 jobs in 30 queues of 5 cohorts",
     .cohorts = 5,
     .queues = 6,
     .quota = 20,
     .borrow = 100,
     .class = {{"small", 350, 100, 200, 1, 50},
               {"medium", 100, 500, 500, 5, 100},
               {"large", 50, 1200, 1000, 20, 200}},
     .n_classes = 3},
    {.name = "kueue-large",
     .about = "50,000 jobs in 1,000 queues of 10 cohorts",
     .cohorts = 10,
     .queues = 100,
     .quota = 20,
     .borrow = 100,
     .class = {{"small", 35, 60, 150, 1, 50},
               {"medium", 11, 300, 350, 5, 100},
               {"large", 4, 700, 700, 20, 200}},
     .n_classes = 3},
};
const size_t vg_n_shapes = VG_COUNT(vg_shapes);

static int make_tenants(const struct vg_shape *s, struct vg_workload *w) {
    w->n_tenants = (size_t)s->cohorts * s->queues;
    w->tenant = vg_alloc(w->n_tenants * sizeof(*w->tenant));
    if (!w->tenant)
        return -ENOMEM;
    for (size_t i = 0; i < w->n_tenants; i++) {
        struct vg_work_tenant *t = &w->tenant[i];
        *t = (struct vg_work_tenant){.weight = 1,
                                     .pool = (uint32_t)i / s->queues,
                                     .quota = s->quota,
                                     .limit = s->quota + s->borrow};
        t->name = vg_fmt("cohort-%u-queue-%u", t->pool, (uint32_t)i % s->queues);
        if (!t->name)
            return -ENOMEM;
    }
    return 0;
}

static int make_nodes(const struct vg_shape *s, uint32_t node_units, struct vg_workload *w) {
    uint32_t units = s->queues * s->quota, each = (units + node_units - 1) / node_units;
    w->n_pools = s->cohorts;
    w->n_nodes = (size_t)each * s->cohorts;
    w->node = vg_alloc(w->n_nodes * sizeof(*w->node));
    if (!w->node)
        return -ENOMEM;
    for (size_t i = 0; i < w->n_nodes; i++) {
        uint32_t before = (uint32_t)i % each * node_units;
        w->node[i] = (struct vg_work_node){.units = VG_MIN(node_units, units - before),
                                           .pool = (uint32_t)i / each};
    }
    return 0;
}

static int by_arrival(const void *a, const void *b) {
    const struct vg_work_job *x = a, *y = b;
    if (x->arrive_usec != y->arrive_usec)
        return x->arrive_usec < y->arrive_usec ? -1 : 1;
    if (x->tenant != y->tenant)
        return x->tenant < y->tenant ? -1 : 1;
    return (x->class > y->class) - (x->class < y->class);
}

static int make_jobs(const struct vg_shape *s, struct vg_workload *w) {
    size_t a_queue = 0;
    for (uint32_t c = 0; c < s->n_classes; c++)
        a_queue += s->class[c].count;
    w->job = vg_alloc(a_queue * w->n_tenants * sizeof(*w->job));
    w->kind = vg_alloc(w->n_tenants * s->n_classes * sizeof(*w->kind));
    if (!w->job || !w->kind)
        return -ENOMEM;
    for (uint32_t t = 0; t < w->n_tenants; t++)
        for (uint32_t c = 0; c < s->n_classes; c++) {
            const struct vg_shape_class *k = &s->class[c];
            uint32_t kind = (uint32_t)w->n_kinds++, pool = w->tenant[t].pool;
            w->class_name[c] = k->name;
            w->kind[kind] = (struct vg_work_shape){
                .tenant = t, .pool = pool, .members = 1, .units = k->request};
            for (uint32_t i = 0; i < k->count; i++)
                w->job[w->n_jobs++] =
                    (struct vg_work_job){.arrive_usec = (i + 1) * 1000ull * k->every_ms,
                                         .run_usec = 1000ull * k->run_ms,
                                         .tenant = t,
                                         .pool = pool,
                                         .kind = kind,
                                         .members = 1,
                                         .units = k->request,
                                         .priority = k->priority,
                                         .class = c};
        }
    qsort(w->job, w->n_jobs, sizeof(*w->job), by_arrival);
    return 0;
}

int vg_shape_workload(const struct vg_shape *s, uint32_t node_units, struct vg_workload *ret,
                      struct vg_err *err) {
    *ret = (struct vg_workload){0};
    for (uint32_t c = 0; c < s->n_classes; c++)
        if (s->class[c].request > node_units)
            return vg_err_set(err, VG_INVALID,
                              "nodes of %u units cannot hold a job of %u: make them larger",
                              node_units, s->class[c].request);
    if (make_tenants(s, ret) < 0 || make_nodes(s, node_units, ret) < 0 || make_jobs(s, ret) < 0) {
        vg_workload_done(ret);
        return vg_err_sys(err, -ENOMEM, "cannot make the load");
    }
    return 0;
}

struct vg_shape_floor vg_shape_floor(const struct vg_workload *w) {
    struct vg_shape_floor best = {0};
    for (uint32_t pool = 0; pool < w->n_pools; pool++) {
        double units = 0, work = 0;
        for (size_t i = 0; i < w->n_nodes; i++)
            units += w->node[i].pool == pool ? w->node[i].units : 0;
        for (size_t i = w->n_jobs; i-- > 0;) {
            const struct vg_work_job *j = &w->job[i];
            if (j->pool != pool)
                continue;
            double from = (double)j->arrive_usec / 1e6, run = (double)j->run_usec / 1e6;
            work += run * j->members * j->units;
            double need = VG_MAX(work / units, run);
            if (from + need > best.seconds)
                best = (struct vg_shape_floor){from + need, from, need};
        }
    }
    return best;
}
