/* Giving way. What always holds: that a task is to give way is stored before its node is told, so
   that the end that follows is never taken for a result, whatever crashes in between. */
#include "control/job.h"

#include "base/log.h"
#include "base/mem.h"
#include "control/gang.h"
#include "control/nodes.h"
#include "control/persist.h"

#include <signal.h>
#include <stdio.h>

uint32_t vg_job_grace_signal(const struct vg_job *j) {
    return j->task->spec->grace_signal ? j->task->spec->grace_signal : SIGTERM;
}

uint64_t vg_job_grace_usec(const struct vg_job *j) {
    return j->task->spec->has_grace_usec ? j->task->spec->grace_usec : VG_GRACE_USEC;
}

static void tell_node(struct vg_job *j) {
    const struct vg_task *t = j->task;
    vg_nodelink_kill(j->ctl, t->attempt.node, t->id, t->attempt.number, j->preempt_signal,
                     j->preempt_grace_usec, t->reason_text);
}

static void preempt_stored(struct vg_job *j, uint64_t attempt, int result) {
    const struct vg_task *t = j->task;
    if (!t->preempting || t->attempt.number != attempt || !t->attempt.node)
        return;
    if (result < 0)
        vg_warn("task=%016llx that it must give way could not be stored",
                (unsigned long long)t->id);
    tell_node(j);
}

int vg_job_preempt(struct vg_job *j, uint64_t grace_usec, uint32_t sig, const char *why) {
    if (j->task->attempt.node && !j->task->cancel && vg_gang_preempt(j, grace_usec, sig, why))
        return 0;
    return vg_job_stop(j, grace_usec, sig, why);
}

int vg_job_stop(struct vg_job *j, uint64_t grace_usec, uint32_t sig, const char *why) {
    struct vg_task *t = j->task;
    if (!t->attempt.node || t->cancel || t->preempting || j->timed_out)
        return -EINVAL;
    char *text = vg_strdup(why);
    if (text) {
        free(t->reason_text);
        t->reason_text = text;
    }
    t->preempting = true;
    j->preempt_signal = (uint8_t)(sig && sig < 65 ? sig : vg_job_grace_signal(j));
    j->preempt_grace_usec = grace_usec ? grace_usec : vg_job_grace_usec(j);
    vg_info("task=%016llx must give way: %s", (unsigned long long)t->id, why ? why : "");
    if (!j->sent) { /* its node has not heard of it */
        vg_job_give_way(j, 0);
        return 0;
    }
    vg_job_changed(j);
    if (vg_persist_now(j, VG_STORE_COMMIT, preempt_stored, t->attempt.number) < 0)
        tell_node(j);
    return 0;
}

void vg_job_preempt_again(struct vg_job *j) {
    if (!j->task->preempting || j->task->cancel)
        return;
    if (!j->preempt_signal) {
        j->preempt_signal = (uint8_t)vg_job_grace_signal(j);
        j->preempt_grace_usec = vg_job_grace_usec(j);
    }
    tell_node(j);
}

void vg_job_give_way(struct vg_job *j, int32_t status) {
    const Vg__Pb__TaskSpec *spec = j->task->spec;
    const char *because = j->task->reason_text;
    vg_auto_free char *why =
        vg_fmt("it had to give way%s%s", because ? ": " : "", because ? because : "");
    if (spec->interactive && !spec->detached && j->task->state == VG_TASK_RUNNING) {
        j->task->preempted++; /* somebody waits, and has read what it printed: it is over */
        vg_job_end(j, status, VG_OK, why);
    } else {
        vg_job_requeue(j, why);
    }
}
