/* Making room: the cheapest way to it, as a transaction in memory. Who may be stopped for whom is
   ground.c's.

   On each candidate node the cheapest tasks are taken away, one by one, until t fits; then each of
   them that is not needed after all is given back. The node with the fewest victims wins, then the
   lowest priority among them, then the least work lost. A gang is stopped as a whole.

   The search is bounded: it looks at the newest tasks of those tenants that may have to give. A
   search in vain is not repeated before something can have changed by time, or the shape has
   another head. Pure. */
#include "base/mem.h"
#include "base/util.h"
#include "sched/deal.h"
#include "sched/facts.h"

#include <stdio.h>

#define NODES_EACH 24        /* candidate nodes for one member; two more for each other */
#define TASKS_MAX 64         /* tasks of one tenant that lead to candidate nodes */
#define LOOKS_MAX 512        /*   of all of them */
#define RETRY (30 * VG_USEC) /* after a search in vain */
#define CALM (5 * VG_USEC)   /* no sooner than this, though the shape has another head */
#define RUN_MAX 4            /* searches in one go */

/* --- one node --- */

static uint64_t work_of(const struct vg_eng *e, const struct etask *v) {
    struct vg_eng_amount a = vg_fit_amount(v->fit, 1);
    uint64_t ran = e->now > v->started_usec ? e->now - v->started_usec : 0;
    return ran / 1000 * (a.gpu_milli ? a.gpu_milli : a.cpu_milli / 16 + 1) / 1000;
}

static bool cheaper(const struct etask *a, const struct etask *b) {
    if (a->preemptible != b->preemptible)
        return a->preemptible;
    if (a->priority != b->priority)
        return a->priority < b->priority;
    if (a->started_usec != b->started_usec)
        return a->started_usec > b->started_usec;
    return a->id > b->id;
}

/* The node as it will be when those that leave have left and those that come have come. */
static void base(const struct enode *n, struct enode *copy, struct egpu *gpu) {
    vg_node_imagine(n, copy, gpu);
    vg_list_for_each (i, &n->tasks) {
        const struct etask *t = vg_list_entry(i, struct etask, on_node);
        if (t->leaving)
            vg_node_imagine_without(copy, t->fit, t->gpus);
    }
    vg_list_for_each (i, &n->claims) {
        const struct claim_spot *s = vg_list_entry(i, struct claim_spot, on_node);
        vg_node_imagine_with(copy, s->claim->task->fit, s->at.gpus);
    }
}

static size_t by_cheapness(const struct enode *n, struct etask **ret) {
    size_t k = 0;
    vg_list_for_each (i, &n->tasks) {
        struct etask *v = vg_list_entry(i, struct etask, on_node);
        if (v->leaving || v->fixed)
            continue;
        size_t at = k < VICTIMS_MAX ? k++ : VICTIMS_MAX - 1;
        if (at == VICTIMS_MAX - 1 && k == VICTIMS_MAX && ret[at] && !cheaper(v, ret[at]))
            continue;
        for (; at && cheaper(v, ret[at - 1]); at--)
            ret[at] = ret[at - 1];
        ret[at] = v;
    }
    return k;
}

static void add_cost(struct deal *d, struct plan *p, const struct etask *v) {
    p->tasks++;
    p->work += work_of(d->e, v);
    p->priority = VG_MAX(p->priority, v->priority);
    if (v->gang)
        vg_list_for_each (i, &v->gang->members) {
            const struct etask *m = vg_list_entry(i, struct etask, on_gang);
            if (m != v && m->place == TASK_RUNS) {
                p->tasks++;
                p->work += work_of(d->e, m);
            }
        }
}

/* Each that is not needed is given back, the dearest first. */
static void give_back(struct deal *d, struct plan *p, struct enode *copy) {
    for (size_t i = p->n; i-- > 0;) {
        struct etask *v = p->victim[i];
        vg_node_imagine_with(copy, v->fit, v->gpus);
        if (!vg_fit_now(d->t->fit, copy)) {
            vg_node_imagine_without(copy, v->fit, v->gpus);
            continue;
        }
        for (size_t k = i + 1; k < p->n; k++)
            p->victim[k - 1] = p->victim[k];
        p->n--;
    }
}

/* Somebody whose place alone is enough goes first, the cheapest of them: one is fewer than two. */
static void move_up_one_that_will_do(struct deal *d, const struct plan *none, struct enode *copy,
                                     struct etask **order, size_t n) {
    for (size_t i = 0; i < n; i++) {
        struct etask *v = order[i];
        vg_node_imagine_without(copy, v->fit, v->gpus);
        bool enough = vg_fit_now(d->t->fit, copy);
        vg_node_imagine_with(copy, v->fit, v->gpus);
        if (!enough || !vg_may_stop_all(d, v, none))
            continue;
        for (; i; i--)
            order[i] = order[i - 1];
        order[0] = v;
        return;
    }
}

/* Room for one member on this node, by stopping as few as possible. */
static bool plan_node(struct deal *d, struct enode *n, struct plan *p) {
    struct egpu gpu[VG_NODE_GPUS_MAX];
    struct enode copy;
    struct etask *order[VICTIMS_MAX] = {0};
    const struct fit *f = d->t->fit;
    bool ok;
    *p = (struct plan){.node = n};
    base(n, &copy, gpu);
    size_t k = by_cheapness(n, order);
    move_up_one_that_will_do(d, p, &copy, order, k);
    for (size_t i = 0; i < k && !vg_fit_now(f, &copy); i++) {
        if (!vg_may_stop_all(d, order[i], p))
            continue;
        vg_node_imagine_without(&copy, order[i]->fit, order[i]->gpus);
        p->victim[p->n++] = order[i];
    }
    if (!vg_fit_now(f, &copy))
        return false;
    if (!p->n && d->promised)
        return false; /* there is room, but others were promised it */
    give_back(d, p, &copy);
    for (size_t i = 0; i < p->n; i++)
        add_cost(d, p, p->victim[i]);
    p->gpus = vg_fit_gpus(d->e, f, &copy, &ok);
    return ok;
}

static bool better(const struct plan *a, const struct plan *b) {
    if (a->tasks != b->tasks)
        return a->tasks < b->tasks;
    if (a->priority != b->priority)
        return a->priority < b->priority;
    return a->work != b->work ? a->work < b->work : a->node->id < b->node->id;
}

/* --- candidate nodes --- */

static bool enough_nodes(const struct deal *d) {
    return d->n_nodes >= VG_MIN((size_t)NODES_MAX, NODES_EACH + 2 * (size_t)d->members);
}

static void candidate(struct deal *d, struct enode *n) {
    if (n->weighed == d->e->weighings || d->n_nodes == NODES_MAX || !n->usable ||
        !vg_fit_belongs(d->e, d->t->fit, n))
        return;
    n->weighed = d->e->weighings;
    d->node[d->n_nodes++] = n;
}

/* Where a tenant's newest tasks are that may have to give. */
static void look_at_runs(struct deal *d, const struct etenant *b) {
    static const struct plan none;
    size_t left = TASKS_MAX;
    vg_list_for_each (i, &b->runs) {
        const struct etask *v = vg_list_entry(i, struct etask, on_tenant);
        if (!left-- || !d->looks || enough_nodes(d))
            return;
        d->looks--;
        if (vg_may_stop(d, v, &none))
            candidate(d, v->node);
    }
}

/* Nobody below it need be asked: it is within its quota, and nobody there is preemptible. */
static bool is_safe(const struct etenant *b) {
    const struct vg_eng_amount *h = &b->held, *q = &b->quota;
    return !b->running || (!b->yielding && h->gpu_milli <= q->gpu_milli &&
                           h->cpu_milli <= q->cpu_milli && h->mem_bytes <= q->mem_bytes);
}

static void look_below(struct deal *d, const struct etenant *b);

/* Those with the largest shares first. */
static void look_at_children(struct deal *d, const struct tree_item *i,
                             const struct etenant * not ) {
    if (!i || !d->looks || enough_nodes(d))
        return;
    look_at_children(d, i->right, not );
    const struct etenant *b = vg_container_of(i, struct etenant, in_share);
    if (b != not &&!is_safe(b))
        look_below(d, b);
    look_at_children(d, i->left, not );
}

static void look_below(struct deal *d, const struct etenant *b) {
    look_at_runs(d, b);
    look_at_children(d, b->by_share.root, NULL);
}

/* From the task's own tenant outwards. */
static void look_for_nodes(struct deal *d) {
    d->e->weighings++;
    for (const struct etenant *a = d->t->tenant; a; a = a->parent) {
        look_at_runs(d, a);
        if (a->parent)
            look_at_children(d, a->parent->by_share.root, a);
    }
}

/* A gang may use what is free, too. */
static void look_for_room(struct deal *d) {
    for (size_t i = 0; i < d->e->n_nodes; i++)
        if (d->e->node[i] && vg_fit_now(d->t->fit, d->e->node[i]))
            candidate(d, d->e->node[i]);
}

/* --- agreeing, and taking it back --- */

static bool agree_on(struct deal *d, struct etask *v) {
    if (v->leaving)
        return true;
    if (d->n_victims == ALL_MAX)
        return false;
    d->victim[d->n_victims++] = v;
    v->leaving = true;
    return true;
}

static bool agree(struct deal *d, const struct plan *p) {
    for (size_t i = 0; i < p->n; i++) {
        struct etask *v = p->victim[i];
        if (!agree_on(d, v))
            return false;
        if (v->gang)
            vg_list_for_each (k, &v->gang->members) {
                struct etask *m = vg_list_entry(k, struct etask, on_gang);
                if (m->place == TASK_RUNS && !agree_on(d, m))
                    return false;
            }
    }
    struct epool *pool = vg_fit_pool(d->e, d->t->fit, p->node);
    vg_claim_add(d->claim, &(struct spot){p->node, pool, p->gpus});
    return true;
}

static void take_back(struct deal *d) {
    while (d->n_victims)
        d->victim[--d->n_victims]->leaving = false;
    vg_claim_free(d->claim);
}

/* One member more; false: there is no way. */
static bool next_member(struct deal *d) {
    struct plan best = {0}, p;
    bool any = false;
    for (size_t i = 0; i < d->n_nodes; i++)
        if (plan_node(d, d->node[i], &p) && (!any || better(&p, &best))) {
            best = p;
            any = true;
        }
    return any && agree(d, &best);
}

/* --- telling --- */

static const struct etenant *visible(const struct deal *d, const struct etask *v) {
    const struct etenant *a = d->t->tenant, *b = v->tenant;
    return vg_sides(&a, &b) ? a : d->t->tenant;
}

static void say(const struct deal *d, const struct etask *v, enum ground why, char *out, size_t n) {
    const struct etenant *who = visible(d, v);
    const char *name = vg_facts_name(d->e, v->tenant, who);
    const char *q = name == who->name ? "'" : "";
    if (why == BY_QUOTA)
        snprintf(out, n, "reclaimed for %s%.80s%s, which is below its quota", q, name, q);
    else if (why == BY_PRIORITY)
        snprintf(out, n, "a task of %s%.80s%s with priority %u goes before priority %u", q, name, q,
                 d->t->priority, v->priority);
    else
        snprintf(out, n, "it may be preempted, and %s%.80s%s needs its place", q, name, q);
}

/* The ground as it was when nobody had been asked yet. A gang's other members go with the one that
   had to. */
static enum ground ground_of(struct deal *d, struct etask *v) {
    static const struct plan none;
    size_t n = d->n_victims;
    d->n_victims = 0;
    v->leaving = false;
    enum ground g = vg_ground(d, v, &none);
    v->leaving = true;
    d->n_victims = n;
    return g == NOT_AT_ALL ? BY_QUOTA : g;
}

static bool makes_room(const struct claim *c, const struct enode *n) {
    for (uint32_t i = 0; i < c->n; i++)
        if (c->spot[i].at.node == n)
            return true;
    return false;
}

static void tell(struct deal *d) {
    for (size_t i = 0; i < d->n_victims; i++) {
        struct etask *v = d->victim[i];
        struct vg_eng_decision *o = vg_out_add(d->e);
        *o = (struct vg_eng_decision){.what = VG_ENG_PREEMPT,
                                      .task = v->id,
                                      .node = v->node->id,
                                      .pool = v->pool->id,
                                      .gpus = v->gpus,
                                      .res = v->fit->res,
                                      .gang = v->gang ? v->gang->id : 0,
                                      .for_task = d->t->id};
        say(d, v, ground_of(d, v), o->why, sizeof o->why);
        v->for_task = makes_room(d->t->claim, v->node) ? d->t : NULL;
    }
}

/* From now on they count as gone for their tenants, so that nobody is asked twice for the same. */
static void uncharge(struct deal *d) {
    for (size_t i = 0; i < d->n_victims; i++)
        vg_tenant_charge(d->e, d->victim[i]->tenant, d->victim[i]->fit, -1);
}

/* Those who get whole nodes hold more than they ask for. */
static bool beyond_limit(const struct deal *d) {
    vg_auto_free struct spot *at = vg_alloc(d->members * sizeof *at);
    for (uint32_t i = 0; at && i < d->members; i++)
        at[i] = d->claim->spot[i].at;
    return !at || vg_tenant_at_limit_there(d->t->tenant, d->t->fit, at, d->members);
}

/* Makes room for the shape's head: 1, or 0 and when to look again. */
static int try_head(struct vg_eng *e, struct etask *t, uint64_t *again) {
    vg_auto_free struct deal *d = vg_alloc(sizeof *d);
    *again = e->now + RETRY;
    if (!d)
        return 0;
    *d = (struct deal){.e = e,
                       .t = t,
                       .members = t->shape->members,
                       .promised = t->shape->code == VG_ENG_KEPT && t->shape->members == 1,
                       .looks = LOOKS_MAX,
                       .soonest = VG_ENG_NEVER};
    look_for_nodes(d);
    if (d->n_nodes && d->members > 1)
        look_for_room(d);
    *again = VG_MIN(*again, VG_MAX(d->soonest, e->now + CALM));
    if (!d->n_nodes || !(d->claim = vg_claim_new(t, d->members)))
        return 0;
    bool ok = true;
    while (ok && d->claim->n < d->members)
        ok = next_member(d);
    /* Without victims there will be room by itself. */
    if (!ok || !d->n_victims || (t->fit->whole && beyond_limit(d)) ||
        vg_out_room(e, d->n_victims) < 0 || vg_claim_commit(e, d->claim) < 0) {
        take_back(d);
        return 0;
    }
    tell(d); /* before anything is charged: that is what the reasons rest on */
    uncharge(d);
    return 1;
}

/* --- when to try --- */

static bool is_blocked(const struct vg_eng *e, const struct shape *s) {
    return s->state == SHAPE_ASLEEP && (s->code == VG_ENG_BUSY || s->code == VG_ENG_KEPT) &&
           vg_shape_head(e, s);
}

void vg_preempt_want(struct vg_eng *e, struct shape *s) {
    const struct etask *head = vg_shape_head(e, s);
    if (!e->conf.preempt || !is_blocked(e, s) || (s->tried == head->id && !vg_list_empty(&s->due)))
        return;
    if (!vg_may_stop_somebody(e, head)) {
        vg_list_remove(&s->due);
        return;
    }
    if (vg_list_empty(&s->due))
        vg_list_push_back(&e->due, &s->due);
    if (head->priority > s->tried_priority || !s->tried ||
        (head->tenant->no != s->tried_tenant && vg_may_reclaim(e, head)))
        s->retry_usec = e->now;
    else
        s->retry_usec = VG_MIN(s->retry_usec, VG_MAX(e->now, s->tried_usec + CALM));
    e->due_usec = VG_MIN(e->due_usec, s->retry_usec);
}

void vg_preempt_all(struct vg_eng *e) {
    vg_list_for_each (i, &e->fits)
        vg_list_for_each (k, &vg_list_entry(i, struct fit, link)->shapes) {
            struct shape *s = vg_list_entry(k, struct shape, on_fit);
            s->tried = 0;
            vg_preempt_want(e, s);
        }
}

static struct shape *first_due(struct vg_eng *e) {
    struct shape *first = NULL;
    e->due_usec = VG_ENG_NEVER;
    vg_list_for_each_safe (i, &e->due) {
        struct shape *s = vg_list_entry(i, struct shape, due);
        if (!is_blocked(e, s)) {
            vg_list_remove(i);
            continue;
        }
        if (s->retry_usec > e->now) {
            e->due_usec = VG_MIN(e->due_usec, s->retry_usec);
            continue;
        }
        if (!first || vg_shape_before(e, s, first))
            first = s;
    }
    return first;
}

void vg_preempt_run(struct vg_eng *e) {
    struct shape *s;
    for (int i = 0; i < RUN_MAX && (s = first_due(e)); i++) {
        struct etask *t = vg_shape_head(e, s);
        uint64_t again;
        if (!vg_may_stop_somebody(e, t) || vg_tenant_at_limit(e, t->tenant, t->fit, s->members)) {
            vg_list_remove(&s->due);
            s->tried = 0;
            continue;
        }
        s->tried = t->id;
        s->tried_usec = e->now;
        s->tried_priority = t->priority;
        s->tried_tenant = t->tenant->no;
        if (try_head(e, t, &again)) { /* the shape may be gone; if not, its next head is due */
            e->due_usec = e->now;
            return;
        }
        s->retry_usec = again;
        e->due_usec = VG_MIN(e->due_usec, again);
    }
}
