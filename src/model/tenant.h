#pragma once
/* Organisation -> team -> user, in memory, with roles. Every object has an owner here; every call a
   principal. Pure data: virgad loads it from the store and writes changes there.

   What always holds: a user's team exists; names and slots are unique. */
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
#define ACT(name, bit) VG_ACT_##name = 1 << bit,
#include "model/roles.tbl"
#undef ACT
};

struct vg_team {
    char *name, *org; /* owned */
    uint64_t created_usec;
};

struct vg_user {
    char *name; /* owned */
    const struct vg_team *team;
    enum vg_role role;
    int64_t uid, gid; /* -1: no account on this machine */
    uint32_t slot;    /* number of the user's id range, from 1 */
    uint64_t created_usec;
    uint32_t open_tasks; /* unfinished ones in memory; kept by whoever holds them */
};

struct vg_tenants {
    struct vg_map teams; /* name -> struct vg_team, owned */
    struct vg_map users; /* name -> struct vg_user, owned */
    struct vg_map uids;  /* uid + 1 -> struct vg_user */
    uint32_t last_slot;
};

#define VG_TENANT_NAME_MAX 63

void vg_tenants_done(struct vg_tenants *t); /* zero-initialised is empty and valid */

/* Names: as vg_conf_name_valid. Errors are sentences: EXISTS, NOT_FOUND (team), INVALID. */
int vg_tenants_add_team(struct vg_tenants *t, const char *org, const char *name,
                        uint64_t created_usec, struct vg_team **ret, struct vg_err *err);
/* slot 0: the next free one. */
int vg_tenants_add_user(struct vg_tenants *t, const char *name, const char *team, enum vg_role role,
                        int64_t uid, int64_t gid, uint32_t slot, uint64_t created_usec,
                        struct vg_user **ret, struct vg_err *err);
int vg_tenants_remove_user(struct vg_tenants *t, const char *name); /* 0 or -ENOENT */
struct vg_team *vg_tenants_team(const struct vg_tenants *t, const char *name);
struct vg_user *vg_tenants_user(const struct vg_tenants *t, const char *name);
struct vg_user *vg_tenants_by_uid(const struct vg_tenants *t, int64_t uid);

const char *vg_role_name(enum vg_role r);
int vg_role_parse(const char *s, enum vg_role *ret); /* -EINVAL */
unsigned vg_role_acts(enum vg_role r);
static inline bool vg_user_may(const struct vg_user *u, enum vg_act act) {
    return (vg_role_acts(u->role) & (unsigned)act) != 0;
}
/* Whether `u` may see (or end) what belongs to `owner` of `team`. */
bool vg_user_may_see(const struct vg_user *u, const char *owner, const char *team);
bool vg_user_may_end(const struct vg_user *u, const char *owner, const char *team);
