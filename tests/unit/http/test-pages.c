/* Pages in parts: whole, when they are wanted, and told from one that was broken off. */
#include "fixture.h"

#include "http/pages.h"

#include <criterion/criterion.h>
#include <string.h>
#include <unistd.h>

#define PARTS 100
#define PART_BYTES 100000 /* together more than sockets take at once */

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

static int small_part(void *user, size_t i, struct vg_buf *to) {
    (void)user;
    if (i > 1)
        return 0;
    return vg_buf_append(to, i ? "two" : "one ", i ? 3 : 4) < 0 ? -ENOMEM : 1;
}

static int not_ready(void *user) {
    (void)user;
    return 503;
}

static const struct vg_web_page pages[] = {
    {"/big", "text/plain", big_part, NULL},
    {"/broken", "text/plain", broken_part, NULL},
    {"/unready", "text/plain", small_part, not_ready},
    {NULL, NULL, NULL, NULL},
};

static void on_request(struct vg_web_req *req, void *user) {
    vg_web_pages_answer(pages, user, req);
}

static int ask(const char *request) {
    made = 0;
    begin(NULL, on_request, &made);
    int fd = dial();
    say_text(fd, request);
    return fd;
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
        p = after + 2 + n + 2;
        sum += (ssize_t)n;
    }
}

#define GET(path) "GET " path " HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"

Test(pages, a_page_comes_whole_and_its_parts_when_they_are_wanted) {
    struct vg_buf b = {0};
    int fd = ask(GET("/big"));
    for (int i = 0; i < 200; i++)
        turn();
    cr_assert_lt(made, (size_t)PARTS, "nobody reads: no more is made than fits");
    hear_all(fd, &b);
    cr_expect_eq(made, (size_t)PARTS);
    cr_expect_eq(content(&b), (ssize_t)PARTS * PART_BYTES);
    vg_buf_done(&b);
    end();
}

Test(pages, an_answer_that_breaks_off_can_be_told_from_a_whole_one) {
    struct vg_buf b = {0};
    hear_all(ask(GET("/broken")), &b);
    cr_expect_eq(content(&b), -1);
    vg_buf_done(&b);
    end();
}

Test(pages, a_page_has_its_status) {
    struct vg_buf b = {0};
    hear_all(ask(GET("/unready")), &b);
    cr_expect_eq(strncmp((char *)vg_buf_data(&b), "HTTP/1.1 503 ", 13), 0);
    cr_expect_eq(content(&b), 7);
    vg_buf_done(&b);
    end();
}

Test(pages, what_is_no_page) {
    struct vg_buf b = {0};
    int fd = ask("GET /none HTTP/1.1\r\nHost: h\r\n\r\n");
    cr_expect_eq(hear_answer(fd, &b), 404);
    say_text(fd, "POST /big HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n");
    cr_expect_eq(hear_answer(fd, &b), 405);
    close(fd);
    vg_buf_done(&b);
    end();
}

Test(pages, a_reader_that_leaves_and_a_server_that_stops) {
    int fd = ask(GET("/big"));
    while (!made)
        turn();
    close(fd);
    while (vg_web_numbers(web).conns_now)
        turn();
    end();
    fd = ask(GET("/big"));
    while (!made)
        turn();
    end();
    close(fd);
}
