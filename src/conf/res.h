#pragma once
/* Amounts of what a node has and a task asks for. Plain data; 0 in a request means "no
   reservation": CPU is then shared fairly, memory limited only by the node, and so on. */
#include "proto/virga.pb-c.h"

#include <stdbool.h>
#include <stdint.h>

/* GPUs of one node are numbered 0 .. VG_NODE_GPUS_MAX - 1, so that a set of them fits a word. */
#define VG_NODE_GPUS_MAX 64

struct vg_res {
    uint32_t cpu_milli;
    uint64_t mem_bytes;
    uint32_t gpus;
    uint32_t pids;          /* a limit for the task; never reserved on a node */
    uint64_t disk_bytes;    /* likewise */
    uint32_t gpu_milli;     /* a share of one GPU, 1 .. 999; gpus is then 0 */
    uint64_t gpu_mem_bytes; /* of each GPU; 0: a whole card, or the share's part of one */
};

/* Missing fields and a NULL message are 0. */
static inline struct vg_res vg_res_from_pb(const Vg__Pb__Resources *pb) {
    return pb ? (struct vg_res){.cpu_milli = pb->cpu_milli,
                                .mem_bytes = pb->mem_bytes,
                                .gpus = pb->gpus,
                                .pids = pb->pids,
                                .disk_bytes = pb->disk_bytes,
                                .gpu_milli = pb->gpu_milli,
                                .gpu_mem_bytes = pb->gpu_mem_bytes}
              : (struct vg_res){0};
}

/* An initialised message with every field present; holds no memory. */
static inline Vg__Pb__Resources vg_res_to_pb(struct vg_res r) {
    Vg__Pb__Resources pb;
    vg__pb__resources__init(&pb);
    pb.has_cpu_milli = pb.has_mem_bytes = pb.has_gpus = pb.has_pids = pb.has_disk_bytes = 1;
    pb.has_gpu_milli = pb.has_gpu_mem_bytes = 1;
    pb.gpu_milli = r.gpu_milli;
    pb.gpu_mem_bytes = r.gpu_mem_bytes;
    pb.cpu_milli = r.cpu_milli;
    pb.mem_bytes = r.mem_bytes;
    pb.gpus = r.gpus;
    pb.pids = r.pids;
    pb.disk_bytes = r.disk_bytes;
    return pb;
}

/* GPU memory that one task takes from a card of this size: all of it, what was asked for, or the
   share's part. */
static inline uint64_t vg_res_card_mem(const struct vg_res *r, uint64_t card_bytes) {
    if (r->gpus || r->gpu_mem_bytes)
        return r->gpus ? card_bytes : r->gpu_mem_bytes;
    return (card_bytes / 1000) * r->gpu_milli + (card_bytes % 1000) * r->gpu_milli / 1000;
}

/* Whether `want` fits into `have`, by what is reserved: CPU, memory and GPUs. */
static inline bool vg_res_fits(const struct vg_res *want, const struct vg_res *have) {
    return want->cpu_milli <= have->cpu_milli && want->mem_bytes <= have->mem_bytes &&
           want->gpus <= have->gpus;
}
