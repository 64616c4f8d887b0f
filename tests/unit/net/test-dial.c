/* Listening and dialling over loopback. */
#include "fixture.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <unistd.h>

struct outcome {
    int fd, calls;
    struct vg_err err;
};

static void on_dialled(int fd, const struct vg_err *err, void *user) {
    struct outcome *o = user;
    o->calls++;
    o->fd = fd;
    o->err = *err;
}

static void on_accepted(int fd, void *user) {
    *(int *)user = fd;
}

Test(dial, reaches_a_listener_by_number_and_by_name) {
    static const char *const hosts[] = {"127.0.0.1", "localhost"};
    struct pair p;
    uint16_t port = 0;
    struct vg_err err = VG_ERR_INIT;
    struct vg_listener *l = NULL;
    int accepted = -1;
    pair_init_loop(&p);
    cr_assert_eq(vg_listen_tcp(&p.loop, "127.0.0.1", 0, on_accepted, &accepted, &l, &port, &err), 0,
                 "%s", err.msg);
    cr_assert_neq(port, 0);
    /* A machine without a hosts file may not know what localhost is. */
    int n = access("/etc/hosts", R_OK) == 0 ? 2 : 1;
    for (int i = 0; i < n; i++) {
        struct outcome o = {.fd = -1};
        char address[64];
        (void)snprintf(address, sizeof(address), "%s:%u", hosts[i], port);
        cr_assert_not_null(vg_dial_tcp(&p.loop, address, 10 * VG_USEC, on_dialled, &o));
        cr_assert_eq(o.calls, 0);
        run_until(&p, o.calls == 1 && accepted >= 0);
        cr_assert_geq(o.fd, 0, "%s", o.err.msg);
        close(o.fd);
        vg_close(&accepted);
    }
    struct vg_listener *again = NULL;
    cr_assert_lt(
        vg_listen_tcp(&p.loop, "127.0.0.1", port, on_accepted, &accepted, &again, &port, &err), 0);
    cr_assert_not_null(strstr(err.msg, "another program"), "%s", err.msg);
    vg_listener_free(l);
    pair_done(&p);
    check_leaks();
}

Test(dial, failures_are_one_sentence_told_from_the_loop) {
    static const struct {
        const char *address, *word;
    } bad[] = {
        {"127.0.0.1:1", "cannot connect to 127.0.0.1:1"},
        {"nothing", "write host:port"},
        {"host:0", "write host:port"},
        {"host:70000", "write host:port"},
        {":80", "write host:port"},
        {"no-such-host.invalid:80", "cannot find the address"},
    };
    struct pair p;
    pair_init_loop(&p);
    for (size_t i = 0; i < VG_COUNT(bad); i++) {
        struct outcome o = {.fd = 99};
        cr_assert_not_null(vg_dial_tcp(&p.loop, bad[i].address, 20 * VG_USEC, on_dialled, &o));
        cr_assert_eq(o.calls, 0);
        run_until(&p, o.calls == 1);
        cr_assert_lt(o.fd, 0);
        cr_assert_not_null(strstr(o.err.msg, bad[i].word), "%s: %s", bad[i].address, o.err.msg);
    }
    pair_done(&p);
    check_leaks();
}

Test(dial, a_cancelled_dial_says_nothing_and_leaves_nothing) {
    static const char *const addresses[] = {"127.0.0.1:1", "localhost:1", "bad"};
    struct pair p;
    size_t before = count_fds();
    struct outcome o = {0};
    pair_init_loop(&p);
    for (size_t i = 0; i < VG_COUNT(addresses); i++)
        vg_dial_cancel(vg_dial_tcp(&p.loop, addresses[i], VG_USEC, on_dialled, &o));
    pair_done(&p);
    cr_assert_eq(o.calls, 0);
    cr_assert_eq(count_fds(), before);
    check_leaks();
}

/* A backlog that is full does not answer: the timeout is what ends the dial. */
Test(dial, a_silent_address_times_out) {
    struct pair p;
    struct outcome o = {0};
    pair_init_loop(&p);
    int fds[64], l = socket(AF_INET, SOCK_STREAM, 0), n = 0;
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(in);
    cr_assert_eq(bind(l, (struct sockaddr *)&in, len), 0);
    cr_assert_eq(listen(l, 0), 0);
    getsockname(l, (struct sockaddr *)&in, &len);
    for (; n < 8; n++) {
        fds[n] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
        (void)!connect(fds[n], (struct sockaddr *)&in, len);
    }
    char address[64];
    (void)snprintf(address, sizeof(address), "127.0.0.1:%u", ntohs(in.sin_port));
    cr_assert_not_null(vg_dial_tcp(&p.loop, address, 100000, on_dialled, &o));
    run_until(&p, o.calls == 1);
    cr_assert_eq(o.fd, -ETIMEDOUT);
    cr_assert_eq(o.err.reason, VG_TIMEOUT);
    while (n)
        close(fds[--n]);
    close(l);
    pair_done(&p);
    check_leaks();
}
