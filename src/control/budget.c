/* Watching what is spent; see the header. */
#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"
#include "control/budget-int.h"
#include "control/ledger.h"

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
    int64_t spent = b->closed_micro + b->running_micro;
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

struct adding {
    struct vg_budget *b;
};

static int add_running(void *arg, const struct vg_ledger_row *row) {
    struct vg_budget *b = ((struct adding *)arg)->b;
    if (row->from_usec >= b->from_usec && row->from_usec < b->until_usec &&
        (!*row->currency || strcmp(row->currency, b->currency) == 0))
        b->running_micro += row->cost_micro;
    return 0;
}

static void add_jobs(struct vg_control *c, uint64_t now) {
    struct vg_budgets *all = c->budgets;
    for (size_t i = 0; i < all->n; i++)
        all->list[i]->running_micro = (int64_t)(all->list[i]->rate_micro_hour = 0);
    vg_map_for_each (s, &c->jobs) {
        const struct vg_job *j = s->value;
        if (j->task->state != VG_TASK_RUNNING || vg_task_is_group(j->task))
            continue;
        for (size_t i = 0; i < all->n; i++) {
            struct vg_budget *b = all->list[i];
            if (!vg_budget_is_of(b, j))
                continue;
            vg_ledger_running_of(j, now, add_running, &(struct adding){b});
            b->rate_micro_hour += vg_ledger_rate(j, now);
        }
    }
}

void vg_budgets_charge(struct vg_control *c, const struct vg_ledger_row *row) {
    for (size_t i = 0; c->budgets && i < c->budgets->n; i++) {
        struct vg_budget *b = c->budgets->list[i];
        if (row->from_usec >= b->from_usec && row->from_usec < b->until_usec &&
            vg_budget_is_in(b, row->user, row->team, row->org, row->project) &&
            (!row->currency || !*row->currency || strcmp(row->currency, b->currency) == 0))
            b->closed_micro += row->cost_micro;
    }
}

/* ------------------------------------------------------------------ periods and the timer */

bool vg_budget_turn(struct vg_budget *b, uint64_t now) {
    if (now >= b->from_usec && now < b->until_usec)
        return false;
    vg_period_at(b->period, now, b->set_usec, &b->from_usec, &b->until_usec);
    b->closed_micro = 0;
    b->stopping = false;
    if (b->warned_from_usec != b->from_usec)
        b->warned_percent = 0;
    return true;
}

/* When the next thing happens by itself: a level, the notice before the cap, the cap, the end of a
   period, another price. */
static uint64_t next_look(const struct vg_control *c, const struct vg_budget *b, uint64_t now) {
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
    for (size_t i = 0; i < c->book.n; i++)
        if (c->book.tariff[i].from_usec > now)
            next = VG_MIN(next, c->book.tariff[i].from_usec);
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
    uint64_t now = vg_wall_usec(), next = UINT64_MAX;
    if (all->looking || c->stopping)
        return;
    all->looking = true;
    for (size_t i = 0; i < all->n; i++)
        vg_budget_turn(all->list[i], now);
    add_jobs(c, now);
    for (size_t i = 0; i < all->n; i++) {
        struct vg_budget *b = all->list[i];
        if (b->counting)
            continue;
        if (!b->paused)
            vg_budget_warn(c, b);
        vg_budget_cap(c, b, now);
        next = VG_MIN(next, next_look(c, b, now));
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
