/* What the wiper calls of NVIDIA's two libraries, with one simulated card. The environment says how
   it is: WIPE_COMPUTE its compute mode, WIPE_HELD_MIB of its memory that somebody holds, WIPE_INIT
   what cuInit answers, WIPE_SET what setting anything answers. */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define MIB (1ULL << 20)
#define API __attribute__((visibility("default")))

API struct wipe_state { /* for the test */
    uint64_t total, held, allocated, filled;
    unsigned compute, power, contexts;
} wipe_state = {.total = 5000 * MIB, .power = 700000};

static int number(const char *name, int otherwise) {
    const char *s = getenv(name);
    return s ? (int)strtol(s, NULL, 10) : otherwise;
}

/* ---- settings */

API int nvmlInit_v2(void) {
    wipe_state.compute = (unsigned)number("WIPE_COMPUTE", 0);
    return 0;
}
API int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **ret) {
    *ret = &wipe_state;
    return i == 0 ? 0 : 2;
}
API int nvmlDeviceGetUUID(void *h, char *out, unsigned n) {
    (void)h;
    snprintf(out, n, "GPU-of-a-test");
    return 0;
}
API int nvmlDeviceGetComputeMode(void *h, unsigned *v) {
    (void)h;
    *v = wipe_state.compute;
    return 0;
}
API int nvmlDeviceSetComputeMode(void *h, unsigned v) {
    (void)h;
    int r = number("WIPE_SET", 0);
    wipe_state.compute = r ? wipe_state.compute : v;
    return r;
}
API int nvmlDeviceGetPowerManagementLimit(void *h, unsigned *v) {
    (void)h;
    *v = wipe_state.power;
    return 0;
}
API int nvmlDeviceGetMigMode(void *h, unsigned *now, unsigned *pending) {
    (void)h, (void)now, (void)pending;
    return 3; /* not supported */
}

/* ---- memory */

API int cuInit(unsigned flags) {
    (void)flags;
    wipe_state.held = (uint64_t)number("WIPE_HELD_MIB", 0) * MIB;
    return number("WIPE_INIT", 0);
}
API int cuDeviceGetCount(int *n) {
    *n = 1;
    return 0;
}
API int cuDeviceGet(int *dev, int i) {
    *dev = i;
    return i == 0 ? 0 : 101;
}
API int cuCtxCreate_v2(void **ctx, unsigned flags, int dev) {
    (void)flags, (void)dev;
    *ctx = &wipe_state;
    wipe_state.contexts++;
    wipe_state.allocated = 100 * MIB; /* its own */
    return 0;
}
API int cuCtxDestroy_v2(void *ctx) {
    (void)ctx;
    wipe_state.contexts--;
    wipe_state.allocated = 0;
    return 0;
}
API int cuMemGetInfo_v2(size_t *left, size_t *total) {
    *left = wipe_state.total - wipe_state.held - wipe_state.allocated;
    *total = wipe_state.total;
    return 0;
}
API int cuMemAlloc_v2(unsigned long long *ret, size_t n) {
    if (wipe_state.held + wipe_state.allocated + n > wipe_state.total)
        return 2;
    *ret = wipe_state.allocated;
    wipe_state.allocated += n;
    return 0;
}
API int cuMemsetD8_v2(unsigned long long p, unsigned char value, size_t n) {
    (void)p;
    wipe_state.filled += value == 0 ? n : 0;
    return 0;
}
API int cuCtxSynchronize(void) {
    return 0;
}
