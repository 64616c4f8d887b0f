/* The tenant tree in memory. Pure. */
#include "model/tenant.h"

#include "base/cleanup.h"
#include "base/mem.h"
#include "conf/conf.h"

static const struct {
    const char *name;
    unsigned acts;
} roles[] = {
#define ROLE(name, text, acts) [VG_ROLE_##name] = {text, acts},
#include "model/roles.tbl"
#undef ROLE
};

static const struct {
    enum vg_act act;
    const char *name;
} acts[] = {
#define ACT(name, text, bit) {VG_ACT_##name, text},
#include "model/roles.tbl"
#undef ACT
};

static const struct {
    const char *name;
    unsigned bit;
} scopes[] = {
#define SCOPE(name, text, bit, what) {text, VG_SCOPE_##name},
#include "model/roles.tbl"
#undef SCOPE
};

static void free_org(struct vg_org *o) {
    if (!o)
        return;
    free(o->name);
    free(o);
}

static void free_team(struct vg_team *t) {
    if (!t)
        return;
    free(t->name);
    free(t->org);
    free(t);
}

static void free_user(struct vg_user *u) {
    if (!u)
        return;
    free(u->name);
    free(u->email);
    free(u->full_name);
    free(u->subject);
    free(u);
}

void vg_tenants_done(struct vg_tenants *t) {
    vg_map_for_each (s, &t->users) {
        free_user(s->value);
    }
    vg_map_for_each (s, &t->teams) {
        free_team(s->value);
    }
    vg_map_for_each (s, &t->orgs) {
        free_org(s->value);
    }
    vg_map_done(&t->uids);
    vg_map_done(&t->users);
    vg_map_done(&t->teams);
    vg_map_done(&t->orgs);
    *t = (struct vg_tenants){0};
}

static int check_name(const char *what, const char *name, struct vg_err *err) {
    if (name && vg_conf_name_valid(name))
        return 0;
    return vg_err_set(err, VG_INVALID,
                      "'%.64s' cannot name a %s: use 1 to %d letters, digits, '.', '_' or '-', "
                      "beginning with a letter or digit",
                      name ? name : "", what, VG_TENANT_NAME_MAX);
}

int vg_tenants_add_org(struct vg_tenants *t, const char *name, uint64_t created_usec,
                       struct vg_err *err) {
    int r = check_name("organisation", name, err);
    if (r < 0)
        return r;
    if (vg_tenants_org(t, name))
        return vg_err_set(err, VG_EXISTS, "organisation '%s' exists already", name);
    struct vg_org *o = vg_alloc(sizeof *o);
    if (o)
        *o = (struct vg_org){.name = vg_strdup(name), .created_usec = created_usec};
    if (!o || !o->name || vg_map_put(&t->orgs, o->name, o) < 0) {
        free_org(o);
        return vg_err_sys(err, -ENOMEM, "cannot add organisation '%s'", name);
    }
    return 0;
}

int vg_tenants_add_team(struct vg_tenants *t, const char *org, const char *name,
                        uint64_t created_usec, struct vg_team **ret, struct vg_err *err) {
    int r = check_name("team", name, err);
    if (r < 0)
        return r;
    if (vg_tenants_team(t, name))
        return vg_err_set(err, VG_EXISTS, "team '%s' exists already", name);
    if (!vg_tenants_org(t, org) && (r = vg_tenants_add_org(t, org, created_usec, err)) < 0)
        return r;
    struct vg_team *team = vg_alloc(sizeof *team);
    if (!team)
        return vg_err_sys(err, -ENOMEM, "cannot add team '%s'", name);
    team->name = vg_strdup(name);
    team->org = vg_strdup(org);
    team->created_usec = created_usec;
    if (!team->name || !team->org || vg_map_put(&t->teams, team->name, team) < 0) {
        free_team(team);
        return vg_err_sys(err, -ENOMEM, "cannot add team '%s'", name);
    }
    if (ret)
        *ret = team;
    return 0;
}

static int check_user(const struct vg_tenants *t, const char *name, const char *team, int64_t uid,
                      uint32_t slot, struct vg_err *err) {
    int r = check_name("user", name, err);
    if (r < 0)
        return r;
    if (vg_tenants_user(t, name))
        return vg_err_set(err, VG_EXISTS, "user '%s' exists already", name);
    if (!team || !vg_tenants_team(t, team))
        return vg_err_set(err, VG_NOT_FOUND, "there is no team '%.64s'; 'virga team add' makes one",
                          team ? team : "");
    const struct vg_user *same = vg_tenants_by_uid(t, uid);
    if (same)
        return vg_err_set(err, VG_EXISTS, "uid %lld belongs to user '%s' already", (long long)uid,
                          same->name);
    if (slot)
        vg_map_for_each (s, &t->users) {
            if (((const struct vg_user *)s->value)->slot == slot)
                return vg_err_set(err, VG_EXISTS, "id range %u is taken already", slot);
        }
    return 0;
}

static int enter_user(struct vg_tenants *t, struct vg_user *u) {
    if (vg_map_put(&t->users, u->name, u) < 0)
        return -ENOMEM;
    if (u->uid >= 0 && vg_map_put_u64(&t->uids, (uint64_t)u->uid + 1, u) < 0) {
        vg_map_del(&t->users, u->name);
        return -ENOMEM;
    }
    u->team->users++;
    if (u->slot > t->last_slot)
        t->last_slot = u->slot;
    return 0;
}

int vg_tenants_add_user(struct vg_tenants *t, const char *name, const char *team, enum vg_role role,
                        int64_t uid, int64_t gid, uint32_t slot, uint64_t created_usec,
                        struct vg_user **ret, struct vg_err *err) {
    int r = check_user(t, name, team, uid, slot, err);
    if (r < 0)
        return r;
    struct vg_user *u = vg_alloc(sizeof *u);
    if (!u)
        return vg_err_sys(err, -ENOMEM, "cannot add user '%s'", name);
    *u = (struct vg_user){.name = vg_strdup(name),
                          .team = vg_tenants_team(t, team),
                          .role = role,
                          .uid = uid,
                          .gid = gid,
                          .slot = slot ? slot : t->last_slot + 1,
                          .created_usec = created_usec};
    if (!u->name || enter_user(t, u) < 0) {
        free_user(u);
        return vg_err_sys(err, -ENOMEM, "cannot add user '%s'", name);
    }
    if (ret)
        *ret = u;
    return 0;
}

int vg_tenants_remove_user(struct vg_tenants *t, const char *name) {
    struct vg_user *u = vg_map_del(&t->users, name);
    if (!u)
        return -ENOENT;
    if (u->uid >= 0)
        vg_map_del_u64(&t->uids, (uint64_t)u->uid + 1);
    u->team->users--;
    free_user(u);
    return 0;
}

int vg_tenants_remove_team(struct vg_tenants *t, const char *name) {
    struct vg_team *team = vg_tenants_team(t, name);
    if (!team || team->users)
        return team ? -EBUSY : -ENOENT;
    vg_map_del(&t->teams, name);
    free_team(team);
    return 0;
}

int vg_tenants_remove_org(struct vg_tenants *t, const char *name) {
    struct vg_org *o = vg_tenants_org(t, name);
    if (!o)
        return -ENOENT;
    vg_map_for_each (s, &t->teams) {
        if (strcmp(((const struct vg_team *)s->value)->org, name) == 0)
            return -EBUSY;
    }
    vg_map_del(&t->orgs, name);
    free_org(o);
    return 0;
}

int vg_tenants_move_team(struct vg_tenants *t, struct vg_team *team, const char *org) {
    if (!vg_tenants_org(t, org))
        return -ENOENT;
    char *copy = vg_strdup(org);
    if (!copy)
        return -ENOMEM;
    free(team->org);
    team->org = copy;
    return 0;
}

void vg_tenants_move_user(struct vg_user *u, struct vg_team *team) {
    u->team->users--;
    u->team = team;
    team->users++;
}

int vg_tenants_bind_user(struct vg_tenants *t, struct vg_user *u, int64_t uid, int64_t gid) {
    const struct vg_user *same = vg_tenants_by_uid(t, uid);
    if (same && same != u)
        return -EEXIST;
    if (!same && uid >= 0 && vg_map_put_u64(&t->uids, (uint64_t)uid + 1, u) < 0)
        return -ENOMEM;
    if (u->uid >= 0 && u->uid != uid)
        vg_map_del_u64(&t->uids, (uint64_t)u->uid + 1);
    u->uid = uid;
    u->gid = gid;
    return 0;
}

int vg_user_set_text(char **field, const char *text) {
    char *copy = text && *text ? vg_strdup(text) : NULL;
    if (text && *text && !copy)
        return -ENOMEM;
    free(*field);
    *field = copy;
    return 0;
}

struct vg_org *vg_tenants_org(const struct vg_tenants *t, const char *name) {
    return vg_map_get(&t->orgs, name);
}

struct vg_team *vg_tenants_team(const struct vg_tenants *t, const char *name) {
    return vg_map_get(&t->teams, name);
}

struct vg_user *vg_tenants_user(const struct vg_tenants *t, const char *name) {
    return vg_map_get(&t->users, name);
}

struct vg_user *vg_tenants_by_uid(const struct vg_tenants *t, int64_t uid) {
    return uid < 0 ? NULL : vg_map_get_u64(&t->uids, (uint64_t)uid + 1);
}

const char *vg_role_name(enum vg_role r) {
    return (unsigned)r < VG_COUNT(roles) ? roles[r].name : "?";
}

int vg_role_parse(const char *s, enum vg_role *ret) {
    for (unsigned i = 0; i < VG_COUNT(roles); i++)
        if (strcmp(s, roles[i].name) == 0) {
            *ret = i;
            return 0;
        }
    return -EINVAL;
}

unsigned vg_role_acts(enum vg_role r) {
    return (unsigned)r < VG_COUNT(roles) ? roles[r].acts : 0;
}

const char *vg_act_name(enum vg_act act) {
    for (size_t i = 0; i < VG_COUNT(acts); i++)
        if (acts[i].act == act)
            return acts[i].name;
    return NULL;
}

int vg_scope_parse(char *const *name, size_t n, unsigned *ret) {
    unsigned all = 0;
    for (size_t i = 0; i < n; i++) {
        unsigned bit = 0;
        for (size_t k = 0; k < VG_COUNT(scopes); k++)
            if (strcmp(name[i], scopes[k].name) == 0)
                bit = scopes[k].bit;
        if (!bit)
            return -EINVAL;
        all |= bit;
    }
    *ret = n ? all : VG_SCOPE_ALL;
    return 0;
}

const char *vg_scope_name(unsigned i) {
    return i < VG_COUNT(scopes) ? scopes[i].name : NULL;
}

static bool reaches(const struct vg_user *u, const char *owner, const char *team, enum vg_act all,
                    enum vg_act mates) {
    if (vg_user_may(u, all) || strcmp(u->name, owner) == 0)
        return true;
    return vg_user_may(u, mates) && strcmp(u->team->name, team) == 0;
}

bool vg_user_may_see(const struct vg_user *u, const char *owner, const char *team) {
    return reaches(u, owner, team, VG_ACT_SEE_ALL, VG_ACT_SEE_TEAM);
}

bool vg_user_may_end(const struct vg_user *u, const char *owner, const char *team) {
    return reaches(u, owner, team, VG_ACT_END_ALL, VG_ACT_END_TEAM);
}
