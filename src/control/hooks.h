#pragma once
/* Telling others what happened: people's hooks (webhooks and mail), and what waits to be sent to
   them. docs/hooks.md is the manual. Loop thread. */
#include "control/control.h"

#include <jansson.h>

/* Something that hooks may want to hear of. Whose it is says which of them: a hook of somebody's
   own hears of their tasks, one of a team's of that team's, one of everything's of all. */
struct vg_hook_event {
    const char *name;              /* "budget.warned"; one of those in hook-events.tbl */
    const char *user, *team, *org; /* whose; NULL: nobody's (a node is everybody's) */
    json_t *data;                  /* taken, also on failure; becomes "data" of what is sent */
};

/* Whether any hook would hear of it: so that nobody makes `data` for nothing. */
bool vg_hook_wanted(const struct vg_control *c, const char *name);
/* Queues it for every hook that wants it. Never fails for the caller: what cannot be kept is said
   in the log. */
void vg_hook_event(struct vg_control *c, const struct vg_hook_event *e);
