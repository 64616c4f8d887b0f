/* Keepers as the agent sees them: finding the living ones, the warm pool, giving tasks to keepers,
   packets to and from them. Loop thread.

       ADOPTED ──reported──────────────┐
                                       ▼
       PREPARING ──READY──▶ READY ──start──▶ BUSY ──GONE or end of its socket──▶ freed
            │                 └──dismiss──▶ LEAVING ──────────────────────────▶ freed
            └──FAILED──────────────────────▶ LEAVING
*/
#include "agent/agent-int.h"

#include "base/cleanup.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/util.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
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
static void keeper_gone(struct vg_agent_keeper *k, bool orderly);
static void match(struct vg_agent *a, struct vg_warm_profile *p);
static void refill_later(struct vg_agent *a, uint64_t ms);

/* ------------------------------------------------------------------ objects */

static struct vg_agent_keeper *keeper_new(struct vg_agent *a) {
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

/* k->fd is set; from here on the keeper is in the list and freed by keeper_gone. */
static int keeper_watch(struct vg_agent_keeper *k) {
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

static void unlend(struct vg_agent_keeper *k) {
    if (!k->lent)
        return;
    vg_list_remove(&k->ready_link);
    k->lent->n_lent--;
    k->lent = NULL;
}

static void leave_pool(struct vg_agent_keeper *k) {
    struct vg_warm_profile *p = k->profile;
    unlend(k);
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

static void set_state(struct vg_agent_keeper *k, enum vg_keeper_state state) {
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

/* ------------------------------------------------------------------ births and the pool */

static struct vg_agent_keeper *spawn(struct vg_agent *a, const struct vg_warm_key *key,
                                     struct vg_warm_profile *p, struct vg_err *err) {
    if (a->n_keepers >= VG_AGENT_KEEPERS_MAX) {
        vg_err_set(err, VG_NO_CAPACITY, "the node already holds %zu sandboxes", a->n_keepers);
        return NULL;
    }
    struct vg_agent_keeper *k = keeper_new(a);
    if (!k) {
        vg_err_sys(err, -ENOMEM, "cannot make a sandbox");
        return NULL;
    }
    k->serial = a->next_serial++;
    snprintf(k->name, sizeof(k->name), "k%u", k->serial);
    int r = vg_keeper_birth(a, key, k, err);
    if (r < 0) {
        free(k);
        return NULL;
    }
    k->state = VG_KEEPER_PREPARING;
    k->child = true;
    k->key = *key;
    k->key.home = vg_strdup(key->home);
    k->has_key = k->key.home || !key->home;
    r = keeper_watch(k);
    if (r < 0) { /* the socket's end tells the child to go */
        vg_err_sys(err, r, "cannot watch a new sandbox");
        close(k->fd);
        if (k->net_slot != UINT32_MAX)
            vg_netpool_put(a->net, k->net_slot);
        free((char *)k->key.home);
        free(k);
        return NULL;
    }
    a->n_preparing++;
    k->profile = p;
    if (p)
        p->n_preparing++;
    return k;
}

static void note_failure(struct vg_warm_profile *p) {
    if (p->failures < 5)
        p->failures++;
    p->retry_usec = vg_now_usec() + (VG_USEC << p->failures);
}

static void send_start(struct vg_agent_keeper *k, struct vg_agent_task *t) {
    int fds[1 + VG_COUNT(t->fds)] = {t->start_fd};
    memcpy(fds + 1, t->fds, t->n_fds * sizeof(int));
    int r = vg_keeper_send(k, VG_K_START, t->id, t->fd_mask, t->start_bytes, t->share.words,
                           t->share.words_len, fds, 1 + t->n_fds);
    if (r < 0) {
        vg_debug("keeper %u took no start: %s", k->serial, strerror(-r));
        keeper_gone(k, true); /* it never got the task: another keeper may */
        return;
    }
    vg_tasks_handed(t);
}

static void hand_over(struct vg_agent_keeper *k, struct vg_agent_task *t) {
    struct vg_agent *a = k->agent;
    struct vg_warm_profile *p = t->session ? NULL : k->profile;
    set_state(k, VG_KEEPER_BUSY);
    if (p) {
        k->lent = p;
        k->lent_usec = vg_now_usec();
        p->n_lent++;
        vg_list_push_back(&p->lent, &k->ready_link);
    }
    k->bound = t->binds;
    vg_list_remove(&t->link);
    t->profile = NULL;
    t->keeper = k;
    t->state = VG_AT_STARTING;
    vg_list_push_back(&k->tasks, &t->link);
    refill_later(a, VG_AGENT_REFILL_MS);
    if (t->gated)
        vg_tasks_ready(a, t);
    else
        send_start(k, t);
}

void vg_keepers_go(struct vg_agent *a, struct vg_agent_task *t) {
    (void)a;
    if (t->keeper)
        send_start(t->keeper, t);
}

/* Takes the first waiting start of a profile out of the queue and fails it. */
static void fail_first(struct vg_agent *a, struct vg_warm_profile *p, const struct vg_err *err) {
    struct vg_list *first = vg_list_first(&p->waiting);
    if (!first)
        return;
    struct vg_agent_task *t = vg_list_entry(first, struct vg_agent_task, link);
    vg_keepers_withdraw(a, t);
    vg_tasks_fail(a, t, err->reason ? err->reason : VG_INTERNAL, err->msg);
}

/* A ready keeper for this task: one that has its folders bound already, else one that has none. */
static struct vg_agent_keeper *pick(struct vg_warm_profile *p, const struct vg_agent_task *t) {
    struct vg_agent_keeper *fresh = NULL;
    vg_list_for_each (it, &p->ready) {
        struct vg_agent_keeper *k = vg_list_entry(it, struct vg_agent_keeper, ready_link);
        if (k->bound == t->binds)
            return k;
        if (!k->bound && !fresh)
            fresh = k;
    }
    return fresh;
}

/* One start that waits, given to a keeper. Giving may fail and come back here, so no place in the
   list is held across it. */
static bool match_one(struct vg_warm_profile *p) {
    vg_list_for_each (it, &p->waiting) {
        struct vg_agent_task *t = vg_list_entry(it, struct vg_agent_task, link);
        struct vg_agent_keeper *k = pick(p, t);
        if (!k)
            continue;
        p->n_waiting--;
        hand_over(k, t);
        return true;
    }
    return false;
}

/* Gives waiting starts to ready keepers and makes more keepers for the rest. */
static void match(struct vg_agent *a, struct vg_warm_profile *p) {
    while (match_one(p))
        ;
    while (p->n_waiting > p->n_preparing && a->n_preparing < VG_AGENT_PREPARING && !a->stopping) {
        struct vg_err err = VG_ERR_INIT;
        if (!spawn(a, &p->key, p, &err))
            fail_first(a, p, &err);
    }
}

/* A keeper that was being prepared is ready or gone: others may take its turn. */
static void match_all(struct vg_agent *a) {
    vg_list_for_each_safe (it, &a->warm.profiles) {
        struct vg_warm_profile *p = vg_list_entry(it, struct vg_warm_profile, link);
        if (p->n_waiting)
            match(a, p);
    }
}

static void dismiss(struct vg_agent_keeper *k) {
    if (!vg_list_empty(&k->tasks)) { /* it still holds the ends of tasks */
        if (k->state != VG_KEEPER_BUSY)
            set_state(k, VG_KEEPER_BUSY);
        k->idle_leaves = true;
        return;
    }
    set_state(k, VG_KEEPER_LEAVING);
    shutdown(k->fd, SHUT_WR); /* it sees its agent gone; its GONE still reaches us */
}

/* Lent keepers count as there: while short tasks follow each other, nothing is made and dismissed.
 */
static bool refill_profile(struct vg_agent *a, struct vg_warm_profile *p) {
    uint64_t now = vg_now_usec();
    for (struct vg_list *it; (it = vg_list_first(&p->lent));) {
        struct vg_agent_keeper *k = vg_list_entry(it, struct vg_agent_keeper, ready_link);
        if (now - k->lent_usec < VG_AGENT_LENT_USEC)
            break;
        unlend(k);
    }
    uint32_t allow = vg_warm_allowance(&a->warm, p), have = p->n_ready + p->n_preparing;
    while (have > allow + p->n_waiting && p->n_ready > 0) { /* the longest unused goes first */
        dismiss(vg_list_entry(vg_list_first(&p->ready), struct vg_agent_keeper, ready_link));
        have--;
    }
    have += p->n_lent;
    if (have >= allow + p->n_waiting || vg_now_usec() < p->retry_usec)
        return false;
    if (a->n_preparing >= VG_AGENT_REFILLING)
        return true;
    struct vg_err err = VG_ERR_INIT;
    if (!spawn(a, &p->key, p, &err)) {
        vg_warn("cannot prepare a sandbox: %s", err.msg);
        note_failure(p);
        return false;
    }
    return have + 1 < allow + p->n_waiting;
}

static void on_refill(uv_timer_t *timer) {
    struct vg_agent *a = timer->data;
    bool more = false;
    if (a->stopping)
        return;
    vg_list_for_each_safe (it, &a->warm.profiles)
        more = refill_profile(a, vg_list_entry(it, struct vg_warm_profile, link)) || more;
    vg_warm_trim(&a->warm);
    bool lent = false;
    vg_list_for_each (it, &a->warm.profiles)
        lent = lent || vg_list_entry(it, struct vg_warm_profile, link)->n_lent > 0;
    if (more && a->n_preparing < VG_AGENT_REFILLING) /* else the next READY brings us back */
        refill_later(a, VG_AGENT_REFILL_MS);
    else if (lent)
        refill_later(a, VG_AGENT_LENT_USEC / 1000);
}

static void refill_later(struct vg_agent *a, uint64_t ms) {
    bool sooner = uv_is_active((uv_handle_t *)&a->refill) && uv_timer_get_due_in(&a->refill) <= ms;
    if (!a->stopping && !sooner)
        uv_timer_start(&a->refill, on_refill, ms, 0);
}

static void on_decay(uv_timer_t *timer) {
    struct vg_agent *a = timer->data;
    bool above = vg_warm_decay(&a->warm, vg_now_usec());
    refill_later(a, 0);
    if (above)
        uv_timer_start(&a->decay, on_decay, VG_WARM_IDLE_USEC / 1000, 0);
}

static void save_profiles(struct vg_agent *a) {
    struct vg_buf text = {0};
    vg_auto_free char *path = vg_agent_path(a, "profiles");
    if (vg_warm_save(&a->warm, &text) == 0 && vg_buf_append(&text, "", 1) == 0 && path &&
        (!a->profiles_saved || strcmp(a->profiles_saved, (char *)vg_buf_data(&text)) != 0)) {
        free(a->profiles_saved);
        a->profiles_saved = vg_strdup((char *)vg_buf_data(&text));
        vg_write_file(path, vg_buf_data(&text), vg_buf_len(&text) - 1, 0600);
    }
    vg_buf_done(&text);
}

/* ------------------------------------------------------------------ starts */

/* The first start of a session: a keeper of its own, now. */
static struct vg_agent_keeper *session_keeper(struct vg_agent *a, struct vg_warm_profile *p,
                                              const char *key, struct vg_err *err) {
    struct vg_agent_keeper *k;
    static const struct vg_agent_task nothing; /* binds nothing: a keeper without binds fits */
    k = p->n_ready > p->n_waiting ? pick(p, &nothing) : NULL;
    if (!k) {
        k = spawn(a, &p->key, NULL, err);
        if (!k)
            return NULL;
    }
    k->session = vg_strdup(key);
    if (!k->session || vg_map_put(&a->sessions, k->session, k) < 0) {
        vg_err_sys(err, -ENOMEM, "cannot open the session");
        return NULL;
    }
    return k;
}

static void submit_session(struct vg_agent *a, struct vg_agent_task *t, struct vg_warm_profile *p) {
    struct vg_err err = VG_ERR_INIT;
    struct vg_agent_keeper *k = vg_map_get(&a->sessions, t->session);
    if (!k)
        k = session_keeper(a, p, t->session, &err);
    if (!k) {
        vg_tasks_fail(a, t, err.reason, err.msg);
        return;
    }
    if (k->state == VG_KEEPER_READY || k->state == VG_KEEPER_BUSY)
        hand_over(k, t);
    else
        vg_list_push_back(&k->waiting, &t->link);
}

void vg_keepers_submit(struct vg_agent *a, struct vg_agent_task *t, const struct vg_warm_key *key) {
    uint64_t now = vg_now_usec();
    struct vg_warm_profile *p = vg_warm_use(&a->warm, key, now);
    if (!p) {
        vg_tasks_fail(a, t, VG_INTERNAL, "the node is out of memory");
        return;
    }
    t->state = VG_AT_WAITING;
    if (t->session) {
        submit_session(a, t, p);
    } else {
        if (p->n_ready <= p->n_waiting) {
            vg_warm_missed(&a->warm, p);
            if (!uv_is_active((uv_handle_t *)&a->decay))
                uv_timer_start(&a->decay, on_decay, VG_WARM_IDLE_USEC / 1000, 0);
        }
        t->profile = p;
        vg_list_push_back(&p->waiting, &t->link);
        p->n_waiting++;
        match(a, p);
    }
    save_profiles(a);
}

void vg_keepers_withdraw(struct vg_agent *a, struct vg_agent_task *t) {
    if (t->gated && t->keeper) { /* it has a keeper that knows nothing of it yet */
        struct vg_agent_keeper *k = t->keeper;
        vg_list_remove(&t->link);
        vg_list_init(&t->link);
        t->keeper = NULL;
        dismiss(k);
        return;
    }
    (void)a;
    if (t->profile)
        t->profile->n_waiting--;
    t->profile = NULL;
    vg_list_remove(&t->link);
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

static void adopted_one(struct vg_agent *a) {
    if (a->n_adopting > 0 || !a->adopted)
        return;
    void (*done)(struct vg_agent *) = a->adopted;
    a->adopted = NULL;
    uv_timer_stop(&a->adopt_timer);
    if (a->net)
        vg_netpool_sweep(a->net);
    vg_sandbox_sweep(a->node, is_live, a);
    done(a);
}

static void unlink_socket(struct vg_agent *a, uint32_t serial) {
    char path[4096];
    snprintf(path, sizeof(path), "%s/%u.sock", a->keepers_dir, serial);
    unlink(path);
}

/* `orderly`: its sandbox is gone and nothing of its unconfirmed starts has run. */
static void keeper_gone(struct vg_agent_keeper *k, bool orderly) {
    struct vg_agent *a = k->agent;
    if (k->dead)
        return;
    bool preparing = k->state == VG_KEEPER_PREPARING;
    set_state(k, VG_KEEPER_LEAVING);
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
            vg_sandbox_sweep(a->node, is_live, a);
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
        match_all(a);
    adopted_one(a);
    vg_bare_step(a);
    if (a->stopping && a->n_keepers == 0)
        vg_agent_stopped(a);
}

/* ------------------------------------------------------------------ packets in */

void vg_keepers_task_forgotten(struct vg_agent_keeper *k) {
    if (k->idle_leaves && vg_list_empty(&k->tasks) && !k->dead && !k->ended)
        dismiss(k);
}

/* A keeper whose task left its sandbox as it was goes back into the pool, for tasks with the same
   folders; but those with none must find one too. */
static void on_again(struct vg_agent_keeper *k) {
    struct vg_agent *a = k->agent;
    unlend(k);
    struct vg_warm_profile *p = k->has_key ? vg_warm_use(&a->warm, &k->key, vg_now_usec()) : NULL;
    if (!p || a->stopping || k->session) {
        dismiss(k);
        return;
    }
    uint32_t allow = vg_warm_allowance(&a->warm, p), bound = 0;
    struct vg_agent_keeper *oldest = NULL;
    vg_list_for_each (it, &p->ready) {
        struct vg_agent_keeper *other = vg_list_entry(it, struct vg_agent_keeper, ready_link);
        if (!other->bound)
            continue;
        bound++;
        if (!oldest)
            oldest = other;
    }
    if (oldest && bound + 1 >= VG_MAX(allow, 2u))
        dismiss(oldest);
    k->state = VG_KEEPER_READY;
    k->profile = p;
    p->n_ready++;
    vg_list_push_back(&p->ready, &k->ready_link);
    match(a, p);
    refill_later(a, VG_AGENT_REFILL_MS);
}

static void on_ready(struct vg_agent_keeper *k) {
    struct vg_agent *a = k->agent;
    if (k->state == VG_KEEPER_BUSY)
        on_again(k);
    if (k->state != VG_KEEPER_PREPARING)
        return;
    struct vg_warm_profile *p = k->profile;
    set_state(k, VG_KEEPER_READY);
    if (a->stopping) {
        dismiss(k);
        return;
    }
    if (k->session) {
        vg_list_for_each_safe (it, &k->waiting) {
            if (k->dead)
                break;
            hand_over(k, vg_list_entry(it, struct vg_agent_task, link));
        }
    } else if (p) {
        p->failures = 0;
        p->retry_usec = 0;
        match(a, p);
    }
    match_all(a);
    refill_later(a, 0);
}

static void on_failed(struct vg_agent_keeper *k, const char *text, size_t len) {
    struct vg_agent *a = k->agent;
    struct vg_warm_profile *p = k->profile;
    struct vg_err err = VG_ERR_INIT;
    vg_err_set(&err, VG_INTERNAL, "the node cannot prepare a sandbox: %.*s",
               (int)VG_MIN(len, (size_t)700), text);
    vg_warn("%s", err.msg);
    set_state(k, VG_KEEPER_LEAVING);
    vg_list_for_each_safe (it, &k->waiting) {
        struct vg_agent_task *t = vg_list_entry(it, struct vg_agent_task, link);
        vg_list_remove(&t->link);
        vg_tasks_fail(a, t, err.reason, err.msg);
    }
    if (p) {
        note_failure(p);
        fail_first(a, p, &err);
    }
    match_all(a);
}

static void on_hello(struct vg_agent_keeper *k, const uint8_t *data, size_t len) {
    struct vg_agent *a = k->agent;
    struct vg_kinfo info;
    if (len != sizeof(info) || k->state != VG_KEEPER_ADOPTED)
        return;
    memcpy(&info, data, sizeof(info));
    info.session_key[sizeof(info.session_key) - 1] = 0;
    info.name[sizeof(info.name) - 1] = 0;
    k->pid = (pid_t)info.pid;
    k->net_slot = info.net_slot;
    memcpy(k->name, info.name, sizeof(k->name));
    if (k->net_slot != UINT32_MAX && a->net)
        vg_netpool_claim(a->net, k->net_slot);
    if (info.has_session && (k->session = vg_strdup(info.session_key)))
        vg_map_put(&a->sessions, k->session, k);
}

static void on_reported(struct vg_agent_keeper *k) {
    if (k->state != VG_KEEPER_ADOPTED)
        return;
    set_state(k, VG_KEEPER_BUSY);
    adopted_one(k->agent);
}

static void on_packet(struct vg_agent_keeper *k, const struct vg_kpkt *p, const uint8_t *data,
                      int *fds, size_t n_fds) {
    switch (p->kind) {
    case VG_K_READY:
        on_ready(k);
        break;
    case VG_K_FAILED:
        on_failed(k, (const char *)data, p->len);
        break;
    case VG_K_HELLO:
        on_hello(k, data, p->len);
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
        on_reported(k);
        break;
    case VG_K_GONE:
        keeper_gone(k, true);
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
        keeper_gone(k, false);
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
                keeper_gone(k, k->state == VG_KEEPER_LEAVING && status == 0);
            break;
        }
    }
}

/* ------------------------------------------------------------------ start and stop */

/* A keeper that does not answer cannot be told from one that runs a task: it must not go on. */
static void on_adopt_timeout(uv_timer_t *timer) {
    struct vg_agent *a = timer->data;
    vg_list_for_each_safe (it, &a->keepers) {
        struct vg_agent_keeper *k = vg_list_entry(it, struct vg_agent_keeper, link);
        if (k->state != VG_KEEPER_ADOPTED)
            continue;
        struct ucred cred;
        socklen_t len = sizeof(cred);
        vg_warn("keeper %u does not answer; it is killed", k->serial);
        if (getsockopt(k->fd, SOL_SOCKET, SO_PEERCRED, &cred, &len) == 0 && cred.pid > 1)
            kill(cred.pid, SIGKILL);
        keeper_gone(k, false);
    }
}

static int adopt(struct vg_agent *a, uint32_t serial) {
    char path[4096];
    snprintf(path, sizeof(path), "%s/%u.sock", a->keepers_dir, serial);
    vg_auto_fd int fd = vg_unix_connect(path, SOCK_SEQPACKET | SOCK_NONBLOCK);
    if (fd < 0) {
        if (fd == -ECONNREFUSED || fd == -ENOENT)
            unlink(path);
        else
            vg_warn("cannot reach keeper %u: %s", serial, strerror(-fd));
        return fd == -ECONNREFUSED || fd == -ENOENT ? 0 : fd;
    }
    struct vg_agent_keeper *k = keeper_new(a);
    if (!k)
        return -ENOMEM;
    k->serial = serial;
    k->state = VG_KEEPER_ADOPTED;
    snprintf(k->name, sizeof(k->name), "k%u", serial);
    k->fd = fd;
    int r = keeper_watch(k);
    if (r < 0) {
        free(k);
        return r;
    }
    vg_take_fd(fd);
    a->n_adopting++;
    return 0;
}

int vg_keepers_open(struct vg_agent *a, void (*done)(struct vg_agent *a), struct vg_err *err) {
    DIR *dir = opendir(a->keepers_dir);
    if (!dir)
        return vg_err_sys(err, errno, "cannot read %s", a->keepers_dir);
    int r = 0;
    for (struct dirent *e; r == 0 && (e = readdir(dir));) {
        char *end;
        errno = 0;
        unsigned long serial = strtoul(e->d_name, &end, 10);
        if (end != e->d_name && errno == 0 && serial <= UINT32_MAX && strcmp(end, ".sock") == 0)
            r = adopt(a, (uint32_t)serial);
    }
    closedir(dir);
    if (r < 0)
        return vg_err_sys(err, r, "cannot take over the tasks that run on this node");
    vg_random(&a->next_serial, sizeof(a->next_serial));
    a->next_serial = a->next_serial % 1000000000u + 1;
    a->adopted = done;
    if (a->n_adopting)
        uv_timer_start(&a->adopt_timer, on_adopt_timeout, 10000, 0);
    else
        adopted_one(a);
    return 0;
}

void vg_keepers_warm_up(struct vg_agent *a) {
    vg_auto_free char *path = vg_agent_path(a, "profiles");
    vg_auto_free char *text = NULL;
    size_t len;
    if (!path || vg_read_file(path, 65536, &text, &len) < 0)
        return;
    a->profiles_saved = vg_strdup(text);
    vg_warm_load(&a->warm, text);
    refill_later(a, 0);
}

void vg_keepers_stop(struct vg_agent *a) {
    uv_timer_stop(&a->refill);
    uv_timer_stop(&a->decay);
    vg_list_for_each_safe (it, &a->keepers) {
        struct vg_agent_keeper *k = vg_list_entry(it, struct vg_agent_keeper, link);
        if (k->state == VG_KEEPER_READY || k->state == VG_KEEPER_PREPARING)
            dismiss(k);
        else if (k->session)
            vg_keeper_send(k, VG_K_KEEP, 0, 0, 0, NULL, 0, NULL, 0);
    }
    if (a->n_keepers == 0)
        vg_agent_stopped(a);
}

void vg_keepers_kill_rest(struct vg_agent *a, bool all) {
    vg_list_for_each_safe (it, &a->keepers) {
        struct vg_agent_keeper *k = vg_list_entry(it, struct vg_agent_keeper, link);
        if (!all && (!vg_list_empty(&k->tasks) || k->state != VG_KEEPER_BUSY))
            continue;
        if (k->pid > 1)
            kill(k->pid, SIGKILL);
        keeper_gone(k, false);
    }
}
