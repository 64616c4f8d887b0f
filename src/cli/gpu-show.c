/* GPUs as text and JSON; see the header. */
#include "cli/gpu-show.h"

#include "base/cleanup.h"
#include "base/util.h"
#include "cli/json.h"
#include "gpu/near.h"

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

#define NUMBER(has, value) ((has) ? vg_json_u64(value) : json_null())

json_t *vg_gpu_usage_json(const Vg__Pb__GpuUsage *u) {
    if (!u)
        return json_null();
    json_t *j = json_object();
    json_object_set_new(j, "sm_mean_milli", NUMBER(u->has_sm_mean_milli, u->sm_mean_milli));
    json_object_set_new(j, "sm_max_percent", NUMBER(u->has_sm_max_percent, u->sm_max_percent));
    json_object_set_new(j, "mem_mean_milli", NUMBER(u->has_mem_mean_milli, u->mem_mean_milli));
    json_object_set_new(j, "mem_max_percent", NUMBER(u->has_mem_max_percent, u->mem_max_percent));
    json_object_set_new(j, "mem_peak_bytes", NUMBER(u->has_mem_peak_bytes, u->mem_peak_bytes));
    json_object_set_new(j, "energy_mj", NUMBER(u->has_energy_mj, u->energy_mj));
    json_object_set_new(j, "power_mw", NUMBER(u->has_power_mw, u->power_mw));
    json_object_set_new(j, "pcie_rx_bytes", NUMBER(u->has_pcie_rx_bytes, u->pcie_rx_bytes));
    json_object_set_new(j, "pcie_tx_bytes", NUMBER(u->has_pcie_tx_bytes, u->pcie_tx_bytes));
    json_object_set_new(j, "sampled_usec", NUMBER(u->has_sampled_usec, u->sampled_usec));
    json_object_set_new(j, "idle_usec", NUMBER(u->has_idle_usec, u->idle_usec));
    json_object_set_new(j, "share_limit_bytes",
                        NUMBER(u->has_share_limit_bytes, u->share_limit_bytes));
    json_object_set_new(j, "share_used_bytes",
                        NUMBER(u->has_share_used_bytes, u->share_used_bytes));
    json_object_set_new(j, "share_peak_bytes",
                        NUMBER(u->has_share_peak_bytes, u->share_peak_bytes));
    json_object_set_new(j, "share_refused", NUMBER(u->has_share_refused, u->share_refused));
    return j;
}

static json_t *holders_json(const Vg__Pb__GpuState *g) {
    json_t *a = json_array();
    for (size_t i = 0; i < g->n_holder; i++) {
        const Vg__Pb__GpuHolder *h = g->holder[i];
        json_t *j = json_object();
        json_object_set_new(j, "task", vg_json_id(h->task_id));
        json_object_set_new(j, "name", vg_json_text(h->name));
        json_object_set_new(j, "user", vg_json_text(h->user));
        json_object_set_new(j, "gpu_milli", vg_json_u64(h->gpu_milli));
        json_object_set_new(j, "usage", vg_gpu_usage_json(h->usage));
        json_array_append_new(a, j);
    }
    return a;
}

static json_t *procs_json(const Vg__Pb__GpuState *g) {
    json_t *a = json_array();
    for (size_t i = 0; i < g->n_proc; i++) {
        const Vg__Pb__GpuProc *p = g->proc[i];
        json_t *j = json_object();
        json_object_set_new(j, "pid", vg_json_u64(p->pid));
        json_object_set_new(j, "task", vg_json_id(p->task_id));
        json_object_set_new(j, "sm_percent", NUMBER(p->has_sm_percent, p->sm_percent));
        json_object_set_new(j, "mem_bytes", NUMBER(p->has_mem_bytes, p->mem_bytes));
        json_array_append_new(a, j);
    }
    return a;
}

static void add_facts(json_t *j, const Vg__Pb__GpuState *g) {
    json_t *migs = json_array(), *near = json_array();
    char name[8];
    for (size_t i = 0; i < g->n_near; i++)
        json_array_append_new(near, i == g->index ? json_null()
                                                  : vg_json_text(vg_near_name(g->near[i], name)));
    for (size_t i = 0; i < g->n_mig_uuid; i++)
        json_array_append_new(migs, vg_json_text(g->mig_uuid[i]));
    json_object_set_new(j, "model", vg_json_text(g->model));
    json_object_set_new(j, "vendor", vg_json_text(g->vendor));
    json_object_set_new(j, "simulated",
                        json_boolean(g->vendor && strcmp(g->vendor, "simulated") == 0));
    json_object_set_new(j, "uuid", vg_json_text(g->uuid));
    json_object_set_new(j, "bus", vg_json_text(g->bus));
    json_object_set_new(j, "driver", vg_json_text(g->driver));
    json_object_set_new(j, "mem_bytes", NUMBER(g->has_mem_bytes, g->mem_bytes));
    json_object_set_new(j, "numa", NUMBER(g->has_numa, g->numa));
    json_object_set_new(j, "island", NUMBER(g->has_island, g->island));
    json_object_set_new(j, "near", near);
    json_object_set_new(j, "pcie_gen", NUMBER(g->has_pcie_gen, g->pcie_gen));
    json_object_set_new(j, "pcie_width", NUMBER(g->has_pcie_width, g->pcie_width));
    json_object_set_new(j, "power_limit_mw", NUMBER(g->has_power_limit_mw, g->power_limit_mw));
    json_object_set_new(j, "mig", json_boolean(g->mig));
    json_object_set_new(j, "mig_uuids", migs);
}

json_t *vg_gpu_json(const Vg__Pb__GpuState *g) {
    json_t *j = json_object();
    json_object_set_new(j, "node", vg_json_text(g->node));
    json_object_set_new(j, "index", vg_json_u64(g->index));
    json_object_set_new(j, "state", vg_json_text(g->state));
    json_object_set_new(j, "reason", vg_json_text(g->reason));
    add_facts(j, g);
    json_object_set_new(j, "age_usec", NUMBER(g->has_age_usec, g->age_usec));
    json_object_set_new(j, "sm_percent", NUMBER(g->has_sm_percent, g->sm_percent));
    json_object_set_new(j, "mem_percent", NUMBER(g->has_mem_percent, g->mem_percent));
    json_object_set_new(j, "mem_used_bytes", NUMBER(g->has_mem_used_bytes, g->mem_used_bytes));
    json_object_set_new(j, "power_mw", NUMBER(g->has_power_mw, g->power_mw));
    json_object_set_new(j, "temp_c", NUMBER(g->has_temp_c, g->temp_c));
    json_object_set_new(j, "sm_mhz", NUMBER(g->has_sm_mhz, g->sm_mhz));
    json_object_set_new(j, "mem_mhz", NUMBER(g->has_mem_mhz, g->mem_mhz));
    json_object_set_new(j, "energy_mj", NUMBER(g->has_energy_mj, g->energy_mj));
    json_object_set_new(j, "ecc_corrected", NUMBER(g->has_ecc_corrected, g->ecc_corrected));
    json_object_set_new(j, "ecc_uncorrected", NUMBER(g->has_ecc_uncorrected, g->ecc_uncorrected));
    json_object_set_new(j, "xid", NUMBER(g->has_xid, g->xid));
    json_object_set_new(j, "fault", vg_json_text(g->fault));
    json_object_set_new(j, "holders", holders_json(g));
    json_object_set_new(j, "processes", procs_json(g));
    return j;
}
