/* The server for texts: what is a request, and that pages come whole, in parts, to whoever asks. */
#include "base/util.h"
#include "net/http.h"

#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

Test(http, requests_and_what_is_none) {
    static const struct {
        const char *text;
        int status;
        size_t path;
    } table[] = {
        {"GET / HTTP/1.1\r\n\r\n", 200, 1},
        {"GET /metrics HTTP/1.0\r\nHost: x\r\n\r\n", 200, 8},
        {"GET /a?b HTTP/1.1\r\n\r\nmore", 200, 4},
        {"GET /a HTTP/1.1\r\n", 0, 0},
        {"", 0, 0},
        {"HEAD / HTTP/1.1\r\n\r\n", 405, 0},
        {"POST / HTTP/1.1\r\n\r\n", 405, 0},
        {"GET http://x/ HTTP/1.1\r\n\r\n", 405, 0},
        {"GET /\r\n\r\n", 400, 0},
        {"GET / HTTP/2\r\n\r\n", 400, 0},
        {"GET / HTTP/2.0\r\n\r\n", 505, 0},
        {"GET /a b HTTP/1.1\r\n\r\n", 400, 0},
        {"\r\n\r\n", 400, 0},
        {"x\r\n\r\n", 400, 0},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        size_t path = 0;
        cr_expect_eq(vg_http_parse(table[i].text, strlen(table[i].text), &path), table[i].status,
                     "%s", table[i].text);
        cr_expect_eq(path, table[i].path);
    }
    size_t path;
    cr_assert_eq(vg_http_parse("GET /\0 HTTP/1.1\r\n\r\n", 19, &path), 400);
    static char much[VG_HTTP_REQUEST_MAX];
    memset(much, 'x', sizeof much);
    cr_assert_eq(vg_http_parse(much, sizeof much - 1, &path), 0);
    cr_assert_eq(vg_http_parse(much, sizeof much, &path), 431);
}

Test(http, every_truncation_asks_for_more) {
    const char *text = "GET /metrics HTTP/1.1\r\nHost: somewhere\r\nAccept: */*\r\n\r\n";
    size_t path, n = strlen(text);
    for (size_t i = 0; i < n; i++)
        cr_assert_eq(vg_http_parse(text, i, &path), 0, "%zu", i);
    cr_assert_eq(vg_http_parse(text, n, &path), 200);
}

/* ------------------------------------------------------------------ over a socket */

#define PARTS 40
#define PART_BYTES 100000 /* together more than a socket takes at once */

static size_t made;

static int big_part(void *user, size_t i, struct vg_buf *to) {
    cr_assert_eq(user, &made);
    if (i == PARTS)
        return 0;
    made++;
    uint8_t *p = vg_buf_reserve(to, PART_BYTES);
    memset(p, 'a' + (int)(i % 26), PART_BYTES);
    vg_buf_commit(to, PART_BYTES);
    return 1;
}

static int broken_part(void *user, size_t i, struct vg_buf *to) {
    (void)user;
    if (i)
        return -ENOMEM;
    return vg_buf_append(to, "half", 4) < 0 ? -ENOMEM : 1;
}

static int is_sick(void *user) {
    cr_assert_eq(user, &made);
    return 503;
}

static const struct vg_http_page pages[] = {{"/big", "text/plain", big_part, NULL},
                                            {"/broken", "text/plain", broken_part, NULL},
                                            {"/sick", "text/plain", broken_part, is_sick},
                                            {NULL, NULL, NULL, NULL}};
static uv_loop_t loop;
static struct vg_http *http;
static uint16_t port;

static void begin(void) {
    struct vg_err err = VG_ERR_INIT;
    made = 0;
    uv_loop_init(&loop);
    cr_assert_eq(vg_http_start(&loop, "127.0.0.1", 0, pages, &made, &http, &port, &err), 0, "%s",
                 err.msg);
}

static void end(void) {
    vg_http_stop(http);
    uv_run(&loop, UV_RUN_DEFAULT);
    cr_assert_eq(uv_loop_close(&loop), 0, "nothing is left behind");
}

static int ask(const char *request) {
    struct sockaddr_in to = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    cr_assert_eq(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
    cr_assert_eq(send(fd, request, strlen(request), 0), (ssize_t)strlen(request));
    vg_set_nonblock(fd, true);
    return fd;
}

/* Until the end of what the server says. */
static void read_all(int fd, struct vg_buf *ret) {
    for (;;) {
        uint8_t *p = vg_buf_reserve(ret, 65536);
        ssize_t n = recv(fd, p, 65536, 0);
        if (n == 0)
            break;
        if (n > 0)
            vg_buf_commit(ret, (size_t)n);
        else
            uv_run(&loop, UV_RUN_NOWAIT);
    }
    close(fd);
    vg_buf_append(ret, "", 1);
}

/* The content of a chunked answer; -1: it was broken off. */
static ssize_t content(struct vg_buf *b) {
    char *p = strstr((char *)vg_buf_data(b), "\r\n\r\n");
    ssize_t sum = 0;
    cr_assert(p);
    for (p += 4;;) {
        char *after;
        size_t n = strtoul(p, &after, 16);
        if (after == p || strncmp(after, "\r\n", 2) != 0)
            return -1;
        if (!n)
            return sum;
        p = after + 2 + n;
        cr_assert_eq(strncmp(p, "\r\n", 2), 0);
        p += 2;
        sum += (ssize_t)n;
    }
}

Test(http, a_page_comes_whole_and_its_parts_when_they_are_wanted) {
    struct vg_buf b = {0};
    begin();
    int fd = ask("GET /big HTTP/1.1\r\n\r\n");
    for (int i = 0; i < 200; i++)
        uv_run(&loop, UV_RUN_NOWAIT);
    cr_assert_lt(made, (size_t)PARTS, "nobody reads: no more is made than fits");
    read_all(fd, &b);
    cr_assert_eq(made, (size_t)PARTS);
    cr_assert_eq(strncmp((char *)vg_buf_data(&b), "HTTP/1.1 200 OK\r\n", 17), 0);
    cr_assert_eq(content(&b), (ssize_t)PARTS * PART_BYTES);
    vg_buf_done(&b);
    end();
}

Test(http, an_answer_that_breaks_off_can_be_told_from_a_whole_one) {
    struct vg_buf b = {0};
    begin();
    read_all(ask("GET /broken HTTP/1.1\r\n\r\n"), &b);
    cr_assert_eq(content(&b), -1);
    vg_buf_done(&b);
    end();
}

Test(http, it_stops_in_the_middle_of_an_answer) {
    begin();
    int fd = ask("GET /big HTTP/1.1\r\n\r\n"), idle = ask("GET /");
    while (!made)
        uv_run(&loop, UV_RUN_NOWAIT);
    end();
    close(fd);
    close(idle);
}

Test(http, a_page_may_say_that_it_is_not_well) {
    struct vg_buf b = {0};
    begin();
    read_all(ask("GET /sick HTTP/1.1\r\n\r\n"), &b);
    cr_expect_eq(strncmp((char *)vg_buf_data(&b), "HTTP/1.1 503 Service Unavailable\r\n", 34), 0);
    vg_buf_done(&b);
    end();
}
