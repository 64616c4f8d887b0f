/* A program with the usual libraries, for simulated cards.

       sim-hold info                what it is told of its card
       sim-hold hold MIB [NAME]     memory and a context, until its input ends
       sim-hold load PATH           which file a library of that name or path is

   One JSON object. */
#include <dlfcn.h>
#include <link.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void *cuda, *nvml;

static void *symbol(void *lib, const char *name) {
    void *p = dlsym(lib, name);
    if (!p) {
        fprintf(stderr, "sim-hold: %s is missing\n", name);
        exit(2);
    }
    return p;
}

#define CU(name, ...) ((int (*)(__VA_ARGS__))symbol(cuda, #name))
#define NV(name, ...) ((int (*)(__VA_ARGS__))symbol(nvml, #name))

static void must(int r, const char *what) {
    if (!r)
        return;
    printf("{\"failed\": \"%s\", \"error\": %d}\n", what, r);
    exit(1);
}

static void begin(void) {
    void *context;
    must(CU(cuInit, unsigned)(0), "cuInit");
    must(CU(cuDevicePrimaryCtxRetain, void **, int)(&context, 0), "context");
    must(CU(cuCtxSetCurrent, void *)(context), "context");
}

static int info(void) {
    size_t left = 0, total = 0, card = 0;
    unsigned long long m[3] = {0};
    void *device = NULL;
    int count = 0;
    unsigned nvml_count = 0;
    begin();
    must(CU(cuDeviceGetCount, int *)(&count), "count");
    must(CU(cuMemGetInfo_v2, size_t *, size_t *)(&left, &total), "info");
    must(CU(cuDeviceTotalMem_v2, size_t *, int)(&card, 0), "total");
    must(NV(nvmlInit_v2, void)(), "nvmlInit");
    must(NV(nvmlDeviceGetCount_v2, unsigned *)(&nvml_count), "nvml count");
    must(NV(nvmlDeviceGetHandleByIndex_v2, unsigned, void **)(0, &device), "nvml device");
    must(NV(nvmlDeviceGetMemoryInfo, void *, void *)(device, m), "nvml memory");
    printf("{\"count\": %d, \"free\": %zu, \"total\": %zu, \"device\": %zu, \"nvml_count\": %u, "
           "\"nvml_total\": %llu, \"nvml_free\": %llu, \"nvml_used\": %llu}\n",
           count, left, total, card, nvml_count, m[0], m[1], m[2]);
    return 0;
}

static int hold(uint64_t mib) {
    uint64_t p;
    char c;
    begin();
    if (mib)
        must(CU(cuMemAlloc_v2, uint64_t *, size_t)(&p, mib << 20), "memory");
    printf("{\"held_mib\": %llu}\n", (unsigned long long)mib);
    fflush(stdout);
    while (read(0, &c, 1) > 0) {
    }
    return 0;
}

static int load(const char *path) {
    void *lib = dlopen(path, RTLD_NOW);
    struct link_map *map = NULL;
    if (lib)
        dlinfo(lib, RTLD_DI_LINKMAP, &map);
    printf("{\"library\": \"%s\", \"has_future\": %s}\n", map ? map->l_name : "",
           lib && dlsym(lib, "cuFromTheFuture") ? "true" : "false");
    return 0;
}

int main(int argc, char **argv) {
    if (argc == 3 && !strcmp(argv[1], "load"))
        return load(argv[2]);
    cuda = dlopen("libcuda.so.1", RTLD_NOW);
    nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    if (!cuda || !nvml) {
        fprintf(stderr, "sim-hold: %s\n", dlerror());
        return 1;
    }
    if (argc >= 3 && !strcmp(argv[1], "hold"))
        return hold(strtoull(argv[2], NULL, 10));
    if (argc == 2 && !strcmp(argv[1], "info"))
        return info();
    fprintf(stderr, "usage: sim-hold info|hold|load ...\n");
    return 2;
}
