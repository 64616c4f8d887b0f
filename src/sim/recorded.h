#pragma once
/* The load that a cloud has recorded (docs/history.md), read from its SQLite store without touching
   it, and the nodes it has. Strings are owned by the record. */
#include "base/err.h"
#include "conf/res.h"

#include <stddef.h>

struct vg_rec_task {
    uint64_t id;
    char *user, *team;
    char *pools;           /* "a,b" in order of preference */
    char *models, *labels; /* "A|B"; "k=v" lines */
    struct vg_res res;
    uint32_t priority;
    bool preemptible, fixed;
    uint64_t limit_usec, kin;
    uint64_t gang; /* 0: none */
    uint32_t members;
    uint64_t ready_usec; /* could have started */
    uint64_t start_usec; /* did start */
    uint64_t run_usec;
};

struct vg_rec_node {
    uint64_t id;
    char *name, *labels, *model;
    struct vg_res total;
};

struct vg_rec_team {
    char *name, *org;
};

struct vg_recorded {
    struct vg_rec_task *task; /* owned; by ready_usec, members of a gang side by side */
    size_t n_tasks, tasks_cap;
    struct vg_rec_node *node; /* owned */
    size_t n_nodes, nodes_cap;
    struct vg_rec_team *team; /* owned */
    size_t n_teams, teams_cap;
    uint64_t never_ran;  /* tasks that were cancelled before they started: left out */
    uint64_t until_usec; /* the latest end */
};

/* What became ready within `since_usec` before the latest recorded end (0: all of it). On failure
 *ret is empty and `err` a sentence. */
int vg_recorded_read(const char *path, uint64_t since_usec, struct vg_recorded *ret,
                     struct vg_err *err);
void vg_recorded_done(struct vg_recorded *r);
const char *vg_recorded_org(const struct vg_recorded *r, const char *team); /* "": unknown */
