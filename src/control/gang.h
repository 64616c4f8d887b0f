#pragma once
/* Gangs: groups whose members start together or not at all.

   The scheduler places all members in one decision. Each node prepares its members and says so
   (TaskReady); when all that are starting are ready, all are told to begin (TaskGo) in the same
   breath, with where rank 0 can be met. If a node refuses or vanishes before that, nobody begins:
   the others are taken back and the gang waits for its next turn, at no cost to its retries.

   Afterwards the policy says what the loss of a member means (its node was lost, it was killed by a
   signal):
     heal      that one starts again, before everybody else in the queue; the others go on;
     restart   the others are stopped and the whole gang starts again;
     fail      the others are stopped and the gang has failed.
   A member that ends by itself with another status than 0 is tried again when retries are left
   (alone with heal, all together with restart); otherwise the gang has failed and the others are
   stopped. */
#include "control/job.h"
#include "control/peer.h"

struct vg_gang;

static inline bool vg_gang_is_member(const struct vg_job *j) {
    return j->task->group && j->task->spec->gang && j->above;
}

/* A member is queued (again): all together into the scheduler when all are, or it alone when the
   others run. As vg_place_submit. */
int vg_gang_submit(struct vg_job *j, struct vg_err *err);
/* Whether the member's Start is gated, and offers the meeting. */
void vg_gang_gate(const struct vg_job *j, Vg__Pb__Start *start);
/* From a node. */
void vg_agent_on_ready(struct vg_call *call);
/* A node that reports a member's Start as it went on: where the gang meets. */
void vg_gang_learn(struct vg_job *j, const Vg__Pb__Start *start);
/* The member's attempt is over without a result of its own. True: the gang has dealt with it. */
bool vg_gang_lost(struct vg_job *j, bool ran, const char *why);
/* It ended by itself. True: the gang has dealt with it. */
bool vg_gang_exited(struct vg_job *j, const Vg__Pb__TaskExited *x, bool retry);
/* It has ended for good: the others may have to follow. */
void vg_gang_ended(struct vg_job *j);
/* It is to give way: all of them are. True: it was a gang's. */
bool vg_gang_preempt(struct vg_job *j, uint64_t grace_usec, uint32_t sig, const char *why);
/* The node's connection is gone: members there that have not begun never will. */
void vg_gang_node_left(struct vg_control *c, uint64_t node);
void vg_gang_free(struct vg_gang *g); /* NULL is fine */
