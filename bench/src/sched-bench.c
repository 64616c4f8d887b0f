/* Measures the scheduling engine by itself: a full cluster, a deep queue, steady churn. One thread.

       sched-bench NODES TASKS TENANTS EVENTS [SEED [RESERVE [LAYOUT]]]

   The cluster is filled and TASKS more wait. Then, EVENTS times, in virtual time: the task that
   ends next is released, a new one is submitted, and decisions are taken until there are none. What
   is measured is the time from the call that tells the event to the last decision it led to. Prints
   one JSON object. LAYOUT 0: a node's cards are all equally near; 1: by pairs, on two sockets. */
#include "base/cleanup.h"
#include "base/mem.h"
#include "sched/engine.h"
#include "sim/heap.h"
#include "sim/rng.h"
#include "sim/sim.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define GPUS_A_NODE 8
#define KINDS 16 /* of tasks in each tenant: what learns run times together */

struct bench {
    struct vg_eng *eng;
    struct vg_rng rng;
    uint32_t nodes, tenants, reserve; /* reserve UINT32_MAX: the default */
    bool paired;                      /* LAYOUT 1 */
    uint32_t tasks;                   /* submitted so far; task i+1 is the next */
    struct vg_heap ends;
    uint64_t *run_usec; /* owned; by task */
    size_t cap;
    uint64_t now, decisions;
};

static void die(const char *what) {
    fprintf(stderr, "sched-bench: %s\n", what);
    exit(1);
}

static void lay_out(uint8_t far[static GPUS_A_NODE][VG_NODE_GPUS_MAX]) {
    for (uint32_t i = 0; i < GPUS_A_NODE; i++)
        for (uint32_t k = 0; k < GPUS_A_NODE; k++)
            far[i][k] = i / 2 == k / 2 ? 10 : i / 4 == k / 4 ? 20 : 30;
}

static void set_up(struct bench *b) {
    uint8_t far[GPUS_A_NODE][VG_NODE_GPUS_MAX];
    lay_out(far);
    char pool[] = "pool=a";
    char *labels[] = {pool};
    struct vg_eng_conf conf = vg_eng_conf_default();
    conf.preempt = false;
    if (b->reserve != UINT32_MAX)
        conf.reserve = b->reserve;
    struct vg_eng_pool p = {.name = "a", .id = 1, .labels = labels, .n_labels = 1};
    if (vg_eng_set_conf(b->eng, &conf) < 0 || vg_eng_set_pool(b->eng, &p) < 0)
        die("cannot set up the engine");
    for (uint32_t i = 1; i <= b->tenants; i++) {
        struct vg_eng_tenant t = {.id = i, .name = "t", .weight = 1 + i % 3};
        t.limit = VG_ENG_NO_LIMIT;
        t.quota.gpu_milli = 1000ull * b->nodes * GPUS_A_NODE / b->tenants / 2;
        if (vg_eng_set_tenant(b->eng, &t) < 0)
            die("cannot add a tenant");
    }
    for (uint32_t i = 1; i <= b->nodes; i++) {
        struct vg_eng_gpu gpu[GPUS_A_NODE];
        char name[16], rack[16];
        snprintf(name, sizeof(name), "n%u", i);
        snprintf(rack, sizeof(rack), "r%u", i / 32);
        for (uint32_t g = 0; g < GPUS_A_NODE; g++)
            gpu[g] = (struct vg_eng_gpu){.index = g, .mem_bytes = 80ull << 30, .island = 1};
        struct vg_eng_node n = {
            .id = i,
            .name = name,
            .rack = rack,
            .model = "H100",
            .gpu = gpu,
            .n_gpus = GPUS_A_NODE,
            .far = b->paired ? far : NULL,
            .total = {.gpus = GPUS_A_NODE, .cpu_milli = 128000, .mem_bytes = 1ull << 40},
            .labels = labels,
            .n_labels = 1,
            .usable = true};
        if (vg_eng_set_node(b->eng, &n) < 0)
            die("cannot add a node");
    }
}

static void room_for(struct bench *b, size_t n) {
    if (n <= b->cap)
        return;
    size_t cap = VG_MAX(2 * b->cap, n);
    b->run_usec = vg_realloc(b->run_usec, cap * sizeof(*b->run_usec));
    if (!b->run_usec)
        die("no memory");
    b->cap = cap;
}

/* Seven in ten ask for one GPU, the rest for 2, 4 or 8, one in fifty is a gang of whole nodes. */
static void submit(struct bench *b) {
    static const uint32_t sizes[] = {1, 1, 1, 1, 1, 1, 1, 2, 4, 8};
    uint64_t ids[4];
    struct vg_err err = VG_ERR_INIT;
    uint32_t first = b->tasks + 1, kind = (uint32_t)vg_rng_below(&b->rng, KINDS);
    bool gang = vg_rng_below(&b->rng, 50) == 0;
    uint32_t n = gang ? 2 + 2 * (uint32_t)vg_rng_below(&b->rng, 2) : 1;
    uint32_t tenant = 1 + (uint32_t)vg_rng_below(&b->rng, b->tenants);
    uint32_t gpus = gang ? 8 : sizes[vg_rng_below(&b->rng, VG_COUNT(sizes))];
    struct vg_eng_req r = {
        .task = first,
        .tenant = tenant,
        .pool = {1},
        .n_pools = 1,
        .res = {.gpus = gpus, .cpu_milli = gpus * 8000, .mem_bytes = gpus * (64ull << 30)},
        .priority = (uint32_t)vg_rng_below(&b->rng, 3),
        .order = first,
        .kin = (uint64_t)tenant * KINDS + kind,
        .gang = gang ? first : 0};
    room_for(b, first + n);
    /* 1 min to a day, by kind, and every run half to one and a half of its kind's */
    double run_s = (60 + 384 * kind * kind) * (0.5 + vg_rng_unit(&b->rng));
    for (uint32_t i = 0; i < n; i++) {
        ids[i] = first + i;
        b->run_usec[first + i] = (uint64_t)(run_s * 1e6);
    }
    b->tasks += n;
    int e = gang ? vg_eng_submit_gang(b->eng, &r, ids, n, &err) : vg_eng_submit(b->eng, &r, &err);
    if (e < 0)
        die(err.msg);
}

static void decide(struct bench *b) {
    struct vg_eng_decision d;
    while (vg_eng_next(b->eng, &d) > 0) {
        uint32_t task = (uint32_t)d.task;
        b->decisions++;
        if (d.what == VG_ENG_START &&
            vg_heap_put(&b->ends, b->now + b->run_usec[task], task, 0) < 0)
            die("no memory");
    }
}

static int by_size(const void *x, const void *y) {
    float a = *(const float *)x, b = *(const float *)y;
    return (a > b) - (a < b);
}

/* Of this thread's CPU: what others do on the machine does not count. */
static double micros(void) {
    struct timespec t = {0};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

/* A task ends and another comes. Microseconds of both go to `took`; returns how many of the two
   happened. */
static size_t churn(struct bench *b, uint64_t queued, float *took) {
    struct vg_event e = vg_heap_take(&b->ends);
    b->now = VG_MAX(e.at_usec, b->now);
    double t0 = micros();
    vg_eng_now(b->eng, b->now);
    vg_eng_release(b->eng, e.job, VG_ENG_ENDED);
    decide(b);
    double t1 = micros();
    took[0] = (float)(t1 - t0);
    if (vg_eng_queued(b->eng) >= queued)
        return 1;
    submit(b);
    decide(b);
    took[1] = (float)(micros() - t1);
    return 2;
}

/* By itself, so that profilers find it. */
__attribute__((noinline)) static size_t measure(struct bench *b, uint64_t queued, uint64_t events,
                                                float *took) {
    size_t n = 0;
    for (uint64_t i = 0; i < events && b->ends.n; i++)
        n += churn(b, queued, took + n);
    return n;
}

static void report(const struct bench *b, uint64_t queued, float *took, size_t n, double fill_s) {
    double busy = 0;
    for (size_t i = 0; i < n; i++)
        busy += (double)took[i];
    qsort(took, n, sizeof(*took), by_size);
    printf(
        "{\"bench\": \"sched\", \"nodes\": %u, \"gpus\": %u, \"tenants\": %u, \"queued\": %" PRIu64
        ", \"events\": %zu, \"decisions\": %" PRIu64 ", \"decisions_per_s\": %.0f, "
        "\"events_per_s\": %.0f, \"event_us_mean\": %.2f, \"event_us_p50\": %.2f, "
        "\"event_us_p99\": %.2f, \"event_us_p999\": %.2f, \"event_us_max\": %.1f, "
        "\"fill_s\": %.3f, \"rss_mib\": %.1f}\n",
        b->nodes, b->nodes * GPUS_A_NODE, b->tenants, queued, n, b->decisions,
        (double)b->decisions / busy * 1e6, (double)n / busy * 1e6, busy / (double)n,
        (double)took[n / 2], (double)took[n * 99 / 100], (double)took[n * 999 / 1000],
        (double)took[n - 1], fill_s, (double)vg_sim_rss_bytes() / (1 << 20));
}

int main(int argc, char **argv) {
    uint64_t v[7] = {0, 0, 0, 0, 1, UINT32_MAX, 0};
    for (int i = 1; i < argc && i <= 7; i++)
        v[i - 1] = strtoull(argv[i], NULL, 10);
    if (argc < 5 || !v[0] || !v[1] || !v[2] || !v[3] || v[1] > 10000000 || v[3] > 100000000) {
        fprintf(stderr, "usage: sched-bench NODES TASKS TENANTS EVENTS [SEED [RESERVE "
                        "[LAYOUT]]]\n");
        return 2;
    }
    vg_mem_huge_heap(256u << 20); /* as virgad does */
    struct bench b = {.eng = vg_eng_new(),
                      .rng = vg_rng_seeded(v[4]),
                      .nodes = (uint32_t)v[0],
                      .tenants = (uint32_t)v[2],
                      .reserve = (uint32_t)v[5],
                      .paired = v[6] == 1};
    float *took = vg_alloc((2 * v[3] + 2) * sizeof(*took));
    if (!b.eng || !took)
        die("no memory");
    set_up(&b);
    double begin = micros();
    vg_eng_now(b.eng, 1);
    for (b.now = 1; vg_eng_queued(b.eng) < v[1];) {
        submit(&b);
        decide(&b);
    }
    double fill_s = (micros() - begin) / 1e6;
    for (size_t warm = 2 * b.ends.n; warm && b.ends.n; warm--)
        churn(&b, v[1], took);
    b.decisions = 0;
    size_t n = measure(&b, v[1], v[3], took);
    report(&b, v[1], took, n, fill_s);
    vg_eng_free(b.eng);
    vg_heap_done(&b.ends);
    free(took);
    free(b.run_usec);
    return 0;
}
