/* The audit log: committed to the store and said in the program's own log. */
#include "control/audit.h"

#include "base/log.h"
#include "base/util.h"

#include <stdarg.h>
#include <stdio.h>

static void note(struct vg_control *c, const char *who, const char *from, const char *fmt,
                 va_list ap) {
    char what[512];
    vsnprintf(what, sizeof what, fmt, ap);
    struct vg_audit_row row = {.when_usec = vg_wall_usec(), .who = who, .what = what, .from = from};
    vg_store_audit(c->store, &row);
    vg_info("audit user=%s from=%s: %s", row.who, from, what);
}

void vg_audit(const struct vg_call *call, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    note(call->ctl, call->user ? call->user->name : "", call->peer->who.from, fmt, ap);
    va_end(ap);
}

void vg_audit_as(struct vg_control *c, const char *who, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    note(c, who, "virgad", fmt, ap);
    va_end(ap);
}

void vg_audit_note(struct vg_control *c, const char *who, const char *from, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    note(c, who, from, fmt, ap);
    va_end(ap);
}
