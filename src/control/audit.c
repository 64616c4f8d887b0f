/* The audit log: committed to the store and said in the program's own log. */
#include "control/audit.h"

#include "base/log.h"
#include "base/util.h"

#include <stdarg.h>
#include <stdio.h>

void vg_audit(const struct vg_call *call, const char *fmt, ...) {
    char what[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    struct vg_audit_row row = {
        .when_usec = vg_wall_usec(), .who = call->user ? call->user->name : "", .what = what};
    vg_store_audit(call->ctl->store, &row);
    vg_info("audit user=%s: %s", row.who, what);
}
