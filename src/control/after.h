#pragma once
/* Dependencies: a task stays blocked until the tasks it names have ended as it asks.

   Only tasks that exist can be named, so a circle cannot be made. An end that makes a wish
   impossible (after-success of a task that failed, say) cancels the waiting task with a sentence
   that names the one; whoever waits for that one learns of it in the same way. */
#include "control/job.h"

/* A wish of one job about another one that is in memory and has not ended. */
struct vg_edge {
    struct vg_list on_target; /* vg_head.waiting, or vg_control.ripe */
    struct vg_list on_job;    /* vg_job.edges */
    struct vg_job *job;
    uint64_t target;
    enum vg_after_when when;
};

/* Finds the tasks that a new spec names and fills in their ids: by id, unique prefix, or name among
   the tasks that were made where this one is made (`parent`, 0: by the user himself; then in no
   task). NOT_FOUND and so on as sentences. */
int vg_after_resolve(struct vg_control *c, const struct vg_user *u, uint64_t parent,
                     Vg__Pb__TaskSpec *spec, struct vg_err *err);
/* A blocked job begins to wait, or (what it waits for has ended) goes on or is cancelled. */
void vg_after_link(struct vg_job *j);
/* The job has ended: whoever waited for it hears of it. */
void vg_after_ended(struct vg_job *j);
/* It waits no more. */
void vg_after_unlink(struct vg_job *j);
/* The job leaves memory: it waits no more, and nobody waits for it. */
void vg_after_forget(struct vg_job *j);
/* "blocked: waits for ..."; for people. */
void vg_after_explain(const struct vg_job *j, char *out, size_t n);
