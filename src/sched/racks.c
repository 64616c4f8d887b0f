/* What is free in all: by rack, so that a gang looks only at racks that may hold it, and nodes by
   their untouched cards, so that places for wide requests are known to be scarce or not. Nodes of
   unknown rack are taken by sixteen as they came. Pure. */
#include "base/cleanup.h"
#include "base/mem.h"
#include "sched/place.h"

#include <stdio.h>
#include <string.h>

#define UNKNOWN_TOGETHER 16

uint32_t vg_rack_number(struct vg_eng *e, const char *rack, uint32_t slot) {
    struct fit_world *w = e->place;
    char name[32];
    if (!rack || !*rack) {
        snprintf(name, sizeof name, "\1%u", slot / UNKNOWN_TOGETHER);
        rack = name;
    }
    uint32_t no = vg_names_number(&w->racks, rack);
    if (!no || no < w->n_rack)
        return no;
    struct rack_room *grown = vg_grow(w->rack, &w->racks_cap, no + 1, sizeof(*grown));
    if (!grown)
        return 0;
    w->rack = grown;
    while (w->n_rack <= no)
        w->rack[w->n_rack++] = (struct rack_room){0};
    return no;
}

static void leave(struct vg_eng *e, struct enode *n) {
    struct rack_room *r = &e->place->rack[n->rack_no];
    if (n->rack_prev)
        e->node[n->rack_prev - 1]->rack_next = n->rack_next;
    else
        r->first = n->rack_next;
    if (n->rack_next)
        e->node[n->rack_next - 1]->rack_prev = n->rack_prev;
    n->rack_prev = n->rack_next = 0;
}

static void join(struct vg_eng *e, struct enode *n) {
    struct rack_room *r = &e->place->rack[n->rack_no];
    n->rack_next = r->first;
    if (r->first)
        e->node[r->first - 1]->rack_prev = n->at + 1;
    r->first = n->at + 1;
}

static void count(struct fit_world *w, uint32_t rack_no, const struct glance *g, int sign) {
    struct rack_room *r = &w->rack[rack_no];
    if (!rack_no || !g->open)
        return;
    w->wide[g->whole] += (uint32_t)sign;
    r->whole += sign * (int64_t)g->whole;
    r->milli += sign * (int64_t)g->all_milli;
    r->cpu += sign * VG_MAX(g->cpu, 0);
}

void vg_rack_set(struct vg_eng *e, struct enode *n, uint32_t rack_no) {
    if (n->rack_no == rack_no)
        return;
    struct glance *g = &e->place->glance[n->at];
    if (n->rack_no) {
        count(e->place, n->rack_no, g, -1);
        leave(e, n);
    }
    n->rack_no = rack_no;
    if (rack_no)
        join(e, n);
    g->open = false; /* counts in its new rack with its next change, which follows */
}

void vg_rack_changed(struct vg_eng *e, const struct enode *n, const struct glance *before,
                     const struct glance *after) {
    count(e->place, n->rack_no, before, -1);
    count(e->place, n->rack_no, after, 1);
}

/* Members that a rack may hold: never fewer than it does. */
uint64_t vg_rack_bound(const struct rack_room *r, const struct fit *f) {
    uint64_t most = r->first ? UINT32_MAX : 0;
    if (f->res.gpus)
        most = VG_MIN(most, (uint64_t)r->whole / f->res.gpus);
    if (f->res.gpu_milli)
        most = VG_MIN(most, (uint64_t)r->milli / f->res.gpu_milli);
    if (f->res.cpu_milli)
        most = VG_MIN(most, (uint64_t)r->cpu / f->res.cpu_milli);
    return most;
}

/* --- for tests --- */

static bool same_glance(const struct glance *a, const struct glance *b) {
    return a->cpu == b->cpu && a->mem == b->mem && a->class_no == b->class_no &&
           a->milli == b->milli && a->all_milli == b->all_milli && a->whole == b->whole &&
           a->open == b->open;
}

static const char *check_rack(const struct vg_eng *e, uint32_t no, uint32_t *wide) {
    struct rack_room sum = {0};
    const struct rack_room *r = &e->place->rack[no];
    uint32_t before = 0;
    for (uint32_t next = r->first; next; next = e->node[next - 1]->rack_next) {
        const struct enode *n = e->node[next - 1];
        const struct glance *g = &e->place->glance[n->at];
        if (n->rack_no != no || n->rack_prev != before)
            return "a node stands in another rack's list";
        before = next;
        if (!g->open)
            continue;
        sum.whole += g->whole;
        sum.milli += g->all_milli;
        sum.cpu += VG_MAX(g->cpu, 0);
        wide[g->whole]++;
    }
    return sum.whole == r->whole && sum.milli == r->milli && sum.cpu == r->cpu
               ? NULL
               : "what is free in a rack is not the sum of its nodes";
}

const char *vg_place_check(const struct vg_eng *e) {
    uint32_t wide[VG_NODE_GPUS_MAX + 1] = {0};
    for (size_t i = 0; i < e->n_nodes; i++) {
        if (!e->node[i] || e->node[i]->ghost)
            continue;
        struct glance g = vg_glance_at(e->node[i]);
        if (!same_glance(&g, &e->place->glance[i]))
            return "a node changed and placement was not told";
    }
    for (uint32_t i = 1; i < e->place->n_rack; i++) {
        const char *bad = check_rack(e, i, wide);
        if (bad)
            return bad;
    }
    return memcmp(wide, e->place->wide, sizeof wide) == 0
               ? NULL
               : "nodes are not counted right by their untouched cards";
}
