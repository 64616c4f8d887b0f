/* Seeded storms: thousands of random events. After each, the engine's own invariants are checked
   and, where the rules are simple enough (no reservations, no past), every start is held against a
   slow and obvious reading of the order, and silence against the books: nobody who could start is
   left waiting. */
#include "engine-kit.h"

#include <criterion/criterion.h>
#include <math.h>

#define TASKS 400
#define NODES 12
#define TENANTS 16

struct rng {
    uint64_t x;
};

static uint64_t rnd(struct rng *r, uint64_t n) {
    r->x ^= r->x << 13;
    r->x ^= r->x >> 7;
    r->x ^= r->x << 17;
    return (r->x >> 11) % n;
}

struct book_tenant {
    bool there;
    uint64_t id;
    int parent; /* index; -1: the root */
    struct vg_eng_tenant t;
    uint64_t gpu, cpu; /* held by it and those below */
};

struct book_task {
    enum { FREE, WAITS, RUNS } place;
    struct vg_eng_req r;
    int tenant, node;
    uint64_t gpus, started, last_for, last_at; /* last: who it was preempted for, and when */
    bool leaving;
};

struct book_node {
    bool there, usable;
    uint32_t n_gpus, cpu;
    uint64_t used;
    uint32_t cpu_used;
};

struct storm {
    struct vg_eng *e;
    struct rng rng;
    struct book_tenant tenant[TENANTS];
    struct book_task task[TASKS];
    struct book_node node[NODES];
    uint64_t next_id, now;
    uint64_t min_run, preempted, reshared;
    bool at_once; /* what is preempted leaves and comes back before anything else happens */
    bool simple;  /* whole GPUs, no gangs, no pins: the reference knows everything */
};

/* --- the slow reading --- */

static int parent_of(const struct storm *s, int t) {
    return t < 0 ? -2 : s->tenant[t].parent;
}

static void capacity(const struct storm *s, uint64_t *gpu, uint64_t *cpu) {
    *gpu = *cpu = 0;
    for (int i = 0; i < NODES; i++)
        if (s->node[i].there && s->node[i].usable) {
            *gpu += s->node[i].n_gpus * 1000ULL;
            *cpu += s->node[i].cpu;
        }
}

static uint64_t gpu_of(const struct book_task *t) {
    return t->r.res.gpus * 1000ULL + t->r.res.gpu_milli;
}

static bool in_quota(const struct book_tenant *b, const struct book_task *t) {
    const struct vg_eng_amount *q = &b->t.quota;
    uint64_t lead = gpu_of(t) ? q->gpu_milli : q->cpu_milli;
    return lead && (!q->gpu_milli || b->gpu + gpu_of(t) <= q->gpu_milli) &&
           (!q->cpu_milli || b->cpu + t->r.res.cpu_milli <= q->cpu_milli);
}

static double share(const struct storm *s, const struct book_tenant *b, bool within) {
    uint64_t gpu, cpu;
    const struct vg_eng_amount *q = &b->t.quota;
    capacity(s, &gpu, &cpu);
    if (within)
        return fmax(q->gpu_milli ? (double)b->gpu / (double)q->gpu_milli : 0,
                    q->cpu_milli ? (double)b->cpu / (double)q->cpu_milli : 0);
    uint64_t g = b->gpu > q->gpu_milli ? b->gpu - q->gpu_milli : 0;
    uint64_t c = b->cpu > q->cpu_milli ? b->cpu - q->cpu_milli : 0;
    return fmax(gpu ? (double)g / (double)gpu : 0, cpu ? (double)c / (double)cpu : 0) /
           (b->t.weight ? b->t.weight : 1);
}

static bool at_limit(const struct storm *s, const struct book_task *t) {
    for (int i = t->tenant; i >= 0; i = parent_of(s, i)) {
        const struct book_tenant *b = &s->tenant[i];
        if ((gpu_of(t) && b->gpu + gpu_of(t) > b->t.limit.gpu_milli) ||
            b->cpu + t->r.res.cpu_milli > b->t.limit.cpu_milli)
            return true;
        if (!b->t.weight && !in_quota(b, t))
            return true;
    }
    return false;
}

static bool fits(const struct book_task *t, const struct book_node *n) {
    uint32_t free = n->n_gpus - (uint32_t)__builtin_popcountll(n->used);
    return n->there && n->usable && t->r.res.gpus <= free &&
           n->cpu_used + t->r.res.cpu_milli <= n->cpu;
}

static bool could_start(const struct storm *s, const struct book_task *t) {
    if (t->place != WAITS || at_limit(s, t))
        return false;
    for (int i = 0; i < NODES; i++)
        if (fits(t, &s->node[i]))
            return true;
    return false;
}

static int path(const struct storm *s, int t, int out[TENANTS]) { /* from the top */
    int n = 0, up[TENANTS];
    for (; t >= 0; t = parent_of(s, t))
        up[n++] = t;
    for (int i = 0; i < n; i++)
        out[i] = up[n - 1 - i];
    return n;
}

/* Whether `a` must go before `b`; ties between tenants are nobody's right. */
static bool must_precede(const struct storm *s, const struct book_task *a,
                         const struct book_task *b) {
    int pa[TENANTS], pb[TENANTS], na = path(s, a->tenant, pa), nb = path(s, b->tenant, pb);
    if (a->r.priority != b->r.priority)
        return a->r.priority > b->r.priority;
    for (int i = 0; i < na && i < nb; i++) {
        const struct book_tenant *x = &s->tenant[pa[i]], *y = &s->tenant[pb[i]];
        bool qa = in_quota(x, a), qb = in_quota(y, b);
        if (qa != qb)
            return qa;
        if (x != y) {
            double da = share(s, x, qa), db = share(s, y, qb);
            return da < db;
        }
    }
    return na == nb ? a->r.order < b->r.order : na < nb;
}

/* --- the books --- */

static struct book_task *find(struct storm *s, uint64_t id) {
    for (int i = 0; i < TASKS; i++)
        if (s->task[i].place != FREE && s->task[i].r.task == id)
            return &s->task[i];
    cr_assert_fail("the engine speaks of a task that is not there");
    return NULL;
}

static void charge(struct storm *s, const struct book_task *t, int sign) {
    for (int i = t->tenant; i >= 0; i = parent_of(s, i)) {
        s->tenant[i].gpu += (uint64_t)sign * gpu_of(t);
        s->tenant[i].cpu += (uint64_t)sign * t->r.res.cpu_milli;
    }
}

static void leave(struct storm *s, struct book_task *t) {
    if (t->place == RUNS) {
        charge(s, t, -1);
        if (t->r.res.gpus)
            s->node[t->node].used &= ~t->gpus;
        s->node[t->node].cpu_used -= t->r.res.cpu_milli;
    }
    t->place = FREE;
}

static void begin(struct storm *s, const struct vg_eng_decision *d) {
    struct book_task *t = find(s, d->task);
    struct book_node *n = &s->node[d->node - 1];
    cr_assert_eq(t->place, WAITS);
    cr_assert(n->there && n->usable);
    cr_assert(!t->r.node || t->r.node == d->node);
    if (s->simple) {
        cr_assert(!at_limit(s, t), "task %lu starts beyond a limit", d->task);
        cr_assert(!(n->used & d->gpus) && fits(t, n));
        for (int i = 0; i < TASKS; i++) {
            const struct book_task *o = &s->task[i];
            cr_assert(o == t || !could_start(s, o) || !must_precede(s, o, t),
                      "task %lu starts before %lu", t->r.task, o->r.task);
        }
    }
    t->place = RUNS;
    t->started = s->now;
    t->node = (int)d->node - 1;
    t->gpus = d->gpus;
    if (t->r.res.gpus)
        n->used |= d->gpus;
    n->cpu_used += t->r.res.cpu_milli;
    charge(s, t, 1);
}

static void preempted(struct storm *s, const struct vg_eng_decision *d);
static void come_back(struct storm *s, struct book_task *t);

static void settle(struct storm *s) {
    struct vg_eng_decision d;
    const char *bad;
    for (int n = 0; vg_eng_next(s->e, &d); n++) {
        cr_assert_lt(n, 2 * TASKS, "they stop one another in turns");
        if (d.what == VG_ENG_START)
            begin(s, &d);
        else
            preempted(s, &d);
        cr_assert_null((bad = vg_eng_check(s->e)), "%s", bad);
    }
    cr_assert_null((bad = vg_eng_check(s->e)), "%s", bad);
    for (int i = 0; s->simple && i < TASKS; i++)
        cr_assert(!could_start(s, &s->task[i]), "task %lu could start", s->task[i].r.task);
}

/* --- events --- */

static void set_tenant(struct storm *s, int i) {
    struct book_tenant *b = &s->tenant[i];
    struct rng *r = &s->rng;
    b->id = (uint64_t)i + 1;
    b->t = (struct vg_eng_tenant){.id = b->id,
                                  .parent = b->parent < 0 ? 0 : s->tenant[b->parent].id,
                                  .name = "t",
                                  .limit = VG_ENG_NO_LIMIT,
                                  .weight = (uint32_t)rnd(r, 4)};
    if (!b->t.weight && rnd(r, 2))
        b->t.weight = 1;
    if (rnd(r, 3) == 0)
        b->t.quota.gpu_milli = 1000 * rnd(r, 12);
    if (rnd(r, 6) == 0)
        b->t.quota.cpu_milli = 1000 * rnd(r, 64);
    if (rnd(r, 4) == 0)
        b->t.limit.gpu_milli = 1000 * (1 + rnd(r, 20));
    cr_assert_eq(vg_eng_set_tenant(s->e, &b->t), 0);
    b->there = true;
}

static void set_node(struct storm *s, int i, bool usable) {
    struct book_node *n = &s->node[i];
    struct vg_eng_gpu g[8] = {0};
    if (!n->there)
        *n = (struct book_node){.n_gpus = (uint32_t)rnd(&s->rng, 9), .cpu = 32000};
    n->there = true;
    n->usable = usable;
    for (uint32_t k = 0; k < n->n_gpus; k++)
        g[k] = (struct vg_eng_gpu){.index = k, .mem_bytes = 80ULL << 30, .island = 1 + k / 4};
    struct vg_eng_node in = {.id = (uint64_t)i + 1,
                             .name = "n",
                             .total = {.cpu_milli = n->cpu, .mem_bytes = 1ULL << 40},
                             .gpu = g,
                             .n_gpus = n->n_gpus,
                             .model = "A100",
                             .rack = i % 2 ? "left" : "right",
                             .usable = usable};
    cr_assert_eq(vg_eng_set_node(s->e, &in), 0);
}

static void remove_node(struct storm *s, int i) {
    for (int k = 0; k < TASKS; k++)
        if (s->task[k].place == RUNS && s->task[k].node == i)
            leave(s, &s->task[k]);
    s->node[i].there = false;
    vg_eng_remove_node(s->e, (uint64_t)i + 1);
}

static bool leaf(const struct storm *s, int t) {
    for (int i = 0; i < TENANTS; i++)
        if (s->tenant[i].there && s->tenant[i].parent == t)
            return false;
    return s->tenant[t].there;
}

static struct book_task *free_slot(struct storm *s) {
    for (int i = 0; i < TASKS; i++)
        if (s->task[i].place == FREE)
            return &s->task[i];
    return NULL;
}

static struct vg_eng_req random_req(struct storm *s, int *tenant) {
    struct rng *r = &s->rng;
    do
        *tenant = (int)rnd(r, TENANTS);
    while (!leaf(s, *tenant));
    struct vg_eng_req q = kit_req(s->next_id++, s->tenant[*tenant].id, (uint32_t)rnd(r, 5));
    q.res.cpu_milli = 500 * (uint32_t)(1 + rnd(r, 4));
    q.priority = rnd(r, 4) ? 1 : (uint32_t)rnd(r, 3);
    q.kin = 1 + rnd(r, 5);
    q.order = rnd(r, 8) ? q.task : q.task - rnd(r, VG_MIN(q.task, 20UL));
    if (!s->simple) {
        q.preemptible = rnd(r, 5) == 0;
        q.fixed = rnd(r, 9) == 0;
        if (rnd(r, 5) == 0) {
            q.res.gpus = 0;
            q.res.gpu_milli = (uint32_t)(100 * (1 + rnd(r, 9)));
            q.gpu_class = (uint8_t)rnd(r, 3);
        }
        q.whole = !q.res.gpu_milli && rnd(r, 8) == 0;
        if (rnd(r, 12) == 0)
            q.node = 1 + rnd(r, NODES);
    }
    return q;
}

static void submit(struct storm *s) {
    struct vg_err err = VG_ERR_INIT;
    struct book_task *t = free_slot(s);
    int tenant;
    struct vg_eng_req q = random_req(s, &tenant);
    if (!t)
        return;
    int rc = vg_eng_submit(s->e, &q, &err);
    cr_assert(rc == 0 || err.reason == VG_NO_CAPACITY, "%s", err.msg);
    if (rc == 0)
        *t = (struct book_task){.place = WAITS, .r = q, .tenant = tenant};
}

static void submit_gang(struct storm *s) {
    struct vg_err err = VG_ERR_INIT;
    uint64_t ids[6];
    size_t n = 2 + rnd(&s->rng, 5);
    int tenant;
    struct vg_eng_req q = random_req(s, &tenant);
    q.node = 0;
    q.gang = q.task;
    for (size_t i = 0; i < n; i++)
        ids[i] = s->next_id++;
    size_t room = 0;
    for (int i = 0; i < TASKS; i++)
        room += s->task[i].place == FREE;
    if (room < n || vg_eng_submit_gang(s->e, &q, ids, n, &err) < 0)
        return;
    for (size_t i = 0; i < n; i++) {
        struct book_task *t = free_slot(s);
        *t = (struct book_task){.place = WAITS, .r = q, .tenant = tenant};
        t->r.task = ids[i];
    }
}

static void end_one(struct storm *s) {
    int i = (int)rnd(&s->rng, TASKS);
    for (int k = 0; k < TASKS; k++, i = (i + 1) % TASKS) {
        struct book_task *t = &s->task[i];
        if (t->place == FREE)
            continue;
        enum vg_eng_end how = t->place == WAITS ? VG_ENG_CANCELLED : VG_ENG_ENDED;
        vg_eng_release(s->e, t->r.task, how);
        leave(s, t);
        return;
    }
}

static void move_tenant(struct storm *s) {
    int i = 4 + (int)rnd(&s->rng, TENANTS - 4), to = (int)rnd(&s->rng, 4);
    struct book_tenant *b = &s->tenant[i];
    for (int p = b->parent; p >= 0; p = parent_of(s, p)) {
        s->tenant[p].gpu -= b->gpu;
        s->tenant[p].cpu -= b->cpu;
    }
    b->parent = to;
    for (int p = b->parent; p >= 0; p = parent_of(s, p)) {
        s->tenant[p].gpu += b->gpu;
        s->tenant[p].cpu += b->cpu;
    }
    set_tenant(s, i);
}

static void come_back(struct storm *s, struct book_task *t) {
    struct vg_err err = VG_ERR_INIT;
    struct book_task was = *t;
    vg_eng_release(s->e, t->r.task, VG_ENG_PREEMPTED);
    leave(s, t);
    was.place = WAITS;
    was.leaving = false;
    was.r.gang = 0; /* here its gang goes on without it */
    if (vg_eng_submit(s->e, &was.r, &err) == 0)
        *t = was;
}

static void preempted(struct storm *s, const struct vg_eng_decision *d) {
    struct book_task *t = find(s, d->task), *b = find(s, d->for_task);
    cr_assert_eq(t->place, RUNS);
    cr_assert_eq(b->place, WAITS);
    cr_assert(!t->r.fixed && !t->leaving && d->why[0]);
    cr_assert_leq(t->started + s->min_run, s->now, "it has not run for its minimum");
    cr_assert(t->last_for != d->for_task || t->last_at + s->min_run <= s->now || !s->min_run,
              "task %lu is preempted twice for %lu", d->task, d->for_task);
    t->last_for = d->for_task;
    t->last_at = s->now;
    t->leaving = true;
    s->preempted++;
    if (s->at_once)
        come_back(s, t);
}

static void let_one_leave(struct storm *s) {
    for (int i = 0; i < TASKS; i++)
        if (s->task[i].place == RUNS && s->task[i].leaving) {
            come_back(s, &s->task[i]);
            return;
        }
}

/* Somebody's share is to become another one; it is so or nothing is. */
static void reshare(struct storm *s) {
    int i = (int)rnd(&s->rng, TASKS);
    for (int k = 0; k < TASKS; k++, i = (i + 1) % TASKS) {
        struct book_task *t = &s->task[i];
        struct vg_err err = VG_ERR_INIT;
        uint32_t milli = (uint32_t)(1 + rnd(&s->rng, 999));
        uint64_t mem = (1 + rnd(&s->rng, 80)) << 30;
        if (t->place != RUNS || !t->r.res.gpu_milli || t->leaving)
            continue;
        int rc = vg_eng_reshare(s->e, t->r.task, milli, mem, rnd(&s->rng, 2), &err);
        cr_assert(rc == 0 || err.reason == VG_NO_CAPACITY, "%s", err.msg);
        if (rc < 0)
            return;
        charge(s, t, -1);
        t->r.res.gpu_milli = milli;
        t->r.res.gpu_mem_bytes = mem;
        charge(s, t, 1);
        s->reshared++;
        return;
    }
}

static void step(struct storm *s) {
    uint64_t what = rnd(&s->rng, 116);
    s->now += rnd(&s->rng, 60 * VG_USEC);
    vg_eng_now(s->e, s->now);
    if (what < 42)
        submit(s);
    else if (what < 82)
        end_one(s);
    else if (what < 86)
        s->simple ? submit(s) : submit_gang(s);
    else if (what < 91)
        set_node(s, (int)rnd(&s->rng, NODES), rnd(&s->rng, 4) != 0);
    else if (what < 93)
        remove_node(s, (int)rnd(&s->rng, NODES));
    else if (what < 97)
        set_tenant(s, (int)rnd(&s->rng, TENANTS));
    else if (what < 100)
        move_tenant(s);
    else if (what < 110)
        let_one_leave(s);
    else
        reshare(s);
    settle(s);
}

/* Returns how many were preempted. */
static uint64_t run(uint64_t seed, bool simple, struct vg_eng_conf conf, int steps) {
    struct storm *s = calloc(1, sizeof *s);
    s->e = vg_eng_new();
    s->rng.x = seed * 0x9e3779b97f4a7c15ULL + 1;
    s->next_id = 1;
    s->simple = simple;
    s->min_run = conf.min_run_usec;
    s->at_once = !conf.min_run_usec;
    struct vg_eng_pool p = {.name = "p", .id = 1};
    cr_assert_eq(vg_eng_set_pool(s->e, &p), 0);
    cr_assert_eq(vg_eng_set_conf(s->e, &conf), 0);
    for (int i = 0; i < TENANTS; i++) {
        s->tenant[i].parent = i < 4 ? -1 : i % 4;
        set_tenant(s, i);
    }
    for (int i = 0; i < NODES / 2; i++)
        set_node(s, i, true);
    for (int i = 0; i < steps; i++)
        step(s);
    uint64_t n = s->preempted;
    cr_assert(simple || s->reshared, "no share was changed");
    vg_eng_free(s->e);
    free(s);
    return n;
}

Test(storm, the_order_is_what_a_slow_reading_says) {
    struct vg_eng_conf c = vg_eng_conf_default();
    c.half_life_usec = 0;
    c.reserve = 0;
    c.preempt = false;
    for (uint64_t seed = 1; seed <= 12; seed++)
        run(seed, true, c, 1500);
}

Test(storm, nothing_breaks_with_everything_at_once) {
    struct vg_eng_conf c = vg_eng_conf_default();
    c.half_life_usec = 3600 * VG_USEC;
    c.preempt = false;
    for (uint64_t seed = 1; seed <= 12; seed++)
        run(seed + 100, false, c, 1500);
}

Test(storm, preemption_keeps_its_rules) {
    struct vg_eng_conf c = vg_eng_conf_default();
    uint64_t n = 0;
    c.half_life_usec = 3600 * VG_USEC;
    for (uint64_t seed = 1; seed <= 12; seed++)
        n += run(seed + 200, false, c, 1500);
    cr_assert_gt(n, 100, "the storm must lead to preemption, or this shows nothing: %lu", n);
}

Test(storm, nobody_stops_one_another_in_turns_even_without_a_minimum) {
    struct vg_eng_conf c = vg_eng_conf_default();
    uint64_t n = 0;
    c.min_run_usec = 0;
    for (uint64_t seed = 1; seed <= 12; seed++)
        n += run(seed + 300, false, c, 1500);
    cr_assert_gt(n, 100, "%lu", n);
}
