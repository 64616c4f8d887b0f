/* Work for a card, counted: how many kernels of about 200 us end in each second. For a real card.

       load SECONDS [graph]            one JSON object: kernels in each second of the wall clock
       load SECONDS small [ROUNDS]     a kernel alone now and then: its latency in microseconds

   `graph`: eight kernels a graph. The first and the last second are not whole. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const char code[] =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".visible .entry spin(.param .u32 n, .param .u64 out) {\n"
    ".reg .u32 %r<3>; .reg .f32 %f<3>; .reg .u64 %d; .reg .pred %p;\n"
    "ld.param.u32 %r1, [n]; ld.param.u64 %d, [out]; mov.u32 %r2, 0; mov.f32 %f1, 0f3F800000;\n"
    "L: fma.rn.f32 %f1, %f1, %f1, %f1; add.u32 %r2, %r2, 1; setp.lt.u32 %p, %r2, %r1; @%p bra L;\n"
    "setp.eq.f32 %p, %f1, 0f12345678; @%p st.global.f32 [%d], %f1; ret; }\n";

static void *cuda;

#define CU(name, ...) ((int (*)(__VA_ARGS__))symbol(#name))

static void *symbol(const char *name) {
    void *p = dlsym(cuda, name);
    if (!p) {
        fprintf(stderr, "load: %s is missing\n", name);
        exit(2);
    }
    return p;
}

static void must(int r, const char *what) {
    if (r) {
        fprintf(stderr, "load: %s: CUDA error %d\n", what, r);
        exit(1);
    }
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void *function, *stream, *ready;
static unsigned rounds = 20000;
static uint64_t out;

static void launch(void) {
    void *args[] = {&rounds, &out};
    must(CU(cuLaunchKernel, void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
            unsigned, void *, void **,
            void **)(function, 1056, 1, 1, 256, 1, 1, 0, stream, args, NULL),
         "launch");
}

static void prepare(int graph) {
    void *context, *module, *g;
    must(CU(cuInit, unsigned)(0), "init");
    must(CU(cuDevicePrimaryCtxRetain, void **, int)(&context, 0), "context");
    must(CU(cuCtxSetCurrent, void *)(context), "context");
    must(CU(cuModuleLoadData, void **, const void *)(&module, code), "module");
    must(CU(cuModuleGetFunction, void **, void *, const char *)(&function, module, "spin"),
         "function");
    must(CU(cuMemAlloc_v2, uint64_t *, size_t)(&out, 4), "memory");
    must(CU(cuStreamCreate, void **, unsigned)(&stream, 1), "stream");
    if (!graph)
        return;
    must(CU(cuStreamBeginCapture_v2, void *, int)(stream, 0), "capture");
    for (int i = 0; i < 8; i++)
        launch();
    must(CU(cuStreamEndCapture, void *, void **)(stream, &g), "capture");
    must(CU(cuGraphInstantiateWithFlags, void **, void *, unsigned long long)(&ready, g, 0),
         "graph");
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void alone(double seconds) {
    static double took[100000];
    int n = 0;
    for (double begin = now(); now() - begin < seconds && n < 100000; n++) {
        double t = now();
        launch();
        must(CU(cuStreamSynchronize, void *)(stream), "wait");
        took[n] = (now() - t) * 1e6;
        usleep(2000);
    }
    qsort(took, (size_t)n, sizeof(took[0]), by_size);
    printf("{\"requests\": %d, \"p50_us\": %.0f, \"p99_us\": %.0f, \"max_us\": %.0f}\n", n,
           took[n / 2], took[n * 99 / 100], took[n - 1]);
}

int main(int argc, char **argv) {
    int seconds = argc > 1 ? (int)strtol(argv[1], NULL, 10) : 0,
        graph = argc > 2 && !strcmp(argv[2], "graph");
    cuda = dlopen("libcuda.so.1", RTLD_NOW);
    if (!cuda || seconds < 1 || seconds > 600)
        return 2;
    prepare(graph);
    if (argc > 2 && !strcmp(argv[2], "small")) {
        rounds = argc > 3 ? (unsigned)strtoul(argv[3], NULL, 10) : rounds;
        alone(seconds);
        return 0;
    }
    void *event[8];
    for (int i = 0; i < 8; i++)
        must(CU(cuEventCreate, void **, unsigned)(&event[i], 2), "event");
    static long ended[602];
    long from = time(NULL);
    double begin = now();
    for (long i = 0; now() - begin < seconds; i++) { /* eight in flight */
        if (i >= 8)
            must(CU(cuEventSynchronize, void *)(event[i % 8]), "wait");
        long second = time(NULL) - from;
        if (i >= 8 && second >= 0 && second <= seconds)
            ended[second] += graph ? 8 : 1;
        if (graph)
            must(CU(cuGraphLaunch, void *, void *)(ready, stream), "launch");
        else
            launch();
        must(CU(cuEventRecord, void *, void *)(event[i % 8], stream), "event");
    }
    printf("{\"from\": %ld, \"done\": [", from);
    for (int i = 0; i <= seconds; i++)
        printf("%s%ld", i ? ", " : "", ended[i]);
    printf("]}\n");
    return 0;
}
