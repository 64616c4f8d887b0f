#pragma once
/* Inside the engine: when those who wait will start. Everybody who waits for the same pools is
   taken in the order of turns.c and given the earliest time at which there is room for it, beside
   what runs and those before it. Capacity is that of all nodes concerned together, in steps of time
   that grow with the distance, so an answer is "about"; what is promised to a shape is exact. */
#include "sched/profile.h"

struct eta {
    uint64_t start_usec; /* VG_ENG_NEVER: unknown */
    uint32_t ahead;      /* that start before it */
    bool by_pace; /* it is too far behind: it was taken that all go on at the pace of the first */
};

/* Of a waiting task, not pinned, not held back by a limit; or of one that is not there (`extra`),
   with a shape of its own. 0 or -ENOMEM. `stale_usec`: an answer that old will do. */
int vg_eta(const struct vg_eng *e, const struct etask *t, uint64_t stale_usec, struct eta *ret);
int vg_eta_extra(const struct vg_eng *e, struct etask *extra, struct eta *ret);
