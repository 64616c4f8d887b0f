/* GPUs as text and JSON; see the header. */
#include "cli/gpu-show.h"

#include "base/cleanup.h"
#include "base/util.h"

#include <string.h>

char *vg_gpu_model_text(const Vg__Pb__GpuState *g, char *out, size_t n) {
    bool fake = g->vendor && strcmp(g->vendor, "simulated") == 0;
    bool amd = g->vendor && strcmp(g->vendor, "amd") == 0;
    snprintf(out, n, "%s%s%s", g->model && *g->model ? g->model : "GPU", fake ? " (simulated)" : "",
             amd ? " (untested)" : "");
    return out;
}

char *vg_gpu_holders_text(const Vg__Pb__GpuState *g, char *out, size_t n) {
    const Vg__Pb__GpuHolder *h = g->n_holder ? g->holder[0] : NULL;
    char id[VG_ID_LEN + 1];
    if (!h) {
        snprintf(out, n, "-");
    } else if (g->n_holder > 1) {
        snprintf(out, n, "%zu tasks", g->n_holder);
    } else if (!h->task_id) {
        snprintf(out, n, "another user's");
    } else {
        vg_id_format(h->task_id, id);
        snprintf(out, n, "%s %s%s(%s)", id, h->name ? h->name : "", h->name && *h->name ? " " : "",
                 h->user ? h->user : "");
    }
    return out;
}

char *vg_gpu_use_text(uint32_t mean_milli, uint32_t max_percent, char *out, size_t n) {
    snprintf(out, n, "%u.%u %% of the time, at most %u %%", mean_milli / 1000,
             mean_milli % 1000 / 100, max_percent);
    return out;
}

char *vg_gpu_energy_text(uint64_t mj, char *out, size_t n) {
    if (mj >= 3600000000ULL)
        snprintf(out, n, "%.2f kWh", (double)mj / 3.6e9);
    else if (mj >= 1000000)
        snprintf(out, n, "%.1f kJ", (double)mj / 1e6);
    else
        snprintf(out, n, "%.1f J", (double)mj / 1e3);
    return out;
}
