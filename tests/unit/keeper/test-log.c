/* The log that leaves the keeper: the first records up to the head's size, the last ones up to the
   tail's, whole, whatever the agent does meanwhile. */
#include "bench.h"

#include "base/cleanup.h"
#include "base/util.h"
#include "net/tio.h"

#include <criterion/criterion.h>
#include <string.h>
#include <unistd.h>

static void write_records(struct bench *b, size_t count, size_t len) {
    uint8_t buf[4096];
    for (size_t i = 0; i < count; i++) {
        memset(buf, (int)('a' + i % 26), len);
        cr_assert_eq(write(bench_command.fd[1], buf, len), (ssize_t)len);
        bench_settle(b);
    }
}

static void end_task(struct bench *b) {
    bench_close_command();
    bench_event(b, VG_SB_EXITED, 7, 0);
    bench_settle(b);
}

static struct ktask *start(struct bench *b) {
    struct bench_start s = {.id = 7, .detached = true};
    return bench_start(b, &s, -1);
}

/* Whole records that fill n bytes exactly. */
static void expect_whole(struct vg_buf *log) {
    const uint8_t *p = vg_buf_data(log);
    size_t n = vg_buf_len(log);
    while (n > 0) {
        cr_assert_geq(n, (size_t)VG_REC_HEADER);
        size_t len = VG_REC_HEADER + vg_get32(p);
        cr_assert_leq(len, n);
        p += len;
        n -= len;
    }
}

static void check_sizes(uint64_t head, uint64_t tail, size_t count, size_t len) {
    struct bench b;
    size_t rec = VG_REC_HEADER + len;
    uint64_t all = count * rec;
    bench_open(&b, head, tail);
    struct ktask *t = start(&b);
    write_records(&b, count, len);
    end_task(&b);
    cr_assert_eq(t->ring.end, all);
    size_t want_head = VG_MIN(head / rec, (uint64_t)count) * rec;
    cr_assert_eq(vg_buf_len(&b.log_head), want_head, "head %llu", (unsigned long long)head);
    if (want_head < all) {
        size_t want_tail = (size_t)VG_MIN(tail / rec * rec, all - want_head);
        cr_assert_eq(vg_buf_len(&b.log_tail), want_tail, "tail %llu", (unsigned long long)tail);
        if (want_tail)
            cr_assert_eq(b.tail_at + want_tail, all);
    }
    expect_whole(&b.log_head);
    expect_whole(&b.log_tail);
    cr_assert_eq(b.exits, 1, "the end must be told once, and after the log");
    bench_close(&b);
}

Test(keeper_log, head_and_tail_are_exact) {
    const uint64_t sizes[] = {0, 1, 115, 116, 117, 231, 232, 1159, 1160, 1161, 100000};
    for (size_t i = 0; i < VG_COUNT(sizes); i++)
        for (size_t j = 0; j < VG_COUNT(sizes); j++)
            check_sizes(sizes[i], sizes[j], 10, 100);
}

Test(keeper_log, the_end_is_told_after_the_last_record_is_stored) {
    struct bench b;
    bench_open(&b, 1 << 20, 1 << 20);
    b.acks_log = false;
    start(&b);
    write_records(&b, 3, 10);
    end_task(&b);
    cr_assert_eq(b.exits, 0);
    vg_kpkt_send(b.agent, VG_K_LOG_ACK, 7, 0, b.log_from, NULL, 0, NULL, 0);
    bench_settle(&b);
    cr_assert_eq(b.exits, 1);
    vg_kpkt_send(b.agent, VG_K_EXIT_ACK, 7, 0, 0, NULL, 0, NULL, 0);
    bench_settle(&b);
    cr_assert(vg_list_empty(&b.k.tasks));
    cr_assert(b.left);
    bench_close(&b);
}

/* The control plane changes while all of the head is sent and none of it is acknowledged, and the
   ring has been around since. */
Test(keeper_log, the_head_goes_again_to_a_new_control_plane) {
    struct bench b;
    uint8_t chunk[4096];
    bench_open(&b, 64 << 10, 64 << 10);
    b.acks_log = false;
    struct ktask *t = start(&b);
    memset(chunk, 'x', sizeof(chunk));
    for (int i = 0; i < 2000; i++) {
        if (write(bench_command.fd[1], chunk, sizeof(chunk)) < 0)
            break;
        bench_settle(&b);
    }
    cr_assert_gt(t->ring.end, 1u << 20);
    cr_assert_gt(vg_buf_len(&b.log_head), 60u << 10);
    b.acks_log = true;
    vg_kpkt_send(b.agent, VG_K_LOG_ACK, 7, 1, 0, NULL, 0, NULL, 0);
    b.log_head.tail = b.log_head.head;
    b.log_from = 0;
    bench_settle(&b);
    cr_assert_gt(vg_buf_len(&b.log_head), 60u << 10, "the head is lost");
    cr_assert_leq(vg_buf_len(&b.log_head), 64u << 10);
    expect_whole(&b.log_head);
    cr_assert(!t->paused, "nothing is left to wait for");
    end_task(&b);
    cr_assert_gt(vg_buf_len(&b.log_tail), 40u << 10); /* records of several writes are longer */
    expect_whole(&b.log_tail);
    cr_assert_eq(b.exits, 1);
    bench_close(&b);
}

/* The head is full, everything is acknowledged; the agent goes, the ring fills, it comes back. No
   acknowledgement follows, and the task must go on all the same. */
Test(keeper_log, a_task_that_waited_for_an_agent_goes_on) {
    struct bench b;
    uint8_t chunk[4096];
    bench_open(&b, 1000, 1000);
    struct ktask *t = start(&b);
    write_records(&b, 5, 100);
    int agent = b.k.agent.fd, ours = b.agent;
    b.k.agent.fd = b.agent = -1;
    memset(chunk, 'x', sizeof(chunk));
    for (int i = 0; i < 2000; i++) {
        if (write(bench_command.fd[1], chunk, sizeof(chunk)) < 0)
            break;
        bench_settle(&b);
    }
    cr_assert(t->paused);
    b.k.agent.fd = agent;
    b.agent = ours;
    keeper_flush_agent(&b.k);
    bench_settle(&b);
    cr_assert(!t->paused, "it waits for ever");
    bench_close(&b);
}
