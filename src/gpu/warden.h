#pragma once
/* The warden of a shared GPU: what a task asks of the driver passes by here first, so that its
 * memory never exceeds its share and its time slices are what the node gave it. It knows calls,
 * not system calls: warden-notify.h brings them and carries the answers back.
 *
 * What always holds
 * - Bytes of the card that a task has are in `used` before the driver gives them, and leave it
 *   after the driver took them back. Allocations and frees are made by the warden itself, with its
 *   own copy of the parameters, so nothing a thread writes meanwhile makes a difference.
 * - What is not understood is refused. Two calls cannot be made in another process's stead: a new
 *   client (it belongs to whoever makes it) and the pinning of the caller's own pages. Both are let
 *   through as they stand and hold no memory of the card; whoever swaps their parameters under the
 *   driver's hands is found by vg_warden_audit().
 * - Memory that is mapped for the card counts until it is unmapped, whatever became of the object
 *   that it was mapped from. Pages of a process never move to the card. (Both but for MPS.)
 * - Managed memory is what the kernel says is mapped from the managed-memory device (counted by the
 *   caller, vg_warden_managed), at its full size from the moment it is mapped. */
#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define VG_WARDEN_OBJECTS_MAX 262144u /* a task's, over all its processes */
#define VG_WARDEN_CLIENTS_MAX 4096u   /* each keeps a descriptor */
#define VG_WARDEN_SPACES_MAX 4096u    /* openings of the other device; each keeps a descriptor */
#define VG_WARDEN_MAPS_MAX 262144u    /* of memory of the card, by a task */
/* What the driver takes for itself and nobody asks for: buffers of channels, page tables. Between 6
   and 7 MiB were measured for a context, which has four groups of channels. */
#define VG_WARDEN_GROUP_BYTES (UINT64_C(2) << 20)
#define VG_WARDEN_PARAMS_MAX 4096u

struct vg_warden;

/* How the warden reaches the process whose call it looks at. */
struct vg_warden_ops {
    /* Memory of the caller; bytes moved (read may be short at an unmapped page) or -errno. */
    int64_t (*read)(void *caller, uint64_t at, void *into, size_t n);
    int64_t (*write)(void *caller, uint64_t at, const void *from, size_t n);
    /* A descriptor of the caller, for the warden's own use, or -errno. */
    int (*borrow)(void *caller, int fd);
    /* The same, when it is the driver's other device; else -ENOTTY. */
    int (*borrow_uvm)(void *caller, int fd);
    /* Whether two of the warden's own descriptors are one opening of a device. */
    bool (*same)(void *ud, int a, int b);
    /* The ioctl itself, as that process's user: its value, or -errno. */
    int64_t (*issue)(void *ud, uint64_t process, int fd, uint32_t cmd, void *arg);
    void (*close)(void *ud, int fd);
    /* Looks at what processes have mapped of managed memory (vg_warden_managed_now); may be NULL.
     */
    void (*recount)(void *ud);
    void *ud;
};

struct vg_warden_call {
    void *caller;     /* for ops */
    uint64_t process; /* who: any number that is one process's alone */
    int fd;
    uint32_t cmd;
    uint64_t arg;
};

struct vg_warden_answer {
    bool let;      /* the kernel goes on with the call as it stands */
    int error;     /* else: -errno, or 0 and … */
    int64_t value; /* … this */
};

struct vg_warden_stat {
    uint64_t limit_bytes, used_bytes, peak_bytes, managed_bytes;
    uint64_t refused; /* allocations beyond the limit */
    uint64_t strange; /* calls that are not let through at all */
    uint64_t beside;  /* attempts to compute beside MPS */
    uint64_t retaken; /* time slices that somebody else had changed */
    uint32_t objects, clients, groups;
    uint32_t unused; /* without it there would be a hole, and it is compared byte by byte */
};

struct vg_warden_process {
    uint64_t process;    /* as in the call */
    pid_t pid, task_pid; /* here, and inside the task; 0: whoever brought the call knows them */
    uint64_t used_bytes; /* managed memory included */
    uint64_t managed_bytes;
};

int vg_warden_new(const struct vg_warden_ops *ops, uint64_t limit_bytes, struct vg_warden **ret);
void vg_warden_free(struct vg_warden *w);
/* The driver's forms have room for fewer cards than today's: it is older than 550. */
void vg_warden_old_uvm(struct vg_warden *w);

struct vg_warden_answer vg_warden_ioctl(struct vg_warden *w, const struct vg_warden_call *call);

/* May this process map `bytes` more of managed memory? `mapped` is what it has now, as the kernel
   lists it. */
bool vg_warden_managed(struct vg_warden *w, uint64_t process, uint64_t mapped, uint64_t bytes);
/* Sets what a process has mapped, after something was unmapped. */
void vg_warden_managed_now(struct vg_warden *w, uint64_t process, uint64_t mapped);

/* A process has ended: what it had is freed by the driver's own word, then given back. */
void vg_warden_gone(struct vg_warden *w, uint64_t process);

/* The share may be changed at any time; what is held stays held. */
void vg_warden_limit(struct vg_warden *w, uint64_t limit_bytes);
/* Time slice of every channel group, those to come included; 0: as the driver likes. */
void vg_warden_slice(struct vg_warden *w, uint32_t usec);
/* From now on its processes compute in the group of channels that NVIDIA's MPS server shares with
   its clients, and in no other. The driver's other device is left to them: what only a mapping
   holds is not counted then. */
void vg_warden_mps(struct vg_warden *w);
/* Once a second: slices that are not as they were set are set again. How many there were. */
uint32_t vg_warden_assert_slices(struct vg_warden *w);
void vg_warden_stat(const struct vg_warden *w, struct vg_warden_stat *ret);
/* The processes that hold anything, in the order of their first allocation; at most `max`: how
   many. What they hold is together what is used, between calls. */
size_t vg_warden_processes(const struct vg_warden *w, struct vg_warden_process *ret, size_t max);

/* Comparing with the driver's own count. That is of a moment that lies a little back, so it is held
   against the most that passed by here since the comparison before the last. */
struct vg_warden_audit {
    uint64_t most,
        before;        /* bytes, managed memory left out: since the last comparison, before it */
    uint32_t excesses; /* in a row */
};

/* What the driver's count may be beyond: of a context of 518 MiB both said the same. */
#define VG_WARDEN_SLACK_BYTES (UINT64_C(16) << 20)
#define VG_WARDEN_SLACK_CLIENT_BYTES (UINT64_C(2) << 20)

/* After each change. */
void vg_warden_audit_note(struct vg_warden_audit *a, const struct vg_warden_stat *now);
/* `card_bytes`: what the driver counts for the task's processes; it leaves managed memory out.
   How many times in a row, this one included, that cannot be what passed by here; `ret_known` is
   what did, with what the driver may need for itself. */
uint32_t vg_warden_audit(struct vg_warden_audit *a, const struct vg_warden_stat *now,
                         uint64_t card_bytes, uint64_t *ret_known);
