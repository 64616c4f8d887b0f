/* Carrying out what the scheduling engine decides.

   What always holds: a first attempt is started at once; a later one only after the store has its
   number, as surely as it has the task. What an earlier life left in the queue goes on one number
   higher, so that no two lives of the control plane use the same number twice. The members of a
   gang are all placed before the first of them is told to start. */
#include "control/place.h"

#include "base/cleanup.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/util.h"
#include "control/bare.h"
#include "control/budget.h"
#include "control/history.h"
#include "control/mirror.h"
#include "control/node-gpus.h"
#include "control/peer.h"
#include "control/persist.h"
#include "control/policy.h"
#include "control/sessions.h"
#include "control/start.h"
#include "control/why.h"

#include <string.h>

#define STORE_AGAIN_USEC VG_USEC
#define GPU_MEM_MAX (1ULL << 50)       /* of one card: whatever a node says */
#define TELL_AGAIN_USEC (10 * VG_USEC) /* those who wait hear of their progress */

static int no_memory(struct vg_err *err) {
    return vg_err_sys(err, ENOMEM, "cannot queue the task");
}

/* Pools may have changed their class since it was taken in. */
static int check_kind(const struct vg_policy *p, const struct vg_job *j, struct vg_err *err) {
    const struct vg_pool_conf *pool = vg_conf_pool(p->conf, vg_task_pool(j->task));
    if (!pool || !j->task->grant.gpu_milli || vg_pool_class_shares(pool->class))
        return 0;
    return vg_err_set(err, VG_INVALID,
                      "it asks for a share of a GPU, and pool '%s' gives none any more (class %s): "
                      "submit it anew to another pool",
                      pool->name, vg_pool_class_name(pool->class));
}

int vg_place_submit_to(struct vg_policy *p, struct vg_job *j, struct vg_err *err) {
    struct vg_eng_req r;
    int e = check_kind(p, j, err);
    if (e < 0)
        return e;
    if (vg_policy_request(j->ctl, p, j, &r) < 0)
        return no_memory(err);
    vg_eng_now(p->eng, vg_wall_usec());
    return vg_eng_submit(p->eng, &r, err);
}

int vg_place_submit(struct vg_job *j, struct vg_err *err) {
    j->held = false;
    if (!j->ready_usec)
        j->ready_usec = j->loaded ? j->task->created_usec : vg_wall_usec();
    if (vg_budgets_hold(j))
        return 0;
    int r = vg_place_submit_to(&j->ctl->policy, j, err);
    j->waits = r >= 0;
    return r;
}

int vg_place_submit_gang_to(struct vg_policy *p, struct vg_job *const *member, size_t n,
                            struct vg_err *err) {
    struct vg_eng_req r;
    vg_auto_free uint64_t *ids = vg_alloc((n + 1) * sizeof *ids);
    int e = check_kind(p, member[0], err);
    if (e < 0)
        return e;
    if (!ids || vg_policy_request(member[0]->ctl, p, member[0], &r) < 0)
        return no_memory(err);
    for (size_t i = 0; i < n; i++)
        ids[i] = member[i]->task->id;
    vg_eng_now(p->eng, vg_wall_usec());
    return vg_eng_submit_gang(p->eng, &r, ids, n, err);
}

int vg_place_submit_gang(struct vg_job *const *member, size_t n, struct vg_err *err) {
    bool kept = vg_budgets_hold(member[0]); /* who owns one owns all */
    int r = kept ? 0 : vg_place_submit_gang_to(&member[0]->ctl->policy, member, n, err);
    for (size_t i = 0; i < n; i++) {
        struct vg_job *j = member[i];
        j->held = false;
        j->kept = kept;
        j->waits = r >= 0 && !kept;
        if (!j->ready_usec)
            j->ready_usec = j->loaded ? j->task->created_usec : vg_wall_usec();
    }
    return r;
}

void vg_place_repin(struct vg_job *j) {
    struct vg_err err = VG_ERR_INIT;
    vg_eng_release(vg_policy_now(j->ctl), j->task->id, VG_ENG_CANCELLED);
    if (vg_place_submit(j, &err) < 0)
        vg_warn("task=%016llx cannot follow its session: %s", (unsigned long long)j->task->id,
                err.msg);
}

void vg_place_release(struct vg_job *j) {
    enum vg_eng_end how = j->task->cancel       ? VG_ENG_CANCELLED
                          : j->task->preempting ? VG_ENG_PREEMPTED
                          : j->attempt_lost     ? VG_ENG_LOST
                                                : VG_ENG_ENDED;
    if (j->task->attempt.node)
        vg_history_attempt(j, how);
    vg_eng_release(vg_policy_now(j->ctl), j->task->id, how);
    vg_timer_stop(&j->again);
    vg_mlink_over(j);
    if (j->task->attempt.node && j->ctl->running)
        j->ctl->running--;
    j->waits = j->attempt_lost = j->ack_over = false;
    j->over_usec = j->share_counted = 0;
    vg_sessions_leave(j);
}

/* What was told, but for the estimate: that moves all the time. Never 0. */
static uint32_t gist(const char *text) {
    uint32_t h = 2166136261u;
    for (; *text && *text != ',' && *text != '('; text++)
        h = (h ^ (uint8_t)*text) * 16777619u;
    return h ? h : 1;
}

static void tell(struct vg_job *j, bool news_only) {
    char text[512];
    if (vg_list_empty(&j->follows) || vg_why_brief(j, text, sizeof text) < 0)
        return;
    uint32_t now = gist(text);
    if (news_only && now == j->told)
        return;
    j->told = now;
    vg_job_event(j, VG__PB__RUN_EVENT__KIND__QUEUED, text);
}

void vg_place_tell(struct vg_job *j) {
    tell(j, false);
}

void vg_place_tick(struct vg_control *c) {
    uint64_t now = vg_now_usec();
    if (now - c->told_usec < TELL_AGAIN_USEC)
        return;
    c->told_usec = now;
    vg_map_for_each (s, &c->jobs) {
        struct vg_job *j = s->value;
        if (j->waits)
            tell(j, true);
    }
}

/* ------------------------------------------------------------------ starting */

static void store_attempt(void *user);

static void attempt_stored(struct vg_job *j, uint64_t attempt, int result) {
    struct vg_nodelink *a = vg_nodelink_get(j->ctl, j->task->attempt.node);
    if (j->task->state != VG_TASK_STARTING || j->task->attempt.number != attempt || j->sent)
        return;
    if (!a || !a->peer || !a->peer->conn)
        vg_job_lost(j, false, "its node left");
    else if (result < 0 && !j->again) /* a full disk is not the task's fault: it keeps its place */
        j->again = vg_timer_start(j->ctl->loop, STORE_AGAIN_USEC, store_attempt, j);
    else if (result >= 0 && !vg_mlink_holds(j, a))
        vg_start_send(j, a);
}

static void store_attempt(void *user) {
    struct vg_job *j = user;
    uint32_t number = j->task->attempt.number;
    j->again = NULL;
    enum vg_store_sync sync = j->task->durable ? VG_STORE_DURABLE : VG_STORE_COMMIT;
    int r = vg_persist_now(j, sync, attempt_stored, number);
    if (r < 0)
        attempt_stored(j, number, r);
}

/* By the engine's number of it. */
static void set_pool(struct vg_task *t, uint64_t pool) {
    for (size_t i = 0; i < t->spec->n_also_pool; i++)
        if (vg_eng_pool_id(t->spec->also_pool[i]) == pool) {
            vg_task_set_pool(t, t->spec->also_pool[i]);
            return;
        }
}

/* What it asked for of a card is so much of this one. */
static void give_share(struct vg_job *j) {
    struct vg_task *t = j->task;
    const struct vg_nodelink *a = vg_nodelink_get(j->ctl, t->attempt.node);
    const struct vg_pool_conf *pool = vg_conf_pool(&j->ctl->conf, vg_task_pool(t));
    uint64_t card = a && t->gpus ? vg_node_gpu_mem(a, (uint32_t)__builtin_ctzll(t->gpus)) : 0;
    vg_task_share(t, pool ? pool->class : VG_CLASS_SHARED, VG_MIN(card, GPU_MEM_MAX));
}

/* The task is the node's from now on. */
static bool take_place(struct vg_control *c, const struct vg_eng_decision *d) {
    struct vg_job *j = vg_job_get(c, d->task);
    struct vg_nodelink *a = vg_nodelink_get(c, d->node);
    if (!j || !a || !a->peer || !a->peer->conn || vg_task_place(j->task, d->node, d->gpus) < 0) {
        vg_error("a decision about task=%016llx cannot be carried out",
                 (unsigned long long)d->task);
        return false;
    }
    j->waits = false;
    set_pool(j->task, d->pool);
    give_share(j);
    vg_bare_grant(c, j->task);
    c->running++;
    vg_timer_stop(&j->hold);
    vg_sessions_enter(j, d->node);
    return true;
}

static void send_or_store(struct vg_control *c, const struct vg_eng_decision *d) {
    struct vg_job *j = vg_job_get(c, d->task);
    struct vg_nodelink *a = vg_nodelink_get(c, d->node);
    if (!j || j->task->state != VG_TASK_STARTING || j->sent || !a)
        return;
    if (j->task->attempt.number > 1)
        store_attempt(j);
    else if (!vg_mlink_holds(j, a))
        vg_start_send(j, a);
    j = vg_job_get(c, d->task); /* it may be over */
    if (j)
        vg_job_changed(j);
}

static void start_one(struct vg_control *c, const struct vg_eng_decision *d) {
    if (take_place(c, d))
        send_or_store(c, d);
    else
        vg_eng_release(vg_policy_now(c), d->task, VG_ENG_CANCELLED);
}

/* All members or none: if one cannot be placed, those that were go back into the queue. */
static void start_gang(struct vg_control *c, const struct vg_eng_decision *first) {
    size_t n = first->of, got = 1, placed = 0;
    vg_auto_free struct vg_eng_decision *all = vg_alloc(n * sizeof *all);
    struct vg_eng_decision d;
    if (all)
        all[0] = *first;
    for (; got < n && vg_eng_next(c->policy.eng, &d) > 0; got++)
        if (all)
            all[got] = d;
    while (all && placed < got && take_place(c, &all[placed]))
        placed++;
    if (!all || placed < n) {
        vg_error("gang=%016llx cannot be started whole", (unsigned long long)first->gang);
        for (size_t i = 0; all && i < got; i++) {
            struct vg_job *j = vg_job_get(c, all[i].task);
            if (i >= placed)
                vg_eng_release(vg_policy_now(c), all[i].task, VG_ENG_LOST);
            else if (j)
                vg_job_lost(j, false, "its gang could not be started whole");
        }
        return;
    }
    for (size_t i = 0; i < n; i++)
        send_or_store(c, &all[i]);
}

static void preempt(struct vg_control *c, const struct vg_eng_decision *d) {
    struct vg_job *j = vg_job_get(c, d->task);
    uint64_t grace = c->conf.scheduler.grace_usec;
    if (j && j->task->spec->has_grace_usec)
        grace = 0; /* the task's own */
    if (!j || vg_job_preempt(j, grace, 0, d->why) < 0)
        vg_debug("task=%016llx is to give way but is leaving already", (unsigned long long)d->task);
}

static void carry_out(struct vg_control *c, const struct vg_eng_decision *d) {
    c->counts.preempted += d->what == VG_ENG_PREEMPT;
    c->counts.started += d->what == VG_ENG_START ? VG_MAX(d->of, 1u) : 0;
    if (d->what == VG_ENG_PREEMPT)
        preempt(c, d);
    else if (d->of > 1)
        start_gang(c, d);
    else
        start_one(c, d);
}

static void on_wake(void *user) {
    struct vg_control *c = user;
    c->wake = NULL;
    vg_place_all(c);
}

/* The engine may have more to say later though nothing happens. */
static void arm_wake(struct vg_control *c) {
    uint64_t at = vg_eng_wake(c->policy.eng), now = vg_wall_usec();
    if (c->wake && at == c->wake_usec)
        return;
    vg_timer_stop(&c->wake);
    c->wake_usec = at;
    if (at != VG_ENG_NEVER)
        c->wake = vg_timer_start(c->loop, at > now ? at - now : 1, on_wake, c);
}

void vg_place_all(struct vg_control *c) {
    struct vg_eng_decision d;
    if (c->placing || c->stopping) {
        c->place_again = true;
        return;
    }
    c->placing = true;
    do {
        c->place_again = false;
        while (vg_eng_next(vg_policy_now(c), &d) > 0)
            carry_out(c, &d);
    } while (c->place_again);
    c->placing = false;
    arm_wake(c);
}

/* ------------------------------------------------------------------ adopting */

int vg_place_adopt_in(struct vg_policy *p, struct vg_job *j) {
    const struct vg_task *t = j->task;
    struct vg_eng_req r;
    if (vg_policy_request(j->ctl, p, j, &r) < 0)
        return -ENOMEM;
    uint64_t now = vg_wall_usec();
    vg_eng_now(p->eng, now);
    vg_bare_grant(j->ctl, j->task);
    return vg_eng_adopt(p->eng, &r, t->attempt.node, t->gpus,
                        t->started_usec && t->state == VG_TASK_RUNNING ? t->started_usec : now);
}

static uint64_t gpu_set(const Vg__Pb__Start *s) {
    uint64_t set = 0;
    for (size_t i = 0; s && i < s->n_gpu; i++)
        if (s->gpu[i] < VG_NODE_GPUS_MAX)
            set |= 1ULL << s->gpu[i];
    return set;
}

/* What the attempt has of a card, by the order it began with. */
static void learn_share(struct vg_job *j, const Vg__Pb__Start *s) {
    const Vg__Pb__Resources *g = s ? s->grant : NULL;
    struct vg_share *have = &j->task->share;
    give_share(j);
    if (!have->milli || !g || g->gpu_milli < 1 || g->gpu_milli > 999)
        return;
    have->milli = g->gpu_milli;
    have->mem_bytes = VG_MIN(g->gpu_mem_bytes, GPU_MEM_MAX);
    have->hard = s->spec ? s->spec->gpu_hard : have->hard;
    if (s->class_name)
        (void)vg_pool_class_parse(s->class_name, &have->class); /* else as the pool's */
}

int vg_place_adopt(struct vg_job *j, uint64_t node, uint32_t attempt, const Vg__Pb__Start *start) {
    struct vg_task *t = j->task;
    bool cancel = t->cancel;
    if (attempt <= t->attempt.number || t->state != VG_TASK_QUEUED)
        return -EINVAL;
    t->cancel = false; /* it runs, whether its end was asked for or not */
    while (t->attempt.number + 1 < attempt) {
        vg_task_place(t, node, 0);
        vg_task_move(t, VG_TASK_QUEUED, 0, NULL);
    }
    vg_task_place(t, node, gpu_set(start));
    learn_share(j, start);
    t->cancel = cancel;
    j->held = j->waits = false;
    j->sent = true;
    j->sent_usec = 0;
    j->ctl->running++;
    vg_eng_release(vg_policy_now(j->ctl), t->id, VG_ENG_CANCELLED);
    int e = vg_place_adopt_in(&j->ctl->policy, j);
    if (e < 0)
        vg_warn("task=%016llx runs on a node but is not counted there: %s",
                (unsigned long long)t->id, strerror(-e));
    vg_sessions_enter(j, node);
    return 0;
}

void vg_place_restore(struct vg_control *c) {
    vg_map_for_each (s, &c->jobs) {
        struct vg_job *j = s->value;
        if (!j->task->attempt.node)
            continue;
        int e = vg_place_adopt_in(&c->policy, j);
        if (e < 0 && e != -ENOENT) /* its node may be gone for good: it is lost when all is known */
            vg_warn("task=%016llx is not counted on its node: %s", (unsigned long long)j->task->id,
                    strerror(-e));
        j->sent = true;
        c->running++;
    }
}

/* Any node: where it does not matter which. 0: there is none. */
static uint64_t some_node(struct vg_control *c) {
    vg_map_for_each (s, &c->nodes)
        return ((struct vg_nodelink *)s->value)->node->id;
    return 0;
}

/* An earlier life may have used the next number: first attempts are sent before they are stored.
   The number is skipped, so that what a node says of it later is known to be stale, and so that no
   two runs write the same log. */
void vg_place_skip(struct vg_job *j) {
    struct vg_control *c = j->ctl;
    uint64_t node = c->silent_node ? c->silent_node : some_node(c);
    if (node && !j->task->cancel && vg_task_place(j->task, node, 0) == 0)
        vg_task_move(j->task, VG_TASK_QUEUED, vg_wall_usec(), NULL);
}

void vg_place_unhold(struct vg_control *c) {
    /* Collected first: submitting may end jobs, and the map must not change under the walk. */
    size_t n = 0;
    vg_auto_free uint64_t *ids = vg_alloc((vg_map_len(&c->jobs) + 1) * sizeof *ids);
    vg_map_for_each (s, &c->jobs) {
        struct vg_job *j = s->value;
        if (ids && j->held)
            ids[n++] = j->task->id;
    }
    for (size_t i = 0; i < n; i++) {
        struct vg_job *j = vg_job_get(c, ids[i]);
        struct vg_err err = VG_ERR_INIT;
        if (!j || !j->held)
            continue;
        vg_place_skip(j);
        if (j->accepting) { /* the store's answer begins it */
            j->held = false;
            continue;
        }
        if (j->task->cancel)
            vg_job_cancel(j, 0, j->task->reason_text);
        else if (vg_job_submit(j, &err) < 0)
            vg_job_end(j, vg_reason_exit(err.reason), err.reason, err.msg);
    }
    vg_place_all(c);
}
