/* The fake libnvidia-ml: one device, the whole card's numbers, and a neighbour's process beside
 * one's own. */
#include "card.h"
#include "strict.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

static struct card *card;

FAKE_EXPORT(int, nvmlInit_v2, void) {
    const char *path = getenv("FAKE_CARD");
    if (!card && path)
        card = card_open(path);
    return card ? 0 : 9;
}

FAKE_EXPORT(int, nvmlInit, void) {
    return nvmlInit_v2();
}

FAKE_EXPORT(int, nvmlInitWithFlags, unsigned flags) {
    (void)flags;
    return nvmlInit_v2();
}

FAKE_EXPORT(const char *, nvmlErrorString, int error) {
    return error ? "some error" : "no error";
}

FAKE_EXPORT(int, nvmlDeviceGetCount_v2, unsigned *ret) {
    *ret = (unsigned)card->devices;
    return 0;
}

FAKE_EXPORT(int, nvmlDeviceGetHandleByIndex_v2, unsigned index, void **ret) {
    *ret = &card->uuid[index];
    return (int)index < card->devices ? 0 : 2;
}

FAKE_EXPORT(int, nvmlDeviceGetUUID, void *device, char *ret, unsigned size) {
    const unsigned char *u = device;
    return snprintf(ret, size,
                    "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x",
                    u[0], u[1], u[2], u[3], u[4], u[5], u[6], u[7], u[8], u[9], u[10], u[11], u[12],
                    u[13], u[14], u[15]) < (int)size
               ? 0
               : 7;
}

FAKE_EXPORT(int, nvmlDeviceGetMemoryInfo, void *device, unsigned long long ret[3]) {
    (void)device;
    ret[0] = card->capacity;
    ret[2] = atomic_load(&card->used);
    ret[1] = ret[0] - ret[2];
    return 0;
}

struct memory2 {
    unsigned version;
    unsigned long long total, reserved, free, used;
};

FAKE_EXPORT(int, nvmlDeviceGetMemoryInfo_v2, void *device, struct memory2 *ret) {
    unsigned long long three[3];
    int r = nvmlDeviceGetMemoryInfo(device, three);
    *ret = (struct memory2){ret->version, three[0], 1 << 20, three[1], three[2]};
    return r;
}
