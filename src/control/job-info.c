/* A task for people: what lists, answers and watchers are sent of it. */
#include "base/mem.h"
#include "base/util.h"
#include "control/job.h"
#include "control/ledger.h"
#include "control/nodes.h"
#include "control/place.h"
#include "control/price.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void info_of_progress(const struct vg_progress *p, Vg__Pb__Progress *ret) {
    vg__pb__progress__init(ret);
    ret->has_total = ret->has_blocked = ret->has_queued = ret->has_running = ret->has_succeeded =
        ret->has_failed = ret->has_cancelled = 1;
    ret->total = vg_progress_total(p);
    ret->blocked = p->n[VG_TASK_BLOCKED];
    ret->queued = p->n[VG_TASK_QUEUED];
    ret->running = p->n[VG_TASK_STARTING] + p->n[VG_TASK_RUNNING];
    ret->succeeded = p->n[VG_TASK_SUCCEEDED];
    ret->failed = p->n[VG_TASK_FAILED];
    ret->cancelled = p->n[VG_TASK_CANCELLED];
}

static void info_of_waits(const struct vg_task *t, struct vg_task_info *ret) {
    size_t n = VG_MIN(t->n_after, (uint32_t)VG_INFO_AFTER);
    for (size_t i = 0; i < n; i++) {
        snprintf(ret->after[i], sizeof ret->after[i], "%s %016llx", vg_after_name(t->after[i].when),
                 (unsigned long long)t->after[i].id);
        ret->after_list[i] = ret->after[i];
    }
    ret->pb.n_after = n;
    ret->pb.after = ret->after_list;
}

static void info_of_gpus(struct vg_control *c, const struct vg_task *t, struct vg_task_info *ret) {
    const struct vg_job *j = vg_job_get(c, t->id);
    ret->pb.has_gpu_hard = t->share.milli != 0;
    ret->pb.gpu_hard = t->share.hard;
    if (t->attempt.node)
        for (uint32_t i = 0; i < VG_NODE_GPUS_MAX; i++)
            if (t->gpus >> i & 1)
                ret->gpu[ret->pb.n_gpu++] = i;
    ret->pb.gpu = ret->gpu;
    if (!j)
        return;
    ret->pb.notice = j->notice;
    ret->pb.gpu_usage = j->gpu_use;
}

/* Fields that most tasks do not have are left out. */
static void info_of_batch(const struct vg_task *t, struct vg_task_info *ret) {
    Vg__Pb__TaskInfo *pb = &ret->pb;
    const Vg__Pb__TaskSpec *s = t->spec;
    if (t->progress && vg_progress_total(t->progress)) {
        info_of_progress(t->progress, &ret->progress);
        pb->progress = &ret->progress;
    }
    info_of_waits(t, ret);
    pb->has_group = pb->has_index = pb->has_of = t->group != 0;
    pb->group = t->group;
    pb->index = t->index;
    pb->of = t->of;
    pb->has_snapshot = pb->snapshot = s->mirror && s->mirror->pin;
    pb->has_members = t->members != 0;
    pb->members = t->members;
    pb->has_priority = s->has_priority;
    pb->priority = s->priority;
    pb->has_gang = s->gang;
    pb->gang = s->gang;
    pb->has_retries_left = s->retries != 0;
    pb->retries_left = t->retries_left;
    pb->has_preempted = t->preempted != 0;
    pb->preempted = t->preempted;
    pb->key = t->group ? NULL : s->key;
    pb->has_due_usec = t->due_usec != 0 && t->state == VG_TASK_QUEUED;
    pb->due_usec = t->due_usec;
    pb->has_schedule = s->has_made_by;
    pb->schedule = s->made_by;
    for (; pb->n_secret < VG_MIN(s->n_secret, VG_COUNT(ret->secret)); pb->n_secret++)
        ret->secret[pb->n_secret] = s->secret[pb->n_secret]->name;
    pb->secret = ret->secret;
}

/* A group costs what its members do. Of those that are over the store knows it; the sum is kept for
   a while, because heads are told of often and may have thousands of members. */
#define GROUP_COST_USEC VG_USEC
#define GROUP_COSTS_MAX 10000

struct vg_group_cost {
    int64_t micro;
    uint64_t at_usec; /* UINT64_MAX: nothing more will come */
};

struct adding {
    struct vg_control *c;
    int64_t sum;
};

static int add_member(void *arg, uint64_t task, int64_t micro) {
    struct adding *a = arg;
    if (!vg_job_get(a->c, task)) /* who is in memory speaks for himself */
        a->sum = vg_micro_add(a->sum, micro);
    return 0;
}

void vg_group_costs_done(struct vg_control *c) {
    vg_map_for_each (s, &c->group_costs)
        free(s->value);
    vg_map_done(&c->group_costs);
    c->group_costs = (struct vg_map){0};
}

static int group_cost(struct vg_control *c, const struct vg_task *t, int64_t *ret) {
    const struct vg_job *j = vg_job_get(c, t->id);
    uint64_t now = vg_wall_usec();
    struct vg_group_cost *g = vg_map_get_u64(&c->group_costs, t->id);
    struct adding a = {.c = c};
    if (g &&
        (g->at_usec == UINT64_MAX || (now >= g->at_usec && now - g->at_usec < GROUP_COST_USEC))) {
        *ret = g->micro;
        return 0;
    }
    int r = vg_store_folded_costs(c->store, t->id, add_member, &a);
    if (r < 0)
        return r;
    if (j && j->head)
        vg_list_for_each (it, &j->head->under) {
            const struct vg_job *m = vg_list_entry(it, struct vg_job, sibling);
            a.sum = vg_micro_add(a.sum, m->task->group == t->id ? vg_ledger_spent(m, now) : 0);
        }
    *ret = a.sum;
    if (!g && vg_map_len(&c->group_costs) >= GROUP_COSTS_MAX)
        vg_group_costs_done(c);
    if (!g && (g = vg_alloc(sizeof *g)) && vg_map_put_u64(&c->group_costs, t->id, g) < 0) {
        free(g);
        return 0;
    }
    if (g)
        *g = (struct vg_group_cost){a.sum, j ? now : UINT64_MAX};
    return 0;
}

/* What it has cost until now. */
static void info_of_cost(struct vg_control *c, const struct vg_task *t, Vg__Pb__TaskInfo *pb) {
    const struct vg_team *team = vg_tenants_team(&c->tenants, t->team);
    const struct vg_job *j = vg_job_get(c, t->id);
    int64_t cost = 0;
    pb->project = (char *)vg_ledger_project(t->spec);
    pb->org = team ? team->org : NULL;
    if (!vg_prices_any(c) || (!vg_task_is_group(t) && !t->attempt.number))
        return;
    if (vg_task_is_group(t)) {
        if (group_cost(c, t, &cost) < 0)
            return;
    } else if (j)
        cost = vg_ledger_spent(j, vg_wall_usec());
    else if (vg_store_task_cost(c->store, t->id, &cost) < 0)
        return;
    pb->has_cost_micro = 1;
    pb->cost_micro = cost > 0 ? (uint64_t)cost : 0;
    pb->currency = c->conf.currency;
}

void vg_task_info(struct vg_control *c, const struct vg_task *t, struct vg_task_info *ret) {
    Vg__Pb__TaskInfo *pb = &ret->pb;
    const Vg__Pb__TaskSpec *s = t->spec;
    vg__pb__task_info__init(pb);
    ret->want = vg_res_to_pb(vg_task_held(t));
    snprintf(ret->node, sizeof ret->node, "%s", vg_nodelink_name(c, t->last_node));
    pb->has_id = pb->has_attempt = pb->has_status = pb->has_created_usec = pb->has_started_usec =
        pb->has_ended_usec = pb->has_parent = pb->has_out_bytes = pb->has_interactive =
            pb->has_cpu_usec = pb->has_mem_peak_bytes = pb->has_time_limit_usec = 1;
    pb->id = t->id;
    pb->name = s->name;
    pb->state = (char *)vg_task_state_name(t->state);
    pb->user = t->user;
    pb->team = t->team;
    pb->pool = (char *)vg_task_pool(t);
    pb->node = ret->node;
    pb->attempt = t->attempt.number;
    pb->n_argv = s->n_argv;
    pb->argv = s->argv;
    pb->has_cwd = s->has_cwd;
    pb->cwd = s->cwd;
    pb->status = t->status;
    pb->has_status = vg_task_is_ended(t);
    pb->reason = t->reason_text;
    pb->created_usec = t->created_usec;
    pb->started_usec = t->started_usec;
    pb->ended_usec = t->ended_usec;
    pb->want = &ret->want;
    pb->n_label = s->n_label;
    pb->label = s->label;
    pb->session = s->session;
    pb->parent = s->parent;
    pb->out_bytes = t->out_bytes;
    pb->interactive = s->interactive;
    pb->cpu_usec = t->cpu_usec;
    pb->mem_peak_bytes = t->mem_peak_bytes;
    pb->time_limit_usec = s->time_limit_usec;
    info_of_batch(t, ret);
    info_of_gpus(c, t, ret);
    info_of_cost(c, t, pb);
}
