#pragma once
/* The engine as a configuration wants it: settings, queues and pools, and where users stand in the
   tree. virgad and `virga-sim whatif` build their engines with this, so that a policy means the
   same in both. Pure.

   Ids are hashes of names: the same name has the same id in every life and every program. */
#include "conf/conf.h"
#include "sched/engine.h"

/* Settings, queues and pools. 0 or -ENOMEM. */
int vg_eng_configure(struct vg_eng *e, const struct vg_conf *c);

uint64_t vg_eng_pool_id(const char *name);
uint64_t vg_eng_queue_id(const char *path); /* of a configured queue: "research/vision" */

/* Which nodes belong to a pool is decided by labels and GPU models; the engine is told by a label
   that no person can give a node. Into `out`, at least VG_ENG_POOL_LABEL bytes. */
#define VG_ENG_POOL_LABEL (VG_CONF_NAME_MAX + 8)
void vg_eng_pool_label(const char *pool, char *out);

/* Where somebody stands. `path` is for people: "research/vision", "research/vision/ann". */
struct vg_eng_home {
    uint64_t tenant;
    char path[640];
};
/* The queue that a team's users compete in: a configured one, or the team's own, which is set up in
   `e`. 0 or -ENOMEM. */
int vg_eng_team(struct vg_eng *e, const struct vg_conf *c, const char *org, const char *team,
                struct vg_eng_home *ret);
/* A user's own place there, set up in `e`. 0 or -ENOMEM. */
int vg_eng_user(struct vg_eng *e, const struct vg_conf *c, const char *org, const char *team,
                const char *user, struct vg_eng_home *ret);
/* The path of a team's queue, without an engine. */
void vg_eng_team_path(const struct vg_conf *c, const char *org, const char *team,
                      struct vg_eng_home *ret);

/* Whether a task may be stopped for others under this policy. Somebody who waits for it is not
   interrupted, unless he has agreed to that. */
static inline bool vg_eng_may_preempt(const struct vg_conf *c, bool waited_for, bool preemptible) {
    return preemptible || (!waited_for && c->scheduler.preemption != VG_PREEMPT_AGREED);
}
