/* The store's process and what is asked of it; see the header.

   What always holds:
   1. An answer is told to a peer or a job only if that is still there: by serial and id.
   2. When the process dies everything asked of it fails with UNAVAILABLE, and links to nodes end;
      running tasks get new ones when the next process is up. */
#include "control/env.h"

#include "base/cleanup.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/util.h"
#include "control/api.h"
#include "control/audit.h"
#include "control/job.h"
#include "control/kept.h"
#include "control/mirror.h"
#include "control/peer.h"
#include "control/spec-check.h"
#include "control/timer.h"
#include "control/users.h"

#include <libgen.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define B(name) VG__PB__ENVELOPE__BODY_##name
#define OP(name) VG__PB__ENV_REQ__OP__##name
#define AGAIN_USEC 500000ULL

enum ask_kind { ASK_CLIENT, ASK_HOLD, ASK_LINK, ASK_PIN, ASK_KEPT, ASK_SILENT };

struct ask { /* in vg_envs.asked, by number */
    enum ask_kind kind;
    uint64_t peer; /* serial */
    uint32_t req;  /* the peer's number */
    uint64_t task;
    char user[VG_TENANT_NAME_MAX + 1]; /* of a client's; who keeps it */
    Vg__Pb__EnvReq__Op op;
    char from[64];
    char note[240]; /* for the audit log, when it has been done; "": it changes nothing */
};

struct vg_envs {
    struct vg_control *ctl;
    uv_process_t *process; /* owned by the loop */
    struct vg_conn *conn;  /* NULL: not running */
    struct vg_timer *again;
    struct vg_map asked;
    uint32_t last_req;
};

static int start(struct vg_envs *e, struct vg_err *err);

/* ------------------------------------------------------------------ answers */

static void hold_failed(struct vg_control *c, uint64_t task, const Vg__Pb__Error *why) {
    struct vg_job *j = vg_job_get(c, task);
    if (!j || vg_task_is_ended(j->task))
        return;
    enum vg_reason reason = vg_reason_from_wire(why->reason);
    vg_job_end(j, vg_reason_exit(reason), reason,
               why->text ? why->text : "its environment is gone");
}

static void pin_over(struct vg_control *c, uint64_t task, const Vg__Pb__Error *why) {
    struct vg_job *j = vg_job_get(c, task);
    if (!j || vg_task_is_ended(j->task))
        return;
    if (!why) {
        vg_job_event(j, VG__PB__RUN_EVENT__KIND__PINNED, NULL);
        return;
    }
    char text[512];
    snprintf(text, sizeof text, "its files could not be copied into the cloud's store: %.400s",
             why->text ? why->text : "no reason was given");
    enum vg_reason reason = vg_reason_from_wire(why->reason);
    if (vg_reason_may_retry(reason)) /* its service offers again */
        vg_job_event(j, VG__PB__RUN_EVENT__KIND__QUEUED, text);
    else
        vg_job_end(j, vg_reason_exit(reason), reason, text);
}

static void tell(struct vg_envs *e, const struct ask *a, const Vg__Pb__Envelope *from) {
    struct vg_control *c = e->ctl;
    const Vg__Pb__Error *why = from->body_case == B(ERROR) ? from->error : NULL;
    struct vg_peer *p;
    switch (a->kind) {
    case ASK_CLIENT:
        if (!why && a->note[0])
            vg_audit_note(c, a->user, a->from, "%s", a->note);
        p = vg_peer_find(c, a->peer);
        if (p) {
            Vg__Pb__Envelope env = *from;
            vg_peer_send(p, a->req, false, &env);
        }
        if (a->op == OP(REMOVE))
            vg_kept_removed(c, a->user);
        else if (a->op == OP(SAVE))
            vg_kept_ask(c, a->user);
        break;
    case ASK_KEPT:
        vg_kept_told(c, a->user, from->body_case == B(ENVS) ? from->envs : NULL);
        break;
    case ASK_HOLD:
        if (why)
            hold_failed(c, a->task, why);
        break;
    case ASK_PIN:
        pin_over(c, a->task, why);
        break;
    case ASK_LINK:
        if (why)
            vg_warn("task=%016llx no link to its stored files: %s", (unsigned long long)a->task,
                    why->text ? why->text : "");
        break;
    case ASK_SILENT:
        break;
    }
}

static void on_msg(struct vg_conn *conn, void *user, const Vg__Pb__Envelope *env, int *fds,
                   size_t n_fds) {
    struct vg_envs *e = user;
    (void)conn, (void)fds, (void)n_fds;
    vg_auto_free struct ask *a = vg_map_del_u64(&e->asked, env->req);
    if (a)
        tell(e, a, env);
}

/* ------------------------------------------------------------------ its life */

static void fail_all(struct vg_envs *e) {
    VG_ENVELOPE(env);
    Vg__Pb__Error why = VG__PB__ERROR__INIT;
    why.has_reason = 1;
    why.reason = VG_UNAVAILABLE;
    why.text = (char *)"the store of environments stopped in the midst of it: try again";
    env.body_case = B(ERROR);
    env.error = &why;
    struct vg_map asked = e->asked;
    e->asked = (struct vg_map){0}; /* answers may ask anew */
    vg_map_for_each (s, &asked) {
        struct ask *a = s->value;
        if (a->kind != ASK_HOLD || e->ctl->stopping) /* holds are asked for again */
            tell(e, a, &env);
        free(a);
    }
    vg_map_done(&asked);
}

static void start_again(void *user) {
    struct vg_envs *e = user;
    struct vg_err err = VG_ERR_INIT;
    e->again = NULL;
    if (start(e, &err) < 0) {
        vg_error("%s", err.msg);
        e->again = vg_timer_start(e->ctl->loop, 10 * AGAIN_USEC, start_again, e);
        return;
    }
    vg_map_for_each (s, &e->ctl->jobs) {
        struct vg_job *j = s->value;
        if (vg_task_is_ended(j->task) || !vg_envs_is_stored(j))
            continue;
        vg_envs_hold(j);
        vg_envs_link(j);
    }
}

static void on_close(struct vg_conn *conn, void *user, const struct vg_err *why) {
    struct vg_envs *e = user;
    (void)conn;
    e->conn = NULL;
    if (!e->ctl->stopping)
        vg_warn("the store of environments is gone: %s", why->msg);
    fail_all(e);
    if (!e->ctl->stopping && !e->again)
        e->again = vg_timer_start(e->ctl->loop, AGAIN_USEC, start_again, e);
}

static void process_closed(uv_handle_t *h) {
    free(h);
}

static void on_gone(uv_process_t *p, int64_t status, int sig) {
    (void)status, (void)sig;
    struct vg_envs *e = p->data;
    if (e->process == p)
        e->process = NULL;
    uv_close((uv_handle_t *)p, process_closed);
}

/* virga lies beside virgad, or in PATH. */
static void program(char out[4096]) {
    char self[4000];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    self[n > 0 ? n : 0] = '\0';
    snprintf(out, 4096, "%s/virga", dirname(self));
    if (access(out, X_OK) < 0)
        snprintf(out, 4096, "virga");
}

/* What it is told of the bucket, if there is one: appended to its arguments. */
static void add_bucket(const struct vg_conf *conf, char **argv, size_t n, char cache[32]) {
    const char *const said[][2] = {
        {"--bucket", conf->env.store},  {"--endpoint", conf->env.endpoint},
        {"--region", conf->env.region}, {"--credentials", conf->env.credentials},
        {"--ca", conf->env.ca},         {"--cache", cache}};
    snprintf(cache, 32, "%llu", (unsigned long long)conf->env.cache_bytes);
    for (size_t i = 0; i < VG_COUNT(said); i++)
        if (said[i][1] && *said[i][1]) {
            argv[n++] = (char *)said[i][0];
            argv[n++] = (char *)said[i][1];
        }
}

static int spawn(struct vg_envs *e, int fd, struct vg_err *err) {
    char path[4096], quota[32], changes[32], cache[32];
    vg_auto_free char *dir = vg_home_file(&e->ctl->home, "env");
    program(path);
    snprintf(quota, sizeof quota, "%llu", (unsigned long long)e->ctl->conf.limits.env_bytes);
    snprintf(changes, sizeof changes, "%llu",
             (unsigned long long)(e->ctl->conf.limits.changes_usec / VG_USEC));
    char *argv[24] = {path, (char *)"envd",    (char *)"--fd", (char *)"3",         (char *)"--dir",
                      dir,  (char *)"--quota", quota,          (char *)"--changes", changes};
    add_bucket(&e->ctl->conf, argv, 10, cache);
    uv_stdio_container_t io[4] = {{.flags = UV_IGNORE},
                                  {.flags = UV_INHERIT_FD, .data.fd = 2},
                                  {.flags = UV_INHERIT_FD, .data.fd = 2},
                                  {.flags = UV_INHERIT_FD, .data.fd = fd}};
    uv_process_options_t o = {
        .file = path, .args = argv, .stdio = io, .stdio_count = 4, .exit_cb = on_gone};
    uv_process_t *p = vg_alloc(sizeof *p);
    if (!p || !dir) {
        free(p);
        return vg_err_sys(err, -ENOMEM, "cannot start the store of environments");
    }
    int r = uv_spawn(e->ctl->loop, p, &o);
    p->data = e;
    if (r < 0) {
        uv_close((uv_handle_t *)p, process_closed);
        return vg_err_sys(err, r, "cannot start the store of environments, %s", path);
    }
    uv_unref((uv_handle_t *)p); /* it leaves when it sees that we have */
    e->process = p;
    return 0;
}

static struct ask *ask(struct vg_envs *e, const Vg__Pb__EnvReq *m, int fd, enum ask_kind kind);

/* Which tasks hold something: what others held is let go. */
static void send_tasks(struct vg_envs *e) {
    Vg__Pb__EnvReq m = VG__PB__ENV_REQ__INIT;
    vg_auto_free uint64_t *list = vg_alloc((vg_map_len(&e->ctl->jobs) + 1) * sizeof *list);
    if (!list)
        return; /* they stay held until the next life */
    vg_map_for_each (s, &e->ctl->jobs) {
        struct vg_job *j = s->value;
        if (!vg_task_is_ended(j->task) && vg_envs_is_stored(j))
            list[m.n_task++] = j->task->id;
    }
    m.has_op = 1;
    m.op = OP(TASKS);
    m.task = list;
    m.user = (char *)"-";
    ask(e, &m, -1, ASK_SILENT);
}

static int start(struct vg_envs *e, struct vg_err *err) {
    static const struct vg_conn_ops ops = {.on_msg = on_msg, .on_close = on_close};
    int pair[2];
    if (e->conn)
        return 0;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
        return vg_err_sys(err, errno, "cannot start the store of environments");
    int r = spawn(e, pair[1], err);
    close(pair[1]);
    if (r < 0) {
        close(pair[0]);
        return r;
    }
    r = vg_conn_new(e->ctl->loop, pair[0], NULL, true, &ops, e, &e->conn, err);
    if (r == 0)
        send_tasks(e);
    return r;
}

static struct vg_envs *envs(struct vg_control *c, struct vg_err *err) {
    if (!c->envs) {
        c->envs = vg_alloc(sizeof *c->envs);
        if (!c->envs) {
            vg_err_sys(err, -ENOMEM, "cannot start the store of environments");
            return NULL;
        }
        c->envs->ctl = c;
    }
    return c->stopping || start(c->envs, err) < 0 ? NULL : c->envs;
}

void vg_envs_stop(struct vg_control *c) {
    if (!c->envs)
        return;
    vg_timer_stop(&c->envs->again);
    if (c->envs->process)
        uv_close((uv_handle_t *)vg_take_ptr(c->envs->process), process_closed);
    if (c->envs->conn)
        vg_conn_close(c->envs->conn);
}

void vg_envs_done(struct vg_control *c) {
    if (!c->envs)
        return;
    vg_map_for_each (s, &c->envs->asked)
        free(s->value);
    vg_map_done(&c->envs->asked);
    free(c->envs);
    c->envs = NULL;
}

/* ------------------------------------------------------------------ asking */

/* Takes fd. NULL: it could not be asked. */
static struct ask *ask(struct vg_envs *e, const Vg__Pb__EnvReq *m, int fd, enum ask_kind kind) {
    VG_ENVELOPE(env);
    struct ask *a = vg_map_len(&e->asked) < VG_ENV_ASKED_MAX ? vg_alloc(sizeof *a) : NULL;
    if (!a || vg_map_put_u64(&e->asked, ++e->last_req, a) < 0) {
        free(a);
        vg_close(&fd);
        return NULL;
    }
    a->kind = kind;
    a->task = m->task_id;
    a->op = m->op;
    env.has_req = 1;
    env.req = e->last_req;
    env.body_case = B(ENV);
    env.env = (Vg__Pb__EnvReq *)m;
    vg_conn_send(e->conn, &env, fd >= 0 ? &fd : NULL, fd >= 0 ? 1 : 0);
    return a;
}

/* Members of a group share what their head holds. */
static uint64_t holder(const struct vg_job *j) {
    return j->task->group ? j->task->group : j->task->id;
}

/* A request about a job, on behalf of its owner. */
static void fill(const struct vg_job *j, Vg__Pb__EnvReq *m, Vg__Pb__EnvReq__Op op) {
    const Vg__Pb__MirrorSpec *s = j->task->spec->mirror;
    *m = (Vg__Pb__EnvReq)VG__PB__ENV_REQ__INIT;
    m->has_op = m->has_task_id = 1;
    m->op = op;
    m->task_id = holder(j);
    m->user = (char *)j->task->user;
    m->user_team = j->task->who ? j->task->who->team : NULL;
    m->ref = s->pin ? NULL : s->env;
    m->has_machine = s->machine.len > 0;
    m->machine = s->machine;
}

bool vg_envs_is_stored(const struct vg_job *j) {
    const Vg__Pb__MirrorSpec *m = j->task->spec->mirror;
    return m && (m->pin || (m->env && *m->env));
}

void vg_envs_hold(struct vg_job *j) {
    struct vg_err err = VG_ERR_INIT;
    Vg__Pb__EnvReq m;
    if (!vg_envs_is_stored(j) || j->task->spec->mirror->pin || holder(j) != j->task->id)
        return;
    struct vg_envs *e = envs(j->ctl, &err);
    fill(j, &m, OP(HOLD));
    if (!e || !ask(e, &m, -1, ASK_HOLD))
        vg_job_end(j, vg_reason_exit(VG_UNAVAILABLE), VG_UNAVAILABLE,
                   err.msg[0] ? err.msg : "the store of environments is busy: try again");
}

/* A pair of sockets; ours is returned, -1 when there is none. */
static int pair_for(int *ret_theirs) {
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
        return -1;
    *ret_theirs = pair[1];
    return pair[0];
}

void vg_envs_link(struct vg_job *j) {
    struct vg_err err = VG_ERR_INIT;
    Vg__Pb__EnvReq m;
    int theirs;
    struct vg_envs *e = envs(j->ctl, &err);
    int ours = e ? pair_for(&theirs) : -1;
    if (ours < 0) {
        vg_warn("task=%016llx no link to its stored files: %s", (unsigned long long)j->task->id,
                err.msg[0] ? err.msg : "too many open files");
        return;
    }
    vg_set_nonblock(ours, true);
    if (vg_mlink_join_fd(j, ours) < 0) { /* not on a node now: it is asked for again then */
        close(theirs);
        return;
    }
    ProtobufCBinaryData path[VG_SPEC_VIEWS_MAX];
    const Vg__Pb__MirrorSpec *spec = j->task->spec->mirror;
    fill(j, &m, OP(LINK));
    m.has_member = 1;
    m.member = j->task->id;
    m.has_keep_all = m.keep_all = spec->keep_changes;
    m.path = path;
    for (; spec->pin && m.n_path < spec->n_view && m.n_path < VG_SPEC_VIEWS_MAX; m.n_path++)
        path[m.n_path] = spec->view[m.n_path]->path;
    ask(e, &m, theirs, ASK_LINK);
}

void vg_envs_pin(struct vg_job *j, struct vg_stream *s) {
    struct vg_err err = VG_ERR_INIT;
    Vg__Pb__EnvReq m;
    int theirs;
    struct vg_envs *e = envs(j->ctl, &err);
    int ours = e ? pair_for(&theirs) : -1;
    if (ours < 0) {
        vg_stream_free(s, VG_UNAVAILABLE);
        return;
    }
    vg_set_nonblock(ours, true);
    vg_stream_widen(s, VG_LINK_WIDTH);
    if (vg_pump_fd(j->ctl->loop, ours, s, NULL, NULL) < 0) {
        close(theirs);
        return;
    }
    fill(j, &m, OP(PIN));
    if (ask(e, &m, theirs, ASK_PIN) && j->sent)
        vg_envs_link(j); /* an earlier one may have waited in vain */
}

void vg_envs_release(struct vg_job *j) {
    struct vg_err err = VG_ERR_INIT;
    Vg__Pb__EnvReq m;
    bool own = vg_envs_is_stored(j) && holder(j) == j->task->id;
    struct vg_envs *e = own ? envs(j->ctl, &err) : NULL;
    if (!e)
        return;
    fill(j, &m, OP(RELEASE));
    ask(e, &m, -1, ASK_SILENT);
}

/* ------------------------------------------------------------------ clients */

static size_t asked_by(const struct vg_envs *e, const char *user) {
    size_t n = 0;
    vg_map_for_each (s, &e->asked)
        n += ((struct ask *)s->value)->kind == ASK_CLIENT &&
             strcmp(((struct ask *)s->value)->user, user) == 0;
    return n;
}

/* What it will have done to the environments there are. */
static void describe(const Vg__Pb__EnvReq *m, char *out, size_t n) {
    static const char *const done[] = {[OP(SAVE)] = "saved",
                                       [OP(REMOVE)] = "removed",
                                       [OP(SHARE)] = "shared with team ",
                                       [OP(UNSHARE)] = "no longer shared with team ",
                                       [OP(COLLECT)] = ""};
    const char *word = (size_t)m->op < VG_COUNT(done) ? done[m->op] : NULL;
    bool team = m->op == OP(SHARE) || m->op == OP(UNSHARE);
    if (m->op == OP(COLLECT))
        snprintf(out, n, "environments: what nothing holds is cleared away");
    else if (word)
        snprintf(out, n, "environment %.100s %s%.64s", m->ref ? m->ref : "", word,
                 team && m->team ? m->team : "");
}

int vg_envs_ask_kept(struct vg_control *c, const char *user) {
    struct vg_err err = VG_ERR_INIT;
    Vg__Pb__EnvReq m = VG__PB__ENV_REQ__INIT;
    struct vg_envs *e = envs(c, &err);
    m.has_op = 1;
    m.op = OP(KEPT);
    m.user = (char *)user;
    struct ask *a = e ? ask(e, &m, -1, ASK_KEPT) : NULL;
    if (!a)
        return -EAGAIN;
    snprintf(a->user, sizeof a->user, "%s", user);
    return 0;
}

int vg_envs_remove(struct vg_control *c, const struct vg_env_removal *r) {
    struct vg_err err = VG_ERR_INIT;
    Vg__Pb__EnvReq m = VG__PB__ENV_REQ__INIT;
    struct vg_envs *e = envs(c, &err);
    m.has_op = 1;
    m.op = OP(REMOVE);
    m.user = (char *)r->user;
    m.user_team = (char *)r->team;
    m.ref = (char *)r->ref;
    struct ask *a = e ? ask(e, &m, -1, ASK_CLIENT) : NULL;
    struct vg_peer *p = a ? NULL : vg_peer_find(c, r->peer);
    if (p)
        vg_peer_error(p, r->req, VG_UNAVAILABLE,
                      "the store of environments is busy: try again in a moment");
    if (!a)
        return -EAGAIN;
    snprintf(a->user, sizeof a->user, "%s", r->user);
    snprintf(a->from, sizeof a->from, "%s", r->from);
    describe(&m, a->note, sizeof a->note);
    a->peer = r->peer;
    a->req = r->req;
    return 0;
}

void vg_api_env(struct vg_call *call) {
    struct vg_err err = VG_ERR_INIT;
    Vg__Pb__EnvReq m = *call->env->env;
    struct vg_chan ch = VG_CHAN_INIT;
    if (!m.has_op || m.op > OP(COLLECT)) {
        vg_peer_error(call->peer, call->req, VG_INVALID, "this is not for clients to ask");
        return;
    }
    struct vg_envs *e = envs(call->ctl, &err);
    if (!e) {
        vg_peer_fail(call->peer, call->req, &err);
        return;
    }
    if (asked_by(e, call->user->name) >= VG_ENV_ASKED_USER_MAX) {
        vg_peer_error(call->peer, call->req, VG_NO_CAPACITY,
                      "%d requests of yours are under way: wait for one to end",
                      VG_ENV_ASKED_USER_MAX);
        return;
    }
    m.user = (char *)call->user->name;
    m.user_team = (char *)call->user->team->name;
    m.has_task_id = m.has_machine = 0;
    m.n_task = 0;
    const struct vg_team *with = vg_tenants_team(&call->ctl->tenants, m.team ? m.team : "");
    if (m.op == OP(SHARE) && (!with || !vg_users_know_team(call->user, with))) {
        vg_peer_error(call->peer, call->req, VG_NOT_FOUND,
                      "there is no team '%.60s': 'virga team list' shows them",
                      m.team ? m.team : "");
        return;
    }
    if (m.op == OP(REMOVE) && vg_kept_remove(call, m.ref ? m.ref : ""))
        return;
    if (m.stream && (vg_chan_take(&ch, call->peer, m.stream, 0, NULL, 0) < 0 ||
                     vg_chan_park(&ch, call->ctl->loop) < 0)) {
        vg_peer_error(call->peer, call->req, VG_LOST, "the request's stream cannot be had");
        return;
    }
    struct ask *a = ask(e, &m, vg_take_fd(ch.fd[0]), ASK_CLIENT);
    vg_chan_close(&ch);
    if (!a) {
        vg_peer_error(call->peer, call->req, VG_NO_CAPACITY,
                      "the store of environments is busy: try again in a moment");
        return;
    }
    snprintf(a->user, sizeof a->user, "%s", call->user->name);
    snprintf(a->from, sizeof a->from, "%s", call->peer->who.from);
    describe(&m, a->note, sizeof a->note);
    a->peer = call->peer->serial;
    a->req = call->req;
}
