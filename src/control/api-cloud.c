/* The cloud itself: pools, nodes, sessions, status, shutdown. */
#include "base/cleanup.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/util.h"
#include "control/api.h"
#include "control/audit.h"
#include "control/later.h"
#include "control/nodes.h"
#include "control/persist.h"
#include "control/place.h"
#include "control/price.h"
#include "control/sessions.h"
#include "control/users.h"
#include "control/webport.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define B(name) VG__PB__ENVELOPE__BODY_##name

static void out_of_memory(struct vg_call *call) {
    vg_peer_error(call->peer, call->req, VG_INTERNAL, "the control plane is out of memory");
}

/* ------------------------------------------------------------------ pools */

static void fill_pool(struct vg_control *c, const struct vg_pool_conf *p, Vg__Pb__PoolInfo *m,
                      Vg__Pb__Resources *shape, Vg__Pb__Price *price) {
    const struct vg_tariff *t =
        vg_book_at(&c->book, p->name, vg_pool_class_name(p->class), vg_wall_usec());
    struct vg_eng_pool_info info = {0};
    vg_eng_pool_info(c->policy.eng, vg_eng_pool_id(p->name), &info);
    vg__pb__pool_info__init(m);
    *shape = vg_res_to_pb(p->shape);
    m->name = p->name;
    m->class_name = (char *)vg_pool_class_name(p->class);
    m->fault_domain = (char *)vg_pool_class_domain(p->class);
    m->shape = shape;
    m->has_nodes = m->has_free_slots = m->has_total_slots = m->has_queued = m->has_running =
        m->has_is_default = 1;
    m->nodes = info.usable;
    m->free_slots = info.free_slots;
    m->total_slots = info.total_slots;
    m->queued = info.queued;
    m->running = info.running;
    m->network = (char *)vg_network_name(p->network);
    m->is_default = strcmp(p->name, c->conf.default_pool) == 0;
    m->description = p->description;
    if (t) {
        vg_price_to_pb(t, price);
        m->price = price;
    }
}

void vg_api_pool_list(struct vg_call *call) {
    struct vg_control *c = call->ctl;
    size_t n = c->conf.n_pools;
    vg_auto_free Vg__Pb__PoolInfo *info = vg_alloc((n + 1) * sizeof *info);
    vg_auto_free Vg__Pb__PoolInfo **list = vg_alloc((n + 1) * sizeof *list);
    vg_auto_free Vg__Pb__Resources *shape = vg_alloc((n + 1) * sizeof *shape);
    vg_auto_free Vg__Pb__Price *price = vg_alloc((n + 1) * sizeof *price);
    if (!info || !list || !shape || !price) {
        out_of_memory(call);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        fill_pool(c, &c->conf.pool[i], &info[i], &shape[i], &price[i]);
        list[i] = &info[i];
    }
    VG_ENVELOPE(env);
    Vg__Pb__PoolList m = VG__PB__POOL_LIST__INIT;
    m.pool = list;
    m.n_pool = n;
    env.body_case = B(POOLS);
    env.pools = &m;
    vg_peer_send(call->peer, call->req, false, &env);
}

/* ------------------------------------------------------------------ nodes */

struct node_line {
    Vg__Pb__NodeInfo pb;
    Vg__Pb__Resources total, used;
    char id[VG_ID_LEN + 1];
    char *pools[VG_CONF_POOLS_MAX];
};

static void fill_node(struct vg_control *c, struct vg_nodelink *a, bool all, struct node_line *l) {
    struct vg_node *n = a->node;
    struct vg_eng_node_info info = {0};
    Vg__Pb__NodeInfo *m = &l->pb;
    vg_eng_node_info(c->policy.eng, n->id, &info);
    vg__pb__node_info__init(m);
    vg_id_format(n->id, l->id);
    l->total = vg_res_to_pb(n->total);
    l->used = vg_res_to_pb(info.used);
    m->id = l->id;
    m->name = n->name;
    m->state = (char *)(!a->peer && n->state != VG_NODE_LOST && n->state != VG_NODE_JOINING ? "away"
                        : a->is_unfit && n->state == VG_NODE_READY ? "unfit"
                                                                   : vg_node_state_name(n->state));
    if (a->unfit) /* which task it was that left it so is not everybody's to know */
        m->unfit = all ? a->unfit : (char *)"it is being cleared after the last task there";
    m->total = &l->total;
    m->used = &l->used;
    m->has_tasks = m->has_last_seen_usec = m->has_cert_expires_usec = 1;
    m->tasks = info.tasks;
    m->label = n->labels.item;
    m->n_label = n->labels.n;
    m->version = n->version;
    m->last_seen_usec = n->seen_usec;
    m->address = n->address;
    m->gpu_model = n->gpu_model;
    m->cert_expires_usec = n->cert_expires_usec;
    m->pool = l->pools;
    for (size_t i = 0; i < c->conf.n_pools; i++)
        if (vg_node_in_pool(n, &c->conf.pool[i]))
            l->pools[m->n_pool++] = c->conf.pool[i].name;
}

void vg_api_node_list(struct vg_call *call) {
    struct vg_control *c = call->ctl;
    size_t n = 0, max = vg_map_len(&c->nodes) + 1;
    vg_auto_free struct node_line *lines = vg_alloc(max * sizeof *lines);
    vg_auto_free Vg__Pb__NodeInfo **list = vg_alloc(max * sizeof *list);
    if (!lines || !list) {
        out_of_memory(call);
        return;
    }
    vg_map_for_each (s, &c->nodes) {
        fill_node(c, s->value, vg_user_may(call->user, VG_ACT_SEE_ALL), &lines[n]);
        list[n] = &lines[n].pb;
        n++;
    }
    VG_ENVELOPE(env);
    Vg__Pb__NodeList m = VG__PB__NODE_LIST__INIT;
    m.node = list;
    m.n_node = n;
    env.body_case = B(NODES);
    env.nodes = &m;
    vg_peer_send(call->peer, call->req, false, &env);
}

static int cannot_store(int r, struct vg_err *err) {
    return r < 0 ? vg_err_sys(err, r, "the change cannot be stored") : 0;
}

static int remove_node(struct vg_control *c, struct vg_nodelink *a, struct vg_later *l,
                       struct vg_err *err) {
    struct vg_eng_node_info info = {0};
    vg_eng_node_info(c->policy.eng, a->node->id, &info);
    if (a->peer || info.tasks)
        return vg_err_set(err, VG_CONFLICT,
                          "node %s is %s: drain it and stop its agent first, then remove it",
                          a->node->name, a->peer ? "connected" : "still holding tasks");
    int r = cannot_store(
        vg_store_del_node(c->store, a->node->id, VG_STORE_COMMIT, vg_later_stored, l), err);
    if (r < 0)
        return r;
    vg_eng_remove_node(vg_policy_now(c), a->node->id);
    vg_nodelink_free(a);
    return 0;
}

static int set_node_state(struct vg_nodelink *a, const char *state, struct vg_later *l,
                          struct vg_err *err) {
    bool drain = strcmp(state, "draining") == 0;
    if (!drain && strcmp(state, "ready") != 0)
        return vg_err_set(err, VG_INVALID, "a node can be set to draining or ready, not '%.32s'",
                          state);
    a->drain = drain;
    if (a->node->state == VG_NODE_READY || a->node->state == VG_NODE_DRAINING)
        vg_node_move(a->node, drain ? VG_NODE_DRAINING : VG_NODE_READY, vg_wall_usec());
    vg_nodelink_update(a);
    int r = cannot_store(vg_persist_node_then(a, vg_later_stored, l), err);
    vg_place_all(a->ctl);
    return r;
}

void vg_api_node_set(struct vg_call *call) {
    const Vg__Pb__NodeSet *m = call->env->node_set;
    struct vg_err err = VG_ERR_INIT;
    struct vg_nodelink *a = vg_nodelink_find(call->ctl, m->node ? m->node : "", &err);
    struct vg_later *l = a ? vg_later_new(call) : NULL;
    int r = a && l ? 0 : -ENOENT;
    if (a && !l)
        r = vg_err_sys(&err, -ENOMEM, "cannot set the node");
    else if (a && m->remove)
        r = remove_node(call->ctl, a, l, &err);
    else if (a)
        r = set_node_state(a, m->state ? m->state : "", l, &err);
    if (r < 0) {
        free(l);
        vg_peer_fail(call->peer, call->req, &err);
        return;
    }
    vg_audit(call, "node %s: %s", m->node, m->remove ? "removed" : m->state);
}

/* ------------------------------------------------------------------ sessions */

void vg_api_session_list(struct vg_call *call) {
    struct vg_control *c = call->ctl;
    size_t n = 0, max = vg_map_len(&c->sessions) + 1;
    vg_auto_free Vg__Pb__SessionInfo *info = vg_alloc(max * sizeof *info);
    vg_auto_free Vg__Pb__SessionInfo **list = vg_alloc(max * sizeof *list);
    if (!info || !list) {
        out_of_memory(call);
        return;
    }
    vg_map_for_each (s, &c->sessions) {
        const struct vg_session *x = s->value;
        const struct vg_user *owner = vg_tenants_user(&c->tenants, x->user);
        if (!vg_users_may_see(call->user, x->user, owner ? owner->team->name : ""))
            continue;
        Vg__Pb__SessionInfo *m = &info[n];
        vg__pb__session_info__init(m);
        m->name = x->name;
        m->user = x->user;
        m->node = (char *)vg_nodelink_name(c, x->node);
        m->pool = x->pool;
        m->has_tasks = m->has_created_usec = m->has_keep_usec = 1;
        m->tasks = x->tasks;
        m->created_usec = x->created_usec;
        m->keep_usec = x->keep_usec;
        list[n++] = m;
    }
    VG_ENVELOPE(env);
    Vg__Pb__SessionList m = VG__PB__SESSION_LIST__INIT;
    m.session = list;
    m.n_session = n;
    env.body_case = B(SESSIONS);
    env.sessions = &m;
    vg_peer_send(call->peer, call->req, false, &env);
}

void vg_api_session_end(struct vg_call *call) {
    struct vg_control *c = call->ctl;
    const char *name = call->env->session_end->name ? call->env->session_end->name : "";
    vg_auto_free char *key =
        strchr(name, '/') ? vg_strdup(name) : vg_fmt("%s/%s", call->user->name, name);
    struct vg_session *s = key ? vg_map_get(&c->sessions, key) : NULL;
    struct vg_user *owner = s ? vg_tenants_user(&c->tenants, s->user) : NULL;
    if (!s || !vg_users_may_end(call->user, s->user, owner ? owner->team->name : "")) {
        vg_peer_error(call->peer, call->req, VG_NOT_FOUND,
                      "there is no session '%.64s' of yours: 'virga session list' shows them",
                      name);
        return;
    }
    vg_audit(call, "session %s ended", s->key);
    struct vg_nodelink *a = vg_nodelink_get(c, s->node);
    if (a && a->peer) {
        VG_ENVELOPE(env);
        Vg__Pb__NameRef m = VG__PB__NAME_REF__INIT;
        m.name = s->key;
        env.body_case = B(END_SESSION);
        env.end_session = &m;
        vg_peer_send(a->peer, 0, false, &env);
    }
    vg_sessions_forget(c, key);
    vg_peer_ok(call->peer, call->req, NULL);
}

/* ------------------------------------------------------------------ status */

void vg_api_status(struct vg_call *call) {
    struct vg_control *c = call->ctl;
    VG_ENVELOPE(env);
    Vg__Pb__StatusInfo m = VG__PB__STATUS_INFO__INIT;
    m.cloud = c->cloud;
    m.version = (char *)VG_VERSION;
    m.address = c->address;
    m.url = (char *)vg_webport_url(c);
    m.home = c->home.dir;
    m.has_pid = m.has_up_usec = m.has_nodes = m.has_nodes_ready = m.has_running = m.has_queued =
        m.has_rss_bytes = m.has_ca_fingerprint = m.has_wire_msgs = 1;
    m.pid = (uint32_t)getpid();
    m.up_usec = vg_now_usec() - c->started_usec;
    vg_map_for_each (s, &c->nodes) {
        const struct vg_nodelink *a = s->value;
        m.nodes++;
        m.nodes_ready += a->peer && a->node->state == VG_NODE_READY;
    }
    m.running = c->running;
    vg_map_for_each (s, &c->jobs) {
        m.queued += ((struct vg_job *)s->value)->task->state == VG_TASK_QUEUED;
    }
    m.rss_bytes = vg_resident_bytes();
    m.ca_fingerprint =
        (ProtobufCBinaryData){.data = c->ca.fingerprint, .len = sizeof c->ca.fingerprint};
    m.wire_msgs = c->wire_msgs;
    env.body_case = B(STATUS_INFO);
    env.status_info = &m;
    vg_peer_send(call->peer, call->req, false, &env);
}

void vg_api_shutdown(struct vg_call *call) {
    vg_audit(call, "shutdown");
    vg_peer_ok(call->peer, call->req, NULL);
    vg_control_stop(call->ctl, "an administrator asked for it");
}
