#pragma once
/* Pools of class bare-metal: a task gets a whole node, and the node is wiped after it. */
#include "control/job.h"
#include "control/nodes.h"
#include "sched/engine.h"

/* Whether the pool that the task is in, or likes best, is one. */
bool vg_bare_is(const struct vg_conf *conf, const struct vg_task *t);
/* What such a pool does not offer. */
int vg_bare_admit(const struct vg_pool_conf *pool, const Vg__Pb__TaskSpec *spec,
                  struct vg_err *err);
/* A request of such a pool is for whole nodes, of at least what it asks for. */
void vg_bare_request(struct vg_control *c, const struct vg_conf *conf, const struct vg_task *t,
                     struct vg_eng_req *r);
/* What a task of that pool would have on that node (0: not known): `grant`, or all of it. */
struct vg_res vg_bare_expected(struct vg_control *c, const char *pool, uint64_t node,
                               const struct vg_res *grant);
/* The task is on its node: it is given all that the node has. Others stay as they are. */
void vg_bare_grant(struct vg_control *c, struct vg_task *t);
/* Its node says what it cleared away; bounded and cleaned, for the ledger and for people. */
void vg_bare_wiped(struct vg_job *j, const Vg__Pb__TaskExited *x);
/* The lines of such a text: at most `max`, pointing into it, which they cut up. */
size_t vg_bare_lines(char *text, char **ret, size_t max);
#define VG_BARE_LINES_MAX 64

/* The node says that nothing should be sent to it (text), or that this is over (NULL or ""). */
void vg_node_unfit(struct vg_nodelink *a, const char *text);
