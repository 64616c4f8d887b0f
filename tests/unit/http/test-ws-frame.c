/* WebSocket frames from bytes, and what RFC 6455 forbids in them. */
#include "base/cleanup.h"
#include "http/ws-frame.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <string.h>

Test(ws_frame, the_key_of_the_rfc) {
    char out[29];
    cr_assert_eq(vg_ws_key_answer("dGhlIHNhbXBsZSBub25jZQ==", out), 0);
    cr_expect_str_eq(out, "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    cr_expect_eq(vg_ws_key_answer("dGhlIHNhbXBsZSBub25jZQ=", out), -EINVAL);
    cr_expect_eq(vg_ws_key_answer("!GhlIHNhbXBsZSBub25jZQ==", out), -EINVAL);
    cr_expect_eq(vg_ws_key_answer("", out), -EINVAL);
}

Test(ws_frame, heads_go_out_and_come_in) {
    static const uint64_t lens[] = {0, 1, 125, 126, 65535, 65536, 1u << 20};
    for (size_t i = 0; i < VG_COUNT(lens); i++) {
        uint8_t p[VG_WS_HEAD_MAX] = {0};
        struct vg_ws_frame f;
        size_t n = vg_ws_frame_head(VG_WS_BINARY, lens[i], p);
        cr_expect_eq(vg_ws_frame_parse(p, n, UINT64_MAX, &f), n < 2 ? 0 : 1002,
                     "a server's is not masked");
        p[1] |= 0x80;
        for (size_t k = 0; k < n + 4; k++)
            cr_expect_eq(vg_ws_frame_parse(p, k, UINT64_MAX, &f), 0);
        cr_assert_eq(vg_ws_frame_parse(p, n + 4, UINT64_MAX, &f), 1);
        cr_expect(f.len == lens[i] && f.fin && f.op == VG_WS_BINARY && f.head_len == n + 4);
        if (lens[i])
            cr_expect_eq(vg_ws_frame_parse(p, n + 4, lens[i] - 1, &f), 1009);
    }
}

Test(ws_frame, what_is_forbidden) {
    static const struct {
        uint8_t bytes[14];
        int verdict;
    } table[] = {
        {{0x81, 0x80}, 1},    /* control */
        {{0xc1, 0x80}, 1002}, /* a reserved bit */
        {{0x83, 0x80}, 1002}, /* an unknown kind */
        {{0x8b, 0x80}, 1002},
        {{0x09, 0x80}, 1002},         /* a ping in fragments */
        {{0x89, 0xfe, 0, 126}, 1002}, /* a long one */
        {{0x81, 0xfe, 0, 125}, 1002}, /* a length written longer than it is */
        {{0x81, 0xff, 0, 0, 0, 0, 0, 0, 1}, 1002},
        {{0x81, 0xff, 0x80, 0, 0, 0, 0, 1, 1}, 1002},
    };
    struct vg_ws_frame f;
    for (size_t i = 0; i < VG_COUNT(table); i++)
        cr_expect_eq(vg_ws_frame_parse(table[i].bytes, 14, UINT64_MAX, &f), table[i].verdict, "%zu",
                     i);
}

Test(ws_frame, texts_are_utf8) {
    static const struct {
        const char *text;
        bool valid;
    } table[] = {
        {"", true},
        {"plain", true},
        {"\xc3\xa9\xe2\x82\xac\xf0\x9f\x8c\xa7", true},
        {"\xff", false},
        {"\xc3", false},
        {"\xc0\xaf", false},         /* longer than needed */
        {"\xed\xa0\x80", false},     /* half of a pair */
        {"\xf4\x90\x80\x80", false}, /* beyond the last */
        {"\xe2\x28\xa1", false},
    };
    for (size_t i = 0; i < VG_COUNT(table); i++)
        cr_expect_eq(vg_utf8_valid((const uint8_t *)table[i].text, strlen(table[i].text)),
                     table[i].valid, "%zu", i);
    cr_expect(vg_ws_code_valid(1000) && vg_ws_code_valid(4000));
    cr_expect(!vg_ws_code_valid(1005) && !vg_ws_code_valid(999) && !vg_ws_code_valid(2000));
}

Test(ws_frame, masks_undo_themselves) {
    uint8_t text[] = "some words", mask[4] = {1, 2, 3, 250};
    vg_ws_unmask(text, sizeof text, mask);
    cr_expect_neq(memcmp(text, "some words", sizeof text), 0);
    vg_ws_unmask(text, sizeof text, mask);
    cr_expect_str_eq((char *)text, "some words");
}
