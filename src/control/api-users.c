/* Users, teams, API tokens. Memory changes when the store has the change. */
#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"
#include "control/api.h"
#include "control/audit.h"
#include "control/keys.h"
#include "control/later.h"
#include "control/persist.h"
#include "control/users.h"

#include <openssl/crypto.h>
#include <stdio.h>
#include <string.h>

#define B(name) VG__PB__ENVELOPE__BODY_##name
#define KEYS_PER_USER 1000

static void out_of_memory(struct vg_call *call) {
    vg_peer_error(call->peer, call->req, VG_INTERNAL, "the control plane is out of memory");
}

/* ------------------------------------------------------------------ users */

static bool manages(const struct vg_user *u, const char *team) {
    return vg_user_may(u, VG_ACT_MANAGE_USERS) ||
           (vg_user_may(u, VG_ACT_MANAGE_TEAM) && strcmp(u->team->name, team) == 0);
}

static int check_new_user(struct vg_call *call, const Vg__Pb__UserSet *m, const char *team,
                          enum vg_role *ret_role, struct vg_err *err) {
    const char *role = m->role && *m->role ? m->role : "member";
    if (vg_role_parse(role, ret_role) < 0)
        return vg_err_set(err, VG_INVALID,
                          "there is no role '%.32s': choose admin, lead, member or viewer", role);
    if (!manages(call->user, team) ||
        (*ret_role > VG_ROLE_MEMBER && !vg_user_may(call->user, VG_ACT_MANAGE_USERS)))
        return vg_err_set(err, VG_FORBIDDEN,
                          "a lead may add members and viewers to the team '%s' only: ask an "
                          "administrator",
                          call->user->team->name);
    return 0;
}

void vg_api_user_add(struct vg_call *call) {
    const Vg__Pb__UserSet *m = call->env->user_add;
    struct vg_control *c = call->ctl;
    struct vg_err err = VG_ERR_INIT;
    const char *team = m->team && *m->team ? m->team : call->user->team->name;
    enum vg_role role = VG_ROLE_MEMBER;
    struct vg_user *u = NULL;
    int r = check_new_user(call, m, team, &role, &err);
    if (r >= 0)
        r = vg_tenants_add_user(&c->tenants, m->name, team, role, m->has_uid ? (int64_t)m->uid : -1,
                                m->has_gid   ? (int64_t)m->gid
                                : m->has_uid ? (int64_t)m->uid
                                             : -1,
                                0, vg_wall_usec(), &u, &err);
    if (r < 0) {
        vg_peer_fail(call->peer, call->req, &err);
        return;
    }
    struct vg_later *l = vg_later_new(call);
    if (!l || vg_users_store(c, u, vg_later_stored, l) < 0) {
        free(l);
        vg_tenants_remove_user(&c->tenants, m->name);
        out_of_memory(call);
        return;
    }
    vg_audit(call, "user %s added to team %s as %s", u->name, team, vg_role_name(role));
}

void vg_api_user_remove(struct vg_call *call) {
    struct vg_control *c = call->ctl;
    const char *name = call->env->user_remove->name ? call->env->user_remove->name : "";
    struct vg_user *u = vg_tenants_user(&c->tenants, name);
    if (!u) {
        vg_peer_error(call->peer, call->req, VG_NOT_FOUND,
                      "there is no user '%.64s': 'virga user list' shows them", name);
        return;
    }
    if (u == call->user) {
        vg_peer_error(call->peer, call->req, VG_CONFLICT, "nobody can remove himself");
        return;
    }
    struct vg_later *l = vg_later_new(call);
    if (!l || vg_persist_last_slot(c) < 0 ||
        vg_store_del_user(c->store, name, vg_later_stored, l) < 0) {
        free(l);
        out_of_memory(call);
        return;
    }
    vg_audit(call, "user %s removed", name);
    vg_keys_remove_user(c, name);
    vg_tenants_remove_user(&c->tenants, name);
}

void vg_api_user_list(struct vg_call *call) {
    struct vg_control *c = call->ctl;
    size_t n = 0, max = vg_map_len(&c->tenants.users) + 1;
    vg_auto_free Vg__Pb__UserInfo *info = vg_alloc(max * sizeof *info);
    vg_auto_free Vg__Pb__UserInfo **list = vg_alloc(max * sizeof *list);
    if (!info || !list) {
        out_of_memory(call);
        return;
    }
    vg_map_for_each (s, &c->tenants.users) {
        const struct vg_user *u = s->value;
        if (!vg_user_may_see(call->user, u->name, u->team->name))
            continue;
        Vg__Pb__UserInfo *m = &info[n];
        vg__pb__user_info__init(m);
        m->name = u->name;
        m->team = u->team->name;
        m->role = (char *)vg_role_name(u->role);
        m->has_uid = u->uid >= 0;
        m->uid = (uint32_t)u->uid;
        m->has_created_usec = 1;
        m->created_usec = u->created_usec;
        list[n++] = m;
    }
    VG_ENVELOPE(env);
    Vg__Pb__UserList m = VG__PB__USER_LIST__INIT;
    m.user = list;
    m.n_user = n;
    env.body_case = B(USERS);
    env.users = &m;
    vg_peer_send(call->peer, call->req, false, &env);
}

/* ------------------------------------------------------------------ teams */

void vg_api_team_add(struct vg_call *call) {
    const Vg__Pb__UserSet *m = call->env->team_add;
    struct vg_err err = VG_ERR_INIT;
    const char *name = m->team && *m->team ? m->team : m->name;
    uint64_t now = vg_wall_usec();
    if (vg_tenants_add_team(&call->ctl->tenants, VG_ORG_DEFAULT, name, now, NULL, &err) < 0) {
        vg_peer_fail(call->peer, call->req, &err);
        return;
    }
    struct vg_team_row row = {.name = name, .org = VG_ORG_DEFAULT, .created_usec = now};
    struct vg_later *l = vg_later_new(call);
    if (!l || vg_store_put_team(call->ctl->store, &row, vg_later_stored, l) < 0) {
        free(l);
        out_of_memory(call);
        return;
    }
    vg_audit(call, "team %s added", name);
}

/* Teams travel as users whose name is the team's. */
void vg_api_team_list(struct vg_call *call) {
    struct vg_control *c = call->ctl;
    size_t n = 0, max = vg_map_len(&c->tenants.teams) + 1;
    vg_auto_free Vg__Pb__UserInfo *info = vg_alloc(max * sizeof *info);
    vg_auto_free Vg__Pb__UserInfo **list = vg_alloc(max * sizeof *list);
    if (!info || !list) {
        out_of_memory(call);
        return;
    }
    vg_map_for_each (s, &c->tenants.teams) {
        const struct vg_team *t = s->value;
        Vg__Pb__UserInfo *m = &info[n];
        vg__pb__user_info__init(m);
        m->name = m->team = t->name;
        m->has_created_usec = 1;
        m->created_usec = t->created_usec;
        list[n++] = m;
    }
    VG_ENVELOPE(env);
    Vg__Pb__UserList m = VG__PB__USER_LIST__INIT;
    m.user = list;
    m.n_user = n;
    env.body_case = B(USERS);
    env.users = &m;
    vg_peer_send(call->peer, call->req, false, &env);
}

/* ------------------------------------------------------------------ tokens */

static int check_token_owner(struct vg_call *call, const char *name, struct vg_err *err) {
    struct vg_control *c = call->ctl;
    struct vg_user *u = vg_tenants_user(&c->tenants, name);
    size_t n = 0;
    if (strcmp(name, call->user->name) != 0 && (!u || !manages(call->user, u->team->name)))
        return vg_err_set(err, VG_FORBIDDEN,
                          "only an administrator may make tokens for other users ('%.64s')", name);
    if (!u)
        return vg_err_set(err, VG_NOT_FOUND,
                          "there is no user '%.64s': add it with 'virga user add'", name);
    if (call->peer->who.parent)
        return vg_err_set(err, VG_FORBIDDEN, "tokens cannot be made from inside a task");
    vg_map_for_each (s, &c->keys) {
        n += strcmp(((struct vg_apikey *)s->value)->user, name) == 0;
    }
    if (n >= KEYS_PER_USER)
        return vg_err_set(err, VG_TOO_BIG, "user '%s' has %zu tokens: revoke some", name, n);
    return 0;
}

void vg_api_token_create(struct vg_call *call) {
    const Vg__Pb__TokenReq *m = call->env->token_create;
    struct vg_control *c = call->ctl;
    struct vg_err err = VG_ERR_INIT;
    const char *user = m->user && *m->user ? m->user : call->user->name;
    if (check_token_owner(call, user, &err) < 0) {
        vg_peer_fail(call->peer, call->req, &err);
        return;
    }
    struct vg_token t;
    uint8_t hash[32];
    uint64_t now = vg_wall_usec();
    vg_token_new("vgt", c->ca.fingerprint, &t);
    vg_token_hash(&t, hash);
    struct vg_token_row row = {.id = t.id,
                               .user = user,
                               .name = m->name,
                               .hash = {hash, sizeof hash},
                               .created_usec = now,
                               .expires_usec = m->ttl_usec ? now + m->ttl_usec : 0};
    struct vg_later *l = vg_later_new(call);
    if (!l || vg_key_add(c, &row) < 0 ||
        vg_store_add_token(c->store, &row, vg_later_stored, l) < 0) {
        vg_key_remove(c, t.id);
        free(l);
        out_of_memory(call);
        return;
    }
    vg_token_format(&t, l->token);
    memcpy(l->id, t.id, sizeof l->id);
    vg_audit(call, "token %s made for user %s", t.id, user);
    OPENSSL_cleanse(&t, sizeof t);
}

void vg_api_token_list(struct vg_call *call) {
    struct vg_control *c = call->ctl;
    size_t n = 0, max = vg_map_len(&c->keys) + 1;
    vg_auto_free Vg__Pb__TokenInfo *info = vg_alloc(max * sizeof *info);
    vg_auto_free Vg__Pb__TokenInfo **list = vg_alloc(max * sizeof *list);
    if (!info || !list) {
        out_of_memory(call);
        return;
    }
    vg_map_for_each (s, &c->keys) {
        struct vg_apikey *k = s->value;
        if (strcmp(k->user, call->user->name) != 0 && !vg_user_may(call->user, VG_ACT_MANAGE_USERS))
            continue;
        Vg__Pb__TokenInfo *m = &info[n];
        vg__pb__token_info__init(m);
        m->id = k->id;
        m->user = k->user;
        m->name = k->name;
        m->has_created_usec = m->has_expires_usec = m->has_used_usec = 1;
        m->created_usec = k->created_usec;
        m->expires_usec = k->expires_usec;
        m->used_usec = k->used_usec;
        list[n++] = m;
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
    if (!k ||
        (strcmp(k->user, call->user->name) != 0 && !vg_user_may(call->user, VG_ACT_MANAGE_USERS))) {
        vg_peer_error(call->peer, call->req, VG_NOT_FOUND,
                      "there is no token '%.32s' of yours: 'virga token list' shows them", id);
        return;
    }
    struct vg_later *l = vg_later_new(call);
    if (!l || vg_store_del_token(c->store, id, vg_later_stored, l) < 0) {
        free(l);
        out_of_memory(call);
        return;
    }
    vg_audit(call, "token %s of user %s revoked", id, k->user);
    vg_key_remove(c, id);
}
