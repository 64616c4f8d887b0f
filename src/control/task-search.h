#pragma once
/* Searching the store for tasks on another thread, when it takes longer than the loop may. A few
   searches go on at once; the others wait their turn. Who left is not searched for any more. */
#include "control/peer.h"
#include "store/store.h"

#define VG_SEARCH_AT_ONCE 2
#define VG_SEARCH_WAITING 64
#define VG_SEARCH_USER 4 /* of one person */
#define VG_SEARCH_USEC (20 * 1000000ULL)
#define VG_LIST_STEPS 100 /* vg_control.list_steps */

struct vg_call;
struct vg_search {
    const Vg__Pb__TaskQuery *q; /* what was asked */
    uint64_t *id;               /* of tasks that may be in the page, each once */
    size_t n;
    uint64_t count; /* how many match in the store; 0 where that is not counted */
};
/* It is over: p waits for the answer to `req`. */
typedef void vg_search_fn(struct vg_peer *p, uint32_t req, const struct vg_search *s);

/* Takes the call's TaskQuery; `memory` are ids that will be found, too, wherever they are then.
   VG_UNAVAILABLE: too many are searching. */
int vg_search_start(struct vg_call *call, const struct vg_task_filter *f, const uint64_t *memory,
                    size_t n_memory, vg_search_fn *fn, struct vg_err *err);
/* Ends all soon: the control plane stops. */
void vg_search_stop(struct vg_control *c);
