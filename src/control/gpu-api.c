/* `virga gpu`: the cloud's GPUs for people, and an administrator's word about one of them. */
#include "base/mem.h"
#include "base/util.h"
#include "control/api.h"
#include "control/audit.h"
#include "control/later.h"
#include "control/node-gpus.h"
#include "control/users.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define B(name) VG__PB__ENVELOPE__BODY_##name
#define HOLDERS_MAX 64 /* shown of one GPU */
#define GPUS_MAX 65536 /* in one answer */

/* Everything that one answer points to. */
struct answer {
    struct vg_call *call;
    Vg__Pb__GpuState *state, **list; /* owned */
    size_t n, max;
    Vg__Pb__GpuHolder *holder, **holders; /* owned; those of one GPU follow each other */
    size_t n_holders, max_holders;
    struct vg_job **job; /* owned: tasks that hold GPUs */
    size_t n_jobs;
    Vg__Pb__GpuProc **proc; /* owned; those of one GPU follow each other */
    size_t n_procs, max_procs;
};

static void answer_done(struct answer *a) {
    free(a->state);
    free(a->list);
    free(a->holder);
    free(a->holders);
    free(a->job);
    free(a->proc);
}

static int answer_init(struct answer *a, struct vg_call *call) {
    struct vg_control *c = call->ctl;
    *a = (struct answer){.call = call};
    vg_map_for_each (s, &c->nodes) {
        const struct vg_nodelink *n = s->value;
        a->max += (size_t)__builtin_popcountll(n->node->gpus);
        for (uint32_t i = 0; i < VG_NODE_GPUS_MAX; i++) {
            const struct vg_node_gpu *k = vg_node_gpu_get(n, i);
            a->max_procs += k && k->state ? k->state->n_proc : 0;
        }
    }
    a->max = VG_MIN(a->max, (size_t)GPUS_MAX);
    a->job = vg_alloc((vg_map_len(&c->jobs) + 1) * sizeof *a->job);
    for (struct vg_job **to = a->job; to; to = NULL)
        vg_map_for_each (s, &c->jobs) {
            struct vg_job *j = s->value;
            if (!j->task->attempt.node || !j->task->gpus)
                continue;
            to[a->n_jobs++] = j;
            a->max_holders += (size_t)__builtin_popcountll(j->task->gpus);
        }
    a->state = vg_alloc((a->max + 1) * sizeof *a->state);
    a->list = vg_alloc((a->max + 1) * sizeof *a->list);
    a->holder = vg_alloc((a->max_holders + 1) * sizeof *a->holder);
    a->holders = vg_alloc((a->max_holders + 1) * sizeof *a->holders);
    a->proc = vg_alloc((a->max_procs + 1) * sizeof *a->proc);
    return a->proc && a->job && a->state && a->list && a->holder && a->holders ? 0 : -ENOMEM;
}

/* What others run is theirs to know: that they hold it is not a secret. */
static void add_holder(struct answer *a, struct vg_job *j) {
    const struct vg_task *t = j->task;
    Vg__Pb__GpuHolder *h = &a->holder[a->n_holders];
    vg__pb__gpu_holder__init(h);
    h->has_gpu_milli = 1;
    h->gpu_milli = t->grant.gpus ? 1000 : vg_task_held(t).gpu_milli;
    if (vg_users_may_see(a->call->user, t->user, t->team)) {
        h->has_task_id = 1;
        h->task_id = t->id;
        h->name = (char *)vg_task_name(t);
        h->user = t->user;
        h->usage = j->gpu_use;
    }
    a->holders[a->n_holders++] = h;
}

static void add_holders(struct answer *a, uint64_t node, uint32_t index, Vg__Pb__GpuState *g) {
    size_t first = a->n_holders;
    for (size_t i = 0; i < a->n_jobs && a->n_holders - first < HOLDERS_MAX; i++)
        if (a->job[i]->task->attempt.node == node && (a->job[i]->task->gpus >> index & 1) &&
            a->n_holders < a->max_holders)
            add_holder(a, a->job[i]);
    g->holder = a->holders + first;
    g->n_holder = a->n_holders - first;
}

/* Processes of one's own and one's team's tasks; an administrator sees those of none, too. */
static void add_procs(struct answer *a, const Vg__Pb__GpuState *from, Vg__Pb__GpuState *g) {
    size_t first = a->n_procs;
    for (size_t i = 0; i < from->n_proc && a->n_procs < a->max_procs; i++) {
        const struct vg_job *j =
            from->proc[i]->task_id ? vg_job_get(a->call->ctl, from->proc[i]->task_id) : NULL;
        if (j ? vg_users_may_see(a->call->user, j->task->user, j->task->team)
              : vg_user_may(a->call->user, VG_ACT_SEE_ALL))
            a->proc[a->n_procs++] = from->proc[i];
    }
    g->proc = a->proc + first;
    g->n_proc = a->n_procs - first;
}

static const char *state_of(const struct vg_nodelink *n, const struct vg_node_gpu *k,
                            const Vg__Pb__GpuState *g) {
    if (k && k->drained)
        return "drained";
    return !n->peer ? "away" : g->n_holder ? "busy" : "free";
}

static void add_gpu(struct answer *a, struct vg_nodelink *n, uint32_t index) {
    const struct vg_node_gpu *k = vg_node_gpu_get(n, index);
    Vg__Pb__GpuState *g = &a->state[a->n];
    if (a->n == a->max)
        return;
    vg__pb__gpu_state__init(g);
    if (k && k->state) {
        *g = *k->state;
        g->age_usec += vg_now_usec() - k->seen_usec;
        add_procs(a, k->state, g);
    } else {
        g->model = n->node->gpu_model;
    }
    g->has_index = 1;
    g->index = index;
    g->node = n->node->name;
    add_holders(a, n->node->id, index, g);
    g->state = (char *)state_of(n, k, g);
    g->reason = k ? k->drained : NULL;
    a->list[a->n++] = g;
}

static int by_name(const void *x, const void *y) {
    const Vg__Pb__GpuState *a = *(Vg__Pb__GpuState *const *)x, *b = *(Vg__Pb__GpuState *const *)y;
    int r = strcmp(a->node, b->node);
    return r ? r : (a->index > b->index) - (a->index < b->index);
}

void vg_api_gpu_list(struct vg_call *call) {
    const Vg__Pb__GpuQuery *q = call->env->gpu_list;
    struct vg_err err = VG_ERR_INIT;
    struct vg_nodelink *only = NULL;
    struct answer a;
    VG_ENVELOPE(env);
    Vg__Pb__GpuList list = VG__PB__GPU_LIST__INIT;
    if (q->node && *q->node && !(only = vg_nodelink_find(call->ctl, q->node, &err))) {
        vg_peer_fail(call->peer, call->req, &err);
        return;
    }
    if (answer_init(&a, call) < 0) {
        answer_done(&a);
        vg_peer_error(call->peer, call->req, VG_INTERNAL, "the control plane is out of memory");
        return;
    }
    vg_map_for_each (s, &call->ctl->nodes) {
        struct vg_nodelink *n = s->value;
        if (only && n != only)
            continue;
        for (uint32_t i = 0; i < VG_NODE_GPUS_MAX; i++)
            if (n->node->gpus >> i & 1)
                add_gpu(&a, n, i);
        if (q->live)
            vg_node_gpus_ask(n);
    }
    if (a.n)
        qsort(a.list, a.n, sizeof *a.list, by_name);
    list.n_gpu = a.n;
    list.gpu = a.list;
    env.body_case = B(GPUS);
    env.gpus = &list;
    vg_peer_send(call->peer, call->req, false, &env);
    answer_done(&a);
}

/* The node forgets what it held against the card; what goes wrong again is told again. */
static void tell_node(struct vg_nodelink *n, uint32_t index) {
    VG_ENVELOPE(env);
    Vg__Pb__GpuSet m = VG__PB__GPU_SET__INIT;
    m.has_index = 1;
    m.index = index;
    env.body_case = B(GPU_CLEAR);
    env.gpu_clear = &m;
    if (n->peer)
        vg_peer_send(n->peer, 0, false, &env);
}

static int set_gpu(struct vg_nodelink *n, const Vg__Pb__GpuSet *m, struct vg_later *l,
                   struct vg_err *err) {
    const char *state = m->state ? m->state : "";
    const struct vg_node_gpu *k = vg_node_gpu_get(n, m->index);
    bool drain = strcmp(state, "drained") == 0;
    if (!drain && strcmp(state, "ready") != 0)
        return vg_err_set(err, VG_INVALID, "a GPU is set to 'drained' or 'ready', not '%.32s'",
                          state);
    if (!drain && k && k->state) { /* what it said before is over */
        free(k->state->fault);
        k->state->fault = NULL;
    }
    int r = vg_node_gpu_drain(
        n, m->index, drain ? (m->text && *m->text ? m->text : "by an administrator") : NULL,
        vg_later_stored, l);
    if (r == -ENOENT)
        return vg_err_set(err, VG_NOT_FOUND, "node %s has no GPU %u: 'virga gpu list' shows them",
                          n->node->name, m->index);
    if (r < 0)
        return vg_err_sys(err, r, "cannot set the GPU");
    if (!drain)
        tell_node(n, m->index);
    return 0;
}

void vg_api_gpu_set(struct vg_call *call) {
    const Vg__Pb__GpuSet *m = call->env->gpu_set;
    struct vg_err err = VG_ERR_INIT;
    struct vg_nodelink *n = vg_nodelink_find(call->ctl, m->node ? m->node : "", &err);
    struct vg_later *l = n ? vg_later_new(call) : NULL;
    if (n && !l)
        vg_err_sys(&err, -ENOMEM, "cannot set the GPU");
    if (!l || set_gpu(n, m, l, &err) < 0) {
        free(l);
        vg_peer_fail(call->peer, call->req, &err);
        return;
    }
    vg_audit(call, "gpu %s:%u: %s", n->node->name, m->index, m->state);
}
