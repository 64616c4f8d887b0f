/* Charging for what is kept; see the header. */
#include "control/kept.h"

#include "base/cleanup.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/util.h"
#include "control/api.h"
#include "control/budget.h"
#include "control/env.h"
#include "control/ledger.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct version {
    uint64_t created_usec, bytes;
};

/* How far a user's rows go. */
struct written {
    uint64_t until_usec;
    vg_wide rest;
    char currency[VG_CURRENCY_MAX + 1];
};

struct keeper {
    struct vg_list on_stale; /* vg_kept.stale, as long as the store has to be asked */
    char user[VG_TENANT_NAME_MAX + 1];
    struct version *v; /* owned; in the order of their creation */
    size_t n;
    struct written w;
    bool known;        /* v is what the store said ... */
    bool asking;       /* ... and it is being asked again */
    unsigned removing; /* removals that the store has not answered */
};

struct removal {
    struct vg_list link;
    uint64_t peer, need; /* need: the row that must be stored */
    uint32_t req;
    bool cut;
    char user[VG_TENANT_NAME_MAX + 1], team[VG_TENANT_NAME_MAX + 1], from[64];
    char ref[];
};

struct vg_kept {
    struct vg_map users; /* name -> struct keeper, owned */
    struct vg_list stale, removals;
    unsigned asking, waiting;
    uint64_t since_usec; /* nothing that was kept before cost anything */
};

/* ------------------------------------------------------------------ who keeps */

static bool is_stale(const struct keeper *k) {
    return !vg_list_empty(&k->on_stale);
}

/* What is known is what there is. */
static bool is_clean(const struct keeper *k) {
    return k->known && !is_stale(k) && !k->asking && !k->removing;
}

static struct keeper *keeper_of(struct vg_kept *all, const char *user, bool make) {
    struct keeper *k = vg_map_get(&all->users, user);
    if (k || !make || strlen(user) >= sizeof k->user)
        return k;
    k = vg_alloc(sizeof *k);
    if (!k)
        return NULL;
    vg_list_init(&k->on_stale);
    snprintf(k->user, sizeof k->user, "%s", user);
    if (vg_map_put(&all->users, k->user, k) < 0) {
        free(k);
        return NULL;
    }
    return k;
}

static void keeper_free(struct keeper *k) {
    vg_list_remove(&k->on_stale);
    free(k->v);
    free(k);
}

static void make_stale(struct vg_kept *all, struct keeper *k) {
    if (!is_stale(k))
        vg_list_push_back(&all->stale, &k->on_stale);
}

/* ------------------------------------------------------------------ rows */

struct writing {
    struct written *w;
    struct vg_ledger_row row;
    vg_ledger_row_cb *cb;
    void *arg;
};

static int write_piece(void *arg, const struct vg_piece *p) {
    struct writing *x = arg;
    struct vg_ledger_row *row = &x->row;
    int r = 0;
    if (p->tariff && p->tariff->storage_gib_month_micro) {
        row->from_usec = p->from_usec;
        row->until_usec = p->until_usec;
        row->price = p->tariff->id;
        row->currency = p->tariff->currency;
        row->cost_micro = (int64_t)p->cost_micro;
        row->rest_hi = (uint64_t)(p->rest >> 64);
        row->rest_lo = (uint64_t)p->rest;
        r = x->cb(x->arg, row);
    }
    if (r < 0)
        return r;
    x->w->until_usec = p->until_usec;
    x->w->rest = p->rest;
    if (p->tariff)
        snprintf(x->w->currency, sizeof x->w->currency, "%s", p->tariff->currency);
    return 0;
}

/* So many bytes until then. */
static int write_bytes(const struct vg_control *c, struct writing *x, uint64_t bytes,
                       uint64_t until) {
    struct written *w = x->w;
    struct vg_hold h = {.kept_bytes = bytes};
    const struct vg_tariff *t = vg_book_at(&c->book, "", "", w->until_usec);
    vg_wide rest = t && w->currency[0] && strcmp(t->currency, w->currency) != 0 ? 0 : w->rest;
    x->row.mem_bytes = bytes;
    if (!bytes) {
        w->until_usec = VG_MAX(w->until_usec, until);
        return 0;
    }
    return vg_charge_walk(&c->book, "", "", &h, w->until_usec, until, &rest, write_piece, x);
}

/* From what is written until then, cut where something came; `w` moves with it. */
static int walk(struct vg_control *c, const struct keeper *k, struct written *w, uint64_t until,
                vg_ledger_row_cb *cb, void *arg) {
    const struct vg_user *u = vg_tenants_user(&c->tenants, k->user);
    struct writing x = {.w = w, .cb = cb, .arg = arg};
    uint64_t bytes = 0;
    int r = 0;
    x.row = (struct vg_ledger_row){.kind = VG_LEDGER_STORAGE,
                                   .user = k->user,
                                   .team = u ? u->team->name : "",
                                   .org = u ? u->team->org : "",
                                   .project = "",
                                   .pool = "",
                                   .class_name = "",
                                   .node = "",
                                   .labels = "",
                                   .text = "",
                                   .who = ""};
    w->until_usec = VG_MAX(w->until_usec, c->kept->since_usec);
    for (size_t i = 0; r >= 0 && i < k->n && k->v[i].created_usec < until; i++) {
        if (k->v[i].created_usec > w->until_usec)
            r = write_bytes(c, &x, bytes, k->v[i].created_usec);
        bytes = bytes > UINT64_MAX - k->v[i].bytes ? UINT64_MAX : bytes + k->v[i].bytes;
    }
    return r < 0 ? r : write_bytes(c, &x, bytes, until);
}

static int add_row(void *arg, const struct vg_ledger_row *row) {
    struct vg_ledger_row copy = *row;
    return vg_ledger_add(arg, &copy, NULL, NULL);
}

static void cut(struct vg_control *c, struct keeper *k, uint64_t until) {
    int r = walk(c, k, &k->w, until, add_row, c);
    if (r < 0) /* the next one begins where this one came to */
        vg_error("user=%s what is kept cannot be charged yet: %s", k->user, strerror(-r));
}

void vg_kept_running(struct vg_control *c, uint64_t now_usec, vg_ledger_row_cb *cb, void *arg) {
    if (!c->kept)
        return;
    vg_map_for_each (s, &c->kept->users) {
        const struct keeper *k = s->value;
        struct written w = k->w;
        if (k->known)
            (void)walk(c, k, &w, now_usec, cb, arg);
    }
}

void vg_kept_rates(struct vg_control *c, uint64_t now_usec, vg_kept_rate_fn *fn, void *arg) {
    const struct vg_tariff *t = c->kept ? vg_book_at(&c->book, "", "", now_usec) : NULL;
    if (!t || !t->storage_gib_month_micro)
        return;
    vg_map_for_each (s, &c->kept->users) {
        const struct keeper *k = s->value;
        const struct vg_user *u = vg_tenants_user(&c->tenants, k->user);
        struct vg_hold h = {0};
        for (size_t i = 0; i < k->n; i++)
            h.kept_bytes += k->v[i].bytes;
        if (u && h.kept_bytes)
            fn(arg, k->user, u->team, vg_charge(t, &h, VG_MONEY_HOUR).micro);
    }
}

/* ------------------------------------------------------------------ what the store says */

static void ask_stale(struct vg_control *c) {
    struct vg_kept *all = c->kept;
    while (!c->stopping && all->asking < VG_KEPT_ASKING_MAX && !vg_list_empty(&all->stale)) {
        struct keeper *k = vg_list_entry(vg_list_first(&all->stale), struct keeper, on_stale);
        if (vg_envs_ask_kept(c, k->user) < 0)
            return; /* with the next tick */
        vg_list_remove(&k->on_stale);
        all->asking += !k->asking;
        k->asking = true;
    }
}

void vg_kept_ask(struct vg_control *c, const char *user) {
    struct keeper *k = c->kept ? keeper_of(c->kept, user, true) : NULL;
    if (!k)
        return;
    make_stale(c->kept, k);
    ask_stale(c);
}

static int by_creation(const void *a, const void *b) {
    const struct version *x = a, *y = b;
    return (x->created_usec > y->created_usec) - (x->created_usec < y->created_usec);
}

static int take_list(struct keeper *k, const Vg__Pb__EnvList *list) {
    struct version *v = vg_alloc((list->n_env + 1) * sizeof *v);
    if (!v)
        return -ENOMEM;
    for (size_t i = 0; i < list->n_env; i++)
        v[i] = (struct version){list->env[i]->created_usec, list->env[i]->bytes};
    qsort(v, list->n_env, sizeof *v, by_creation);
    free(k->v);
    k->v = v;
    k->n = list->n_env;
    k->known = true;
    return 0;
}

static void fail_removals(struct vg_control *c, const struct keeper *k) {
    vg_list_for_each_safe (it, &c->kept->removals) {
        struct removal *m = vg_list_entry(it, struct removal, link);
        struct vg_peer *p = vg_peer_find(c, m->peer);
        if (m->cut || strcmp(m->user, k->user) != 0)
            continue;
        if (p)
            vg_peer_error(p, m->req, VG_UNAVAILABLE,
                          "the store of environments does not answer: try again in a moment");
        vg_list_remove(&m->link);
        c->kept->waiting--;
        free(m);
    }
}

void vg_kept_told(struct vg_control *c, const char *user, const Vg__Pb__EnvList *list) {
    struct keeper *k = c->kept ? keeper_of(c->kept, user, false) : NULL;
    if (!k)
        return;
    c->kept->asking -= k->asking;
    k->asking = false;
    if (!list || take_list(k, list) < 0) {
        make_stale(c->kept, k);
        fail_removals(c, k);
        return; /* asked again with the next tick */
    }
    if (is_clean(k))
        cut(c, k, c->ledger.day * VG_DAY_USEC);
    vg_kept_go_on(c);
    vg_budgets_look(c);
}

/* ------------------------------------------------------------------ removals */

bool vg_kept_remove(struct vg_call *call, const char *ref) {
    struct vg_control *c = call->ctl;
    struct keeper *k = c->kept ? keeper_of(c->kept, call->user->name, false) : NULL;
    if (!k)
        return false;
    size_t n = strlen(ref) + 1;
    struct removal *m = c->kept->waiting < VG_KEPT_REMOVALS_MAX ? vg_alloc(sizeof *m + n) : NULL;
    if (!m) {
        vg_peer_error(call->peer, call->req, VG_NO_CAPACITY,
                      "the store of environments is busy: try again in a moment");
        return true;
    }
    vg_list_init(&m->link);
    m->peer = call->peer->serial;
    m->req = call->req;
    snprintf(m->user, sizeof m->user, "%s", call->user->name);
    snprintf(m->team, sizeof m->team, "%s", call->user->team->name);
    snprintf(m->from, sizeof m->from, "%s", call->peer->who.from);
    memcpy(m->ref, ref, n);
    vg_list_push_back(&c->kept->removals, &m->link);
    c->kept->waiting++;
    vg_kept_go_on(c);
    return true;
}

/* One after the other of each user: a row has to know what there is. */
static void go_on(struct vg_control *c, struct removal *m) {
    struct keeper *k = keeper_of(c->kept, m->user, false);
    if (k && !m->cut && !is_clean(k))
        return;
    if (k && !m->cut) {
        cut(c, k, vg_wall_usec());
        k->removing++;
        m->cut = true;
        m->need = c->ledger.last;
    }
    if (k && c->ledger.stored < m->need)
        return;
    vg_list_remove(&m->link);
    c->kept->waiting--;
    struct vg_env_removal what = {m->peer, m->req, m->user, m->team, m->from, m->ref};
    if (vg_envs_remove(c, &what) < 0 && k)
        vg_kept_removed(c, m->user);
    free(m);
}

void vg_kept_go_on(struct vg_control *c) {
    if (!c->kept || c->stopping)
        return;
    vg_list_for_each_safe (it, &c->kept->removals)
        go_on(c, vg_list_entry(it, struct removal, link));
    ask_stale(c);
}

void vg_kept_removed(struct vg_control *c, const char *user) {
    struct keeper *k = c->kept ? keeper_of(c->kept, user, false) : NULL;
    if (!k)
        return;
    k->removing -= k->removing > 0;
    vg_kept_ask(c, user);
}

/* ------------------------------------------------------------------ times and owners */

void vg_kept_cut(struct vg_control *c, const char *user) {
    if (!c->kept)
        return;
    vg_map_for_each (s, &c->kept->users) {
        struct keeper *k = s->value;
        if ((!user || strcmp(k->user, user) == 0) && k->known && !k->removing)
            cut(c, k, vg_wall_usec());
    }
}

void vg_kept_forget(struct vg_control *c, const char *user) {
    struct keeper *k = c->kept ? keeper_of(c->kept, user, false) : NULL;
    if (!k)
        return;
    vg_kept_cut(c, user);
    c->kept->asking -= k->asking;
    vg_map_del(&c->kept->users, k->user);
    keeper_free(k);
}

void vg_kept_tick(struct vg_control *c) {
    uint64_t midnight = c->ledger.day * VG_DAY_USEC;
    if (!c->kept)
        return;
    vg_map_for_each (s, &c->kept->users) {
        struct keeper *k = s->value;
        if (is_clean(k) && k->w.until_usec < midnight)
            cut(c, k, midnight);
    }
    vg_kept_go_on(c);
}

/* ------------------------------------------------------------------ prices */

static uint64_t first_price(const struct vg_book *b) {
    uint64_t from = UINT64_MAX;
    for (size_t i = 0; i < b->n; i++)
        if (b->tariff[i].storage_gib_month_micro && !b->tariff[i].pool[0] && !b->tariff[i].class[0])
            from = VG_MIN(from, b->tariff[i].from_usec);
    return from;
}

static int start(struct vg_control *c) {
    uint64_t since = first_price(&c->book);
    if (c->kept || since == UINT64_MAX) {
        if (c->kept)
            c->kept->since_usec = VG_MIN(c->kept->since_usec, since);
        return 0;
    }
    struct vg_kept *all = c->kept = vg_alloc(sizeof *all);
    if (!all)
        return -ENOMEM;
    vg_list_init(&all->stale);
    vg_list_init(&all->removals);
    all->since_usec = since;
    vg_map_for_each (s, &c->tenants.users) {
        const struct vg_user *u = s->value;
        struct keeper *k = keeper_of(all, u->name, true);
        if (!k)
            return -ENOMEM;
        make_stale(all, k);
    }
    return 0;
}

void vg_kept_look(struct vg_control *c) {
    int r = start(c);
    if (r < 0)
        vg_error("what is kept cannot be charged: %s", strerror(-r));
}

static int restore_row(void *arg, const struct vg_ledger_row *row) {
    struct vg_control *c = arg;
    struct keeper *k = keeper_of(c->kept, row->user, true);
    if (!k)
        return -ENOMEM;
    k->w.until_usec = row->until_usec;
    k->w.rest = (vg_wide)row->rest_hi << 64 | row->rest_lo;
    snprintf(k->w.currency, sizeof k->w.currency, "%s", row->currency);
    return 0;
}

int vg_kept_open(struct vg_control *c, struct vg_err *err) {
    int r = start(c);
    if (r >= 0 && c->kept)
        r = vg_store_load_kept(c->store, restore_row, c);
    return r < 0 ? vg_err_sys(err, r, "cannot read the ledger in %s", c->home.db) : 0;
}

void vg_kept_done(struct vg_control *c) {
    if (!c->kept)
        return;
    while (!vg_list_empty(&c->kept->removals)) {
        struct removal *m = vg_list_entry(vg_list_first(&c->kept->removals), struct removal, link);
        vg_list_remove(&m->link);
        free(m);
    }
    vg_map_for_each (s, &c->kept->users)
        keeper_free(s->value);
    vg_map_done(&c->kept->users);
    free(vg_take_ptr(c->kept));
}
