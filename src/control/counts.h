#pragma once
/* What happened since the control plane started, counted for those who look from outside
   (metrics.h). Loop thread. */
#include "base/map.h"
#include "model/task.h"
#include "model/tenant.h"
#include "sched/engine.h"

#define VG_COUNTS_SUMS_MAX 1024 /* pairs of a pool and a team; those above are one */

/* What the tasks of a team used in a pool. */
struct vg_sum {
    char *key; /* owned */
    char pool[VG_CONF_NAME_MAX + 1], team[VG_TENANT_NAME_MAX + 1];
    struct vg_used {
        uint64_t gpu_milli_usec; /* thousandths of a GPU times microseconds held */
        uint64_t cpu_usec, energy_mj;
    } over, now, told; /* of attempts that are over; of those that run; the most ever told */
};

/* What was charged in a pool. */
struct vg_charge_sum {
    char *key; /* owned */
    char pool[VG_CONF_NAME_MAX + 1], currency[16];
    uint64_t micro; /* what was given back is not taken off: a counter only grows */
};

struct vg_counts {
    struct vg_map charges; /* key -> struct vg_charge_sum, owned */
    uint64_t logins, logins_refused;
    uint64_t submitted, started, preempted; /* tasks; the scheduler's decisions */
    uint64_t ended[VG_TASK_STATES];         /* by the state they ended in; groups are not tasks */
    uint64_t attempts[VG_ENG_LOST + 1];     /* that are over, by how */
    struct vg_map sums;                     /* key -> struct vg_sum, owned */
};

void vg_counts_done(struct vg_counts *c);
/* NULL: no memory. */
struct vg_sum *vg_counts_sum(struct vg_counts *c, const char *pool, const char *team);
/* Of a row of the ledger. */
void vg_counts_charge(struct vg_counts *c, const char *pool, const char *currency, int64_t micro);
void vg_used_add(struct vg_used *to, const struct vg_used *more);
