/* Logins under way. Each is begun by one request and goes on with others, which name its id:

       DEVICE_BEGIN ──▶ code for the person ──▶ DEVICE_POLL … ──▶ token
       CODE_BEGIN ──▶ address for the browser ──▶ CODE_END ──▶ token

   What always holds: an ID token comes from the provider's own token address and from nowhere else,
   answers the login that asked for it (state, nonce, PKCE), and is used once. */
#include "control/login.h"

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/util.h"
#include "control/api.h"
#include "control/audit.h"
#include "control/jwt.h"
#include "control/keys.h"
#include "control/login-int.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <string.h>

#define B(name) VG__PB__ENVELOPE__BODY_##name
#define OP(name) VG__PB__LOGIN_REQ__OP__##name
#define OPEN_MAX 1000
#define OPEN_EACH_MAX 50 /* of one address */
#define LIFE_USEC (600 * VG_USEC)
#define INTERVAL_USEC (5 * VG_USEC)
#define DEVICE_GRANT "urn:ietf:params:oauth:grant-type:device_code"
#define NAME_BYTES_MAX 100

/* ------------------------------------------------------------------ their life */

static void wipe(char *s) {
    if (s)
        OPENSSL_cleanse(s, strlen(s));
    free(s);
}

static void login_free(struct vg_login *l) {
    if (!l)
        return;
    vg_list_remove(&l->on_wait);
    free(l->name);
    free(l->redirect);
    wipe(l->device_code);
    wipe(l->code);
    wipe(l->id_token);
    OPENSSL_cleanse(l->verifier, sizeof l->verifier);
    free(l);
}

static void drop_old(struct vg_logins *all) {
    uint64_t now = vg_now_usec();
    vg_map_for_each (s, &all->open) {
        struct vg_login *l = s->value;
        if (!l->busy && (l->over || l->until_usec < now)) {
            vg_map_del(&all->open, l->id);
            login_free(l);
        }
    }
}

static struct vg_logins *logins(struct vg_control *c, struct vg_err *err) {
    if (c->logins)
        return c->logins;
    struct vg_logins *all = vg_alloc(sizeof *all);
    if (!all) {
        vg_err_sys(err, -ENOMEM, "cannot log in");
        return NULL;
    }
    all->ctl = c;
    vg_list_init(&all->idp.waiting);
    if (vg_fetcher_new(c->loop, &(struct vg_fetcher_opts){.at_once = 8}, &all->fetcher, err) < 0) {
        free(all);
        return NULL;
    }
    return c->logins = all;
}

void vg_logins_done(struct vg_control *c) {
    struct vg_logins *all = c->logins;
    if (!all)
        return;
    vg_fetcher_free(all->fetcher);
    vg_map_for_each (s, &all->open) {
        login_free(s->value);
    }
    vg_map_done(&all->open);
    vg_idp_done(&all->idp);
    free(all);
    c->logins = NULL;
}

static void random_word(char out[static WORD]) {
    uint8_t raw[32];
    vg_random(raw, sizeof raw);
    vg_b64url(raw, sizeof raw, out, WORD);
    OPENSSL_cleanse(raw, sizeof raw);
}

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
static void end_badly(struct vg_login *l, const struct vg_err *err) {
    l->over = true;
    vg_audit_refused(l->all->ctl, l->from, "provider", err->msg);
    fail(l, err);
}

static void send_info(struct vg_peer *p, uint32_t req, Vg__Pb__LoginInfo *m) {
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
        send_info(p, l->req, &m);
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
        end_badly(l, &err);
    else
        l->over = true;
}

/* ------------------------------------------------------------------ asking for tokens */

static void still_pending(struct vg_login *l) {
    struct vg_peer *p = asker(l);
    Vg__Pb__LoginInfo m = VG__PB__LOGIN_INFO__INIT;
    m.id = l->id;
    m.has_interval_usec = m.has_expires_usec = 1;
    m.interval_usec = l->interval_usec;
    m.expires_usec = wall_end(l);
    if (p)
        send_info(p, l->req, &m);
}

static void refused(struct vg_login *l, const json_t *j) {
    const char *e = json_string_value(json_object_get(j, "error"));
    const char *says = json_string_value(json_object_get(j, "error_description"));
    struct vg_err err = VG_ERR_INIT;
    if (l->device && strcmp(e, "authorization_pending") == 0) {
        still_pending(l);
        return;
    }
    if (l->device && strcmp(e, "slow_down") == 0) {
        l->interval_usec += INTERVAL_USEC;
        still_pending(l);
        return;
    }
    vg_err_set(&err, VG_UNAUTHENTICATED, "the identity provider refuses the login: %.200s",
               says ? says : e);
    end_badly(l, &err);
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
        end_badly(l, &err);
    } else {
        believe(l, NULL);
    }
    json_decref(j);
}

static void ask_token(struct vg_login *l, const struct vg_err *trouble) {
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
        end_badly(l, &err);
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
            send_info(p, l->req, &m);
    }
    json_decref(j);
}

static void begin_device(struct vg_login *l, const struct vg_err *trouble) {
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
        end_badly(l, &err);
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

static void begin_code(struct vg_login *l, const struct vg_err *trouble) {
    struct vg_err err = trouble ? *trouble : VG_ERR_INIT;
    struct vg_buf url = {0};
    if (!trouble && code_url(l, &url) < 0)
        vg_err_sys(&err, -ENOMEM, "cannot log in");
    if (err.reason) {
        end_badly(l, &err);
    } else {
        struct vg_peer *p = asker(l);
        Vg__Pb__LoginInfo m = VG__PB__LOGIN_INFO__INIT;
        m.id = l->id;
        m.url = (char *)vg_buf_data(&url);
        if (p)
            send_info(p, l->req, &m);
    }
    vg_buf_done(&url);
}

/* ------------------------------------------------------------------ requests */

static int check_room(struct vg_logins *all, const char *from, struct vg_err *err) {
    size_t same = 0;
    drop_old(all);
    vg_map_for_each (s, &all->open)
        same += strcmp(((const struct vg_login *)s->value)->from, from) == 0;
    if (vg_map_len(&all->open) < OPEN_MAX && same < OPEN_EACH_MAX)
        return 0;
    return vg_err_set(err, VG_NO_CAPACITY,
                      "too many logins are under way: try again in a few minutes");
}

static struct vg_login *login_new(struct vg_logins *all, const struct vg_call *call,
                                  struct vg_err *err) {
    const Vg__Pb__LoginReq *m = call->env->login;
    if (check_room(all, call->peer->who.from, err) < 0)
        return NULL;
    struct vg_login *l = vg_alloc(sizeof *l);
    if (l) {
        l->all = all;
        vg_list_init(&l->on_wait);
        l->device = m->op == OP(DEVICE_BEGIN);
        l->until_usec = vg_now_usec() + LIFE_USEC;
        random_word(l->id);
        random_word(l->state);
        random_word(l->nonce);
        random_word(l->verifier);
        snprintf(l->from, sizeof l->from, "%s", call->peer->who.from);
        l->name = vg_strdup(m->name);
        l->redirect = vg_strdup(m->redirect);
    }
    if (!l || (m->name && !l->name) || (m->redirect && !l->redirect) ||
        vg_map_put(&all->open, l->id, l) < 0) {
        login_free(l);
        vg_err_sys(err, -ENOMEM, "cannot log in");
        return NULL;
    }
    return l;
}

static struct vg_login *find(struct vg_logins *all, const Vg__Pb__LoginReq *m, struct vg_err *err) {
    drop_old(all);
    struct vg_login *l = m->id ? vg_map_get(&all->open, m->id) : NULL;
    if (l && !l->over && l->device == (m->op == OP(DEVICE_POLL)) && !l->busy)
        return l;
    if (l && l->busy)
        vg_err_set(err, VG_CONFLICT, "this login is being answered already: wait a moment");
    else
        vg_err_set(err, VG_UNAUTHENTICATED, "there is no such login under way: begin again");
    return NULL;
}

static void wait_for_it(struct vg_login *l, const struct vg_call *call) {
    l->busy = true;
    l->peer = call->peer->serial;
    l->req = call->req;
}

static int check_request(const struct vg_call *call, struct vg_err *err) {
    const Vg__Pb__LoginReq *m = call->env->login;
    const struct vg_conf *conf = &call->ctl->conf;
    if (call->peer->nested_node)
        return vg_err_set(err, VG_FORBIDDEN,
                          "a program inside a task may not log in: run it outside");
    if (!m->has_op || m->op < OP(METHODS) || m->op > OP(CODE_END))
        return vg_err_set(err, VG_INVALID, "say how to log in");
    if (m->op == OP(METHODS))
        return 0;
    if (!conf->oidc.issuer || !*conf->oidc.issuer)
        return vg_err_set(err, VG_NOT_FOUND,
                          "this cloud has no identity provider: log in with a token ('virga token "
                          "create' on the cloud prints one)");
    if ((m->name && strlen(m->name) > NAME_BYTES_MAX) ||
        (m->redirect && strlen(m->redirect) > VG_FETCH_URL_MAX) ||
        (m->code && strlen(m->code) > VG_FETCH_URL_MAX))
        return vg_err_set(err, VG_TOO_BIG, "the login's words are too long");
    if (m->op == OP(CODE_BEGIN) && (!m->redirect || strncmp(m->redirect, "https://", 8) != 0))
        return vg_err_set(err, VG_INVALID, "say where the browser comes back to");
    return 0;
}

static void methods(struct vg_call *call) {
    const struct vg_conf *conf = &call->ctl->conf;
    Vg__Pb__LoginInfo m = VG__PB__LOGIN_INFO__INIT;
    if (conf->oidc.issuer && *conf->oidc.issuer)
        m.provider = conf->oidc.name && *conf->oidc.name ? conf->oidc.name : conf->oidc.issuer;
    send_info(call->peer, call->req, &m);
}

static void poll_device(struct vg_login *l) {
    uint64_t now = vg_now_usec();
    if (now - l->asked_usec < l->interval_usec) { /* the provider is not to be pressed */
        still_pending(l);
        return;
    }
    l->asked_usec = now;
    vg_idp_then(l, ask_token);
}

static void end_code(struct vg_login *l, const Vg__Pb__LoginReq *m) {
    struct vg_err err = VG_ERR_INIT;
    bool same = m->state && strlen(m->state) == strlen(l->state) &&
                CRYPTO_memcmp(m->state, l->state, strlen(l->state)) == 0;
    l->over = true; /* it is used up, whatever comes of it */
    if (!same || !m->code || !*m->code)
        vg_err_set(&err, VG_UNAUTHENTICATED, "this answer is not for the login that was begun");
    else if (!(l->code = vg_strdup(m->code)))
        vg_err_sys(&err, -ENOMEM, "cannot log in");
    if (err.reason)
        end_badly(l, &err);
    else
        vg_idp_then(l, ask_token);
}

void vg_api_login(struct vg_call *call) {
    const Vg__Pb__LoginReq *m = call->env->login;
    struct vg_err err = VG_ERR_INIT;
    int r = check_request(call, &err);
    if (r >= 0 && m->op == OP(METHODS)) {
        methods(call);
        return;
    }
    bool begins = m->op == OP(DEVICE_BEGIN) || m->op == OP(CODE_BEGIN);
    struct vg_logins *all = r < 0 ? NULL : logins(call->ctl, &err);
    struct vg_login *l = !all ? NULL : begins ? login_new(all, call, &err) : find(all, m, &err);
    if (!l) {
        vg_peer_fail(call->peer, call->req, &err);
        return;
    }
    wait_for_it(l, call);
    if (begins)
        vg_idp_then(l, l->device ? begin_device : begin_code);
    else if (l->device)
        poll_device(l);
    else
        end_code(l, m);
}
