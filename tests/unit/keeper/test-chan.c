/* Channels of the keeper: whatever breaks, output and input arrive once and in order, and only the
   owner's reading paces the task. */
#include "bench.h"

#include "base/cleanup.h"
#include "base/util.h"
#include "net/tio.h"

#include <criterion/criterion.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define BIG (8u << 20)
static const struct bench_start remote = {
    .id = 7, .stdin_open = true, .remote = true, .hold_usec = 3600 * VG_USEC};

/* The byte at each place of a long output: position-dependent, so that a shift shows. */
static uint8_t pattern(uint64_t at) {
    return (uint8_t)((at * 2654435761u) >> 13 ^ at >> 8);
}

/* The task writes from *at on, as much as goes without waiting. */
static void task_writes(uint64_t *at, uint64_t until) {
    uint8_t buf[16384];
    while (*at < until) {
        size_t n = (size_t)VG_MIN(until - *at, (uint64_t)sizeof(buf));
        for (size_t i = 0; i < n; i++)
            buf[i] = pattern(*at + i);
        ssize_t w = write(bench_command.fd[1], buf, n);
        if (w <= 0)
            return;
        *at += (uint64_t)w;
    }
}

static void expect_text(struct client *c, uint64_t from, size_t n) {
    const uint8_t *p = vg_buf_data(&c->text);
    cr_assert_eq(vg_buf_len(&c->text), n);
    for (size_t i = 0; i < n; i++)
        if (p[i] != pattern(from + i))
            cr_assert_fail("byte %zu of %zu is wrong", i, n);
}

static void end_task(struct bench *b, uint64_t id, int wait_status) {
    bench_close_command();
    bench_event(b, VG_SB_EXITED, id, wait_status);
    bench_settle(b);
}

/* One conversation; the client's first channel breaks after `cut` bytes from the keeper. Returns
   the bytes that came in all. */
static uint64_t talk_with_a_break(uint64_t cut) {
    struct bench b;
    struct client c = {.fd = -1, .acks = true};
    uint64_t at = 0;
    bench_open(&b, 1 << 20, 1 << 20);
    bench_start(&b, &remote, client_pair(&c, false));
    bench_event(&b, VG_SB_STARTED, 7, 0);
    const size_t pieces[] = {5, 300, 1, 77};
    uint64_t left = cut;
    for (size_t i = 0; i < VG_COUNT(pieces); i++) {
        task_writes(&at, at + pieces[i]);
        bench_settle(&b);
        left -= client_read(&c, (size_t)left);
    }
    end_task(&b, 7, 3 << 8);
    left -= client_read(&c, (size_t)left);
    client_finish(&c, &b, 7, left == 0);
    cr_assert(c.exited, "no EXIT after a break at byte %llu", (unsigned long long)cut);
    cr_assert_eq(c.status, 3);
    expect_text(&c, 0, (size_t)at);
    uint64_t came = c.came;
    client_done(&c);
    bench_close(&b);
    return came;
}

Test(chan, output_is_whole_whatever_byte_the_channel_breaks_at) {
    uint64_t all = talk_with_a_break(1u << 20);
    cr_assert_gt(all, 383u);
    for (uint64_t cut = 0; cut < all; cut++)
        talk_with_a_break(cut);
}

/* What the client says first, all of it; returns its length. */
static size_t input_bytes(uint8_t *out, const char *text) {
    size_t n = 0;
    vg_tio_header(out, VG_TIO_HELLO, 12);
    vg_put64(out + 8, 0);
    vg_put32(out + 16, VG_HELLO_INPUT);
    n = 20;
    for (size_t at = 0; at < strlen(text); at += 10) {
        size_t len = VG_MIN(strlen(text) - at, (size_t)10);
        vg_tio_header(out + n, VG_TIO_INPUT, (uint32_t)(8 + len));
        vg_put64(out + n + 8, at);
        memcpy(out + n + 16, text + at, len);
        n += 16 + len;
    }
    vg_tio_header(out + n, VG_TIO_INPUT_END, 8);
    vg_put64(out + n + 8, strlen(text));
    return n + 16;
}

Test(chan, input_arrives_once_whatever_byte_the_channel_breaks_at) {
    const char *text = "forty bytes of input, all of them differ";
    uint8_t bytes[512];
    size_t all = input_bytes(bytes, text);
    for (size_t cut = 0; cut <= all; cut++) {
        struct bench b;
        struct client c = {.fd = -1};
        int pair[2];
        char got[128];
        bench_open(&b, 1 << 20, 1 << 20);
        cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
        struct ktask *t = bench_start(&b, &remote, pair[1]);
        cr_assert_eq(write(pair[0], bytes, cut), (ssize_t)cut);
        bench_settle(&b);
        close(pair[0]);
        bench_settle(&b);
        client_open(&c, &b, t, false, false);
        bench_settle(&b);
        client_read(&c, SIZE_MAX);
        cr_assert(c.welcomed);
        uint8_t end[8];
        vg_put64(end, strlen(text));
        client_input(&c, c.in_offset, text + c.in_offset, strlen(text) - (size_t)c.in_offset);
        client_send(&c, VG_TIO_INPUT_END, end, sizeof(end), NULL, 0);
        bench_settle(&b);
        ssize_t n = read(bench_command.fd[0], got, sizeof(got));
        cr_assert_eq(n, (ssize_t)strlen(text), "cut at %zu: %zd bytes", cut, n);
        cr_assert_eq(memcmp(got, text, strlen(text)), 0);
        cr_assert_eq(read(bench_command.fd[0], got, sizeof(got)), 0, "no end of input");
        client_done(&c);
        bench_close(&b);
    }
}

Test(chan, a_slow_reader_slows_the_task_and_loses_nothing) {
    struct bench b;
    struct client c = {.fd = -1, .acks = true};
    uint64_t at = 0, before = UINT64_MAX;
    bench_open(&b, 1 << 20, 1 << 20);
    struct ktask *t = bench_start(&b, &remote, client_pair(&c, false));
    while (at != before) {
        before = at;
        task_writes(&at, BIG);
        bench_settle(&b);
    }
    cr_assert_lt(at, 3u << 20, "nothing held the task back");
    cr_assert(t->paused);
    cr_assert_lt(t->ring.end - t->ring.begin, t->ring.size);
    while (at < BIG || t->ring.end > c.out_offset) {
        task_writes(&at, BIG);
        bench_settle(&b);
        client_read(&c, SIZE_MAX);
    }
    end_task(&b, 7, 0);
    client_read(&c, SIZE_MAX);
    cr_assert(c.exited);
    expect_text(&c, 0, BIG);
    client_done(&c);
    bench_close(&b);
}

Test(chan, an_observer_that_sleeps_slows_nobody_and_wakes_to_whole_records) {
    struct bench b;
    struct client c = {.fd = -1, .acks = true}, look = {.fd = -1};
    uint64_t at = 0;
    bench_open(&b, 0, 1 << 20);
    struct ktask *t = bench_start(&b, &remote, client_pair(&c, false));
    client_open(&look, &b, t, true, false);
    for (int i = 0; i < 10000 && at < BIG; i++) {
        task_writes(&at, BIG);
        bench_settle(&b);
        client_read(&c, SIZE_MAX);
    }
    cr_assert_eq(at, BIG, "the observer held the task back");
    end_task(&b, 7, 0);
    for (int i = 0; i < 200 && !look.exited; i++) {
        client_read(&look, SIZE_MAX);
        bench_settle(&b);
    }
    cr_assert(look.exited);
    cr_assert_eq(look.gaps, 1);
    /* Before the gap it saw the beginning, after it the end. */
    uint8_t *p = vg_buf_data(&look.text);
    size_t n = vg_buf_len(&look.text), i = 0;
    while (i < n && p[i] == pattern(i))
        i++;
    cr_assert_gt(i, 0u);
    for (size_t j = i; j < n; j++)
        if (p[j] != pattern(BIG - n + j))
            cr_assert_fail("byte %zu after the gap is wrong", j - i);
    client_done(&c);
    client_done(&look);
    bench_close(&b);
}

Test(chan, an_ousted_client_hears_it_even_when_its_socket_is_full) {
    struct bench b;
    struct client old = {.fd = -1}, new = {.fd = -1, .acks = true};
    uint64_t at = 0;
    bench_open(&b, 1 << 20, 1 << 20);
    struct ktask *t = bench_start(&b, &remote, client_pair(&old, false));
    for (int i = 0; i < 100; i++) {
        task_writes(&at, BIG);
        bench_settle(&b);
    }
    client_open(&new, &b, t, false, false);
    for (int i = 0; i < 10000 && at < BIG; i++) {
        bench_settle(&b);
        client_read(&new, SIZE_MAX);
        task_writes(&at, BIG);
    }
    client_read(&old, SIZE_MAX);
    bench_settle(&b);
    client_read(&old, SIZE_MAX);
    cr_assert(old.taken, "it will think the channel broke, and take the task back");
    cr_assert(old.ended);
    expect_text(&old, 0, vg_buf_len(&old.text));
    end_task(&b, 7, 0);
    for (int i = 0; i < 10; i++) {
        client_read(&new, SIZE_MAX);
        bench_settle(&b);
    }
    cr_assert(new.exited);
    expect_text(&new, 0, BIG);
    client_done(&old);
    client_done(&new);
    bench_close(&b);
}

Test(chan, a_lost_client_is_waited_for_and_then_hung_up_on) {
    struct bench b;
    struct client c = {.fd = -1};
    struct bench_start s = remote;
    s.hold_usec = 1;
    bench_open(&b, 1 << 20, 1 << 20);
    struct ktask *t = bench_start(&b, &s, client_pair(&c, false));
    bench_event(&b, VG_SB_STARTED, 7, 0);
    bench_settle(&b);
    client_close(&c);
    while (bench_n_signals == 0)
        bench_settle(&b);
    cr_assert_eq(bench_signals[0], SIGHUP);
    cr_assert(t->detached);
    cr_assert(!t->held);
    end_task(&b, 7, SIGHUP);
    cr_assert_eq(b.exits, 1);
    cr_assert_eq(b.status, 128 + SIGHUP);
    client_done(&c);
    bench_close(&b);
}

Test(chan, a_local_client_that_dies_is_not_waited_for) {
    struct bench b;
    struct client c = {.fd = -1};
    struct bench_start s = remote;
    s.remote = false;
    bench_open(&b, 1 << 20, 1 << 20);
    bench_start(&b, &s, client_pair(&c, false));
    bench_settle(&b);
    client_close(&c);
    bench_settle(&b);
    cr_assert_eq(bench_n_signals, 1);
    cr_assert_eq(bench_signals[0], SIGHUP);
    client_done(&c);
    bench_close(&b);
}

Test(chan, clients_come_and_go_at_a_detached_task) {
    struct bench b;
    struct client c = {.fd = -1, .acks = true};
    uint64_t at = 0;
    bench_open(&b, 1 << 20, 1 << 20);
    struct bench_start s = {.id = 7, .detached = true};
    struct ktask *t = bench_start(&b, &s, -1);
    for (int i = 0; i < 3; i++) {
        task_writes(&at, at + 100);
        bench_settle(&b);
        client_open(&c, &b, t, false, true);
        bench_settle(&b);
        client_read(&c, SIZE_MAX);
        cr_assert_eq(c.out_offset, t->ring.end);
        if (i < 2)
            client_send(&c, VG_TIO_DETACH, NULL, 0, NULL, 0);
        client_close(&c);
        bench_settle(&b);
        cr_assert_eq(bench_n_signals, 0);
        cr_assert_null(t->owner);
    }
    expect_text(&c, 0, 300);
    client_done(&c);
    bench_close(&b);
}

Test(chan, a_sessions_task_ends_though_its_pipe_stays_open_and_its_reader_is_slow) {
    struct bench b;
    struct client c = {.fd = -1, .acks = true};
    uint64_t at = 0, before = UINT64_MAX;
    struct bench_start s = remote;
    s.session = "root/s";
    bench_open(&b, 0, 1 << 20);
    bench_start(&b, &s, client_pair(&c, false));
    while (at != before) {
        before = at;
        task_writes(&at, BIG);
        bench_settle(&b);
    }
    bench_event(&b, VG_SB_EXITED, 7, 0); /* somebody else still holds the pipe */
    for (int i = 0; i < 200 && !c.exited; i++) {
        bench_settle(&b);
        client_read(&c, SIZE_MAX);
    }
    cr_assert(c.exited, "the task waits for the end of a pipe that others hold");
    expect_text(&c, 0, (size_t)at);
    client_done(&c);
    bench_close(&b);
}

Test(chan, malformed_frames_end_the_channel_and_not_the_task) {
    struct bench b;
    bench_open(&b, 1 << 20, 1 << 20);
    struct ktask *t = bench_start(&b, &remote, -1);
    const uint32_t bad[][2] = {{VG_TIO_MAX + 1, VG_TIO_INPUT}, {0, 99}, {3, VG_TIO_SIGNAL}};
    for (size_t i = 0; i < VG_COUNT(bad); i++) {
        struct client c = {.fd = -1};
        uint8_t frame[VG_TIO_HEADER + 3] = {0};
        client_open(&c, &b, t, false, false);
        bench_settle(&b);
        vg_put32(frame, bad[i][0]);
        vg_put32(frame + 4, bad[i][1]);
        size_t n = VG_TIO_HEADER + (bad[i][0] < 4 ? bad[i][0] : 0);
        cr_assert_eq(write(c.fd, frame, n), (ssize_t)n);
        bench_settle(&b);
        client_read(&c, SIZE_MAX);
        cr_assert(c.welcomed && c.ended, "case %zu", i);
        cr_assert(!t->finished);
        client_done(&c);
    }
    bench_close(&b);
}

/* A task that is tried again can come back to the keeper that holds its first attempt, in the same
   turn of the loop as the acknowledgement of that one's end. */
Test(task, the_next_attempt_may_come_with_the_acknowledgement_of_the_last) {
    struct bench b;
    struct bench_start s = {.id = 7, .detached = true};
    bench_open(&b, 1 << 20, 1 << 20);
    struct ktask *first = bench_start(&b, &s, -1);
    cr_assert_not_null(first);
    cr_assert_null(bench_start(&b, &s, -1) == first ? NULL : first, "one attempt was taken twice");
    bench_event(&b, VG_SB_STARTED, 7, 0);
    bench_close_command();
    bench_event(&b, VG_SB_EXITED, 7, 3 << 8);
    bench_settle(&b);
    first->exit_acked = true;
    struct ktask *second = bench_start(&b, &s, -1);
    cr_assert_not_null(second, "the next attempt was dropped");
    cr_assert_neq(second, first);
    bench_close(&b);
}
