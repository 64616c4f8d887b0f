/* The ways to memory: linear, pools, handles with mappings, arrays, managed, of other processes. */
#include "sim.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define SMALL (UINT64_C(1) << 20)            /* what shares a block */
#define MANAGED_AT (UINT64_C(0x10000000000)) /* addresses that are offsets, too */
#define PITCH 512u
#define MANAGED_MAX 1024u

struct handle { /* of cuIpcGetMemHandle */
    uint32_t client, object;
    uint64_t bytes;
    char unused[48];
};

struct array3d {
    size_t width, height, depth;
    int format;
    unsigned channels, flags;
};

static uint64_t next_managed = MANAGED_AT;
static int managed_fd = -1;
static struct { uint64_t at, bytes; } mapped[MANAGED_MAX];

EXPORT(cuMemGetInfo_v2, size_t *left, size_t *total) {
    NEEDS_CONTEXT;
    uint64_t all = 0, used = 0;
    int r = sim_error(sim_info(&sim, sim_current->card, &all, &used));
    *total = all;
    *left = all - used;
    return r;
}

/* ---- linear ---------------------------------------------------------------------------------- */

static struct sim_block *shared[SIM_CARDS]; /* that small requests fill */

static int take_small(uint64_t bytes, CUdeviceptr *ret) {
    struct sim_block **b = &shared[sim_current->card];
    int r = CUDA_OK;
    bool usable = *b && (*b)->small && (*b)->card == sim_current->card; /* not another's by now */
    if (!usable || (*b)->filled + bytes > (*b)->bytes) {
        struct sim_block *fresh = sim_take(sim_current->card, SIM_BLOCK, &r);
        if (r)
            return r;
        fresh->at = sim_addresses(SIM_BLOCK);
        fresh->parts = 0;
        fresh->small = true;
        *b = fresh;
    }
    *ret = (*b)->at + (*b)->filled;
    (*b)->filled += bytes;
    (*b)->parts++;
    return r;
}

EXPORT(cuMemAlloc_v2, CUdeviceptr *ret, size_t bytes) {
    NEEDS_CONTEXT;
    int r;
    if (!ret || !bytes)
        return CUDA_INVALID_VALUE;
    if (bytes <= SMALL)
        return take_small(bytes, ret);
    struct sim_block *b = sim_take(sim_current->card, bytes, &r);
    if (b)
        *ret = b->at = sim_addresses(bytes);
    return r;
}

EXPORT(cuMemAllocPitch_v2, CUdeviceptr *ret, size_t *pitch, size_t width, size_t height,
       unsigned element) {
    (void)element;
    *pitch = (width + PITCH - 1) / PITCH * PITCH;
    return cuMemAlloc_v2(ret, *pitch * height);
}

static int unmap_managed(uint64_t at) {
    for (unsigned i = 0; i < MANAGED_MAX; i++)
        if (mapped[i].at == at) {
            munmap((void *)(uintptr_t)at, mapped[i].bytes);
            mapped[i].at = 0;
            return CUDA_OK;
        }
    return CUDA_INVALID_VALUE;
}

EXPORT(cuMemFree_v2, CUdeviceptr at) {
    NEEDS_CONTEXT;
    struct sim_block *b = sim_block_at(at);
    if (at >= MANAGED_AT && at < next_managed)
        return unmap_managed(at);
    if (!b)
        return CUDA_INVALID_VALUE;
    sim_give(b);
    return CUDA_OK;
}

EXPORT(cuMemsetD8_v2, CUdeviceptr at, unsigned char value, size_t bytes) {
    NEEDS_CONTEXT;
    (void)at;
    (void)value;
    (void)bytes;
    return CUDA_OK;
}

/* ---- pools ----------------------------------------------------------------------------------- */

struct pool {
    uint64_t keep; /* release threshold */
} standard;

EXPORT(cuMemPoolCreate, struct pool **ret, const void *props) {
    NEEDS_CONTEXT;
    (void)props;
    *ret = calloc(1, sizeof(**ret));
    return *ret ? CUDA_OK : CUDA_OUT_OF_MEMORY;
}

EXPORT(cuMemPoolDestroy, struct pool *pool) {
    NEEDS_CONTEXT;
    sim_trim(pool);
    free(pool);
    return CUDA_OK;
}

EXPORT(cuMemPoolSetAttribute, struct pool *pool, int attribute, const uint64_t *value) {
    NEEDS_CONTEXT;
    if (attribute != 4) /* the release threshold */
        return CUDA_INVALID_VALUE;
    pool->keep = *value;
    return CUDA_OK;
}

EXPORT(cuMemPoolTrimTo, struct pool *pool, size_t keep) {
    NEEDS_CONTEXT;
    (void)keep; /* of this one, all or nothing */
    sim_trim(pool);
    return CUDA_OK;
}

EXPORT(cuMemAllocFromPoolAsync, CUdeviceptr *ret, size_t bytes, struct pool *pool, void *stream) {
    NEEDS_CONTEXT;
    int r;
    (void)stream;
    struct sim_block *b = sim_take_from(pool, sim_current->card, bytes, &r);
    if (!b)
        return r;
    *ret = b->at = sim_addresses(bytes);
    return CUDA_OK;
}

EXPORT(cuMemAllocAsync, CUdeviceptr *ret, size_t bytes, void *stream) {
    return cuMemAllocFromPoolAsync(ret, bytes, &standard, stream);
}

EXPORT(cuMemFreeAsync, CUdeviceptr at, void *stream) {
    NEEDS_CONTEXT;
    struct sim_block *b = sim_block_at(at);
    (void)stream;
    if (!b)
        return CUDA_INVALID_VALUE;
    const struct pool *pool = b->pool;
    if (pool && pool->keep)
        sim_keep(b);
    else
        sim_give(b);
    return CUDA_OK;
}

/* ---- handles and mappings -------------------------------------------------------------------- */

EXPORT(cuMemCreate, uint64_t *ret, size_t bytes, const void *prop, uint64_t flags) {
    NEEDS_CONTEXT;
    int r;
    (void)prop;
    if (flags || bytes % SIM_BLOCK)
        return CUDA_INVALID_VALUE;
    *ret = (uint64_t)(uintptr_t)sim_take(sim_current->card, bytes, &r);
    return r;
}

EXPORT(cuMemAddressReserve, CUdeviceptr *ret, size_t bytes, size_t align, CUdeviceptr at,
       uint64_t flags) {
    NEEDS_CONTEXT;
    (void)align;
    (void)at;
    (void)flags;
    *ret = sim_addresses(bytes);
    return CUDA_OK;
}

EXPORT(cuMemAddressFree, CUdeviceptr at, size_t bytes) {
    NEEDS_CONTEXT;
    (void)at;
    (void)bytes;
    return CUDA_OK;
}

EXPORT(cuMemMap, CUdeviceptr at, size_t bytes, size_t offset, uint64_t handle, uint64_t flags) {
    NEEDS_CONTEXT;
    struct sim_block *b = (void *)(uintptr_t)handle;
    if (flags || offset || !b || bytes != b->bytes || b->at)
        return CUDA_INVALID_VALUE;
    b->at = at;
    b->parts++;
    return CUDA_OK;
}

EXPORT(cuMemSetAccess, CUdeviceptr at, size_t bytes, const void *access, size_t n) {
    NEEDS_CONTEXT;
    (void)bytes;
    (void)access;
    return n == 1 && sim_block_at(at) ? CUDA_OK : CUDA_INVALID_VALUE;
}

EXPORT(cuMemUnmap, CUdeviceptr at, size_t bytes) {
    NEEDS_CONTEXT;
    struct sim_block *b = sim_block_at(at);
    if (!b || b->at != at || bytes != b->bytes)
        return CUDA_INVALID_VALUE;
    b->at = 0;
    sim_give(b);
    return CUDA_OK;
}

EXPORT(cuMemRelease, uint64_t handle) {
    NEEDS_CONTEXT;
    sim_give((void *)(uintptr_t)handle);
    return CUDA_OK;
}

/* ---- arrays ---------------------------------------------------------------------------------- */

static uint64_t array_bytes(const struct array3d *d, unsigned levels) {
    uint64_t each = d->format == 1 || d->format == 8 ? 1 : d->format == 0x20 ? 4 : 2, sum = 0;
    size_t w = d->width, h = d->height ? d->height : 1, depth = d->depth ? d->depth : 1;
    for (unsigned i = 0; i < levels; i++, w = (w + 1) / 2, h = (h + 1) / 2, depth = (depth + 1) / 2)
        sum += w * h * depth * d->channels * each;
    return sum;
}

EXPORT(cuArray3DCreate_v2, void **ret, const struct array3d *d) {
    NEEDS_CONTEXT;
    int r;
    *ret = sim_take(sim_current->card, array_bytes(d, 1), &r);
    return r;
}

EXPORT(cuArrayDestroy, void *array) {
    NEEDS_CONTEXT;
    sim_give(array);
    return CUDA_OK;
}

EXPORT(cuMipmappedArrayCreate, void **ret, const struct array3d *d, unsigned levels) {
    NEEDS_CONTEXT;
    int r;
    *ret = sim_take(sim_current->card, array_bytes(d, levels), &r);
    return r;
}

EXPORT(cuMipmappedArrayDestroy, void *array) {
    return cuArrayDestroy(array);
}

/* ---- managed --------------------------------------------------------------------------------- */

/* A mapping of the other device, at an offset that is its address. What the kernel refuses is an
   unknown error, as with NVIDIA's. */
EXPORT(cuMemAllocManaged, CUdeviceptr *ret, size_t bytes, unsigned flags) {
    NEEDS_CONTEXT;
    uint64_t total, used, at = next_managed;
    (void)flags;
    if (!ret || !bytes)
        return CUDA_INVALID_VALUE;
    if (managed_fd < 0)
        managed_fd = open(SIM_UVM, O_RDWR | O_CLOEXEC);
    bytes = (bytes + SIM_BLOCK - 1) / SIM_BLOCK * SIM_BLOCK;
    void *p = mmap((void *)(uintptr_t)at, bytes, PROT_READ | PROT_WRITE,
                   MAP_SHARED | MAP_FIXED_NOREPLACE, managed_fd, (off_t)at);
    if (p == MAP_FAILED)
        return CUDA_UNKNOWN;
    unsigned i = 0;
    while (i < MANAGED_MAX && mapped[i].at)
        i++;
    if (i == MANAGED_MAX)
        abort();
    mapped[i].at = at;
    mapped[i].bytes = bytes;
    next_managed += bytes;
    *ret = at;
    return sim_error(sim_info(&sim, sim_current->card, &total, &used)); /* the driver takes note */
}

/* ---- of other processes ---------------------------------------------------------------------- */

EXPORT(cuIpcGetMemHandle, struct handle *ret, CUdeviceptr at) {
    NEEDS_CONTEXT;
    const struct sim_block *b = sim_block_at(at);
    if (!b)
        return CUDA_INVALID_VALUE;
    *ret = (struct handle){.client = sim.client, .object = b->object, .bytes = b->bytes};
    return CUDA_OK;
}

EXPORT(cuIpcOpenMemHandle_v2, CUdeviceptr *ret, struct handle h, unsigned flags) {
    NEEDS_CONTEXT;
    uint32_t object;
    (void)flags;
    int r = sim_error(sim_dup(&sim, sim_current->card, h.client, h.object, &object));
    if (!r)
        *ret = sim_addresses(h.bytes);
    return r;
}
