/* Rows of the ledger, from what tasks hold; see the header. */
#include "control/ledger.h"

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/util.h"
#include "control/budget.h"
#include "control/cost.h"
#include "control/history.h"
#include "control/kept.h"
#include "control/nodes.h"
#include "control/price.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LATE_USEC (600 * VG_USEC) /* a day is closed when its last ends have been told */

/* ------------------------------------------------------------------ rows */

/* Somebody waits for it. */
struct waiting {
    struct vg_control *ctl;
    vg_store_cb *cb;
    void *arg;
};

static void stored(void *arg, int result) {
    struct vg_control *c = arg;
    c->ledger.stored++;
    if (result < 0 && result != -ECANCELED)
        vg_error("a row of the ledger cannot be stored: %s", strerror(-result));
    vg_cost_go_on(c);
    vg_kept_go_on(c);
}

static void stored_for(void *arg, int result) {
    vg_auto_free struct waiting *w = arg;
    stored(w->ctl, result);
    w->cb(w->arg, result);
}

int vg_ledger_add(struct vg_control *c, struct vg_ledger_row *row, vg_store_cb *cb, void *arg) {
    struct waiting *w = cb ? vg_alloc(sizeof *w) : NULL;
    if (cb && !w)
        return -ENOMEM;
    if (w)
        *w = (struct waiting){c, cb, arg};
    row->seq = c->ledger.last + 1;
    int r = vg_store_add_ledger(c->store, row, w ? stored_for : stored, w ? (void *)w : c);
    if (r < 0) {
        free(w);
        return r;
    }
    c->ledger.last++;
    vg_budgets_charge(c, row);
    vg_counts_charge(&c->counts, row->pool, row->currency, row->cost_micro);
    return 0;
}

const char *vg_ledger_project(const Vg__Pb__TaskSpec *s) {
    if (s->project && *s->project)
        return s->project;
    for (size_t i = 0; i < s->n_label; i++)
        if (strncmp(s->label[i], "project=", 8) == 0)
            return s->label[i] + 8;
    return "";
}

/* ------------------------------------------------------------------ what it holds */

struct place {
    const char *pool, *class;
    struct vg_hold hold;
};

static struct place place_of(const struct vg_job *j) {
    const struct vg_task *t = j->task;
    struct vg_res held = vg_task_held(t);
    const struct vg_pool_conf *pool = vg_conf_pool(&j->ctl->conf, vg_task_pool(t));
    enum vg_pool_class class = pool ? pool->class : t->share.class;
    return (struct place){.pool = vg_task_pool(t),
                          .class = vg_pool_class_name(class),
                          .hold = vg_hold_of(&held, t->spec->preemptible)};
}

/* The meter as it is for the attempt that the task has; what was another's is added up. */
static struct vg_meter meter_of(const struct vg_job *j) {
    struct vg_meter m = j->meter ? *j->meter : (struct vg_meter){0};
    if (m.attempt != j->task->attempt.number)
        m = (struct vg_meter){.attempt = j->task->attempt.number, .earlier = m.earlier + m.billed};
    return m;
}

static int keep_meter(struct vg_job *j, const struct vg_meter *m) {
    if (!j->meter && !(j->meter = vg_alloc(sizeof *m)))
        return -ENOMEM;
    *j->meter = *m;
    return 0;
}

/* What its GPUs did since the last row, to be divided among the next ones. */
struct did {
    uint64_t energy_mj, busy_usec, unused_usec;
};

static uint64_t beyond(uint64_t now, uint64_t before) {
    return now > before ? now - before : 0;
}

static struct did did_of(const struct vg_job *j, const struct vg_meter *m) {
    const Vg__Pb__GpuUsage *u = j->gpu_use;
    struct did d = {0};
    if (!u)
        return d;
    if (u->has_energy_mj)
        d.energy_mj = beyond(u->energy_mj, m->energy_mj);
    if (u->has_sm_mean_milli && u->has_sampled_usec)
        d.busy_usec = beyond(vg_part(u->sampled_usec, VG_MIN(u->sm_mean_milli, 100000u), 100000),
                             m->busy_usec);
    if (u->has_unused_usec)
        d.unused_usec = beyond(u->unused_usec, m->unused_usec);
    return d;
}

/* ------------------------------------------------------------------ writing */

struct writing {
    struct vg_meter *m;
    struct vg_ledger_row row;
    const struct vg_hold *hold;
    uint64_t from, until; /* of the whole walk */
    struct did did;
    bool back;
    vg_ledger_row_cb *cb;
    void *arg;
};

static uint64_t part_between(uint64_t v, const struct writing *w, const struct vg_piece *p) {
    uint64_t whole = w->until - w->from;
    return vg_part(v, p->until_usec - w->from, whole) - vg_part(v, p->from_usec - w->from, whole);
}

static void money_sub(struct vg_money *m, const struct vg_money *less) {
    bool borrow = m->rest < less->rest;
    m->rest = m->rest + (borrow ? VG_MONEY_UNIT : 0) - less->rest;
    uint64_t micro = less->micro + borrow;
    m->micro = m->micro > micro ? m->micro - micro : 0;
}

static int write_piece(void *arg, const struct vg_piece *p) {
    struct writing *w = arg;
    struct vg_meter *m = w->m;
    struct vg_ledger_row *row = &w->row;
    uint64_t usec = p->until_usec - p->from_usec;
    struct vg_money unused = vg_charge_unused(p->tariff, w->hold, usec);
    row->part = m->part++;
    row->from_usec = p->from_usec;
    row->until_usec = p->until_usec;
    row->price = p->tariff ? p->tariff->id : 0;
    row->currency = p->tariff ? p->tariff->currency : "";
    row->cost_micro = w->back ? -(int64_t)p->cost_micro : (int64_t)p->cost_micro;
    row->gpu_micro = VG_MIN(vg_charge_gpus(p->tariff, w->hold, usec).micro, p->cost_micro);
    row->rest_hi = (uint64_t)(p->rest >> 64);
    row->rest_lo = (uint64_t)p->rest;
    row->energy_mj = part_between(w->did.energy_mj, w, p);
    row->gpu_busy_usec = part_between(w->did.busy_usec, w, p);
    row->gpu_unused_usec = part_between(w->did.unused_usec, w, p);
    m->energy_mj += row->energy_mj;
    m->busy_usec += row->gpu_busy_usec;
    m->unused_usec += row->gpu_unused_usec;
    m->billed += row->cost_micro;
    if (w->back)
        money_sub(&m->unused, &unused);
    else
        vg_money_add(&m->unused, &unused);
    if (p->tariff)
        snprintf(m->currency, sizeof m->currency, "%s", p->tariff->currency);
    return w->cb(w->arg, row);
}

static void begin(struct writing *w, const struct vg_job *j, struct vg_meter *m,
                  const struct place *at, const char *labels, vg_ledger_row_cb *cb, void *arg) {
    const struct vg_task *t = j->task;
    const struct vg_team *team = vg_tenants_team(&j->ctl->tenants, t->team);
    *w = (struct writing){.m = m, .hold = &at->hold, .cb = cb, .arg = arg};
    w->row = (struct vg_ledger_row){.task = t->id,
                                    .attempt = t->attempt.number,
                                    .kind = VG_LEDGER_HELD,
                                    .user = t->user,
                                    .team = t->team,
                                    .org = team ? team->org : "",
                                    .project = vg_ledger_project(t->spec),
                                    .pool = at->pool,
                                    .class_name = at->class,
                                    .node = vg_nodelink_name(j->ctl, t->last_node),
                                    .labels = labels,
                                    .gpu_milli = at->hold.gpu_milli,
                                    .cpu_milli = at->hold.cpu_milli,
                                    .mem_bytes = at->hold.mem_bytes,
                                    .preemptible = at->hold.preemptible,
                                    .text = "",
                                    .who = ""};
}

/* Pieces that are taken back, gathered so that the last can be written first: at every moment what
   is written has no hole. */
struct gathered {
    struct vg_piece *piece; /* owned */
    size_t n, cap;
    vg_wide rest; /* before the next one */
};

static int gather(void *arg, const struct vg_piece *p) {
    struct gathered *g = arg;
    struct vg_piece *more = vg_grow(g->piece, &g->cap, g->n + 1, sizeof *more);
    if (!more)
        return -ENOMEM;
    g->piece = more;
    vg_wide after = p->rest;
    g->piece[g->n] = *p;
    g->piece[g->n++].rest = g->rest;
    g->rest = after;
    return 0;
}

/* The attempt ended before what is written of it: the later part is taken back, so that what is
   left is what the shorter one costs. */
static int write_back(const struct vg_job *j, struct writing *w, const struct place *at,
                      uint64_t until) {
    struct vg_meter *m = w->m;
    struct gathered g = {.rest = vg_charge_rest_before(&j->ctl->book, at->pool, at->class,
                                                       &at->hold, until, m->until_usec, m->rest)};
    vg_wide left = g.rest;
    w->back = true;
    w->row.kind = VG_LEDGER_BACK;
    w->from = until;
    w->until = m->until_usec;
    int r = vg_charge_walk(&j->ctl->book, at->pool, at->class, &at->hold, until, m->until_usec,
                           &left, gather, &g);
    for (size_t i = g.n; r >= 0 && i--;) {
        r = write_piece(w, &g.piece[i]);
        m->rest = g.piece[i].rest;
        m->until_usec = g.piece[i].from_usec;
    }
    free(g.piece);
    return r;
}

static int write_on(const struct vg_job *j, struct writing *w, const struct place *at,
                    uint64_t from, uint64_t until) {
    struct vg_meter *m = w->m;
    const struct vg_tariff *t = vg_book_at(&j->ctl->book, at->pool, at->class, from);
    if (t && m->currency[0] && strcmp(t->currency, m->currency) != 0)
        m->rest = 0;
    w->from = from;
    w->until = until;
    w->did = did_of(j, m);
    int r = vg_charge_walk(&j->ctl->book, at->pool, at->class, &at->hold, from, until, &m->rest,
                           write_piece, w);
    m->until_usec = until;
    return r;
}

/* What is taken off for GPUs that did nothing: of what that would be if they had done nothing at
   all, the part of their time in which they did. */
static int write_unused(const struct vg_job *j, struct writing *w, const struct place *at,
                        uint64_t until) {
    struct vg_meter *m = w->m;
    uint64_t cards = (at->hold.gpu_milli + 999) / 1000;
    uint64_t whole = cards * beyond(until, j->task->started_usec);
    uint64_t off = vg_part(m->unused.micro, VG_MIN(m->unused_usec, whole), whole);
    if (!off || m->closed)
        return 0;
    m->closed = true;
    m->billed -= (int64_t)off;
    w->row.kind = VG_LEDGER_UNUSED;
    w->row.part = m->part++;
    w->row.from_usec = w->row.until_usec = until;
    w->row.currency = m->currency;
    w->row.cost_micro = -(int64_t)off;
    w->row.gpu_micro = w->row.energy_mj = w->row.gpu_busy_usec = w->row.gpu_unused_usec = 0;
    return w->cb(w->arg, &w->row);
}

/* Everything of the attempt from what is written until then; `m` moves with it. */
static int walk(const struct vg_job *j, struct vg_meter *m, uint64_t until, bool ends,
                vg_ledger_row_cb *cb, void *arg) {
    const struct vg_task *t = j->task;
    struct place at = place_of(j);
    struct writing w;
    uint64_t from = m->until_usec ? m->until_usec : t->started_usec;
    vg_auto_free char *labels = vg_history_join("", t->spec->label, t->spec->n_label, '\n');
    if (!labels)
        return -ENOMEM;
    begin(&w, j, m, &at, labels, cb, arg);
    int r = 0;
    if (until > from)
        r = write_on(j, &w, &at, from, until);
    else if (ends && m->until_usec && until < m->until_usec)
        r = write_back(j, &w, &at, until);
    if (r >= 0 && ends)
        r = write_unused(j, &w, &at, until);
    return r;
}

static int add_row(void *arg, const struct vg_ledger_row *row) {
    struct vg_ledger_row copy = *row;
    return vg_ledger_add(arg, &copy, NULL, NULL);
}

static int write_until(struct vg_job *j, uint64_t until, bool ends) {
    struct vg_meter m = meter_of(j);
    int r = walk(j, &m, until, ends, add_row, j->ctl);
    int k = keep_meter(j, &m);
    return r < 0 ? r : k;
}

static void say_failed(const struct vg_job *j, int r) {
    vg_error("task=%016llx attempt=%u what it owes cannot be written: %s",
             (unsigned long long)j->task->id, j->task->attempt.number, strerror(-r));
}

void vg_ledger_cut(struct vg_job *j, uint64_t now_usec) {
    int r = j->task->state == VG_TASK_RUNNING ? write_until(j, now_usec, false) : 0;
    if (r < 0)
        say_failed(j, r);
}

int vg_ledger_end(struct vg_job *j, uint64_t until_usec) {
    int r = write_until(j, until_usec, true);
    if (r < 0)
        say_failed(j, r);
    return r;
}

void vg_ledger_tick(struct vg_control *c) {
    uint64_t day = (vg_wall_usec() - LATE_USEC) / VG_DAY_USEC;
    if (day <= c->ledger.day)
        return;
    c->ledger.day = day;
    vg_map_for_each (s, &c->jobs) {
        struct vg_job *j = s->value;
        if (j->task->state == VG_TASK_RUNNING && !vg_task_is_group(j->task))
            vg_ledger_cut(j, day * VG_DAY_USEC);
    }
}

/* ------------------------------------------------------------------ what runs */

void vg_ledger_running_of(const struct vg_job *j, uint64_t now_usec, vg_ledger_row_cb *cb,
                          void *arg) {
    struct vg_meter m = meter_of(j);
    if (j->task->state == VG_TASK_RUNNING && !vg_task_is_group(j->task))
        (void)walk(j, &m, VG_MAX(now_usec, m.until_usec), true, cb, arg);
}

void vg_ledger_running(struct vg_control *c, uint64_t now_usec, vg_ledger_row_cb *cb, void *arg) {
    vg_map_for_each (s, &c->jobs)
        vg_ledger_running_of(s->value, now_usec, cb, arg);
    vg_kept_running(c, now_usec, cb, arg);
}

static int skip_row(void *arg, const struct vg_ledger_row *row) {
    (void)arg;
    (void)row;
    return 0;
}

int64_t vg_ledger_spent(const struct vg_job *j, uint64_t now_usec) {
    struct vg_meter m = meter_of(j);
    if (j->task->state == VG_TASK_RUNNING && !vg_task_is_group(j->task))
        (void)walk(j, &m, VG_MAX(now_usec, m.until_usec), true, skip_row, NULL);
    return m.earlier + m.billed;
}

uint64_t vg_ledger_rate(const struct vg_job *j, uint64_t now_usec) {
    if (j->task->state != VG_TASK_RUNNING || vg_task_is_group(j->task))
        return 0;
    struct place at = place_of(j);
    return vg_charge(vg_book_at(&j->ctl->book, at.pool, at.class, now_usec), &at.hold,
                     VG_MONEY_HOUR)
        .micro;
}

uint64_t vg_ledger_pays_until(const struct vg_job *j) {
    struct vg_meter m = meter_of(j);
    struct place at = place_of(j);
    uint64_t most = j->task->spec->max_cost_micro;
    int64_t spent = m.earlier + m.billed + (m.rest != 0);
    if (!most)
        return UINT64_MAX;
    uint64_t left = spent < 0 ? most : beyond(most, (uint64_t)spent);
    return vg_charge_until(&j->ctl->book, at.pool, at.class, &at.hold,
                           m.until_usec ? m.until_usec : j->task->started_usec, left);
}

void vg_ledger_look(struct vg_control *c) {
    vg_map_for_each (s, &c->jobs) {
        struct vg_job *j = s->value;
        if (j->task->spec->max_cost_micro && j->task->state == VG_TASK_RUNNING)
            vg_job_arm_cost(j);
    }
}

/* ------------------------------------------------------------------ what is stored */

int vg_ledger_open(struct vg_control *c, struct vg_err *err) {
    int r = vg_store_last_ledger(c->store, &c->ledger.last);
    c->ledger.stored = c->ledger.last;
    return r < 0 ? vg_err_sys(err, r, "cannot read the ledger in %s", c->home.db) : 0;
}

struct restoring {
    const struct vg_control *c;
    struct vg_meter m;
};

static int restore_row(void *arg, const struct vg_ledger_row *row) {
    struct restoring *a = arg;
    struct vg_meter *m = &a->m;
    if (row->attempt != m->attempt)
        *m = (struct vg_meter){.attempt = row->attempt, .earlier = m->earlier + m->billed};
    struct vg_hold h = {row->gpu_milli, row->cpu_milli, row->mem_bytes, row->preemptible};
    struct vg_money unused = vg_charge_unused(vg_book_get(&a->c->book, row->price), &h,
                                              row->until_usec - row->from_usec);
    m->part = row->part + 1;
    m->billed += row->cost_micro;
    m->energy_mj += row->energy_mj;
    m->busy_usec += row->gpu_busy_usec;
    m->unused_usec += row->gpu_unused_usec;
    if (strcmp(row->kind, VG_LEDGER_UNUSED) == 0) {
        m->closed = true;
    } else if (strcmp(row->kind, VG_LEDGER_BACK) == 0) {
        m->until_usec = row->from_usec;
        m->rest = (vg_wide)row->rest_hi << 64 | row->rest_lo;
        money_sub(&m->unused, &unused);
    } else {
        m->until_usec = row->until_usec;
        m->rest = (vg_wide)row->rest_hi << 64 | row->rest_lo;
        vg_money_add(&m->unused, &unused);
        snprintf(m->currency, sizeof m->currency, "%s", row->currency);
    }
    return 0;
}

int vg_ledger_restore(struct vg_control *c, struct vg_err *err) {
    int r = 0;
    vg_map_for_each (s, &c->jobs) {
        struct vg_job *j = s->value;
        struct vg_ledger_filter f = {.task = j->task->id};
        struct restoring a = {.c = c};
        if (r < 0 || !j->task->attempt.number)
            continue;
        r = vg_store_load_ledger(c->store, &f, restore_row, &a);
        if (r >= 0 && a.m.attempt)
            r = keep_meter(j, &a.m);
    }
    return r < 0 ? vg_err_sys(err, r, "cannot read the ledger in %s", c->home.db) : 0;
}
