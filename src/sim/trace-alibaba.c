/* The node and pod lists of Alibaba's cluster-trace-gpu-v2023. */
#include "base/cleanup.h"
#include "base/mem.h"
#include "sim/trace-csv.h"
#include "sim/trace.h"

#define NODE_HEADER "sn,cpu_milli,memory_mib,gpu,model"
#define TASK_HEADER                                                                              \
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_" \
    "time,scheduled_time"

static int u32(struct vg_csv *c, size_t i, uint64_t max, uint32_t *ret, struct vg_err *err) {
    uint64_t v;
    int r = vg_csv_number(c, i, max, 0, &v, err);
    if (r == 0)
        *ret = (uint32_t)v;
    return r;
}

static int node_row(struct vg_csv *c, struct vg_trace_nodes *t, struct vg_err *err) {
    struct vg_trace_node n = {.name = c->col[0], .model = c->col[4]};
    int r;
    if ((r = u32(c, 1, UINT32_MAX, &n.cpu_milli, err)) < 0 ||
        (r = u32(c, 2, UINT32_MAX, &n.mem_mib, err)) < 0 || (r = u32(c, 3, 64, &n.gpus, err)) < 0)
        return r;
    struct vg_trace_node *grown = vg_grow(t->node, &t->cap, t->n + 1, sizeof(n));
    if (!grown)
        return vg_err_sys(err, -ENOMEM, "cannot read trace '%s'", c->path);
    t->node = grown;
    t->node[t->n++] = n;
    return 0;
}

static int task_row(struct vg_csv *c, struct vg_trace_tasks *t, struct vg_err *err) {
    struct vg_trace_task k = {
        .name = c->col[0], .gpu_spec = c->col[5], .qos = c->col[6], .phase = c->col[7]};
    int r;
    if ((r = u32(c, 1, UINT32_MAX, &k.cpu_milli, err)) < 0 ||
        (r = u32(c, 2, UINT32_MAX, &k.mem_mib, err)) < 0 || (r = u32(c, 3, 64, &k.gpus, err)) < 0 ||
        (r = u32(c, 4, 1000, &k.gpu_milli, err)) < 0 ||
        (r = vg_csv_number(c, 8, UINT64_MAX / 16, 1, &k.created_s, err)) < 0 ||
        (r = vg_csv_number(c, 9, UINT64_MAX / 16, 1, &k.deleted_s, err)) < 0 ||
        (r = vg_csv_number(c, 10, UINT64_MAX / 16, 1, &k.scheduled_s, err)) < 0)
        return r;
    if (k.gpus && !k.gpu_milli)
        return vg_csv_bad(c, err, "%u GPUs of 0 thousandths: write 1000 for whole ones", k.gpus);
    if (k.gpus > 1 && k.gpu_milli != 1000)
        return vg_csv_bad(c, err, "a share of %u GPUs: only one GPU can be shared", k.gpus);
    struct vg_trace_task *grown = vg_grow(t->task, &t->cap, t->n + 1, sizeof(k));
    if (!grown)
        return vg_err_sys(err, -ENOMEM, "cannot read trace '%s'", c->path);
    t->task = grown;
    t->task[t->n++] = k;
    return 0;
}

int vg_trace_read_nodes(const char *path, struct vg_trace_nodes *ret, struct vg_err *err) {
    struct vg_csv c;
    *ret = (struct vg_trace_nodes){0};
    int r = vg_csv_open(&c, path, NODE_HEADER, err);
    if (r < 0)
        return r;
    while ((r = vg_csv_next(&c, err)) > 0 && (r = node_row(&c, ret, err)) == 0)
        ;
    if (r == 0 && !ret->n)
        r = vg_csv_bad(&c, err, "no node follows the header");
    ret->text = vg_take_ptr(c.text);
    if (r < 0)
        vg_trace_nodes_done(ret);
    return r;
}

int vg_trace_read_tasks(const char *path, struct vg_trace_tasks *ret, struct vg_err *err) {
    struct vg_csv c;
    *ret = (struct vg_trace_tasks){0};
    int r = vg_csv_open(&c, path, TASK_HEADER, err);
    if (r < 0)
        return r;
    while ((r = vg_csv_next(&c, err)) > 0 && (r = task_row(&c, ret, err)) == 0)
        ;
    if (r == 0 && !ret->n)
        r = vg_csv_bad(&c, err, "no task follows the header");
    ret->text = vg_take_ptr(c.text);
    if (r < 0)
        vg_trace_tasks_done(ret);
    return r;
}

void vg_trace_nodes_done(struct vg_trace_nodes *t) {
    free(t->node);
    free(t->text);
    *t = (struct vg_trace_nodes){0};
}

void vg_trace_tasks_done(struct vg_trace_tasks *t) {
    free(t->task);
    free(t->text);
    *t = (struct vg_trace_tasks){0};
}
