/* Rows for the ledger and the recorded load. A keeper remembers its attempt until it is
   acknowledged, and that is done only when the attempt's row is stored: by itself (ack_over), or
   with the task's own end, which is queued after it. So a row that is lost with the control plane
   comes again, and one that comes twice is the same row. */
#include "control/history.h"

#include "base/buf.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/util.h"
#include "control/budget.h"
#include "control/ledger.h"
#include "control/nodes.h"
#include "control/place.h"
#include "control/policy.h"

#include <string.h>

static const char *const hows[] = {
    [VG_ENG_ENDED] = "ended",
    [VG_ENG_CANCELLED] = "cancelled",
    [VG_ENG_PREEMPTED] = "preempted",
    [VG_ENG_LOST] = "lost",
};

const char *vg_history_how(enum vg_eng_end how) {
    return hows[how];
}

/* A keeper that may forget its attempt once what it held is written. */
struct ack {
    struct vg_control *ctl;
    uint64_t node, task;
    uint32_t attempt;
};

static void attempt_stored(void *arg, int result) {
    struct ack *a = arg;
    if (result >= 0)
        vg_nodelink_exit_ack(a->ctl, a->node, a->task, a->attempt);
    free(a);
}

/* What the driver does not tell stays unknown. */
static struct vg_gpu_row gpu_row(const Vg__Pb__GpuUsage *u) {
    struct vg_gpu_row r = {-1, -1, -1, -1, -1, -1, -1, -1, -1};
    if (u && u->has_sm_mean_milli) {
        r.sm_milli = u->sm_mean_milli;
        r.sm_max = u->sm_max_percent;
        r.sampled_usec = (int64_t)u->sampled_usec;
    }
    if (u && u->has_mem_mean_milli) {
        r.mem_milli = u->mem_mean_milli;
        r.mem_max = u->mem_max_percent;
    }
    if (u && u->has_mem_peak_bytes)
        r.mem_peak_bytes = (int64_t)u->mem_peak_bytes;
    if (u && u->has_energy_mj)
        r.energy_mj = (int64_t)u->energy_mj;
    if (u && u->has_pcie_rx_bytes && u->has_pcie_tx_bytes) {
        r.pcie_rx_bytes = (int64_t)u->pcie_rx_bytes;
        r.pcie_tx_bytes = (int64_t)u->pcie_tx_bytes;
    }
    return r;
}

void vg_gpu_usage_from_row(const struct vg_gpu_row *row, Vg__Pb__GpuUsage *ret) {
    vg__pb__gpu_usage__init(ret);
    ret->has_sm_mean_milli = ret->has_sm_max_percent = row->sm_milli >= 0;
    ret->sm_mean_milli = (uint32_t)row->sm_milli;
    ret->sm_max_percent = (uint32_t)row->sm_max;
    ret->has_mem_mean_milli = ret->has_mem_max_percent = row->mem_milli >= 0;
    ret->mem_mean_milli = (uint32_t)row->mem_milli;
    ret->mem_max_percent = (uint32_t)row->mem_max;
    ret->has_mem_peak_bytes = row->mem_peak_bytes >= 0;
    ret->mem_peak_bytes = (uint64_t)row->mem_peak_bytes;
    ret->has_energy_mj = row->energy_mj >= 0;
    ret->energy_mj = (uint64_t)row->energy_mj;
    ret->has_sampled_usec = row->sampled_usec >= 0;
    ret->sampled_usec = (uint64_t)row->sampled_usec;
    ret->has_pcie_rx_bytes = ret->has_pcie_tx_bytes = row->pcie_rx_bytes >= 0;
    ret->pcie_rx_bytes = (uint64_t)row->pcie_rx_bytes;
    ret->pcie_tx_bytes = (uint64_t)row->pcie_tx_bytes;
}

/* For those who look from outside. */
static void count(struct vg_control *c, const struct vg_attempt_row *row, enum vg_eng_end how) {
    struct vg_used used = {.gpu_milli_usec = row->gpu_held,
                           .cpu_usec = row->cpu_usec,
                           .energy_mj = row->gpu.energy_mj > 0 ? (uint64_t)row->gpu.energy_mj : 0};
    struct vg_sum *sum = c->metrics ? vg_counts_sum(&c->counts, row->pool, row->team) : NULL;
    c->counts.attempts[how]++;
    if (sum)
        vg_used_add(&sum->over, &used);
}

void vg_history_attempt(struct vg_job *j, enum vg_eng_end how) {
    const struct vg_task *t = j->task;
    struct vg_res held = vg_task_held(t);
    uint64_t until = VG_MAX(j->over_usec ? j->over_usec : vg_wall_usec(), t->started_usec);
    until = VG_MAX(until, t->share.since_usec); /* by our clock: what was charged by then stays */
    if (t->state != VG_TASK_RUNNING) {          /* it never began: nothing was used */
        if (j->ack_over)
            vg_nodelink_exit_ack(j->ctl, t->attempt.node, t->id, t->attempt.number);
        return;
    }
    struct vg_attempt_row row = {.task = t->id,
                                 .attempt = t->attempt.number,
                                 .user = t->user,
                                 .team = t->team,
                                 .pool = vg_task_pool(t),
                                 .node = vg_nodelink_name(j->ctl, t->attempt.node),
                                 .from_usec = t->started_usec,
                                 .until_usec = until,
                                 .how = hows[how],
                                 .cpu_milli = t->grant.cpu_milli,
                                 .mem_bytes = t->grant.mem_bytes,
                                 .gpu_milli = held.gpus * 1000ULL + held.gpu_milli,
                                 .gpu_held = vg_task_gpu_held(t, until),
                                 .cpu_usec = j->over_usec ? j->over_cpu_usec : 0,
                                 .mem_peak_bytes = j->over_usec ? j->over_mem_bytes : 0,
                                 .gpu = gpu_row(j->gpu_use),
                                 .wiped = j->wiped ? j->wiped : ""};
    if (vg_ledger_end(j, until) < 0)
        return; /* as below: the keeper remembers */
    vg_budgets_look(j->ctl);
    count(j->ctl, &row, how);
    struct ack *ack = j->ack_over ? vg_alloc(sizeof *ack) : NULL;
    if (ack)
        *ack = (struct ack){j->ctl, t->attempt.node, t->id, t->attempt.number};
    /* Lazily: the store tries again until it succeeds, also when the disk is full for a while. */
    int r =
        vg_store_put_attempt(j->ctl->store, &row, VG_STORE_LAZY, ack ? attempt_stored : NULL, ack);
    if (r < 0) {
        free(ack); /* the keeper remembers until it is asked again */
        vg_error("task=%016llx attempt=%u what it held cannot be stored: %s",
                 (unsigned long long)t->id, t->attempt.number, strerror(-r));
    }
}

char *vg_history_join(const char *first, char *const *more, size_t n, char between) {
    struct vg_buf b = {0};
    int r = vg_buf_printf(&b, "%s", first);
    for (size_t i = 0; r >= 0 && i < n; i++) {
        if (vg_buf_len(&b))
            r = vg_buf_printf(&b, "%c", between);
        if (r >= 0)
            r = vg_buf_printf(&b, "%s", more[i]);
    }
    char *out = r < 0 ? NULL : vg_strndup((const char *)vg_buf_data(&b), vg_buf_len(&b));
    vg_buf_done(&b);
    return out;
}

void vg_history_task(const struct vg_job *j) {
    const struct vg_task *t = j->task;
    const Vg__Pb__TaskSpec *s = t->spec;
    struct vg_eng_req req;
    char queue[512];
    if (!t->attempt.number) /* it never ran: how long it would have, nobody knows */
        return;
    if (vg_task_is_group(t) || vg_policy_request(j->ctl, &j->ctl->policy, j, &req) < 0)
        return;
    vg_auto_free char *pools =
        vg_history_join(s->pool ? s->pool : "", s->also_pool, s->n_also_pool, ',');
    vg_auto_free char *labels = vg_history_join("", s->node_label, s->n_node_label, '\n');
    struct vg_history_row row = {.task = t->id,
                                 .queue = vg_policy_queue(j->ctl, t->team, queue, sizeof queue),
                                 .user = t->user,
                                 .team = t->team,
                                 .pools = pools,
                                 .models = s->gpu_model,
                                 .labels = labels,
                                 .cpu_milli = t->grant.cpu_milli,
                                 .mem_bytes = t->grant.mem_bytes,
                                 .gpus = t->grant.gpus,
                                 .gpu_milli = t->grant.gpu_milli,
                                 .gpu_mem_bytes = t->grant.gpu_mem_bytes,
                                 .priority = req.priority,
                                 .preemptible = req.preemptible,
                                 .fixed = s->interactive && !s->detached,
                                 .limit_usec = s->time_limit_usec,
                                 .kin = req.kin,
                                 .gang = req.gang,
                                 .members = req.gang ? t->of : 0,
                                 .submit_usec = t->created_usec,
                                 .ready_usec = j->ready_usec ? j->ready_usec : t->created_usec,
                                 .end_usec = t->ended_usec,
                                 .outcome = vg_task_state_name(t->state)};
    int r = vg_store_put_history(j->ctl->store, &row);
    if (r < 0)
        vg_error("task=%016llx its record cannot be stored: %s", (unsigned long long)t->id,
                 strerror(-r));
}

void vg_history_prune(struct vg_control *c, uint64_t before_usec, uint32_t limit) {
    vg_store_prune_history(c->store, before_usec, limit);
}
