/* Users and teams in memory and in the store. */
#include "control/users.h"

#include "base/util.h"
#include "control/audit.h"
#include "control/who.h"

#include <string.h>

int vg_users_store(struct vg_control *c, const struct vg_user *u, vg_store_cb *cb, void *arg) {
    struct vg_user_row row = {.name = u->name,
                              .team = u->team->name,
                              .role = vg_role_name(u->role),
                              .uid = u->uid,
                              .gid = u->gid,
                              .slot = u->slot,
                              .created_usec = u->created_usec,
                              .service = u->service,
                              .disabled = u->disabled,
                              .email = u->email,
                              .full_name = u->full_name,
                              .subject = u->subject};
    return vg_store_put_user(c->store, &row, cb, arg);
}

int vg_users_ensure_team(struct vg_control *c, struct vg_err *err) {
    if (vg_tenants_team(&c->tenants, VG_TEAM_DEFAULT))
        return 0;
    uint64_t now = vg_wall_usec();
    struct vg_org_row org = {.name = VG_ORG_DEFAULT, .created_usec = now};
    struct vg_team_row team = {.name = VG_TEAM_DEFAULT, .org = VG_ORG_DEFAULT, .created_usec = now};
    vg_store_put_org(c->store, &org, NULL, NULL);
    vg_store_put_team(c->store, &team, NULL, NULL);
    return vg_tenants_add_team(&c->tenants, VG_ORG_DEFAULT, VG_TEAM_DEFAULT, now, NULL, err);
}

/* A record of that name without a uid becomes this account's: the administrator chose the name. */
static int bind_uid(struct vg_control *c, struct vg_user *old, const struct vg_account *a,
                    struct vg_err *err) {
    if (old->service)
        return vg_err_set(err, VG_FORBIDDEN,
                          "the name '%s' belongs to a service account of this cloud: ask its "
                          "administrator to run 'virga user add NAME --uid %u'",
                          a->name, (unsigned)a->uid);
    if (old->uid >= 0)
        return vg_err_set(
            err, VG_FORBIDDEN,
            "the name '%s' belongs to uid %lld on this cloud, you are uid %u: ask its "
            "administrator to run 'virga user add NAME --uid %u'",
            a->name, (long long)old->uid, (unsigned)a->uid, (unsigned)a->uid);
    int r = vg_tenants_bind_user(&c->tenants, old, a->uid, a->gid);
    return r < 0 ? vg_err_sys(err, r, "cannot enter user '%s'", a->name) : 0;
}

int vg_users_for_account(struct vg_control *c, const struct vg_account *a, bool admin,
                         struct vg_user **ret, struct vg_err *err) {
    struct vg_user *u = vg_tenants_by_uid(&c->tenants, a->uid);
    if (u) {
        if (admin)
            u->role = VG_ROLE_ADMIN;
        *ret = u;
        return 0;
    }
    int r = vg_users_ensure_team(c, err);
    if (r < 0)
        return r;
    u = vg_tenants_user(&c->tenants, a->name);
    bool known = u != NULL;
    if (u)
        r = bind_uid(c, u, a, err);
    else
        r = vg_tenants_add_user(&c->tenants, a->name, VG_TEAM_DEFAULT,
                                admin ? VG_ROLE_ADMIN : VG_ROLE_MEMBER, a->uid, a->gid, 0,
                                vg_wall_usec(), &u, err);
    if (r < 0)
        return r;
    if (admin)
        u->role = VG_ROLE_ADMIN;
    vg_store_group_begin(c->store);
    vg_users_store(c, u, NULL, NULL);
    vg_audit_note(c, u->name, "local",
                  known ? "user %s: account %u of this machine, %s"
                        : "user %s added: account %u of this machine, %s",
                  u->name, (unsigned)a->uid, vg_role_name(u->role));
    vg_store_group_end(c->store);
    *ret = u;
    return 0;
}

static const char *common(const char *team) {
    return strcmp(team, VG_TEAM_DEFAULT) == 0 ? "" : team;
}

bool vg_users_may_see(const struct vg_user *u, const char *owner, const char *team) {
    return vg_user_may_see(u, owner, common(team));
}

bool vg_users_may_end(const struct vg_user *u, const char *owner, const char *team) {
    return vg_user_may_end(u, owner, common(team));
}

bool vg_users_know_team(const struct vg_user *u, const struct vg_team *team) {
    return vg_user_may(u, VG_ACT_SEE_ALL) || strcmp(u->team->org, team->org) == 0;
}

bool vg_users_lead(const struct vg_user *u, const char *team) {
    return vg_user_may(u, VG_ACT_MANAGE_USERS) ||
           (vg_user_may(u, VG_ACT_MANAGE_TEAM) && strcmp(u->team->name, common(team)) == 0);
}

bool vg_users_manage(const struct vg_user *u, const struct vg_user *other) {
    return vg_user_may(u, VG_ACT_MANAGE_USERS) ||
           (vg_users_lead(u, other->team->name) && other->role < u->role);
}

int vg_users_say_disabled(const struct vg_user *u, struct vg_err *err) {
    return vg_err_set(err, VG_UNAUTHENTICATED,
                      "user '%s' is disabled on this cloud: ask its administrator", u->name);
}
