#pragma once
/* Users and teams: memory and store together. */
#include "control/control.h"

struct vg_account;

#define VG_ORG_DEFAULT "main"
#define VG_TEAM_DEFAULT "main"

/* The record of a local account that is let in; made at its first visit. */
int vg_users_for_account(struct vg_control *c, const struct vg_account *a, bool admin,
                         struct vg_user **ret, struct vg_err *err);
/* The default team exists after this. */
int vg_users_ensure_team(struct vg_control *c, struct vg_err *err);
/* Whether somebody may look at what belongs to `owner` of `team`. The default team is where people
   are whom nobody has put into a team: they have nothing in common, so it shows nothing. */
bool vg_users_may_see(const struct vg_user *u, const char *owner, const char *team);
/* The same for ending it. */
bool vg_users_may_end(const struct vg_user *u, const char *owner, const char *team);
/* Whether somebody may know that there is such a team: an organisation's people know its teams. */
bool vg_users_know_team(const struct vg_user *u, const struct vg_team *team);
/* Whether somebody looks after the people of that team: an administrator, or its lead. */
bool vg_users_lead(const struct vg_user *u, const char *team);
/* Whether somebody may change that user and make tokens for him: never one who has as much to say.
 */
bool vg_users_manage(const struct vg_user *u, const struct vg_user *other);
int vg_users_say_disabled(const struct vg_user *u, struct vg_err *err);
/* Hands a record to the store. */
int vg_users_store(struct vg_control *c, const struct vg_user *u, vg_store_cb *cb, void *arg);
