/* Ducts: bytes between two threads, whole and in order; ends, full ones, mad ones; under a pump. */
#include "fixture.h"

#include "base/fault.h"
#include "net/duct.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

static void make(struct vg_duct **a, struct vg_duct **b) {
    int far[VG_DUCT_FDS];
    cr_assert_eq(vg_duct_new(a, far), 0);
    cr_assert_eq(vg_duct_open(far, b), 0);
    cr_assert_eq(far[0], -1, "they are taken");
}

static ssize_t put(struct vg_duct *d, const void *p, size_t n) {
    return vg_duct_write(d, &(struct iovec){(void *)p, n}, 1);
}

static void wait_for(struct vg_duct *d, size_t seen, bool room) {
    struct pollfd pf = {.fd = vg_duct_fd(d), .events = POLLIN};
    if (!vg_duct_arm(d, seen, room))
        cr_assert_eq(poll(&pf, 1, 30000), 1, "nobody woke it");
}

Test(duct, carries_both_ways_and_ends) {
    struct vg_duct *a, *b;
    const uint8_t *p;
    make(&a, &b);
    cr_assert_eq(put(a, "there", 5), 5);
    cr_assert_eq(put(b, "and back", 8), 8);
    cr_assert_eq(vg_duct_peek(b, &p), 5);
    cr_assert_eq(memcmp(p, "there", 5), 0);
    vg_duct_consume(b, 2);
    cr_assert_eq(vg_duct_peek(b, &p), 3);
    vg_duct_shut(a);
    cr_assert_not(vg_duct_ended(b, 2));
    cr_assert(vg_duct_ended(b, 3), "what is left still counts");
    vg_duct_consume(b, 3);
    cr_assert(vg_duct_ended(b, 0));
    cr_assert_eq(vg_duct_peek(a, &p), 8, "the other way goes on");
    vg_duct_close(b);
    cr_assert_eq(vg_duct_peek(a, &p), 8, "and survives its end");
    cr_assert_eq(put(a, "x", 1), -EPIPE);
    vg_duct_close(a);
    check_leaks();
}

Test(duct, takes_no_more_than_fits_and_tells_of_room) {
    static uint8_t much[VG_DUCT_SIZE + 100];
    struct vg_duct *a, *b;
    const uint8_t *p;
    make(&a, &b);
    cr_assert_eq(put(a, much, sizeof much), VG_DUCT_SIZE);
    cr_assert_eq(put(a, much, 1), 0);
    cr_assert_eq(vg_duct_room(a), 0);
    cr_assert_not(vg_duct_arm(a, 0, true));
    cr_assert_eq(vg_duct_peek(b, &p), VG_DUCT_SIZE, "in one piece");
    vg_duct_consume(b, 10);
    struct pollfd pf = {.fd = vg_duct_fd(a), .events = POLLIN};
    cr_assert_eq(poll(&pf, 1, 0), 0, "a little room is not worth a wake-up");
    vg_duct_consume(b, VG_DUCT_SIZE / 4);
    cr_assert_eq(poll(&pf, 1, 0), 1);
    cr_assert_eq(put(a, "wraps around", 12), 12);
    vg_duct_consume(b, VG_DUCT_SIZE - 10 - VG_DUCT_SIZE / 4);
    cr_assert_eq(vg_duct_peek(b, &p), 12);
    cr_assert_eq(memcmp(p, "wraps around", 12), 0);
    vg_duct_close(a);
    vg_duct_close(b);
}

Test(duct, only_what_is_a_duct_is_opened) {
    struct vg_duct *d;
    int fds[VG_DUCT_FDS] = {memfd_create("x", MFD_CLOEXEC), eventfd(0, EFD_NONBLOCK),
                            eventfd(0, EFD_NONBLOCK)};
    cr_assert_eq(vg_duct_open(fds, &d), -EPROTO, "it could be cut short under us");
    int far[VG_DUCT_FDS];
    cr_assert_eq(vg_duct_new(&d, far), 0);
    int flags = fcntl(far[1], F_GETFL);
    cr_assert_eq(fcntl(far[1], F_SETFL, flags & ~O_NONBLOCK), 0);
    struct vg_duct *other;
    cr_assert_eq(vg_duct_open(far, &other), -EPROTO, "it could make us wait");
    vg_duct_close(d);
}

Test(duct, a_mad_other_end_breaks_nothing_but_the_stream) {
    struct vg_duct *a;
    int far[VG_DUCT_FDS];
    const uint8_t *p;
    cr_assert_eq(vg_duct_new(&a, far), 0);
    uint8_t *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, far[0], 0);
    memset(page, 0x5a, 4096);
    cr_assert_eq(vg_duct_peek(a, &p), -EPROTO);
    cr_assert_leq(vg_duct_room(a), VG_DUCT_SIZE);
    cr_assert_leq(put(a, "x", 1), 1);
    vg_duct_close(a);
    munmap(page, 4096);
}

Test(duct, a_failure_to_make_one_leaks_nothing) {
    struct vg_duct *d;
    int far[VG_DUCT_FDS];
    size_t before = count_fds();
    for (uint64_t nth = 1;; nth++) {
        vg_fault_arm(nth, ENOMEM, NULL);
        int r = vg_duct_new(&d, far);
        if (!vg_fault_disarm()) {
            cr_assert_eq(r, 0);
            break;
        }
        cr_assert_lt(r, 0);
        cr_assert_eq(count_fds(), before);
    }
    for (int i = 0; i < VG_DUCT_FDS; i++)
        close(far[i]);
    vg_duct_close(d);
    cr_assert_eq(count_fds(), before);
}

/* ------------------------------------------------------------------ two threads */

#define TOTAL (64u << 20)

struct writer {
    struct vg_duct *duct;
    uint32_t seed;
};

static uint8_t nth(uint32_t seed, uint64_t at) {
    return (uint8_t)((at * 2654435761u + seed) >> 13);
}

static void *write_all(void *arg) {
    struct writer *w = arg;
    static uint8_t piece[70000];
    for (uint64_t at = 0; at < TOTAL;) {
        size_t n = VG_MIN((size_t)(1 + (at * 7919) % sizeof piece), (size_t)(TOTAL - at));
        for (size_t i = 0; i < n; i++)
            piece[i] = nth(w->seed, at + i);
        for (size_t done = 0; done < n;) {
            ssize_t k = put(w->duct, piece + done, n - done);
            cr_assert_geq(k, 0);
            done += (size_t)k;
            if (k == 0)
                wait_for(w->duct, 0, true);
        }
        at += n;
    }
    vg_duct_shut(w->duct);
    return NULL;
}

Test(duct, loses_and_doubles_nothing_between_threads) {
    struct writer w = {.seed = 7};
    struct vg_duct *reader;
    pthread_t thread;
    uint64_t at = 0;
    const uint8_t *p;
    make(&w.duct, &reader);
    cr_assert_eq(pthread_create(&thread, NULL, write_all, &w), 0);
    while (!vg_duct_ended(reader, 0)) {
        ssize_t n = vg_duct_peek(reader, &p);
        cr_assert_geq(n, 0);
        for (ssize_t i = 0; i < n; i++, at++)
            if (p[i] != nth(7, at))
                cr_assert_fail("byte %llu is wrong", (unsigned long long)at);
        vg_duct_consume(reader, (size_t)n);
        if (n == 0)
            wait_for(reader, 0, false);
    }
    cr_assert_eq(at, TOTAL);
    pthread_join(thread, NULL);
    vg_duct_close(w.duct);
    vg_duct_close(reader);
}

/* ------------------------------------------------------------------ under a pump */

static void count_done(void *user) {
    ++*(int *)user;
}

/* flow x <-> stream = pump = duct = pump = stream <-> flow y, on one loop. */
struct joined {
    struct pair pair;
    struct flow x, y;
    struct vg_stream *left, *right;
    struct vg_duct *a, *b;
    int done;
};

static void joined_init(struct joined *j) {
    *j = (struct joined){0};
    pair_init(&j->pair);
    make(&j->a, &j->b);
    j->x.stream = vg_stream_new(j->pair.a.conn, 0, &flow_ops, &j->x);
    j->left = vg_stream_new(j->pair.b.conn, vg_stream_id(j->x.stream), NULL, NULL);
    j->y.stream = vg_stream_new(j->pair.b.conn, 0, &flow_ops, &j->y);
    j->right = vg_stream_new(j->pair.a.conn, vg_stream_id(j->y.stream), NULL, NULL);
    j->x.seed_out = j->y.seed_in = 3;
    j->x.seed_in = j->y.seed_out = 4;
}

Test(duct, joins_streams_both_ways) {
    struct joined j;
    joined_init(&j);
    j.x.to_send = j.y.to_send = TOTAL;
    cr_assert_eq(vg_pump_duct(&j.pair.loop, j.a, j.left, count_done, &j.done), 0);
    cr_assert_eq(vg_pump_duct(&j.pair.loop, j.b, j.right, count_done, &j.done), 0);
    flow_push(&j.x);
    flow_push(&j.y);
    run_until(&j.pair, j.x.ended && j.y.ended && j.done == 2);
    cr_assert(j.x.got == TOTAL && j.y.got == TOTAL);
    cr_assert(!j.x.wrong && !j.y.wrong && !j.x.reset && !j.y.reset);
    pair_done(&j.pair);
    check_leaks();
}

Test(duct, one_that_is_not_read_stops_its_stream_and_its_death_is_told) {
    struct joined j;
    joined_init(&j);
    j.x.to_send = TOTAL;
    cr_assert_eq(vg_pump_duct(&j.pair.loop, j.a, j.left, count_done, &j.done), 0);
    flow_push(&j.x);
    uint64_t before;
    do {
        before = j.x.sent;
        for (int i = 0; i < 3; i++) {
            unsigned want = j.pair.b.msgs + 1;
            send_text(j.pair.a.conn, 1, "marker");
            run_until(&j.pair, j.pair.b.msgs == want);
            want = j.pair.a.msgs + 1;
            send_text(j.pair.b.conn, 1, "marker");
            run_until(&j.pair, j.pair.a.msgs == want);
        }
    } while (j.x.sent != before);
    cr_assert_leq(j.x.sent, VG_DUCT_SIZE + 2 * VG_WIRE_CREDIT);
    vg_stream_free(j.right, VG_OK);
    vg_duct_close(j.b);
    run_until(&j.pair, j.x.reset && j.done == 1);
    pair_done(&j.pair);
    check_leaks();
}

Test(duct, the_end_of_a_connection_is_the_end_of_the_duct) {
    struct joined j;
    joined_init(&j);
    cr_assert_eq(vg_pump_duct(&j.pair.loop, j.a, j.left, count_done, &j.done), 0);
    vg_stream_free(j.right, VG_OK);
    vg_conn_close(j.pair.a.conn);
    run_until(&j.pair, j.done == 1);
    cr_assert(vg_duct_ended(j.b, 0));
    cr_assert_eq(put(j.b, "x", 1), -EPIPE);
    vg_duct_close(j.b);
    pair_done(&j.pair);
    check_leaks();
}
