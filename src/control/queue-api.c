/* What people ask about the queue: why a task waits, who is next, what would happen; and the
   configuration read again. */
#include "base/cleanup.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/util.h"
#include "control/api.h"
#include "control/audit.h"
#include "control/policy.h"
#include "control/users.h"
#include "control/why.h"
#include "model/pool.h"

#include <string.h>

#define B(name) VG__PB__ENVELOPE__BODY_##name
#define ROWS_DEFAULT 50
#define ROWS_MAX 10000

static void out_of_memory(struct vg_call *call) {
    vg_peer_error(call->peer, call->req, VG_INTERNAL, "the control plane is out of memory");
}

void vg_api_task_why(struct vg_call *call) {
    struct vg_err err = VG_ERR_INIT;
    struct vg_found f = {0};
    struct vg_why why = {0};
    const char *ref = call->env->task_why->task;
    if (vg_find_task(call->ctl, call->user, ref ? ref : "", &f, &err) < 0) {
        vg_peer_fail(call->peer, call->req, &err);
        return;
    }
    VG_ENVELOPE(env);
    call->ctl->policy.tell_all = vg_user_may(call->user, VG_ACT_SEE_ALL);
    vg_why_task(call->ctl, f.job, vg_found_task(&f), &why);
    call->ctl->policy.tell_all = false;
    env.body_case = B(WHY);
    env.why = &why.pb;
    vg_peer_send(call->peer, call->req, false, &env);
    vg_found_done(&f);
}

void vg_api_dry_run(struct vg_call *call, const struct vg_res *grant) {
    struct vg_err err = VG_ERR_INIT;
    struct vg_why why = {0};
    Vg__Pb__TaskSpec *spec = call->env->run->spec;
    uint64_t members = vg_spec_members(spec, UINT32_MAX - 1);
    if (vg_why_forecast(call->ctl, call->user, spec, grant,
                        members ? (uint32_t)VG_MIN(members, (uint64_t)UINT32_MAX) : 1, &why,
                        &err) < 0) {
        vg_peer_fail(call->peer, call->req, &err);
        return;
    }
    VG_ENVELOPE(env);
    Vg__Pb__RunEvent e = VG__PB__RUN_EVENT__INIT;
    e.has_kind = 1;
    e.kind = VG__PB__RUN_EVENT__KIND__QUEUED;
    e.text = why.pb.text;
    e.forecast = &why.pb;
    env.body_case = B(RUN_EVENT);
    env.run_event = &e;
    vg_peer_send(call->peer, call->req, false, &env);
}

/* ------------------------------------------------------------------ the order */

struct order {
    uint64_t *id;
    Vg__Pb__QueueRow *row, **rows;
    Vg__Pb__Resources *want;
    size_t n;
};

static void order_done(struct order *o) {
    free(o->id);
    free(o->row);
    free(o->rows);
    free(o->want);
}

/* Everybody sees how many are before them; who that is and what they ask for only those who may. */
static void fill_row(struct vg_call *call, const struct vg_job *j, Vg__Pb__QueueRow *m,
                     Vg__Pb__Resources *want) {
    const struct vg_task *t = j->task;
    vg__pb__queue_row__init(m);
    m->pool = (char *)vg_task_pool(t);
    if (!vg_users_may_see(call->user, t->user, t->team))
        return;
    *want = vg_res_to_pb(t->grant);
    m->has_task_id = 1;
    m->task_id = t->id;
    m->name = t->spec->name;
    m->user = t->user;
    m->team = t->team;
    m->want = want;
    m->has_priority = m->has_created_usec = 1;
    m->priority = t->spec->priority;
    m->created_usec = t->created_usec;
    m->has_members = t->spec->gang;
    m->members = t->of;
}

/* A gang is one row: its first member's. */
static bool is_further_member(const struct order *o, struct vg_control *c, const struct vg_job *j) {
    const struct vg_job *last = o->n ? vg_job_get(c, o->id[o->n - 1]) : NULL;
    return j->task->spec->gang && last && last->task->group == j->task->group;
}

static int make_order(struct vg_call *call, uint64_t pool, size_t max, struct order *o) {
    struct vg_control *c = call->ctl;
    o->id = vg_alloc((max + 1) * sizeof *o->id);
    o->row = vg_alloc((max + 1) * sizeof *o->row);
    o->rows = vg_alloc((max + 1) * sizeof *o->rows);
    o->want = vg_alloc((max + 1) * sizeof *o->want);
    if (!o->id || !o->row || !o->rows || !o->want)
        return -ENOMEM;
    size_t got = vg_eng_order(vg_policy_now(c), pool, o->id, max);
    for (size_t i = 0; i < got; i++) {
        const struct vg_job *j = vg_job_get(c, o->id[i]);
        if (!j || is_further_member(o, c, j))
            continue;
        o->id[o->n] = o->id[i];
        fill_row(call, j, &o->row[o->n], &o->want[o->n]);
        o->rows[o->n] = &o->row[o->n];
        o->n++;
    }
    /* The first few get an estimate; all of them would cost a search each. */
    for (size_t i = 0; i < o->n && i < 20; i++) {
        struct vg_eng_why e = {0};
        if (!o->row[i].has_task_id || vg_eng_why(c->policy.eng, o->id[i], &e) < 0 ||
            e.start_usec == VG_ENG_NEVER)
            continue;
        o->row[i].has_expected_start_usec = 1;
        o->row[i].expected_start_usec = e.start_usec;
    }
    return 0;
}

/* ------------------------------------------------------------------ tenants */

struct shares {
    struct vg_eng_tenant_info *info;
    Vg__Pb__TenantRow *row, **rows;
    size_t n;
};

static void shares_done(struct shares *s) {
    free(s->info);
    free(s->row);
    free(s->rows);
}

static void fill_tenant(struct vg_control *c, const struct vg_eng_tenant_info *i,
                        Vg__Pb__TenantRow *m) {
    vg__pb__tenant_row__init(m);
    m->name = (char *)vg_policy_name(c, i->id);
    m->has_queued = m->has_running = m->has_gpu_milli = m->has_cpu_milli = m->has_weight =
        m->has_quota_gpu_milli = m->has_fair_ppm = m->has_share_ppm = m->has_usage_ppm = 1;
    m->queued = i->queued;
    m->running = i->running;
    m->gpu_milli = i->held.gpu_milli;
    m->cpu_milli = i->held.cpu_milli;
    m->quota_gpu_milli = i->quota.gpu_milli;
    m->has_limit_gpu_milli = i->limit.gpu_milli != UINT64_MAX;
    m->limit_gpu_milli = i->limit.gpu_milli;
    m->weight = i->weight;
    m->fair_ppm = i->fair_ppm;
    m->share_ppm = i->share_ppm;
    m->usage_ppm = i->usage_ppm;
}

/* Whether the one above it is known, so that what is hidden is counted once. */
static bool is_uppermost(const char *path, const char *const *hidden, size_t n) {
    for (size_t i = 0; i < n; i++) {
        size_t len = strlen(hidden[i]);
        if (strncmp(path, hidden[i], len) == 0 && path[len] == '/')
            return false;
    }
    return true;
}

static void add_up(Vg__Pb__TenantRow *sum, const struct vg_eng_tenant_info *i) {
    sum->queued += i->queued;
    sum->running += i->running;
    sum->gpu_milli += i->held.gpu_milli;
    sum->cpu_milli += i->held.cpu_milli;
    sum->fair_ppm += i->fair_ppm;
    sum->share_ppm += i->share_ppm;
    sum->usage_ppm += i->usage_ppm;
}

/* All that the asker may not know, in one row. */
static int add_others(struct vg_control *c, struct shares *s, size_t got, uint64_t viewer) {
    vg_auto_free const char **hidden = vg_alloc((got + 1) * sizeof *hidden);
    Vg__Pb__TenantRow *sum = &s->row[s->n];
    size_t n = 0;
    if (!hidden)
        return -ENOMEM;
    for (size_t i = 0; i < got; i++)
        if (*vg_policy_name(c, s->info[i].id) && !vg_policy_knows(c, viewer, s->info[i].id))
            hidden[n++] = vg_policy_name(c, s->info[i].id);
    if (!n)
        return 0;
    vg__pb__tenant_row__init(sum);
    sum->name = (char *)"another team";
    sum->has_queued = sum->has_running = sum->has_gpu_milli = sum->has_cpu_milli =
        sum->has_fair_ppm = sum->has_share_ppm = sum->has_usage_ppm = 1;
    for (size_t i = 0; i < got; i++) {
        const char *path = vg_policy_name(c, s->info[i].id);
        if (*path && !vg_policy_knows(c, viewer, s->info[i].id) && is_uppermost(path, hidden, n))
            add_up(sum, &s->info[i]);
    }
    s->rows[s->n++] = sum;
    return 0;
}

static int make_shares(struct vg_call *call, struct shares *s) {
    struct vg_control *c = call->ctl;
    const struct vg_user *u = call->user;
    uint64_t viewer = vg_policy_tenant(c, &c->policy, u->team->name, u->name);
    size_t max = vg_eng_tenants(vg_policy_now(c), NULL, 0);
    s->info = vg_alloc((max + 1) * sizeof *s->info);
    s->row = vg_alloc((max + 2) * sizeof *s->row);
    s->rows = vg_alloc((max + 2) * sizeof *s->rows);
    if (!s->info || !s->row || !s->rows)
        return -ENOMEM;
    size_t got = VG_MIN(vg_eng_tenants(c->policy.eng, s->info, max), max);
    c->policy.tell_all = vg_user_may(u, VG_ACT_SEE_ALL);
    for (size_t i = 0; i < got; i++) {
        if (!*vg_policy_name(c, s->info[i].id) || !vg_policy_knows(c, viewer, s->info[i].id))
            continue; /* the root, or not theirs to know */
        fill_tenant(c, &s->info[i], &s->row[s->n]);
        s->rows[s->n] = &s->row[s->n];
        s->n++;
    }
    int r = add_others(c, s, got, viewer);
    c->policy.tell_all = false;
    return r;
}

void vg_api_queue(struct vg_call *call) {
    const Vg__Pb__QueueQuery *q = call->env->queue;
    struct vg_control *c = call->ctl;
    struct vg_err err = VG_ERR_INIT;
    struct order o = {0};
    struct shares s = {0};
    uint64_t pool = 0;
    uint32_t limit = q->has_limit && q->limit ? q->limit : ROWS_DEFAULT;
    if (q->pool && *q->pool) {
        if (!vg_pool_find(&c->conf, q->pool, &err)) {
            vg_peer_fail(call->peer, call->req, &err);
            return;
        }
        pool = vg_eng_pool_id(q->pool);
    }
    if (make_order(call, pool, VG_MIN(limit, (uint32_t)ROWS_MAX), &o) < 0 ||
        make_shares(call, &s) < 0) {
        out_of_memory(call);
    } else {
        VG_ENVELOPE(env);
        Vg__Pb__QueueInfo m = VG__PB__QUEUE_INFO__INIT;
        m.row = o.rows;
        m.n_row = o.n;
        m.tenant = s.rows;
        m.n_tenant = s.n;
        m.has_total = 1;
        m.total = vg_eng_queued(c->policy.eng);
        env.body_case = B(QUEUE_INFO);
        env.queue_info = &m;
        vg_peer_send(call->peer, call->req, false, &env);
    }
    order_done(&o);
    shares_done(&s);
}

/* ------------------------------------------------------------------ configuration */

void vg_api_config_reload(struct vg_call *call) {
    struct vg_err err = VG_ERR_INIT;
    char text[512];
    if (vg_policy_reload(call->ctl, text, sizeof text, &err) < 0) {
        vg_audit(call, "configuration: refused: %s", err.msg);
        vg_peer_fail(call->peer, call->req, &err);
        return;
    }
    vg_audit(call, "configuration: %s", text);
    vg_peer_ok(call->peer, call->req, text);
}
