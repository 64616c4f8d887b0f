/* WebSocket frames; see the header. */
#include "http/ws-frame.h"

#include <errno.h>
#include <openssl/evp.h>
#include <openssl/sha.h>
#include <stdio.h>
#include <string.h>

static bool known(unsigned op) {
    return op <= VG_WS_BINARY || (op >= VG_WS_CLOSE && op <= VG_WS_PONG);
}

static uint64_t big_endian(const uint8_t *p, size_t n) {
    uint64_t v = 0;
    for (size_t i = 0; i < n; i++)
        v = v << 8 | p[i];
    return v;
}

int vg_ws_frame_parse(const uint8_t *p, size_t n, uint64_t max, struct vg_ws_frame *ret) {
    if (n < 2)
        return 0;
    unsigned op = p[0] & 0x0f, small = p[1] & 0x7f;
    bool fin = p[0] & 0x80, control = op >= VG_WS_CLOSE;
    if ((p[0] & 0x70) || !known(op) || !(p[1] & 0x80))
        return 1002;
    if (control && (!fin || small > VG_WS_CONTROL_MAX))
        return 1002;
    size_t more = small == 126 ? 2 : small == 127 ? 8 : 0, head = 2 + more + 4;
    if (n < head)
        return 0;
    uint64_t len = more ? big_endian(p + 2, more) : small;
    if ((more == 2 && len < 126) || (more == 8 && (len <= UINT16_MAX || len >> 63)))
        return 1002;
    if (len > max && !control)
        return 1009;
    *ret = (struct vg_ws_frame){.op = (enum vg_ws_op)op, .fin = fin, .head_len = head, .len = len};
    memcpy(ret->mask, p + 2 + more, 4);
    return 1;
}

void vg_ws_unmask(uint8_t *p, size_t n, const uint8_t mask[static 4]) {
    for (size_t i = 0; i < n; i++)
        p[i] ^= mask[i & 3];
}

size_t vg_ws_frame_head(enum vg_ws_op op, uint64_t len, uint8_t out[static VG_WS_HEAD_MAX]) {
    size_t more = len < 126 ? 0 : len <= UINT16_MAX ? 2 : 8;
    out[0] = (uint8_t)(0x80 | op);
    out[1] = (uint8_t)(more == 0 ? len : more == 2 ? 126 : 127);
    for (size_t i = 0; i < more; i++)
        out[2 + i] = (uint8_t)(len >> (8 * (more - 1 - i)));
    return 2 + more;
}

/* Bytes of the character that begins with this one, and the least that it may mean. */
static size_t utf8_len(uint8_t lead, uint32_t *ret_min) {
    if (lead < 0x80)
        return 1;
    if ((lead & 0xe0) == 0xc0)
        return *ret_min = 0x80, 2;
    if ((lead & 0xf0) == 0xe0)
        return *ret_min = 0x800, 3;
    if ((lead & 0xf8) == 0xf0)
        return *ret_min = 0x10000, 4;
    return 0;
}

bool vg_utf8_valid(const uint8_t *p, size_t n) {
    for (size_t i = 0; i < n;) {
        uint32_t min = 0;
        size_t len = utf8_len(p[i], &min);
        if (!len || len > n - i)
            return false;
        uint32_t ch = len == 1 ? p[i] : p[i] & (0xffu >> (len + 1));
        for (size_t k = 1; k < len; k++) {
            if ((p[i + k] & 0xc0) != 0x80)
                return false;
            ch = ch << 6 | (p[i + k] & 0x3f);
        }
        if (ch < min || ch > 0x10ffff || (ch >= 0xd800 && ch <= 0xdfff))
            return false;
        i += len;
    }
    return true;
}

bool vg_ws_code_valid(unsigned code) {
    return (code >= 1000 && code <= 1011 && code != 1004 && code != 1005 && code != 1006) ||
           (code >= 3000 && code <= 4999);
}

int vg_ws_key_answer(const char *key, char out[static 29]) {
    uint8_t raw[20], digest[SHA_DIGEST_LENGTH];
    char text[24 + 36 + 1];
    if (strlen(key) != 24 || EVP_DecodeBlock(raw, (const unsigned char *)key, 24) != 18 ||
        strcmp(key + 22, "==") != 0)
        return -EINVAL;
    (void)snprintf(text, sizeof(text), "%s258EAFA5-E914-47DA-95CA-C5AB0DC85B11", key);
    if (EVP_Digest(text, strlen(text), digest, NULL, EVP_sha1(), NULL) != 1)
        return -EINVAL;
    EVP_EncodeBlock((unsigned char *)out, digest, sizeof(digest));
    return 0;
}
