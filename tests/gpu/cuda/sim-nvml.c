/* An NVML for simulated cards: which there are, and how much of them is used. */
#include "../../vgpu/fake/strict.h"
#include "driver.h"

#include <stdio.h>

enum { NVML_UNINITIALIZED = 1, NVML_INVALID_ARGUMENT = 2, NVML_TOO_SMALL = 7, NVML_NOT_LOADED = 9 };

static struct sim sim;
static int started;

EXPORT(nvmlInit_v2, void) {
    if (!started && sim_open(&sim) < 0)
        return NVML_NOT_LOADED;
    started = 1;
    return 0;
}

EXPORT(nvmlInit, void) {
    return nvmlInit_v2();
}

EXPORT(nvmlInitWithFlags, unsigned flags) {
    (void)flags;
    return nvmlInit_v2();
}

EXPORT(nvmlShutdown, void) {
    return 0;
}

FAKE_EXPORT(const char *, nvmlErrorString, int error) {
    return error ? "some error" : "no error";
}

EXPORT(nvmlDeviceGetCount_v2, unsigned *ret) {
    *ret = (unsigned)sim.n;
    return started ? 0 : NVML_UNINITIALIZED;
}

EXPORT(nvmlDeviceGetHandleByIndex_v2, unsigned index, struct sim_card **ret) {
    if (index >= (unsigned)sim.n)
        return NVML_INVALID_ARGUMENT;
    *ret = &sim.card[index];
    return 0;
}

EXPORT(nvmlDeviceGetUUID, const struct sim_card *card, char *ret, unsigned size) {
    unsigned char u[16];
    sim_uuid(card, u);
    int n = snprintf(ret, size,
                     "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x",
                     u[0], u[1], u[2], u[3], u[4], u[5], u[6], u[7], u[8], u[9], u[10], u[11],
                     u[12], u[13], u[14], u[15]);
    return n < (int)size ? 0 : NVML_TOO_SMALL;
}

EXPORT(nvmlDeviceGetMemoryInfo, const struct sim_card *card, unsigned long long ret[3]) {
    uint64_t total = 0, used = 0;
    int r = sim_info(&sim, (int)(card - sim.card), &total, &used);
    ret[0] = total;
    ret[1] = total - used;
    ret[2] = used;
    return r ? NVML_NOT_LOADED : 0;
}
