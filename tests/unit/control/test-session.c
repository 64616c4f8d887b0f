/* Sessions, clients inside tasks, relayed streams, replayed output, lost leases. */
#include "base/buf.h"
#include "base/util.h"
#include "net/tio.h"
#include "world.h"

#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define T1 0x1111111111111111ULL
#define T2 0x2222222222222222ULL

static struct world w;
static struct side client, agent, second;

static void setup(void) {
    world_up(&w, "lease: 1s\nheartbeat: 300ms\n");
}

static void teardown(void) {
    side_close(&w, &client);
    side_close(&w, &agent);
    side_close(&w, &second);
    world_down(&w);
}

TestSuite(session, .init = setup, .fini = teardown, .timeout = 120);

static void in_session(Vg__Pb__RunReq *r) {
    r->spec->session = "work";
}

static void batch(Vg__Pb__RunReq *r) {
    r->spec->interactive = 0;
    r->spec->has_detached = r->spec->detached = 1;
}

Test(session, every_task_of_a_session_goes_to_its_node) {
    play_agent(&w, &agent, "n1", 0, NULL, 0);
    side_open(&w, &client);
    play_run(&client, T1, in_session);
    struct msg m = side_expect(&w, &agent, BODY(START));
    cr_assert_str_eq(m.env->start->session_key, "root/work");
    msg_done(&m);
    play_agent(&w, &second, "n2", 0, NULL, 0); /* emptier: the next would go there */
    for (uint64_t i = 0; i < 5; i++) {
        play_run(&client, T2 + i, in_session);
        m = side_expect(&w, &agent, BODY(START));
        cr_assert_eq(m.env->start->task_id, T2 + i);
        msg_done(&m);
    }
    cr_assert_not(side_has(&second, BODY(START)));
}

Test(session, a_node_without_heartbeat_is_lost_and_its_batch_task_goes_elsewhere) {
    play_agent(&w, &agent, "n1", 0, NULL, 0);
    side_open(&w, &client);
    play_run(&client, T1, batch);
    struct msg m = side_expect(&w, &agent, BODY(START));
    msg_done(&m);
    play_started(&agent, T1, 1);
    side_sync(&w, &agent);
    /* n1 falls silent; n2 comes when the task is back in the queue, and has its own lease. */
    expect_event(&w, &client, VG__PB__RUN_EVENT__KIND__REQUEUED, &m);
    cr_assert(strstr(m.env->run_event->text, "n1 was lost"));
    msg_done(&m);
    play_agent(&w, &second, "n2", 0, NULL, 0);
    m = side_expect(&w, &second, BODY(START));
    cr_assert_eq(m.env->start->attempt, 2);
    msg_done(&m);
}

/* Reads a whole task I/O frame from a blocking socket while the loop runs. */
static size_t read_frame(int fd, uint8_t *buf, size_t max, unsigned *ret_kind) {
    size_t have = 0, want = VG_TIO_HEADER;
    while (have < want) {
        ssize_t n = recv(fd, buf + have, want - have, MSG_DONTWAIT);
        if (n > 0)
            have += (size_t)n;
        else if (n == 0)
            cr_assert_fail("the channel ended");
        else
            uv_run(&w.loop, UV_RUN_ONCE);
        if (have == VG_TIO_HEADER && want == VG_TIO_HEADER) {
            want += vg_get32(buf);
            cr_assert_leq(want, max);
        }
    }
    *ret_kind = buf[4];
    return want - VG_TIO_HEADER;
}

Test(session, an_ended_task_is_replayed_to_whoever_attaches) {
    uint8_t rec[VG_REC_HEADER + 3], buf[4096], hello[VG_TIO_HEADER + 12] = {0};
    unsigned kind = 0;
    int pair[2];
    play_agent(&w, &agent, "n1", 0, NULL, 0);
    side_open(&w, &client);
    play_run(&client, T1, batch);
    struct msg m = side_expect(&w, &agent, BODY(START));
    msg_done(&m);
    vg_rec_header(rec, VG_REC_STDOUT, 3, 1);
    memcpy(rec + VG_REC_HEADER, "out", 3);
    Vg__Pb__LogAppend a = VG__PB__LOG_APPEND__INIT;
    a.has_task_id = a.has_attempt = a.has_records = 1;
    a.task_id = T1;
    a.attempt = 1;
    a.records = (ProtobufCBinaryData){.data = rec, .len = sizeof rec};
    ENV(env, LOG_APPEND, log_append, &a);
    side_send(&agent, &env, NULL, 0);
    play_exited(&agent, T1, 1, 9);
    m = side_expect(&w, &agent, BODY(EXIT_ACK));
    msg_done(&m);
    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    Vg__Pb__AttachReq q = VG__PB__ATTACH_REQ__INIT;
    q.task = "1111";
    q.has_fd_mask = 1;
    q.fd_mask = 1;
    ENV(attach, ATTACH, attach, &q);
    side_send(&client, &attach, &pair[1], 1);
    vg_tio_header(hello, VG_TIO_HELLO, 12);
    cr_assert_eq(write(pair[0], hello, sizeof hello), sizeof hello);
    read_frame(pair[0], buf, sizeof buf, &kind);
    cr_assert_eq(kind, VG_TIO_WELCOME);
    size_t n = read_frame(pair[0], buf, sizeof buf, &kind);
    cr_assert_eq(kind, VG_TIO_OUTPUT);
    cr_assert_eq(n, 8 + sizeof rec);
    cr_assert_eq(vg_get64(buf + VG_TIO_HEADER), 0);
    cr_assert(memcmp(buf + VG_TIO_HEADER + 8, rec, sizeof rec) == 0);
    read_frame(pair[0], buf, sizeof buf, &kind);
    cr_assert_eq(kind, VG_TIO_EXIT);
    cr_assert_eq(vg_get32(buf + VG_TIO_HEADER), 9);
    cr_assert_eq(vg_get64(buf + VG_TIO_HEADER + 4), sizeof rec);
    close(pair[0]);
}

/* ------------------------------------------------------------------ clients inside tasks */

static void nested_data(struct vg_stream *s, void *user, const uint8_t *data, size_t n) {
    struct vg_buf *b = user;
    cr_assert_eq(vg_buf_append(b, data, n), 0);
    vg_stream_consumed(s, n);
}

static const struct vg_stream_ops nested_ops = {.on_data = nested_data};

/* Speaks one hello over a nested stream and returns the answer's envelope. */
static Vg__Pb__Envelope *nested_hello(const char *token) {
    struct vg_buf in = {0};
    struct vg_stream *s = vg_stream_new(agent.conn, 0, &nested_ops, &in);
    Vg__Pb__NestedReq q = VG__PB__NESTED_REQ__INIT;
    q.has_stream = 1;
    q.stream = vg_stream_id(s);
    ENV(env, NESTED, nested, &q);
    side_send(&agent, &env, NULL, 0);
    Vg__Pb__Hello h = VG__PB__HELLO__INIT;
    h.token = (char *)token;
    ENV(hello, HELLO, hello, &h);
    hello.has_req = 1;
    hello.req = 1;
    uint8_t frame[512] = {0};
    size_t n = vg__pb__envelope__pack(&hello, frame + 8);
    vg_put32(frame, (uint32_t)n);
    frame[4] = 1; /* MSG */
    cr_assert_eq(vg_stream_send(s, frame, 8 + n), 0);
    while (vg_buf_len(&in) < 8 || vg_buf_len(&in) < 8 + vg_get32(vg_buf_data(&in)))
        uv_run(&w.loop, UV_RUN_ONCE);
    Vg__Pb__Envelope *r =
        vg__pb__envelope__unpack(NULL, vg_get32(vg_buf_data(&in)), vg_buf_data(&in) + 8);
    cr_assert(r);
    vg_stream_free(s, VG_OK);
    vg_buf_done(&in);
    return r;
}

Test(session, a_client_inside_a_task_speaks_for_its_owner_and_only_with_its_token) {
    play_agent(&w, &agent, "n1", 0, NULL, 0);
    side_open(&w, &client);
    play_run(&client, T1, batch);
    struct msg m = side_expect(&w, &agent, BODY(START));
    Vg__Pb__Envelope *r = nested_hello(m.env->start->task_token);
    cr_assert_eq(r->body_case, BODY(HELLO_OK));
    cr_assert_str_eq(r->hello_ok->user, "root");
    vg__pb__envelope__free_unpacked(r, NULL);
    r = nested_hello(NULL);
    cr_assert_eq(r->body_case, BODY(ERROR), "without a token");
    vg__pb__envelope__free_unpacked(r, NULL);
    play_exited(&agent, T1, 1, 0);
    struct msg ack = side_expect(&w, &agent, BODY(EXIT_ACK));
    msg_done(&ack);
    r = nested_hello(m.env->start->task_token);
    cr_assert_eq(r->body_case, BODY(ERROR), "after the task's end");
    vg__pb__envelope__free_unpacked(r, NULL);
    msg_done(&m);
}
