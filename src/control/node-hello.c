/* An agent introduces itself: who it is, what it has, which tasks its keepers hold. Compares that
   with what we believe, adopts what we did not know, fences what is stale. */
#include "base/cleanup.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/util.h"
#include "control/api.h"
#include "control/bare.h"
#include "control/env.h"
#include "control/gang.h"
#include "control/hooks.h"
#include "control/mirror.h"
#include "control/node-gpus.h"
#include "control/node-tasks.h"
#include "control/nodes.h"
#include "control/persist.h"
#include "control/place.h"
#include "control/users.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

#define B(name) VG__PB__ENVELOPE__BODY_##name
#define REPORTS_MAX 200000

/* ------------------------------------------------------------------ who */

/* The node's id that the connection proves: by certificate, or (unix socket, administrator) 0 for
   "believe what it says". */
static int proven_id(struct vg_peer *p, uint64_t *ret_id, struct vg_err *err) {
    const char *cn = vg_conn_peer_cn(p->conn);
    *ret_id = 0;
    if (p->unix_socket && p->who.local && (p->who.uid == 0 || p->who.uid == geteuid()))
        return 0;
    if (!p->unix_socket && !p->nested_node && cn && strncmp(cn, "node:", 5) == 0 &&
        vg_id_parse(cn + 5, ret_id) == 0) {
        if (vg_nodelink_get(p->ctl, *ret_id))
            return 0;
        return vg_err_set(
            err, VG_FORBIDDEN,
            "this node was removed from the cloud: join again with a new token ('virga "
            "node invite')");
    }
    return vg_err_set(
        err, VG_FORBIDDEN,
        "only root of this machine or a machine that has joined may be a node: run the "
        "agent as root, or join with 'virga agent --join TOKEN@HOST:PORT'");
}

static struct vg_nodelink *node_for(struct vg_control *c, const Vg__Pb__AgentHello *m,
                                    uint64_t proven, struct vg_err *err) {
    uint64_t claimed = 0;
    const char *name = m->name && vg_conf_name_valid(m->name) ? m->name : "node";
    if (m->node_id && *m->node_id && vg_id_parse(m->node_id, &claimed) < 0) {
        vg_err_set(err, VG_INVALID, "'%.32s' is not a node's id", m->node_id);
        return NULL;
    }
    if (proven && claimed && proven != claimed) {
        vg_err_set(err, VG_FORBIDDEN, "the node's certificate is for another id");
        return NULL;
    }
    uint64_t id = proven ? proven : claimed ? claimed : vg_id_new();
    struct vg_nodelink *a = vg_nodelink_get(c, id);
    if (a)
        return a;
    a = vg_nodelink_new(c, id, name);
    if (!a) {
        vg_err_sys(err, ENOMEM, "cannot take the node in");
        return NULL;
    }
    a->node->joined_usec = vg_wall_usec();
    return a;
}

/* ------------------------------------------------------------------ what it has */

/* Nobody needs more of a node's own words about itself. */
#define WORDS_MAX 255

static void replace(char **field, const char *text) {
    char *copy = text ? vg_fmt("%.*s", WORDS_MAX, text) : NULL;
    if (text && !copy)
        return;
    free(*field);
    *field = copy;
}

/* What the agent says; of a node that was invited the administrator's own labels stay. */
static void take_labels(struct vg_node *n, char *const *label, size_t count, bool invited) {
    char *all[VG_CONF_LIST_MAX];
    size_t total = 0;
    for (size_t i = 0; invited && i < n->labels.n && total < VG_CONF_LIST_MAX; i++)
        all[total++] = n->labels.item[i];
    for (size_t i = 0; i < count && total < VG_CONF_LIST_MAX; i++) {
        bool have = strchr(label[i], '\n') != NULL;
        for (size_t k = 0; k < total; k++)
            have |= strcmp(all[k], label[i]) == 0;
        if (!have)
            all[total++] = label[i];
    }
    /* The copies are made before the old ones go. */
    vg_node_set_labels(n, all, total);
}

/* Of its cards, which are alike as a rule: what each of them surely has. */
static uint64_t least_gpu_mem(const Vg__Pb__AgentHello *m) {
    uint64_t least = m->n_gpu ? UINT64_MAX : 0;
    for (size_t i = 0; i < m->n_gpu; i++)
        least = VG_MIN(least, m->gpu[i]->mem_bytes);
    return least;
}

static void take_facts(struct vg_nodelink *a, struct vg_peer *p, const Vg__Pb__AgentHello *m) {
    struct vg_node *n = a->node;
    n->total = vg_res_from_pb(m->total);
    n->gpus = 0;
    n->gpu_parts = false;
    for (size_t i = 0; i < m->n_gpu; i++) {
        n->gpu_parts |= m->gpu[i]->part;
        if (m->gpu[i]->index < VG_NODE_GPUS_MAX)
            n->gpus |= 1ULL << m->gpu[i]->index;
    }
    n->total.gpus = (uint32_t)__builtin_popcountll(n->gpus);
    n->total.gpu_milli = 0;
    n->total.gpu_mem_bytes = least_gpu_mem(m);
    if (m->name && vg_conf_name_valid(m->name)) {
        char own[VG_CONF_NAME_MAX + 1];
        vg_node_call(a->ctl, n->id, m->name, own);
        replace(&n->name, own);
    }
    take_labels(n, m->label, m->n_label, !p->unix_socket);
    replace(&n->gpu_model, m->n_gpu ? m->gpu[0]->model : NULL);
    replace(&n->version, m->version);
    replace(&n->machine_id, m->machine_id);
    replace(&n->address, vg_conn_peer_address(p->conn));
    n->seen_usec = vg_wall_usec();
    snprintf(a->boot_id, sizeof a->boot_id, "%s", m->boot_id ? m->boot_id : "");
    a->hello_usec = m->sent_usec;
    a->local = p->unix_socket && m->machine_id && strcmp(m->machine_id, a->ctl->machine_id) == 0;
    a->log_rounds = m->log_rounds;
    a->direct_port = m->direct_port <= 65535 ? (uint16_t)m->direct_port : 0;
    a->has_fingerprint = m->has_direct_fingerprint && m->direct_fingerprint.len == VG_FINGERPRINT;
    if (a->has_fingerprint)
        memcpy(a->fingerprint, m->direct_fingerprint.data, VG_FINGERPRINT);
}

/* Whether a later greeting of the same node was here already: connections may overtake each other
   when we were slow to take them, and what an old one says of tasks is over. */
static bool is_stale(const struct vg_nodelink *a, const Vg__Pb__AgentHello *m) {
    return m->has_sent_usec && m->boot_id && strcmp(m->boot_id, a->boot_id) == 0 &&
           m->sent_usec < a->hello_usec;
}

/* Another connection of the same node: the newer one holds. */
static void displace(struct vg_nodelink *a) {
    struct vg_peer *old = a->peer;
    if (!old)
        return;
    old->agent = NULL;
    a->peer = NULL;
    vg_conn_abort(old->conn, VG_CONFLICT, "the node has connected anew");
}

static void say_ok(struct vg_nodelink *a, uint32_t req) {
    struct vg_control *c = a->ctl;
    char id[VG_ID_LEN + 1];
    VG_ENVELOPE(env);
    Vg__Pb__AgentHelloOk ok = VG__PB__AGENT_HELLO_OK__INIT;
    vg_id_format(a->node->id, id);
    ok.has_lease_usec = ok.has_heartbeat_usec = ok.has_log_head_bytes = ok.has_log_tail_bytes = 1;
    ok.lease_usec = c->conf.lease_usec;
    ok.heartbeat_usec = c->conf.heartbeat_usec;
    ok.log_head_bytes = c->conf.limits.log_head_bytes;
    ok.log_tail_bytes = c->conf.limits.log_tail_bytes;
    ok.library = c->conf.node.libraries.item;
    ok.n_library = c->conf.node.libraries.n;
    ok.has_fs_cache_bytes = 1;
    ok.fs_cache_bytes = c->conf.node.cache_bytes;
    ok.node_id = id;
    ok.name = a->node->name;
    env.body_case = B(AGENT_HELLO_OK);
    env.agent_hello_ok = &ok;
    vg_peer_send(a->peer, req, false, &env);
}

/* ------------------------------------------------------------------ its tasks */

/* A task we have no memory of: its first write was lost with us, but the node has its Start. Of a
   node elsewhere only what our own token vouches for is believed (task and owner); the rest is
   hearsay, so that a broken-in node cannot make others run what it likes. */
static struct vg_job *relearn(struct vg_nodelink *a, uint64_t task, Vg__Pb__Start *s) {
    struct vg_control *c = a->ctl;
    bool trusted = a->peer->unix_socket;
    if (!s || !s->spec || !s->who || !s->who->user || !task || s->task_id != task)
        return NULL;
    if (!trusted &&
        (!s->task_token || vg_task_token_check(c->ca.task_key, s->task_token, task, s->who) < 0))
        return NULL;
    struct vg_task *t = vg_task_new(s->task_id, s->who->user, s->who->team ? s->who->team : "",
                                    s->spec, false, s->created_usec);
    if (!t)
        return NULL;
    s->spec = NULL; /* taken */
    vg_task_set_who(t, vg_take_ptr(s->who));
    t->grant = vg_res_from_pb(s->grant);
    t->retries_left = t->spec->retries;
    struct vg_job *j = vg_job_new(c, t);
    if (!j) {
        vg_task_free(t);
        return NULL;
    }
    j->loaded = true;
    j->hearsay = !trusted;
    return j;
}

static int is_ended_row(void *arg, const struct vg_task_row *row) {
    *(bool *)arg = row->ended;
    return 0;
}

/* Neither in memory nor to be believed: it must not go on there. */
static void fence(struct vg_nodelink *a, const Vg__Pb__TaskReport *r) {
    if (r->state == VG__PB__TASK_REPORT__STATE__EXITED)
        vg_nodelink_exit_ack(a->ctl, a->node->id, r->task_id, r->attempt);
    else
        vg_nodelink_kill(a->ctl, a->node->id, r->task_id, r->attempt, SIGKILL, 0,
                         "this attempt was given up by the control plane");
}

/* It was changed while the node was away, or did not arrive. */
static bool has_other_share(const struct vg_task *t, const Vg__Pb__TaskReport *r) {
    const struct vg_share *s = &t->share;
    struct vg_res has = vg_res_from_pb(r->start ? r->start->grant : NULL);
    bool hard = r->start && r->start->spec && r->start->spec->gpu_hard;
    return s->milli && r->state != VG__PB__TASK_REPORT__STATE__EXITED &&
           (has.gpu_milli != s->milli || has.gpu_mem_bytes != s->mem_bytes || hard != s->hard);
}

static void take_report(struct vg_nodelink *a, Vg__Pb__TaskReport *r) {
    struct vg_control *c = a->ctl;
    struct vg_job *j = vg_job_get(c, r->task_id);
    uint64_t node = a->node->id;
    if (!j) {
        bool ended = false;
        if (vg_store_get_task(c->store, r->task_id, is_ended_row, &ended) != -ENOENT && ended) {
            fence(a, r);
            return;
        }
        j = relearn(a, r->task_id, r->start);
    }
    /* Only of an earlier life can a node know more than we do. */
    if (j && (j->loaded || j->held) && j->task->state == VG_TASK_QUEUED &&
        r->attempt > j->task->attempt.number && r->attempt < 1000000) {
        vg_place_adopt(j, node, r->attempt, r->start);
        j->loaded = true; /* whoever brought it back: its output began in that life */
    }
    if (j && vg_node_task_ending(j, r->attempt, node))
        return;
    if (!j || !vg_task_is_current(j->task, r->attempt, node)) {
        fence(a, r);
        return;
    }
    j->seen = j->sent = true;
    vg_gang_learn(j, r->start);
    vg_run_deliver(j);
    if (has_other_share(j->task, r))
        vg_nodelink_share(c, j->task);
    if (r->state == VG__PB__TASK_REPORT__STATE__RUNNING) {
        vg_node_task_started(j, r->started_usec);
        vg_job_arm_limit(j); /* of one that ran before we did */
    }
    if (j->task->cancel && r->state != VG__PB__TASK_REPORT__STATE__EXITED)
        vg_job_cancel(j, VG_GRACE_USEC, j->task->reason_text);
    else if (r->state != VG__PB__TASK_REPORT__STATE__EXITED)
        vg_job_preempt_again(j);
    bool exited = r->state == VG__PB__TASK_REPORT__STATE__EXITED && r->exited;
    bool told = exited && (r->exited->never_ran || r->exited->log_round == c->log_round);
    if (j->loaded && !told)
        vg_node_task_ask_output(j); /* and its end comes after that */
    if (exited && (told || !j->log_round))
        vg_node_task_exited(j, r->exited);
    else
        vg_job_changed(j);
}

/* What should be there but is not: the node itself says that it does not run. */
static void lose_unreported(struct vg_nodelink *a) {
    struct vg_control *c = a->ctl;
    size_t n = 0;
    vg_auto_free uint64_t *ids = vg_alloc((vg_map_len(&c->jobs) + 1) * sizeof *ids);
    vg_map_for_each (s, &c->jobs) {
        struct vg_job *j = s->value;
        if (ids && j->task->attempt.node == a->node->id && j->sent && !j->seen)
            ids[n++] = j->task->id;
        j->seen = false;
    }
    for (size_t i = 0; i < n; i++) {
        struct vg_job *j = vg_job_get(c, ids[i]);
        char why[160];
        snprintf(why, sizeof why, "node %s does not have it any more", a->node->name);
        if (j && j->task->attempt.node == a->node->id)
            vg_job_lost(j, j->task->state == VG_TASK_RUNNING, why);
    }
}

/* Whoever follows a log goes on looking at its keeper. */
static void resume_followers(struct vg_nodelink *a) {
    vg_map_for_each (s, &a->ctl->jobs) {
        struct vg_job *j = s->value;
        if (j->task->attempt.node == a->node->id && !vg_list_empty(&j->follows))
            vg_logs_look_again(j);
    }
}

static void become_ready(struct vg_nodelink *a) {
    enum vg_node_state to = a->drain ? VG_NODE_DRAINING : VG_NODE_READY;
    if (a->node->state != to && a->node->state != VG_NODE_QUARANTINED) {
        vg_node_move(a->node, to, vg_wall_usec());
        if (to == VG_NODE_READY)
            vg_hook_node(a, "node.ready", NULL);
    }
    a->reported = true;
    a->refuses = false;
    vg_nodelink_update(a);
    if (a->kept)
        vg_persist_node(a, VG_STORE_COMMIT);
    else
        vg_persist_node_kept(a);
}

/* Links from the store end with its process, or ours. */
static void link_stored(struct vg_nodelink *a) {
    vg_map_for_each (s, &a->ctl->jobs) {
        struct vg_job *j = s->value;
        if (j->task->attempt.node == a->node->id && j->sent && !vg_task_is_ended(j->task) &&
            vg_envs_is_stored(j))
            vg_envs_link(j);
    }
}

void vg_agent_on_hello(struct vg_call *call) {
    struct vg_control *c = call->ctl;
    struct vg_peer *p = call->peer;
    Vg__Pb__AgentHello *m = call->env->agent_hello;
    struct vg_err err = VG_ERR_INIT;
    uint64_t proven = 0;
    struct vg_nodelink *a = NULL;
    if (proven_id(p, &proven, &err) >= 0 && m->n_task <= REPORTS_MAX)
        a = node_for(c, m, proven, &err);
    if (!a || p->kind == VG_PEER_AGENT) {
        vg_peer_fail(p, call->req, &err);
        vg_conn_close(p->conn);
        return;
    }
    if (is_stale(a, m)) {
        vg_peer_error(p, call->req, VG_CONFLICT, "this node has connected anew since");
        vg_conn_close(p->conn);
        return;
    }
    displace(a);
    p->kind = VG_PEER_AGENT;
    p->agent = a;
    a->peer = p;
    take_facts(a, p, m);
    vg_node_gpus_load(a);
    vg_node_renew(a->node, vg_now_usec(), c->conf.lease_usec);
    say_ok(a, call->req);
    vg_nodelink_update(a);
    c->placing = true; /* nothing is placed before the whole report is read */
    for (size_t i = 0; i < m->n_task; i++)
        take_report(a, m->task[i]);
    lose_unreported(a);
    c->placing = false;
    vg_node_unfit(a, m->unfit);
    become_ready(a);
    link_stored(a);
    resume_followers(a);
    vg_mlink_resume(c);
    vg_info("node=%s id=%016llx connected tasks=%zu local=%d", a->node->name,
            (unsigned long long)a->node->id, m->n_task, a->local);
    vg_nodelinks_settle(c);
    vg_place_all(c);
}

void vg_agent_on_heartbeat(struct vg_call *call) {
    struct vg_nodelink *a = call->peer->agent;
    VG_ENVELOPE(env);
    vg_node_renew(a->node, vg_now_usec(), call->ctl->conf.lease_usec);
    a->node->seen_usec = vg_wall_usec();
    env.body_case = B(HEARTBEAT_OK);
    env.heartbeat_ok = call->env->heartbeat;
    vg_peer_send(call->peer, call->req, false, &env);
    bool was_unfit = a->is_unfit;
    vg_node_unfit(a, call->env->heartbeat->unfit);
    if (was_unfit && !a->is_unfit)
        vg_place_all(call->ctl);
    if (a->refuses && !call->env->heartbeat->leaving) { /* the answer gives it a lease again */
        a->refuses = false;
        vg_nodelink_update(a);
        vg_place_all(call->ctl);
    }
}
