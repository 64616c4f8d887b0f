/* Sentences and numbers about the state, for people. Pure. */
#include "base/util.h"
#include "sched/internal.h"

#include <stdio.h>

bool vg_sched_could_hold(const struct spool *p, const struct vg_res *res, bool usable) {
    for (size_t i = 0; i < p->n_members; i++) {
        const struct snode *n = p->member[i]->node;
        if ((n->usable || !usable) && vg_res_fits(res, &n->total))
            return true;
    }
    return false;
}

/* Each amount by itself: the most that one node has, in all or free. */
static struct vg_res largest(const struct spool *p, bool free) {
    struct vg_res most = {0};
    for (size_t i = 0; i < p->n_members; i++) {
        const struct snode *n = p->member[i]->node;
        const struct vg_res *r = free ? &n->free : &n->total;
        if (free && !n->usable)
            continue;
        most.cpu_milli = VG_MAX(most.cpu_milli, r->cpu_milli);
        most.mem_bytes = VG_MAX(most.mem_bytes, r->mem_bytes);
        most.gpus = VG_MAX(most.gpus, r->gpus);
    }
    return most;
}

static const char *plural(uint64_t n) {
    return n == 1 ? "" : "s";
}

/* The first amount of which `most` has too little: "8 GPUs" and "4"; false when none is short. */
static bool shortage(const struct vg_res *want, const struct vg_res *most, char *need, char *have,
                     size_t n) {
    if (want->gpus > most->gpus) {
        snprintf(need, n, "%u GPU%s", want->gpus, plural(want->gpus));
        snprintf(have, n, "%u", most->gpus);
    } else if (want->cpu_milli > most->cpu_milli) {
        snprintf(need, n, "%g CPU%s", want->cpu_milli / 1000.0, plural(want->cpu_milli / 1000));
        snprintf(have, n, "%g", most->cpu_milli / 1000.0);
    } else if (want->mem_bytes > most->mem_bytes) {
        char a[32];
        snprintf(need, n, "%s of memory", vg_format_size(want->mem_bytes, a, sizeof a));
        vg_format_size(most->mem_bytes, have, n);
    } else {
        return false;
    }
    return true;
}

static void say_all(const struct vg_res *r, char *out, size_t n) {
    char mem[32];
    snprintf(out, n, "%u GPU%s, %g CPU%s and %s of memory", r->gpus, plural(r->gpus),
             r->cpu_milli / 1000.0, plural(r->cpu_milli / 1000),
             vg_format_size(r->mem_bytes, mem, sizeof mem));
}

void vg_sched_say_too_big(const struct spool *p, const struct vg_res *res, char *out, size_t n) {
    struct vg_res most = largest(p, false);
    char need[96], have[96];
    if (shortage(res, &most, need, have, sizeof need)) {
        snprintf(out, n, "no node of pool '%s' has %s (largest has %s)", p->conf->name, need, have);
        return;
    }
    say_all(res, need, sizeof need);
    snprintf(out, n, "no node of pool '%s' has %s together", p->conf->name, need);
}

static void say_first(const struct spool *p, const struct vg_res *res, char *out, size_t n) {
    struct vg_res most = largest(p, true);
    char need[96], have[96];
    if (shortage(res, &most, need, have, sizeof need))
        snprintf(out, n,
                 "queued: you are next on %s, waiting for %s (the most free on a node is %s)",
                 p->conf->name, need, have);
    else
        snprintf(out, n, "queued: you are next on %s, waiting for a node with room", p->conf->name);
}

static uint32_t say_in_pool(const struct stask *t, char *out, size_t n) {
    const struct spool *p = t->pool;
    uint32_t ahead = tree_before(&p->queue, &t->item);
    if (p->n_members == 0)
        snprintf(out, n, "queued: pool '%s' has no nodes yet; 'virga node invite' adds one",
                 p->conf->name);
    else if (p->usable == 0)
        snprintf(out, n,
                 "queued: no node of pool '%s' takes tasks now (%zu draining, lost or away)",
                 p->conf->name, p->n_members);
    else if (ahead)
        snprintf(out, n, "queued: %u ahead of you on %s", ahead, p->conf->name);
    else
        say_first(p, &t->res, out, n);
    return ahead;
}

static uint32_t say_pinned(const struct stask *t, char *out, size_t n) {
    uint32_t ahead = tree_before(&t->node->pinned, &t->item);
    char need[96], have[96];
    if (!t->node->usable)
        snprintf(out, n, "queued: node %s, where the session is, takes no tasks now",
                 t->node->name);
    else if (ahead)
        snprintf(out, n, "queued: %u ahead of you on node %s, where the session is", ahead,
                 t->node->name);
    else if (shortage(&t->res, &t->node->free, need, have, sizeof need))
        snprintf(out, n, "queued: waiting for %s on node %s, where the session is (%s free)", need,
                 t->node->name, have);
    else
        snprintf(out, n, "queued: waiting for room on node %s, where the session is",
                 t->node->name);
    return ahead;
}

int vg_sched_explain(const struct vg_sched *s, uint64_t task, char *out, size_t n) {
    const struct stask *t = vg_map_get_u64(&s->tasks, task);
    char why[256];
    out[0] = 0;
    if (!t || t->place == PLACED)
        return -ENOENT;
    switch (t->place) {
    case WAITS:
        return (int)say_in_pool(t, out, n);
    case PINNED:
        return (int)say_pinned(t, out, n);
    case ASIDE:
        if (vg_sched_could_hold(t->pool, &t->res, false))
            snprintf(out, n,
                     "queued: the nodes of pool '%s' that are large enough take no tasks now",
                     t->pool->conf->name);
        else {
            vg_sched_say_too_big(t->pool, &t->res, why, sizeof why);
            snprintf(out, n, "queued: %s", why);
        }
        return 0;
    default:
        snprintf(out, n, "queued: the session's node is away or too small now");
        return 0;
    }
}

static void least(uint64_t have, uint64_t want, uint64_t *slots) {
    if (want)
        *slots = VG_MIN(*slots, have / want);
}

/* How many tasks of the pool's shape fit; 0 when nothing is reserved. */
static uint32_t slots(const struct vg_res *have, const struct vg_res *shape) {
    uint64_t k = UINT32_MAX;
    least(have->cpu_milli, shape->cpu_milli, &k);
    least(have->mem_bytes, shape->mem_bytes, &k);
    least(have->gpus, shape->gpus, &k);
    return k == UINT32_MAX ? 0 : (uint32_t)k;
}

int vg_sched_pool_info(const struct vg_sched *s, const char *pool, struct vg_sched_pool_info *ret) {
    const struct spool *p = vg_sched_find_pool(s, pool);
    if (!p)
        return -ENOENT;
    struct vg_sched_pool_info r = {.nodes = (uint32_t)p->n_members,
                                   .usable = p->usable,
                                   .queued = p->waiting,
                                   .running = p->running};
    for (size_t i = 0; i < p->n_members; i++) {
        const struct snode *n = p->member[i]->node;
        r.total_slots += slots(&n->total, &p->conf->shape);
        if (n->usable)
            r.free_slots += slots(&n->free, &p->conf->shape);
    }
    *ret = r;
    return 0;
}

int vg_sched_node_info(const struct vg_sched *s, uint64_t node, struct vg_sched_node_info *ret) {
    const struct snode *n = vg_map_get_u64(&s->nodes, node);
    if (!n)
        return -ENOENT;
    *ret = (struct vg_sched_node_info){
        .total = n->total,
        .used = {.cpu_milli = (uint32_t)n->cpu_used,
                 .mem_bytes = n->mem_used,
                 .gpus = (uint32_t)__builtin_popcountll(n->gpus_used)},
        .gpus_used = n->gpus_used,
        .tasks = n->n_tasks,
    };
    return 0;
}
