/* Start, devices, contexts, and the blocks that everything else is made of. */
#include "sim.h"

#include "gpu/rm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BLOCKS 16384u
#define CONTEXTS 256u

struct sim sim;
bool sim_started;
_Thread_local struct sim_context *sim_current;

static pthread_mutex_t lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static struct sim_block block[BLOCKS];
static struct sim_context context[CONTEXTS], *primary[SIM_CARDS];
static uint64_t next_address = UINT64_C(0x700000000000);

int sim_lock(void) {
    return pthread_mutex_lock(&lock);
}

void sim_unlock(int *unused) {
    (void)unused;
    pthread_mutex_unlock(&lock);
}

int sim_error(int status) {
    switch (status) {
    case VG_RM_OK:
        return CUDA_OK;
    case VG_RM_NO_MEMORY:
    case VG_RM_INSUFFICIENT_RESOURCES:
        return CUDA_OUT_OF_MEMORY;
    case VG_RM_NOT_SUPPORTED:
        return CUDA_NOT_SUPPORTED;
    default: /* the kernel refused, or the card is lost */
        return CUDA_UNKNOWN;
    }
}

/* ---- blocks ---------------------------------------------------------------------------------- */

uint64_t sim_addresses(uint64_t bytes) {
    uint64_t at = next_address;
    next_address += (bytes + SIM_BLOCK - 1) / SIM_BLOCK * SIM_BLOCK;
    return at;
}

struct sim_block *sim_take(int card, uint64_t bytes, int *ret_error) {
    struct sim_block *b = NULL;
    for (uint32_t i = 0; !b && i < BLOCKS; i++)
        b = block[i].object ? NULL : &block[i];
    if (!b) {
        fprintf(stderr, "simulated libcuda: more than %u blocks\n", BLOCKS);
        abort();
    }
    uint32_t object = 0;
    bytes =
        bytes > UINT64_MAX - SIM_BLOCK ? bytes : (bytes + SIM_BLOCK - 1) / SIM_BLOCK * SIM_BLOCK;
    *ret_error = sim_error(sim_memory(&sim, card, bytes, &object));
    if (*ret_error)
        return NULL;
    *b = (struct sim_block){.object = object, .card = card, .bytes = bytes, .parts = 1};
    return b;
}

void sim_give(struct sim_block *b) {
    if (--b->parts)
        return;
    (void)sim_free(&sim, b->object);
    *b = (struct sim_block){0};
}

struct sim_block *sim_block_at(uint64_t at) {
    for (uint32_t i = 0; at && i < BLOCKS; i++)
        if (block[i].object && block[i].at && at >= block[i].at &&
            at < block[i].at + block[i].bytes)
            return &block[i];
    return NULL;
}

struct sim_block *sim_take_from(void *pool, int card, uint64_t bytes, int *ret_error) {
    for (uint32_t i = 0; i < BLOCKS; i++)
        if (block[i].idle && block[i].pool == pool && block[i].card == card &&
            block[i].bytes >= bytes) {
            block[i].idle = false;
            *ret_error = CUDA_OK;
            return &block[i];
        }
    struct sim_block *b = sim_take(card, bytes, ret_error);
    if (b)
        b->pool = pool;
    return b;
}

void sim_keep(struct sim_block *b) {
    b->idle = true;
    b->at = 0;
}

void sim_trim(const void *pool) {
    for (uint32_t i = 0; i < BLOCKS; i++)
        if (block[i].idle && block[i].pool == pool)
            sim_give(&block[i]);
}

/* ---- start and devices ----------------------------------------------------------------------- */

EXPORT(cuInit, unsigned flags) {
    LOCKED;
    if (flags)
        return CUDA_INVALID_VALUE;
    if (sim_started)
        return CUDA_OK;
    if (sim_open(&sim) < 0 || sim.n == 0)
        return CUDA_NO_DEVICE;
    sim_started = true;
    return CUDA_OK;
}

EXPORT(cuDeviceGetCount, int *ret) {
    LOCKED;
    *ret = sim.n;
    return sim_started ? CUDA_OK : CUDA_NOT_INITIALIZED;
}

static bool is_device(CUdevice d) {
    return sim_started && d >= 0 && d < sim.n;
}

EXPORT(cuDeviceGet, CUdevice *ret, int ordinal) {
    LOCKED;
    *ret = ordinal;
    return is_device(ordinal) ? CUDA_OK : CUDA_INVALID_DEVICE;
}

EXPORT(cuDeviceGetName, char *ret, int n, CUdevice d) {
    LOCKED;
    snprintf(ret, (size_t)n, "Simulated GPU");
    return is_device(d) ? CUDA_OK : CUDA_INVALID_DEVICE;
}

EXPORT(cuDeviceGetUuid, unsigned char *ret, CUdevice d) {
    LOCKED;
    if (!is_device(d))
        return CUDA_INVALID_DEVICE;
    sim_uuid(&sim.card[d], ret);
    return CUDA_OK;
}

EXPORT(cuDeviceGetUuid_v2, unsigned char *ret, CUdevice d) {
    return cuDeviceGetUuid(ret, d);
}

EXPORT(cuDeviceTotalMem_v2, size_t *ret, CUdevice d) {
    LOCKED;
    uint64_t used, total = 0;
    if (!is_device(d))
        return CUDA_INVALID_DEVICE;
    int r = sim_error(sim_info(&sim, d, &total, &used));
    *ret = total;
    return r;
}

/* ---- contexts -------------------------------------------------------------------------------- */

static void end_context(struct sim_context *c) {
    if (c->stack)
        (void)sim_free(&sim, c->stack);
    if (c->group)
        (void)sim_free(&sim, c->group);
    if (c->memory)
        (void)sim_free(&sim, c->memory);
    *c = (struct sim_context){0};
}

/* Memory for itself, and a channel group, for which the library sets a slice of its own. */
static int begin_context(CUdevice d, struct sim_context **ret) {
    struct sim_context *c = context;
    uint64_t slice = 2048;
    while (c < context + CONTEXTS && c->refs)
        c++;
    if (c == context + CONTEXTS)
        abort();
    *c = (struct sim_context){.card = d, .refs = 1};
    int r = sim_device(&sim, d);
    if (!r)
        r = sim_memory(&sim, d, SIM_CONTEXT_BYTES, &c->memory);
    if (!r)
        r = sim_object(&sim, sim.card[d].device, VG_RM_CLASS_CHANNEL_GROUP, NULL, 0, &c->group);
    if (!r)
        r = sim_control(&sim, c->group, VG_RM_SET_TIMESLICE, &slice, sizeof(slice));
    if (r)
        end_context(c);
    else
        *ret = c;
    return sim_error(r);
}

EXPORT(cuCtxCreate_v2, CUcontext *ret, unsigned flags, CUdevice d) {
    LOCKED;
    struct sim_context *c;
    (void)flags;
    int r = is_device(d) ? begin_context(d, &c) : CUDA_INVALID_DEVICE;
    if (!r)
        *ret = sim_current = c;
    return r;
}

EXPORT(cuCtxDestroy_v2, CUcontext c) {
    LOCKED;
    if (sim_current == c)
        sim_current = NULL;
    end_context(c);
    return CUDA_OK;
}

EXPORT(cuDevicePrimaryCtxRetain, CUcontext *ret, CUdevice d) {
    LOCKED;
    if (!is_device(d))
        return CUDA_INVALID_DEVICE;
    int r = primary[d] ? CUDA_OK : begin_context(d, &primary[d]);
    if (!r)
        *ret = primary[d];
    return r;
}

EXPORT(cuDevicePrimaryCtxReset_v2, CUdevice d) {
    LOCKED;
    if (primary[d])
        end_context(primary[d]);
    primary[d] = NULL;
    return CUDA_OK;
}

EXPORT(cuCtxSetCurrent, CUcontext c) {
    sim_current = c;
    return CUDA_OK;
}

EXPORT(cuCtxGetCurrent, CUcontext *ret) {
    *ret = sim_current;
    return CUDA_OK;
}

EXPORT(cuCtxGetDevice, CUdevice *ret) {
    NEEDS_CONTEXT;
    *ret = sim_current->card;
    return CUDA_OK;
}

EXPORT(cuCtxSynchronize, void) {
    NEEDS_CONTEXT;
    return CUDA_OK;
}

/* The stack of every thread that the card can run is there from the moment it is asked for. */
EXPORT(cuCtxSetLimit, int limit, size_t value) {
    NEEDS_CONTEXT;
    struct sim_context *c = sim_current;
    uint32_t stack = 0;
    if (limit != 0) /* the others take nothing before they are used */
        return CUDA_OK;
    int r = sim_error(sim_memory(&sim, c->card, value * SIM_STACKS, &stack));
    if (r)
        return r;
    if (c->stack)
        (void)sim_free(&sim, c->stack);
    c->stack = stack;
    c->stack_bytes = value;
    return CUDA_OK;
}
