/* What was spent; see the header. */
#include "control/cost.h"

#include "base/cleanup.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/util.h"
#include "control/api.h"
#include "control/ledger.h"
#include "control/price.h"
#include "control/users.h"
#include "meter/tally.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define B(name) VG__PB__ENVELOPE__BODY_##name
#define ROWS_MAX 10000       /* of one answer */
#define KWH_MJ 3600000000ULL /* millijoules of a kilowatt-hour */

struct kept_row {
    struct vg_ledger_row row;
    char *text; /* owned: everything that the row borrows */
};

struct ask {
    struct vg_list link; /* in vg_control.asked until it is answered */
    uv_work_t work;
    struct vg_control *ctl;
    uint64_t peer;
    uint32_t req;
    bool reading, pages;
    vg_cost_sum_fn *sum; /* not a question of a peer's but of this */
    void *sum_arg;
    char *path; /* owned */
    char user[64], team[64], org[64], pool[64], project[64], currency[VG_CURRENCY_MAX + 1];
    struct vg_ledger_filter f;
    struct vg_tally tally;
    uint32_t limit;
    int64_t running_micro;
    struct kept_row *rows; /* owned; of a page */
    size_t n_rows, rows_cap;
    int result;
};

static void ask_free(struct ask *a) {
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
    struct ask *a = arg;
    struct kept_row *more = vg_grow(a->rows, &a->rows_cap, a->n_rows + 1, sizeof *more);
    if (!more)
        return -ENOMEM;
    a->rows = more;
    struct kept_row *k = &a->rows[a->n_rows];
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
    struct ask *a = w->data;
    a->result = a->pages ? vg_store_scan_ledger(a->path, &a->f, keep_row, a)
                         : vg_store_scan_ledger(a->path, &a->f, tally_row, &a->tally);
}

/* ------------------------------------------------------------------ answers */

static uint64_t clip(__int128 v) {
    return v < 0 ? 0 : v > INT64_MAX ? INT64_MAX : (uint64_t)v;
}

static void fill_sums(const struct vg_control *c, const struct vg_sums *s, Vg__Pb__CostRow *m) {
    const struct vg_energy_conf *e = &c->conf.energy;
    m->has_cost_micro = m->has_gpu_msec = m->has_cpu_msec = m->has_mem_gib_msec = m->has_held_msec =
        m->has_gpu_busy_msec = m->has_energy_mj = m->has_co2_mg = m->has_tasks =
            m->has_idle_cost_micro = m->has_storage_gib_msec = 1;
    m->cost_micro = s->cost_micro;
    m->gpu_msec = clip(s->gpu_milli / 1000000);
    m->cpu_msec = clip(s->cpu_milli / 1000000);
    m->mem_gib_msec = clip(s->mem_bytes / (1000LL << 30));
    m->storage_gib_msec = clip(s->storage_bytes / (1000LL << 30));
    m->held_msec = clip(s->held_usec / 1000);
    m->gpu_busy_msec = clip(s->gpu_busy_usec / 1000);
    m->energy_mj = clip((__int128)s->energy_mj * e->pue_milli / 1000);
    m->co2_mg = clip((__int128)s->energy_mj * e->pue_milli * e->co2_milli / 1000 / KWH_MJ);
    m->tasks = s->tasks;
    m->idle_cost_micro = s->idle_micro;
}

static void add_sums(struct vg_sums *to, const struct vg_sums *s) {
    to->cost_micro += s->cost_micro;
    to->idle_micro += s->idle_micro;
    to->gpu_milli += s->gpu_milli;
    to->cpu_milli += s->cpu_milli;
    to->mem_bytes += s->mem_bytes;
    to->storage_bytes += s->storage_bytes;
    to->held_usec += s->held_usec;
    to->gpu_busy_usec += s->gpu_busy_usec;
    to->energy_mj += s->energy_mj;
    to->tasks += s->tasks; /* of one group each, as far as groups go */
}

#define CURRENCIES_MAX 8

struct totals {
    struct vg_sums sums[CURRENCIES_MAX];
    const char *currency[CURRENCIES_MAX];
    size_t n;
};

static void add_total(struct totals *t, const char *currency, const struct vg_sums *s) {
    size_t i = 0;
    while (i < t->n && strcmp(t->currency[i], currency) != 0)
        i++;
    if (i == t->n && t->n == CURRENCIES_MAX)
        return;
    t->n = VG_MAX(t->n, i + 1);
    t->currency[i] = currency;
    add_sums(&t->sums[i], s);
}

struct around {
    const struct ask *a;
    uint64_t usec;
    vg_wide micro;
    uint64_t gpu_milli;
};

static void add_peak(void *arg, const char *pool, const char *class, uint64_t gpu_milli) {
    struct around *x = arg;
    uint64_t whole = (gpu_milli + 999) / 1000 * 1000;
    struct vg_hold h = {.gpu_milli = whole};
    const struct vg_tariff *t =
        vg_book_at(&x->a->ctl->book, pool, class, x->a->tally.from_usec + x->usec);
    x->micro += vg_charge_gpus(t, &h, x->usec).micro;
    x->gpu_milli += whole;
}

static void send_cost(struct ask *a, struct vg_peer *p) {
    struct vg_control *c = a->ctl;
    const struct vg_tally *t = &a->tally;
    struct totals totals = {.n = 1, .currency = {a->currency}};
    Vg__Pb__CostInfo m = VG__PB__COST_INFO__INIT;
    Vg__Pb__CostRow sums[CURRENCIES_MAX], *other[CURRENCIES_MAX];
    VG_ENVELOPE(env);
    size_t n = 0;
    vg_auto_free struct vg_group **g = vg_tally_sorted(t, &n);
    size_t shown = VG_MIN(n, a->limit);
    vg_auto_free Vg__Pb__CostRow *rows = vg_alloc((shown + 1) * sizeof *rows);
    vg_auto_free Vg__Pb__CostRow **list = vg_alloc((shown + 1) * sizeof *list);
    vg_auto_free char **keys = vg_alloc((shown + 1) * (t->n_by + 1) * sizeof *keys);
    if (!g || !rows || !list || !keys) {
        vg_peer_error(p, a->req, VG_INTERNAL, "the control plane is out of memory");
        return;
    }
    for (size_t i = 0; i < n; i++)
        add_total(&totals, vg_group_part(g[i], t->n_by), &g[i]->sums);
    for (size_t i = 0; i < shown; i++) {
        char **key = keys + i * (t->n_by + 1);
        list[i] = &rows[i];
        vg__pb__cost_row__init(list[i]);
        fill_sums(c, &g[i]->sums, list[i]);
        for (size_t k = 0; k < t->n_by; k++)
            key[k] = (char *)vg_group_part(g[i], k);
        list[i]->key = key;
        list[i]->n_key = t->n_by;
        list[i]->currency = (char *)vg_group_part(g[i], t->n_by);
    }
    for (size_t i = 0; i < totals.n; i++) {
        vg__pb__cost_row__init(&sums[i]);
        fill_sums(c, &totals.sums[i], &sums[i]);
        sums[i].currency = (char *)totals.currency[i];
        other[i] = &sums[i];
    }
    uint64_t now = vg_wall_usec(), end = VG_MIN(t->until_usec, now);
    struct around around = {.a = a, .usec = end > t->from_usec ? end - t->from_usec : 0};
    vg_tally_peaks(t, add_peak, &around);
    m.row = list;
    m.n_row = t->n_by ? shown : 0;
    m.total = &sums[0];
    m.other = other + 1;
    m.n_other = totals.n - 1;
    m.currency = a->currency;
    m.has_from_usec = m.has_until_usec = m.has_around_clock_micro = m.has_running_micro =
        m.has_more = m.has_around_clock_gpu_milli = 1;
    m.from_usec = t->from_usec;
    m.until_usec = t->until_usec;
    m.around_clock_micro = clip((__int128)around.micro);
    m.around_clock_gpu_milli = around.gpu_milli;
    m.running_micro = a->running_micro > 0 ? (uint64_t)a->running_micro : 0;
    m.more = t->n_by ? (uint32_t)(n - shown) + t->left_out : 0;
    env.body_case = B(COST_INFO);
    env.cost_info = &m;
    vg_peer_send(p, a->req, false, &env);
}

/* Lines as a list, in place; returns how many. */
static size_t split_lines(char *text, char **list, size_t max) {
    size_t n = 0;
    char *save = NULL;
    for (char *l = strtok_r(text, "\n", &save); l && n < max; l = strtok_r(NULL, "\n", &save))
        list[n++] = l;
    return n;
}

#define LABELS_MAX 64

static void fill_row(const struct kept_row *k, Vg__Pb__LedgerRow *m, char **labels) {
    const struct vg_ledger_row *r = &k->row;
    vg__pb__ledger_row__init(m);
    m->has_seq = m->has_from_usec = m->has_until_usec = m->has_gpu_milli = m->has_cpu_milli =
        m->has_mem_bytes = m->has_price = m->has_cost_micro = m->has_energy_mj =
            m->has_preemptible = m->has_gpu_busy_usec = m->has_gpu_unused_usec = 1;
    m->has_task_id = m->has_attempt = r->task != 0;
    m->seq = r->seq;
    m->task_id = r->task;
    m->attempt = r->attempt;
    m->from_usec = r->from_usec;
    m->until_usec = r->until_usec;
    m->user = (char *)r->user;
    m->team = (char *)r->team;
    m->org = (char *)r->org;
    m->project = (char *)r->project;
    m->pool = (char *)r->pool;
    m->class_name = (char *)r->class_name;
    m->node = (char *)r->node;
    m->gpu_milli = r->gpu_milli;
    m->cpu_milli = r->cpu_milli;
    m->mem_bytes = r->mem_bytes;
    m->price = r->price;
    m->cost_micro = r->cost_micro;
    m->kind = (char *)r->kind;
    m->currency = (char *)r->currency;
    m->energy_mj = r->energy_mj;
    m->text = (char *)r->text;
    m->who = (char *)r->who;
    m->preemptible = r->preemptible;
    m->gpu_busy_usec = r->gpu_busy_usec;
    m->gpu_unused_usec = r->gpu_unused_usec;
    m->n_label = split_lines((char *)r->labels, labels, LABELS_MAX);
    m->label = labels;
}

static void send_rows(struct ask *a, struct vg_peer *p) {
    Vg__Pb__LedgerList m = VG__PB__LEDGER_LIST__INIT;
    VG_ENVELOPE(env);
    char next[24];
    vg_auto_free Vg__Pb__LedgerRow *rows = vg_alloc((a->n_rows + 1) * sizeof *rows);
    vg_auto_free Vg__Pb__LedgerRow **list = vg_alloc((a->n_rows + 1) * sizeof *list);
    vg_auto_free char **labels = vg_alloc((a->n_rows + 1) * LABELS_MAX * sizeof *labels);
    if (!rows || !list || !labels) {
        vg_peer_error(p, a->req, VG_INTERNAL, "the control plane is out of memory");
        return;
    }
    for (size_t i = 0; i < a->n_rows; i++) {
        list[i] = &rows[i];
        fill_row(&a->rows[i], list[i], labels + i * LABELS_MAX);
    }
    m.row = list;
    m.n_row = a->n_rows;
    if (a->n_rows == a->limit) {
        snprintf(next, sizeof next, "%llu", (unsigned long long)a->rows[a->n_rows - 1].row.seq);
        m.next = next;
    }
    env.body_case = B(LEDGER_ROWS);
    env.ledger_rows = &m;
    vg_peer_send(p, a->req, false, &env);
}

static int64_t sum_of(const struct ask *a) {
    int64_t sum = 0;
    vg_map_for_each (s, &a->tally.groups) {
        const struct vg_group *g = s->value;
        if (strcmp(vg_group_part(g, 0), a->currency) == 0)
            sum += g->sums.cost_micro;
    }
    return sum;
}

static void was_read(uv_work_t *w, int status) {
    struct ask *a = w->data;
    struct vg_control *c = a->ctl;
    struct vg_peer *p = a->sum ? NULL : vg_peer_find(c, a->peer);
    int r = status < 0 ? status : a->result;
    if (a->sum)
        a->sum(a->sum_arg, r, sum_of(a));
    else if (p && r < 0)
        vg_peer_error(p, a->req, VG_INTERNAL, "the ledger cannot be read: %s", strerror(-r));
    else if (p && a->pages)
        send_rows(a, p);
    else if (p)
        send_cost(a, p);
    ask_free(a);
    vg_cost_go_on(c);
}

void vg_cost_go_on(struct vg_control *c) {
    size_t reading = 0;
    vg_list_for_each_safe (it, &c->asked) {
        struct ask *a = vg_list_entry(it, struct ask, link);
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
        ask_free(vg_list_entry(vg_list_first(&c->asked), struct ask, link));
}

/* ------------------------------------------------------------------ questions */

/* Whose rows: a member sees what is his, a lead what is his team's, who sees all sees all. Of
   others nothing is told, not even that they are there. */
static int read_scope(const struct vg_call *call, const Vg__Pb__CostQuery *q, struct ask *a,
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

static int read_task(const struct vg_call *call, const char *ref, struct ask *a,
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

static int read_times(const Vg__Pb__CostQuery *q, struct ask *a, struct vg_err *err) {
    uint64_t now = vg_wall_usec();
    if (q->has_zone_minutes && (q->zone_minutes < -1440 || q->zone_minutes > 1440))
        return vg_err_set(err, VG_INVALID, "zone_minutes is at most a day");
    a->tally.zone_usec = (int64_t)q->zone_minutes * 60 * 1000000;
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

static void point_at_texts(struct ask *a) {
    a->f.user = or_null(a->user);
    a->f.team = or_null(a->team);
    a->f.org = or_null(a->org);
    a->f.pool = or_null(a->pool);
    a->f.project = or_null(a->project);
}

static struct ask *ask_new(struct vg_call *call, const Vg__Pb__CostQuery *q, bool pages,
                           struct vg_err *err) {
    struct vg_control *c = call->ctl;
    size_t n = 0;
    vg_list_for_each (it, &c->asked)
        n++;
    if (n >= VG_ASKED_MAX) {
        vg_err_set(err, VG_UNAVAILABLE, "too many ask about money at once: try again soon");
        return NULL;
    }
    struct ask *a = vg_alloc(sizeof *a);
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
    struct ask *a = arg;
    if (!is_wanted(&a->f, row))
        return 0;
    if (row->from_usec >= a->tally.from_usec && row->until_usec <= a->tally.until_usec)
        a->running_micro += row->cost_micro;
    return vg_tally_add(&a->tally, row);
}

void vg_api_cost(struct vg_call *call) {
    struct vg_err err = VG_ERR_INIT;
    struct ask *a = ask_new(call, call->env->cost, false, &err);
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
    struct ask *a = q->before && *q->before && vg_parse_u64(q->before, &before) < 0
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
    struct ask *a = vg_alloc(sizeof *a);
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
