#pragma once
/* Organisation -> team -> user, in memory, with roles. Every object has an owner here; every call a
   principal. Pure data: virgad loads it from the store and writes changes there.

   What always holds: a user's team and a team's organisation exist; names and slots are unique. */
#include "base/err.h"
#include "base/map.h"

#include <stdint.h>

enum vg_role {
#define ROLE(name, text, acts) VG_ROLE_##name,
#include "model/roles.tbl"
#undef ROLE
    VG_ROLES
};

enum vg_act {
#define ACT(name, text, bit) VG_ACT_##name = 1 << bit,
#include "model/roles.tbl"
#undef ACT
};

enum vg_scope {
#define SCOPE(name, text, bit, what) VG_SCOPE_##name = 1 << bit,
#include "model/roles.tbl"
#undef SCOPE
    VG_SCOPE_ALL = 0xffff /* of whoever comes without a token, or with one that nothing holds */
};

struct vg_org {
    char *name; /* owned */
    uint64_t created_usec;
};

struct vg_team {
    char *name, *org; /* owned */
    uint64_t created_usec;
    uint32_t users;
};

struct vg_user {
    char *name; /* owned */
    struct vg_team *team;
    enum vg_role role;
    int64_t uid, gid; /* -1: no account on this machine */
    uint32_t slot;    /* number of the user's id range, from 1 */
    uint64_t created_usec;
    uint32_t open_tasks;     /* unfinished ones in memory; kept by whoever holds them */
    bool service;            /* an account for programs: it has tokens and no other way in */
    bool disabled;           /* nothing is answered to it until that is taken back */
    char *email, *full_name; /* owned; NULL: not known */
    char *subject;      /* owned: who it is to the identity provider; NULL: it has none there */
    uint64_t seen_usec; /* its last request in this life of the control plane; 0: none */
};

struct vg_tenants {
    struct vg_map orgs;  /* name -> struct vg_org, owned */
    struct vg_map teams; /* name -> struct vg_team, owned */
    struct vg_map users; /* name -> struct vg_user, owned */
    struct vg_map uids;  /* uid + 1 -> struct vg_user */
    uint32_t last_slot;
};

#define VG_TENANT_NAME_MAX 63

void vg_tenants_done(struct vg_tenants *t); /* zero-initialised is empty and valid */

/* Names: as vg_conf_name_valid. Errors are sentences: EXISTS, NOT_FOUND (team), INVALID. */
int vg_tenants_add_org(struct vg_tenants *t, const char *name, uint64_t created_usec,
                       struct vg_err *err);
/* Its organisation is made when there is none of that name. */
int vg_tenants_add_team(struct vg_tenants *t, const char *org, const char *name,
                        uint64_t created_usec, struct vg_team **ret, struct vg_err *err);
/* slot 0: the next free one. */
int vg_tenants_add_user(struct vg_tenants *t, const char *name, const char *team, enum vg_role role,
                        int64_t uid, int64_t gid, uint32_t slot, uint64_t created_usec,
                        struct vg_user **ret, struct vg_err *err);
/* 0, -ENOENT, or -EBUSY: something is in it. */
int vg_tenants_remove_org(struct vg_tenants *t, const char *name);
int vg_tenants_remove_team(struct vg_tenants *t, const char *name);
int vg_tenants_remove_user(struct vg_tenants *t, const char *name);
/* Changes. 0, -ENOENT (no such organisation), -EEXIST (somebody has that uid), -ENOMEM. */
int vg_tenants_move_team(struct vg_tenants *t, struct vg_team *team, const char *org);
void vg_tenants_move_user(struct vg_user *u, struct vg_team *team);
int vg_tenants_bind_user(struct vg_tenants *t, struct vg_user *u, int64_t uid, int64_t gid);
/* Replaces a text of a user; "" and NULL are none. */
int vg_user_set_text(char **field, const char *text);
struct vg_org *vg_tenants_org(const struct vg_tenants *t, const char *name);
struct vg_team *vg_tenants_team(const struct vg_tenants *t, const char *name);
struct vg_user *vg_tenants_user(const struct vg_tenants *t, const char *name);
struct vg_user *vg_tenants_by_uid(const struct vg_tenants *t, int64_t uid);

const char *vg_role_name(enum vg_role r);
int vg_role_parse(const char *s, enum vg_role *ret); /* -EINVAL */
unsigned vg_role_acts(enum vg_role r);
const char *vg_act_name(enum vg_act act); /* "manage-users"; NULL: there is none */
/* Scopes as bits; -EINVAL when one is not known. None at all: VG_SCOPE_ALL. */
int vg_scope_parse(char *const *name, size_t n, unsigned *ret);
const char *vg_scope_name(unsigned i); /* by number, NULL after the last */
static inline bool vg_user_may(const struct vg_user *u, enum vg_act act) {
    return (vg_role_acts(u->role) & (unsigned)act) != 0;
}
/* Whether `u` may see (or end) what belongs to `owner` of `team`. */
bool vg_user_may_see(const struct vg_user *u, const char *owner, const char *team);
bool vg_user_may_end(const struct vg_user *u, const char *owner, const char *team);
