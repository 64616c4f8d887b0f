/* Pumps: a stream through a stream, and a socket through two connections. */
#include "fixture.h"

#include <sys/socket.h>
#include <unistd.h>

static void count_done(void *user) {
    ++*(int *)user;
}

/* source -> x1 .. y1 =pump= x2 .. y2 -> sink, over two connections on one loop. */
struct relay {
    struct pair first, second; /* second borrows first's loop */
    struct flow client, task;
    struct vg_stream *in, *out;
    int done;
};

static void relay_init(struct relay *r) {
    int fds[2];
    struct vg_err err = VG_ERR_INIT;
    *r = (struct relay){0};
    pair_init(&r->first);
    uv_loop_t *loop = &r->first.loop;
    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    cr_assert_eq(
        vg_conn_new(loop, fds[0], NULL, true, &peer_ops, &r->second.a, &r->second.a.conn, &err), 0);
    cr_assert_eq(
        vg_conn_new(loop, fds[1], NULL, false, &peer_ops, &r->second.b, &r->second.b.conn, &err),
        0);
    r->client.stream = vg_stream_new(r->first.a.conn, 0, &flow_ops, &r->client);
    r->in = vg_stream_new(r->first.b.conn, vg_stream_id(r->client.stream), NULL, NULL);
    r->out = vg_stream_new(r->second.b.conn, 0, NULL, NULL);
    r->task.stream = vg_stream_new(r->second.a.conn, vg_stream_id(r->out), &flow_ops, &r->task);
    r->client.seed_out = r->task.seed_in = 77;
    r->client.seed_in = r->task.seed_out = 99;
}

static void relay_done(struct relay *r) {
    if (r->second.a.conn)
        vg_conn_abort(r->second.a.conn, VG_OK, NULL);
    if (r->second.b.conn)
        vg_conn_abort(r->second.b.conn, VG_OK, NULL);
    pair_done(&r->first);
    check_leaks();
}

Test(pump, joins_streams_of_two_connections_both_ways) {
    struct relay r;
    relay_init(&r);
    r.client.to_send = 64u << 20;
    r.task.to_send = 64u << 20;
    flow_push(&r.client);
    cr_assert_eq(vg_pump_streams(r.in, r.out, count_done, &r.done), 0);
    flow_push(&r.task);
    run_until(&r.first, r.client.ended && r.task.ended && r.done);
    cr_assert(r.client.got == 64u << 20 && r.task.got == 64u << 20);
    cr_assert(!r.client.wrong && !r.task.wrong);
    cr_assert(!r.client.reset && !r.task.reset, "an orderly end resets nothing");
    cr_assert_eq(r.done, 1);
    relay_done(&r);
}

Test(pump, a_slow_reader_at_the_far_end_stops_the_writer_at_the_near_end) {
    struct relay r;
    relay_init(&r);
    r.client.to_send = 64u << 20;
    r.task.hold = true;
    cr_assert_eq(vg_pump_streams(r.in, r.out, count_done, &r.done), 0);
    flow_push(&r.client);
    run_until(&r.first, r.task.got == VG_WIRE_CREDIT && vg_stream_room(r.client.stream) == 0 &&
                            vg_conn_queued(r.first.a.conn) == 0);
    send_text(r.first.a.conn, 1, "marker");
    run_until(&r.first, r.first.b.msgs == 1);
    cr_assert_leq(r.client.sent, 2u * VG_WIRE_CREDIT, "one credit a hop");
    relay_done(&r);
    cr_assert_eq(r.done, 1);
}

Test(pump, a_reset_of_one_side_resets_the_other) {
    struct relay r;
    relay_init(&r);
    r.client.to_send = 1000000;
    cr_assert_eq(vg_pump_streams(r.in, r.out, count_done, &r.done), 0);
    flow_push(&r.client);
    run_until(&r.first, r.task.got == 1000000);
    vg_stream_free(r.task.stream, VG_NO_COMMAND);
    run_until(&r.first, r.client.reset && r.done);
    cr_assert_eq(r.client.reason, VG_NO_COMMAND);
    relay_done(&r);
}

Test(pump, the_end_of_a_connection_resets_the_other_side) {
    struct relay r;
    relay_init(&r);
    cr_assert_eq(vg_pump_streams(r.in, r.out, count_done, &r.done), 0);
    vg_conn_close(r.first.a.conn);
    run_until(&r.first, r.task.reset && r.done);
    relay_done(&r);
}

Test(pump, a_dead_stream_is_refused_and_both_are_taken) {
    struct relay r;
    relay_init(&r);
    vg_stream_free(r.client.stream, VG_TIMEOUT);
    send_text(r.first.a.conn, 1, "marker");
    run_until(&r.first, r.first.b.msgs == 1);
    cr_assert_eq(vg_pump_streams(r.in, r.out, count_done, &r.done), -EPIPE);
    run_until(&r.first, r.task.reset);
    cr_assert_eq(r.done, 0);
    relay_done(&r);
}

/* ------------------------------------------------------------------ sockets */

/* flow x on connection a <-> stream on b = pump = socket .. socket = pump = stream on a <-> flow y
 */
struct loopback {
    struct pair pair;
    struct flow x, y;
    int done;
    int fds[2];
    struct vg_stream *left, *right;
};

static void loopback_init(struct loopback *l) {
    *l = (struct loopback){0};
    pair_init(&l->pair);
    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, l->fds), 0);
    l->x.stream = vg_stream_new(l->pair.a.conn, 0, &flow_ops, &l->x);
    l->left = vg_stream_new(l->pair.b.conn, vg_stream_id(l->x.stream), NULL, NULL);
    l->y.stream = vg_stream_new(l->pair.b.conn, 0, &flow_ops, &l->y);
    l->right = vg_stream_new(l->pair.a.conn, vg_stream_id(l->y.stream), NULL, NULL);
    l->x.seed_out = l->y.seed_in = 3;
    l->x.seed_in = l->y.seed_out = 4;
}

Test(pump, joins_sockets_and_streams_both_ways) {
    struct loopback l;
    loopback_init(&l);
    uv_loop_t *loop = &l.pair.loop;
    l.x.to_send = 64u << 20;
    l.y.to_send = 64u << 20;
    cr_assert_eq(vg_pump_fd(loop, l.fds[0], l.left, count_done, &l.done), 0);
    cr_assert_eq(vg_pump_fd(loop, l.fds[1], l.right, count_done, &l.done), 0);
    flow_push(&l.x);
    flow_push(&l.y);
    run_until(&l.pair, l.x.ended && l.y.ended && l.done == 2);
    cr_assert(l.x.got == 64u << 20 && l.y.got == 64u << 20);
    cr_assert(!l.x.wrong && !l.y.wrong && !l.x.reset && !l.y.reset);
    pair_done(&l.pair);
    check_leaks();
}

Test(pump, a_socket_that_is_not_read_holds_one_credit_and_no_more) {
    struct loopback l;
    loopback_init(&l);
    l.x.to_send = 64u << 20;
    cr_assert_eq(vg_pump_fd(&l.pair.loop, l.fds[0], l.left, count_done, &l.done), 0);
    flow_push(&l.x);
    uint64_t before = 0;
    do {
        before = l.x.sent;
        send_text(l.pair.a.conn, 1, "marker");
        unsigned want = l.pair.b.msgs + 1;
        run_until(&l.pair, l.pair.b.msgs == want);
        send_text(l.pair.b.conn, 1, "marker");
        want = l.pair.a.msgs + 1;
        run_until(&l.pair, l.pair.a.msgs == want);
    } while (l.x.sent != before);
    cr_assert_lt(l.x.sent, VG_WIRE_CREDIT + (8u << 20), "the kernel's buffers and one credit");
    cr_assert_lt(l.x.sent, l.x.to_send);
    vg_stream_free(l.right, VG_OK);
    close(l.fds[1]); /* the reader dies: the writer learns it */
    run_until(&l.pair, l.x.reset && l.done == 1);
    pair_done(&l.pair);
    check_leaks();
}

Test(pump, only_sockets_are_taken) {
    struct loopback l;
    loopback_init(&l);
    int ends[2];
    cr_assert_eq(pipe(ends), 0);
    cr_assert_eq(vg_pump_fd(&l.pair.loop, ends[0], l.left, count_done, &l.done), -ENOTSOCK);
    close(ends[1]);
    run_until(&l.pair, l.x.reset);
    cr_assert_eq(l.done, 0);
    vg_stream_free(l.right, VG_OK);
    close(l.fds[0]);
    close(l.fds[1]);
    pair_done(&l.pair);
    check_leaks();
}
