/* Tokens: made, read, written, and compared with what is stored. Pure functions; any thread. */
#include "base/cleanup.h"
#include "base/util.h"
#include "net/tls.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>
#include <stdio.h>
#include <string.h>

static void hex(const uint8_t *data, size_t n, char *out) {
    static const char digits[] = "0123456789abcdef";
    for (size_t i = 0; i < n; i++) {
        out[2 * i] = digits[data[i] >> 4];
        out[2 * i + 1] = digits[data[i] & 15];
    }
    out[2 * n] = 0;
}

void vg_token_new(const char *prefix, const uint8_t ca_fingerprint[VG_FINGERPRINT],
                  struct vg_token *ret) {
    uint8_t raw[24];
    vg_random(raw, sizeof(raw));
    *ret = (struct vg_token){0};
    (void)snprintf(ret->prefix, sizeof(ret->prefix), "%s", prefix);
    hex(raw, 8, ret->id);
    hex(raw + 8, 16, ret->secret);
    hex(ca_fingerprint, 16, ret->ca);
    OPENSSL_cleanse(raw, sizeof(raw));
}

/* Takes n lower-case hex digits and what must follow them. */
static const char *take_hex(const char *s, size_t n, char *out, char after) {
    for (size_t i = 0; i < n; i++) {
        if (!((s[i] >= '0' && s[i] <= '9') || (s[i] >= 'a' && s[i] <= 'f')))
            return NULL;
        out[i] = s[i];
    }
    out[n] = 0;
    return s[n] == after ? s + n + 1 : NULL;
}

int vg_token_parse(const char *text, struct vg_token *ret) {
    struct vg_token t = {0};
    if (strncmp(text, "vgt_", 4) != 0 && strncmp(text, "vgj_", 4) != 0)
        return -EINVAL;
    memcpy(t.prefix, text, 3);
    const char *s = take_hex(text + 4, 16, t.id, '_');
    s = s ? take_hex(s, 32, t.secret, '_') : NULL;
    s = s ? take_hex(s, 32, t.ca, 0) : NULL;
    if (!s)
        return -EINVAL;
    *ret = t;
    return 0;
}

void vg_token_format(const struct vg_token *t, char out[static 96]) {
    (void)snprintf(out, 96, "%s_%s_%s_%s", t->prefix, t->id, t->secret, t->ca);
}

void vg_token_hash(const struct vg_token *t, uint8_t ret[32]) {
    SHA256((const unsigned char *)t->secret, strlen(t->secret), ret);
}

int vg_token_check(const struct vg_token *t, const uint8_t hash[32]) {
    uint8_t own[32];
    vg_token_hash(t, own);
    return CRYPTO_memcmp(own, hash, sizeof(own)) == 0 ? 0 : -EACCES;
}
