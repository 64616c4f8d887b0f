/* Setting, listing and removing budgets. Administrators may for everybody, leads for their team and
   the people in it. */
#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"
#include "control/api.h"
#include "control/audit.h"
#include "control/budget-int.h"
#include "control/later.h"
#include "control/users.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GRACE_USEC (300ULL * 1000000)

static bool is_ours(const struct vg_call *call, const struct vg_budget *b, bool to_see) {
    const struct vg_user *u = call->user, *of;
    if (vg_user_may(u, VG_ACT_MANAGE_MONEY))
        return true;
    bool team = strcmp(u->team->name, VG_TEAM_DEFAULT) != 0;
    bool lead = team && vg_user_may(u, VG_ACT_MANAGE_TEAM);
    switch (b->of) {
    case SCOPE_TEAM:
        return (lead || (to_see && team)) && strcmp(b->target, u->team->name) == 0;
    case SCOPE_USER:
        of = vg_tenants_user(&call->ctl->tenants, b->target);
        return (to_see && strcmp(b->target, u->name) == 0) || (lead && of && of->team == u->team);
    default:
        return false;
    }
}

static int may_not(const struct vg_call *call, struct vg_err *err) {
    return vg_err_set(err, VG_FORBIDDEN,
                      "a lead may set budgets of team:%s and of the people in it: ask an "
                      "administrator for others",
                      call->user->team->name);
}

static int check_target(const struct vg_control *c, const struct vg_budget *b, struct vg_err *err) {
    bool there = true;
    if (b->of == SCOPE_TEAM)
        there = vg_tenants_team(&c->tenants, b->target) != NULL;
    if (b->of == SCOPE_USER)
        there = vg_tenants_user(&c->tenants, b->target) != NULL;
    return there ? 0 : vg_err_set(err, VG_NOT_FOUND, "there is no %s", b->scope);
}

static int read_policy(const char *s, enum policy *ret, struct vg_err *err) {
    for (int i = POLICY_WARN; i <= POLICY_STOP; i++)
        if (strcmp(s, vg_budget_policy_name((enum policy)i)) == 0) {
            *ret = (enum policy)i;
            return 0;
        }
    return vg_err_set(err, VG_INVALID, "'%.40s' is no policy: warn, queue or stop", s);
}

static int by_size(const void *a, const void *b) {
    return (int)*(const uint32_t *)a - (int)*(const uint32_t *)b;
}

static int read_warns(const Vg__Pb__BudgetSet *m, struct vg_budget *b, struct vg_err *err) {
    if (m->n_warn_percent > VG_BUDGET_WARNS_MAX)
        return vg_err_set(err, VG_INVALID, "at most %d levels to warn at", VG_BUDGET_WARNS_MAX);
    if (m->n_warn_percent)
        b->n_warn = m->n_warn_percent;
    for (size_t i = 0; i < m->n_warn_percent; i++) {
        b->warn[i] = m->warn_percent[i];
        if (b->warn[i] < 1 || b->warn[i] > 100)
            return vg_err_set(err, VG_INVALID, "levels to warn at are 1 to 100 percent");
    }
    qsort(b->warn, b->n_warn, sizeof b->warn[0], by_size);
    return 0;
}

/* What is not said stays as it is, or has its default. */
static int read_budget(const struct vg_call *call, const Vg__Pb__BudgetSet *m,
                       const struct vg_budget *old, struct vg_budget *b, struct vg_err *err) {
    static const struct vg_budget fresh = {.period = VG_PERIOD_MONTH,
                                           .policy = POLICY_WARN,
                                           .grace_usec = GRACE_USEC,
                                           .warn = {50, 80, 95},
                                           .n_warn = 3};
    const struct vg_control *c = call->ctl;
    char scope[sizeof b->scope];
    snprintf(scope, sizeof scope, "%s", m->scope ? m->scope : old ? old->scope : "");
    *b = old ? *old : fresh;
    snprintf(b->name, sizeof b->name, "%s", m->name);
    if (!*scope || (m->scope && strlen(m->scope) >= sizeof scope))
        return vg_err_set(err, VG_INVALID, "say whose: --scope team:NAME, for one");
    int r = vg_budget_read_scope(b, scope, err);
    if (r >= 0 && !is_ours(call, b, false))
        r = may_not(call, err);
    if (r >= 0)
        r = check_target(c, b, err);
    if (r >= 0 && m->period && vg_period_parse(m->period, &b->period) < 0)
        r = vg_err_set(err, VG_INVALID, "'%.40s' is no period: day, week, month, year or once",
                       m->period);
    if (r >= 0 && m->policy)
        r = read_policy(m->policy, &b->policy, err);
    if (r >= 0)
        r = read_warns(m, b, err);
    if (r < 0)
        return r;
    b->limit_micro = m->has_limit_micro ? m->limit_micro : b->limit_micro;
    b->grace_usec = m->has_grace_usec ? m->grace_usec : b->grace_usec;
    b->paused = m->has_paused ? m->paused : b->paused;
    if (!b->limit_micro || b->limit_micro > INT64_MAX / 4)
        return vg_err_set(err, VG_INVALID, "say how much: --limit 1000");
    if (b->grace_usec > VG_BUDGET_GRACE_MAX)
        return vg_err_set(err, VG_INVALID, "tasks get at most a day's notice");
    b->set_usec = old && b->period == VG_PERIOD_ONCE ? old->set_usec : vg_wall_usec();
    b->from_usec = b->until_usec = 0; /* worked out anew */
    if (old && old->limit_micro != b->limit_micro)
        b->warned_percent = 0;
    b->stopping = b->holds = false;
    snprintf(b->who, sizeof b->who, "%s", call->user->name);
    snprintf(b->currency, sizeof b->currency, "%s", c->conf.currency);
    return 0;
}

static int check_name(const struct vg_call *call, const char *name, const struct vg_budget *old,
                      struct vg_err *err) {
    if (!name || !vg_conf_name_valid(name))
        return vg_err_set(err, VG_INVALID,
                          "a budget's name is of letters, digits, '.', '_' and '-'");
    if (old && !is_ours(call, old, false))
        return vg_err_set(err, VG_FORBIDDEN, "the name '%s' cannot be had: take another one", name);
    if (!old && call->ctl->budgets && call->ctl->budgets->n >= VG_BUDGETS_MAX)
        return vg_err_set(err, VG_CONFLICT, "there are %d budgets: remove some", VG_BUDGETS_MAX);
    return 0;
}

void vg_api_budget_set(struct vg_call *call) {
    const Vg__Pb__BudgetSet *m = call->env->budget_set;
    struct vg_control *c = call->ctl;
    struct vg_err err = VG_ERR_INIT;
    const struct vg_budget *old = m->name ? vg_budget_find(c, m->name) : NULL;
    struct vg_budget *b = vg_alloc(sizeof *b);
    struct vg_later *l = b ? vg_later_new(call) : NULL;
    int r = l ? check_name(call, m->name, old, &err) : vg_err_sys(&err, ENOMEM, "cannot set it");
    if (r >= 0)
        r = read_budget(call, m, old, b, &err);
    if (r < 0) {
        vg_peer_fail(call->peer, call->req, &err);
        free(b);
        free(l);
        return;
    }
    vg_audit(call, "budget '%s': %s, %llu millionths of %s a %s, policy %s%s", b->name, b->scope,
             (unsigned long long)b->limit_micro, b->currency, vg_period_name(b->period),
             vg_budget_policy_name(b->policy), b->paused ? ", paused" : "");
    r = vg_budget_store(c, b, vg_later_stored, l);
    if (r < 0)
        vg_later_stored(l, r);
    else
        r = vg_budget_put(c, b);
    if (r < 0)
        free(b);
}

void vg_api_budget_remove(struct vg_call *call) {
    struct vg_control *c = call->ctl;
    const char *name = call->env->budget_remove->name;
    const struct vg_budget *b = name ? vg_budget_find(c, name) : NULL;
    struct vg_later *l = b && is_ours(call, b, false) ? vg_later_new(call) : NULL;
    if (!l) {
        vg_peer_error(call->peer, call->req, VG_NOT_FOUND,
                      "there is no budget '%.63s' that you may remove: 'virga budget list' shows "
                      "what there is",
                      name ? name : "");
        return;
    }
    vg_audit(call, "budget '%s' (%s) is removed", b->name, b->scope);
    int r = vg_store_del_budget(c->store, name, vg_later_stored, l);
    if (r < 0)
        vg_later_stored(l, r);
    else
        vg_budget_drop(c, name);
}

static void fill(const struct vg_budget *b, uint64_t now, Vg__Pb__BudgetInfo *m,
                 Vg__Pb__BudgetSet *set) {
    vg__pb__budget_info__init(m);
    vg__pb__budget_set__init(set);
    set->name = (char *)b->name;
    set->scope = (char *)b->scope;
    set->has_limit_micro = set->has_grace_usec = set->has_paused = 1;
    set->limit_micro = b->limit_micro;
    set->period = (char *)vg_period_name(b->period);
    set->warn_percent = (uint32_t *)b->warn;
    set->n_warn_percent = b->n_warn;
    set->policy = (char *)vg_budget_policy_name(b->policy);
    set->grace_usec = b->grace_usec;
    set->paused = b->paused;
    m->budget = set;
    m->has_spent_micro = m->has_rate_micro_hour = m->has_from_usec = m->has_until_usec =
        m->has_reached_usec = m->has_warned_percent = m->has_set_usec = 1;
    m->spent_micro = vg_budget_spent(b);
    m->rate_micro_hour = b->rate_micro_hour;
    m->from_usec = b->from_usec;
    m->until_usec = b->until_usec == UINT64_MAX ? 0 : b->until_usec;
    m->reached_usec = vg_budget_reached(b, now);
    m->warned_percent = b->warned_percent;
    m->state = (char *)vg_budget_state(b);
    m->who = (char *)b->who;
    m->set_usec = b->set_usec;
    m->currency = (char *)b->currency;
}

void vg_api_budget_list(struct vg_call *call) {
    struct vg_control *c = call->ctl;
    size_t n = c->budgets ? c->budgets->n : 0;
    vg_budgets_tick(c); /* numbers of now */
    VG_ENVELOPE(env);
    Vg__Pb__BudgetList m = VG__PB__BUDGET_LIST__INIT;
    vg_auto_free Vg__Pb__BudgetInfo *info = vg_alloc((n + 1) * sizeof *info);
    vg_auto_free Vg__Pb__BudgetInfo **list = vg_alloc((n + 1) * sizeof *list);
    vg_auto_free Vg__Pb__BudgetSet *set = vg_alloc((n + 1) * sizeof *set);
    if (!info || !list || !set) {
        vg_peer_error(call->peer, call->req, VG_INTERNAL, "the control plane is out of memory");
        return;
    }
    for (size_t i = 0; i < n; i++)
        if (is_ours(call, c->budgets->list[i], true)) {
            list[m.n_budget] = &info[m.n_budget];
            fill(c->budgets->list[i], vg_wall_usec(), list[m.n_budget], &set[m.n_budget]);
            m.n_budget++;
        }
    m.budget = list;
    env.body_case = VG__PB__ENVELOPE__BODY_BUDGETS;
    env.budgets = &m;
    vg_peer_send(call->peer, call->req, false, &env);
}
