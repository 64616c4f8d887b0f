/* Tasks come and go. A task is in one place: in a lane (or behind the first member of its gang,
   which is in one), in its node's list of pinned ones, or on a node. Pure. */
#include "base/mem.h"
#include "base/util.h"
#include "sched/claim.h"
#include "sched/place.h"

struct vg_eng_conf vg_eng_conf_default(void) {
    return (struct vg_eng_conf){.half_life_usec = 7 * 86400ULL * 1000000,
                                .reserve = 2,
                                .preempt = true,
                                .min_run_usec = 300ULL * 1000000,
                                .placing = VG_ENG_LEAST_STRANDED};
}

struct vg_eng *vg_eng_new(void) {
    struct vg_eng *e = vg_alloc(sizeof *e);
    if (!e)
        return NULL;
    e->conf = vg_eng_conf_default();
    vg_list_init(&e->fits);
    vg_list_init(&e->pin_due);
    vg_list_init(&e->pin_capped);
    vg_list_init(&e->claims_due);
    vg_list_init(&e->astray);
    vg_list_init(&e->due);
    e->due_usec = VG_ENG_NEVER;
    vg_tenants_init(e);
    if (vg_shapes_init(e) < 0 || vg_place_init(e) < 0 || vg_time_init(e) < 0) {
        vg_eng_free(e);
        return NULL;
    }
    return e;
}

void vg_eng_free(struct vg_eng *e) {
    if (!e)
        return;
    vg_map_for_each (i, &e->tasks)
        vg_task_forget(e, i->value);
    if (e->profile || e->learn)
        vg_time_done(e);
    if (e->place)
        vg_place_done(e);
    vg_shapes_done(e);
    vg_etenants_done(e);
    vg_map_done(&e->tasks);
    vg_map_done(&e->gangs);
    free(e->out);
    free(e->ranks);
    free(e);
}

/* --- waiting --- */

static uint32_t weight_of(const struct etask *t) {
    return t->gang && t->gang->waits ? t->gang->here : 1;
}

static void count(struct vg_eng *e, struct etask *t, int n) {
    e->n_waiting += (size_t)(int64_t)n;
    vg_tenant_count(t->tenant, n, 0, 0);
    for (uint32_t i = 0; i < t->fit->n_pools; i++)
        e->pool[t->fit->pool[i]]->queued += (uint32_t)n;
}

static void set_shape(struct etask *t, struct shape *s) {
    t->shape = s;
    if (t->gang && t->gang->waits)
        vg_list_for_each (i, &t->gang->members)
            vg_list_entry(i, struct etask, on_gang)->shape = s;
}

static bool pinned_before(const struct etask *a, const struct etask *b) {
    return a->level != b->level ? a->level > b->level : a->order < b->order;
}

static int wait_pinned(struct vg_eng *e, struct etask *t) {
    struct enode *n = vg_node_get(e, t->pin);
    if (!n)
        return -ENOMEM;
    struct vg_list *at = n->pinned.prev;
    while (at != &n->pinned && pinned_before(t, vg_list_entry(at, struct etask, link)))
        at = at->prev;
    vg_list_insert(at, &t->link);
    t->place = TASK_PINNED;
    t->node = n;
    vg_list_remove(&n->pin_due);
    vg_list_push_back(&e->pin_due, &n->pin_due);
    return 0;
}

static int wait_in_lane(struct vg_eng *e, struct etask *t) {
    struct shape *s = vg_shape_get(e, t->fit, weight_of(t), vg_run_class(t->expect_usec),
                                   vg_window_grant(e, t->tenant));
    struct bough *lane = s ? vg_lane_get(e, t->tenant, s, t->level) : NULL;
    if (!lane) {
        if (s)
            vg_shape_drop_if_empty(e, s);
        return -ENOMEM;
    }
    t->place = TASK_WAITS;
    set_shape(t, s);
    s->queued++;
    vg_lane_add(e, lane, t);
    vg_shape_settle(e, s);
    /* A promise that binds the others of its shape need not bind a new first. */
    if (s->state == SHAPE_ASLEEP && s->code == VG_ENG_KEPT && vg_shape_head(e, s) == t)
        vg_shape_wake(e, s);
    vg_preempt_want(e, s);
    return 0;
}

int vg_task_wait(struct vg_eng *e, struct etask *t) {
    int r = t->pin ? wait_pinned(e, t) : wait_in_lane(e, t);
    if (r == 0)
        count(e, t, (int)weight_of(t));
    return r;
}

void vg_task_recount(struct vg_eng *e, struct etask *t) {
    count(e, t, (int)weight_of(t));
}

void vg_task_uncount(struct vg_eng *e, struct etask *t) {
    count(e, t, -(int)weight_of(t));
}

void vg_task_uncount_one(struct vg_eng *e, struct etask *t) {
    count(e, t, -1);
}

void vg_task_delane(struct vg_eng *e, struct etask *t) {
    struct shape *s = t->shape;
    vg_lane_remove(e, t);
    s->queued--;
    set_shape(t, NULL);
    vg_shape_settle(e, s);
    vg_shape_drop_if_empty(e, s);
}

void vg_task_unwait(struct vg_eng *e, struct etask *t) {
    vg_task_uncount(e, t);
    if (t->place != TASK_PINNED) {
        vg_task_delane(e, t);
        return;
    }
    vg_list_remove(&t->link);
    t->node = NULL;
}

int vg_shape_move(struct vg_eng *e, struct etask *t) {
    struct shape *to = vg_shape_get(e, t->fit, t->shape->members, t->shape->run_class,
                                    vg_window_grant(e, t->tenant));
    struct bough *lane = to ? vg_lane_get(e, t->tenant, to, t->level) : NULL;
    if (!lane) {
        if (to)
            vg_shape_drop_if_empty(e, to);
        return -ENOMEM;
    }
    struct shape *from = t->shape;
    if (from == to)
        return 0;
    vg_lane_remove(e, t);
    from->queued--;
    to->queued++;
    set_shape(t, to);
    vg_lane_add(e, lane, t);
    vg_shape_settle(e, to);
    vg_shape_settle(e, from);
    vg_shape_drop_if_empty(e, from);
    return 0;
}

/* --- running --- */

/* Who has a whole node holds what that node has, which was not known before. Without memory to say
   so its tenant is charged for what it asked for. */
static void grow_to(struct vg_eng *e, struct etask *t, const struct enode *n) {
    struct vg_res all = vg_fit_res(t->fit, n);
    struct fit *f = t->fit->whole ? vg_fit_like(e, t->fit, &all) : NULL;
    if (!f)
        return;
    vg_fit_put(e, t->fit);
    t->fit = f;
}

void vg_task_start(struct vg_eng *e, struct etask *t, const struct spot *at,
                   uint64_t started_usec) {
    grow_to(e, t, at->node);
    t->pool = at->pool;
    t->pool->running++;
    t->started_usec = started_usec;
    t->expect_usec = vg_learn_expect(e, t);
    t->end_usec = t->started_usec + t->expect_usec;
    vg_tenant_count(t->tenant, 0, 1, 0);
    vg_tenant_charge(e, t->tenant, t->fit, 1);
    vg_list_push_front(&t->tenant->runs, &t->on_tenant);
    vg_ranks_add(e, t, 1);
    vg_node_take(e, at->node, t, at->gpus);
    vg_profile_begin(e, t);
}

void vg_task_leave(struct vg_eng *e, struct etask *t) {
    t->pool->running--;
    vg_profile_end(e, t);
    vg_node_give(e, t->node, t);
    vg_list_remove(&t->on_tenant);
    vg_ranks_add(e, t, -1);
    vg_tenant_count(t->tenant, 0, -1, 0);
    if (!t->leaving) /* those are no longer charged */
        vg_tenant_charge(e, t->tenant, t->fit, -1);
}

void vg_etask_free(struct vg_eng *e, struct etask *t) {
    struct etenant *tenant = t->tenant;
    vg_map_del_u64(&e->tasks, t->id);
    vg_gang_leave(e, t);
    if (t->fit)
        vg_fit_put(e, t->fit);
    if (tenant) {
        vg_tenant_count(tenant, 0, 0, -1);
        vg_tenant_drop_if_gone(e, tenant);
    }
    free(t);
}

/* A member leaves a gang that waits: the others go on without it, in the shape that has one member
   less. Without memory for that they stay, and ask for one place too many. */
static void leave_waiting_gang(struct vg_eng *e, struct etask *t) {
    struct gang *g = t->gang;
    struct etask *first = vg_list_entry(g->members.next, struct etask, on_gang);
    struct etask *next = t == first ? vg_list_entry(t->on_gang.next, struct etask, on_gang) : first;
    struct shape *from = first->shape;
    struct shape *to = vg_shape_get(e, t->fit, g->here - 1, from->run_class, from->grant);
    struct bough *lane = to ? vg_lane_get(e, t->tenant, to, t->level) : NULL;
    count(e, t, -1);
    if (!lane) {
        if (to)
            vg_shape_drop_if_empty(e, to);
        lane = first->lane;
        to = from;
    }
    if (lane != first->lane || next != first) {
        if (next != first)
            vg_lane_add(e, lane, next);
        vg_lane_remove(e, first);
        if (next == first)
            vg_lane_add(e, lane, next);
        from->queued--;
        to->queued++;
        set_shape(next, to);
    }
    vg_etask_free(e, t);
    vg_shape_settle(e, to);
    vg_shape_settle(e, from);
    vg_shape_drop_if_empty(e, from);
}

void vg_task_forget(struct vg_eng *e, struct etask *t) {
    if (t->place == TASK_CLAIMS) {
        vg_claim_leave(e, t);
        return;
    }
    if (t->place == TASK_RUNS) {
        vg_task_leave(e, t);
    } else if (t->gang && t->gang->waits && t->gang->here > 1) {
        leave_waiting_gang(e, t);
        return;
    } else {
        vg_task_unwait(e, t);
    }
    vg_etask_free(e, t);
}

void vg_eng_release(struct vg_eng *e, uint64_t id, enum vg_eng_end how) {
    struct etask *t = vg_map_get_u64(&e->tasks, id);
    if (!t)
        return;
    if (t->place == TASK_RUNS && how == VG_ENG_ENDED)
        vg_learn_note(e, t, e->now - t->started_usec);
    vg_task_forget(e, t);
}

/* --- time and policy --- */

/* Those for whom there is no memory keep their level. */
static void relevel(struct vg_eng *e) {
    vg_map_for_each (i, &e->tasks) {
        struct etask *t = i->value;
        if (!t->lane || t->heal)
            continue;
        struct vg_eng_req r = {.priority = t->priority, .since_usec = t->since_usec};
        int64_t level = vg_task_level(e, &r);
        struct bough *lane = vg_lane_get(e, t->tenant, t->shape, level);
        if (!lane || lane == t->lane)
            continue;
        vg_lane_remove(e, t);
        t->level = level;
        vg_lane_add(e, lane, t);
    }
}

int vg_eng_set_conf(struct vg_eng *e, const struct vg_eng_conf *c) {
    bool aged = c->age_usec != e->conf.age_usec;
    vg_tenants_rekey(e); /* the past up to now follows the old rule */
    e->conf = *c;
    vg_tenants_rekey(e);
    vg_preempt_all(e);
    if (aged)
        relevel(e);
    return 0;
}

void vg_eng_now(struct vg_eng *e, uint64_t now_usec) {
    if (now_usec <= e->now)
        return;
    e->now = now_usec;
    vg_tenants_refresh(e);
}

size_t vg_eng_queued(const struct vg_eng *e) {
    return e->n_waiting;
}

void vg_eng_save(const struct vg_eng *e, vg_eng_save_fn *fn, void *arg) {
    vg_tenants_save(e, fn, arg);
    vg_learn_save(e, fn, arg);
}

void vg_eng_restore(struct vg_eng *e, uint32_t kind, uint64_t key, const uint64_t value[4]) {
    if (!vg_tenants_restore(e, kind, key, value))
        vg_learn_restore(e, kind, key, value);
}
