/* Shares of GPUs: how the time of each card is divided among the tasks on it (agent-slices.h).
   Every keeper is told its task's slice; its warden sets it. Divided anew whenever a share comes,
   goes or changes. Loop thread. */
#include "agent/agent-int.h"

#include "base/cleanup.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/util.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

static struct vg_agent_share share_of(const Vg__Pb__Start *start) {
    return (struct vg_agent_share){.milli = start->grant->gpu_milli,
                                   .card = start->gpu[0],
                                   .turn_usec = start->gpu_turn_usec,
                                   .mps = vg_start_is_mps(start)};
}

void vg_share_adopt(struct vg_agent_task *t, const Vg__Pb__Start *start) {
    if (vg_start_is_share(start))
        t->share = share_of(start);
}

/* Beside the program: PREFIX/bin/virga and PREFIX/lib/virga/vgpu. */
static int find_ours(const struct vg_agent *a, char *out, size_t n) {
    const char *exe = a->self_exe ? a->self_exe : "";
    const char *slash = strrchr(exe, '/');
    return snprintf(out, n, "%.*s/../lib/virga/vgpu", slash ? (int)(slash - exe) : 0, exe);
}

/* As the kernel tells it, or the watcher saw it. */
static const char *uuid_of(const struct vg_agent *a, uint32_t card) {
    if (card >= a->gpus.n)
        return "";
    return *a->gpus.gpu[card].uuid ? a->gpus.gpu[card].uuid : a->card[card].facts.uuid;
}

static int add_word(struct vg_buf *b, const char *word) {
    return vg_buf_append(b, word ? word : "", word ? strlen(word) + 1 : 1);
}

/* The keeper judges whether it is enough: what is missing is missing for this task only. */
int vg_share_begin(struct vg_agent *a, struct vg_agent_task *t, const Vg__Pb__Start *start) {
    char ours[PATH_MAX];
    struct vg_buf b = {0};
    vg_share_adopt(t, start);
    if (!t->share.milli)
        return 0;
    find_ours(a, ours, sizeof(ours));
    const char *const words[] = {[VG_KSHARE_UUID] = uuid_of(a, t->share.card),
                                 [VG_KSHARE_VERSION] = a->driver.version,
                                 [VG_KSHARE_OURS] = ours,
                                 [VG_KSHARE_CUDA] = vg_driver_library(&a->driver, VG_DRIVER_CUDA),
                                 [VG_KSHARE_NVML] = vg_driver_library(&a->driver, VG_DRIVER_NVML)};
    int r = 0;
    for (size_t i = 0; r >= 0 && i < VG_COUNT(words); i++)
        r = add_word(&b, words[i]);
    for (size_t i = 0; r >= 0 && i < a->places.n; i++)
        r = add_word(&b, a->places.item[i]);
    if (r >= 0) {
        t->share.words_len = vg_buf_len(&b);
        t->share.words = vg_memdup(vg_buf_data(&b), vg_buf_len(&b));
    }
    vg_buf_done(&b);
    return r >= 0 && !t->share.words ? -ENOMEM : r;
}

static bool is_on(const struct vg_agent_task *t, uint32_t card) {
    return t->share.milli && !t->share.mps && t->share.card == card && t->keeper && !t->gated &&
           t->state != VG_AT_EXITED;
}

/* Once for each time that it comes to be so. */
static void say_inexact(struct vg_agent *a, uint32_t card, bool exact) {
    bool *said = card < VG_COUNT(a->inexact) ? &a->inexact[card] : NULL;
    if (said && !exact && !*said)
        vg_warn("gpu=%u: its shares differ too much to be kept to the letter: the smallest turns "
                "would be too short, and are made longer",
                card);
    if (said)
        *said = !exact;
}

static void tell_keeper(struct vg_agent_task *t, uint32_t usec) {
    if (t->share.slice_usec == usec)
        return;
    t->share.slice_usec = usec;
    if (vg_keeper_send(t->keeper, VG_K_SLICE, t->id, usec, 0, NULL, 0, NULL, 0) < 0)
        vg_debug("a keeper could not be told its task's time slice");
}

static void divide(struct vg_agent *a, uint32_t card) {
    struct vg_agent_task *on[VG_SLICES_MAX];
    uint32_t weight[VG_SLICES_MAX] = {0}, usec[VG_SLICES_MAX] = {0};
    uint64_t turn = 0;
    size_t n = 0;
    vg_map_for_each (s, &a->tasks) {
        struct vg_agent_task *t = s->value;
        if (!is_on(t, card) || n == VG_SLICES_MAX)
            continue;
        if (t->share.turn_usec && (!turn || t->share.turn_usec < turn))
            turn = t->share.turn_usec;
        weight[n] = t->share.milli;
        on[n++] = t;
    }
    say_inexact(a, card, vg_slices_divide(weight, n, turn, usec));
    for (size_t i = 0; i < n; i++)
        tell_keeper(on[i], usec[i]);
}

void vg_share_divide(struct vg_agent *a, const struct vg_agent_task *t) {
    if (t->share.mps)
        vg_mps_changed(a, t->share.card);
    else if (t->share.milli)
        divide(a, t->share.card);
}

void vg_share_on_use(struct vg_agent_keeper *k, const struct vg_kpkt *p, const uint8_t *data) {
    struct vg_agent_task *t = vg_tasks_get(k->agent, p->id);
    if (t && t->keeper == k && t->share.milli && p->len == sizeof(t->share.use))
        memcpy(&t->share.use, data, sizeof(t->share.use));
}

/* ------------------------------------------------------------------ a share is changed */

static bool is_sane(const Vg__Pb__TaskShare *m) {
    return (!m->has_gpu_milli || (m->gpu_milli >= 1 && m->gpu_milli <= 1000)) &&
           (!m->has_gpu_mem_bytes || m->gpu_mem_bytes > 0);
}

/* The Start with its new share is what the keeper keeps and tells the next agent. */
static int change(struct vg_agent_task *t, const Vg__Pb__TaskShare *m) {
    Vg__Pb__Start *start = vg_tasks_read_start(t);
    int r = start && vg_start_is_share(start) && start->spec ? 0 : -EINVAL;
    if (r >= 0 && m->has_gpu_milli)
        start->grant->gpu_milli = m->gpu_milli;
    if (r >= 0 && m->has_gpu_mem_bytes) {
        start->grant->gpu_mem_bytes = m->gpu_mem_bytes;
        start->grant->has_gpu_mem_bytes = true;
    }
    if (r >= 0 && m->has_gpu_hard)
        start->spec->has_gpu_hard = start->spec->gpu_hard = m->gpu_hard;
    if (r >= 0)
        r = vg_tasks_keep_start(t, start);
    if (r >= 0)
        t->share.milli = start->grant->gpu_milli;
    if (start)
        vg__pb__start__free_unpacked(start, NULL);
    return r;
}

void vg_share_on_change(struct vg_agent *a, const Vg__Pb__TaskShare *m) {
    struct vg_agent_task *t = vg_tasks_get(a, m->task_id);
    if (!t || t->attempt != m->attempt || t->state == VG_AT_EXITED || !t->share.milli)
        return; /* it has ended meanwhile, or never was one */
    int r = is_sane(m) ? change(t, m) : -EINVAL;
    if (r >= 0 && t->keeper && !t->gated)
        r = vg_keeper_send(t->keeper, VG_K_SHARE, t->id, 0, 0, NULL, 0, &t->start_fd, 1);
    if (r < 0)
        vg_warn("a task's share of a GPU could not be changed: %s", strerror(-r));
    vg_share_divide(a, t);
}
