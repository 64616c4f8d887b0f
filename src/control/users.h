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
/* Hands a record to the store. */
int vg_users_store(struct vg_control *c, const struct vg_user *u, vg_store_cb *cb, void *arg);
