/* What was spent; see the header. */
#include "control/cost-int.h"

#include "base/cleanup.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/util.h"
#include "control/api.h"
#include "control/ledger.h"
#include "control/users.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define ROWS_MAX 10000 /* of one answer */

static void ask_free(struct vg_ask *a) {
    for (size_t i = 0; i < a->n_rows; i++)
        free(a->rows[i].text);
    free(a->rows);
    vg_tally_done(&a->tally);
    vg_list_remove(&a->link);
    free(a->path);
    free(a);
}

/* ------------------------------------------------------------------ reading, on another thread */

static int tally_row(void *arg, const struct vg_ledger_row *row) {
    return vg_tally_add(arg, row);
}

/* A copy of the row with all of its texts in one piece. */
static int keep_row(void *arg, const struct vg_ledger_row *row) {
    struct vg_ask *a = arg;
    struct vg_kept_row *more = vg_grow(a->rows, &a->rows_cap, a->n_rows + 1, sizeof *more);
    if (!more)
        return -ENOMEM;
    a->rows = more;
    struct vg_kept_row *k = &a->rows[a->n_rows];
    k->row = *row;
    const char **texts[] = {&k->row.kind,    &k->row.user,     &k->row.team,       &k->row.org,
                            &k->row.project, &k->row.pool,     &k->row.class_name, &k->row.node,
                            &k->row.labels,  &k->row.currency, &k->row.text,       &k->row.who};
    size_t len = 0;
    for (size_t i = 0; i < VG_COUNT(texts); i++)
        len += strlen(*texts[i]) + 1;
    char *at = k->text = vg_alloc(len);
    if (!at)
        return -ENOMEM;
    for (size_t i = 0; i < VG_COUNT(texts); i++) {
        size_t n = strlen(*texts[i]) + 1;
        memcpy(at, *texts[i], n);
        *texts[i] = at;
        at += n;
    }
    a->n_rows++;
    return 0;
}

static void read_it(uv_work_t *w) {
    struct vg_ask *a = w->data;
    a->result = a->pages ? vg_store_scan_ledger(a->path, &a->f, keep_row, a)
                         : vg_store_scan_ledger(a->path, &a->f, tally_row, &a->tally);
}

/* ------------------------------------------------------------------ once it is read */

static int64_t sum_of(const struct vg_ask *a) {
    int64_t sum = 0;
    vg_map_for_each (s, &a->tally.groups) {
        const struct vg_group *g = s->value;
        if (strcmp(vg_group_part(g, 0), a->currency) == 0)
            sum = vg_micro_add(sum, g->sums.cost_micro);
    }
    return sum;
}

static void was_read(uv_work_t *w, int status) {
    struct vg_ask *a = w->data;
    struct vg_control *c = a->ctl;
    struct vg_peer *p = a->sum ? NULL : vg_peer_find(c, a->peer);
    int r = status < 0 ? status : a->result;
    if (a->sum)
        a->sum(a->sum_arg, r, sum_of(a));
    else if (p && r < 0)
        vg_peer_error(p, a->req, VG_INTERNAL, "the ledger cannot be read: %s", strerror(-r));
    else if (p && a->pages)
        vg_cost_send_rows(a, p);
    else if (p)
        vg_cost_send(a, p);
    ask_free(a);
    vg_cost_go_on(c);
}

void vg_cost_go_on(struct vg_control *c) {
    size_t reading = 0;
    vg_list_for_each_safe (it, &c->asked) {
        struct vg_ask *a = vg_list_entry(it, struct vg_ask, link);
        reading += a->reading;
        if (a->reading || reading >= VG_ASKED_READ || c->stopping ||
            c->ledger.stored + 1 < a->f.below_seq)
            continue;
        if (uv_queue_work(c->loop, &a->work, read_it, was_read) < 0)
            continue; /* with the next one that is stored */
        a->reading = true;
        reading++;
    }
}

void vg_cost_done(struct vg_control *c) {
    while (c->asked.next && !vg_list_empty(&c->asked))
        ask_free(vg_list_entry(vg_list_first(&c->asked), struct vg_ask, link));
}

/* ------------------------------------------------------------------ questions */

/* Whose rows: a member sees what is his, a lead what is his team's, who sees all sees all. Of
   others nothing is told, not even that they are there. */
static int read_scope(const struct vg_call *call, const Vg__Pb__CostQuery *q, struct vg_ask *a,
                      struct vg_err *err) {
    const struct vg_user *u = call->user;
    bool all = vg_peer_may(call->peer, VG_ACT_SEE_ALL) && vg_user_may(u, VG_ACT_SEE_ALL);
    bool lead = vg_user_may(u, VG_ACT_MANAGE_TEAM) && strcmp(u->team->name, VG_TEAM_DEFAULT) != 0;
    bool other_user = q->user && *q->user && strcmp(q->user, u->name) != 0;
    bool other_team = q->team && *q->team && strcmp(q->team, u->team->name) != 0;
    bool other_org = q->org && *q->org && strcmp(q->org, u->team->org) != 0;
    if (!all && (other_team || other_org || (other_user && !lead)))
        return vg_err_set(err, VG_FORBIDDEN,
                          "you may ask about %s: an administrator may ask about everybody",
                          lead ? "your team" : "what is yours");
    snprintf(a->user, sizeof a->user, "%s", q->user ? q->user : "");
    snprintf(a->team, sizeof a->team, "%s", q->team ? q->team : "");
    snprintf(a->org, sizeof a->org, "%s", q->org ? q->org : "");
    if (!all && lead)
        snprintf(a->team, sizeof a->team, "%s", u->team->name);
    else if (!all)
        snprintf(a->user, sizeof a->user, "%s", u->name);
    snprintf(a->pool, sizeof a->pool, "%s", q->pool ? q->pool : "");
    snprintf(a->project, sizeof a->project, "%s", q->project ? q->project : "");
    return 0;
}

static int read_task(const struct vg_call *call, const char *ref, struct vg_ask *a,
                     struct vg_err *err) {
    struct vg_found f;
    if (!ref || !*ref)
        return 0;
    int r = vg_find_task(call->ctl, call->user, ref, &f, err);
    if (r < 0)
        return r;
    a->f.task = vg_found_task(&f)->id;
    vg_found_done(&f);
    return 0;
}

/* Without a beginning: this month, where the question comes from. */
static uint64_t month_begins(uint64_t now_usec, int64_t zone_usec) {
    time_t local = (time_t)(((int64_t)now_usec + zone_usec) / 1000000);
    struct tm tm;
    gmtime_r(&local, &tm);
    tm.tm_mday = 1;
    tm.tm_hour = tm.tm_min = tm.tm_sec = 0;
    int64_t begin = (int64_t)timegm(&tm) * 1000000 - zone_usec;
    return begin > 0 ? (uint64_t)begin : 0;
}

static int read_times(const Vg__Pb__CostQuery *q, struct vg_ask *a, struct vg_err *err) {
    uint64_t now = vg_wall_usec();
    if (q->has_zone_minutes && (q->zone_minutes < -1440 || q->zone_minutes > 1440))
        return vg_err_set(err, VG_INVALID, "zone_minutes is at most a day");
    a->tally.zone_usec = (int64_t)q->zone_minutes * 60 * 1000000;
    int r = vg_tally_zones(&a->tally, q->zone_changes ? q->zone_changes : "", err);
    if (r < 0)
        return r;
    a->tally.from_usec = q->has_from_usec ? q->from_usec
                         : a->pages       ? 0
                                          : month_begins(now, a->tally.zone_usec);
    a->tally.until_usec = q->until_usec ? q->until_usec : now;
    if (a->tally.until_usec < a->tally.from_usec || a->tally.until_usec > INT64_MAX)
        return vg_err_set(err, VG_INVALID, "the time that is asked about ends before it begins");
    a->f.from_usec = a->tally.from_usec;
    a->f.until_usec = a->pages && !q->until_usec ? 0 : a->tally.until_usec;
    return 0;
}

static const char *or_null(const char *s) {
    return *s ? s : NULL;
}

static void point_at_texts(struct vg_ask *a) {
    a->f.user = or_null(a->user);
    a->f.team = or_null(a->team);
    a->f.org = or_null(a->org);
    a->f.pool = or_null(a->pool);
    a->f.project = or_null(a->project);
}

static struct vg_ask *ask_new(struct vg_call *call, const Vg__Pb__CostQuery *q, bool pages,
                              struct vg_err *err) {
    struct vg_control *c = call->ctl;
    size_t n = 0;
    vg_list_for_each (it, &c->asked)
        n++;
    if (n >= VG_ASKED_MAX) {
        vg_err_set(err, VG_UNAVAILABLE, "too many ask about money at once: try again soon");
        return NULL;
    }
    struct vg_ask *a = vg_alloc(sizeof *a);
    if (!a || !(a->path = vg_strdup(vg_store_path(c->store)))) {
        free(a);
        vg_err_sys(err, ENOMEM, "cannot look");
        return NULL;
    }
    vg_list_init(&a->link);
    a->work.data = a;
    a->ctl = c;
    a->peer = call->peer->serial;
    a->req = call->req;
    a->pages = pages;
    snprintf(a->currency, sizeof a->currency, "%s", c->conf.currency);
    a->tally.currency = a->currency;
    int r = read_scope(call, q, a, err);
    if (r >= 0)
        r = read_times(q, a, err);
    if (r >= 0)
        r = read_task(call, q->task, a, err);
    for (size_t i = 0; r >= 0 && i < q->n_by; i++)
        r = vg_tally_by(&a->tally, q->by[i], err);
    if (r < 0) {
        ask_free(a);
        return NULL;
    }
    point_at_texts(a);
    a->f.below_seq = c->ledger.last + 1;
    return a;
}

static bool is_wanted(const struct vg_ledger_filter *f, const struct vg_ledger_row *r) {
    return (!f->task || f->task == r->task) && (!f->user || !strcmp(f->user, r->user)) &&
           (!f->team || !strcmp(f->team, r->team)) && (!f->org || !strcmp(f->org, r->org)) &&
           (!f->pool || !strcmp(f->pool, r->pool)) &&
           (!f->project || !strcmp(f->project, r->project));
}

static int running_row(void *arg, const struct vg_ledger_row *row) {
    struct vg_ask *a = arg;
    if (!is_wanted(&a->f, row))
        return 0;
    if (row->from_usec >= a->tally.from_usec && row->until_usec <= a->tally.until_usec)
        a->running_micro = vg_micro_add(a->running_micro, row->cost_micro);
    return vg_tally_add(&a->tally, row);
}

void vg_api_cost(struct vg_call *call) {
    struct vg_err err = VG_ERR_INIT;
    struct vg_ask *a = ask_new(call, call->env->cost, false, &err);
    if (!a) {
        vg_peer_fail(call->peer, call->req, &err);
        return;
    }
    uint32_t limit = call->env->cost->limit;
    a->limit = limit && limit < ROWS_MAX ? limit : ROWS_MAX;
    vg_ledger_running(call->ctl, VG_MIN(vg_wall_usec(), a->tally.until_usec), running_row, a);
    vg_list_push_back(&call->ctl->asked, &a->link);
    vg_cost_go_on(call->ctl);
}

void vg_api_ledger(struct vg_call *call) {
    const Vg__Pb__CostQuery *q = call->env->ledger;
    struct vg_err err = VG_ERR_INIT;
    uint64_t before = 0;
    struct vg_ask *a = q->before && *q->before && vg_parse_u64(q->before, &before) < 0
                           ? NULL
                           : ask_new(call, q, true, &err);
    if (!a) {
        if (!err.msg[0])
            vg_err_set(&err, VG_INVALID, "'before' is the number of a row");
        vg_peer_fail(call->peer, call->req, &err);
        return;
    }
    a->limit = a->f.limit = q->limit ? VG_MIN(q->limit, VG_LEDGER_PAGE_MAX) : VG_LEDGER_PAGE;
    if (before && before < a->f.below_seq)
        a->f.below_seq = before;
    vg_list_push_back(&call->ctl->asked, &a->link);
    vg_cost_go_on(call->ctl);
}

int vg_cost_sum(struct vg_control *c, const struct vg_ledger_filter *f, vg_cost_sum_fn *fn,
                void *arg) {
    struct vg_ask *a = vg_alloc(sizeof *a);
    if (!a || !(a->path = vg_strdup(vg_store_path(c->store)))) {
        free(a);
        return -ENOMEM;
    }
    vg_list_init(&a->link);
    a->work.data = a;
    a->ctl = c;
    a->sum = fn;
    a->sum_arg = arg;
    a->f = *f;
    snprintf(a->user, sizeof a->user, "%s", f->user ? f->user : "");
    snprintf(a->team, sizeof a->team, "%s", f->team ? f->team : "");
    snprintf(a->org, sizeof a->org, "%s", f->org ? f->org : "");
    snprintf(a->project, sizeof a->project, "%s", f->project ? f->project : "");
    snprintf(a->currency, sizeof a->currency, "%s", c->conf.currency);
    point_at_texts(a);
    a->f.below_seq = c->ledger.last + 1;
    a->tally = (struct vg_tally){.from_usec = f->from_usec,
                                 .until_usec = f->until_usec ? f->until_usec : INT64_MAX,
                                 .currency = a->currency};
    vg_list_push_back(&c->asked, &a->link);
    vg_cost_go_on(c);
    return 0;
}
