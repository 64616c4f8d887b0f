/* Started, output, exited: what an agent says about the tasks on its node. What always holds: only
   the current attempt's word changes a task; everything else is acknowledged or killed. */
#include "control/node-tasks.h"

#include "base/log.h"
#include "base/mem.h"
#include "base/util.h"
#include "control/api.h"
#include "control/bare.h"
#include "control/budget.h"
#include "control/gang.h"
#include "control/hooks.h"
#include "control/node-gpus.h"
#include "control/nodes.h"
#include "control/place.h"
#include "control/sessions.h"

#include <signal.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#define B(name) VG__PB__ENVELOPE__BODY_##name

/* ------------------------------------------------------------------ times

   What is held is paid for, and a node's clock may be wrong or lie. So its word counts as far as
   ours allows it: nothing begins before it was sent, or later than now; how long it took is what
   its node measured, and at most what we did. */

#define EARLIER_USEC (3600 * VG_USEC)

/* When it was sent in an earlier life, it is as old as its task, which its client may have sent
   again since. */
uint64_t vg_node_task_age_usec(const struct vg_job *j) {
    uint64_t now = vg_wall_usec(), made = j->task->created_usec;
    if (j->sent_usec)
        return vg_now_usec() - j->sent_usec;
    return (now > made ? now - made : 0) + EARLIER_USEC;
}

static uint64_t began_at(const struct vg_job *j, uint64_t said) {
    uint64_t now = vg_wall_usec(), age = VG_MIN(vg_node_task_age_usec(j), now);
    return said ? VG_MIN(VG_MAX(said, now - age), now) : now;
}

/* 0: its node does not know. */
static uint64_t ended_at(const struct vg_job *j, const Vg__Pb__TaskExited *x) {
    uint64_t begun = j->task->started_usec, from = x->started_usec ? x->started_usec : begun;
    uint64_t took = x->ended_usec > from ? x->ended_usec - from : 0;
    return x->ended_usec && begun ? begun + VG_MIN(took, vg_node_task_age_usec(j)) : 0;
}

void vg_node_task_started(struct vg_job *j, uint64_t started_usec) {
    if (j->task->state != VG_TASK_STARTING)
        return;
    uint64_t when = began_at(j, started_usec);
    /* The reason of a cancel that is under way stays. */
    vg_auto_free char *why = vg_strdup(j->task->reason_text);
    vg_task_move(j->task, VG_TASK_RUNNING, when, why);
    vg_job_arm_limit(j);
    vg_budgets_look(j->ctl);
    vg_job_event(j, VG__PB__RUN_EVENT__KIND__STARTED, NULL);
    vg_job_changed(j);
    vg_hook_task(j, "task.started");
    vg_logs_look_again(j);
}

void vg_agent_on_started(struct vg_call *call) {
    const Vg__Pb__TaskStarted *m = call->env->task_started;
    struct vg_job *j = vg_job_get(call->ctl, m->task_id);
    uint64_t node = call->peer->agent->node->id;
    if (j && vg_task_is_current(j->task, m->attempt, node))
        vg_node_task_started(j, m->started_usec);
    else
        vg_nodelink_kill(call->ctl, node, m->task_id, m->attempt, SIGKILL, 0,
                         "this attempt was given up by the control plane");
}

/* ------------------------------------------------------------------ exit */

/* The command was not reached and another try may help. Somebody who waits at a terminal is told
   instead: the descriptors are gone with the attempt. */
static bool try_again(const struct vg_job *j, const Vg__Pb__TaskExited *x) {
    enum vg_reason reason = vg_reason_from_wire(x->reason);
    const Vg__Pb__TaskSpec *spec = j->task->spec;
    if (!x->never_ran || !x->reason || j->task->cancel)
        return false;
    if (reason == VG_CONFLICT || reason == VG_LOST)
        return true;
    if (reason == VG_DISK_FULL && spec->mirror) /* from another machine: has no descriptors here */
        return true;
    return vg_reason_may_retry(reason) && (!spec->interactive || spec->detached);
}

static bool retry_status(const Vg__Pb__TaskSpec *s, int32_t status) {
    for (size_t i = 0; i < s->n_retry_on; i++)
        if (s->retry_on[i] == status)
            return true;
    return s->n_retry_on == 0;
}

static bool retry_wanted(const struct vg_job *j, const Vg__Pb__TaskExited *x) {
    return x->status != 0 && !x->reason && !j->task->cancel && !j->timed_out && !j->hearsay &&
           j->task->retries_left && retry_status(j->task->spec, x->status);
}

/* How long to wait before the n-th retry (from 1): doubles each time. */
static uint64_t backoff_usec(const Vg__Pb__TaskSpec *s, uint32_t n) {
    uint64_t wait = s->backoff_usec,
             most = s->has_backoff_max_usec ? s->backoff_max_usec : VG_BACKOFF_MAX_USEC;
    most = VG_MAX(most, s->backoff_usec);
    while (--n && wait < most)
        wait *= 2;
    return VG_MIN(wait, most);
}

/* The next try, after its back-off. The time stands in the row: a restart changes nothing. */
static void retry(struct vg_job *j, int32_t status) {
    struct vg_task *t = j->task;
    char text[128], dur[32], in[48] = "";
    t->retries_left--;
    uint64_t wait = backoff_usec(t->spec, t->spec->retries - t->retries_left);
    t->due_usec = wait ? vg_wall_usec() + wait : 0;
    if (wait)
        snprintf(in, sizeof in, ", the next after %s", vg_format_duration(wait, dur, sizeof dur));
    snprintf(text, sizeof text, "attempt %u ended with status %d; %u more%s", t->attempt.number,
             status, t->retries_left + 1, in);
    vg_job_requeue(j, text);
}

/* It was told to give way and did: that is no result. One that still succeeded has one. */
static bool gave_way(const struct vg_job *j, const Vg__Pb__TaskExited *x) {
    const struct vg_task *t = j->task;
    return t->preempting && !t->cancel && !j->timed_out && !j->hearsay &&
           (x->status != 0 || x->never_ran || x->reason);
}

static void take_usage(struct vg_task *t, const Vg__Pb__TaskExited *x) {
    t->cpu_usec += x->cpu_usec;
    if (x->mem_peak_bytes > t->mem_peak_bytes)
        t->mem_peak_bytes = x->mem_peak_bytes;
    t->out_bytes = x->out_end;
}

/* Why it ended, when that was not the command's own doing. */
static const char *why_ended(struct vg_job *j, const Vg__Pb__TaskExited *x, char *out, size_t n) {
    const char *note = j->log ? vg_logfile_note(j->log) : NULL;
    char dur[32], text[256] = "";
    if (j->broke)
        snprintf(text, sizeof text, "what --max-cost allows is spent");
    else if (j->timed_out)
        snprintf(text, sizeof text, "time limit of %s reached",
                 vg_format_duration(j->task->spec->time_limit_usec, dur, sizeof dur));
    else if (j->task->cancel && j->task->reason_text)
        snprintf(text, sizeof text, "%s", j->task->reason_text);
    else if (x->text && *x->text)
        snprintf(text, sizeof text, "%s", x->text);
    else if (x->oom)
        snprintf(text, sizeof text, "killed for want of memory (limit %s): ask for more with --mem",
                 vg_format_size(j->task->grant.mem_bytes, dur, sizeof dur));
    if (!note && !text[0])
        return NULL;
    snprintf(out, n, "%s%s%s", text, text[0] && note ? "; " : "", note ? note : "");
    return out;
}

void vg_node_task_exited(struct vg_job *j, const Vg__Pb__TaskExited *x) {
    char why[512];
    struct vg_control *c = j->ctl;
    uint64_t node = j->task->attempt.node, id = j->task->id;
    uint32_t attempt = j->task->attempt.number;
    if (j->task->state == VG_TASK_STARTING && !x->never_ran && x->started_usec)
        vg_node_task_started(j, x->started_usec);
    take_usage(j->task, x);
    if (x->gpu_usage)
        vg_job_take_gpu_use(j, x->gpu_usage);
    vg_bare_wiped(j, x);
    j->over_usec = ended_at(j, x);
    j->over_cpu_usec = x->cpu_usec;
    j->over_mem_bytes = x->mem_peak_bytes;
    if (!gave_way(j, x) && (x->reason == VG_LOST || try_again(j, x))) {
        struct vg_nodelink *a = vg_nodelink_get(c, node);
        if (a && x->never_ran && (x->reason == VG_UNAVAILABLE || x->reason == VG_DISK_FULL)) {
            /* or it would be asked at once */
            a->refuses = true;
            vg_nodelink_update(a);
            j->lost -= j->lost > 0; /* that is no fault of the task, however often it happens */
        }
        vg_nodelink_exit_ack(c, node, id, attempt);
        vg_job_lost(j, !x->never_ran && j->task->state == VG_TASK_RUNNING,
                    x->text && *x->text ? x->text : "the attempt was lost");
        return;
    }
    /* The keeper is let go when what the attempt held is stored (ack_over). Waiting for the next
       attempt would be later than needed: its number is committed before its start. */
    if (gave_way(j, x)) {
        j->ack_over = true;
        vg_job_give_way(j, x->status);
        return;
    }
    j->task->preempting = false; /* it ended by itself before it had to */
    if (vg_gang_exited(j, x, retry_wanted(j, x)))
        return;
    if (retry_wanted(j, x)) {
        j->ack_over = true;
        retry(j, x->status);
        return;
    }
    enum vg_reason reason = x->reason ? vg_reason_from_wire(x->reason) : VG_OK;
    if (j->timed_out && x->status == 0)
        reason = VG_TIMEOUT;
    j->ack_exit = true;
    vg_job_end(j, x->status, reason, why_ended(j, x, why, sizeof why));
}

bool vg_node_task_ending(struct vg_job *j, uint32_t attempt, uint64_t node) {
    if (!vg_task_is_ended(j->task) || j->task->attempt.number != attempt ||
        j->task->last_node != node)
        return false;
    j->ack_exit = true;
    return true;
}

void vg_agent_on_exited(struct vg_call *call) {
    const Vg__Pb__TaskExited *m = call->env->task_exited;
    struct vg_job *j = vg_job_get(call->ctl, m->task_id);
    uint64_t node = call->peer->agent->node->id;
    if (j && vg_task_is_current(j->task, m->attempt, node)) {
        if (j->log_round == m->log_round || !j->log_round)
            vg_node_task_exited(j, m); /* else it crossed our asking, and is told again */
        return;
    }
    if (j && vg_node_task_ending(j, m->attempt, node))
        return;
    vg_nodelink_exit_ack(call->ctl, node, m->task_id, m->attempt);
}

/* ------------------------------------------------------------------ output */

static int open_log(struct vg_job *j) {
    struct vg_control *c = j->ctl;
    return j->log ? 0
                  : vg_logfile_new(c->home.logs, j->task->id, j->task->attempt.number,
                                   c->conf.limits.log_head_bytes, c->conf.limits.log_tail_bytes,
                                   &j->log);
}

void vg_node_task_ask_output(struct vg_job *j) {
    struct vg_nodelink *a = vg_nodelink_get(j->ctl, j->task->attempt.node);
    uint64_t have = 0;
    j->log_round = 0;
    if (!a || !a->peer || !a->log_rounds || open_log(j) < 0 || vg_logfile_head(j->log, &have) < 0)
        return;
    vg_logfile_drop_tail(j->log); /* of its parts any may be missing, also the first */
    VG_ENVELOPE(env);
    Vg__Pb__LogAck m = VG__PB__LOG_ACK__INIT;
    m.has_task_id = m.has_attempt = m.has_offset = m.has_round = 1;
    m.task_id = j->task->id;
    m.attempt = j->task->attempt.number;
    m.offset = have;
    m.round = j->log_round = j->ctl->log_round;
    env.body_case = B(LOG_ACK);
    env.log_ack = &m;
    vg_peer_send(a->peer, 0, false, &env);
}

static void ack_log(struct vg_call *call, const Vg__Pb__LogAppend *m, uint64_t offset) {
    VG_ENVELOPE(env);
    Vg__Pb__LogAck a = VG__PB__LOG_ACK__INIT;
    a.has_task_id = a.has_attempt = a.has_offset = 1;
    a.task_id = m->task_id;
    a.attempt = m->attempt;
    a.offset = offset;
    env.body_case = B(LOG_ACK);
    env.log_ack = &a;
    vg_peer_send(call->peer, 0, false, &env);
}

void vg_agent_on_log(struct vg_call *call) {
    const Vg__Pb__LogAppend *m = call->env->log_append;
    struct vg_control *c = call->ctl;
    struct vg_job *j = vg_job_get(c, m->task_id);
    uint64_t ack = m->offset + m->records.len;
    bool current = j && vg_task_is_current(j->task, m->attempt, call->peer->agent->node->id);
    if (!current) { /* of no use to anybody: let its keeper go on */
        ack_log(call, m, ack);
        return;
    }
    if (j->log_round && j->log_round != m->log_round)
        return; /* it crossed our asking: all of it comes again */
    int r = open_log(j);
    if (r >= 0)
        r = vg_logfile_append(j->log, m->offset, m->records.data, m->records.len, m->tail, &ack);
    if (r < 0)
        vg_warn("task=%016llx output cannot be stored: %d", (unsigned long long)m->task_id, r);
    if (j->task->out_bytes < m->offset + m->records.len)
        j->task->out_bytes = m->offset + m->records.len;
    ack_log(call, m, ack);
    vg_logs_more(j, false);
}

/* ------------------------------------------------------------------ sessions, clients inside */

void vg_agent_on_session_ended(struct vg_call *call) {
    const char *key = call->env->session_ended->key;
    const struct vg_session *s = key ? vg_map_get(&call->ctl->sessions, key) : NULL;
    if (s && s->node == call->peer->agent->node->id) /* others' sessions are none of its business */
        vg_sessions_forget(call->ctl, key);
}

/* The bytes of a client inside a task come on a stream; it becomes a connection of its own. */
void vg_agent_on_nested(struct vg_call *call) {
    struct vg_control *c = call->ctl;
    struct vg_stream *s = vg_stream_new(call->peer->conn, call->env->nested->stream, NULL, NULL);
    int pair[2];
    if (!s)
        return;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) < 0) {
        vg_stream_free(s, VG_INTERNAL);
        return;
    }
    if (vg_peer_accept_nested(c, pair[0], call->peer->agent->node->id) < 0) {
        close(pair[1]);
        vg_stream_free(s, VG_UNAVAILABLE);
        return;
    }
    vg_pump_fd(c->loop, pair[1], s, NULL, NULL);
}
