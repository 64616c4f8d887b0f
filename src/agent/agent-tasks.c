/* Tasks on this node: taking a Start, passing on what keepers and control plane say about it, and
   holding its exit until it is acknowledged. Loop thread.

       WAITING ──handed over──▶ STARTING ──▶ RUNNING ──▶ EXITED ──acknowledged──▶ forgotten
          └──────────cannot start, killed──────────────────▲     (but remembered as ended)

   An attempt is taken once: a Start that is known, or was, is answered by its state. */
#include "agent/agent-int.h"

#include "base/cleanup.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/util.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

/* Bytes of Starts in one AgentHello; the rest goes without. */
#define REPORT_STARTS_MAX (12u << 20)

void vg_tasks_init(struct vg_agent *a) {
    memset(a->ended, 0, sizeof(a->ended));
}

struct vg_agent_task *vg_tasks_get(struct vg_agent *a, uint64_t id) {
    return vg_map_get_u64(&a->tasks, id);
}

static struct vg_agent_task *task_new(struct vg_agent *a, uint64_t id, uint32_t attempt) {
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

/* Whether this Start must not be taken; then it has been answered. */
static bool refuse(struct vg_agent *a, const Vg__Pb__Start *start) {
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

/* ------------------------------------------------------------------ start */

static int append(int fd, const Vg__Pb__Start *start, size_t *ret_bytes) {
    size_t n = vg__pb__start__get_packed_size(start);
    vg_auto_free uint8_t *bytes = vg_alloc(n + 1);
    if (!bytes)
        return -ENOMEM;
    vg__pb__start__pack(start, bytes);
    int r = vg_write_full(fd, bytes, n);
    explicit_bzero(bytes, n);
    *ret_bytes = n;
    return r;
}

/* Secrets stand behind the rest, which is all that is ever read here again: the keeper, which needs
   both (packed messages one after another are one message), cuts them off. */
static int pack_start(const Vg__Pb__Start *start, int *ret_fd, size_t *ret_bytes) {
    Vg__Pb__Start open = *start, secrets = VG__PB__START__INIT;
    size_t n, more;
    open.n_secret = 0;
    secrets.secret = start->secret;
    secrets.n_secret = start->n_secret;
    vg_auto_fd int fd = memfd_create("start", MFD_CLOEXEC);
    if (fd < 0)
        return -errno;
    int r = append(fd, &open, &n);
    if (r >= 0 && secrets.n_secret)
        r = append(fd, &secrets, &more);
    if (r < 0)
        return r;
    *ret_fd = vg_take_fd(fd);
    *ret_bytes = n;
    return 0;
}

/* Tells the task which GPUs are its own and what is near them, and packs. */
static int store_start(struct vg_agent *a, const Vg__Pb__Start *start, struct vg_agent_task *t) {
    struct vg_cdi_list more_env = {0};
    struct vg_cpus room;
    int r = vg_agent_gpu_env(a, start, &more_env);
    if (r >= 0)
        r = vg_near_env(a, start, &more_env);
    Vg__Pb__Start more = *start;
    more.has_near_cpus = more.has_near_numa = false;
    more.near_numa = 0;
    vg_near_choose(a, &more, &room);
    vg_auto_free ProtobufCBinaryData *env =
        vg_alloc((start->n_extra_env + more_env.n + 1) * sizeof(*env));
    if (r >= 0 && !env)
        r = -ENOMEM;
    for (size_t i = 0; r >= 0 && i < start->n_extra_env; i++)
        env[i] = start->extra_env[i];
    for (size_t i = 0; r >= 0 && i < more_env.n; i++)
        env[more.n_extra_env++] =
            (ProtobufCBinaryData){strlen(more_env.item[i]), (uint8_t *)more_env.item[i]};
    more.extra_env = env;
    if (r >= 0)
        r = pack_start(&more, &t->start_fd, &t->start_bytes);
    vg_near_begin(t, &more);
    vg_cdi_list_done(&more_env);
    if (start->n_secret) {
        prctl(PR_SET_DUMPABLE, 0); /* they passed through this memory */
        for (size_t i = 0; i < start->n_secret; i++)
            if (start->secret[i]->value.len)
                explicit_bzero(start->secret[i]->value.data, start->secret[i]->value.len);
    }
    return r;
}

static int network_of(const Vg__Pb__Start *start, enum vg_net_kind *ret) {
    const char *s = start->network && *start->network ? start->network : "nat";
    *ret = VG_NET_NAT;
    if (strcmp(s, "host") == 0)
        *ret = VG_NET_HOST;
    else if (strcmp(s, "none") == 0)
        *ret = VG_NET_NONE;
    else if (strcmp(s, "nat") != 0)
        return -EINVAL;
    return 0;
}

/* Only a caller proven to be this machine's user gets that user's home. */
static int key_of(const Vg__Pb__Start *start, struct vg_warm_key *ret) {
    const Vg__Pb__Identity *who = start->who;
    *ret = (struct vg_warm_key){.slot = who->slot,
                                .uid = who->uid,
                                .gid = who->gid,
                                .local_root = who->local && who->uid == 0};
    if (network_of(start, &ret->net) < 0)
        return -EINVAL;
    if (start->spec->mirror) { /* every id is private, whoever it is */
        ret->uid = ret->gid = 0;
        ret->local_root = false;
        ret->mirrored = true;
        return 0;
    }
    if (who->local && who->has_home && who->home.len > 1 && who->home.data[0] == '/' &&
        !memchr(who->home.data, 0, who->home.len))
        ret->home = vg_strndup((const char *)who->home.data, who->home.len);
    return 0;
}

/* Tasks with the same number see the same folders; the number only has to differ for others. */
static uint64_t binds_of(const Vg__Pb__Start *start) {
    uint64_t h = 0xcbf29ce484222325ULL;
    const ProtobufCBinaryData *cwd = &start->spec->cwd;
    for (size_t i = 0; i <= start->n_shared_path; i++) {
        const ProtobufCBinaryData *d = i ? &start->shared_path[i - 1] : cwd;
        for (size_t j = 0; j < d->len; j++)
            h = (h ^ d->data[j]) * 0x100000001b3ULL;
        h = (h ^ 0x100) * 0x100000001b3ULL;
    }
    return h | 1;
}

/* Takes the descriptors that came along, and makes a channel for a relayed stream. */
static int take_channels(struct vg_agent *a, const Vg__Pb__Start *start, struct vg_stream *stream,
                         struct vg_agent_task *t, int *fds, size_t n_fds) {
    uint32_t mask = start->fd_mask & 7;
    if ((size_t)__builtin_popcount(mask) > n_fds) {
        vg_stream_free(stream, VG_PROTOCOL);
        return -EPROTO;
    }
    if (stream && !(mask & 1)) {
        int fd = vg_io_channel(a, stream);
        if (fd < 0)
            return fd;
        t->fds[t->n_fds++] = fd;
        mask |= 1;
    } else if (stream) {
        vg_stream_free(stream, VG_OK);
    }
    for (int i = 0; i < __builtin_popcount(start->fd_mask & 7); i++)
        t->fds[t->n_fds++] = vg_take_fd(fds[i]);
    t->fd_mask = mask;
    return 0;
}

static int fill_task(struct vg_agent *a, const Vg__Pb__Start *start, struct vg_agent_task *t,
                     struct vg_err *err) {
    if (!start->spec || !start->who)
        return vg_err_set(err, VG_PROTOCOL, "the start of this task is incomplete");
    if (key_of(start, &t->key) < 0)
        return vg_err_set(err, VG_UNSUPPORTED, "the node knows no network of kind '%s'",
                          start->network);
    t->binds = binds_of(start);
    if (t->key.net == VG_NET_NAT && !a->net)
        return vg_err_set(err, VG_UNSUPPORTED, "%s", a->net_error);
    if (vg_lease_over(a))
        return vg_err_set(err, VG_UNAVAILABLE, "the node's lease is over");
    if (a->stopping)
        return vg_err_set(err, VG_UNAVAILABLE, "the node is going down");
    if (vg_bare_refuses(a, start, err) < 0)
        return err->code;
    if (start->session_key && *start->session_key && !(t->session = vg_strdup(start->session_key)))
        return vg_err_sys(err, -ENOMEM, "cannot start the task");
    int r = store_start(a, start, t);
    if (r == -ENODATA)
        return vg_err_set(err, VG_UNAVAILABLE,
                          "the driver has not told the node yet what the parts of its GPUs (MIG) "
                          "are called: try again in a moment");
    if (r >= 0)
        r = vg_share_begin(a, t, start);
    if (r < 0)
        return vg_err_sys(err, r, "cannot pass the task on to its keeper");
    return 0;
}

void vg_tasks_on_start(struct vg_agent *a, const Vg__Pb__Start *start, int *fds, size_t n_fds) {
    struct vg_stream *stream = NULL;
    struct vg_err err = VG_ERR_INIT;
    if (start->stream)
        stream = vg_stream_new(a->link.conn, start->stream, NULL, NULL);
    struct vg_agent_task *t = refuse(a, start) ? NULL : task_new(a, start->task_id, start->attempt);
    if (!t) {
        vg_stream_free(stream, VG_CONFLICT);
        return;
    }
    if (fill_task(a, start, t, &err) < 0) {
        vg_stream_free(stream, err.reason);
        vg_tasks_fail(a, t, err.reason, err.msg);
        return;
    }
    int r = take_channels(a, start, stream, t, fds, n_fds);
    if (r < 0) {
        vg_tasks_fail(a, t, VG_PROTOCOL, "the task's descriptors did not arrive at the node");
        return;
    }
    if (start->has_ticket && start->ticket.len)
        vg_tickets_add(&a->tickets, start->ticket.data, start->ticket.len, t->id, vg_now_usec());
    if (vg_ssh_is_wanted(start))
        vg_ssh_offer(a);
    t->gated = start->gated;
    vg_meter_begin(a, t, start);
    if (start->meeting) {
        r = vg_meeting_open(a, t, (uint16_t)start->meeting_port, &t->meeting);
        if (r < 0) {
            vg_tasks_fail(a, t, VG_UNAVAILABLE, "the node has no free port for the gang to meet");
            return;
        }
    }
    if (vg_start_is_bare(start))
        vg_bare_submit(a, t);
    else if (t->share.mps)
        vg_mps_submit(a, t);
    else
        vg_keepers_submit(a, t, &t->key);
}

/* ------------------------------------------------------------------ gates */

void vg_tasks_ready(struct vg_agent *a, const struct vg_agent_task *t) {
    Vg__Pb__TaskReady m = VG__PB__TASK_READY__INIT;
    Vg__Pb__Envelope env = VG__PB__ENVELOPE__INIT;
    char address[64] = "";
    m.has_task_id = m.has_attempt = true;
    m.task_id = t->id;
    m.attempt = t->attempt;
    if (t->meeting) {
        m.has_port = true;
        m.port = vg_meeting_port(t->meeting);
        vg_meeting_address(a, address, sizeof(address));
        m.address = address;
    }
    env.body_case = VG__PB__ENVELOPE__BODY_TASK_READY;
    env.task_ready = &m;
    vg_link_send(a, &env);
}

/* What stands behind the Start, while its keeper has not taken it. */
static int copy_secrets(const struct vg_agent_task *t, int to) {
    struct stat st;
    if (t->start_fd < 0 || fstat(t->start_fd, &st) < 0 || (size_t)st.st_size <= t->start_bytes)
        return 0;
    size_t n = (size_t)st.st_size - t->start_bytes;
    vg_auto_free uint8_t *bytes = vg_alloc(n);
    if (!bytes)
        return -ENOMEM;
    ssize_t got = pread(t->start_fd, bytes, n, (off_t)t->start_bytes);
    int r = got < 0 ? -errno : vg_write_full(to, bytes, (size_t)got);
    explicit_bzero(bytes, n);
    return r;
}

int vg_tasks_keep_start(struct vg_agent_task *t, const Vg__Pb__Start *start) {
    int fd = -1;
    size_t bytes = 0;
    int r = pack_start(start, &fd, &bytes);
    if (r >= 0 && (r = copy_secrets(t, fd)) < 0)
        vg_close(&fd);
    if (r < 0)
        return r;
    vg_close(&t->start_fd);
    t->start_fd = fd;
    t->start_bytes = bytes;
    return 0;
}

/* The Start once more, with what is known only now. */
static int add_env(struct vg_agent_task *t, const Vg__Pb__TaskGo *go) {
    Vg__Pb__Start *start = vg_tasks_read_start(t);
    if (!start)
        return -EIO;
    size_t had = start->n_extra_env;
    Vg__Pb__Start more = *start;
    vg_auto_free ProtobufCBinaryData *env = vg_alloc((had + go->n_env + 1) * sizeof(*env));
    int r = env ? 0 : -ENOMEM;
    if (r >= 0) {
        if (had)
            memcpy(env, start->extra_env, had * sizeof(*env));
        if (go->n_env)
            memcpy(env + had, go->env, go->n_env * sizeof(*env));
        more.extra_env = env;
        more.n_extra_env = had + go->n_env;
        more.has_gated = more.gated = false;
        more.has_meeting_port = more.meeting = t->meeting != NULL;
        more.meeting_port = t->meeting ? vg_meeting_port(t->meeting) : 0;
        r = vg_tasks_keep_start(t, &more);
    }
    vg__pb__start__free_unpacked(start, NULL);
    return r;
}

void vg_tasks_on_go(struct vg_agent *a, const Vg__Pb__TaskGo *go) {
    struct vg_agent_task *t = vg_tasks_get(a, go->task_id);
    if (!t || t->attempt != go->attempt || !t->gated || !t->keeper)
        return; /* an answer to something older */
    int r = add_env(t, go);
    if (r < 0) {
        vg_keepers_withdraw(a, t);
        vg_tasks_fail(a, t, VG_INTERNAL, "the task could not be passed on to its keeper");
        return;
    }
    t->gated = false;
    vg_keepers_go(a, t);
}

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
    struct vg_agent_task *t = task_new(k->agent, r->task_id, r->attempt);
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
    if (start && start->meeting && network_of(start, &t->key.net) >= 0 &&
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

/* ------------------------------------------------------------------ greeting */

/* Of a keeper that was found and has not cut them off: nobody here has a use for them. */
static void drop_secrets(Vg__Pb__Start *start) {
    for (size_t i = 0; i < start->n_secret; i++) {
        if (start->secret[i]->value.len)
            explicit_bzero(start->secret[i]->value.data, start->secret[i]->value.len);
        vg__pb__secret_value__free_unpacked(start->secret[i], NULL);
    }
    free(start->secret);
    start->secret = NULL;
    start->n_secret = 0;
}

Vg__Pb__Start *vg_tasks_read_start(const struct vg_agent_task *t) {
    if (t->start_fd < 0 || t->start_bytes == 0)
        return NULL;
    void *p = mmap(NULL, t->start_bytes, PROT_READ, MAP_PRIVATE, t->start_fd, 0);
    if (p == MAP_FAILED)
        return NULL;
    Vg__Pb__Start *start = vg__pb__start__unpack(NULL, t->start_bytes, p);
    munmap(p, t->start_bytes);
    if (start)
        drop_secrets(start);
    return start;
}

static Vg__Pb__TaskReport *report_new(const struct vg_agent *a, const struct vg_agent_task *t,
                                      size_t *budget) {
    Vg__Pb__TaskReport *r = vg_alloc(sizeof(*r));
    if (!r)
        return NULL;
    vg__pb__task_report__init(r);
    r->has_task_id = r->has_attempt = r->has_state = true;
    r->task_id = t->id;
    r->attempt = t->attempt;
    bool ended = t->state == VG_AT_EXITED && !vg_bare_holds(a, t->id);
    r->state = ended ? VG__PB__TASK_REPORT__STATE__EXITED
               : t->state == VG_AT_RUNNING || (t->state == VG_AT_EXITED && t->started_usec)
                   ? VG__PB__TASK_REPORT__STATE__RUNNING
                   : VG__PB__TASK_REPORT__STATE__STARTING;
    r->has_started_usec = t->started_usec != 0;
    r->started_usec = t->started_usec;
    r->has_out_begin = r->has_out_end = true;
    r->out_begin = t->out_begin;
    r->out_end = t->out_end;
    r->exited = ended ? t->exited : NULL; /* borrowed */
    if (t->start_bytes <= *budget && (r->start = vg_tasks_read_start(t)))
        *budget -= t->start_bytes;
    return r;
}

static int report_sessions(struct vg_agent *a, Vg__Pb__AgentHello *hello) {
    hello->session = vg_alloc((vg_map_len(&a->sessions) + 1) * sizeof(*hello->session));
    if (!hello->session)
        return -ENOMEM;
    vg_map_for_each (s, &a->sessions) {
        struct vg_agent_keeper *k = s->value;
        Vg__Pb__SessionReport *r = vg_alloc(sizeof(*r));
        if (!r)
            return -ENOMEM;
        vg__pb__session_report__init(r);
        r->key = k->session;
        r->has_tasks = true;
        vg_list_for_each (it, &k->tasks)
            r->tasks++;
        hello->session[hello->n_session++] = r;
    }
    return 0;
}

int vg_tasks_report(struct vg_agent *a, Vg__Pb__AgentHello *hello) {
    size_t budget = REPORT_STARTS_MAX;
    hello->task = vg_alloc((vg_map_len(&a->tasks) + 1) * sizeof(*hello->task));
    if (!hello->task)
        return -ENOMEM;
    vg_map_for_each (s, &a->tasks) {
        Vg__Pb__TaskReport *r = report_new(a, s->value, &budget);
        if (!r)
            return -ENOMEM;
        hello->task[hello->n_task++] = r;
    }
    return report_sessions(a, hello);
}

void vg_tasks_report_done(Vg__Pb__AgentHello *hello) {
    for (size_t i = 0; i < hello->n_task; i++) {
        if (hello->task[i]->start)
            vg__pb__start__free_unpacked(hello->task[i]->start, NULL);
        free(hello->task[i]);
    }
    for (size_t i = 0; i < hello->n_session; i++)
        free(hello->session[i]);
    free(hello->task);
    free(hello->session);
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
