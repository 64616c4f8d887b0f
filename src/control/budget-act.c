/* What a budget does: telling people, keeping tasks waiting, ending what runs. */
#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"
#include "control/audit.h"
#include "control/budget-int.h"
#include "control/gang.h"
#include "control/hooks.h"
#include "control/node-gpus.h"
#include "control/place.h"
#include "meter/charge.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GRACE_LEAST_USEC 100000 /* between the signal and the end */

/* ------------------------------------------------------------------ telling */

static void tell_hooks(struct vg_control *c, const struct vg_budget *b, const char *name,
                       const char *text) {
    if (!vg_hook_wanted(c, name))
        return;
    json_t *data = json_object();
    json_object_set_new(data, "budget", json_string(b->name));
    json_object_set_new(data, "scope", json_string(b->scope));
    json_object_set_new(data, "text", json_string(text));
    json_object_set_new(data, "limit_micro", json_integer((json_int_t)b->limit_micro));
    json_object_set_new(data, "spent_micro", json_integer((json_int_t)vg_budget_spent(b)));
    json_object_set_new(data, "currency", json_string(b->currency));
    const struct vg_user *u = b->of == SCOPE_USER ? vg_tenants_user(&c->tenants, b->target) : NULL;
    struct vg_hook_event e = {.name = name,
                              .user = b->of == SCOPE_USER ? b->target : NULL,
                              .team = b->of == SCOPE_TEAM ? b->target
                                      : u                 ? u->team->name
                                                          : NULL,
                              .org = b->of == SCOPE_ORG ? b->target
                                     : u                ? u->team->org
                                                        : NULL,
                              .data = data};
    vg_hook_event(c, &e);
}

/* The hour of a moment for people, in UTC as periods are. */
static const char *until_text(const struct vg_budget *b, char *out, size_t n) {
    time_t t = (time_t)(b->until_usec / 1000000);
    struct tm tm;
    if (b->until_usec == UINT64_MAX)
        return NULL;
    gmtime_r(&t, &tm);
    strftime(out, n, "%Y-%m-%d %H:%M UTC", &tm);
    return out;
}

static void notice(struct vg_control *c, const struct vg_budget *b, const char *text) {
    vg_map_for_each (s, &c->jobs) {
        struct vg_job *j = s->value;
        if (j->task->state == VG_TASK_RUNNING && !vg_task_is_group(j->task) &&
            vg_budget_is_of(b, j))
            vg_job_notice(j, text);
    }
}

static void warn(struct vg_control *c, struct vg_budget *b, uint32_t percent) {
    char text[256];
    snprintf(text, sizeof text, "%u percent of budget '%s' are spent", percent, b->name);
    b->warned_percent = percent;
    b->warned_from_usec = b->from_usec;
    (void)vg_budget_store(c, b, NULL, NULL);
    vg_audit_as(c, "", "%s (%s)", text, b->scope);
    notice(c, b, text);
    tell_hooks(c, b, "budget.warned", text);
}

void vg_budget_warn(struct vg_control *c, struct vg_budget *b) {
    uint64_t spent = vg_budget_spent(b);
    uint32_t told = b->warned_from_usec == b->from_usec ? b->warned_percent : 0, now = 0;
    for (size_t i = 0; i < b->n_warn; i++)
        if ((vg_wide)spent * 100 >= (vg_wide)b->limit_micro * b->warn[i])
            now = VG_MAX(now, b->warn[i]);
    if (now > told)
        warn(c, b, now);
}

/* ------------------------------------------------------------------ caps */

static const struct vg_budget *holder_of(const struct vg_job *j) {
    const struct vg_budgets *all = j->ctl->budgets;
    for (size_t i = 0; all && i < all->n; i++)
        if (all->list[i]->holds && vg_budget_is_of(all->list[i], j))
            return all->list[i];
    return NULL;
}

bool vg_budgets_hold(struct vg_job *j) {
    j->kept = holder_of(j) != NULL;
    if (j->kept)
        j->waits = false;
    return j->kept;
}

void vg_budgets_why(const struct vg_job *j, char *out, size_t n) {
    const struct vg_budget *b = holder_of(j);
    char until[40];
    if (!b)
        snprintf(out, n, "a budget was used up; it goes on in a moment");
    else if (until_text(b, until, sizeof until))
        snprintf(out, n,
                 "budget '%s' (%s) is used up: it starts when the next %s begins (%s), or when the "
                 "limit is raised",
                 b->name, b->scope, vg_period_name(b->period), until);
    else
        snprintf(out, n, "budget '%s' (%s) is used up: it starts when the limit is raised", b->name,
                 b->scope);
}

/* Those that wait leave the scheduler's queue. */
static void hold_waiting(struct vg_control *c, const struct vg_budget *b) {
    vg_map_for_each (s, &c->jobs) {
        struct vg_job *j = s->value;
        if (!j->waits || !vg_budget_is_of(b, j))
            continue;
        vg_eng_release(vg_policy_now(c), j->task->id, VG_ENG_CANCELLED);
        j->waits = false;
        j->kept = true;
        if (!vg_list_empty(&j->follows))
            vg_place_tell(j);
    }
}

/* Those whom no budget holds any more go back. Collected first: a submission may end jobs. */
void vg_budgets_let_go(struct vg_control *c) {
    size_t n = 0;
    vg_auto_free uint64_t *ids = vg_alloc((vg_map_len(&c->jobs) + 1) * sizeof *ids);
    vg_map_for_each (s, &c->jobs) {
        struct vg_job *j = s->value;
        if (ids && j->kept && !holder_of(j)) {
            j->kept = false;
            ids[n++] = j->task->id;
        }
    }
    for (size_t i = 0; i < n; i++) {
        struct vg_job *j = vg_job_get(c, ids[i]);
        struct vg_err err = VG_ERR_INIT;
        if (!j || j->waits || j->held || j->task->state != VG_TASK_QUEUED)
            continue;
        int r = vg_gang_is_member(j) ? vg_gang_submit(j, &err) : vg_place_submit(j, &err);
        if (r < 0)
            vg_job_end(j, vg_reason_exit(err.reason), err.reason, err.msg);
    }
    if (n)
        vg_place_all(c);
}

/* What runs is told to end, with so much time for it. */
static void stop_running(struct vg_control *c, const struct vg_budget *b, uint64_t grace_usec) {
    char text[200];
    size_t n = 0;
    vg_auto_free uint64_t *ids = vg_alloc((vg_map_len(&c->jobs) + 1) * sizeof *ids);
    snprintf(text, sizeof text, "ended because budget '%s' (%s) is used up", b->name, b->scope);
    vg_map_for_each (s, &c->jobs) {
        struct vg_job *j = s->value;
        if (ids && j->task->attempt.node && !j->task->cancel && vg_budget_is_of(b, j))
            ids[n++] = j->task->id;
    }
    for (size_t i = 0; i < n; i++) {
        struct vg_job *j = vg_job_get(c, ids[i]);
        if (!j)
            continue;
        vg_job_notice(j, text);
        vg_job_end_early(j, vg_job_grace_signal(j), grace_usec, text);
    }
    if (n)
        vg_audit_as(c, "", "budget '%s' (%s): %zu tasks are ended", b->name, b->scope, n);
}

static void cap(struct vg_control *c, struct vg_budget *b) {
    char text[256];
    snprintf(text, sizeof text, "budget '%s' (%s) is used up: nothing starts%s", b->name, b->scope,
             b->policy == POLICY_STOP ? ", and what runs is ended" : "");
    b->holds = true;
    vg_audit_as(c, "", "%s", text);
    tell_hooks(c, b, "budget.capped", text);
    hold_waiting(c, b);
}

void vg_budget_cap(struct vg_control *c, struct vg_budget *b, uint64_t now) {
    bool spent = !vg_budget_left(b);
    uint64_t at = vg_budget_when(b, now);
    bool near = b->policy == POLICY_STOP && at != UINT64_MAX && at < b->until_usec &&
                at <= now + b->grace_usec;
    bool hold = !b->paused && b->policy != POLICY_WARN && (spent || near || b->stopping);
    if (hold && !b->holds)
        cap(c, b);
    b->holds = hold;
    if (!hold || b->policy != POLICY_STOP)
        return;
    /* Who was told before has had the notice; who comes upon an empty budget still gets it. */
    uint64_t grace = !spent ? at - VG_MIN(at, now) : b->stopping ? 0 : b->grace_usec;
    if (!b->stopping) {
        b->stopping = true;
        (void)vg_budget_store(c, b, NULL, NULL);
    }
    if (b->rate_micro_hour)
        stop_running(c, b, VG_MAX(VG_MIN(grace, b->grace_usec), (uint64_t)GRACE_LEAST_USEC));
}
