/* Keepers as the agent sees them: their life, packets to and from them. Loop thread.

       ADOPTED ──reported──────────────┐
                                       ▼
       PREPARING ──READY──▶ READY ──start──▶ BUSY ──GONE or end of its socket──▶ freed
            │                 └──dismiss──▶ LEAVING ──────────────────────────▶ freed
            └──FAILED──────────────────────▶ LEAVING
*/
#include "agent/agent-keepers.h"

#include "base/log.h"
#include "base/mem.h"
#include "base/util.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define PACKETS_A_TURN 64
#define OUT_PACKETS_MAX 4096

struct packet {
    struct vg_list link;
    struct vg_kpkt head;
    int fds[VG_FDS_MAX]; /* owned duplicates */
    size_t n_fds;
    uint8_t payload[];
};

static void on_poll(uv_poll_t *poll, int status, int events);

/* ------------------------------------------------------------------ objects */

struct vg_agent_keeper *vg_keeper_new(struct vg_agent *a) {
    struct vg_agent_keeper *k = vg_alloc(sizeof(*k));
    if (!k)
        return NULL;
    k->agent = a;
    k->fd = -1;
    k->net_slot = UINT32_MAX;
    vg_list_init(&k->link);
    vg_list_init(&k->ready_link);
    vg_list_init(&k->tasks);
    vg_list_init(&k->waiting);
    vg_list_init(&k->out);
    return k;
}

static void keeper_poll(struct vg_agent_keeper *k) {
    int events = k->ended ? 0 : k->agent->paused && k->state == VG_KEEPER_BUSY ? 0 : UV_READABLE;
    if (!k->ended && !vg_list_empty(&k->out))
        events |= UV_WRITABLE;
    if (events == k->events)
        return;
    k->events = events;
    if (events)
        uv_poll_start(&k->poll, events, on_poll);
    else
        uv_poll_stop(&k->poll);
}

int vg_keeper_watch(struct vg_agent_keeper *k) {
    struct vg_agent *a = k->agent;
    int r = uv_poll_init(&a->loop, &k->poll, k->fd);
    if (r < 0)
        return r;
    k->poll.data = k;
    vg_list_push_back(&a->keepers, &k->link);
    a->n_keepers++;
    keeper_poll(k);
    return 0;
}

static void packet_free(struct packet *p) {
    vg_list_remove(&p->link);
    for (size_t i = 0; i < p->n_fds; i++)
        close(p->fds[i]);
    free(p);
}

static void on_closed(uv_handle_t *h) {
    struct vg_agent_keeper *k = h->data;
    close(k->fd);
    free(k->session);
    free((char *)k->key.home);
    free(k);
}

void vg_keeper_unlend(struct vg_agent_keeper *k) {
    if (!k->lent)
        return;
    vg_list_remove(&k->ready_link);
    k->lent->n_lent--;
    k->lent = NULL;
}

static void leave_pool(struct vg_agent_keeper *k) {
    struct vg_warm_profile *p = k->profile;
    vg_keeper_unlend(k);
    if (k->state == VG_KEEPER_PREPARING)
        k->agent->n_preparing--;
    if (!p)
        return;
    if (k->state == VG_KEEPER_PREPARING)
        p->n_preparing--;
    if (k->state == VG_KEEPER_READY)
        p->n_ready--;
    vg_list_remove(&k->ready_link);
    k->profile = NULL;
}

void vg_keeper_set_state(struct vg_agent_keeper *k, enum vg_keeper_state state) {
    if (state == VG_KEEPER_READY) {
        k->agent->n_preparing--;
        if (k->profile) {
            k->profile->n_preparing--;
            k->profile->n_ready++;
            vg_list_push_back(&k->profile->ready, &k->ready_link);
        }
    } else {
        leave_pool(k);
    }
    if (k->state == VG_KEEPER_ADOPTED)
        k->agent->n_adopting--;
    k->state = state;
}

/* ------------------------------------------------------------------ packets out */

static int queue_packet(struct vg_agent_keeper *k, const struct vg_kpkt *head, const void *payload,
                        const int *fds, size_t n_fds) {
    size_t n = 0;
    vg_list_for_each (it, &k->out)
        n++;
    struct packet *p = n < OUT_PACKETS_MAX ? vg_alloc(sizeof(*p) + head->len) : NULL;
    if (!p)
        return -ENOMEM;
    p->head = *head;
    if (head->len)
        memcpy(p->payload, payload, head->len);
    vg_list_push_back(&k->out, &p->link);
    for (; p->n_fds < n_fds; p->n_fds++) {
        p->fds[p->n_fds] = fcntl(fds[p->n_fds], F_DUPFD_CLOEXEC, 3);
        if (p->fds[p->n_fds] < 0) {
            int r = -errno;
            packet_free(p);
            return r;
        }
    }
    keeper_poll(k);
    return 0;
}

int vg_keeper_send(struct vg_agent_keeper *k, enum vg_kpkt_kind kind, uint64_t id, uint64_t x,
                   uint64_t y, const void *payload, size_t len, const int *fds, size_t n_fds) {
    if (k->dead || k->ended || k->state == VG_KEEPER_LEAVING)
        return -EPIPE;
    int r = -EAGAIN;
    if (vg_list_empty(&k->out))
        r = vg_kpkt_send(k->fd, kind, id, x, y, payload, len, fds, n_fds);
    if (r != -EAGAIN && r != -ENOBUFS)
        return r;
    struct vg_kpkt head = {.kind = kind, .len = (uint32_t)len, .id = id, .a = x, .b = y};
    return queue_packet(k, &head, payload, fds, n_fds);
}

static void flush_out(struct vg_agent_keeper *k) {
    struct vg_list *first;
    while ((first = vg_list_first(&k->out))) {
        struct packet *p = vg_list_entry(first, struct packet, link);
        int r = vg_kpkt_send(k->fd, p->head.kind, p->head.id, p->head.a, p->head.b, p->payload,
                             p->head.len, p->fds, p->n_fds);
        if (r == -EAGAIN || r == -ENOBUFS)
            break;
        packet_free(p);
    }
    keeper_poll(k);
}

struct vg_agent_keeper *vg_keepers_session(struct vg_agent *a, const char *key) {
    return vg_map_get(&a->sessions, key);
}

/* ------------------------------------------------------------------ the end of a keeper */

static bool is_live(const char *name, void *user) {
    struct vg_agent *a = user;
    vg_list_for_each (it, &a->keepers) {
        struct vg_agent_keeper *k = vg_list_entry(it, struct vg_agent_keeper, link);
        if (strcmp(k->name, name) == 0)
            return true;
    }
    return false;
}

void vg_keepers_sweep(struct vg_agent *a) {
    vg_sandbox_sweep(a->node, is_live, a);
}

static void end_session(struct vg_agent_keeper *k) {
    struct vg_agent *a = k->agent;
    if (!k->session || vg_map_get(&a->sessions, k->session) != k)
        return;
    vg_map_del(&a->sessions, k->session);
    Vg__Pb__SessionEnded ended = VG__PB__SESSION_ENDED__INIT;
    Vg__Pb__Envelope env = VG__PB__ENVELOPE__INIT;
    ended.key = k->session;
    env.body_case = VG__PB__ENVELOPE__BODY_SESSION_ENDED;
    env.session_ended = &ended;
    vg_link_send(a, &env);
}

void vg_keepers_end_session(struct vg_agent *a, const char *key) {
    struct vg_agent_keeper *k = vg_map_get(&a->sessions, key);
    if (!k)
        return;
    vg_keeper_send(k, VG_K_KEEP, 0, 0, 0, NULL, 0, NULL, 0);
    /* It leaves in its own time; whoever names the session from now on begins a new one. */
    if (vg_list_empty(&k->tasks) && vg_list_empty(&k->waiting))
        end_session(k);
}

static void unlink_socket(struct vg_agent *a, uint32_t serial) {
    char path[4096];
    snprintf(path, sizeof(path), "%s/%u.sock", a->keepers_dir, serial);
    unlink(path);
}

void vg_keeper_gone(struct vg_agent_keeper *k, bool orderly) {
    struct vg_agent *a = k->agent;
    if (k->dead)
        return;
    bool preparing = k->state == VG_KEEPER_PREPARING;
    vg_keeper_set_state(k, VG_KEEPER_LEAVING);
    k->dead = true;
    vg_list_remove(&k->link);
    a->n_keepers--;
    uv_poll_stop(&k->poll);
    uv_close((uv_handle_t *)&k->poll, on_closed);
    vg_list_for_each_safe (it, &k->out)
        packet_free(vg_list_entry(it, struct packet, link));
    if (!orderly) {
        unlink_socket(a, k->serial);
        if (!a->adopted)
            vg_keepers_sweep(a);
    }
    if (k->net_slot != UINT32_MAX && a->net)
        vg_netpool_put(a->net, k->net_slot);
    vg_io_keeper_gone(k);
    end_session(k);
    vg_list_for_each_safe (it, &k->waiting) {
        struct vg_agent_task *t = vg_list_entry(it, struct vg_agent_task, link);
        vg_list_remove(&t->link);
        vg_tasks_fail(a, t, VG_UNAVAILABLE, "the session's sandbox ended before it was ready");
    }
    vg_list_for_each_safe (it, &k->tasks)
        vg_tasks_orphan(a, vg_list_entry(it, struct vg_agent_task, link), orderly);
    if (preparing)
        vg_pool_match_all(a);
    vg_adopt_step(a);
    vg_bare_step(a);
    if (a->stopping && a->n_keepers == 0)
        vg_agent_stopped(a);
}

/* ------------------------------------------------------------------ packets in */

static void on_packet(struct vg_agent_keeper *k, const struct vg_kpkt *p, const uint8_t *data,
                      int *fds, size_t n_fds) {
    switch (p->kind) {
    case VG_K_READY:
        vg_pool_on_ready(k);
        break;
    case VG_K_FAILED:
        vg_pool_on_failed(k, (const char *)data, p->len);
        break;
    case VG_K_HELLO:
        vg_adopt_on_hello(k, data, p->len);
        break;
    case VG_K_STATE:
        vg_tasks_on_state(k, data, p->len, fds, n_fds);
        break;
    case VG_K_LOG:
        vg_tasks_on_log(k, p, data);
        break;
    case VG_K_SHARED:
        vg_share_on_use(k, p, data);
        break;
    case VG_K_FORWARDED:
        vg_io_on_forwarded(k, p, fds, n_fds);
        break;
    case VG_K_REPORTED:
        vg_adopt_on_reported(k);
        break;
    case VG_K_GONE:
        vg_keeper_gone(k, true);
        break;
    case VG_K_IDLE:
        break;
    default:
        vg_debug("keeper %u sent a packet of unknown kind %u", k->serial, p->kind);
    }
}

/* A child is gone when it is reaped: its sandbox may live longer than its socket. */
static void socket_ended(struct vg_agent_keeper *k) {
    if (!k->child) {
        vg_keeper_gone(k, false);
        return;
    }
    k->ended = true;
    keeper_poll(k);
}

/* True when more may wait. */
static bool read_packets(struct vg_agent_keeper *k) {
    struct vg_agent *a = k->agent;
    for (int i = 0; i < PACKETS_A_TURN && !k->dead; i++) {
        struct vg_kpkt head;
        int fds[VG_FDS_MAX];
        size_t n_fds = VG_COUNT(fds);
        ssize_t n = vg_kpkt_recv(k->fd, &head, a->packet, fds, &n_fds);
        if (n == -EAGAIN || n == -EINTR)
            return false;
        if (n < 0) {
            socket_ended(k);
            return false;
        }
        on_packet(k, &head, a->packet, fds, n_fds);
        for (size_t j = 0; j < n_fds; j++)
            vg_close(&fds[j]);
    }
    return !k->dead;
}

static void on_poll(uv_poll_t *poll, int status, int events) {
    struct vg_agent_keeper *k = poll->data;
    if (status < 0)
        events = UV_READABLE;
    if ((events & UV_WRITABLE) && !k->dead)
        flush_out(k);
    if (events & UV_READABLE)
        read_packets(k);
}

void vg_keepers_pause(struct vg_agent *a, bool pause) {
    a->paused = pause;
    vg_list_for_each (it, &a->keepers)
        keeper_poll(vg_list_entry(it, struct vg_agent_keeper, link));
}

void vg_keepers_reap(struct vg_agent *a) {
    pid_t pid;
    int status;
    while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
        vg_list_for_each_safe (it, &a->keepers) {
            struct vg_agent_keeper *k = vg_list_entry(it, struct vg_agent_keeper, link);
            if (k->pid != pid)
                continue;
            while (!k->dead && !k->ended && read_packets(k)) /* its last words */
                ;
            if (!k->dead)
                vg_keeper_gone(k, k->state == VG_KEEPER_LEAVING && status == 0);
            break;
        }
    }
}

void vg_keepers_kill_rest(struct vg_agent *a, bool all) {
    vg_list_for_each_safe (it, &a->keepers) {
        struct vg_agent_keeper *k = vg_list_entry(it, struct vg_agent_keeper, link);
        if (!all && (!vg_list_empty(&k->tasks) || k->state != VG_KEEPER_BUSY))
            continue;
        if (k->pid > 1)
            kill(k->pid, SIGKILL);
        vg_keeper_gone(k, false);
    }
}
