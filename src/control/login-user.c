/* From what an identity provider says to a user of the cloud.

   What always holds: an account there is one user here, by issuer and subject, whatever its name
   becomes. A user who was here before is joined to one only when both have the same name and the
   same e-mail address, which the provider has verified: names alone prove nothing. */
#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"
#include "conf/conf.h"
#include "control/audit.h"
#include "control/login-int.h"
#include "control/users.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#define SUBJECT_MAX 600

static const char *text_of(const json_t *claims, const char *name) {
    const char *s = json_string_value(json_object_get(claims, name));
    return s && *s ? s : NULL;
}

static const char *verified_email(const json_t *claims) {
    return json_is_true(json_object_get(claims, "email_verified")) ? text_of(claims, "email")
                                                                   : NULL;
}

static int name_of(const struct vg_conf *conf, const json_t *claims,
                   char ret[static VG_TENANT_NAME_MAX + 1], struct vg_err *err) {
    const char *claim = conf->oidc.user_claim && *conf->oidc.user_claim ? conf->oidc.user_claim
                                                                        : "preferred_username";
    const char *s = text_of(claims, claim);
    if (!s)
        return vg_err_set(err, VG_FORBIDDEN,
                          "the identity provider does not say your '%s': ask its administrator, or "
                          "the cloud's to set oidc.user_claim",
                          claim);
    snprintf(ret, VG_TENANT_NAME_MAX + 1, "%.*s",
             (int)VG_MIN(strcspn(s, "@"), (size_t)VG_TENANT_NAME_MAX), s);
    if (!vg_conf_name_valid(ret))
        return vg_err_set(err, VG_FORBIDDEN,
                          "'%.64s' cannot name a user of the cloud: ask its administrator to set "
                          "oidc.user_claim",
                          s);
    return 0;
}

/* ------------------------------------------------------------------ groups */

static bool in_group(const json_t *claims, const char *claim, const char *group) {
    const json_t *g = claim && *claim ? json_object_get(claims, claim) : NULL;
    if (json_is_string(g))
        return strcmp(json_string_value(g), group) == 0;
    for (size_t i = 0; i < json_array_size(g); i++) {
        const char *s = json_string_value(json_array_get(g, i));
        if (s && strcmp(s, group) == 0)
            return true;
    }
    return false;
}

/* The first of the table's groups that the person is in. NULL: none. */
static const char *by_group(const struct vg_conf *conf, const struct vg_labels *table,
                            const json_t *claims) {
    for (size_t i = 0; i < table->n; i++)
        if (in_group(claims, conf->oidc.group_claim, table->item[i].key))
            return table->item[i].value;
    return NULL;
}

/* What the groups say now; what they do not say stays. */
static void put_in_place(struct vg_control *c, struct vg_user *u, const json_t *claims,
                         const char *from) {
    const char *team = by_group(&c->conf, &c->conf.oidc.teams, claims);
    const char *role = by_group(&c->conf, &c->conf.oidc.roles, claims);
    struct vg_team *t = team ? vg_tenants_team(&c->tenants, team) : NULL;
    enum vg_role r = u->role;
    if (role)
        vg_role_parse(role, &r);
    if (t && t != u->team) {
        vg_audit_note(c, u->name, from, "user %s: team %s, by the identity provider", u->name,
                      t->name);
        vg_tenants_move_user(u, t);
    }
    if (r != u->role) {
        vg_audit_note(c, u->name, from, "user %s: role %s, by the identity provider", u->name,
                      vg_role_name(r));
        u->role = r;
    }
}

/* ------------------------------------------------------------------ who it is */

static struct vg_user *by_subject(struct vg_control *c, const char *subject) {
    vg_map_for_each (s, &c->tenants.users) {
        struct vg_user *u = s->value;
        if (u->subject && strcmp(u->subject, subject) == 0)
            return u;
    }
    return NULL;
}

static int join(struct vg_user *u, const json_t *claims, struct vg_err *err) {
    const char *email = verified_email(claims);
    if (!u->service && !u->subject && u->email && email && strcasecmp(u->email, email) == 0)
        return 0;
    return vg_err_set(err, VG_FORBIDDEN,
                      "the name '%s' belongs to another user of this cloud: if it is you, ask its "
                      "administrator to run 'virga user set %s --email ADDRESS' with the address "
                      "that the identity provider has verified",
                      u->name, u->name);
}

static int make(struct vg_control *c, const char *name, const json_t *claims, const char *from,
                struct vg_user **ret, struct vg_err *err) {
    const char *team = by_group(&c->conf, &c->conf.oidc.teams, claims);
    if (!c->conf.oidc.auto_create)
        return vg_err_set(err, VG_FORBIDDEN,
                          "'%s' is not a user of this cloud: ask its administrator to run 'virga "
                          "user add %s --email ADDRESS', or to set oidc.auto_create",
                          name, name);
    if (!team || !vg_tenants_team(&c->tenants, team))
        team = VG_TEAM_DEFAULT;
    int r = vg_users_ensure_team(c, err);
    if (r >= 0)
        r = vg_tenants_add_user(&c->tenants, name, team, VG_ROLE_MEMBER, -1, -1, 0, vg_wall_usec(),
                                ret, err);
    if (r >= 0)
        vg_audit_note(c, name, from, "user %s added to team %s as member, by the identity provider",
                      name, team);
    return r;
}

static bool is_one_line(const char *s) {
    for (; *s; s++)
        if ((unsigned char)*s < ' ' || *s == 127)
            return false;
    return true;
}

static int fill_in(struct vg_user *u, const json_t *claims, const char *subject) {
    const char *full = text_of(claims, "name");
    const char *email = verified_email(claims);
    int r = u->subject ? 0 : vg_user_set_text(&u->subject, subject);
    if (r >= 0 && full && !u->full_name && strlen(full) < 255 && is_one_line(full))
        r = vg_user_set_text(&u->full_name, full);
    if (r >= 0 && email && !u->email && strlen(email) < 255 && is_one_line(email))
        r = vg_user_set_text(&u->email, email);
    return r;
}

int vg_login_user(struct vg_control *c, const json_t *claims, const char *from,
                  struct vg_user **ret, struct vg_err *err) {
    char subject[SUBJECT_MAX], name[VG_TENANT_NAME_MAX + 1];
    int n = snprintf(subject, sizeof subject, "%s %s", c->conf.oidc.issuer, text_of(claims, "sub"));
    int r = 0;
    if (n >= SUBJECT_MAX)
        return vg_err_set(err, VG_TOO_BIG, "the identity provider's subject is too long");
    struct vg_user *u = by_subject(c, subject);
    if (!u) {
        r = name_of(&c->conf, claims, name, err);
        u = r < 0 ? NULL : vg_tenants_user(&c->tenants, name);
        if (u)
            r = join(u, claims, err);
        else if (r >= 0)
            r = make(c, name, claims, from, &u, err);
    }
    if (r < 0)
        return r;
    if (u->disabled)
        return vg_users_say_disabled(u, err);
    if (fill_in(u, claims, subject) < 0)
        return vg_err_sys(err, -ENOMEM, "cannot log in");
    put_in_place(c, u, claims, from);
    vg_peers_recheck(c, u);
    r = vg_users_store(c, u, NULL, NULL);
    if (r < 0)
        return vg_err_sys(err, r, "the login cannot be stored");
    *ret = u;
    return 0;
}
