/* What lies near a task's GPUs: the CPUs and the memory of their NUMA nodes, and for members of a
   gang the way to the others. Loop thread. */
#include "agent/agent-int.h"

#include "base/cleanup.h"
#include "gpu/rdma.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

/* ------------------------------------------------------------------ CPUs and memory */

/* The NUMA nodes of its cards; 0: one of them is not known. */
static uint64_t nodes_of(const struct vg_agent *a, const Vg__Pb__Start *start) {
    uint64_t nodes = 0;
    for (size_t i = 0; i < start->n_gpu; i++) {
        uint32_t k = start->gpu[i];
        if (k >= a->gpus.n || !a->card[k].known || a->card[k].facts.numa < 0 ||
            a->card[k].facts.numa >= VG_NUMA_MAX)
            return 0;
        nodes |= 1ULL << a->card[k].facts.numa;
    }
    return nodes;
}

/* CPUs of tasks that keep to some of these already. */
static uint64_t taken(const struct vg_agent *a, uint64_t nodes) {
    uint64_t milli = 0;
    vg_map_for_each (e, &a->tasks) {
        const struct vg_agent_task *t = e->value;
        if (t->near_numa & nodes)
            milli += t->near_milli;
    }
    return milli;
}

/* The agent may itself be kept to some CPUs. */
static bool own_cpus(struct vg_cpus *ret) {
    static_assert(sizeof(cpu_set_t) == sizeof(*ret), "a set of CPUs");
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof(set), &set) < 0)
        return false;
    memcpy(ret, &set, sizeof(*ret));
    return true;
}

void vg_near_choose(const struct vg_agent *a, Vg__Pb__Start *start, struct vg_cpus *room) {
    uint64_t nodes = start->n_gpu ? nodes_of(a, start) : 0;
    uint64_t milli = start->grant ? start->grant->cpu_milli : 0;
    struct vg_numa machine;
    struct vg_cpus own;
    /* Without a number of CPUs it may use all of them, and so may who has the whole node. */
    if (!nodes || !milli || vg_start_is_bare(start) || !own_cpus(&own))
        return;
    vg_numa_find(a->gpus.root, &own, &machine);
    if (!vg_numa_suits(&machine, nodes, taken(a, nodes) + milli, room))
        return;
    start->has_near_cpus = start->has_near_numa = true;
    start->near_cpus = (ProtobufCBinaryData){.data = (uint8_t *)room, .len = sizeof(*room)};
    start->near_numa = nodes;
}

void vg_near_begin(struct vg_agent_task *t, const Vg__Pb__Start *start) {
    t->near_numa = start->near_numa;
    t->near_milli = start->near_numa && start->grant ? start->grant->cpu_milli : 0;
}

/* ------------------------------------------------------------------ the way to the others */

/* The link that has this address. */
static bool link_of(const char *address, char out[static IF_NAMESIZE]) {
    struct ifaddrs *all = NULL;
    bool found = false;
    if (getifaddrs(&all) < 0)
        return false;
    for (struct ifaddrs *i = all; i && !found; i = i->ifa_next) {
        char text[64];
        const struct sockaddr_in *at = (const void *)i->ifa_addr;
        found = at && at->sin_family == AF_INET &&
                inet_ntop(AF_INET, &at->sin_addr, text, sizeof(text)) && !strcmp(text, address);
        if (found)
            snprintf(out, IF_NAMESIZE, "%s", i->ifa_name);
    }
    freeifaddrs(all);
    return found;
}

/* By which a member's libraries should look for the others; "": they choose. */
static void link_inside(const struct vg_agent *a, const Vg__Pb__Start *start,
                        char out[static IF_NAMESIZE]) {
    char address[64];
    const char *network = start->network ? start->network : "nat";
    out[0] = 0;
    if (!strcmp(network, "nat"))
        snprintf(out, IF_NAMESIZE, "%s", "eth0"); /* the only one, netpool.c */
    else if (!strcmp(network, "none"))
        snprintf(out, IF_NAMESIZE, "%s", "lo");
    else {
        vg_meeting_address(a, address, sizeof(address));
        if (!link_of(address, out))
            out[0] = 0;
    }
}

int vg_near_env(const struct vg_agent *a, const Vg__Pb__Start *start, struct vg_cdi_list *ret) {
    char link[IF_NAMESIZE], text[600];
    int r = 0;
    if (!start->spec->gang)
        return 0;
    link_inside(a, start, link);
    if (link[0]) {
        snprintf(text, sizeof(text), "GLOO_SOCKET_IFNAME=%s", link);
        r = vg_agent_env_add(start, ret, text, true);
    }
    if (r < 0 || !start->n_gpu)
        return r;
    if (link[0]) { /* '=': this one, not all that begin so */
        snprintf(text, sizeof(text), "NCCL_SOCKET_IFNAME==%s", link);
        r = vg_agent_env_add(start, ret, text, true);
    }
    struct vg_rdma rdma;
    if (r < 0 || !start->rdma)
        return r;
    vg_rdma_find(a->gpus.root, &rdma);
    if (rdma.ports[0]) {
        snprintf(text, sizeof(text), "NCCL_IB_HCA==%s", rdma.ports);
        r = vg_agent_env_add(start, ret, text, true);
    }
    return r;
}
