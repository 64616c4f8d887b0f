/* The engine as a packer: one tenant, one pool, no reservations, no preemption. */
#include "base/cleanup.h"
#include "base/mem.h"
#include "sched/engine.h"
#include "sim/pack.h"

struct packing {
    struct vg_eng *eng;
    uint64_t task; /* the last id */
};

static struct vg_res res_of(const struct vg_trace_task *t) {
    bool share = t->gpus == 1 && t->gpu_milli < 1000;
    return (struct vg_res){.cpu_milli = t->cpu_milli,
                           .mem_bytes = (uint64_t)t->mem_mib << 20,
                           .gpus = share ? 0 : t->gpus,
                           .gpu_milli = share ? t->gpu_milli : 0};
}

static int add_node(struct vg_eng *e, const struct vg_trace_node *n, uint64_t id) {
    struct vg_eng_gpu gpu[VG_NODE_GPUS_MAX] = {0};
    for (uint32_t i = 0; i < n->gpus; i++)
        gpu[i].index = i;
    struct vg_eng_node x = {
        .id = id,
        .name = n->name,
        .total = {.cpu_milli = n->cpu_milli, .mem_bytes = (uint64_t)n->mem_mib << 20},
        .gpu = gpu,
        .n_gpus = n->gpus,
        .model = n->model,
        .usable = true};
    return vg_eng_set_node(e, &x);
}

static int set_mix(struct vg_eng *e, const struct vg_trace_tasks *t) {
    vg_auto_free struct vg_eng_mix *mix = vg_alloc(t->n * sizeof *mix);
    if (!mix)
        return -ENOMEM;
    for (size_t i = 0; i < t->n; i++)
        mix[i] = (struct vg_eng_mix){
            .res = res_of(&t->task[i]), .model = t->task[i].gpu_spec, .count = 1};
    return vg_eng_set_mix(e, mix, t->n);
}

static int set_up(struct vg_eng *e, const struct vg_pack_input *in, int placing, uint64_t seed) {
    struct vg_eng_conf conf = vg_eng_conf_default();
    struct vg_eng_pool pool = {.name = "all", .id = 1};
    struct vg_eng_tenant tenant = {.id = 1, .name = "one", .limit = VG_ENG_NO_LIMIT, .weight = 1};
    conf.placing = (enum vg_eng_placing)placing;
    conf.seed = seed;
    conf.reserve = 0;
    conf.preempt = false;
    int r = vg_eng_set_conf(e, &conf);
    if (r == 0)
        r = vg_eng_set_pool(e, &pool);
    if (r == 0)
        r = vg_eng_set_tenant(e, &tenant);
    for (size_t i = 0; i < in->nodes.n && r == 0; i++)
        r = add_node(e, &in->nodes.node[i], i + 1);
    return r == 0 && in->history.n ? set_mix(e, &in->history) : r;
}

int vg_pack_engine_open(const struct vg_packer *p, const struct vg_pack_input *in, uint64_t seed,
                        void **ret) {
    struct packing *x = vg_alloc(sizeof *x);
    if (!x)
        return -ENOMEM;
    x->eng = vg_eng_new();
    int r = x->eng ? set_up(x->eng, in, p->kind, seed) : -ENOMEM;
    if (r < 0) {
        vg_pack_engine_close(x);
        return r;
    }
    *ret = x;
    return 0;
}

int vg_pack_engine_put(void *state, const struct vg_trace_task *t) {
    struct packing *x = state;
    struct vg_eng_decision d;
    struct vg_err err = VG_ERR_INIT;
    struct vg_eng_req r = {.task = ++x->task,
                           .tenant = 1,
                           .pool = {1},
                           .n_pools = 1,
                           .res = res_of(t),
                           .model = t->gpu_spec,
                           .order = x->task};
    int e = vg_eng_submit(x->eng, &r, &err);
    if (e < 0)
        return err.reason == VG_NO_CAPACITY ? 0 : e; /* it would not even fit an empty node */
    if (vg_eng_next(x->eng, &d))
        return 1;
    vg_eng_release(x->eng, r.task, VG_ENG_CANCELLED);
    return 0;
}

void vg_pack_engine_close(void *state) {
    struct packing *x = state;
    vg_eng_free(x->eng);
    free(x);
}
