/* What a program is told about memory: its share, where it would see the card. */
#include "core.h"

/* Asked first is the node's library, with the program's own pointers: what is an error there is the
 * same one here. */
HOOK(cuMemGetInfo_v2, size_t *ret_free, size_t *ret_total) {
    unsigned card;
    CUresult r = vg_real.cuMemGetInfo_v2(ret_free, ret_total);
    if (r != CUDA_OK || (r = vg_card_current(&card)) != CUDA_OK)
        return r;
    struct vg_memory m = vg_page_memory(vg_shim_get()->page, card, ret_free ? *ret_free : 0);
    if (ret_free)
        *ret_free = m.free;
    if (ret_total)
        *ret_total = m.total;
    return CUDA_OK;
}

HOOK(cuDeviceTotalMem_v2, size_t *ret, CUdevice device) {
    unsigned card;
    CUresult r = vg_real.cuDeviceTotalMem_v2(ret, device);
    if (r == CUDA_OK && (r = vg_card_of(device, &card)) == CUDA_OK)
        *ret = vg_page_memory(vg_shim_get()->page, card, 0).total;
    return r;
}

/* The oldest forms count in 32 bits. */
static unsigned clipped(size_t bytes) {
    return bytes > UINT32_MAX ? UINT32_MAX : (unsigned)bytes;
}

HOOK(cuMemGetInfo, unsigned *ret_free, unsigned *ret_total) {
    size_t left, total;
    CUresult r = ret_free && ret_total ? hook_cuMemGetInfo_v2(&left, &total) : CUDA_INVALID_VALUE;
    if (r == CUDA_OK) {
        *ret_free = clipped(left);
        *ret_total = clipped(total);
    }
    return r;
}

HOOK(cuDeviceTotalMem, unsigned *ret, CUdevice device) {
    size_t total;
    CUresult r = ret ? hook_cuDeviceTotalMem_v2(&total, device) : CUDA_INVALID_VALUE;
    if (r == CUDA_OK)
        *ret = clipped(total);
    return r;
}

/* Managed memory beyond the share is refused by the kernel when it is mapped, and the driver has no
 * better word for that than "unknown error". That is put right afterwards, and what is larger than
 * the share is not asked for. The page does not decide what fits: that managed memory was given
 * back is known below before it is seen here. */
HOOK(cuMemAllocManaged, CUdeviceptr *ret, size_t bytes, unsigned flags) {
    unsigned card;
    if (vg_card_current(&card) == CUDA_OK &&
        bytes > vg_page_memory(vg_shim_get()->page, card, UINT64_MAX).total)
        return CUDA_OUT_OF_MEMORY;
    CUresult r = vg_real.cuMemAllocManaged(ret, bytes, flags);
    return r == CUDA_UNKNOWN ? CUDA_OUT_OF_MEMORY : r;
}
