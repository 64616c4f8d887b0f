/* What tasks hold is charged to the last millionth, whatever happens to prices, shares and the
   control plane; budgets and --max-cost hold. */
#include "base/util.h"
#include "control/budget-int.h"
#include "control/job.h"
#include "control/ledger.h"
#include "control/persist.h"
#include "control/price.h"
#include "world.h"

#include <sqlite3.h>
#include <stdio.h>
#include <string.h>

#define T1 0x1111111111111111ULL
#define T2 0x2222222222222222ULL
#define GIB (1ULL << 30)
#define SEC 1000000ULL

static struct world w;
static struct side client, agent;
static uint64_t node;

/* A CPU costs one a second, a millionth a microsecond; a GPU a thousandth a second. */
static const char config[] = "currency: EUR\n"
                             "pools:\n"
                             "- {name: cpu, shape: {cpus: 1}, price: {cpu_hour: 3600}}\n"
                             "- {name: cards, class: shared, price: {gpu_hour: 3.6}}\n";

/* Prices as if they had always held: tasks here began in the past. */
static void since_ever(void) {
    for (size_t i = 0; i < w.c.book.n; i++)
        w.c.book.tariff[i].from_usec = 0;
}

static void setup(void) {
    world_up(&w, config);
    since_ever();
    node = play_gpu_node(&w, &agent, "n", 0, 1, 80 * GIB, NULL, 0);
    side_open(&w, &client);
}

static void teardown(void) {
    side_close(&w, &client);
    side_close(&w, &agent);
    world_down(&w);
}

TestSuite(money, .init = setup, .fini = teardown, .timeout = 120);

static Vg__Pb__Resources want;
static uint64_t max_cost;
static uint32_t retries;

static void in_cpu(Vg__Pb__RunReq *r) {
    r->spec->pool = "cpu";
    r->spec->interactive = 0;
    r->spec->has_detached = r->spec->detached = 1;
    r->spec->has_max_cost_micro = max_cost != 0;
    r->spec->max_cost_micro = max_cost;
    r->spec->has_retries = retries != 0;
    r->spec->retries = retries;
}

static void in_cards(Vg__Pb__RunReq *r) {
    in_cpu(r);
    vg__pb__resources__init(&want);
    want.has_gpu_milli = want.has_gpu_mem_bytes = 1;
    want.gpu_milli = 250;
    want.gpu_mem_bytes = GIB;
    r->spec->pool = "cards";
    r->spec->want = &want;
}

/* Tasks here begin when the test says so: as if they had been sent in an earlier life, long ago. */
static void started(uint64_t task, uint32_t attempt, uint64_t when) {
    struct msg m = side_expect(&w, &agent, BODY(START));
    struct vg_job *j = vg_job_get(&w.c, task);
    msg_done(&m);
    j->sent_usec = 0;
    j->task->created_usec = 1;
    Vg__Pb__TaskStarted s = VG__PB__TASK_STARTED__INIT;
    s.has_task_id = s.has_attempt = s.has_started_usec = 1;
    s.task_id = task;
    s.attempt = attempt;
    s.started_usec = when;
    ENV(env, TASK_STARTED, task_started, &s);
    side_send(&agent, &env, NULL, 0);
    side_sync(&w, &agent);
}

static void exited(uint64_t task, uint32_t attempt, uint64_t when, int32_t status,
                   Vg__Pb__GpuUsage *use) {
    Vg__Pb__TaskExited m = VG__PB__TASK_EXITED__INIT;
    m.has_task_id = m.has_attempt = m.has_status = m.has_ended_usec = 1;
    m.task_id = task;
    m.attempt = attempt;
    m.ended_usec = when;
    m.status = status;
    m.gpu_usage = use;
    ENV(env, TASK_EXITED, task_exited, &m);
    side_send(&agent, &env, NULL, 0);
    side_sync(&w, &agent);
    vg_store_flush(w.c.store);
}

struct sums {
    int64_t cost, back;
    uint64_t until, rows;
};

static int add_row(void *arg, const struct vg_ledger_row *row) {
    struct sums *s = arg;
    bool back = strcmp(row->kind, "back") == 0;
    if (!strcmp(row->kind, "held") && s->rows)
        cr_assert_eq(row->from_usec, s->until, "rows follow each other");
    s->cost += row->cost_micro;
    s->back += back;
    s->until = back ? row->from_usec : row->until_usec;
    s->rows++;
    return 0;
}

static struct sums charged(uint64_t task) {
    struct sums s = {0};
    struct vg_ledger_filter f = {.task = task};
    vg_store_flush(w.c.store);
    cr_assert_geq(vg_store_load_ledger(w.c.store, &f, add_row, &s), 0);
    return s;
}

static void add_price(const char *pool, uint64_t from, uint64_t cpu_hour) {
    struct vg_tariff t = {.from_usec = from, .cpu_hour_micro = cpu_hour, .currency = "EUR"};
    snprintf(t.pool, sizeof t.pool, "%s", pool);
    cr_assert_eq(vg_book_add(&w.c.book, &t), 0);
}

Test(money, a_price_change_bills_both_parts) {
    uint64_t begin = vg_wall_usec() - 100 * SEC;
    play_run(&client, T1, in_cpu);
    started(T1, 1, begin);
    add_price("cpu", begin + 40 * SEC + 1, 7200 * SEC);
    cr_assert_eq(vg_ledger_spent(vg_job_get(&w.c, T1), begin + 50 * SEC), 60 * SEC - 1,
                 "until now");
    exited(T1, 1, begin + 100 * SEC, 0, NULL);
    struct sums s = charged(T1);
    cr_assert_eq(s.cost, 160 * SEC - 1);
    cr_assert_geq(s.rows, 2);
    cr_assert_eq(s.until, begin + 100 * SEC);
}

static void share(uint32_t milli) {
    Vg__Pb__TaskShare m = VG__PB__TASK_SHARE__INIT;
    m.task = "1111111111111111";
    m.has_gpu_milli = 1;
    m.gpu_milli = milli;
    ENV(env, SHARE_SET, share_set, &m);
    side_send(&client, &env, NULL, 0);
    struct msg a = side_expect(&w, &client, BODY(TASK));
    msg_done(&a);
}

Test(money, a_changed_share_bills_both_parts_and_a_restart_changes_nothing) {
    uint64_t begin = vg_wall_usec() - 7777777;
    play_run(&client, T1, in_cards);
    started(T1, 1, begin);
    share(333);
    const struct vg_task *t = vg_job_get(&w.c, T1)->task;
    uint64_t cut = t->share.since_usec;
    side_close(&w, &client);
    side_close(&w, &agent);
    world_stop(&w);
    world_start(&w);
    since_ever();
    Vg__Pb__TaskReport r = VG__PB__TASK_REPORT__INIT, *list[] = {&r};
    r.has_task_id = r.has_attempt = r.has_state = r.has_started_usec = 1;
    r.task_id = T1;
    r.attempt = 1;
    r.state = VG__PB__TASK_REPORT__STATE__RUNNING;
    r.started_usec = begin;
    play_gpu_node(&w, &agent, "n", node, 1, 80 * GIB, list, 1);
    uint64_t end = vg_wall_usec();
    cr_assert_gt(end, cut);
    exited(T1, 1, end, 0, NULL);
    struct vg_hold a = {.gpu_milli = 250}, b = {.gpu_milli = 333};
    const struct vg_tariff *p = vg_book_at(&w.c.book, "cards", "shared", end);
    struct vg_money sum = vg_charge(p, &a, cut - begin), more = vg_charge(p, &b, end - cut);
    vg_money_add(&sum, &more);
    struct sums s = charged(T1);
    cr_assert_eq(s.cost, (int64_t)sum.micro);
    cr_assert_gt(s.cost, 0);
    cr_assert_eq(s.until, end);
}

Test(money, an_end_that_is_told_late_takes_back_what_was_written) {
    uint64_t begin = vg_wall_usec() - 3 * VG_DAY_USEC - 1234567;
    play_run(&client, T1, in_cpu);
    started(T1, 1, begin);
    add_price("cpu", begin + VG_DAY_USEC, 1);
    w.c.ledger.day = 0;
    vg_ledger_tick(&w.c);
    struct sums s = charged(T1);
    cr_assert_eq(s.until % VG_DAY_USEC, 0, "until midnight");
    exited(T1, 1, begin + VG_DAY_USEC / 2, 0, NULL);
    s = charged(T1);
    cr_assert_eq(s.cost, (int64_t)(VG_DAY_USEC / 2));
    cr_assert_gt(s.back, 0);
    cr_assert_eq(s.until, begin + VG_DAY_USEC / 2);
}

Test(money, gpus_that_did_nothing_cost_less) {
    uint64_t begin = vg_wall_usec() - 100 * SEC;
    Vg__Pb__GpuUsage use = VG__PB__GPU_USAGE__INIT;
    for (size_t i = 0; i < w.c.book.n; i++)
        w.c.book.tariff[i].idle_milli = 40000;
    use.has_unused_usec = use.has_sampled_usec = use.has_energy_mj = 1;
    use.sampled_usec = 90 * SEC;
    use.unused_usec = 50 * SEC;
    use.energy_mj = 77;
    play_run(&client, T1, in_cards);
    started(T1, 1, begin);
    exited(T1, 1, begin + 100 * SEC, 0, &use);
    cr_assert_eq(charged(T1).cost, 25000 - 5000, "of a quarter GPU, 40 percent of half the time");
}

static void set_budget(const char *name, uint64_t limit, const char *policy, uint64_t grace) {
    Vg__Pb__BudgetSet b = VG__PB__BUDGET_SET__INIT;
    b.name = (char *)name;
    b.scope = "cloud";
    b.has_limit_micro = b.has_grace_usec = 1;
    b.limit_micro = limit;
    b.grace_usec = grace;
    b.policy = (char *)policy;
    b.period = "year";
    ENV(env, BUDGET_SET, budget_set, &b);
    side_send(&client, &env, NULL, 0);
    struct msg m = side_expect(&w, &client, BODY(OK));
    msg_done(&m);
    while (vg_budget_find(&w.c, name)->counting)
        uv_run(&w.loop, UV_RUN_ONCE);
    vg_budgets_tick(&w.c);
}

static void drop_events(void) {
    while (side_has(&client, BODY(RUN_EVENT))) {
        struct msg m = side_expect(&w, &client, BODY(RUN_EVENT));
        msg_done(&m);
    }
}

Test(money, nothing_starts_on_an_empty_budget_until_there_is_more) {
    play_run(&client, T1, in_cpu);
    started(T1, 1, vg_wall_usec() - 10 * SEC);
    set_budget("b", 9 * SEC, "queue", 0);
    cr_assert_str_eq(vg_budget_state(vg_budget_find(&w.c, "b")), "capped");
    cr_assert_eq(vg_budget_find(&w.c, "b")->warned_percent, 95);
    drop_events();
    play_run(&client, T2, in_cpu);
    struct msg m;
    expect_event(&w, &client, VG__PB__RUN_EVENT__KIND__QUEUED, &m);
    cr_assert(strstr(m.env->run_event->text, "budget 'b' (cloud) is used up"), "%s",
              m.env->run_event->text);
    msg_done(&m);
    side_sync(&w, &agent);
    cr_assert_not(side_has(&agent, BODY(START)));
    set_budget("b", 1000000 * SEC, "queue", 0);
    started(T2, 1, vg_wall_usec());
    cr_assert_str_eq(vg_budget_state(vg_budget_find(&w.c, "b")), "ok");
}

Test(money, what_waits_leaves_the_queue_when_a_budget_is_spent_and_comes_back) {
    static struct vg_job *j;
    play_run(&client, T1, in_cpu);
    started(T1, 1, vg_wall_usec() - 10 * SEC);
    Vg__Pb__NodeSet n = VG__PB__NODE_SET__INIT;
    n.node = "n";
    n.state = "draining";
    ENV(env, NODE_SET, node_set, &n);
    side_send(&client, &env, NULL, 0);
    play_run(&client, T2, in_cpu);
    side_sync(&w, &client);
    j = vg_job_get(&w.c, T2);
    cr_assert(j && j->waits && !j->kept);
    set_budget("b", SEC, "queue", 0);
    cr_assert(!j->waits && j->kept);
    Vg__Pb__NameRef ref = VG__PB__NAME_REF__INIT;
    ref.name = "b";
    ENV(gone, BUDGET_REMOVE, budget_remove, &ref);
    side_send(&client, &gone, NULL, 0);
    side_sync(&w, &client);
    cr_assert(j->waits && !j->kept);
}

Test(money, a_budget_that_stops_gives_notice_before_it_is_reached) {
    play_run(&client, T1, in_cpu);
    started(T1, 1, vg_wall_usec() - 10 * SEC);
    set_budget("b", 13 * SEC, "stop", 2 * SEC);
    struct msg m = side_expect(&w, &agent, BODY(KILL));
    struct vg_budget *b = vg_budget_find(&w.c, "b");
    cr_assert_leq(m.env->kill->grace_usec, 2 * SEC);
    cr_assert_gt(m.env->kill->grace_usec, 0);
    cr_assert_lt(vg_budget_spent(b), b->limit_micro, "before the limit is reached");
    cr_assert(b->holds && b->stopping);
    msg_done(&m);
    exited(T1, 1, vg_wall_usec(), 143, NULL);
    play_run(&client, T2, in_cpu);
    side_sync(&w, &client);
    cr_assert(vg_job_get(&w.c, T2)->kept, "what is left of it is for nobody");
    side_close(&w, &client);
    side_close(&w, &agent);
    world_stop(&w);
    world_start(&w);
    play_gpu_node(&w, &agent, "n", node, 1, 80 * GIB, NULL, 0);
    side_sync(&w, &agent);
    cr_assert(vg_job_get(&w.c, T2)->kept, "nor after a restart");
}

Test(money, max_cost_is_for_all_attempts_together) {
    max_cost = 5 * SEC;
    retries = 1;
    play_run(&client, T1, in_cpu);
    uint64_t now = vg_wall_usec();
    started(T1, 1, now - 3 * SEC);
    exited(T1, 1, now, 1, NULL);
    uint64_t again = vg_wall_usec();
    started(T1, 2, again - SEC);
    cr_assert_eq(vg_ledger_pays_until(vg_job_get(&w.c, T1)), again + SEC);
    add_price("cpu", again, 7200 * SEC);
    cr_assert_eq(vg_ledger_pays_until(vg_job_get(&w.c, T1)), again + SEC / 2);
    vg_ledger_look(&w.c);
    struct msg m = side_expect(&w, &agent, BODY(KILL));
    cr_assert(strstr(m.env->kill->text, "--max-cost"), "%s", m.env->kill->text);
    msg_done(&m);
    max_cost = retries = 0;
}

Test(money, an_answer_has_what_is_stored_and_what_runs) {
    uint64_t begin = vg_wall_usec() - 10 * SEC;
    play_run(&client, T1, in_cpu);
    started(T1, 1, begin);
    exited(T1, 1, begin + 5 * SEC, 0, NULL);
    play_run(&client, T2, in_cpu);
    started(T2, 1, begin + 2 * SEC);
    Vg__Pb__CostQuery q = VG__PB__COST_QUERY__INIT;
    char *by[] = {"task", "label:none"};
    q.by = by;
    q.n_by = 2;
    q.has_from_usec = q.has_until_usec = 1;
    q.from_usec = begin + SEC;
    q.until_usec = begin + 4 * SEC;
    ENV(env, COST, cost, &q);
    side_send(&client, &env, NULL, 0);
    struct msg m = side_expect(&w, &client, BODY(COST_INFO));
    cr_assert_eq(m.env->cost_info->n_row, 2);
    cr_assert_eq(m.env->cost_info->total->cost_micro, 5 * SEC);
    cr_assert_eq(m.env->cost_info->row[0]->cost_micro, 3 * SEC);
    cr_assert_str_eq(m.env->cost_info->row[0]->key[0], "1111111111111111");
    cr_assert_eq(m.env->cost_info->row[1]->held_msec, 2000);
    msg_done(&m);
}

Test(money, the_ledger_cannot_be_changed) {
    uint64_t begin = vg_wall_usec() - 10 * SEC;
    sqlite3 *db;
    play_run(&client, T1, in_cpu);
    started(T1, 1, begin);
    exited(T1, 1, begin + 5 * SEC, 0, NULL);
    cr_assert_eq(sqlite3_open(vg_store_path(w.c.store), &db), SQLITE_OK);
    cr_assert_neq(sqlite3_exec(db, "UPDATE ledger SET cost_micro=0", NULL, NULL, NULL), SQLITE_OK);
    cr_assert_neq(sqlite3_exec(db, "DELETE FROM ledger", NULL, NULL, NULL), SQLITE_OK);
    cr_assert_neq(sqlite3_exec(db, "DELETE FROM prices", NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(db);
    cr_assert_eq(charged(T1).cost, 5 * SEC);
}
