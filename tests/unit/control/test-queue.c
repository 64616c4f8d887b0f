/* What people ask of the queue in a control plane with played clients and agents: why a task waits,
   what would happen, who is next, and what whoever waits is told. */
#include "base/util.h"
#include "control/job.h"
#include "control/place.h"
#include "control/policy.h"
#include "policy-world.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

TestSuite(queue, .init = setup, .fini = teardown, .timeout = 120);

static void windowed(char *out, size_t n, int64_t from_now_s) {
    time_t t = time(NULL) + from_now_s;
    struct tm tm;
    char when[40];
    gmtime_r(&t, &tm);
    strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", &tm);
    snprintf(out, n,
             "pools: [{name: a, shape: {cpus: 1}}]\n"
             "maintenance: [{name: rewiring, start: %s, duration: 2h, nodes: [n1]}]\n",
             when);
}

static void send_why(const char *task) {
    Vg__Pb__TaskRef ref = VG__PB__TASK_REF__INIT;
    ref.task = (char *)task;
    ENV(env, TASK_WHY, task_why, &ref);
    side_send(&client, &env, NULL, 0);
}

Test(queue, maintenance_keeps_tasks_off_a_node_and_is_told) {
    char text[512];
    windowed(text, sizeof text, -60);
    side_open(&w, &client);
    reload(text);
    play_agent(&w, &agent, "n1", 0, NULL, 0);
    vg_policy_windows(&w.c); /* as housekeeping does each second */
    play_run(&client, T1, batch);
    expect_kind(VG__PB__RUN_EVENT__KIND__QUEUED);
    side_sync(&w, &agent);
    cr_assert_not(side_has(&agent, BODY(START)));
    send_why("1111111111111111");
    struct msg m = side_expect(&w, &client, BODY(WHY));
    cr_assert_str_eq(m.env->why->code, "window");
    cr_assert(strstr(m.env->why->text, "rewiring"), "%s", m.env->why->text);
    msg_done(&m);
    reload("pools: [{name: a, shape: {cpus: 1}}]\n");
    expect_start(T1, 1);
}

static void dry(Vg__Pb__RunReq *r) {
    batch(r);
    r->has_dry_run = r->dry_run = 1;
    r->spec->has_time_limit_usec = 1;
    r->spec->time_limit_usec = 1800 * VG_USEC;
}

static void dry_huge(Vg__Pb__RunReq *r) {
    static Vg__Pb__Resources want;
    dry(r);
    want = vg_res_to_pb((struct vg_res){.cpu_milli = 4000000});
    r->spec->want = &want;
}

/* A node takes tasks when the store knows it. */
static void wait_usable(const char *pool) {
    struct vg_eng_pool_info info = {0};
    while (vg_eng_pool_info(w.c.policy.eng, vg_eng_pool_id(pool), &info) >= 0 && !info.usable)
        uv_run(&w.loop, UV_RUN_ONCE);
}

Test(queue, a_dry_run_answers_and_submits_nothing) {
    play_agent(&w, &agent, "n1", 0, NULL, 0);
    wait_usable("a");
    side_open(&w, &client);
    play_run(&client, T1, dry);
    struct msg m = side_expect(&w, &client, BODY(RUN_EVENT));
    const Vg__Pb__WhyInfo *f = m.env->run_event->forecast;
    cr_assert(f && f->text && *f->text);
    cr_assert_str_eq(f->code, "free");
    cr_assert_str_eq(f->pool, "a");
    cr_assert_eq(f->cost_micro, 1800000, "half an hour of a CPU at 3.6");
    cr_assert_str_eq(f->currency, "USD");
    msg_done(&m);
    play_run(&client, T2, dry_huge);
    expect_error(VG_NO_CAPACITY, "pool");
    cr_assert_eq(vg_map_len(&w.c.jobs), 0);
    cr_assert_eq(vg_eng_queued(w.c.policy.eng), 0);
}

Test(queue, why_tells_of_every_state) {
    static const struct {
        const char *task, *code, *piece;
    } table[] = {{"1111111111111111", "running", "it is being started on n1"},
                 {"2222222222222222", "limit", "limit"}};
    play_agent(&w, &agent, "n1", 0, NULL, 0);
    side_open(&w, &client);
    play_run(&client, T1, batch);
    expect_start(T1, 1);
    play_run(&client, T2, batch);
    expect_kind(VG__PB__RUN_EVENT__KIND__QUEUED);
    for (size_t i = 0; i < VG_COUNT(table); i++) {
        send_why(table[i].task);
        struct msg m = side_expect(&w, &client, BODY(WHY));
        cr_expect_str_eq(m.env->why->code, table[i].code);
        cr_expect(strstr(m.env->why->text, table[i].piece), "%s", m.env->why->text);
        msg_done(&m);
    }
    send_why("nobody");
    expect_error(VG_NOT_FOUND, "nobody");
}

Test(queue, the_queue_is_shown_in_order_with_everybody_in_it) {
    side_open(&w, &client);
    play_run(&client, T1, batch);
    expect_kind(VG__PB__RUN_EVENT__KIND__QUEUED);
    play_run(&client, T2, batch);
    expect_kind(VG__PB__RUN_EVENT__KIND__QUEUED);
    Vg__Pb__QueueQuery q = VG__PB__QUEUE_QUERY__INIT;
    ENV(env, QUEUE, queue, &q);
    side_send(&client, &env, NULL, 0);
    struct msg m = side_expect(&w, &client, BODY(QUEUE_INFO));
    const Vg__Pb__QueueInfo *i = m.env->queue_info;
    cr_assert(i->total == 2 && i->n_row == 2 && i->n_tenant == 2);
    cr_assert(i->row[0]->task_id == T1 && i->row[1]->task_id == T2);
    cr_assert_str_eq(i->tenant[0]->name, "main");
    cr_assert_eq(i->tenant[0]->queued, 2);
    msg_done(&m);
    q.pool = "c";
    side_send(&client, &env, NULL, 0);
    expect_error(VG_NOT_FOUND, "there is no pool 'c'");
}

static void whole(Vg__Pb__RunReq *r) {
    r->spec->pool = "b";
}

/* What the client hears of a task that waits. */
static void expect_queued(uint64_t task, struct msg *ret) {
    for (;;) {
        expect_event(&w, &client, VG__PB__RUN_EVENT__KIND__QUEUED, ret);
        if (ret->env->run_event->task_id == task)
            return;
        msg_done(ret);
    }
}

Test(queue, whoever_waits_hears_of_progress_and_only_of_that) {
    struct msg m;
    side_open(&w, &client);
    reload("pools: [{name: a}, {name: b, shape: {cpus: 2}}]\n");
    play_run(&client, T1, whole);
    expect_queued(T1, &m);
    msg_done(&m);
    play_run(&client, T2, whole);
    expect_queued(T2, &m);
    cr_assert(strstr(m.env->run_event->text, "queued: pool b has no nodes yet"), "%s",
              m.env->run_event->text);
    cr_assert(strstr(m.env->run_event->text, "(virga task why 22222222)"));
    msg_done(&m);
    w.c.told_usec = 0;
    vg_place_tick(&w.c);
    side_sync(&w, &client);
    cr_assert_not(side_has(&client, BODY(RUN_EVENT)), "nothing has changed");
    play_agent(&w, &agent, "n1", 0, NULL, 0);
    expect_start(T1, 1);
    w.c.told_usec = 0;
    vg_place_tick(&w.c);
    expect_queued(T2, &m);
    cr_assert(strstr(m.env->run_event->text, "queued: you are next on b"), "%s",
              m.env->run_event->text);
    msg_done(&m);
}
