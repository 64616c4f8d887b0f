/* `virga cost` and `virga usage`: what was spent, and what was held and used for it; the rows of
   the ledger themselves; credits. */
#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"
#include "cli/cmd.h"
#include "cli/list.h"
#include "cli/money-show.h"
#include "cli/money-values.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#define BY_MAX 4
#define PAGE 5000
#define ZONES_MAX 64 /* changes of the clock that are told */
#define DAY_SEC 86400

struct query {
    Vg__Pb__CostQuery q;
    char *by[BY_MAX], *words; /* owned: words */
    char zones[ZONES_MAX * 28];
    struct vg_money_how how;
};

#define FILTERS                                                                               \
    {"from", 0, "TIME", "from then on: 2026-11-01, or 7d ago (default: this month)", 'f'},    \
        {"until", 0, "TIME", "until then (default: now)", 'u'},                               \
        {"user", 0, "USER", "of this user", 'U'}, {"team", 0, "TEAM", "of this team", 'T'},   \
        {"org", 0, "ORG", "of this organisation", 'O'},                                       \
        {"project", 0, "PROJECT", "of this project", 'J'},                                    \
        {"pool", 'P', "POOL", "of this pool", 'P'}, {"task", 0, "TASK", "of this task", 'k'}, \
        {"utc", 0, NULL, "times and days in UTC (default: where you are)", 'z'}, {            \
        "output", 'o', "FORMAT", "table (default), json or csv", 'F'                          \
    }

static const struct vg_opt cost_opts[] = {
    {"by", 0, "WHAT,...",
     "user, team, org, project, pool, class, node, task, kind, day, month, label:KEY", 'b'},
    FILTERS,
    {"limit", 0, "N", "so many rows (default: all)", 'n'},
};
static const struct vg_opt export_opts[] = {FILTERS};

static int take_by(struct vg_cmd_line *l, const char *arg, struct query *q) {
    char *save = NULL;
    free(q->words);
    q->words = vg_strdup(arg);
    q->q.n_by = 0;
    for (char *w = q->words ? strtok_r(q->words, ",", &save) : NULL; w;
         w = strtok_r(NULL, ",", &save)) {
        if (q->q.n_by == BY_MAX)
            return vg_opt_bad(&l->st, "at most %d things to add up by", BY_MAX);
        q->by[q->q.n_by++] = w;
    }
    q->q.by = q->by;
    return q->words ? 0 : vg_opt_bad(&l->st, "out of memory");
}

static int take(struct vg_cmd_line *l, int id, const char *arg, struct query *q) {
    static const char *const formats[] = {"table", "json", "csv", NULL};
    uint64_t n;
    int which = 0, r = 0;
    char **texts[128] = {['U'] = &q->q.user,    ['T'] = &q->q.team, ['O'] = &q->q.org,
                         ['J'] = &q->q.project, ['P'] = &q->q.pool, ['k'] = &q->q.task};
    switch (id) {
    case 'z':
        return 0; /* in_utc */
    case 'b':
        return take_by(l, arg, q);
    case 'f':
        q->q.has_from_usec = true;
        return vg_opt_when(l, arg, &q->q.from_usec);
    case 'u':
        q->q.has_until_usec = true;
        return vg_opt_when(l, arg, &q->q.until_usec);
    case 'n':
        r = vg_opt_u64(&l->st, arg, 1, 10000, &n);
        q->q.has_limit = true;
        q->q.limit = r < 0 ? 0 : (uint32_t)n;
        return r;
    case 'F':
        r = vg_opt_choice(&l->st, arg, formats, &which);
        q->how.format = (enum vg_money_format)which;
        return r;
    default:
        *texts[id] = (char *)arg;
        return 0;
    }
}

static int32_t zone_minutes(time_t at) {
    struct tm tm = {0};
    localtime_r(&at, &tm);
    return (int32_t)(tm.tm_gmtoff / 60);
}

/* Before any time is read, wherever on the line it stands. */
static void in_utc(const struct vg_cmd_line *l) {
    for (int i = 1; i < l->st.argc && strcmp(l->st.argv[i], "--") != 0; i++)
        if (strcmp(l->st.argv[i], "--utc") == 0) {
            setenv("TZ", "UTC0", 1);
            tzset();
        }
}

static time_t month_begins(void) {
    time_t now = time(NULL);
    struct tm tm = {0};
    localtime_r(&now, &tm);
    tm.tm_mday = 1;
    tm.tm_hour = tm.tm_min = tm.tm_sec = 0;
    tm.tm_isdst = -1;
    return mktime(&tm);
}

/* The first second of from..until at whose end the clock differs from `from`'s. */
static time_t change_between(time_t from, time_t until) {
    int32_t zone = zone_minutes(from);
    while (until - from > 1) {
        time_t mid = from + (until - from) / 2;
        if (zone_minutes(mid) == zone)
            from = mid;
        else
            until = mid;
    }
    return until;
}

/* Days begin where the person is, also when summer time came or went in between. */
static void say_zone(struct query *q) {
    time_t from = (time_t)(q->q.from_usec / VG_USEC), until = time(NULL);
    size_t n = 0, changes = 0;
    if (q->q.until_usec)
        until = (time_t)VG_MIN(q->q.until_usec / VG_USEC, (uint64_t)until + 366 * DAY_SEC);
    q->q.has_zone_minutes = true;
    q->q.zone_minutes = zone_minutes(from);
    for (time_t at = from; at < until && changes < ZONES_MAX; at += DAY_SEC) {
        time_t next = VG_MIN(at + DAY_SEC, until);
        if (zone_minutes(next) == zone_minutes(at))
            continue;
        time_t change = change_between(at, next);
        n += (size_t)snprintf(q->zones + n, sizeof q->zones - n, "%s%lld:%d", changes++ ? "," : "",
                              (long long)change * (long long)VG_USEC, zone_minutes(change));
    }
    q->q.zone_changes = n ? q->zones : NULL;
}

static bool read_line(struct vg_cmd_line *l, struct query *q) {
    const char *arg;
    vg__pb__cost_query__init(&q->q);
    in_utc(l);
    for (int id; (id = vg_cmd_next(l, &arg)) != VG_OPT_END;) {
        if (id == VG_OPT_ERROR)
            return false;
        if (take(l, id, arg, q) < 0) {
            l->exit = vg_cmd_fail_opt(l);
            return false;
        }
    }
    return vg_cmd_args(l, 0, 0);
}

static int on_cost(const Vg__Pb__Envelope *env, void *user, struct vg_err *err) {
    struct query *q = user;
    if (env->body_case != VG__PB__ENVELOPE__BODY_COST_INFO)
        return vg_unexpected(env, err);
    q->how.by = (const char *const *)q->by;
    q->how.n_by = q->q.n_by;
    return vg_money_show(env->cost_info, &q->how) < 0
               ? vg_err_set(err, VG_INTERNAL, "cannot print the answer")
               : 0;
}

static int ask(struct vg_cmd_line *l, bool usage) {
    struct query q = {.how.usage = usage};
    struct vg_err err = VG_ERR_INIT;
    if (read_line(l, &q)) {
        if (!q.q.has_from_usec)
            q.q.from_usec = (uint64_t)month_begins() * VG_USEC;
        q.q.has_from_usec = true;
        say_zone(&q);
        Vg__Pb__Envelope req = vg_request(COST, cost, &q.q);
        l->exit = vg_call_once(&req, on_cost, &q, &err) < 0 ? vg_cmd_fail(&err) : 0;
    }
    free(q.words);
    return l->exit;
}

static int show_run(struct vg_cmd_line *l) {
    return ask(l, false);
}

static int usage_run(struct vg_cmd_line *l) {
    return ask(l, true);
}

/* ------------------------------------------------------------------ the rows themselves */

static int on_rows(const Vg__Pb__Envelope *env, void *user, struct vg_err *err) {
    struct query *q = user;
    if (env->body_case != VG__PB__ENVELOPE__BODY_LEDGER_ROWS)
        return vg_unexpected(env, err);
    const Vg__Pb__LedgerList *m = env->ledger_rows;
    int r = vg_money_show_charges(m, q->how.format, !q->q.before);
    free(q->words);
    q->words = m->next ? vg_strdup(m->next) : NULL;
    return r < 0 ? vg_err_set(err, VG_INTERNAL, "cannot print the rows") : 0;
}

/* A page at a time, newest first, so that neither side ever holds much. */
static int export_run(struct vg_cmd_line *l) {
    struct query q = {.how.format = VG_MONEY_CSV};
    struct vg_err err = VG_ERR_INIT;
    struct vg_client *c = NULL;
    if (!read_line(l, &q))
        return l->exit;
    q.q.has_limit = true;
    q.q.limit = PAGE;
    int r = vg_client_open(&c, &err);
    do {
        vg_auto_free char *before = vg_take_ptr(q.words);
        q.q.before = before;
        Vg__Pb__Envelope req = vg_request(LEDGER, ledger, &q.q);
        if (r >= 0)
            r = vg_call(c, &req, VG_CALL_TIMEOUT_USEC, on_rows, &q, &err);
    } while (r >= 0 && q.words);
    vg_client_close(c);
    free(q.words);
    if (r >= 0 && fflush(stdout) != 0)
        r = vg_err_set(&err, VG_INTERNAL, "cannot print the rows");
    return r < 0 ? vg_cmd_fail(&err) : 0;
}

/* ------------------------------------------------------------------ credits */

static const struct vg_opt credit_opts[] = {
    {"user", 0, "USER", "to this user", 'U'},
    {"team", 0, "TEAM", "to this team (default: the user's)", 'T'},
    {"project", 0, "PROJECT", "for this project", 'J'},
    {"amount", 0, "AMOUNT", "so much in their favour: 12.50; -3 is a charge", 'a'},
    {"why", 0, "TEXT", "stands in the ledger for ever", 'w'},
};

static int credit_run(struct vg_cmd_line *l) {
    Vg__Pb__CreditAdd m = VG__PB__CREDIT_ADD__INIT;
    Vg__Pb__Envelope req = vg_request(CREDIT, credit, &m);
    const char *arg;
    for (int id; (id = vg_cmd_next(l, &arg)) != VG_OPT_END;) {
        uint64_t micro = 0;
        if (id == VG_OPT_ERROR)
            return l->exit;
        if (id == 'a' && vg_opt_micro(l, arg + (*arg == '-'), &micro) < 0)
            return vg_cmd_fail_opt(l);
        m.user = id == 'U' ? (char *)arg : m.user;
        m.team = id == 'T' ? (char *)arg : m.team;
        m.project = id == 'J' ? (char *)arg : m.project;
        m.text = id == 'w' ? (char *)arg : m.text;
        if (id == 'a') {
            m.has_amount_micro = true;
            m.amount_micro = *arg == '-' ? -(int64_t)micro : (int64_t)micro;
        }
    }
    if (!vg_cmd_args(l, 0, 0))
        return l->exit;
    return vg_change_run(&req);
}

static const struct vg_cmd subs[] = {
    {"show", "", "what was spent, added up", cost_opts, VG_COUNT(cost_opts), .run = show_run},
    {"export", "", "every charge, newest first: CSV, or a JSON object a line", export_opts,
     VG_COUNT(export_opts), .run = export_run},
    {"credit", "", "give something back, or charge something, by hand", credit_opts,
     VG_COUNT(credit_opts), .run = credit_run},
};

/* `virga cost` alone, or with options, is `virga cost show`. */
static int cost_raw(int argc, char **argv) {
    bool shows = argc < 2 || (argv[1][0] == '-' && strcmp(argv[1], "--help") != 0 &&
                              strcmp(argv[1], "-h") != 0);
    if (!shows)
        return vg_cmd_dispatch("virga cost", subs, VG_COUNT(subs), argc, argv);
    struct vg_cmd_line l = {.cmd = &subs[0], .args = argv, .program = "virga cost"};
    l.st = (struct vg_opt_state){.program = l.program,
                                 .opts = subs[0].opts,
                                 .n_opts = subs[0].n_opts,
                                 .argc = argc,
                                 .argv = argv,
                                 .index = 1};
    return show_run(&l);
}

const struct vg_cmd vg_cmd_cost = {.name = "cost",
                                   .args = "",
                                   .summary = "what was spent: show, export, credit",
                                   .raw = cost_raw,
                                   .subs = subs,
                                   .n_subs = VG_COUNT(subs)};
const struct vg_cmd vg_cmd_usage = {
    .name = "usage",
    .args = "",
    .summary = "what was held and used: GPU, CPU and memory hours, energy, CO2",
    .opts = cost_opts,
    .n_opts = VG_COUNT(cost_opts),
    .run = usage_run};
