/* Policy in a control plane with played clients and agents: limits, priorities, reloads, records.
 */
#include "base/fault.h"
#include "base/util.h"
#include "control/job.h"
#include "control/policy.h"
#include "control/price.h"
#include "policy-world.h"

#include <sqlite3.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define T3 0x3333333333333333ULL

TestSuite(policy, .init = setup, .fini = teardown, .timeout = 120);

/* One number from the store, as another program would read it. */
static int64_t ask(const char *sql) {
    char path[128];
    sqlite3 *db;
    sqlite3_stmt *q;
    vg_store_flush(w.c.store);
    snprintf(path, sizeof path, "%s/control/state.db", w.home);
    cr_assert_eq(sqlite3_open_v2(path, &db, SQLITE_OPEN_READONLY, NULL), SQLITE_OK);
    cr_assert_eq(sqlite3_prepare_v2(db, sql, -1, &q, NULL), SQLITE_OK, "%s", sqlite3_errmsg(db));
    cr_assert_eq(sqlite3_step(q), SQLITE_ROW);
    int64_t v = sqlite3_column_int64(q, 0);
    sqlite3_finalize(q);
    sqlite3_close(db);
    return v;
}

Test(policy, a_queue_at_its_limit_waits_though_there_is_room) {
    play_agent(&w, &agent, "n1", 0, NULL, 0);
    side_open(&w, &client);
    play_run(&client, T1, batch);
    expect_start(T1, 1);
    play_run(&client, T2, batch);
    expect_kind(VG__PB__RUN_EVENT__KIND__QUEUED);
    side_sync(&w, &agent);
    cr_assert_not(side_has(&agent, BODY(START)), "one CPU of two is free, but not for this queue");
    play_exited(&agent, T1, 1, 0);
    expect_start(T2, 1);
}

Test(policy, a_reload_that_raises_the_limit_starts_what_waited) {
    play_agent(&w, &agent, "n1", 0, NULL, 0);
    side_open(&w, &client);
    play_run(&client, T1, batch);
    expect_start(T1, 1);
    play_run(&client, T2, batch);
    expect_kind(VG__PB__RUN_EVENT__KIND__QUEUED);
    play_run(&client, T3, batch);
    expect_kind(VG__PB__RUN_EVENT__KIND__QUEUED);
    reload("pools: [{name: a, shape: {cpus: 1}}]\n");
    expect_start(T2, 1);
    side_sync(&w, &agent);
    cr_assert_not(side_has(&agent, BODY(START)), "what ran before is still counted");
    cr_assert_eq(vg_eng_queued(w.c.policy.eng), 1);
    cr_assert_null(vg_eng_check(w.c.policy.eng));
    play_exited(&agent, T1, 1, 0);
    expect_start(T3, 1);
}

Test(policy, a_reload_with_a_mistake_changes_nothing) {
    side_open(&w, &client);
    write_config("pools:\n- nam: a\n");
    send_reload();
    expect_error(VG_INVALID, "config.yaml:2: unknown key 'nam' in a pool; did you mean 'name'?");
    cr_assert_eq(w.c.conf.n_pools, 2);
    cr_assert_eq(w.c.conf.n_queues, 1);
}

Test(policy, a_pool_with_tasks_cannot_be_left_out) {
    side_open(&w, &client);
    play_run(&client, T1, batch); /* no node: it waits */
    expect_kind(VG__PB__RUN_EVENT__KIND__QUEUED);
    write_config("pools: [{name: b}]\n");
    send_reload();
    expect_error(VG_CONFLICT, "leaves out pool 'a', which has 1 unfinished task: keep it until");
    cr_assert_eq(w.c.conf.n_pools, 2);
    cr_assert_eq(vg_eng_queued(w.c.policy.eng), 1);
    reload("pools: [{name: a}]\n");
    cr_assert_eq(w.c.conf.n_pools, 1);
    cr_assert_eq(vg_eng_queued(w.c.policy.eng), 1);
}

Test(policy, a_pool_that_loses_its_nodes_only_waits) {
    play_agent(&w, &agent, "n1", 0, NULL, 0);
    side_open(&w, &client);
    play_run(&client, T1, batch);
    expect_start(T1, 1);
    play_run(&client, T2, batch);
    expect_kind(VG__PB__RUN_EVENT__KIND__QUEUED);
    write_config("pools:\n- {name: a, nodes: {labels: {none: here}}}\n- {name: b}\n");
    send_reload();
    struct msg m = side_expect(&w, &client, BODY(OK));
    msg_done(&m);
    play_exited(&agent, T1, 1, 0);
    side_sync(&w, &agent);
    cr_assert_not(side_has(&agent, BODY(START)));
    reload(config);
    expect_start(T2, 1);
}

Test(policy, what_is_fixed_until_the_next_start_is_told) {
    side_open(&w, &client);
    write_config("lease: 30s\nlisten: 127.0.0.1:1\n");
    send_reload();
    struct msg m = side_expect(&w, &client, BODY(OK));
    cr_assert(strstr(m.env->ok->text, "; taken at the next start: listen, lease"), "%s",
              m.env->ok->text);
    msg_done(&m);
    cr_assert_eq(w.c.conf.lease_usec, 60 * VG_USEC);
}

static void urgent(Vg__Pb__RunReq *r) {
    batch(r);
    r->spec->has_priority = 1;
    r->spec->priority = 61;
}

static void costly(Vg__Pb__RunReq *r) {
    batch(r);
    r->spec->has_max_cost_micro = 1;
    r->spec->max_cost_micro = 10000000; /* 10, at 3.6 an hour */
}

Test(policy, priorities_and_budgets_are_held) {
    side_open(&w, &client);
    play_run(&client, T1, urgent);
    expect_error(VG_FORBIDDEN, "priority 61 is more than you may ask for: at most 60 is allowed");
    play_run(&client, T2, costly);
    expect_kind(VG__PB__RUN_EVENT__KIND__QUEUED);
    const struct vg_job *j = vg_job_get(&w.c, T2);
    cr_assert_eq(j->task->spec->priority, 20, "the queue's default");
    cr_assert_eq(j->task->spec->time_limit_usec, 0, "its own limit stays what it is");
    cr_assert_eq(vg_prices_limit_usec(&w.c, j->task) / VG_USEC, 10000, "what it pays for");
}

static void retried(Vg__Pb__RunReq *r) {
    batch(r);
    r->spec->has_retries = 1;
    r->spec->retries = 1;
}

Test(policy, every_attempt_and_every_task_is_recorded_once) {
    play_agent(&w, &agent, "n1", 0, NULL, 0);
    side_open(&w, &client);
    play_run(&client, T1, retried);
    expect_start(T1, 1);
    play_started(&agent, T1, 1);
    play_exited(&agent, T1, 1, 3);
    expect_start(T1, 2);
    play_started(&agent, T1, 2);
    play_exited(&agent, T1, 2, 0);
    expect_kind(VG__PB__RUN_EVENT__KIND__ENDED);
    struct msg m = side_expect(&w, &agent, BODY(EXIT_ACK));
    msg_done(&m);
    m = side_expect(&w, &agent, BODY(EXIT_ACK));
    msg_done(&m);
    cr_assert_eq(ask("SELECT count(*) FROM attempts"), 2);
    cr_assert_eq(ask("SELECT count(*) FROM attempts WHERE how='ended' AND cpu_milli=1000"), 2);
    cr_assert_eq(ask("SELECT count(*) FROM load WHERE outcome='succeeded' AND pools='a' AND "
                     "queue='main' AND priority=20 AND attempts=2 AND held_usec>=run_usec"),
                 1);
}

Test(policy, usage_survives_a_restart) {
    play_agent(&w, &agent, "n1", 0, NULL, 0);
    side_open(&w, &client);
    play_run(&client, T1, batch);
    expect_start(T1, 1);
    play_started(&agent, T1, 1);
    play_exited(&agent, T1, 1, 0);
    expect_kind(VG__PB__RUN_EVENT__KIND__ENDED);
    side_close(&w, &client);
    side_close(&w, &agent);
    world_stop(&w);
    world_start(&w);
    cr_assert_gt(ask("SELECT count(*) FROM sched_memory"), 0);
}

/* Whatever fails for want of memory: either the new configuration holds whole, or the old one. */
Test(policy, a_reload_that_fails_midway_changes_nothing) {
    unsigned n = 1;
    int r = -1;
    play_agent(&w, &agent, "n1", 0, NULL, 0);
    side_open(&w, &client);
    play_run(&client, T1, batch);
    expect_start(T1, 1);
    play_run(&client, T2, batch);
    expect_kind(VG__PB__RUN_EVENT__KIND__QUEUED);
    write_config("pools:\n- {name: a, shape: {cpus: 1}}\nqueues:\n- {name: main, limit: {cpus: 1}, "
                 "weight: 7}\n");
    for (; r < 0 && n < 10000; n++) {
        struct vg_err err = VG_ERR_INIT;
        char text[512];
        vg_fault_arm(n, ENOMEM, "alloc");
        r = vg_policy_reload(&w.c, text, sizeof text, &err);
        bool fired = vg_fault_disarm();
        cr_assert(r >= 0 || fired, "%s", err.msg);
        cr_assert_eq(w.c.conf.n_pools, r < 0 ? 2 : 1);
        cr_assert_eq(vg_eng_queued(w.c.policy.eng), 1);
        cr_assert_null(vg_eng_check(w.c.policy.eng));
    }
    cr_assert_gt(n, 30, "it tests something");
    play_exited(&agent, T1, 1, 0);
    expect_start(T2, 1);
}

static char *others[] = {"b"};

static void either(Vg__Pb__RunReq *r) {
    batch(r);
    r->spec->pool = "far";
    r->spec->also_pool = others;
    r->spec->n_also_pool = 1;
}

Test(policy, a_task_goes_to_the_next_pool_that_will_do) {
    static const char two[] = "pools:\n"
                              "- {name: far, nodes: {labels: {none: here}}}\n"
                              "- {name: b, shared: [/data]}\n";
    side_open(&w, &client);
    reload(two);
    play_agent(&w, &agent, "n1", 0, NULL, 0);
    play_run(&client, T1, either);
    struct msg m = side_expect(&w, &agent, BODY(START));
    cr_assert_eq(m.env->start->n_shared_path, 1, "as its pool has it");
    msg_done(&m);
    cr_assert_str_eq(vg_task_pool(vg_job_get(&w.c, T1)->task), "b");
    write_config("pools: [{name: far}]\n");
    send_reload();
    expect_error(VG_CONFLICT, "leaves out pool 'b', which has 1 unfinished task");
    play_started(&agent, T1, 1);
    play_exited(&agent, T1, 1, 0);
    expect_kind(VG__PB__RUN_EVENT__KIND__ENDED);
    cr_assert_eq(ask("SELECT count(*) FROM attempts WHERE pool='b'"), 1);
    cr_assert_eq(ask("SELECT count(*) FROM history WHERE pools='far,b'"), 1);
    cr_assert_eq(ask("SELECT count(*) FROM tasks WHERE pool='b'"), 1);
}

static void pair(Vg__Pb__RunReq *r) {
    batch(r);
    r->spec->has_shards = r->spec->has_gang = 1;
    r->spec->shards = 2;
    r->spec->gang = 1;
}

static void expect_both(uint64_t group) {
    uint64_t seen = 0;
    for (int i = 0; i < 2; i++) {
        struct msg m = side_expect(&w, &agent, BODY(START));
        seen |= m.env->start->task_id == vg_task_member_id(group, 0)   ? 1
                : m.env->start->task_id == vg_task_member_id(group, 1) ? 2
                                                                       : 4;
        msg_done(&m);
    }
    cr_assert_eq(seen, 3);
}

Test(policy, gangs_go_over_to_the_new_configuration_whole) {
    side_open(&w, &client);
    reload("pools: [{name: a, shape: {cpus: 1}}]\n");
    play_agent(&w, &agent, "n1", 0, NULL, 0);
    play_run(&client, T1, pair);
    expect_both(T1);
    play_run(&client, T2, pair);
    expect_kind(VG__PB__RUN_EVENT__KIND__QUEUED);
    reload("pools: [{name: a, shape: {cpus: 1}}, {name: new}]\n");
    cr_assert_eq(vg_eng_queued(w.c.policy.eng), 2);
    cr_assert_null(vg_eng_check(w.c.policy.eng));
    side_sync(&w, &agent);
    cr_assert_not(side_has(&agent, BODY(START)), "the node is still full");
    play_exited(&agent, vg_task_member_id(T1, 0), 1, 0);
    side_sync(&w, &agent);
    cr_assert_not(side_has(&agent, BODY(START)), "half of the room is not enough for a gang");
    play_exited(&agent, vg_task_member_id(T1, 1), 1, 0);
    expect_both(T2);
}

/* A node takes tasks when the store knows it. */
static void wait_usable(const char *pool) {
    struct vg_eng_pool_info info = {0};
    while (vg_eng_pool_info(w.c.policy.eng, vg_eng_pool_id(pool), &info) >= 0 && !info.usable)
        uv_run(&w.loop, UV_RUN_ONCE);
}

/* A node with two A100s. */
static void play_gpu_agent(void) {
    Vg__Pb__AgentHello h = VG__PB__AGENT_HELLO__INIT;
    Vg__Pb__Resources total = VG__PB__RESOURCES__INIT;
    Vg__Pb__GpuInfo gpu[2] = {VG__PB__GPU_INFO__INIT, VG__PB__GPU_INFO__INIT}, *gpus[2];
    for (uint32_t i = 0; i < 2; i++) {
        gpu[i].has_index = gpu[i].has_mem_bytes = 1;
        gpu[i].index = i;
        gpu[i].mem_bytes = (80 - i) * (1ULL << 30);
        gpu[i].model = "NVIDIA A100-SXM4-80GB";
        gpus[i] = &gpu[i];
    }
    total.has_cpu_milli = 1;
    total.cpu_milli = 2000;
    h.node_id = "";
    h.name = "g1";
    h.total = &total;
    h.machine_id = w.c.machine_id;
    h.gpu = gpus;
    h.n_gpu = 2;
    ENV(env, AGENT_HELLO, agent_hello, &h);
    side_open(&w, &agent);
    side_send(&agent, &env, NULL, 0);
    struct msg m = side_expect(&w, &agent, BODY(AGENT_HELLO_OK));
    msg_done(&m);
}

static void with_reservation(const char *whom, char *out, size_t n) {
    time_t t = time(NULL) - 60;
    struct tm tm;
    char from[40], until[40];
    gmtime_r(&t, &tm);
    strftime(from, sizeof from, "%Y-%m-%dT%H:%M:%SZ", &tm);
    t += 7200;
    gmtime_r(&t, &tm);
    strftime(until, sizeof until, "%Y-%m-%dT%H:%M:%SZ", &tm);
    snprintf(out, n,
             "pools: [{name: g, shape: {gpus: 1}, models: [a100]}]\n"
             "reservations: [{name: course, team: %s, gpus: 2, from: %s, until: %s}]\n",
             whom, from, until);
}

Test(policy, what_is_reserved_is_kept_for_those_it_is_for) {
    char text[512];
    side_open(&w, &client);
    with_reservation("students", text, sizeof text);
    reload(text);
    play_gpu_agent();
    wait_usable("g");
    vg_policy_windows(&w.c);
    play_run(&client, T1, batch);
    expect_kind(VG__PB__RUN_EVENT__KIND__QUEUED);
    side_sync(&w, &agent);
    cr_assert_not(side_has(&agent, BODY(START)), "both cards are the students'");
    with_reservation("main", text, sizeof text);
    reload(text);
    struct msg m = side_expect(&w, &agent, BODY(START));
    cr_assert_eq(m.env->start->task_id, T1);
    cr_assert_eq(m.env->start->n_gpu, 1);
    msg_done(&m);
}

static void large_card(Vg__Pb__RunReq *r) {
    static Vg__Pb__Resources want;
    batch(r);
    want = vg_res_to_pb((struct vg_res){.gpus = 1, .gpu_mem_bytes = 80ULL << 30});
    r->spec->want = &want;
}

static void other_card(Vg__Pb__RunReq *r) {
    batch(r);
    r->spec->gpu_model = "H100|H200";
}

static void right_card(Vg__Pb__RunReq *r) {
    batch(r);
    r->spec->gpu_model = "H100|A100";
}

Test(policy, cards_are_chosen_by_model_and_memory) {
    side_open(&w, &client);
    reload("pools: [{name: g, shape: {gpus: 1}}]\n");
    play_gpu_agent();
    wait_usable("g");
    play_run(&client, T1, right_card);
    expect_start(T1, 1);
    play_run(&client, T2, other_card);
    struct msg m;
    expect_event(&w, &client, VG__PB__RUN_EVENT__KIND__ENDED, &m);
    cr_assert_eq(m.env->run_event->task_id, T2);
    cr_assert_eq(m.env->run_event->reason, VG_NO_CAPACITY, "no node of the pool has such a card");
    msg_done(&m);
    play_run(&client, T3, large_card);
    expect_event(&w, &client, VG__PB__RUN_EVENT__KIND__ENDED, &m);
    cr_assert_eq(m.env->run_event->reason, VG_NO_CAPACITY, "each card surely has 79 GiB, not 80");
    msg_done(&m);
}
