/* Tasks come and go. A task is in one place: in a lane (or behind the first member of its gang,
   which is in one), in its node's list of pinned ones, or on a node. Pure. */
#include "base/mem.h"
#include "base/util.h"
#include "sched/claim.h"

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

void vg_task_start(struct vg_eng *e, struct etask *t, const struct spot *at,
                   uint64_t started_usec) {
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

/* --- coming --- */

static bool all_pools(const struct vg_eng *e, const struct vg_eng_req *r, struct vg_err *err) {
    if (r->n_pools == 0 || r->n_pools > VG_ENG_POOLS_MAX) {
        vg_err_set(err, VG_INVALID, "a task names 1 to %d pools", VG_ENG_POOLS_MAX);
        return false;
    }
    for (uint32_t i = 0; i < r->n_pools; i++)
        if (!vg_map_get_u64(&e->pools, r->pool[i])) {
            vg_err_set(err, VG_NOT_FOUND, "no such pool; virga pool list shows those there are");
            return false;
        }
    return true;
}

static struct etenant *tenant_of(const struct vg_eng *e, uint64_t id, struct vg_err *err) {
    struct etenant *t = vg_map_get_u64(&e->tenants, id);
    if (t && !t->removed)
        return t;
    vg_err_set(err, VG_NOT_FOUND, "the tenant is not known to the scheduler; ask an administrator");
    return NULL;
}

static bool some_pool_is_empty(const struct vg_eng *e, const struct fit *f) {
    for (uint32_t i = 0; i < f->n_pools; i++)
        if (!e->pool[f->pool[i]]->nodes)
            return true;
    return false;
}

/* How many of it a node could hold when empty. */
static uint64_t times(const struct fit *f, const struct enode *n) {
    const struct vg_res *r = &f->res;
    uint64_t k = UINT32_MAX, good = 0;
    for (uint32_t i = 0; i < n->n_gpus; i++)
        good += !n->gpu[i].bad;
    if (r->gpus)
        k = good / r->gpus;
    else if (r->gpu_milli)
        k = good * (1000 / r->gpu_milli);
    if (r->cpu_milli)
        k = VG_MIN(k, (uint64_t)n->total.cpu_milli / r->cpu_milli);
    if (r->mem_bytes)
        k = VG_MIN(k, n->total.mem_bytes / r->mem_bytes);
    return VG_MIN(k, (uint64_t)n->max_tasks);
}

/* How many members all nodes together could hold when empty; looks no further than `enough`. */
static uint64_t could_hold(const struct vg_eng *e, const struct fit *f, uint64_t enough) {
    uint64_t n = 0;
    for (size_t i = 0; i < e->n_nodes && n < enough; i++)
        if (e->node[i] && vg_fit_belongs(e, f, e->node[i]))
            n += times(f, e->node[i]);
    return n;
}

static int too_big(const struct vg_eng *e, const struct fit *f, struct vg_err *err) {
    const struct vg_res *r = &f->res;
    char mem[32];
    return vg_err_set(err, VG_NO_CAPACITY,
                      "no node of pool '%s'%s could hold it even when empty: it asks for %u GPUs "
                      "(and %u thousandths of one)%s%s, %u thousandths of a CPU and %s of memory; "
                      "ask for less or another pool",
                      e->pool[f->pool[0]]->name, f->n_pools > 1 ? " or the others it names" : "",
                      r->gpus, r->gpu_milli, f->model[0] ? " of model " : "", f->model,
                      r->cpu_milli, vg_format_size(r->mem_bytes, mem, sizeof mem));
}

static int check_fit(const struct vg_eng *e, const struct fit *f, size_t members,
                     struct vg_err *err) {
    if (some_pool_is_empty(e, f))
        return 0;
    if (!vg_fit_could(e, f, false))
        return too_big(e, f, err);
    uint64_t n = members > 1 ? could_hold(e, f, members) : 1;
    if (n < members)
        return vg_err_set(err, VG_NO_CAPACITY,
                          "all nodes of pool '%s' together could hold %llu of the %zu members even "
                          "when empty; ask for fewer",
                          e->pool[f->pool[0]]->name, (unsigned long long)n, members);
    return 0;
}

int vg_eng_check_fit(const struct vg_eng *e, const struct vg_eng_req *r, size_t members,
                     struct vg_err *err) {
    if (!tenant_of(e, r->tenant, err) || !all_pools(e, r, err))
        return err->code;
    if (r->node)
        return 0;
    struct vg_eng *scratch = (struct vg_eng *)e; /* a fit that is put back leaves nothing */
    struct fit *f = vg_fit_get(scratch, r);
    if (!f)
        return vg_err_set(err, VG_INTERNAL, "out of memory");
    int rc = check_fit(e, f, members, err);
    vg_fit_put(scratch, f);
    return rc;
}

/* A task that is known, but in no place yet. */
static struct etask *new_task(struct vg_eng *e, const struct vg_eng_req *r, uint64_t id,
                              struct etenant *tenant) {
    struct etask *t = vg_alloc(sizeof *t);
    if (!t || vg_map_put_u64(&e->tasks, id, t) < 0) {
        free(t);
        return NULL;
    }
    t->id = id;
    t->tenant = tenant;
    vg_tenant_count(tenant, 0, 0, 1);
    vg_list_init(&t->on_gang);
    vg_list_init(&t->on_node);
    vg_list_init(&t->on_tenant);
    vg_list_init(&t->link);
    t->order = r->order;
    t->kin = r->kin;
    t->env = r->env;
    t->priority = r->priority;
    t->level = vg_task_level(e, r);
    t->since_usec = r->since_usec ? r->since_usec : e->now;
    t->preemptible = r->preemptible;
    t->fixed = r->fixed;
    t->limit_usec = r->limit_usec;
    t->known_usec = r->known_usec;
    t->pin = r->node;
    if (!(t->fit = vg_fit_get(e, r))) {
        vg_etask_free(e, t);
        return NULL;
    }
    t->expect_usec = vg_learn_expect(e, t);
    return t;
}

static int no_memory(struct vg_err *err) {
    return vg_err_set(err, VG_INTERNAL, "out of memory");
}

int vg_eng_submit(struct vg_eng *e, const struct vg_eng_req *r, struct vg_err *err) {
    if (!r->task)
        return vg_err_set(err, VG_INVALID, "a task needs an id");
    if (vg_map_get_u64(&e->tasks, r->task))
        return vg_err_set(err, VG_EXISTS, "the task is scheduled already");
    int rc = vg_eng_check_fit(e, r, 1, err);
    if (rc < 0)
        return rc;
    struct etask *t = new_task(e, r, r->task, vg_map_get_u64(&e->tenants, r->tenant));
    struct gang *g = t && r->gang ? vg_gang_get(e, r->gang, 1) : NULL;
    if (t && r->gang) {
        t->heal = true;
        t->level = INT64_MAX; /* before everybody */
        if (g)
            vg_gang_join(g, t);
    }
    if (!t || (r->gang && !g) || vg_task_wait(e, t) < 0) {
        if (t)
            vg_etask_free(e, t);
        return no_memory(err);
    }
    vg_score_note(e, t->fit);
    return 0;
}

static int check_gang(const struct vg_eng *e, const struct vg_eng_req *r, const uint64_t *task,
                      size_t n, struct vg_err *err) {
    if (!r->gang || !n || n > VG_ENG_NODE_TASKS_MAX)
        return vg_err_set(err, VG_INVALID, "a gang needs an id and 1 to %d members",
                          VG_ENG_NODE_TASKS_MAX);
    if (r->node)
        return vg_err_set(err, VG_INVALID, "a gang cannot be bound to one session's node");
    if (vg_map_get_u64(&e->gangs, r->gang))
        return vg_err_set(err, VG_EXISTS, "the gang is scheduled already");
    for (size_t i = 0; i < n; i++)
        if (!task[i] || vg_map_get_u64(&e->tasks, task[i]))
            return vg_err_set(err, VG_EXISTS, "a member of the gang is scheduled already");
    return vg_eng_check_fit(e, r, n, err);
}

/* A gang none of whose members is in a place. */
static void disband(struct vg_eng *e, struct gang *g) {
    for (uint32_t n = g->here; n; n--)
        vg_etask_free(e, vg_list_entry(g->members.prev, struct etask, on_gang));
}

int vg_eng_submit_gang(struct vg_eng *e, const struct vg_eng_req *r, const uint64_t *task, size_t n,
                       struct vg_err *err) {
    int rc = check_gang(e, r, task, n, err);
    if (rc < 0)
        return rc;
    struct gang *g = NULL;
    for (size_t i = 0; i < n; i++) {
        struct etask *t = NULL;
        if (!vg_map_get_u64(&e->tasks, task[i]))
            t = new_task(e, r, task[i], vg_map_get_u64(&e->tenants, r->tenant));
        if (!t || (!g && !(g = vg_gang_get(e, r->gang, (uint32_t)n)))) {
            if (t)
                vg_etask_free(e, t);
            if (g)
                disband(e, g);
            return no_memory(err);
        }
        vg_gang_join(g, t);
    }
    g->waits = true;
    struct etask *first = vg_list_entry(g->members.next, struct etask, on_gang);
    if (vg_task_wait(e, first) < 0) {
        disband(e, g);
        return no_memory(err);
    }
    vg_score_note(e, first->fit);
    return 0;
}

int vg_eng_adopt(struct vg_eng *e, const struct vg_eng_req *r, uint64_t node, uint64_t gpus,
                 uint64_t started_usec) {
    struct etask *t = vg_map_get_u64(&e->tasks, r->task);
    struct enode *n = vg_map_get_u64(&e->nodes, node);
    struct etenant *tenant = vg_map_get_u64(&e->tenants, r->tenant);
    struct vg_err err = VG_ERR_INIT;
    if (!n || n->ghost || !tenant || !all_pools(e, r, &err))
        return -ENOENT;
    if (t && t->place == TASK_RUNS)
        return -EEXIST;
    if (t)
        vg_task_forget(e, t);
    if (!(t = new_task(e, r, r->task, tenant)))
        return -ENOMEM;
    if (r->gang) {
        struct gang *g = vg_gang_get(e, r->gang, 1);
        if (!g) {
            vg_etask_free(e, t);
            return -ENOMEM;
        }
        vg_gang_join(g, t);
    }
    struct epool *p = vg_fit_pool(e, t->fit, n);
    struct spot at = {n, p ? p : e->pool[t->fit->pool[0]], gpus};
    t->adopted = true;
    vg_task_start(e, t, &at, started_usec);
    return 0;
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
