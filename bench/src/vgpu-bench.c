/* Calls a driver's function many times, for bench/run vgpu to count instructions: vgpu-bench SHIM
 * FAKE CALL WAY TIMES
 *
 * CALL is launch, alloc or info. WAY is driver (the fake driver itself), entry (the shim's exported
 * name) or resolved (what the shim's cuGetProcAddress gives). The card and the page lie in the
 * current folder. */
#include "card.h"
#include "gpu/share-page.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static int fail(const char *what) {
    fprintf(stderr, "vgpu-bench: %s\n", what);
    return 1;
}

static int make_page(const struct card *card, const char *fake, struct vg_err *err) {
    struct vg_share_device device = {.limit_bytes = 16ull << 30, .weight_milli = 500};
    struct vg_share_conf conf = {
        .device = &device, .devices = 1, .driver = "0", .real_cuda = fake, .real_nvml = fake};
    struct vg_share_page *page = NULL;
    memcpy(device.uuid, card->uuid[0], sizeof device.uuid);
    int r = vg_share_page_open(AT_FDCWD, &conf, &page, err);
    vg_share_page_close(page);
    return r;
}

typedef int launch_fn(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                      void *, void **, void **);
typedef int alloc_fn(uint64_t *, size_t);
typedef int free_fn(uint64_t);
typedef int info_fn(size_t *, size_t *);
typedef int resolve_fn(const char *, void **, int, uint64_t, int *);

static void *find(void *library, const char *way, const char *name) {
    void *f = NULL;
    resolve_fn *resolve = (resolve_fn *)dlsym(library, "cuGetProcAddress_v2");
    if (strcmp(way, "resolved") == 0)
        return resolve(name, &f, 12000, 0, NULL) == 0 ? f : NULL;
    return dlsym(library, name);
}

static int begin(void *library) {
    void *context = NULL;
    int (*init)(unsigned) = (int (*)(unsigned))dlsym(library, "cuInit");
    int (*retain)(void **, int) = (int (*)(void **, int))dlsym(library, "cuDevicePrimaryCtxRetain");
    int (*current)(void *) = (int (*)(void *))dlsym(library, "cuCtxSetCurrent");
    return init(0) || retain(&context, 0) || current(context);
}

static int launches(void *library, const char *way, long times) {
    launch_fn *launch = (launch_fn *)find(library, way, "cuLaunchKernel");
    for (long i = 0; launch && i < times; i++)
        if (launch(NULL, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL))
            return 1;
    return !launch;
}

static int allocations(void *library, const char *way, long times) {
    alloc_fn *alloc = (alloc_fn *)find(library, way, "cuMemAlloc_v2");
    free_fn *release = (free_fn *)find(library, way, "cuMemFree_v2");
    uint64_t p;
    for (long i = 0; alloc && release && i < times; i++)
        if (alloc(&p, 4 << 20) || release(p))
            return 1;
    return !alloc || !release;
}

static int questions(void *library, const char *way, long times) {
    info_fn *info = (info_fn *)find(library, way, "cuMemGetInfo_v2");
    size_t left, total;
    for (long i = 0; info && i < times; i++)
        if (info(&left, &total))
            return 1;
    return !info;
}

static int work(void *library, const char *call, const char *way, long times) {
    return strcmp(call, "launch") == 0  ? launches(library, way, times)
           : strcmp(call, "alloc") == 0 ? allocations(library, way, times)
                                        : questions(library, way, times);
}

int main(int argc, char **argv) {
    struct vg_err err = VG_ERR_INIT;
    struct timespec from, to;
    if (argc != 6)
        return fail("usage: vgpu-bench SHIM FAKE launch|alloc|info driver|entry|resolved TIMES");
    if (make_page(card_new("card", 16ull << 30), argv[2], &err) < 0)
        return fail(err.msg);
    void *library =
        dlopen(strcmp(argv[4], "driver") == 0 ? argv[2] : argv[1], RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return fail(dlerror());
    if (begin(library))
        return fail("the library does not start");
    clock_gettime(CLOCK_MONOTONIC, &from);
    if (work(library, argv[3], argv[4], strtol(argv[5], NULL, 10)))
        return fail("a call failed");
    clock_gettime(CLOCK_MONOTONIC, &to);
    printf("%lld\n",
           (long long)(to.tv_sec - from.tv_sec) * 1000000000ll + to.tv_nsec - from.tv_nsec);
    return 0;
}
