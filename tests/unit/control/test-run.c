/* A control plane with played clients and agents: what is accepted is started once, ends once, and
   is not forgotten. */
#include "base/util.h"
#include "control/chan.h"
#include "control/nodes.h"
#include "control/peer.h"
#include "net/tio.h"
#include "world.h"

#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define T1 0x1111111111111111ULL
#define T2 0x2222222222222222ULL

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

TestSuite(run, .init = setup, .fini = teardown, .timeout = 120);

static void expect_start(uint64_t task, uint32_t attempt) {
    struct msg m = side_expect(&w, &agent, BODY(START));
    cr_assert_eq(m.env->start->task_id, task);
    cr_assert_eq(m.env->start->attempt, attempt);
    msg_done(&m);
}

static void expect_ack(uint64_t task, uint32_t attempt) {
    struct msg m = side_expect(&w, &agent, BODY(EXIT_ACK));
    cr_assert_eq(m.env->exit_ack->task_id, task);
    cr_assert_eq(m.env->exit_ack->attempt, attempt);
    msg_done(&m);
}

static void expect_kind(Vg__Pb__RunEvent__Kind kind) {
    struct msg m;
    expect_event(&w, &client, kind, &m);
    msg_done(&m);
}

static int32_t expect_end(void) {
    struct msg m;
    expect_event(&w, &client, VG__PB__RUN_EVENT__KIND__ENDED, &m);
    int32_t status = m.env->run_event->status;
    msg_done(&m);
    return status;
}

static void batch(Vg__Pb__RunReq *r) {
    r->spec->interactive = 0;
    r->spec->has_detached = r->spec->detached = 1;
    r->has_wait_durable = r->wait_durable = 1;
}

static void resend(Vg__Pb__RunReq *r) {
    r->has_resend = r->resend = 1;
}

Test(run, a_task_goes_through_all_events_and_its_keeper_is_let_go) {
    play_agent(&w, &agent, "n1", 0, NULL, 0);
    side_open(&w, &client);
    play_run(&client, T1, NULL);
    expect_start(T1, 1);
    expect_kind(VG__PB__RUN_EVENT__KIND__ACCEPTED);
    expect_kind(VG__PB__RUN_EVENT__KIND__PLACED);
    play_started(&agent, T1, 1);
    expect_kind(VG__PB__RUN_EVENT__KIND__STARTED);
    play_exited(&agent, T1, 1, 7);
    cr_assert_eq(expect_end(), 7);
    expect_ack(T1, 1);
}

Test(run, descriptors_of_a_local_client_reach_the_local_agent) {
    int pair[2];
    char byte = 0;
    play_agent(&w, &agent, "n1", 0, NULL, 0);
    side_open(&w, &client);
    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    Vg__Pb__RunReq r = VG__PB__RUN_REQ__INIT;
    Vg__Pb__TaskSpec spec = VG__PB__TASK_SPEC__INIT;
    ProtobufCBinaryData argv[1] = {{.data = (uint8_t *)"cat", .len = 3}};
    int fds[2] = {pair[1], open("/", O_PATH)};
    spec.argv = argv;
    spec.n_argv = 1;
    r.has_task_id = r.has_fd_mask = 1;
    r.task_id = T1;
    r.spec = &spec;
    r.fd_mask = 3;
    ENV(env, RUN, run, &r);
    side_send(&client, &env, fds, 2);
    struct msg m = side_expect(&w, &agent, BODY(START));
    cr_assert_eq(m.env->start->fd_mask, 3);
    cr_assert_eq(m.n_fds, 2);
    cr_assert_eq(write(m.fds[0], "x", 1), 1);
    cr_assert_eq(read(pair[0], &byte, 1), 1);
    cr_assert_eq(byte, 'x');
    msg_done(&m);
    cr_assert_eq(read(pair[0], &byte, 1), 0, "somebody else still holds the channel");
    close(pair[0]);
}

Test(run, promised_descriptors_that_do_not_come_are_an_error) {
    side_open(&w, &client);
    Vg__Pb__RunReq r = VG__PB__RUN_REQ__INIT;
    Vg__Pb__TaskSpec spec = VG__PB__TASK_SPEC__INIT;
    r.has_task_id = r.has_fd_mask = 1;
    r.task_id = T1;
    r.fd_mask = 1;
    r.spec = &spec;
    ENV(env, RUN, run, &r);
    side_send(&client, &env, NULL, 0);
    struct msg m = side_expect(&w, &client, BODY(ERROR));
    cr_assert_eq(m.env->error->reason, VG_PROTOCOL);
    msg_done(&m);
}

Test(run, the_same_request_twice_is_one_task) {
    play_agent(&w, &agent, "n1", 0, NULL, 0);
    side_open(&w, &client);
    play_run(&client, T1, NULL);
    expect_start(T1, 1);
    play_run(&client, T1, resend);
    play_started(&agent, T1, 1);
    play_exited(&agent, T1, 1, 0);
    expect_end();
    expect_end();
    expect_ack(T1, 1);
    side_sync(&w, &agent);
    cr_assert_not(side_has(&agent, BODY(START)));
    play_run(&client, T1, resend); /* long over: the answer is how it ended */
    cr_assert_eq(expect_end(), 0);
    side_sync(&w, &agent);
    cr_assert_not(side_has(&agent, BODY(START)));
}

Test(run, a_waiting_task_of_a_client_that_left_is_cancelled) {
    side_open(&w, &client);
    play_run(&client, T1, NULL);
    expect_kind(VG__PB__RUN_EVENT__KIND__QUEUED);
    side_close(&w, &client);
    side_open(&w, &client);
    side_sync(&w, &client);
    play_agent(&w, &agent, "n1", 0, NULL, 0);
    side_sync(&w, &agent);
    cr_assert_not(side_has(&agent, BODY(START)));
    play_run(&client, T1, resend);
    struct msg m;
    expect_event(&w, &client, VG__PB__RUN_EVENT__KIND__ENDED, &m);
    cr_assert_neq(m.env->run_event->reason, 0);
    msg_done(&m);
}

Test(run, a_waiting_batch_task_outlives_its_client_and_a_restart) {
    side_open(&w, &client);
    play_run(&client, T1, batch);
    expect_kind(VG__PB__RUN_EVENT__KIND__ACCEPTED);
    side_close(&w, &client);
    world_stop(&w);
    world_start(&w);
    play_agent(&w, &agent, "n1", 0, NULL, 0);
    expect_start(T1, 1);
}

Test(run, after_a_restart_nothing_starts_before_the_nodes_have_reported) {
    uint64_t id = play_agent(&w, &agent, "n1", 0, NULL, 0);
    side_open(&w, &client);
    play_run(&client, T1, NULL);
    expect_start(T1, 1);
    side_close(&w, &client);
    side_close(&w, &agent);
    world_stop(&w);
    world_start(&w);
    /* Another node is not the one that may have it. */
    struct side other;
    play_agent(&w, &other, "n2", 0, NULL, 0);
    side_open(&w, &client);
    play_run(&client, T2, resend);
    side_sync(&w, &client);
    side_sync(&w, &other);
    cr_assert_not(side_has(&other, BODY(START)));
    /* The first comes back and has neither: both are free to start. */
    play_agent(&w, &agent, "n1", id, NULL, 0);
    /* When the store has the attempt's number; the suite's time limit ends a vain wait. */
    while (!side_has(&other, BODY(START)) && !side_has(&agent, BODY(START)))
        uv_run(&w.loop, UV_RUN_ONCE);
    side_close(&w, &other);
}

Test(run, a_reported_task_is_adopted_and_not_started_again) {
    uint64_t id = play_agent(&w, &agent, "n1", 0, NULL, 0);
    side_open(&w, &client);
    play_run(&client, T1, NULL);
    struct msg start = side_expect(&w, &agent, BODY(START));
    side_close(&w, &client);
    side_close(&w, &agent);
    world_stop(&w);
    world_start(&w);
    Vg__Pb__TaskReport r = VG__PB__TASK_REPORT__INIT, *list[1] = {&r};
    r.has_task_id = r.has_attempt = r.has_state = 1;
    r.task_id = T1;
    r.attempt = 1;
    r.state = VG__PB__TASK_REPORT__STATE__RUNNING;
    r.start = start.env->start;
    play_agent(&w, &agent, "n1", id, list, 1);
    side_open(&w, &client);
    play_run(&client, T1, resend);
    expect_kind(VG__PB__RUN_EVENT__KIND__STARTED);
    play_exited(&agent, T1, 1, 3);
    cr_assert_eq(expect_end(), 3);
    cr_assert_not(side_has(&agent, BODY(START)));
    msg_done(&start);
}

/* A connection's end takes a while: until then nothing can be sent, though it is still there. */
Test(run, a_client_that_comes_while_its_nodes_connection_ends_is_joined_to_the_next) {
    struct side other;
    int pair[2];
    uint64_t node = play_agent(&w, &agent, "n1", 0, NULL, 0);
    side_open(&w, &client);
    side_open(&w, &other);
    play_run(&client, T1, NULL);
    expect_start(T1, 1);
    play_started(&agent, T1, 1);
    side_sync(&w, &agent);
    vg_conn_pause(agent.conn, true); /* it does not see the end, so the end is not over */
    vg_conn_close(vg_nodelink_get(&w.c, node)->peer->conn);
    Vg__Pb__AttachReq m = VG__PB__ATTACH_REQ__INIT;
    m.task = "1111111111111111";
    m.has_fd_mask = 1;
    m.fd_mask = VG_FD_CHANNEL;
    ENV(env, ATTACH, attach, &m);
    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    side_send(&other, &env, &pair[1], 1);
    side_sync(&w, &other);
    cr_assert_not(side_has(&other, BODY(ERROR)));
    cr_assert_not_null(vg_nodelink_get(&w.c, node)->peer, "control: it was still ending");
    side_close(&w, &agent);
    Vg__Pb__TaskReport r = VG__PB__TASK_REPORT__INIT, *list[1] = {&r};
    r.has_task_id = r.has_attempt = r.has_state = 1;
    r.task_id = T1;
    r.attempt = 1;
    r.state = VG__PB__TASK_REPORT__STATE__RUNNING;
    play_agent(&w, &agent, "n1", node, list, 1);
    struct msg joined = side_expect(&w, &agent, BODY(TASK_ATTACH));
    cr_assert_eq(joined.n_fds, 1);
    cr_assert_eq(write(joined.fds[0], "x", 1), 1);
    char c = 0;
    cr_assert(read(pair[0], &c, 1) == 1 && c == 'x');
    msg_done(&joined);
    close(pair[0]);
    side_close(&w, &other);
}

static void resend_durable(Vg__Pb__RunReq *r) {
    resend(r);
    r->has_wait_durable = r->wait_durable = 1;
    r->spec->has_detached = r->spec->detached = 1;
}

/* The nodes report while the store still writes: both would begin it. */
Test(run, a_durable_task_sent_again_before_the_nodes_reported_starts_once) {
    uint64_t id = play_agent(&w, &agent, "n1", 0, NULL, 0);
    side_close(&w, &agent);
    world_stop(&w);
    world_start(&w);
    side_open(&w, &client);
    play_run(&client, T1, resend_durable);
    play_agent(&w, &agent, "n1", id, NULL, 0);
    expect_start(T1, 2); /* an earlier life may have used the first number */
    play_started(&agent, T1, 2);
    play_exited(&agent, T1, 2, 5);
    cr_assert_eq(expect_end(), 5);
    cr_assert_not(side_has(&agent, BODY(START)));
}

Test(run, a_task_that_only_the_node_remembers_is_learnt_again) {
    uint64_t id = play_agent(&w, &agent, "n1", 0, NULL, 0);
    side_open(&w, &client);
    play_run(&client, T1, NULL);
    struct msg start = side_expect(&w, &agent, BODY(START));
    side_close(&w, &agent);
    Vg__Pb__TaskReport r = VG__PB__TASK_REPORT__INIT, *list[1] = {&r};
    start.env->start->task_id = T2; /* as if its row had never been written */
    r.has_task_id = r.has_attempt = r.has_state = 1;
    r.task_id = T2;
    r.attempt = 4;
    r.state = VG__PB__TASK_REPORT__STATE__RUNNING;
    r.start = start.env->start;
    play_agent(&w, &agent, "n1", id, list, 1);
    play_run(&client, T2, resend);
    expect_kind(VG__PB__RUN_EVENT__KIND__STARTED);
    play_exited(&agent, T2, 4, 9);
    cr_assert_eq(expect_end(), 9);
    msg_done(&start);
}

Test(run, a_stale_attempt_is_killed_and_its_end_changes_nothing) {
    play_agent(&w, &agent, "n1", 0, NULL, 0);
    side_open(&w, &client);
    play_run(&client, T1, NULL);
    expect_start(T1, 1);
    play_started(&agent, T1, 7);
    struct msg m = side_expect(&w, &agent, BODY(KILL));
    cr_assert_eq(m.env->kill->attempt, 7);
    msg_done(&m);
    play_exited(&agent, T1, 7, 99);
    expect_ack(T1, 7);
    play_started(&agent, T1, 1);
    play_exited(&agent, T1, 1, 0);
    cr_assert_eq(expect_end(), 0);
}

Test(run, a_batch_task_that_its_node_does_not_report_is_tried_again) {
    uint64_t id = play_agent(&w, &agent, "n1", 0, NULL, 0);
    side_open(&w, &client);
    play_run(&client, T1, batch);
    expect_start(T1, 1);
    play_started(&agent, T1, 1);
    side_sync(&w, &agent);
    side_close(&w, &agent);
    play_agent(&w, &agent, "n1", id, NULL, 0);
    expect_kind(VG__PB__RUN_EVENT__KIND__REQUEUED);
    expect_start(T1, 2);
}

Test(run, an_interactive_task_that_its_node_lost_ends_and_says_so) {
    uint64_t id = play_agent(&w, &agent, "n1", 0, NULL, 0);
    side_open(&w, &client);
    play_run(&client, T1, NULL);
    expect_start(T1, 1);
    play_started(&agent, T1, 1);
    side_sync(&w, &agent);
    side_close(&w, &agent);
    play_agent(&w, &agent, "n1", id, NULL, 0);
    struct msg m;
    expect_event(&w, &client, VG__PB__RUN_EVENT__KIND__ENDED, &m);
    cr_assert_eq(m.env->run_event->reason, VG_LOST);
    msg_done(&m);
}

static void retry_once(Vg__Pb__RunReq *r) {
    batch(r);
    r->spec->has_retries = 1;
    r->spec->retries = 1;
}

Test(run, retries_are_used_up_one_by_one) {
    play_agent(&w, &agent, "n1", 0, NULL, 0);
    side_open(&w, &client);
    play_run(&client, T1, retry_once);
    expect_start(T1, 1);
    play_exited(&agent, T1, 1, 1);
    expect_ack(T1, 1);
    expect_start(T1, 2);
    play_exited(&agent, T1, 2, 5);
    cr_assert_eq(expect_end(), 5);
    expect_ack(T1, 2);
}

Test(run, cancelling_a_running_task_sends_term_and_ends_as_cancelled) {
    play_agent(&w, &agent, "n1", 0, NULL, 0);
    side_open(&w, &client);
    play_run(&client, T1, batch);
    expect_start(T1, 1);
    play_started(&agent, T1, 1);
    Vg__Pb__TaskSignal s = VG__PB__TASK_SIGNAL__INIT;
    s.task = "1111";
    ENV(env, TASK_SIGNAL, task_signal, &s);
    side_send(&client, &env, NULL, 0);
    struct msg m = side_expect(&w, &agent, BODY(KILL));
    cr_assert_eq(m.env->kill->signal, SIGTERM);
    cr_assert_gt(m.env->kill->grace_usec, 0);
    msg_done(&m);
    play_exited(&agent, T1, 1, 143);
    expect_end();
    expect_ack(T1, 1);
    Vg__Pb__TaskRef ref = VG__PB__TASK_REF__INIT;
    ref.task = "1111111111111111";
    ENV(get, TASK_GET, task_get, &ref);
    side_send(&client, &get, NULL, 0);
    m = side_expect(&w, &client, BODY(TASK));
    cr_assert_str_eq(m.env->task->state, "cancelled");
    cr_assert_str_eq(m.env->task->reason, "cancelled by root");
    msg_done(&m);
}

static void unknown_pool(Vg__Pb__RunReq *r) {
    r->spec->pool = "a100-9";
}

Test(run, an_unknown_pool_is_one_sentence_and_nothing_remains) {
    side_open(&w, &client);
    play_run(&client, T1, unknown_pool);
    struct msg m = side_expect(&w, &client, BODY(ERROR));
    cr_assert_eq(m.env->error->reason, VG_NOT_FOUND);
    cr_assert(strstr(m.env->error->text, "there is no pool 'a100-9'"));
    msg_done(&m);
    cr_assert_eq(vg_map_len(&w.c.jobs), 0);
}

Test(run, stored_output_is_read_back_while_it_runs_and_after) {
    uint8_t rec[VG_REC_HEADER + 3];
    play_agent(&w, &agent, "n1", 0, NULL, 0);
    side_open(&w, &client);
    play_run(&client, T1, batch);
    expect_start(T1, 1);
    play_started(&agent, T1, 1);
    vg_rec_header(rec, VG_REC_STDOUT, 3, 1);
    memcpy(rec + VG_REC_HEADER, "out", 3);
    Vg__Pb__LogAppend a = VG__PB__LOG_APPEND__INIT;
    a.has_task_id = a.has_attempt = a.has_records = 1;
    a.task_id = T1;
    a.attempt = 1;
    a.records = (ProtobufCBinaryData){.data = rec, .len = sizeof rec};
    ENV(env, LOG_APPEND, log_append, &a);
    Vg__Pb__LogReq q = VG__PB__LOG_REQ__INIT;
    q.task = "1111";
    q.has_follow = q.follow = 1;
    ENV(logs, TASK_LOGS, task_logs, &q);
    side_send(&client, &logs, NULL, 0);
    side_sync(&w, &client);
    side_send(&agent, &env, NULL, 0);
    struct msg m = side_expect(&w, &agent, BODY(LOG_ACK));
    cr_assert_eq(m.env->log_ack->offset, sizeof rec);
    msg_done(&m);
    m = side_expect(&w, &client, BODY(LOG_DATA));
    cr_assert_eq(m.env->log_data->records.len, sizeof rec);
    cr_assert(m.env->more);
    msg_done(&m);
    play_exited(&agent, T1, 1, 0);
    m = side_expect(&w, &client, BODY(LOG_DATA));
    cr_assert_eq(m.env->log_data->records.len, 0);
    cr_assert_not(m.env->more);
    msg_done(&m);
    expect_ack(T1, 1);
    side_send(&client, &logs, NULL, 0);
    m = side_expect(&w, &client, BODY(LOG_DATA));
    cr_assert_eq(m.env->log_data->records.len, sizeof rec);
    msg_done(&m);
}

Test(run, ten_thousand_waiting_tasks_are_no_problem) {
    side_open(&w, &client);
    for (uint64_t i = 1; i <= 10000; i++) {
        Vg__Pb__RunReq r = VG__PB__RUN_REQ__INIT;
        Vg__Pb__TaskSpec spec = VG__PB__TASK_SPEC__INIT;
        ProtobufCBinaryData argv[1] = {{.data = (uint8_t *)"true", .len = 4}};
        spec.argv = argv;
        spec.n_argv = 1;
        spec.has_detached = spec.detached = 1;
        r.has_task_id = 1;
        r.task_id = i;
        r.spec = &spec;
        ENV(env, RUN, run, &r);
        side_send(&client, &env, NULL, 0);
        if (i % 100 == 0) {
            side_sync(&w, &client);
            for (size_t k = 0; k < client.n; k++)
                msg_done(&client.inbox[k]);
            client.n = 0;
        }
    }
    cr_assert_eq(vg_map_len(&w.c.jobs), 10000);
    cr_assert_eq(vg_eng_queued(w.c.policy.eng), 10000);
}
