/* Planted bugs: each puts something wrong between virgad's own parts, at the seams where they call
   each other. They exist in the simulator alone, and only in a run that asks for one. */
#include "sim/faults/plant.h"

#include "base/cleanup.h"
#include "base/mem.h"
#include "control/nodes.h"
#include "control/persist.h"
#include "model/node.h"
#include "model/task.h"
#include "sim/faults/world.h"

bool vg_plant_is(enum vg_plant p) {
    return vg_w && vg_w->plan->plant == p;
}

/* ------------------------------------------------------------------ early-accept, early-exit-ack
 */

int __real_vg_persist_now(struct vg_job *j, enum vg_store_sync sync,
                          void (*cb)(struct vg_job *j, uint64_t cookie, int result),
                          uint64_t cookie);
int __wrap_vg_persist_now(struct vg_job *j, enum vg_store_sync sync,
                          void (*cb)(struct vg_job *j, uint64_t cookie, int result),
                          uint64_t cookie);

struct early {
    uint64_t task, cookie;
    void (*cb)(struct vg_job *j, uint64_t cookie, int result);
};

static void say_yes(void *early, uint64_t unused) {
    vg_auto_free struct early *e = early;
    struct vg_job *j = vg_job_get(vg_w->control, e->task);
    (void)unused;
    if (j)
        e->cb(j, e->cookie, 0);
}

int __wrap_vg_persist_now(struct vg_job *j, enum vg_store_sync sync,
                          void (*cb)(struct vg_job *j, uint64_t cookie, int result),
                          uint64_t cookie) {
    bool end = vg_task_is_ended(j->task);
    bool early = end ? vg_plant_is(VG_PLANT_EARLY_EXIT_ACK)
                     : vg_plant_is(VG_PLANT_EARLY_ACCEPT) && sync == VG_STORE_DURABLE;
    struct early *e = early ? vg_alloc(sizeof *e) : NULL;
    if (!e)
        return __real_vg_persist_now(j, sync, cb, cookie);
    *e = (struct early){.task = j->task->id, .cookie = cookie, .cb = cb};
    vg_w_at(vg_w->now, &vg_w->virgad, say_yes, e, 0);
    return __real_vg_persist_now(j, VG_STORE_LAZY, NULL, 0);
}

/* ------------------------------------------------------------------ no-fence, double-gpu */

bool __real_vg_task_is_current(const struct vg_task *t, uint32_t attempt, uint64_t node);
bool __wrap_vg_task_is_current(const struct vg_task *t, uint32_t attempt, uint64_t node);
int __real_vg_task_place(struct vg_task *t, uint64_t node, uint64_t gpus);
int __wrap_vg_task_place(struct vg_task *t, uint64_t node, uint64_t gpus);

bool __wrap_vg_task_is_current(const struct vg_task *t, uint32_t attempt, uint64_t node) {
    if (vg_plant_is(VG_PLANT_NO_FENCE))
        return t->attempt.node != 0;
    return __real_vg_task_is_current(t, attempt, node);
}

int __wrap_vg_task_place(struct vg_task *t, uint64_t node, uint64_t gpus) {
    if (vg_plant_is(VG_PLANT_DOUBLE_GPU))
        gpus = (1ULL << __builtin_popcountll(gpus)) - 1;
    return __real_vg_task_place(t, node, gpus);
}

/* ------------------------------------------------------------------ early-requeue, lost-exit-ack
 */

bool __real_vg_node_lease_over(const struct vg_node *n, uint64_t now_usec, uint64_t lease_usec);
bool __wrap_vg_node_lease_over(const struct vg_node *n, uint64_t now_usec, uint64_t lease_usec);
void __real_vg_nodelink_exit_ack(struct vg_control *c, uint64_t node, uint64_t task,
                                 uint32_t attempt);
void __wrap_vg_nodelink_exit_ack(struct vg_control *c, uint64_t node, uint64_t task,
                                 uint32_t attempt);

bool __wrap_vg_node_lease_over(const struct vg_node *n, uint64_t now_usec, uint64_t lease_usec) {
    if (vg_plant_is(VG_PLANT_EARLY_REQUEUE))
        return now_usec + lease_usec / 2 > n->lease_deadline_usec;
    return __real_vg_node_lease_over(n, now_usec, lease_usec);
}

void __wrap_vg_nodelink_exit_ack(struct vg_control *c, uint64_t node, uint64_t task,
                                 uint32_t attempt) {
    if (!vg_plant_is(VG_PLANT_LOST_EXIT_ACK))
        __real_vg_nodelink_exit_ack(c, node, task, attempt);
}

/* ------------------------------------------------------------------ short-charge */

int __real_vg_store_add_ledger(struct vg_store *s, const struct vg_ledger_row *row, vg_store_cb *cb,
                               void *arg);
int __wrap_vg_store_add_ledger(struct vg_store *s, const struct vg_ledger_row *row, vg_store_cb *cb,
                               void *arg);

int __wrap_vg_store_add_ledger(struct vg_store *s, const struct vg_ledger_row *row, vg_store_cb *cb,
                               void *arg) {
    struct vg_ledger_row copy = *row;
    copy.cost_micro -= vg_plant_is(VG_PLANT_SHORT_CHARGE) && copy.cost_micro > 0;
    return __real_vg_store_add_ledger(s, &copy, cb, arg);
}
