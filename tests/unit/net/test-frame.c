/* Frames without I/O. */
#include "net/wire.h"

#include <criterion/criterion.h>
#include <string.h>

static const struct {
    enum vg_frame_kind kind;
    uint32_t stream, len;
} good[] = {
    {VG_FRAME_MSG, 0, 0},          {VG_FRAME_MSG, 0, 300},  {VG_FRAME_DATA, 7, 0},
    {VG_FRAME_DATA, 0xffffff, 77}, {VG_FRAME_CREDIT, 1, 4}, {VG_FRAME_END, 2, 0},
    {VG_FRAME_RESET, 3, 4},        {VG_FRAME_PING, 0, 8},   {VG_FRAME_PONG, 0, 8},
};
#define N_GOOD (sizeof(good) / sizeof(good[0]))

Test(frame, what_is_written_is_read_back) {
    for (size_t i = 0; i < N_GOOD; i++) {
        uint8_t data[512];
        struct vg_frame f;
        struct vg_err err = VG_ERR_INIT;
        size_t need = 0;
        vg_frame_header(data, good[i].kind, good[i].stream, good[i].len);
        int r = vg_frame_parse(data, sizeof(data), &f, &need, &err);
        cr_assert_eq(r, (int)(VG_WIRE_HEADER + good[i].len));
        cr_assert_eq(f.kind, good[i].kind);
        cr_assert_eq(f.stream, good[i].stream);
        cr_assert_eq(f.len, good[i].len);
        cr_assert_eq(f.payload, data + VG_WIRE_HEADER);
    }
}

Test(frame, every_truncation_asks_for_more) {
    for (size_t i = 0; i < N_GOOD; i++) {
        size_t total = VG_WIRE_HEADER + good[i].len;
        for (size_t n = 0; n < total; n++) {
            /* Exactly n bytes on the heap, so that a sanitizer sees any read beyond. */
            uint8_t whole[512] = {0};
            vg_frame_header(whole, good[i].kind, good[i].stream, good[i].len);
            uint8_t *data = malloc(n ? n : 1);
            memcpy(data, whole, n);
            struct vg_frame f;
            struct vg_err err = VG_ERR_INIT;
            size_t need = 0;
            cr_assert_eq(vg_frame_parse(data, n, &f, &need, &err), 0);
            cr_assert_eq(need, n < VG_WIRE_HEADER ? VG_WIRE_HEADER : total);
            free(data);
        }
    }
}

Test(frame, what_breaks_a_limit_is_refused_from_its_header_alone) {
    static const struct {
        uint32_t kind, stream, len;
    } bad[] = {
        {0, 0, 0},
        {8, 0, 0},
        {255, 0, 0},
        {VG_FRAME_MSG, 0, VG_WIRE_MSG_MAX + 1},
        {VG_FRAME_MSG, 1, 5},
        {VG_FRAME_DATA, 1, VG_WIRE_DATA_MAX + 1},
        {VG_FRAME_DATA, 0, 5},
        {VG_FRAME_CREDIT, 1, 3},
        {VG_FRAME_CREDIT, 0, 4},
        {VG_FRAME_END, 1, 1},
        {VG_FRAME_END, 0, 0},
        {VG_FRAME_RESET, 1, 0},
        {VG_FRAME_PING, 0, 7},
        {VG_FRAME_PONG, 9, 8},
        {VG_FRAME_MSG, 0, UINT32_MAX},
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        uint8_t data[VG_WIRE_HEADER];
        struct vg_frame f;
        struct vg_err err = VG_ERR_INIT;
        size_t need = 0;
        vg_frame_header(data, bad[i].kind, bad[i].stream, bad[i].len);
        cr_assert_eq(vg_frame_parse(data, sizeof(data), &f, &need, &err), -EPROTO, "case %zu", i);
        cr_assert_eq(err.reason, VG_PROTOCOL);
        cr_assert_neq(err.msg[0], 0);
    }
}
