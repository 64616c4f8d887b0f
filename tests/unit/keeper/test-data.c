/* A two-way standard input: what the task writes there arrives once and in order at the client that
   owns it, whatever breaks, and nowhere else; what it prints is in the log and nowhere else. */
#include "bench.h"

#include "base/cleanup.h"
#include "base/util.h"
#include "net/tio.h"

#include <criterion/criterion.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static const struct bench_start talker = {
    .id = 7, .stdin_open = true, .duplex = true, .remote = true, .hold_usec = 3600 * VG_USEC};

static uint8_t pattern(uint64_t at) {
    return (uint8_t)((at * 2654435761u) >> 13 ^ at >> 8);
}

/* The task answers, from *at on, as much as goes without waiting. */
static void answers(uint64_t *at, uint64_t until) {
    uint8_t buf[16384];
    while (*at < until) {
        size_t n = (size_t)VG_MIN(until - *at, (uint64_t)sizeof(buf));
        for (size_t i = 0; i < n; i++)
            buf[i] = pattern(*at + i);
        ssize_t w = send(bench_command.fd[0], buf, n, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (w <= 0)
            return;
        *at += (uint64_t)w;
    }
}

static void prints(struct bench *b, const char *text) {
    cr_assert_eq(write(bench_command.fd[1], text, strlen(text)), (ssize_t)strlen(text));
    bench_settle(b);
}

static void expect_data(struct client *c, uint64_t n) {
    const uint8_t *p = vg_buf_data(&c->data);
    cr_assert_eq(vg_buf_len(&c->data), n);
    for (size_t i = 0; i < n; i++)
        if (p[i] != pattern(i))
            cr_assert_fail("byte %zu of %zu is wrong", i, (size_t)n);
}

static void end_task(struct bench *b) {
    bench_close_command();
    bench_event(b, VG_SB_EXITED, 7, 3 << 8);
    bench_settle(b);
}

/* One conversation; the client's first channel breaks after `cut` bytes from the keeper. Returns
   the bytes that came in all. */
static uint64_t talk_with_a_break(uint64_t cut) {
    struct bench b;
    struct client c = {.fd = -1, .acks = true, .duplex = true};
    uint64_t at = 0, left = cut;
    bench_open(&b, 1 << 20, 1 << 20);
    b.acks_log = true;
    bench_start(&b, &talker, client_pair(&c, false));
    bench_event(&b, VG_SB_STARTED, 7, 0);
    const size_t pieces[] = {5, 300, 1, 77};
    for (size_t i = 0; i < VG_COUNT(pieces); i++) {
        prints(&b, "said ");
        answers(&at, at + pieces[i]);
        bench_settle(&b);
        left -= client_read(&c, (size_t)left);
    }
    end_task(&b);
    left -= client_read(&c, (size_t)left);
    client_finish(&c, &b, 7, left == 0);
    cr_assert(c.exited, "no EXIT after a break at byte %llu", (unsigned long long)cut);
    cr_assert_eq(c.status, 3);
    cr_assert_eq(at, 383u);
    expect_data(&c, at);
    cr_assert_eq(vg_buf_len(&c.text), 0u, "what is printed is not sent");
    bench_agent(&b);
    cr_assert_eq(vg_buf_len(&b.log_head), 4 * (VG_REC_HEADER + 5u), "the log has what was printed");
    uint64_t came = c.came;
    client_done(&c);
    bench_close(&b);
    return came;
}

Test(data, what_goes_back_is_whole_whatever_byte_the_channel_breaks_at) {
    uint64_t all = talk_with_a_break(1u << 20);
    cr_assert_gt(all, 383u);
    for (uint64_t cut = 0; cut < all; cut++)
        talk_with_a_break(cut);
}

Test(data, a_client_that_reads_nothing_slows_the_task_and_memory_stays_bounded) {
    struct bench b;
    struct client c = {.fd = -1, .acks = true, .duplex = true};
    uint64_t at = 0, big = 8u << 20;
    bench_open(&b, 1 << 20, 1 << 20);
    struct ktask *t = bench_start(&b, &talker, client_pair(&c, false));
    bench_event(&b, VG_SB_STARTED, 7, 0);
    for (uint64_t before = 1; before != at;) {
        before = at;
        answers(&at, big);
        bench_settle(&b);
    }
    cr_assert_lt(at, 4u << 20, "the task was not slowed");
    cr_assert_leq(vg_buf_len(&t->data_buf), VG_TIO_WINDOW + (256u << 10));
    while (at < big) {
        client_read(&c, SIZE_MAX);
        bench_settle(&b);
        answers(&at, big);
        bench_settle(&b);
    }
    end_task(&b);
    for (int i = 0; i < 64 && !c.exited; i++) {
        client_read(&c, SIZE_MAX);
        bench_settle(&b);
    }
    cr_assert(c.exited);
    expect_data(&c, big);
    client_done(&c);
    bench_close(&b);
}

Test(data, the_end_of_input_leaves_the_other_way_open) {
    struct bench b;
    struct client c = {.fd = -1, .acks = true, .duplex = true};
    uint64_t at = 0;
    uint8_t end[8];
    char got[16];
    bench_open(&b, 1 << 20, 1 << 20);
    bench_start(&b, &talker, client_pair(&c, false));
    bench_event(&b, VG_SB_STARTED, 7, 0);
    bench_settle(&b);
    client_read(&c, SIZE_MAX);
    client_input(&c, 0, "ask", 3);
    vg_put64(end, 3);
    client_send(&c, VG_TIO_INPUT_END, end, sizeof(end), NULL, 0);
    bench_settle(&b);
    cr_assert_eq(read(bench_command.fd[0], got, sizeof(got)), 3);
    cr_assert_eq(read(bench_command.fd[0], got, sizeof(got)), 0, "the end of input is not seen");
    answers(&at, 10);
    bench_settle(&b);
    client_read(&c, SIZE_MAX);
    expect_data(&c, 10);
    end_task(&b);
    client_read(&c, SIZE_MAX);
    cr_assert(c.exited);
    client_done(&c);
    bench_close(&b);
}

Test(data, a_task_whose_client_left_for_good_is_not_held_up) {
    struct bench b;
    struct client c = {.fd = -1, .duplex = true};
    uint64_t at = 0, big = 4u << 20;
    struct bench_start s = talker;
    s.hold_usec = 0;
    bench_open(&b, 1 << 20, 1 << 20);
    b.acks_log = true;
    bench_start(&b, &s, client_pair(&c, false));
    bench_event(&b, VG_SB_STARTED, 7, 0);
    answers(&at, big); /* the window is full when it goes */
    bench_settle(&b);
    client_close(&c);
    bench_settle(&b);
    for (uint64_t before = big + 1; before != at;) {
        before = at;
        answers(&at, big);
        bench_settle(&b);
    }
    cr_assert_eq(at, big, "what nobody wants is swallowed");
    end_task(&b);
    bench_agent(&b);
    cr_assert_eq(b.exits, 1);
    client_done(&c);
    bench_close(&b);
}

Test(data, observers_see_what_is_printed_and_nothing_else) {
    struct bench b;
    struct client c = {.fd = -1, .acks = true, .duplex = true}, look = {.fd = -1};
    uint64_t at = 0;
    bench_open(&b, 1 << 20, 1 << 20);
    struct ktask *t = bench_start(&b, &talker, client_pair(&c, false));
    bench_event(&b, VG_SB_STARTED, 7, 0);
    client_open(&look, &b, t, true, false);
    prints(&b, "hello");
    answers(&at, 100);
    bench_settle(&b);
    client_read(&look, SIZE_MAX);
    client_read(&c, SIZE_MAX);
    cr_assert_eq(vg_buf_len(&look.text), 5u);
    expect_data(&c, 100);
    end_task(&b);
    client_read(&look, SIZE_MAX);
    cr_assert(look.exited);
    client_done(&c);
    client_done(&look);
    bench_close(&b);
}
