#pragma once
/* Errors that a person will read.

   Functions return >= 0 on success and -errno on failure. Where the cause will reach a person,
   the last parameter is a `struct vg_err *err` (never NULL): a value on the caller's stack with a
   bounded message. The innermost function sets it, each caller may put its own context in front:

       cannot start task 3f2a: pool 'a100-1': no node has 1 free GPU
*/
#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>

enum vg_reason {
    VG_OK = 0,
#define REASON(name, wire, err, http, exit, retry) VG_##name = wire,
#include "base/reasons.tbl"
#undef REASON
};

#define VG_ERR_MAX 1024

struct vg_err {
    enum vg_reason reason;
    int code; /* -errno */
    char msg[VG_ERR_MAX];
};

#define VG_ERR_INIT ((struct vg_err){0})

/* Sets the error and returns its -errno, so that `return vg_err_set(...)` reads well. */
int vg_err_set(struct vg_err *err, enum vg_reason reason, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* Sets an error for a failed system call: "<fmt>: <strerror>". `code` is -errno or errno. */
int vg_err_sys(struct vg_err *err, int code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* Puts "<fmt>: " in front of the message and returns err->code. */
int vg_err_wrap(struct vg_err *err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

const char *vg_reason_name(enum vg_reason reason); /* "NO_CAPACITY"; "?" when unknown */
enum vg_reason vg_reason_from_wire(unsigned wire); /* unknown numbers become INTERNAL */
int vg_reason_errno(enum vg_reason reason);        /* positive errno */
int vg_reason_http(enum vg_reason reason);
int vg_reason_exit(enum vg_reason reason);
bool vg_reason_may_retry(enum vg_reason reason);
