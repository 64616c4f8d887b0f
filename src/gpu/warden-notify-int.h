#pragma once
/* Between the files of the warden's thread; see warden-notify.h. Everything here is that thread's
   alone, but what lies behind the lock. */
#include "base/list.h"
#include "base/map.h"
#include "gpu/warden-notify.h"

#include <linux/seccomp.h>
#include <pthread.h>
#include <sys/types.h>

#define VG_WPAGE 4096u
#define VG_WDEVICES_MAX 16u
#define VG_WLETS_MAX 64u /* threads of one process that map managed memory at one time */

/* A thread was allowed to map managed memory, and nobody has seen yet that it did, or did not. */
struct vg_wlet {
    pid_t tid;
    uint64_t at, bytes, usec;
};

/* A process of the task that has made a call. */
struct vg_wcaller_process {
    pid_t pid, task_pid;
    int pidfd;
    uint64_t number;
    uid_t euid;
    uint64_t program;                 /* which it runs */
    struct vg_wlet let[VG_WLETS_MAX]; /* managed memory that it may be mapping just now */
    size_t n_lets;
    bool has_managed; /* was let map some once */
};

struct vg_wcaller {
    struct vg_warden_watch *t;
    pid_t tid;
    struct vg_wcaller_process *p;
};

struct vg_warden_watch {
    struct vg_warden *w;
    struct vg_warden_setup setup;
    int listener, epoll, wake, timer, tell;
    int device[VG_WDEVICES_MAX];
    size_t n_devices;
    struct vg_map by_pid, by_number; /* vg_wcaller_process, owned by by_pid */
    uint64_t numbers;
    dev_t managed_on; /* where the device's node lies, as maps tells it; known from its first use */
    ino_t managed_ino;
    struct seccomp_notif *in;
    struct seccomp_notif_resp *out;
    size_t in_bytes, out_bytes;
    bool telling; /* the timer `tell` is set: the table of processes is not as it was told */
    uint64_t told_usec;
    pthread_t thread;
    pthread_mutex_t lock; /* of what follows */
    bool stop, changed;
    bool ended, orphan; /* of the thread: it is done; nobody waits for it */
    uint64_t limit_bytes;
    uint32_t slice_usec;
    struct vg_warden_stat stat;
    struct vg_warden_audit audit;
    struct vg_warden_process shown[VG_WARDEN_SHOWN_MAX];
    size_t n_shown;
};

/* A descriptor of the caller, as one's own. */
int vg_wcaller_borrow(void *caller, int fd);

/* ---- warden-process.c: who calls ------------------------------------------------------------- */

/* The process of a thread that is in a call, as its user is now. */
int vg_wprocess_know(struct vg_warden_watch *t, pid_t tid, struct vg_wcaller_process **ret);
struct vg_wcaller_process *vg_wprocess_by_number(const struct vg_warden_watch *t, uint64_t number);
/* What it had is given back; it is freed. */
void vg_wprocess_end(struct vg_warden_watch *t, struct vg_wcaller_process *p);
/* Once a second: what a process had that runs another program by now is given back. */
void vg_wprocess_look(struct vg_warden_watch *t);
/* The table of processes has changed: it is told now, or when it may be told again. */
void vg_wprocess_changed(struct vg_warden_watch *t);
/* That moment has come. */
void vg_wprocess_tell(struct vg_warden_watch *t);

/* ---- warden-managed.c: managed memory -------------------------------------------------------- */

/* A descriptor of the caller that is the device, as one's own; -ENOTTY: it is another. */
int vg_wmanaged_borrow(void *caller, int fd);
/* A thread makes another call: what it was let map before is mapped by now, or not at all. */
void vg_wmanaged_called(struct vg_wcaller *c);
struct vg_warden_answer vg_wmanaged_mmap(struct vg_warden_watch *t, struct vg_wcaller *c,
                                         const struct seccomp_data *d);
/* What each process has still mapped. */
void vg_wmanaged_look(void *watch);
