/* `virga budget`: what may be spent, and what happens when it is. */
#include "base/cleanup.h"
#include "base/util.h"
#include "cli/list.h"
#include "cli/money-values.h"
#include "cli/task-show.h"

#include <stdio.h>
#include <stdlib.h>

#define WARNS_MAX 8

static void rows(const Vg__Pb__Envelope *env, struct vg_table *t) {
    for (size_t i = 0; i < env->budgets->n_budget; i++) {
        const Vg__Pb__BudgetInfo *b = env->budgets->budget[i];
        const Vg__Pb__BudgetSet *s = b->budget;
        char spent[40], limit[40], part[16], rate[40], reached[80], until[48];
        if (!s)
            continue;
        snprintf(part, sizeof part, "%llu%%",
                 s->limit_micro ? (unsigned long long)((unsigned __int128)b->spent_micro * 100 /
                                                       s->limit_micro)
                                : 0ULL);
        const char *cells[] = {s->name,
                               s->scope,
                               b->state,
                               vg_micro_text((int64_t)b->spent_micro, spent, sizeof spent),
                               vg_micro_text((int64_t)s->limit_micro, limit, sizeof limit),
                               b->currency,
                               part,
                               s->period,
                               s->policy,
                               vg_micro_text((int64_t)b->rate_micro_hour, rate, sizeof rate),
                               b->reached_usec ? vg_soon(b->reached_usec, reached, sizeof reached)
                                               : NULL,
                               b->until_usec ? vg_when(b->until_usec, until, sizeof until) : NULL};
        vg_table_row(t, cells);
    }
}

static const struct vg_lister lister = {
    .body = VG__PB__ENVELOPE__BODY_BUDGETS,
    .headings =
        (const char *const[]){"BUDGET", "SCOPE", "STATE", "SPENT", "LIMIT", "CURRENCY", "USED",
                              "PERIOD", "POLICY", "AN HOUR", "REACHED", "PERIOD ENDS", NULL},
    .rows = rows,
    .view = &vg_view_budgets};

static int list_run(struct vg_cmd_line *l) {
    Vg__Pb__Empty body = VG__PB__EMPTY__INIT;
    Vg__Pb__Envelope req = vg_request(BUDGET_LIST, budget_list, &body);
    return vg_list_run(l, &req, &lister);
}

static int remove_run(struct vg_cmd_line *l) {
    Vg__Pb__NameRef ref = VG__PB__NAME_REF__INIT;
    Vg__Pb__Envelope req = vg_request(BUDGET_REMOVE, budget_remove, &ref);
    if (!vg_cmd_plain(l, 1, 1))
        return l->exit;
    ref.name = l->args[0];
    return vg_change_run(&req);
}

static const struct vg_opt set_opts[] = {
    {"scope", 0, "WHOSE", "team:NAME, user:NAME, org:NAME, project:NAME or cloud", 's'},
    {"limit", 0, "AMOUNT", "what may be spent in a period: 1000", 'l'},
    {"period", 0, "PERIOD", "day, week, month (default), year (UTC) or once", 'p'},
    {"warn", 0, "PERCENT,...", "tell at these levels (default: 50,80,95)", 'w'},
    {"policy", 0, "POLICY", "when it is spent: warn (default), queue (nothing starts), stop", 'y'},
    {"grace", 0, "DURATION", "of stop: notice before tasks are ended (default: 5m)", 'g'},
    {"pause", 0, NULL, "let it do nothing for now", 'z'},
    {"resume", 0, NULL, "let it count again", 'r'},
};

static int take_warns(struct vg_cmd_line *l, const char *arg, Vg__Pb__BudgetSet *m) {
    m->n_warn_percent = 0;
    for (const char *s = arg; *s;) {
        char *end;
        unsigned long v = strtoul(s, &end, 10);
        if (end == s || (*end && *end != ',') || v < 1 || v > 100 || m->n_warn_percent == WARNS_MAX)
            return vg_opt_bad(&l->st, "'%.60s' is not a list of at most %d percentages: 50,80,95",
                              arg, WARNS_MAX);
        m->warn_percent[m->n_warn_percent++] = (uint32_t)v;
        s = end + (*end == ',');
    }
    return 0;
}

static int take(struct vg_cmd_line *l, int id, const char *arg, Vg__Pb__BudgetSet *m) {
    switch (id) {
    case 's':
        m->scope = (char *)arg;
        return 0;
    case 'l':
        m->has_limit_micro = true;
        return vg_opt_micro(l, arg, &m->limit_micro);
    case 'p':
        m->period = (char *)arg;
        return 0;
    case 'w':
        return take_warns(l, arg, m);
    case 'y':
        m->policy = (char *)arg;
        return 0;
    case 'g':
        m->has_grace_usec = true;
        return vg_opt_duration(&l->st, arg, &m->grace_usec);
    default:
        m->has_paused = true;
        m->paused = id == 'z';
        return 0;
    }
}

static int set_run(struct vg_cmd_line *l) {
    Vg__Pb__BudgetSet m = VG__PB__BUDGET_SET__INIT;
    Vg__Pb__Envelope req = vg_request(BUDGET_SET, budget_set, &m);
    uint32_t warns[WARNS_MAX];
    const char *arg;
    m.warn_percent = warns;
    for (int id; (id = vg_cmd_next(l, &arg)) != VG_OPT_END;) {
        if (id == VG_OPT_ERROR)
            return l->exit;
        if (take(l, id, arg, &m) < 0)
            return vg_cmd_fail_opt(l);
    }
    if (!vg_cmd_args(l, 1, 1))
        return l->exit;
    m.name = l->args[0];
    return vg_change_run(&req);
}

static const struct vg_cmd subs[] = {
    {"list", "", "budgets: what is spent of them, and when they will be reached", VG_LIST_OPTS,
     .run = list_run},
    {"set", "NAME", "make a budget, or change one; what is not said stays as it is", set_opts,
     VG_COUNT(set_opts), .run = set_run},
    {"remove", "NAME", "remove a budget; what it held starts", .run = remove_run},
};

const struct vg_cmd vg_cmd_budget = {.name = "budget",
                                     .args = "",
                                     .summary = "what may be spent: list, set, remove",
                                     .subs = subs,
                                     .n_subs = VG_COUNT(subs)};
