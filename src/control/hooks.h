#pragma once
/* Telling others what happened: people's hooks (webhooks and mail), and what waits to be sent to
   them. docs/hooks.md is the manual. Loop thread.

   What always holds: an event that a hook wants is in the store before whatever it tells of is
   acknowledged, and leaves it when a server has taken it, or when it has grown too old; so it is
   told at least once, each time by the same id. What one hook can make us hold is bounded. */
#include "control/control.h"

#include <jansson.h>

/* Something that hooks may want to hear of. Whose it is says which of them: a hook of somebody's
   own hears of their tasks, one of a team's of that team's, one of everything's of all. */
struct vg_hook_event {
    const char *name;              /* "budget.warned"; one of those in hook-events.tbl */
    const char *user, *team, *org; /* whose; NULL: nobody's (a node is everybody's) */
    /* Not NULL: what makes it the same when it comes again, after a crash for instance. */
    const char *key;
    json_t *data; /* taken, also on failure; becomes "data" of what is sent */
};

/* Whether any hook would hear of it: so that nobody makes `data` for nothing. */
bool vg_hook_wanted(const struct vg_control *c, const char *name);
/* Queues it for every hook that wants it. Never fails for the caller: what cannot be kept is said
   in the log. */
void vg_hook_event(struct vg_control *c, const struct vg_hook_event *e);

struct vg_job;
struct vg_nodelink;
/* The same of a task as it is now (its group's members are not told of by themselves), of a node,
   and of one of its GPUs. `text`: why, or NULL. Cheap when nobody wants it. */
void vg_hook_task(struct vg_job *j, const char *name);
void vg_hook_node(struct vg_nodelink *a, const char *name, const char *text);
void vg_hook_gpu(struct vg_nodelink *a, uint32_t index, const char *text);

struct vg_hooks;
/* What the store has; sending goes on. */
int vg_hooks_load(struct vg_control *c, struct vg_err *err);
void vg_hooks_stop(struct vg_control *c); /* what is under way is given up, and sent again later */
/* Somebody was removed: so are his hooks, in memory; the store does it by itself. */
void vg_hooks_forget_user(struct vg_control *c, const char *user);

/* For metrics. */
struct vg_hook_counts {
    uint64_t sent, failed, dropped;
    size_t hooks, paused, waiting;
};
struct vg_hook_counts vg_hooks_count(const struct vg_control *c);
