/* Requests from bytes: what is one, what is not, and that a cut one is never taken for whole. */
#include "base/cleanup.h"
#include "http/parse.h"

#include <criterion/criterion.h>
#include <string.h>

#define HOST "Host: h\r\n"

struct parsed {
    struct vg_web_req req;
    struct vg_web_head head;
    char mem[VG_WEB_HEAD_MEM(4096)];
};

static int parse_n(const char *text, size_t n, struct parsed *p) {
    size_t len = 0;
    memset(p, 0, sizeof *p);
    int status = vg_web_head_find(text, n, 4096, &len);
    return status == 200 ? vg_web_head_parse(text, len, p->mem, &p->req, &p->head) : status;
}

static int parse(const char *text, struct parsed *p) {
    return parse_n(text, strlen(text), p);
}

Test(parse, a_request_and_what_it_says) {
    struct parsed p;
    cr_assert_eq(parse("PATCH /a%20b/c?x=1&y=a+b%26&z&=no HTTP/1.1\r\nHOST: example:1\r\n"
                       "X-Thing: \t some  value \t\r\nContent-Length: 12\r\n\r\n",
                       &p),
                 200);
    cr_expect_eq(p.req.method, VG_WEB_PATCH);
    cr_expect_str_eq(p.req.path, "/a b/c");
    cr_expect_str_eq(p.req.target, "/a%20b/c?x=1&y=a+b%26&z&=no");
    cr_assert_eq(p.req.n_query, 3u);
    cr_expect_str_eq(p.req.query[1].name, "y");
    cr_expect_str_eq(p.req.query[1].value, "a b&");
    cr_expect_str_eq(p.req.query[2].value, "");
    cr_assert_eq(p.req.n_headers, 3u);
    cr_expect_str_eq(p.req.header[0].name, "host");
    cr_expect_str_eq(p.req.header[1].value, "some  value");
    cr_expect_eq(p.head.length, 12u);
    cr_expect(p.head.keep_alive);
    cr_assert_eq(parse("HEAD https://h/x HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n", &p), 200);
    cr_expect(p.req.head && p.req.method == VG_WEB_GET && p.head.keep_alive);
    cr_expect_str_eq(p.req.path, "/x");
    cr_assert_eq(parse("OPTIONS * HTTP/1.1\r\n" HOST "Connection: x, close\r\n\r\n", &p), 200);
    cr_expect(!p.head.keep_alive);
}

Test(parse, what_is_refused) {
    static const struct {
        const char *text;
        int status;
    } table[] = {
        {"GET / HTTP/1.1\r\n" HOST "\r\n", 200}, /* control */
        {"GET / HTTP/1.1\r\n\r\n", 400},         /* no Host */
        {"GET / HTTP/1.1\r\n" HOST HOST "\r\n", 400},
        {"GET / HTTP/1.0\r\n\r\n", 200},
        {"GET / HTTP/1.2\r\n" HOST "\r\n", 505},
        {"GET / HTTP/2.0\r\n" HOST "\r\n", 505},
        {"GET / FTP/1.1\r\n" HOST "\r\n", 400},
        {"GET /\r\n" HOST "\r\n", 400},
        {"GET  / HTTP/1.1\r\n" HOST "\r\n", 400},
        {"GET / HTTP/1.1 \r\n" HOST "\r\n", 505},
        {"BREW / HTTP/1.1\r\n" HOST "\r\n", 501},
        {"TRACE / HTTP/1.1\r\n" HOST "\r\n", 405},
        {"G(T / HTTP/1.1\r\n" HOST "\r\n", 400},
        {"get / HTTP/1.1\r\n" HOST "\r\n", 501},
        {"GET x HTTP/1.1\r\n" HOST "\r\n", 400},
        {"GET ftp://h/ HTTP/1.1\r\n" HOST "\r\n", 400},
        {"GET * HTTP/1.1\r\n" HOST "\r\n", 400},
        {"GET /%00 HTTP/1.1\r\n" HOST "\r\n", 400},
        {"GET /%4 HTTP/1.1\r\n" HOST "\r\n", 400},
        {"GET /%zz HTTP/1.1\r\n" HOST "\r\n", 400},
        {"GET /?a=%2 HTTP/1.1\r\n" HOST "\r\n", 400},
        {"GET /a/../b HTTP/1.1\r\n" HOST "\r\n", 400},
        {"GET /a/%2e%2e/b HTTP/1.1\r\n" HOST "\r\n", 400},
        {"GET /./b HTTP/1.1\r\n" HOST "\r\n", 400},
        {"GET /..a HTTP/1.1\r\n" HOST "\r\n", 200},
        {"GET /\x01 HTTP/1.1\r\n" HOST "\r\n", 400},
        {"GET /\xc3\xa9 HTTP/1.1\r\n" HOST "\r\n", 400},
        {"GET /#x HTTP/1.1\r\n" HOST "\r\n", 400},
        {"GET / HTTP/1.1\r\n" HOST "A : b\r\n\r\n", 400},
        {"GET / HTTP/1.1\r\n" HOST ": b\r\n\r\n", 400},
        {"GET / HTTP/1.1\r\n" HOST "A\r\n\r\n", 400},
        {"GET / HTTP/1.1\r\n" HOST "A: b\r\n c\r\n\r\n", 400},
        {"GET / HTTP/1.1\r\n" HOST "A: b\nC: d\r\n\r\n", 400},
        {"GET / HTTP/1.1\n" HOST "A: b\r\n\r\n", 400},
        {"GET / HTTP/1.1\r\n" HOST "A: b\rc\r\n\r\n", 400},
        {"GET / HTTP/1.1\r\n" HOST "A: \x07\r\n\r\n", 400},
        {"POST / HTTP/1.1\r\n" HOST "Content-Length: 1\r\nContent-Length: 1\r\n\r\n", 400},
        {"POST / HTTP/1.1\r\n" HOST "Content-Length: -1\r\n\r\n", 400},
        {"POST / HTTP/1.1\r\n" HOST "Content-Length: 1x\r\n\r\n", 400},
        {"POST / HTTP/1.1\r\n" HOST "Content-Length: \r\n\r\n", 400},
        {"POST / HTTP/1.1\r\n" HOST "Content-Length: 9999999999999999999\r\n\r\n", 400},
        {"POST / HTTP/1.1\r\n" HOST "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
        {"POST / HTTP/1.1\r\n" HOST "Transfer-Encoding: gzip, chunked\r\n\r\n", 501},
        {"POST / HTTP/1.1\r\n" HOST "Transfer-Encoding: identity\r\n\r\n", 501},
        {"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
        {"POST / HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked\r\n\r\n", 200},
        {"POST / HTTP/1.1\r\n" HOST "Expect: magic\r\n\r\n", 417},
        {"GET / HTTP/1.1\r\nHost: a b\r\n\r\n", 400},
        {"GET / HTTP/1.1\r\nHost: a, b\r\n\r\n", 400},
        {"GET / HTTP/1.1\r\nHost: a/b\r\n\r\n", 400},
        {"GET / HTTP/1.1\r\nHost: user@h\r\n\r\n", 400},
        {"GET / HTTP/1.1\r\nHost: [::1]:443\r\n\r\n", 200},
        {"GET / HTTP/1.1\r\nHost:\r\n\r\n", 200},
        {"\r\n\r\n", 400},
        {"x\r\n\r\n", 400},
    };
    struct parsed p;
    for (size_t i = 0; i < VG_COUNT(table); i++)
        cr_expect_eq(parse(table[i].text, &p), table[i].status, "%s", table[i].text);
    static const char nul[] = "GET /\0 HTTP/1.1\r\nHost: h\r\n\r\n";
    cr_expect_eq(parse_n(nul, sizeof nul - 1, &p), 400);
}

Test(parse, every_truncation_asks_for_more) {
    const char *text = "GET /x HTTP/1.1\r\nHost: somewhere\r\nAccept: */*\r\n\r\n";
    struct parsed p;
    for (size_t i = 0; i < strlen(text); i++)
        cr_assert_eq(parse_n(text, i, &p), 0, "%zu", i);
    cr_assert_eq(parse(text, &p), 200);
}

Test(parse, what_is_too_much) {
    char text[8192];
    size_t len, n = 0;
    struct parsed p;
    memset(text, 'x', sizeof text);
    cr_expect_eq(vg_web_head_find(text, 4095, 4096, &len), 0);
    cr_expect_eq(vg_web_head_find(text, 4096, 4096, &len), 431);
    memcpy(text + 4094, "\r\n\r\n", 4);
    cr_expect_eq(vg_web_head_find(text, 4098, 4096, &len), 431, "it ends too late");
    n = (size_t)snprintf(text, sizeof text, "GET / HTTP/1.1\r\nHost: h\r\n");
    for (int i = 0; i < VG_WEB_HEADERS_MAX; i++)
        n += (size_t)snprintf(text + n, sizeof text - n, "a: b\r\n");
    snprintf(text + n, sizeof text - n, "\r\n");
    cr_expect_eq(parse(text, &p), 431);
    n = (size_t)snprintf(text, sizeof text, "GET /?");
    for (int i = 0; i <= VG_WEB_QUERY_MAX; i++)
        n += (size_t)snprintf(text + n, sizeof text - n, "a&");
    snprintf(text + n, sizeof text - n, " HTTP/1.1\r\nHost: h\r\n\r\n");
    cr_expect_eq(parse(text, &p), 414);
}

/* ------------------------------------------------------------------ chunks */

static int chunks(const char *text, size_t step, size_t max, char *out, size_t *ret_used) {
    struct vg_web_chunks k = {0};
    struct vg_buf b = {0};
    size_t n = strlen(text), at = 0;
    int r = 0;
    while (at < n && r == 0) {
        size_t used = 0;
        r = vg_web_chunks_feed(&k, (const uint8_t *)text + at, VG_MIN(step, n - at), &used, &b,
                               max);
        at += used;
    }
    snprintf(out, 256, "%.*s", (int)vg_buf_len(&b), vg_buf_len(&b) ? (char *)vg_buf_data(&b) : "");
    vg_buf_done(&b);
    *ret_used = at;
    return r;
}

Test(parse, chunks_are_the_same_however_they_come) {
    static const char text[] = "5\r\nhello\r\n6;ext=1\r\n world\r\n0\r\nA: b\r\n\r\nGET";
    char out[256];
    size_t used;
    for (size_t step = 1; step < sizeof text; step++) {
        cr_assert_eq(chunks(text, step, 100, out, &used), 1, "%zu", step);
        cr_expect_str_eq(out, "hello world");
        cr_expect_str_eq(text + used, "GET", "what follows is the next request's");
    }
}

Test(parse, chunks_that_are_refused) {
    static const struct {
        const char *text;
        int status;
    } table[] = {
        {"3\r\nabc\r\n0\r\n\r\n", 1},
        {"3\r\nabcd\r\n0\r\n\r\n", 400},
        {"x\r\n", 400},
        {"\r\n", 400},
        {"3\nabc", 400},
        {"3\r\nabc\n0\r\n\r\n", 400},
        {"1000\r\n", 413},
        {"fffffffffffffffff\r\n", 413},
        {"0\r\n\n", 400},
        {"3 \r\nabc\r\n0\r\n\r\n", 1},
        {"-1\r\n", 400},
    };
    char out[256];
    size_t used;
    for (size_t i = 0; i < VG_COUNT(table); i++)
        cr_expect_eq(chunks(table[i].text, 1, 100, out, &used), table[i].status, "%s",
                     table[i].text);
}
