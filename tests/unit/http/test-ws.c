/* WebSockets over a socket: greeting, messages both ways, fragments, pings, ends. */
#include "fixture.h"

#include "base/cleanup.h"
#include "http/ws-frame.h"
#include "http/ws.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define HELLO                                                                    \
    "GET / HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n" \
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"

static struct vg_web_limits limits; /* the usual ones, unless a test says otherwise */
static struct vg_ws *ws;
static unsigned closed;
static int accepted;

static void on_message(struct vg_ws *s, void *user, bool text, const uint8_t *data, size_t n) {
    (void)user;
    if (n == 4 && memcmp(data, "quit", 4) == 0)
        vg_ws_close(s, VG_WS_NORMAL, "as you wish");
    else
        vg_ws_send(s, text, data, n);
}
static void on_close(struct vg_ws *s, void *user, unsigned code) {
    (void)s;
    (void)user;
    closed = code;
    ws = NULL;
}
static const struct vg_ws_ops ops = {on_message, NULL, on_close};

static void on_request(struct vg_web_req *req, void *user) {
    (void)user;
    accepted = vg_ws_accept(req, 1000, &ops, NULL, &ws);
}

static int greet(struct vg_buf *b, const char *more) {
    closed = 0;
    begin(&limits, on_request, NULL);
    int fd = dial();
    say_text(fd, HELLO);
    say_text(fd, more);
    say_text(fd, "\r\n");
    cr_assert_eq(hear_answer(fd, b), 101);
    cr_expect(strstr((char *)vg_buf_data(b), "Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo="));
    vg_buf_clear(b);
    return fd;
}

/* A client's frame: masked. */
static void frame(int fd, uint8_t first, const void *data, size_t n) {
    uint8_t p[2048], mask[4] = {7, 8, 9, 10};
    size_t len = vg_ws_frame_head((enum vg_ws_op)(first & 15), n, p);
    p[0] = first;
    p[1] |= 0x80;
    memcpy(p + len, mask, 4);
    if (n)
        memcpy(p + len + 4, data, n);
    vg_ws_unmask(p + len + 4, n, mask);
    say(fd, p, len + 4 + n);
}

static void expect_frame(int fd, struct vg_buf *b, uint8_t first, const char *data) {
    size_t n = strlen(data);
    cr_assert_eq(hear(fd, b, n + 2) >= n + 2, true, "hung up");
    uint8_t *p = vg_buf_data(b);
    cr_expect_eq(p[0], first, "%x", p[0]);
    cr_expect_eq(p[1], n);
    cr_expect_eq(memcmp(p + 2, data, n), 0);
    vg_buf_consume(b, n + 2);
}

/* In good order; it was told so. */
static void part(int fd, struct vg_buf *b) {
    frame(fd, 0x88, "\x03\xe8", 2);
    hear_all(fd, b);
    while (!closed)
        turn();
    cr_expect_eq(closed, 1000u);
    vg_buf_done(b);
    end();
}

Test(ws, messages_fragments_and_pings) {
    struct vg_buf b = {0};
    int fd = greet(&b, "Origin: https://h\r\n");
    frame(fd, 0x81, "hello", 5);
    expect_frame(fd, &b, 0x81, "hello");
    frame(fd, 0x82, "\x01\xff", 2);
    expect_frame(fd, &b, 0x82, "\x01\xff");
    frame(fd, 0x01, "a\xc3", 2); /* a character in two fragments, and a ping between */
    frame(fd, 0x89, "p", 1);
    frame(fd, 0x80, "\xa9", 1);
    expect_frame(fd, &b, 0x8a, "p");
    expect_frame(fd, &b, 0x81, "a\xc3\xa9");
    frame(fd, 0x81, "quit", 4);
    expect_frame(fd, &b, 0x88,
                 "\x03\xe8"
                 "as you wish");
    part(fd, &b);
}

/* More answers than are kept for anybody: it is not hung up on, and memory does not grow. */
Test(ws, who_asks_without_end_and_does_not_listen_gets_some_answers) {
    enum { FRAMES = 512, ROUNDS = 700 };
    static uint8_t flood[FRAMES * 131];
    struct vg_buf b = {0};
    limits.stall_msec = 1000000; /* however slow this machine is */
    int fd = greet(&b, "");
    for (size_t i = 0; i < sizeof flood; i += 131)
        flood[i] = 0x89, flood[i + 1] = 0x80 | 125;
    for (int i = 0; i < ROUNDS; i++)
        say(fd, flood, sizeof flood);
    frame(fd, 0x81, "still here", 10);
    size_t got = 0, kept = 0;
    bool more = true, heard = false;
    while (more && !heard) {
        more = hear(fd, &b, kept + 1) > kept;
        heard = memmem(vg_buf_data(&b), vg_buf_len(&b), "still here", 10) != NULL;
        got += vg_buf_len(&b) - kept;
        kept = VG_MIN(vg_buf_len(&b), (size_t)9); /* it may come in two parts */
        vg_buf_consume(&b, vg_buf_len(&b) - kept);
    }
    cr_expect(heard, "hung up");
    cr_expect_lt(got, (size_t)FRAMES * ROUNDS * 127);
    part(fd, &b);
}

Test(ws, what_breaks_the_rules_ends_it) {
    static const struct {
        uint8_t first;
        const char *data;
        const char *code;
    } table[] = {
        {0x80, "x", "\x03\xea"},    /* a continuation of nothing */
        {0x81, "\xff", "\x03\xef"}, /* no UTF-8 */
        {0x88, "\x03", "\x03\xea"}, {0x88, "\x03\xed", "\x03\xea"}, {0xf1, "", "\x03\xea"},
    };
    for (size_t i = 0; i < VG_COUNT(table); i++) {
        struct vg_buf b = {0};
        int fd = greet(&b, "");
        frame(fd, table[i].first, table[i].data, strlen(table[i].data));
        hear_all(fd, &b);
        cr_expect_eq(vg_buf_data(&b)[0], 0x88, "%zu", i);
        cr_expect_eq(memcmp(vg_buf_data(&b) + 2, table[i].code, 2), 0, "%zu", i);
        while (!closed)
            turn();
        vg_buf_done(&b);
        end();
    }
    struct vg_buf b = {0};
    char much[1001] = "";
    int fd = greet(&b, "");
    frame(fd, 0x82, much, sizeof much);
    hear_all(fd, &b);
    cr_expect_eq(memcmp(vg_buf_data(&b) + 2, "\x03\xf1", 2), 0);
    vg_buf_done(&b);
    end();
}

Test(ws, a_client_that_vanishes_and_a_server_that_stops) {
    struct vg_buf b = {0};
    close(greet(&b, ""));
    while (!closed)
        turn();
    cr_expect_eq(closed, 1006u);
    end();
    int fd = greet(&b, "");
    end();
    cr_expect_eq(closed, 1001u);
    close(fd);
    vg_buf_done(&b);
}

Test(ws, who_is_refused) {
    static const struct {
        const char *text;
        int status;
    } table[] = {
        {HELLO "Origin: https://evil.example\r\n\r\n", 403},
        {"GET / HTTP/1.1\r\nHost: h\r\n\r\n", 426},
        {"GET / HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 8\r\n\r\n",
         426},
        {"GET / HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\r\n",
         400},
    };
    for (size_t i = 0; i < VG_COUNT(table); i++) {
        struct vg_buf b = {0};
        begin(NULL, on_request, NULL);
        int fd = dial();
        say_text(fd, table[i].text);
        cr_expect_eq(hear_answer(fd, &b), table[i].status, "%zu", i);
        cr_expect_lt(accepted, 0);
        close(fd);
        vg_buf_done(&b);
        end();
    }
}
