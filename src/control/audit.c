/* The audit log: committed to the store and said in the program's own log. */
#include "control/audit.h"

#include "base/log.h"
#include "base/util.h"

#include <stdarg.h>
#include <stdio.h>

enum how { SAID, WRITTEN_ONLY };

static void note(struct vg_control *c, enum how how, const char *who, const char *from,
                 const char *fmt, va_list ap) {
    char what[512];
    vsnprintf(what, sizeof what, fmt, ap);
    struct vg_audit_row row = {.when_usec = vg_wall_usec(), .who = who, .what = what, .from = from};
    if (vg_store_audit(c->store, &row) < 0)
        vg_error("audit entry lost: user=%s from=%s: %s", who, from, what);
    else if (how == SAID)
        vg_info("audit user=%s from=%s: %s", who, from, what);
}

void vg_audit(const struct vg_call *call, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    note(call->ctl, SAID, call->user ? call->user->name : "", call->peer->who.from, fmt, ap);
    va_end(ap);
}

void vg_audit_often(const struct vg_call *call, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    note(call->ctl, WRITTEN_ONLY, call->user ? call->user->name : "", call->peer->who.from, fmt,
         ap);
    va_end(ap);
}

void vg_audit_as(struct vg_control *c, const char *who, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    note(c, SAID, who, "virgad", fmt, ap);
    va_end(ap);
}

void vg_audit_note(struct vg_control *c, const char *who, const char *from, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    note(c, SAID, who, from, fmt, ap);
    va_end(ap);
}

void vg_audit_submitted(const struct vg_job *j) {
    const struct vg_task *t = j->task;
    char what[64];
    int n = snprintf(what, sizeof what, "task %016llx submitted", (unsigned long long)t->id);
    if (vg_task_is_group(t))
        snprintf(what + n, sizeof what - (size_t)n, ", %u tasks", t->members);
    struct vg_audit_row row = {
        .when_usec = t->created_usec, .who = t->user, .what = what, .from = j->from};
    if (vg_store_audit(j->ctl->store, &row) < 0)
        vg_error("audit entry lost: user=%s from=%s: %s", t->user, j->from, what);
}
