#pragma once
/* A warden and the stand-in driver, in one process, without system calls: callers' memory is this
   process's own. What must never be ends it (abort). */
#include "fake-rm.h"
#include "fake-uvm.h"
#include "gpu/rm.h"
#include "gpu/warden.h"

#define MIB (UINT64_C(1) << 20)
#define CAP (64 * MIB)
#define WW_CMD(nr, type) (3u << 30 | (uint32_t)sizeof(type) << 16 | VG_RM_TYPE << 8 | (nr))
#define WW_CTL                                                                        \
    7 /* a descriptor of the driver's first device; those from 100 on are the other's \
       */

struct ww {
    struct fake_rm *rm;
    struct fake_uvm *uvm;
    struct vg_warden *w;
    uint32_t client;                                             /* of process 1 */
    int lent;                                                    /* descriptors */
    int64_t (*instead)(void *, uint64_t, int, uint32_t, void *); /* of the driver; or NULL */
    unsigned refuse; /* so many of the next that are asked for cannot be had */
};

void ww_setup(struct ww *v);
/* A warden of its own before the driver that is in it. */
void ww_adopt(struct ww *v);
/* How many descriptors were not given back. */
int ww_teardown(struct ww *v);
struct vg_warden_answer ww_call_on(struct ww *v, uint64_t process, int fd, uint32_t cmd, void *arg);
struct vg_warden_answer ww_call(struct ww *v, uint64_t process, uint32_t cmd, void *arg);
/* As process 1: the driver's status. */
uint32_t ww_alloc(struct ww *v, uint32_t client, uint32_t parent, uint32_t *object,
                  uint32_t class_id, uint64_t bytes, uint32_t flags);
uint32_t ww_take(struct ww *v, uint64_t bytes, uint32_t *object); /* memory of the card */
uint32_t ww_give(struct ww *v, uint32_t client, uint32_t object);
/* Begins an opening of the other device as the process does, and registers the card there. The
   status. */
uint32_t ww_open(struct ww *v, uint64_t process, int fd);
uint32_t ww_map(struct ww *v, uint64_t process, int fd, uint64_t base, uint64_t bytes,
                uint32_t client, uint32_t object);
uint32_t ww_unmap(struct ww *v, uint64_t process, int fd, uint64_t base, uint64_t bytes);
struct vg_warden_stat ww_stat(struct ww *v);
uint64_t ww_sum_of_processes(struct ww *v);
