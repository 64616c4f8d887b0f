/* TLS: who is let in, what is said to who is not, resumption, and bytes. */
#include "fixture.h"
#include "net/tls.h"

#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#define HOUR (3600 * VG_USEC)

struct cloud {
    char *ca_cert, *ca_key, *cert, *key;
    uint8_t fingerprint[VG_FINGERPRINT];
    struct vg_tls *server;
};

static char *sign(const struct cloud *c, const char *key, const char *cn, uint64_t ttl_usec) {
    uint8_t *csr = NULL;
    size_t n = 0;
    char *cert = NULL;
    struct vg_err err = VG_ERR_INIT;
    cr_assert_eq(vg_csr_create(key, "whatever", &csr, &n, &err), 0, "%s", err.msg);
    cr_assert_eq(vg_ca_sign(c->ca_cert, c->ca_key, csr, n, cn, ttl_usec, &cert, &err), 0, "%s",
                 err.msg);
    free(csr);
    return cert;
}

static void cloud_init(struct cloud *c, uint64_t ttl_usec) {
    struct vg_err err = VG_ERR_INIT;
    *c = (struct cloud){0};
    cr_assert_eq(vg_ca_create("test", &c->ca_cert, &c->ca_key, &err), 0, "%s", err.msg);
    cr_assert_eq(vg_ca_fingerprint(c->ca_cert, c->fingerprint, &err), 0);
    cr_assert_eq(vg_key_create(&c->key, &err), 0);
    c->cert = sign(c, c->key, "control", ttl_usec);
    cr_assert_eq(vg_tls_server_new(c->cert, c->key, c->ca_cert, &c->server, &err), 0, "%s",
                 err.msg);
}

static void cloud_done(struct cloud *c) {
    vg_tls_unref(c->server);
    free(c->ca_cert);
    free(c->ca_key);
    free(c->cert);
    free(c->key);
}

static struct vg_tls *client_of(const struct cloud *c, const char *cert, const char *key,
                                const char *tickets) {
    struct vg_tls *t = NULL;
    struct vg_err err = VG_ERR_INIT;
    cr_assert_eq(vg_tls_client_new(c->fingerprint, cert, key, tickets, &t, &err), 0, "%s", err.msg);
    return t;
}

/* Takes the client's context. */
static void join(struct pair *p, struct vg_tls *client, struct vg_tls *server) {
    int fds[2];
    struct vg_err err = VG_ERR_INIT;
    pair_init_loop(p);
    cr_assert_eq(make_tcp_pair(fds), 0);
    cr_assert_eq(vg_conn_new(&p->loop, fds[0], client, true, &peer_ops, &p->a, &p->a.conn, &err),
                 0);
    cr_assert_eq(vg_conn_new(&p->loop, fds[1], server, false, &peer_ops, &p->b, &p->b.conn, &err),
                 0);
    vg_tls_unref(client);
}

Test(tls, messages_and_streams_pass_and_names_are_known) {
    struct cloud c;
    struct pair p;
    struct vg_err err = VG_ERR_INIT;
    char *key = NULL;
    cloud_init(&c, HOUR);
    cr_assert_eq(vg_key_create(&key, &err), 0);
    char *cert = sign(&c, key, "node:n1", HOUR);
    join(&p, client_of(&c, cert, key, NULL), c.server);
    cr_assert_eq(send_text(p.a.conn, 1, "before the handshake"), 0);
    run_until(&p, p.a.ready && p.b.msgs == 1);
    cr_assert_str_eq(vg_conn_peer_cn(p.b.conn), "node:n1");
    cr_assert_str_eq(vg_conn_peer_cn(p.a.conn), "control");
    cr_assert(!vg_conn_is_local(p.a.conn));
    cr_assert_eq(strncmp(vg_conn_peer_address(p.b.conn), "127.0.0.1:", 10), 0);
    int fd = dup(0);
    cr_assert_eq(send_text_fds(p.a.conn, 1, "no descriptors here", &fd, 1), -EINVAL);
    struct flow x = {.to_send = 30000000, .seed_out = 1, .seed_in = 2};
    struct flow y = {.to_send = 30000001, .seed_out = 2, .seed_in = 1};
    x.stream = vg_stream_new(p.a.conn, 0, &flow_ops, &x);
    y.stream = vg_stream_new(p.b.conn, vg_stream_id(x.stream), &flow_ops, &y);
    flow_push(&x);
    flow_push(&y);
    run_until(&p, x.ended && y.ended);
    cr_assert(x.got == y.to_send && y.got == x.to_send && !x.wrong && !y.wrong);
    vg_conn_close(p.a.conn);
    run_until(&p, !p.a.conn && !p.b.conn);
    cr_assert_eq(p.b.why.reason, VG_OK, "%s", p.b.why.msg);
    pair_done(&p);
    free(cert);
    free(key);
    cloud_done(&c);
    check_leaks();
}

Test(tls, what_was_queued_before_a_close_during_the_handshake_still_arrives) {
    struct cloud c;
    struct pair p;
    cloud_init(&c, HOUR);
    join(&p, client_of(&c, NULL, NULL, NULL), c.server);
    cr_assert_eq(send_text(p.a.conn, 1, "last words"), 0);
    vg_conn_close(p.a.conn);
    cr_assert_eq(send_text(p.a.conn, 1, "too late"), -EPIPE);
    run_until(&p, !p.a.conn && !p.b.conn);
    cr_assert_str_eq(p.b.last_text, "last words");
    cr_assert_eq(p.a.why.reason, VG_OK, "%s", p.a.why.msg);
    pair_done(&p);
    cloud_done(&c);
    check_leaks();
}

Test(tls, a_message_of_16_mib_passes) {
    struct cloud c;
    struct pair p;
    cloud_init(&c, HOUR);
    join(&p, client_of(&c, NULL, NULL, NULL), c.server);
    char *text = malloc(VG_WIRE_MSG_MAX);
    memset(text, 'm', VG_WIRE_MSG_MAX - 32);
    text[VG_WIRE_MSG_MAX - 32] = 0;
    cr_assert_eq(send_text(p.b.conn, 1, text), 0);
    run_until(&p, p.a.msgs == 1);
    cr_assert_null(vg_conn_peer_cn(p.b.conn), "a client without a certificate has no name");
    free(text);
    pair_done(&p);
    cloud_done(&c);
    check_leaks();
}

Test(tls, half_a_record_is_waited_for_in_peace) {
    struct cloud c;
    struct pair p;
    static const uint8_t half[] = {0x17, 3, 3, 0x10, 0, 'h', 'a', 'l', 'f'};
    int fds[2];
    struct vg_err err = VG_ERR_INIT;
    cloud_init(&c, HOUR);
    struct vg_tls *client = client_of(&c, NULL, NULL, NULL);
    pair_init_loop(&p);
    cr_assert_eq(make_tcp_pair(fds), 0);
    int raw = dup(fds[0]);
    cr_assert_eq(vg_conn_new(&p.loop, fds[0], client, true, &peer_ops, &p.a, &p.a.conn, &err), 0);
    cr_assert_eq(vg_conn_new(&p.loop, fds[1], c.server, false, &peer_ops, &p.b, &p.b.conn, &err),
                 0);
    vg_tls_unref(client);
    cr_assert_eq(send_text(p.a.conn, 1, "whole"), 0);
    run_until(&p, p.a.ready && p.b.msgs == 1);
    cr_assert_eq(write(raw, half, sizeof(half)), (ssize_t)sizeof(half));
    for (int i = 0; i < 50; i++)
        uv_run(&p.loop, UV_RUN_NOWAIT);
    cr_assert_neq(uv_backend_timeout(&p.loop), 0, "the loop has nothing to do until more comes");
    close(raw);
    pair_done(&p);
    cloud_done(&c);
    check_leaks();
}

Test(tls, a_server_of_another_cloud_is_refused_in_a_clear_sentence) {
    struct cloud mine, theirs;
    struct pair p;
    cloud_init(&mine, HOUR);
    cloud_init(&theirs, HOUR);
    join(&p, client_of(&mine, NULL, NULL, NULL), theirs.server);
    send_text(p.a.conn, 1, "a secret");
    run_until(&p, !p.a.conn && !p.b.conn);
    cr_assert(!p.a.ready && p.b.msgs == 0);
    cr_assert_eq(p.a.why.reason, VG_UNAUTHENTICATED);
    cr_assert_not_null(strstr(p.a.why.msg, "not the cloud that the token"), "%s", p.a.why.msg);
    cr_assert_not_null(strstr(p.a.why.msg, "get a new token"), "%s", p.a.why.msg);
    pair_done(&p);
    cloud_done(&mine);
    cloud_done(&theirs);
    check_leaks();
}

/* The right CA in the chain, but the leaf signed by another one. */
Test(tls, a_leaf_that_the_pinned_ca_did_not_sign_is_refused) {
    struct cloud mine, theirs;
    struct pair p;
    struct vg_err err = VG_ERR_INIT;
    struct vg_tls *liar = NULL;
    cloud_init(&mine, HOUR);
    cloud_init(&theirs, HOUR);
    cr_assert_eq(vg_tls_server_new(theirs.cert, theirs.key, mine.ca_cert, &liar, &err), 0);
    join(&p, client_of(&mine, NULL, NULL, NULL), liar);
    run_until(&p, !p.a.conn && !p.b.conn);
    cr_assert(!p.a.ready);
    cr_assert_eq(p.a.why.reason, VG_UNAUTHENTICATED);
    pair_done(&p);
    vg_tls_unref(liar);
    cloud_done(&mine);
    cloud_done(&theirs);
    check_leaks();
}

Test(tls, half_a_fingerprint_from_a_token_is_enough_and_must_match) {
    struct cloud c;
    struct vg_token token;
    struct vg_tls *t = NULL;
    struct vg_err err = VG_ERR_INIT;
    cloud_init(&c, HOUR);
    for (int wrong = 0; wrong < 2; wrong++) {
        struct pair p;
        vg_token_new("vgj", c.fingerprint, &token);
        if (wrong)
            token.ca[31] = token.ca[31] == '0' ? '1' : '0';
        cr_assert_eq(vg_tls_client_new_prefix(token.ca, NULL, NULL, NULL, &t, &err), 0);
        join(&p, t, c.server);
        if (wrong)
            run_until(&p, !p.a.conn);
        else
            run_until(&p, p.a.ready);
        cr_assert_eq(p.a.ready, !wrong);
        pair_done(&p);
    }
    char bad[33] = "zz000000000000000000000000000000";
    cr_assert_lt(vg_tls_client_new_prefix(bad, NULL, NULL, NULL, &t, &err), 0);
    cr_assert_not_null(strstr(err.msg, "copy it again"));
    cloud_done(&c);
    check_leaks();
}

Test(tls, an_expired_server_certificate_is_refused_and_says_so) {
    struct cloud c;
    struct pair p;
    cloud_init(&c, 0);
    join(&p, client_of(&c, NULL, NULL, NULL), c.server);
    run_until(&p, !p.a.conn && !p.b.conn);
    cr_assert_eq(p.a.why.reason, VG_UNAUTHENTICATED);
    cr_assert_not_null(strstr(p.a.why.msg, "expired"), "%s", p.a.why.msg);
    cr_assert_not_null(strstr(p.a.why.msg, "clocks"), "%s", p.a.why.msg);
    pair_done(&p);
    cloud_done(&c);
    check_leaks();
}

static void refused_client(const struct cloud *c, const char *cert, const char *key,
                           const char *server_word, const char *client_word) {
    struct pair p;
    join(&p, client_of(c, cert, key, NULL), c->server);
    run_until(&p, !p.a.conn && !p.b.conn);
    cr_assert(!p.b.ready);
    cr_assert_eq(p.b.why.reason, VG_UNAUTHENTICATED);
    cr_assert_not_null(strstr(p.b.why.msg, server_word), "%s", p.b.why.msg);
    cr_assert_eq(p.a.why.reason, VG_UNAUTHENTICATED, "%s", p.a.why.msg);
    cr_assert_not_null(strstr(p.a.why.msg, client_word), "%s", p.a.why.msg);
    pair_done(&p);
}

Test(tls, client_certificates_that_are_expired_or_foreign_are_refused) {
    struct cloud c, theirs;
    struct vg_err err = VG_ERR_INIT;
    char *key = NULL;
    cloud_init(&c, HOUR);
    cloud_init(&theirs, HOUR);
    cr_assert_eq(vg_key_create(&key, &err), 0);
    char *expired = sign(&c, key, "node:old", 0);
    char *foreign = sign(&theirs, key, "node:n1", HOUR);
    refused_client(&c, expired, key, "expired", "expired");
    refused_client(&c, foreign, key, "certificate is refused", "not of its cloud");
    free(expired);
    free(foreign);
    free(key);
    cloud_done(&c);
    cloud_done(&theirs);
    check_leaks();
}

static bool meet(const struct cloud *c, const char *tickets) {
    struct pair p;
    join(&p, client_of(c, NULL, NULL, tickets), c->server);
    send_text(p.b.conn, 1, "the ticket comes before this");
    send_text(p.a.conn, 1, "hello");
    run_until(&p, p.a.msgs == 1 && p.b.msgs == 1);
    bool resumed = vg_conn_resumed(p.a.conn);
    cr_assert_eq(vg_conn_resumed(p.b.conn), resumed);
    cr_assert_str_eq(vg_conn_peer_cn(p.a.conn), "control");
    pair_done(&p);
    return resumed;
}

Test(tls, the_second_connection_resumes_from_the_ticket_file) {
    struct cloud c, restarted;
    char path[] = "/tmp/test-net-ticket-XXXXXX";
    struct stat st;
    vg_auto_fd int fd = mkstemp(path);
    cr_assert_geq(fd, 0);
    cloud_init(&c, HOUR);
    cr_assert(!meet(&c, path), "an empty file is no session");
    cr_assert(meet(&c, path));
    cr_assert(meet(&c, path));
    cr_assert_eq(stat(path, &st), 0);
    cr_assert_eq(st.st_mode & 0777, 0600u);
    cr_assert(!meet(&c, NULL), "control: without the file nothing resumes");
    /* Another cloud: the kept ticket is not even shown to it. */
    cloud_init(&restarted, HOUR);
    cr_assert(!meet(&restarted, path));
    cr_assert(meet(&restarted, path));
    /* Garbage in the file costs a handshake, nothing else. */
    cr_assert_eq(truncate(path, 40), 0);
    cr_assert(!meet(&restarted, path));
    unlink(path);
    cloud_done(&c);
    cloud_done(&restarted);
    check_leaks();
}

Test(tls, a_peer_that_does_not_speak_tls_is_named_as_such) {
    struct cloud c;
    struct pair p;
    int fds[2];
    struct vg_err err = VG_ERR_INIT;
    cloud_init(&c, HOUR);
    pair_init_loop(&p);
    cr_assert_eq(make_tcp_pair(fds), 0);
    struct vg_tls *t = client_of(&c, NULL, NULL, NULL);
    cr_assert_eq(vg_conn_new(&p.loop, fds[0], t, true, &peer_ops, &p.a, &p.a.conn, &err), 0);
    vg_tls_unref(t);
    static const char http[] = "HTTP/1.1 400 Bad Request\r\n\r\n";
    cr_assert_eq(write(fds[1], http, sizeof(http) - 1), (ssize_t)sizeof(http) - 1);
    run_until(&p, !p.a.conn);
    cr_assert_not_null(strstr(p.a.why.msg, "does not speak TLS"), "%s", p.a.why.msg);
    close(fds[1]);
    pair_done(&p);
    cloud_done(&c);
    check_leaks();
}

Test(tls, a_cut_without_a_goodbye_is_a_lost_connection) {
    struct cloud c;
    struct pair p;
    cloud_init(&c, HOUR);
    join(&p, client_of(&c, NULL, NULL, NULL), c.server);
    send_text(p.b.conn, 1, "x");
    run_until(&p, p.a.msgs == 1 && p.b.ready);
    vg_conn_abort(p.b.conn, VG_OK, NULL);
    run_until(&p, !p.a.conn);
    cr_assert_eq(p.a.why.reason, VG_LOST, "%s", p.a.why.msg);
    pair_done(&p);
    cloud_done(&c);
    check_leaks();
}

/* ------------------------------------------------------------------ the CA and tokens */

Test(ca, signs_what_was_asked_under_the_name_it_was_told) {
    struct cloud c;
    struct vg_err err = VG_ERR_INIT;
    uint64_t expires = 0;
    cloud_init(&c, 2 * HOUR);
    cr_assert_eq(vg_cert_expires(c.cert, &expires, &err), 0);
    uint64_t want = vg_wall_usec() + 2 * HOUR;
    cr_assert(expires > want - 60 * VG_USEC && expires < want + 60 * VG_USEC);
    uint8_t *csr = NULL;
    size_t n = 0;
    char *cert = NULL;
    cr_assert_eq(vg_csr_create(c.key, "x", &csr, &n, &err), 0);
    for (size_t i = 0; i < n; i++) { /* no request with a flipped bit is signed */
        csr[i] ^= 1;
        cr_assert_lt(vg_ca_sign(c.ca_cert, c.ca_key, csr, n, "x", HOUR, &cert, &err), 0, "byte %zu",
                     i);
        cr_assert_lt(vg_ca_sign(c.ca_cert, c.ca_key, csr, i, "x", HOUR, &cert, &err), 0);
        csr[i] ^= 1;
    }
    cr_assert_lt(vg_ca_sign(c.ca_cert, c.key, csr, n, "x", HOUR, &cert, &err), 0,
                 "the key must be the CA's");
    cr_assert_lt(vg_ca_sign(c.ca_cert, c.ca_key, csr, n, "", HOUR, &cert, &err), 0);
    cr_assert_lt(vg_ca_fingerprint("garbage", c.fingerprint, &err), 0);
    cr_assert_lt(vg_csr_create("garbage", "x", &csr, &n, &err), 0);
    free(csr);
    cloud_done(&c);
    check_leaks();
}

Test(ca, names_for_browsers_are_in_the_certificate_and_no_others) {
    struct cloud c;
    struct vg_err err = VG_ERR_INIT;
    char *cert = NULL;
    uint8_t *csr;
    size_t n;
    cloud_init(&c, HOUR);
    cr_assert_eq(vg_csr_create(c.key, "x", &csr, &n, &err), 0);
    cr_assert_eq(vg_ca_sign_names(c.ca_cert, c.ca_key, csr, n, "virgad",
                                  "DNS:localhost,IP:127.0.0.1,IP:::1", HOUR, &cert, &err),
                 0, "%s", err.msg);
    cr_expect(vg_cert_has_name(cert, "localhost") && vg_cert_has_name(cert, "127.0.0.1") &&
              vg_cert_has_name(cert, "::1"));
    cr_expect(!vg_cert_has_name(cert, "virgad") && !vg_cert_has_name(cert, "127.0.0.2"));
    free(csr);
    free(cert);
    cloud_done(&c);
}

Test(token, is_written_and_read_back_and_every_damage_is_noticed) {
    uint8_t fingerprint[VG_FINGERPRINT], hash[32];
    struct vg_token t, u;
    char text[96], damaged[100];
    vg_random(fingerprint, sizeof(fingerprint));
    vg_token_new("vgt", fingerprint, &t);
    vg_token_format(&t, text);
    cr_assert_eq(strlen(text), 3 + 1 + 16 + 1 + 32 + 1 + 32u);
    cr_assert_eq(vg_token_parse(text, &u), 0);
    cr_assert_arr_eq(&t, &u, sizeof(t));
    for (size_t i = 0; text[i]; i++) {
        memcpy(damaged, text, sizeof(text));
        damaged[i] = 'Z';
        cr_assert_eq(vg_token_parse(damaged, &u), -EINVAL);
        damaged[i] = 0;
        cr_assert_eq(vg_token_parse(damaged, &u), -EINVAL);
    }
    (void)snprintf(damaged, sizeof(damaged), "%s0", text);
    cr_assert_eq(vg_token_parse(damaged, &u), -EINVAL);
    vg_token_hash(&t, hash);
    cr_assert_eq(vg_token_check(&t, hash), 0);
    t.secret[0] ^= 1;
    cr_assert_eq(vg_token_check(&t, hash), -EACCES);
    check_leaks();
}
