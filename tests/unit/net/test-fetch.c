/* Asking other servers: against a small one in a thread, which answers by the path. */
#include "base/cleanup.h"
#include "base/public-addr.h"
#include "base/util.h"
#include "net/fetch.h"

#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* ------------------------------------------------------------------ the other server */

struct other {
    pthread_t thread;
    int fd;
    unsigned port;
    char seen[1 << 16]; /* the last request */
    _Atomic int at_once, most;
};

static void put(int fd, const char *text) {
    (void)!write(fd, text, strlen(text));
}

static size_t take_request(int fd, char *to, size_t room) {
    size_t n = 0, want = 0;
    while (n < room - 1) {
        ssize_t r = read(fd, to + n, room - 1 - n);
        if (r <= 0)
            break;
        n += (size_t)r;
        to[n] = '\0';
        const char *end = strstr(to, "\r\n\r\n"), *length = strcasestr(to, "content-length: ");
        if (!end)
            continue;
        want = (size_t)(end + 4 - to) + (length ? strtoul(length + 16, NULL, 10) : 0);
        if (n >= want)
            break;
    }
    to[n] = '\0';
    return n;
}

static void answer(const struct other *o, int fd, const char *request) {
    char text[512];
    if (strstr(request, " /moved "))
        snprintf(text, sizeof text,
                 "HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:%u/here\r\n"
                 "Content-Length: 5\r\n\r\nmoved",
                 o->port);
    else if (strstr(request, " /circle "))
        snprintf(text, sizeof text,
                 "HTTP/1.1 302 Found\r\nLocation: /circle\r\n"
                 "Content-Length: 0\r\n\r\n");
    else if (strstr(request, " /file "))
        snprintf(text, sizeof text,
                 "HTTP/1.1 302 Found\r\nLocation: file:///etc/passwd\r\n"
                 "Content-Length: 0\r\n\r\n");
    else if (strstr(request, " /sick "))
        snprintf(text, sizeof text,
                 "HTTP/1.1 500 Oh\r\nRetry-After: 7\r\n"
                 "Content-Length: 4\r\n\r\nsick");
    else if (strstr(request, " /short "))
        snprintf(text, sizeof text, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf");
    else if (strstr(request, " /nonsense "))
        snprintf(text, sizeof text, "what?\r\n\r\n");
    else
        snprintf(text, sizeof text, "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nhere");
    put(fd, text);
    for (int i = 0; strstr(request, " /flood ") && i < 100; i++)
        put(fd, "0123456789");
}

struct visit {
    struct other *other;
    int fd;
};

static void *serve_one(void *arg) {
    struct visit *v = arg;
    int now = ++v->other->at_once;
    if (now > v->other->most)
        v->other->most = now;
    static __thread char request[1 << 16];
    take_request(v->fd, request, sizeof request);
    memcpy(v->other->seen, request, sizeof request);
    if (strstr(request, " /never ")) {
        char c;
        (void)!read(v->fd, &c, 1); /* until the other end gives up */
    } else if (strstr(request, " /flood ")) {
        put(v->fd, "HTTP/1.1 200 OK\r\n\r\n");
        for (int i = 0; i < 1000; i++)
            put(v->fd, "0123456789");
    } else {
        answer(v->other, v->fd, request);
    }
    --v->other->at_once;
    shutdown(v->fd, SHUT_RDWR);
    close(v->fd);
    free(v);
    return NULL;
}

static void *serve(void *arg) {
    struct other *o = arg;
    for (;;) {
        int fd = accept(o->fd, NULL, NULL);
        if (fd < 0)
            return NULL;
        struct visit *v = malloc(sizeof *v);
        pthread_t t;
        *v = (struct visit){o, fd};
        cr_assert_eq(pthread_create(&t, NULL, serve_one, v), 0);
        pthread_detach(t);
    }
}

static void other_start(struct other *o) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof a;
    memset(o, 0, sizeof *o);
    o->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    cr_assert_eq(bind(o->fd, (struct sockaddr *)&a, sizeof a), 0);
    cr_assert_eq(listen(o->fd, 64), 0);
    cr_assert_eq(getsockname(o->fd, (struct sockaddr *)&a, &n), 0);
    o->port = ntohs(a.sin_port);
    signal(SIGPIPE, SIG_IGN);
    cr_assert_eq(pthread_create(&o->thread, NULL, serve, o), 0);
}

static void other_stop(struct other *o) {
    shutdown(o->fd, SHUT_RDWR);
    pthread_join(o->thread, NULL);
    close(o->fd);
}

/* ------------------------------------------------------------------ calls */

static struct other other;
static uv_loop_t loop;
static struct vg_fetcher *fetcher;

struct told {
    int times, status;
    char body[256], retry_after[32];
    struct vg_err err;
};

static void on_answer(void *user, const struct vg_fetch_answer *a) {
    struct told *t = user;
    const char *h = vg_fetch_header(a, "retry-after");
    t->times++;
    t->status = a->status;
    if (a->err)
        t->err = *a->err;
    snprintf(t->body, sizeof t->body, "%s", a->body);
    snprintf(t->retry_after, sizeof t->retry_after, "%s", h ? h : "");
}

static void begin(size_t at_once) {
    struct vg_err err = VG_ERR_INIT;
    other_start(&other);
    uv_loop_init(&loop);
    struct vg_fetcher_opts o = {.at_once = at_once};
    cr_assert_eq(vg_fetcher_new(&loop, &o, &fetcher, &err), 0, "%s", err.msg);
}

static void end(void) {
    vg_fetcher_free(fetcher);
    uv_run(&loop, UV_RUN_DEFAULT);
    cr_assert_eq(uv_loop_close(&loop), 0, "a handle was left behind");
    other_stop(&other);
}

static const char *url_of(const char *path) {
    static char url[300];
    snprintf(url, sizeof url, "http://127.0.0.1:%u%s", other.port, path);
    return url;
}

static struct told ask(struct vg_fetch_req req, const char *path) {
    struct told t = {0};
    struct vg_err err = VG_ERR_INIT;
    req.url = url_of(path);
    cr_assert_eq(vg_fetch_start(fetcher, &req, on_answer, &t, NULL, &err), 0, "%s", err.msg);
    cr_assert_eq(t.times, 0, "told from within");
    while (!t.times)
        uv_run(&loop, UV_RUN_ONCE);
    cr_assert_eq(vg_fetcher_load(fetcher), 0);
    return t;
}

Test(fetch, a_request_arrives_as_it_was_given) {
    begin(0);
    const char *const headers[] = {"X-One: 1", "Content-Type: text/x", NULL};
    struct told t = ask((struct vg_fetch_req){.method = "PUT",
                                              .headers = headers,
                                              .body = "a\0b",
                                              .body_bytes = 3,
                                              .user = "u",
                                              .password = "p:w"},
                        "/here?x=1");
    cr_expect_eq(t.status, 200);
    cr_expect_str_eq(t.body, "here");
    cr_expect(strstr(other.seen, "PUT /here?x=1 HTTP/1.1\r\n") == other.seen, "%s", other.seen);
    cr_expect(strstr(other.seen, "\r\nX-One: 1\r\n"));
    cr_expect(strstr(other.seen, "\r\nContent-Type: text/x\r\n"));
    cr_expect(strstr(other.seen, "\r\nContent-Length: 3\r\n"));
    cr_expect(strstr(other.seen, "\r\nAuthorization: Basic dTpwOnc=\r\n"));
    cr_expect(!strcasestr(other.seen, "expect"));
    cr_expect(memcmp(strstr(other.seen, "\r\n\r\n") + 4, "a\0b", 3) == 0);
    t = ask((struct vg_fetch_req){.body = "{}", .body_bytes = 2}, "/here");
    cr_expect(strstr(other.seen, "POST /here ") == other.seen);
    cr_expect(!strcasestr(other.seen, "content-type"));
    t = ask((struct vg_fetch_req){0}, "/here");
    cr_expect(strstr(other.seen, "GET /here ") == other.seen);
    end();
}

Test(fetch, every_status_is_an_answer) {
    begin(0);
    struct told t = ask((struct vg_fetch_req){0}, "/sick");
    cr_expect_eq(t.status, 500);
    cr_expect_str_eq(t.body, "sick");
    cr_expect_str_eq(t.retry_after, "7");
    cr_expect_eq(t.err.reason, 0);
    end();
}

Test(fetch, redirections_are_followed_only_when_asked_and_so_far) {
    begin(0);
    struct told t = ask((struct vg_fetch_req){0}, "/moved");
    cr_expect_eq(t.status, 302);
    t = ask((struct vg_fetch_req){.redirects = 2}, "/moved");
    cr_expect_eq(t.status, 200);
    cr_expect_str_eq(t.body, "here");
    t = ask((struct vg_fetch_req){.redirects = 3}, "/circle");
    cr_expect_eq(t.err.reason, VG_UNAVAILABLE);
    t = ask((struct vg_fetch_req){.redirects = 3}, "/file");
    cr_expect_eq(t.err.reason, VG_UNAVAILABLE, "%s", t.err.msg);
    end();
}

Test(fetch, what_is_too_long_late_short_or_nonsense_is_an_error) {
    begin(0);
    struct told t = ask((struct vg_fetch_req){.max_bytes = 1000}, "/flood");
    cr_expect_eq(t.err.reason, VG_TOO_BIG, "%s", t.err.msg);
    cr_expect_str_eq(t.body, "");
    t = ask((struct vg_fetch_req){.max_bytes = 10000}, "/flood");
    cr_expect_eq(t.err.reason, 0, "%s", t.err.msg);
    t = ask((struct vg_fetch_req){.usec = 50000}, "/never");
    cr_expect_eq(t.err.reason, VG_TIMEOUT, "%s", t.err.msg);
    t = ask((struct vg_fetch_req){0}, "/short");
    cr_expect_eq(t.err.reason, VG_UNAVAILABLE, "%s", t.err.msg);
    t = ask((struct vg_fetch_req){0}, "/nonsense");
    cr_expect_eq(t.err.reason, VG_UNAVAILABLE, "%s", t.err.msg);
    end();
}

static bool only_public(void *user, const struct sockaddr *to) {
    ++*(int *)user;
    return vg_addr_public(to);
}

Test(fetch, a_guard_refuses_by_the_address_and_not_by_the_name) {
    begin(0);
    int asked = 0;
    struct told t = ask((struct vg_fetch_req){0}, "/here"); /* leaves a connection behind, maybe */
    t = ask((struct vg_fetch_req){.guard = only_public, .guard_user = &asked}, "/here");
    cr_expect_eq(t.err.reason, VG_FORBIDDEN, "%s", t.err.msg);
    cr_expect(strstr(t.err.msg, "127.0.0.1"), "%s", t.err.msg);
    cr_expect(asked > 0);
    end();
}

Test(fetch, schemes_and_headers_that_are_none_are_refused) {
    begin(0);
    static const char *const urls[] = {"file:///etc/passwd", "ftp://127.0.0.1/", "smtp://x/",
                                       "x:y"};
    for (size_t i = 0; i < VG_COUNT(urls); i++) {
        struct told t = {0};
        struct vg_err err = VG_ERR_INIT;
        struct vg_fetch_req req = {.url = urls[i]};
        int r = vg_fetch_start(fetcher, &req, on_answer, &t, NULL, &err);
        while (r >= 0 && !t.times)
            uv_run(&loop, UV_RUN_ONCE);
        cr_expect_eq(r < 0 ? err.reason : t.err.reason, VG_INVALID, "%s", urls[i]);
    }
    const char *const headers[] = {"X: 1\r\nY: 2", NULL};
    struct vg_fetch_req req = {.url = url_of("/here"), .headers = headers};
    struct vg_err err = VG_ERR_INIT;
    cr_expect_lt(vg_fetch_start(fetcher, &req, on_answer, NULL, NULL, &err), 0);
    cr_expect_eq(err.reason, VG_INVALID);
    end();
}

Test(fetch, so_many_at_once_the_rest_waits_the_next_is_refused) {
    begin(2);
    static struct told told[VG_FETCH_WAITING_MAX + 2];
    struct vg_fetch_req req = {.url = url_of("/here")};
    struct vg_err err = VG_ERR_INIT;
    for (size_t i = 0; i < VG_COUNT(told); i++)
        cr_assert_eq(vg_fetch_start(fetcher, &req, on_answer, &told[i], NULL, &err), 0);
    cr_expect_lt(vg_fetch_start(fetcher, &req, on_answer, NULL, NULL, &err), 0);
    cr_expect_eq(err.reason, VG_UNAVAILABLE);
    while (vg_fetcher_load(fetcher))
        uv_run(&loop, UV_RUN_ONCE);
    for (size_t i = 0; i < VG_COUNT(told); i++)
        cr_assert(told[i].times == 1 && told[i].status == 200, "%zu: %s", i, told[i].err.msg);
    cr_expect(other.most >= 1 && other.most <= 2, "%d", other.most);
    end();
}

Test(fetch, a_cancelled_call_tells_nobody) {
    begin(1);
    struct told t[3] = {0};
    struct vg_fetch *call[3];
    struct vg_err err = VG_ERR_INIT;
    struct vg_fetch_req req = {.url = url_of("/never")};
    cr_assert_eq(vg_fetch_start(fetcher, &req, on_answer, &t[0], &call[0], &err), 0);
    cr_assert_eq(vg_fetch_start(fetcher, &req, on_answer, &t[1], &call[1], &err), 0);
    req.url = url_of("/here");
    cr_assert_eq(vg_fetch_start(fetcher, &req, on_answer, &t[2], &call[2], &err), 0);
    while (!other.at_once)
        uv_run(&loop, UV_RUN_NOWAIT);
    vg_fetch_cancel(call[1]); /* one that waits */
    vg_fetch_cancel(call[0]); /* one under way: the next begins */
    while (!t[2].times)
        uv_run(&loop, UV_RUN_ONCE);
    cr_expect_eq(t[2].status, 200);
    cr_expect_eq(t[0].times + t[1].times, 0);
    cr_assert_eq(vg_fetch_start(fetcher, &req, on_answer, &t[0], NULL, &err), 0);
    end(); /* and the end cancels, too */
    cr_expect_eq(t[0].times, 0);
}

Test(fetch, nobody_there_is_an_error) {
    begin(0);
    struct told t = {0};
    struct vg_err err = VG_ERR_INIT;
    struct vg_fetch_req req = {.url = "http://127.0.0.1:1/"};
    cr_assert_eq(vg_fetch_start(fetcher, &req, on_answer, &t, NULL, &err), 0);
    while (!t.times)
        uv_run(&loop, UV_RUN_ONCE);
    cr_expect_eq(t.err.reason, VG_UNAVAILABLE);
    end();
}

/* ------------------------------------------------------------------ addresses */

static struct sockaddr_storage address(const char *text) {
    struct sockaddr_storage s = {0};
    struct sockaddr_in *a4 = (struct sockaddr_in *)&s;
    struct sockaddr_in6 *a6 = (struct sockaddr_in6 *)&s;
    if (inet_pton(AF_INET, text, &a4->sin_addr) == 1)
        a4->sin_family = AF_INET;
    else if (inet_pton(AF_INET6, text, &a6->sin6_addr) == 1)
        a6->sin6_family = AF_INET6;
    return s;
}

Test(fetch, which_addresses_are_public) {
    static const char *const yes[] = {"1.1.1.1",         "9.255.255.255",  "11.0.0.0",
                                      "100.63.0.1",      "100.128.0.1",    "172.15.0.1",
                                      "172.32.0.1",      "192.167.1.1",    "223.255.255.255",
                                      "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::8.8.8.8",
                                      "2002:808:808::1", "2001:200::1"};
    static const char *const no[] = {
        "127.0.0.1",   "127.255.0.1",     "0.0.0.0",         "10.1.2.3",
        "100.64.0.1",  "169.254.169.254", "172.16.0.1",      "172.31.255.255",
        "192.168.0.1", "192.0.2.1",       "198.18.0.1",      "198.51.100.1",
        "203.0.113.7", "224.0.0.1",       "255.255.255.255", "::",
        "::1",         "::ffff:10.0.0.1", "fe80::1",         "fc00::1",
        "fd12::1",     "ff02::1",         "64:ff9b::7f00:1", "2002:7f00:1::",
        "2001:db8::1", "2001::1",         "::127.0.0.1",     "::ffff:0:0",
        "3fff::1"};
    for (size_t i = 0; i < VG_COUNT(yes); i++) {
        struct sockaddr_storage a = address(yes[i]);
        cr_expect(vg_addr_public((struct sockaddr *)&a), "%s", yes[i]);
    }
    for (size_t i = 0; i < VG_COUNT(no); i++) {
        struct sockaddr_storage a = address(no[i]);
        cr_expect(!vg_addr_public((struct sockaddr *)&a), "%s", no[i]);
    }
    struct sockaddr_storage unix_socket = {.ss_family = AF_UNIX};
    cr_expect(!vg_addr_public((struct sockaddr *)&unix_socket));
}

Test(fetch, nets_and_what_is_in_them) {
    static const struct {
        const char *net, *in, *out;
    } table[] = {
        {"10.0.0.0/8", "10.9.9.9", "11.0.0.0"},
        {"10.1.2.3", "10.1.2.3", "10.1.2.4"},
        {"fd00::/8", "fdff::1", "fc00::1"},
        {"::1", "::1", "::2"},
        {"0.0.0.0/0", "1.2.3.4", "fe80::1"},
        {"192.168.4.0/22", "192.168.7.255", "192.168.8.0"},
        {"127.0.0.0/8", "::ffff:127.0.0.1", "128.0.0.1"},
    };
    struct vg_addr_net net;
    for (size_t i = 0; i < VG_COUNT(table); i++) {
        struct sockaddr_storage in = address(table[i].in), out = address(table[i].out);
        cr_assert_eq(vg_addr_net_parse(table[i].net, &net), 0, "%s", table[i].net);
        cr_expect(vg_addr_net_has(&net, (struct sockaddr *)&in), "%s", table[i].net);
        cr_expect(!vg_addr_net_has(&net, (struct sockaddr *)&out), "%s", table[i].net);
    }
    static const char *const none[] = {"",     "/",        "10.0.0.0/",  "10.0.0.0/33", "::/129",
                                       "host", "10.0.0/8", "1.2.3.4/-1", "1.2.3.4/8x"};
    for (size_t i = 0; i < VG_COUNT(none); i++)
        cr_expect_eq(vg_addr_net_parse(none[i], &net), -EINVAL, "%s", none[i]);
}
