/* Signatures and claims of ID tokens; see the header. */
#include "control/jwt.h"

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"

#include <openssl/bn.h>
#include <openssl/core_names.h>
#include <openssl/ecdsa.h>
#include <openssl/evp.h>
#include <openssl/param_build.h>
#include <string.h>

#define PART_MAX (48u << 10)

/* ------------------------------------------------------------------ base64 */

static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

size_t vg_b64url(const void *data, size_t n, char *out, size_t room) {
    const uint8_t *p = data;
    size_t len = 0;
    for (size_t i = 0; i < n && len + 5 <= room; i += 3) {
        uint32_t v = (uint32_t)p[i] << 16 | (i + 1 < n ? (uint32_t)p[i + 1] << 8 : 0) |
                     (i + 2 < n ? p[i + 2] : 0);
        size_t take = VG_MIN(n - i, (size_t)3) + 1;
        for (size_t k = 0; k < take; k++)
            out[len++] = digits[v >> (18 - 6 * k) & 63];
    }
    out[len] = 0;
    return len;
}

int vg_b64url_parse(const char *text, size_t n, uint8_t *out, size_t room) {
    uint32_t v = 0, bits = 0;
    size_t len = 0;
    if (n % 4 == 1)
        return -EINVAL;
    for (size_t i = 0; i < n; i++) {
        const char *at = text[i] ? strchr(digits, text[i]) : NULL;
        if (!at)
            return -EINVAL;
        v = v << 6 | (uint32_t)(at - digits);
        bits += 6;
        if (bits < 8)
            continue;
        bits -= 8;
        if (len == room)
            return -EINVAL;
        out[len++] = (uint8_t)(v >> bits);
    }
    return v & ((1u << bits) - 1) ? -EINVAL : (int)len; /* one text for each value */
}

/* ------------------------------------------------------------------ keys */

static int field(const json_t *jwk, const char *name, uint8_t *out, size_t room) {
    const char *s = json_string_value(json_object_get(jwk, name));
    return s ? vg_b64url_parse(s, strlen(s), out, room) : -EINVAL;
}

static EVP_PKEY *from_params(const char *type, OSSL_PARAM_BLD *bld) {
    EVP_PKEY_CTX *ctx = EVP_PKEY_CTX_new_from_name(NULL, type, NULL);
    OSSL_PARAM *params = OSSL_PARAM_BLD_to_param(bld);
    EVP_PKEY *key = NULL;
    if (!ctx || !params || EVP_PKEY_fromdata_init(ctx) <= 0 ||
        EVP_PKEY_fromdata(ctx, &key, EVP_PKEY_PUBLIC_KEY, params) <= 0)
        key = NULL;
    OSSL_PARAM_free(params);
    EVP_PKEY_CTX_free(ctx);
    return key;
}

static EVP_PKEY *rsa_key(const json_t *jwk) {
    uint8_t n[1024], e[16];
    int n_len = field(jwk, "n", n, sizeof n), e_len = field(jwk, "e", e, sizeof e);
    EVP_PKEY *key = NULL;
    if (n_len <= 0 || e_len <= 0)
        return NULL;
    BIGNUM *bn = BN_bin2bn(n, n_len, NULL), *be = BN_bin2bn(e, e_len, NULL);
    OSSL_PARAM_BLD *bld = OSSL_PARAM_BLD_new();
    if (bn && be && bld && BN_num_bits(bn) >= VG_JWT_RSA_BITS_MIN &&
        OSSL_PARAM_BLD_push_BN(bld, OSSL_PKEY_PARAM_RSA_N, bn) &&
        OSSL_PARAM_BLD_push_BN(bld, OSSL_PKEY_PARAM_RSA_E, be))
        key = from_params("RSA", bld);
    OSSL_PARAM_BLD_free(bld);
    BN_free(bn);
    BN_free(be);
    return key;
}

static EVP_PKEY *ec_key(const json_t *jwk) {
    const char *crv = json_string_value(json_object_get(jwk, "crv"));
    uint8_t point[65] = {4};
    EVP_PKEY *key = NULL;
    if (!crv || strcmp(crv, "P-256") != 0 || field(jwk, "x", point + 1, 32) != 32 ||
        field(jwk, "y", point + 33, 32) != 32)
        return NULL;
    OSSL_PARAM_BLD *bld = OSSL_PARAM_BLD_new();
    if (bld && OSSL_PARAM_BLD_push_utf8_string(bld, OSSL_PKEY_PARAM_GROUP_NAME, "P-256", 0) &&
        OSSL_PARAM_BLD_push_octet_string(bld, OSSL_PKEY_PARAM_PUB_KEY, point, sizeof point))
        key = from_params("EC", bld);
    OSSL_PARAM_BLD_free(bld);
    return key;
}

static EVP_PKEY *ed_key(const json_t *jwk) {
    const char *crv = json_string_value(json_object_get(jwk, "crv"));
    uint8_t x[32];
    if (!crv || strcmp(crv, "Ed25519") != 0 || field(jwk, "x", x, sizeof x) != sizeof x)
        return NULL;
    return EVP_PKEY_new_raw_public_key(EVP_PKEY_ED25519, NULL, x, sizeof x);
}

static const struct alg {
    const char *name, *kty;
    EVP_PKEY *(*key)(const json_t *jwk);
    bool sha256, raw_ecdsa;
} algs[] = {{"RS256", "RSA", rsa_key, true, false},
            {"ES256", "EC", ec_key, true, true},
            {"EdDSA", "OKP", ed_key, false, false}};

/* ------------------------------------------------------------------ signatures */

/* Two numbers of 32 bytes as OpenSSL wants them. */
static int ecdsa_der(const uint8_t *raw, size_t n, uint8_t **ret) {
    ECDSA_SIG *sig = n == 64 ? ECDSA_SIG_new() : NULL;
    BIGNUM *r = sig ? BN_bin2bn(raw, 32, NULL) : NULL,
           *s = sig ? BN_bin2bn(raw + 32, 32, NULL) : NULL;
    int len = -EINVAL;
    if (r && s && ECDSA_SIG_set0(sig, r, s)) {
        *ret = NULL;
        len = i2d_ECDSA_SIG(sig, ret);
    } else {
        BN_free(r);
        BN_free(s);
    }
    ECDSA_SIG_free(sig);
    return len;
}

static bool signed_by(EVP_PKEY *key, const struct alg *a, const char *text, size_t n,
                      const uint8_t *sig, size_t n_sig) {
    EVP_MD_CTX *md = EVP_MD_CTX_new();
    uint8_t *der = NULL;
    bool ok = md && EVP_DigestVerifyInit(md, NULL, a->sha256 ? EVP_sha256() : NULL, NULL, key) == 1;
    if (ok && a->raw_ecdsa) {
        int len = ecdsa_der(sig, n_sig, &der);
        ok = len > 0;
        sig = der;
        n_sig = ok ? (size_t)len : 0;
    }
    ok = ok && EVP_DigestVerify(md, sig, n_sig, (const uint8_t *)text, n) == 1;
    OPENSSL_free(der);
    EVP_MD_CTX_free(md);
    return ok;
}

/* A key that is for something else, or for another algorithm, is none. */
static bool fits(const json_t *jwk, const struct alg *a, const char *kid) {
    const char *kty = json_string_value(json_object_get(jwk, "kty"));
    const char *use = json_string_value(json_object_get(jwk, "use"));
    const char *alg = json_string_value(json_object_get(jwk, "alg"));
    const char *id = json_string_value(json_object_get(jwk, "kid"));
    return kty && strcmp(kty, a->kty) == 0 && (!use || strcmp(use, "sig") == 0) &&
           (!alg || strcmp(alg, a->name) == 0) && (!kid || (id && strcmp(id, kid) == 0));
}

struct parts {
    const char *token;
    size_t n_signed; /* header.payload */
    uint8_t sig[1024];
    size_t n_sig;
    json_t *header, *claims; /* owned */
};

static int check_signature(const struct parts *p, const struct alg *a, const json_t *jwks) {
    const char *kid = json_string_value(json_object_get(p->header, "kid"));
    const json_t *keys = json_object_get(jwks, "keys");
    size_t n = VG_MIN(json_array_size(keys), (size_t)VG_JWKS_MAX);
    bool any = false;
    for (size_t i = 0; i < n; i++) {
        const json_t *jwk = json_array_get(keys, i);
        EVP_PKEY *key = fits(jwk, a, kid) ? a->key(jwk) : NULL;
        if (!key)
            continue;
        any = true;
        bool ok = signed_by(key, a, p->token, p->n_signed, p->sig, p->n_sig);
        EVP_PKEY_free(key);
        if (ok)
            return 0;
    }
    return any && kid ? -EACCES : -ENOKEY;
}

/* ------------------------------------------------------------------ claims */

static int bad(struct vg_err *err, const char *what) {
    return vg_err_set(err, VG_UNAUTHENTICATED, "the identity provider's answer is not believed: %s",
                      what);
}

static bool is_text(const json_t *claims, const char *name, const char *is) {
    const char *s = json_string_value(json_object_get(claims, name));
    return s && strcmp(s, is) == 0;
}

static bool is_for(const json_t *aud, const char *client) {
    if (json_is_string(aud))
        return strcmp(json_string_value(aud), client) == 0;
    for (size_t i = 0; i < json_array_size(aud); i++) {
        const char *s = json_string_value(json_array_get(aud, i));
        if (s && strcmp(s, client) == 0)
            return true;
    }
    return false;
}

static int check_claims(const json_t *c, const struct vg_jwt_want *w, struct vg_err *err) {
    const json_t *aud = json_object_get(c, "aud"), *exp = json_object_get(c, "exp");
    const json_t *nbf = json_object_get(c, "nbf"), *azp = json_object_get(c, "azp");
    json_int_t now = (json_int_t)w->now_sec;
    if (!is_text(c, "iss", w->issuer))
        return bad(err, "it is of another issuer");
    if (!is_for(aud, w->client_id))
        return bad(err, "it is for another client");
    if ((azp || json_array_size(aud) > 1) && !is_text(c, "azp", w->client_id))
        return bad(err, "it was made for another client");
    if (!json_is_number(exp) || (json_int_t)json_number_value(exp) + VG_JWT_LEEWAY_SEC <= now)
        return bad(err, "it has expired; look at the clocks of both");
    if (nbf &&
        (!json_is_number(nbf) || (json_int_t)json_number_value(nbf) > now + VG_JWT_LEEWAY_SEC))
        return bad(err, "it is not valid yet; look at the clocks of both");
    if (w->nonce && !is_text(c, "nonce", w->nonce))
        return bad(err, "it answers another question");
    const char *sub = json_string_value(json_object_get(c, "sub"));
    return sub && *sub ? 0 : bad(err, "it does not say whom it is about");
}

/* ------------------------------------------------------------------ the whole */

static json_t *part_json(const char *text, size_t n) {
    vg_auto_free uint8_t *raw = n && n < PART_MAX ? vg_alloc(n + 1) : NULL;
    int len = raw ? vg_b64url_parse(text, n, raw, n) : -EINVAL;
    json_t *j = len < 0 ? NULL : json_loadb((char *)raw, (size_t)len, JSON_REJECT_DUPLICATES, NULL);
    if (j && !json_is_object(j)) {
        json_decref(j);
        j = NULL;
    }
    return j;
}

static int split(const char *token, struct parts *p) {
    const char *a = strchr(token, '.'), *b = a ? strchr(a + 1, '.') : NULL;
    if (!b || strlen(token) > VG_JWT_MAX || strchr(b + 1, '.'))
        return -EINVAL;
    *p = (struct parts){.token = token, .n_signed = (size_t)(b - token)};
    int n = vg_b64url_parse(b + 1, strlen(b + 1), p->sig, sizeof p->sig);
    if (n < 0)
        return n;
    p->n_sig = (size_t)n;
    p->header = part_json(token, (size_t)(a - token));
    p->claims = part_json(a + 1, (size_t)(b - a - 1));
    return p->header && p->claims ? 0 : -EINVAL;
}

static const struct alg *alg_of(const json_t *header) {
    const char *name = json_string_value(json_object_get(header, "alg"));
    for (size_t i = 0; name && i < VG_COUNT(algs); i++)
        if (strcmp(name, algs[i].name) == 0)
            return &algs[i];
    return NULL;
}

int vg_jwt_check(const char *token, const json_t *jwks, const struct vg_jwt_want *want,
                 json_t **ret, struct vg_err *err) {
    struct parts p = {0};
    int r = split(token, &p) < 0 ? bad(err, "it is no token") : 0;
    const struct alg *a = r < 0 ? NULL : alg_of(p.header);
    if (r >= 0 && (!a || json_object_get(p.header, "crit")))
        r = bad(err, "it is signed in a way that is not taken (RS256, ES256 and EdDSA are)");
    if (r >= 0) {
        r = check_signature(&p, a, jwks);
        if (r == -ENOKEY)
            vg_err_set(err, VG_UNAUTHENTICATED,
                       "the identity provider's answer is not believed: none of its keys has "
                       "signed it");
        else if (r < 0)
            r = bad(err, "its signature is wrong");
    }
    if (r >= 0)
        r = check_claims(p.claims, want, err);
    if (r >= 0)
        *ret = json_incref(p.claims);
    json_decref(p.header);
    json_decref(p.claims);
    return r;
}
