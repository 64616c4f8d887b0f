#pragma once
/* TLS 1.3 contexts and the cloud's own certificate authority. Nothing of OpenSSL is initialised
   before the first call here. */
#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define VG_FINGERPRINT 32 /* SHA-256 of the CA certificate's DER */

struct vg_tls; /* a context: shared by connections, reference counted */

/* The control plane's and node's stream port: own certificate, peers' client certificates are
   verified against ca when offered, not required. PEM strings. */
int vg_tls_server_new(const char *cert_pem, const char *key_pem, const char *ca_pem,
                      struct vg_tls **ret, struct vg_err *err);
/* A port for browsers: asks nobody for a certificate, speaks HTTP/1.1 only. The chain may hold
   several certificates, its own first. */
int vg_tls_web_new(const char *chain_pem, const char *key_pem, struct vg_tls **ret,
                   struct vg_err *err);
/* A client that accepts exactly the CA with this fingerprint; the server sends the CA in its chain.
   cert/key may be NULL. ticket_file (may be NULL) keeps session tickets for resumption. */
int vg_tls_client_new(const uint8_t ca_fingerprint[VG_FINGERPRINT], const char *cert_pem,
                      const char *key_pem, const char *ticket_file, struct vg_tls **ret,
                      struct vg_err *err);
struct vg_tls *vg_tls_ref(struct vg_tls *t);
void vg_tls_unref(struct vg_tls *t);
void *vg_tls_ctx(struct vg_tls *t); /* SSL_CTX *, for conn.c */

/* The CA. Everything is PEM; strings are owned by the caller. EC P-256. */
int vg_ca_create(const char *cloud, char **ret_cert_pem, char **ret_key_pem, struct vg_err *err);
int vg_ca_fingerprint(const char *cert_pem, uint8_t ret[VG_FINGERPRINT], struct vg_err *err);
int vg_key_create(char **ret_key_pem, struct vg_err *err);
int vg_csr_create(const char *key_pem, const char *cn, uint8_t **ret_der, size_t *ret_len,
                  struct vg_err *err);
/* Signs: the subject is `cn`, whatever the request says; the request's own signature is checked. */
int vg_ca_sign(const char *ca_cert_pem, const char *ca_key_pem, const uint8_t *csr_der,
               size_t csr_len, const char *cn, uint64_t ttl_usec, char **ret_cert_pem,
               struct vg_err *err);
/* The same with names for browsers: "DNS:localhost,IP:127.0.0.1", which the caller has checked. */
int vg_ca_sign_names(const char *ca_cert_pem, const char *ca_key_pem, const uint8_t *csr_der,
                     size_t csr_len, const char *cn, const char *names, uint64_t ttl_usec,
                     char **ret_cert_pem, struct vg_err *err);
bool vg_cert_has_name(const char *cert_pem, const char *name); /* a host's, or an address */
int vg_cert_expires(const char *cert_pem, uint64_t *ret_wall_usec, struct vg_err *err);

/* Tokens: "<prefix>_<id>_<secret>_<ca fingerprint, first 32 hex digits>"; prefix vgt or vgj. */
struct vg_token {
    char prefix[4];
    char id[17];     /* 16 hex digits */
    char secret[33]; /* 32 hex digits */
    char ca[33];     /* first half of the CA's fingerprint */
};
void vg_token_new(const char *prefix, const uint8_t ca_fingerprint[VG_FINGERPRINT],
                  struct vg_token *ret);
int vg_token_parse(const char *text, struct vg_token *ret);
void vg_token_format(const struct vg_token *t, char out[static 96]);
/* SHA-256 of the secret: what is stored. Compared in constant time. */
void vg_token_hash(const struct vg_token *t, uint8_t ret[32]);
int vg_token_check(const struct vg_token *t, const uint8_t hash[32]); /* 0 or -EACCES */
/* Since tokens carry half of the fingerprint, a client context may be made from that half. */
int vg_tls_client_new_prefix(const char ca_hex32[static 33], const char *cert_pem,
                             const char *key_pem, const char *ticket_file, struct vg_tls **ret,
                             struct vg_err *err);
