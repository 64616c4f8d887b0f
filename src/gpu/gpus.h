#pragma once
/* Which GPUs this machine has, by what the driver shows in /proc and /dev: no library is loaded.
   `--gpus N` overrides the count; then GPUs that have no device node are only numbers (tests,
   machines whose driver is hidden). Usable by the keeper too. */
#include "gpu/card.h"
#include "gpu/cdi.h"

#include <stddef.h>
#include <stdint.h>

#define VG_GPUS_MAX VG_CARDS_MAX
#define VG_GPU_PATH 64
#define VG_GPU_EXTRA_MAX 4   /* further device nodes of one GPU */
#define VG_GPU_COMMON_MAX 12 /* and of all of them */
#define VG_GPU_NODES_MAX 128 /* that one task gets */

struct vg_gpu {
    enum vg_card_vendor vendor;
    uint32_t index; /* in the order of bus addresses, as nvidia-smi counts */
    int minor;      /* of /dev/nvidiaN; -1: it has no device node */
    uint32_t part;  /* VG_PART: a part of that card; 0: whole */
    char model[64];
    char uuid[64]; /* "GPU-…"; empty when unknown */
    char extra[VG_GPU_EXTRA_MAX][VG_GPU_PATH];
    size_t n_extra;
};

struct vg_gpus {
    struct vg_gpu gpu[VG_GPUS_MAX];
    size_t n;
    char common[VG_GPU_COMMON_MAX][VG_GPU_PATH]; /* that a specification adds to the driver's own */
    size_t n_common;
    size_t n_left_out; /* whole cards that are not offered, since others are cut in parts */
    /* Stands before /dev and the driver's other folders: a folder with sockets for device nodes,
       behind which a test's driver is (fake-call.h). Empty for cards that are there. */
    char root[256];
};

/* `count` < 0: as many as there are. `model` NULL: as the driver calls it. `root` is "" in life and
   a folder that stands for / in tests. */
void vg_gpus_find(const char *root, int64_t count, const char *model, struct vg_gpus *ret);
/* So many that are not there (card.h): for tests and demonstrations. They have device nodes where
   `root`/dev has them, which then has sockets; see vg_gpus.root. NULL: none. */
void vg_gpus_fake(size_t n, const char *root, struct vg_gpus *ret);
/* Where cards are cut in parts (MIG), offers those and no whole card: a node has the one or the
   other. */
void vg_gpus_split(const char *root, struct vg_gpus *g);
/* Adds the device nodes that a specification gives to these GPUs, known by their own node. */
void vg_gpus_take_cdi(struct vg_gpus *g, const struct vg_cdi *c);
/* Device nodes that a task with these GPUs needs (its own and the driver's common ones), as paths
   below /dev; `root` stands before them where they are looked for. Returns how many; at most `max`.
 */
size_t vg_gpu_devices(const struct vg_gpus *g, const char *root, const uint32_t *index, size_t n,
                      char (*ret)[VG_GPU_PATH], size_t max);
/* The value of CUDA_VISIBLE_DEVICES for these: UUIDs where all are known, else numbers. -E2BIG;
   -ENODATA: it is a part, which has no number, and its UUID is not known yet. */
int vg_gpu_visible(const struct vg_gpus *g, const uint32_t *index, size_t n, char *out, size_t cap);
