#pragma once
/* Schedules: a template that makes a task whenever it is due, by the control plane's local time.

   What always holds:
   1. The id of the n-th task follows from the schedule's id and n: a crash between the task and the
      note that it was made cannot make it twice.
   2. While the last one has not ended, what is due is skipped.
   3. However much was missed while the control plane was down, one task makes up for it. */
#include "control/job.h"
#include "control/peer.h"
#include "model/when.h"

#define VG_SCHEDULES_MAX 10000

struct vg_schedule {
    struct vg_control *ctl;
    uint64_t id;
    char *user, *team;      /* owned */
    Vg__Pb__TaskSpec *spec; /* owned; what is made, `schedule` says when */
    Vg__Pb__Identity *who;  /* owned */
    struct vg_cron when;
    uint64_t created_usec, next_usec, last_usec; /* wall times; next 0: never again */
    uint64_t last_task;
    uint32_t made;
};

/* A RunReq whose spec is a template, checked and resolved: takes its spec, and `who` (NULL: there
   was no memory). Answers when it is stored. */
void vg_schedule_take(struct vg_call *call, Vg__Pb__Identity *who);
/* Makes what is due. Once a second. */
void vg_schedules_tick(struct vg_control *c);
int vg_schedules_load(struct vg_control *c); /* from the store; -errno */
void vg_schedules_done(struct vg_control *c);
