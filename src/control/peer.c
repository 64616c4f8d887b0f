/* Connections: accept, find out who it is, hand requests on.

   What always holds:
   1. No handler runs for a peer whose principal is unknown, unless the table says it needs none.
   2. Agents' messages are taken from agents only, clients' from clients only.
   3. Descriptors that a handler does not keep are closed by the connection. */
#include "control/peer.h"

#include "base/log.h"
#include "base/mem.h"
#include "base/util.h"
#include "control/api.h"
#include "control/audit.h"
#include "control/budget.h"
#include "control/cost.h"
#include "control/env.h"
#include "control/events.h"
#include "control/gang.h"
#include "control/keys.h"
#include "control/nodes.h"
#include "control/price.h"
#include "control/users.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define STRANGERS_MAX 512 /* of one address, that have not said who they are */

enum need {
    NEED_USER,  /* a client with a principal */
    NEED_AGENT, /* an agent that has said hello */
    NEED_NONE,  /* the handler looks for itself */
};

struct route {
    enum need need;
    unsigned act; /* enum vg_act that the user's role must allow; 0: any user */
    void (*handle)(struct vg_call *call);
    unsigned scope; /* enum vg_scope that a token must have; 0: as the act says */
};

#define B(name) VG__PB__ENVELOPE__BODY_##name
static const struct route routes[] = {
    [B(RUN)] = {NEED_USER, VG_ACT_RUN, vg_api_run},
    [B(ATTACH)] = {NEED_USER, 0, vg_api_attach, VG_SCOPE_RUN},
    [B(TASK_LIST)] = {NEED_USER, 0, vg_api_task_list},
    [B(TASK_GET)] = {NEED_USER, 0, vg_api_task_get},
    [B(TASK_WAIT)] = {NEED_USER, 0, vg_api_task_wait},
    [B(TASK_WATCH)] = {NEED_USER, 0, vg_api_task_watch},
    [B(TASK_SIGNAL)] = {NEED_USER, 0, vg_api_task_signal, VG_SCOPE_RUN},
    [B(TASK_LOGS)] = {NEED_USER, 0, vg_api_task_logs},
    [B(ATTEMPT_LIST)] = {NEED_USER, 0, vg_api_attempt_list},
    [B(FORWARD)] = {NEED_USER, VG_ACT_RUN, vg_api_forward},
    [B(MIRROR_OFFER)] = {NEED_USER, VG_ACT_RUN, vg_api_mirror_offer},
    [B(ENV)] = {NEED_USER, VG_ACT_RUN, vg_api_env},
    [B(POOL_LIST)] = {NEED_USER, 0, vg_api_pool_list},
    [B(NODE_LIST)] = {NEED_USER, 0, vg_api_node_list},
    [B(NODE_SET)] = {NEED_USER, VG_ACT_MANAGE_NODES, vg_api_node_set},
    [B(NODE_INVITE)] = {NEED_USER, VG_ACT_MANAGE_NODES, vg_api_node_invite},
    [B(STATUS)] = {NEED_USER, 0, vg_api_status},
    [B(SHUTDOWN)] = {NEED_USER, VG_ACT_MANAGE_NODES, vg_api_shutdown},
    [B(USER_ADD)] = {NEED_USER, VG_ACT_MANAGE_TEAM, vg_api_user_add},
    [B(USER_LIST)] = {NEED_USER, 0, vg_api_user_list},
    [B(USER_REMOVE)] = {NEED_USER, VG_ACT_MANAGE_USERS, vg_api_user_remove},
    [B(TEAM_ADD)] = {NEED_USER, VG_ACT_MANAGE_USERS, vg_api_team_add},
    [B(TEAM_LIST)] = {NEED_USER, 0, vg_api_team_list},
    [B(TOKEN_CREATE)] = {NEED_USER, 0, vg_api_token_create},
    [B(TOKEN_LIST)] = {NEED_USER, 0, vg_api_token_list, VG_SCOPE_ADMIN},
    [B(TOKEN_REVOKE)] = {NEED_USER, 0, vg_api_token_revoke, VG_SCOPE_ADMIN},
    [B(SESSION_LIST)] = {NEED_USER, 0, vg_api_session_list},
    [B(SESSION_END)] = {NEED_USER, VG_ACT_RUN, vg_api_session_end},
    [B(SCHEDULE_LIST)] = {NEED_USER, 0, vg_api_schedule_list},
    [B(SCHEDULE_REMOVE)] = {NEED_USER, VG_ACT_RUN, vg_api_schedule_remove},
    [B(TASK_WHY)] = {NEED_USER, 0, vg_api_task_why},
    [B(EVENTS)] = {NEED_USER, 0, vg_api_events},
    [B(QUEUE)] = {NEED_USER, 0, vg_api_queue},
    [B(GPU_LIST)] = {NEED_USER, 0, vg_api_gpu_list},
    [B(GPU_SET)] = {NEED_USER, VG_ACT_MANAGE_NODES, vg_api_gpu_set},
    [B(SHARE_SET)] = {NEED_USER, VG_ACT_RUN, vg_api_share_set},
    [B(HOOK_SET)] = {NEED_USER, VG_ACT_RUN, vg_api_hook_set, .scope = VG_SCOPE_ADMIN},
    [B(HOOK_LIST)] = {NEED_USER, 0, vg_api_hook_list},
    [B(HOOK_REMOVE)] = {NEED_USER, VG_ACT_RUN, vg_api_hook_remove, .scope = VG_SCOPE_ADMIN},
    [B(HOOK_TEST)] = {NEED_USER, VG_ACT_RUN, vg_api_hook_test, .scope = VG_SCOPE_ADMIN},
    [B(SERIES)] = {NEED_USER, 0, vg_api_series},
    [B(CONFIG_RELOAD)] = {NEED_USER, VG_ACT_MANAGE_NODES, vg_api_config_reload},
    [B(ME)] = {NEED_USER, 0, vg_api_me},
    [B(ORG_SET)] = {NEED_USER, VG_ACT_MANAGE_USERS, vg_api_org_set},
    [B(ORG_REMOVE)] = {NEED_USER, VG_ACT_MANAGE_USERS, vg_api_org_remove},
    [B(ORG_LIST)] = {NEED_USER, 0, vg_api_org_list},
    [B(TEAM_SET)] = {NEED_USER, VG_ACT_MANAGE_USERS, vg_api_team_set},
    [B(TEAM_REMOVE)] = {NEED_USER, VG_ACT_MANAGE_USERS, vg_api_team_remove},
    [B(USER_SET)] = {NEED_USER, 0, vg_api_user_set, VG_SCOPE_ADMIN},
    [B(PRICE_LIST)] = {NEED_USER, 0, vg_api_price_list},
    [B(COST)] = {NEED_USER, 0, vg_api_cost},
    [B(LEDGER)] = {NEED_USER, 0, vg_api_ledger},
    [B(CREDIT)] = {NEED_USER, VG_ACT_MANAGE_MONEY, vg_api_credit},
    [B(BUDGET_SET)] = {NEED_USER, VG_ACT_MANAGE_TEAM, vg_api_budget_set},
    [B(BUDGET_LIST)] = {NEED_USER, 0, vg_api_budget_list},
    [B(BUDGET_REMOVE)] = {NEED_USER, VG_ACT_MANAGE_TEAM, vg_api_budget_remove},
    [B(PRICE_SET)] = {NEED_USER, VG_ACT_MANAGE_MONEY, vg_api_price_set},
    [B(LOGIN)] = {NEED_NONE, 0, vg_api_login},
    [B(AUDIT_LIST)] = {NEED_USER, VG_ACT_SEE_AUDIT, vg_api_audit_list},
    [B(SECRET_SET)] = {NEED_USER, VG_ACT_RUN, vg_api_secret_set, VG_SCOPE_SECRETS},
    [B(SECRET_LIST)] = {NEED_USER, 0, vg_api_secret_list},
    [B(SECRET_REMOVE)] = {NEED_USER, VG_ACT_RUN, vg_api_secret_remove, VG_SCOPE_SECRETS},
    [B(SECRET_ROTATE)] = {NEED_USER, VG_ACT_MANAGE_USERS, vg_api_secret_rotate},
    [B(AGENT_HELLO)] = {NEED_NONE, 0, vg_agent_on_hello},
    [B(HEARTBEAT)] = {NEED_AGENT, 0, vg_agent_on_heartbeat},
    [B(TASK_STARTED)] = {NEED_AGENT, 0, vg_agent_on_started},
    [B(TASK_EXITED)] = {NEED_AGENT, 0, vg_agent_on_exited},
    [B(LOG_APPEND)] = {NEED_AGENT, 0, vg_agent_on_log},
    [B(SESSION_ENDED)] = {NEED_AGENT, 0, vg_agent_on_session_ended},
    [B(TASK_READY)] = {NEED_AGENT, 0, vg_agent_on_ready},
    [B(GPU_REPORT)] = {NEED_AGENT, 0, vg_agent_on_gpu_report},
    [B(USE_REPORT)] = {NEED_AGENT, 0, vg_agent_on_use_report},
    [B(NESTED)] = {NEED_AGENT, 0, vg_agent_on_nested},
    [B(CERT_RENEW)] = {NEED_AGENT, 0, vg_api_cert_renew},
    [B(JOIN)] = {NEED_NONE, 0, vg_api_join},
};

/* ------------------------------------------------------------------ answers */

void vg_peer_send(struct vg_peer *p, uint32_t req, bool more, Vg__Pb__Envelope *env) {
    if (!vg_peer_open(p))
        return;
    env->has_req = 1;
    env->req = req;
    env->has_more = more;
    env->more = more;
    if (p->sink)
        p->sink->told(p, env, more);
    else
        vg_conn_send(p->conn, env, NULL, 0);
}

size_t vg_peer_queued(const struct vg_peer *p) {
    if (p->sink)
        return p->sink->queued ? p->sink->queued(p) : 0;
    return p->conn ? vg_conn_queued(p->conn) : 0;
}

void vg_peer_cut(struct vg_peer *p, enum vg_reason reason, const char *why) {
    if (p->sink && p->sink->cut)
        p->sink->cut(p, reason, why);
    else if (p->conn)
        vg_conn_abort(p->conn, reason, why);
}

void vg_peer_ok(struct vg_peer *p, uint32_t req, const char *text) {
    VG_ENVELOPE(env);
    Vg__Pb__Ok ok = VG__PB__OK__INIT;
    ok.text = (char *)text;
    env.body_case = B(OK);
    env.ok = &ok;
    vg_peer_send(p, req, false, &env);
}

static void send_error(struct vg_peer *p, uint32_t req, enum vg_reason reason, const char *text) {
    VG_ENVELOPE(env);
    Vg__Pb__Error e = VG__PB__ERROR__INIT;
    e.has_reason = 1;
    e.reason = (uint32_t)reason;
    e.text = (char *)text;
    env.body_case = B(ERROR);
    env.error = &e;
    vg_peer_send(p, req, false, &env);
}

void vg_peer_error(struct vg_peer *p, uint32_t req, enum vg_reason reason, const char *fmt, ...) {
    char text[VG_ERR_MAX];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    send_error(p, req, reason, text);
}

void vg_peer_fail(struct vg_peer *p, uint32_t req, const struct vg_err *err) {
    send_error(p, req, err->reason ? err->reason : VG_INTERNAL, err->msg);
}

struct vg_user *vg_peer_user(struct vg_peer *p, struct vg_err *err) {
    struct vg_user *u = vg_tenants_user(&p->ctl->tenants, p->who.user);
    if (!u)
        vg_err_set(err, VG_UNAUTHENTICATED,
                   "user '%s' was removed from this cloud, with all tokens: ask its administrator",
                   p->who.user);
    else if (u->disabled) {
        vg_users_say_disabled(u, err);
        u = NULL;
    } else if (p->who.key[0] && vg_key_still_good(p->ctl, p->who.key, err) < 0)
        u = NULL;
    return u;
}

/* ------------------------------------------------------------------ messages */

/* A token of a task that has ended is not somebody's try to come in. */
static void not_let_in(const struct vg_peer *p, const char *how, const struct vg_err *err) {
    if (!p->nested_node)
        vg_audit_refused(p->ctl, p->who.from, how, err->msg);
}

static void on_hello(struct vg_peer *p, uint32_t req, const Vg__Pb__Hello *h) {
    struct vg_err err = VG_ERR_INIT;
    if (p->kind == VG_PEER_AGENT || p->who.user[0]) {
        vg_peer_error(p, req, VG_PROTOCOL, "this connection has said hello already");
        return;
    }
    if (h->has_protocol && h->protocol != 1) {
        vg_peer_error(p, req, VG_UNSUPPORTED,
                      "this cloud speaks protocol 1 (virgad %s), the client asked for %u: install "
                      "the same version on both",
                      VG_VERSION, h->protocol);
        vg_conn_close(p->conn);
        return;
    }
    /* Over TLS a greeting without a token may come from a node: it shows a certificate or joins. */
    bool later = !p->unix_socket && !p->nested_node && (!h->token || !*h->token);
    bool shown = !later && !p->unix_socket && !p->nested_node;
    if (!later && vg_who_settle(p->ctl, p, h->token, &err) < 0) {
        p->ctl->counts.logins_refused += shown;
        not_let_in(p, h->token && *h->token ? "token" : "local", &err);
        vg_peer_fail(p, req, &err);
        vg_conn_close(p->conn);
        return;
    }
    p->ctl->counts.logins += shown;
    if (!later)
        p->kind = VG_PEER_CLIENT;
    VG_ENVELOPE(env);
    Vg__Pb__HelloOk ok = VG__PB__HELLO_OK__INIT;
    ok.has_protocol = 1;
    ok.protocol = 1;
    ok.program = (char *)"virgad " VG_VERSION;
    ok.cloud = p->ctl->cloud;
    ok.user = p->who.user;
    env.body_case = B(HELLO_OK);
    env.hello_ok = &ok;
    vg_peer_send(p, req, false, &env);
}

/* What a token must have for it. Whoever may do anything with a token may look. */
static unsigned scope_of(const struct route *r) {
    if (r->scope)
        return r->scope;
    return !r->act ? VG_SCOPE_READ : r->act == VG_ACT_RUN ? VG_SCOPE_RUN : VG_SCOPE_ADMIN;
}

static bool in_scope(const struct vg_who *who, unsigned need) {
    return need == VG_SCOPE_READ || (who->scope & need) != 0;
}

bool vg_peer_may(const struct vg_peer *p, enum vg_act act) {
    const unsigned runs = VG_ACT_RUN | VG_ACT_END_TEAM | VG_ACT_END_ALL;
    const unsigned looks = VG_ACT_SEE_TEAM | VG_ACT_SEE_ALL;
    return in_scope(&p->who, act & looks  ? VG_SCOPE_READ
                             : act & runs ? VG_SCOPE_RUN
                                          : VG_SCOPE_ADMIN);
}

static const char *scope_word(unsigned bit) {
    const char *name = vg_scope_name((unsigned)__builtin_ctz(bit));
    return name ? name : "?";
}

/* Whether the peer may make this call; fills in the principal. */
static bool admit(struct vg_peer *p, const struct route *r, struct vg_call *call) {
    struct vg_err err = VG_ERR_INIT;
    if (r->need == NEED_NONE)
        return true;
    if (r->need == NEED_AGENT) {
        if (p->kind == VG_PEER_AGENT && p->agent)
            return true;
        vg_peer_error(p, call->req, VG_FORBIDDEN, "only a node's agent may send this");
        return false;
    }
    if (p->kind == VG_PEER_NEW && vg_who_settle(p->ctl, p, NULL, &err) < 0) {
        if (p->unix_socket)
            not_let_in(p, "local", &err);
        vg_peer_fail(p, call->req, &err);
        if (p->conn)
            vg_conn_close(p->conn);
        return false;
    }
    if (p->kind == VG_PEER_NEW)
        p->kind = VG_PEER_CLIENT;
    call->user = p->kind == VG_PEER_CLIENT ? vg_peer_user(p, &err) : NULL;
    if (!call->user) {
        if (p->kind == VG_PEER_AGENT)
            vg_err_set(&err, VG_FORBIDDEN, "a node's agent may not send this");
        vg_peer_fail(p, call->req, &err);
        return false;
    }
    /* Inside a task the code may be a stranger's, and the node may be kept worse than the control
       plane: whoever the owner is, it runs and looks and does nothing else. */
    unsigned need = scope_of(r);
    if (!in_scope(&p->who, need) && p->who.parent) {
        vg_peer_error(p, call->req, VG_FORBIDDEN,
                      "a program inside a task may not do this: run it outside");
        return false;
    }
    if (r->act && !vg_user_may(call->user, r->act)) {
        vg_peer_error(p, call->req, VG_FORBIDDEN,
                      "user '%s' is a %s of this cloud and may not do this: ask an administrator",
                      call->user->name, vg_role_name(call->user->role));
        return false;
    }
    if (!in_scope(&p->who, need)) {
        vg_peer_error(p, call->req, VG_FORBIDDEN,
                      "the token %s was not made for this: 'virga token create --scope %s' makes "
                      "one that is",
                      p->who.key, scope_word(need));
        return false;
    }
    call->user->seen_usec = vg_wall_usec();
    return true;
}

/* By the table, if the peer may. */
static void hand_on(struct vg_peer *p, const Vg__Pb__Envelope *env, int *fds, size_t n_fds) {
    uint32_t req = env->has_req ? env->req : 0;
    size_t i = (size_t)env->body_case;
    if (i >= VG_COUNT(routes) || !routes[i].handle) {
        vg_peer_error(p, req, VG_UNSUPPORTED,
                      "virgad %s does not know this request: install the same version on both",
                      VG_VERSION);
        return;
    }
    struct vg_control *c = p->ctl;
    struct vg_call call = {.peer = p, .ctl = c, .env = env, .req = req, .fds = fds, .n_fds = n_fds};
    /* What one request changes, and that it was asked for, is one transaction. */
    vg_store_group_begin(c->store);
    if (admit(p, &routes[i], &call))
        routes[i].handle(&call);
    vg_store_group_end(c->store);
}

void vg_peer_ask(struct vg_peer *p, Vg__Pb__Envelope *env) {
    vg_peer_ask_fds(p, env, NULL, 0);
}

void vg_peer_ask_fds(struct vg_peer *p, Vg__Pb__Envelope *env, int *fds, size_t n) {
    if (!p->ctl->stopping)
        hand_on(p, env, fds, n);
    for (size_t i = 0; i < n; i++)
        vg_close(&fds[i]);
}

static void on_msg(struct vg_conn *conn, void *user, const Vg__Pb__Envelope *env, int *fds,
                   size_t n_fds) {
    struct vg_peer *p = user;
    uint32_t req = env->has_req ? env->req : 0;
    (void)conn;
    p->ctl->wire_msgs++;
    if (p->ctl->stopping)
        return;
    if (env->body_case == B(HELLO)) {
        on_hello(p, req, env->hello);
        return;
    }
    if (env->body_case == B(PING)) {
        VG_ENVELOPE(pong);
        pong.body_case = B(PONG);
        pong.pong = env->ping;
        vg_peer_send(p, req, false, &pong);
        return;
    }
    if (env->body_case == B(ERROR)) {
        vg_warn("peer says: %s", env->error->text ? env->error->text : "");
        return;
    }
    if (env->body_case == B(OK) || env->body_case == B(PONG))
        return;
    hand_on(p, env, fds, n_fds);
}

/* ------------------------------------------------------------------ life */

void vg_peer_drop(struct vg_peer *p) {
    p->conn = NULL;
    p->sink = NULL;
    if (p->agent)
        vg_nodelink_disconnected(p->agent);
    while (!vg_list_empty(&p->follows)) {
        struct vg_follow *f = vg_list_entry(vg_list_first(&p->follows), struct vg_follow, on_peer);
        vg_follow_abandon(f);
    }
    vg_map_del_u64(&p->ctl->peers, p->serial);
    vg_who_done(&p->who);
    free(p);
}

static void on_close(struct vg_conn *conn, void *user, const struct vg_err *why) {
    struct vg_peer *p = user;
    (void)conn;
    vg_debug("peer=%llu closed: %s", (unsigned long long)p->serial, why->msg);
    vg_peer_drop(p);
}

static const struct vg_conn_ops conn_ops = {.on_msg = on_msg, .on_close = on_close};

static int peer_new(struct vg_control *c, int fd, struct vg_tls *tls, struct vg_who *who,
                    bool unix_socket, uint64_t nested) {
    struct vg_err err = VG_ERR_INIT;
    struct vg_peer *p =
        c->stopping || vg_map_len(&c->peers) >= VG_PEERS_MAX ? NULL : vg_alloc(sizeof *p);
    if (!p) {
        close(fd);
        vg_who_done(who);
        return -EAGAIN;
    }
    *p = (struct vg_peer){.ctl = c,
                          .serial = ++c->next_serial,
                          .since_usec = vg_now_usec(),
                          .unix_socket = unix_socket,
                          .nested_node = nested,
                          .who = *who};
    vg_list_init(&p->follows);
    int r = vg_map_put_u64(&c->peers, p->serial, p);
    if (r < 0)
        close(fd);
    else
        r = vg_conn_new(c->loop, fd, tls, false, &conn_ops, p, &p->conn, &err);
    if (r < 0) {
        vg_warn("cannot take a connection: %s", err.msg[0] ? err.msg : strerror(-r));
        vg_map_del_u64(&c->peers, p->serial);
        vg_who_done(&p->who);
        free(p);
    }
    return r;
}

int vg_peer_new_inner(struct vg_control *c, const struct vg_peer_sink *sink, void *user,
                      struct vg_who *who, struct vg_peer **ret) {
    struct vg_peer *p =
        c->stopping || vg_map_len(&c->peers) >= VG_PEERS_MAX ? NULL : vg_alloc(sizeof *p);
    if (!p)
        return -EAGAIN;
    *p = (struct vg_peer){.ctl = c,
                          .serial = ++c->next_serial,
                          .kind = who->user[0] ? VG_PEER_CLIENT : VG_PEER_NEW,
                          .since_usec = vg_now_usec(),
                          .sink = sink,
                          .sink_user = user,
                          .who = *who};
    vg_list_init(&p->follows);
    if (vg_map_put_u64(&c->peers, p->serial, p) < 0) {
        free(p);
        return -EAGAIN;
    }
    *who = (struct vg_who){0};
    *ret = p;
    return 0;
}

void vg_peer_accept_unix(int fd, void *ctl) {
    struct vg_who who = {0};
    int r = vg_who_from_socket(fd, &who);
    if (r < 0) {
        vg_warn("cannot read a peer's credentials: %s", strerror(-r));
        close(fd);
        return;
    }
    peer_new(ctl, fd, NULL, &who, true, 0);
}

/* Whether so many from that address have not said who they are that this one comes back later: one
   machine must not have all connections. */
static bool is_crowded(const struct vg_control *c, const char *from) {
    size_t n = 0;
    if (vg_map_len(&c->peers) < STRANGERS_MAX)
        return false;
    vg_map_for_each (s, &c->peers) {
        const struct vg_peer *p = s->value;
        n += p->kind == VG_PEER_NEW && p->conn && strcmp(p->who.from, from) == 0;
    }
    return n >= STRANGERS_MAX;
}

void vg_peer_accept_tls(int fd, void *ctl) {
    struct vg_control *c = ctl;
    struct vg_who who = {0};
    vg_who_from_address(fd, &who);
    if (is_crowded(c, who.from))
        close(fd);
    else
        peer_new(c, fd, c->ca.tls, &who, false, 0);
}

int vg_peer_accept_nested(struct vg_control *c, int fd, uint64_t node) {
    struct vg_who who = {0};
    return peer_new(c, fd, NULL, &who, false, node);
}

void vg_peers_tick(struct vg_control *c) {
    uint64_t now = vg_now_usec();
    vg_map_for_each (s, &c->peers) {
        struct vg_peer *p = s->value;
        if (p->conn && p->kind == VG_PEER_NEW && now - p->since_usec > VG_PEER_SILENT_USEC)
            vg_conn_abort(p->conn, VG_TIMEOUT, "the peer does not say who it is");
    }
}

static void dismiss(struct vg_peer *p, const struct vg_err *err) {
    if (p->sink) {
        vg_peer_cut(p, err->reason, err->msg);
        return;
    }
    vg_peer_fail(p, 0, err);
    vg_conn_close(p->conn);
}

void vg_peers_cut(struct vg_control *c, const char *user, const char *key,
                  const struct vg_peer *but) {
    vg_map_for_each (s, &c->peers) {
        struct vg_peer *p = s->value;
        struct vg_err err = VG_ERR_INIT;
        if (!vg_peer_open(p) || p == but || p->kind != VG_PEER_CLIENT ||
            strcmp(p->who.user, user) != 0 || (key && strcmp(p->who.key, key) != 0) ||
            vg_peer_user(p, &err))
            continue;
        dismiss(p, &err);
    }
}

static bool looks_too_far(const struct vg_peer *p, const struct vg_user *u) {
    vg_list_for_each (it, &p->follows) {
        const struct vg_follow *f = vg_list_entry(it, struct vg_follow, on_peer);
        if (f->job && !vg_users_may_see(u, f->job->task->user, f->job->task->team))
            return true;
    }
    return false;
}

void vg_peers_recheck(struct vg_control *c, const struct vg_user *u) {
    struct vg_err err = VG_ERR_INIT;
    vg_err_set(&err, VG_FORBIDDEN,
               "your role or team was changed, and with it what you may see: ask again");
    vg_map_for_each (s, &c->peers) {
        struct vg_peer *p = s->value;
        if (!vg_peer_open(p) || p->kind != VG_PEER_CLIENT || strcmp(p->who.user, u->name) != 0 ||
            !looks_too_far(p, u))
            continue;
        dismiss(p, &err);
    }
}

struct vg_peer *vg_peer_find(struct vg_control *c, uint64_t serial) {
    return vg_map_get_u64(&c->peers, serial);
}
