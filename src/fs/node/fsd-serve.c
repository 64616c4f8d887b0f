/* What agents and keepers ask of the daemon, and what it says to them. */
#include "base/buf.h"
#include "base/cleanup.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/util.h"
#include "fs/node/fsd-int.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* ------------------------------------------------------------------ to keepers, any thread */

static bool has_machine(const struct fsd_conn *c, const struct fsd_machine *m) {
    return c->machine == m || (c->project && c->project == m);
}

/* Locked. A keeper that does not read is not waited for. */
static struct fsd_conn *keeper_of(struct fsd *d, const struct fsd_machine *m, uint64_t task) {
    vg_list_for_each (it, &d->conns) {
        struct fsd_conn *c = vg_list_entry(it, struct fsd_conn, link);
        if (c->holds && has_machine(c, m) && c->task == task)
            return c;
    }
    return NULL;
}

static void send_text(struct fsd_conn *c, enum vg_fsd_kind kind, int code, unsigned reason,
                      const char *text) {
    struct vg_fsd_failed f = {.code = code, .reason = reason};
    snprintf(f.text, sizeof(f.text), "%s", text ? text : "");
    int r = vg_fsd_send(c->fd, kind, &f, sizeof(f), NULL, 0);
    if (r < 0)
        vg_warn("cannot answer a keeper: %s", strerror(-r));
}

static int send_mounts(struct fsd_conn *c, struct vg_machine_mounts *t) {
    struct vg_buf b = {0};
    struct vg_fsd_mounts head = {
        .n_lower = 1, .n_views = (uint32_t)t->n_proj, .flags = t->upper >= 0 ? VG_FSD_ON_DISK : 0};
    int fds[VG_FSD_FDS];
    size_t n = 0;
    if (t->image >= 0) {
        head.n_lower = 2;
        head.n_data = 1;
        fds[n++] = t->image;
    }
    fds[n++] = t->env;
    if (t->image >= 0)
        fds[n++] = t->data;
    int r = vg_buf_append(&b, &head, sizeof(head));
    for (size_t i = 0; r >= 0 && i < t->n_proj; i++) {
        fds[n++] = t->proj[i];
        r = vg_buf_append(&b, t->path[i], strlen(t->path[i]) + 1);
    }
    if (t->upper >= 0)
        fds[n++] = t->upper;
    if (r >= 0)
        r = vg_fsd_send(c->fd, VG_FSD_MOUNTS, vg_buf_data(&b), vg_buf_len(&b), fds, n);
    vg_buf_done(&b);
    return r;
}

/* The root of one machine, the folders of another. */
static int join_mounts(struct vg_machine *root, struct vg_machine *proj, uint64_t task,
                       struct vg_machine_mounts *ret) {
    struct vg_machine_mounts p;
    int r = vg_machine_mounts(root, task, ret);
    if (r < 0 || !proj)
        return r;
    r = vg_machine_mounts(proj, task, &p);
    if (r < 0) {
        vg_machine_mounts_done(ret);
        return r;
    }
    ret->n_proj = p.n_proj;
    memcpy(ret->proj, p.proj, sizeof(p.proj));
    memcpy(ret->path, p.path, sizeof(p.path));
    p.n_proj = 0;
    vg_machine_mounts_done(&p);
    return 0;
}

/* Locked. What the task waits for is all there now; the last of two machines says so. */
static bool is_whole(struct fsd_conn *c, const struct fsd_machine *m) {
    *(c->project == m ? &c->proj_ready : &c->root_ready) = true;
    return !c->project || (c->proj_ready && c->root_ready);
}

static void on_ready(void *user, uint64_t task, int code, const char *text) {
    struct fsd_machine *m = user;
    struct vg_machine_mounts t = {.env = -1, .image = -1, .data = -1, .upper = -1};
    pthread_mutex_lock(&m->d->lock);
    struct fsd_conn *c = keeper_of(m->d, m, task);
    bool tell = c && (code || is_whole(c, m));
    struct vg_machine *root = tell ? c->machine->m : NULL;
    struct vg_machine *proj = tell && c->project ? c->project->m : NULL;
    pthread_mutex_unlock(&m->d->lock);
    if (!tell)
        return;
    if (!code && (code = -join_mounts(root, proj, task, &t)) > 0)
        text = "cannot hand over the mounts of the client's files";
    pthread_mutex_lock(&m->d->lock);
    c = keeper_of(m->d, m, task);
    if (c && !code && send_mounts(c, &t) < 0) {
        code = EIO;
        text = "cannot hand over the mounts of the client's files";
    }
    if (c && code)
        send_text(c, VG_FSD_FAILED, code, code == ETIMEDOUT ? VG_TIMEOUT : VG_INTERNAL, text);
    pthread_mutex_unlock(&m->d->lock);
    vg_machine_mounts_done(&t);
}

static void on_note(void *user, uint64_t task, const char *text) {
    struct fsd_machine *m = user;
    vg_info("note task=%llx: %s", (unsigned long long)task, text);
    pthread_mutex_lock(&m->d->lock);
    vg_list_for_each (it, &m->d->conns) {
        struct fsd_conn *c = vg_list_entry(it, struct fsd_conn, link);
        if (c->holds && has_machine(c, m) && (!task || c->task == task))
            vg_fsd_send(c->fd, VG_FSD_NOTE, text, strlen(text), NULL, 0);
    }
    pthread_mutex_unlock(&m->d->lock);
}

/* Of two machines the last one that is safe says so, and the first that is not. */
static void on_safe(void *user, uint64_t task, int code, const char *text) {
    struct fsd_machine *m = user;
    pthread_mutex_lock(&m->d->lock);
    struct fsd_conn *c = keeper_of(m->d, m, task);
    if (c && c->barriers && (--c->barriers == 0 || code)) {
        c->barriers = 0;
        send_text(c, VG_FSD_SAFE, code < 0 ? -code : code, code ? VG_LOST : 0, text);
    }
    pthread_mutex_unlock(&m->d->lock);
}

/* ------------------------------------------------------------------ machines */

static struct fsd_machine *find_machine(struct fsd *d, const uint8_t id[VG_MID]) {
    for (size_t i = 0; i < d->n_machines; i++)
        if (!memcmp(d->machines[i]->id, id, VG_MID))
            return d->machines[i];
    return NULL;
}

static int new_machine(struct fsd *d, const uint8_t id[VG_MID], struct fsd_machine **ret,
                       struct vg_err *err) {
    vg_auto_free char *dir =
        vg_fmt("%s/m-%d-%llu", d->own, (int)getpid(), (unsigned long long)d->next_place++);
    vg_auto_free char *cache = vg_fmt("%s/cache", d->own);
    vg_auto_free struct fsd_machine *m = vg_alloc(sizeof(*m));
    void *grown = vg_grow(d->machines, &d->cap_machines, d->n_machines + 1, sizeof(m));
    if (grown)
        d->machines = grown;
    if (!grown || !m || !dir || !cache)
        return vg_err_sys(err, ENOMEM, "cannot make a place for the client's machine");
    if (d->n_machines == FSD_MACHINES)
        return vg_err_set(err, VG_TOO_BIG, "%u machines of one user on one node are the limit",
                          FSD_MACHINES);
    *m = (struct fsd_machine){.d = d, .used_usec = vg_now_usec()};
    memcpy(m->id, id, VG_MID);
    struct vg_machine_conf conf = {.cache = d->cache,
                                   .ids = {.slot = d->slot},
                                   .node = d->node,
                                   .dir = dir,
                                   .peers = d->peers,
                                   .cache_dir = d->no_erofs ? NULL : cache,
                                   .no_passthrough = d->no_passthrough,
                                   .deep = d->deep,
                                   .wait_limit_usec = d->wait_usec,
                                   .ready = on_ready,
                                   .note = on_note,
                                   .user = m};
    memcpy(conf.machine, id, VG_MID);
    memcpy(conf.daemon, d->daemon, VG_MID);
    int r = vg_machine_new(&conf, &m->m, err);
    if (r < 0)
        return r;
    *ret = d->machines[d->n_machines++] = vg_take_ptr(m);
    return 0;
}

static struct fsd_machine *have_machine(struct fsd *d, const uint8_t id[VG_MID],
                                        struct vg_err *err) {
    struct fsd_machine *m = find_machine(d, id);
    return m ? m : new_machine(d, id, &m, err) < 0 ? NULL : m;
}

void vg_fsd_machine_free(struct fsd_machine *m) {
    vg_machine_free(m->m);
    free(m);
}

static bool has_keeper(struct fsd *d, const struct fsd_machine *m) {
    vg_list_for_each (it, &d->conns)
        if (has_machine(vg_list_entry(it, struct fsd_conn, link), m))
            return true;
    return false;
}

void vg_fsd_forget_machines(struct fsd *d, uint64_t now) {
    for (size_t i = d->n_machines; i-- > 0;) {
        struct fsd_machine *m = d->machines[i];
        if (vg_machine_tasks(m->m) || has_keeper(d, m) || now - m->used_usec < d->idle_usec)
            continue;
        d->machines[i] = d->machines[--d->n_machines];
        vg_fsd_machine_free(m);
    }
}

/* ------------------------------------------------------------------ packets */

static int on_link(struct fsd *d, const struct vg_fsd_task *t, int *fds, size_t *n_fds) {
    struct vg_err err = VG_ERR_INIT;
    if (*n_fds != 1)
        return -EBADMSG;
    struct fsd_machine *m = have_machine(d, t->machine, &err);
    if (!m) {
        vg_warn("a link was refused: %s", err.msg);
        return 0; /* the task's own connection will hear why */
    }
    m->used_usec = vg_now_usec();
    *n_fds = 0;
    int r = vg_machine_link(m->m, fds[0], t->task);
    if (r < 0)
        vg_warn("a link was refused: %s", strerror(-r));
    return 0;
}

static int on_peer(struct fsd *d, int *fds, size_t *n_fds) {
    if (*n_fds != 1)
        return -EBADMSG;
    *n_fds = 0;
    int r = vg_peers_add(d->peers, fds[0]);
    if (r < 0 && r != -EBUSY)
        vg_warn("a link to another node was refused: %s", strerror(-r));
    return 0;
}

/* Also when files are let go that are only held because they may be wanted again. What running
   tasks used they could not get back from a disk that has no room: it stays theirs then. */
static bool is_full(struct fsd *d) {
    if (!vg_cache_full(d->cache))
        return false;
    bool limit_only = !vg_cache_disk_full(d->cache);
    for (size_t i = 0; i < d->n_machines; i++)
        vg_machine_let_go(d->machines[i]->m, limit_only);
    return vg_cache_full(d->cache);
}

static int on_task(struct fsd *d, struct fsd_conn *c, const struct vg_fsd_task *t) {
    struct vg_err err = VG_ERR_INIT;
    if (c->holds)
        return -EBADMSG;
    if (d->stopping || is_full(d)) {
        send_text(c, VG_FSD_FAILED, ENOSPC, d->stopping ? VG_UNAVAILABLE : VG_DISK_FULL,
                  d->stopping ? "the node is going down"
                              : "the node's disk is full: it takes no task with files of another "
                                "machine until there is room");
        return 0;
    }
    static const uint8_t none[VG_MID];
    bool apart =
        memcmp(t->project, none, VG_MID) != 0 && memcmp(t->project, t->machine, VG_MID) != 0;
    struct fsd_machine *m = have_machine(d, t->machine, &err);
    struct fsd_machine *p = m && apart ? have_machine(d, t->project, &err) : NULL;
    if (!m || (apart && !p)) {
        send_text(c, VG_FSD_FAILED, -err.code, err.reason, err.msg);
        return 0;
    }
    pthread_mutex_lock(&d->lock);
    bool taken = keeper_of(d, m, t->task) || (p && keeper_of(d, p, t->task));
    if (!taken) {
        c->machine = m;
        c->project = p;
        c->task = t->task;
        c->holds = true;
    }
    pthread_mutex_unlock(&d->lock);
    int r = taken ? -EEXIST : vg_machine_task(m->m, t->task, t->flags & VG_FSD_ON_DISK);
    if (r >= 0 && p && (r = vg_machine_task(p->m, t->task, false)) < 0)
        vg_machine_gone(m->m, t->task);
    if (r < 0) {
        c->holds = false;
        send_text(c, VG_FSD_FAILED, -r, VG_CONFLICT, "the task is on this node already");
    }
    return 0;
}

static int on_barrier(struct fsd *d, struct fsd_conn *c) {
    struct fsd_machine *both[] = {c->machine, c->project};
    if (!c->holds)
        return -EBADMSG;
    pthread_mutex_lock(&d->lock);
    c->barriers = c->project ? 2 : 1;
    pthread_mutex_unlock(&d->lock);
    for (size_t i = 0; i < VG_COUNT(both); i++) {
        int r = both[i] ? vg_machine_barrier(both[i]->m, c->task, on_safe) : 0;
        if (r < 0)
            on_safe(both[i], c->task, r, "the node cannot wait for its writes");
    }
    return 0;
}

static int on_keep(struct fsd *d, struct fsd_conn *c, const struct vg_fsd_head *head, int *fds,
                   size_t *n_fds) {
    if (!c->holds || *n_fds != 2)
        return -EBADMSG;
    *n_fds = 0;
    int r = vg_machine_keep(c->machine->m, c->task, fds[0], fds[1], d->packet, head->len);
    if (r < 0)
        vg_warn("task=%llx its changes cannot be kept: %s", (unsigned long long)c->task,
                strerror(-r));
    return r;
}

static int on_ended(struct fsd_conn *c) {
    if (!c->holds)
        return -EBADMSG;
    vg_machine_ended(c->machine->m, c->task);
    if (c->project)
        vg_machine_ended(c->project->m, c->task);
    return 0;
}

static char *status_text(struct fsd *d) {
    struct vg_buf cache = {0}, peers = {0};
    json_t *machines = json_array();
    size_t tasks = 0;
    for (size_t i = 0; i < d->n_machines; i++) {
        tasks += vg_machine_tasks(d->machines[i]->m);
        json_array_append_new(machines, vg_machine_json(d->machines[i]->m));
    }
    json_t *j = json_pack("{s:s, s:I, s:I, s:I, s:b, s:o}", "node", d->node, "slot",
                          (json_int_t)d->slot, "pid", (json_int_t)getpid(), "tasks",
                          (json_int_t)tasks, "stopping", d->stopping, "machines", machines);
    if (vg_cache_json(d->cache, &cache) >= 0)
        json_object_set_new(j, "cache",
                            json_loadb((char *)vg_buf_data(&cache), vg_buf_len(&cache), 0, NULL));
    if (vg_peers_json(d->peers, &peers) >= 0)
        json_object_set_new(j, "peers",
                            json_loadb((char *)vg_buf_data(&peers), vg_buf_len(&peers), 0, NULL));
    vg_buf_done(&cache);
    vg_buf_done(&peers);
    char *text = j ? json_dumps(j, JSON_COMPACT) : NULL;
    json_decref(j);
    return text;
}

static int on_status(struct fsd *d, struct fsd_conn *c) {
    vg_auto_free char *text = status_text(d);
    if (!text)
        return -ENOMEM;
    return vg_fsd_send(c->fd, VG_FSD_STATUS_TEXT, text,
                       VG_MIN(strlen(text), sizeof(d->packet) - sizeof(struct vg_fsd_head)), NULL,
                       0);
}

int vg_fsd_packet(struct fsd *d, struct fsd_conn *c, const struct vg_fsd_head *head, int *fds,
                  size_t *n_fds) {
    struct vg_fsd_task t;
    bool has_task = head->len == sizeof(t);
    if (has_task)
        memcpy(&t, d->packet, sizeof(t));
    switch (head->kind) {
    case VG_FSD_LINK:
        return has_task ? on_link(d, &t, fds, n_fds) : -EBADMSG;
    case VG_FSD_TASK:
        return has_task ? on_task(d, c, &t) : -EBADMSG;
    case VG_FSD_KEEP:
        return on_keep(d, c, head, fds, n_fds);
    case VG_FSD_BARRIER:
        return on_barrier(d, c);
    case VG_FSD_ENDED:
        return on_ended(c);
    case VG_FSD_STATUS:
        return on_status(d, c);
    case VG_FSD_PEER:
        return on_peer(d, fds, n_fds);
    case VG_FSD_STOP:
        d->stopping = true;
        return 0;
    default:
        return -EBADMSG;
    }
}
