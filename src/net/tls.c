/* TLS contexts: 1.3 only, the cloud's own CA, pinned by fingerprint on the client's side. Session
   tickets let a client continue an earlier session without certificates being shown again.
   Contexts are shared by the connections of one loop; loop thread only. */
#include "net/tls.h"

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"
#include "net/conn-internal.h"

#include <fcntl.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define CIPHERS "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256"
#define SESSION_SECONDS (2 * 3600)
#define TICKET_MAX (64u << 10)

struct vg_tls {
    unsigned refs;
    SSL_CTX *ctx; /* owned */
    uint8_t pin[VG_FINGERPRINT];
    size_t pin_len;        /* 32, or 16 when only a token is known; 0 for servers */
    uint8_t ticket_id[32]; /* what a kept ticket must belong to: pin and own certificate */
    char *ticket_file;     /* owned; NULL: none */
};

/* ------------------------------------------------------------------ common */

static int why_index = -1; /* the verifier's sentence, owned by the SSL */

static void why_free(void *parent, void *ptr, CRYPTO_EX_DATA *ad, int idx, long argl, void *argp) {
    (void)parent, (void)ad, (void)idx, (void)argl, (void)argp;
    free(ptr);
}

const char *tls_why(const SSL *ssl) {
    return why_index < 0 ? NULL : SSL_get_ex_data(ssl, why_index);
}

static void set_sentence(SSL *ssl, char *owned) {
    free(SSL_get_ex_data(ssl, why_index));
    if (!SSL_set_ex_data(ssl, why_index, owned))
        free(owned);
}

static int ssl_error(struct vg_err *err, const char *what) {
    unsigned long code = ERR_get_error();
    const char *text = code ? ERR_reason_error_string(code) : NULL;
    ERR_clear_error();
    return vg_err_set(err, VG_INVALID, "%s: %s", what, text ? text : "out of memory");
}

static BIO *pem_bio(const char *pem) {
    return BIO_new_mem_buf(pem, -1);
}

static X509 *cert_read(const char *pem) {
    BIO *bio = pem_bio(pem);
    X509 *cert = bio ? PEM_read_bio_X509(bio, NULL, NULL, NULL) : NULL;
    BIO_free(bio);
    return cert;
}

static EVP_PKEY *key_read(const char *pem) {
    BIO *bio = pem_bio(pem);
    EVP_PKEY *key = bio ? PEM_read_bio_PrivateKey(bio, NULL, NULL, NULL) : NULL;
    BIO_free(bio);
    return key;
}

static int use_certificate(SSL_CTX *ctx, const char *cert_pem, const char *key_pem,
                           struct vg_err *err) {
    X509 *cert = cert_read(cert_pem);
    EVP_PKEY *key = key_read(key_pem);
    bool ok = cert && key && SSL_CTX_use_certificate(ctx, cert) == 1 &&
              SSL_CTX_use_PrivateKey(ctx, key) == 1 && SSL_CTX_check_private_key(ctx) == 1;
    X509_free(cert);
    EVP_PKEY_free(key);
    return ok ? 0 : ssl_error(err, "cannot use the certificate and its key");
}

static int new_context(const SSL_METHOD *method, struct vg_tls **ret, struct vg_err *err) {
    if (why_index < 0)
        why_index = SSL_get_ex_new_index(0, NULL, NULL, NULL, why_free);
    struct vg_tls *t = vg_alloc(sizeof(*t));
    if (!t)
        return vg_err_sys(err, -ENOMEM, "cannot set up TLS");
    t->refs = 1;
    t->ctx = SSL_CTX_new(method);
    if (!t->ctx || SSL_CTX_set_min_proto_version(t->ctx, TLS1_3_VERSION) != 1 ||
        SSL_CTX_set_ciphersuites(t->ctx, CIPHERS) != 1) {
        vg_tls_unref(t);
        return ssl_error(err, "cannot set up TLS");
    }
    SSL_CTX_set_mode(t->ctx, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                                 SSL_MODE_RELEASE_BUFFERS);
    SSL_CTX_set_timeout(t->ctx, SESSION_SECONDS);
    *ret = t;
    return 0;
}

struct vg_tls *vg_tls_ref(struct vg_tls *t) {
    t->refs++;
    return t;
}

void vg_tls_unref(struct vg_tls *t) {
    if (!t || --t->refs)
        return;
    SSL_CTX_free(t->ctx);
    free(t->ticket_file);
    free(t);
}

void *vg_tls_ctx(struct vg_tls *t) {
    return t->ctx;
}

/* ------------------------------------------------------------------ server */

static int trust_ca(SSL_CTX *ctx, const char *ca_pem, struct vg_err *err) {
    X509 *ca = cert_read(ca_pem);
    bool ok = ca && X509_STORE_add_cert(SSL_CTX_get_cert_store(ctx), ca) == 1 &&
              SSL_CTX_add1_chain_cert(ctx, ca) == 1;
    X509_free(ca);
    return ok ? 0 : ssl_error(err, "cannot use the CA's certificate");
}

/* Says in a sentence why a client's certificate was refused, for the log. */
static int verify_client(int ok, X509_STORE_CTX *store) {
    SSL *ssl = X509_STORE_CTX_get_ex_data(store, SSL_get_ex_data_X509_STORE_CTX_idx());
    if (!ok && ssl)
        set_sentence(ssl, vg_fmt("its certificate is refused: %s",
                                 X509_verify_cert_error_string(X509_STORE_CTX_get_error(store))));
    return ok;
}

int vg_tls_server_new(const char *cert_pem, const char *key_pem, const char *ca_pem,
                      struct vg_tls **ret, struct vg_err *err) {
    struct vg_tls *t = NULL;
    static const unsigned char id[] = "virga";
    int r = new_context(TLS_server_method(), &t, err);
    if (r < 0)
        return r;
    r = use_certificate(t->ctx, cert_pem, key_pem, err);
    if (r == 0)
        r = trust_ca(t->ctx, ca_pem, err);
    if (r == 0 && (SSL_CTX_set_session_id_context(t->ctx, id, sizeof(id) - 1) != 1 ||
                   SSL_CTX_set_num_tickets(t->ctx, 1) != 1))
        r = ssl_error(err, "cannot set up TLS");
    if (r < 0) {
        vg_tls_unref(t);
        return r;
    }
    SSL_CTX_set_verify(t->ctx, SSL_VERIFY_PEER, verify_client);
    SSL_CTX_set_session_cache_mode(t->ctx, SSL_SESS_CACHE_OFF); /* tickets carry the sessions */
    *ret = t;
    return 0;
}

/* The certificates behind the first one. */
static int use_chain(SSL_CTX *ctx, const char *chain_pem, struct vg_err *err) {
    BIO *bio = pem_bio(chain_pem);
    X509 *cert = bio ? PEM_read_bio_X509(bio, NULL, NULL, NULL) : NULL;
    bool ok = cert != NULL;
    while (ok && (X509_free(cert), cert = PEM_read_bio_X509(bio, NULL, NULL, NULL)))
        ok = SSL_CTX_add1_chain_cert(ctx, cert) == 1;
    X509_free(ok ? NULL : cert);
    BIO_free(bio);
    ERR_clear_error(); /* the end of the text is one, too */
    return ok ? 0 : ssl_error(err, "cannot use the certificate's chain");
}

static int pick_http(SSL *ssl, const unsigned char **out, unsigned char *out_len,
                     const unsigned char *in, unsigned in_len, void *arg) {
    static const unsigned char ours[] = "\x08http/1.1";
    (void)ssl, (void)arg;
    return SSL_select_next_proto((unsigned char **)out, out_len, ours, sizeof(ours) - 1, in,
                                 in_len) == OPENSSL_NPN_NEGOTIATED
               ? SSL_TLSEXT_ERR_OK
               : SSL_TLSEXT_ERR_NOACK;
}

int vg_tls_web_new(const char *chain_pem, const char *key_pem, struct vg_tls **ret,
                   struct vg_err *err) {
    struct vg_tls *t = NULL;
    int r = new_context(TLS_server_method(), &t, err);
    if (r < 0)
        return r;
    r = use_certificate(t->ctx, chain_pem, key_pem, err);
    if (r == 0)
        r = use_chain(t->ctx, chain_pem, err);
    if (r < 0) {
        vg_tls_unref(t);
        return r;
    }
    SSL_CTX_set_alpn_select_cb(t->ctx, pick_http, NULL);
    SSL_CTX_set_session_cache_mode(t->ctx, SSL_SESS_CACHE_OFF); /* tickets carry the sessions */
    *ret = t;
    return 0;
}

/* ------------------------------------------------------------------ client: the pinned CA */

static X509 *find_pinned(const struct vg_tls *t, STACK_OF(X509) * chain, char seen[33]) {
    for (int i = 0; i < sk_X509_num(chain); i++) {
        uint8_t digest[VG_FINGERPRINT];
        unsigned len = sizeof(digest);
        X509 *cert = sk_X509_value(chain, i);
        if (X509_digest(cert, EVP_sha256(), digest, &len) != 1)
            continue;
        if (CRYPTO_memcmp(digest, t->pin, t->pin_len) == 0)
            return cert;
        for (size_t k = 0; k < 16; k++)
            (void)snprintf(seen + 2 * k, 3, "%02x", digest[k]);
    }
    return NULL;
}

/* The chain below the pinned CA, by OpenSSL's own rules: signature, dates, purpose. */
static int verify_below(X509_STORE_CTX *given, X509 *ca) {
    X509_STORE *store = X509_STORE_new();
    X509_STORE_CTX *ctx = X509_STORE_CTX_new();
    int code = X509_V_ERR_OUT_OF_MEM;
    if (store && ctx && X509_STORE_add_cert(store, ca) == 1 &&
        X509_STORE_CTX_init(ctx, store, X509_STORE_CTX_get0_cert(given), NULL) == 1) {
        X509_STORE_CTX_set_purpose(ctx, X509_PURPOSE_SSL_SERVER);
        code = X509_verify_cert(ctx) == 1 ? X509_V_OK : X509_STORE_CTX_get_error(ctx);
        if (code == X509_V_OK && X509_cmp(X509_STORE_CTX_get0_cert(given), ca) == 0)
            code = X509_V_ERR_CERT_REJECTED; /* the CA itself is no server */
    }
    X509_STORE_CTX_free(ctx);
    X509_STORE_free(store);
    return code;
}

static int verify_server(X509_STORE_CTX *store, void *arg) {
    struct vg_tls *t = arg;
    SSL *ssl = X509_STORE_CTX_get_ex_data(store, SSL_get_ex_data_X509_STORE_CTX_idx());
    char seen[33] = "none";
    X509 *ca = find_pinned(t, X509_STORE_CTX_get0_untrusted(store), seen);
    int code = ca ? verify_below(store, ca) : X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN;
    X509_STORE_CTX_set_error(store, code);
    if (code == X509_V_OK)
        return 1;
    if (!ca)
        set_sentence(ssl, vg_fmt("this is not the cloud that the token or certificate belongs to "
                                 "(its CA is %s); check the address, or get a new token there",
                                 seen));
    else
        set_sentence(ssl, vg_fmt("the server's certificate is refused: %s; check the clocks of "
                                 "both machines, or restart the control plane to renew it",
                                 X509_verify_cert_error_string(code)));
    return 0;
}

/* ------------------------------------------------------------------ client: tickets */

/* The file: ticket_id, then the session in DER. Replaced whole, never synced: a lost ticket costs
   one full handshake. */
static int ticket_new(SSL *ssl, SSL_SESSION *session) {
    struct vg_tls *t = SSL_CTX_get_app_data(SSL_get_SSL_CTX(ssl));
    int len = i2d_SSL_SESSION(session, NULL);
    if (!t->ticket_file || len <= 0 || (unsigned)len > TICKET_MAX - sizeof(t->ticket_id))
        return 0;
    size_t n = sizeof(t->ticket_id) + (size_t)len;
    vg_auto_free uint8_t *data = vg_alloc(n);
    vg_auto_free char *tmp = vg_fmt("%s.%d", t->ticket_file, (int)getpid());
    if (!data || !tmp)
        return 0;
    unsigned char *p = data + sizeof(t->ticket_id);
    memcpy(data, t->ticket_id, sizeof(t->ticket_id));
    (void)i2d_SSL_SESSION(session, &p);
    vg_auto_fd int fd = open(tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return 0;
    if (vg_write_full(fd, data, n) < 0 || rename(tmp, t->ticket_file) < 0)
        unlink(tmp);
    return 0; /* we keep no reference to the session */
}

static void ticket_use(struct vg_tls *t, SSL *ssl) {
    vg_auto_free char *data = NULL;
    size_t n = 0;
    if (!t->ticket_file || vg_read_file(t->ticket_file, TICKET_MAX, &data, &n) < 0 ||
        n <= sizeof(t->ticket_id) || memcmp(data, t->ticket_id, sizeof(t->ticket_id)) != 0)
        return;
    const unsigned char *p = (unsigned char *)data + sizeof(t->ticket_id);
    SSL_SESSION *session = d2i_SSL_SESSION(NULL, &p, (long)(n - sizeof(t->ticket_id)));
    if (session)
        (void)SSL_set_session(ssl, session);
    SSL_SESSION_free(session);
    ERR_clear_error();
}

static int ticket_identity(struct vg_tls *t, const char *cert_pem, struct vg_err *err) {
    EVP_MD_CTX *md = EVP_MD_CTX_new();
    bool ok = md && EVP_DigestInit_ex(md, EVP_sha256(), NULL) == 1 &&
              EVP_DigestUpdate(md, t->pin, t->pin_len) == 1 &&
              (!cert_pem || EVP_DigestUpdate(md, cert_pem, strlen(cert_pem)) == 1) &&
              EVP_DigestFinal_ex(md, t->ticket_id, NULL) == 1;
    EVP_MD_CTX_free(md);
    return ok ? 0 : ssl_error(err, "cannot set up TLS");
}

SSL *tls_session_new(struct vg_tls *t, bool client) {
    SSL *ssl = SSL_new(t->ctx);
    if (ssl && client)
        ticket_use(t, ssl);
    return ssl;
}

static int client_new(const uint8_t *pin, size_t pin_len, const char *cert_pem, const char *key_pem,
                      const char *ticket_file, struct vg_tls **ret, struct vg_err *err) {
    struct vg_tls *t = NULL;
    int r = new_context(TLS_client_method(), &t, err);
    if (r < 0)
        return r;
    memcpy(t->pin, pin, pin_len);
    t->pin_len = pin_len;
    r = ticket_identity(t, cert_pem, err);
    t->ticket_file = vg_strdup(ticket_file);
    if (r == 0 && ticket_file && !t->ticket_file)
        r = vg_err_sys(err, -ENOMEM, "cannot set up TLS");
    if (r == 0 && cert_pem && key_pem)
        r = use_certificate(t->ctx, cert_pem, key_pem, err);
    if (r < 0) {
        vg_tls_unref(t);
        return r;
    }
    SSL_CTX_set_app_data(t->ctx, t);
    SSL_CTX_set_verify(t->ctx, SSL_VERIFY_PEER, NULL);
    SSL_CTX_set_cert_verify_callback(t->ctx, verify_server, t);
    SSL_CTX_set_session_cache_mode(t->ctx, SSL_SESS_CACHE_CLIENT | SSL_SESS_CACHE_NO_INTERNAL);
    SSL_CTX_sess_set_new_cb(t->ctx, ticket_new);
    *ret = t;
    return 0;
}

int vg_tls_client_new(const uint8_t ca_fingerprint[VG_FINGERPRINT], const char *cert_pem,
                      const char *key_pem, const char *ticket_file, struct vg_tls **ret,
                      struct vg_err *err) {
    return client_new(ca_fingerprint, VG_FINGERPRINT, cert_pem, key_pem, ticket_file, ret, err);
}

static int hex_value(char ch) {
    if (ch >= '0' && ch <= '9')
        return ch - '0';
    return ch >= 'a' && ch <= 'f' ? ch - 'a' + 10 : -1;
}

int vg_tls_client_new_prefix(const char ca_hex32[static 33], const char *cert_pem,
                             const char *key_pem, const char *ticket_file, struct vg_tls **ret,
                             struct vg_err *err) {
    uint8_t pin[16];
    for (size_t i = 0; i < sizeof(pin); i++) {
        int hi = hex_value(ca_hex32[2 * i]), lo = hi < 0 ? -1 : hex_value(ca_hex32[2 * i + 1]);
        if (lo < 0)
            return vg_err_set(err, VG_INVALID,
                              "the token's last part is not 32 hex digits; copy it again");
        pin[i] = (uint8_t)(hi << 4 | lo);
    }
    return client_new(pin, sizeof(pin), cert_pem, key_pem, ticket_file, ret, err);
}
