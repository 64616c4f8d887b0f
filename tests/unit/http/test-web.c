/* The server: requests one after another and at once, bounds, answers later, in parts, and clients
   that leave. */
#include "fixture.h"

#include "base/cleanup.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define GET(path) "GET " path " HTTP/1.1\r\nHost: h\r\n\r\n"

static struct vg_web_req *kept; /* by on_keep */
static int gone;

static void on_echo(struct vg_web_req *req, void *user) {
    char text[256];
    (void)user;
    snprintf(text, sizeof text, "%s %s %zu:%.*s", vg_web_method_name(req->method), req->path,
             req->body_len, (int)VG_MIN(req->body_len, (size_t)64), (const char *)req->body);
    vg_web_answer(req, 200, "text/plain", text, strlen(text));
}

static void on_keep(struct vg_web_req *req, void *user) {
    (void)user;
    kept = req;
}

static void on_gone(struct vg_web_req *req, void *user) {
    (void)req;
    (void)user;
    gone++;
}

Test(web, requests_of_one_connection_are_answered_in_order) {
    struct vg_buf b = {0};
    begin(NULL, on_echo, NULL);
    int fd = dial();
    say_text(fd,
             "\r\n" GET("/1") "POST /2 HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc"
                              "POST /3 HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
                              "2\r\nde\r\n0\r\n\r\n" GET("/4"));
    const char *want[] = {"GET /1 0:", "POST /2 3:abc", "POST /3 2:de", "GET /4 0:"};
    char *at = NULL;
    while (!strstr(at ? at : "", want[3])) {
        hear(fd, &b, vg_buf_len(&b) + 1);
        at = (char *)vg_buf_data(&b);
    }
    for (size_t i = 0; i < 4; i++) {
        at = strstr(at, want[i]);
        cr_assert(at, "%s", want[i]);
    }
    struct vg_web_numbers n = vg_web_numbers(web);
    cr_expect(n.requests == 4 && n.conns == 1 && n.requests_now == 0 && n.status[2] == 4);
    close(fd);
    vg_buf_done(&b);
    end();
}

Test(web, a_head_has_no_body_and_close_closes) {
    struct vg_buf b = {0};
    begin(NULL, on_echo, NULL);
    int fd = dial();
    say_text(fd, "HEAD /x HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
    hear_all(fd, &b);
    char *text = (char *)vg_buf_data(&b);
    cr_expect(strstr(text, "Content-Length: 9\r\n") && strstr(text, "Connection: close\r\n"));
    cr_expect_str_eq(strstr(text, "\r\n\r\n"), "\r\n\r\n");
    vg_buf_done(&b);
    end();
}

Test(web, what_is_too_large_is_refused_before_it_comes) {
    static const struct {
        const char *text;
        int status;
    } table[] = {
        {"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 2000\r\n\r\n", 413},
        {"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n7d0\r\n", 413},
        {"POST / HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 2000\r\n\r\n", 413},
        {"nonsense\r\n\r\n", 400},
    };
    struct vg_web_limits limits = {.body_max = 1000, .head_max = 1000};
    for (size_t i = 0; i < VG_COUNT(table); i++) {
        struct vg_buf b = {0};
        begin(&limits, on_echo, NULL);
        int fd = dial();
        say_text(fd, table[i].text);
        hear_all(fd, &b);
        cr_expect_eq(strtol((char *)vg_buf_data(&b) + 9, NULL, 10), table[i].status, "%s",
                     (char *)vg_buf_data(&b));
        vg_buf_done(&b);
        end();
    }
    struct vg_buf b = {0};
    char much[1200];
    begin(&limits, on_echo, NULL);
    int fd = dial();
    memset(much, 'x', sizeof much);
    say(fd, much, sizeof much);
    hear_all(fd, &b);
    cr_expect_eq(strncmp((char *)vg_buf_data(&b), "HTTP/1.1 431 ", 13), 0);
    vg_buf_done(&b);
    end();
}

Test(web, continue_is_said_when_the_body_is_welcome) {
    struct vg_buf b = {0};
    begin(NULL, on_echo, NULL);
    int fd = dial();
    say_text(fd, "POST / HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n");
    cr_expect_eq(hear_answer(fd, &b), 100);
    say_text(fd, "ab");
    cr_expect_eq(hear_answer(fd, &b), 200);
    close(fd);
    vg_buf_done(&b);
    end();
}

Test(web, continue_is_not_said_to_a_client_that_would_take_it_for_the_answer) {
    struct vg_buf b = {0};
    begin(NULL, on_echo, NULL);
    int fd = dial();
    say_text(fd, "POST / HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n");
    say_text(fd, "ab");
    cr_expect_eq(hear_answer(fd, &b), 200);
    close(fd);
    vg_buf_done(&b);
    end();
}

static int hidden; /* requests that a proxy would not have seen as such */

static void on_hidden(struct vg_web_req *req, void *user) {
    (void)user;
    hidden += strcmp(req->path, "/hidden") == 0;
    vg_web_text(req, 200, "taken");
}

#define POST_HEAD "POST / HTTP/1.1\r\nHost: h\r\n"
#define CHUNKED POST_HEAD "Transfer-Encoding: chunked\r\n\r\n"

/* What two readers could take for different requests is none, and nothing behind it is. */
Test(web, nothing_hides_behind_a_request_that_can_be_read_in_two_ways) {
    static const struct {
        const char *text;
        int hidden;
    } table[] = {
        {CHUNKED "3\r\nabc\r\n0\r\n\r\n", 1}, /* controls: it is simply the next */
        {CHUNKED "3;a=\"b\"\r\nabc\r\n0\r\nX: y\r\n\r\n", 1},
        {POST_HEAD "Content-Length: 3\r\n\r\nabc", 1},
        {POST_HEAD "Content-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 0},
        {POST_HEAD "Transfer-Encoding: chunked\r\nContent-Length: 6\r\n\r\n0\r\n\r\n", 0},
        {POST_HEAD "Content-Length: 0\r\nContent-Length: 0\r\n\r\n", 0},
        {POST_HEAD "Content-Length: 0, 0\r\n\r\n", 0},
        {POST_HEAD "Content-Length: +0\r\n\r\n", 0},
        {POST_HEAD "Content-Length : 0\r\n\r\n", 0},
        {POST_HEAD "Content-Length: 0\r\n 3\r\n\r\n", 0},
        {POST_HEAD "Transfer-Encoding: chunked\r\nTransfer-Encoding: x\r\n\r\n0\r\n\r\n", 0},
        {POST_HEAD "Transfer-Encoding: x, chunked\r\n\r\n0\r\n\r\n", 0},
        {POST_HEAD "Transfer-Encoding: \vchunked\r\n\r\n0\r\n\r\n", 0},
        {POST_HEAD "Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n", 0},
        {POST_HEAD "X: y\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 0},
        {POST_HEAD "X: y\rTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 0},
        {"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 0},
        {CHUNKED "0\n\n", 0},
        {CHUNKED "0\r\n\n", 0},
        {CHUNKED "0;x\ny\r\n\r\n", 0},
        {CHUNKED "0\r\nX: y\n\r\n", 0},
        {CHUNKED "0x0\r\n\r\n", 0},
        {CHUNKED "-0\r\n\r\n", 0},
        {CHUNKED " 0\r\n\r\n", 0},
        {CHUNKED "3\r\nabc0\r\n\r\n", 0},
        {CHUNKED "10000000000000000\r\n\r\n", 0},
    };
    for (size_t i = 0; i < VG_COUNT(table); i++) {
        struct vg_buf b = {0};
        size_t answers = 0;
        hidden = 0;
        begin(NULL, on_hidden, NULL);
        int fd = dial();
        say_text(fd, table[i].text);
        say_text(fd, "GET /hidden HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
        hear_all(fd, &b);
        for (const char *p = (char *)vg_buf_data(&b); (p = strstr(p, "HTTP/1.1 ")); p++)
            answers++;
        cr_expect_eq(hidden, table[i].hidden, "%s", table[i].text);
        cr_expect_eq(answers, 1u + (size_t)table[i].hidden, "%s", table[i].text);
        vg_buf_done(&b);
        end();
    }
}

Test(web, who_is_slow_is_not_waited_for) {
    struct vg_web_limits limits = {.head_msec = 50, .body_msec = 50, .idle_msec = 50};
    const char *texts[] = {"GET / HT", "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\nab"};
    for (size_t i = 0; i < VG_COUNT(texts); i++) {
        struct vg_buf b = {0};
        begin(&limits, on_echo, NULL);
        int fd = dial();
        say_text(fd, texts[i]);
        hear_all(fd, &b);
        cr_expect_eq(strncmp((char *)vg_buf_data(&b), "HTTP/1.1 408 ", 13), 0);
        vg_buf_done(&b);
        end();
    }
    struct vg_buf b = {0};
    begin(&limits, on_echo, NULL);
    int fd = dial();
    say_text(fd, GET("/"));
    hear_all(fd, &b); /* ends: between requests nobody is waited for either */
    cr_expect(strstr((char *)vg_buf_data(&b), "GET / 0:"));
    vg_buf_done(&b);
    end();
}

Test(web, an_answer_may_come_later_and_its_client_may_have_left) {
    struct vg_buf b = {0};
    begin(NULL, on_keep, NULL);
    int fd = dial();
    kept = NULL;
    gone = 0;
    say_text(fd, GET("/1") GET("/2"));
    while (!kept)
        turn();
    cr_expect_str_eq(kept->path, "/1", "one at a time");
    struct vg_web_req *first = vg_take_ptr(kept);
    turn();
    cr_assert(!kept);
    vg_web_text(first, 202, "later");
    cr_expect_eq(hear_answer(fd, &b), 202);
    while (!kept)
        turn();
    cr_expect_str_eq(kept->path, "/2");
    vg_web_on_gone(kept, on_gone, NULL);
    close(fd);
    while (!gone)
        turn();
    cr_expect(kept->gone);
    vg_web_text(kept, 200, "to nobody");
    cr_expect_eq(gone, 1);
    vg_buf_done(&b);
    end();
}

Test(web, it_stops_with_requests_open) {
    begin(NULL, on_keep, NULL);
    int fd = dial(), idle = dial();
    kept = NULL;
    gone = 0;
    say_text(fd, GET("/"));
    while (!kept)
        turn();
    vg_web_on_gone(kept, on_gone, NULL);
    end();
    cr_expect_eq(gone, 1);
    vg_web_text(kept, 200, "to nobody");
    close(fd);
    close(idle);
}

/* ------------------------------------------------------------------ parts */

static int rooms;
static void on_room(struct vg_web_req *req, void *user) {
    (void)req;
    (void)user;
    rooms++;
}
static const struct vg_web_stream_ops stream_ops = {on_room, on_gone};

Test(web, a_stream_waits_for_its_reader) {
    struct vg_buf b = {0};
    static char part[10000];
    size_t written = 0;
    begin(NULL, on_keep, NULL);
    int fd = dial();
    kept = NULL;
    rooms = gone = 0;
    say_text(fd, GET("/"));
    while (!kept)
        turn();
    cr_assert_eq(vg_web_begin(kept, 200, "text/event-stream", &stream_ops, NULL), 0);
    memset(part, 'x', sizeof part);
    for (int quiet = 0; quiet < 50;) { /* until the sockets are full, too */
        if (vg_web_room(kept)) {
            cr_assert_eq(vg_web_write(kept, part, sizeof part), 0);
            written += sizeof part;
            quiet = 0;
        } else {
            quiet++;
        }
        turn();
    }
    cr_assert_lt(written, (size_t)64 << 20, "it is bounded");
    int before = rooms;
    while (rooms == before)
        hear(fd, &b, vg_buf_len(&b) + 1);
    vg_web_end(kept, false);
    while (vg_buf_len(&b) < written || memcmp(b.base + b.tail - 5, "0\r\n\r\n", 5) != 0)
        hear(fd, &b, vg_buf_len(&b) + 1);
    cr_expect(strstr((char *)vg_buf_data(&b), "Transfer-Encoding: chunked\r\n"));
    cr_expect_eq(gone, 0);
    close(fd);
    vg_buf_done(&b);
    end();
}

Test(web, a_stream_hears_when_its_reader_leaves) {
    begin(NULL, on_keep, NULL);
    int fd = dial();
    kept = NULL;
    gone = 0;
    say_text(fd, GET("/"));
    while (!kept)
        turn();
    cr_assert_eq(vg_web_begin(kept, 200, "text/event-stream", &stream_ops, NULL), 0);
    close(fd);
    while (!gone)
        turn();
    cr_expect_eq(vg_web_write(kept, "x", 1), -EPIPE);
    vg_web_end(kept, false);
    end();
}

Test(web, a_stream_for_an_old_client_ends_with_the_connection) {
    struct vg_buf b = {0};
    begin(NULL, on_keep, NULL);
    int fd = dial();
    kept = NULL;
    say_text(fd, "GET / HTTP/1.0\r\n\r\n");
    while (!kept)
        turn();
    vg_web_begin(kept, 200, "text/plain", &stream_ops, NULL);
    vg_web_write(kept, "words", 5);
    vg_web_end(kept, false);
    hear_all(fd, &b);
    cr_expect_str_eq(strstr((char *)vg_buf_data(&b), "\r\n\r\n"), "\r\n\r\nwords");
    vg_buf_done(&b);
    end();
}

/* ------------------------------------------------------------------ who may come */

static uint64_t limit_all(const char *peer, void *user) {
    (void)user;
    cr_assert_str_eq(peer, "127.0.0.1");
    return 1500;
}

Test(web, an_address_over_its_limit_is_told_when_to_come_again) {
    struct vg_buf b = {0};
    begin_ops(NULL, &(struct vg_web_ops){.on_request = on_echo, .limit = limit_all}, NULL);
    int fd = dial();
    say_text(fd, GET("/"));
    cr_expect_eq(hear_answer(fd, &b), 429);
    cr_expect(strstr((char *)vg_buf_data(&b), "Retry-After: 2\r\n"));
    close(fd);
    vg_buf_done(&b);
    end();
}

Test(web, connections_of_an_address_are_bounded) {
    struct vg_web_limits limits = {.conns_peer_max = 2};
    struct vg_buf b = {0};
    begin(&limits, on_echo, NULL);
    int a = dial(), c = dial();
    while (vg_web_numbers(web).conns_now < 2)
        turn();
    hear_all(dial(), &b);
    cr_expect_eq(vg_buf_len(&b), 1u, "it is hung up on");
    close(a);
    close(c);
    vg_buf_done(&b);
    end();
}

static void on_headers(struct vg_web_req *req, void *user) {
    char cookie[8] = "";
    (void)user;
    cr_expect_eq(vg_web_cookie(req, "b", cookie, sizeof cookie), 0);
    cr_expect_str_eq(cookie, "2");
    cr_expect_eq(vg_web_cookie(req, "c", cookie, sizeof cookie), -ENOENT);
    cr_expect_eq(vg_web_cookie(req, "long", cookie, sizeof cookie), -ENOBUFS);
    cr_expect(vg_web_accepts(req, "text/csv") && !vg_web_accepts(req, "text/c"));
    cr_expect(vg_web_same_origin(req) == (strcmp(req->path, "/same") == 0));
    cr_expect_eq(vg_web_set(req, "X", "a\r\nb: c"), -EINVAL);
    vg_web_answer(req, 204, NULL, NULL, 0);
}

Test(web, what_headers_say) {
    struct vg_buf b = {0};
    begin(NULL, on_headers, NULL);
    int fd = dial();
    static const char head[] = "Accept: application/json;q=0.9, text/csv\r\n"
                               "Cookie: a=1; b=2; long=0123456789\r\n\r\n";
    say_text(fd, "GET /same HTTP/1.1\r\nHost: h:1\r\nOrigin: https://h:1\r\n");
    say_text(fd, head);
    cr_expect_eq(hear_answer(fd, &b), 204);
    say_text(fd, "GET /other HTTP/1.1\r\nHost: h:1\r\nOrigin: https://evil\r\n");
    say_text(fd, head);
    cr_expect_eq(hear_answer(fd, &b), 204);
    close(fd);
    vg_buf_done(&b);
    end();
}
