/* The share of a task that runs becomes larger or smaller where it is. What it grows by is asked
   for like a task that comes: there must be room on its card now, within its tenant's limits, and
   nobody's promised place may be lost. Pure. */
#include "base/util.h"
#include "sched/facts.h"
#include "sched/lanes.h"
#include "sched/place.h"

#include <stdio.h>

static const struct egpu *card_of(const struct etask *t) {
    for (uint32_t i = 0; i < t->node->n_gpus; i++)
        if (t->gpus >> t->node->gpu[i].index & 1)
            return &t->node->gpu[i];
    return NULL;
}

/* What it needs more than it has; 0 where it needs less. */
struct growth {
    int32_t milli;
    int64_t mem;
};

static struct growth growth_of(const struct etask *t, const struct egpu *g, const struct fit *to) {
    int64_t mem = (int64_t)vg_fit_card_mem(to, g->mem) - (int64_t)vg_fit_card_mem(t->fit, g->mem);
    int32_t milli = (int32_t)to->res.gpu_milli - (int32_t)t->fit->res.gpu_milli;
    return (struct growth){VG_MAX(milli, 0), VG_MAX(mem, (int64_t)0)};
}

static int no_room(const struct etask *t, const struct egpu *g, struct vg_err *err) {
    char mem[32];
    int64_t most = VG_MAX(g->free_mem, (int64_t)0) + (int64_t)vg_fit_card_mem(t->fit, g->mem);
    return vg_err_set(err, VG_NO_CAPACITY,
                      "GPU %u of node %.64s has no room for that: with what is free there the task "
                      "can have at most %g of it and %s of its memory",
                      g->index, t->node->name,
                      (double)(VG_MAX(g->free_milli, 0) + (int32_t)t->fit->res.gpu_milli) / 1000,
                      vg_format_size((uint64_t)most, mem, sizeof mem));
}

/* Whether everybody who was promised a place on the card still finds it then. */
static bool leaves_promises(const struct vg_eng *e, const struct etask *t, uint32_t index,
                            struct growth more) {
    vg_list_for_each (i, &t->node->holds) {
        const struct hold *h = vg_list_entry(i, struct hold, on_node);
        struct egpu gpu[VG_NODE_GPUS_MAX];
        struct enode copy;
        if (!(h->gpus >> index & 1) || h->of->from >= t->end_usec || h->of->until <= e->now)
            continue;
        vg_room_at(e, t->node, VG_MAX(h->of->from, e->now), NULL, true, &copy, gpu);
        for (uint32_t k = 0; k < copy.n_gpus; k++)
            if (gpu[k].index == index &&
                (gpu[k].free_milli < more.milli || gpu[k].free_mem < more.mem))
                return false;
    }
    return true;
}

/* Whether its tenant, and those above it, may hold so much more. */
static int within_limits(struct vg_eng *e, struct etask *t, struct growth more,
                         struct vg_err *err) {
    struct vg_res res = {.gpu_milli = (uint32_t)more.milli};
    struct fit *f = vg_fit_like(e, t->fit, &res);
    if (!f)
        return vg_err_set(err, VG_INTERNAL, "out of memory");
    const struct etenant *full = vg_tenant_at_limit(e, t->tenant, f, 1);
    vg_fit_put(e, f);
    if (!full)
        return 0;
    uint64_t most =
        VG_MIN(full->limit.gpu_milli, full->weight ? UINT64_MAX : full->quota.gpu_milli);
    return vg_err_set(err, VG_NO_CAPACITY,
                      "%.64s holds %g GPUs and may hold %g: end something first, or ask an "
                      "administrator",
                      full->name, (double)full->held.gpu_milli / 1000, (double)most / 1000);
}

static int check(struct vg_eng *e, struct etask *t, const struct fit *to, bool unbound,
                 struct vg_err *err) {
    const struct egpu *g = card_of(t);
    if (!g)
        return vg_err_set(err, VG_CONFLICT, "its GPU is not there any more");
    struct growth more = growth_of(t, g, to);
    if (!more.milli && !more.mem)
        return 0;
    if (more.milli > g->free_milli || more.mem > g->free_mem)
        return no_room(t, g, err);
    int r = unbound ? 0 : within_limits(e, t, more, err);
    if (r < 0)
        return r;
    if (!unbound && !leaves_promises(e, t, g->index, more))
        return vg_err_set(err, VG_NO_CAPACITY,
                          "what is free on GPU %u of node %.64s is kept for a task that waits for "
                          "it: ask for less, or ask again when that has run",
                          g->index, t->node->name);
    return 0;
}

int vg_eng_reshare(struct vg_eng *e, uint64_t task, uint32_t milli, uint64_t mem_bytes,
                   bool unbound, struct vg_err *err) {
    struct etask *t = vg_map_get_u64(&e->tasks, task);
    if (!t || t->place != TASK_RUNS || !t->fit->res.gpu_milli || t->leaving)
        return vg_err_set(err, VG_CONFLICT,
                          "it has no share of a GPU that could be changed: it does not run, or is "
                          "being stopped");
    struct vg_res res = t->fit->res;
    res.gpu_milli = milli;
    res.gpu_mem_bytes = mem_bytes;
    struct fit *to = vg_fit_like(e, t->fit, &res), *from = t->fit;
    if (!to)
        return vg_err_set(err, VG_INTERNAL, "out of memory");
    int r = check(e, t, to, unbound, err);
    if (r < 0) {
        vg_fit_put(e, to);
        return r;
    }
    vg_profile_end(e, t);
    vg_tenant_charge(e, t->tenant, from, -1);
    vg_tenant_charge(e, t->tenant, to, 1);
    vg_node_refit(e, t, to);
    vg_profile_begin(e, t);
    vg_fit_put(e, from);
    return 0;
}
