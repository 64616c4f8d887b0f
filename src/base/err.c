/* Errors that a person will read. No state; any thread. */
#include "base/err.h"

#include <stdio.h>
#include <string.h>

struct reason_row {
    enum vg_reason reason;
    const char *name;
    int err, http, exit;
    bool retry;
};

static const struct reason_row reasons[] = {
#define REASON(name, wire, err, http, exit, retry) {VG_##name, #name, err, http, exit, retry},
#include "base/reasons.tbl"
#undef REASON
};

static const struct reason_row *find(enum vg_reason reason) {
    for (unsigned i = 0; i < sizeof(reasons) / sizeof(reasons[0]); i++)
        if (reasons[i].reason == reason)
            return &reasons[i];
    return NULL;
}

int vg_err_set(struct vg_err *err, enum vg_reason reason, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(err->msg, sizeof(err->msg), fmt, ap);
    va_end(ap);
    err->reason = reason;
    err->code = -vg_reason_errno(reason);
    return err->code;
}

static enum vg_reason reason_of_errno(int code) {
    switch (code) {
    case ENOSPC:
    case EDQUOT:
        return VG_DISK_FULL;
    case EACCES:
    case EPERM:
        return VG_FORBIDDEN;
    case ENOENT:
        return VG_NOT_FOUND;
    case ECONNREFUSED:
        return VG_UNAVAILABLE;
    case ECONNRESET:
    case EPIPE:
        return VG_LOST;
    case ETIMEDOUT:
        return VG_TIMEOUT;
    default:
        return VG_INTERNAL;
    }
}

int vg_err_sys(struct vg_err *err, int code, const char *fmt, ...) {
    int e = code < 0 ? -code : code;
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(err->msg, sizeof(err->msg), fmt, ap);
    va_end(ap);
    if (n >= 0 && (size_t)n < sizeof(err->msg))
        snprintf(err->msg + n, sizeof(err->msg) - (size_t)n, ": %s", strerror(e));
    err->reason = reason_of_errno(e);
    err->code = -e;
    return err->code;
}

int vg_err_wrap(struct vg_err *err, const char *fmt, ...) {
    char old[VG_ERR_MAX];
    memcpy(old, err->msg, sizeof(old));
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(err->msg, sizeof(err->msg), fmt, ap);
    va_end(ap);
    if (n >= 0 && (size_t)n < sizeof(err->msg))
        snprintf(err->msg + n, sizeof(err->msg) - (size_t)n, ": %s", old);
    return err->code;
}

const char *vg_reason_name(enum vg_reason reason) {
    const struct reason_row *r = find(reason);
    return r ? r->name : "?";
}

enum vg_reason vg_reason_from_wire(unsigned wire) {
    return find((enum vg_reason)wire) ? (enum vg_reason)wire : VG_INTERNAL;
}

int vg_reason_errno(enum vg_reason reason) {
    const struct reason_row *r = find(reason);
    return r ? r->err : EIO;
}

int vg_reason_http(enum vg_reason reason) {
    const struct reason_row *r = find(reason);
    return r ? r->http : 500;
}

int vg_reason_exit(enum vg_reason reason) {
    const struct reason_row *r = find(reason);
    return r ? r->exit : 125;
}

bool vg_reason_may_retry(enum vg_reason reason) {
    const struct reason_row *r = find(reason);
    return r && r->retry;
}
