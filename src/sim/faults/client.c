/* Clients, modelled: each task has one, as a vbatch or a vrun. It sends its request until it is
   accepted, again when a connection breaks, and then waits for the end; it may cancel; it may be
   killed. Who submitted for good (vbatch) asks for the end whatever happened to the first client.
 */
#include "sim/faults/world.h"

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"
#include "model/task.h"
#include "sim/faults/plant.h"

#include <stdio.h>
#include <string.h>

#define B(name) VG__PB__ENVELOPE__BODY_##name
enum { REQ_RUN = 1, REQ_WAIT, REQ_CANCEL };

static void call(void *task, uint64_t unused);
static void cancel(void *task, uint64_t unused);

static struct vg_rng *rng(const struct vg_w_task *t) {
    return &t->client.machine->net;
}

static void again(struct vg_w_task *t) {
    if (t->told || t->refused)
        return;
    uint64_t max = VG_MIN(100000ULL << VG_MIN(t->tries, 5u), 3 * VG_USEC);
    t->tries++;
    vg_w_at(vg_w->now + vg_w_between(rng(t), max / 2, max), &t->client, call, t, 0);
}

/* ------------------------------------------------------------------ what it hears */

static void told(struct vg_w_task *t, int32_t status, uint32_t reason, uint32_t attempt,
                 const char *text) {
    vg_w_truth_told(t, status, reason, attempt, text);
    if (t->conn)
        vg_conn_close(t->conn);
}

static void on_accepted(struct vg_w_task *t) {
    if (t->accepted)
        return;
    t->accepted = true;
    vg_w_story("task %d is accepted", t->index);
    if (t->plan->cancel_usec)
        vg_w_at(vg_w->now + t->plan->cancel_usec, &t->client, cancel, t, 0);
    if (!t->plan->interactive && !t->plan->follow)
        vg_conn_close(t->conn); /* vbatch: the id is all that it wanted */
}

static void on_error(struct vg_w_task *t, const Vg__Pb__Envelope *env) {
    const Vg__Pb__Error *e = env->error;
    vg_w_story("task %d: %s", t->index, e->text ? e->text : "");
    if (env->req == REQ_WAIT && t->accepted && e->reason == VG_NOT_FOUND)
        vg_w_violate("accepted-lost", "task %d was accepted, and virgad does not know it any more",
                     t->index);
    if (env->req == REQ_RUN && !t->accepted)
        t->refused = true;
    vg_conn_close(t->conn);
}

static void on_msg(struct vg_conn *c, void *user, const Vg__Pb__Envelope *env, int *fds,
                   size_t n_fds) {
    struct vg_w_task *t = user;
    (void)c;
    (void)fds;
    (void)n_fds;
    if (env->body_case == B(ERROR)) {
        on_error(t, env);
    } else if (env->body_case == B(RUN_EVENT)) {
        const Vg__Pb__RunEvent *e = env->run_event;
        if (e->kind == VG__PB__RUN_EVENT__KIND__ACCEPTED)
            on_accepted(t);
        else if (e->kind == VG__PB__RUN_EVENT__KIND__ENDED)
            told(t, e->status, e->reason, e->attempt, e->text);
    } else if (env->body_case == B(TASK) && env->req == REQ_WAIT) {
        const Vg__Pb__TaskInfo *i = env->task;
        if (i->has_status)
            told(t, i->status, i->status == 125 ? VG_LOST : 0, i->attempt, i->reason);
    }
}

static void on_close(struct vg_conn *c, void *user, const struct vg_err *why) {
    struct vg_w_task *t = user;
    (void)c;
    (void)why;
    t->conn = NULL;
    if (t->client.alive)
        again(t);
}

static const struct vg_conn_ops ops = {.on_msg = on_msg, .on_close = on_close};

/* ------------------------------------------------------------------ what it says */

static void send_run(struct vg_w_task *t) {
    const struct vg_plan_task *p = t->plan;
    Vg__Pb__Envelope env = VG__PB__ENVELOPE__INIT;
    Vg__Pb__RunReq m = VG__PB__RUN_REQ__INIT;
    Vg__Pb__TaskSpec spec = VG__PB__TASK_SPEC__INIT;
    Vg__Pb__Resources want = VG__PB__RESOURCES__INIT;
    char number[16];
    ProtobufCBinaryData argv[2] = {{.data = (uint8_t *)"sim", .len = 3},
                                   {.data = (uint8_t *)number}};
    argv[1].len = (size_t)snprintf(number, sizeof number, "%d", t->index);
    want.has_cpu_milli = want.has_gpus = 1;
    want.cpu_milli = p->cpu_milli;
    want.gpus = p->gpus;
    want.has_gpu_milli = p->share_milli != 0;
    want.gpu_milli = p->share_milli;
    if (p->share_milli)
        spec.pool = "part";
    spec.argv = argv;
    spec.n_argv = 2;
    spec.has_cwd = 1;
    spec.cwd = (ProtobufCBinaryData){.data = (uint8_t *)"/", .len = 1};
    spec.want = &want;
    spec.has_interactive = spec.has_detached = spec.has_retries = 1;
    spec.interactive = p->interactive;
    spec.detached = !p->interactive;
    spec.retries = p->retries;
    spec.has_gang = spec.has_shards = p->gang != 0;
    spec.gang = p->gang != 0;
    spec.shards = p->gang;
    m.has_task_id = m.has_resend = m.has_wait_durable = 1;
    m.task_id = t->id;
    if (t->sent && vg_plant_is(VG_PLANT_NO_DEDUPE))
        m.task_id ^= (uint64_t)(t->tries + 1) << 32;
    m.resend = t->sent;
    m.wait_durable = !p->interactive;
    m.spec = &spec;
    env.has_req = 1;
    env.req = REQ_RUN;
    env.body_case = B(RUN);
    env.run = &m;
    t->sent = true;
    vg_w_story("the client of task %d sends it%s", t->index, m.resend ? " again" : "");
    vg_conn_send(t->conn, &env, NULL, 0);
}

static void send_wait(struct vg_w_task *t) {
    Vg__Pb__Envelope env = VG__PB__ENVELOPE__INIT;
    Vg__Pb__TaskRef ref = VG__PB__TASK_REF__INIT;
    char id[VG_ID_LEN + 1];
    vg_id_format(t->id, id);
    ref.task = id;
    env.has_req = 1;
    env.req = REQ_WAIT;
    env.body_case = B(TASK_WAIT);
    env.task_wait = &ref;
    vg_conn_send(t->conn, &env, NULL, 0);
}

static void call(void *task, uint64_t unused) {
    struct vg_w_task *t = task;
    (void)unused;
    if (t->conn || t->told || t->refused || (t->gone && !t->accepted))
        return;
    t->conn = vg_w_connect(&t->client, !t->plan->remote, &ops, t);
    if (!t->conn)
        again(t);
    else if (t->accepted && !t->plan->interactive)
        send_wait(t);
    else
        send_run(t);
}

/* ------------------------------------------------------------------ cancelling */

static void on_cancel_msg(struct vg_conn *c, void *user, const Vg__Pb__Envelope *env, int *fds,
                          size_t n_fds) {
    struct vg_w_task *t = user;
    (void)fds;
    (void)n_fds;
    t->cancel_ok = env->body_case == B(OK) || env->body_case == B(ERROR);
    vg_conn_close(c);
}

static void on_cancel_close(struct vg_conn *c, void *user, const struct vg_err *why) {
    struct vg_w_task *t = user;
    (void)c;
    (void)why;
    if (!t->cancel_ok && t->client.alive)
        vg_w_at(vg_w->now + VG_USEC, &t->client, cancel, t, 0);
}

static const struct vg_conn_ops cancel_ops = {.on_msg = on_cancel_msg, .on_close = on_cancel_close};

static void cancel(void *task, uint64_t unused) {
    struct vg_w_task *t = task;
    (void)unused;
    if (t->told)
        return;
    struct vg_conn *c = vg_w_connect(&t->client, !t->plan->remote, &cancel_ops, t);
    if (!c) {
        vg_w_at(vg_w->now + VG_USEC, &t->client, cancel, t, 0);
        return;
    }
    Vg__Pb__Envelope env = VG__PB__ENVELOPE__INIT;
    Vg__Pb__TaskSignal m = VG__PB__TASK_SIGNAL__INIT;
    char id[VG_ID_LEN + 1];
    vg_id_format(t->id, id);
    m.task = id;
    env.has_req = 1;
    env.req = REQ_CANCEL;
    env.body_case = B(TASK_SIGNAL);
    env.task_signal = &m;
    t->cancel_sent = true;
    vg_w_story("task %d is cancelled", t->index);
    vg_conn_send(c, &env, NULL, 0);
}

/* ------------------------------------------------------------------ life */

void vg_w_client_init(int i) {
    struct vg_w_task *t = &vg_w->task[i];
    char name[16];
    snprintf(name, sizeof name, "c%d", i);
    *t = (struct vg_w_task){.plan = &vg_w->plan->task[i], .index = i, .id = vg_w->plan->task_id[i]};
    for (uint32_t k = 0; k < t->plan->gang; k++) {
        if (!t->member && !(t->member = vg_alloc(t->plan->gang * sizeof *t->member)))
            abort();
        t->member[k] = (struct vg_w_task){
            .plan = t->plan, .index = i, .group = t, .id = vg_task_member_id(t->id, k)};
    }
    vg_w_proc_init(&t->client, t->plan->remote ? &vg_w->client_machine : &vg_w->control_machine,
                   name);
    t->client.alive = true;
    t->gone = t->plan->off;
    if (!t->gone)
        vg_w_at(t->plan->at_usec, &t->client, call, t, 0);
}

static void come_back(void *task, uint64_t unused) {
    struct vg_w_task *t = task;
    (void)unused;
    t->client.alive = true;
    call(t, 0);
}

void vg_w_client_crash(int i) {
    struct vg_w_task *t = &vg_w->task[i];
    if (!t->client.alive || t->told || t->refused || !t->sent)
        return;
    vg_w_story("the client of task %d is killed", i);
    vg_w_net_gone(&t->client, false);
    t->client.alive = false;
    t->client.life++;
    vg_w_net_finish(&t->client);
    t->conn = NULL;
    t->gone = t->plan->interactive || !t->accepted;
    if (t->plan->interactive)
        vg_w_keeper_hangup(t);
    if (!t->gone) /* its owner asks from another shell */
        vg_w_at(vg_w->now + 5 * VG_USEC, NULL, come_back, t, 0);
}

static void free_output(struct vg_w_task *t) {
    for (int k = 0; k < t->n_attempts; k++)
        free(t->attempt[k].out);
}

void vg_w_client_done(int i) {
    struct vg_w_task *t = &vg_w->task[i];
    vg_w_net_gone(&t->client, true);
    t->client.alive = false;
    vg_w_net_finish(&t->client);
    free_output(t);
    for (uint32_t k = 0; k < t->plan->gang; k++)
        free_output(&t->member[k]);
    free(t->member);
}
