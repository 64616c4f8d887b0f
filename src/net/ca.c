/* The cloud's certificate authority: EC P-256 keys, X.509 v3. Pure functions over PEM and DER; no
   files, any thread. */
#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"
#include "net/tls.h"

#include <openssl/asn1.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define CA_YEARS 20
#define CSR_MAX (16u << 10)
#define CN_MAX 64            /* of X.520 */
#define BACKDATE_SECONDS 300 /* clocks of machines that join differ a little */

static int ca_error(struct vg_err *err, const char *what) {
    unsigned long code = ERR_get_error();
    const char *text = code ? ERR_reason_error_string(code) : NULL;
    ERR_clear_error();
    return vg_err_set(err, VG_INVALID, "%s: %s", what, text ? text : "it is malformed");
}

#define AUTO(type, free_fn)                    \
    static inline void auto_##type(type **p) { \
        free_fn(*p);                           \
    }
AUTO(BIO, BIO_free_all)
AUTO(X509, X509_free)
AUTO(X509_REQ, X509_REQ_free)
AUTO(EVP_PKEY, EVP_PKEY_free)
#undef AUTO
#define auto_of(type) __attribute__((cleanup(auto_##type))) type

/* ------------------------------------------------------------------ PEM */

static char *bio_text(BIO *bio) {
    char *data = NULL;
    long n = BIO_get_mem_data(bio, &data);
    return n > 0 ? vg_strndup(data, (size_t)n) : NULL;
}

static char *key_pem(EVP_PKEY *key) {
    auto_of(BIO) *bio = BIO_new(BIO_s_mem());
    if (!bio || PEM_write_bio_PrivateKey(bio, key, NULL, NULL, 0, NULL, NULL) != 1)
        return NULL;
    return bio_text(bio);
}

static char *cert_pem(X509 *cert) {
    auto_of(BIO) *bio = BIO_new(BIO_s_mem());
    if (!bio || PEM_write_bio_X509(bio, cert) != 1)
        return NULL;
    return bio_text(bio);
}

static X509 *parse_cert(const char *pem) {
    auto_of(BIO) *bio = BIO_new_mem_buf(pem, -1);
    return bio ? PEM_read_bio_X509(bio, NULL, NULL, NULL) : NULL;
}

static EVP_PKEY *parse_key(const char *pem) {
    auto_of(BIO) *bio = BIO_new_mem_buf(pem, -1);
    return bio ? PEM_read_bio_PrivateKey(bio, NULL, NULL, NULL) : NULL;
}

/* ------------------------------------------------------------------ building certificates */

static int set_serial(X509 *cert) {
    unsigned char raw[16];
    vg_random(raw, sizeof(raw));
    raw[0] &= 0x7f;
    BIGNUM *bn = BN_bin2bn(raw, sizeof(raw), NULL);
    bool ok = bn && BN_to_ASN1_INTEGER(bn, X509_get_serialNumber(cert));
    BN_free(bn);
    return ok ? 0 : -ENOMEM;
}

static int set_name(X509_NAME *name, const char *cn) {
    size_t n = strlen(cn);
    if (n == 0 || n > CN_MAX)
        return -EINVAL;
    return X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_UTF8, (const unsigned char *)cn, (int)n,
                                      -1, 0) == 1
               ? 0
               : -ENOMEM;
}

static int add_ext(X509 *cert, X509 *issuer, int nid, const char *value) {
    X509V3_CTX ctx;
    X509V3_set_ctx_nodb(&ctx);
    X509V3_set_ctx(&ctx, issuer, cert, NULL, NULL, 0);
    X509_EXTENSION *ext = X509V3_EXT_conf_nid(NULL, &ctx, nid, value);
    bool ok = ext && X509_add_ext(cert, ext, -1) == 1;
    X509_EXTENSION_free(ext);
    return ok ? 0 : -ENOMEM;
}

/* Both ends in seconds from now. */
static int set_dates(X509 *cert, int64_t from, int64_t until) {
    time_t now = time(NULL);
    bool ok = ASN1_TIME_set(X509_getm_notBefore(cert), now + (time_t)from) &&
              ASN1_TIME_set(X509_getm_notAfter(cert), now + (time_t)until);
    return ok ? 0 : -ENOMEM;
}

static X509 *new_cert(EVP_PKEY *key, const char *cn, X509 *issuer, int64_t seconds) {
    X509 *cert = X509_new();
    if (cert && X509_set_version(cert, X509_VERSION_3) == 1 && set_serial(cert) == 0 &&
        set_name(X509_get_subject_name(cert), cn) == 0 &&
        X509_set_issuer_name(cert, X509_get_subject_name(issuer ? issuer : cert)) == 1 &&
        set_dates(cert, -BACKDATE_SECONDS, seconds) == 0 && X509_set_pubkey(cert, key) == 1)
        return cert;
    X509_free(cert);
    return NULL;
}

int vg_ca_create(const char *cloud, char **ret_cert_pem, char **ret_key_pem, struct vg_err *err) {
    char cn[CN_MAX + 1];
    (void)snprintf(cn, sizeof(cn), "Virga cloud %s", cloud);
    auto_of(EVP_PKEY) *key = EVP_EC_gen("P-256");
    auto_of(X509) *cert = key ? new_cert(key, cn, NULL, (int64_t)CA_YEARS * 365 * 86400) : NULL;
    if (!cert || add_ext(cert, cert, NID_basic_constraints, "critical,CA:TRUE,pathlen:0") < 0 ||
        add_ext(cert, cert, NID_key_usage, "critical,keyCertSign,cRLSign") < 0 ||
        add_ext(cert, cert, NID_subject_key_identifier, "hash") < 0 ||
        X509_sign(cert, key, EVP_sha256()) == 0)
        return ca_error(err, "cannot create the CA");
    vg_auto_free char *c = cert_pem(cert);
    vg_auto_free char *k = key_pem(key);
    if (!c || !k)
        return vg_err_sys(err, -ENOMEM, "cannot create the CA");
    *ret_cert_pem = vg_take_ptr(c);
    *ret_key_pem = vg_take_ptr(k);
    return 0;
}

int vg_ca_fingerprint(const char *pem, uint8_t ret[VG_FINGERPRINT], struct vg_err *err) {
    auto_of(X509) *cert = parse_cert(pem);
    unsigned len = VG_FINGERPRINT;
    if (!cert || X509_digest(cert, EVP_sha256(), ret, &len) != 1)
        return ca_error(err, "cannot read the CA's certificate");
    return 0;
}

int vg_key_create(char **ret_key_pem, struct vg_err *err) {
    auto_of(EVP_PKEY) *key = EVP_EC_gen("P-256");
    char *pem = key ? key_pem(key) : NULL;
    if (!pem)
        return ca_error(err, "cannot create a key");
    *ret_key_pem = pem;
    return 0;
}

int vg_csr_create(const char *pem, const char *cn, uint8_t **ret_der, size_t *ret_len,
                  struct vg_err *err) {
    auto_of(EVP_PKEY) *key = parse_key(pem);
    if (!key)
        return ca_error(err, "cannot read the private key");
    auto_of(X509_REQ) *req = X509_REQ_new();
    if (!req || set_name(X509_REQ_get_subject_name(req), cn) < 0 ||
        X509_REQ_set_pubkey(req, key) != 1 || X509_REQ_sign(req, key, EVP_sha256()) == 0)
        return ca_error(err, "cannot create a certificate request");
    unsigned char *der = NULL;
    int n = i2d_X509_REQ(req, &der);
    uint8_t *copy = n > 0 ? vg_memdup(der, (size_t)n) : NULL;
    OPENSSL_free(der);
    if (!copy)
        return vg_err_sys(err, -ENOMEM, "cannot create a certificate request");
    *ret_der = copy;
    *ret_len = (size_t)n;
    return 0;
}

/* ------------------------------------------------------------------ signing */

/* The request's key, if the request is well-formed, signed by that key, and on our curve. */
static EVP_PKEY *csr_key(const uint8_t *der, size_t len) {
    const unsigned char *p = der;
    char group[32];
    size_t n = 0;
    if (len > CSR_MAX)
        return NULL;
    auto_of(X509_REQ) *req = d2i_X509_REQ(NULL, &p, (long)len);
    auto_of(EVP_PKEY) *key = req ? X509_REQ_get_pubkey(req) : NULL;
    if (!key || EVP_PKEY_get_group_name(key, group, sizeof(group), &n) != 1 ||
        strcmp(group, "prime256v1") != 0 || X509_REQ_verify(req, key) != 1)
        return NULL;
    return vg_take_ptr(key);
}

int vg_ca_sign(const char *ca_cert_pem, const char *ca_key_pem, const uint8_t *csr_der,
               size_t csr_len, const char *cn, uint64_t ttl_usec, char **ret_cert_pem,
               struct vg_err *err) {
    return vg_ca_sign_names(ca_cert_pem, ca_key_pem, csr_der, csr_len, cn, NULL, ttl_usec,
                            ret_cert_pem, err);
}

int vg_ca_sign_names(const char *ca_cert_pem, const char *ca_key_pem, const uint8_t *csr_der,
                     size_t csr_len, const char *cn, const char *names, uint64_t ttl_usec,
                     char **ret_cert_pem, struct vg_err *err) {
    auto_of(X509) *ca = parse_cert(ca_cert_pem);
    auto_of(EVP_PKEY) *ca_key = parse_key(ca_key_pem);
    if (!ca || !ca_key || X509_check_private_key(ca, ca_key) != 1)
        return ca_error(err, "cannot use the CA's certificate and key");
    auto_of(EVP_PKEY) *key = csr_key(csr_der, csr_len);
    if (!key)
        return ca_error(err, "the certificate request is refused");
    auto_of(X509) *cert = new_cert(key, cn, ca, (int64_t)(ttl_usec / VG_USEC));
    if (!cert || add_ext(cert, ca, NID_basic_constraints, "critical,CA:FALSE") < 0 ||
        add_ext(cert, ca, NID_key_usage, "critical,digitalSignature") < 0 ||
        add_ext(cert, ca, NID_ext_key_usage, "serverAuth,clientAuth") < 0 ||
        add_ext(cert, ca, NID_authority_key_identifier, "keyid") < 0 || /* strict clients ask */
        (names && add_ext(cert, ca, NID_subject_alt_name, names) < 0) ||
        X509_sign(cert, ca_key, EVP_sha256()) == 0)
        return ca_error(err, "cannot sign the certificate");
    char *pem = cert_pem(cert);
    if (!pem)
        return vg_err_sys(err, -ENOMEM, "cannot sign the certificate");
    *ret_cert_pem = pem;
    return 0;
}

bool vg_cert_has_name(const char *pem, const char *name) {
    auto_of(X509) *cert = parse_cert(pem);
    return cert && (X509_check_ip_asc(cert, name, 0) == 1 ||
                    X509_check_host(cert, name, 0, X509_CHECK_FLAG_NEVER_CHECK_SUBJECT, NULL) == 1);
}

int vg_cert_expires(const char *pem, uint64_t *ret_wall_usec, struct vg_err *err) {
    auto_of(X509) *cert = parse_cert(pem);
    struct tm tm = {0};
    if (!cert || ASN1_TIME_to_tm(X509_get0_notAfter(cert), &tm) != 1)
        return ca_error(err, "cannot read the certificate");
    time_t t = timegm(&tm);
    *ret_wall_usec = t < 0 ? 0 : (uint64_t)t * VG_USEC;
    return 0;
}
