#pragma once
/* API tokens in memory: id, owner, hash of the secret. */
#include "control/control.h"

struct vg_apikey {
    char id[17];
    char *user, *name; /* owned */
    uint8_t hash[32];
    uint64_t created_usec, expires_usec, used_usec;
    unsigned scope; /* enum vg_scope */
};

/* The token's entry, which is the map's. UNAUTHENTICATED with a sentence: malformed, of another
   cloud, unknown, expired. */
int vg_key_check(struct vg_control *c, const char *text, const struct vg_apikey **ret,
                 struct vg_err *err);
/* The same of one that was good once: connections outlive tokens. */
int vg_key_still_good(struct vg_control *c, const char *id, struct vg_err *err);
int vg_key_add(struct vg_control *c, const struct vg_token_row *row); /* into memory only */
/* What a new one will be, and who wants it. Borrowed. */
struct vg_key_wish {
    const char *user, *name;
    const struct vg_apikey *old; /* that it follows, and that the caller forgets; NULL: none */
    unsigned scope;
    uint64_t ttl_usec;  /* 0: for ever */
    uint64_t most_usec; /* wall time that it does not see, whatever its life; 0: none */
    const char *by, *from;
    const char *login; /* it is a login, by this way; NULL: it was asked for as a token */
};
/* Makes one, in memory and on its way to the store, and notes it; the caller wipes *ret. -ENOMEM,
   -ENOBUFS. */
int vg_key_make(struct vg_control *c, const struct vg_key_wish *w, vg_store_cb *cb, void *arg,
                struct vg_token *ret);
void vg_key_remove(struct vg_control *c, const char *id);
/* A browser's session is a token with this name and, when it was begun with a token, that one's id:
   it ends with it. */
#define VG_KEY_SESSION "browser"
#define VG_KEY_SESSION_MAX 32
void vg_key_session_name(const char *key, char out[static VG_KEY_SESSION_MAX]);
/* Whether it is one that was begun with a token. */
bool vg_key_is_session(const struct vg_apikey *k);
/* What was begun with that token, from the store, too. */
void vg_keys_end_sessions(struct vg_control *c, const char *user, const char *key);
/* Those of this user that have expired, from the store, too. */
void vg_keys_drop_over(struct vg_control *c, const char *user);
void vg_keys_remove_user(struct vg_control *c, const char *user);
void vg_keys_done(struct vg_control *c);
