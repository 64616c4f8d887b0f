/* Claims: see claim.h. Pure. */
#include "sched/claim.h"

#include "base/mem.h"

struct claim *vg_claim_new(struct etask *t, uint32_t members) {
    struct claim *c = vg_alloc(sizeof *c + members * sizeof c->spot[0]);
    if (!c)
        return NULL;
    c->task = t;
    vg_list_init(&c->due);
    return c;
}

void vg_claim_add(struct claim *c, const struct spot *at) {
    struct claim_spot *s = &c->spot[c->n++];
    s->claim = c;
    s->at = *at;
    vg_list_init(&s->on_node);
    vg_list_push_back(&at->node->claims, &s->on_node);
}

void vg_claim_pop(struct claim *c) {
    vg_list_remove(&c->spot[--c->n].on_node);
}

void vg_claim_free(struct claim *c) {
    while (c->n)
        vg_claim_pop(c);
    vg_list_remove(&c->due);
    free(c);
}

/* All members of a gang that waits, or the task alone. */
static void place(struct etask *t, enum etask_place where) {
    t->place = where;
    if (t->gang && t->gang->waits)
        vg_list_for_each (i, &t->gang->members)
            vg_list_entry(i, struct etask, on_gang)->place = where;
}

int vg_claim_commit(struct vg_eng *e, struct claim *c) {
    struct etask *t = c->task;
    for (uint32_t i = 0; i < c->n; i++)
        if (vg_profile_keep(e, t, c->spot[i].at.node, c->spot[i].at.gpus) < 0) {
            vg_profile_unkeep(e, t);
            return -ENOMEM;
        }
    vg_task_delane(e, t);
    place(t, TASK_CLAIMS);
    t->claim = c;
    vg_tenant_charge(e, t->tenant, t->fit, (int)c->n);
    vg_list_push_back(&e->claims_due, &c->due);
    return 0;
}

/* Those who leave for a task that no longer waits for it leave for nobody. */
static void forget_victims(const struct claim *c) {
    for (uint32_t i = 0; i < c->n; i++)
        vg_list_for_each (k, &c->spot[i].at.node->tasks) {
            struct etask *v = vg_list_entry(k, struct etask, on_node);
            if (v->for_task == c->task)
                v->for_task = NULL;
        }
}

static void dissolve(struct vg_eng *e, struct claim *c) {
    struct etask *t = c->task;
    forget_victims(c);
    vg_profile_unkeep(e, t);
    vg_tenant_charge(e, t->tenant, t->fit, -(int)c->n);
    t->claim = NULL;
    vg_claim_free(c);
}

void vg_claim_lose(struct vg_eng *e, struct claim *c) {
    struct etask *t = c->task;
    dissolve(e, c);
    vg_list_push_back(&e->astray, &t->link);
}

void vg_claims_node_changed(struct vg_eng *e, struct enode *n) {
    bool gone = n->ghost || !n->usable;
    vg_list_for_each_safe (i, &n->claims) {
        struct claim *c = vg_list_entry(i, struct claim_spot, on_node)->claim;
        if (!gone) {
            vg_list_remove(&c->due);
            vg_list_push_back(&e->claims_due, &c->due);
            continue;
        }
        vg_claim_lose(e, c); /* it may have had several spots here */
        vg_claims_node_changed(e, n);
        return;
    }
}

/* Whether these very cards are free on a node (that may be imagined). */
static bool is_free(const struct enode *n, const struct fit *f, uint64_t gpus) {
    struct egpu gpu[VG_NODE_GPUS_MAX];
    struct enode copy;
    vg_node_imagine(n, &copy, gpu);
    for (uint32_t i = 0; i < copy.n_gpus; i++)
        if (!(gpus >> gpu[i].index & 1) && !gpu[i].bad) {
            copy.whole_free -= gpu[i].tasks == 0;
            gpu[i].bad = true;
        }
    return vg_fit_now(f, &copy);
}

/* From this spot on, those on its node: they share its CPU and memory. */
static bool node_is_free(const struct claim *c, uint32_t first) {
    struct egpu gpu[VG_NODE_GPUS_MAX];
    struct enode copy;
    const struct enode *n = c->spot[first].at.node;
    vg_node_imagine(n, &copy, gpu);
    for (uint32_t i = first; i < c->n; i++) {
        if (c->spot[i].at.node != n)
            continue;
        if (!is_free(&copy, c->task->fit, c->spot[i].at.gpus))
            return false;
        vg_node_imagine_with(&copy, c->task->fit, c->spot[i].at.gpus);
    }
    return true;
}

/* Everything that was in the way has left. */
static bool all_free(const struct claim *c) {
    for (uint32_t i = 0; i < c->n; i++) {
        bool seen = false;
        for (uint32_t k = 0; k < i && !seen; k++)
            seen = c->spot[k].at.node == c->spot[i].at.node;
        if (!seen && !node_is_free(c, i))
            return false;
    }
    return true;
}

static bool start_claim(struct vg_eng *e, struct claim *c) {
    struct etask *t = c->task;
    uint32_t n = c->n;
    vg_auto_free struct spot *at = vg_alloc(n * sizeof *at);
    if (!at || !all_free(c) || vg_out_room(e, n) < 0)
        return false;
    for (uint32_t i = 0; i < n; i++)
        at[i] = c->spot[i].at;
    dissolve(e, c);
    place(t, TASK_WAITS);
    vg_task_uncount(e, t);
    vg_gang_start(e, t, at);
    return true;
}

static void wait_again(struct vg_eng *e) {
    vg_list_for_each_safe (i, &e->astray) {
        struct etask *t = vg_list_entry(i, struct etask, link);
        vg_list_remove(&t->link);
        place(t, TASK_WAITS);
        vg_task_uncount(e, t);
        if (vg_task_wait(e, t) == 0)
            continue;
        vg_task_recount(e, t);
        place(t, TASK_CLAIMS);
        vg_list_push_front(&e->astray, &t->link); /* no memory: when somebody asks next */
        return;
    }
}

void vg_claims_run(struct vg_eng *e) {
    for (struct vg_list *i; (i = vg_list_first(&e->claims_due));) {
        vg_list_remove(i);
        start_claim(e, vg_list_entry(i, struct claim, due));
    }
    if (!vg_list_empty(&e->astray))
        wait_again(e);
}

void vg_claim_leave(struct vg_eng *e, struct etask *t) {
    struct gang *g = t->gang && t->gang->waits ? t->gang : NULL;
    struct etask *first = g ? vg_list_entry(g->members.next, struct etask, on_gang) : t;
    if (first->claim)
        vg_claim_lose(e, first->claim);
    vg_task_uncount_one(e, t);
    if (t == first) {
        vg_list_remove(&t->link);
        if (g && g->here > 1)
            vg_list_push_back(&e->astray,
                              &vg_list_entry(t->on_gang.next, struct etask, on_gang)->link);
    }
    vg_etask_free(e, t);
}
