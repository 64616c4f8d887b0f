/* What a program on a shared GPU sees through NVML: the share in place of the card, its own task's
 * processes and no others. What would change the card for everybody is refused by the table. */
#include "shim.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#if defined(__x86_64__) && defined(__GLIBC__)
__asm__(".symver dlsym,dlsym@GLIBC_2.2.5");
#endif

#define HOOK(name, ...)           \
    int hook_##name(__VA_ARGS__); \
    int hook_##name(__VA_ARGS__)

enum {
    NVML_OK = 0,
    NVML_INVALID_ARGUMENT = 2,
    NVML_NO_PERMISSION = 4,
    NVML_INSUFFICIENT_SIZE = 7,
    NVML_DRIVER_NOT_LOADED = 9,
    NVML_TIMEOUT = 10,
    NVML_FUNCTION_NOT_FOUND = 13,
};

#define NO_INSTANCE 0xffffffffu

struct nvml_memory {
    unsigned long long total, free, used;
};

struct nvml_memory2 {
    unsigned version;
    unsigned long long total, reserved, free, used;
};

struct nvml_process1 {
    unsigned pid;
    unsigned long long bytes;
};

struct nvml_process2 {
    unsigned pid;
    unsigned long long bytes;
    unsigned gpu_instance, compute_instance;
};

static struct {
    int (*nvmlInit)(void);
    int (*nvmlInit_v2)(void);
    int (*nvmlInitWithFlags)(unsigned);
    const char *(*nvmlErrorString)(int);
    int (*nvmlDeviceGetUUID)(void *, char *, unsigned);
    int (*nvmlDeviceGetMemoryInfo)(void *, struct nvml_memory *);
    int (*nvmlDeviceGetMemoryInfo_v2)(void *, struct nvml_memory2 *);
} real;

static int not_ready(void) {
    return NVML_DRIVER_NOT_LOADED;
}
static int refused(void) {
    return NVML_NO_PERMISSION;
}
static int missing(void) {
    return NVML_FUNCTION_NOT_FOUND;
}
static const char *path_of(const struct vg_vgpu_page *page) {
    return page->real_nvml;
}

static bool bind_real(void *library) {
#define BIND(name) *(void **)&real.name = dlsym(library, #name)
    BIND(nvmlInit);
    BIND(nvmlInit_v2);
    BIND(nvmlInitWithFlags);
    BIND(nvmlErrorString);
    BIND(nvmlDeviceGetUUID);
    BIND(nvmlDeviceGetMemoryInfo);
    BIND(nvmlDeviceGetMemoryInfo_v2);
#undef BIND
    return real.nvmlInit_v2 && real.nvmlErrorString && real.nvmlDeviceGetUUID &&
           real.nvmlDeviceGetMemoryInfo;
}

const struct vg_shim_kind vg_shim_kind = {
    .not_ready = (void *)not_ready,
    .refused = (void *)refused,
    .missing = (void *)missing,
    .path = path_of,
    .bind = bind_real,
};

HOOK(nvmlInit, void) {
    return !vg_shim_get()->ready ? NVML_DRIVER_NOT_LOADED
           : real.nvmlInit       ? real.nvmlInit()
                                 : NVML_FUNCTION_NOT_FOUND;
}

HOOK(nvmlInit_v2, void) {
    return vg_shim_get()->ready ? real.nvmlInit_v2() : NVML_DRIVER_NOT_LOADED;
}

HOOK(nvmlInitWithFlags, unsigned flags) {
    return !vg_shim_get()->ready    ? NVML_DRIVER_NOT_LOADED
           : real.nvmlInitWithFlags ? real.nvmlInitWithFlags(flags)
                                    : NVML_FUNCTION_NOT_FOUND;
}

const char *hook_nvmlErrorString(int error);
const char *hook_nvmlErrorString(int error) {
    return vg_shim_get()->ready ? real.nvmlErrorString(error) : "the shared GPU cannot be used";
}

/* "GPU-" and the usual groups of hexadecimal digits. */
static bool parse_uuid(const char *text, uint8_t ret[16]) {
    unsigned n = 0;
    if (strncmp(text, "GPU-", 4) != 0)
        return false;
    for (text += 4; *text && n < 32; text++) {
        const char *digits = "0123456789abcdef", *at = strchr(digits, *text | 0x20);
        if (*text == '-')
            continue;
        if (!at)
            return false;
        ret[n / 2] = (uint8_t)(n % 2 ? ret[n / 2] | (at - digits) : (at - digits) << 4);
        n++;
    }
    return n == 32 && !*text;
}

/* The place of a device in the page, or what the hook shall answer. */
static int card_of(void *device, unsigned *ret) {
    char text[96] = "";
    uint8_t uuid[16] = {0};
    int r = real.nvmlDeviceGetUUID(device, text, sizeof text);
    if (r != NVML_OK)
        return r;
    int found = parse_uuid(text, uuid) ? vg_page_find(vg_shim_get()->page, uuid) : -1;
    if (found < 0)
        return NVML_NO_PERMISSION; /* a device of the node, but not of this task */
    *ret = (unsigned)found;
    return NVML_OK;
}

HOOK(nvmlDeviceGetMemoryInfo, void *device, struct nvml_memory *ret) {
    unsigned card;
    int r = real.nvmlDeviceGetMemoryInfo(device, ret);
    if (r != NVML_OK || (r = card_of(device, &card)) != NVML_OK)
        return r;
    struct vg_memory m = vg_page_memory(vg_shim_get()->page, card, ret->free);
    *ret = (struct nvml_memory){.total = m.total, .free = m.free, .used = m.used};
    return NVML_OK;
}

HOOK(nvmlDeviceGetMemoryInfo_v2, void *device, struct nvml_memory2 *ret) {
    unsigned card;
    int r = real.nvmlDeviceGetMemoryInfo_v2(device, ret);
    if (r != NVML_OK || (r = card_of(device, &card)) != NVML_OK)
        return r;
    struct vg_memory m = vg_page_memory(vg_shim_get()->page, card, ret->free);
    *ret = (struct nvml_memory2){
        .version = ret->version, .total = m.total, .free = m.free, .used = m.used};
    return NVML_OK;
}

/* The task's own processes that hold something; the page tells of those of the first device. `form`
 * 1 has the first two fields alone. */
static int list_processes(void *device, unsigned *count, void *ret, int form) {
    struct vg_process all[VG_VGPU_PROCESSES];
    unsigned card, found = 0, room;
    if (!count)
        return NVML_INVALID_ARGUMENT;
    int r = card_of(device, &card);
    if (r != NVML_OK)
        return r;
    int known = card == 0 ? vg_page_processes(vg_shim_get()->page, all) : 0;
    if (known < 0)
        return NVML_TIMEOUT;
    room = ret ? *count : 0;
    for (int i = 0; i < known; i++) {
        if (!all[i].used_bytes)
            continue;
        if (found < room && form == 1)
            ((struct nvml_process1 *)ret)[found] =
                (struct nvml_process1){all[i].pid, all[i].used_bytes};
        else if (found < room)
            ((struct nvml_process2 *)ret)[found] =
                (struct nvml_process2){all[i].pid, all[i].used_bytes, NO_INSTANCE, NO_INSTANCE};
        found++;
    }
    *count = found;
    return found > room ? NVML_INSUFFICIENT_SIZE : NVML_OK;
}

/* None of them draws, and none of them is a client of MPS. */
static int list_nothing(void *device, unsigned *count) {
    unsigned card;
    if (!count)
        return NVML_INVALID_ARGUMENT;
    *count = 0;
    return card_of(device, &card);
}

HOOK(nvmlDeviceGetComputeRunningProcesses, void *d, unsigned *n, void *p) {
    return list_processes(d, n, p, 1);
}
HOOK(nvmlDeviceGetComputeRunningProcesses_v2, void *d, unsigned *n, void *p) {
    return list_processes(d, n, p, 2);
}
HOOK(nvmlDeviceGetComputeRunningProcesses_v3, void *d, unsigned *n, void *p) {
    return list_processes(d, n, p, 2);
}

#define NOTHING(name)                           \
    HOOK(name, void *d, unsigned *n, void *p) { \
        (void)p;                                \
        return list_nothing(d, n);              \
    }
NOTHING(nvmlDeviceGetGraphicsRunningProcesses)
NOTHING(nvmlDeviceGetGraphicsRunningProcesses_v2)
NOTHING(nvmlDeviceGetGraphicsRunningProcesses_v3)
NOTHING(nvmlDeviceGetMPSComputeRunningProcesses)
NOTHING(nvmlDeviceGetMPSComputeRunningProcesses_v2)
NOTHING(nvmlDeviceGetMPSComputeRunningProcesses_v3)
