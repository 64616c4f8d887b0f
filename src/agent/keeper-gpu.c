/* A task with a share of a GPU: its keeper is its warden (gpu/warden-notify.h), so that neither a
   restart of the agent nor of the control plane leaves it unwatched. When the warden cannot be, the
   task's calls to the driver fail: never more than its share.

   Its programs find our libraries where the driver's are, the driver's own in real/ below
   VG_SANDBOX_SHARE, and there the page (gpu/share-page.h). Without them it does not start. */
#include "agent/keeper-int.h"
#include "base/cleanup.h"
#include "base/log.h"
#include "base/util.h"
#include "gpu/driver.h"
#include "gpu/fake-call.h"
#include "gpu/share-page.h"
#include "gpu/warden-notify.h"

#include <ctype.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define AUDITS_MAX 2 /* in a row that may not come out */
#define TELL_USEC 1000000
#define SLICE_DEFAULT_USEC 2000 /* until the agent has said how the card is divided */

static uint32_t slice_of(const struct ktask *t) {
    if (vg_start_is_mps(t->start))
        return 0; /* it computes in the server's group, at the same time as others */
    return t->slice_usec ? t->slice_usec : SLICE_DEFAULT_USEC;
}

/* ---- what its programs see ------------------------------------------------------------------- */

#define REAL VG_SANDBOX_SHARE "/real/"
#define REAL_CUDA REAL "libcuda.so.1"
#define REAL_NVML REAL "libnvidia-ml.so.1"

struct kgpu_lay {
    struct vg_lay lay;
    struct vg_lay_file files[VG_LAY_MAX];
    char ours_cuda[PATH_MAX], ours_nvml[PATH_MAX];
};

/* GPU-8-4-4-4-12 hexadecimal digits. */
static int parse_uuid(const char *text, uint8_t out[16]) {
    size_t n = 0;
    for (text += strncmp(text, "GPU-", 4) ? 0 : 4; *text; text++) {
        if (*text == '-')
            continue;
        if (n == 32 || !isxdigit((unsigned char)*text))
            return -EINVAL;
        int c = tolower((unsigned char)*text), digit = isdigit(c) ? c - '0' : c - 'a' + 10;
        out[n / 2] = (uint8_t)(n % 2 ? out[n / 2] << 4 | digit : digit);
        n++;
    }
    return n == 32 ? 0 : -EINVAL;
}

static const char *word(const struct ktask *t, size_t n) {
    const char *w = vg_kshare_word(t->share_words, t->share_len, n);
    return w ? w : "";
}

bool kgpu_is_held(const struct keeper *k, const struct ktask *t) {
    const struct vg_gpus *g = k->birth.gpus;
    if (!vg_start_is_share(t->start))
        return false;
    for (size_t i = 0; g && i < g->n; i++)
        if (g->gpu[i].index == t->start->gpu[0] && g->gpu[i].vendor == VG_CARD_FAKE &&
            g->gpu[i].minor < 0)
            return *word(t, VG_KSHARE_CUDA);
    return true;
}

static int make_page(void *ud, int folder, struct vg_err *err) {
    struct ktask *t = ud;
    const Vg__Pb__Resources *g = t->start->grant;
    struct vg_share_device device = {.limit_bytes = g->gpu_mem_bytes, .weight_milli = g->gpu_milli};
    const char *version = word(t, VG_KSHARE_VERSION);
    const struct vg_share_conf conf = {.device = &device,
                                       .devices = 1,
                                       .driver = *version ? version : "unknown",
                                       .real_cuda = REAL_CUDA,
                                       .real_nvml = REAL_NVML};
    if (parse_uuid(word(t, VG_KSHARE_UUID), device.uuid) < 0)
        return vg_err_set(err, VG_UNAVAILABLE,
                          "the driver of this node does not tell the UUID of GPU %u: look at "
                          "'nvidia-smi -L' there",
                          t->start->gpu[0]);
    return vg_share_page_open(folder, &conf, &t->page, err);
}

static bool is_cuda(const char *place) {
    const char *slash = strrchr(place, '/');
    return slash && !strncmp(slash + 1, VG_DRIVER_CUDA, strlen(VG_DRIVER_CUDA));
}

static int check_share(const struct keeper *k, const struct ktask *t, const char *cuda,
                       const char *nvml, struct vg_err *err) {
    if (k->session_key[0]) /* what else runs in its sandbox is not watched */
        return vg_err_set(err, VG_UNSUPPORTED,
                          "a task in a session cannot have a share of a GPU: leave out --session");
    if (!t->start->grant->gpu_mem_bytes)
        return vg_err_set(err, VG_INVALID, "the share of a GPU says nothing of its memory");
    if (!*cuda || !*nvml)
        return vg_err_set(err, VG_UNAVAILABLE,
                          "this node has no %s of its driver: name its folder in node.libraries",
                          *cuda ? "libnvidia-ml" : "libcuda");
    return 0;
}

int kgpu_lay(const struct keeper *k, struct ktask *t, struct kgpu_lay **ret, struct vg_err *err) {
    const char *cuda = word(t, VG_KSHARE_CUDA), *nvml = word(t, VG_KSHARE_NVML), *place;
    int r = check_share(k, t, cuda, nvml, err);
    if (r < 0)
        return r;
    struct kgpu_lay *l = calloc(1, sizeof(*l));
    if (!l)
        return vg_err_sys(err, -ENOMEM, "cannot show a task its share of a GPU");
    size_t n = 0;
    snprintf(l->ours_cuda, PATH_MAX, "%s/libcuda.so.1", word(t, VG_KSHARE_OURS));
    snprintf(l->ours_nvml, PATH_MAX, "%s/libnvidia-ml.so.1", word(t, VG_KSHARE_OURS));
    l->files[n++] = (struct vg_lay_file){.from = cuda, .at = REAL_CUDA};
    l->files[n++] = (struct vg_lay_file){.from = nvml, .at = REAL_NVML};
    for (size_t i = VG_KSHARE_PLACES;
         n < VG_LAY_MAX && (place = vg_kshare_word(t->share_words, t->share_len, i)); i++)
        l->files[n++] =
            (struct vg_lay_file){.from = is_cuda(place) ? l->ours_cuda : l->ours_nvml, .at = place};
    l->lay = (struct vg_lay){
        .folder = VG_SANDBOX_SHARE, .files = l->files, .n_files = n, .fill = make_page, .ud = t};
    *ret = l;
    return 0;
}

const struct vg_lay *kgpu_laid(const struct kgpu_lay *l) {
    return l ? &l->lay : NULL;
}

/* From the warden's thread. */
static void show_sums(void *ud, const struct vg_warden_stat *stat) {
    struct ktask *t = ud;
    vg_share_page_limit(t->page, 0, stat->limit_bytes);
    vg_share_page_used(t->page, 0, stat->used_bytes);
}

static void show_processes(void *ud, const struct vg_warden_process *process, size_t n) {
    struct ktask *t = ud;
    struct vg_share_process row[VG_SHARE_PROCESSES_MAX];
    n = VG_MIN(n, (size_t)VG_SHARE_PROCESSES_MAX);
    for (size_t i = 0; i < n; i++)
        row[i] = (struct vg_share_process){.pid = (uint32_t)process[i].task_pid,
                                           .used_bytes = process[i].used_bytes};
    vg_share_page_processes(t->page, row, n);
}

/* ---- its warden ------------------------------------------------------------------------------ */

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
    if (!t->page) { /* nobody asked for it */
        close(listener);
        return;
    }
    (void)stat("/dev/nvidia-uvm", &st);
    struct vg_warden_setup setup = {.listener = listener,
                                    .devices = &device,
                                    .n_devices = device ? 1 : 0,
                                    .limit_bytes = t->start->grant->gpu_mem_bytes,
                                    .slice_usec = slice_of(t),
                                    .managed_device = st.st_rdev,
                                    .ud = t,
                                    .changed = show_sums,
                                    .processes = show_processes,
                                    .mps = vg_start_is_mps(t->start)};
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
    if (t->page)
        vg_share_page_weight(t->page, 0, t->start->grant->gpu_milli);
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

static void close_page(struct ktask *t) {
    vg_share_page_close(t->page);
    t->page = NULL;
}

/* ---- telling --------------------------------------------------------------------------------- */

static void tell_shared(struct keeper *k, struct ktask *t) {
    struct vg_warden_stat s;
    vg_warden_look(t->watch, &s);
    const struct vg_kshared now = {s.limit_bytes, s.used_bytes, s.peak_bytes, s.refused};
    if (memcmp(&now, &t->shared, sizeof(now)) != 0 &&
        keeper_tell(k, VG_K_SHARED, t->id, 0, 0, &now, sizeof(now), NULL, 0) >= 0)
        t->shared = now;
}

uint64_t kgpu_deadline(struct keeper *k, struct ktask *t, uint64_t now) {
    if (!t->watch)
        return KEEPER_NEVER;
    if (now >= t->shared_next_usec) {
        tell_shared(k, t);
        t->shared_next_usec = now + TELL_USEC;
    }
    return t->shared_next_usec;
}

/* Why a command failed, when its share was too small for it. */
void kgpu_end(struct keeper *k, struct ktask *t) {
    struct vg_warden_stat s;
    if (!t->watch) {
        close_page(t);
        return;
    }
    vg_warden_look(t->watch, &s);
    tell_shared(k, t);
    if (t->status && s.refused && !t->text[0]) {
        char share[32];
        snprintf(
            t->text, sizeof(t->text),
            "%llu requests for GPU memory were refused: its share is %s (--gpu-mem asks for more)",
            (unsigned long long)s.refused, vg_format_size(s.limit_bytes, share, sizeof(share)));
    }
    if (t->status && s.beside && !t->text[0])
        snprintf(t->text, sizeof(t->text),
                 "it tried to use its GPU without the pool's MPS server: leave "
                 "CUDA_MPS_PIPE_DIRECTORY as it is");
    vg_warden_stop(t->watch);
    t->watch = NULL;
    close_page(t);
}
