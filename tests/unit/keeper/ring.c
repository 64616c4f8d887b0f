/* The keeper's ring: what goes in comes out, whole, whatever the wrap. */
#include "agent/keeper-ring.h"
#include "net/tio.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static uint32_t next(uint32_t *s) {
    *s = *s * 1664525u + 1013904223u;
    return *s >> 8;
}

Test(ring, records_come_out_as_they_went_in_across_many_wraps) {
    struct vg_ring r;
    uint32_t in = 7, out = 7;
    uint64_t at = 0;
    static uint8_t data[VG_REC_MAX], got[VG_REC_MAX + VG_REC_HEADER];
    vg_ring_init(&r, 0);
    for (int i = 0; i < 3000; i++) {
        size_t n = next(&in) % 9000;
        uint8_t fill = (uint8_t)next(&in);
        memset(data, fill, n);
        vg_ring_make_room(&r, n + VG_REC_HEADER, UINT64_MAX);
        cr_assert_eq(vg_ring_put(&r, 1 + i % 2, data, n, (uint64_t)i), 0);
        size_t len = vg_ring_record_len(&r, at);
        size_t want = next(&out) % 9000;
        uint8_t expect = (uint8_t)next(&out);
        cr_assert_eq(len, want + VG_REC_HEADER);
        vg_ring_copy(&r, at, got, len);
        cr_assert_eq(vg_get32(got + 4), (uint32_t)(1 + i % 2));
        cr_assert_eq(vg_get64(got + 8), (uint64_t)i);
        for (size_t j = 0; j < want; j++)
            cr_assert_eq(got[VG_REC_HEADER + j], expect);
        at += len;
    }
    cr_assert_gt(r.begin, 0u, "the ring never wrapped: the test tests nothing");
    vg_ring_done(&r);
}

Test(ring, nothing_at_or_after_the_floor_is_dropped) {
    struct vg_ring r;
    static uint8_t data[60000];
    vg_ring_init(&r, 0);
    uint64_t floor = 0;
    for (int i = 0; i < 10; i++) {
        if (i == 5)
            floor = r.end;
        vg_ring_put(&r, 1, data, sizeof(data), 0);
    }
    size_t room = vg_ring_make_room(&r, r.size, floor);
    cr_assert_eq(r.begin, floor);
    cr_assert_lt(room, r.size);
    vg_ring_make_room(&r, r.size, UINT64_MAX);
    cr_assert_eq(r.begin, r.end);
    vg_ring_done(&r);
}

Test(ring, whole_never_cuts_a_record) {
    struct vg_ring r;
    uint8_t data[100] = {0};
    vg_ring_init(&r, 0);
    for (int i = 0; i < 4; i++)
        vg_ring_put(&r, 1, data, sizeof(data), 0);
    size_t one = sizeof(data) + VG_REC_HEADER;
    cr_assert_eq(vg_ring_whole(&r, 0, one - 1), 0u);
    cr_assert_eq(vg_ring_whole(&r, 0, 3 * one + 5), 3 * one);
    cr_assert_eq(vg_ring_whole(&r, one, 1u << 20), 3 * one);
    cr_assert_eq(vg_ring_seek(&r, 1), one);
    cr_assert_eq(vg_ring_seek(&r, one), one);
    vg_ring_done(&r);
}

Test(ring, reading_a_pipe_makes_one_record_and_sees_the_end) {
    struct vg_ring r;
    int p[2];
    uint8_t got[64];
    cr_assert_eq(pipe(p), 0);
    vg_ring_init(&r, 0);
    cr_assert_eq(write(p[1], "hello", 5), 5);
    cr_assert_eq(vg_ring_read(&r, p[0], VG_REC_STDERR, 1000, 42), 5);
    close(p[1]);
    cr_assert_eq(vg_ring_read(&r, p[0], VG_REC_STDERR, 1000, 42), 0);
    cr_assert_eq(r.end, VG_REC_HEADER + 5u);
    vg_ring_copy(&r, 0, got, (size_t)r.end);
    cr_assert_eq(memcmp(got + VG_REC_HEADER, "hello", 5), 0);
    close(p[0]);
    vg_ring_done(&r);
}
