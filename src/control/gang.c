/* Gangs: starting together, and what happens when one is missing. */
#include "control/gang.h"

#include "base/cleanup.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/util.h"
#include "control/family.h"
#include "control/member.h"
#include "control/nodes.h"
#include "control/place.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

#define B(name) VG__PB__ENVELOPE__BODY_##name
#define READY_USEC (30 * VG_USEC) /* how long nodes may take to prepare */

/* Of the group's job. */
struct vg_gang {
    char address[64]; /* where rank 0 is met; "": not known */
    uint32_t port;
    struct vg_timer *ready; /* nodes prepare */
    bool gathering;         /* members are taken back to start together again */
    bool busy;              /* they are being told: nobody is queued in between */
    bool over;              /* one has failed: the others are being stopped */
};

static struct vg_gang *gang_of(struct vg_job *group) {
    if (!group->gang)
        group->gang = vg_alloc(sizeof *group->gang);
    return group->gang;
}

void vg_gang_free(struct vg_gang *g) {
    if (!g)
        return;
    vg_timer_stop(&g->ready);
    free(g);
}

#define for_each_member(m, group)                                                           \
    vg_list_for_each_safe (vg_it_, &(group)->head->under)                                   \
        for (struct vg_job *m = vg_list_entry(vg_it_, struct vg_job, sibling); m; m = NULL) \
            if (!vg_task_is_ended(m->task))

static bool has_begun(const struct vg_job *m) {
    return m->task->attempt.node && (m->gone || m->task->state == VG_TASK_RUNNING);
}

/* ------------------------------------------------------------------ into the queue */

struct muster {
    uint32_t queued, held, placed, begun;
    uint64_t due_usec;
};

static struct muster count(struct vg_job *group) {
    struct muster c = {0};
    for_each_member(m, group) {
        c.queued += m->task->state == VG_TASK_QUEUED;
        c.held += m->held;
        c.placed += m->task->attempt.node != 0;
        c.begun += has_begun(m);
        if (m->task->state == VG_TASK_QUEUED)
            c.due_usec = VG_MAX(c.due_usec, m->task->due_usec);
    }
    return c;
}

static int submit_whole(struct vg_job *group, struct vg_err *err) {
    size_t n = 0;
    vg_auto_free struct vg_job **all = vg_alloc((group->task->members + 1) * sizeof *all);
    if (!all)
        return vg_err_sys(err, ENOMEM, "cannot queue the gang");
    for_each_member(m, group) {
        vg_place_release(m); /* one may have waited alone */
        if (n < group->task->members)
            all[n++] = m;
    }
    if (group->gang)
        group->gang->gathering = false;
    return vg_place_submit_gang(all, n, err);
}

/* The others run: those that are missing go in alone. */
static int submit_missing(struct vg_job *group, struct vg_err *err) {
    int r = 0;
    for_each_member(m, group) {
        struct vg_err e = VG_ERR_INIT;
        if (m->task->state != VG_TASK_QUEUED || vg_place_submit(m, &e) >= 0 ||
            e.reason == VG_EXISTS)
            continue;
        *err = e;
        r = e.code;
    }
    return r;
}

static void due_now(void *user) {
    struct vg_job *j = user;
    struct vg_err err = VG_ERR_INIT;
    j->due = NULL;
    if (j->task->state == VG_TASK_QUEUED && vg_gang_submit(j, &err) < 0)
        vg_job_end(j, vg_reason_exit(err.reason), err.reason, err.msg);
    vg_place_all(j->ctl);
}

int vg_gang_submit(struct vg_job *j, struct vg_err *err) {
    struct vg_job *group = j->above;
    struct muster c = count(group);
    uint64_t now = vg_wall_usec();
    if (c.held || (group->gang && (group->gang->over || group->gang->busy)))
        return 0; /* the last of them comes here again */
    if (c.due_usec > now) {
        if (!j->due)
            j->due = vg_timer_start(j->ctl->loop, c.due_usec - now, due_now, j);
        return j->due ? 0 : vg_err_sys(err, ENOMEM, "cannot wait until it is due");
    }
    if (c.placed == 0 && c.queued == vg_progress_open(group->task->progress))
        return submit_whole(group, err);
    if (group->gang && group->gang->gathering)
        return 0;
    return submit_missing(group, err);
}

/* ------------------------------------------------------------------ together */

static bool has_gpus(const struct vg_task *t) {
    return t->gpus != 0;
}

/* Its number among those on its node. A member that has GPUs of its own sees no others, so it is
   the first of what it sees. */
static void local_rank(struct vg_job *group, const struct vg_job *j, uint32_t *rank,
                       uint32_t *size) {
    *rank = *size = 0;
    for_each_member(m, group) {
        if (m->task->attempt.node != j->task->attempt.node)
            continue;
        ++*size;
        *rank += m->task->index < j->task->index;
    }
    if (has_gpus(j->task)) {
        *rank = 0;
        *size = 1;
    }
}

static void send_go(struct vg_job *group, struct vg_job *j, struct vg_nodelink *a) {
    struct vg_member_env e = {0};
    uint32_t rank, size;
    VG_ENVELOPE(env);
    Vg__Pb__TaskGo m = VG__PB__TASK_GO__INIT;
    local_rank(group, j, &rank, &size);
    vg_member_env_add(&e, "LOCAL_RANK=%u", rank);
    vg_member_env_add(&e, "LOCAL_WORLD_SIZE=%u", size);
    if (group->gang->port) {
        vg_member_env_add(&e, "MASTER_ADDR=%s", group->gang->address);
        vg_member_env_add(&e, "MASTER_PORT=%u", group->gang->port);
    }
    m.has_task_id = m.has_attempt = 1;
    m.task_id = j->task->id;
    m.attempt = j->task->attempt.number;
    m.env = e.env;
    m.n_env = e.n;
    env.body_case = B(TASK_GO);
    env.task_go = &m;
    vg_peer_send(a->peer, 0, false, &env);
    j->gone = true;
    vg_member_env_done(&e);
}

/* All that are starting are ready, and their nodes are there: now. Who is in the queue is waited
   for unless others run already: after a restart a part of a gang may be known before the rest. */
static void try_go(struct vg_job *group) {
    struct muster c = count(group);
    if (c.queued && !c.begun)
        return;
    for_each_member(m, group) {
        struct vg_nodelink *a = vg_nodelink_get(group->ctl, m->task->attempt.node);
        if (m->task->state == VG_TASK_STARTING && !m->gone && (!m->ready || !a || !a->peer))
            return;
    }
    vg_timer_stop(&group->gang->ready);
    for_each_member(m, group) if (m->task->state == VG_TASK_STARTING && !m->gone)
        send_go(group, m, vg_nodelink_get(group->ctl, m->task->attempt.node));
}

/* ------------------------------------------------------------------ taking back */

/* Back into the queue, aside; what its node has prepared is thrown away. */
static void take_back(struct vg_job *m, const char *why) {
    const struct vg_task *t = m->task;
    if (m->sent)
        vg_nodelink_kill(m->ctl, t->attempt.node, t->id, t->attempt.number, SIGKILL, 0, why);
    vg_job_requeue(m, why);
}

/* Takes every member back. Those that run are told to stop; when the last is here, all start
   together again. */
static void gather(struct vg_job *group, uint64_t grace_usec, uint32_t sig, const char *why) {
    struct vg_err err = VG_ERR_INIT;
    struct vg_control *c = group->ctl;
    struct vg_gang *g = gang_of(group);
    bool placing = c->placing;
    if (!g)
        return;
    g->gathering = g->busy = true;
    vg_timer_stop(&g->ready);
    c->placing = true; /* nobody is placed before all are back */
    for_each_member(m, group) {
        if (m->task->state == VG_TASK_QUEUED)
            vg_place_release(m);
        else if (m->task->attempt.node && !has_begun(m))
            take_back(m, why);
        else if (m->task->attempt.node)
            vg_job_stop(m, grace_usec, sig, why);
    }
    c->placing = placing;
    g->busy = false;
    struct vg_list *first = vg_list_first(&group->head->under);
    if (first && c->settled && count(group).placed == 0 &&
        vg_gang_submit(vg_list_entry(first, struct vg_job, sibling), &err) < 0)
        vg_job_cancel(group, 0, err.msg);
    vg_place_all(c);
}

static void not_ready(void *user) {
    struct vg_job *group = user;
    group->gang->ready = NULL;
    gather(group, 0, 0, "not every node could prepare its part of the gang in time");
}

static void begin_waiting(struct vg_job *group) {
    struct vg_gang *g = gang_of(group);
    if (g && !g->ready)
        g->ready = vg_timer_start(group->ctl->loop, READY_USEC, not_ready, group);
}

void vg_gang_gate(const struct vg_job *j, Vg__Pb__Start *start) {
    struct vg_gang *g = vg_gang_is_member(j) ? gang_of(j->above) : NULL;
    if (!g)
        return;
    start->has_gated = start->gated = 1;
    start->has_meeting = start->meeting = j->task->index == 0;
    start->has_meeting_port = g->port != 0;
    start->meeting_port = g->port; /* a healed rank 0 is best found where it was */
    begin_waiting(j->above);
}

/* The host part of "host:port". */
static void host_of(const char *address, char *out, size_t n) {
    const char *colon = address ? strrchr(address, ':') : NULL;
    snprintf(out, n, "%.*s", colon ? (int)(colon - address) : 0, address ? address : "");
}

/* As others reach the node: by what we see of it; a node on our own machine knows best itself. */
static void note_meeting(struct vg_job *j, uint32_t port, const char *own) {
    struct vg_gang *g = gang_of(j->above);
    struct vg_nodelink *a = vg_nodelink_get(j->ctl, j->task->attempt.node);
    if (!g || !a)
        return;
    g->port = port;
    host_of(a->local ? NULL : a->node->address, g->address, sizeof g->address);
    if (!g->address[0])
        snprintf(g->address, sizeof g->address, "%s", own && *own ? own : "127.0.0.1");
}

void vg_gang_learn(struct vg_job *j, const Vg__Pb__Start *start) {
    if (!vg_gang_is_member(j) || !start)
        return;
    j->gone = !start->gated;
    if (!j->gone)
        begin_waiting(j->above);
    else if (start->meeting && start->meeting_port)
        note_meeting(j, start->meeting_port, NULL);
}

void vg_agent_on_ready(struct vg_call *call) {
    const Vg__Pb__TaskReady *m = call->env->task_ready;
    struct vg_job *j = vg_job_get(call->ctl, m->task_id);
    uint64_t node = call->peer->agent->node->id;
    if (!j || !vg_task_is_current(j->task, m->attempt, node) || !vg_gang_is_member(j)) {
        vg_nodelink_kill(call->ctl, node, m->task_id, m->attempt, SIGKILL, 0,
                         "this attempt was given up by the control plane");
        return;
    }
    if (j->task->state != VG_TASK_STARTING || j->gone || !gang_of(j->above))
        return;
    j->ready = true;
    if (m->port)
        note_meeting(j, m->port, m->address);
    try_go(j->above);
}

void vg_gang_node_left(struct vg_control *c, uint64_t node) {
    size_t n = 0;
    vg_auto_free uint64_t *ids = vg_alloc((vg_map_len(&c->jobs) + 1) * sizeof *ids);
    vg_map_for_each (s, &c->jobs) {
        const struct vg_job *j = s->value;
        if (ids && j->task->attempt.node == node && j->task->state == VG_TASK_STARTING &&
            vg_gang_is_member(j) && !j->gone)
            ids[n++] = j->task->id;
    }
    for (size_t i = 0; i < n; i++) {
        struct vg_job *j = vg_job_get(c, ids[i]);
        if (j && j->task->attempt.node == node && !j->gone && j->above)
            gather(j->above, 0, 0, "a node left before the gang began");
    }
}

/* ------------------------------------------------------------------ losses */

static Vg__Pb__TaskSpec__GangPolicy policy_of(const struct vg_job *j) {
    return j->task->spec->has_gang_policy ? j->task->spec->gang_policy
                                          : VG__PB__TASK_SPEC__GANG_POLICY__HEAL;
}

/* A member is missing through no result of its own. */
static void miss(struct vg_job *j, const char *why) {
    struct vg_job *group = j->above;
    bool heal = policy_of(j) == VG__PB__TASK_SPEC__GANG_POLICY__HEAL;
    bool others = count(group).begun > (has_begun(j) ? 1u : 0u);
    bool all = vg_progress_open(group->task->progress) == group->task->members;
    if (heal && others) {
        vg_job_requeue(j, why);
        return;
    }
    if (!all && others) { /* some have their result: there is no whole to start again */
        j->ack_exit = j->ack_over;
        vg_job_end(j, vg_reason_exit(VG_LOST), VG_LOST, why);
        return;
    }
    struct vg_gang *g = gang_of(group);
    if (g)
        g->busy = true;
    vg_job_requeue(j, why);
    gather(group, 0, 0, why);
}

bool vg_gang_lost(struct vg_job *j, bool ran, const char *why) {
    (void)ran;
    if (!vg_gang_is_member(j) || j->task->cancel)
        return false;
    if (!has_begun(j)) { /* nobody has begun: nothing is lost */
        gather(j->above, 0, 0, why);
        return true;
    }
    if (policy_of(j) == VG__PB__TASK_SPEC__GANG_POLICY__FAIL || j->lost > VG_LOST_MAX)
        vg_job_end(j, vg_reason_exit(VG_LOST), VG_LOST, why); /* the others follow */
    else
        miss(j, why);
    return true;
}

bool vg_gang_exited(struct vg_job *j, const Vg__Pb__TaskExited *x, bool retry) {
    char why[160];
    if (!vg_gang_is_member(j) || j->task->cancel || j->timed_out || j->hearsay ||
        (x->status == 0 && !x->reason))
        return false;
    bool killed = x->status > 128 && !x->reason && !x->oom;
    Vg__Pb__TaskSpec__GangPolicy policy = policy_of(j);
    if (policy == VG__PB__TASK_SPEC__GANG_POLICY__FAIL)
        return false;
    snprintf(why, sizeof why, "rank %u ended with status %d", j->task->index, x->status);
    if (killed && j->lost < VG_LOST_MAX) {
        j->lost++;
        j->ack_over = true;
        miss(j, why);
        return true;
    }
    if (!retry || policy == VG__PB__TASK_SPEC__GANG_POLICY__HEAL)
        return false; /* it alone is tried again, or it is the end */
    j->task->retries_left--;
    j->ack_over = true;
    miss(j, why);
    return true;
}

/* It was told to come back and has ended instead: perhaps the others waited for it alone. */
static void gather_without(struct vg_job *group) {
    struct vg_err err = VG_ERR_INIT;
    struct vg_job *first = NULL;
    for_each_member(m, group) if (!first && m->task->state == VG_TASK_QUEUED) first = m;
    if (first && group->ctl->settled && vg_gang_submit(first, &err) < 0)
        vg_job_cancel(group, 0, err.msg);
}

void vg_gang_ended(struct vg_job *j) {
    char why[160];
    struct vg_gang *g = vg_gang_is_member(j) ? gang_of(j->above) : NULL;
    if (!g || g->over)
        return;
    if (j->task->state != VG_TASK_FAILED) {
        if (g->gathering && !g->busy)
            gather_without(j->above);
        return;
    }
    g->over = true;
    vg_timer_stop(&g->ready);
    snprintf(why, sizeof why, "stopped with its gang: rank %u failed with status %d",
             j->task->index, j->task->status);
    vg_family_cancel(j->above, vg_job_grace_usec(j), why);
}

bool vg_gang_preempt(struct vg_job *j, uint64_t grace_usec, uint32_t sig, const char *why) {
    if (!vg_gang_is_member(j))
        return false;
    if (j->above->gang && j->above->gang->gathering)
        return true; /* the whole was told with the first */
    for_each_member(m, j->above) m->task->preempted += m->task->attempt.node != 0;
    gather(j->above, grace_usec, sig, why);
    return true;
}
