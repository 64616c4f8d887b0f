/* GPUs that are held and not used. By measured use, as the node reports it, never by the clock
   alone: a task of whose GPUs nothing is known is left alone. The pool's rule; its tasks' owners
   cannot change it, and those it exempts are never asked. */
#include "control/node-gpus.h"

#include "base/log.h"
#include "base/util.h"
#include "control/api.h"

#include <stdio.h>
#include <string.h>

static bool is_exempt(const struct vg_pool_conf *pool, const struct vg_task *t) {
    for (size_t i = 0; i < pool->idle_exempt.n; i++)
        if (!strcmp(pool->idle_exempt.item[i], t->user) ||
            !strcmp(pool->idle_exempt.item[i], t->team))
            return true;
    return false;
}

static void warn(struct vg_job *j, const struct vg_pool_conf *pool, uint64_t idle_usec) {
    char text[256], was[32], end[32], then[96] = "";
    if (pool->idle_end_usec)
        snprintf(then, sizeof then, "; pool '%.63s' ends such tasks after %s", pool->name,
                 vg_format_duration(pool->idle_end_usec, end, sizeof end));
    snprintf(text, sizeof text, "its GPU%s not been used for %s%s",
             j->task->grant.gpus > 1 ? "s have" : " has",
             vg_format_duration(idle_usec, was, sizeof was), then);
    j->idle_told = true;
    vg_job_notice(j, text);
}

static void end(struct vg_job *j, const struct vg_pool_conf *pool, uint64_t idle_usec) {
    char text[256], was[32], most[32];
    snprintf(text, sizeof text,
             "ended because its GPU%s not used for %s (pool '%.63s' allows %s): an administrator "
             "can exempt you",
             j->task->grant.gpus > 1 ? "s were" : " was",
             vg_format_duration(idle_usec, was, sizeof was), pool->name,
             vg_format_duration(pool->idle_end_usec, most, sizeof most));
    vg_info("task=%016llx %s", (unsigned long long)j->task->id, text);
    vg_job_cancel(j, vg_job_grace_usec(j), text);
}

void vg_gpu_idle_check(struct vg_job *j, const Vg__Pb__GpuUsage *use) {
    const struct vg_pool_conf *pool = vg_conf_pool(&j->ctl->conf, vg_task_pool(j->task));
    if (!pool || !use->has_idle_usec || j->task->cancel || j->task->state != VG_TASK_RUNNING ||
        is_exempt(pool, j->task))
        return;
    /* A report may come so late that both are due: whom the pool warns is warned first, and ended
       by the next report. */
    bool warned =
        j->idle_told || !pool->idle_warn_usec || pool->idle_warn_usec >= pool->idle_end_usec;
    if (pool->idle_end_usec && use->idle_usec >= pool->idle_end_usec && warned)
        end(j, pool, use->idle_usec);
    else if (!pool->idle_warn_usec || use->idle_usec < pool->idle_warn_usec)
        j->idle_told = false; /* it is used again: the next time is told again */
    else if (!j->idle_told)
        warn(j, pool, use->idle_usec);
}
