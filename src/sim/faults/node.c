/* A node: a machine whose agent is the agent's own code (link, tasks, lease), with keepers that are
   modelled (keeper.c). What of the agent touches the kernel (sandboxes, certificates, streams) is
   cut off here. */
#include "sim/faults/world.h"

#include "agent/agent-int.h"
#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"

#include <string.h>

/* ------------------------------------------------------------------ cut off */

int __wrap_vg_cert_load(struct vg_agent *a, struct vg_err *err);
int __wrap_vg_cert_set_id(struct vg_agent *a, const char *id);
void __wrap_vg_io_link_lost(struct vg_agent *a);
void __wrap_vg_io_on_attach(struct vg_agent *a, const Vg__Pb__TaskAttach *x, uint32_t req, int *fds,
                            size_t n_fds);
void __wrap_vg_keepers_pause(struct vg_agent *a, bool pause);
void __real_vg_lease_renew(struct vg_agent *a, uint64_t until_usec);
void __wrap_vg_lease_renew(struct vg_agent *a, uint64_t until_usec);

int __wrap_vg_cert_load(struct vg_agent *a, struct vg_err *err) {
    (void)a;
    (void)err;
    return 0;
}

int __wrap_vg_cert_set_id(struct vg_agent *a, const char *id) {
    (void)a;
    (void)id;
    return 0;
}

void __wrap_vg_io_link_lost(struct vg_agent *a) {
    (void)a;
}

void __wrap_vg_io_on_attach(struct vg_agent *a, const Vg__Pb__TaskAttach *x, uint32_t req, int *fds,
                            size_t n_fds) {
    (void)a;
    (void)x;
    (void)req;
    (void)fds;
    (void)n_fds;
}

void __wrap_vg_keepers_pause(struct vg_agent *a, bool pause) {
    a->paused = pause;
}

static struct vg_w_node *node_of(struct vg_agent *a) {
    struct vg_w_proc *p = a->loop.data;
    return vg_container_of(p, struct vg_w_node, agent_proc);
}

void __wrap_vg_lease_renew(struct vg_agent *a, uint64_t until_usec) {
    struct vg_w_node *n = node_of(a);
    if (n->lease_until && n->lease_until <= vg_w_boot(&n->machine))
        n->losses++; /* whatever ran here was killed, and virgad may have said so */
    __real_vg_lease_renew(a, until_usec);
}

/* ------------------------------------------------------------------ life */

void vg_w_node_init(int i) {
    struct vg_w_node *n = &vg_w->node[i];
    const struct vg_plan *p = vg_w->plan;
    char name[16];
    snprintf(name, sizeof name, "n%d", i);
    *n = (struct vg_w_node){.index = i, .local = i == 0 && p->local_node};
    n->rng = vg_rng_seeded(p->seed * 7919 + (uint64_t)i);
    n->id = vg_rng_next(&n->rng) | 1;
    vg_list_init(&n->keepers);
    vg_w_machine_init(&n->machine, name, 100 + (uint64_t)i, true);
    if (n->local) { /* the same machine has the same clocks */
        n->machine.boot_usec = vg_w->control_machine.boot_usec;
        n->machine.wall_usec = vg_w->control_machine.wall_usec;
        n->machine.drift_ppm = vg_w->control_machine.drift_ppm;
    }
    vg_w_proc_init(&n->agent_proc, &n->machine, name);
}

static void know_machine(struct vg_w_node *n, struct vg_agent *a) {
    vg_id_format(n->id, a->node_id);
    snprintf(a->name, sizeof a->name, "n%d", n->index);
    snprintf(a->boot_id, sizeof a->boot_id, "boot-%u", n->boots);
    snprintf(a->machine_id, sizeof a->machine_id, "sim-%d", n->index);
    a->conf = (struct vg_agent_conf){.cpus = VG_W_CPUS, .mem_bytes = 1ULL << 36};
    a->gpus.n = VG_W_GPUS;
    for (uint32_t i = 0; i < VG_W_GPUS; i++) {
        a->gpus.gpu[i].index = i;
        a->gpus.gpu[i].minor = -1;
        snprintf(a->gpus.gpu[i].model, sizeof a->gpus.gpu[i].model, "sim");
        a->card[i].known = vg_w->plan->shares;
        a->card[i].facts.mem_bytes = VG_W_GPU_BYTES;
    }
}

/* As vg_lease_open: the number is of this boot, and what is left of it runs on. */
static void know_lease(struct vg_w_node *n, struct vg_agent *a) {
    uint64_t until = n->lease_until;
    a->lease.until = &n->lease_until;
    uv_timer_init(&a->loop, &a->lease.timer);
    a->lease.timer.data = a;
    if (until > vg_w_boot(&n->machine)) {
        n->lease_until = 0;
        __real_vg_lease_renew(a, until);
    }
}

void vg_w_agent_start(void *node, uint64_t unused) {
    struct vg_w_node *n = node;
    struct vg_err err = VG_ERR_INIT;
    char address[40];
    (void)unused;
    if (n->agent || !n->up)
        return;
    struct vg_agent *a = vg_alloc(sizeof *a);
    if (!a)
        abort();
    n->agent = a;
    n->agent_proc.alive = true;
    n->agent_proc.life++;
    vg_w->cur = &n->agent_proc;
    vg_w_story("the agent of n%d starts", n->index);
    a->loop.data = &n->agent_proc;
    a->status = -1;
    vg_list_init(&a->keepers);
    vg_list_init(&a->forwards);
    vg_tasks_init(a);
    a->log_head_bytes = a->log_tail_bytes = 8u << 20;
    know_machine(n, a);
    know_lease(n, a);
    if (n->local)
        snprintf(address, sizeof address, "unix:/sock");
    else
        snprintf(address, sizeof address, "%llu:7000", (unsigned long long)n->id);
    a->conf.control = address;
    if (vg_link_open(a, &err) < 0)
        abort();
    a->conf.control = NULL;
    vg_w_keepers_adopt(n);
    vg_link_start(a);
    vg_w->cur = NULL;
}

void vg_w_agent_crash(struct vg_w_node *n, bool silent) {
    struct vg_agent *a = vg_take_ptr(n->agent);
    if (!a)
        return;
    vg_w_net_gone(&n->agent_proc, silent);
    n->agent_proc.alive = false;
    n->agent_proc.life++;
    vg_w->cur = &n->agent_proc;
    if (a->link.dial)
        vg_dial_cancel(a->link.dial);
    vg_w_net_finish(&n->agent_proc);
    vg_tasks_done(a);
    vg_w_keepers_left(n, a);
    vg_w_uv_drain(&a->loop);
    vg_w_uv_forget(&a->loop);
    vg_map_done(&a->sessions);
    free(a->link.address);
    free(a);
    vg_w->cur = NULL;
}

void vg_w_node_crash(struct vg_w_node *n) {
    if (!n->up)
        return;
    n->up = false;
    n->losses++;
    vg_w_agent_crash(n, true);
    vg_w_keepers_die(n);
    n->lease_until = 0;
}

void vg_w_node_boot(void *node, uint64_t unused) {
    struct vg_w_node *n = node;
    (void)unused;
    if (n->up)
        return;
    n->up = true;
    n->boots++;
    /* Its boot clock begins anew. */
    n->machine.boot_usec += (int64_t)(5 * VG_USEC) - (int64_t)vg_w_boot(&n->machine);
    vg_w_story("n%d is up", n->index);
    vg_w_at(vg_w->now + vg_w_between(&n->rng, 1000, 500000), NULL, vg_w_agent_start, n, 0);
}

void vg_w_node_give_back(struct vg_w_node *n) {
    vg_w_agent_crash(n, true);
    vg_w_keepers_die(n);
}
