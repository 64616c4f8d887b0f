/* Tasks on this node: which Start is taken, passing on what keepers and control plane say about a
   task, and holding its exit until it is acknowledged. Loop thread.

       WAITING ──handed over──▶ STARTING ──▶ RUNNING ──▶ EXITED ──acknowledged──▶ forgotten
          └──────────cannot start, killed──────────────────▲     (but remembered as ended)

   An attempt is taken once: a Start that is known, or was, is answered by its state. */
#include "agent/agent-tasks.h"

#include "base/cleanup.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/util.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

void vg_tasks_init(struct vg_agent *a) {
    memset(a->ended, 0, sizeof(a->ended));
}

struct vg_agent_task *vg_tasks_get(struct vg_agent *a, uint64_t id) {
    return vg_map_get_u64(&a->tasks, id);
}

struct vg_agent_task *vg_tasks_new(struct vg_agent *a, uint64_t id, uint32_t attempt) {
    struct vg_agent_task *t = vg_alloc(sizeof(*t));
    if (!t)
        return NULL;
    t->id = id;
    t->attempt = attempt;
    t->start_fd = -1;
    vg_list_init(&t->link);
    if (vg_map_put_u64(&a->tasks, id, t) < 0) {
        free(t);
        return NULL;
    }
    return t;
}

static void close_fds(struct vg_agent_task *t) {
    for (size_t i = 0; i < t->n_fds; i++)
        vg_close(&t->fds[i]);
    t->n_fds = 0;
    t->fd_mask = 0;
}

static void task_free(struct vg_agent *a, struct vg_agent_task *t) {
    if (vg_tasks_get(a, t->id) == t)
        vg_map_del_u64(&a->tasks, t->id);
    vg_list_remove(&t->link);
    close_fds(t);
    for (size_t i = 0; i < t->n_attach; i++)
        vg_close(&t->attach[i].fd);
    vg_meeting_close(t->meeting);
    vg_meter_end(a, t);
    vg_close(&t->start_fd);
    if (t->exited)
        vg__pb__task_exited__free_unpacked(t->exited, NULL);
    free((char *)t->key.home);
    free(t->share.words);
    free(t->session);
    free(t);
}

void vg_tasks_done(struct vg_agent *a) {
    vg_map_for_each (s, &a->tasks)
        task_free(a, s->value);
    vg_map_done(&a->tasks);
}

/* ------------------------------------------------------------------ to the control plane */

static void send_exited(struct vg_agent *a, const Vg__Pb__TaskExited *exited) {
    Vg__Pb__Envelope env = VG__PB__ENVELOPE__INIT;
    if (vg_bare_holds(a, exited->task_id))
        return; /* until its node is wiped */
    env.body_case = VG__PB__ENVELOPE__BODY_TASK_EXITED;
    env.task_exited = (Vg__Pb__TaskExited *)exited;
    vg_link_send(a, &env);
}

static void send_started(struct vg_agent *a, const struct vg_agent_task *t) {
    Vg__Pb__TaskStarted started = VG__PB__TASK_STARTED__INIT;
    Vg__Pb__Envelope env = VG__PB__ENVELOPE__INIT;
    started.has_task_id = started.has_attempt = started.has_started_usec = true;
    started.task_id = t->id;
    started.attempt = t->attempt;
    started.started_usec = t->started_usec;
    env.body_case = VG__PB__ENVELOPE__BODY_TASK_STARTED;
    env.task_started = &started;
    vg_link_send(a, &env);
}

static Vg__Pb__TaskExited *exited_dup(const Vg__Pb__TaskExited *from) {
    size_t n = vg__pb__task_exited__get_packed_size(from);
    vg_auto_free uint8_t *bytes = vg_alloc(n + 1);
    if (!bytes)
        return NULL;
    vg__pb__task_exited__pack(from, bytes);
    return vg__pb__task_exited__unpack(NULL, n, bytes);
}

/* The one place where a task becomes EXITED. */
static void task_exited(struct vg_agent *a, struct vg_agent_task *t,
                        const Vg__Pb__TaskExited *exited) {
    if (t->state == VG_AT_EXITED)
        return;
    t->state = VG_AT_EXITED;
    t->exited = exited_dup(exited);
    if (t->keeper)
        t->keeper->spent_cpu_usec += exited->cpu_usec;
    if (t->exited && t->log_round && (!t->keeper || t->log_early)) { /* nothing more will come */
        t->exited->has_log_round = true;
        t->exited->log_round = t->log_round;
    }
    close_fds(t);
    vg_meeting_close(vg_take_ptr(t->meeting));
    vg_tickets_drop_task(&a->tickets, t->id);
    vg_share_divide(a, t);
    if (!vg_meter_hold(a, t) && !vg_bare_hold(a, t))
        send_exited(a, t->exited ? t->exited : exited);
}

void vg_tasks_say_exit(struct vg_agent *a, const struct vg_agent_task *t) {
    if (t->exited && !vg_bare_hold(a, t))
        send_exited(a, t->exited);
}

static void exit_as(struct vg_agent *a, struct vg_agent_task *t, int32_t status,
                    enum vg_reason reason, const char *text, bool never_ran) {
    Vg__Pb__TaskExited x = VG__PB__TASK_EXITED__INIT;
    x.has_task_id = x.has_attempt = x.has_status = x.has_ended_usec = x.has_never_ran = true;
    x.task_id = t->id;
    x.attempt = t->attempt;
    x.status = status;
    x.ended_usec = vg_wall_usec();
    x.never_ran = never_ran;
    x.has_reason = reason != VG_OK;
    x.reason = (uint32_t)reason;
    x.has_started_usec = t->started_usec != 0;
    x.started_usec = t->started_usec;
    x.has_out_end = true;
    x.out_end = t->out_end;
    x.text = (char *)text;
    task_exited(a, t, &x);
}

void vg_tasks_fail(struct vg_agent *a, struct vg_agent_task *t, enum vg_reason reason,
                   const char *text) {
    exit_as(a, t, vg_reason_exit(reason), reason, text, true);
}

/* ------------------------------------------------------------------ fencing */

static const struct vg_agent_ended *find_ended(struct vg_agent *a, uint64_t id, uint32_t attempt) {
    for (size_t i = 0; i < VG_AGENT_ENDED; i++)
        if (a->ended[i].id == id && a->ended[i].attempt >= attempt)
            return &a->ended[i];
    return NULL;
}

static void send_ended(struct vg_agent *a, uint64_t id, uint32_t attempt, int32_t status,
                       enum vg_reason reason, const char *text) {
    Vg__Pb__TaskExited x = VG__PB__TASK_EXITED__INIT;
    x.has_task_id = x.has_attempt = x.has_status = x.has_ended_usec = true;
    x.task_id = id;
    x.attempt = attempt;
    x.status = status;
    x.ended_usec = vg_wall_usec();
    x.has_reason = reason != VG_OK;
    x.reason = (uint32_t)reason;
    x.has_never_ran = x.never_ran = reason == VG_CONFLICT;
    x.text = (char *)text;
    send_exited(a, &x);
}

/* Its keeper is gone: nobody can send its output again. */
static void say_all_sent(struct vg_agent *a, struct vg_agent_task *t) {
    if (!t->exited)
        return;
    t->exited->has_log_round = true;
    t->exited->log_round = t->log_round;
    send_exited(a, t->exited);
}

static void say_state(struct vg_agent *a, const struct vg_agent_task *t) {
    if (t->gated && t->keeper)
        vg_tasks_ready(a, t);
    else if (t->state == VG_AT_EXITED && t->exited)
        send_exited(a, t->exited);
    else if (t->state == VG_AT_RUNNING)
        send_started(a, t);
}

static void forget(struct vg_agent *a, struct vg_agent_task *t) {
    a->ended[a->next_ended] = (struct vg_agent_ended){
        .id = t->id, .attempt = t->attempt, .status = t->exited ? t->exited->status : 0};
    a->next_ended = (a->next_ended + 1) % VG_AGENT_ENDED;
    struct vg_agent_keeper *k = t->keeper;
    if (k)
        vg_keeper_send(k, VG_K_EXIT_ACK, t->id, 0, 0, NULL, 0, NULL, 0);
    task_free(a, t);
    if (k)
        vg_keepers_task_forgotten(k);
    vg_bare_step(a);
}

bool vg_tasks_refuse(struct vg_agent *a, const Vg__Pb__Start *start) {
    struct vg_agent_task *t = vg_tasks_get(a, start->task_id);
    const struct vg_agent_ended *e = find_ended(a, start->task_id, start->attempt);
    if (t && t->attempt >= start->attempt) {
        say_state(a, t);
        return true;
    }
    if (t && t->state == VG_AT_EXITED) { /* the control plane has moved on from it */
        forget(a, t);
        t = NULL;
    }
    if (t && (t->state == VG_AT_WAITING || t->gated)) {
        vg_keepers_withdraw(a, t);
        task_free(a, t);
        t = NULL;
    }
    if (t) {
        vg_warn("a newer attempt came while an older one runs: the older is killed");
        if (t->keeper)
            vg_keeper_send(t->keeper, VG_K_KILL, t->id, SIGKILL, 0, NULL, 0, NULL, 0);
        send_ended(a, start->task_id, start->attempt, vg_reason_exit(VG_CONFLICT), VG_CONFLICT,
                   "an earlier attempt of this task still runs on the node");
        return true;
    }
    if (e) {
        send_ended(a, e->id, start->attempt, e->status, VG_OK, NULL);
        return true;
    }
    return false;
}

/* ------------------------------------------------------------------ channels */

void vg_tasks_handed(struct vg_agent_task *t) {
    for (size_t i = 0; i < t->n_attach; i++) {
        vg_keeper_send(t->keeper, VG_K_ATTACH, t->id, t->attach[i].flags, 0, NULL, 0,
                       &t->attach[i].fd, 1);
        vg_close(&t->attach[i].fd);
    }
    t->n_attach = 0;
    t->share.slice_usec = 0; /* this keeper was not told yet */
    vg_share_divide(t->keeper->agent, t);
}

int vg_tasks_attach(struct vg_agent_task *t, int fd, uint64_t flags) {
    vg_auto_fd int channel = fd;
    if (t->keeper)
        return vg_keeper_send(t->keeper, VG_K_ATTACH, t->id, flags, 0, NULL, 0, &channel, 1);
    if (t->state != VG_AT_WAITING || t->n_attach == VG_AGENT_ATTACHES)
        return -ENOENT;
    t->attach[t->n_attach++] = (struct vg_agent_attach){vg_take_fd(channel), flags};
    return 0;
}

/* ------------------------------------------------------------------ from the control plane */

static bool ends_a_task(uint32_t sig) {
    return sig != SIGCONT && sig != SIGWINCH && sig != SIGCHLD && sig != SIGURG;
}

static void withdraw(struct vg_agent *a, struct vg_agent_task *t, uint32_t sig, const char *text) {
    vg_keepers_withdraw(a, t);
    exit_as(a, t, 128 + (int32_t)sig, VG_OK, text, true);
}

void vg_tasks_on_kill(struct vg_agent *a, const Vg__Pb__KillReq *kill) {
    struct vg_agent_task *t = vg_tasks_get(a, kill->task_id);
    const struct vg_agent_ended *e = find_ended(a, kill->task_id, kill->attempt);
    uint32_t sig = kill->signal > 0 && kill->signal < 65 ? kill->signal : SIGTERM;
    if (t && t->attempt == kill->attempt) {
        if (t->state == VG_AT_EXITED)
            say_state(a, t);
        else if (t->gated && ends_a_task(sig))
            withdraw(a, t, sig, kill->text);
        else if (t->keeper)
            vg_keeper_send(t->keeper, VG_K_KILL, t->id, sig, kill->grace_usec, kill->text,
                           kill->text ? VG_MIN(strlen(kill->text), (size_t)1024) : 0, NULL, 0);
        else if (ends_a_task(sig))
            withdraw(a, t, sig, kill->text);
        return;
    }
    if (e && e->attempt == kill->attempt)
        send_ended(a, e->id, e->attempt, e->status, VG_OK, NULL);
    else
        send_ended(a, kill->task_id, kill->attempt, 128 + SIGKILL, VG_LOST,
                   "the node does not have this task");
}

void vg_tasks_on_log_ack(struct vg_agent *a, const Vg__Pb__LogAck *ack) {
    struct vg_agent_task *t = vg_tasks_get(a, ack->task_id);
    if (!t || t->attempt != ack->attempt)
        return;
    if (ack->round > 1) {
        t->log_round = ack->round;
        t->log_early = (!t->keeper || t->gated) && t->state != VG_AT_EXITED;
    }
    if (t->keeper && !t->gated)
        vg_keeper_send(t->keeper, VG_K_LOG_ACK, t->id, ack->round > 1 ? ack->round : 0, ack->offset,
                       NULL, 0, NULL, 0);
    else if (ack->round > 1 && t->state == VG_AT_EXITED)
        say_all_sent(a, t);
}

void vg_tasks_on_exit_ack(struct vg_agent *a, const Vg__Pb__ExitAck *ack) {
    struct vg_agent_task *t = vg_tasks_get(a, ack->task_id);
    if (t && t->attempt == ack->attempt && t->state == VG_AT_EXITED)
        forget(a, t);
}

void vg_tasks_on_end_session(struct vg_agent *a, const char *key) {
    if (key)
        vg_keepers_end_session(a, key);
}

void vg_tasks_on_session_extend(struct vg_agent *a, const Vg__Pb__SessionExtend *x) {
    struct vg_agent_keeper *k = x->key ? vg_keepers_session(a, x->key) : NULL;
    if (k && x->keep_usec)
        vg_keeper_send(k, VG_K_KEEP, 0, 0, x->keep_usec, NULL, 0, NULL, 0);
}

/* ------------------------------------------------------------------ from keepers */

static struct vg_agent_task *adopt_task(struct vg_agent_keeper *k, const Vg__Pb__TaskReport *r,
                                        int *fds, size_t n_fds) {
    struct stat st;
    if (k->state != VG_KEEPER_ADOPTED || vg_tasks_get(k->agent, r->task_id))
        return NULL;
    struct vg_agent_task *t = vg_tasks_new(k->agent, r->task_id, r->attempt);
    if (!t)
        return NULL;
    if (n_fds > 0 && fstat(fds[0], &st) == 0 && st.st_size <= (off_t)VG_WIRE_MSG_MAX) {
        t->start_fd = vg_take_fd(fds[0]);
        t->start_bytes = (size_t)st.st_size;
    }
    t->keeper = k;
    t->state = VG_AT_STARTING;
    vg_list_push_back(&k->tasks, &t->link);
    Vg__Pb__Start *start = vg_tasks_read_start(t);
    if (start && start->meeting && vg_start_network(start, &t->key.net) >= 0 &&
        vg_meeting_open(k->agent, t, (uint16_t)start->meeting_port, &t->meeting) < 0)
        vg_warn("a gang's meeting cannot be opened again");
    if (start) {
        vg_meter_begin(k->agent, t, start);
        vg_share_adopt(t, start);
        vg_near_begin(t, start);
        vg_share_divide(k->agent, t);
    }
    if (start)
        vg__pb__start__free_unpacked(start, NULL);
    return t;
}

void vg_tasks_on_state(struct vg_agent_keeper *k, const uint8_t *data, size_t n, int *fds,
                       size_t n_fds) {
    struct vg_agent *a = k->agent;
    Vg__Pb__TaskReport *r = vg__pb__task_report__unpack(NULL, n, data);
    if (!r)
        return;
    struct vg_agent_task *t = vg_tasks_get(a, r->task_id);
    if (!t)
        t = adopt_task(k, r, fds, n_fds);
    if (t && t->keeper == k && t->attempt == r->attempt && t->state != VG_AT_EXITED) {
        t->confirmed = true;
        close_fds(t);
        t->out_begin = r->out_begin;
        t->out_end = r->out_end;
        if (r->started_usec)
            t->started_usec = r->started_usec;
        if (r->state == VG__PB__TASK_REPORT__STATE__RUNNING && t->state == VG_AT_STARTING) {
            t->state = VG_AT_RUNNING;
            send_started(a, t);
            vg_use_begin(a);
        } else if (r->state == VG__PB__TASK_REPORT__STATE__EXITED && r->exited) {
            r->exited->has_task_id = r->exited->has_attempt = true;
            r->exited->task_id = t->id;
            r->exited->attempt = t->attempt;
            task_exited(a, t, r->exited);
        }
    } else if (t && t->keeper == k && t->attempt == r->attempt && t->exited && r->exited &&
               r->exited->log_round && r->exited->log_round != t->exited->log_round) {
        /* its output was sent again */
        t->exited->has_log_round = true;
        t->exited->log_round = r->exited->log_round;
        send_exited(a, t->exited);
    } else if (!t && r->state == VG__PB__TASK_REPORT__STATE__EXITED) {
        vg_keeper_send(k, VG_K_EXIT_ACK, r->task_id, 0, 0, NULL, 0, NULL, 0);
    }
    vg__pb__task_report__free_unpacked(r, NULL);
}

void vg_tasks_on_log(struct vg_agent_keeper *k, const struct vg_kpkt *p, const uint8_t *data) {
    struct vg_agent *a = k->agent;
    struct vg_agent_task *t = vg_tasks_get(a, p->id);
    if (!t || t->keeper != k)
        return;
    Vg__Pb__LogAppend log = VG__PB__LOG_APPEND__INIT;
    Vg__Pb__Envelope env = VG__PB__ENVELOPE__INIT;
    log.has_task_id = log.has_attempt = log.has_offset = log.has_records = true;
    log.task_id = t->id;
    log.attempt = t->attempt;
    log.offset = p->b;
    log.records = (ProtobufCBinaryData){p->len, (uint8_t *)data};
    log.has_tail = log.tail = p->a & 1;
    log.log_round = (uint32_t)(p->a >> 32);
    if (t->log_early)
        log.log_round = t->log_round;
    log.has_log_round = log.log_round != 0;
    env.body_case = VG__PB__ENVELOPE__BODY_LOG_APPEND;
    env.log_append = &log;
    /* Away, it is dropped: the keeper holds it and sends it again when it is told to. Going down
       for good without a control plane, nobody will ever take it. */
    if (!vg_link_send(a, &env) && a->stopping)
        vg_keeper_send(k, VG_K_LOG_ACK, t->id, 0, p->b + p->len, NULL, 0, NULL, 0);
}

void vg_tasks_orphan(struct vg_agent *a, struct vg_agent_task *t, bool orderly) {
    vg_list_remove(&t->link);
    t->keeper = NULL;
    if (t->state == VG_AT_EXITED) { /* waits for its acknowledgement without a keeper */
        if (t->log_round && t->exited && t->exited->log_round != t->log_round)
            say_all_sent(a, t);
        return;
    }
    if (orderly && !t->confirmed && !a->stopping) {
        vg_keepers_submit(a, t, &t->key); /* crossed with the keeper's leaving */
        return;
    }
    exit_as(a, t, 128 + SIGKILL, VG_LOST, "the keeper of this task was killed", false);
}

void vg_tasks_kill_all(struct vg_agent *a, const char *text) {
    vg_map_for_each (s, &a->tasks) {
        struct vg_agent_task *t = s->value;
        if (t->state == VG_AT_WAITING || (t->gated && t->state == VG_AT_STARTING)) {
            vg_keepers_withdraw(a, t);
            vg_tasks_fail(a, t, VG_UNAVAILABLE, text);
        } else if (t->state != VG_AT_EXITED && t->keeper) {
            vg_keeper_send(t->keeper, VG_K_KILL, t->id, SIGKILL, 0, text, strlen(text), NULL, 0);
        }
    }
}

void vg_tasks_forget_exited(struct vg_agent *a) {
    vg_map_for_each (s, &a->tasks) {
        struct vg_agent_task *t = s->value;
        if (t->state == VG_AT_EXITED)
            forget(a, t);
    }
}

void vg_tasks_resend(struct vg_agent *a) {
    vg_map_for_each (s, &a->tasks) {
        struct vg_agent_task *t = s->value;
        if (t->state == VG_AT_EXITED || t->gated)
            say_state(a, t);
        else if (t->keeper)
            vg_keeper_send(t->keeper, VG_K_LOG_ACK, t->id, 1, 0, NULL, 0, NULL, 0);
    }
}
