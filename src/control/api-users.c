/* Users. Memory changes when the store has the change. */
#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"
#include "control/api.h"
#include "control/audit.h"
#include "control/hooks.h"
#include "control/kept.h"
#include "control/keys.h"
#include "control/later.h"
#include "control/persist.h"
#include "control/secrets.h"
#include "control/users.h"

#include <stdio.h>
#include <string.h>

#define B(name) VG__PB__ENVELOPE__BODY_##name
#define TEXT_MAX 254 /* of an e-mail address or a full name */

static void out_of_memory(struct vg_call *call) {
    vg_peer_error(call->peer, call->req, VG_INTERNAL, "the control plane is out of memory");
}

static int parse_role(const char *text, enum vg_role *ret, struct vg_err *err) {
    if (vg_role_parse(text, ret) < 0)
        return vg_err_set(err, VG_INVALID,
                          "there is no role '%.32s': choose admin, lead, member or viewer", text);
    return 0;
}

/* Words about a person go into tables and mails: one line each. */
static int check_text(const char *what, const char *text, struct vg_err *err) {
    size_t n = text ? strlen(text) : 0;
    if (n > TEXT_MAX)
        return vg_err_set(err, VG_TOO_BIG, "the %s has %zu characters: at most %d are kept", what,
                          n, TEXT_MAX);
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)text[i] < ' ' || text[i] == 127)
            return vg_err_set(err, VG_INVALID, "the %s has a control character: give one line",
                              what);
    return 0;
}

static int check_texts(const Vg__Pb__UserSet *m, struct vg_err *err) {
    int r = check_text("full name", m->full_name, err);
    if (r >= 0)
        r = check_text("e-mail address", m->email, err);
    if (r >= 0 && m->email && *m->email && (!strchr(m->email, '@') || strpbrk(m->email, " <>,;")))
        r = vg_err_set(err, VG_INVALID, "'%.100s' is not an e-mail address", m->email);
    return r;
}

static int only_a_lead(const struct vg_call *call, struct vg_err *err) {
    return vg_err_set(err, VG_FORBIDDEN,
                      "user '%s' may not do this: a lead looks after the members and viewers of "
                      "his own team, an administrator after everybody",
                      call->user->name);
}

/* ------------------------------------------------------------------ adding */

static int check_new_user(struct vg_call *call, const Vg__Pb__UserSet *m, const char *team,
                          enum vg_role *ret_role, struct vg_err *err) {
    int r = parse_role(m->role && *m->role ? m->role : "member", ret_role, err);
    if (r < 0)
        return r;
    if (!vg_users_lead(call->user, team) ||
        (*ret_role > VG_ROLE_MEMBER && !vg_user_may(call->user, VG_ACT_MANAGE_USERS)) ||
        (m->has_uid && !vg_user_may(call->user, VG_ACT_MANAGE_USERS)))
        return only_a_lead(call, err);
    if (m->service && m->has_uid)
        return vg_err_set(err, VG_INVALID,
                          "a service account has tokens and no account of this machine: leave out "
                          "--uid or --service");
    return check_texts(m, err);
}

static int add_user(struct vg_call *call, const Vg__Pb__UserSet *m, const char *team,
                    struct vg_user **ret, struct vg_err *err) {
    enum vg_role role = VG_ROLE_MEMBER;
    int64_t uid = m->has_uid ? (int64_t)m->uid : -1, gid = m->has_gid ? (int64_t)m->gid : uid;
    struct vg_user *u = NULL;
    int r = check_new_user(call, m, team, &role, err);
    if (r >= 0)
        r = vg_tenants_add_user(&call->ctl->tenants, m->name, team, role, uid, gid, 0,
                                vg_wall_usec(), &u, err);
    if (r < 0)
        return r;
    u->service = m->service;
    u->disabled = m->disabled;
    if (vg_user_set_text(&u->email, m->email) < 0 ||
        vg_user_set_text(&u->full_name, m->full_name) < 0) {
        vg_tenants_remove_user(&call->ctl->tenants, m->name);
        return vg_err_sys(err, -ENOMEM, "cannot add user '%s'", m->name);
    }
    *ret = u;
    return 0;
}

void vg_api_user_add(struct vg_call *call) {
    const Vg__Pb__UserSet *m = call->env->user_add;
    struct vg_control *c = call->ctl;
    struct vg_err err = VG_ERR_INIT;
    const char *team = m->team && *m->team ? m->team : call->user->team->name;
    struct vg_user *u = NULL;
    if (add_user(call, m, team, &u, &err) < 0) {
        vg_peer_fail(call->peer, call->req, &err);
        return;
    }
    vg_audit(call, "user %s added to team %s as %s%s", u->name, team, vg_role_name(u->role),
             u->service ? ", a service account" : "");
    struct vg_later *l = vg_later_new(call);
    if (!l || vg_users_store(c, u, vg_later_stored, l) < 0) {
        free(l);
        vg_tenants_remove_user(&c->tenants, m->name);
        out_of_memory(call);
        return;
    }
    vg_kept_ask(c, u->name); /* one of that name may have left something */
}

/* ------------------------------------------------------------------ changing, removing */

/* The user of that name, if the caller may know of him. */
static struct vg_user *find(struct vg_call *call, const char *name, struct vg_err *err) {
    struct vg_user *u = vg_tenants_user(&call->ctl->tenants, name);
    if (u && vg_users_may_see(call->user, u->name, u->team->name))
        return u;
    vg_err_set(err, VG_NOT_FOUND, "there is no user '%.64s': 'virga user list' shows them", name);
    return NULL;
}

struct change {
    struct vg_user *user;
    struct vg_team *team;
    enum vg_role role;
    bool disabled;
};

/* Everybody may say how he is called; the rest is for those who look after him. */
static int check_rights(const struct vg_call *call, const Vg__Pb__UserSet *m,
                        const struct change *ch, struct vg_err *err) {
    const struct vg_user *me = call->user;
    bool all = vg_user_may(me, VG_ACT_MANAGE_USERS);
    bool self = ch->user == me;
    if (m->has_uid || m->has_gid || m->has_service)
        return vg_err_set(err, VG_INVALID,
                          "what account somebody is does not change: remove the user and add "
                          "another");
    if (self && (ch->role != me->role || ch->disabled))
        return vg_err_set(err, VG_CONFLICT,
                          "nobody changes his own role or disables himself: ask another "
                          "administrator");
    if (all)
        return 0;
    bool may = self || (vg_users_manage(me, ch->user) && ch->role <= VG_ROLE_MEMBER);
    return may && ch->team == ch->user->team ? 0 : only_a_lead(call, err);
}

static int read_change(struct vg_call *call, const Vg__Pb__UserSet *m, struct change *ret,
                       struct vg_err *err) {
    struct change ch = {.user = find(call, m->name ? m->name : "", err)};
    int r = ch.user ? check_texts(m, err) : -ENOENT;
    if (r < 0)
        return r;
    ch.team = ch.user->team;
    ch.role = ch.user->role;
    ch.disabled = m->has_disabled ? m->disabled : ch.user->disabled;
    if (m->role && *m->role)
        r = parse_role(m->role, &ch.role, err);
    if (r >= 0 && m->team && *m->team) {
        ch.team = vg_tenants_team(&call->ctl->tenants, m->team);
        if (!ch.team || !vg_users_know_team(call->user, ch.team))
            return vg_err_set(err, VG_NOT_FOUND,
                              "there is no team '%.64s'; 'virga team add' makes one", m->team);
    }
    if (r >= 0)
        r = check_rights(call, m, &ch, err);
    *ret = ch;
    return r;
}

static void say_change(struct vg_call *call, const Vg__Pb__UserSet *m, const struct change *ch) {
    const struct vg_user *u = ch->user;
    char text[400];
    int n = snprintf(text, sizeof text, "user %s:", u->name);
#define SAY(...) n += snprintf(text + n, sizeof text - (size_t)n, __VA_ARGS__)
    if (ch->team != u->team)
        SAY(" team %s", ch->team->name);
    if (ch->role != u->role)
        SAY(" role %s", vg_role_name(ch->role));
    if (ch->disabled != u->disabled)
        SAY(" %s", ch->disabled ? "disabled" : "enabled");
    if (m->email)
        SAY(" e-mail");
    if (m->full_name)
        SAY(" full name");
#undef SAY
    vg_audit(call, "%s", text);
}

void vg_api_user_set(struct vg_call *call) {
    const Vg__Pb__UserSet *m = call->env->user_set;
    struct vg_err err = VG_ERR_INIT;
    struct change ch = {0};
    int r = read_change(call, m, &ch, &err);
    struct vg_later *l = r < 0 ? NULL : vg_later_new(call);
    if (r >= 0 && (!l || (m->email && vg_user_set_text(&ch.user->email, m->email) < 0) ||
                   (m->full_name && vg_user_set_text(&ch.user->full_name, m->full_name) < 0)))
        r = vg_err_sys(&err, -ENOMEM, "cannot change user '%s'", ch.user->name);
    if (r < 0) {
        free(l);
        vg_peer_fail(call->peer, call->req, &err);
        return;
    }
    say_change(call, m, &ch);
    if (ch.team != ch.user->team)
        vg_kept_cut(call->ctl, ch.user->name);
    vg_tenants_move_user(ch.user, ch.team);
    ch.user->role = ch.role;
    ch.user->disabled = ch.disabled;
    if (vg_users_store(call->ctl, ch.user, vg_later_stored, l) < 0) {
        free(l);
        out_of_memory(call);
    }
    if (ch.disabled)
        vg_peers_cut(call->ctl, ch.user->name, NULL, call->peer);
    vg_peers_recheck(call->ctl, ch.user);
}

void vg_api_user_remove(struct vg_call *call) {
    struct vg_control *c = call->ctl;
    struct vg_err err = VG_ERR_INIT;
    const char *ref = call->env->user_remove->name ? call->env->user_remove->name : "";
    struct vg_user *u = find(call, ref, &err);
    if (u == call->user)
        vg_err_set(&err, VG_CONFLICT, "nobody can remove himself");
    if (!u || u == call->user) {
        vg_peer_fail(call->peer, call->req, &err);
        return;
    }
    vg_audit(call, "user %s removed", u->name);
    struct vg_later *l = vg_later_new(call);
    if (!l || vg_persist_last_slot(c) < 0 ||
        vg_store_del_user(c->store, u->name, vg_later_stored, l) < 0) {
        free(l);
        out_of_memory(call);
        return;
    }
    vg_keys_remove_user(c, ref);
    vg_secrets_forget_user(c, ref);
    vg_hooks_forget_user(c, ref);
    vg_kept_forget(c, ref);
    vg_tenants_remove_user(&c->tenants, ref);
    vg_peers_cut(c, ref, NULL, call->peer);
}

/* ------------------------------------------------------------------ showing */

static void fill_user(const struct vg_call *call, const struct vg_user *u, Vg__Pb__UserInfo *m) {
    vg__pb__user_info__init(m);
    m->name = u->name;
    m->team = u->team->name;
    m->org = u->team->org;
    m->role = (char *)vg_role_name(u->role);
    m->full_name = u->full_name;
    m->has_created_usec = m->has_service = m->has_disabled = 1;
    m->created_usec = u->created_usec;
    m->service = u->service;
    m->disabled = u->disabled;
    if (u != call->user && !vg_users_lead(call->user, u->team->name))
        return;
    m->has_uid = u->uid >= 0;
    m->uid = (uint32_t)u->uid;
    m->email = u->email;
    m->has_seen_usec = m->has_oidc = 1;
    m->seen_usec = u->seen_usec;
    m->oidc = u->subject != NULL;
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
        if (!vg_users_may_see(call->user, u->name, u->team->name))
            continue;
        fill_user(call, u, &info[n]);
        list[n] = &info[n];
        n++;
    }
    VG_ENVELOPE(env);
    Vg__Pb__UserList m = VG__PB__USER_LIST__INIT;
    m.user = list;
    m.n_user = n;
    env.body_case = B(USERS);
    env.users = &m;
    vg_peer_send(call->peer, call->req, false, &env);
}

/* Who am I, and what may I do here? */
void vg_api_me(struct vg_call *call) {
    struct vg_control *c = call->ctl;
    const struct vg_user *u = call->user;
    const struct vg_apikey *k =
        call->peer->who.key[0] ? vg_map_get(&c->keys, call->peer->who.key) : NULL;
    char *act[32];
    VG_ENVELOPE(env);
    Vg__Pb__MeInfo m = VG__PB__ME_INFO__INIT;
    m.user = u->name;
    m.team = u->team->name;
    m.org = u->team->org;
    m.role = (char *)vg_role_name(u->role);
    m.email = u->email;
    m.full_name = u->full_name;
    m.has_service = 1;
    m.service = u->service;
    m.cloud = c->cloud;
    m.version = (char *)VG_VERSION;
    m.currency = c->conf.currency;
    m.has_expires_usec = 1;
    m.expires_usec = k ? k->expires_usec : 0;
    m.act = act;
    for (unsigned bit = 0; bit < 32 && vg_act_name(1u << bit); bit++)
        if (vg_user_may(u, 1u << bit) && vg_peer_may(call->peer, 1u << bit))
            act[m.n_act++] = (char *)vg_act_name(1u << bit);
    env.body_case = B(ME_INFO);
    env.me_info = &m;
    vg_peer_send(call->peer, call->req, false, &env);
}
