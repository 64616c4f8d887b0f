#pragma once
/* ID tokens of an identity provider: signed by one of its keys, and saying what they must. Pure:
   the keys, the time and the expectations are passed in.

   What always holds: only RS256, ES256 and EdDSA (Ed25519) are believed, each with a key of its own
   kind; nothing that the token says about itself chooses another way. */
#include "base/err.h"

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#define VG_JWT_MAX (64u << 10)
#define VG_JWT_LEEWAY_SEC 60 /* how far the provider's clock may be off */
#define VG_JWT_RSA_BITS_MIN 2048
#define VG_JWKS_MAX 64 /* keys that are looked at */

struct vg_jwt_want {
    const char *issuer, *client_id;
    const char *nonce; /* NULL: none was sent */
    uint64_t now_sec;
};

/* The claims (caller: json_decref) of a token that is good. -ENOKEY: no key of the set has signed
   it; the set may be old. Everything else is UNAUTHENTICATED, with a sentence. */
int vg_jwt_check(const char *token, const json_t *jwks, const struct vg_jwt_want *want,
                 json_t **ret, struct vg_err *err);

/* Base64 for URLs, without padding. Decoding: the length, or -EINVAL. */
size_t vg_b64url(const void *data, size_t n, char *out,
                 size_t room); /* room: (n + 2) / 3 * 4 + 1 */
int vg_b64url_parse(const char *text, size_t n, uint8_t *out, size_t room);
