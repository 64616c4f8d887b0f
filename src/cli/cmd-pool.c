/* `virga pool`: what the cloud offers. */
#include "base/cleanup.h"
#include "base/util.h"
#include "cli/list.h"
#include "cli/task-show.h"

static void rows(const Vg__Pb__Envelope *env, struct vg_table *t) {
    for (size_t i = 0; i < env->pools->n_pool; i++) {
        const Vg__Pb__PoolInfo *p = env->pools->pool[i];
        char name[128], shape[128], nodes[16], slots[32], queued[16], running[16];
        snprintf(name, sizeof(name), "%s%s", p->name ? p->name : "", p->is_default ? " *" : "");
        vg_resources_text(p->shape, shape, sizeof(shape));
        snprintf(nodes, sizeof(nodes), "%u", p->nodes);
        snprintf(slots, sizeof(slots), "%u/%u", p->free_slots, p->total_slots);
        snprintf(queued, sizeof(queued), "%u", p->queued);
        snprintf(running, sizeof(running), "%u", p->running);
        const char *cells[] = {name,
                               p->class_name,
                               *shape ? shape : "not reserved",
                               nodes,
                               p->total_slots ? slots : NULL,
                               running,
                               queued,
                               p->network,
                               p->fault_domain,
                               p->description};
        vg_table_row(t, cells);
    }
}

static const struct vg_lister lister = {
    .body = VG__PB__ENVELOPE__BODY_POOLS,
    .headings = (const char *const[]){"POOL", "CLASS", "SHAPE", "NODES", "FREE", "RUNNING",
                                      "QUEUED", "NETWORK", "FAULT DOMAIN", "DESCRIPTION", NULL},
    .rows = rows,
    .view = &vg_view_pools};

static int list_run(struct vg_cmd_line *l) {
    Vg__Pb__Empty body = VG__PB__EMPTY__INIT;
    Vg__Pb__Envelope req = vg_request(POOL_LIST, pool_list, &body);
    return vg_list_run(l, &req, &lister);
}

static const struct vg_cmd subs[] = {
    {"list", "", "pools with their shapes and what is free (* is the default)", VG_LIST_OPTS,
     .run = list_run},
};

const struct vg_cmd vg_cmd_pool = {.name = "pool",
                                   .args = "",
                                   .summary = "what the cloud offers: list",
                                   .subs = subs,
                                   .n_subs = VG_COUNT(subs)};
