/* Watching what is spent; see the header. */
#include "control/budget-int.h"

#include "base/cleanup.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/util.h"
#include "control/api.h"
#include "control/audit.h"
#include "control/cost.h"
#include "control/gang.h"
#include "control/hooks.h"
#include "control/ledger.h"
#include "control/node-gpus.h"
#include "control/place.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SOON_USEC 1000          /* so that many starts at once are one look */
#define GRACE_LEAST_USEC 100000 /* between the signal and the end */

static const char *const policies[] = {
    [POLICY_WARN] = "warn", [POLICY_QUEUE] = "queue", [POLICY_STOP] = "stop"};

const char *vg_budget_policy_name(enum policy p) {
    return policies[p];
}

/* ------------------------------------------------------------------ whose */

static bool is_in(const struct vg_budget *b, const char *user, const char *team, const char *org,
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

static bool is_of(const struct vg_budget *b, const struct vg_job *j) {
    const struct vg_task *t = j->task;
    const struct vg_team *team = vg_tenants_team(&j->ctl->tenants, t->team);
    return is_in(b, t->user, t->team, team ? team->org : "", vg_ledger_project(t->spec));
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

/* ------------------------------------------------------------------ numbers */

uint64_t vg_budget_spent(const struct vg_budget *b) {
    int64_t spent = b->closed_micro + b->running_micro;
    return spent > 0 ? (uint64_t)spent : 0;
}

static uint64_t left_of(const struct vg_budget *b) {
    uint64_t spent = vg_budget_spent(b);
    return spent < b->limit_micro ? b->limit_micro - spent : 0;
}

static uint64_t reached(const struct vg_budget *b, uint64_t now_usec) {
    return vg_spent_at(now_usec, left_of(b), b->rate_micro_hour);
}

uint64_t vg_budget_reached(const struct vg_budget *b, uint64_t now_usec) {
    uint64_t at = reached(b, now_usec);
    return at < b->until_usec ? at : 0;
}

const char *vg_budget_state(const struct vg_budget *b) {
    if (b->paused)
        return "paused";
    if (b->holds || (!left_of(b) && b->policy != POLICY_WARN))
        return "capped";
    return b->warned_percent || !left_of(b) ? "warned" : "ok";
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
            if (!is_of(b, j))
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
            is_in(b, row->user, row->team, row->org, row->project) &&
            (!row->currency || !*row->currency || strcmp(row->currency, b->currency) == 0))
            b->closed_micro += row->cost_micro;
    }
}

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
        if (j->task->state == VG_TASK_RUNNING && !vg_task_is_group(j->task) && is_of(b, j))
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

static void look_warnings(struct vg_control *c, struct vg_budget *b) {
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
        if (all->list[i]->holds && is_of(all->list[i], j))
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
        if (!j->waits || !is_of(b, j))
            continue;
        vg_eng_release(vg_policy_now(c), j->task->id, VG_ENG_CANCELLED);
        j->waits = false;
        j->kept = true;
        if (!vg_list_empty(&j->follows))
            vg_place_tell(j);
    }
}

/* Those whom no budget holds any more go back. Collected first: a submission may end jobs. */
static void let_go(struct vg_control *c) {
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
        if (ids && j->task->attempt.node && !j->task->cancel && is_of(b, j))
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

static void look_cap(struct vg_control *c, struct vg_budget *b, uint64_t now) {
    bool spent = !left_of(b);
    uint64_t at = reached(b, now);
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

/* ------------------------------------------------------------------ periods and the timer */

static struct vg_ledger_filter filter_of(const struct vg_budget *b) {
    return (struct vg_ledger_filter){.from_usec = b->from_usec,
                                     .until_usec = b->until_usec == UINT64_MAX ? 0 : b->until_usec,
                                     .user = b->of == SCOPE_USER ? b->target : NULL,
                                     .team = b->of == SCOPE_TEAM ? b->target : NULL,
                                     .org = b->of == SCOPE_ORG ? b->target : NULL,
                                     .project = b->of == SCOPE_PROJECT ? b->target : NULL};
}

static bool turn_period(struct vg_budget *b, uint64_t now) {
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
    uint64_t next = b->until_usec, spent = vg_budget_spent(b), at = reached(b, now);
    for (size_t i = 0; i < b->n_warn; i++) {
        uint64_t level = vg_part(b->limit_micro, b->warn[i], 100) + 1;
        if (level > spent)
            next = VG_MIN(next, vg_spent_at(now, level - spent, b->rate_micro_hour));
    }
    if (at != UINT64_MAX && left_of(b)) {
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
        turn_period(all->list[i], now);
    add_jobs(c, now);
    for (size_t i = 0; i < all->n; i++) {
        struct vg_budget *b = all->list[i];
        if (b->counting)
            continue;
        if (!b->paused)
            look_warnings(c, b);
        look_cap(c, b, now);
        next = VG_MIN(next, next_look(c, b, now));
    }
    let_go(c);
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

/* ------------------------------------------------------------------ the list */

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
    b->closed_micro += sum_micro; /* what came meanwhile is there already */
    vg_budgets_look(k->ctl);
}

static int start_counting(struct vg_control *c, struct vg_budget *b) {
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
        free(b);
        b = old;
    } else {
        r = insert(c, b);
    }
    if (r < 0)
        return r;
    turn_period(b, vg_wall_usec());
    return start_counting(c, b);
}

void vg_budget_drop(struct vg_control *c, const char *name) {
    struct vg_budgets *all = c->budgets;
    for (size_t i = 0; all && i < all->n; i++)
        if (strcmp(all->list[i]->name, name) == 0) {
            free(all->list[i]);
            memmove(all->list + i, all->list + i + 1, (all->n - i - 1) * sizeof *all->list);
            all->n--;
            let_go(c);
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
    struct vg_budget *b = arg;
    if (row->from_usec >= b->from_usec &&
        (!*row->currency || strcmp(row->currency, b->currency) == 0))
        b->closed_micro += row->cost_micro;
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
    turn_period(b, vg_wall_usec());
    b->stopping = b->policy == POLICY_STOP && row->stopped_from_usec == b->from_usec;
    int r = insert(c, b);
    if (r < 0)
        free(b);
    return r;
}

/* Before anything starts: who had nothing left has nothing now. */
int vg_budgets_open(struct vg_control *c, struct vg_err *err) {
    int r = vg_store_load_budgets(c->store, load_budget, c);
    for (size_t i = 0; r >= 0 && c->budgets && i < c->budgets->n; i++) {
        struct vg_budget *b = c->budgets->list[i];
        struct vg_ledger_filter f = filter_of(b);
        r = vg_store_load_ledger(c->store, &f, sum_row, b);
        b->holds = r >= 0 && !b->paused && b->policy != POLICY_WARN && (b->stopping || !left_of(b));
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
    free(vg_take_ptr(c->budgets));
}
