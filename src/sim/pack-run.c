/* Arrivals of the packing protocol, and one run of it. */
#include "base/cleanup.h"
#include "base/mem.h"
#include "sched/engine.h"
#include "sim/pack.h"
#include "sim/rng.h"

const struct vg_packer vg_packers[] = {
    {"virga", "the engine: where the least worth is lost", vg_pack_engine_open, vg_pack_engine_put,
     vg_pack_engine_close, VG_ENG_LEAST_STRANDED},
    {"bestfit", "the node with the least left over", vg_pack_engine_open, vg_pack_engine_put,
     vg_pack_engine_close, VG_ENG_BEST_FIT},
    {"spread", "the node with the most left over", vg_pack_engine_open, vg_pack_engine_put,
     vg_pack_engine_close, VG_ENG_SPREAD},
    {"random", "any node that has room", vg_pack_engine_open, vg_pack_engine_put,
     vg_pack_engine_close, VG_ENG_RANDOM},
    {"fgd", "fragmentation gradient descent as published", vg_pack_fgd_open, vg_pack_fgd_put,
     vg_pack_fgd_close, 0},
};
const size_t vg_n_packers = VG_COUNT(vg_packers);

uint64_t vg_pack_capacity(const struct vg_trace_nodes *n) {
    uint64_t sum = 0;
    for (size_t i = 0; i < n->n; i++)
        sum += 1000ULL * n->node[i].gpus;
    return sum;
}

static int append(struct vg_pack_arrivals *a, uint32_t task) {
    uint32_t *grown = vg_grow(a->task, &a->cap, a->n + 1, sizeof(*grown));
    if (!grown)
        return -ENOMEM;
    a->task = grown;
    a->task[a->n++] = task;
    return 0;
}

static int all_shuffled(const struct vg_pack_input *in, struct vg_rng *rng,
                        struct vg_pack_arrivals *a) {
    for (size_t i = 0; i < in->tasks.n; i++)
        if (append(a, (uint32_t)i) < 0)
            return -ENOMEM;
    for (size_t i = a->n; i > 1; i--) {
        size_t k = vg_rng_below(rng, i);
        uint32_t t = a->task[i - 1];
        a->task[i - 1] = a->task[k];
        a->task[k] = t;
    }
    return 0;
}

/* A file without GPU tasks asks for nothing however often its tasks come: they come once. */
int vg_pack_arrive(const struct vg_pack_input *in, uint64_t seed, struct vg_pack_arrivals *ret) {
    struct vg_rng rng = vg_rng_seeded(seed);
    const struct vg_trace_task *t = in->tasks.task;
    double want = in->demand * (double)vg_pack_capacity(&in->nodes);
    uint64_t asked = 0;
    *ret = (struct vg_pack_arrivals){0};
    int r = all_shuffled(in, &rng, ret);
    for (size_t i = 0; i < ret->n && r == 0; i++)
        asked += vg_pack_milli(&t[ret->task[i]]);
    while (r == 0 && ret->n && (double)asked > want) { /* the last is as random as any */
        asked -= vg_pack_milli(&t[ret->task[--ret->n]]);
    }
    while (r == 0 && asked && ret->n >= in->tasks.n) {
        uint32_t k = (uint32_t)vg_rng_below(&rng, in->tasks.n);
        if ((double)(asked + vg_pack_milli(&t[k])) > want)
            break;
        asked += vg_pack_milli(&t[k]);
        r = append(ret, k);
    }
    if (r < 0)
        free(vg_take_ptr(ret->task));
    return r;
}

static void mark(struct vg_pack_result *r, double asked, double used, double capacity) {
    uint32_t step = (uint32_t)(100 * asked / capacity);
    while (r->n_curve <= step && r->n_curve <= VG_PACK_STEPS)
        r->curve[r->n_curve++] = 100 * used / capacity;
}

int vg_pack_run(const struct vg_pack_input *in, const struct vg_packer *p, uint64_t seed,
                struct vg_pack_result *ret) {
    struct vg_pack_arrivals a;
    void *state = NULL;
    double capacity = (double)vg_pack_capacity(&in->nodes);
    uint64_t asked = 0, used = 0;
    *ret = (struct vg_pack_result){0};
    int r = vg_pack_arrive(in, seed, &a);
    if (r < 0)
        return r;
    r = p->open(p, in, seed, &state);
    for (size_t i = 0; i < a.n && r >= 0; i++) {
        const struct vg_trace_task *t = &in->tasks.task[a.task[i]];
        r = p->put(state, t);
        ret->placed += r == 1;
        ret->dropped += r == 0;
        asked += vg_pack_milli(t);
        used += r == 1 ? vg_pack_milli(t) : 0;
        mark(ret, (double)asked, (double)used, capacity);
    }
    if (state)
        p->close(state);
    free(a.task);
    ret->allocated_pct = 100 * (double)used / capacity;
    return r < 0 ? r : 0;
}
