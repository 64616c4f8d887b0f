/* Tasks come: what they ask for is checked, and they wait; or they are found running. Pure. */
#include "base/mem.h"
#include "base/util.h"
#include "sched/facts.h"
#include "sched/lanes.h"

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

/* How many shares like this a card could hold when empty. */
static uint64_t shares_on(const struct fit *f, const struct egpu *g) {
    uint64_t k = 1000 / f->res.gpu_milli;
    return g->mem && f->res.gpu_mem_bytes ? VG_MIN(k, g->mem / f->res.gpu_mem_bytes) : k;
}

/* How many of it a node could hold when empty. */
static uint64_t times(const struct fit *f, const struct enode *n) {
    const struct vg_res *r = &f->res;
    uint64_t k = f->whole ? 1 : UINT32_MAX, good = 0, shares = 0;
    for (uint32_t i = 0; i < n->n_gpus; i++) {
        good += !n->gpu[i].bad;
        shares += r->gpu_milli && !n->gpu[i].bad ? shares_on(f, &n->gpu[i]) : 0;
    }
    if (r->gpus)
        k = VG_MIN(k, good / r->gpus);
    else if (r->gpu_milli)
        k = shares;
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
    char why[300];
    vg_facts_say_too_big(e, f, why, sizeof why);
    return vg_err_set(err, VG_NO_CAPACITY, "%s; ask for less or another pool", why);
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
