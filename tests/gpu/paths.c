/* Every way to memory of a card that the CUDA driver interface has, tried until it refuses: for a
   real card (bench/gpu.sh). Each way runs in a process of its own; how much of the card is really
   used is the driver's own count (NVML, of the whole card, which must be free otherwise).

       paths WANT_MIB [WAY...]        one JSON object a line

   The libraries are opened at run time; declarations are the few that are needed. */
#include <dlfcn.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB (UINT64_C(1) << 20)
#define STEP (256 * MIB)
#define N 512

typedef uint64_t ptr;
struct location {
    int type, id;
};
struct pool_props {
    int type, handles;
    struct location where;
    void *security;
    size_t max;
    unsigned short usage;
    unsigned char unused[54];
};
struct alloc_prop {
    int type, handles;
    struct location where;
    void *security;
    unsigned char flags[8];
};
struct access {
    struct location where;
    int flags;
};
struct node_params {
    struct pool_props pool;
    const struct access *access;
    size_t n, bytes;
    ptr at;
};
struct array3d {
    size_t w, h, d;
    int format;
    unsigned channels, flags;
};

static void *cuda, *nvml, *card;

static void *symbol(void *lib, const char *name) {
    void *p = dlsym(lib, name);
    if (!p) {
        fprintf(stderr, "paths: %s is missing\n", name);
        exit(2);
    }
    return p;
}

#define CU(name, ...) ((int (*)(__VA_ARGS__))symbol(cuda, #name))

static uint64_t card_used(void) {
    struct {
        unsigned long long total, free, used;
    } m = {0};
    ((int (*)(void *, void *))symbol(nvml, "nvmlDeviceGetMemoryInfo"))(card, &m);
    return m.used;
}

static void open_libraries(void) {
    cuda = dlopen("libcuda.so.1", RTLD_NOW);
    nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    if (!cuda || !nvml) {
        fprintf(stderr, "paths: %s\n", dlerror());
        exit(2);
    }
    ((int (*)(void))symbol(nvml, "nvmlInit_v2"))();
    ((int (*)(unsigned, void **))symbol(nvml, "nvmlDeviceGetHandleByIndex_v2"))(0, &card);
}

static int context(void) {
    void *c;
    int r = CU(cuInit, unsigned)(0);
    if (!r)
        r = CU(cuDevicePrimaryCtxRetain, void **, int)(&c, 0);
    return r ? r : CU(cuCtxSetCurrent, void *)(c);
}

/* Each way takes a step and says 0 or CUDA's error. */
static int linear(void) {
    ptr p;
    return CU(cuMemAlloc_v2, ptr *, size_t)(&p, STEP);
}

static int pitched(void) {
    ptr p;
    size_t pitch;
    return CU(cuMemAllocPitch_v2, ptr *, size_t *, size_t, size_t, unsigned)(&p, &pitch, 33,
                                                                             STEP / 512, 4);
}

static int async(void) {
    ptr p;
    int r = CU(cuMemAllocAsync, ptr *, size_t, void *)(&p, STEP, NULL);
    return r ? r : CU(cuStreamSynchronize, void *)(NULL);
}

static int from_pool(void) {
    static void *pool;
    struct pool_props props = {.type = 1, .where = {1, 0}};
    ptr p;
    int r = pool ? 0 : CU(cuMemPoolCreate, void **, void *)(&pool, &props);
    if (!r)
        r = CU(cuMemAllocFromPoolAsync, ptr *, size_t, void *, void *)(&p, STEP, pool, NULL);
    return r ? r : CU(cuStreamSynchronize, void *)(NULL);
}

/* Made, mapped, and the handle let go: the mapping keeps it. */
static int mapped(void) {
    struct alloc_prop prop = {.type = 1, .where = {1, 0}};
    struct access access = {{1, 0}, 3};
    uint64_t handle;
    ptr at = 0;
    int r = CU(cuMemCreate, uint64_t *, size_t, void *, uint64_t)(&handle, STEP, &prop, 0);
    if (!r)
        r = CU(cuMemAddressReserve, ptr *, size_t, size_t, ptr, uint64_t)(&at, STEP, 0, 0, 0);
    if (!r)
        r = CU(cuMemMap, ptr, size_t, size_t, uint64_t, uint64_t)(at, STEP, 0, handle, 0);
    if (!r)
        r = CU(cuMemSetAccess, ptr, size_t, void *, size_t)(at, STEP, &access, 1);
    return r ? r : CU(cuMemRelease, uint64_t)(handle);
}

static int array(void) {
    struct array3d d = {16384, 16384, 0, 1, 1, 0};
    void *a;
    return CU(cuArray3DCreate_v2, void **, void *)(&a, &d);
}

static int mipmapped(void) {
    struct array3d d = {8192, 8192, 0, 1, 4, 0};
    void *a;
    return CU(cuMipmappedArrayCreate, void **, void *, unsigned)(&a, &d, 1);
}

static int managed(void) {
    ptr p;
    int r = CU(cuMemAllocManaged, ptr *, size_t, unsigned)(&p, STEP, 1);
    if (!r)
        r = CU(cuMemsetD8_v2, ptr, unsigned char, size_t)(p, 1, STEP);
    return r ? r : CU(cuCtxSynchronize, void)();
}

static int globals(void) {
    char text[256];
    void *module;
    snprintf(
        text, sizeof(text),
        ".version 7.0\n.target sm_70\n.address_size 64\n.visible .global .align 4 .b8 big[%llu];\n",
        (unsigned long long)STEP);
    return CU(cuModuleLoadData, void **, const void *)(&module, text);
}

static int stack(void) {
    static size_t bytes = 1024;
    bytes += 1024;
    return CU(cuCtxSetLimit, int, size_t)(0, bytes);
}

static int contexts(void) {
    void *c;
    return CU(cuCtxCreate_v2, void **, unsigned, int)(&c, 0, 0);
}

static int graph(void) {
    struct access access = {{1, 0}, 3};
    struct node_params p = {
        .pool = {.type = 1, .where = {1, 0}}, .access = &access, .n = 1, .bytes = STEP};
    void *g, *node, *ready;
    int r = CU(cuGraphCreate, void **, unsigned)(&g, 0);
    if (!r)
        r = CU(cuGraphAddMemAllocNode, void **, void *, void *, size_t, void *)(&node, g, NULL, 0,
                                                                                &p);
    if (!r)
        r = CU(cuGraphInstantiateWithFlags, void **, void *, unsigned long long)(&ready, g, 0);
    if (!r)
        r = CU(cuGraphLaunch, void *, void *)(ready, NULL);
    return r ? r : CU(cuStreamSynchronize, void *)(NULL);
}

/* Another process's memory, opened here; the other one has ended by the time more is asked for. */
static int imported(void) {
    static ptr seen;
    struct {
        char bytes[64];
    } handle;
    int words[2], go[2], r;
    if (pipe(words) < 0 || pipe(go) < 0)
        return -1;
    pid_t pid = fork();
    if (pid == 0) {
        execl("/proc/self/exe", "paths", "export", (char[16]){(char)words[1], 0}, NULL);
        _exit(3);
    }
    close(words[1]);
    ssize_t n = read(words[0], &handle, sizeof(handle));
    close(words[0]);
    r = n == sizeof(handle)
            ? CU(cuIpcOpenMemHandle_v2, ptr *, typeof(handle), unsigned)(&seen, handle, 1)
            : 2;
    kill(pid, 9);
    waitpid(pid, NULL, 0);
    return r;
}

static int export_one(int fd) {
    struct {
        char bytes[64];
    } handle;
    ptr p;
    open_libraries();
    if (context() || CU(cuMemAlloc_v2, ptr *, size_t)(&p, STEP) ||
        CU(cuIpcGetMemHandle, void *, ptr)(&handle, p))
        return 1;
    if (write(fd, &handle, sizeof(handle)) != sizeof(handle))
        return 1;
    pause();
    return 0;
}

static const struct {
    const char *name;
    int (*step)(void);
} ways[] = {{"linear", linear},   {"pitch", pitched}, {"async", async},       {"pool", from_pool},
            {"vmm", mapped},      {"array", array},   {"mipmap", mipmapped},  {"managed", managed},
            {"globals", globals}, {"stack", stack},   {"contexts", contexts}, {"graph", graph},
            {"import", imported}};

static void try_one(size_t i, uint64_t want) {
    open_libraries();
    uint64_t before = card_used(), most = 0, now = 0;
    int r = context(), steps = 0;
    while (!r && steps < N && now < want) {
        r = ways[i].step();
        steps += !r;
        now = card_used();
        now = now > before ? now - before : 0; /* others may have ended meanwhile */
        most = now > most ? now : most;
    }
    printf("{\"way\": \"%s\", \"steps\": %d, \"error\": %d, \"card_mib\": %.1f}\n", ways[i].name,
           steps, r, (double)most / (double)MIB);
    fflush(stdout);
    _exit(0);
}

int main(int argc, char **argv) {
    if (argc == 3 && !strcmp(argv[1], "export"))
        return export_one(argv[2][0]);
    uint64_t want = argc > 1 ? strtoull(argv[1], NULL, 10) * MIB : 0;
    if (!want) {
        fprintf(stderr, "usage: paths WANT_MIB [WAY...]\n");
        return 2;
    }
    for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
        int wanted = argc == 2;
        for (int k = 2; k < argc; k++)
            wanted |= !strcmp(argv[k], ways[i].name);
        if (!wanted)
            continue;
        fflush(stdout);
        pid_t pid = fork();
        if (pid == 0)
            try_one(i, want);
        int status;
        waitpid(pid, &status, 0);
        if (status)
            printf("{\"way\": \"%s\", \"died\": %d}\n", ways[i].name, status);
    }
    return 0;
}
