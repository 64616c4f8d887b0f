/* Following the log of a task that writes more than is stored: the stored head, the keeper's own
   word, the stored tail, each record once and in order. */
#include "base/util.h"
#include "net/tio.h"
#include "world.h"

#include <stdio.h>
#include <string.h>

#define T1 0x1111000000000001ULL
#define REC (VG_REC_HEADER + 4)

static struct world w;
static struct side agent, client;
static uint64_t node;

/* The keeper that the test plays, at the far end of the observing stream. */
static struct vg_stream *keeper;
static uint8_t heard[256];
static size_t n_heard;
static size_t gone;

static void keeper_data(struct vg_stream *s, void *user, const uint8_t *data, size_t n) {
    (void)user;
    cr_assert_leq(n_heard + n, sizeof heard);
    memcpy(heard + n_heard, data, n);
    n_heard += n;
    vg_stream_consumed(s, n);
}

static void keeper_reset(struct vg_stream *s, void *user, enum vg_reason reason) {
    (void)s;
    (void)user;
    (void)reason;
    keeper = NULL;
    gone = 1;
}

static const struct vg_stream_ops keeper_ops = {.on_data = keeper_data, .on_reset = keeper_reset};

/* As an agent does: the stream is open before its bytes come. */
static void open_stream(struct side *s, const Vg__Pb__Envelope *env) {
    if (s != &agent || env->body_case != BODY(TASK_ATTACH))
        return;
    n_heard = 0;
    keeper = vg_stream_new(s->conn, env->task_attach->stream, &keeper_ops, NULL);
    cr_assert(keeper);
}

/* Runs the loop until *what is at least n; only a failing test waits long. */
static void run_until(const size_t *what, size_t n) {
    uint64_t end = vg_now_usec() + 30 * VG_USEC;
    while (*what < n && vg_now_usec() < end)
        uv_run(&w.loop, UV_RUN_ONCE);
    cr_assert_geq(*what, n);
}

static void setup(void) {
    side_hook = open_stream;
    world_up(&w, "limits:\n  log_head: 4096\n  log_tail: 4096\n");
    memset(&agent, 0, sizeof agent);
    memset(&client, 0, sizeof client);
    keeper = NULL;
    n_heard = 0;
    gone = 0;
}

static void teardown(void) {
    side_close(&w, &client);
    side_close(&w, &agent);
    world_down(&w);
}

TestSuite(logs, .init = setup, .fini = teardown);

static void batch(Vg__Pb__RunReq *r) {
    r->spec->interactive = 0;
    r->spec->has_detached = r->spec->detached = 1;
}

static void start_task(void) {
    node = play_agent(&w, &agent, "n1", 0, NULL, 0);
    side_open(&w, &client);
    play_run(&client, T1, batch);
    struct msg m = side_expect(&w, &agent, BODY(START));
    msg_done(&m);
    play_started(&agent, T1, 1);
    side_sync(&w, &agent);
}

/* Records numbered from `first`, as the task writes them: number n lies at offset n * REC. */
static size_t records(uint8_t *out, unsigned first, unsigned count) {
    for (unsigned i = 0; i < count; i++) {
        char text[8];
        snprintf(text, sizeof text, "%04u", first + i);
        vg_rec_header(out + i * REC, VG_REC_STDOUT, 4, 1);
        memcpy(out + i * REC + VG_REC_HEADER, text, 4);
    }
    return count * REC;
}

static void store(unsigned first, unsigned count, bool tail) {
    static uint8_t rec[512 * REC];
    Vg__Pb__LogAppend a = VG__PB__LOG_APPEND__INIT;
    a.has_task_id = a.has_attempt = a.has_offset = a.has_records = a.has_tail = 1;
    a.task_id = T1;
    a.attempt = 1;
    a.offset = (uint64_t)first * REC;
    a.tail = tail;
    a.records = (ProtobufCBinaryData){.data = rec, .len = records(rec, first, count)};
    ENV(env, LOG_APPEND, log_append, &a);
    side_send(&agent, &env, NULL, 0);
    struct msg m = side_expect(&w, &agent, BODY(LOG_ACK));
    msg_done(&m);
}

static void follow(void) {
    Vg__Pb__LogReq q = VG__PB__LOG_REQ__INIT;
    q.task = "1111";
    q.has_follow = q.follow = 1;
    ENV(logs, TASK_LOGS, task_logs, &q);
    side_send(&client, &logs, NULL, 0);
}

/* The control plane asks to observe; the played keeper hears its hello. Returns the offset. */
static uint64_t expect_observer(void) {
    struct msg m = side_expect(&w, &agent, BODY(TASK_ATTACH));
    cr_assert_eq(m.env->task_attach->task_id, T1);
    cr_assert(m.env->task_attach->observe);
    msg_done(&m);
    run_until(&n_heard, VG_TIO_HEADER + 12);
    cr_assert_eq(heard[4], VG_TIO_HELLO);
    cr_assert_eq(vg_get32(heard + VG_TIO_HEADER + 8), VG_HELLO_OBSERVE);
    return vg_get64(heard + VG_TIO_HEADER);
}

static void show(unsigned first, unsigned count) {
    static uint8_t f[VG_TIO_HEADER + 8 + 512 * REC];
    size_t n = records(f + VG_TIO_HEADER + 8, first, count);
    vg_tio_header(f, VG_TIO_OUTPUT, (uint32_t)(8 + n));
    vg_put64(f + VG_TIO_HEADER, (uint64_t)first * REC);
    cr_assert_eq(vg_stream_send(keeper, f, VG_TIO_HEADER + 8 + n), 0);
}

static void show_exit(void) {
    uint8_t f[VG_TIO_HEADER + 16] = {0};
    vg_tio_header(f, VG_TIO_EXIT, 16);
    cr_assert_eq(vg_stream_send(keeper, f, sizeof f), 0);
}

/* Reads what the client gets until it has seen record `last`; each record must follow the one
   before it, but where a gap says how many are missing. *next: the number that must come next. */
static void expect_records(unsigned *next, unsigned last) {
    while (*next <= last) {
        struct msg m = side_expect(&w, &client, BODY(LOG_DATA));
        const uint8_t *p = m.env->log_data->records.data;
        const uint8_t *end = p + m.env->log_data->records.len;
        cr_assert_neq(p, end, "the log ended before record %u", *next);
        for (; p < end; p += VG_REC_HEADER + vg_get32(p)) {
            char text[8];
            if (p[4] == VG_REC_GAP) {
                cr_assert_eq(vg_get64(p + VG_REC_HEADER) % REC, 0);
                *next += (unsigned)(vg_get64(p + VG_REC_HEADER) / REC);
                continue;
            }
            snprintf(text, sizeof text, "%04u", *next);
            cr_assert_eq(memcmp(p + VG_REC_HEADER, text, 4), 0, "record %.4s came, not %s",
                         (const char *)p + VG_REC_HEADER, text);
            (*next)++;
        }
        msg_done(&m);
    }
    cr_assert_eq(*next, last + 1);
}

static void expect_end(void) {
    struct msg m = side_expect(&w, &client, BODY(LOG_DATA));
    cr_assert_eq(m.env->log_data->records.len, 0);
    cr_assert_not(m.env->more);
    msg_done(&m);
}

static void end_task(unsigned n_records) {
    Vg__Pb__TaskExited x = VG__PB__TASK_EXITED__INIT;
    x.has_task_id = x.has_attempt = x.has_status = x.has_started_usec = x.has_out_end = 1;
    x.task_id = T1;
    x.attempt = 1;
    x.started_usec = 1;
    x.out_end = (uint64_t)n_records * REC;
    ENV(env, TASK_EXITED, task_exited, &x);
    side_send(&agent, &env, NULL, 0);
}

Test(logs, what_is_not_stored_is_shown_by_the_keeper) {
    unsigned next = 0;
    start_task();
    store(0, 200, false);
    follow();
    cr_assert_eq(expect_observer(), 200 * REC);
    expect_records(&next, 199);
    show(200, 100);
    expect_records(&next, 299);
    show(300, 50);
    expect_records(&next, 349);
}

Test(logs, the_tail_goes_on_where_the_keeper_stopped) {
    unsigned next = 0;
    start_task();
    store(0, 200, false);
    follow();
    expect_observer();
    show(200, 100);
    expect_records(&next, 299);
    store(250, 100, true);
    end_task(350);
    show_exit();
    expect_records(&next, 349);
    expect_end();
}

Test(logs, the_keeper_may_show_all_and_the_tail_adds_nothing) {
    unsigned next = 0;
    start_task();
    follow();
    cr_assert_eq(expect_observer(), 0);
    show(0, 350);
    store(0, 200, false);
    store(250, 100, true);
    end_task(350);
    expect_records(&next, 349);
    expect_end();
}

Test(logs, stored_output_and_shown_output_do_not_repeat_each_other) {
    unsigned next = 0;
    start_task();
    follow();
    expect_observer();
    store(0, 20, false);
    expect_records(&next, 19);
    show(0, 30);
    expect_records(&next, 29);
    store(20, 30, false);
    expect_records(&next, 49);
}

Test(logs, output_that_the_keeper_dropped_is_a_gap) {
    unsigned next = 0;
    start_task();
    store(0, 10, false);
    follow();
    expect_observer();
    expect_records(&next, 9);
    show(60, 10);
    expect_records(&next, 69);
}

Test(logs, a_keeper_that_says_nothing_more_holds_nobody_up) {
    unsigned next = 0;
    start_task();
    store(0, 10, false);
    follow();
    expect_observer();
    store(90, 10, true);
    end_task(100);
    expect_records(&next, 99);
    expect_end();
}

Test(logs, a_node_that_makes_no_sense_ends_the_looking_not_the_log) {
    uint8_t f[VG_TIO_HEADER];
    unsigned next = 0;
    start_task();
    store(0, 10, false);
    follow();
    expect_observer();
    vg_tio_header(f, VG_TIO_OUTPUT, VG_TIO_MAX + 1);
    cr_assert_eq(vg_stream_send(keeper, f, sizeof f), 0);
    run_until(&gone, 1);
    store(10, 10, false);
    expect_records(&next, 19);
    end_task(20);
    expect_end();
}

Test(logs, a_node_that_comes_back_is_looked_at_again) {
    unsigned next = 0;
    start_task();
    store(0, 10, false);
    follow();
    expect_observer();
    show(10, 10);
    expect_records(&next, 19);
    side_close(&w, &agent);
    Vg__Pb__TaskReport r = VG__PB__TASK_REPORT__INIT, *list[1] = {&r};
    r.has_task_id = r.has_attempt = r.has_state = 1;
    r.task_id = T1;
    r.attempt = 1;
    r.state = VG__PB__TASK_REPORT__STATE__RUNNING;
    play_agent(&w, &agent, "n1", node, list, 1);
    cr_assert_eq(expect_observer(), 20 * REC);
    show(20, 10);
    expect_records(&next, 29);
}

Test(logs, a_follower_that_leaves_takes_the_observer_along) {
    start_task();
    follow();
    expect_observer();
    side_close(&w, &client);
    run_until(&gone, 1);
}
