/* Groups, dependencies, retries, preemption, keys and lists on a played cloud. */
#include "base/cleanup.h"
#include "base/util.h"
#include "control/job.h"
#include "control/peer.h"
#include "world.h"

#include <signal.h>
#include <string.h>

#define G1 0x1111111111111111ULL
#define T1 0x2222222222222222ULL
#define T2 0x3333333333333333ULL
#define T3 0x4444444444444444ULL

static struct world w;
static struct side client, agent;

static void setup(void) {
    world_up(&w, NULL);
}

static void teardown(void) {
    side_close(&w, &client);
    side_close(&w, &agent);
    world_down(&w);
}

TestSuite(batch, .init = setup, .fini = teardown, .timeout = 120);

/* ------------------------------------------------------------------ playing */

/* What the next run() asks for. */
static struct ask {
    uint32_t shards, retries;
    char *name, *key, *label, *after;
    Vg__Pb__Dependency__When when;
    int32_t retry_on;
    uint64_t backoff_usec, not_before_usec;
    bool gang;
    Vg__Pb__Sweep **sweep;
    size_t n_sweep;
} ask;

static void tweak(Vg__Pb__RunReq *r) {
    static Vg__Pb__Dependency dep, *deps[] = {&dep};
    static char *labels[1];
    static int32_t retry_on[1];
    Vg__Pb__TaskSpec *s = r->spec;
    s->interactive = 0;
    s->has_detached = s->detached = 1;
    r->has_wait_durable = r->wait_durable = 1;
    s->name = ask.name;
    s->key = ask.key;
    s->has_shards = ask.shards != 0;
    s->shards = ask.shards;
    s->has_retries = ask.retries != 0;
    s->retries = ask.retries;
    s->has_gang = s->gang = ask.gang;
    s->sweep = ask.sweep;
    s->n_sweep = ask.n_sweep;
    s->has_backoff_usec = ask.backoff_usec != 0;
    s->backoff_usec = ask.backoff_usec;
    s->has_not_before_usec = ask.not_before_usec != 0;
    s->not_before_usec = ask.not_before_usec;
    if (ask.label) {
        labels[0] = ask.label;
        s->label = labels;
        s->n_label = 1;
    }
    if (ask.retry_on) {
        retry_on[0] = ask.retry_on;
        s->retry_on = retry_on;
        s->n_retry_on = 1;
    }
    if (ask.after) {
        vg__pb__dependency__init(&dep);
        dep.has_when = ask.when != 0;
        dep.when = ask.when;
        dep.task = ask.after;
        s->after = deps;
        s->n_after = 1;
    }
}

/* Submits and waits for acceptance; the id that was answered. */
static uint64_t run(uint64_t id) {
    struct msg m;
    play_run(&client, id, tweak);
    expect_event(&w, &client, VG__PB__RUN_EVENT__KIND__ACCEPTED, &m);
    id = m.env->run_event->task_id;
    msg_done(&m);
    ask = (struct ask){0};
    return id;
}

static struct msg next_start(void) {
    return side_expect(&w, &agent, BODY(START));
}

static uint64_t expect_start(uint64_t task) {
    struct msg m = next_start();
    uint64_t id = m.env->start->task_id;
    if (task)
        cr_assert_eq(id, task);
    msg_done(&m);
    return id;
}

static void finish(uint64_t task, uint32_t attempt, int32_t status) {
    play_started(&agent, task, attempt);
    play_exited(&agent, task, attempt, status);
}

static struct msg get(const char *ref) {
    Vg__Pb__TaskRef r = VG__PB__TASK_REF__INIT;
    r.task = (char *)ref;
    ENV(env, TASK_GET, task_get, &r);
    side_send(&client, &env, NULL, 0);
    return side_expect(&w, &client, BODY(TASK));
}

static struct msg get_id(uint64_t id) {
    char ref[VG_ID_LEN + 1];
    vg_id_format(id, ref);
    return get(ref);
}

static void expect_state(uint64_t id, const char *state) {
    struct msg m = get_id(id);
    cr_assert_str_eq(m.env->task->state, state, "%s", m.env->task->reason);
    msg_done(&m);
}

/* Until the task has ended and has left memory. */
static int32_t wait_for(uint64_t id) {
    char ref[VG_ID_LEN + 1];
    vg_id_format(id, ref);
    Vg__Pb__TaskRef r = VG__PB__TASK_REF__INIT;
    r.task = ref;
    ENV(env, TASK_WAIT, task_wait, &r);
    side_send(&client, &env, NULL, 0);
    struct msg m = side_expect(&w, &client, BODY(TASK));
    int32_t status = m.env->task->status;
    msg_done(&m);
    return status;
}

static void cancel(uint64_t id) {
    char ref[VG_ID_LEN + 1];
    vg_id_format(id, ref);
    Vg__Pb__TaskSignal s = VG__PB__TASK_SIGNAL__INIT;
    s.task = ref;
    ENV(env, TASK_SIGNAL, task_signal, &s);
    side_send(&client, &env, NULL, 0);
    struct msg m = side_expect(&w, &client, BODY(OK));
    msg_done(&m);
}

static struct msg list(void (*change)(Vg__Pb__TaskQuery *q)) {
    Vg__Pb__TaskQuery q = VG__PB__TASK_QUERY__INIT;
    if (change)
        change(&q);
    ENV(env, TASK_LIST, task_list, &q);
    side_send(&client, &env, NULL, 0);
    return side_expect(&w, &client, BODY(TASKS));
}

static bool start_has(const struct msg *m, const char *text) {
    const Vg__Pb__Start *s = m->env->start;
    for (size_t i = 0; i < s->n_extra_env; i++)
        if (s->extra_env[i].len == strlen(text) &&
            memcmp(s->extra_env[i].data, text, strlen(text)) == 0)
            return true;
    return false;
}

static void up(void) {
    play_agent(&w, &agent, "n1", 0, NULL, 0);
    side_open(&w, &client);
}

static void restart(void) {
    side_close(&w, &client);
    side_close(&w, &agent);
    world_stop(&w);
    world_start(&w);
}

/* ------------------------------------------------------------------ groups */

Test(batch, a_group_is_one_row_and_its_members_know_who_they_are) {
    up();
    ask = (struct ask){.shards = 3, .name = "train"};
    run(G1);
    for (uint32_t i = 0; i < 3; i++) {
        char shard[32];
        struct msg m = next_start();
        cr_assert_eq(m.env->start->task_id, vg_task_member_id(G1, i), "in their order");
        snprintf(shard, sizeof shard, "VIRGA_SHARD=%u", i);
        cr_assert(start_has(&m, shard));
        cr_assert(start_has(&m, "VIRGA_SHARDS=3"));
        cr_assert_eq(m.env->start->spec->index, i);
        cr_assert_eq(m.env->start->spec->group, G1);
        msg_done(&m);
    }
    struct msg m = list(NULL);
    cr_assert_eq(m.env->tasks->n_task, 1, "folded");
    const Vg__Pb__TaskInfo *t = m.env->tasks->task[0];
    cr_assert_eq(t->id, G1);
    cr_assert_str_eq(t->state, "running");
    cr_assert(t->progress && t->progress->total == 3 && t->progress->running == 3);
    msg_done(&m);
    finish(vg_task_member_id(G1, 2), 1, 9);
    finish(vg_task_member_id(G1, 1), 1, 5);
    finish(vg_task_member_id(G1, 0), 1, 0);
    cr_assert_eq(wait_for(G1), 5, "the first bad one in their order");
    m = get_id(G1);
    cr_assert_str_eq(m.env->task->state, "failed");
    cr_assert_eq(m.env->task->progress->failed, 2);
    msg_done(&m);
}

static void flat(Vg__Pb__TaskQuery *q) {
    q->has_flat = q->flat = 1;
}

static void of_g1(Vg__Pb__TaskQuery *q) {
    q->of = "1111111111111111";
}

static void of_g1_by_two(Vg__Pb__TaskQuery *q) {
    of_g1(q);
    q->has_limit = 1;
    q->limit = 2;
}

Test(batch, members_are_found_flat_under_their_group_and_by_index) {
    up();
    ask = (struct ask){.shards = 3, .name = "train"};
    run(G1);
    for (int i = 0; i < 3; i++)
        finish(expect_start(0), 1, 0);
    cr_assert_eq(wait_for(G1), 0);
    struct msg m = list(flat);
    cr_assert_eq(m.env->tasks->n_task, 4);
    msg_done(&m);
    m = list(of_g1);
    cr_assert_eq(m.env->tasks->n_task, 3);
    cr_assert_null(m.env->tasks->next);
    cr_assert_str_eq(m.env->tasks->task[0]->name, "train", "from the group's row");
    msg_done(&m);
    m = list(of_g1_by_two);
    cr_assert_eq(m.env->tasks->n_task, 2);
    cr_assert(m.env->tasks->next);
    cr_assert_eq(m.env->tasks->total, 3);
    msg_done(&m);
    m = get("1111.1");
    cr_assert_eq(m.env->task->id, vg_task_member_id(G1, 1));
    cr_assert_eq(m.env->task->index, 1);
    msg_done(&m);
    m = get("train");
    cr_assert_eq(m.env->task->id, G1, "the name is the group's");
    msg_done(&m);
}

Test(batch, a_sweep_is_the_cross_product_with_the_last_variable_fastest) {
    char *lr[] = {"0.1", "0.2"}, *seed[] = {"7", "8", "9"};
    Vg__Pb__Sweep a = VG__PB__SWEEP__INIT, b = VG__PB__SWEEP__INIT, *both[] = {&a, &b};
    a.name = "LR";
    a.value = lr;
    a.n_value = 2;
    b.name = "SEED";
    b.value = seed;
    b.n_value = 3;
    up();
    ask = (struct ask){.sweep = both, .n_sweep = 2};
    run(G1);
    for (uint32_t i = 0; i < 6; i++) {
        char text[32];
        struct msg m = next_start();
        snprintf(text, sizeof text, "LR=%s", lr[i / 3]);
        cr_assert(start_has(&m, text), "%u", i);
        snprintf(text, sizeof text, "SEED=%s", seed[i % 3]);
        cr_assert(start_has(&m, text), "%u", i);
        cr_assert(start_has(&m, "VIRGA_SHARDS=6"));
        msg_done(&m);
    }
}

Test(batch, the_same_group_request_twice_is_one_group) {
    up();
    ask = (struct ask){.shards = 2};
    run(G1);
    expect_start(vg_task_member_id(G1, 0));
    expect_start(vg_task_member_id(G1, 1));
    ask = (struct ask){.shards = 2};
    cr_assert_eq(run(G1), G1);
    side_sync(&w, &agent);
    cr_assert_not(side_has(&agent, BODY(START)));
}

Test(batch, cancelling_a_group_ends_all_its_members) {
    side_open(&w, &client); /* no node: all wait */
    ask = (struct ask){.shards = 50};
    run(G1);
    cancel(G1);
    wait_for(G1);
    struct msg m = get_id(G1);
    cr_assert_str_eq(m.env->task->state, "cancelled");
    cr_assert_eq(m.env->task->progress->cancelled, 50);
    msg_done(&m);
    expect_state(vg_task_member_id(G1, 49), "cancelled");
}

Test(batch, a_restart_brings_every_member_back_as_it_was) {
    up();
    ask = (struct ask){.shards = 4};
    run(G1);
    uint64_t node = 0;
    for (uint32_t i = 0; i < 4; i++) {
        struct msg m = next_start();
        msg_done(&m);
    }
    finish(vg_task_member_id(G1, 3), 1, 3);
    cr_assert_eq(wait_for(vg_task_member_id(G1, 3)), 3);
    play_started(&agent, vg_task_member_id(G1, 0), 1);
    side_sync(&w, &agent);
    vg_map_for_each (s, &w.c.nodes)
        node = s->hash;
    restart();
    side_open(&w, &client);
    struct msg m = get_id(G1);
    cr_assert_eq(m.env->task->progress->total, 4);
    cr_assert_eq(m.env->task->progress->failed, 1);
    msg_done(&m);
    /* The node has kept one and says so; it does not know the two others any more. */
    Vg__Pb__TaskReport r = VG__PB__TASK_REPORT__INIT, *reports[] = {&r};
    r.has_task_id = r.has_attempt = r.has_state = 1;
    r.task_id = vg_task_member_id(G1, 0);
    r.attempt = 1;
    r.state = VG__PB__TASK_REPORT__STATE__RUNNING;
    play_agent(&w, &agent, "n1", node, reports, 1);
    for (int i = 0; i < 2; i++) {
        struct msg start = next_start();
        cr_assert_geq(start.env->start->attempt, 2, "the first may have run");
        finish(start.env->start->task_id, start.env->start->attempt, 0);
        msg_done(&start);
    }
    play_exited(&agent, vg_task_member_id(G1, 0), 1, 0);
    cr_assert_eq(wait_for(G1), 3);
}

Test(batch, a_group_whose_members_all_ended_before_the_crash_ends_at_the_next_start) {
    up();
    ask = (struct ask){.shards = 1, .gang = false};
    ask.shards = 2;
    run(G1);
    for (int i = 0; i < 2; i++)
        finish(expect_start(0), 1, 0);
    cr_assert_eq(wait_for(G1), 0);
    side_sync(&w, &agent);
    /* As if the group's own end had not reached the disk. */
    side_close(&w, &client);
    side_close(&w, &agent);
    world_stop(&w);
    char cmd[256];
    snprintf(cmd, sizeof cmd, "%s/control/state.db", w.home);
    struct vg_store_opts o = {.path = cmd, .inline_writes = true};
    struct vg_store *st;
    struct vg_err err = VG_ERR_INIT;
    cr_assert_eq(vg_store_open(&o, &st, &err), 0, "%s", err.msg);
    struct vg_task_row row = {.id = G1,
                              .user = "root",
                              .state = "running",
                              .members = 2,
                              .durable = true,
                              .created_usec = 5};
    vg_map_for_each (s, &w.c.nodes)
        (void)s;
    cr_assert_eq(vg_store_put_task(st, &row, VG_STORE_COMMIT, NULL, NULL), 0);
    vg_store_flush(st);
    vg_store_close(st);
    world_start(&w);
    side_open(&w, &client);
    struct msg m = list(flat);
    msg_done(&m);
    m = get_id(G1);
    cr_assert_str_eq(m.env->task->state, "succeeded");
    msg_done(&m);
}

static void nested_parent(uint64_t parent) {
    struct vg_job *j = vg_job_get(&w.c, parent);
    cr_assert(j);
    vg_map_for_each (s, &w.c.peers) {
        struct vg_peer *p = s->value;
        if (p->kind == VG_PEER_CLIENT)
            p->who.parent = parent;
    }
}

Test(batch, children_are_folded_under_their_parent_and_cancelled_with_it) {
    up();
    run(T1);
    expect_start(T1);
    play_started(&agent, T1, 1);
    side_sync(&w, &agent);
    nested_parent(T1);
    ask = (struct ask){.name = "child"};
    run(T2);
    expect_start(T2);
    struct msg m = list(NULL);
    cr_assert_eq(m.env->tasks->n_task, 1);
    cr_assert_eq(m.env->tasks->task[0]->id, T1);
    cr_assert_eq(m.env->tasks->task[0]->progress->total, 1);
    msg_done(&m);
    /* The parent ends by itself: the child goes on, and still counts. */
    play_exited(&agent, T1, 1, 0);
    m = side_expect(&w, &agent, BODY(EXIT_ACK));
    msg_done(&m);
    m = get_id(T1);
    cr_assert_str_eq(m.env->task->state, "succeeded");
    cr_assert_eq(m.env->task->progress->running, 1);
    msg_done(&m);
    m = list(NULL);
    cr_assert_eq(m.env->tasks->total, 1, "its end is stored and it is in memory: counted once");
    msg_done(&m);
    cancel(T1);
    m = side_expect(&w, &agent, BODY(KILL));
    cr_assert_eq(m.env->kill->task_id, T2);
    msg_done(&m);
    play_exited(&agent, T2, 1, 143);
    m = side_expect(&w, &agent, BODY(EXIT_ACK));
    msg_done(&m);
    cr_assert_null(vg_job_get(&w.c, T1), "nothing keeps it in memory any more");
    m = get_id(T1);
    cr_assert_eq(m.env->task->progress->cancelled, 1, "and the store knows the last count");
    msg_done(&m);
}

/* ------------------------------------------------------------------ dependencies */

Test(batch, a_task_waits_for_the_success_of_another) {
    up();
    ask = (struct ask){.name = "prepare"};
    run(T1);
    expect_start(T1);
    ask = (struct ask){.after = "prepare", .when = VG__PB__DEPENDENCY__WHEN__SUCCESS};
    run(T2);
    expect_state(T2, "blocked");
    struct msg m = get_id(T2);
    cr_assert_eq(m.env->task->n_after, 1);
    cr_assert_str_eq(m.env->task->after[0], "after-success 2222222222222222");
    cr_assert(strstr(m.env->task->reason, "prepare"), "%s", m.env->task->reason);
    msg_done(&m);
    side_sync(&w, &agent);
    cr_assert_not(side_has(&agent, BODY(START)));
    finish(T1, 1, 0);
    expect_start(T2);
}

Test(batch, what_can_never_be_fulfilled_is_cancelled_down_the_whole_chain) {
    up();
    ask = (struct ask){.name = "prepare"};
    run(T1);
    expect_start(T1);
    ask = (struct ask){.after = "prepare", .when = VG__PB__DEPENDENCY__WHEN__SUCCESS};
    run(T2);
    ask = (struct ask){.after = "3333", .when = VG__PB__DEPENDENCY__WHEN__FAILURE};
    run(T3);
    ask = (struct ask){.after = "4444"};
    run(G1);
    finish(T1, 1, 4);
    cr_assert_eq(wait_for(T2), 125);
    struct msg m = get_id(T2);
    cr_assert_str_eq(m.env->task->state, "cancelled");
    cr_assert_str_eq(
        m.env->task->reason,
        "cancelled: task 2222222222222222 (prepare) failed with status 4, and this one "
        "was to run only after its success");
    msg_done(&m);
    wait_for(T3);
    expect_state(T3, "cancelled"); /* a cancelled task has not failed */
    expect_start(G1);              /* after any end */
}

Test(batch, a_dependency_that_is_over_is_answered_at_once) {
    up();
    ask = (struct ask){.name = "prepare"};
    run(T1);
    finish(expect_start(T1), 1, 4);
    wait_for(T1);
    ask = (struct ask){.after = "prepare", .when = VG__PB__DEPENDENCY__WHEN__FAILURE};
    run(T2);
    expect_start(T2);
    ask = (struct ask){.after = "prepare", .when = VG__PB__DEPENDENCY__WHEN__SUCCESS};
    run(T3);
    wait_for(T3);
    expect_state(T3, "cancelled");
}

Test(batch, a_name_that_nobody_has_is_refused) {
    side_open(&w, &client);
    ask = (struct ask){.after = "nothing"};
    play_run(&client, T1, tweak);
    struct msg m = side_expect(&w, &client, BODY(ERROR));
    cr_assert_eq(m.env->error->reason, VG_NOT_FOUND);
    cr_assert(strstr(m.env->error->text, "'nothing'"), "%s", m.env->error->text);
    msg_done(&m);
}

Test(batch, a_group_waits_as_a_whole_and_others_wait_for_the_whole) {
    up();
    run(T1);
    expect_start(T1);
    ask = (struct ask){.shards = 2, .after = "2222"};
    run(G1);
    expect_state(G1, "blocked");
    expect_state(vg_task_member_id(G1, 1), "blocked");
    ask = (struct ask){.after = "1111", .when = VG__PB__DEPENDENCY__WHEN__SUCCESS};
    run(T2);
    finish(T1, 1, 0);
    finish(expect_start(vg_task_member_id(G1, 0)), 1, 0);
    side_sync(&w, &agent);
    expect_state(T2, "blocked");
    finish(expect_start(vg_task_member_id(G1, 1)), 1, 0);
    expect_start(T2);
}

Test(batch, a_restart_does_not_forget_what_is_waited_for) {
    up();
    ask = (struct ask){.name = "prepare"};
    run(T1);
    expect_start(T1);
    ask = (struct ask){.shards = 2, .after = "prepare"};
    run(G1);
    finish(T1, 1, 0);
    struct msg m = side_expect(&w, &agent, BODY(EXIT_ACK));
    msg_done(&m);
    restart();
    play_agent(&w, &agent, "n1", 0, NULL, 0);
    side_open(&w, &client);
    /* The second node is new; the first one's lease must be over before anything starts. */
    m = get_id(G1);
    cr_assert_str_neq(m.env->task->state, "blocked");
    msg_done(&m);
}

/* ------------------------------------------------------------------ retries, time, preemption */

Test(batch, only_chosen_statuses_are_tried_again_and_after_a_pause) {
    up();
    ask = (struct ask){.retries = 2, .retry_on = 75, .backoff_usec = 1};
    run(T1);
    finish(expect_start(T1), 1, 75);
    struct msg m = next_start();
    cr_assert_eq(m.env->start->attempt, 2);
    msg_done(&m);
    finish(T1, 2, 3);
    cr_assert_eq(wait_for(T1), 3, "3 is not among them");
    ask = (struct ask){.retries = 1, .backoff_usec = 3600 * VG_USEC};
    run(T2);
    finish(expect_start(T2), 1, 1);
    side_sync(&w, &agent);
    m = get_id(T2);
    cr_assert_str_eq(m.env->task->state, "queued");
    cr_assert_gt(m.env->task->due_usec, vg_wall_usec() + 3000 * VG_USEC);
    cr_assert_eq(m.env->task->retries_left, 0);
    msg_done(&m);
    cr_assert_not(side_has(&agent, BODY(START)));
}

Test(batch, a_task_does_not_begin_before_its_time) {
    up();
    ask = (struct ask){.not_before_usec = vg_wall_usec() + 3600 * VG_USEC};
    run(T1);
    expect_state(T1, "queued");
    side_sync(&w, &agent);
    cr_assert_not(side_has(&agent, BODY(START)));
    ask = (struct ask){.not_before_usec = vg_wall_usec() + 1000};
    run(T2);
    expect_start(T2);
}

Test(batch, a_preempted_task_gets_its_signal_and_goes_back_without_using_a_retry) {
    up();
    ask = (struct ask){.retries = 1};
    run(T1);
    expect_start(T1);
    play_started(&agent, T1, 1);
    side_sync(&w, &agent);
    struct vg_job *j = vg_job_get(&w.c, T1);
    cr_assert_eq(vg_job_preempt(j, 5 * VG_USEC, SIGUSR1, "team vision is owed its quota"), 0);
    cr_assert_eq(vg_job_preempt(j, 0, 0, "again"), -EINVAL);
    struct msg m = side_expect(&w, &agent, BODY(KILL));
    cr_assert_eq(m.env->kill->signal, SIGUSR1);
    cr_assert_eq(m.env->kill->grace_usec, 5 * VG_USEC);
    msg_done(&m);
    play_exited(&agent, T1, 1, 128 + SIGUSR1);
    m = next_start();
    cr_assert_eq(m.env->start->attempt, 2);
    msg_done(&m);
    m = get_id(T1);
    cr_assert_eq(m.env->task->preempted, 1);
    cr_assert_eq(m.env->task->retries_left, 1);
    msg_done(&m);
    finish(T1, 2, 0);
    cr_assert_eq(wait_for(T1), 0);
}

Test(batch, one_that_succeeds_while_it_gives_way_has_succeeded) {
    up();
    run(T1);
    expect_start(T1);
    play_started(&agent, T1, 1);
    side_sync(&w, &agent);
    cr_assert_eq(vg_job_preempt(vg_job_get(&w.c, T1), 0, 0, "x"), 0);
    struct msg m = side_expect(&w, &agent, BODY(KILL));
    cr_assert_eq(m.env->kill->signal, SIGTERM);
    msg_done(&m);
    play_exited(&agent, T1, 1, 0);
    cr_assert_eq(wait_for(T1), 0);
    expect_state(T1, "succeeded");
}

/* ------------------------------------------------------------------ keys, labels */

Test(batch, a_key_answers_with_the_first_task_whether_it_runs_or_has_ended) {
    up();
    ask = (struct ask){.key = "nightly-1"};
    cr_assert_eq(run(T1), T1);
    expect_start(T1);
    ask = (struct ask){.key = "nightly-1"};
    cr_assert_eq(run(T2), T1);
    finish(T1, 1, 0);
    wait_for(T1);
    struct msg m = side_expect(&w, &agent, BODY(EXIT_ACK));
    msg_done(&m);
    ask = (struct ask){.key = "nightly-1"};
    cr_assert_eq(run(T3), T1);
    ask = (struct ask){.key = "nightly-1", .label = "a=b"};
    play_run(&client, G1, tweak);
    m = side_expect(&w, &client, BODY(ERROR));
    cr_assert_eq(m.env->error->reason, VG_EXISTS);
    cr_assert(strstr(m.env->error->text, "2222222222222222"), "%s", m.env->error->text);
    msg_done(&m);
    side_sync(&w, &agent);
    cr_assert_not(side_has(&agent, BODY(START)));
}

Test(batch, everything_with_a_label_is_cancelled_at_once) {
    side_open(&w, &client);
    ask = (struct ask){.label = "run=7"};
    run(T1);
    ask = (struct ask){.label = "run=7", .shards = 3};
    run(G1);
    ask = (struct ask){.label = "run=8"};
    run(T2);
    Vg__Pb__TaskSignal s = VG__PB__TASK_SIGNAL__INIT;
    Vg__Pb__TaskQuery q = VG__PB__TASK_QUERY__INIT;
    char *labels[] = {"run=7"};
    q.label = labels;
    q.n_label = 1;
    s.matching = &q;
    ENV(env, TASK_SIGNAL, task_signal, &s);
    side_send(&client, &env, NULL, 0);
    struct msg m = side_expect(&w, &client, BODY(OK));
    cr_assert_str_eq(m.env->ok->text, "4");
    msg_done(&m);
    wait_for(G1);
    expect_state(T1, "cancelled");
    expect_state(G1, "cancelled");
    expect_state(T2, "queued");
}

static void search_true(Vg__Pb__TaskQuery *q) {
    q->search = "TRU";
}

static void search_nothing(Vg__Pb__TaskQuery *q) {
    q->search = "nothing of it";
}

Test(batch, the_command_is_searched_in_memory_and_in_the_store) {
    up();
    run(T1);
    finish(expect_start(T1), 1, 0);
    wait_for(T1);
    struct msg m = side_expect(&w, &agent, BODY(EXIT_ACK));
    msg_done(&m);
    run(T2);
    m = list(search_true);
    cr_assert_eq(m.env->tasks->n_task, 2);
    msg_done(&m);
    m = list(search_nothing);
    cr_assert_eq(m.env->tasks->n_task, 0);
    msg_done(&m);
}
