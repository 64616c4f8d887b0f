/* The simulated libcuda does with memory what NVIDIA's was seen to do on an H200. */
#include "cuda/driver.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB (UINT64_C(1) << 20)
#define CU(name, ...) ((int (*)(__VA_ARGS__))found(#name))

static char folder[] = "/tmp/vg-sim-XXXXXX";
static pid_t driver;
static void *cuda;
static struct sim other; /* asks from outside */
static uint64_t begun;   /* with a context */

static void *found(const char *name) {
    void *p = dlsym(cuda, name);
    cr_assert(ne(ptr, p, NULL), "%s", name);
    return p;
}

/* Bytes of the card beyond those of the first context. */
static uint64_t used(void) {
    uint64_t total, now;
    cr_assert(eq(int, sim_info(&other, 0, &total, &now), 0));
    return now - begun;
}

static void begin(void) {
    void *context;
    int words[2];
    char ready[8];
    cr_assert(ne(ptr, mkdtemp(folder), NULL));
    cr_assert(eq(int, pipe(words), 0));
    driver = fork();
    if (driver == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* a test that fails does not come to its end */
        dup2(words[1], 1);
        execl(FAKE_RMD, FAKE_RMD, folder, "1", "81920", NULL);
        _exit(127);
    }
    close(words[1]);
    cr_assert(eq(int, (int)read(words[0], ready, sizeof(ready)), 6));
    setenv("SIM_DEV", folder, 1);
    cuda = dlopen(SIM_CUDA, RTLD_NOW);
    cr_assert(ne(ptr, cuda, NULL), "%s", dlerror());
    cr_assert(eq(int, sim_open(&other), 0));
    cr_assert(eq(int, CU(cuInit, unsigned)(0), 0));
    cr_assert(eq(int, CU(cuDevicePrimaryCtxRetain, void **, int)(&context, 0), 0));
    cr_assert(eq(int, CU(cuCtxSetCurrent, void *)(context), 0));
    begun = used();
    cr_assert(ge(u64, begun, 64 * MIB));
}

static void end(void) {
    static const char *const names[] = {"nvidiactl", "nvidia0", "nvidia-uvm", "admin"};
    char path[64];
    kill(driver, SIGKILL);
    waitpid(driver, NULL, 0);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        snprintf(path, sizeof(path), "%s/%s", folder, names[i]);
        unlink(path);
    }
    rmdir(folder);
}

TestSuite(sim, .init = begin, .fini = end, .timeout = 60);

Test(sim, small_requests_share_a_block_and_large_ones_are_rounded_up) {
    uint64_t a, b, c;
    CU(cuMemAlloc_v2, uint64_t *, size_t)(&a, 1);
    cr_expect(eq(u64, used(), 2 * MIB));
    CU(cuMemAlloc_v2, uint64_t *, size_t)(&b, MIB);
    cr_expect(eq(u64, used(), 2 * MIB), "in the same block");
    CU(cuMemAlloc_v2, uint64_t *, size_t)(&c, 3 * MIB);
    cr_expect(eq(u64, used(), 6 * MIB));
    CU(cuMemFree_v2, uint64_t)(a);
    cr_expect(eq(u64, used(), 6 * MIB), "the other is still in it");
    CU(cuMemFree_v2, uint64_t)(b);
    CU(cuMemFree_v2, uint64_t)(c);
    cr_expect(eq(u64, used(), 0));
    cr_expect(ne(int, CU(cuMemFree_v2, uint64_t)(c), 0));
}

Test(sim, a_pitch_is_memory) {
    uint64_t p;
    size_t pitch;
    CU(cuMemAllocPitch_v2, uint64_t *, size_t *, size_t, size_t, unsigned)(&p, &pitch, 33, MIB, 4);
    cr_expect(eq(sz, pitch, 512));
    cr_expect(eq(u64, used(), 512 * MIB));
}

Test(sim, what_is_mapped_lives_without_its_handle) {
    char prop[32] = {0};
    uint64_t handle, at;
    CU(cuMemCreate, uint64_t *, size_t, void *, uint64_t)(&handle, 64 * MIB, prop, 0);
    CU(cuMemAddressReserve, uint64_t *, size_t, size_t, uint64_t, uint64_t)(&at, 64 * MIB, 0, 0, 0);
    cr_expect(eq(u64, used(), 64 * MIB), "at once, and addresses are none");
    CU(cuMemMap, uint64_t, size_t, size_t, uint64_t, uint64_t)(at, 64 * MIB, 0, handle, 0);
    CU(cuMemRelease, uint64_t)(handle);
    cr_expect(eq(u64, used(), 64 * MIB));
    CU(cuMemUnmap, uint64_t, size_t)(at, 64 * MIB);
    cr_expect(eq(u64, used(), 0));
}

Test(sim, a_pool_keeps_what_it_was_told_to_keep) {
    char props[128] = {0};
    void *pool;
    uint64_t p, q, keep = UINT64_MAX;
    CU(cuMemAllocAsync, uint64_t *, size_t, void *)(&p, 64 * MIB, NULL);
    CU(cuMemFreeAsync, uint64_t, void *)(p, NULL);
    cr_expect(eq(u64, used(), 0));
    CU(cuMemPoolCreate, void **, void *)(&pool, props);
    CU(cuMemPoolSetAttribute, void *, int, uint64_t *)(pool, 4, &keep);
    CU(cuMemAllocFromPoolAsync, uint64_t *, size_t, void *, void *)(&p, 64 * MIB, pool, NULL);
    CU(cuMemFreeAsync, uint64_t, void *)(p, NULL);
    cr_expect(eq(u64, used(), 64 * MIB));
    CU(cuMemAllocFromPoolAsync, uint64_t *, size_t, void *, void *)(&q, 32 * MIB, pool, NULL);
    cr_expect(eq(u64, used(), 64 * MIB), "from what it keeps");
    CU(cuMemFreeAsync, uint64_t, void *)(q, NULL);
    CU(cuMemPoolTrimTo, void *, size_t)(pool, 0);
    cr_expect(eq(u64, used(), 0));
    CU(cuMemPoolDestroy, void *)(pool);
}

Test(sim, a_graphs_memory_comes_with_its_launch_and_stays_until_it_is_trimmed) {
    struct {
        char pool[88];
        void *access;
        size_t n, bytes;
        uint64_t at;
    } params = {.bytes = 64 * MIB};
    void *graph, *node, *ready;
    CU(cuGraphCreate, void **, unsigned)(&graph, 0);
    CU(cuGraphAddMemAllocNode, void **, void *, void *, size_t, void *)
    (&node, graph, NULL, 0, &params);
    CU(cuGraphInstantiateWithFlags, void **, void *, unsigned long long)(&ready, graph, 0);
    cr_expect(eq(u64, used(), 0));
    CU(cuGraphLaunch, void *, void *)(ready, NULL);
    CU(cuGraphLaunch, void *, void *)(ready, NULL);
    cr_expect(eq(u64, used(), 64 * MIB), "once");
    CU(cuGraphExecDestroy, void *)(ready);
    cr_expect(eq(u64, used(), 64 * MIB));
    CU(cuGraphDestroy, void *)(graph);
    CU(cuDeviceGraphMemTrim, int)(0);
    cr_expect(eq(u64, used(), 0));
}

Test(sim, code_stacks_arrays_and_contexts_take_memory) {
    struct {
        size_t w, h, d;
        int format;
        unsigned channels, flags;
    } array = {1024, 1024, 0, 0x20, 1, 0};
    void *a, *m, *c;
    CU(cuArray3DCreate_v2, void **, void *)(&a, &array);
    cr_expect(eq(u64, used(), 4 * MIB));
    CU(cuArrayDestroy, void *)(a);
    CU(cuMipmappedArrayCreate, void **, void *, unsigned)(&a, &array, 11);
    cr_expect(eq(u64, used(), 6 * MIB), "four thirds of it, in blocks");
    CU(cuMipmappedArrayDestroy, void *)(a);
    CU(cuModuleLoadData, void **, const void *)(&m, ".version 7.0\n.global .b8 big[67108864];\n");
    cr_expect(eq(u64, used(), 64 * MIB));
    CU(cuModuleUnload, void *)(m);
    CU(cuCtxSetLimit, int, size_t)(0, 32768);
    cr_expect(eq(u64, used(), 8448 * MIB), "a stack for each thread that the card can run");
    CU(cuCtxSetLimit, int, size_t)(0, 1024);
    uint64_t before = used();
    CU(cuCtxCreate_v2, void **, unsigned, int)(&c, 0, 0);
    cr_expect(eq(u64, used(), before + begun), "as much as the first");
    CU(cuCtxDestroy_v2, void *)(c);
    cr_expect(eq(u64, used(), before));
}

Test(sim, what_is_not_implemented_ends_the_program) {
    int status;
    pid_t pid = fork();
    if (pid == 0) {
        CU(cuTexRefCreate, void **)(NULL);
        _exit(0);
    }
    cr_assert(eq(int, waitpid(pid, &status, 0), pid));
    cr_expect(eq(int, WIFSIGNALED(status) ? WTERMSIG(status) : 0, SIGABRT));
}
