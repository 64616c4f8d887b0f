/* A task's attempts: those that are over by their stored rows, and the one that is on a node now.
 */
#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"
#include "control/api.h"
#include "control/history.h"
#include "control/ledger.h"
#include "control/nodes.h"
#include "control/price.h"

#include <string.h>

#define ATTEMPTS_MAX 1000 /* the newest are shown */

struct line {
    Vg__Pb__AttemptInfo pb;
    Vg__Pb__Resources held;
    Vg__Pb__GpuUsage use;
    char *texts[3]; /* owned: node, pool, how */
    int64_t cost;
};

struct lines {
    struct line *line;
    size_t n;
};

static void line_done(struct line *l) {
    for (size_t i = 0; i < VG_COUNT(l->texts); i++)
        free(l->texts[i]);
}

static void fill(struct line *l, uint32_t attempt, uint64_t from, uint64_t until, const char *node,
                 const char *pool, const char *how, struct vg_res held) {
    *l = (struct line){.pb = VG__PB__ATTEMPT_INFO__INIT, .held = vg_res_to_pb(held)};
    l->pb.has_attempt = l->pb.has_from_usec = l->pb.has_until_usec = true;
    l->pb.attempt = attempt;
    l->pb.from_usec = from;
    l->pb.until_usec = until;
    l->pb.node = l->texts[0] = vg_strdup(node);
    l->pb.pool = l->texts[1] = vg_strdup(pool);
    l->pb.how = l->texts[2] = vg_strdup(how);
}

static int take_row(void *arg, const struct vg_attempt_row *row) {
    struct lines *all = arg;
    if (all->n == ATTEMPTS_MAX) {
        line_done(&all->line[0]);
        memmove(all->line, all->line + 1, --all->n * sizeof *all->line);
    }
    struct line *l = &all->line[all->n++];
    struct vg_res held = {.cpu_milli = (uint32_t)row->cpu_milli,
                          .mem_bytes = row->mem_bytes,
                          .gpus = (uint32_t)(row->gpu_milli / 1000),
                          .gpu_milli = (uint32_t)(row->gpu_milli % 1000)};
    fill(l, row->attempt, row->from_usec, row->until_usec, row->node, row->pool, row->how, held);
    vg_gpu_usage_from_row(&row->gpu, &l->use);
    l->pb.has_cpu_usec = l->pb.has_mem_peak_bytes = true;
    l->pb.cpu_usec = row->cpu_usec;
    l->pb.mem_peak_bytes = row->mem_peak_bytes;
    return 0;
}

static void add_current(struct vg_control *c, const struct vg_task *t, struct lines *all) {
    bool known = all->n && all->line[all->n - 1].pb.attempt >= t->attempt.number;
    if (!t->attempt.node || !t->attempt.number || known || all->n >= ATTEMPTS_MAX)
        return;
    fill(&all->line[all->n++], t->attempt.number, t->started_usec, 0,
         vg_nodelink_name(c, t->attempt.node), vg_task_pool(t), vg_task_state_name(t->state),
         t->grant);
}

static int add_cost(void *arg, const struct vg_ledger_row *row) {
    struct lines *all = arg;
    for (size_t i = 0; i < all->n; i++)
        if (all->line[i].pb.attempt == row->attempt)
            all->line[i].cost += row->cost_micro;
    return 0;
}

/* What each has cost, and the one that runs until now. */
static int add_costs(struct vg_control *c, const struct vg_job *j, uint64_t task,
                     struct lines *all) {
    struct vg_ledger_filter f = {.task = task};
    if (!vg_prices_any(c))
        return 0;
    int r = vg_store_load_ledger(c->store, &f, add_cost, all);
    if (r >= 0 && j)
        vg_ledger_running_of(j, vg_wall_usec(), add_cost, all);
    for (size_t i = 0; r >= 0 && i < all->n; i++) {
        all->line[i].pb.has_cost_micro = true;
        all->line[i].pb.cost_micro = all->line[i].cost > 0 ? (uint64_t)all->line[i].cost : 0;
    }
    return r;
}

static void answer(struct vg_call *call, struct lines *all) {
    VG_ENVELOPE(env);
    Vg__Pb__AttemptList list = VG__PB__ATTEMPT_LIST__INIT;
    vg_auto_free Vg__Pb__AttemptInfo **at = vg_alloc((all->n + 1) * sizeof *at);
    for (size_t i = 0; at && i < all->n; i++) {
        struct line *l = &all->line[i];
        l->pb.held = &l->held;
        if (l->held.gpus || l->held.gpu_milli)
            l->pb.gpu_usage = l->pb.until_usec ? &l->use : NULL;
        at[i] = &l->pb;
    }
    list.attempt = at;
    list.n_attempt = at ? all->n : 0;
    env.body_case = VG__PB__ENVELOPE__BODY_ATTEMPTS;
    env.attempts = &list;
    vg_peer_send(call->peer, call->req, false, &env);
}

void vg_api_attempt_list(struct vg_call *call) {
    const char *ref = call->env->attempt_list->task ? call->env->attempt_list->task : "";
    struct vg_err err = VG_ERR_INIT;
    struct vg_found found;
    struct lines all = {0};
    if (vg_find_task(call->ctl, call->user, ref, &found, &err) < 0) {
        vg_peer_fail(call->peer, call->req, &err);
        return;
    }
    const struct vg_task *t = vg_found_task(&found);
    all.line = vg_alloc(ATTEMPTS_MAX * sizeof *all.line);
    int r = all.line ? vg_store_load_attempts(call->ctl->store, t->id, take_row, &all) : -ENOMEM;
    if (r >= 0)
        add_current(call->ctl, t, &all);
    if (r >= 0)
        r = add_costs(call->ctl, found.job, t->id, &all);
    if (r >= 0) {
        answer(call, &all);
    } else {
        vg_err_sys(&err, r, "cannot read the task's attempts");
        vg_peer_fail(call->peer, call->req, &err);
    }
    vg_found_done(&found);
    for (size_t i = 0; i < all.n; i++)
        line_done(&all.line[i]);
    free(all.line);
}
