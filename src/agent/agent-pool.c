/* The pool of warm keepers: births, which start gets which keeper, refilling ahead of need and
   dismissing what is too much. Loop thread. */
#include "agent/agent-keepers.h"

#include "base/cleanup.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/util.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static void match(struct vg_agent *a, struct vg_warm_profile *p);
static void refill_later(struct vg_agent *a, uint64_t ms);

/* ------------------------------------------------------------------ births */

static struct vg_agent_keeper *spawn(struct vg_agent *a, const struct vg_warm_key *key,
                                     struct vg_warm_profile *p, struct vg_err *err) {
    if (a->n_keepers >= VG_AGENT_KEEPERS_MAX) {
        vg_err_set(err, VG_NO_CAPACITY, "the node already holds %zu sandboxes", a->n_keepers);
        return NULL;
    }
    struct vg_agent_keeper *k = vg_keeper_new(a);
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
    r = vg_keeper_watch(k);
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

/* ------------------------------------------------------------------ which start gets which */

static void send_start(struct vg_agent_keeper *k, struct vg_agent_task *t) {
    int fds[1 + VG_COUNT(t->fds)] = {t->start_fd};
    memcpy(fds + 1, t->fds, t->n_fds * sizeof(int));
    int r = vg_keeper_send(k, VG_K_START, t->id, t->fd_mask, t->start_bytes, t->share.words,
                           t->share.words_len, fds, 1 + t->n_fds);
    if (r < 0) {
        vg_debug("keeper %u took no start: %s", k->serial, strerror(-r));
        vg_keeper_gone(k, true); /* it never got the task: another keeper may */
        return;
    }
    vg_tasks_handed(t);
}

static void hand_over(struct vg_agent_keeper *k, struct vg_agent_task *t) {
    struct vg_agent *a = k->agent;
    struct vg_warm_profile *p = t->session ? NULL : k->profile;
    vg_keeper_set_state(k, VG_KEEPER_BUSY);
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

void vg_pool_match_all(struct vg_agent *a) {
    vg_list_for_each_safe (it, &a->warm.profiles) {
        struct vg_warm_profile *p = vg_list_entry(it, struct vg_warm_profile, link);
        if (p->n_waiting)
            match(a, p);
    }
}

/* ------------------------------------------------------------------ ahead of need */

static void dismiss(struct vg_agent_keeper *k) {
    if (!vg_list_empty(&k->tasks)) { /* it still holds the ends of tasks */
        if (k->state != VG_KEEPER_BUSY)
            vg_keeper_set_state(k, VG_KEEPER_BUSY);
        k->idle_leaves = true;
        return;
    }
    vg_keeper_set_state(k, VG_KEEPER_LEAVING);
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
        vg_keeper_unlend(k);
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

/* ------------------------------------------------------------------ what keepers say */

void vg_keepers_task_forgotten(struct vg_agent_keeper *k) {
    if (k->idle_leaves && vg_list_empty(&k->tasks) && !k->dead && !k->ended)
        dismiss(k);
}

/* A keeper whose task left its sandbox as it was goes back into the pool, for tasks with the same
   folders; but those with none must find one too. */
static void on_again(struct vg_agent_keeper *k) {
    struct vg_agent *a = k->agent;
    vg_keeper_unlend(k);
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

void vg_pool_on_ready(struct vg_agent_keeper *k) {
    struct vg_agent *a = k->agent;
    if (k->state == VG_KEEPER_BUSY)
        on_again(k);
    if (k->state != VG_KEEPER_PREPARING)
        return;
    struct vg_warm_profile *p = k->profile;
    vg_keeper_set_state(k, VG_KEEPER_READY);
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
    vg_pool_match_all(a);
    refill_later(a, 0);
}

void vg_pool_on_failed(struct vg_agent_keeper *k, const char *text, size_t len) {
    struct vg_agent *a = k->agent;
    struct vg_warm_profile *p = k->profile;
    struct vg_err err = VG_ERR_INIT;
    vg_err_set(&err, VG_INTERNAL, "the node cannot prepare a sandbox: %.*s",
               (int)VG_MIN(len, (size_t)700), text);
    vg_warn("%s", err.msg);
    vg_keeper_set_state(k, VG_KEEPER_LEAVING);
    vg_list_for_each_safe (it, &k->waiting) {
        struct vg_agent_task *t = vg_list_entry(it, struct vg_agent_task, link);
        vg_list_remove(&t->link);
        vg_tasks_fail(a, t, err.reason, err.msg);
    }
    if (p) {
        note_failure(p);
        fail_first(a, p, &err);
    }
    vg_pool_match_all(a);
}

/* ------------------------------------------------------------------ start and stop */

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
