/* The budgets there are: in memory and in the store; see the header. */
#include "base/cleanup.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/util.h"
#include "control/budget-int.h"
#include "control/cost.h"
#include "meter/charge.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const policies[] = {
    [POLICY_WARN] = "warn", [POLICY_QUEUE] = "queue", [POLICY_STOP] = "stop"};

const char *vg_budget_policy_name(enum policy p) {
    return policies[p];
}

int vg_budget_read_scope(struct vg_budget *b, const char *scope, struct vg_err *err) {
    static const struct {
        const char *word;
        enum scope of;
    } kinds[] = {{"org:", SCOPE_ORG},
                 {"team:", SCOPE_TEAM},
                 {"user:", SCOPE_USER},
                 {"project:", SCOPE_PROJECT}};
    snprintf(b->scope, sizeof b->scope, "%s", scope);
    b->of = SCOPE_CLOUD;
    b->target = "";
    if (strcmp(scope, "cloud") == 0)
        return 0;
    for (size_t i = 0; i < VG_COUNT(kinds); i++) {
        size_t n = strlen(kinds[i].word);
        if (strncmp(scope, kinds[i].word, n) == 0 && vg_conf_name_valid(scope + n)) {
            b->of = kinds[i].of;
            b->target = b->scope + n;
            return 0;
        }
    }
    return vg_err_set(err, VG_INVALID,
                      "'%.60s' is nobody's: team:NAME, user:NAME, org:NAME, project:NAME or cloud",
                      scope);
}

static struct vg_ledger_filter filter_of(const struct vg_budget *b) {
    return (struct vg_ledger_filter){.from_usec = b->from_usec,
                                     .until_usec = b->until_usec == UINT64_MAX ? 0 : b->until_usec,
                                     .user = b->of == SCOPE_USER ? b->target : NULL,
                                     .team = b->of == SCOPE_TEAM ? b->target : NULL,
                                     .org = b->of == SCOPE_ORG ? b->target : NULL,
                                     .project = b->of == SCOPE_PROJECT ? b->target : NULL};
}

struct vg_budget *vg_budget_find(struct vg_control *c, const char *name) {
    for (size_t i = 0; c->budgets && i < c->budgets->n; i++)
        if (strcmp(c->budgets->list[i]->name, name) == 0)
            return c->budgets->list[i];
    return NULL;
}

struct counting {
    struct vg_control *ctl;
    char name[64];
    uint64_t round;
};

static void was_counted(void *arg, int result, int64_t sum_micro) {
    vg_auto_free struct counting *k = arg;
    struct vg_budget *b = vg_budget_find(k->ctl, k->name);
    if (!b || b->round != k->round)
        return;
    b->counting = false;
    if (result < 0)
        vg_error("budget '%s': what was spent before cannot be read: %s", b->name,
                 strerror(-result));
    b->closed_micro =
        vg_micro_add(b->closed_micro, sum_micro); /* what came meanwhile is there already */
    vg_budgets_look(k->ctl);
}

int vg_budget_count(struct vg_control *c, struct vg_budget *b) {
    struct vg_ledger_filter f = filter_of(b);
    struct counting *k = vg_alloc(sizeof *k);
    if (!k)
        return -ENOMEM;
    k->ctl = c;
    snprintf(k->name, sizeof k->name, "%s", b->name);
    k->round = b->round = ++c->budgets->rounds;
    b->counting = true;
    b->closed_micro = 0;
    int r = vg_cost_sum(c, &f, was_counted, k);
    if (r < 0)
        free(k);
    return r;
}

static int insert(struct vg_control *c, struct vg_budget *b) {
    if (!c->budgets && !(c->budgets = vg_alloc(sizeof *c->budgets)))
        return -ENOMEM;
    struct vg_budgets *all = c->budgets;
    struct vg_budget **more = vg_grow(all->list, &all->cap, all->n + 1, sizeof *more);
    if (!more)
        return -ENOMEM;
    all->list = more;
    size_t at = all->n++;
    all->sorted = false;
    for (; at && strcmp(more[at - 1]->name, b->name) > 0; at--)
        more[at] = more[at - 1];
    more[at] = b;
    return 0;
}

int vg_budget_put(struct vg_control *c, struct vg_budget *b) {
    struct vg_budget *old = vg_budget_find(c, b->name);
    int r = 0;
    if (old) { /* in its place, so that who is held stays so until there is a look */
        bool holds = old->holds;
        *old = *b;
        struct vg_err err = VG_ERR_INIT;
        (void)vg_budget_read_scope(old, b->scope, &err);
        old->holds = holds;
        c->budgets->sorted = false;
        free(b);
        b = old;
    } else {
        r = insert(c, b);
    }
    if (r < 0)
        return r;
    vg_budget_turn(b, vg_wall_usec());
    return vg_budget_count(c, b);
}

void vg_budget_drop(struct vg_control *c, const char *name) {
    struct vg_budgets *all = c->budgets;
    for (size_t i = 0; all && i < all->n; i++)
        if (strcmp(all->list[i]->name, name) == 0) {
            free(all->list[i]);
            memmove(all->list + i, all->list + i + 1, (all->n - i - 1) * sizeof *all->list);
            all->n--;
            all->sorted = false;
            vg_budgets_let_go(c);
            return;
        }
}

int vg_budget_store(struct vg_control *c, const struct vg_budget *b, vg_store_cb *cb, void *arg) {
    char warns[VG_BUDGET_WARNS_MAX * 12] = "";
    for (size_t i = 0, n = 0; i < b->n_warn; i++)
        n += (size_t)snprintf(warns + n, sizeof warns - n, "%s%u", i ? "," : "", b->warn[i]);
    struct vg_budget_row row = {.name = b->name,
                                .scope = b->scope,
                                .period = vg_period_name(b->period),
                                .policy = policies[b->policy],
                                .who = b->who,
                                .currency = b->currency,
                                .warn = warns,
                                .limit_micro = b->limit_micro,
                                .grace_usec = b->grace_usec,
                                .set_usec = b->set_usec,
                                .paused = b->paused,
                                .warned_percent = b->warned_percent,
                                .warned_from_usec = b->warned_from_usec,
                                .stopped_from_usec = b->stopping ? b->from_usec : 0};
    return vg_store_put_budget(c->store, &row, cb, arg);
}

static int sum_row(void *arg, const struct vg_ledger_row *row) {
    vg_budgets_charge(arg, row);
    return 0;
}

static int load_budget(void *arg, const struct vg_budget_row *row) {
    struct vg_control *c = arg;
    struct vg_err err = VG_ERR_INIT;
    struct vg_budget *b = vg_alloc(sizeof *b);
    if (!b)
        return -ENOMEM;
    snprintf(b->name, sizeof b->name, "%s", row->name);
    snprintf(b->who, sizeof b->who, "%s", row->who);
    snprintf(b->currency, sizeof b->currency, "%s", row->currency);
    b->limit_micro = row->limit_micro;
    b->grace_usec = row->grace_usec;
    b->set_usec = row->set_usec;
    b->paused = row->paused;
    b->warned_percent = row->warned_percent;
    b->warned_from_usec = row->warned_from_usec;
    b->policy = !strcmp(row->policy, "stop")    ? POLICY_STOP
                : !strcmp(row->policy, "queue") ? POLICY_QUEUE
                                                : POLICY_WARN;
    for (const char *s = row->warn; *s && b->n_warn < VG_BUDGET_WARNS_MAX;
         s += strcspn(s, ","), s += *s == ',')
        b->warn[b->n_warn++] = (uint32_t)strtoul(s, NULL, 10);
    if (vg_period_parse(row->period, &b->period) < 0 ||
        vg_budget_read_scope(b, row->scope, &err) < 0) {
        vg_error("budget '%s' in the store cannot be read and is left out", row->name);
        free(b);
        return 0;
    }
    vg_budget_turn(b, vg_wall_usec());
    b->stopping = b->policy == POLICY_STOP && row->stopped_from_usec == b->from_usec;
    int r = insert(c, b);
    if (r < 0)
        free(b);
    return r;
}

/* Before anything starts: who had nothing left has nothing now. The ledger is read once, however
   many there are. */
int vg_budgets_open(struct vg_control *c, struct vg_err *err) {
    int r = vg_store_load_budgets(c->store, load_budget, c);
    struct vg_ledger_filter f = {.from_usec = UINT64_MAX};
    size_t n = c->budgets ? c->budgets->n : 0;
    for (size_t i = 0; i < n; i++)
        f.from_usec = VG_MIN(f.from_usec, c->budgets->list[i]->from_usec);
    if (r >= 0 && n)
        r = vg_store_load_ledger(c->store, &f, sum_row, c);
    for (size_t i = 0; r >= 0 && i < n; i++) {
        struct vg_budget *b = c->budgets->list[i];
        b->holds = !b->paused && b->policy != POLICY_WARN && (b->stopping || !vg_budget_left(b));
    }
    if (r >= 0)
        vg_budgets_look(c);
    return r < 0 ? vg_err_sys(err, r, "cannot load budgets from %s", c->home.db) : 0;
}

void vg_budgets_stop(struct vg_control *c) {
    if (c->budgets)
        vg_timer_stop(&c->budgets->timer);
}

void vg_budgets_done(struct vg_control *c) {
    struct vg_budgets *all = c->budgets;
    for (size_t i = 0; all && i < all->n; i++)
        free(all->list[i]);
    if (all)
        free(all->list);
    if (all)
        vg_map_done(&all->scopes);
    free(vg_take_ptr(c->budgets));
}
