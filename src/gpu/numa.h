#pragma once
/* The NUMA nodes of this machine with their CPUs, and which of them a task with GPUs should keep
 * to. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define VG_NUMA_MAX 64 /* nodes are numbered below this, so that a set of them fits a word */
#define VG_NUMA_CPUS 1024

struct vg_cpus {
    uint64_t w[VG_NUMA_CPUS / 64];
};
uint32_t vg_cpus_count(const struct vg_cpus *c);

struct vg_numa {
    uint64_t nodes; /* that have CPUs */
    struct vg_cpus cpus[VG_NUMA_MAX];
};

/* "0-3,8,10-11", as the kernel writes lists. -EINVAL when it is none, or goes beyond the room. */
int vg_cpus_parse(const char *text, struct vg_cpus *ret);
/* By /sys/devices/system/node below `root` ("" in life); what cannot be read is not there. CPUs
   that are not in `may` are left out; NULL: none are. */
void vg_numa_find(const char *root, const struct vg_cpus *may, struct vg_numa *ret);
/* Whether tasks whose GPUs are on `nodes` should keep to them: all are known, there are others, and
   their CPUs are as many as `cpu_milli` (of the task and of those that keep to them already). */
bool vg_numa_suits(const struct vg_numa *m, uint64_t nodes, uint64_t cpu_milli,
                   struct vg_cpus *ret);
