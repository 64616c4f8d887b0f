/* Memory of shared GPUs between a task that gives it up and those who wait for it. */
#include "control/share.h"

#include "base/log.h"
#include "base/util.h"
#include "control/place.h"
#include "control/policy.h"

#define MEM_MAX (1ULL << 50) /* of one card: whatever a node says */

static bool is_counted(const Vg__Pb__GpuUsage *u) {
    return u->has_share_limit_bytes && u->has_share_used_bytes;
}

uint64_t vg_share_to_count(const struct vg_job *j, uint64_t mem_bytes) {
    uint64_t now = j->share_counted ? j->share_counted : j->task->share.mem_bytes;
    if (j->gpu_use && !is_counted(j->gpu_use)) /* a node that holds no limit: nothing to wait for */
        return mem_bytes;
    return VG_MAX(mem_bytes, now);
}

void vg_share_used(struct vg_job *j) {
    const struct vg_share *s = &j->task->share;
    const Vg__Pb__GpuUsage *u = j->gpu_use;
    struct vg_err err = VG_ERR_INIT;
    uint64_t to = s->mem_bytes;
    if (!j->share_counted || !u)
        return;
    if (is_counted(u) && u->share_limit_bytes != s->mem_bytes)
        return; /* it has not heard of the new limit yet */
    if (is_counted(u))
        to = VG_MAX(to, VG_MIN(u->share_used_bytes, MEM_MAX));
    if (to != j->share_counted &&
        vg_eng_reshare(vg_policy_now(j->ctl), j->task->id, s->milli, to, true, &err) < 0) {
        vg_debug("task=%016llx its memory is counted as before: %s",
                 (unsigned long long)j->task->id, err.msg);
        return;
    }
    j->share_counted = to == s->mem_bytes ? 0 : to;
    vg_place_all(j->ctl);
}
