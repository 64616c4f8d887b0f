/* `virga task share`: another share for a task that runs. The card, the pool and the tenant must
   allow it; then the scheduler, the store and the task's node hear of it, in this order, and the
   node again whenever it comes back with another one. What was answered is stored. */
#include "base/log.h"
#include "base/util.h"
#include "control/api.h"
#include "control/audit.h"
#include "control/budget.h"
#include "control/ledger.h"
#include "control/node-gpus.h"
#include "control/persist.h"
#include "control/place.h"
#include "control/policy.h"
#include "control/share.h"
#include "control/users.h"
#include "model/pool.h"

#include <stdio.h>
#include <string.h>

#define MEM_MAX (1ULL << 50) /* of one card */

static int check_task(const struct vg_call *call, const struct vg_task *t, struct vg_err *err) {
    unsigned long long id = t->id;
    if (!vg_users_may_end(call->user, t->user, t->team))
        return vg_err_set(err, VG_FORBIDDEN,
                          "task %016llx belongs to '%s': only its owner may change its share", id,
                          t->user);
    if (vg_task_is_group(t))
        return vg_err_set(err, VG_INVALID,
                          "%016llx is a group: name one of its tasks, such as %016llx.0", id, id);
    if (!t->attempt.node)
        return vg_err_set(err, VG_CONFLICT,
                          "task %016llx is %s: a share is changed while its task runs", id,
                          vg_task_state_name(t->state));
    if (!t->share.milli)
        return vg_err_set(err, VG_CONFLICT,
                          "task %016llx has no share of a GPU: 'virga pool list' shows the pools "
                          "that give shares",
                          id);
    return 0;
}

/* What it shall be; what is not said stays. */
static int read_share(const Vg__Pb__TaskShare *m, const struct vg_task *t, struct vg_share *ret,
                      struct vg_err *err) {
    struct vg_share s = t->share;
    if (!m->has_gpu_milli && !m->has_gpu_mem_bytes && !m->has_gpu_hard)
        return vg_err_set(err, VG_INVALID,
                          "say what to change: --gpus, --gpu-mem, --hard or --soft");
    s.milli = m->has_gpu_milli ? m->gpu_milli : s.milli;
    s.mem_bytes = m->has_gpu_mem_bytes ? m->gpu_mem_bytes : s.mem_bytes;
    s.hard = m->has_gpu_hard ? m->gpu_hard : s.hard;
    if (s.milli < 1 || s.milli > 999)
        return vg_err_set(err, VG_INVALID, "a share is 0.001 to 0.999 of one GPU");
    if (!s.mem_bytes || s.mem_bytes > MEM_MAX)
        return vg_err_set(err, VG_INVALID, "a share needs memory of its GPU, such as 8G");
    if (s.class == VG_CLASS_MPS && s.milli != t->share.milli)
        return vg_err_set(err, VG_INVALID,
                          "a program keeps its part of the multiprocessors while it runs (class "
                          "mps): only --gpu-mem can be changed");
    if (s.milli != t->share.milli && s.class != VG_CLASS_SHARED)
        return vg_err_set(err, VG_INVALID,
                          "a program keeps its part of the multiprocessors while it runs (class "
                          "%s): only --gpu-mem can be changed",
                          vg_pool_class_name(s.class));
    if (s.hard && s.class != VG_CLASS_MPS)
        return vg_err_set(
            err, VG_INVALID,
            "only in pools of class mps programs are kept to their part of an idle GPU");
    *ret = s;
    return 0;
}

/* What its owner said it may cost holds for everybody; what the pool lets a task ask for does not
   bind an administrator. */
static int check_bounds(struct vg_control *c, const struct vg_task *t, const struct vg_share *s,
                        bool admin, struct vg_err *err) {
    const struct vg_pool_conf *pool = vg_conf_pool(&c->conf, vg_task_pool(t));
    struct vg_res want = {.gpu_milli = s->milli, .gpu_mem_bytes = s->mem_bytes}, got;
    Vg__Pb__Resources pb = vg_res_to_pb(want);
    if (t->spec->max_cost_micro && s->milli > t->share.milli)
        return vg_err_set(err, VG_CONFLICT,
                          "it was submitted with --max-cost, which a larger share would break: "
                          "submit it anew");
    return pool && !admin ? vg_pool_grant(&c->conf, pool, &pb, &got, err) : 0;
}

/* The peer that waits for the answer, and its request, in one word: peers are numbered from 1, and
   no life of the control plane sees 2^32 of them. */
static uint64_t who_waits(const struct vg_call *call) {
    return call->peer->serial << 32 | call->req;
}

static void stored(struct vg_job *j, uint64_t who, int result) {
    struct vg_peer *p = vg_peer_find(j->ctl, who >> 32);
    struct vg_nodelink *a = vg_nodelink_get(j->ctl, j->task->attempt.node);
    if (j->sent && j->task->attempt.node)
        vg_nodelink_share(j->ctl, j->task);
    if (j->share_counted && a)
        vg_node_gpus_ask(a); /* others may wait for what it gives up */
    if (result < 0)
        vg_warn("task=%016llx its new share could not be stored: %s",
                (unsigned long long)j->task->id, strerror(-result));
    if (p && result < 0)
        vg_peer_error(p, (uint32_t)who, result == -ENOSPC ? VG_DISK_FULL : VG_INTERNAL,
                      "the share was changed, but not stored (%s): a restart of the control plane "
                      "may forget it",
                      strerror(-result));
    else if (p)
        vg_task_send(p, (uint32_t)who, false, j->task);
    vg_place_all(j->ctl); /* after the node was told: what starts there now finds it so */
}

static int change(struct vg_call *call, struct vg_job *j, struct vg_err *err) {
    struct vg_control *c = call->ctl;
    struct vg_task *t = j->task;
    bool admin = vg_user_may(call->user, VG_ACT_MANAGE_NODES);
    struct vg_share s = {0};
    int r = check_task(call, t, err);
    if (r >= 0)
        r = read_share(call->env->share_set, t, &s, err);
    if (r >= 0)
        r = check_bounds(c, t, &s, admin, err);
    uint64_t count = r >= 0 ? vg_share_to_count(j, s.mem_bytes) : 0;
    if (r >= 0)
        r = vg_eng_reshare(vg_policy_now(c), t->id, s.milli, count, admin, err);
    if (r < 0)
        return r;
    j->share_counted = count == s.mem_bytes ? 0 : count;
    uint64_t now = vg_wall_usec();
    vg_ledger_cut(j, now); /* before its row, which has the new share */
    vg_task_reshare(t, s.milli, s.mem_bytes, s.hard, now);
    vg_job_arm_cost(j);
    vg_budgets_look(c);
    vg_job_changed(j);
    return 0;
}

static void carry_out(struct vg_call *call, struct vg_job *j) {
    const struct vg_share *s = &j->task->share;
    char mem[32];
    vg_audit(call, "task %016llx: share %g, %s%s", (unsigned long long)j->task->id,
             s->milli / 1000.0, vg_format_size(s->mem_bytes, mem, sizeof mem),
             s->hard ? ", hard" : "");
    int r = vg_persist_now(j, VG_STORE_COMMIT, stored, who_waits(call));
    if (r < 0)
        stored(j, who_waits(call), r);
}

void vg_api_share_set(struct vg_call *call) {
    const Vg__Pb__TaskShare *m = call->env->share_set;
    struct vg_err err = VG_ERR_INIT;
    struct vg_found f;
    int r = vg_find_task(call->ctl, call->user, m->task ? m->task : "", &f, &err);
    if (r < 0) {
        vg_peer_fail(call->peer, call->req, &err);
        return;
    }
    const struct vg_task *t = vg_found_task(&f);
    if (!f.job || vg_task_is_ended(t))
        r = vg_err_set(&err, VG_CONFLICT, "task %016llx has ended already (%s)",
                       (unsigned long long)t->id, vg_task_state_name(t->state));
    else
        r = change(call, f.job, &err);
    if (r < 0)
        vg_peer_fail(call->peer, call->req, &err);
    else
        carry_out(call, f.job);
    vg_found_done(&f);
}
