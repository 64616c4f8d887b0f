/* Random requests by every way to memory of a simulated card, and random frees of what they gave.

       sim-storm SEED STEPS

   So many steps, and on until it was refused often enough and holds enough. Says what it is told
   of the memory in use, waits for a byte, frees everything, says it again, and waits for the end of
   its input. Whatever a call answers but success and out of memory ends it with a line. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define HELD 256
#define HELD_MIN 10
#define REFUSED_MIN 20
#define MIB (UINT64_C(1) << 20)

enum way { LINEAR, ASYNC, MAPPED, ARRAY, MODULE, GRAPH, MANAGED, CONTEXT, WAYS };

struct held {
    enum way way;
    uint64_t what, bytes;
};

struct array3d {
    size_t w, h, d;
    int format;
    unsigned channels, flags;
};

static void *cuda, *own;
static unsigned seed;
static struct held held[HELD];
static unsigned n_held;

static void *symbol(const char *name) {
    void *p = dlsym(cuda, name);
    if (!p) {
        printf("{\"missing\": \"%s\"}\n", name);
        exit(2);
    }
    return p;
}

#define CU(name, ...) ((int (*)(__VA_ARGS__))symbol(#name))

static unsigned any(unsigned below) {
    return (unsigned)rand_r(&seed) % below;
}

/* 0: it has it; 2: there is no memory. */
static int check(int r, const char *what) {
    if (r == 0 || r == 2)
        return r;
    printf("{\"failed\": \"%s\", \"error\": %d}\n", what, r);
    exit(1);
}

static int take_mapped(struct held *h) {
    char prop[32] = {0};
    struct {
        int type, id, flags;
    } access = {1, 0, 3};
    uint64_t handle = 0;
    int r = check(CU(cuMemCreate, uint64_t *, size_t, void *, uint64_t)(&handle, h->bytes, prop, 0),
                  "create");
    if (r)
        return r;
    check(CU(cuMemAddressReserve, uint64_t *, size_t, size_t, uint64_t,
             uint64_t)(&h->what, h->bytes, 0, 0, 0),
          "reserve");
    check(
        CU(cuMemMap, uint64_t, size_t, size_t, uint64_t, uint64_t)(h->what, h->bytes, 0, handle, 0),
        "map");
    check(CU(cuMemSetAccess, uint64_t, size_t, void *, size_t)(h->what, h->bytes, &access, 1),
          "access");
    return check(CU(cuMemRelease, uint64_t)(handle), "release");
}

static int take_graph(struct held *h) {
    struct {
        char pool[88];
        void *access;
        size_t n, bytes;
        uint64_t at;
    } p = {.bytes = h->bytes};
    void *g, *node;
    check(CU(cuGraphCreate, void **, unsigned)(&g, 0), "graph");
    check(
        CU(cuGraphAddMemAllocNode, void **, void *, void *, size_t, void *)(&node, g, NULL, 0, &p),
        "node");
    check(CU(cuGraphInstantiateWithFlags, uint64_t *, void *, unsigned long long)(&h->what, g, 0),
          "instance");
    check(CU(cuGraphDestroy, void *)(g), "graph");
    int r = check(CU(cuGraphLaunch, uint64_t, void *)(h->what, NULL), "launch");
    if (r)
        CU(cuGraphExecDestroy, uint64_t)(h->what);
    return r;
}

static int take_module(struct held *h) {
    char text[128];
    snprintf(text, sizeof(text), ".version 7.0\n.visible .global .align 4 .b8 big[%llu];\n",
             (unsigned long long)h->bytes);
    return check(CU(cuModuleLoadData, uint64_t *, const void *)(&h->what, text), "module");
}

static int take_context(struct held *h) {
    int r = check(CU(cuCtxCreate_v2, uint64_t *, unsigned, int)(&h->what, 0, 0), "context");
    CU(cuCtxSetCurrent, void *)(own);
    return r;
}

static int take(struct held *h) {
    struct array3d d = {1024, 1024 * (1 + any(64)), 0, 0x20, 1, 0};
    switch (h->way) {
    case LINEAR:
        h->bytes = any(2) ? 1 + any(1000000) : h->bytes;
        return check(CU(cuMemAlloc_v2, uint64_t *, size_t)(&h->what, h->bytes), "linear");
    case ASYNC:
        return check(CU(cuMemAllocAsync, uint64_t *, size_t, void *)(&h->what, h->bytes, NULL),
                     "async");
    case MAPPED:
        return take_mapped(h);
    case ARRAY:
        return check(CU(cuArray3DCreate_v2, uint64_t *, void *)(&h->what, &d), "array");
    case MODULE:
        return take_module(h);
    case GRAPH:
        return take_graph(h);
    case MANAGED:
        return check(CU(cuMemAllocManaged, uint64_t *, size_t, unsigned)(&h->what, h->bytes, 1),
                     "managed");
    default:
        return take_context(h);
    }
}

static void give(unsigned i) {
    struct held h = held[i];
    held[i] = held[--n_held];
    switch (h.way) {
    case LINEAR:
    case MANAGED:
        check(CU(cuMemFree_v2, uint64_t)(h.what), "free");
        break;
    case ASYNC:
        check(CU(cuMemFreeAsync, uint64_t, void *)(h.what, NULL), "free");
        break;
    case MAPPED:
        check(CU(cuMemUnmap, uint64_t, size_t)(h.what, h.bytes), "unmap");
        break;
    case ARRAY:
        check(CU(cuArrayDestroy, uint64_t)(h.what), "array");
        break;
    case MODULE:
        check(CU(cuModuleUnload, uint64_t)(h.what), "module");
        break;
    case GRAPH:
        check(CU(cuGraphExecDestroy, uint64_t)(h.what), "graph");
        break;
    default:
        check(CU(cuCtxDestroy_v2, uint64_t)(h.what), "context");
        CU(cuCtxSetCurrent, void *)(own);
    }
}

static void tell(unsigned refused) {
    size_t left = 0, total = 0;
    check(CU(cuMemGetInfo_v2, size_t *, size_t *)(&left, &total), "info");
    printf("{\"held\": %u, \"refused\": %u, \"used\": %zu}\n", n_held, refused, total - left);
    fflush(stdout);
}

int main(int argc, char **argv) {
    char c;
    unsigned refused = 0;
    cuda = dlopen("libcuda.so.1", RTLD_NOW);
    if (!cuda || argc != 3) {
        fprintf(stderr, "usage: sim-storm SEED STEPS (%s)\n", cuda ? "" : dlerror());
        return 2;
    }
    seed = (unsigned)strtoul(argv[1], NULL, 10);
    check(CU(cuInit, unsigned)(0), "init");
    if (check(CU(cuCtxCreate_v2, void **, unsigned, int)(&own, 0, 0), "context")) {
        puts("{\"held\": 0, \"refused\": 1, \"used\": null}"); /* no room for it beside others */
        return 0;
    }
    unsigned long n = strtoul(argv[2], NULL, 10);
    for (unsigned long i = 0; i < n || n_held < HELD_MIN || refused < REFUSED_MIN; i++) {
        struct held h = {.way = any(WAYS), .bytes = (1 + any(64)) * 2 * MIB};
        if (n_held && (any(5) < 2 || n_held == HELD))
            give(any(n_held));
        else if (take(&h))
            refused++;
        else
            held[n_held++] = h;
    }
    tell(refused);
    (void)!read(0, &c, 1);
    while (n_held)
        give(n_held - 1);
    check(CU(cuDeviceGraphMemTrim, int)(0), "trim");
    tell(refused);
    while (read(0, &c, 1) > 0) {
    }
    return 0;
}
