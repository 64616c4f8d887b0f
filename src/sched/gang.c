/* Gangs: members that start together or not at all. While a gang waits, its first member stands in
   the lane for all of them; once it runs, members are tasks like others, and one that comes back
   alone is a missing one. Pure. */
#include "base/mem.h"
#include "sched/lanes.h"

struct gang *vg_gang_get(struct vg_eng *e, uint64_t id, uint32_t size) {
    struct gang *g = vg_map_get_u64(&e->gangs, id);
    if (g)
        return g;
    if (!(g = vg_alloc(sizeof *g)) || vg_map_put_u64(&e->gangs, id, g) < 0) {
        free(g);
        return NULL;
    }
    g->id = id;
    g->size = size;
    vg_list_init(&g->members);
    return g;
}

void vg_gang_join(struct gang *g, struct etask *t) {
    t->gang = g;
    t->member = g->here++;
    if (g->size < g->here)
        g->size = g->here;
    vg_list_push_back(&g->members, &t->on_gang);
}

void vg_gang_leave(struct vg_eng *e, struct etask *t) {
    struct gang *g = t->gang;
    if (!g)
        return;
    t->gang = NULL;
    vg_list_remove(&t->on_gang);
    if (--g->here)
        return;
    vg_map_del_u64(&e->gangs, g->id);
    free(g);
}

static void tell(struct vg_eng *e, const struct etask *t, uint32_t member, uint32_t of) {
    *vg_out_add(e) = (struct vg_eng_decision){.what = VG_ENG_START,
                                              .task = t->id,
                                              .node = t->node->id,
                                              .pool = t->pool->id,
                                              .gpus = t->gpus,
                                              .res = t->fit->res,
                                              .gang = t->gang ? t->gang->id : 0,
                                              .member = member,
                                              .of = of};
}

/* The spots were found before anything was taken, so all of them can be. */
void vg_gang_start(struct vg_eng *e, struct etask *first, const struct spot *at) {
    struct gang *g = first->gang;
    uint32_t k = 0;
    if (!g || !g->waits) {
        vg_task_start(e, first, at, e->now);
        tell(e, first, 0, 0); /* a missing member comes alone, too */
        return;
    }
    g->waits = false;
    vg_list_for_each (i, &g->members) {
        struct etask *t = vg_list_entry(i, struct etask, on_gang);
        vg_task_start(e, t, &at[k], e->now);
        tell(e, t, k++, g->here);
    }
}

int vg_gang_try(struct vg_eng *e, struct shape *s, struct etask *first, struct etenant **full,
                enum vg_eng_code *code) {
    uint32_t n = s->members;
    uint64_t run = vg_run_class_max(s->run_class);
    uint64_t until = run > UINT64_MAX - e->now ? VG_ENG_NEVER : e->now + run;
    vg_auto_free struct spot *at = vg_alloc(n * sizeof *at);
    if (!at || vg_out_room(e, n) < 0) {
        *code = VG_ENG_BUSY; /* no memory to plan with: when something changes */
        return 0;
    }
    if (!vg_fit_find_gang(e, s->fit, s, n, until, first->env, at, code) ||
        (*full = vg_tenant_at_limit_there(first->tenant, s->fit, at, n)))
        return 0;
    vg_task_unwait(e, first);
    vg_gang_start(e, first, at);
    return 1;
}
