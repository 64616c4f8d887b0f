/* The Start of a task: taken apart, completed with what only the node knows, and packed for its
   keeper; a gated one waits here for its Go. Loop thread. */
#include "agent/agent-tasks.h"

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

/* ------------------------------------------------------------------ as a file */

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

/* ------------------------------------------------------------------ as it comes */

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

int vg_start_network(const Vg__Pb__Start *start, enum vg_net_kind *ret) {
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
    if (vg_start_network(start, &ret->net) < 0)
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
    struct vg_agent_task *t =
        vg_tasks_refuse(a, start) ? NULL : vg_tasks_new(a, start->task_id, start->attempt);
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
