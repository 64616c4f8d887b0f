/* The cards of this process. See core.h. */
#include "core.h"

#include <stdio.h>

struct vg_real vg_real;

static _Atomic unsigned index_of[VG_VGPU_DEVICES]; /* by the program's number */
static _Atomic int devices;                        /* 0 until cuInit was good */

/* The place of device `i`; -1: it is not the task's. */
static int find(CUdevice i) {
    unsigned char uuid[16] = {0};
    CUresult (*ask)(unsigned char *, CUdevice) =
        vg_real.cuDeviceGetUuid_v2 ? vg_real.cuDeviceGetUuid_v2 : vg_real.cuDeviceGetUuid;
    return ask(uuid, i) == CUDA_OK ? vg_page_find(vg_shim_get()->page, uuid) : -1;
}

bool vg_cards_find(struct vg_why *why) {
    int count = 0;
    if (vg_real.cuDeviceGetCount(&count) != CUDA_OK)
        count = 0;
    for (int i = 0; i < count; i++) {
        int found = i < (int)VG_VGPU_DEVICES ? find(i) : -1;
        if (found < 0) {
            snprintf(why->text, sizeof why->text,
                     "device %d is not one of those given to this task; leave CUDA_VISIBLE_DEVICES "
                     "as it was set",
                     i);
            return false;
        }
        atomic_store(&index_of[i], (unsigned)found);
    }
    atomic_store(&devices, count);
    return true;
}

CUresult vg_card_of(CUdevice device, unsigned *ret) {
    if (!vg_shim_get()->ready)
        return CUDA_SYSTEM_NOT_READY;
    if (device < 0 || device >= atomic_load(&devices))
        return CUDA_NOT_INITIALIZED;
    *ret = atomic_load(&index_of[device]);
    return CUDA_OK;
}

CUresult vg_card_current(unsigned *ret) {
    CUdevice device;
    CUresult r = vg_real.cuCtxGetDevice(&device);
    return r == CUDA_OK ? vg_card_of(device, ret) : r;
}
