/* The node's GPUs, as the agent uses them: their driver's files, and what tasks are told. */
#include "agent/agent-int.h"
#include "agent/agent-mps-words.h"
#include "base/cleanup.h"
#include "base/log.h"
#include "base/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void vg_agent_find_driver(struct vg_agent *a, char *const *patterns, size_t n) {
    struct vg_driver d;
    struct vg_driver_where w = {.root = a->gpus.root,
                                .library_path = getenv("LD_LIBRARY_PATH"),
                                .patterns = patterns,
                                .n_patterns = n};
    if (vg_driver_find(&w, &d) < 0) {
        vg_warn("the node's driver libraries cannot be listed: out of memory");
        return;
    }
    bool news = d.n != a->driver.n || d.source != a->driver.source ||
                strcmp(d.version, a->driver.version) != 0;
    if (news && d.source != VG_DRIVER_NONE)
        vg_info("driver files=%zu version=%s by=%s", d.n, *d.version ? d.version : "?",
                vg_driver_source_name(d.source));
    if (news && *d.remark)
        vg_warn("driver: %s", d.remark);
    vg_driver_done(&a->driver);
    a->driver = d;
    vg_cdi_list_done(&a->places);
    a->places = (struct vg_cdi_list){0};
    if (vg_driver_places(&w, &a->driver, &a->places) < 0)
        vg_warn("the places of the driver's libraries cannot be listed: out of memory");
    vg_gpus_take_cdi(&a->gpus, &a->driver.cdi);
}

static bool sets(const char *var, size_t len, const char *text, size_t n) {
    const char *eq = memchr(var, '=', len);
    size_t name = eq ? (size_t)(eq - var) + 1 : len;
    return n >= name && memcmp(var, text, name) == 0;
}

int vg_agent_env_add(const Vg__Pb__Start *start, struct vg_cdi_list *l, const char *var,
                     bool users) {
    size_t len = strlen(var);
    bool known = !strchr(var, '=');
    for (size_t i = 0; !known && i < start->n_extra_env; i++)
        known = sets(var, len, (char *)start->extra_env[i].data, start->extra_env[i].len);
    for (size_t i = 0; !known && users && i < start->spec->n_env; i++)
        known = sets(var, len, (char *)start->spec->env[i].data, start->spec->env[i].len);
    for (size_t i = 0; !known && i < l->n; i++)
        known = sets(var, len, l->item[i], strlen(l->item[i]));
    return known ? 0 : vg_cdi_list_add(l, var);
}

int vg_agent_gpu_env(const struct vg_agent *a, const Vg__Pb__Start *start,
                     struct vg_cdi_list *ret) {
    static const char *const names[] = {"CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"};
    char value[VG_GPUS_MAX * 64], text[sizeof(value) + 32];
    if (start->n_gpu == 0 || a->gpus.gpu[0].vendor == VG_CARD_AMD)
        return 0; /* ROCm counts the nodes that it can open */
    int r = vg_gpu_visible(&a->gpus, start->gpu, start->n_gpu, value, sizeof(value));
    for (size_t i = 0; r >= 0 && i < VG_COUNT(names); i++) {
        snprintf(text, sizeof(text), "%s=%s", names[i], value);
        r = vg_agent_env_add(start, ret, text, false);
    }
    if (r >= 0 && vg_start_is_mps(start)) {
        r = vg_agent_env_add(start, ret, "CUDA_MPS_PIPE_DIRECTORY=" VG_MPS_INSIDE, false);
        snprintf(text, sizeof(text), "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=");
        vg_mps_percentage(start->grant->gpu_milli, text + strlen(text),
                          sizeof(text) - strlen(text));
        r = r < 0 ? r : vg_agent_env_add(start, ret, text, false);
    }
    if (r >= 0) /* numbers mean what nvidia-smi shows */
        r = vg_agent_env_add(start, ret, "CUDA_DEVICE_ORDER=PCI_BUS_ID", true);
    const struct vg_cdi_list *env = &a->driver.cdi.common.env;
    for (size_t i = 0; r >= 0 && i < env->n; i++)
        r = vg_agent_env_add(start, ret, env->item[i], false);
    return r;
}
