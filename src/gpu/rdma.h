#pragma once
/* The machine's adapters for remote direct memory access (InfiniBand, RoCE), by what the kernel
   shows of them: what tasks with whole GPUs need to talk to other nodes without the CPUs. */
#include "gpu/gpus.h"

#define VG_RDMA_NODES_MAX 34

struct vg_rdma {
    char node[VG_RDMA_NODES_MAX][VG_GPU_PATH]; /* below /dev: verbs, connections, gdrcopy */
    size_t n;
    char ports[512]; /* "mlx5_0:1,mlx5_1:1": those that are up */
};

/* `root` is "" in life. Nodes by which a network is administered (umad, issm) are left out. */
void vg_rdma_find(const char *root, struct vg_rdma *ret);
