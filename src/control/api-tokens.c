/* API tokens. A token does at most what its owner may, and of that what its scopes say. */
#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"
#include "control/api.h"
#include "control/audit.h"
#include "control/keys.h"
#include "control/later.h"
#include "control/rest.h"
#include "control/users.h"

#include <openssl/crypto.h>
#include <stdio.h>
#include <string.h>

#define B(name) VG__PB__ENVELOPE__BODY_##name
#define KEYS_PER_USER 1000
#define NAME_MAX_BYTES 200

static void out_of_memory(struct vg_call *call) {
    vg_peer_error(call->peer, call->req, VG_INTERNAL, "the control plane is out of memory");
}

/* ------------------------------------------------------------------ making */

/* Others' tokens are the business of those who look after them. */
static bool may_touch(const struct vg_call *call, const char *owner) {
    const struct vg_user *u = vg_tenants_user(&call->ctl->tenants, owner);
    return strcmp(owner, call->user->name) == 0 || (u && vg_users_manage(call->user, u));
}

static int check_owner(struct vg_call *call, const struct vg_key_wish *w, struct vg_err *err) {
    size_t n = 0;
    const struct vg_user *u = vg_tenants_user(&call->ctl->tenants, w->user);
    if (call->peer->who.parent)
        return vg_err_set(err, VG_FORBIDDEN,
                          "a program inside a task may not make tokens: run it outside");
    if (!may_touch(call, w->user) && vg_user_may(call->user, VG_ACT_MANAGE_USERS))
        return vg_err_set(err, VG_NOT_FOUND,
                          "there is no user '%.64s': add it with 'virga user add'", w->user);
    if (!may_touch(call, w->user))
        return vg_err_set(err, VG_FORBIDDEN,
                          "only an administrator, or the lead of his team, may make tokens for "
                          "'%.64s'",
                          w->user);
    if (u->disabled)
        return vg_users_say_disabled(u, err);
    vg_map_for_each (s, &call->ctl->keys) {
        n += strcmp(((struct vg_apikey *)s->value)->user, w->user) == 0;
    }
    if (n >= KEYS_PER_USER)
        return vg_err_set(err, VG_TOO_BIG, "user '%s' has %zu tokens: revoke some", w->user, n);
    return 0;
}

/* UINT64_MAX: for ever. */
static uint64_t life_usec(const struct vg_apikey *k) {
    return k->expires_usec ? k->expires_usec - k->created_usec : UINT64_MAX;
}

/* A token makes none that may do more than itself; one that follows itself needs no other right. */
static int check_scope(const struct vg_call *call, const struct vg_key_wish *w,
                       struct vg_err *err) {
    const struct vg_who *who = &call->peer->who;
    bool itself = w->old && strcmp(w->old->id, who->key) == 0;
    if (who->scope == VG_SCOPE_ALL)
        return 0;
    /* Or whoever found it would have it for ever. */
    if (itself && !(who->scope & VG_SCOPE_ADMIN) && w->ttl_usec > life_usec(w->old))
        return vg_err_set(err, VG_FORBIDDEN,
                          "a token without the scope 'admin' is followed by one that lives as long "
                          "as itself: leave out --ttl, or say less");
    if (itself)
        return 0;
    if (!(who->scope & VG_SCOPE_ADMIN))
        return vg_err_set(err, VG_FORBIDDEN,
                          "the token %s was not made for this: 'virga token create --scope admin' "
                          "makes one that is",
                          who->key);
    if (w->scope & ~(who->scope | VG_SCOPE_READ))
        return vg_err_set(err, VG_FORBIDDEN,
                          "a token makes none that may do more than itself: say with --scope what "
                          "the new one is for");
    return 0;
}

static int check_life(const struct vg_call *call, struct vg_key_wish *w, struct vg_err *err) {
    uint64_t most = call->ctl->conf.access.token_max_usec;
    char text[32];
    if (!w->ttl_usec)
        w->ttl_usec = most;
    if (most && w->ttl_usec > most)
        return vg_err_set(err, VG_INVALID,
                          "tokens of this cloud live %s at most (access.token_max_ttl in "
                          "its configuration): say so with --ttl",
                          vg_format_duration(most, text, sizeof text));
    if (w->ttl_usec > UINT64_MAX / 4)
        return vg_err_set(err, VG_INVALID, "that is too long a life: leave out --ttl");
    return 0;
}

static int follow(struct vg_call *call, const Vg__Pb__TokenReq *m, struct vg_key_wish *w,
                  struct vg_err *err) {
    struct vg_apikey *k = vg_map_get(&call->ctl->keys, m->replaces);
    if (!k || !may_touch(call, k->user))
        return vg_err_set(err, VG_NOT_FOUND,
                          "there is no token '%.32s' of yours: 'virga token list' shows them",
                          m->replaces);
    /* It ends with the token that it was begun with; one in its place would not. */
    if (vg_key_is_session(k))
        return vg_err_set(err, VG_INVALID,
                          "a browser's session is not followed by a token: 'virga token create' "
                          "makes one");
    if (m->n_scope || (m->user && *m->user))
        return vg_err_set(err, VG_INVALID,
                          "a token that follows another is its owner's, with the same scopes");
    *w = (struct vg_key_wish){.user = k->user,
                              .name = m->name && *m->name ? m->name : k->name,
                              .old = k,
                              .scope = k->scope,
                              .ttl_usec = k->expires_usec ? k->expires_usec - k->created_usec : 0};
    return 0;
}

static int read_wish(struct vg_call *call, const Vg__Pb__TokenReq *m, struct vg_key_wish *w,
                     struct vg_err *err) {
    int r = 0;
    *w = (struct vg_key_wish){.user = m->user && *m->user ? m->user : call->user->name,
                              .name = m->name};
    if (vg_scope_parse(m->scope, m->n_scope, &w->scope) < 0)
        return vg_err_set(err, VG_INVALID,
                          "a token's scopes are read, run, secrets and admin; none: everything "
                          "that its owner may do");
    if (!m->n_scope)
        w->scope = call->peer->who.scope;
    if (m->replaces && *m->replaces)
        r = follow(call, m, w, err);
    if (m->ttl_usec)
        w->ttl_usec = m->ttl_usec;
    if (r >= 0 && w->name && strlen(w->name) > NAME_MAX_BYTES)
        r = vg_err_set(err, VG_TOO_BIG, "a token's name has at most %d bytes", NAME_MAX_BYTES);
    if (r >= 0)
        r = check_owner(call, w, err);
    if (r >= 0)
        r = check_scope(call, w, err);
    return r < 0 ? r : check_life(call, w, err);
}

int vg_key_make(struct vg_control *c, const struct vg_key_wish *w, vg_store_cb *cb, void *arg,
                struct vg_token *ret) {
    struct vg_token t;
    uint8_t hash[32];
    uint64_t now = vg_wall_usec();
    vg_token_new("vgt", c->ca.fingerprint, &t);
    vg_token_hash(&t, hash);
    struct vg_token_row row = {.id = t.id,
                               .user = w->user,
                               .name = w->name,
                               .hash = {hash, sizeof hash},
                               .created_usec = now,
                               .expires_usec = w->ttl_usec ? now + w->ttl_usec : 0,
                               .scope = w->scope};
    if (w->most_usec && (!row.expires_usec || row.expires_usec > w->most_usec))
        row.expires_usec = w->most_usec;
    int r = vg_key_add(c, &row);
    vg_store_group_begin(c->store);
    if (r >= 0 && w->old)
        r = vg_store_del_token(c->store, w->old->id, NULL, NULL);
    if (r >= 0)
        r = vg_store_add_token(c->store, &row, cb, arg);
    if (r >= 0 && w->login)
        vg_audit_note(c, w->by, w->from, "login (%s) of user %s: token %s", w->login, w->user,
                      t.id);
    else if (r >= 0)
        vg_audit_note(c, w->by, w->from, "token %s made for user %s%s%s", t.id, w->user,
                      w->old ? ", in the place of " : "", w->old ? w->old->id : "");
    vg_store_group_end(c->store);
    if (r < 0)
        vg_key_remove(c, t.id);
    else
        *ret = t;
    OPENSSL_cleanse(&t, sizeof t);
    return r;
}

static void end_key(struct vg_call *call, const struct vg_apikey *k) {
    vg_auto_free char *user = vg_strdup(k->user), *id = vg_strdup(k->id);
    vg_key_remove(call->ctl, k->id);
    if (!user || !id)
        return;
    vg_peers_cut(call->ctl, user, id, call->peer);
    vg_keys_end_sessions(call->ctl, user, id);
}

/* A code for one sign-in of a browser, as whoever asks. */
static void create_code(struct vg_call *call) {
    char code[VG_REST_CODE_LEN + 1];
    VG_ENVELOPE(env);
    Vg__Pb__TokenNew m = VG__PB__TOKEN_NEW__INIT;
    if (call->peer->who.parent) { /* what it would open outlives the task */
        vg_peer_error(call->peer, call->req, VG_FORBIDDEN,
                      "a program inside a task may not make tokens: run it outside");
        return;
    }
    int r = vg_rest_code_new(call->ctl, &call->peer->who, code);
    if (r < 0) {
        vg_peer_error(call->peer, call->req, r == -ENOSPC ? VG_NO_CAPACITY : VG_INTERNAL,
                      r == -ENOSPC ? "too many links wait to be opened: try again in a minute"
                                   : "the control plane is out of memory");
        return;
    }
    m.token = code;
    env.body_case = B(TOKEN_NEW);
    env.token_new = &m;
    vg_peer_send(call->peer, call->req, false, &env);
    OPENSSL_cleanse(code, sizeof code);
}

void vg_api_token_create(struct vg_call *call) {
    const Vg__Pb__TokenReq *m = call->env->token_create;
    if (m->once) {
        create_code(call);
        return;
    }
    struct vg_control *c = call->ctl;
    struct vg_err err = VG_ERR_INIT;
    struct vg_key_wish w;
    struct vg_token t;
    if (read_wish(call, m, &w, &err) < 0) {
        vg_peer_fail(call->peer, call->req, &err);
        return;
    }
    struct vg_later *l = vg_later_new(call);
    w.by = call->user->name;
    w.from = call->peer->who.from;
    if (!l || vg_key_make(c, &w, vg_later_stored, l, &t) < 0) {
        free(l);
        out_of_memory(call);
        return;
    }
    vg_token_format(&t, l->token);
    memcpy(l->id, t.id, sizeof l->id);
    OPENSSL_cleanse(&t, sizeof t);
    if (w.old)
        end_key(call, w.old);
}

/* ------------------------------------------------------------------ the others */

struct line {
    Vg__Pb__TokenInfo pb;
    char *scope[8];
};

static void fill(struct vg_apikey *k, struct line *l) {
    Vg__Pb__TokenInfo *m = &l->pb;
    vg__pb__token_info__init(m);
    m->id = k->id;
    m->user = k->user;
    m->name = k->name;
    m->has_created_usec = m->has_expires_usec = m->has_used_usec = 1;
    m->created_usec = k->created_usec;
    m->expires_usec = k->expires_usec;
    m->used_usec = k->used_usec;
    m->scope = l->scope;
    for (unsigned i = 0; k->scope != VG_SCOPE_ALL && vg_scope_name(i) && i < 8; i++)
        if (k->scope >> i & 1)
            l->scope[m->n_scope++] = (char *)vg_scope_name(i);
}

void vg_api_token_list(struct vg_call *call) {
    struct vg_control *c = call->ctl;
    size_t n = 0, max = vg_map_len(&c->keys) + 1;
    vg_auto_free struct line *lines = vg_alloc(max * sizeof *lines);
    vg_auto_free Vg__Pb__TokenInfo **list = vg_alloc(max * sizeof *list);
    if (!lines || !list) {
        out_of_memory(call);
        return;
    }
    vg_map_for_each (s, &c->keys) {
        struct vg_apikey *k = s->value;
        if (!may_touch(call, k->user))
            continue;
        fill(k, &lines[n]);
        list[n] = &lines[n].pb;
        n++;
    }
    VG_ENVELOPE(env);
    Vg__Pb__TokenList m = VG__PB__TOKEN_LIST__INIT;
    m.token = list;
    m.n_token = n;
    env.body_case = B(TOKENS);
    env.tokens = &m;
    vg_peer_send(call->peer, call->req, false, &env);
}

void vg_api_token_revoke(struct vg_call *call) {
    struct vg_control *c = call->ctl;
    const char *id = call->env->token_revoke->name ? call->env->token_revoke->name : "";
    struct vg_apikey *k = vg_map_get(&c->keys, id);
    if (!k || !may_touch(call, k->user)) {
        vg_peer_error(call->peer, call->req, VG_NOT_FOUND,
                      "there is no token '%.32s' of yours: 'virga token list' shows them", id);
        return;
    }
    vg_audit(call, "token %s of user %s revoked", id, k->user);
    struct vg_later *l = vg_later_new(call);
    if (!l || vg_store_del_token(c->store, id, vg_later_stored, l) < 0) {
        free(l);
        out_of_memory(call);
        return;
    }
    end_key(call, k);
}
