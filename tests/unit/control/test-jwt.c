/* ID tokens: what is believed, and everything else. */
#include "base/cleanup.h"
#include "base/util.h"
#include "control/jwt.h"

#include <criterion/criterion.h>
#include <openssl/core_names.h>
#include <openssl/ec.h>
#include <openssl/ecdsa.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <stdio.h>
#include <string.h>

#define NOW 1800000000
#define CLAIMS                                                                    \
    "{\"iss\":\"https://id\",\"aud\":\"virga\",\"sub\":\"7\",\"exp\":1800000300," \
    "\"nonce\":\"n1\"}"

static EVP_PKEY *rsa, *ec, *ed;
static json_t *jwks;

static void b64(const void *p, size_t n, char *out, size_t room) {
    vg_b64url(p, n, out, room);
}

static void dot(char *s) {
    memcpy(s + strlen(s), ".", 2);
}

static void bn_param(EVP_PKEY *key, const char *name, char *out, size_t room) {
    BIGNUM *bn = NULL;
    uint8_t raw[1024];
    cr_assert(EVP_PKEY_get_bn_param(key, name, &bn));
    int n = BN_bn2bin(bn, raw);
    b64(raw, (size_t)n, out, room);
    BN_free(bn);
}

static json_t *rsa_jwk(EVP_PKEY *key, const char *kid) {
    char n[2048], e[64];
    bn_param(key, OSSL_PKEY_PARAM_RSA_N, n, sizeof n);
    bn_param(key, OSSL_PKEY_PARAM_RSA_E, e, sizeof e);
    return json_pack("{ssssssssss}", "kty", "RSA", "kid", kid, "n", n, "e", e, "use", "sig");
}

static void setup(void) {
    char x[64], y[64];
    uint8_t raw[65];
    size_t len = sizeof raw;
    rsa = EVP_PKEY_Q_keygen(NULL, NULL, "RSA", (size_t)2048);
    ec = EVP_PKEY_Q_keygen(NULL, NULL, "EC", "P-256");
    ed = EVP_PKEY_Q_keygen(NULL, NULL, "ED25519");
    jwks = json_pack("{s[]}", "keys");
    json_t *keys = json_object_get(jwks, "keys");
    json_array_append_new(keys, rsa_jwk(rsa, "r"));
    cr_assert(EVP_PKEY_get_octet_string_param(ec, OSSL_PKEY_PARAM_ENCODED_PUBLIC_KEY, raw,
                                              sizeof raw, &len));
    b64(raw + 1, 32, x, sizeof x);
    b64(raw + 33, 32, y, sizeof y);
    json_array_append_new(
        keys, json_pack("{ssssssssss}", "kty", "EC", "crv", "P-256", "kid", "e", "x", x, "y", y));
    len = 32;
    cr_assert(EVP_PKEY_get_raw_public_key(ed, raw, &len));
    b64(raw, 32, x, sizeof x);
    json_array_append_new(
        keys, json_pack("{ssssssss}", "kty", "OKP", "crv", "Ed25519", "kid", "d", "x", x));
}

static void teardown(void) {
    EVP_PKEY_free(rsa);
    EVP_PKEY_free(ec);
    EVP_PKEY_free(ed);
    json_decref(jwks);
}

TestSuite(jwt, .init = setup, .fini = teardown, .timeout = 120);

static size_t raw_signature(EVP_PKEY *key, const char *text, uint8_t out[static 1024]) {
    EVP_MD_CTX *md = EVP_MD_CTX_new();
    size_t n = 1024;
    bool plain = EVP_PKEY_is_a(key, "ED25519");
    cr_assert(EVP_DigestSignInit(md, NULL, plain ? NULL : EVP_sha256(), NULL, key) == 1);
    cr_assert(EVP_DigestSign(md, out, &n, (const uint8_t *)text, strlen(text)) == 1);
    EVP_MD_CTX_free(md);
    if (!EVP_PKEY_is_a(key, "EC"))
        return n;
    const uint8_t *at = out;
    ECDSA_SIG *sig = d2i_ECDSA_SIG(NULL, &at, (long)n);
    BN_bn2binpad(ECDSA_SIG_get0_r(sig), out, 32);
    BN_bn2binpad(ECDSA_SIG_get0_s(sig), out + 32, 32);
    ECDSA_SIG_free(sig);
    return 64;
}

/* header.claims.signature; key NULL: no signature. */
static void make(const char *header, const char *claims, EVP_PKEY *key, char out[static 8192]) {
    uint8_t sig[1024];
    b64(header, strlen(header), out, 4096);
    dot(out);
    b64(claims, strlen(claims), out + strlen(out), 4096);
    size_t n = key ? raw_signature(key, out, sig) : 0;
    dot(out);
    if (n)
        b64(sig, n, out + strlen(out), 2048);
}

static int check(const char *token, const json_t *keys, const char *nonce, struct vg_err *err) {
    struct vg_jwt_want w = {
        .issuer = "https://id", .client_id = "virga", .nonce = nonce, .now_sec = NOW};
    json_t *claims = NULL;
    *err = VG_ERR_INIT;
    int r = vg_jwt_check(token, keys, &w, &claims, err);
    cr_assert((r == 0) == (claims != NULL));
    json_decref(claims);
    return r;
}

Test(jwt, each_kind_of_key_is_believed) {
    struct vg_err err;
    char t[8192];
    make("{\"alg\":\"RS256\",\"kid\":\"r\"}", CLAIMS, rsa, t);
    cr_expect_eq(check(t, jwks, "n1", &err), 0, "%s", err.msg);
    make("{\"alg\":\"ES256\",\"kid\":\"e\"}", CLAIMS, ec, t);
    cr_expect_eq(check(t, jwks, "n1", &err), 0, "%s", err.msg);
    make("{\"alg\":\"EdDSA\",\"kid\":\"d\"}", CLAIMS, ed, t);
    cr_expect_eq(check(t, jwks, "n1", &err), 0, "%s", err.msg);
    make("{\"alg\":\"ES256\"}", CLAIMS, ec, t);
    cr_expect_eq(check(t, jwks, NULL, &err), 0, "without a kid: %s", err.msg);
}

Test(jwt, whatever_the_claims_lack_is_refused) {
    static const struct {
        const char *claims, *says;
    } table[] = {
        {"{\"iss\":\"https://evil\",\"aud\":\"virga\",\"sub\":\"7\",\"exp\":1800000300,\"nonce\":"
         "\"n1\"}",
         "issuer"},
        {"{\"iss\":\"https://id\",\"aud\":\"other\",\"sub\":\"7\",\"exp\":1800000300,\"nonce\":"
         "\"n1\"}",
         "another client"},
        {"{\"iss\":\"https://id\",\"aud\":[\"virga\",\"other\"],\"sub\":\"7\",\"exp\":1800000300,"
         "\"nonce\":\"n1\"}",
         "made for another"},
        {"{\"iss\":\"https://id\",\"aud\":\"virga\",\"azp\":\"other\",\"sub\":\"7\",\"exp\":"
         "1800000300,\"nonce\":\"n1\"}",
         "made for another"},
        {"{\"iss\":\"https://id\",\"aud\":\"virga\",\"sub\":\"7\",\"exp\":1799999940,\"nonce\":"
         "\"n1\"}",
         "expired"},
        {"{\"iss\":\"https://id\",\"aud\":\"virga\",\"sub\":\"7\",\"nonce\":\"n1\"}", "expired"},
        {"{\"iss\":\"https://id\",\"aud\":\"virga\",\"sub\":\"7\",\"exp\":\"1800000300\",\"nonce\":"
         "\"n1\"}",
         "expired"},
        {"{\"iss\":\"https://id\",\"aud\":\"virga\",\"sub\":\"7\",\"exp\":1800000300,\"nbf\":"
         "1800000100,\"nonce\":\"n1\"}",
         "not valid yet"},
        {"{\"iss\":\"https://id\",\"aud\":\"virga\",\"sub\":\"7\",\"exp\":1800000300}",
         "another question"},
        {"{\"iss\":\"https://id\",\"aud\":\"virga\",\"exp\":1800000300,\"nonce\":\"n1\"}", "whom"},
        {"[1]", "no token"},
    };
    struct vg_err err;
    char t[8192];
    for (size_t i = 0; i < VG_COUNT(table); i++) {
        make("{\"alg\":\"RS256\",\"kid\":\"r\"}", table[i].claims, rsa, t);
        cr_expect_lt(check(t, jwks, "n1", &err), 0, "%s", table[i].claims);
        cr_expect(strstr(err.msg, table[i].says), "%s: %s", table[i].claims, err.msg);
    }
    make("{\"alg\":\"RS256\",\"kid\":\"r\"}",
         "{\"iss\":\"https://id\",\"aud\":[\"virga\",\"x\"],\"azp\":\"virga\",\"sub\":\"7\","
         "\"exp\":1799999990,\"nbf\":1800000030,\"nonce\":\"n1\"}",
         rsa, t);
    cr_expect_eq(check(t, jwks, "n1", &err), 0, "clocks may be a little off: %s", err.msg);
}

Test(jwt, nobody_chooses_another_way_of_signing) {
    struct vg_err err;
    char t[8192], n[2048];
    uint8_t mac[32];
    unsigned len = sizeof mac;
    make("{\"alg\":\"none\"}", CLAIMS, NULL, t);
    cr_expect_lt(check(t, jwks, "n1", &err), 0);
    make("{\"alg\":\"RS256\",\"kid\":\"r\"}", CLAIMS, NULL, t);
    cr_expect_lt(check(t, jwks, "n1", &err), 0, "an empty signature");
    /* The public key as a shared secret. */
    bn_param(rsa, OSSL_PKEY_PARAM_RSA_N, n, sizeof n);
    make("{\"alg\":\"HS256\",\"kid\":\"r\"}", CLAIMS, NULL, t);
    t[strlen(t) - 1] = 0;
    HMAC(EVP_sha256(), n, (int)strlen(n), (uint8_t *)t, strlen(t), mac, &len);
    dot(t);
    b64(mac, len, t + strlen(t), 100);
    cr_expect_lt(check(t, jwks, "n1", &err), 0);
    cr_expect(strstr(err.msg, "not taken"), "%s", err.msg);
    /* A key of one kind under the name of another's. */
    make("{\"alg\":\"RS256\",\"kid\":\"e\"}", CLAIMS, rsa, t);
    cr_expect_eq(check(t, jwks, "n1", &err), -ENOKEY);
    make("{\"alg\":\"ES256\",\"kid\":\"e\",\"crit\":[\"x\"]}", CLAIMS, ec, t);
    cr_expect_lt(check(t, jwks, "n1", &err), 0);
}

Test(jwt, forged_ones_and_old_keys_are_told_apart) {
    struct vg_err err;
    char t[8192];
    EVP_PKEY *other = EVP_PKEY_Q_keygen(NULL, NULL, "RSA", (size_t)2048);
    make("{\"alg\":\"RS256\",\"kid\":\"r\"}", CLAIMS, other, t);
    cr_expect_eq(check(t, jwks, "n1", &err), vg_reason_errno(VG_UNAUTHENTICATED) * -1);
    cr_expect(strstr(err.msg, "signature"), "%s", err.msg);
    make("{\"alg\":\"RS256\",\"kid\":\"new\"}", CLAIMS, other, t);
    cr_expect_eq(check(t, jwks, "n1", &err), -ENOKEY, "the keys may have changed");
    EVP_PKEY *small = EVP_PKEY_Q_keygen(NULL, NULL, "RSA", (size_t)1024);
    json_t *weak = json_pack("{s[o]}", "keys", rsa_jwk(small, "w"));
    make("{\"alg\":\"RS256\",\"kid\":\"w\"}", CLAIMS, small, t);
    cr_expect_eq(check(t, weak, "n1", &err), -ENOKEY, "too small a key is none");
    json_decref(weak);
    EVP_PKEY_free(small);
    EVP_PKEY_free(other);
}

Test(jwt, every_truncation_and_every_changed_byte_fails_cleanly) {
    struct vg_err err;
    char t[8192], cut[8192];
    make("{\"alg\":\"EdDSA\",\"kid\":\"d\"}", CLAIMS, ed, t);
    size_t n = strlen(t);
    for (size_t i = 0; i < n; i++) {
        memcpy(cut, t, i);
        cut[i] = 0;
        cr_expect_lt(check(cut, jwks, "n1", &err), 0, "cut at %zu", i);
        memcpy(cut, t, n + 1);
        cut[i] = cut[i] == 'A' ? 'B' : 'A';
        cr_expect_lt(check(cut, jwks, "n1", &err), 0, "changed at %zu", i);
    }
}
