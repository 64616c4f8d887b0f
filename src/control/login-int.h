#pragma once
/* Between the files of logins. */
#include "base/buf.h"
#include "control/login.h"
#include "control/peer.h"
#include "net/fetch.h"

#include <jansson.h>

#define WORD 48 /* 32 random bytes as text */
#define LIFE_USEC (600 * VG_USEC)
#define INTERVAL_USEC (5 * VG_USEC)

/* What is known of the provider, from its own description. */
struct vg_idp {
    char *issuer; /* owned, like the rest: for which these are */
    char *auth_url, *token_url, *device_url, *jwks_url;
    bool post_secret; /* it takes the client's secret in the body alone */
    json_t *jwks;
    uint64_t loaded_usec, keys_usec; /* boot clock */
    bool loading;
    struct vg_list waiting; /* struct vg_login.on_wait */
};

struct vg_login;
typedef void vg_login_step(struct vg_login *l, const struct vg_err *err);

/* One that was begun. While `busy` somebody waits for its next answer. */
struct vg_login {
    struct vg_list on_wait;
    struct vg_logins *all;
    char id[WORD], state[WORD], nonce[WORD], verifier[WORD];
    bool device, busy, over;
    bool keys_again;                                /* the keys were fetched anew for its sake */
    uint64_t until_usec, asked_usec, interval_usec; /* boot clock */
    uint64_t peer;
    uint32_t req;
    char from[64];
    char *name, *redirect, *device_code, *code, *id_token; /* owned */
    vg_login_step *next;
};

struct vg_logins {
    struct vg_control *ctl;
    struct vg_fetcher *fetcher; /* owned */
    struct vg_idp idp;
    struct vg_map open; /* id -> struct vg_login, owned */
};

/* login-steps.c. What runs when the provider is known: a code for a device, an address for a
   browser, the token itself. Each answers whoever waits, or goes on. */
void vg_login_begin_device(struct vg_login *l, const struct vg_err *trouble);
void vg_login_begin_code(struct vg_login *l, const struct vg_err *trouble);
void vg_login_ask_token(struct vg_login *l, const struct vg_err *trouble);
/* Answers: not confirmed yet; an end that is not a good one; anything else. */
void vg_login_pending(struct vg_login *l);
void vg_login_end_badly(struct vg_login *l, const struct vg_err *err);
void vg_login_tell(struct vg_peer *p, uint32_t req, Vg__Pb__LoginInfo *m);

/* login-provider.c. `next` runs when the provider's description and keys are known, or with why
   not; perhaps before this returns. */
void vg_idp_then(struct vg_login *l, vg_login_step *next);
/* The same with keys that are fetched anew. */
void vg_idp_keys_then(struct vg_login *l, vg_login_step *next);
void vg_idp_done(struct vg_idp *p);
/* POSTs a form with the client's identity to one of its addresses. `form` is added to. */
int vg_idp_post(struct vg_login *l, const char *url, struct vg_buf *form, vg_fetch_fn fn,
                struct vg_err *err);
int vg_form_add(struct vg_buf *b, const char *key, const char *value);
/* The answer as an object (caller: json_decref), or NULL with a sentence. A refusal (`error`) is an
   object, too. */
json_t *vg_idp_answer(const struct vg_fetch_answer *a, struct vg_err *err);

/* login-user.c. The user whom these claims are about: found, joined or made, and put where its
   groups belong. */
int vg_login_user(struct vg_control *c, const json_t *claims, const char *from,
                  struct vg_user **ret, struct vg_err *err);
