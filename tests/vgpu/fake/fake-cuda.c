/* The fake libcuda: as much of a driver as the shim and its tests call. */
#include "card.h"
#include "strict.h"
#include "vgpu/cuda-types.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CUDA_NO_DEVICE = 101, CUDA_INVALID_CONTEXT = 201 };

#define ALLOCATIONS 64

static struct card *card;
static struct context { CUdevice device; } contexts[2] = {{0}, {1}};
static _Thread_local struct context *current;
static struct {
    CUdeviceptr address;
    size_t bytes;
} allocations[ALLOCATIONS];

/* Not CUDA_OK before cuInit, or when a test ordered this call to fail. */
static int fault(const char *name) {
    if (!card)
        return CUDA_NOT_INITIALIZED;
    return strcmp(card->fault_name, name) == 0 ? atomic_exchange(&card->fault_code, 0) : CUDA_OK;
}

EXPORT(cuInit, unsigned flags) {
    const char *path = getenv("FAKE_CARD");
    if (flags || !path)
        return CUDA_INVALID_VALUE;
    if (!card)
        card = card_open(path);
    return fault("cuInit");
}

EXPORT(cuDeviceGetCount, int *ret) {
    int r = fault("cuDeviceGetCount");
    if (r == CUDA_OK)
        *ret = card->devices;
    return r;
}

EXPORT(cuDeviceGetUuid, unsigned char *ret, CUdevice d) {
    memcpy(ret, card->uuid[d], 16);
    return CUDA_OK;
}

EXPORT(cuDeviceGetUuid_v2, unsigned char *ret, CUdevice d) {
    return cuDeviceGetUuid(ret, d);
}

EXPORT(cuDeviceTotalMem_v2, size_t *ret, CUdevice d) {
    int r = fault("cuDeviceTotalMem_v2");
    if (r != CUDA_OK)
        return r;
    if (!ret || d < 0 || d >= card->devices)
        return ret ? CUDA_NO_DEVICE : CUDA_INVALID_VALUE;
    *ret = card->capacity;
    return CUDA_OK;
}

EXPORT(cuDevicePrimaryCtxRetain, CUcontext *ret, CUdevice d) {
    int r = fault("cuDevicePrimaryCtxRetain");
    *ret = &contexts[d];
    return r;
}

EXPORT(cuCtxSetCurrent, CUcontext c) {
    current = c;
    return CUDA_OK;
}

EXPORT(cuCtxGetDevice, CUdevice *ret) {
    if (!current)
        return CUDA_INVALID_CONTEXT;
    *ret = current->device;
    return CUDA_OK;
}

EXPORT(cuMemGetInfo_v2, size_t *left, size_t *total) {
    int r = fault("cuMemGetInfo_v2");
    if (r != CUDA_OK || !current)
        return r != CUDA_OK ? r : CUDA_INVALID_CONTEXT;
    if (!left || !total)
        return CUDA_INVALID_VALUE;
    *total = card->capacity;
    *left = card->capacity - atomic_load(&card->used);
    return CUDA_OK;
}

EXPORT(cuMemAlloc_v2, CUdeviceptr *ret, size_t bytes) {
    int i = 0, r = fault("cuMemAlloc_v2");
    if (r != CUDA_OK || !current)
        return r != CUDA_OK ? r : CUDA_INVALID_CONTEXT;
    while (i < ALLOCATIONS && allocations[i].bytes)
        i++;
    if (i == ALLOCATIONS || !card_take(card, bytes))
        return CUDA_OUT_OF_MEMORY;
    allocations[i].bytes = bytes;
    *ret = allocations[i].address = (CUdeviceptr)(i + 1) << 40;
    return CUDA_OK;
}

EXPORT(cuMemFree_v2, CUdeviceptr p) {
    int r = fault("cuMemFree_v2");
    for (int i = 0; r == CUDA_OK && i < ALLOCATIONS; i++)
        if (allocations[i].bytes && allocations[i].address == p) {
            card_give(card, allocations[i].bytes);
            allocations[i].bytes = 0;
            return CUDA_OK;
        }
    return r == CUDA_OK ? CUDA_INVALID_VALUE : r;
}

/* Says of a full card what the real one says of a mapping that the kernel refuses. */
EXPORT(cuMemAllocManaged, CUdeviceptr *ret, size_t bytes, unsigned flags) {
    int r = fault("cuMemAllocManaged");
    (void)flags;
    if (card)
        atomic_fetch_add(&card->managed_calls, 1);
    if (r != CUDA_OK || !current)
        return r != CUDA_OK ? r : CUDA_INVALID_CONTEXT;
    if (!ret || !bytes)
        return CUDA_INVALID_VALUE;
    if (!card_take(card, bytes))
        return CUDA_UNKNOWN;
    *ret = 1ull << 30;
    return CUDA_OK;
}

EXPORT(cuLaunchKernel, void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
       unsigned bz, unsigned shared, void *stream, void **params, void **extra) {
    static int check = -1; /* whether the arguments must be 1 to 11 */
    if (check < 0)
        check = getenv("FAKE_CHECK_LAUNCH") != NULL;
    if (!check)
        return CUDA_OK;
    return (uintptr_t)f == 1 && gx == 2 && gy == 3 && gz == 4 && bx == 5 && by == 6 && bz == 7 &&
                   shared == 8 && (uintptr_t)stream == 9 && (uintptr_t)params == 10 &&
                   (uintptr_t)extra == 11
               ? CUDA_OK
               : CUDA_INVALID_VALUE;
}
