/* A task whose files come from another machine (docs/mirror.md): asks the node's file daemon for
   its mounts, has a sandbox made of them, and holds the task's end back until what it wrote is at
   that machine.

       ASKED ──mounts──▶ MOUNTED ──sandbox ready──▶ RUNS ──command ended──▶ BARRIER ──safe──▶ OVER
         └── failed, killed, too late, daemon gone ── from any of them ─────────────────────▶ OVER

   The connection to the daemon is the task's hold on its views: it closes with the task. Nothing
   here waits, but for the daemon's start (milliseconds). */
#include "agent/keeper-int.h"
#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>

#define TELL_USEC (3 * VG_USEC)           /* a sentence for the person when it takes so long */
#define MOUNTS_USEC (60 * VG_USEC)        /* files of a machine that does not come */
#define BARRIER_USEC (3600 * VG_USEC)     /* the daemon itself gives up much earlier */
#define KILLED_BARRIER_USEC (5 * VG_USEC) /* what a killed task may still write back in */
#define ID_MAX 65535u
#define ID_NOBODY 65534u

static void daemon_ready(struct keeper *k, void *obj, uint32_t events);

static void drop_mounts(struct kmirror *m) {
    for (size_t i = 0; i < m->n_fds; i++)
        vg_close(&m->fds[i]);
    m->n_fds = m->n_views = 0;
}

void kmirror_free(struct keeper *k, struct ktask *t) {
    struct kmirror *m = vg_take_ptr(t->mirror);
    if (!m)
        return;
    keeper_close(k, &m->src);
    drop_mounts(m);
    vg_close(&m->upper_fd);
    vg_close(&m->stdin_fd);
    free(m);
}

bool kmirror_waits(const struct ktask *t) {
    return t->mirror && t->mirror->state < KM_RUNS;
}

/* ---- who the task is inside ---- */

/* Numbers that the kernel has a private one for; of those beyond, the one that nobody has. */
static uint32_t private_id(uint32_t id) {
    return id < ID_MAX ? id : ID_NOBODY;
}

/* The person's own numbers count inside; outside they are all of the private range. What the
   control plane says of this machine counts for folders that the node shares. */
static void take_identity(struct ktask *t) {
    Vg__Pb__MirrorSpec *spec = t->start->spec->mirror;
    Vg__Pb__Identity *who = t->start->who;
    t->mirror->host_uid = who->uid == ID_NOBODY ? 0 : who->uid; /* root is nobody here, too */
    t->mirror->host_gid = who->gid;
    who->uid = private_id(spec->uid);
    who->gid = private_id(spec->gid);
    who->local = false;
    size_t n = spec->n_groups;
    free(who->groups);
    who->groups = vg_take_ptr(spec->groups);
    spec->n_groups = who->n_groups = 0;
    for (size_t i = 0; i < n; i++)
        if (who->groups[i] < ID_MAX)
            who->groups[who->n_groups++] = who->groups[i];
}

/* ---- the daemon ---- */

/* Its files are a copy in the cloud's store: what it changes there is kept, too. */
static bool keeps(const struct ktask *t) {
    const Vg__Pb__MirrorSpec *spec = t->start->spec->mirror;
    return spec->keep_changes || (spec->pin && spec->n_view);
}

static int ask_mounts(struct keeper *k, struct ktask *t, struct vg_err *err) {
    struct kmirror *m = t->mirror;
    struct vg_fsd_task q = {.task = t->id, .attempt = t->attempt};
    memcpy(q.machine, m->machine, sizeof(q.machine));
    /* a session's root outlives the task that it was made for, and with it this place */
    if (keeps(t) && !k->session_key[0])
        q.flags = VG_FSD_ON_DISK;
    memcpy(q.project, m->project, sizeof(q.project));
    int fd = -1, r = vg_fsd_connect(&k->birth.fs, &fd, err);
    if (r < 0)
        return r;
    r = vg_fsd_send(fd, VG_FSD_TASK, &q, sizeof(q), NULL, 0);
    if (r >= 0)
        r = vg_set_nonblock(fd, true);
    if (r < 0) {
        close(fd);
        return vg_err_sys(err, r, "cannot ask the node's file daemon");
    }
    m->src = (struct source){.fn = daemon_ready, .obj = t, .fd = fd};
    keeper_watch(k, &m->src, EPOLLIN);
    return 0;
}

int kmirror_begin(struct keeper *k, struct ktask *t, int stdin_fd, struct vg_err *err) {
    const Vg__Pb__MirrorSpec *spec = t->start->spec->mirror;
    struct kmirror *m = vg_alloc(sizeof(*m));
    t->mirror = m;
    if (!m) {
        vg_close(&stdin_fd);
        return vg_err_sys(err, -ENOMEM, "cannot start the task");
    }
    m->src.fd = m->upper_fd = -1;
    m->stdin_fd = stdin_fd;
    take_identity(t);
    m->since_usec = vg_now_usec();
    if (!k->birth.fs.dir || spec->machine.len != sizeof(m->machine))
        return vg_err_set(err, VG_INVALID, "the task's files come from no machine");
    memcpy(m->machine, spec->machine.data, sizeof(m->machine));
    if (spec->project.len == sizeof(m->project))
        memcpy(m->project, spec->project.data, sizeof(m->project));
    if (k->sb && memcmp(k->machine, m->machine, sizeof(m->machine)) != 0)
        return vg_err_set(err, VG_CONFLICT,
                          "the session has the files of another machine: use another session");
    k->spent = true; /* its sandbox shows one person's machine at one time: never used again */
    return ask_mounts(k, t, err);
}

/* ---- mounts and the sandbox ---- */

/* Absolute, and no way up: it is the client's word where its folders are. */
static bool is_clean(const char *path) {
    if (path[0] != '/' || !path[1])
        return false;
    for (const char *s = path; *s;) {
        size_t n = strcspn(++s, "/");
        if (n == 0 || (s[0] == '.' && (n == 1 || (n == 2 && s[1] == '.'))))
            return false;
        s += n;
    }
    return true;
}

/* Takes a MOUNTS packet apart; what it says is checked like anything that comes from outside. */
static int take_mounts(struct kmirror *m, const uint8_t *data, size_t len, int *fds, size_t n) {
    struct vg_fsd_mounts head;
    if (len < sizeof(head) || len - sizeof(head) > sizeof(m->paths))
        return -EBADMSG;
    memcpy(&head, data, sizeof(head));
    size_t room = len - sizeof(head), at = 0;
    bool on_disk = head.flags & VG_FSD_ON_DISK;
    if (on_disk && n-- == 0)
        return -EBADMSG;
    if (!head.n_lower || head.n_lower > n || head.n_data > n || head.n_views > n ||
        (size_t)head.n_lower + head.n_data + head.n_views != n)
        return -EBADMSG;
    memcpy(m->paths, data + sizeof(head), room);
    for (size_t i = 0; i < head.n_views; i++) {
        const char *nul = at < room ? memchr(m->paths + at, 0, room - at) : NULL;
        if (!nul || !is_clean(m->paths + at))
            return -EBADMSG;
        m->views[i].path = m->paths + at;
        at = (size_t)(nul - m->paths) + 1;
    }
    m->n_lower = head.n_lower;
    m->n_data = head.n_data;
    m->n_views = head.n_views;
    m->n_fds = n;
    m->upper_fd = on_disk ? fds[n] : -1;
    memcpy(m->fds, fds, n * sizeof(*fds));
    for (size_t i = 0; i < m->n_views; i++)
        m->views[i].fd = m->fds[m->n_lower + m->n_data + i];
    return 0;
}

static void built(struct keeper *k, void *obj, uint32_t events);

static int begin_sandbox(struct keeper *k, struct ktask *t, struct vg_err *err) {
    struct kmirror *m = t->mirror;
    char name[32];
    struct vg_sandbox_root root = {.layers = m->fds,
                                   .n_lower = m->n_lower,
                                   .n_data = m->n_data,
                                   .views = m->views,
                                   .n_views = m->n_views,
                                   .on_disk = m->upper_fd >= 0,
                                   .upper = m->upper_fd,
                                   .libraries = k->birth.libraries,
                                   .n_libraries = k->birth.n_libraries,
                                   .uid = t->start->who->uid,
                                   .gid = t->start->who->gid,
                                   .host_uid = m->host_uid,
                                   .host_gid = m->host_gid};
    struct vg_sandbox_profile profile = k->birth.profile;
    profile.root = &root;
    snprintf(name, sizeof(name), "k%u", k->birth.serial);
    int r = vg_sandbox_begin(k->birth.node, &profile, name, &k->sb, err);
    drop_mounts(m); /* the sandbox's own copies count */
    if (r < 0)
        return r;
    k->building = true;
    memcpy(k->machine, m->machine, sizeof(k->machine));
    k->sandbox = (struct source){.fn = built, .fd = vg_sandbox_fd(k->sb)};
    keeper_watch(k, &k->sandbox, EPOLLIN);
    return 0;
}

static void launch(struct keeper *k, struct ktask *t) {
    t->mirror->state = KM_RUNS;
    ktask_launch(k, t, vg_take_fd(t->mirror->stdin_fd), -1);
    if (t->mirror)
        drop_mounts(t->mirror);
}

static void built(struct keeper *k, void *obj, uint32_t events) {
    struct vg_err err = VG_ERR_INIT;
    (void)obj;
    (void)events;
    k->building = false;
    keeper_unwatch(k, &k->sandbox);
    k->sandbox.fd = -1;
    int r = vg_sandbox_await(k->sb, &err);
    if (r < 0)
        vg_sandbox_destroy(vg_take_ptr(k->sb));
    else
        keeper_use(k);
    vg_list_for_each_safe (it, &k->tasks) {
        struct ktask *t = vg_list_entry(it, struct ktask, link);
        if (!t->mirror || t->mirror->state != KM_MOUNTED || t->finished)
            continue;
        if (r < 0)
            ktask_fail(k, t, err.reason ? err.reason : VG_INTERNAL, "%s", err.msg);
        else
            launch(k, t);
    }
}

static void on_mounts(struct keeper *k, struct ktask *t, const uint8_t *data, size_t len, int *fds,
                      size_t n) {
    struct kmirror *m = t->mirror;
    struct vg_err err = VG_ERR_INIT;
    int r = m->state == KM_ASKED ? take_mounts(m, data, len, fds, n) : -EBADMSG;
    if (r < 0) {
        for (size_t i = 0; i < n; i++)
            close(fds[i]);
        ktask_fail(k, t, VG_PROTOCOL, "the node's file daemon sent mounts that make no sense");
        return;
    }
    m->state = KM_MOUNTED;
    if (k->sb && !k->building)
        launch(k, t);
    else if (!k->sb && begin_sandbox(k, t, &err) < 0)
        ktask_fail(k, t, err.reason ? err.reason : VG_INTERNAL, "%s", err.msg);
}

size_t kmirror_binds(const struct ktask *t, struct vg_bind *out, size_t max) {
    size_t n = 0;
    for (; t->mirror && n < t->mirror->n_views && n < max; n++)
        out[n] = (struct vg_bind){
            .path = t->mirror->views[n].path, .fd = t->mirror->views[n].fd, .detached = true};
    return n;
}

/* ---- the end ---- */

static void over(struct keeper *k, struct ktask *t) {
    t->mirror->state = KM_OVER;
    keeper_close(k, &t->mirror->src);
    ktask_finish(k, t);
}

/* What was written is not all where it should be: that is not a success. */
static void not_safe(struct keeper *k, struct ktask *t, int code, const char *text) {
    snprintf(t->text, sizeof(t->text), "%.250s", text);
    if (t->status == 0) {
        t->reason = code == ENOSPC || code == EDQUOT ? VG_DISK_FULL : VG_INTERNAL;
        t->status = vg_reason_exit(t->reason);
    }
    over(k, t);
}

static int upper_of(struct keeper *k, struct ktask *t) {
    int place = t->mirror->upper_fd;
    if (place < 0)
        return vg_sandbox_changes(k->sb);
    int fd = openat(place, "u0", O_PATH | O_DIRECTORY | O_CLOEXEC);
    return fd < 0 ? -errno : fd;
}

/* What it changed goes to the store before the barrier. */
static int keep_changes(struct keeper *k, struct ktask *t) {
    const Vg__Pb__MirrorSpec *spec = t->start->spec->mirror;
    struct vg_buf paths = {0};
    int r = 0;
    if (!keeps(t))
        return 0;
    for (size_t i = 0; r == 0 && !spec->keep_changes && i < spec->n_view; i++) {
        r = vg_buf_append(&paths, spec->view[i]->path.data, spec->view[i]->path.len);
        if (r == 0)
            r = vg_buf_append(&paths, "", 1);
    }
    vg_auto_fd int upper = r == 0 ? upper_of(k, t) : r;
    int fds[2] = {upper, vg_sandbox_merged(k->sb)};
    r = fds[0] < 0   ? fds[0]
        : fds[1] < 0 ? fds[1]
                     : vg_fsd_send(t->mirror->src.fd, VG_FSD_KEEP, vg_buf_data(&paths),
                                   vg_buf_len(&paths), fds, 2);
    vg_buf_done(&paths);
    return r;
}

bool kmirror_settle(struct keeper *k, struct ktask *t) {
    struct kmirror *m = t->mirror;
    if (!m || m->state == KM_OVER)
        return false;
    if (m->state == KM_BARRIER)
        return true;
    bool ran = m->state == KM_RUNS && t->started_usec;
    m->state = KM_OVER;
    if (!ran || m->src.fd < 0) {
        keeper_close(k, &m->src);
        return false;
    }
    if (!k->session_key[0] && !k->sb_dead)
        vg_sandbox_kill_all(k->sb); /* what the command left behind writes no more */
    if (keep_changes(k, t) < 0 || vg_fsd_send(m->src.fd, VG_FSD_ENDED, NULL, 0, NULL, 0) < 0 ||
        vg_fsd_send(m->src.fd, VG_FSD_BARRIER, NULL, 0, NULL, 0) < 0) {
        m->state = KM_BARRIER;
        not_safe(k, t, EIO, "the node's file daemon ended before everything was written back");
        return true;
    }
    m->state = KM_BARRIER;
    m->told = false;
    m->since_usec = vg_now_usec();
    m->until_usec = m->since_usec + (t->killed ? KILLED_BARRIER_USEC : BARRIER_USEC);
    return true;
}

static void on_safe(struct keeper *k, struct ktask *t, const uint8_t *data, size_t len) {
    struct vg_fsd_failed f = {0};
    if (t->mirror->state != KM_BARRIER)
        return;
    memcpy(&f, data, VG_MIN(len, sizeof(f)));
    f.text[sizeof(f.text) - 1] = 0;
    if (f.code)
        not_safe(k, t, f.code, f.text);
    else
        over(k, t);
}

static void on_failed(struct keeper *k, struct ktask *t, const uint8_t *data, size_t len) {
    struct vg_fsd_failed f = {0};
    memcpy(&f, data, VG_MIN(len, sizeof(f)));
    f.text[sizeof(f.text) - 1] = 0;
    enum vg_reason reason = vg_reason_from_wire(f.reason);
    if (t->mirror->state == KM_ASKED)
        ktask_fail(k, t, reason ? reason : VG_INTERNAL, "%s",
                   f.text[0] ? f.text : "the node's file daemon cannot show the task's files");
}

static void daemon_gone(struct keeper *k, struct ktask *t) {
    static const char gone[] = "the node's file daemon ended";
    struct kmirror *m = t->mirror;
    struct vg_err err = VG_ERR_INIT;
    keeper_close(k, &m->src);
    if (m->state == KM_ASKED && !m->again) { /* it may have been leaving when we came */
        m->again = true;
        if (ask_mounts(k, t, &err) < 0)
            ktask_fail(k, t, err.reason, "%s", err.msg);
    } else if (m->state == KM_ASKED || m->state == KM_MOUNTED) {
        ktask_fail(k, t, VG_LOST, "%s", gone);
    } else if (m->state == KM_RUNS) {
        t->lost = true;
        ktask_kill(k, t, SIGKILL, 0, gone);
        vg_sandbox_kill_all(k->sb); /* a session's files are gone with it */
    } else if (m->state == KM_BARRIER) {
        not_safe(k, t, EIO, "the node's file daemon ended before everything was written back");
    }
}

/* ---- packets ---- */

static void on_packet(struct keeper *k, struct ktask *t, const struct vg_fsd_head *head, int *fds,
                      size_t n) {
    const uint8_t *data = k->pkt;
    if (head->kind == VG_FSD_MOUNTS) {
        on_mounts(k, t, data, head->len, fds, n);
        return;
    }
    for (size_t i = 0; i < n; i++)
        close(fds[i]);
    if (head->kind == VG_FSD_SAFE)
        on_safe(k, t, data, head->len);
    else if (head->kind == VG_FSD_FAILED)
        on_failed(k, t, data, head->len);
    else if (head->kind == VG_FSD_NOTE) {
        kchan_note(k, t, "%.*s", (int)VG_MIN(head->len, 300u), (const char *)data);
        snprintf(t->mirror->note, sizeof(t->mirror->note), "%.*s", (int)VG_MIN(head->len, 300u),
                 (const char *)data);
    }
}

static void daemon_ready(struct keeper *k, void *obj, uint32_t events) {
    struct ktask *t = obj;
    (void)events;
    for (int i = 0; i < 16 && t->mirror->src.fd >= 0; i++) {
        struct vg_fsd_head head;
        int fds[VG_FSD_FDS];
        size_t n = VG_COUNT(fds);
        int r = vg_fsd_recv(t->mirror->src.fd, &head, k->pkt, VG_KPKT_MAX, fds, &n);
        if (r == -EAGAIN)
            return;
        if (r <= 0) {
            daemon_gone(k, t);
            return;
        }
        on_packet(k, t, &head, fds, n);
    }
}

/* ---- kills and deadlines ---- */

static bool ends(int signo) {
    return signo == SIGKILL || signo == SIGTERM || signo == SIGINT || signo == SIGHUP ||
           signo == SIGQUIT;
}

bool kmirror_signal(struct keeper *k, struct ktask *t, int signo, uint64_t grace_usec,
                    const char *text) {
    struct kmirror *m = t->mirror;
    if (!m || m->state == KM_RUNS || m->state == KM_OVER)
        return false;
    if (!ends(signo))
        return true;
    if (m->state == KM_BARRIER) {
        uint64_t grace = signo == SIGKILL ? 0 : grace_usec ? grace_usec : KILLED_BARRIER_USEC;
        m->until_usec = VG_MIN(m->until_usec, vg_now_usec() + grace);
        return true;
    }
    if (k->building)
        vg_sandbox_kill_all(k->sb);
    snprintf(t->text, sizeof(t->text), "%s", text ? text : "");
    t->status = 128 + signo;
    t->wait_known = true;
    ktask_finish(k, t);
    return true;
}

uint64_t kmirror_deadline(struct keeper *k, struct ktask *t, uint64_t now) {
    struct kmirror *m = t->mirror;
    if (!m || (m->state != KM_ASKED && m->state != KM_MOUNTED && m->state != KM_BARRIER))
        return KEEPER_NEVER;
    bool barrier = m->state == KM_BARRIER;
    if (!m->told && now >= m->since_usec + TELL_USEC) {
        m->told = true;
        kchan_note(k, t,
                   !barrier ? "waiting for the files of your machine"
                   : t->start->spec->mirror->pin
                       ? "waiting until what the command wrote is in the cloud's store"
                       : "waiting until what the command wrote is at your machine");
    }
    uint64_t until = barrier ? m->until_usec : m->since_usec + MOUNTS_USEC;
    if (now < until)
        return m->told ? until : VG_MIN(until, m->since_usec + TELL_USEC);
    if (barrier)
        not_safe(k, t, EIO, "not everything that the command wrote came back to your machine");
    else if (k->building && m->state == KM_MOUNTED)
        vg_sandbox_kill_all(k->sb); /* its end is the failure */
    else
        ktask_fail(k, t, VG_TIMEOUT,
                   "the files of the task's machine did not come within a minute: is that machine "
                   "connected ('virga mirror status' there)?");
    return KEEPER_NEVER;
}
