/* Connections over socket pairs: messages, descriptors, ends, and peers that misbehave. */
#include "fixture.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

Test(conn, both_sides_become_ready_and_exchange_messages_in_order) {
    struct pair p;
    pair_init(&p);
    for (uint32_t i = 0; i < 1000; i++) {
        char text[32];
        (void)snprintf(text, sizeof(text), "n%u", i);
        cr_assert_eq(send_text(p.a.conn, i, text), 0);
    }
    cr_assert_eq(send_text(p.b.conn, 1, "back"), 0);
    run_until(&p, p.b.msgs == 1000 && p.a.msgs == 1);
    cr_assert(p.a.ready && p.b.ready);
    cr_assert_str_eq(p.b.last_text, "n999");
    cr_assert_str_eq(p.a.last_text, "back");
    cr_assert(vg_conn_is_local(p.a.conn));
    cr_assert_str_eq(vg_conn_peer_address(p.a.conn), "unix");
    pid_t pid;
    uid_t uid;
    gid_t gid;
    cr_assert_eq(vg_conn_peer_cred(p.a.conn, &pid, &uid, &gid), 0);
    cr_assert_eq(uid, geteuid());
    pair_done(&p);
    check_leaks();
}

Test(conn, closing_sends_what_is_queued_and_ends_orderly_on_both_sides) {
    struct pair p;
    pair_init(&p);
    for (uint32_t i = 0; i < 5000; i++)
        cr_assert_eq(send_text(p.a.conn, i, "a message that has to arrive before the end"), 0);
    cr_assert_eq(send_text(p.b.conn, 1, "unread by the one who closes"), 0);
    vg_conn_close(p.a.conn);
    cr_assert_eq(send_text(p.a.conn, 1, "too late"), -EPIPE);
    run_until(&p, !p.a.conn && !p.b.conn);
    cr_assert_eq(p.b.msgs, 5000u);
    cr_assert_eq(p.a.why.reason, VG_OK);
    cr_assert_eq(p.b.why.reason, VG_OK, "%s", p.b.why.msg);
    cr_assert(p.a.closes == 1 && p.b.closes == 1);
    pair_done(&p);
    check_leaks();
}

/* Each descriptor is a pipe whose reading end holds the message's number. */
static void check_fds(struct peer *p, const Vg__Pb__Envelope *env, int *fds, size_t n_fds) {
    size_t want = env->req % 3 == 0 ? env->req % 5 : 0;
    cr_assert_eq(env->req, p->msgs - 1, "messages keep their order");
    cr_assert_eq(n_fds, want, "message %u has %zu descriptors", env->req, n_fds);
    for (size_t i = 0; i < n_fds; i++) {
        uint32_t number = 0;
        cr_assert_eq(read(fds[i], &number, sizeof(number)), (ssize_t)sizeof(number));
        cr_assert_eq(number, env->req * 8 + (uint32_t)i);
        cr_assert(fcntl(fds[i], F_GETFD) & FD_CLOEXEC);
    }
}

Test(conn, descriptors_arrive_with_their_own_message) {
    struct pair p;
    size_t before = count_fds();
    pair_init(&p);
    p.b.on_msg = check_fds;
    static char big[100000];
    memset(big, 'x', sizeof(big) - 1);
    for (uint32_t i = 0; i < 600; i++) {
        int fds[4];
        size_t n = i % 3 == 0 ? i % 5 : 0;
        for (size_t k = 0; k < n; k++) {
            int ends[2];
            uint32_t number = i * 8 + (uint32_t)k;
            cr_assert_eq(pipe2(ends, O_CLOEXEC), 0);
            cr_assert_eq(write(ends[1], &number, sizeof(number)), (ssize_t)sizeof(number));
            close(ends[1]);
            fds[k] = ends[0];
        }
        cr_assert_eq(send_text_fds(p.a.conn, i, i % 7 == 0 ? big : "small", fds, n), 0);
        if (i % 50 == 0)
            pair_turn(&p);
    }
    run_until(&p, p.b.msgs == 600);
    pair_done(&p);
    cr_assert_eq(count_fds(), before, "every descriptor is closed again");
    check_leaks();
}

static void keep_first(struct peer *p, const Vg__Pb__Envelope *env, int *fds, size_t n_fds) {
    (void)env;
    cr_assert_eq(n_fds, 1u);
    *(int *)p->user = vg_take_fd(fds[0]);
}

Test(conn, a_kept_descriptor_stays_open) {
    struct pair p;
    int kept = -1, ends[2];
    pair_init(&p);
    p.b.on_msg = keep_first;
    p.b.user = &kept;
    cr_assert_eq(pipe2(ends, O_CLOEXEC), 0);
    cr_assert_eq(send_text_fds(p.a.conn, 1, "keep it", &ends[1], 1), 0);
    run_until(&p, kept >= 0);
    cr_assert_eq(write(kept, "z", 1), 1);
    close(kept);
    close(ends[0]);
    pair_done(&p);
    check_leaks();
}

Test(conn, a_message_of_the_greatest_size_passes_and_a_greater_one_is_refused) {
    struct pair p;
    pair_init(&p);
    size_t n = VG_WIRE_MSG_MAX - 32;
    char *text = malloc(VG_WIRE_MSG_MAX + 1);
    memset(text, 'm', VG_WIRE_MSG_MAX);
    text[n] = 0;
    cr_assert_eq(send_text(p.a.conn, 1, text), 0);
    text[n] = 'm';
    text[VG_WIRE_MSG_MAX] = 0;
    cr_assert_eq(send_text(p.a.conn, 2, text), -E2BIG);
    cr_assert_eq(send_text(p.a.conn, 3, "after"), 0);
    run_until(&p, p.b.msgs == 2);
    cr_assert_str_eq(p.b.last_text, "after");
    free(text);
    pair_done(&p);
    check_leaks();
}

static void abort_it(struct peer *p, const Vg__Pb__Envelope *env, int *fds, size_t n_fds) {
    (void)env, (void)fds, (void)n_fds;
    vg_conn_abort(p->conn, VG_FORBIDDEN, "not you");
}

Test(conn, aborting_from_inside_a_message_delivers_nothing_more) {
    struct pair p;
    pair_init(&p);
    p.b.on_msg = abort_it;
    for (uint32_t i = 0; i < 10; i++)
        send_text(p.a.conn, i, "x");
    run_until(&p, !p.b.conn && !p.a.conn);
    cr_assert_eq(p.b.msgs, 1u);
    cr_assert_eq(p.b.why.reason, VG_FORBIDDEN);
    cr_assert_str_eq(p.b.why.msg, "not you");
    pair_done(&p);
    check_leaks();
}

static void pause_it(struct peer *p, const Vg__Pb__Envelope *env, int *fds, size_t n_fds) {
    (void)env, (void)fds, (void)n_fds;
    if (p->msgs % 10 == 0)
        vg_conn_pause(p->conn, true);
}

Test(conn, a_paused_connection_delivers_nothing_and_loses_nothing) {
    struct pair p;
    pair_init(&p);
    p.b.on_msg = pause_it;
    for (uint32_t i = 0; i < 100; i++)
        send_text(p.a.conn, i, "x");
    for (unsigned step = 1; step <= 10; step++) {
        run_until(&p, p.b.msgs == step * 10);
        cr_assert_eq(send_text(p.b.conn, 1, "probe"), 0); /* a can still be written to */
        run_until(&p, p.a.msgs == step);
        cr_assert_eq(p.b.msgs, step * 10);
        vg_conn_pause(p.b.conn, false);
    }
    pair_done(&p);
    check_leaks();
}

/* ------------------------------------------------------------------ peers that misbehave */

Test(conn, a_broken_frame_is_answered_by_one_error_and_the_end) {
    struct pair p;
    int raw = pair_init_raw(&p);
    uint8_t bad[8], answer[600];
    vg_frame_header(bad, VG_FRAME_MSG, 5, 0);
    cr_assert_eq(write(raw, bad, 8), 8);
    run_until(&p, recv(raw, answer, 8, MSG_PEEK | MSG_DONTWAIT) == 8);
    ssize_t n = read(raw, answer, sizeof(answer));
    struct vg_frame f;
    size_t need;
    struct vg_err err = VG_ERR_INIT;
    cr_assert_eq(vg_frame_parse(answer, (size_t)n, &f, &need, &err), (int)n);
    Vg__Pb__Envelope *env = vg__pb__envelope__unpack(NULL, f.len, f.payload);
    cr_assert_eq(env->body_case, VG__PB__ENVELOPE__BODY_ERROR);
    cr_assert_eq(env->error->reason, (uint32_t)VG_PROTOCOL);
    vg__pb__envelope__free_unpacked(env, NULL);
    close(raw);
    run_until(&p, !p.a.conn);
    cr_assert_eq(p.a.why.reason, VG_PROTOCOL);
    pair_done(&p);
    check_leaks();
}

Test(conn, an_unreadable_message_is_a_protocol_error) {
    struct pair p;
    int raw = pair_init_raw(&p);
    uint8_t bad[12] = {0};
    vg_frame_header(bad, VG_FRAME_MSG, 0, 4);
    memset(bad + 8, 0xff, 4);
    cr_assert_eq(write(raw, bad, 12), 12);
    shutdown(raw, SHUT_WR);
    run_until(&p, !p.a.conn);
    cr_assert_eq(p.a.why.reason, VG_PROTOCOL);
    close(raw);
    pair_done(&p);
    check_leaks();
}

Test(conn, an_end_inside_a_frame_is_a_lost_connection) {
    for (size_t cut = 1; cut < 12; cut++) {
        struct pair p;
        int raw = pair_init_raw(&p);
        uint8_t part[12] = {0};
        vg_frame_header(part, VG_FRAME_MSG, 0, 4);
        cr_assert_eq(write(raw, part, cut), (ssize_t)cut);
        close(raw);
        run_until(&p, !p.a.conn);
        cr_assert_eq(p.a.why.reason, VG_LOST, "cut at %zu", cut);
        pair_done(&p);
    }
}

Test(conn, ping_is_answered_with_its_own_payload) {
    struct pair p;
    int raw = pair_init_raw(&p);
    uint8_t ping[16], pong[16];
    vg_frame_header(ping, VG_FRAME_PING, 0, 8);
    memcpy(ping + 8, "12345678", 8);
    cr_assert_eq(write(raw, ping, 16), 16);
    run_until(&p, recv(raw, pong, 16, MSG_PEEK | MSG_DONTWAIT) == 16);
    cr_assert_eq(read(raw, pong, 16), 16);
    vg_frame_header(ping, VG_FRAME_PONG, 0, 8);
    cr_assert_arr_eq(ping, pong, 16);
    close(raw);
    pair_done(&p);
    check_leaks();
}

Test(conn, too_many_descriptors_end_the_connection_and_are_closed) {
    struct pair p;
    size_t before = count_fds();
    int raw = pair_init_raw(&p);
    int fds[6] = {0, 0, 0, 0, 0, 0};
    uint8_t frame[8];
    vg_frame_header(frame, VG_FRAME_MSG, 0, 0);
    cr_assert_eq(vg_send_fds(raw, frame, 8, fds, 6, 0), 8);
    shutdown(raw, SHUT_WR);
    run_until(&p, !p.a.conn);
    cr_assert_eq(p.a.why.reason, VG_PROTOCOL);
    close(raw);
    pair_done(&p);
    cr_assert_eq(count_fds(), before);
    check_leaks();
}

Test(conn, descriptors_without_a_message_end_the_connection) {
    struct pair p;
    size_t before = count_fds();
    int raw = pair_init_raw(&p);
    int fd = 0;
    uint8_t frame[16] = {0};
    vg_frame_header(frame, VG_FRAME_PING, 0, 8);
    cr_assert_eq(vg_send_fds(raw, frame, 16, &fd, 1, 0), 16);
    shutdown(raw, SHUT_WR);
    run_until(&p, !p.a.conn);
    cr_assert_eq(p.a.why.reason, VG_PROTOCOL);
    close(raw);
    pair_done(&p);
    cr_assert_eq(count_fds(), before);
    check_leaks();
}

Test(conn, a_peer_that_never_reads_is_dropped_at_the_limit) {
    struct pair p;
    int raw = pair_init_raw(&p);
    char *text = malloc(1 << 20);
    memset(text, 'q', (1 << 20) - 1);
    text[(1 << 20) - 1] = 0;
    unsigned sent = 0;
    while (send_text(p.a.conn, 1, text) == 0)
        cr_assert_lt(++sent, 80u);
    cr_assert_gt(sent, 60u);
    run_until(&p, !p.a.conn);
    cr_assert_eq(p.a.why.reason, VG_LOST);
    free(text);
    close(raw);
    pair_done(&p);
    check_leaks();
}

/* A short message must not become gigabytes when unpacked: TaskList of empty TaskInfos. */
Test(conn, a_message_that_swells_when_unpacked_is_refused) {
    struct pair p;
    int raw = pair_init_raw(&p);
    size_t inner = 4u << 20; /* pairs of bytes: field 1, length 0 */
    uint8_t *data = malloc(inner + 64);
    uint8_t *q = data + 8;
    *q++ = (uint8_t)(62u << 3 | 2); /* tasks = 62, two bytes of tag */
    q[-1] = (uint8_t)((62u << 3 | 2) & 0x7f) | 0x80;
    *q++ = (62u << 3 | 2) >> 7;
    for (size_t v = inner; v; v >>= 7)
        *q++ = (uint8_t)((v & 0x7f) | (v > 0x7f ? 0x80 : 0));
    for (size_t i = 0; i < inner; i += 2) {
        q[i] = 1 << 3 | 2;
        q[i + 1] = 0;
    }
    size_t n = (size_t)(q - data) + inner;
    vg_frame_header(data, VG_FRAME_MSG, 0, (uint32_t)(n - 8));
    vg_set_nonblock(raw, true);
    for (size_t at = 0; at < n && p.a.conn;) {
        ssize_t r = write(raw, data + at, n - at);
        at += r > 0 ? (size_t)r : 0;
        pair_turn(&p);
    }
    shutdown(raw, SHUT_WR);
    run_until(&p, !p.a.conn);
    cr_assert_eq(p.a.msgs, 0u);
    cr_assert_eq(p.a.why.reason, VG_PROTOCOL);
    free(data);
    close(raw);
    pair_done(&p);
    check_leaks();
}
