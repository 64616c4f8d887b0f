/* Logins under way. Each is begun by one request and goes on with others, which name its id:

       DEVICE_BEGIN ──▶ code for the person ──▶ DEVICE_POLL … ──▶ token
       CODE_BEGIN ──▶ address for the browser ──▶ CODE_END ──▶ token

   What always holds: an ID token comes from the provider's own token address and from nowhere else,
   answers the login that asked for it (state, nonce, PKCE), and is used once. */
#include "control/login.h"

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"
#include "control/api.h"
#include "control/jwt.h"
#include "control/keys.h"
#include "control/login-int.h"

#include <openssl/crypto.h>
#include <stdio.h>
#include <string.h>

#define OP(name) VG__PB__LOGIN_REQ__OP__##name
#define OPEN_MAX 1000
#define OPEN_EACH_MAX 50 /* of one address */
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
    vg_login_tell(call->peer, call->req, &m);
}

static void poll_device(struct vg_login *l) {
    uint64_t now = vg_now_usec();
    if (now - l->asked_usec < l->interval_usec) { /* the provider is not to be pressed */
        vg_login_pending(l);
        return;
    }
    l->asked_usec = now;
    vg_idp_then(l, vg_login_ask_token);
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
        vg_login_end_badly(l, &err);
    else
        vg_idp_then(l, vg_login_ask_token);
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
        vg_idp_then(l, l->device ? vg_login_begin_device : vg_login_begin_code);
    else if (l->device)
        poll_device(l);
    else
        end_code(l, m);
}
