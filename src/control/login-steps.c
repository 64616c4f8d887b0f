/* The steps of a login: asking the provider, believing its answers, and the token that comes of
   them. Each runs when the one before has been answered (login.c has the whole). */
#include "base/buf.h"
#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"
#include "control/audit.h"
#include "control/jwt.h"
#include "control/keys.h"
#include "control/login-int.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <string.h>

#define B(name) VG__PB__ENVELOPE__BODY_##name
#define DEVICE_GRANT "urn:ietf:params:oauth:grant-type:device_code"

/* ------------------------------------------------------------------ answers */

static struct vg_peer *asker(struct vg_login *l) {
    l->busy = false;
    return vg_peer_find(l->all->ctl, l->peer);
}

static void fail(struct vg_login *l, const struct vg_err *err) {
    struct vg_peer *p = asker(l);
    if (p)
        vg_peer_fail(p, l->req, err);
}

/* It has come to an end, and not to a good one. */
void vg_login_end_badly(struct vg_login *l, const struct vg_err *err) {
    l->over = true;
    vg_audit_refused(l->all->ctl, l->from, "provider", err->msg);
    fail(l, err);
}

void vg_login_tell(struct vg_peer *p, uint32_t req, Vg__Pb__LoginInfo *m) {
    VG_ENVELOPE(env);
    env.body_case = B(LOGIN_INFO);
    env.login_info = m;
    vg_peer_send(p, req, false, &env);
}

static uint64_t wall_end(const struct vg_login *l) {
    uint64_t now = vg_now_usec();
    return vg_wall_usec() + (l->until_usec > now ? l->until_usec - now : 0);
}

/* ------------------------------------------------------------------ a token at last */

struct ready {
    struct vg_control *ctl;
    char id[WORD], token[96], user[VG_TENANT_NAME_MAX + 1];
};

static void on_stored(void *arg, int result) {
    struct ready *r = arg;
    struct vg_login *l = r->ctl->logins ? vg_map_get(&r->ctl->logins->open, r->id) : NULL;
    struct vg_err err = VG_ERR_INIT;
    struct vg_peer *p = l ? asker(l) : NULL;
    if (p && result < 0) {
        vg_err_sys(&err, result, "the login could not be stored");
        vg_peer_fail(p, l->req, &err);
    } else if (p) {
        Vg__Pb__LoginInfo m = VG__PB__LOGIN_INFO__INIT;
        m.id = l->id;
        m.token = r->token;
        m.user = r->user;
        vg_login_tell(p, l->req, &m);
    }
    OPENSSL_cleanse(r->token, sizeof r->token);
    free(r);
}

static uint64_t life_of(const struct vg_login *l) {
    const struct vg_conf *conf = &l->all->ctl->conf;
    uint64_t usec = conf->oidc.token_usec ? conf->oidc.token_usec : VG_OIDC_TOKEN_USEC;
    if (l->name && strcmp(l->name, VG_KEY_SESSION) == 0)
        usec = VG_OIDC_BROWSER_USEC;
    uint64_t most = conf->access.token_max_usec;
    return most ? VG_MIN(usec, most) : usec;
}

static int give_token(struct vg_login *l, const struct vg_user *u, struct vg_err *err) {
    struct vg_control *c = l->all->ctl;
    struct vg_key_wish wish = {.user = u->name,
                               .name = l->name ? l->name : "login",
                               .scope = VG_SCOPE_ALL,
                               .ttl_usec = life_of(l),
                               .by = u->name,
                               .from = l->from,
                               .login = "provider"};
    struct ready *r = vg_alloc(sizeof *r);
    struct vg_token t;
    vg_keys_drop_over(c, u->name);
    if (!r || vg_key_make(c, &wish, on_stored, r, &t) < 0) {
        free(r);
        return vg_err_sys(err, -ENOMEM, "cannot log in");
    }
    r->ctl = c;
    snprintf(r->id, sizeof r->id, "%s", l->id);
    snprintf(r->user, sizeof r->user, "%s", u->name);
    vg_token_format(&t, r->token);
    OPENSSL_cleanse(&t, sizeof t);
    return 0;
}

/* The ID token is there: whose is it? A key that is not known may be a new one. */
static void believe(struct vg_login *l, const struct vg_err *trouble) {
    struct vg_control *c = l->all->ctl;
    struct vg_err err = trouble ? *trouble : VG_ERR_INIT;
    struct vg_user *u = NULL;
    json_t *claims = NULL;
    const char *issuer = c->conf.oidc.issuer, *client = c->conf.oidc.client_id;
    struct vg_jwt_want want = {.issuer = issuer ? issuer : "",
                               .client_id = client ? client : "",
                               .nonce = l->device ? NULL : l->nonce,
                               .now_sec = vg_wall_usec() / VG_USEC};
    int r = trouble ? -EIO : vg_jwt_check(l->id_token, l->all->idp.jwks, &want, &claims, &err);
    if (r == -ENOKEY && !l->keys_again) {
        l->keys_again = true;
        vg_idp_keys_then(l, believe);
        return;
    }
    vg_store_group_begin(c->store); /* who he is now, and his token */
    if (r >= 0)
        r = vg_login_user(c, claims, l->from, &u, &err);
    if (r >= 0)
        r = give_token(l, u, &err);
    vg_store_group_end(c->store);
    json_decref(claims);
    if (r < 0)
        vg_login_end_badly(l, &err);
    else
        l->over = true;
}

/* ------------------------------------------------------------------ asking for tokens */

void vg_login_pending(struct vg_login *l) {
    struct vg_peer *p = asker(l);
    Vg__Pb__LoginInfo m = VG__PB__LOGIN_INFO__INIT;
    m.id = l->id;
    m.has_interval_usec = m.has_expires_usec = 1;
    m.interval_usec = l->interval_usec;
    m.expires_usec = wall_end(l);
    if (p)
        vg_login_tell(p, l->req, &m);
}

static void refused(struct vg_login *l, const json_t *j) {
    const char *e = json_string_value(json_object_get(j, "error"));
    const char *says = json_string_value(json_object_get(j, "error_description"));
    struct vg_err err = VG_ERR_INIT;
    if (l->device && strcmp(e, "authorization_pending") == 0) {
        vg_login_pending(l);
        return;
    }
    if (l->device && strcmp(e, "slow_down") == 0) {
        l->interval_usec += INTERVAL_USEC;
        vg_login_pending(l);
        return;
    }
    vg_err_set(&err, VG_UNAUTHENTICATED, "the identity provider refuses the login: %.200s",
               says ? says : e);
    vg_login_end_badly(l, &err);
}

static void on_token(void *user, const struct vg_fetch_answer *a) {
    struct vg_login *l = user;
    struct vg_err err = VG_ERR_INIT;
    json_t *j = vg_idp_answer(a, &err);
    const char *token = json_string_value(json_object_get(j, "id_token"));
    if (!j) {
        fail(l, &err); /* it may be asked again */
    } else if (json_object_get(j, "error")) {
        refused(l, j);
    } else if (!token || !(l->id_token = vg_strdup(token))) {
        vg_err_set(&err, VG_UNAUTHENTICATED,
                   "the identity provider gave no ID token: 'openid' must be among oidc.scopes");
        vg_login_end_badly(l, &err);
    } else {
        believe(l, NULL);
    }
    json_decref(j);
}

void vg_login_ask_token(struct vg_login *l, const struct vg_err *trouble) {
    struct vg_err err = trouble ? *trouble : VG_ERR_INIT;
    struct vg_buf form = {0};
    int r = trouble ? -EIO : 0;
    if (r >= 0 && l->device)
        r = vg_form_add(&form, "grant_type", DEVICE_GRANT) < 0 ||
                    vg_form_add(&form, "device_code", l->device_code) < 0
                ? -ENOMEM
                : 0;
    else if (r >= 0)
        r = vg_form_add(&form, "grant_type", "authorization_code") < 0 ||
                    vg_form_add(&form, "code", l->code) < 0 ||
                    vg_form_add(&form, "redirect_uri", l->redirect) < 0 ||
                    vg_form_add(&form, "code_verifier", l->verifier) < 0
                ? -ENOMEM
                : 0;
    if (r == -ENOMEM)
        vg_err_sys(&err, r, "cannot log in");
    if (r >= 0)
        r = vg_idp_post(l, l->all->idp.token_url, &form, on_token, &err);
    vg_buf_done(&form);
    if (r < 0)
        fail(l, &err);
}

/* ------------------------------------------------------------------ beginning */

static int add_scopes(const struct vg_conf *conf, struct vg_buf *form) {
    char text[512] = "openid profile email";
    size_t n = 0;
    for (size_t i = 0; i < conf->oidc.scopes.n && n < sizeof text; i++)
        n += (size_t)snprintf(text + n, sizeof text - n, "%s%s", i ? " " : "",
                              conf->oidc.scopes.item[i]);
    return vg_form_add(form, "scope", text);
}

static void on_device(void *user, const struct vg_fetch_answer *a) {
    struct vg_login *l = user;
    struct vg_err err = VG_ERR_INIT;
    json_t *j = vg_idp_answer(a, &err);
    const char *code = json_string_value(json_object_get(j, "device_code"));
    const char *user_code = json_string_value(json_object_get(j, "user_code"));
    const char *url = json_string_value(json_object_get(j, "verification_uri_complete"));
    json_int_t life = json_integer_value(json_object_get(j, "expires_in"));
    json_int_t step = json_integer_value(json_object_get(j, "interval"));
    if (!url)
        url = json_string_value(json_object_get(j, "verification_uri"));
    if (j && json_object_get(j, "error")) {
        refused(l, j);
    } else if (!j || !code || !user_code || !url || !(l->device_code = vg_strdup(code))) {
        if (j)
            vg_err_set(&err, VG_UNAVAILABLE, "the identity provider gave no code for a device");
        vg_login_end_badly(l, &err);
    } else {
        l->until_usec = vg_now_usec() +
                        (life > 0 ? VG_MIN((uint64_t)life * VG_USEC, 2 * LIFE_USEC) : LIFE_USEC);
        l->interval_usec = step > 0 && step < 600 ? (uint64_t)step * VG_USEC : INTERVAL_USEC;
        struct vg_peer *p = asker(l);
        Vg__Pb__LoginInfo m = VG__PB__LOGIN_INFO__INIT;
        m.id = l->id;
        m.url = (char *)url;
        m.user_code = (char *)user_code;
        m.has_interval_usec = m.has_expires_usec = 1;
        m.interval_usec = l->interval_usec;
        m.expires_usec = wall_end(l);
        if (p)
            vg_login_tell(p, l->req, &m);
    }
    json_decref(j);
}

void vg_login_begin_device(struct vg_login *l, const struct vg_err *trouble) {
    struct vg_err err = trouble ? *trouble : VG_ERR_INIT;
    struct vg_buf form = {0};
    int r = trouble ? -EIO : 0;
    if (r >= 0 && !l->all->idp.device_url)
        r = vg_err_set(&err, VG_NOT_FOUND,
                       "the identity provider knows no logins of devices: log in with a token, "
                       "which the dashboard makes");
    if (r >= 0 && add_scopes(&l->all->ctl->conf, &form) < 0)
        r = vg_err_sys(&err, -ENOMEM, "cannot log in");
    /* A public client says who it is in the body; vg_idp_post does both. */
    if (r >= 0)
        r = vg_idp_post(l, l->all->idp.device_url, &form, on_device, &err);
    vg_buf_done(&form);
    if (r < 0)
        vg_login_end_badly(l, &err);
}

static int code_url(struct vg_login *l, struct vg_buf *url) {
    const struct vg_conf *conf = &l->all->ctl->conf;
    uint8_t hash[32];
    char challenge[48];
    unsigned n = sizeof hash;
    struct vg_buf q = {0};
    if (!EVP_Digest(l->verifier, strlen(l->verifier), hash, &n, EVP_sha256(), NULL))
        return -EIO;
    vg_b64url(hash, sizeof hash, challenge, sizeof challenge);
    int r = vg_form_add(&q, "response_type", "code") < 0 ||
                    vg_form_add(&q, "client_id", conf->oidc.client_id) < 0 ||
                    vg_form_add(&q, "redirect_uri", l->redirect) < 0 || add_scopes(conf, &q) < 0 ||
                    vg_form_add(&q, "state", l->state) < 0 ||
                    vg_form_add(&q, "nonce", l->nonce) < 0 ||
                    vg_form_add(&q, "code_challenge", challenge) < 0 ||
                    vg_form_add(&q, "code_challenge_method", "S256") < 0
                ? -ENOMEM
                : 0;
    const char *base = l->all->idp.auth_url;
    if (r >= 0)
        r = vg_buf_printf(url, "%s%c%.*s", base, strchr(base, '?') ? '&' : '?', (int)vg_buf_len(&q),
                          (char *)vg_buf_data(&q));
    vg_buf_done(&q);
    return r < 0 ? r : vg_buf_append(url, "", 1);
}

void vg_login_begin_code(struct vg_login *l, const struct vg_err *trouble) {
    struct vg_err err = trouble ? *trouble : VG_ERR_INIT;
    struct vg_buf url = {0};
    if (!trouble && code_url(l, &url) < 0)
        vg_err_sys(&err, -ENOMEM, "cannot log in");
    if (err.reason) {
        vg_login_end_badly(l, &err);
    } else {
        struct vg_peer *p = asker(l);
        Vg__Pb__LoginInfo m = VG__PB__LOGIN_INFO__INIT;
        m.id = l->id;
        m.url = (char *)vg_buf_data(&url);
        if (p)
            vg_login_tell(p, l->req, &m);
    }
    vg_buf_done(&url);
}
