/* What was spent, as it is told. */
#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"
#include "control/api.h"
#include "control/cost-int.h"
#include "control/price.h"

#include <stdio.h>
#include <string.h>

#define B(name) VG__PB__ENVELOPE__BODY_##name
#define KWH_MJ 3600000000ULL /* millijoules of a kilowatt-hour */

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
    to->cost_micro = vg_micro_add(to->cost_micro, s->cost_micro);
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
    const struct vg_ask *a;
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

void vg_cost_send(struct vg_ask *a, struct vg_peer *p) {
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

static void fill_row(const struct vg_kept_row *k, Vg__Pb__LedgerRow *m, char **labels) {
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

void vg_cost_send_rows(struct vg_ask *a, struct vg_peer *p) {
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
