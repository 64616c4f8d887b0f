/* Who follows a task: clients that wait for its events or its end. Every follower gets exactly one
   last answer. */
#include "base/mem.h"
#include "base/util.h"
#include "control/api.h"
#include "control/job.h"
#include "control/mirror.h"
#include "control/nodes.h"

#include <stdlib.h>

#define B(name) VG__PB__ENVELOPE__BODY_##name

struct vg_follow *vg_follow_new(struct vg_peer *p, struct vg_job *j, enum vg_follow_kind kind,
                                uint32_t req) {
    struct vg_follow *f = p->n_follows < VG_PEER_FOLLOWS_MAX ? vg_alloc(sizeof *f) : NULL;
    if (!f)
        return NULL;
    *f = (struct vg_follow){.peer = p, .job = j, .kind = kind, .req = req};
    vg_list_push_back(j ? &j->follows : &p->ctl->watches, &f->on_job);
    vg_list_push_back(&p->follows, &f->on_peer);
    p->n_follows++;
    return f;
}

void vg_follow_free(struct vg_follow *f) {
    vg_list_remove(&f->on_job);
    vg_list_remove(&f->on_peer);
    f->peer->n_follows--;
    if (f->free_data)
        f->free_data(f->data);
    free(f);
}

static void hold_over(void *user) {
    struct vg_job *j = user;
    j->hold = NULL;
    vg_job_cancel(j, VG_GRACE_USEC, "its client did not come back");
}

void vg_follow_abandon(struct vg_follow *f) {
    struct vg_job *j = f->job;
    struct vg_peer *p = f->peer;
    bool owner = f->owner;
    vg_follow_free(f);
    if (j && j->chan.peer == p) {
        j->chan.peer = NULL;
        if (j->chan.stream)
            vg_chan_close(&j->chan);
    }
    if (!j || !owner || j->ctl->stopping || (j->task->state != VG_TASK_QUEUED && !j->mirror_wait) ||
        !j->task->spec->interactive || j->task->spec->detached || j->held)
        return;
    if (p->unix_socket)
        vg_job_cancel(j, VG_GRACE_USEC, "its client left while it waited");
    else if (!j->hold)
        j->hold = vg_timer_start(j->ctl->loop,
                                 j->task->spec->hold_usec ? j->task->spec->hold_usec : 60 * VG_USEC,
                                 hold_over, j);
}

/* Where a client may reach the node without us; only for clients of other machines. */
static void add_direct(struct vg_follow *f, Vg__Pb__RunEvent *e, char *out, size_t n) {
    struct vg_job *j = f->job;
    struct vg_nodelink *a = vg_nodelink_get(j->ctl, j->task->attempt.node);
    if (f->peer->unix_socket || f->peer->nested_node || !f->owner || !j->has_ticket || !a)
        return;
    if (!vg_nodelink_direct(a, out, n))
        return;
    e->direct = out;
    e->has_ticket = 1;
    e->ticket = (ProtobufCBinaryData){.data = j->ticket, .len = sizeof j->ticket};
    e->has_node_fingerprint = a->has_fingerprint;
    e->node_fingerprint =
        (ProtobufCBinaryData){.data = a->fingerprint, .len = sizeof a->fingerprint};
}

void vg_follow_event(struct vg_follow *f, Vg__Pb__RunEvent__Kind kind, const char *text) {
    struct vg_job *j = f->job;
    struct vg_task *t = j->task;
    char direct[300];
    VG_ENVELOPE(env);
    Vg__Pb__RunEvent e = VG__PB__RUN_EVENT__INIT;
    e.has_kind = e.has_task_id = 1;
    e.kind = kind;
    e.task_id = t->id;
    e.text = (char *)text;
    if (t->attempt.number) {
        e.has_attempt = 1;
        e.attempt = t->attempt.number;
        e.node = (char *)vg_nodelink_name(j->ctl, t->last_node);
    }
    if (kind == VG__PB__RUN_EVENT__KIND__PLACED)
        add_direct(f, &e, direct, sizeof direct);
    if (kind == VG__PB__RUN_EVENT__KIND__ENDED) {
        e.has_status = 1;
        e.status = t->status;
        e.has_reason = t->reason != VG_OK;
        e.reason = (uint32_t)t->reason;
    }
    env.body_case = B(RUN_EVENT);
    env.run_event = &e;
    vg_peer_send(f->peer, f->req, kind != VG__PB__RUN_EVENT__KIND__ENDED, &env);
}

void vg_job_event(struct vg_job *j, Vg__Pb__RunEvent__Kind kind, const char *text) {
    vg_list_for_each (it, &j->follows) {
        struct vg_follow *f = vg_list_entry(it, struct vg_follow, on_job);
        if (f->kind == VG_FOLLOW_RUN)
            vg_follow_event(f, kind, text);
    }
}

void vg_job_answer_followers(struct vg_job *j) {
    vg_logs_more(j, true);
    vg_list_for_each_safe (it, &j->follows) {
        struct vg_follow *f = vg_list_entry(it, struct vg_follow, on_job);
        if (f->kind == VG_FOLLOW_RUN) {
            vg_follow_event(f, VG__PB__RUN_EVENT__KIND__ENDED, j->task->reason_text);
        } else if (f->kind == VG_FOLLOW_WAIT) {
            struct vg_task_info info;
            VG_ENVELOPE(env);
            vg_task_info(j->ctl, j->task, &info);
            env.body_case = B(TASK);
            env.task = &info.pb;
            vg_peer_send(f->peer, f->req, false, &env);
        } else {
            continue;
        }
        vg_follow_free(f);
    }
}
