#pragma once
/* Every act that changes something about the cloud, with who did it. */
#include "control/peer.h"

void vg_audit(const struct vg_call *call, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
/* The same for who is not the caller of a request, or of none. */
void vg_audit_note(struct vg_control *c, const char *who, const char *from, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* What happened without a request; `who` it was for, or "". */
void vg_audit_as(struct vg_control *c, const char *who, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
