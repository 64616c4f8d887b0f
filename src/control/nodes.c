/* Nodes: leases, orders and what the scheduler knows of them.

   What always holds:
   1. A node takes tasks only while it is connected, has reported, is ready, and the store is sure
      to remember that it may hold some.
   2. A node is called lost only when its lease has surely run out there; only then are its tasks
      given to others. */
#include "control/nodes.h"

#include "base/log.h"
#include "base/mem.h"
#include "base/util.h"
#include "control/gang.h"
#include "control/hooks.h"
#include "control/job.h"
#include "control/node-gpus.h"
#include "control/peer.h"
#include "control/persist.h"
#include "control/place.h"
#include "control/series.h"
#include "control/sessions.h"

#include <stdio.h>
#include <string.h>

#define B(name) VG__PB__ENVELOPE__BODY_##name

struct vg_nodelink *vg_nodelink_get(struct vg_control *c, uint64_t node) {
    return node ? vg_map_get_u64(&c->nodes, node) : NULL;
}

bool vg_nodelink_hears(const struct vg_nodelink *a) {
    return a && a->peer && a->peer->conn && vg_conn_can_send(a->peer->conn);
}

struct vg_nodelink *vg_nodelink_find(struct vg_control *c, const char *ref, struct vg_err *err) {
    struct vg_nodelink *found = NULL;
    size_t len = strlen(ref), hits = 0;
    vg_map_for_each (s, &c->nodes) {
        struct vg_nodelink *a = s->value;
        char id[VG_ID_LEN + 1];
        vg_id_format(a->node->id, id);
        if (strcmp(a->node->name, ref) == 0 || strcmp(id, ref) == 0)
            return a;
        if (len >= 4 && strncmp(id, ref, len) == 0) {
            found = a;
            hits++;
        }
    }
    if (hits == 1)
        return found;
    if (hits > 1)
        vg_err_set(err, VG_CONFLICT, "'%.32s' begins the ids of %zu nodes: give more digits", ref,
                   hits);
    else
        vg_err_set(err, VG_NOT_FOUND, "there is no node '%.64s': 'virga node list' shows them",
                   ref);
    return NULL;
}

void vg_node_call(struct vg_control *c, uint64_t id, const char *want, char *out) {
    char digits[VG_ID_LEN + 1];
    snprintf(out, VG_CONF_NAME_MAX + 1, "%s", want && vg_conf_name_valid(want) ? want : "node");
    vg_map_for_each (s, &c->nodes) {
        const struct vg_node *other = ((struct vg_nodelink *)s->value)->node;
        if (other->id == id || strcmp(other->name, out) != 0)
            continue;
        size_t keep = VG_MIN(strlen(out), (size_t)VG_CONF_NAME_MAX - VG_ID_LEN - 1);
        vg_id_format(id, digits);
        snprintf(out + keep, VG_ID_LEN + 2, "-%s", digits);
        return;
    }
}

struct vg_nodelink *vg_nodelink_new(struct vg_control *c, uint64_t id, const char *name) {
    struct vg_nodelink *a = vg_alloc(sizeof *a);
    char own[VG_CONF_NAME_MAX + 1];
    if (!a)
        return NULL;
    a->ctl = c;
    vg_node_call(c, id, name, own);
    a->node = vg_node_new(id, own);
    if (!a->node || vg_map_put_u64(&c->nodes, id, a) < 0) {
        vg_node_free(a->node);
        free(a);
        return NULL;
    }
    return a;
}

void vg_nodelink_free(struct vg_nodelink *a) {
    if (!a)
        return;
    if (a->peer)
        a->peer->agent = NULL;
    vg_map_del_u64(&a->ctl->nodes, a->node->id);
    vg_node_gpus_free(a);
    vg_series_forget_node(a);
    free(a->unfit);
    vg_node_free(a->node);
    free(a);
}

const char *vg_nodelink_name(struct vg_control *c, uint64_t node) {
    struct vg_nodelink *a = vg_nodelink_get(c, node);
    return a ? a->node->name : "";
}

bool vg_nodelink_direct(const struct vg_nodelink *a, char *out, size_t n) {
    if (!a->direct_port)
        return false;
    /* A node on this machine is reached where we are reached. */
    const char *base = a->local ? a->ctl->address : a->node->address;
    const char *colon = base ? strrchr(base, ':') : NULL;
    if (!colon)
        return false;
    snprintf(out, n, "%.*s:%u", (int)(colon - base), base, a->direct_port);
    return true;
}

void vg_nodelink_update(struct vg_nodelink *a) {
    int r = vg_policy_set_node(a->ctl, &a->ctl->policy, a);
    if (r < 0)
        vg_error("node=%s cannot be told to the scheduler: %s", a->node->name, strerror(-r));
}

void vg_nodelink_disconnected(struct vg_nodelink *a) {
    vg_info("node=%s disconnected; its tasks go on until its lease ends", a->node->name);
    a->peer = NULL;
    vg_nodelink_update(a);
    if (!a->ctl->stopping)
        vg_gang_node_left(a->ctl, a->node->id);
}

/* ------------------------------------------------------------------ leases */

/* Every attempt that was there is over: the lease ended and keepers kill when it does. */
static void lose_tasks(struct vg_nodelink *a, const char *why) {
    struct vg_control *c = a->ctl;
    size_t n = 0;
    vg_auto_free uint64_t *ids = vg_alloc((vg_map_len(&c->jobs) + 1) * sizeof *ids);
    vg_map_for_each (s, &c->jobs) {
        struct vg_job *j = s->value;
        if (ids && j->task->attempt.node == a->node->id)
            ids[n++] = j->task->id;
    }
    for (size_t i = 0; i < n; i++) {
        struct vg_job *j = vg_job_get(c, ids[i]);
        if (j && j->task->attempt.node == a->node->id)
            vg_job_lost(j, j->task->state == VG_TASK_RUNNING, why);
    }
}

static void node_lost(struct vg_nodelink *a) {
    char why[256];
    snprintf(why, sizeof why, "node %s was lost (no sign of life for %llu s)", a->node->name,
             (unsigned long long)(a->ctl->conf.lease_usec / VG_USEC));
    vg_warn("%s", why);
    vg_node_move(a->node, VG_NODE_LOST, vg_wall_usec());
    vg_hook_node(a, "node.lost", why);
    if (!a->ctl->settled && !a->reported)
        a->ctl->silent_node = a->node->id;
    a->alive_before = a->kept = false;
    a->keeping = 0;
    if (a->peer && a->peer->conn)
        vg_conn_abort(a->peer->conn, VG_TIMEOUT, "the node's lease has ended");
    vg_nodelink_update(a);
    vg_persist_node(a, VG_STORE_LAZY);
    vg_sessions_node_lost(a->ctl, a->node->id);
    lose_tasks(a, why);
    vg_place_all(a->ctl);
}

void vg_nodelinks_tick(struct vg_control *c) {
    uint64_t now = vg_now_usec();
    bool lost = false;
    vg_map_for_each (s, &c->nodes) {
        struct vg_nodelink *a = s->value;
        bool alive = a->node->state == VG_NODE_READY || a->node->state == VG_NODE_DRAINING;
        if (alive && vg_node_lease_over(a->node, now, c->conf.lease_usec)) {
            node_lost(a);
            lost = true;
        } else if (alive && a->reported && !a->kept && !a->keeping) {
            vg_persist_node_kept(a);
        }
    }
    if (lost || !c->settled)
        vg_nodelinks_settle(c);
}

/* Attempts on nodes that are gone from the list altogether, or were lost in an earlier life. */
static void lose_orphans(struct vg_control *c) {
    size_t n = 0;
    vg_auto_free uint64_t *ids = vg_alloc((vg_map_len(&c->jobs) + 1) * sizeof *ids);
    vg_map_for_each (s, &c->jobs) {
        struct vg_job *j = s->value;
        struct vg_nodelink *a = vg_nodelink_get(c, j->task->attempt.node);
        bool lost = !a || a->node->state == VG_NODE_LOST || a->node->state == VG_NODE_JOINING;
        if (ids && j->loaded && j->task->attempt.node && lost)
            ids[n++] = j->task->id;
    }
    for (size_t i = 0; i < n; i++) {
        struct vg_job *j = vg_job_get(c, ids[i]);
        if (j && j->task->attempt.node)
            vg_job_lost(j, j->task->state == VG_TASK_RUNNING, "its node was lost");
    }
}

void vg_nodelinks_settle(struct vg_control *c) {
    if (c->settled)
        return;
    vg_map_for_each (s, &c->nodes) {
        struct vg_nodelink *a = s->value;
        if (a->alive_before && !a->reported)
            return;
    }
    c->settled = true;
    vg_info("every node that may hold tasks has reported");
    lose_orphans(c);
    vg_place_unhold(c);
}

/* ------------------------------------------------------------------ orders */

static void order(struct vg_control *c, uint64_t node, Vg__Pb__Envelope *env) {
    struct vg_nodelink *a = vg_nodelink_get(c, node);
    if (a && a->peer)
        vg_peer_send(a->peer, 0, false, env);
}

void vg_nodelink_kill(struct vg_control *c, uint64_t node, uint64_t task, uint32_t attempt,
                      uint32_t signal, uint64_t grace_usec, const char *text) {
    VG_ENVELOPE(env);
    Vg__Pb__KillReq m = VG__PB__KILL_REQ__INIT;
    m.has_task_id = m.has_attempt = m.has_signal = m.has_grace_usec = 1;
    m.task_id = task;
    m.attempt = attempt;
    m.signal = signal;
    m.grace_usec = grace_usec;
    m.text = (char *)text;
    env.body_case = B(KILL);
    env.kill = &m;
    order(c, node, &env);
}

void vg_nodelink_share(struct vg_control *c, const struct vg_task *t) {
    VG_ENVELOPE(env);
    Vg__Pb__TaskShare m = VG__PB__TASK_SHARE__INIT;
    m.has_task_id = m.has_attempt = m.has_gpu_milli = m.has_gpu_mem_bytes = m.has_gpu_hard = 1;
    m.task_id = t->id;
    m.attempt = t->attempt.number;
    m.gpu_milli = t->share.milli;
    m.gpu_mem_bytes = t->share.mem_bytes;
    m.gpu_hard = t->share.hard;
    env.body_case = B(TASK_SHARE);
    env.task_share = &m;
    order(c, t->attempt.node, &env);
}

void vg_nodelink_exit_ack(struct vg_control *c, uint64_t node, uint64_t task, uint32_t attempt) {
    VG_ENVELOPE(env);
    Vg__Pb__ExitAck m = VG__PB__EXIT_ACK__INIT;
    m.has_task_id = m.has_attempt = 1;
    m.task_id = task;
    m.attempt = attempt;
    env.body_case = B(EXIT_ACK);
    env.exit_ack = &m;
    order(c, node, &env);
}
