#include "fixture.h"

#include "base/util.h"

#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

uv_loop_t loop;
struct vg_web *web;
static uint16_t port;

void begin_ops(const struct vg_web_limits *limits, const struct vg_web_ops *ops, void *user) {
    struct vg_err err = VG_ERR_INIT;
    uv_loop_init(&loop);
    cr_assert_eq(vg_web_start(&loop, "127.0.0.1", 0, NULL, limits, ops, user, &web, &port, &err), 0,
                 "%s", err.msg);
}

void begin(const struct vg_web_limits *limits, void (*on_request)(struct vg_web_req *, void *),
           void *user) {
    begin_ops(limits, &(struct vg_web_ops){.on_request = on_request}, user);
}

void end(void) {
    vg_web_stop(web);
    uv_run(&loop, UV_RUN_DEFAULT);
    cr_assert_eq(uv_loop_close(&loop), 0, "nothing is left behind");
}

void turn(void) {
    uv_run(&loop, UV_RUN_NOWAIT);
}

int dial(void) {
    struct sockaddr_in to = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    cr_assert_eq(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
    vg_set_nonblock(fd, true);
    return fd;
}

void say(int fd, const void *bytes, size_t n) {
    for (size_t at = 0; at < n;) {
        ssize_t k = send(fd, (const char *)bytes + at, n - at, MSG_NOSIGNAL);
        if (k < 0 && errno != EAGAIN)
            return; /* it was hung up on: what it says then is looked at */
        at += k > 0 ? (size_t)k : 0;
        turn();
    }
}

void say_text(int fd, const char *text) {
    say(fd, text, strlen(text));
}

static bool hear_some(int fd, struct vg_buf *to) {
    uint8_t *p = vg_buf_reserve(to, 65536);
    ssize_t n = recv(fd, p, 65535, 0);
    turn();
    if (n == 0 || (n < 0 && errno != EAGAIN))
        return false;
    if (n > 0)
        vg_buf_commit(to, (size_t)n);
    to->base[to->tail] = 0;
    return true;
}

size_t hear(int fd, struct vg_buf *to, size_t n) {
    while (vg_buf_len(to) < n && hear_some(fd, to))
        continue;
    return vg_buf_len(to);
}

void hear_all(int fd, struct vg_buf *to) {
    while (hear_some(fd, to))
        continue;
    vg_buf_append(to, "", 1);
    close(fd);
}

int hear_answer(int fd, struct vg_buf *to) {
    char *end;
    vg_buf_clear(to);
    do
        cr_assert(hear_some(fd, to), "hung up");
    while (!(end = strstr((char *)vg_buf_data(to), "\r\n\r\n")));
    char *length = strstr((char *)vg_buf_data(to), "Content-Length: ");
    size_t head = (size_t)(end + 4 - (char *)vg_buf_data(to));
    size_t want = head + (length && length < end ? strtoul(length + 16, NULL, 10) : 0);
    hear(fd, to, want);
    cr_assert_eq(vg_buf_len(to), want);
    return (int)strtol((char *)vg_buf_data(to) + 9, NULL, 10);
}
