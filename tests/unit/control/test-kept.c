/* What users keep is charged from its creation until its removal is asked for, to the last
   millionth, whatever happens to prices, teams, clocks and the control plane. The store of
   environments is played here. */
#include "base/util.h"
#include "control/budget-int.h"
#include "control/kept.h"
#include "control/ledger.h"
#include "control/price.h"
#include "control/users.h"
#include "world.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GIB (1ULL << 30)
#define SEC 1000000ULL
#define VERSIONS 12
#define USER "ann"

static struct world w;
static struct side client;
static uint64_t seed;

static uint64_t draw(uint64_t below) {
    seed = seed * 6364136223846793005ULL + 1442695040888963407ULL;
    return (seed >> 11) % below;
}

static void setup(void) {
    world_up(&w, "currency: EUR\n");
    side_open(&w, &client);
    struct vg_user *u = NULL;
    struct vg_err err = VG_ERR_INIT;
    cr_assert_geq(vg_tenants_add_user(&w.c.tenants, USER, VG_TEAM_DEFAULT, VG_ROLE_MEMBER, -1, -1,
                                      0, 1, &u, &err),
                  0);
    cr_assert_geq(vg_users_store(&w.c, u, NULL, NULL), 0);
}

static void teardown(void) {
    side_close(&w, &client);
    world_down(&w);
}

TestSuite(kept, .init = setup, .fini = teardown, .timeout = 120);

/* As if it had been set then; stored, so that a restart finds it. */
static void add_price(uint64_t from, uint64_t month) {
    struct vg_tariff t = {.from_usec = from, .storage_gib_month_micro = month, .currency = "EUR"};
    cr_assert_eq(vg_book_add(&w.c.book, &t), 0);
    struct vg_price_row row = {.id = w.c.book.tariff[w.c.book.n - 1].id,
                               .pool = "",
                               .class_name = "",
                               .currency = "EUR",
                               .who = "test",
                               .from_usec = from,
                               .storage_gib_month_micro = month};
    cr_assert_geq(vg_store_add_price(w.c.store, &row, NULL, NULL), 0);
    vg_kept_look(&w.c);
}

struct version {
    uint64_t created, bytes, removed; /* removed 0: it is there */
};

/* The store's answer. */
static void tell(const struct version *v, size_t n) {
    Vg__Pb__EnvInfo info[VERSIONS], *list[VERSIONS];
    Vg__Pb__EnvList m = VG__PB__ENV_LIST__INIT;
    m.env = list;
    for (size_t i = n; i--;) /* in no order */
        if (!v[i].removed) {
            Vg__Pb__EnvInfo *e = list[m.n_env] = &info[m.n_env];
            m.n_env++;
            vg__pb__env_info__init(e);
            e->has_created_usec = e->has_bytes = 1;
            e->created_usec = v[i].created;
            e->bytes = v[i].bytes;
        }
    vg_kept_told(&w.c, USER, &m); /* whatever it was asked is answered now */
    vg_kept_told(&w.c, USER, &m);
}

struct sums {
    int64_t cost;
    uint64_t from, until, rows;
    char team[64];
};

static int add_row(void *arg, const struct vg_ledger_row *row) {
    struct sums *s = arg;
    if (strcmp(row->kind, VG_LEDGER_STORAGE) != 0)
        return 0;
    cr_assert_lt(row->from_usec, row->until_usec);
    cr_assert_geq(row->from_usec, s->until, "never twice");
    cr_assert_eq(row->from_usec / VG_DAY_USEC, (row->until_usec - 1) / VG_DAY_USEC, "of one day");
    cr_assert_str_eq(row->user, USER);
    s->from = s->rows ? s->from : row->from_usec;
    s->cost += row->cost_micro;
    s->until = row->until_usec;
    s->rows++;
    snprintf(s->team, sizeof s->team, "%s", row->team);
    return 0;
}

static struct sums charged(void) {
    struct sums s = {0};
    struct vg_ledger_filter f = {0};
    vg_store_flush(w.c.store);
    cr_assert_geq(vg_store_load_ledger(w.c.store, &f, add_row, &s), 0);
    return s;
}

/* What it comes to, by hand: over bytes times microseconds times millionths a month. */
static int64_t due(const struct version *v, size_t n, uint64_t until) {
    vg_wide sum = 0;
    const struct vg_book *b = &w.c.book;
    for (size_t i = 0; i < n; i++) {
        uint64_t end = v[i].removed && v[i].removed < until ? v[i].removed : until;
        for (uint64_t at = v[i].created; at < end;) {
            const struct vg_tariff *t = vg_book_at(b, "", "", at);
            uint64_t next = vg_book_next(b, "", "", at);
            next = next < end ? next : end;
            sum += t ? (vg_wide)t->storage_gib_month_micro * v[i].bytes * (next - at) : 0;
            at = next;
        }
    }
    return (int64_t)(sum / ((vg_wide)GIB * 30 * 86400 * SEC));
}

static void restart(void) {
    side_close(&w, &client);
    world_stop(&w);
    world_start(&w);
    side_open(&w, &client);
}

Test(kept, sums_are_exact_through_changes_of_everything) {
    uint64_t begin = vg_wall_usec() - 40 * VG_DAY_USEC;
    struct version v[VERSIONS] = {0};
    size_t n = 0;
    for (seed = 7; n < VERSIONS;) {
        for (int i = 0; i < 2; i++)
            add_price(begin + draw(39 * VG_DAY_USEC), 1 + draw(3 * SEC));
        for (int i = 0; i < 3; i++)
            v[n++] = (struct version){.created = begin + draw(40 * VG_DAY_USEC),
                                      .bytes = 1 + draw(50 * GIB)};
        /* Nothing was written yet of what comes late to be known: as after a kill. */
        tell(v, n);
        if (n == 3)
            break;
    }
    vg_kept_cut(&w.c, USER);
    struct sums s = charged();
    cr_assert_gt(s.rows, 2);
    cr_assert_gt(s.cost, 0);
    cr_assert_eq(s.cost, due(v, n, s.until));
    for (int round = 0; round < 6; round++) {
        if (round % 2)
            restart();
        add_price(vg_wall_usec(), 1 + draw(900000 * SEC));
        if (round == 2)
            v[0].removed = charged().until; /* its removal was asked for at a cut */
        v[n++] = (struct version){.created = vg_wall_usec(), .bytes = draw(900 * GIB)};
        tell(v, n);
        vg_kept_cut(&w.c, round == 4 ? NULL : USER);
        s = charged();
        cr_assert_eq(s.cost, due(v, n, s.until), "round %d: %lld %lld", round, (long long)s.cost,
                     (long long)due(v, n, s.until));
    }
}

Test(kept, a_clock_that_goes_back_charges_nothing_twice) {
    uint64_t now = vg_wall_usec(), day = now / VG_DAY_USEC * VG_DAY_USEC;
    uint64_t later = day + VG_DAY_USEC;
    struct version v = {.created = day, .bytes = 100 * GIB};
    add_price(day, 1000000 * SEC);
    tell(&v, 1);
    struct vg_ledger_row row = {.kind = VG_LEDGER_STORAGE,
                                .user = USER,
                                .team = VG_TEAM_DEFAULT,
                                .org = "",
                                .project = "",
                                .pool = "",
                                .class_name = "",
                                .node = "",
                                .labels = "",
                                .text = "",
                                .who = "",
                                .currency = "EUR",
                                .price = 1,
                                .from_usec = day,
                                .until_usec = later,
                                .cost_micro = 5};
    cr_assert_geq(vg_ledger_add(&w.c, &row, NULL, NULL), 0); /* of a clock that was ahead */
    vg_store_flush(w.c.store);
    restart();
    tell(&v, 1);
    vg_kept_cut(&w.c, USER);
    cr_assert_eq(charged().rows, 1);
}

Test(kept, what_costs_nothing_has_no_rows) {
    uint64_t now = vg_wall_usec();
    struct version v = {.created = now - 100 * VG_DAY_USEC, .bytes = GIB};
    vg_kept_ask(&w.c, USER);
    cr_assert_null(w.c.kept, "nobody is asked");
    add_price(now - 10 * SEC, 0);
    cr_assert_null(w.c.kept);
    add_price(now - 5 * SEC, SEC);
    add_price(now - 4 * SEC, 0);
    tell(&v, 1);
    vg_kept_cut(&w.c, USER);
    struct sums s = charged();
    cr_assert(s.rows && s.from == now - 5 * SEC && s.until == now - 4 * SEC);
}

Test(kept, it_is_the_teams_that_the_user_was_in) {
    uint64_t now = vg_wall_usec();
    struct version v = {.created = now - 1000 * SEC, .bytes = 1000 * GIB};
    struct vg_team *team = NULL;
    struct vg_err err = VG_ERR_INIT;
    cr_assert_geq(vg_tenants_add_team(&w.c.tenants, VG_ORG_DEFAULT, "blue", 1, &team, &err), 0);
    add_price(now - 1000 * SEC, 1000 * SEC);
    tell(&v, 1);
    vg_kept_cut(&w.c, USER);
    struct sums before = charged();
    cr_assert_str_eq(before.team, VG_TEAM_DEFAULT);
    vg_tenants_move_user(vg_tenants_user(&w.c.tenants, USER), team);
    vg_kept_cut(&w.c, USER);
    struct sums after = charged();
    cr_assert_str_eq(after.team, "blue");
    cr_assert_eq(after.cost, due(&v, 1, after.until));
}

Test(kept, budgets_count_it) {
    uint64_t now = vg_wall_usec();
    struct version v = {.created = now - 3600 * SEC, .bytes = 720 * GIB};
    add_price(now - 3600 * SEC, SEC); /* one an hour */
    tell(&v, 1);
    Vg__Pb__BudgetSet b = VG__PB__BUDGET_SET__INIT;
    b.name = "mine";
    b.scope = "user:" USER;
    b.has_limit_micro = 1;
    b.limit_micro = 3600 * SEC;
    b.policy = "warn";
    b.period = "once";
    ENV(env, BUDGET_SET, budget_set, &b);
    side_send(&client, &env, NULL, 0);
    struct msg m = side_expect(&w, &client, BODY(OK));
    msg_done(&m);
    const struct vg_budget *mine = vg_budget_find(&w.c, "mine");
    while (mine->counting)
        uv_run(&w.loop, UV_RUN_ONCE);
    while (vg_wall_usec() < mine->set_usec + 10000) /* so that it costs a millionth or two */
        uv_run(&w.loop, UV_RUN_NOWAIT);
    vg_budgets_tick(&w.c);
    cr_assert_eq(mine->rate_micro_hour, SEC);
    uint64_t running = vg_budget_spent(mine);
    uint64_t lasted = vg_wall_usec() - mine->set_usec;
    cr_assert(running > 0 && running <= lasted / 3600 + 2, "of its own period alone");
    vg_kept_cut(&w.c, USER);
    vg_budgets_tick(&w.c);
    cr_assert_geq(vg_budget_spent(mine), running, "also when it is written");
}
