/* Pools and nodes: what they are, what is free on them. Placement is told of every change. Pure. */
#include "base/cleanup.h"
#include "base/mem.h"
#include "sched/place.h"

#include <string.h>

/* --- changes --- */

static void changed(struct vg_eng *e, struct enode *n, bool more) {
    n->changed = ++e->change;
    vg_index_log(e, n);
    vg_shapes_node_changed(e, n, more);
}

/* Whether the node counts in its pools and in the capacity. */
static void count_node(struct vg_eng *e, const struct enode *n, int sign) {
    if (n->ghost)
        return;
    for (uint32_t i = 0; i < VG_COUNT(e->pool); i++) {
        if (!e->pool[i] || !(n->pools[i / 64] >> (i % 64) & 1))
            continue;
        e->pool[i]->nodes += (uint32_t)sign;
        e->pool[i]->usable += n->usable ? (uint32_t)sign : 0;
    }
    if (!n->usable)
        return;
    e->capacity.cpu_milli += (uint64_t)sign * n->total.cpu_milli;
    e->capacity.mem_bytes += (uint64_t)sign * n->total.mem_bytes;
    for (uint32_t i = 0; i < n->n_gpus; i++)
        e->capacity.gpu_milli += n->gpu[i].bad ? 0 : (uint64_t)sign * 1000;
}

static void join_pools(struct vg_eng *e, struct enode *n) {
    memset(n->pools, 0, sizeof n->pools);
    for (uint32_t i = 0; i < VG_COUNT(e->pool) && !n->ghost; i++) {
        const struct epool *p = e->pool[i];
        if (p && vg_labels_within(p->label, p->n_labels, n->label, n->n_labels))
            n->pools[i / 64] |= 1ULL << (i % 64);
    }
    vg_nclass_set(e, n);
}

/* --- pools --- */

static void free_pool(struct epool *p) {
    if (!p)
        return;
    free(p->name);
    vg_labels_free(p->label, p->n_labels);
    free(p);
}

/* Every node looks again whether it belongs. */
static void rejoin_all(struct vg_eng *e) {
    for (size_t i = 0; i < e->n_nodes; i++)
        if (e->node[i])
            count_node(e, e->node[i], -1);
    for (size_t i = 0; i < e->n_nodes; i++)
        if (e->node[i]) {
            join_pools(e, e->node[i]);
            count_node(e, e->node[i], 1);
            changed(e, e->node[i], true);
        }
}

static struct epool *new_pool(struct vg_eng *e, uint64_t id) {
    uint32_t at = 0;
    while (at < VG_COUNT(e->pool) && e->pool[at])
        at++;
    struct epool *p = at < VG_COUNT(e->pool) ? vg_alloc(sizeof *p) : NULL;
    if (!p || vg_map_put_u64(&e->pools, id, p) < 0) {
        free(p);
        return NULL;
    }
    p->id = id;
    p->at = at;
    e->pool[at] = p;
    e->n_pools++;
    return p;
}

int vg_eng_set_pool(struct vg_eng *e, const struct vg_eng_pool *in) {
    vg_auto_free char *name = vg_strdup(in->name ? in->name : "");
    char **label = vg_labels_dup(in->labels, in->n_labels);
    struct epool *p = vg_map_get_u64(&e->pools, in->id);
    if (!name || !label || (!p && !(p = new_pool(e, in->id)))) {
        vg_labels_free(label, in->n_labels);
        return -ENOMEM;
    }
    free(p->name);
    vg_labels_free(p->label, p->n_labels);
    p->name = vg_take_ptr(name);
    p->label = label;
    p->n_labels = in->n_labels;
    p->shape = in->shape;
    p->whole = in->whole;
    p->gpu_class = in->gpu_class;
    p->min_run_usec = in->min_run_usec;
    rejoin_all(e);
    return 0;
}

int vg_eng_remove_pool(struct vg_eng *e, uint64_t pool) {
    struct epool *p = vg_map_get_u64(&e->pools, pool);
    if (!p)
        return 0;
    if (p->refs)
        return -EBUSY;
    vg_fits_forget_pool(e, p);
    vg_map_del_u64(&e->pools, pool);
    for (size_t i = 0; i < e->n_nodes; i++)
        if (e->node[i]) {
            e->node[i]->pools[p->at / 64] &= ~(1ULL << (p->at % 64));
            vg_nclass_set(e, e->node[i]);
            vg_index_log(e, e->node[i]);
        }
    e->pool[p->at] = NULL;
    e->n_pools--;
    free_pool(p);
    return 0;
}

/* --- what is held --- */

void vg_node_take(struct vg_eng *e, struct enode *n, struct etask *t, uint64_t gpus) {
    vg_node_hold(n, t->fit, gpus, 1);
    t->place = TASK_RUNS;
    t->node = n;
    t->gpus = gpus;
    vg_list_push_back(&n->tasks, &t->on_node);
    changed(e, n, false);
}

void vg_node_give(struct vg_eng *e, struct enode *n, struct etask *t) {
    vg_node_hold(n, t->fit, t->gpus, -1);
    vg_list_remove(&t->on_node);
    t->node = NULL;
    t->gpus = 0;
    changed(e, n, true);
}

void vg_node_refit(struct vg_eng *e, struct etask *t, struct fit *f) {
    vg_node_hold(t->node, t->fit, t->gpus, -1);
    vg_node_hold(t->node, f, t->gpus, 1);
    t->fit = f;
    changed(e, t->node, true);
}

void vg_node_imagine(const struct enode *n, struct enode *copy, struct egpu *gpu) {
    *copy = *n;
    copy->gpu = gpu;
    if (n->n_gpus)
        memcpy(gpu, n->gpu, n->n_gpus * sizeof *gpu);
    vg_list_init(&copy->tasks);
    vg_list_init(&copy->pinned);
    vg_list_init(&copy->holds);
}

void vg_node_imagine_without(struct enode *copy, const struct fit *f, uint64_t gpus) {
    vg_node_hold(copy, f, gpus, -1);
}

void vg_node_imagine_with(struct enode *copy, const struct fit *f, uint64_t gpus) {
    vg_node_hold(copy, f, gpus, 1);
}

/* --- nodes --- */

static void free_node(struct enode *n) {
    if (!n)
        return;
    free(n->name);
    free(n->model);
    free(n->rack);
    free(n->gpu);
    free(n->near);
    vg_labels_free(n->label, n->n_labels);
    vg_map_done(&n->cached);
    free(n);
}

static void drop_node(struct vg_eng *e, struct enode *n) {
    vg_list_remove(&n->ghosts);
    vg_list_remove(&n->pin_due);
    vg_map_del_u64(&e->nodes, n->id);
    e->node[n->at] = NULL;
    e->place->holes++;
    free_node(n);
}

/* Ghosts that nobody is pinned to any more. */
static void drop_ghosts(struct vg_eng *e) {
    vg_list_for_each_safe (i, &e->place->ghosts) {
        struct enode *n = vg_list_entry(i, struct enode, ghosts);
        if (vg_list_empty(&n->pinned))
            drop_node(e, n);
    }
}

static int find_slot(struct vg_eng *e, uint32_t *at) {
    for (size_t i = 0; e->place->holes && i < e->n_nodes; i++)
        if (!e->node[i]) {
            *at = (uint32_t)i;
            return 0;
        }
    struct enode **grown = vg_grow(e->node, &e->nodes_cap, e->n_nodes + 1, sizeof(*grown));
    if (!grown)
        return -ENOMEM;
    e->node = grown;
    e->node[e->n_nodes] = NULL;
    *at = (uint32_t)e->n_nodes++;
    e->place->holes++;
    return 0;
}

struct enode *vg_node_get(struct vg_eng *e, uint64_t id) {
    struct enode *n = vg_map_get_u64(&e->nodes, id);
    uint32_t at;
    if (n)
        return n;
    drop_ghosts(e);
    if (find_slot(e, &at) < 0 || vg_index_log_room(e, e->n_nodes) < 0 || !(n = vg_alloc(sizeof *n)))
        return NULL;
    *n = (struct enode){.id = id, .at = at, .ghost = true};
    vg_list_init(&n->tasks);
    vg_list_init(&n->pinned);
    vg_list_init(&n->holds);
    vg_list_init(&n->ghosts);
    vg_list_init(&n->pin_due);
    vg_list_init(&n->claims);
    n->name = vg_strdup("");
    n->model = vg_strdup("");
    n->rack = vg_strdup("");
    n->label = vg_labels_dup(NULL, 0);
    if (!n->name || !n->model || !n->rack || !n->label || vg_map_put_u64(&e->nodes, id, n) < 0) {
        free_node(n);
        return NULL;
    }
    vg_list_push_back(&e->place->ghosts, &n->ghosts);
    e->place->holes--;
    return e->node[at] = n;
}

static int cmp_gpu(const void *a, const void *b) {
    uint32_t x = ((const struct egpu *)a)->index, y = ((const struct egpu *)b)->index;
    return x < y ? -1 : x > y;
}

static struct egpu *make_gpus(const struct vg_eng_gpu *in, size_t n) {
    struct egpu *g = vg_alloc((n + 1) * sizeof *g);
    for (size_t i = 0; g && i < n; i++)
        g[i] = (struct egpu){.free_milli = 1000,
                             .room = in[i].bad ? 0 : 1000,
                             .index = in[i].index,
                             .island = in[i].island,
                             .numa = in[i].numa,
                             .mem = in[i].mem_bytes,
                             .free_mem = (int64_t)in[i].mem_bytes,
                             .bad = in[i].bad};
    if (g)
        qsort(g, n, sizeof *g, cmp_gpu);
    return g;
}

/* Where nobody said: cards of one island are near, then those of one NUMA node. */
static uint8_t guess(const struct vg_eng_gpu *a, const struct vg_eng_gpu *b) {
    if (a->island && a->island == b->island)
        return 1;
    return a->numa == b->numa ? 2 : 3;
}

/* 0 or -ENOMEM; NULL: there is nothing to choose. */
static int make_near(const struct vg_eng_node *in, size_t n, struct near **ret) {
    uint8_t dist[VG_NODE_GPUS_MAX][VG_NODE_GPUS_MAX] = {0};
    uint64_t cards = 0;
    uint32_t top = 0;
    *ret = NULL;
    if (n < 3) /* of two, any one is as good as the other */
        return 0;
    for (size_t i = 0; i < n; i++) {
        const struct vg_eng_gpu *a = &in->gpu[i];
        cards |= 1ULL << a->index;
        top = VG_MAX(top, a->index + 1);
        for (size_t k = 0; k < n; k++) {
            const struct vg_eng_gpu *b = &in->gpu[k];
            uint8_t told = in->far ? in->far[a->index][b->index] : guess(a, b);
            dist[a->index][b->index] = told ? told : UINT8_MAX;
        }
    }
    vg_auto_free struct near *w = vg_near_new(dist, top);
    if (!w)
        return -ENOMEM;
    if (!vg_near_flat(w, cards))
        *ret = vg_take_ptr(w);
    return 0;
}

/* What is free follows from what it has and the tasks on it. */
static void recount(struct enode *n) {
    n->cpu_free = n->total.cpu_milli;
    n->mem_free = (int64_t)n->total.mem_bytes;
    n->n_tasks = n->whole_free = n->alone = 0;
    n->linked = false;
    for (uint32_t i = 0; i < n->n_gpus; i++) {
        n->whole_free += !n->gpu[i].bad;
        n->linked |= n->gpu[i].island != 0;
    }
    vg_list_for_each (i, &n->tasks) {
        const struct etask *t = vg_list_entry(i, struct etask, on_node);
        vg_node_hold(n, t->fit, t->gpus, 1);
    }
    n->shrunk |= n->cpu_free < 0 || n->mem_free < 0;
    for (uint32_t i = 0; i < n->n_gpus; i++)
        n->shrunk |= n->gpu[i].free_milli < 0;
}

int vg_eng_set_node(struct vg_eng *e, const struct vg_eng_node *in) {
    size_t n_gpus = VG_MIN(in->n_gpus, (size_t)VG_NODE_GPUS_MAX);
    vg_auto_free char *name = vg_strdup(in->name ? in->name : "");
    vg_auto_free char *model = vg_strdup(in->model ? in->model : "");
    vg_auto_free char *rack = vg_strdup(in->rack ? in->rack : "");
    vg_auto_free struct egpu *gpu = make_gpus(in->gpu, n_gpus);
    vg_auto_free struct near *near = NULL;
    char **label = vg_labels_dup(in->labels, in->n_labels);
    bool made = name && model && rack && gpu && label && make_near(in, n_gpus, &near) == 0;
    struct enode *n = made ? vg_node_get(e, in->id) : NULL;
    uint32_t rack_no = n ? vg_rack_number(e, rack, n->at) : 0;
    if (!rack_no) {
        vg_labels_free(label, in->n_labels);
        return -ENOMEM;
    }
    count_node(e, n, -1);
    free(n->name);
    free(n->model);
    free(n->rack);
    free(n->gpu);
    free(n->near);
    vg_labels_free(n->label, n->n_labels);
    n->name = vg_take_ptr(name);
    n->model = vg_take_ptr(model);
    n->rack = vg_take_ptr(rack);
    n->gpu = vg_take_ptr(gpu);
    n->near = vg_take_ptr(near);
    n->label = label;
    n->n_labels = in->n_labels;
    vg_rack_set(e, n, rack_no);
    n->model_no = vg_names_number(&e->place->models, n->model);
    n->total = in->total;
    n->total.gpus = n->n_gpus = (uint32_t)n_gpus;
    n->usable = in->usable;
    n->parts = in->parts;
    n->max_tasks = in->max_tasks ? in->max_tasks : VG_ENG_NODE_TASKS_MAX;
    n->ghost = false;
    vg_list_remove(&n->ghosts);
    recount(n);
    join_pools(e, n);
    count_node(e, n, 1);
    changed(e, n, true);
    vg_profile_node_set(e, n, false);
    return 0;
}

/* Takes the node away; a ghost stays while tasks are pinned to it. */
static void make_ghost(struct vg_eng *e, struct enode *n) {
    count_node(e, n, -1);
    n->ghost = true;
    vg_list_push_back(&e->place->ghosts, &n->ghosts);
    n->n_gpus = n->whole_free = 0;
    n->total = (struct vg_res){0};
    join_pools(e, n);
    recount(n);
    vg_map_done(&n->cached);
    vg_rack_set(e, n, 0);
    changed(e, n, false);
}

void vg_eng_remove_node(struct vg_eng *e, uint64_t node) {
    struct enode *n = vg_map_get_u64(&e->nodes, node);
    if (!n || n->ghost)
        return;
    count_node(e, n, -1);
    n->usable = false; /* so that nobody is placed there while its tasks are let go */
    count_node(e, n, 1);
    while (!vg_list_empty(&n->tasks))
        vg_eng_release(e, vg_list_entry(n->tasks.next, struct etask, on_node)->id, VG_ENG_LOST);
    vg_profile_node_set(e, n, true);
    make_ghost(e, n);
    drop_ghosts(e);
}

void vg_eng_set_cached(struct vg_eng *e, uint64_t node, uint64_t env, bool cached) {
    struct enode *n = vg_map_get_u64(&e->nodes, node);
    if (!n || n->ghost)
        return;
    if (cached)
        (void)vg_map_put_u64(&n->cached, env, n); /* a hint: without memory it is forgotten */
    else
        vg_map_del_u64(&n->cached, env);
}

/* --- all of it --- */

int vg_place_init(struct vg_eng *e) {
    vg_list_init(&e->fits);
    e->place = vg_alloc(sizeof *e->place);
    if (!e->place)
        return -ENOMEM;
    vg_list_init(&e->place->ghosts);
    vg_list_init(&e->place->idle);
    vg_list_init(&e->place->indexes);
    e->place->layout = 1;
    e->place->mix = vg_mix_new();
    return e->place->mix ? 0 : -ENOMEM;
}

void vg_place_done(struct vg_eng *e) {
    if (!e->place)
        return;
    vg_fits_done(e);
    for (size_t i = 0; i < e->n_nodes; i++)
        free_node(e->node[i]);
    free(e->node);
    vg_map_done(&e->nodes);
    for (uint32_t i = 0; i < VG_COUNT(e->pool); i++)
        free_pool(e->pool[i]);
    vg_map_done(&e->pools);
    vg_names_done(&e->place->racks);
    vg_names_done(&e->place->models);
    vg_names_done(&e->place->classes);
    vg_mix_free(e->place->mix);
    free(e->place->log);
    free(e->place->glance);
    free(e->place->rack);
    free(e->place->aside);
    free(vg_take_ptr(e->place));
}
