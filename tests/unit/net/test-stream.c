/* Streams: credit, ends, resets, and numbers. */
#include "fixture.h"

#include <unistd.h>

/* b opens what a's message names, as programs do. */
static struct vg_stream *other_end(struct pair *p, const struct vg_stream *s,
                                   const struct vg_stream_ops *ops, void *user) {
    struct vg_stream *t = vg_stream_new(p->b.conn, vg_stream_id(s), ops, user);
    cr_assert_not_null(t);
    return t;
}

static void open_flows(struct pair *p, struct flow *x, struct flow *y) {
    x->stream = vg_stream_new(p->a.conn, 0, &flow_ops, x);
    cr_assert_not_null(x->stream);
    y->stream = other_end(p, x->stream, &flow_ops, y);
    x->seed_in = y->seed_out = 11;
    y->seed_in = x->seed_out = 22;
}

Test(stream, bytes_flow_both_ways_in_order_and_end) {
    struct pair p;
    struct flow x = {.to_send = 20000000}, y = {.to_send = 7654321};
    pair_init(&p);
    open_flows(&p, &x, &y);
    flow_push(&x);
    flow_push(&y);
    run_until(&p, x.ended && y.ended);
    cr_assert_eq(y.got, x.to_send);
    cr_assert_eq(x.got, y.to_send);
    cr_assert(!x.wrong && !y.wrong);
    vg_stream_free(x.stream, VG_OK);
    vg_stream_free(y.stream, VG_OK);
    send_text(p.a.conn, 1, "still here");
    run_until(&p, p.b.msgs == 1);
    cr_assert(!x.reset && !y.reset);
    pair_done(&p);
    check_leaks();
}

Test(stream, a_slow_reader_stops_the_sender_at_one_credit) {
    struct pair p;
    struct flow x = {.to_send = 8u << 20}, y = {.hold = true};
    pair_init(&p);
    open_flows(&p, &x, &y);
    flow_push(&x);
    run_until(&p, y.got == VG_WIRE_CREDIT);
    send_text(p.a.conn, 1, "a marker behind everything sent so far");
    run_until(&p, p.b.msgs == 1);
    cr_assert_eq(x.sent, VG_WIRE_CREDIT, "sent %zu", (size_t)x.sent);
    cr_assert_eq(vg_stream_room(x.stream), 0u);
    cr_assert_eq(vg_conn_queued(p.a.conn), 0u, "nothing waits in the sender");
    /* The reader goes on: so does the sender, and only as far. */
    vg_stream_consumed(y.stream, 512u << 10);
    run_until(&p, y.got == VG_WIRE_CREDIT + (512u << 10));
    cr_assert_eq(x.sent, y.got);
    y.hold = false;
    vg_stream_consumed(y.stream, y.held - (512u << 10));
    run_until(&p, y.ended);
    cr_assert_eq(y.got, 8u << 20);
    cr_assert(!y.wrong);
    pair_done(&p);
    cr_assert(x.reset && y.reset, "streams are told of their connection's end");
    check_leaks();
}

Test(stream, many_streams_share_a_bounded_queue_and_none_starves) {
    enum { N = 50 };
    struct pair p;
    static struct flow x[N], y[N];
    pair_init(&p);
    size_t most = 0, done = 0;
    for (int i = 0; i < N; i++) {
        x[i].to_send = 2u << 20;
        open_flows(&p, &x[i], &y[i]);
    }
    for (int i = 0; i < N; i++)
        flow_push(&x[i]);
    while (done < N && !p.late) {
        pair_turn(&p);
        most = VG_MAX(most, vg_conn_queued(p.a.conn));
        done = 0;
        for (int i = 0; i < N; i++)
            done += y[i].ended;
    }
    cr_assert_eq(done, (size_t)N);
    cr_assert_leq(most, (size_t)(1u << 20) + 64 * VG_WIRE_HEADER);
    for (int i = 0; i < N; i++)
        cr_assert(!y[i].wrong && y[i].got == 2u << 20);
    pair_done(&p);
    check_leaks();
}

Test(stream, half_close_leaves_the_other_direction_open) {
    struct pair p;
    struct flow x = {.to_send = 0}, y = {.to_send = 3000000};
    pair_init(&p);
    open_flows(&p, &x, &y);
    flow_push(&x); /* only the end */
    run_until(&p, y.ended);
    cr_assert_eq(vg_stream_send(x.stream, "x", 1), -EPIPE);
    cr_assert(!x.ended);
    flow_push(&y);
    run_until(&p, x.ended);
    cr_assert_eq(x.got, 3000000u);
    pair_done(&p);
    check_leaks();
}

Test(stream, a_reset_reaches_the_other_end_with_its_reason_and_late_bytes_are_ignored) {
    struct pair p;
    struct flow x = {.to_send = 900000}, y = {.to_send = 900000};
    pair_init(&p);
    open_flows(&p, &x, &y);
    flow_push(&x);
    flow_push(&y); /* on its way while a resets */
    vg_stream_free(x.stream, VG_TIMEOUT);
    run_until(&p, y.reset);
    cr_assert_eq(y.reason, VG_TIMEOUT);
    send_text(p.b.conn, 1, "alive");
    run_until(&p, p.a.msgs == 1);
    cr_assert_eq(x.got, 0u);
    pair_done(&p);
    check_leaks();
}

static void free_self(struct vg_stream *s, void *user, const uint8_t *data, size_t n) {
    (void)data, (void)n;
    ++*(int *)user;
    vg_stream_free(s, VG_INVALID);
}
static void abort_conn(struct vg_stream *s, void *user, const uint8_t *data, size_t n) {
    (void)data, (void)n;
    ++*(int *)user;
    vg_conn_abort(vg_stream_conn(s), VG_INTERNAL, "from inside");
}

Test(stream, freeing_a_stream_or_aborting_from_inside_its_data_is_safe) {
    static const struct vg_stream_ops ops[2] = {{.on_data = free_self}, {.on_data = abort_conn}};
    for (int i = 0; i < 2; i++) {
        struct pair p;
        struct flow x = {.to_send = 1u << 20};
        int calls = 0;
        pair_init(&p);
        x.stream = vg_stream_new(p.a.conn, 0, &flow_ops, &x);
        other_end(&p, x.stream, &ops[i], &calls);
        flow_push(&x);
        run_until(&p, x.reset);
        cr_assert_eq(calls, 1);
        pair_done(&p);
    }
}

Test(stream, numbers_have_the_parity_of_their_maker) {
    struct pair p;
    pair_init(&p);
    struct flow f[4] = {0};
    struct vg_stream *a = vg_stream_new(p.a.conn, 0, &flow_ops, &f[0]);
    struct vg_stream *b = vg_stream_new(p.b.conn, 0, &flow_ops, &f[1]);
    cr_assert_eq(vg_stream_id(a) % 2, 1u);
    cr_assert_eq(vg_stream_id(b) % 2, 0u);
    cr_assert_null(vg_stream_new(p.a.conn, 9, &flow_ops, &f[2]), "own parity is not the peer's");
    cr_assert_null(vg_stream_new(p.b.conn, 8, &flow_ops, &f[2]));
    cr_assert_null(vg_stream_new(p.b.conn, 0x1000001, &flow_ops, &f[2]));
    cr_assert_not_null(vg_stream_new(p.b.conn, 9, &flow_ops, &f[2]));
    cr_assert_null(vg_stream_new(p.b.conn, 9, &flow_ops, &f[3]), "taken");
    pair_done(&p);
    check_leaks();
}

Test(stream, bytes_and_end_that_come_before_there_are_ops_are_kept) {
    struct pair p;
    struct flow x = {.to_send = 600000, .seed_out = 5}, y = {.seed_in = 5};
    pair_init(&p);
    x.stream = vg_stream_new(p.a.conn, 0, &flow_ops, &x);
    y.stream = other_end(&p, x.stream, NULL, NULL);
    flow_push(&x);
    send_text(p.a.conn, 1, "marker");
    run_until(&p, p.b.msgs == 1);
    cr_assert_eq(vg_stream_set_ops(y.stream, &flow_ops, &y), 0);
    cr_assert_eq(y.got, 0u, "told from the loop only");
    run_until(&p, y.ended);
    cr_assert(y.got == 600000 && !y.wrong);
    pair_done(&p);
    check_leaks();
}

Test(stream, without_ops_a_stream_outlives_its_connection_until_it_is_freed) {
    struct pair p;
    struct flow x = {.to_send = 100};
    pair_init(&p);
    x.stream = vg_stream_new(p.a.conn, 0, &flow_ops, &x);
    struct vg_stream *y = other_end(&p, x.stream, NULL, NULL);
    flow_push(&x);
    vg_conn_close(p.a.conn);
    run_until(&p, !p.b.conn && !p.a.conn);
    cr_assert_null(vg_stream_conn(y));
    cr_assert_eq(vg_stream_room(y), 0u);
    cr_assert_eq(vg_stream_send(y, "x", 1), -EPIPE);
    cr_assert_eq(vg_stream_set_ops(y, &flow_ops, &x), -EPIPE);
    vg_stream_free(y, VG_OK);
    pair_done(&p);
    check_leaks();
}

/* Frames written by hand that a correct peer would never send. */
static void expect_refusal(const uint8_t *bytes, size_t n, const char *word) {
    struct pair p;
    struct flow x = {.hold = true};
    int raw = pair_init_raw(&p);
    x.stream = vg_stream_new(p.a.conn, 0, &flow_ops, &x); /* number 1 */
    vg_set_nonblock(raw, true);
    for (size_t at = 0; at < n && p.a.conn;) {
        ssize_t r = write(raw, bytes + at, n - at);
        at += r > 0 ? (size_t)r : 0;
        pair_turn(&p);
    }
    shutdown(raw, SHUT_WR);
    run_until(&p, !p.a.conn);
    cr_assert_eq(p.a.why.reason, VG_PROTOCOL);
    cr_assert_not_null(strstr(p.a.why.msg, word), "%s", p.a.why.msg);
    cr_assert(x.reset);
    close(raw);
    pair_done(&p);
}

Test(stream, a_widened_stream_lets_the_sender_be_further_ahead) {
    struct pair p;
    struct flow x = {.to_send = 8u << 20}, y = {.hold = true};
    pair_init(&p);
    open_flows(&p, &x, &y);
    vg_stream_widen(y.stream, 4u << 20);
    vg_stream_widen(y.stream, 2u << 20); /* never narrower */
    flow_push(&x);
    run_until(&p, y.got == 4u << 20);
    send_text(p.a.conn, 1, "a marker behind everything sent so far");
    run_until(&p, p.b.msgs == 1);
    cr_assert_eq(x.sent, 4u << 20, "sent %zu", (size_t)x.sent);
    y.hold = false;
    vg_stream_consumed(y.stream, y.held);
    run_until(&p, y.ended);
    cr_assert_eq(y.got, 8u << 20);
    cr_assert(!y.wrong);
    pair_done(&p);
    check_leaks();
}

Test(stream, a_peer_that_breaks_credit_or_end_is_refused) {
    enum { FRAME = VG_WIRE_HEADER + VG_WIRE_DATA_MAX, N = 5 };
    uint8_t *flood = calloc(N, FRAME);
    for (int i = 0; i < N; i++)
        vg_frame_header(flood + (size_t)i * FRAME, VG_FRAME_DATA, 1, VG_WIRE_DATA_MAX);
    expect_refusal(flood, (size_t)N * FRAME, "beyond its credit");
    free(flood);
    uint8_t late[VG_WIRE_HEADER * 2 + 1] = {0};
    vg_frame_header(late, VG_FRAME_END, 1, 0);
    vg_frame_header(late + VG_WIRE_HEADER, VG_FRAME_DATA, 1, 1);
    expect_refusal(late, sizeof(late), "after its end");
    uint8_t gift[VG_WIRE_HEADER + 4] = {0};
    vg_frame_header(gift, VG_FRAME_CREDIT, 1, 4);
    gift[VG_WIRE_HEADER + 3] = 1; /* 16 MiB */
    expect_refusal(gift, sizeof(gift), "more credit");
    check_leaks();
}
