/* The keeper process: birth by fork, the epoll loop, the agent's packets, deadlines, the end.
   One thread. See keeper-int.h for what always holds. */
#include "agent/keeper-int.h"
#include "base/cleanup.h"
#include "base/log.h"
#include "base/util.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>

#define EVENTS 32
#define AGENT_SNDBUF (1 << 20)
#define NO_LIMIT_LEASE 0 /* a lease file that was never written: no control plane yet */

void keeper_watch(struct keeper *k, struct source *s, uint32_t events) {
    if (s->fd < 0 || s->events == events)
        return;
    struct epoll_event ev = {.events = events, .data.ptr = s};
    int op = s->events ? EPOLL_CTL_MOD : EPOLL_CTL_ADD;
    if (epoll_ctl(k->epoll, op, s->fd, &ev) < 0)
        vg_error("keeper: epoll: errno=%d", errno);
    else
        s->events = events;
}

void keeper_unwatch(struct keeper *k, struct source *s) {
    if (s->fd >= 0 && s->events)
        epoll_ctl(k->epoll, EPOLL_CTL_DEL, s->fd, NULL);
    s->events = 0;
}

void keeper_close(struct keeper *k, struct source *s) {
    keeper_unwatch(k, s);
    vg_close(&s->fd);
}

int keeper_tell(struct keeper *k, enum vg_kpkt_kind kind, uint64_t id, uint64_t a, uint64_t b,
                const void *payload, size_t len, const int *fds, size_t n_fds) {
    if (k->agent.fd < 0)
        return -ENOTCONN;
    int r = vg_kpkt_send(k->agent.fd, kind, id, a, b, payload, len, fds, n_fds);
    if (r == -EAGAIN || r == -ENOBUFS) {
        keeper_watch(k, &k->agent, EPOLLIN | EPOLLOUT);
        return -EAGAIN;
    }
    return r;
}

void keeper_flush_agent(struct keeper *k) {
    if (k->agent.fd < 0)
        return;
    vg_list_for_each (it, &k->tasks) {
        struct ktask *t = vg_list_entry(it, struct ktask, link);
        if (klog_send(k, t) == -EAGAIN)
            return;
        /* The end is told when the log has everything (K2). */
        if (t->state_dirty && (t->state != KT_EXITED || klog_done(k, t))) {
            if (ktask_report(k, t, false) == -EAGAIN)
                return;
            t->state_dirty = false;
        }
    }
    keeper_watch(k, &k->agent, EPOLLIN);
}

/* ---- the agent's packets ---- */

static void on_start(struct keeper *k, const struct vg_kpkt *p, int *fds, size_t n) {
    int got[3] = {-1, -1, -1}; /* channel, cwd, stdin */
    size_t at = 1;
    for (int i = 0; i < 3; i++)
        if (p->a >> i & 1 && at < n)
            got[i] = vg_take_fd(fds[at++]);
    if (n < 1)
        return;
    ktask_start(k, vg_take_fd(fds[0]), p->b, got[0], got[1], got[2], k->pkt, p->len);
    keeper_flush_agent(k);
}

static void on_forward(struct keeper *k, const struct vg_kpkt *p) {
    int fd = k->sb && !k->building ? vg_sandbox_connect(k->sb, (uint16_t)p->a) : -ECONNREFUSED;
    uint64_t e = fd < 0 ? (uint64_t)-fd : 0;
    if (keeper_tell(k, VG_K_FORWARDED, 0, e, p->b, NULL, 0, &fd, fd < 0 ? 0 : 1) < 0)
        vg_debug("keeper: a forward found no way back");
    vg_close(&fd);
}

static void on_packet(struct keeper *k, const struct vg_kpkt *p, int *fds, size_t n_fds) {
    struct ktask *t = p->id ? ktask_find(k, p->id) : NULL;
    switch ((enum vg_kpkt_kind)p->kind) {
    case VG_K_START:
        on_start(k, p, fds, n_fds);
        break;
    case VG_K_ATTACH:
        if (t && n_fds >= 1)
            kchan_new(k, t, vg_take_fd(fds[0]), p->a & 1, p->a & 2);
        break;
    case VG_K_KILL:
        if (t) {
            char text[200] = "";
            memcpy(text, k->pkt, VG_MIN((size_t)p->len, sizeof(text) - 1));
            ktask_kill(k, t, (int)p->a, p->b, text);
        }
        break;
    case VG_K_LOG_ACK:
        if (t) {
            if (p->a > 1)
                klog_again(t, p->b, (uint32_t)p->a);
            else if (p->a) /* the control plane is new: what it did not acknowledge goes again */
                klog_restart(t);
            else
                klog_acked(k, t, p->b);
            keeper_flush_agent(k);
        }
        break;
    case VG_K_EXIT_ACK:
        if (t && t->finished)
            t->exit_acked = true;
        break;
    case VG_K_FORWARD:
        on_forward(k, p);
        break;
    case VG_K_KEEP:
        k->keep_usec = p->b;
        if (p->b == 0) {
            k->session_until = 0;
            vg_list_for_each_safe (it, &k->tasks) {
                struct ktask *each = vg_list_entry(it, struct ktask, link);
                ktask_kill(k, each, SIGHUP, HANGUP_GRACE, "its session was ended");
            }
        }
        break;
    case VG_K_AUDIT:
        if (t)
            kgpu_audit(k, t, p->b);
        break;
    case VG_K_SLICE:
        if (t)
            kgpu_slice(t, (uint32_t)p->a);
        break;
    case VG_K_SHARE:
        if (t && n_fds >= 1)
            ktask_share(t, vg_take_fd(fds[0]));
        break;
    case VG_K_LIMITS:
        k->birth.log_head_bytes = p->a;
        k->birth.log_tail_bytes = p->b;
        break;
    default:
        break;
    }
}

static void agent_lost(struct keeper *k) {
    keeper_close(k, &k->agent);
    if (!k->had_task && !k->session_key[0])
        k->leaving = true;
}

static void agent_ready(struct keeper *k, void *obj, uint32_t events) {
    (void)obj;
    (void)events;
    for (int i = 0; i < 16; i++) {
        struct vg_kpkt p;
        int fds[VG_FDS_MAX];
        size_t n = VG_FDS_MAX;
        ssize_t r = vg_kpkt_recv(k->agent.fd, &p, k->pkt, fds, &n);
        if (r == -EAGAIN)
            break;
        if (r < 0) {
            agent_lost(k);
            return;
        }
        on_packet(k, &p, fds, n);
        for (size_t j = 0; j < n; j++)
            vg_close(&fds[j]);
        if (k->agent.fd < 0)
            return;
    }
    keeper_flush_agent(k);
}

/* Another agent comes: it is root, or it is nobody. It hears everything from the beginning. */
static void adopt(struct keeper *k, int fd) {
    struct ucred cred;
    socklen_t len = sizeof(cred);
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &len) < 0 || cred.uid != geteuid()) {
        close(fd);
        return;
    }
    keeper_close(k, &k->agent);
    vg_set_nonblock(fd, true);
    int big = AGENT_SNDBUF;
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &big, sizeof(big));
    k->agent = (struct source){.fn = agent_ready, .fd = fd};
    keeper_watch(k, &k->agent, EPOLLIN);
    struct vg_kinfo info = {.pid = (uint32_t)getpid(),
                            .net_slot = k->birth.net_slot,
                            .has_session = k->session_key[0] != 0,
                            .slot = k->birth.profile.slot};
    snprintf(info.session_key, sizeof(info.session_key), "%s", k->session_key);
    snprintf(info.name, sizeof(info.name), "k%u", k->birth.serial);
    vg_list_for_each (it, &k->tasks)
        info.tasks++;
    keeper_tell(k, VG_K_HELLO, 0, 0, 0, &info, sizeof(info), NULL, 0);
    vg_list_for_each (it, &k->tasks) {
        struct ktask *t = vg_list_entry(it, struct ktask, link);
        klog_restart(t);
        t->shared = (struct vg_kshared){0};
        ktask_report(k, t, true);
        if (t->state == KT_EXITED)
            t->state_dirty = true;
    }
    keeper_tell(k, VG_K_REPORTED, 0, 0, 0, NULL, 0, NULL, 0);
    keeper_flush_agent(k);
}

static void listen_ready(struct keeper *k, void *obj, uint32_t events) {
    (void)obj;
    (void)events;
    int fd = accept4(k->listen.fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd >= 0)
        adopt(k, fd);
}

static void sandbox_ready(struct keeper *k, void *obj, uint32_t events) {
    (void)obj;
    (void)events;
    struct vg_sandbox_event ev;
    int r;
    while ((r = vg_sandbox_next_event(k->sb, &ev)) == 1) {
        ktask_event(k, &ev);
        if (ev.kind == VG_SB_DEAD)
            break;
    }
    if (r < 0) { /* init cannot be heard any more: as good as dead */
        vg_sandbox_kill_all(k->sb);
        ktask_event(k, &(struct vg_sandbox_event){.kind = VG_SB_DEAD});
    }
    if (k->sb_dead)
        keeper_unwatch(k, &k->sandbox);
}

/* ---- deadlines ---- */

static uint64_t lease_until(const struct keeper *k) {
    uint64_t v = k->lease ? *k->lease : NO_LIMIT_LEASE;
    return v == NO_LIMIT_LEASE ? KEEPER_NEVER : v;
}

static bool any_unfinished(struct keeper *k) {
    vg_list_for_each (it, &k->tasks)
        if (!vg_list_entry(it, struct ktask, link)->wait_known)
            return true;
    return false;
}

/* Acts on what is due and returns when the next thing is. */
static uint64_t deadlines(struct keeper *k) {
    uint64_t now = vg_now_usec(), next = KEEPER_NEVER;
    bool lease_over = any_unfinished(k) && now >= lease_until(k);
    if (any_unfinished(k) && !lease_over)
        next = lease_until(k);
    vg_list_for_each_safe (it, &k->tasks) {
        struct ktask *t = vg_list_entry(it, struct ktask, link);
        if (lease_over && !t->wait_known) {
            t->lost = true;
            ktask_kill(k, t, SIGKILL, 0, "the node lost contact with the control plane");
        }
        if (now >= t->kill_at) {
            t->kill_at = KEEPER_NEVER;
            ktask_kill(k, t, SIGKILL, 0, NULL);
        }
        if (t->held && now >= t->hold_until) {
            t->held = false;
            t->detached = true;
            t->hold_until = KEEPER_NEVER;
            if (!t->wait_known)
                ktask_kill(k, t, SIGHUP, HANGUP_GRACE, "its client did not come back");
            ktask_pace(k, t);
        }
        next = VG_MIN(next, VG_MIN(t->kill_at, t->hold_until));
        next = VG_MIN(next, kmirror_deadline(k, t, now));
        next = VG_MIN(next, kgpu_deadline(k, t, now));
    }
    if (k->session_key[0] && vg_list_empty(&k->tasks))
        next = VG_MIN(next, k->session_until);
    return next;
}

/* ---- life ---- */

/* The task has ended and its client has everything. */
static bool task_delivered(const struct ktask *t) {
    if (!t->finished || t->held)
        return false;
    if (!t->owner)
        return true;
    bool sent = t->owner->exit_sent && vg_buf_len((struct vg_buf *)&t->owner->out) == 0;
    return sent && (t->owner->local || t->owner->acked == t->ring.end);
}

static void bury(struct keeper *k) {
    vg_list_for_each_safe (it, &k->tasks) {
        struct ktask *t = vg_list_entry(it, struct ktask, link);
        if (!t->exit_acked || !task_delivered(t))
            continue;
        ktask_free(k, t);
        if (vg_list_empty(&k->tasks) && k->session_key[0]) {
            k->session_until = k->session_until == 0 ? 0 : vg_now_usec() + k->keep_usec;
            keeper_tell(k, VG_K_IDLE, 0, 0, 0, NULL, 0, NULL, 0);
        }
    }
    vg_list_for_each_safe (it, &k->graves) {
        struct kchan *c = vg_list_entry(it, struct kchan, link);
        vg_list_remove(&c->link);
        vg_buf_done(&c->in);
        vg_buf_done(&c->out);
        free(c);
    }
}

static bool may_leave(struct keeper *k) {
    if (!vg_list_empty(&k->tasks))
        return false;
    if (k->leaving)
        return true;
    if (k->session_key[0])
        return k->sb_dead || vg_now_usec() >= k->session_until;
    return k->had_task;
}

static int to_msec(uint64_t until) {
    if (until == KEEPER_NEVER)
        return -1;
    uint64_t now = vg_now_usec();
    if (until <= now)
        return 0;
    uint64_t ms = (until - now) / 1000 + 1;
    return ms > 60000 ? 60000 : (int)ms;
}

/* Nothing runs and no client is owed anything; acknowledgements may still be on their way. */
static bool all_ended(struct keeper *k) {
    vg_list_for_each (it, &k->tasks)
        if (!task_delivered(vg_list_entry(it, struct ktask, link)))
            return false;
    return true;
}

/* A sandbox that its task left as it was serves the same user again, even before the end of that
   task is stored: its record stays here until then. */
static void offer_again(struct keeper *k) {
    if (!k->had_task || k->spent || k->leaving || k->session_key[0] || k->sb_dead ||
        k->agent.fd < 0 || !all_ended(k))
        return;
    if (vg_sandbox_recycle(k->sb) && keeper_tell(k, VG_K_READY, 0, 1, 0, NULL, 0, NULL, 0) >= 0)
        k->had_task = false;
    else
        k->spent = true;
}

int keeper_turn(struct keeper *k, bool wait) {
    struct epoll_event ev[EVENTS];
    if (may_leave(k))
        return -1;
    int until = to_msec(deadlines(k));
    int n = epoll_wait(k->epoll, ev, EVENTS, wait ? until : 0);
    for (int i = 0; i < n; i++) {
        struct source *s = ev[i].data.ptr;
        if (s->fn && s->fd >= 0)
            s->fn(k, s->obj, ev[i].events);
    }
    bury(k);
    offer_again(k);
    return VG_MAX(n, 0);
}

static void map_lease(struct keeper *k) {
    vg_auto_fd int fd = open(k->birth.lease_path, O_RDONLY | O_CLOEXEC);
    struct stat st;
    if (fd < 0 || fstat(fd, &st) < 0 || st.st_size < 8)
        return;
    void *p = mmap(NULL, 8, PROT_READ, MAP_SHARED, fd, 0);
    k->lease = p == MAP_FAILED ? NULL : p;
}

static void keeper_end(struct keeper *k) {
    unlink(k->sock_path);
    if (k->sb)
        vg_sandbox_destroy(k->sb);
    keeper_tell(k, VG_K_GONE, 0, k->birth.net_slot, 0, NULL, 0, NULL, 0);
    _exit(0);
}

int keeper_init(struct keeper *k, const struct vg_keeper_birth *birth, int agent_fd) {
    *k = (struct keeper){.birth = *birth,
                         .agent = {.fn = agent_ready, .fd = agent_fd},
                         .listen = {.fd = -1},
                         .sandbox = {.fd = -1},
                         .session_until = KEEPER_NEVER};
    vg_list_init(&k->tasks);
    vg_list_init(&k->graves);
    k->pkt = malloc(VG_KPKT_MAX);
    k->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (!k->pkt || k->epoll < 0)
        return -ENOMEM;
    keeper_watch(k, &k->agent, EPOLLIN);
    return 0;
}

void keeper_use(struct keeper *k) {
    k->sandbox = (struct source){.fn = sandbox_ready, .fd = vg_sandbox_fd(k->sb)};
    keeper_watch(k, &k->sandbox, EPOLLIN);
}

void keeper_prepared(struct keeper *k, struct vg_sandbox *sb) {
    k->sb = sb;
    if (sb)
        keeper_use(k);
    keeper_tell(k, VG_K_READY, 0, 0, 0, NULL, 0, NULL, 0);
}

static void keeper_main(const struct vg_keeper_birth *birth, int agent_fd) {
    struct keeper k;
    struct vg_sandbox *sb = NULL;
    char name[32];
    struct vg_err err = VG_ERR_INIT;
    prctl(PR_SET_NAME, "virga-keeper");
    signal(SIGPIPE, SIG_IGN);
    signal(SIGTERM, SIG_IGN);
    signal(SIGINT, SIG_IGN);
    signal(SIGHUP, SIG_IGN);
    int r = keeper_init(&k, birth, agent_fd);
    snprintf(k.sock_path, sizeof(k.sock_path), "%s/%u.sock", birth->keepers_dir, birth->serial);
    int lfd = vg_unix_listen(k.sock_path, SOCK_SEQPACKET, 0600);
    if (r < 0 || lfd < 0) {
        const char *text = "cannot set up a keeper: no memory or no room in the node's folder";
        keeper_tell(&k, VG_K_FAILED, 0, 0, 0, text, strlen(text), NULL, 0);
        _exit(1);
    }
    k.listen = (struct source){.fn = listen_ready, .fd = lfd};
    keeper_watch(&k, &k.listen, EPOLLIN);
    map_lease(&k);
    snprintf(name, sizeof(name), "k%u", birth->serial);
    if (!birth->fs.dir && vg_sandbox_prepare(birth->node, &birth->profile, name, &sb, &err) < 0) {
        keeper_tell(&k, VG_K_FAILED, 0, 0, 0, err.msg, strlen(err.msg), NULL, 0);
        unlink(k.sock_path);
        _exit(1);
    }
    keeper_prepared(&k, sb);
    while (keeper_turn(&k, true) >= 0)
        ;
    keeper_end(&k);
}

int vg_keeper_spawn(const struct vg_keeper_birth *birth,
                    void (*close_in_child)(int keep_fd, void *user), void *user, pid_t *ret_pid,
                    int *ret_fd, struct vg_err *err) {
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) < 0)
        return vg_err_sys(err, errno, "cannot make a socket pair for a keeper");
    int big = AGENT_SNDBUF;
    setsockopt(pair[1], SOL_SOCKET, SO_SNDBUF, &big, sizeof(big));
    pid_t pid = _Fork(); /* without the handlers of libraries: the keeper uses no loop of theirs */
    if (pid < 0) {
        int e = errno;
        close(pair[0]);
        close(pair[1]);
        return vg_err_sys(err, e, "cannot fork a keeper");
    }
    if (pid == 0) {
        /* The agent's signal mask and handlers are not ours. */
        sigset_t none;
        sigemptyset(&none);
        for (int s = 1; s < 32; s++)
            if (s != SIGKILL && s != SIGSTOP)
                signal(s, SIG_DFL);
        sigprocmask(SIG_SETMASK, &none, NULL);
        setsid();
        close(pair[0]);
        if (close_in_child)
            close_in_child(pair[1], user);
        keeper_main(birth, pair[1]);
        _exit(0);
    }
    close(pair[1]);
    *ret_pid = pid;
    *ret_fd = pair[0];
    return 0;
}
