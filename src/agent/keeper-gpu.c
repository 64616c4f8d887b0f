/* A task with a share of a GPU: its keeper is its warden (gpu/warden-notify.h), so that neither a
   restart of the agent nor of the control plane leaves it unwatched. When the warden cannot be, the
   task's calls to the driver fail: never more than its share. */
#include "agent/keeper-int.h"
#include "base/log.h"
#include "base/util.h"
#include "gpu/fake-call.h"
#include "gpu/warden-notify.h"

#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <sys/stat.h>

#define AUDITS_MAX 2            /* in a row that may not come out */
#define SLICE_DEFAULT_USEC 2000 /* until the agent has said how the card is divided */

static uint32_t slice_of(const struct ktask *t) {
    return t->slice_usec ? t->slice_usec : SLICE_DEFAULT_USEC;
}

/* A simulated card's driver is a process of a test's. */
static int64_t call_simulated(void *ud, uint64_t process, int fd, uint32_t cmd, void *arg) {
    (void)ud;
    (void)process;
    return vg_fake_call(fd, cmd, arg, true);
}

static void simulate(const char *root, struct vg_warden_setup *setup) {
    char path[PATH_MAX];
    struct stat st = {0};
    snprintf(path, sizeof(path), "%s/dev/nvidia-uvm", root);
    (void)stat(path, &st);
    setup->issue = call_simulated;
    setup->managed_on = st.st_dev;
    setup->managed_ino = st.st_ino;
}

void kgpu_watched(struct keeper *k, struct ktask *t, int listener) {
    char path[VG_GPU_PATH];
    const char *device = NULL;
    struct stat st = {0};
    struct vg_err err = VG_ERR_INIT;
    const struct vg_gpus *g = k->birth.gpus;
    for (size_t i = 0; g && i < g->n; i++)
        if (g->gpu[i].index == t->start->gpu[0] && g->gpu[i].minor >= 0 && !g->root[0]) {
            snprintf(path, sizeof(path), "/dev/nvidia%d", g->gpu[i].minor);
            device = path;
        }
    (void)stat("/dev/nvidia-uvm", &st);
    struct vg_warden_setup setup = {.listener = listener,
                                    .devices = &device,
                                    .n_devices = device ? 1 : 0,
                                    .limit_bytes = t->start->grant->gpu_mem_bytes,
                                    .slice_usec = slice_of(t),
                                    .managed_device = st.st_rdev};
    if (g && g->root[0])
        simulate(g->root, &setup);
    if (vg_warden_start(&setup, &t->watch, &err) < 0)
        ktask_kill(k, t, SIGKILL, 0, err.msg);
}

void kgpu_slice(struct ktask *t, uint32_t usec) {
    t->slice_usec = usec;
    kgpu_changed(t);
}

void kgpu_changed(struct ktask *t) {
    if (t->watch)
        vg_warden_set(t->watch, t->start->grant->gpu_mem_bytes, slice_of(t));
}

/* Once may be a moment that was seen twice; a second time is memory that went around its share. */
void kgpu_audit(struct keeper *k, struct ktask *t, uint64_t card_bytes) {
    char holds[32], known[32], text[200];
    uint64_t limit = 0;
    uint32_t times = t->watch ? vg_warden_compare(t->watch, card_bytes, &limit) : 0;
    if (!times)
        return;
    vg_warn("task=%016llx holds %llu bytes of its GPU by the driver's count, of which no more than "
            "%llu can have passed by its share (%u times)",
            (unsigned long long)t->id, (unsigned long long)card_bytes, (unsigned long long)limit,
            times);
    if (times < AUDITS_MAX)
        return;
    snprintf(text, sizeof(text),
             "its processes hold %s of the GPU, by the driver's count, and not more than %s came "
             "through its share: it was ended",
             vg_format_size(card_bytes, holds, sizeof(holds)),
             vg_format_size(limit, known, sizeof(known)));
    ktask_kill(k, t, SIGKILL, 0, text);
}

/* Why a command failed, when its share was too small for it. */
void kgpu_end(struct ktask *t) {
    struct vg_warden_stat s;
    if (!t->watch)
        return;
    vg_warden_look(t->watch, &s);
    t->gpu_peak_bytes = s.peak_bytes;
    if (t->status && s.refused && !t->text[0]) {
        char share[32];
        snprintf(
            t->text, sizeof(t->text),
            "%llu requests for GPU memory were refused: its share is %s (--gpu-mem asks for more)",
            (unsigned long long)s.refused, vg_format_size(s.limit_bytes, share, sizeof(share)));
    }
    vg_warden_stop(t->watch);
    t->watch = NULL;
}
