#pragma once
/* Between two tenants of a whole node: the settings of its cards as they were before, and their
   memory overwritten. Opened at run time in a process of its own (virga node-wipe), since a driver
   can hang. One thread. */
#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

enum vg_setting {
    VG_SET_COMPUTE,
    VG_SET_PERSISTENCE,
    VG_SET_POWER,     /* limit, milliwatts */
    VG_SET_SM_CLOCK,  /* of applications, MHz */
    VG_SET_MEM_CLOCK, /* likewise */
    VG_SET_MIG,
    VG_SETTINGS
};
/* One word, as files have it; and for people. */
const char *vg_setting_word(enum vg_setting s);
const char *vg_setting_name(enum vg_setting s);

struct vg_wiper {
    uint32_t n; /* cards */
    void *state;
    int (*uuid)(void *state, uint32_t card, char *out, size_t n);
    /* -ENOTSUP: this card or driver has no such thing. */
    int (*get)(void *state, uint32_t card, enum vg_setting s, uint32_t *ret);
    int (*set)(void *state, uint32_t card, enum vg_setting s, uint32_t value);
    /* Overwrites what is free of its memory; *ret_bytes of *ret_total were. */
    int (*clear)(void *state, uint32_t card, uint64_t *ret_bytes, uint64_t *ret_total,
                 struct vg_err *err);
    void (*close)(void *state);
};

/* NVIDIA's, by its management library and its driver. A setting whose function is missing is none;
   without a libcuda it fails. */
int vg_wiper_nvidia(const char *nvml, const char *cuda, struct vg_wiper *ret, struct vg_err *err);
/* Simulated ones: card N has the settings in DIR/N.set ("compute 0", one a line), and DIR/N.clear
   says how its clearing goes: "slow MILLISECONDS" or "fail". */
int vg_wiper_fake(uint32_t n, const char *dir, struct vg_wiper *ret, struct vg_err *err);
