#pragma once
/* Every act that changes something about the cloud, with who did it. An entry is written with the
   change: whatever one request hands to the store is one transaction, and a change that the store
   refuses leaves no entry. */
#include "control/job.h"
#include "control/peer.h"

void vg_audit(const struct vg_call *call, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
/* The same, but not in virgad's own log, too: for what happens thousands of times a minute. */
void vg_audit_often(const struct vg_call *call, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
/* The same for who is not the caller of a request, or of none. */
void vg_audit_note(struct vg_control *c, const char *who, const char *from, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* What happened without a request; `who` it was for, or "". */
void vg_audit_as(struct vg_control *c, const char *who, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* A task that is being written for the first time; only when it says where it came from. */
void vg_audit_submitted(const struct vg_job *j);

/* Somebody was not let in: `how` he tried, "token", "link", "provider" or "local", and why not.
   Guessing does not fill the log: of one address the first failure is told at once, and how many
   more there were a while later; so is what comes from more addresses than are kept apart. */
void vg_audit_refused(struct vg_control *c, const char *from, const char *how, const char *why);
/* Tells what was counted; `all`: at once, whatever the time. */
void vg_audit_refused_tick(struct vg_control *c, bool all);
