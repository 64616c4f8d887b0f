#pragma once
/* A task of real processes under the real filter, answered by the warden's thread; only the driver
   behind it is a stand-in. */
#include "fake-rm.h"
#include "fake-uvm.h"
#include "gpu/rm.h"
#include "gpu/warden-notify.h"

#include <sys/types.h>

#define MIB (UINT64_C(1) << 20)
#define CAP (64 * MIB)
#define WT_CMD(nr, type) (3u << 30 | (uint32_t)sizeof(type) << 16 | VG_RM_TYPE << 8 | (nr))

struct wt_task {
    struct fake_rm *rm;
    struct vg_warden_watch *watch;
    pid_t pid;
    int said;             /* what the task says, a byte at a time */
    int managed_fd;       /* a file that stands for managed memory's device; 0: /dev/null does */
    struct fake_uvm *uvm; /* /dev/null stands for it: one opening, begun as it must be */
    void (*before)(struct wt_task *t, uint32_t cmd); /* each of the driver's calls; may be NULL */
    void (*changed)(void *ud, const struct vg_warden_stat *stat);
    void (*processes)(void *ud, const struct vg_warden_process *process, size_t n);
};

/* With a stand-in driver of its own. */
struct wt_task wt_new(void);
void wt_free(struct wt_task *t); /* the watch, too */
/* Runs `body` in a confined process with a share of CAP bytes; 3 is where it says what `said`
   reads. Callbacks get the task. */
void wt_begin(struct wt_task *t, int (*body)(void *arg), void *arg);
/* Waits for its end: the exit status, or 128 and the signal. */
int wt_finish(struct wt_task *t);
struct vg_warden_stat wt_look(struct wt_task *t);
/* Both counts come to nothing: the end of a process is heard of after whoever waits for it. */
void wt_settle(struct wt_task *t);

/* Inside: asks for memory of the card. The driver's status, or 0x1000 and errno. */
uint32_t wt_ask(int fd, uint32_t client, uint64_t bytes, uint32_t *object);
/* Inside: the other device. */
uint32_t wt_register(int fd);
uint32_t wt_map(int fd, uint64_t base, uint64_t bytes, uint32_t client, uint32_t object);
uint32_t wt_unmap(int fd, uint64_t base, uint64_t bytes);
uint32_t wt_give(int fd, uint32_t client, uint32_t object);
