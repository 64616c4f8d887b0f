/* GPUs of nodes: what agents report, what is drained. See the header.

   What always holds: a GPU that was reported faulty is drained before anything else is placed; only
   an administrator's word ends that, whatever the node says later. */
#include "control/node-gpus.h"

#include "base/buf.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/util.h"
#include "control/api.h"
#include "control/hooks.h"
#include "control/node-tasks.h"
#include "control/place.h"
#include "control/share.h"

#include <stdio.h>
#include <string.h>

const struct vg_node_gpu *vg_node_gpu_get(const struct vg_nodelink *a, uint32_t index) {
    return a->gpu && index < VG_NODE_GPUS_MAX && (a->node->gpus >> index & 1) ? &a->gpu[index]
                                                                              : NULL;
}

uint64_t vg_node_gpu_mem(const struct vg_nodelink *a, uint32_t index) {
    const struct vg_node_gpu *k = vg_node_gpu_get(a, index);
    return k && k->state && k->state->has_mem_bytes ? k->state->mem_bytes
                                                    : a->node->total.gpu_mem_bytes;
}

void vg_node_gpus_ask(struct vg_nodelink *a) {
    VG_ENVELOPE(env);
    Vg__Pb__GpuPoll m = VG__PB__GPU_POLL__INIT;
    m.has_usec = 1;
    m.usec = 5 * VG_USEC;
    env.body_case = VG__PB__ENVELOPE__BODY_GPU_POLL;
    env.gpu_poll = &m;
    if (a->peer && a->node->gpus)
        vg_peer_send(a->peer, 0, false, &env);
}

static bool need_gpus(struct vg_nodelink *a) {
    if (!a->gpu)
        a->gpu = vg_alloc(VG_NODE_GPUS_MAX * sizeof *a->gpu);
    return a->gpu != NULL;
}

void vg_node_gpus_free(struct vg_nodelink *a) {
    for (size_t i = 0; a->gpu && i < VG_NODE_GPUS_MAX; i++) {
        if (a->gpu[i].state)
            vg__pb__gpu_state__free_unpacked(a->gpu[i].state, NULL);
        free(a->gpu[i].drained);
    }
    free(a->gpu);
    a->gpu = NULL;
}

/* ------------------------------------------------------------------ memory: "INDEX WHY" lines */

static void key_of(const struct vg_nodelink *a, char *out, size_t n) {
    snprintf(out, n, "gpus/%016llx", (unsigned long long)a->node->id);
}

static int save(struct vg_nodelink *a, vg_store_cb *cb, void *arg) {
    char key[40];
    struct vg_buf b = {0};
    int r = 0;
    key_of(a, key, sizeof key);
    for (uint32_t i = 0; r >= 0 && i < VG_NODE_GPUS_MAX; i++)
        if (a->gpu[i].drained)
            r = vg_buf_printf(&b, "%u %s\n", i, a->gpu[i].drained);
    if (r >= 0)
        r = vg_buf_append(&b, "", 1);
    if (r >= 0)
        r = vg_store_put_meta(a->ctl->store, key, (const char *)vg_buf_data(&b), VG_STORE_COMMIT,
                              cb, arg);
    if (r < 0)
        vg_error("node=%s which of its GPUs are drained cannot be stored: %s", a->node->name,
                 strerror(-r));
    vg_buf_done(&b);
    return r;
}

void vg_node_gpus_load(struct vg_nodelink *a) {
    char key[40];
    vg_auto_free char *text = NULL;
    if (!a->node->gpus || a->gpu || !need_gpus(a))
        return;
    key_of(a, key, sizeof key);
    if (vg_store_get_meta(a->ctl->store, key, &text) < 0 || !text)
        return;
    for (char *next = text, *line; (line = strsep(&next, "\n"));) {
        char *why = strchr(line, ' ');
        uint64_t index;
        if (!why)
            continue;
        *why++ = 0;
        if (vg_parse_u64(line, &index) == 0 && index < VG_NODE_GPUS_MAX && !a->gpu[index].drained)
            a->gpu[index].drained = vg_strdup(why);
    }
}

/* ------------------------------------------------------------------ out of use, and back */

void vg_job_notice(struct vg_job *j, const char *text) {
    char *copy = vg_strdup(text);
    if (!copy)
        return;
    free(j->notice);
    j->notice = copy;
    vg_job_event(j, VG__PB__RUN_EVENT__KIND__NOTICE, text);
    vg_job_changed(j);
}

static void tell_holders(struct vg_nodelink *a, uint32_t index, const char *why) {
    char text[VG_GPU_REASON_MAX + 200];
    snprintf(text, sizeof text, "GPU %u of node %s is out of use (%s): this task may fail", index,
             a->node->name, why);
    vg_map_for_each (s, &a->ctl->jobs) {
        struct vg_job *j = s->value;
        if (j->task->attempt.node == a->node->id && (j->task->gpus >> index & 1))
            vg_job_notice(j, text);
    }
}

int vg_node_gpu_drain(struct vg_nodelink *a, uint32_t index, const char *why, vg_store_cb *cb,
                      void *arg) {
    if (index >= VG_NODE_GPUS_MAX || !(a->node->gpus >> index & 1))
        return -ENOENT;
    char *text = why ? vg_fmt("%.*s", VG_GPU_REASON_MAX, why) : NULL;
    if (!need_gpus(a) || (why && !text))
        return -ENOMEM;
    for (char *p = text; p && *p; p++) /* it comes from elsewhere, and is a line */
        if ((unsigned char)*p < ' ')
            *p = ' ';
    free(a->gpu[index].drained);
    a->gpu[index].drained = text;
    int r = save(a, cb, arg);
    vg_nodelink_update(a);
    if (why)
        tell_holders(a, index, text);
    vg_place_all(a->ctl);
    return r;
}

/* ------------------------------------------------------------------ reports */

/* No machine has more; a node that was broken into may say anything, and sums must stay sums. */
#define MW_MAX (100ULL * 1000 * 1000)
#define LATE_USEC (3600 * VG_USEC) /* its counters may have begun before we know */

static void bound_use(const struct vg_job *j, Vg__Pb__GpuUsage *u) {
    uint64_t age = vg_node_task_age_usec(j) + LATE_USEC, cards = age * VG_NODE_GPUS_MAX;
    u->energy_mj = VG_MIN(u->energy_mj, age / VG_USEC * MW_MAX);
    u->sampled_usec = VG_MIN(u->sampled_usec, cards);
    u->unused_usec = VG_MIN(u->unused_usec, cards);
}

void vg_job_take_gpu_use(struct vg_job *j, const Vg__Pb__GpuUsage *use) {
    if (!j->gpu_use)
        j->gpu_use = vg_alloc(sizeof *j->gpu_use);
    if (!j->gpu_use)
        return;
    *j->gpu_use = *use; /* it is numbers only */
    j->gpu_use->base.n_unknown_fields = 0;
    j->gpu_use->base.unknown_fields = NULL;
    bound_use(j, j->gpu_use);
}

/* Nobody needs more of a card; a node that was broken into may say anything. */
#define STATE_BYTES_MAX 16384

static bool is_sane(const struct vg_nodelink *a, const Vg__Pb__GpuState *g) {
    return g->index < VG_NODE_GPUS_MAX && (a->node->gpus >> g->index & 1) &&
           vg__pb__gpu_state__get_packed_size(g) <= STATE_BYTES_MAX;
}

/* What placement depends on. */
static bool differs(const Vg__Pb__GpuState *was, const Vg__Pb__GpuState *now) {
    return !was || was->mem_bytes != now->mem_bytes || was->island != now->island ||
           was->numa != now->numa || was->n_near != now->n_near ||
           (now->n_near && memcmp(was->near, now->near, now->n_near * sizeof *now->near) != 0);
}

static bool take_state(struct vg_nodelink *a, Vg__Pb__GpuState *g) {
    struct vg_node_gpu *to = &a->gpu[g->index];
    bool news = differs(to->state, g);
    if (to->state)
        vg__pb__gpu_state__free_unpacked(to->state, NULL);
    to->state = g;
    to->seen_usec = vg_now_usec();
    return news;
}

/* Of its cards, which are alike as a rule: what each of them surely has. */
static void take_memory(struct vg_nodelink *a) {
    uint64_t least = UINT64_MAX;
    for (uint32_t i = 0; i < VG_NODE_GPUS_MAX; i++)
        if (a->node->gpus >> i & 1)
            least = VG_MIN(least, a->gpu[i].state ? a->gpu[i].state->mem_bytes : 0);
    a->node->total.gpu_mem_bytes = least == UINT64_MAX ? 0 : least;
}

void vg_job_forget_gpu_use(struct vg_job *j) {
    free(vg_take_ptr(j->gpu_use));
    free(vg_take_ptr(j->notice));
    j->idle_told = false;
    j->share_counted = 0;
}

static void take_use(struct vg_nodelink *a, const Vg__Pb__TaskGpuUse *u) {
    struct vg_job *j = vg_job_get(a->ctl, u->task_id);
    if (!j || !u->usage || !vg_task_is_current(j->task, u->attempt, a->node->id))
        return;
    vg_job_take_gpu_use(j, u->usage);
    vg_gpu_idle_check(j, u->usage);
    vg_share_used(j);
}

void vg_agent_on_gpu_report(struct vg_call *call) {
    Vg__Pb__GpuReport *m = call->env->gpu_report;
    struct vg_nodelink *a = call->peer->agent;
    bool news = false;
    if (!need_gpus(a))
        return;
    for (size_t i = 0; i < m->n_gpu; i++) {
        if (is_sane(a, m->gpu[i]))
            news |= take_state(a, vg_take_ptr(m->gpu[i]));
    }
    if (news) {
        take_memory(a);
        vg_nodelink_update(a);
        vg_place_all(a->ctl);
    }
    for (uint32_t i = 0; i < VG_NODE_GPUS_MAX; i++) {
        const Vg__Pb__GpuState *g = a->gpu[i].state;
        if (!g || !g->fault || !*g->fault || a->gpu[i].drained)
            continue;
        vg_warn("node=%s gpu=%u drained: %s", a->node->name, i, g->fault);
        vg_node_gpu_drain(a, i, g->fault, NULL, NULL);
        vg_hook_gpu(a, i, g->fault);
    }
    for (size_t i = 0; i < m->n_task; i++)
        take_use(a, m->task[i]);
}
