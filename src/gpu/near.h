#pragma once
/* How near two cards of a node are, as one small number that nodes report for each pair: how many
   NVLinks join them, and what their PCIe paths have in common (the levels of `nvidia-smi topo`). */
#include "base/cleanup.h"

#include <stdint.h>
#include <stdio.h>

enum vg_near_level {
    VG_NEAR_UNKNOWN,
    VG_NEAR_BOARD,    /* one board with several */
    VG_NEAR_SWITCH,   /* PIX: one PCIe switch */
    VG_NEAR_SWITCHES, /* PXB: several, but not the host bridge */
    VG_NEAR_HOST,     /* PHB: one host bridge */
    VG_NEAR_NODE,     /* one NUMA node */
    VG_NEAR_SYSTEM,   /* SYS: between NUMA nodes */
};
#define VG_NEAR_LINKS_MAX 18u

/* 0: nothing is known. */
static inline uint32_t vg_near_make(uint32_t links, enum vg_near_level level) {
    return VG_MIN(links, VG_NEAR_LINKS_MAX) * 8 + (uint32_t)level;
}
static inline uint32_t vg_near_links(uint32_t near) {
    return VG_MIN(near / 8, VG_NEAR_LINKS_MAX);
}
static inline uint32_t vg_near_level(uint32_t near) {
    return near % 8 > VG_NEAR_SYSTEM ? VG_NEAR_UNKNOWN : near % 8;
}

/* As the scheduler counts, 1 .. 255: any NVLink before none, more of them before fewer, then the
   shorter path. What is not known counts as far. */
static inline uint8_t vg_near_distance(uint32_t near) {
    uint32_t links = vg_near_links(near), level = vg_near_level(near);
    level = level ? level : VG_NEAR_SYSTEM;
    return (uint8_t)(links ? 8 * (VG_NEAR_LINKS_MAX + 1 - links) + level : 160 + 12 * level);
}

/* "NV4", "PIX", ...; "?": unknown. */
static inline const char *vg_near_name(uint32_t near, char out[static 8]) {
    static const char *const names[] = {"?", "PSB", "PIX", "PXB", "PHB", "NODE", "SYS"};
    if (vg_near_links(near))
        snprintf(out, 8, "NV%u", vg_near_links(near));
    else
        snprintf(out, 8, "%s", names[vg_near_level(near)]);
    return out;
}

/* By where the kernel shows both below /sys; VG_NEAR_UNKNOWN: it does not. `root` is "" in life,
   addresses are as drivers write them (card.h). */
enum vg_near_level vg_near_by_path(const char *root, const char *bus, const char *other);
