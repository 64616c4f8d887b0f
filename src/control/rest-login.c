/* Signing in from a browser. What the cookie holds is a short-lived token of the user, stored as
   every token is: by its hash, listed and revoked like the others. Codes for one sign-in (`virga
   dashboard`) are in memory alone, by their hashes, for a minute. */
#include "base/cleanup.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/util.h"
#include "control/audit.h"
#include "control/keys.h"
#include "control/login-int.h"
#include "control/rest-int.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <string.h>

#define B(name) VG__PB__ENVELOPE__BODY_##name
#define SESSION_SEC (12 * 3600)
#define SESSION_NAME VG_KEY_SESSION
#define CODE_USEC (60 * VG_USEC)
#define CODES_MAX 1000
#define BEGUN_COOKIE "virga_login" /* ties the answer of an identity provider to this browser */
#define NEXT_MAX 512
#define SAID_COOKIE "virga_said"

/* ------------------------------------------------------------------ codes */

struct code {
    char hash[65];
    uint64_t until_usec; /* boot clock */
    unsigned scope;
    char user[VG_TENANT_NAME_MAX + 1];
    char key[17]; /* of the token that asked for it: when that ends, so does the code */
};

static void hash_of(const char *text, char out[static 65]) {
    uint8_t h[32] = {0};
    unsigned n = 0;
    EVP_Digest(text, strlen(text), h, &n, EVP_sha256(), NULL);
    for (int i = 0; i < 32; i++)
        snprintf(out + 2 * i, 3, "%02x", h[i]);
}

static void drop_old(struct vg_rest *r) {
    uint64_t now = vg_now_usec();
    vg_map_for_each (s, &r->codes) {
        struct code *old = s->value;
        if (old->until_usec < now)
            free(vg_map_del(&r->codes, old->hash));
    }
}

int vg_rest_code_new(struct vg_control *c, const struct vg_who *who,
                     char out[static VG_REST_CODE_LEN + 1]) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    uint8_t random[VG_REST_CODE_LEN];
    struct vg_rest *r = vg_rest_get(c);
    struct code *code = r ? vg_alloc(sizeof *code) : NULL;
    if (!code)
        return -ENOMEM;
    drop_old(r);
    vg_random(random, sizeof random);
    for (size_t i = 0; i < VG_REST_CODE_LEN; i++)
        out[i] = digits[random[i] & 63];
    out[0] = 'c'; /* no token begins so */
    out[VG_REST_CODE_LEN] = 0;
    OPENSSL_cleanse(random, sizeof random);
    *code = (struct code){.until_usec = vg_now_usec() + CODE_USEC, .scope = who->scope};
    hash_of(out, code->hash);
    snprintf(code->user, sizeof code->user, "%s", who->user);
    snprintf(code->key, sizeof code->key, "%s", who->key);
    int full =
        vg_map_len(&r->codes) >= CODES_MAX ? -ENOSPC : vg_map_put(&r->codes, code->hash, code);
    if (full < 0)
        free(code);
    return full < 0 ? full : 0;
}

/* It can be used once. */
static int settle_code(struct vg_rest_call *call, const char *text, struct vg_err *err) {
    struct vg_control *c = call->ctl;
    struct vg_who *who = &call->peer->who;
    char hash[65];
    hash_of(text, hash);
    drop_old(c->rest);
    vg_auto_free struct code *code = vg_map_del(&c->rest->codes, hash);
    if (!code) {
        vg_err_set(err, VG_UNAUTHENTICATED,
                   "this link was used already or is older than a minute: 'virga dashboard' makes "
                   "another");
        return vg_rest_sign_in_failed(call, "link", err);
    }
    snprintf(who->user, sizeof who->user, "%s", code->user);
    snprintf(who->key, sizeof who->key, "%s", code->key);
    who->scope = code->scope;
    if (!vg_peer_user(call->peer, err))
        return err->code;
    call->peer->kind = VG_PEER_CLIENT;
    return 0;
}

/* ------------------------------------------------------------------ the session */

struct begun {
    struct vg_control *ctl;
    uint64_t peer;
    char token[96];
    char id[17];
};

static void set_cookie(struct vg_web_req *req, const char *token, unsigned sec) {
    char text[240];
    snprintf(text, sizeof text,
             VG_REST_COOKIE "=%s; Path=/api; Max-Age=%u; HttpOnly; Secure; SameSite=Strict", token,
             sec);
    vg_web_set(req, "Set-Cookie", text);
    OPENSSL_cleanse(text, sizeof text);
}

static void told_me(struct vg_rest_call *call, const Vg__Pb__Envelope *env, bool more) {
    (void)more;
    if (vg_rest_failed(call, env))
        return;
    vg_rest_json(call, 200,
                 env->body_case == B(ME_INFO) ? vg_view_json(&vg_view_me, env->me_info) : NULL);
}

static void ask_me(struct vg_rest_call *call) {
    ProtobufCMessage *m = vg_view_new(&vg__pb__empty__descriptor);
    struct vg_err err = VG_ERR_INIT;
    call->told = told_me;
    if (m) {
        vg_rest_ask(call, B(ME), m);
    } else {
        vg_err_sys(&err, ENOMEM, "cannot answer");
        vg_rest_fail(call, &err);
    }
}

/* Where a browser that came from an identity provider goes on. */
static void go_on(struct vg_rest_call *call) {
    struct vg_web_req *req = vg_take_ptr(call->req);
    const char *next = call->data;
    vg_web_set(req, "Location", next && *next ? next : "/");
    vg_web_answer(req, 302, NULL, NULL, 0);
    vg_rest_over(call);
}

static void stored(void *arg, int result) {
    struct begun *b = arg;
    struct vg_err err = VG_ERR_INIT;
    struct vg_peer *p = vg_peer_find(b->ctl, b->peer);
    struct vg_rest_call *call = p && p->sink ? p->sink_user : NULL;
    if (call && call->req && !call->over && result < 0) {
        vg_err_sys(&err, result, "the sign-in could not be stored");
        vg_rest_fail(call, &err);
    } else if (call && call->req && !call->over) {
        b->ctl->counts.logins++;
        set_cookie(call->req, b->token, SESSION_SEC);
        snprintf(p->who.key, sizeof p->who.key, "%s", b->id);
        if (call->route->method == VG_WEB_POST)
            ask_me(call);
        else
            go_on(call);
    }
    OPENSSL_cleanse(b->token, sizeof b->token);
    free(b);
}

static void begin_session(struct vg_rest_call *call, const char *by) {
    struct vg_control *c = call->ctl;
    const struct vg_who *who = &call->peer->who;
    struct vg_err err = VG_ERR_INIT;
    struct vg_token t;
    struct begun *b = vg_alloc(sizeof *b);
    vg_keys_drop_over(c, who->user);
    const struct vg_apikey *from = who->key[0] ? vg_map_get(&c->keys, who->key) : NULL;
    char name[VG_KEY_SESSION_MAX];
    vg_key_session_name(from ? from->id : NULL, name);
    const struct vg_key_wish wish = {.user = who->user,
                                     .name = name,
                                     .scope = who->scope,
                                     .ttl_usec = SESSION_SEC * VG_USEC,
                                     .most_usec = from ? from->expires_usec : 0,
                                     .by = who->user,
                                     .from = call->req->peer,
                                     .login = by};
    int r = b ? vg_key_make(c, &wish, stored, b, &t) : -ENOMEM;
    if (r < 0) {
        free(b);
        vg_err_sys(&err, r, "cannot sign you in");
        vg_rest_fail(call, &err);
        return;
    }
    *b = (struct begun){.ctl = c, .peer = call->peer->serial};
    vg_token_format(&t, b->token);
    snprintf(b->id, sizeof b->id, "%s", t.id);
    OPENSSL_cleanse(&t, sizeof t);
}

void vg_rest_login(struct vg_rest_call *call) {
    struct vg_err err = VG_ERR_INIT;
    ProtobufCMessage *m = NULL;
    int r = vg_web_same_origin(call->req)
                ? vg_rest_body(call, &m, &err)
                : vg_err_set(&err, VG_FORBIDDEN, "another site's page may not sign you in");
    Vg__Pb__TokenNew *in = (Vg__Pb__TokenNew *)m;
    if (r >= 0 && (!in || !in->token == !in->id))
        r = vg_err_set(&err, VG_INVALID, "give either 'token' or 'code'");
    const char *code = r < 0                         ? NULL
                       : in->id                      ? in->id
                       : strncmp(in->token, "vg", 2) ? in->token
                                                     : NULL;
    const char *by = code ? "link" : "token";
    if (r >= 0)
        r = code ? settle_code(call, code, &err) : vg_rest_settle(call, in->token, &err);
    if (r >= 0 && !vg_peer_user(call->peer, &err))
        r = err.code;
    if (in && in->token)
        OPENSSL_cleanse(in->token, strlen(in->token));
    if (m)
        protobuf_c_message_free_unpacked(m, NULL);
    if (r < 0)
        vg_rest_fail(call, &err);
    else
        begin_session(call, by);
}

static void ended(void *arg, int result) {
    struct begun *b = arg;
    struct vg_peer *p = vg_peer_find(b->ctl, b->peer);
    struct vg_rest_call *call = p && p->sink ? p->sink_user : NULL;
    (void)result;
    if (call && call->req && !call->over) {
        set_cookie(call->req, "", 0);
        vg_rest_empty(call, 204);
    }
    free(b);
}

/* Ends the session; a token that was made otherwise stays as it is. */
void vg_rest_logout(struct vg_rest_call *call) {
    struct vg_control *c = call->ctl;
    const struct vg_apikey *k = vg_map_get(&c->keys, call->peer->who.key);
    if (!call->by_cookie || !k) {
        set_cookie(call->req, "", 0);
        vg_rest_empty(call, 204);
        return;
    }
    struct vg_err err = VG_ERR_INIT;
    struct begun *b = vg_alloc(sizeof *b);
    if (b)
        *b = (struct begun){.ctl = c, .peer = call->peer->serial};
    if (!b || vg_store_del_token(c->store, k->id, ended, b) < 0) {
        free(b);
        vg_err_sys(&err, ENOMEM, "cannot sign you out");
        vg_rest_fail(call, &err);
        return;
    }
    char id[sizeof k->id];
    memcpy(id, k->id, sizeof id);
    vg_audit_note(c, call->peer->who.user, call->req->peer, "logout of user %s: token %s",
                  call->peer->who.user, id);
    vg_key_remove(c, id);
    vg_peers_cut(c, call->peer->who.user, id, call->peer); /* its streams and terminals */
}

/* ------------------------------------------------------------------ identity providers */

/* A browser would show a problem's JSON as it is. The sentence goes in a cookie, which the sign-in
   page shows and forgets; in the address anybody's link could put words there. */
void vg_rest_at_the_door(struct vg_web_req *req, const char *text) {
    struct vg_buf cookie = {0};
    if (vg_form_add(&cookie, SAID_COOKIE, text) >= 0 &&
        vg_buf_printf(&cookie, "; Path=/; Max-Age=60; Secure; SameSite=Lax%c", 0) >= 0)
        vg_web_set(req, "Set-Cookie", (const char *)vg_buf_data(&cookie));
    vg_buf_done(&cookie);
    vg_web_set(req, "Location", "/");
    vg_web_set(req, "Cache-Control", "no-store");
    vg_web_answer(req, 302, NULL, NULL, 0);
}

/* What a provider calls its errors; anything else could be anybody's words. */
static bool is_error_name(const char *s) {
    return *s && strlen(s) <= 64 && !s[strspn(s, "abcdefghijklmnopqrstuvwxyz_")];
}

static char *redirect_url(struct vg_rest_call *call) {
    const char *host = vg_web_header(call->req, "host");
    return host ? vg_fmt("https://%s" VG_REST_PREFIX "/login/oidc/callback", host) : NULL;
}

/* Only a path of this very site. */
static bool is_own_path(const char *s) {
    return s && s[0] == '/' && s[1] != '/' && s[1] != '\\' && strlen(s) < NEXT_MAX &&
           !s[strcspn(s, "\r\n;, \"\\")];
}

static void told_begin(struct vg_rest_call *call, const Vg__Pb__Envelope *env, bool more) {
    char cookie[NEXT_MAX + 200];
    const char *next = vg_web_query(call->req, "next");
    (void)more;
    if (vg_rest_failed(call, env))
        return;
    const Vg__Pb__LoginInfo *i = env->body_case == B(LOGIN_INFO) ? env->login_info : NULL;
    if (!i || !i->url || !i->id) {
        struct vg_err err = VG_ERR_INIT;
        vg_err_set(&err, VG_NOT_FOUND, "this cloud has no identity provider: sign in with a token");
        vg_rest_fail(call, &err);
        return;
    }
    /* Lax: the provider's page sends the browser back here. */
    snprintf(cookie, sizeof cookie,
             BEGUN_COOKIE "=%s|%s; Path=/api; Max-Age=600; HttpOnly; Secure; SameSite=Lax", i->id,
             is_own_path(next) ? next : "/");
    struct vg_web_req *req = vg_take_ptr(call->req);
    vg_web_set(req, "Set-Cookie", cookie);
    vg_web_set(req, "Location", i->url);
    vg_web_set(req, "Cache-Control", "no-store");
    vg_web_answer(req, 302, NULL, NULL, 0);
    vg_rest_over(call);
}

static void ask_login(struct vg_rest_call *call, Vg__Pb__LoginReq__Op op, const char *id,
                      const char *code, const char *state) {
    Vg__Pb__LoginReq *m = (Vg__Pb__LoginReq *)vg_view_new(&vg__pb__login_req__descriptor);
    struct vg_err err = VG_ERR_INIT;
    if (m) {
        m->has_op = true;
        m->op = op;
        m->redirect = redirect_url(call);
        m->id = vg_strdup(id);
        m->code = vg_strdup(code);
        m->state = vg_strdup(state);
        m->name = vg_strdup(SESSION_NAME);
    }
    if (m && m->redirect) {
        vg_rest_ask(call, B(LOGIN), &m->base);
        return;
    }
    if (m)
        protobuf_c_message_free_unpacked(&m->base, NULL);
    vg_err_set(&err, VG_INVALID, "the request names no host");
    vg_rest_fail(call, &err);
}

void vg_rest_oidc_begin(struct vg_rest_call *call) {
    call->told = told_begin;
    ask_login(call, VG__PB__LOGIN_REQ__OP__CODE_BEGIN, NULL, NULL, NULL);
}

static void told_end(struct vg_rest_call *call, const Vg__Pb__Envelope *env, bool more) {
    struct vg_err err = VG_ERR_INIT;
    (void)more;
    if (vg_rest_failed(call, env))
        return;
    const Vg__Pb__LoginInfo *i = env->body_case == B(LOGIN_INFO) ? env->login_info : NULL;
    if (!i || !i->token) {
        vg_err_set(&err, VG_UNAUTHENTICATED, "the identity provider did not sign you in");
        vg_rest_fail(call, &err);
        return;
    }
    set_cookie(call->req, i->token, SESSION_SEC);
    go_on(call);
}

void vg_rest_oidc_end(struct vg_rest_call *call) {
    char cookie[NEXT_MAX + 100];
    struct vg_err err = VG_ERR_INIT;
    const char *code = vg_web_query(call->req, "code"), *state = vg_web_query(call->req, "state");
    const char *refused = vg_web_query(call->req, "error");
    char *bar = vg_web_cookie(call->req, BEGUN_COOKIE, cookie, sizeof cookie) < 0
                    ? NULL
                    : strchr(cookie, '|');
    if (refused || !code || !state || !bar) {
        if (refused)
            vg_err_set(&err, VG_UNAUTHENTICATED,
                       "the identity provider did not sign you in (%s): begin again, or use a "
                       "token",
                       is_error_name(refused) ? refused : "it does not say why");
        else
            vg_err_set(&err, VG_UNAUTHENTICATED,
                       "this sign-in was not begun in this browser: begin again");
        vg_rest_fail(call, &err);
        return;
    }
    *bar = 0;
    call->data = vg_strdup(is_own_path(bar + 1) ? bar + 1 : "/");
    call->free_data = free;
    call->told = told_end;
    ask_login(call, VG__PB__LOGIN_REQ__OP__CODE_END, cookie, code, state);
}
