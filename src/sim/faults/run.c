/* One life of a world: set up by a plan, lived until everything has ended or a promise is broken,
   and given back. */
#include "sim/faults/world.h"

#include "base/cleanup.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/util.h"
#include "control/control.h"

#include <sqlite3.h>
#include <string.h>

#define PATIENCE_USEC (600 * VG_USEC) /* after the last fault */

/* ------------------------------------------------------------------ faults */

static struct vg_w_machine *machine(int target) {
    struct vg_world *w = vg_w;
    int i = target % (w->plan->n_nodes + 2);
    return i < w->plan->n_nodes    ? &w->node[i].machine
           : i == w->plan->n_nodes ? &w->client_machine
                                   : &w->control_machine;
}

static void stop_virgad(const struct vg_plan_fault *f, bool power) {
    struct vg_world *w = vg_w;
    if (power)
        for (int i = 0; i < w->plan->n_tasks; i++)
            w->task[i].power_lost_since |= w->task[i].sent;
    vg_w_virgad_crash(power);
    if (power && w->plan->local_node) {
        vg_w_node_crash(&w->node[0]);
        vg_w_at(w->now + f->for_usec, NULL, vg_w_node_boot, &w->node[0], 0);
    }
    vg_w_at(w->now + f->for_usec, NULL, vg_w_virgad_start, NULL, 0);
}

static void strike(void *unused, uint64_t i) {
    struct vg_world *w = vg_w;
    const struct vg_plan_fault *f = &w->plan->fault[i];
    struct vg_w_node *n = &w->node[f->target % w->plan->n_nodes];
    uint64_t until = w->now + f->for_usec;
    char text[160];
    (void)unused;
    vg_plan_fault_say(w->plan, f, text, sizeof text);
    vg_w_story("*** %s", text);
    switch (f->kind) {
    case VG_FAULT_CONTROL_CRASH:
    case VG_FAULT_POWER_LOSS:
        stop_virgad(f, f->kind == VG_FAULT_POWER_LOSS);
        break;
    case VG_FAULT_AGENT_CRASH:
        vg_w_agent_crash(n, false);
        vg_w_at(until, NULL, vg_w_agent_start, n, 0);
        break;
    case VG_FAULT_NODE_CRASH:
        if (n->local)
            break; /* that is virgad's machine: power-loss */
        vg_w_node_crash(n);
        vg_w_at(until, NULL, vg_w_node_boot, n, 0);
        break;
    case VG_FAULT_KEEPER_CRASH:
        vg_w_keeper_die_one(n, (uint64_t)f->amount);
        break;
    case VG_FAULT_CUT:
        vg_w_net_cut(machine(f->target));
        break;
    case VG_FAULT_PARTITION:
        machine(f->target)->cut_until = VG_MAX(machine(f->target)->cut_until, until);
        break;
    case VG_FAULT_SLOW_NET:
        machine(f->target)->slow_until = until;
        break;
    case VG_FAULT_AGENT_STALL:
        n->agent_proc.stall_until = until;
        break;
    case VG_FAULT_CONTROL_STALL:
        w->virgad.stall_until = until;
        break;
    case VG_FAULT_SLOW_DISK:
        w->disk_slow_until = until;
        break;
    case VG_FAULT_FULL_DISK:
        w->disk_full_until = until;
        break;
    case VG_FAULT_CLOCK_JUMP:
        machine(f->target)->wall_usec += f->amount;
        break;
    case VG_FAULT_CLIENT_CRASH:
        if (w->plan->n_tasks)
            vg_w_client_crash(f->target % w->plan->n_tasks);
        break;
    case VG_FAULT_KINDS:
        break;
    }
}

/* ------------------------------------------------------------------ a life */

static void look(void *unused, uint64_t unused2) {
    struct vg_world *w = vg_w;
    (void)unused;
    (void)unused2;
    if (vg_w_truth_settled() || w->now > w->plan->calm_usec + PATIENCE_USEC) {
        vg_w_truth_final();
        w->over = true;
        return;
    }
    vg_w_at(w->now + VG_USEC, NULL, look, NULL, 0);
}

static void set_up(struct vg_world *w, const struct vg_plan *plan) {
    struct vg_err err = VG_ERR_INIT;
    w->plan = plan;
    w->rng = vg_rng_seeded(plan->seed ^ 0x51);
    w->ids = vg_rng_seeded(plan->seed ^ 0x52);
    w->disk_rng = vg_rng_seeded(plan->seed ^ 0x53);
    vg_list_init(&w->links);
    vg_list_init(&w->fsyncs);
    w->disk = vg_w_disk_new();
    w->task = vg_alloc((size_t)(plan->n_tasks + 1) * sizeof *w->task);
    if (!w->task)
        abort();
    sqlite3_randomness(0, NULL); /* seeded anew, by this world */
    vg_w_machine_init(&w->control_machine, "virgad", 1, true);
    vg_w_machine_init(&w->client_machine, "clients", 2, true);
    vg_w_proc_init(&w->virgad, &w->control_machine, "virgad");
    for (int i = 0; i < plan->n_nodes; i++)
        vg_w_node_init(i);
    if (vg_w_disk_format(&err) < 0)
        vg_w_violate("start", "the database cannot be made: %s", err.msg);
    vg_w_at(0, NULL, vg_w_virgad_start, NULL, 0);
    for (int i = 0; i < plan->n_nodes; i++)
        vg_w_at(1000 * (uint64_t)(i + 1), NULL, vg_w_node_boot, &w->node[i], 0);
    for (int i = 0; i < plan->n_tasks; i++)
        vg_w_client_init(i);
    for (int i = 0; i < plan->n_faults; i++)
        if (!plan->fault[i].off)
            vg_w_at(plan->fault[i].at_usec, NULL, strike, NULL, (uint64_t)i);
    vg_w_at(plan->calm_usec, NULL, look, NULL, 0);
}

static void give_back(struct vg_world *w) {
    w->tell = NULL;
    vg_w_virgad_crash(false);
    for (int i = 0; i < w->plan->n_nodes; i++)
        vg_w_node_give_back(&w->node[i]);
    for (int i = 0; i < w->plan->n_tasks; i++)
        vg_w_client_done(i);
    vg_w_net_reset();
    vg_w_disk_free(w->disk);
    vg_map_done(&w->timers);
    free(w->closing);
    free(w->heap);
    free(w->task);
}

void vg_w_run(const struct vg_plan *plan, FILE *tell, struct vg_w_result *ret) {
    static struct vg_world world; /* large */
    struct vg_world *w = &world;
    memset(w, 0, sizeof *w);
    enum vg_log_level level = vg_log_max;
    vg_log_max = tell ? VG_LOG_DEBUG : VG_LOG_ERROR;
    vg_w = w;
    w->tell = tell;
    set_up(w, plan);
    while (vg_w_step())
        ;
    *ret =
        (struct vg_w_result){.steps = w->steps, .virtual_usec = w->now, .lives = w->control_lives};
    memcpy(ret->broken, w->broken, sizeof ret->broken);
    memcpy(ret->why, w->why, sizeof ret->why);
    give_back(w);
    vg_w = NULL;
    vg_log_max = level;
}
