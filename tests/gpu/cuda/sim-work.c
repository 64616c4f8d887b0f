/* Code, graphs, streams: as much of them as takes memory, and nothing of what they compute. */
#include "sim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NODES 16u

struct node_params { /* CUDA_MEM_ALLOC_NODE_PARAMS_v1 */
    char pool[88];
    const void *access;
    size_t n, bytes;
    CUdeviceptr at;
};

struct graph {
    uint64_t bytes[NODES];
    uint32_t n;
    struct sim_block *block[NODES]; /* of one that was launched */
};

/* ---- code ------------------------------------------------------------------------------------ */

/* Source text; what it declares as global bytes is allocated with it. */
EXPORT(cuModuleLoadData, void **ret, const char *image) {
    NEEDS_CONTEXT;
    unsigned long long bytes = 0;
    const char *global = strstr(image, ".global");
    int r = CUDA_OK;
    const char *open = global ? strchr(global, '[') : NULL;
    if (strncmp(image, ".version", 8) != 0 || (open && sscanf(open, "[%llu]", &bytes) != 1))
        return CUDA_INVALID_VALUE;
    *ret = sim_take(sim_current->card, bytes ? bytes : SIM_BLOCK, &r);
    return r;
}

EXPORT(cuModuleUnload, void *module) {
    NEEDS_CONTEXT;
    sim_give(module);
    return CUDA_OK;
}

EXPORT(cuModuleGetFunction, void **ret, void *module, const char *name) {
    NEEDS_CONTEXT;
    (void)name;
    *ret = module;
    return CUDA_OK;
}

EXPORT(cuLaunchKernel, void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
       unsigned bz, unsigned shared, void *stream, void **params, void **extra) {
    (void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz, (void)shared, (void)stream;
    (void)params, (void)extra;
    NEEDS_CONTEXT;
    return f ? CUDA_OK : CUDA_INVALID_HANDLE;
}

/* ---- streams --------------------------------------------------------------------------------- */

EXPORT(cuStreamCreate, void **ret, unsigned flags) {
    NEEDS_CONTEXT;
    (void)flags;
    *ret = sim_current;
    return CUDA_OK;
}

EXPORT(cuStreamSynchronize, void *stream) {
    NEEDS_CONTEXT;
    (void)stream;
    return CUDA_OK;
}

EXPORT(cuStreamDestroy_v2, void *stream) {
    NEEDS_CONTEXT;
    (void)stream;
    return CUDA_OK;
}

/* ---- graphs ---------------------------------------------------------------------------------- */

EXPORT(cuGraphCreate, struct graph **ret, unsigned flags) {
    NEEDS_CONTEXT;
    (void)flags;
    *ret = calloc(1, sizeof(**ret));
    return *ret ? CUDA_OK : CUDA_OUT_OF_MEMORY;
}

EXPORT(cuGraphAddMemAllocNode, void **ret, struct graph *g, const void *after, size_t n,
       struct node_params *p) {
    NEEDS_CONTEXT;
    (void)after;
    (void)n;
    if (g->n == NODES)
        return CUDA_INVALID_VALUE;
    g->bytes[g->n++] = p->bytes;
    p->at = sim_addresses(p->bytes);
    *ret = g;
    return CUDA_OK;
}

EXPORT(cuGraphInstantiateWithFlags, struct graph **ret, const struct graph *g,
       unsigned long long flags) {
    NEEDS_CONTEXT;
    (void)flags;
    *ret = calloc(1, sizeof(**ret));
    if (!*ret)
        return CUDA_OUT_OF_MEMORY;
    **ret = *g;
    return CUDA_OK;
}

static char graphs; /* names the pool that keeps what graphs had */

/* The first launch takes what its nodes want. It stays with the graph, and then until it is
 * trimmed.
 */
EXPORT(cuGraphLaunch, struct graph *g, void *stream) {
    NEEDS_CONTEXT;
    int r = CUDA_OK;
    (void)stream;
    for (uint32_t i = 0; !r && i < g->n; i++)
        if (!g->block[i])
            g->block[i] = sim_take_from(&graphs, sim_current->card, g->bytes[i], &r);
    return r;
}

EXPORT(cuGraphExecDestroy, struct graph *g) {
    NEEDS_CONTEXT;
    for (uint32_t i = 0; i < g->n; i++)
        if (g->block[i])
            sim_keep(g->block[i]);
    free(g);
    return CUDA_OK;
}

EXPORT(cuDeviceGraphMemTrim, CUdevice d) {
    NEEDS_CONTEXT;
    (void)d;
    sim_trim(&graphs);
    return CUDA_OK;
}

EXPORT(cuGraphDestroy, struct graph *g) {
    free(g);
    return CUDA_OK;
}
