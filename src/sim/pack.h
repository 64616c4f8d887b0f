#pragma once
/* Packing: tasks arrive in random order until they asked for `demand` times the GPUs there are;
   none ends; one that does not fit is dropped. The protocol of the FGD paper (Weng et al., ATC
   '23): every task of the file once, shuffled, then further ones drawn with replacement; a file
   that asks for more than the demand loses tasks at random. */
#include "sim/trace.h"

#include <stdbool.h>

struct vg_pack_input {
    struct vg_trace_nodes nodes;
    struct vg_trace_tasks tasks;
    struct vg_trace_tasks history; /* a mix that is known before; n == 0: none */
    double demand;
};

uint64_t vg_pack_capacity(const struct vg_trace_nodes *n); /* GPU thousandths */
static inline uint64_t vg_pack_milli(const struct vg_trace_task *t) {
    return (uint64_t)t->gpus * t->gpu_milli;
}

struct vg_pack_arrivals {
    uint32_t *task; /* owned; indices into tasks */
    size_t n, cap;
};
int vg_pack_arrive(const struct vg_pack_input *in, uint64_t seed, struct vg_pack_arrivals *ret);

/* Who places. `put` is 1 (placed), 0 (dropped) or -errno. */
struct vg_packer {
    const char *name, *about;
    int (*open)(const struct vg_packer *p, const struct vg_pack_input *in, uint64_t seed,
                void **ret);
    int (*put)(void *state, const struct vg_trace_task *t);
    void (*close)(void *state);
    int kind; /* of vg_eng_placing, for those that are the engine */
};
extern const struct vg_packer vg_packers[];
extern const size_t vg_n_packers;

/* pack-engine.c: src/sched's engine with one tenant. pack-fgd.c: the published policy, for
   comparison; knows the whole file's mix, as published. */
int vg_pack_engine_open(const struct vg_packer *p, const struct vg_pack_input *in, uint64_t seed,
                        void **ret);
int vg_pack_engine_put(void *state, const struct vg_trace_task *t);
void vg_pack_engine_close(void *state);
int vg_pack_fgd_open(const struct vg_packer *p, const struct vg_pack_input *in, uint64_t seed,
                     void **ret);
int vg_pack_fgd_put(void *state, const struct vg_trace_task *t);
void vg_pack_fgd_close(void *state);

#define VG_PACK_STEPS 300 /* per cent of the capacity that asked, at most */

struct vg_pack_result {
    double allocated_pct;
    uint64_t placed, dropped;
    double curve[VG_PACK_STEPS + 1]; /* allocated per cent once so many per cent had asked */
    uint32_t n_curve;
};
int vg_pack_run(const struct vg_pack_input *in, const struct vg_packer *p, uint64_t seed,
                struct vg_pack_result *ret);
