/* Free GPUs of the nodes. A pass over all nodes: plain, and fast enough for a baseline. */
#include "sim/cluster.h"

#include "base/cleanup.h"
#include "base/mem.h"

int vg_cluster_init(struct vg_cluster *c, const struct vg_workload *w) {
    size_t members = 0;
    *c = (struct vg_cluster){.w = w};
    c->free = vg_alloc(VG_MAX(w->n_nodes, 1u) * sizeof(*c->free));
    c->at = vg_alloc(VG_MAX(w->n_jobs, 1u) * sizeof(*c->at));
    for (size_t i = 0; c->at && i < w->n_jobs; i++) {
        c->at[i] = members;
        members += w->job[i].members;
    }
    c->held = vg_alloc(VG_MAX(members, 1u) * sizeof(*c->held));
    if (!c->free || !c->at || !c->held) {
        vg_cluster_done(c);
        return -ENOMEM;
    }
    for (size_t i = 0; i < w->n_nodes; i++) {
        c->free[i] = w->node[i].units;
        c->units_free += w->node[i].units;
    }
    return 0;
}

void vg_cluster_done(struct vg_cluster *c) {
    free(c->free);
    free(c->at);
    free(c->held);
    *c = (struct vg_cluster){0};
}

/* The best node for one member when the members before it are in ret[0..n). */
static bool best_node(const struct vg_cluster *c, const uint32_t *avail, const uint32_t *also,
                      const struct vg_work_job *j, const uint32_t *taken, uint32_t n,
                      uint32_t *ret) {
    uint32_t best = UINT32_MAX;
    for (size_t i = 0; i < c->w->n_nodes; i++) {
        if (avail[i] < j->units || avail[i] >= best || c->w->node[i].pool != j->pool)
            continue;
        uint32_t mine = 0;
        for (uint32_t k = 0; k < n; k++)
            mine += taken[k] == i ? j->units : 0;
        if (avail[i] < mine + j->units || (also && also[i] < mine + j->units))
            continue;
        best = avail[i];
        *ret = (uint32_t)i;
    }
    return best != UINT32_MAX;
}

bool vg_cluster_find(const struct vg_cluster *c, const uint32_t *avail, const uint32_t *also,
                     const struct vg_work_job *j, uint32_t *ret) {
    for (uint32_t m = 0; m < j->members; m++)
        if (!best_node(c, avail, also, j, ret, m, &ret[m]))
            return false;
    return true;
}

bool vg_cluster_start(struct vg_cluster *c, uint32_t job, const uint32_t *also) {
    const struct vg_work_job *j = &c->w->job[job];
    uint32_t *nodes = c->held + c->at[job];
    if ((uint64_t)j->members * j->units > c->units_free ||
        !vg_cluster_find(c, c->free, also, j, nodes))
        return false;
    for (uint32_t m = 0; m < j->members; m++)
        c->free[nodes[m]] -= j->units;
    c->units_free -= (uint64_t)j->members * j->units;
    return true;
}

void vg_cluster_stop(struct vg_cluster *c, uint32_t job) {
    const struct vg_work_job *j = &c->w->job[job];
    for (uint32_t m = 0; m < j->members; m++)
        c->free[c->held[c->at[job] + m]] += j->units;
    c->units_free += (uint64_t)j->members * j->units;
}
