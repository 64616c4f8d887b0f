/* The engine of src/sched as a policy. Tasks are named (attempt, job, member), so that a late word
   about an attempt that is over cannot be mistaken for one about the next. */
#include "base/cleanup.h"
#include "base/mem.h"
#include "sched/engine.h"
#include "sim/policy.h"

#include <stdio.h>

#define MEMBER_BITS 12
#define JOB_BITS 28
#define ASK_ONE_IN 8 /* with --estimates: so many are asked about */

struct virga {
    const struct vg_workload *w;
    bool oracle;
    struct vg_eng *eng;
    uint32_t *attempt;              /* owned; by job: 0 before its first start order */
    uint32_t *nodes;                /* owned; of the gang that is being started */
    uint64_t *task;                 /* owned; scratch: ids of a gang's members */
    uint32_t gathered;              /* members of it that were told */
    struct vg_estimates *estimates; /* borrowed; NULL: nobody asks */
    uint32_t *fresh;                /* owned; jobs that came since the engine was last asked */
    size_t n_fresh, fresh_cap;
    uint64_t now;
};

static uint64_t task_id(const struct virga *p, uint32_t job, uint32_t member) {
    return ((uint64_t)p->attempt[job] << (JOB_BITS + MEMBER_BITS)) |
           ((uint64_t)(job + 1) << MEMBER_BITS) | member;
}

static uint32_t job_of(uint64_t task) {
    return (uint32_t)((task >> MEMBER_BITS) & ((1u << JOB_BITS) - 1)) - 1;
}

static void virga_free(void *arg) {
    struct virga *p = arg;
    if (!p)
        return;
    vg_eng_free(p->eng);
    free(p->attempt);
    free(p->nodes);
    free(p->task);
    free(p->fresh);
    free(p);
}

static struct vg_eng_amount amount(uint64_t units) {
    return (struct vg_eng_amount){.gpu_milli = units * 1000};
}

static int add_tenants(struct virga *p) {
    for (size_t i = 0; i < p->w->n_tenants; i++) {
        const struct vg_work_tenant *t = &p->w->tenant[i];
        struct vg_eng_tenant e = {.id = i + 1,
                                  .name = t->name,
                                  .quota = amount(t->quota),
                                  .limit = VG_ENG_NO_LIMIT,
                                  .weight = t->weight};
        if (t->limit)
            e.limit.gpu_milli = t->limit * 1000ull;
        int r = vg_eng_set_tenant(p->eng, &e);
        if (r < 0)
            return r;
    }
    return 0;
}

static int add_pools(struct virga *p) {
    for (uint32_t i = 0; i < p->w->n_pools; i++) {
        char name[32], label[40];
        snprintf(name, sizeof(name), "pool-%u", i);
        snprintf(label, sizeof(label), "pool=%u", i);
        char *labels[] = {label};
        struct vg_eng_pool e = {.name = name, .id = i + 1, .labels = labels, .n_labels = 1};
        int r = vg_eng_set_pool(p->eng, &e);
        if (r < 0)
            return r;
    }
    return 0;
}

static int add_nodes(struct virga *p) {
    for (size_t i = 0; i < p->w->n_nodes; i++) {
        struct vg_eng_gpu gpu[VG_NODE_GPUS_MAX] = {0};
        char name[32], label[40];
        snprintf(name, sizeof(name), "node-%zu", i);
        snprintf(label, sizeof(label), "pool=%u", p->w->node[i].pool);
        char *labels[] = {label};
        struct vg_eng_node e = {.id = i + 1,
                                .name = name,
                                .gpu = gpu,
                                .n_gpus = p->w->node[i].units,
                                .total = {.gpus = p->w->node[i].units},
                                .labels = labels,
                                .n_labels = 1,
                                .usable = true};
        for (uint32_t g = 0; g < e.n_gpus; g++)
            gpu[g] = (struct vg_eng_gpu){.index = g, .mem_bytes = 16ull << 30};
        int r = vg_eng_set_node(p->eng, &e);
        if (r < 0)
            return r;
    }
    return 0;
}

static int virga_make(const struct vg_workload *w, const struct vg_policy_opts *o, void **ret,
                      struct vg_err *err) {
    struct virga *p = vg_alloc(sizeof(*p));
    if (!p)
        return vg_err_sys(err, -ENOMEM, "cannot make a policy");
    p->w = w;
    p->oracle = o->oracle;
    p->estimates = o->estimates;
    p->eng = vg_eng_new();
    p->attempt = vg_alloc(VG_MAX(w->n_jobs, 1u) * sizeof(*p->attempt));
    p->nodes = vg_alloc(VG_WORK_MEMBERS_MAX * sizeof(*p->nodes));
    p->task = vg_alloc(VG_WORK_MEMBERS_MAX * sizeof(*p->task));
    struct vg_eng_conf conf = o->engine ? *o->engine : vg_eng_conf_default();
    conf.preempt = o->preempt;
    conf.seed = o->seed;
    int r = -ENOMEM;
    if (!p->eng || !p->attempt || !p->nodes || !p->task ||
        (r = vg_eng_set_conf(p->eng, &conf)) < 0 || (r = add_tenants(p)) < 0 ||
        (r = add_pools(p)) < 0 || (r = add_nodes(p)) < 0) {
        virga_free(p);
        return vg_err_sys(err, r, "cannot set up the engine");
    }
    *ret = p;
    return 0;
}

static int virga_submit(void *arg, uint64_t now, uint32_t job) {
    struct virga *p = arg;
    struct vg_err err = VG_ERR_INIT;
    const struct vg_work_job *j = &p->w->job[job];
    p->attempt[job]++;
    struct vg_eng_req req = {.task = task_id(p, job, 0),
                             .tenant = j->tenant + 1,
                             .pool = {j->pool + 1},
                             .n_pools = 1,
                             .res = {.gpus = j->units},
                             .priority = j->priority,
                             .order = job + 1,
                             .known_usec = p->oracle ? j->run_usec : 0};
    vg_eng_now(p->eng, now);
    if (p->estimates && job % ASK_ONE_IN == 0) {
        uint32_t *grown = vg_grow(p->fresh, &p->fresh_cap, p->n_fresh + 1, sizeof(*grown));
        if (!grown)
            return -ENOMEM;
        p->fresh = grown;
        p->fresh[p->n_fresh++] = job;
    }
    if (j->members == 1)
        return vg_eng_submit(p->eng, &req, &err);
    req.gang = task_id(p, job, 0);
    for (uint32_t m = 0; m < j->members; m++)
        p->task[m] = task_id(p, job, m);
    return vg_eng_submit_gang(p->eng, &req, p->task, j->members, &err);
}

static void release(struct virga *p, uint32_t job, enum vg_eng_end how) {
    for (uint32_t m = 0; m < p->w->job[job].members; m++)
        vg_eng_release(p->eng, task_id(p, job, m), how);
}

static void virga_finish(void *arg, uint64_t now, uint32_t job, uint64_t ran) {
    struct virga *p = arg;
    (void)ran;
    vg_eng_now(p->eng, now);
    release(p, job, VG_ENG_ENDED);
}

/* One order of the engine; 1 when that completes a decision. */
static int take(struct virga *p, const struct vg_eng_decision *e, struct vg_decision *ret,
                struct vg_err *err) {
    uint32_t job = job_of(e->task);
    if (job >= p->w->n_jobs)
        return vg_err_set(err, VG_INTERNAL, "the engine named a task that nobody submitted");
    if (e->task >> (JOB_BITS + MEMBER_BITS) != p->attempt[job])
        return e->what == VG_ENG_PREEMPT
                   ? 0
                   : vg_err_set(err, VG_INTERNAL, "the engine started an attempt that is over");
    *ret = (struct vg_decision){.job = job, .node = p->nodes};
    if (e->what == VG_ENG_PREEMPT) {
        ret->kind = VG_DECIDE_STOP;
        release(p, job, VG_ENG_PREEMPTED);
        return 1;
    }
    p->nodes[p->gathered++] = (uint32_t)(e->node - 1);
    if (p->gathered < p->w->job[job].members)
        return 0;
    p->gathered = 0;
    return 1;
}

/* Those who came and did not start are told when they will. */
static void foretell(struct virga *p, uint64_t now) {
    for (size_t i = 0; i < p->n_fresh; i++) {
        struct vg_eng_why w;
        if (vg_eng_why(p->eng, task_id(p, p->fresh[i], 0), &w) == 0)
            vg_estimates_tell(p->estimates, p->fresh[i], now, w.start_usec);
    }
    p->n_fresh = 0;
}

static int virga_next(void *arg, uint64_t now, struct vg_decision *ret, struct vg_err *err) {
    struct virga *p = arg;
    struct vg_eng_decision e;
    int r = 0;
    vg_eng_now(p->eng, now);
    while (r == 0 && vg_eng_next(p->eng, &e) > 0)
        r = take(p, &e, ret, err);
    if (r == 0 && p->gathered)
        return vg_err_set(err, VG_INTERNAL, "the engine started a part of a gang");
    if (p->estimates && r > 0 && ret->kind == VG_DECIDE_START)
        vg_estimates_started(p->estimates, ret->job, now);
    else if (p->estimates && r == 0)
        foretell(p, now);
    return r;
}

static uint64_t virga_wake(void *arg) {
    const struct virga *p = arg;
    return vg_eng_wake(p->eng);
}

const struct vg_policy_ops vg_policy_virga = {.name = "virga",
                                              .about = "the engine",
                                              .can_preempt = true,
                                              .make = virga_make,
                                              .free = virga_free,
                                              .submit = virga_submit,
                                              .finish = virga_finish,
                                              .next = virga_next,
                                              .wake = virga_wake};
