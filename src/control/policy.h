#pragma once
/* Between the configuration, the cloud's users and the scheduling engine: which tenant a task
   belongs to, what the engine is told of pools, nodes and windows, and how a changed configuration
   takes the place of the old one.

   What always holds: an engine belongs to one configuration. A reload makes a new engine from the
   new configuration, tells it everything that is known, and only then lets the old one go; when
   anything of that fails, the old one stays as it was. */
#include "base/map.h"
#include "conf/conf.h"
#include "sched/configure.h"

struct vg_control;
struct vg_job;
struct vg_nodelink;
struct vg_user;

struct vg_policy {
    struct vg_eng *eng;         /* owned */
    const struct vg_conf *conf; /* borrowed */
    struct vg_map leaves;       /* "team/user" -> struct vg_leaf, owned */
    struct vg_map names;        /* tenant id -> struct vg_tenant_name, owned */
    uint64_t windows_seen;      /* what the engine was last told of windows; 0: nothing */
    uint64_t *window;           /* owned; the ids of these */
    size_t n_windows, windows_cap;
    bool tell_all; /* whoever asks now may be told every name */
};

/* An engine with the configuration's settings, queues and pools; knows no node and no task. */
int vg_policy_open(struct vg_policy *p, const struct vg_conf *conf, struct vg_err *err);
void vg_policy_close(struct vg_policy *p); /* accepts zeroed and half-built */

/* The engine, at the present time. Call it for every event. */
struct vg_eng *vg_policy_now(struct vg_control *c);

/* Where the tasks of that user compete; made when it is new. 0: no memory. */
uint64_t vg_policy_tenant(struct vg_control *c, struct vg_policy *p, const char *team,
                          const char *user);
/* A team's queue, or the team itself where it has its own. 0: no memory. */
uint64_t vg_policy_team(struct vg_control *c, struct vg_policy *p, const char *team);
/* The team stands somewhere else in the tree, or nowhere: what its users are is found anew. It must
   have no tasks there. */
void vg_policy_forget_team(struct vg_policy *p, const char *team);
/* "research/vision/ann"; "" when unknown. Borrowed. */
const char *vg_policy_name(const struct vg_control *c, uint64_t tenant);
/* Whether a tenant may be told who that other is: its own queues, and its team. */
bool vg_policy_knows(struct vg_control *c, uint64_t viewer, uint64_t tenant);
/* The queue ("research/vision") of a team, for records. Into `out`, which it returns. */
char *vg_policy_queue(const struct vg_control *c, const char *team, char *out, size_t n);
/* What holds for a user: priorities, preemption. */
struct vg_tenant_conf vg_policy_of(const struct vg_control *c, const char *team, const char *user);

/* What the engine is told of a task. Borrows from the job. -ENOMEM. */
int vg_policy_request(struct vg_control *c, struct vg_policy *p, const struct vg_job *j,
                      struct vg_eng_req *ret);
/* Tells the engine of a node. 0 or -ENOMEM. */
int vg_policy_set_node(struct vg_control *c, struct vg_policy *p, const struct vg_nodelink *a);
/* Windows and reservations that are on or come next; cheap when nothing changed. */
void vg_policy_windows(struct vg_control *c);

/* Decayed usage and learnt run times, to and from the store. */
void vg_policy_save(struct vg_control *c);
void vg_policy_restore(struct vg_control *c);

/* Checks a request against pools and policy and fills in what it leaves open: the pool, what is
   granted, the priority, whether it may be preempted, the time that it may run and can pay for. A
   sentence when it is refused. */
int vg_admit(struct vg_control *c, const struct vg_user *u, Vg__Pb__TaskSpec *spec,
             struct vg_res *ret_grant, struct vg_err *err);

/* Reads the configuration again. 0 and one sentence for the person, or the sentence in `err`; then
   nothing has changed. */
int vg_policy_reload(struct vg_control *c, char *out, size_t n, struct vg_err *err);
