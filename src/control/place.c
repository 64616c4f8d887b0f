/* Carrying out what the scheduler decides.

   What always holds: a first attempt is started at once; a later one only after the store has its
   number (COMMIT). What an earlier life left in the queue goes on one number higher, so that no two
   lives of the control plane use the same number twice. */
#include "control/place.h"

#include "base/cleanup.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/util.h"
#include "control/nodes.h"
#include "control/peer.h"
#include "control/persist.h"
#include "control/sessions.h"
#include "control/start.h"

#include <string.h>

#define STORE_AGAIN_USEC VG_USEC

static struct vg_sched_req request_of(const struct vg_job *j) {
    const struct vg_task *t = j->task;
    return (struct vg_sched_req){.task = t->id,
                                 .pool = vg_task_pool(t),
                                 .res = t->grant,
                                 .priority = t->spec->priority,
                                 .order = t->created_usec,
                                 .node = j->session ? j->session->node : 0};
}

int vg_place_submit(struct vg_job *j, struct vg_err *err) {
    struct vg_sched_req r = request_of(j);
    j->held = false;
    return vg_sched_submit(j->ctl->sched, &r, err);
}

void vg_place_release(struct vg_job *j) {
    vg_sched_release(j->ctl->sched, j->task->id);
    vg_timer_stop(&j->again);
    if (j->task->attempt.node && j->ctl->running)
        j->ctl->running--;
    vg_sessions_leave(j);
}

void vg_place_tell(struct vg_job *j) {
    char text[512];
    if (j->held) {
        vg_job_event(
            j, VG__PB__RUN_EVENT__KIND__QUEUED,
            "queued: the control plane has just started and waits for its nodes to report");
        return;
    }
    if (vg_sched_explain(j->ctl->sched, j->task->id, text, sizeof text) >= 0)
        vg_job_event(j, VG__PB__RUN_EVENT__KIND__QUEUED, text);
}

/* ------------------------------------------------------------------ starting */

static void store_attempt(void *user);

static void attempt_stored(struct vg_job *j, uint64_t attempt, int result) {
    struct vg_nodelink *a = vg_nodelink_get(j->ctl, j->task->attempt.node);
    if (j->task->state != VG_TASK_STARTING || j->task->attempt.number != attempt || j->sent)
        return;
    if (!a || !a->peer || !a->peer->conn)
        vg_job_lost(j, false, "its node left");
    else if (result < 0 && !j->again) /* a full disk is not the task's fault: it keeps its place */
        j->again = vg_timer_start(j->ctl->loop, STORE_AGAIN_USEC, store_attempt, j);
    else if (result >= 0)
        vg_start_send(j, a);
}

static void store_attempt(void *user) {
    struct vg_job *j = user;
    uint32_t number = j->task->attempt.number;
    j->again = NULL;
    int r = vg_persist_now(j, VG_STORE_COMMIT, attempt_stored, number);
    if (r < 0)
        attempt_stored(j, number, r);
}

static void carry_out(struct vg_control *c, const struct vg_sched_place *p) {
    struct vg_job *j = vg_job_get(c, p->task);
    struct vg_nodelink *a = vg_nodelink_get(c, p->node);
    if (!j || !a || !a->peer || !a->peer->conn || vg_task_place(j->task, p->node, p->gpus) < 0) {
        vg_error("a decision about task=%016llx cannot be carried out",
                 (unsigned long long)p->task);
        vg_sched_release(c->sched, p->task);
        return;
    }
    c->running++;
    vg_timer_stop(&j->hold);
    vg_sessions_enter(j, p->node);
    if (j->task->attempt.number > 1) {
        store_attempt(j);
    } else {
        vg_start_send(j, a);
    }
    vg_job_changed(j);
}

void vg_place_all(struct vg_control *c) {
    struct vg_sched_place p;
    if (c->placing || c->stopping) {
        c->place_again = true;
        return;
    }
    c->placing = true;
    do {
        c->place_again = false;
        while (vg_sched_next(c->sched, &p) > 0)
            carry_out(c, &p);
    } while (c->place_again);
    c->placing = false;
}

/* ------------------------------------------------------------------ adopting */

int vg_place_adopt(struct vg_job *j, uint64_t node, uint32_t attempt, uint64_t gpus) {
    struct vg_task *t = j->task;
    struct vg_sched_req r = request_of(j);
    bool cancel = t->cancel;
    if (attempt <= t->attempt.number || t->state != VG_TASK_QUEUED)
        return -EINVAL;
    t->cancel = false; /* it runs, whether its end was asked for or not */
    while (t->attempt.number + 1 < attempt) {
        vg_task_place(t, node, 0);
        vg_task_move(t, VG_TASK_QUEUED, 0, NULL);
    }
    vg_task_place(t, node, gpus);
    t->cancel = cancel;
    j->held = false;
    j->sent = true;
    j->ctl->running++;
    vg_sched_release(j->ctl->sched, t->id);
    int e = vg_sched_adopt(j->ctl->sched, &r, node, gpus);
    if (e < 0)
        vg_warn("task=%016llx runs on a node but is not counted there: %s",
                (unsigned long long)t->id, strerror(-e));
    vg_sessions_enter(j, node);
    return 0;
}

void vg_place_restore(struct vg_control *c) {
    vg_map_for_each (s, &c->jobs) {
        struct vg_job *j = s->value;
        if (!j->task->attempt.node)
            continue;
        struct vg_sched_req r = request_of(j);
        vg_sched_adopt(c->sched, &r, j->task->attempt.node, j->task->gpus);
        j->sent = true;
        c->running++;
    }
}

/* Any node: where it does not matter which. 0: there is none. */
static uint64_t some_node(struct vg_control *c) {
    vg_map_for_each (s, &c->nodes)
        return ((struct vg_nodelink *)s->value)->node->id;
    return 0;
}

/* An earlier life may have used the next number: first attempts are sent before they are stored.
   The number is skipped, so that what a node says of it later is known to be stale, and so that no
   two runs write the same log. */
static void skip_attempt(struct vg_job *j) {
    struct vg_control *c = j->ctl;
    uint64_t node = c->silent_node ? c->silent_node : some_node(c);
    if (node && !j->task->cancel && vg_task_place(j->task, node, 0) == 0)
        vg_task_move(j->task, VG_TASK_QUEUED, vg_wall_usec(), NULL);
}

void vg_place_unhold(struct vg_control *c) {
    /* Collected first: submitting may end jobs, and the map must not change under the walk. */
    size_t n = 0;
    vg_auto_free uint64_t *ids = vg_alloc((vg_map_len(&c->jobs) + 1) * sizeof *ids);
    vg_map_for_each (s, &c->jobs) {
        struct vg_job *j = s->value;
        if (ids && j->held)
            ids[n++] = j->task->id;
    }
    for (size_t i = 0; i < n; i++) {
        struct vg_job *j = vg_job_get(c, ids[i]);
        struct vg_err err = VG_ERR_INIT;
        if (!j || !j->held)
            continue;
        skip_attempt(j);
        if (j->accepting) { /* the store's answer begins it */
            j->held = false;
            continue;
        }
        if (j->task->cancel)
            vg_job_cancel(j, 0, j->task->reason_text);
        else if (vg_job_submit(j, &err) < 0)
            vg_job_end(j, vg_reason_exit(err.reason), err.reason, err.msg);
    }
    vg_place_all(c);
}
