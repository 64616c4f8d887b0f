/* AWS Signature, version 4. */
#include "fs/store/s3-sign.h"

#include "base/mem.h"
#include "mirror/stamp.h"

#include <errno.h>
#include <openssl/crypto.h>
#include <openssl/hmac.h>
#include <stdio.h>
#include <string.h>

static void mac(const void *key, size_t n, const char *text, uint8_t out[VG_HASH]) {
    unsigned len = VG_HASH;
    HMAC(EVP_sha256(), key, (int)n, (const uint8_t *)text, strlen(text), out, &len);
}

static void signing_key(const struct vg_s3_auth *a, const char *day, uint8_t out[VG_HASH]) {
    char first[sizeof(a->secret) + 8];
    snprintf(first, sizeof(first), "AWS4%s", a->secret);
    mac(first, strlen(first), day, out);
    mac(out, VG_HASH, a->region, out);
    mac(out, VG_HASH, "s3", out);
    mac(out, VG_HASH, "aws4_request", out);
    OPENSSL_cleanse(first, sizeof(first));
}

/* What is signed of a request, and which of its headers that is. */
static int canonical(const struct vg_s3_auth *a, const struct vg_s3_signing *q, const char *when,
                     const char *names, struct vg_buf *out) {
    int r = vg_buf_printf(out, "%s\n%s\n%s\nhost:%s\nx-amz-content-sha256:%s\nx-amz-date:%s\n",
                          q->method, q->path, q->query, q->host, q->payload, when);
    if (r == 0 && a->token[0])
        r = vg_buf_printf(out, "x-amz-security-token:%s\n", a->token);
    return r == 0 ? vg_buf_printf(out, "\n%s\n%s", names, q->payload) : r;
}

int vg_s3_sign(const struct vg_s3_auth *a, const struct vg_s3_signing *q, struct vg_buf *lines) {
    const char *names = a->token[0] ? "host;x-amz-content-sha256;x-amz-date;x-amz-security-token"
                                    : "host;x-amz-content-sha256;x-amz-date";
    char when[32], day[16], scope[160], digest[2 * VG_HASH + 1], text[512];
    uint8_t hash[VG_HASH], key[VG_HASH];
    struct vg_buf b = {0};
    struct tm tm;
    gmtime_r(&q->when, &tm);
    strftime(when, sizeof(when), "%Y%m%dT%H%M%SZ", &tm);
    strftime(day, sizeof(day), "%Y%m%d", &tm);
    int r = canonical(a, q, when, names, &b);
    if (r == 0)
        vg_leaf_hash(vg_buf_data(&b), vg_buf_len(&b), hash);
    vg_buf_done(&b);
    if (r < 0)
        return r;
    vg_hex(hash, VG_HASH, digest);
    snprintf(scope, sizeof(scope), "%s/%s/s3/aws4_request", day, a->region);
    snprintf(text, sizeof(text), "AWS4-HMAC-SHA256\n%s\n%s\n%s", when, scope, digest);
    signing_key(a, day, key);
    mac(key, VG_HASH, text, hash);
    OPENSSL_cleanse(key, sizeof(key));
    vg_hex(hash, VG_HASH, digest);
    r = vg_buf_printf(lines, "x-amz-date: %s\r\nx-amz-content-sha256: %s\r\n", when, q->payload);
    if (r == 0 && a->token[0])
        r = vg_buf_printf(lines, "x-amz-security-token: %s\r\n", a->token);
    if (r == 0)
        r = vg_buf_printf(lines,
                          "Authorization: AWS4-HMAC-SHA256 Credential=%s/%s, SignedHeaders=%s, "
                          "Signature=%s\r\n",
                          a->id, scope, names, digest);
    if (r == 0)
        r = vg_buf_append(lines, "", 1);
    if (r == 0)
        lines->tail--;
    return r;
}
