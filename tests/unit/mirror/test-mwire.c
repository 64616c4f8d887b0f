/* Frames of a link: round trips in every cut, packing, limits, lies. */
#include "mirror/mwire.h"

#include "mirror/le.h"

#include <criterion/criterion.h>
#include <errno.h>

static uint8_t leaf[VG_LEAF];

static void hello(struct vg_buf *out) {
    Vg__Mr__Msg m = VG__MR__MSG__INIT;
    Vg__Mr__Hello h = VG__MR__HELLO__INIT;
    h.host = "laptop";
    m.body_case = VG__MR__MSG__BODY_HELLO;
    m.hello = &h;
    cr_assert_eq(vg_mw_msg(out, &m), 0);
}

static void everything(struct vg_buf *out, int level) {
    hello(out);
    cr_assert_eq(vg_mw_dir(out, 1, 2, 3, "a record, a record, a record, a record", 38, level), 0);
    cr_assert_eq(vg_mw_data(out, 4, 5, VG_LEAF, VG_LEAF + 10, "0123456789", 10, level), 0);
    cr_assert_eq(vg_mw_data(out, 0, 6, 0, 0, NULL, 0, level), 0);
    cr_assert_eq(vg_mw_write(out, 7, VG_OBJ_NEW | 8, 9, "bytes", 5, level), 0);
}

static void expect_everything(struct vg_mw_in *in, const uint8_t *p, size_t n, size_t step) {
    struct vg_mw_frame f;
    size_t seen = 0;
    for (size_t at = 0; at < n; at += step) {
        cr_assert_eq(vg_mw_feed(in, p + at, n - at < step ? n - at : step), 0);
        for (int r; (r = vg_mw_next(in, &f)) != 0; vg_mw_frame_done(&f), seen++) {
            cr_assert_eq(r, 1, "frame %zu, step %zu: %d", seen, step, r);
            if (seen == 0)
                cr_assert(f.kind == VG_MW_MSG && !strcmp(f.msg->hello->host, "laptop"));
            if (seen == 1)
                cr_assert(f.kind == VG_MW_DIR && f.req == 1 && f.object == 2 && f.seq == 3 &&
                          f.len == 38 && !memcmp(f.data, "a record", 8));
            if (seen == 2)
                cr_assert(f.kind == VG_MW_DATA && f.req == 4 && f.object == 5 &&
                          f.offset == VG_LEAF && f.size == VG_LEAF + 10 && f.len == 10 &&
                          !memcmp(f.data, "0123456789", 10));
            if (seen == 3)
                cr_assert(f.kind == VG_MW_DATA && f.size == 0 && f.len == 0 && f.object == 6);
            if (seen == 4)
                cr_assert(f.kind == VG_MW_WRITE && f.op == 7 && f.object == (VG_OBJ_NEW | 8) &&
                          f.offset == 9 && f.len == 5 && !memcmp(f.data, "bytes", 5));
        }
    }
    cr_assert_eq(seen, 5, "step %zu: %zu frames", step, seen);
}

Test(mwire, frames_come_out_whatever_the_cuts) {
    for (int level = 0; level < 2; level++)
        for (size_t step = 1; step < 64; step += 3) {
            struct vg_buf out = {0};
            struct vg_mw_in in = {0};
            everything(&out, level);
            expect_everything(&in, vg_buf_data(&out), vg_buf_len(&out), step);
            vg_mw_in_done(&in);
            vg_buf_done(&out);
        }
}

Test(mwire, packing_is_used_where_it_saves_and_not_elsewhere) {
    struct vg_buf out = {0};
    struct vg_mw_in in = {0};
    struct vg_mw_frame f;
    memset(leaf, 'x', sizeof(leaf));
    cr_assert_eq(vg_mw_data(&out, 0, 1, 0, VG_LEAF, leaf, VG_LEAF, 1), 0);
    cr_assert_lt(vg_buf_len(&out), 1000);
    vg_mw_feed(&in, vg_buf_data(&out), vg_buf_len(&out));
    cr_assert_eq(vg_mw_next(&in, &f), 1);
    cr_assert(f.len == VG_LEAF && !memcmp(f.data, leaf, VG_LEAF) && (f.flags & VG_MW_ZSTD));
    uint32_t x = 1; /* noise cannot be packed */
    for (size_t i = 0; i < sizeof(leaf); i++)
        leaf[i] = (uint8_t)((x = x * 1664525u + 1013904223u) >> 24);
    vg_buf_clear(&out);
    cr_assert_eq(vg_mw_data(&out, 0, 1, 0, VG_LEAF, leaf, VG_LEAF, 1), 0);
    cr_assert_eq(vg_buf_len(&out), VG_MW_HEADER + 40 + VG_LEAF);
    vg_mw_in_done(&in);
    vg_buf_done(&out);
}

Test(mwire, long_records_and_long_data_are_cut) {
    size_t n = 3u << 20, got = 0;
    uint8_t *rec = malloc(n);
    struct vg_buf out = {0};
    struct vg_mw_in in = {0};
    struct vg_mw_frame f;
    for (size_t i = 0; i < n; i++)
        rec[i] = (uint8_t)(i * 7 + i / 999);
    cr_assert_eq(vg_mw_dir(&out, 1, 2, 3, rec, n, 0), 0);
    cr_assert_eq(vg_mw_data(&out, 1, 2, 0, n - 5, rec, n - 5, 0), 0);
    vg_mw_feed(&in, vg_buf_data(&out), vg_buf_len(&out));
    do {
        cr_assert_eq(vg_mw_next(&in, &f), 1);
        cr_assert(f.kind == VG_MW_DIR && !memcmp(f.data, rec + got, f.len));
        got += f.len;
    } while (f.flags & VG_MW_MORE);
    cr_assert_eq(got, n);
    for (got = 0; vg_mw_next(&in, &f) == 1; got += f.len)
        cr_assert(f.offset == got && f.size == n - 5 && !memcmp(f.data, rec + got, f.len));
    cr_assert_eq(got, n - 5);
    cr_assert_eq(vg_mw_dir(&out, 1, 2, 3, rec, (size_t)VG_MW_DIR_MAX + 1, 0), -EMSGSIZE);
    cr_assert_eq(vg_mw_write(&out, 1, 2, 3, rec, VG_MW_MAX, 0), -EMSGSIZE);
    cr_assert_eq(vg_mw_data(&out, 1, 2, 5, 100, rec, 95, 0), -EINVAL);
    cr_assert_eq(vg_mw_data(&out, 1, 2, 0, 100, rec, 95, 0), -EINVAL);
    vg_mw_in_done(&in);
    vg_buf_done(&out);
    free(rec);
}

static int one(const uint8_t *p, size_t n) {
    struct vg_mw_in in = {0};
    struct vg_mw_frame f;
    vg_mw_feed(&in, p, n);
    int r = vg_mw_next(&in, &f);
    vg_mw_frame_done(&f);
    vg_mw_in_done(&in);
    return r;
}

Test(mwire, lies_are_refused) {
    struct vg_buf out = {0};
    cr_assert_eq(vg_mw_data(&out, 4, 5, VG_LEAF, VG_LEAF + 10, "0123456789", 10, 0), 0);
    uint8_t *p = vg_buf_data(&out);
    size_t n = vg_buf_len(&out);
    cr_assert_eq(one(p, n), 1);
#define LIE(at, put, value)                          \
    do {                                             \
        uint8_t was[8];                              \
        memcpy(was, p + (at), 8);                    \
        put(p + (at), value);                        \
        cr_assert_eq(one(p, n), -EBADMSG, #at #put); \
        memcpy(p + (at), was, 8);                    \
    } while (0)
    LIE(0, vg_le_put32, VG_MW_MAX + 1);
    LIE(4, vg_le_put16, 9);                  /* kind */
    LIE(4, vg_le_put16, VG_MW_DATA | 0x100); /* MORE is for folders */
    LIE(4, vg_le_put16, VG_MW_DATA | 0x200); /* not a zstd frame */
    LIE(6, vg_le_put16, 1);
    LIE(8 + 16, vg_le_put64, VG_LEAF + 1);  /* offset is no leaf's */
    LIE(8 + 16, vg_le_put64, 2 * VG_LEAF);  /* behind the end */
    LIE(8 + 24, vg_le_put64, VG_LEAF + 11); /* not all of the leaf */
    LIE(8 + 24, vg_le_put64, UINT64_MAX);
    LIE(8 + 32, vg_le_put32, 9);
    vg_buf_done(&out);
}

Test(mwire, a_packed_frame_cannot_claim_more_than_its_limit) {
    struct vg_buf out = {0};
    memset(leaf, 0, sizeof(leaf));
    uint8_t *big = calloc(1, 2u << 20);
    cr_assert_eq(vg_mw_dir(&out, 1, 2, 3, big, VG_MW_MAX - 64, 1), 0);
    cr_assert_eq(one(vg_buf_data(&out), vg_buf_len(&out)), 1);
    vg_le_put64(vg_buf_data(&out), vg_le_get64(vg_buf_data(&out))); /* untouched: still good */
    uint8_t *z = vg_buf_data(&out) + VG_MW_HEADER + 24;
    cr_assert_eq(z[4] & 0xc0, 0x80, "a 4 byte content size is what this test changes");
    vg_le_put32(z + ((z[4] & 0x20) ? 5 : 6), 2u << 20);
    cr_assert_eq(one(vg_buf_data(&out), vg_buf_len(&out)), -EBADMSG);
    free(big);
    vg_buf_done(&out);
}

Test(mwire, stats_survive_the_message) {
    struct vg_mstat a = {.dev = 1,
                         .ino = 2,
                         .rdev = 3,
                         .size = 4,
                         .blocks = 5,
                         .mtime = -6,
                         .ctime = 7,
                         .atime = -8,
                         .mode = 9,
                         .nlink = 10,
                         .uid = 11,
                         .gid = 12};
    struct vg_mstat b;
    Vg__Mr__Stat m;
    uint8_t packed[256];
    vg_mw_stat_to(&m, &a);
    size_t n = vg__mr__stat__pack(&m, packed);
    Vg__Mr__Stat *u = vg__mr__stat__unpack(NULL, n, packed);
    vg_mw_stat_from(&b, u);
    vg__mr__stat__free_unpacked(u, NULL);
    cr_assert_eq(memcmp(&a, &b, sizeof(a)), 0);
}
