/* The sentences are the engine's where it knows, and ours where the engine has not heard of the
   task: it waits for others, for a time, for nodes, or it has left the queue. */
#include "control/why.h"

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"
#include "control/after.h"
#include "control/bare.h"
#include "control/budget.h"
#include "control/node-gpus.h"
#include "control/nodes.h"
#include "control/place.h"
#include "control/policy.h"
#include "control/price.h"
#include "model/tenant.h"

#include <stdio.h>
#include <string.h>

#define GROUP_LOOKS 1000 /* members that are looked at for an estimate */

static const char *const codes[] = {
    [VG_ENG_FREE] = "free",         [VG_ENG_BUSY] = "capacity",   [VG_ENG_AHEAD] = "ahead",
    [VG_ENG_AT_LIMIT] = "limit",    [VG_ENG_KEPT] = "reserved",   [VG_ENG_WINDOW] = "window",
    [VG_ENG_NO_NODES] = "no-nodes", [VG_ENG_TOO_BIG] = "too-big", [VG_ENG_PINNED] = "session",
    [VG_ENG_FREEING] = "freeing",
};

static const char *code_name(enum vg_eng_code code) {
    return (unsigned)code < VG_COUNT(codes) ? codes[code] : "?";
}

static void say(struct vg_why *w, const char *code, const char *text) {
    snprintf(w->text, sizeof w->text, "%s", text);
    w->pb.text = w->text;
    w->pb.code = (char *)code;
}

/* What it is expected to cost, in all its members. */
static void add_cost(struct vg_control *c, struct vg_why *w, const char *pool,
                     const struct vg_res *grant, bool preemptible, uint64_t run_usec,
                     uint32_t members) {
    const struct vg_pool_conf *p = vg_conf_pool(&c->conf, pool);
    if (!p || !run_usec)
        return;
    uint64_t one = vg_prices_cost(c, p, grant, preemptible, vg_wall_usec(), run_usec), all;
    if (__builtin_mul_overflow(one, (uint64_t)members, &all))
        all = UINT64_MAX;
    w->pb.has_cost_micro = 1;
    w->pb.cost_micro = all;
    w->pb.currency = c->conf.currency;
}

/* Those that the asker may not know are one, whoever they are. */
static void add_holders(struct vg_control *c, const struct vg_eng_why *e, uint64_t viewer,
                        struct vg_why *w) {
    size_t max = VG_MIN(e->n_holders, (size_t)VG_ENG_HOLDERS_MAX), n = 0;
    Vg__Pb__Holder *hidden = NULL;
    for (size_t i = 0; i < max; i++) {
        bool known = vg_policy_knows(c, viewer, e->holder[i].tenant);
        uint64_t until = e->holder[i].until_usec;
        Vg__Pb__Holder *h = !known && hidden ? hidden : &w->holder[n];
        if (h != hidden) {
            vg__pb__holder__init(h);
            w->holders[n++] = h;
        }
        if (!known)
            hidden = h;
        h->tenant = known ? (char *)vg_policy_name(c, e->holder[i].tenant) : (char *)"another team";
        h->has_tasks = h->has_gpu_milli = 1;
        h->tasks += e->holder[i].tasks;
        h->gpu_milli += e->holder[i].gpu_milli;
        if (until && until != VG_ENG_NEVER && (!h->has_until_usec || until < h->until_usec)) {
            h->has_until_usec = 1;
            h->until_usec = until;
        }
    }
    w->pb.n_holder = n;
    w->pb.holder = w->holders;
}

static void from_engine(struct vg_control *c, const struct vg_eng_why *e, uint64_t viewer,
                        const char *pool, const struct vg_res *grant, const Vg__Pb__TaskSpec *spec,
                        uint32_t members, struct vg_why *w) {
    uint64_t run = e->run_usec ? e->run_usec : spec->time_limit_usec;
    snprintf(w->basis, sizeof w->basis, "%s", e->basis);
    w->pb.basis = w->basis;
    w->pb.has_ahead = 1;
    w->pb.ahead = e->ahead;
    w->pb.pool = (char *)pool;
    w->pb.has_expected_start_usec = e->start_usec != VG_ENG_NEVER;
    w->pb.expected_start_usec = e->start_usec != VG_ENG_NEVER ? e->start_usec : 0;
    w->pb.has_expected_run_usec = run != 0;
    w->pb.expected_run_usec = run;
    if (e->node)
        w->pb.node = (char *)vg_nodelink_name(c, e->node);
    add_holders(c, e, viewer, w);
    struct vg_res given = vg_bare_expected(c, pool, e->node, grant);
    add_cost(c, w, pool, &given, spec->preemptible, run, members);
}

/* ------------------------------------------------------------------ tasks */

/* Who waits for GPUs should know of those that nobody gets. */
static void add_drained(struct vg_control *c, const struct vg_task *t, struct vg_why *w) {
    const struct vg_pool_conf *pool = vg_conf_pool(&c->conf, vg_task_pool(t));
    size_t drained = 0, used = strlen(w->text);
    if (!pool || (!t->grant.gpus && !t->grant.gpu_milli))
        return;
    vg_map_for_each (s, &c->nodes) {
        const struct vg_nodelink *a = s->value;
        for (uint32_t i = 0; vg_node_in_pool(a->node, pool) && i < VG_NODE_GPUS_MAX; i++) {
            const struct vg_node_gpu *k = vg_node_gpu_get(a, i);
            drained += k && k->drained;
        }
    }
    if (drained)
        snprintf(w->text + used, sizeof w->text - used,
                 "; %zu GPU%s of its pool %s drained ('virga gpu health' tells why)", drained,
                 drained == 1 ? "" : "s", drained == 1 ? "is" : "are");
}

static void why_queued(struct vg_control *c, const struct vg_job *j, struct vg_why *w) {
    const struct vg_task *t = j->task;
    struct vg_eng_why e = {0};
    char text[160], dur[32];
    uint64_t now = vg_wall_usec();
    if (j->kept) {
        vg_budgets_why(j, w->text, sizeof w->text);
        w->pb.text = w->text;
        w->pb.code = (char *)"budget";
    } else if (j->held) {
        say(w, "restart", "the control plane has just started and waits for its nodes to report");
    } else if (t->due_usec > now) {
        snprintf(text, sizeof text, "it is not to start before its time comes in %s",
                 vg_format_duration(t->due_usec - now, dur, sizeof dur));
        say(w, "due", text);
        w->pb.has_expected_start_usec = 1;
        w->pb.expected_start_usec = t->due_usec;
    } else if (vg_eng_why(vg_policy_now(c), t->id, &e) >= 0) {
        say(w, code_name(e.code), e.text);
        from_engine(c, &e, vg_policy_tenant(c, &c->policy, t->team, t->user), vg_task_pool(t),
                    &t->grant, t->spec, 1, w);
        add_drained(c, t, w);
    } else {
        say(w, "accepting", "it is being written down and begins to wait when that is done");
    }
}

static void why_running(struct vg_control *c, const struct vg_job *j, struct vg_why *w) {
    const struct vg_task *t = j->task;
    const char *node = vg_nodelink_name(c, t->last_node);
    char text[768], dur[32];
    uint64_t now = vg_wall_usec();
    if (t->state == VG_TASK_STARTING)
        snprintf(text, sizeof text, "it does not wait: it is being started on %s", node);
    else if (t->preempting)
        snprintf(text, sizeof text, "it runs on %s and has been asked to give way: %.400s", node,
                 t->reason_text ? t->reason_text : "others need its place");
    else
        snprintf(
            text, sizeof text, "it does not wait: it has been running on %s for %s", node,
            vg_format_duration(now > t->started_usec ? now - t->started_usec : 0, dur, sizeof dur));
    say(w, t->preempting ? "preempted" : "running", text);
    w->pb.node = (char *)node;
    w->pb.pool = (char *)vg_task_pool(t);
}

/* The first member that waits; members start in their order, so it is found soon. */
static const struct vg_job *next_member(struct vg_control *c, const struct vg_task *t) {
    for (uint32_t i = 0; i < t->members; i++) {
        const struct vg_job *j = vg_job_get(c, vg_task_member_id(t->id, i));
        if (j && j->task->state == VG_TASK_QUEUED)
            return j;
    }
    return NULL;
}

/* How far it is, and what its next member waits for. */
static void why_group(struct vg_control *c, const struct vg_job *j, const struct vg_task *t,
                      struct vg_why *w) {
    const struct vg_progress *p = t->progress;
    char text[768], why[512] = "";
    if (!p) {
        say(w, "group", "its members are being made");
        return;
    }
    uint32_t run = p->n[VG_TASK_STARTING] + p->n[VG_TASK_RUNNING];
    const struct vg_job *next = p->n[VG_TASK_QUEUED] ? next_member(c, t) : NULL;
    if (next)
        why_queued(c, next, w);
    else if (t->state == VG_TASK_BLOCKED && j)
        vg_after_explain(j, w->text, sizeof w->text);
    if (next || t->state == VG_TASK_BLOCKED)
        snprintf(why, sizeof why, "%s%.480s", next ? "; the next: " : "; ", w->text);
    const char *code = next ? w->pb.code : t->state == VG_TASK_BLOCKED ? "dependency" : "running";
    snprintf(text, sizeof text, "%u of its %u tasks are done, %u run%s",
             vg_progress_total(p) - vg_progress_open(p), t->members, run, why);
    say(w, code, text);
}

void vg_why_task(struct vg_control *c, const struct vg_job *j, const struct vg_task *t,
                 struct vg_why *ret) {
    char text[768];
    vg__pb__why_info__init(&ret->pb);
    ret->pb.has_task_id = 1;
    ret->pb.task_id = t->id;
    ret->pb.state = (char *)vg_task_state_name(t->state);
    if (vg_task_is_ended(t)) {
        snprintf(text, sizeof text, "it does not wait: it has %s%s%.500s", ret->pb.state,
                 t->reason_text ? ": " : "", t->reason_text ? t->reason_text : "");
        say(ret, "ended", text);
    } else if (vg_task_is_group(t)) {
        why_group(c, j, t, ret);
    } else if (!j) {
        say(ret, "?", "it is not in the control plane's memory: ask again in a moment");
    } else if (t->state == VG_TASK_BLOCKED) {
        vg_after_explain(j, text, sizeof text);
        say(ret, "dependency", text);
    } else if (t->state == VG_TASK_QUEUED) {
        why_queued(c, j, ret);
    } else {
        why_running(c, j, ret);
    }
}

/* When the last member will have ended, as far as that can be seen: the last that waits starts
   last. 0: unknown. */
static uint64_t group_ends(struct vg_control *c, const struct vg_task *t) {
    struct vg_eng *eng = vg_policy_now(c);
    uint64_t last = 0;
    for (uint32_t i = t->members, looked = 0; i-- > 0 && looked < GROUP_LOOKS;) {
        const struct vg_job *j = vg_job_get(c, vg_task_member_id(t->id, i));
        struct vg_eng_why e;
        if (!j)
            continue;
        looked++;
        if (j->waits && vg_eng_why(eng, j->task->id, &e) >= 0)
            return e.start_usec == VG_ENG_NEVER || !e.run_usec ? 0 : e.start_usec + e.run_usec;
        uint64_t end = vg_eng_ends(eng, j->task->id);
        if (end != VG_ENG_NEVER)
            last = VG_MAX(last, end);
    }
    return last;
}

static void set_end(struct vg_task_info *info, uint64_t end) {
    info->pb.has_expected_end_usec = end && end != VG_ENG_NEVER;
    info->pb.expected_end_usec = info->pb.has_expected_end_usec ? end : 0;
}

void vg_why_info(struct vg_control *c, const struct vg_task *t, struct vg_task_info *info,
                 struct vg_why *room) {
    const struct vg_job *j = vg_job_get(c, t->id);
    if (!j || vg_task_is_ended(t))
        return;
    if (vg_task_is_group(t)) {
        uint64_t end = group_ends(c, t);
        set_end(info, end);
        info->progress.has_expected_end_usec = info->pb.has_expected_end_usec;
        info->progress.expected_end_usec = info->pb.expected_end_usec;
    }
    if (t->state == VG_TASK_RUNNING && !vg_task_is_group(t))
        set_end(info, vg_eng_ends(vg_policy_now(c), t->id));
    if (t->state != VG_TASK_QUEUED && t->state != VG_TASK_BLOCKED)
        return;
    vg_why_task(c, j, t, room);
    info->pb.reason = room->pb.text;
    info->pb.has_expected_start_usec = room->pb.has_expected_start_usec;
    info->pb.expected_start_usec = room->pb.expected_start_usec;
    if (!vg_task_is_group(t) && room->pb.has_expected_start_usec && room->pb.has_expected_run_usec)
        set_end(info, room->pb.expected_start_usec + room->pb.expected_run_usec);
}

int vg_why_brief(const struct vg_job *j, char *out, size_t n) {
    char text[256], id[VG_ID_LEN + 1];
    if (j->kept) {
        vg_budgets_why(j, out, n);
        return 0;
    }
    if (j->held) {
        snprintf(out, n,
                 "queued: the control plane has just started and waits for its nodes to report");
        return 0;
    }
    int r = vg_eng_brief(j->ctl->policy.eng, j->task->id, text, sizeof text);
    if (r < 0)
        return r;
    vg_id_format(j->task->id, id);
    snprintf(out, n, "queued: %s (virga task why %.8s)", text, id);
    return 0;
}

/* ------------------------------------------------------------------ dry runs */

int vg_why_forecast(struct vg_control *c, const struct vg_user *u, Vg__Pb__TaskSpec *spec,
                    const struct vg_res *grant, uint32_t members, struct vg_why *ret,
                    struct vg_err *err) {
    struct vg_eng_why e = {0};
    struct vg_eng_req r;
    /* A task as it would be, for as long as the engine looks at it. */
    struct vg_task t = {.id = UINT64_MAX,
                        .user = u->name,
                        .team = u->team->name,
                        .spec = spec,
                        .grant = *grant,
                        .created_usec = vg_wall_usec()};
    struct vg_job j = {.ctl = c, .task = &t};
    uint32_t together = spec->gang ? members : 1;
    int e_no = vg_policy_request(c, &c->policy, &j, &r);
    if (e_no < 0)
        return vg_err_sys(err, -e_no, "cannot look ahead");
    int x = vg_eng_check_fit(vg_policy_now(c), &r, together, err);
    if (x < 0)
        return x;
    x = vg_eng_forecast(c->policy.eng, &r, together, &e);
    if (x < 0)
        return vg_err_sys(err, -x, "cannot look ahead");
    vg__pb__why_info__init(&ret->pb);
    say(ret, code_name(e.code), e.text);
    from_engine(c, &e, r.tenant, spec->pool, grant, spec, members, ret);
    return 0;
}
