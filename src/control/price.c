/* Prices: the book in memory and in the store, and who may add to it. */
#include "control/price.h"

#include "base/cleanup.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/util.h"
#include "control/api.h"
#include "control/audit.h"
#include "control/budget.h"
#include "control/kept.h"
#include "control/later.h"
#include "control/ledger.h"

#include <stdio.h>
#include <string.h>

#define SKEW_USEC VG_USEC /* between the clocks of whoever asks and ours */

static int load_price(void *arg, const struct vg_price_row *row) {
    struct vg_control *c = arg;
    struct vg_tariff t = {.id = row->id,
                          .from_usec = row->from_usec,
                          .gpu_hour_micro = row->gpu_hour_micro,
                          .cpu_hour_micro = row->cpu_hour_micro,
                          .gib_hour_micro = row->gib_hour_micro,
                          .storage_gib_month_micro = row->storage_gib_month_micro,
                          .idle_milli = row->idle_milli,
                          .preemptible_milli = row->preemptible_milli,
                          .set_usec = row->set_usec};
    snprintf(t.pool, sizeof t.pool, "%s", row->pool);
    snprintf(t.class, sizeof t.class, "%s", row->class_name);
    snprintf(t.currency, sizeof t.currency, "%s", row->currency);
    snprintf(t.who, sizeof t.who, "%s", row->who);
    return vg_book_add(&c->book, &t);
}

/* Into the book and to the store, where it lies before every charge that names it. */
static int add(struct vg_control *c, struct vg_tariff *t, vg_store_cb *cb, void *arg) {
    int r = vg_book_add(&c->book, t);
    if (r < 0)
        return r;
    t->id = c->book.tariff[c->book.n - 1].id;
    struct vg_price_row row = {.id = t->id,
                               .pool = t->pool,
                               .class_name = t->class,
                               .from_usec = t->from_usec,
                               .gpu_hour_micro = t->gpu_hour_micro,
                               .cpu_hour_micro = t->cpu_hour_micro,
                               .gib_hour_micro = t->gib_hour_micro,
                               .storage_gib_month_micro = t->storage_gib_month_micro,
                               .idle_milli = t->idle_milli,
                               .preemptible_milli = t->preemptible_milli,
                               .currency = t->currency,
                               .who = t->who,
                               .set_usec = t->set_usec};
    r = vg_store_add_price(c->store, &row, cb, arg);
    if (r < 0)
        vg_book_drop(&c->book, t->id);
    if (r >= 0) {
        vg_ledger_look(c);
        vg_kept_look(c);
        vg_budgets_look(c);
    }
    return r;
}

static bool costs_nothing(const struct vg_tariff *t) {
    return !t->gpu_hour_micro && !t->cpu_hour_micro && !t->gib_hour_micro &&
           !t->storage_gib_month_micro;
}

void vg_prices_configured(struct vg_control *c) {
    uint64_t now = vg_wall_usec();
    for (size_t i = 0; i < c->conf.n_pools; i++) {
        const struct vg_pool_conf *pool = &c->conf.pool[i];
        const struct vg_price *p = &pool->price;
        struct vg_tariff t = {.from_usec = now,
                              .gpu_hour_micro = p->gpu_hour_micro,
                              .cpu_hour_micro = p->cpu_hour_micro,
                              .gib_hour_micro = p->gib_hour_micro,
                              .idle_milli = (uint32_t)p->idle_milli,
                              .preemptible_milli = (uint32_t)p->preemptible_milli,
                              .who = VG_PRICE_BY_CONF,
                              .set_usec = now};
        snprintf(t.pool, sizeof t.pool, "%s", pool->name);
        snprintf(t.currency, sizeof t.currency, "%s", c->conf.currency);
        const struct vg_tariff *last = vg_book_newest(&c->book, t.pool, "", VG_PRICE_BY_CONF);
        if (last ? vg_tariff_same(last, &t) : costs_nothing(&t))
            continue;
        int r = add(c, &t, NULL, NULL);
        if (r < 0)
            vg_error("pool=%s its new price cannot be taken: %s", pool->name, strerror(-r));
        else
            vg_info("pool=%s has a new price, number %llu", pool->name, (unsigned long long)t.id);
    }
}

int vg_prices_open(struct vg_control *c, struct vg_err *err) {
    int r = vg_store_load_prices(c->store, load_price, c);
    if (r < 0)
        return vg_err_sys(err, r, "cannot load prices from %s", c->home.db);
    vg_prices_configured(c);
    return 0;
}

struct vg_hold vg_hold_of(const struct vg_res *r, bool preemptible) {
    return (struct vg_hold){.gpu_milli = r->gpus * 1000ULL + r->gpu_milli,
                            .cpu_milli = r->cpu_milli,
                            .mem_bytes = r->mem_bytes,
                            .preemptible = preemptible};
}

uint64_t vg_prices_cost(const struct vg_control *c, const struct vg_pool_conf *pool,
                        const struct vg_res *grant, bool preemptible, uint64_t from_usec,
                        uint64_t usec) {
    struct vg_hold h = vg_hold_of(grant, preemptible);
    uint64_t until = from_usec > UINT64_MAX - usec ? UINT64_MAX : from_usec + usec;
    struct vg_money m = vg_charge_total(&c->book, pool->name, vg_pool_class_name(pool->class), &h,
                                        from_usec, until);
    return m.micro + (m.rest != 0); /* who asks beforehand is not to be told too little */
}

uint64_t vg_prices_pay_usec(const struct vg_control *c, const struct vg_pool_conf *pool,
                            const struct vg_hold *h, uint64_t from_usec, uint64_t micro) {
    uint64_t until =
        vg_charge_until(&c->book, pool->name, vg_pool_class_name(pool->class), h, from_usec, micro);
    return until == UINT64_MAX ? UINT64_MAX : until - from_usec;
}

uint64_t vg_prices_limit_usec(const struct vg_control *c, const struct vg_task *t) {
    uint64_t limit = t->spec->time_limit_usec;
    const struct vg_pool_conf *pool = vg_conf_pool(&c->conf, vg_task_pool(t));
    if (!t->spec->max_cost_micro || !pool)
        return limit;
    struct vg_res held = vg_task_held(t);
    struct vg_hold h = vg_hold_of(&held, t->spec->preemptible);
    uint64_t pays = vg_prices_pay_usec(c, pool, &h, vg_wall_usec(), t->spec->max_cost_micro);
    return pays == UINT64_MAX ? limit : limit ? VG_MIN(limit, pays) : VG_MAX(pays, 1u);
}

bool vg_prices_any(const struct vg_control *c) {
    return c->book.n > 0;
}

/* ------------------------------------------------------------------ requests */

void vg_price_to_pb(const struct vg_tariff *t, Vg__Pb__Price *ret) {
    vg__pb__price__init(ret);
    ret->has_from_usec = ret->has_gpu_hour_micro = ret->has_cpu_hour_micro =
        ret->has_gib_hour_micro = ret->has_storage_gib_month_micro = ret->has_idle_milli =
            ret->has_preemptible_milli = ret->has_set_usec = ret->has_id = 1;
    ret->pool = (char *)t->pool;
    ret->class_name = (char *)t->class;
    ret->from_usec = t->from_usec;
    ret->gpu_hour_micro = t->gpu_hour_micro;
    ret->cpu_hour_micro = t->cpu_hour_micro;
    ret->gib_hour_micro = t->gib_hour_micro;
    ret->storage_gib_month_micro = t->storage_gib_month_micro;
    ret->idle_milli = t->idle_milli;
    ret->preemptible_milli = t->preemptible_milli;
    ret->currency = (char *)t->currency;
    ret->who = (char *)t->who;
    ret->set_usec = t->set_usec;
    ret->id = t->id;
}

/* Whether it holds now or will: nothing of its own line has taken its place. */
static bool counts(const struct vg_book *b, const struct vg_tariff *t, uint64_t now) {
    for (size_t i = 0; i < b->n; i++) {
        const struct vg_tariff *o = &b->tariff[i];
        bool later = o->from_usec > t->from_usec || (o->from_usec == t->from_usec && o->id > t->id);
        if (later && o->from_usec <= now && !strcmp(o->pool, t->pool) &&
            !strcmp(o->class, t->class))
            return false;
    }
    return true;
}

void vg_api_price_list(struct vg_call *call) {
    const struct vg_book *b = &call->ctl->book;
    bool history = call->env->price_list->history;
    uint64_t now = vg_wall_usec();
    VG_ENVELOPE(env);
    Vg__Pb__PriceList m = VG__PB__PRICE_LIST__INIT;
    vg_auto_free Vg__Pb__Price *price = vg_alloc((b->n + 1) * sizeof *price);
    vg_auto_free Vg__Pb__Price **list = vg_alloc((b->n + 1) * sizeof *list);
    if (!price || !list) {
        vg_peer_error(call->peer, call->req, VG_INTERNAL, "the control plane is out of memory");
        return;
    }
    for (size_t i = 0; i < b->n; i++)
        if (history || counts(b, &b->tariff[i], now)) {
            list[m.n_price] = &price[m.n_price];
            vg_price_to_pb(&b->tariff[i], list[m.n_price++]);
        }
    m.price = list;
    env.body_case = VG__PB__ENVELOPE__BODY_PRICES;
    env.prices = &m;
    vg_peer_send(call->peer, call->req, false, &env);
}

static int check_place(const struct vg_control *c, const Vg__Pb__Price *p, struct vg_err *err) {
    enum vg_pool_class class;
    if (p->pool && *p->pool && !vg_conf_pool(&c->conf, p->pool))
        return vg_err_set(err, VG_NOT_FOUND,
                          "there is no pool '%.63s': 'virga pool list' shows what there is",
                          p->pool);
    if (p->class_name && *p->class_name && vg_pool_class_parse(p->class_name, &class) < 0)
        return vg_err_set(err, VG_INVALID,
                          "'%.63s' is no class: dedicated, shared, mps, mig or bare-metal",
                          p->class_name);
    return 0;
}

/* What is not said stays as it is now on that line, or is nothing. */
static int read_price(const struct vg_control *c, const Vg__Pb__Price *p, uint64_t now,
                      struct vg_tariff *t, struct vg_err *err) {
    const char *pool = p->pool ? p->pool : "", *class = p->class_name ? p->class_name : "";
    int r = check_place(c, p, err);
    if (r < 0)
        return r;
    const struct vg_tariff *old = vg_book_at(&c->book, pool, class, now);
    *t = old ? *old : (struct vg_tariff){0};
    t->id = 0;
    snprintf(t->pool, sizeof t->pool, "%s", pool);
    snprintf(t->class, sizeof t->class, "%s", class);
    snprintf(t->currency, sizeof t->currency, "%s", c->conf.currency);
    if (p->currency && *p->currency && strcmp(p->currency, c->conf.currency) != 0)
        return vg_err_set(err, VG_INVALID,
                          "the currency of this cloud is %s: it is changed in the configuration",
                          c->conf.currency);
    t->gpu_hour_micro = p->has_gpu_hour_micro ? p->gpu_hour_micro : t->gpu_hour_micro;
    t->cpu_hour_micro = p->has_cpu_hour_micro ? p->cpu_hour_micro : t->cpu_hour_micro;
    t->gib_hour_micro = p->has_gib_hour_micro ? p->gib_hour_micro : t->gib_hour_micro;
    if (p->storage_gib_month_micro && (*pool || *class))
        return vg_err_set(err, VG_INVALID,
                          "what is kept lies in no pool: set its price without a pool and a class");
    t->storage_gib_month_micro = *pool || *class                  ? 0
                                 : p->has_storage_gib_month_micro ? p->storage_gib_month_micro
                                                                  : t->storage_gib_month_micro;
    t->idle_milli = p->has_idle_milli ? p->idle_milli : t->idle_milli;
    t->preemptible_milli = p->has_preemptible_milli ? p->preemptible_milli : t->preemptible_milli;
    t->set_usec = now;
    t->from_usec = p->from_usec ? p->from_usec : now;
    if (t->from_usec + SKEW_USEC < now)
        return vg_err_set(err, VG_INVALID,
                          "a price cannot begin in the past: what was charged stays; 'virga cost "
                          "credit' gives something back");
    t->from_usec = VG_MAX(t->from_usec, now);
    return vg_tariff_check(t, err);
}

void vg_api_price_set(struct vg_call *call) {
    struct vg_control *c = call->ctl;
    const Vg__Pb__Price *p = call->env->price_set->price;
    struct vg_err err = VG_ERR_INIT;
    struct vg_tariff t;
    int r = p ? read_price(c, p, vg_wall_usec(), &t, &err)
              : vg_err_set(&err, VG_INVALID, "say what it costs: --gpu-hour and others");
    struct vg_later *l = r >= 0 ? vg_later_new(call) : NULL;
    if (r >= 0 && !l)
        r = vg_err_sys(&err, ENOMEM, "cannot set the price");
    if (r < 0) {
        vg_peer_fail(call->peer, call->req, &err);
        return;
    }
    snprintf(t.who, sizeof t.who, "%s", call->user->name);
    r = add(c, &t, vg_later_stored, l);
    if (r < 0) {
        vg_later_stored(l, r);
        return;
    }
    vg_audit(call,
             "price %llu: pool '%s' class '%s' from %llu: GPU %llu, CPU %llu, GiB %llu, storage "
             "%llu millionths of %s",
             (unsigned long long)t.id, t.pool, t.class, (unsigned long long)t.from_usec,
             (unsigned long long)t.gpu_hour_micro, (unsigned long long)t.cpu_hour_micro,
             (unsigned long long)t.gib_hour_micro, (unsigned long long)t.storage_gib_month_micro,
             t.currency);
}
