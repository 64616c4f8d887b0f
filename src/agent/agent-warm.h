#pragma once
/* How many keepers to hold ready, and for whom. A profile is what a sandbox can be prepared for
   before its task is known. Pure: it counts and decides; agent-keepers.c forks and dismisses.

   Always holds:
   1. profiles are ordered by use, the most recent first;
   2. the sum of all allowances is at most VG_WARM_TOTAL, and recent profiles are served first;
   3. a profile's target lies between `base` and VG_WARM_MAX. */
#include "base/buf.h"
#include "base/list.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define VG_WARM_BASE 4      /* --warm: ready keepers of a profile in use */
#define VG_WARM_MAX 16      /* of one profile while starts are frequent */
#define VG_WARM_TOTAL 32    /* of all profiles together */
#define VG_WARM_PROFILES 16 /* profiles that get any */
#define VG_WARM_SAVED 4     /* profiles remembered over a restart */
#define VG_WARM_IDLE_USEC (30ULL * 1000000)

enum vg_net_kind { VG_NET_NAT, VG_NET_HOST, VG_NET_NONE };

struct vg_warm_key {
    uint32_t slot;
    uid_t uid;
    gid_t gid;
    bool local_root;
    bool mirrored; /* tasks bring their files: the sandbox is made with the first */
    enum vg_net_kind net;
    const char *home; /* may be NULL */
};

struct vg_warm_profile {
    struct vg_list link;    /* in vg_warm.profiles */
    struct vg_warm_key key; /* home is owned */
    uint32_t target;
    uint64_t used_usec;
    /* Kept by agent-keepers.c: */
    uint32_t n_ready, n_preparing, n_waiting;
    struct vg_list ready; /* keepers */
    struct vg_list lent;  /* keepers whose task has only just begun and may be back at once */
    uint32_t n_lent;
    struct vg_list waiting; /* starts without a keeper, oldest first */
    uint64_t retry_usec;    /* no refill before this: the last preparation failed */
    uint32_t failures;      /* in a row */
};

struct vg_warm {
    struct vg_list profiles;
    uint32_t base;
};

void vg_warm_init(struct vg_warm *w, uint32_t base);
void vg_warm_done(struct vg_warm *w);
/* The profile for this key, made when new; it becomes the most recent. NULL: out of memory. */
struct vg_warm_profile *vg_warm_use(struct vg_warm *w, const struct vg_warm_key *key,
                                    uint64_t now_usec);
/* A start found nothing ready: hold twice as many. */
void vg_warm_missed(struct vg_warm *w, struct vg_warm_profile *p);
/* Ready keepers this profile may hold now. */
uint32_t vg_warm_allowance(const struct vg_warm *w, const struct vg_warm_profile *p);
/* Lets targets of profiles that have been idle shrink. Tells whether some are still above base. */
bool vg_warm_decay(struct vg_warm *w, uint64_t now_usec);
/* Forgets profiles beyond the limit that hold nothing. */
void vg_warm_trim(struct vg_warm *w);
/* The most recent profiles as text, one a line; and back. A line that makes no sense is skipped. */
int vg_warm_save(const struct vg_warm *w, struct vg_buf *out);
int vg_warm_load(struct vg_warm *w, char *text);
