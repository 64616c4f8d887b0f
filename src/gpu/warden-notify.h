#pragma once
/* Brings a task's calls to its warden: a system call filter that stops those that matter, and a
 * thread that answers them. Nothing else of the task is slowed down; launching kernels makes no
 * system call.
 *
 *   task: ioctl(fd, 'F' …) ── seccomp ──▶ thread: vg_warden_ioctl() ──▶ answer ──▶ task goes on
 *
 * The thread has the task's GPUs open and no others: the driver lets a client use a card only where
 * its maker has the card's device open, so the warden cannot be made to reach further than the
 * task. */
#include "base/err.h"
#include "gpu/warden.h"

#include <linux/filter.h>
#include <stdint.h>
#include <sys/types.h>

/* The filter, for the task's first process to install with SECCOMP_FILTER_FLAG_NEW_LISTENER. The
   program lies in static memory. x86-64 and arm64. */
void vg_warden_filter(struct sock_fprog *ret);

#define VG_WARDEN_PROCESSES_MAX 4096u /* of a task at one time that talk to the driver */
#define VG_WARDEN_SHOWN_MAX 256u
#define VG_WARDEN_TELLS_PER_SECOND 50u

struct vg_warden_setup {
    int listener;               /* taken */
    const char *const *devices; /* of the task's GPUs; opened and kept */
    size_t n_devices;
    uint64_t limit_bytes;
    uint32_t slice_usec;
    bool mps;             /* vg_warden_mps() */
    dev_t managed_device; /* of /dev/nvidia-uvm; 0: there is none */
    /* NULL: the real thing. Tests and simulated cards put a driver of their own here; a simulated
       card's managed-memory device is the file of this name. */
    dev_t managed_on;
    ino_t managed_ino;
    int64_t (*issue)(void *ud, uint64_t process, int fd, uint32_t cmd, void *arg);
    void *ud;
    /* Told from the thread, to be shown; may be NULL. The sums: after each change, before the task
       hears the answer to the call that made it. What each process holds (the first
       VG_WARDEN_SHOWN_MAX of those that hold anything, with their pids): at most
       VG_WARDEN_TELLS_PER_SECOND; how it is in the end is always told. */
    void (*changed)(void *ud, const struct vg_warden_stat *stat);
    void (*processes)(void *ud, const struct vg_warden_process *process, size_t n);
};

struct vg_warden_watch;

int vg_warden_start(const struct vg_warden_setup *setup, struct vg_warden_watch **ret,
                    struct vg_err *err);
/* Ends the thread; calls that the task makes afterwards fail with ENOSYS. A thread that is stuck in
   the task's memory is left to itself after two seconds: callbacks may still come from it. */
void vg_warden_stop(struct vg_warden_watch *t);
void vg_warden_set(struct vg_warden_watch *t, uint64_t limit_bytes, uint32_t slice_usec);
void vg_warden_look(struct vg_warden_watch *t, struct vg_warden_stat *ret);
/* As `processes` was told last; how many. */
size_t vg_warden_look_processes(struct vg_warden_watch *t, struct vg_warden_process *ret,
                                size_t max);
/* vg_warden_audit() of what it counts now. */
uint32_t vg_warden_compare(struct vg_warden_watch *t, uint64_t card_bytes, uint64_t *ret_known);
