/* Fragmentation gradient descent (Weng et al., ATC '23), restated from the paper and the behaviour
   of its simulator, so that results can be compared with the published ones: a node's fragments are
   the GPU thousandths that a task drawn from the typical ones could not use; a task goes where they
   grow least, in steps of a hundredth of a sigmoid, then by name. Typical tasks: the most frequent
   kinds that make up 95 % of the file. */
#include "base/cleanup.h"
#include "base/mem.h"
#include "sched/engine.h"
#include "sim/pack.h"

#include <math.h>
#include <string.h>

#define TYPICAL 0.95

struct kind {
    uint32_t cpu, gpus, milli;
    const char *spec;
    double share; /* of the typical tasks */
};

struct node {
    const struct vg_trace_node *is;
    int64_t cpu, mem;
    uint32_t changed;
    uint32_t gpu[VG_NODE_GPUS_MAX]; /* thousandths left */
};

/* What was found for tasks that ask for the same, while the node did not change. */
struct found {
    uint32_t at; /* node.changed + 1; 0: nothing yet */
    int8_t score;
    uint8_t card;
};

struct asked {
    uint32_t cpu, mem, gpus, milli;
    const char *spec;
    struct found *found; /* owned; by node */
};

struct fgd {
    struct asked *asked; /* owned */
    size_t n_asked, asked_cap;
    struct kind *kind; /* owned */
    size_t n_kinds;
    struct node *node; /* owned; by name */
    size_t n_nodes;
};

static bool spec_fits(const char *spec, const char *model) {
    size_t len = strlen(model);
    if (!*spec)
        return true;
    for (const char *p = spec; *p; p += strspn(p, "|")) {
        size_t n = strcspn(p, "|");
        if (n == len && memcmp(p, model, n) == 0)
            return true;
        p += n;
    }
    return false;
}

/* Cards with at least so much left. */
static uint32_t cards_with(const struct node *n, uint32_t milli) {
    uint32_t k = 0;
    for (uint32_t i = 0; i < n->is->gpus; i++)
        k += n->gpu[i] >= milli;
    return k;
}

static bool hosts(const struct node *n, int64_t cpu, uint32_t gpus, uint32_t milli,
                  const char *spec) {
    return n->cpu >= cpu && cards_with(n, milli) >= gpus && spec_fits(spec, n->is->model);
}

/* Thousandths that a task of this kind could not use. */
static uint32_t useless(const struct node *n, const struct kind *k) {
    bool none = !k->gpus || !hosts(n, k->cpu, k->gpus, k->milli, k->spec);
    uint32_t sum = 0;
    for (uint32_t i = 0; i < n->is->gpus; i++)
        if (none || n->gpu[i] < k->milli)
            sum += n->gpu[i];
    return sum;
}

static double fragments(const struct fgd *f, const struct node *n) {
    double sum = 0;
    for (size_t i = 0; i < f->n_kinds; i++)
        sum += f->kind[i].share * useless(n, &f->kind[i]);
    return sum;
}

static void take(struct node *n, const struct vg_trace_task *t, uint32_t card) {
    n->changed++;
    n->cpu -= t->cpu_milli;
    n->mem -= t->mem_mib;
    if (t->gpus == 1 && t->gpu_milli < 1000) {
        n->gpu[card] -= t->gpu_milli;
        return;
    }
    for (uint32_t i = 0, left = t->gpus; left; i++)
        if (n->gpu[i] == 1000) {
            n->gpu[i] = 0;
            left--;
        }
}

static int score_after(const struct fgd *f, const struct node *n, const struct vg_trace_task *t,
                       uint32_t card, double before) {
    struct node after = *n;
    take(&after, t, card);
    return (int)(100 / (1 + exp((fragments(f, &after) - before) / 1000)));
}

/* 0 .. 100, larger is better, and the card for a share; -1: it does not fit. */
static int score(const struct fgd *f, const struct node *n, const struct vg_trace_task *t,
                 uint32_t *ret_card) {
    if (n->mem < t->mem_mib || !hosts(n, t->cpu_milli, t->gpus, t->gpu_milli, t->gpu_spec))
        return -1;
    double before = fragments(f, n);
    if (t->gpus != 1 || t->gpu_milli == 1000)
        return score_after(f, n, t, 0, before);
    int best = -1;
    for (uint32_t i = 0; i < n->is->gpus; i++) {
        int s = n->gpu[i] >= t->gpu_milli ? score_after(f, n, t, i, before) : -1;
        if (s > best) {
            best = s;
            *ret_card = i;
        }
    }
    return best;
}

/* The memory of tasks that ask for the same; NULL: no memory. */
static struct found *found_for(struct fgd *f, const struct vg_trace_task *t) {
    for (size_t i = 0; i < f->n_asked; i++) {
        const struct asked *a = &f->asked[i];
        if (a->cpu == t->cpu_milli && a->mem == t->mem_mib && a->gpus == t->gpus &&
            a->milli == t->gpu_milli && strcmp(a->spec, t->gpu_spec) == 0)
            return a->found;
    }
    struct asked *grown = vg_grow(f->asked, &f->asked_cap, f->n_asked + 1, sizeof(*grown));
    if (!grown)
        return NULL;
    f->asked = grown;
    struct found *found = vg_alloc(f->n_nodes * sizeof *found);
    if (found)
        f->asked[f->n_asked++] = (struct asked){.cpu = t->cpu_milli,
                                                .mem = t->mem_mib,
                                                .gpus = t->gpus,
                                                .milli = t->gpu_milli,
                                                .spec = t->gpu_spec,
                                                .found = found};
    return found;
}

int vg_pack_fgd_put(void *state, const struct vg_trace_task *t) {
    struct fgd *f = state;
    struct found *found = found_for(f, t);
    size_t best = f->n_nodes;
    if (!found)
        return -ENOMEM;
    for (size_t i = 0; i < f->n_nodes; i++) {
        if (found[i].at != f->node[i].changed + 1) {
            uint32_t card = 0;
            found[i].score = (int8_t)score(f, &f->node[i], t, &card);
            found[i].card = (uint8_t)card;
            found[i].at = f->node[i].changed + 1;
        }
        if (found[i].score >= 0 && (best == f->n_nodes || found[i].score > found[best].score))
            best = i;
    }
    if (best == f->n_nodes)
        return 0;
    take(&f->node[best], t, found[best].card);
    return 1;
}

/* --- what is typical --- */

static int cmp_kinds(const void *a, const void *b) {
    const struct kind *x = a, *y = b;
    if (x->share != y->share)
        return x->share > y->share ? -1 : 1;
    if (x->cpu != y->cpu)
        return x->cpu < y->cpu ? -1 : 1;
    return x->milli < y->milli ? -1 : x->milli > y->milli;
}

static void count(struct fgd *f, const struct vg_trace_task *t) {
    size_t i = 0;
    for (; i < f->n_kinds; i++) {
        struct kind *k = &f->kind[i];
        if (k->cpu == t->cpu_milli && k->gpus == t->gpus && k->milli == t->gpu_milli &&
            strcmp(k->spec, t->gpu_spec) == 0)
            break;
    }
    if (i == f->n_kinds)
        f->kind[f->n_kinds++] = (struct kind){
            .cpu = t->cpu_milli, .gpus = t->gpus, .milli = t->gpu_milli, .spec = t->gpu_spec};
    f->kind[i].share++;
}

static void keep_typical(struct fgd *f, size_t tasks) {
    double sum = 0;
    size_t n = 0;
    qsort(f->kind, f->n_kinds, sizeof *f->kind, cmp_kinds);
    while (n < f->n_kinds && sum < TYPICAL * (double)tasks)
        sum += f->kind[n++].share;
    f->n_kinds = n;
    for (size_t i = 0; i < n; i++)
        f->kind[i].share /= sum;
}

static int cmp_nodes(const void *a, const void *b) {
    return strcmp(((const struct node *)a)->is->name, ((const struct node *)b)->is->name);
}

int vg_pack_fgd_open(const struct vg_packer *p, const struct vg_pack_input *in, uint64_t seed,
                     void **ret) {
    struct fgd *f = vg_alloc(sizeof *f);
    (void)p;
    (void)seed;
    if (!f)
        return -ENOMEM;
    f->kind = vg_alloc(in->tasks.n * sizeof *f->kind);
    f->node = vg_alloc(in->nodes.n * sizeof *f->node);
    if (!f->kind || !f->node) {
        vg_pack_fgd_close(f);
        return -ENOMEM;
    }
    for (size_t i = 0; i < in->tasks.n; i++)
        count(f, &in->tasks.task[i]);
    keep_typical(f, in->tasks.n);
    for (size_t i = 0; i < in->nodes.n; i++) {
        const struct vg_trace_node *n = &in->nodes.node[i];
        f->node[i] = (struct node){.is = n, .cpu = n->cpu_milli, .mem = n->mem_mib};
        for (uint32_t k = 0; k < n->gpus; k++)
            f->node[i].gpu[k] = 1000;
    }
    f->n_nodes = in->nodes.n;
    qsort(f->node, f->n_nodes, sizeof *f->node, cmp_nodes);
    *ret = f;
    return 0;
}

void vg_pack_fgd_close(void *state) {
    struct fgd *f = state;
    for (size_t i = 0; i < f->n_asked; i++)
        free(f->asked[i].found);
    free(f->asked);
    free(f->kind);
    free(f->node);
    free(f);
}
