/* NUMA nodes; see the header. Keeps no state; any thread. */
#include "gpu/numa.h"

#include "base/cleanup.h"
#include "base/util.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

uint32_t vg_cpus_count(const struct vg_cpus *c) {
    uint32_t n = 0;
    for (size_t i = 0; i < VG_COUNT(c->w); i++)
        n += (uint32_t)__builtin_popcountll(c->w[i]);
    return n;
}

/* One number at *p, which moves behind it; -1: there is none. */
static long number(const char **p) {
    char *end;
    if (**p < '0' || **p > '9')
        return -1;
    long v = strtol(*p, &end, 10);
    *p = end;
    return v < VG_NUMA_CPUS ? v : -1;
}

int vg_cpus_parse(const char *text, struct vg_cpus *ret) {
    struct vg_cpus c = {0};
    const char *p = text;
    while (*p && *p != '\n') {
        long from = number(&p), to = from;
        if (*p == '-') {
            p++;
            to = number(&p);
        }
        if (from < 0 || to < from || (*p && *p != ',' && *p != '\n'))
            return -EINVAL;
        for (long i = from; i <= to; i++)
            c.w[i / 64] |= 1ULL << i % 64;
        p += *p == ',';
    }
    *ret = c;
    return 0;
}

void vg_numa_find(const char *root, const struct vg_cpus *may, struct vg_numa *ret) {
    *ret = (struct vg_numa){0};
    for (uint32_t i = 0; i < VG_NUMA_MAX; i++) {
        char path[PATH_MAX];
        vg_auto_free char *text = NULL;
        size_t len;
        snprintf(path, sizeof(path), "%s/sys/devices/system/node/node%u/cpulist", root, i);
        if (vg_read_file(path, 4096, &text, &len) < 0 || vg_cpus_parse(text, &ret->cpus[i]) < 0)
            continue;
        for (size_t k = 0; may && k < VG_COUNT(may->w); k++)
            ret->cpus[i].w[k] &= may->w[k];
        if (vg_cpus_count(&ret->cpus[i]))
            ret->nodes |= 1ULL << i;
    }
}

bool vg_numa_suits(const struct vg_numa *m, uint64_t nodes, uint64_t cpu_milli,
                   struct vg_cpus *ret) {
    struct vg_cpus all = {0};
    if (!nodes || nodes & ~m->nodes || nodes == m->nodes)
        return false;
    for (uint64_t left = nodes; left; left &= left - 1)
        for (size_t k = 0; k < VG_COUNT(all.w); k++)
            all.w[k] |= m->cpus[__builtin_ctzll(left)].w[k];
    if (cpu_milli > vg_cpus_count(&all) * 1000ULL)
        return false;
    *ret = all;
    return true;
}
