/* Watching what is spent; see the header. */
#include "base/cleanup.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/util.h"
#include "control/budget-int.h"
#include "control/kept.h"
#include "control/ledger.h"

#include <stdio.h>
#include <string.h>

#define SOON_USEC 1000 /* so that many starts at once are one look */

/* ------------------------------------------------------------------ whose */

bool vg_budget_is_in(const struct vg_budget *b, const char *user, const char *team, const char *org,
                     const char *project) {
    switch (b->of) {
    case SCOPE_CLOUD:
        return true;
    case SCOPE_ORG:
        return strcmp(b->target, org) == 0;
    case SCOPE_TEAM:
        return strcmp(b->target, team) == 0;
    case SCOPE_USER:
        return strcmp(b->target, user) == 0;
    case SCOPE_PROJECT:
        return strcmp(b->target, project) == 0;
    }
    return false;
}

bool vg_budget_is_of(const struct vg_budget *b, const struct vg_job *j) {
    const struct vg_task *t = j->task;
    const struct vg_team *team = vg_tenants_team(&j->ctl->tenants, t->team);
    return vg_budget_is_in(b, t->user, t->team, team ? team->org : "", vg_ledger_project(t->spec));
}

/* ------------------------------------------------------------------ numbers */

uint64_t vg_budget_spent(const struct vg_budget *b) {
    int64_t spent = vg_micro_add(b->closed_micro, b->running_micro);
    return spent > 0 ? (uint64_t)spent : 0;
}

uint64_t vg_budget_left(const struct vg_budget *b) {
    uint64_t spent = vg_budget_spent(b);
    return spent < b->limit_micro ? b->limit_micro - spent : 0;
}

uint64_t vg_budget_when(const struct vg_budget *b, uint64_t now_usec) {
    return vg_spent_at(now_usec, vg_budget_left(b), b->rate_micro_hour);
}

uint64_t vg_budget_reached(const struct vg_budget *b, uint64_t now_usec) {
    uint64_t at = vg_budget_when(b, now_usec);
    return at < b->until_usec ? at : 0;
}

const char *vg_budget_state(const struct vg_budget *b) {
    if (b->paused)
        return "paused";
    if (b->holds || (!vg_budget_left(b) && b->policy != POLICY_WARN))
        return "capped";
    return b->warned_percent || !vg_budget_left(b) ? "warned" : "ok";
}

/* Everybody's budgets by their scope, made anew when there are others: what is charged and what
   runs finds those that it counts for without looking at each. */
static void sort_out(struct vg_budgets *all) {
    if (all->sorted)
        return;
    vg_map_done(&all->scopes);
    all->scopes = (struct vg_map){0};
    all->sorted = true;
    for (size_t i = 0; i < all->n; i++) {
        struct vg_budget *b = all->list[i];
        b->same = vg_map_get(&all->scopes, b->scope);
        if (vg_map_put(&all->scopes, b->scope, b) < 0)
            all->sorted = false; /* once more, the next time */
    }
}

struct owner {
    const char *user, *team, *org, *project;
};
typedef void each_fn(struct vg_budget *b, const void *what);

static void each_of(struct vg_budgets *all, const struct owner *o, each_fn *fn, const void *what) {
    const char *const of[][2] = {{"cloud", NULL},
                                 {"org:", o->org},
                                 {"team:", o->team},
                                 {"user:", o->user},
                                 {"project:", o->project}};
    sort_out(all);
    for (size_t i = 0; i < VG_COUNT(of); i++) {
        char scope[sizeof all->list[0]->scope];
        if (i && (!of[i][1] || !*of[i][1]))
            continue;
        int n = snprintf(scope, sizeof scope, "%s%s", of[i][0], i ? of[i][1] : "");
        if (n < 0 || (size_t)n >= sizeof scope)
            continue; /* nobody could set one */
        for (struct vg_budget *b = vg_map_get(&all->scopes, scope); b; b = b->same)
            fn(b, what);
    }
}

/* What of the row's cost falls into the budget's period: by time, as answers about costs divide
   it. Only a period that begins at any moment ("once") has such rows. */
static int64_t part_of(const struct vg_budget *b, const struct vg_ledger_row *row) {
    uint64_t whole = row->until_usec - row->from_usec, from = VG_MAX(row->from_usec, b->from_usec);
    uint64_t until = VG_MIN(row->until_usec, b->until_usec);
    if (row->currency && *row->currency && strcmp(row->currency, b->currency) != 0)
        return 0;
    if (!whole)
        return from == row->from_usec && from < b->until_usec ? row->cost_micro : 0;
    if (from >= until)
        return 0;
    uint64_t cost = row->cost_micro < 0 ? -(uint64_t)row->cost_micro : (uint64_t)row->cost_micro;
    int64_t part = (int64_t)(vg_part(cost, until - row->from_usec, whole) -
                             vg_part(cost, from - row->from_usec, whole));
    return row->cost_micro < 0 ? -part : part;
}

static void add_running(struct vg_budget *b, const void *what) {
    const struct vg_ledger_row *row = what;
    b->running_micro = vg_micro_add(b->running_micro, part_of(b, row));
}

static int running_row(void *arg, const struct vg_ledger_row *row) {
    struct owner o = {row->user, row->team, row->org, row->project};
    each_of(arg, &o, add_running, row);
    return 0;
}

static void add_rate(struct vg_budget *b, const void *what) {
    b->rate_micro_hour += *(const uint64_t *)what;
}

static void kept_rate(void *arg, const char *user, const struct vg_team *team, uint64_t rate) {
    struct owner o = {user, team->name, team->org, ""};
    each_of(arg, &o, add_rate, &rate);
}

static void add_jobs(struct vg_control *c, uint64_t now) {
    struct vg_budgets *all = c->budgets;
    for (size_t i = 0; i < all->n; i++)
        all->list[i]->running_micro = (int64_t)(all->list[i]->rate_micro_hour = 0);
    vg_map_for_each (s, &c->jobs) {
        const struct vg_job *j = s->value;
        const struct vg_task *t = j->task;
        if (t->state != VG_TASK_RUNNING || vg_task_is_group(t))
            continue;
        const struct vg_team *team = vg_tenants_team(&c->tenants, t->team);
        struct owner o = {t->user, t->team, team ? team->org : "", vg_ledger_project(t->spec)};
        uint64_t rate = vg_ledger_rate(j, now);
        vg_ledger_running_of(j, now, running_row, all);
        each_of(all, &o, add_rate, &rate);
    }
    vg_kept_running(c, now, running_row, all);
    vg_kept_rates(c, now, kept_rate, all);
}

static void add_closed(struct vg_budget *b, const void *what) {
    const struct vg_ledger_row *row = what;
    b->closed_micro = vg_micro_add(b->closed_micro, part_of(b, row));
    b->ahead = b->ahead || row->from_usec >= b->until_usec;
}

void vg_budgets_charge(struct vg_control *c, const struct vg_ledger_row *row) {
    struct owner o = {row->user, row->team, row->org, row->project};
    if (c->budgets && c->budgets->n)
        each_of(c->budgets, &o, add_closed, row);
}

/* ------------------------------------------------------------------ periods and the timer */

bool vg_budget_turn(struct vg_budget *b, uint64_t now) {
    uint64_t from = b->from_usec;
    if (now >= b->from_usec && now < b->until_usec)
        return false;
    vg_period_at(b->period, now, b->set_usec, &b->from_usec, &b->until_usec);
    if (b->from_usec == from)
        return false;        /* "once", and the clock is back before it was set */
    if (b->from_usec < from) /* the clock is back: the ledger has rows of this period and later */
        b->ahead = true;
    b->closed_micro = 0;
    b->stopping = false;
    if (b->warned_from_usec != b->from_usec)
        b->warned_percent = 0;
    return true;
}

/* When the next thing happens by itself: a level, the notice before the cap, the cap, the end of a
   period. */
static uint64_t next_look(const struct vg_budget *b, uint64_t now) {
    uint64_t next = b->until_usec, spent = vg_budget_spent(b), at = vg_budget_when(b, now);
    for (size_t i = 0; i < b->n_warn; i++) {
        uint64_t level = vg_part(b->limit_micro, b->warn[i], 100) + 1;
        if (level > spent)
            next = VG_MIN(next, vg_spent_at(now, level - spent, b->rate_micro_hour));
    }
    if (at != UINT64_MAX && vg_budget_left(b)) {
        uint64_t notice_at =
            b->policy == POLICY_STOP && at > b->grace_usec ? at - b->grace_usec : at;
        next = VG_MIN(next, notice_at > now ? notice_at : at);
    }
    return next;
}

static uint64_t next_price(const struct vg_book *b, uint64_t now) {
    uint64_t next = UINT64_MAX;
    for (size_t i = 0; i < b->n; i++)
        if (b->tariff[i].from_usec > now)
            next = VG_MIN(next, b->tariff[i].from_usec);
    return next;
}

static void look(struct vg_control *c);

static void on_timer(void *user) {
    struct vg_control *c = user;
    c->budgets->timer = NULL;
    look(c);
}

static void arm(struct vg_control *c, uint64_t usec) {
    if (c->stopping)
        return;
    struct vg_budgets *all = c->budgets;
    vg_timer_stop(&all->timer);
    all->timer = vg_timer_start(c->loop, VG_MAX(usec, (uint64_t)SOON_USEC), on_timer, c);
}

static void look(struct vg_control *c) {
    struct vg_budgets *all = c->budgets;
    uint64_t now = vg_wall_usec(), next = next_price(&c->book, now);
    if (all->looking || c->stopping)
        return;
    all->looking = true;
    for (size_t i = 0; i < all->n; i++) {
        struct vg_budget *b = all->list[i];
        /* A period that begins has no rows yet, but for those that came before we looked. */
        if (vg_budget_turn(b, now) && b->ahead && vg_budget_count(c, b) < 0)
            vg_error("budget '%s': what was spent cannot be counted: no memory", b->name);
    }
    add_jobs(c, now);
    for (size_t i = 0; i < all->n; i++) {
        struct vg_budget *b = all->list[i];
        if (b->counting)
            continue;
        if (!b->paused)
            vg_budget_warn(c, b);
        vg_budget_cap(c, b, now);
        next = VG_MIN(next, next_look(b, now));
    }
    vg_budgets_let_go(c);
    all->looking = false;
    if (next != UINT64_MAX)
        arm(c, next > now ? next - now : 0);
}

void vg_budgets_look(struct vg_control *c) {
    if (c->budgets && c->budgets->n && !c->stopping)
        arm(c, SOON_USEC);
}

void vg_budgets_tick(struct vg_control *c) {
    if (c->budgets && c->budgets->n && !c->budgets->looking)
        look(c);
}
