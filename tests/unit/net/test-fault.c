/* "Fail the Nth": a conversation in which one allocation, send or receive fails. Whatever fails,
   every connection ends exactly once, nothing is left on the loop, no descriptor stays open; with
   the address sanitizer also: no memory is lost, none is used after its end. */
#include "base/fault.h"
#include "fixture.h"
#include "net/tls.h"

#include <fcntl.h>
#include <unistd.h>

struct talk {
    struct pair p;
    struct peer far;
    struct flow x, y;
    struct vg_stream *middle;
    int done;
};

static void on_done(void *user) {
    ++*(int *)user;
}

static bool over(const struct talk *t) {
    return t->x.reset || t->y.reset || (t->x.ended && t->y.ended) || !t->p.a.conn || !t->p.b.conn;
}

static void speak(struct talk *t) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) == 0) {
        close(ends[1]);
        send_text_fds(t->p.a.conn, 1, "with a descriptor", &ends[0], 1);
    }
    t->x.stream = vg_stream_new(t->p.a.conn, 0, &flow_ops, &t->x);
    uint32_t id = t->x.stream ? vg_stream_id(t->x.stream) : 0;
    t->middle = id ? vg_stream_new(t->p.b.conn, id, NULL, NULL) : NULL;
    int fds[2];
    if (!t->middle || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) < 0)
        return;
    t->y.stream = vg_stream_new(t->p.b.conn, 0, &flow_ops, &t->y);
    id = t->y.stream ? vg_stream_id(t->y.stream) : 0;
    struct vg_stream *right = id ? vg_stream_new(t->p.a.conn, id, NULL, NULL) : NULL;
    bool left_ok = vg_pump_fd(&t->p.loop, fds[0], t->middle, on_done, &t->done) == 0;
    bool right_ok = right && vg_pump_fd(&t->p.loop, fds[1], right, on_done, &t->done) == 0;
    if (!right)
        close(fds[1]);
    if (!left_ok || !right_ok)
        return;
    flow_push(&t->x);
    flow_push(&t->y);
    while (!over(t) && !t->p.late)
        pair_turn(&t->p);
    cr_assert(!t->p.late, "the conversation hangs");
}

/* One conversation; true when the fault fired. */
static bool conversation(uint64_t nth, int error, const char *point, struct vg_tls *client,
                         struct vg_tls *server) {
    struct talk t = {.x = {.to_send = 3000000, .seed_out = 1, .seed_in = 2},
                     .y = {.to_send = 2000000, .seed_out = 2, .seed_in = 1}};
    struct vg_err err = VG_ERR_INIT;
    int fds[2];
    pair_init_loop(&t.p);
    if (client)
        cr_assert_eq(make_tcp_pair(fds), 0);
    else
        cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    vg_fault_arm(nth, error, point);
    int a = vg_conn_new(&t.p.loop, fds[0], client, true, &peer_ops, &t.p.a, &t.p.a.conn, &err);
    int b = vg_conn_new(&t.p.loop, fds[1], server, false, &peer_ops, &t.p.b, &t.p.b.conn, &err);
    if (a == 0 && b == 0)
        speak(&t);
    bool fired = vg_fault_disarm();
    cr_assert(!t.x.wrong && !t.y.wrong, "bytes are right or absent");
    if (!fired)
        cr_assert(t.x.ended && t.y.ended, "control: without a fault all arrives");
    pair_done(&t.p);
    cr_assert_eq(t.p.a.closes, a == 0);
    cr_assert_eq(t.p.b.closes, b == 0);
    return fired;
}

static void every_nth(const char *point, int error, struct vg_tls *client, struct vg_tls *server) {
    (void)conversation(1000000, error, point, client, server);
    size_t before = count_fds();
    uint64_t nth = 1;
    while (conversation(nth, error, point, client, server)) {
        cr_assert_eq(count_fds(), before, "a descriptor is left after %s %zu", point, (size_t)nth);
        nth = nth < 200 ? nth + 1 : nth + 37;
    }
    cr_assert_gt(nth, 5u, "the fault point is really passed");
    check_leaks();
}

Test(fault, every_allocation_may_fail) {
    every_nth("alloc", ENOMEM, NULL, NULL);
}

Test(fault, every_send_may_fail) {
    every_nth("net.send", EPIPE, NULL, NULL);
}

Test(fault, every_send_may_find_the_socket_full) {
    every_nth("net.send", EAGAIN, NULL, NULL);
}

Test(fault, every_receive_may_fail) {
    every_nth("net.recv", ECONNRESET, NULL, NULL);
}

Test(fault, the_same_over_tls) {
    char *ca = NULL, *ca_key = NULL, *key = NULL, *cert = NULL;
    uint8_t *csr = NULL, fingerprint[VG_FINGERPRINT];
    size_t n = 0;
    struct vg_err err = VG_ERR_INIT;
    struct vg_tls *client = NULL, *server = NULL;
    cr_assert_eq(vg_ca_create("c", &ca, &ca_key, &err), 0);
    cr_assert_eq(vg_key_create(&key, &err), 0);
    cr_assert_eq(vg_csr_create(key, "s", &csr, &n, &err), 0);
    cr_assert_eq(vg_ca_sign(ca, ca_key, csr, n, "s", 3600 * VG_USEC, &cert, &err), 0);
    cr_assert_eq(vg_ca_fingerprint(ca, fingerprint, &err), 0);
    cr_assert_eq(vg_tls_server_new(cert, key, ca, &server, &err), 0);
    cr_assert_eq(vg_tls_client_new(fingerprint, NULL, NULL, NULL, &client, &err), 0);
    every_nth("alloc", ENOMEM, client, server);
    every_nth("net.send", EPIPE, client, server);
    every_nth("net.recv", ECONNRESET, client, server);
    vg_tls_unref(client);
    vg_tls_unref(server);
    free(ca);
    free(ca_key);
    free(key);
    free(cert);
    free(csr);
}
