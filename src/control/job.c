/* A task's life in memory: how it begins, how it ends, how it goes back to the queue. Who follows
   it: job-follow.c.

   What always holds:
   1. A job is in memory from its acceptance until its end is stored.
   2. Only a job whose end is stored is acknowledged to its agent: until then the keeper remembers.
   3. Every follower gets exactly one last answer. */
#include "control/job.h"

#include "base/log.h"
#include "base/mem.h"
#include "base/util.h"
#include "control/after.h"
#include "control/api.h"
#include "control/env.h"
#include "control/family.h"
#include "control/gang.h"
#include "control/history.h"
#include "control/hooks.h"
#include "control/ledger.h"
#include "control/log-sync.h"
#include "control/mirror.h"
#include "control/nodes.h"
#include "control/persist.h"
#include "control/place.h"
#include "control/series.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

struct vg_job *vg_job_get(struct vg_control *c, uint64_t id) {
    return id ? vg_map_get_u64(&c->jobs, id) : NULL;
}

/* Unfinished tasks count for their owner; a group's row is not one of them. */
static void count_for_owner(struct vg_job *j, bool open) {
    struct vg_user *u = vg_task_is_group(j->task) || open == j->owned
                            ? NULL
                            : vg_tenants_user(&j->ctl->tenants, j->task->user);
    if (!u)
        return;
    j->owned = open;
    u->open_tasks += open ? 1u : u->open_tasks ? -1u : 0;
}

struct vg_job *vg_job_new(struct vg_control *c, struct vg_task *task) {
    struct vg_job *j = vg_alloc(sizeof *j);
    if (!j)
        return NULL;
    j->counted = VG_TASK_STATES;
    vg_list_init(&j->sibling);
    vg_list_init(&j->edges);
    vg_list_init(&j->news);
    j->ctl = c;
    j->task = task;
    j->chan = VG_CHAN_INIT;
    vg_list_init(&j->dirty);
    vg_list_init(&j->follows);
    if (vg_map_put_u64(&c->jobs, task->id, j) < 0) {
        free(j);
        return NULL;
    }
    count_for_owner(j, !vg_task_is_ended(task));
    vg_alike_share(&c->alike, task);
    return j;
}

void vg_job_free(struct vg_job *j) {
    while (!vg_list_empty(&j->follows))
        vg_follow_free(vg_list_entry(vg_list_first(&j->follows), struct vg_follow, on_job));
    vg_map_del_u64(&j->ctl->jobs, j->task->id);
    count_for_owner(j, false);
    vg_after_forget(j);
    vg_family_leave(j);
    if (j->idem)
        vg_map_del(&j->ctl->idem, j->idem);
    free(j->idem);
    free(j->notice);
    free(j->from);
    free(j->wiped);
    free(j->meter);
    free(j->gpu_use);
    vg_series_forget(j);
    vg_gang_free(j->gang);
    vg_list_remove(&j->dirty);
    vg_list_remove(&j->news);
    vg_timer_stop(&j->due);
    vg_timer_stop(&j->limit);
    vg_timer_stop(&j->cost);
    vg_timer_stop(&j->hold);
    vg_timer_stop(&j->again);
    vg_mlink_over(j);
    vg_chan_close(&j->chan);
    vg_logfile_free(j->log);
    vg_task_free(j->task);
    free(j);
}

void vg_job_changed(struct vg_job *j) {
    vg_family_count(j);
    vg_persist_later(j);
    if (!vg_list_empty(&j->ctl->watches))
        vg_watch_tell(j->ctl, j->task);
    vg_family_settle(j);
}

/* ------------------------------------------------------------------ beginnings */

static void is_due(void *user) {
    struct vg_job *j = user;
    struct vg_err err = VG_ERR_INIT;
    j->due = NULL;
    if (j->task->state != VG_TASK_QUEUED || j->held)
        return;
    if (vg_job_submit(j, &err) < 0)
        vg_job_end(j, vg_reason_exit(err.reason), err.reason, err.msg);
    else
        vg_place_all(j->ctl);
}

int vg_job_submit(struct vg_job *j, struct vg_err *err) {
    uint64_t now = vg_wall_usec(), due = j->task->due_usec;
    j->held = false;
    if (vg_gang_is_member(j))
        return vg_gang_submit(j, err);
    if (due > now) {
        vg_timer_stop(&j->due);
        j->due = vg_timer_start(j->ctl->loop, due - now, is_due, j);
        return j->due ? 0 : vg_err_sys(err, ENOMEM, "cannot wait until it is due");
    }
    return vg_place_submit(j, err);
}

static void begin_members(struct vg_job *g) {
    struct vg_control *c = g->ctl;
    bool placing = c->placing;
    c->placing = true; /* all are in the queue before the first is placed */
    vg_list_for_each_safe (it, &g->head->under) {
        struct vg_job *m = vg_list_entry(it, struct vg_job, sibling);
        if (m->task->state == VG_TASK_BLOCKED)
            vg_task_move(m->task, VG_TASK_QUEUED, vg_wall_usec(), NULL);
        vg_family_count(m);
        if (!g->task->spec->gang)
            vg_job_begin(m);
    }
    if (g->task->spec->gang)
        vg_job_begin(vg_list_entry(vg_list_first(&g->head->under), struct vg_job, sibling));
    c->placing = placing;
    vg_family_settle(vg_list_entry(vg_list_first(&g->head->under), struct vg_job, sibling));
    vg_place_all(c);
    if (g->task->state == VG_TASK_QUEUED) {
        char text[96];
        snprintf(text, sizeof text, "queued: %u tasks wait for their turn (virga task why %.4llx)",
                 g->task->members, (unsigned long long)(g->task->id >> 48));
        vg_job_event(g, VG__PB__RUN_EVENT__KIND__QUEUED, text);
    }
}

static void tell_blocked(struct vg_job *j) {
    char text[256];
    if (vg_list_empty(&j->follows))
        return;
    vg_after_explain(j, text, sizeof text);
    vg_job_event(j, VG__PB__RUN_EVENT__KIND__QUEUED, text);
}

void vg_job_begin(struct vg_job *j) {
    struct vg_control *c = j->ctl;
    struct vg_err err = VG_ERR_INIT;
    uint64_t id = j->task->id;
    if (j->task->state == VG_TASK_BLOCKED) {
        if (!j->task->group) /* a member waits for its group */
            vg_after_link(j);
        j = vg_job_get(c, id);
        if (j && j->task->state == VG_TASK_BLOCKED)
            tell_blocked(j);
        return;
    }
    if (j->task->state != VG_TASK_QUEUED)
        return; /* a node that had it has reported in the meantime */
    if (vg_task_is_group(j->task)) {
        begin_members(j);
        return;
    }
    if (!j->held && vg_job_submit(j, &err) < 0) {
        vg_job_end(j, vg_reason_exit(err.reason), err.reason, err.msg);
        return;
    }
    vg_place_all(c);
    j = vg_job_get(c, id);
    if (!j || j->task->state != VG_TASK_QUEUED)
        return;
    vg_chan_park(&j->chan, c->loop);
    if (!vg_list_empty(&j->follows))
        vg_place_tell(j);
}

/* ------------------------------------------------------------------ ends */

/* Everything about its end is safe: the keeper may forget it, and so may we. */
static void forget(struct vg_job *j) {
    if (j->ack_exit)
        vg_nodelink_exit_ack(j->ctl, j->task->last_node, j->task->id, j->task->attempt.number);
    vg_logs_detach(j);
    if (vg_family_open(j))
        j->lingering = true; /* its children still count */
    else
        vg_job_free(j);
}

static void end_stored(struct vg_job *j, uint64_t cookie, int result) {
    (void)cookie;
    if (result < 0) {
        vg_error("cannot store the end of task %016llx: %s", (unsigned long long)j->task->id,
                 strerror(-result));
        j->ending = false; /* housekeeping tries again; the keeper keeps it until then */
        vg_persist_sometime(j);
        return;
    }
    forget(j);
}

static void store_end(struct vg_job *j) {
    enum vg_store_sync sync = j->task->durable ? VG_STORE_DURABLE : VG_STORE_COMMIT;
    int r = vg_persist_now(j, sync, end_stored, 0);
    if (r < 0)
        j->ending = false;
}

static void log_synced(void *user, uint64_t id) {
    struct vg_job *j = vg_job_get(user, id);
    if (j)
        store_end(j);
}

/* Output before the end: whose end is stored has its output on the disk, so that a later life need
   not ask for it. */
void vg_job_store_end(struct vg_job *j) {
    int head = -1, tail = -1;
    if (j->ending)
        return;
    j->ending = true;
    if (j->task->durable && j->log)
        vg_logfile_fds(j->log, &head, &tail);
    if (vg_log_sync(j->ctl->loop, head, tail, log_synced, j->ctl, j->task->id) <= 0)
        store_end(j);
}

void vg_job_end(struct vg_job *j, int32_t status, enum vg_reason reason, const char *why) {
    if (vg_task_is_ended(j->task))
        return;
    vg_place_release(j);
    vg_timer_stop(&j->limit);
    vg_timer_stop(&j->cost);
    vg_timer_stop(&j->hold);
    vg_timer_stop(&j->due);
    vg_chan_close(&j->chan);
    vg_auto_free char *text = vg_strdup(why);
    j->task->preempting = false;
    vg_task_end(j->task, status, reason, vg_wall_usec(), text);
    j->ctl->counts.ended[j->task->state] += !vg_task_is_group(j->task);
    vg_mlink_over(j);
    vg_envs_release(j);
    vg_history_task(j);
    vg_series_ended(j);
    vg_hook_task(j, "task.ended");
    if (j->task->state == VG_TASK_FAILED)
        vg_hook_task(j, "task.failed");
    vg_debug("task=%016llx ended status=%d reason=%s", (unsigned long long)j->task->id, status,
             vg_reason_name(reason));
    if (!vg_list_empty(&j->ctl->watches))
        vg_watch_tell(j->ctl, j->task);
    count_for_owner(j, false);
    vg_job_answer_followers(j);
    struct vg_control *c = j->ctl;
    vg_family_count(j);
    vg_job_store_end(j);
    vg_gang_ended(j);
    vg_after_ended(j);
    vg_family_settle(j);
    vg_place_all(c);
}

void vg_job_requeue(struct vg_job *j, const char *why) {
    struct vg_err err = VG_ERR_INIT;
    vg_auto_free char *text = why ? vg_fmt("%.511s", why) : NULL; /* may be a node's own words */
    vg_place_release(j);
    vg_timer_stop(&j->limit);
    vg_timer_stop(&j->cost);
    vg_logfile_free(j->log);
    j->log = NULL;
    j->sent = j->ack_exit = j->timed_out = j->broke = j->has_ticket = false;
    j->log_round = 0;
    j->ready = j->gone = false;
    j->task->preempted += j->task->preempting && !vg_gang_is_member(j); /* a gang counts itself */
    bool gave_way = j->task->preempting;
    j->task->preempting = false;
    if (vg_task_move(j->task, VG_TASK_QUEUED, vg_wall_usec(), text) < 0) {
        vg_job_end(j, 125, VG_INTERNAL, "the task could not be queued again");
        return;
    }
    vg_info("task=%016llx queued again: %s", (unsigned long long)j->task->id, text ? text : "");
    vg_job_event(j, VG__PB__RUN_EVENT__KIND__REQUEUED, text);
    if (gave_way)
        vg_hook_task(j, "task.preempted");
    vg_job_changed(j);
    if (j->ctl->settled) {
        if (vg_job_submit(j, &err) < 0)
            vg_job_end(j, vg_reason_exit(err.reason), err.reason, err.msg);
        else
            vg_place_all(j->ctl);
    } else {
        j->held = true;
    }
}

void vg_job_lost(struct vg_job *j, bool ran, const char *why) {
    const Vg__Pb__TaskSpec *spec = j->task->spec;
    char text[512];
    j->attempt_lost = true;
    j->lost += !j->task->preempting;
    if (j->task->cancel) {
        vg_job_end(j, 128 + SIGKILL, VG_OK, j->task->reason_text);
    } else if (vg_gang_lost(j, ran, why)) {
        return;
    } else if (ran && spec->interactive && !spec->detached) {
        snprintf(text, sizeof text, "%s while the task ran there: run it again when that is safe",
                 why);
        vg_job_end(j, vg_reason_exit(VG_LOST), VG_LOST, text);
    } else if (j->hearsay) {
        snprintf(text, sizeof text, "%s, and only that node knew the task: run it again", why);
        vg_job_end(j, vg_reason_exit(VG_LOST), VG_LOST, text);
    } else if (j->lost > VG_LOST_MAX) {
        snprintf(text, sizeof text, "gave up after %u lost attempts, the last because %s", j->lost,
                 why);
        vg_job_end(j, vg_reason_exit(VG_LOST), VG_LOST, text);
    } else {
        vg_job_requeue(j, why);
    }
}

static void set_reason(struct vg_task *t, const char *why) {
    char *text = vg_strdup(why);
    if (!text)
        return;
    free(t->reason_text);
    t->reason_text = text;
}

void vg_job_cancel(struct vg_job *j, uint64_t grace_usec, const char *why) {
    vg_job_end_early(j, SIGTERM, grace_usec, why);
}

void vg_job_end_early(struct vg_job *j, uint32_t sig, uint64_t grace_usec, const char *why) {
    struct vg_task *t = j->task;
    if (vg_task_is_ended(t))
        return;
    t->cancel = true;
    vg_auto_free char *text = vg_strdup(why);
    if (vg_task_is_group(t) && j->head && !vg_list_empty(&j->head->under)) {
        set_reason(t, text);
        vg_job_changed(j);
        vg_family_cancel(j, grace_usec, text);
        return;
    }
    vg_family_cancel(j, grace_usec, text);
    if (j->held && !j->ctl->settled && t->state == VG_TASK_QUEUED) {
        set_reason(t, text); /* a node may run it that has not reported yet: it ends after that */
        vg_job_changed(j);
        return;
    }
    /* A node that has not heard of it must not be asked to end it: it would say that it has no such
       task, and then be told to start it. */
    bool unsent = t->state == VG_TASK_STARTING && !j->sent;
    if (t->state == VG_TASK_QUEUED || t->state == VG_TASK_BLOCKED || vg_task_is_group(t) ||
        unsent) {
        vg_job_end(j, vg_reason_exit(VG_CONFLICT), VG_CONFLICT, text);
        return;
    }
    set_reason(t, text);
    vg_nodelink_kill(j->ctl, t->attempt.node, t->id, t->attempt.number, sig, grace_usec,
                     t->reason_text);
    vg_job_changed(j);
}

static void limit_over(void *user) {
    struct vg_job *j = user;
    char dur[32], text[80];
    j->limit = NULL;
    j->timed_out = true;
    snprintf(text, sizeof text, "time limit of %s reached",
             vg_format_duration(j->task->spec->time_limit_usec, dur, sizeof dur));
    vg_nodelink_kill(j->ctl, j->task->attempt.node, j->task->id, j->task->attempt.number,
                     vg_job_grace_signal(j), vg_job_grace_usec(j), text);
}

void vg_job_arm_limit(struct vg_job *j) {
    uint64_t limit = j->task->spec->time_limit_usec;
    uint64_t now = vg_wall_usec(), begun = j->task->started_usec;
    vg_job_arm_cost(j);
    if (!limit || j->limit || j->timed_out || j->task->state != VG_TASK_RUNNING)
        return;
    uint64_t used = now > begun ? now - begun : 0;
    j->limit = vg_timer_start(j->ctl->loop, used < limit ? limit - used : 0, limit_over, j);
}

/* So much of the time that is paid for is notice, at most. */
#define NOTICE_PART 10
#define NOTICE_LEAST_USEC 100000 /* or nothing would end it */

static uint64_t cost_notice_usec(const struct vg_job *j, uint64_t until) {
    uint64_t begun = j->task->started_usec, whole = until > begun ? until - begun : 0;
    return VG_MAX(VG_MIN(vg_job_grace_usec(j), whole / NOTICE_PART), (uint64_t)NOTICE_LEAST_USEC);
}

static void cost_over(void *user) {
    struct vg_job *j = user;
    j->cost = NULL;
    j->timed_out = j->broke = true;
    vg_nodelink_kill(j->ctl, j->task->attempt.node, j->task->id, j->task->attempt.number,
                     vg_job_grace_signal(j), cost_notice_usec(j, vg_ledger_pays_until(j)),
                     "what --max-cost allows is spent");
}

/* The signal comes early enough for the task to be gone when the money is. */
void vg_job_arm_cost(struct vg_job *j) {
    uint64_t now = vg_wall_usec();
    vg_timer_stop(&j->cost);
    if (!j->task->spec->max_cost_micro || j->timed_out || j->task->state != VG_TASK_RUNNING)
        return;
    uint64_t until = vg_ledger_pays_until(j);
    if (until == UINT64_MAX)
        return;
    uint64_t at = until - cost_notice_usec(j, until);
    j->cost = vg_timer_start(j->ctl->loop, at > now ? at - now : 0, cost_over, j);
}
