#pragma once
/* Environments and pinned files: requests go on to the store's own process, `virga envd`, which is
   started when it is first needed and again when it died. This process never waits for it.
   Loop thread. */
#include "control/control.h"

struct vg_job;
struct vg_call;
struct vg_envs; /* the process, its connection, what it was asked */

#define VG_ENV_ASKED_MAX 4096    /* requests that it has not answered, */
#define VG_ENV_ASKED_USER_MAX 64 /* and of one user's clients */

void vg_api_env(struct vg_call *call);
/* Do the task's files come from the store (a saved environment, or pinned)? */
bool vg_envs_is_stored(const struct vg_job *j);
/* It was accepted: its environment is held until it ends. The job may be over when this returns. */
void vg_envs_hold(struct vg_job *j);
/* Its Start went out, or its node is back: a link from the store to the node. */
void vg_envs_link(struct vg_job *j);
/* A link to its client's file service was offered: what it needs is copied into the store. Takes
   the stream. */
void vg_envs_pin(struct vg_job *j, struct vg_stream *s);
/* It has ended. */
void vg_envs_release(struct vg_job *j);
/* Asks what the user keeps: vg_kept_told hears it. 0 or -errno: it does not. */
int vg_envs_ask_kept(struct vg_control *c, const char *user);
/* A removal that a client asked for, once what was kept is charged; the client is answered, also
   when it fails. 0 or -errno. */
struct vg_env_removal {
    uint64_t peer; /* its serial */
    uint32_t req;
    const char *user, *team, *from, *ref; /* from: where the client is */
};
int vg_envs_remove(struct vg_control *c, const struct vg_env_removal *m);
void vg_envs_stop(struct vg_control *c); /* before the loop's last turns */
void vg_envs_done(struct vg_control *c); /* after them */
