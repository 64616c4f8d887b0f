/* Run and attach. What always holds: one task id is one task of one owner, however often its RunReq
   comes; nothing is started that an earlier life of ours may have started already. */
#include "base/cleanup.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/util.h"
#include "control/api.h"
#include "control/nodes.h"
#include "control/persist.h"
#include "control/place.h"
#include "control/replay.h"
#include "control/schedule.h"
#include "control/spec-check.h"
#include "control/submit.h"

#include <stdio.h>
#include <string.h>

#define B(name) VG__PB__ENVELOPE__BODY_##name

/* ------------------------------------------------------------------ identity */

static void set_home(struct vg_control *c, const struct vg_who *w, Vg__Pb__Identity *id) {
    const struct vg_account *acc = w->local ? vg_account_get(c, w->uid) : NULL;
    if (!acc || acc->home[0] != '/')
        return;
    id->home.data = vg_memdup(acc->home, strlen(acc->home));
    id->home.len = id->home.data ? strlen(acc->home) : 0;
    id->has_home = id->home.data != NULL;
}

/* Who the task runs as. All memory is the message's own (protobuf-c frees it). */
static Vg__Pb__Identity *identity_new(struct vg_control *c, const struct vg_user *u,
                                      const struct vg_who *w) {
    Vg__Pb__Identity *id = vg_alloc(sizeof *id);
    if (!id)
        return NULL;
    vg__pb__identity__init(id);
    id->user = vg_strdup(u->name);
    id->team = vg_strdup(u->team->name);
    id->has_slot = id->has_uid = id->has_gid = id->has_local = 1;
    id->slot = u->slot;
    id->uid = w->uid;
    id->gid = w->gid;
    id->local = w->local;
    if (w->n_groups) {
        id->groups = vg_memdup(w->groups, w->n_groups * sizeof w->groups[0]);
        id->n_groups = id->groups ? w->n_groups : 0;
    }
    set_home(c, w, id);
    if (!id->user || !id->team) {
        vg__pb__identity__free_unpacked(id, NULL);
        return NULL;
    }
    return id;
}

/* ------------------------------------------------------------------ known tasks */

static void say_current_state(struct vg_follow *f) {
    struct vg_job *j = f->job;
    switch (j->task->state) {
    case VG_TASK_STARTING:
        vg_follow_event(f, VG__PB__RUN_EVENT__KIND__PLACED, NULL);
        break;
    case VG_TASK_RUNNING:
        vg_follow_event(f, VG__PB__RUN_EVENT__KIND__PLACED, NULL);
        vg_follow_event(f, VG__PB__RUN_EVENT__KIND__STARTED, NULL);
        break;
    default:
        break;
    }
}

/* A remote client gets a ticket of its own for a direct stream. */
static void send_ticket(struct vg_job *j, struct vg_nodelink *a) {
    VG_ENVELOPE(env);
    Vg__Pb__TaskAttach m = VG__PB__TASK_ATTACH__INIT;
    vg_random(j->ticket, sizeof j->ticket);
    j->has_ticket = true;
    m.has_task_id = m.has_ticket = 1;
    m.task_id = j->task->id;
    m.ticket = (ProtobufCBinaryData){.data = j->ticket, .len = sizeof j->ticket};
    env.body_case = B(TASK_ATTACH);
    env.task_attach = &m;
    vg_peer_send(a->peer, 0, false, &env);
}

/* Hands a channel to a task that is on a node. VG_UNAVAILABLE: the node is away, the channel stays
   the caller's. */
static int attach_on_node(struct vg_job *j, struct vg_chan *ch, bool observe, struct vg_err *err) {
    struct vg_nodelink *a = vg_nodelink_get(j->ctl, j->task->attempt.node);
    struct vg_chan_out io;
    if (!vg_nodelink_hears(a))
        return vg_err_set(err, VG_UNAVAILABLE,
                          "node %s is not connected at the moment: try again, the task goes on",
                          vg_nodelink_name(j->ctl, j->task->attempt.node));
    if (ch->remote && a->direct_port)
        send_ticket(j, a);
    int r = vg_chan_join(ch, a, j->ctl->loop, &io);
    if (r < 0)
        return vg_err_set(err, VG_LOST, "the connection for the task's input and output is gone");
    VG_ENVELOPE(env);
    Vg__Pb__TaskAttach m = VG__PB__TASK_ATTACH__INIT;
    m.has_task_id = m.has_stream = m.has_fd_mask = m.has_observe = 1;
    m.task_id = j->task->id;
    m.stream = io.stream;
    m.fd_mask = io.fd_mask & (VG_FD_CHANNEL | VG_FD_RELAYED);
    m.observe = observe;
    for (size_t i = 1; i < io.n_fds; i++) /* only the channel goes along */
        vg_close(&io.fds[i]);
    env.body_case = B(TASK_ATTACH);
    env.task_attach = &m;
    vg_conn_send(a->peer->conn, &env, io.fds, io.n_fds ? 1 : 0);
    return 0;
}

/* A channel for a task that exists: kept while it waits, handed on when it is on a node. */
static int give_channel(struct vg_job *j, struct vg_chan *ch, bool observe, struct vg_err *err) {
    if (!vg_chan_is_open(ch)) {
        vg_chan_close(ch);
        return 0;
    }
    struct vg_nodelink *a = vg_nodelink_get(j->ctl, j->task->attempt.node);
    /* It comes back or is lost: the owner waits. */
    bool away = a && !(vg_nodelink_hears(a) && a->reported);
    if (j->task->attempt.node && j->sent && (observe || !away)) {
        int r = attach_on_node(j, ch, observe, err);
        vg_chan_close(ch);
        return r;
    }
    vg_chan_close(&j->chan);
    j->chan = *ch;
    *ch = VG_CHAN_INIT;
    if (vg_chan_park(&j->chan, j->ctl->loop) < 0) {
        vg_chan_close(&j->chan);
        return vg_err_set(err, VG_LOST, "the connection for the task's input and output is gone");
    }
    return 0;
}

void vg_run_deliver(struct vg_job *j) {
    struct vg_err err = VG_ERR_INIT;
    if (vg_chan_is_open(&j->chan) && attach_on_node(j, &j->chan, false, &err) < 0)
        vg_warn("task=%016llx client cannot be joined: %s", (unsigned long long)j->task->id,
                err.msg);
}

static struct vg_follow *follow_run(struct vg_call *call, struct vg_job *j, struct vg_err *err) {
    struct vg_follow *f = vg_follow_new(call->peer, j, VG_FOLLOW_RUN, call->req);
    if (f)
        f->mirrors = call->env->body_case == B(RUN) && call->env->run->mirrors;
    if (!f)
        vg_err_set(err, VG_TOO_BIG,
                   "too many tasks wait on this connection (limit %d): open another",
                   VG_PEER_FOLLOWS_MAX);
    return f;
}

static void join_known(struct vg_call *call, struct vg_job *j, struct vg_chan *ch, bool observe,
                       bool owner) {
    struct vg_err err = VG_ERR_INIT;
    struct vg_follow *f = follow_run(call, j, &err);
    if (!f) {
        vg_chan_close(ch);
        vg_peer_fail(call->peer, call->req, &err);
        return;
    }
    f->owner = owner;
    if (owner)
        vg_timer_stop(&j->hold);
    if (give_channel(j, ch, observe, &err) < 0) {
        vg_follow_free(f);
        vg_peer_fail(call->peer, call->req, &err);
        return;
    }
    if (j->accepting)
        return; /* everybody is told when the store has it */
    vg_follow_event(f, VG__PB__RUN_EVENT__KIND__ACCEPTED, NULL);
    if (j->task->state == VG_TASK_QUEUED)
        vg_place_tell(j);
    else
        say_current_state(f);
}

/* Somebody asks for a task that has ended: the answer is how it ended; its stored output goes over
   the channel, if there is one. */
static void answer_ended(struct vg_call *call, const struct vg_task *t, struct vg_chan *ch) {
    VG_ENVELOPE(env);
    Vg__Pb__RunEvent e = VG__PB__RUN_EVENT__INIT;
    e.has_kind = e.has_task_id = e.has_status = e.has_reason = e.has_attempt = 1;
    e.kind = VG__PB__RUN_EVENT__KIND__ENDED;
    e.task_id = t->id;
    e.status = t->status;
    e.reason = (uint32_t)t->reason;
    e.has_reason = t->reason != VG_OK;
    e.text = t->reason_text;
    e.attempt = t->attempt.number;
    e.node = (char *)vg_nodelink_name(call->ctl, t->last_node);
    env.body_case = B(RUN_EVENT);
    env.run_event = &e;
    if (vg_chan_park(ch, call->ctl->loop) == 0 && ch->fd[0] >= 0)
        vg_replay_start(call->ctl, vg_take_fd(ch->fd[0]), t);
    vg_peer_send(call->peer, call->req, false, &env);
}

/* Whether the id is known; then the call has been answered. */
static bool known(struct vg_call *call, uint64_t id, struct vg_chan *ch) {
    struct vg_job *j = vg_job_get(call->ctl, id);
    struct vg_task *stored = NULL;
    if (!j && vg_persist_get(call->ctl, id, &stored) < 0)
        return false;
    const struct vg_task *t = j ? j->task : stored;
    if (!t)
        return false;
    if (strcmp(t->user, call->user->name) != 0)
        vg_peer_error(call->peer, call->req, VG_EXISTS,
                      "this task id belongs to somebody else: run the command again");
    else if (vg_task_is_ended(t) || !j)
        answer_ended(call, t, ch);
    else
        join_known(call, j, ch, false, true);
    vg_chan_close(ch);
    vg_task_free(stored);
    return true;
}

/* ------------------------------------------------------------------ new tasks */

/* A key that its owner has used: the first task is the answer, if it asks for the same. */
static bool known_key(struct vg_call *call, struct vg_chan *ch) {
    const Vg__Pb__TaskSpec *spec = call->env->run->spec;
    struct vg_err err = VG_ERR_INIT;
    struct vg_job *j = NULL;
    struct vg_task *stored = NULL;
    int r = vg_idem_find(call->ctl, call->user, spec, &j, &stored, &err);
    if (r == 0)
        return false;
    if (r < 0) {
        vg_peer_fail(call->peer, call->req, &err);
    } else if (j && !vg_task_is_ended(j->task)) {
        join_known(call, j, ch, false, !spec->detached);
    } else {
        const struct vg_task *t = j ? j->task : stored;
        VG_ENVELOPE(env);
        Vg__Pb__RunEvent e = VG__PB__RUN_EVENT__INIT;
        e.has_kind = e.has_task_id = 1;
        e.kind = VG__PB__RUN_EVENT__KIND__ACCEPTED;
        e.task_id = t->id;
        env.body_case = B(RUN_EVENT);
        env.run_event = &e;
        vg_peer_send(call->peer, call->req, true, &env);
        answer_ended(call, t, ch);
    }
    vg_chan_close(ch);
    vg_task_free(stored);
    return true;
}

static void start_new(struct vg_call *call, struct vg_chan *ch, const struct vg_res *grant) {
    struct vg_err err = VG_ERR_INIT;
    Vg__Pb__RunReq *m = call->env->run;
    struct vg_new n = {.id = m->task_id,
                       .user = call->user,
                       .spec = vg_take_ptr(m->spec), /* large: it is not copied */
                       .who = identity_new(call->ctl, call->user, &call->peer->who),
                       .parent = call->peer->who.parent,
                       .grant = *grant,
                       .durable = m->wait_durable};
    struct vg_job *j = vg_submit_make(call->ctl, &n);
    struct vg_follow *f = j ? follow_run(call, j, &err) : NULL;
    if (!f) {
        if (!j)
            vg_err_sys(&err, ENOMEM, "cannot take the task");
        else
            vg_job_free(j);
        vg_chan_close(ch);
        vg_peer_fail(call->peer, call->req, &err);
        return;
    }
    f->owner = !j->task->spec->detached;
    j->from = vg_strdup(call->peer->who.from);
    j->chan = *ch;
    j->held = m->resend && !call->ctl->settled && !vg_task_is_group(j->task);
    if (m->resend && !j->held && !vg_task_is_group(j->task))
        vg_place_skip(j); /* an earlier life may have run it and forgotten that */
    vg_submit_go(j);
}

void vg_api_run(struct vg_call *call) {
    const Vg__Pb__RunReq *m = call->env->run;
    struct vg_err err = VG_ERR_INIT;
    struct vg_chan ch;
    struct vg_res grant;
    int r = vg_chan_take(&ch, call->peer, m->stream, m->fd_mask, call->fds, call->n_fds);
    if (r < 0)
        vg_err_set(&err, VG_PROTOCOL, "fewer descriptors came than the request promises");
    else if (!m->spec || !m->task_id)
        r = vg_err_set(&err, VG_INVALID, "the request names no task");
    if (r >= 0 && known(call, m->task_id, &ch))
        return;
    if (r >= 0)
        r = vg_spec_check(m->spec, &err);
    if (r >= 0)
        r = vg_submit_resolve(call->ctl, call->user, call->peer->who.parent, m->spec, &grant, &err);
    if (r >= 0 && m->spec->key && *m->spec->key && !m->dry_run && known_key(call, &ch))
        return;
    if (r >= 0 && m->spec->schedule && *m->spec->schedule && !m->dry_run) {
        vg_chan_close(&ch);
        vg_schedule_take(call, identity_new(call->ctl, call->user, &call->peer->who));
        return;
    }
    if (r >= 0 && m->dry_run) {
        vg_chan_close(&ch);
        vg_api_dry_run(call, &grant);
        return;
    }
    if (r >= 0)
        r = vg_submit_limits(call->ctl, call->user, m->spec, &err);
    if (r < 0) {
        vg_chan_close(&ch);
        vg_peer_fail(call->peer, call->req, &err);
        return;
    }
    start_new(call, &ch, &grant);
}

/* ------------------------------------------------------------------ attach, forward */

void vg_api_attach(struct vg_call *call) {
    const Vg__Pb__AttachReq *m = call->env->attach;
    struct vg_err err = VG_ERR_INIT;
    struct vg_found found = {0};
    struct vg_chan ch;
    int r = vg_chan_take(&ch, call->peer, m->stream, m->fd_mask, call->fds, call->n_fds);
    if (r < 0)
        vg_err_set(&err, VG_PROTOCOL, "fewer descriptors came than the request promises");
    else
        r = vg_find_task(call->ctl, call->user, m->task ? m->task : "", &found, &err);
    struct vg_task *t = r >= 0 ? vg_found_task(&found) : NULL;
    if (t && !m->observe && strcmp(t->user, call->user->name) != 0)
        r = vg_err_set(&err, VG_FORBIDDEN,
                       "task %016llx belongs to '%s': you may only look ('virga task logs -f')",
                       (unsigned long long)t->id, t->user);
    if (r < 0) {
        vg_chan_close(&ch);
        vg_peer_fail(call->peer, call->req, &err);
    } else if (!found.job || vg_task_is_ended(t)) {
        answer_ended(call, t, &ch);
        vg_chan_close(&ch);
    } else {
        join_known(call, found.job, &ch, m->observe, false);
    }
    vg_found_done(&found);
}

void vg_api_forward(struct vg_call *call) {
    const Vg__Pb__ForwardReq *m = call->env->forward;
    struct vg_err err = VG_ERR_INIT;
    struct vg_found found = {0};
    int r = vg_find_task(call->ctl, call->user, m->task ? m->task : "", &found, &err);
    struct vg_job *j = found.job;
    struct vg_nodelink *a = j ? vg_nodelink_get(call->ctl, j->task->attempt.node) : NULL;
    if (r >= 0 && strcmp(vg_found_task(&found)->user, call->user->name) != 0)
        r = vg_err_set(&err, VG_FORBIDDEN, "only the owner of a task may reach its ports");
    else if (r >= 0 && (!a || !a->peer || j->task->state != VG_TASK_RUNNING))
        r = vg_err_set(&err, VG_CONFLICT, "the task is not running: its ports cannot be reached");
    else if (r >= 0 && (m->port == 0 || m->port > 65535 || !(m->stream || call->n_fds)))
        r = vg_err_set(&err, VG_INVALID, "a port is a number from 1 to 65535");
    struct vg_chan ch = VG_CHAN_INIT;
    struct vg_chan_out io;
    if (r >= 0) {
        r = vg_chan_take(&ch, call->peer, m->stream, call->n_fds ? VG_FD_CHANNEL : 0, call->fds,
                         call->n_fds);
        if (r >= 0)
            r = vg_chan_join_stream(&ch, a, call->ctl->loop, &io);
        if (r < 0)
            vg_err_set(&err, VG_LOST, "the stream for the port is gone");
    }
    vg_found_done(&found);
    if (r < 0) {
        vg_peer_fail(call->peer, call->req, &err);
        return;
    }
    VG_ENVELOPE(env);
    Vg__Pb__TaskForward f = VG__PB__TASK_FORWARD__INIT;
    f.has_task_id = f.has_port = f.has_stream = 1;
    f.task_id = j->task->id;
    f.port = m->port;
    f.stream = io.stream;
    env.body_case = B(TASK_FORWARD);
    env.task_forward = &f;
    vg_peer_send(a->peer, 0, false, &env);
    vg_peer_ok(call->peer, call->req, NULL);
}
