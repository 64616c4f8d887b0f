/* Packed leaves that are kept for the next node. */
#include "fs/client/packed.h"

#include "base/util.h"
#include "mirror/mwire.h"

#include <criterion/criterion.h>
#include <string.h>

static const struct vg_mstat st = {.dev = 1, .ino = 2, .size = VG_LEAF, .mtime = 3, .ctime = 4};
static uint8_t data[VG_LEAF];

static void put(struct vg_packed *p, uint64_t object, uint64_t now) {
    struct vg_buf frame = {0};
    vg_random(data, sizeof(data));
    cr_assert_eq(vg_mw_data_of(&frame, 0, object, 0, &st, data, sizeof(data), 0), 0);
    vg_packed_put(p, object, 0, &st, &frame, now);
    vg_buf_done(&frame);
}

static bool has(struct vg_packed *p, uint64_t object, uint64_t now) {
    struct vg_buf out = {0};
    bool there = vg_packed_get(p, object, 0, &st, 0, &out, now);
    vg_buf_done(&out);
    return there;
}

Test(packed, what_went_in_comes_out_as_an_answer) {
    struct vg_packed *p;
    struct vg_mw_in in = {0};
    struct vg_mw_frame f;
    struct vg_buf out = {0};
    cr_assert_eq(vg_packed_new(4u << 20, &p), 0);
    put(p, 7, 1);
    cr_assert(vg_packed_get(p, 7, 0, &st, 99, &out, 2));
    cr_assert_eq(vg_mw_feed(&in, vg_buf_data(&out), vg_buf_len(&out)), 0);
    cr_assert_eq(vg_mw_next(&in, &f), 1);
    cr_assert(f.kind == VG_MW_DATA && f.req == 99 && f.object == 7 && f.size == VG_LEAF);
    cr_assert(f.len == VG_LEAF && memcmp(f.data, data, VG_LEAF) == 0);
    cr_assert_eq(f.tag, vg_state_tag(&st));
    vg_mw_frame_done(&f);
    vg_mw_in_done(&in);
    vg_buf_done(&out);
    cr_assert_not(has(p, 8, 2));
    vg_packed_free(p);
}

Test(packed, another_state_of_the_file_has_nothing) {
    struct vg_packed *p;
    struct vg_buf out = {0};
    struct vg_mstat later = st;
    later.ctime++;
    cr_assert_eq(vg_packed_new(4u << 20, &p), 0);
    put(p, 7, 1);
    cr_assert_not(vg_packed_get(p, 7, 0, &later, 0, &out, 2));
    cr_assert_eq(vg_packed_bytes(p), 0, "what is of no use does not stay");
    vg_packed_free(p);
}

Test(packed, only_what_was_not_used_for_a_minute_makes_room) {
    struct vg_packed *p;
    uint64_t now = 1000 * VG_USEC;
    cr_assert_eq(vg_packed_new(4 * (VG_LEAF + 1024), &p), 0);
    for (uint64_t o = 1; o <= 4; o++)
        put(p, o, now);
    put(p, 5, now + 59 * VG_USEC);
    cr_assert_not(has(p, 5, now + 59 * VG_USEC));
    cr_assert(has(p, 1, now + 59 * VG_USEC), "and is young again");
    put(p, 5, now + 61 * VG_USEC);
    cr_assert(has(p, 5, now + 61 * VG_USEC) && has(p, 1, now + 61 * VG_USEC));
    cr_assert_not(has(p, 2, now + 61 * VG_USEC));
    cr_assert_leq(vg_packed_bytes(p), 4 * (VG_LEAF + 1024));
    vg_packed_free(p);
}
