/* What a program is told is its share; what the library has no word on is the driver's. */
#include "world.h"

#include <string.h>

#define LIMIT (4 * GIB)

static struct world w; /* a tenant has the parent's mapping of the page */

static void in_world(int (*tenant)(void *), const struct world_conf *conf) {
    w = world_new(conf);
    int end = world_run(tenant, NULL);
    cr_expect_eq(end, 0, "ended with %d: %s", end, world_said());
}

static void fail_once(const char *call) {
    snprintf(w.card->fault_name, sizeof w.card->fault_name, "%s", call);
    atomic_store(&w.card->fault_code, 719);
}

static int memory(void *user) {
    void *cuda = shim_cuda();
    size_t left = 0, total = 0;
    unsigned small_left = 0, small_total = 0;
    (void)user;
    MUST(CALL(cuda, cuMemGetInfo_v2, &left, &total) == CUDA_NOT_INITIALIZED);
    MUST(CALL(cuda, cuInit, 0) == CUDA_OK);
    MUST(CALL(cuda, cuMemGetInfo_v2, &left, &total) == 201); /* no context: the driver's word */
    MUST(begin(cuda) == CUDA_OK);
    MUST(CALL(cuda, cuMemGetInfo_v2, &left, &total) == CUDA_OK && total == LIMIT && left == LIMIT);
    vg_share_page_used(w.page, 0, GIB + 4096);
    MUST(CALL(cuda, cuMemGetInfo_v2, &left, &total) == CUDA_OK && total == LIMIT &&
         left == 3 * GIB - 4096);
    MUST(CALL(cuda, cuMemGetInfo, &small_left, &small_total) == CUDA_OK &&
         small_total == UINT32_MAX && small_left == 3 * GIB - 4096);
    MUST(CALL(cuda, cuDeviceTotalMem_v2, &total, 0) == CUDA_OK && total == LIMIT);
    MUST(CALL(cuda, cuDeviceTotalMem, &small_total, 0) == CUDA_OK && small_total == UINT32_MAX);
    /* A neighbour has nearly all: there is less than the share would allow. */
    atomic_store(&w.card->used, w.card->capacity - 100 * MIB);
    MUST(CALL(cuda, cuMemGetInfo_v2, &left, &total) == CUDA_OK && left == 100 * MIB);
    atomic_store(&w.card->used, 0);
    /* The limit is lowered under what is held. */
    vg_share_page_limit(w.page, 0, GIB);
    MUST(CALL(cuda, cuMemGetInfo_v2, &left, &total) == CUDA_OK && total == GIB && left == 0);
    return 0;
}

Test(shown, the_share_in_place_of_the_card) {
    in_world(memory, &(struct world_conf){.limit = LIMIT});
}

static int mistakes(void *user) {
    void *cuda = shim_cuda();
    size_t left = 0, total = 0;
    unsigned small = 0;
    (void)user;
    MUST(begin(cuda) == CUDA_OK);
    MUST(CALL(cuda, cuMemGetInfo_v2, NULL, &total) == CUDA_INVALID_VALUE);
    MUST(CALL(cuda, cuMemGetInfo_v2, &left, NULL) == CUDA_INVALID_VALUE);
    MUST(CALL(cuda, cuMemGetInfo, NULL, &small) == CUDA_INVALID_VALUE);
    MUST(CALL(cuda, cuDeviceTotalMem_v2, NULL, 0) == CUDA_INVALID_VALUE);
    MUST(CALL(cuda, cuDeviceTotalMem, NULL, 0) == CUDA_INVALID_VALUE);
    MUST(CALL(cuda, cuDeviceTotalMem_v2, &total, 7) == 101);
    fail_once("cuMemGetInfo_v2");
    MUST(CALL(cuda, cuMemGetInfo_v2, &left, &total) == 719);
    fail_once("cuDeviceTotalMem_v2");
    MUST(CALL(cuda, cuDeviceTotalMem_v2, &total, 0) == 719);
    return 0;
}

Test(shown, the_drivers_own_errors) {
    in_world(mistakes, &(struct world_conf){.limit = LIMIT});
}

static int failing_start(void *user) {
    (void)user;
    fail_once("cuInit");
    MUST(CALL(shim_cuda(), cuInit, 0) == 719);
    MUST(CALL(shim_cuda(), cuInit, 0) == CUDA_OK);
    return 0;
}

Test(shown, a_start_that_fails_in_the_driver) {
    in_world(failing_start, &(struct world_conf){.limit = LIMIT});
}

/* What is larger than the share is out of memory, and the driver is not asked; of the rest it has
 * the word, in other words. */
static int managed(void *user) {
    void *cuda = shim_cuda();
    CUdeviceptr p = 0;
    (void)user;
    MUST(CALL(cuda, cuInit, 0) == CUDA_OK);
    MUST(CALL(cuda, cuMemAllocManaged, &p, (size_t)(8 * GIB), 1u) == 201);
    MUST(begin(cuda) == CUDA_OK);
    vg_share_page_used(w.page, 0, 3 * GIB);
    unsigned calls = atomic_load(&w.card->managed_calls);
    MUST(CALL(cuda, cuMemAllocManaged, &p, (size_t)(LIMIT + 1), 1u) == CUDA_OUT_OF_MEMORY);
    MUST(p == 0 && atomic_load(&w.card->managed_calls) == calls);
    vg_share_page_used(w.page, 0, LIMIT); /* some of which may be free again by now */
    MUST(CALL(cuda, cuMemAllocManaged, &p, (size_t)GIB, 1u) == CUDA_OK && p);
    MUST(CALL(cuda, cuMemAllocManaged, &p, (size_t)0, 1u) == CUDA_INVALID_VALUE);
    MUST(atomic_load(&w.card->managed_calls) == calls + 2);
    atomic_store(&w.card->used, w.card->capacity); /* the page has not heard of it */
    MUST(CALL(cuda, cuMemAllocManaged, &p, (size_t)1, 1u) == CUDA_OUT_OF_MEMORY);
    MUST(atomic_load(&w.card->managed_calls) == calls + 3);
    return 0;
}

Test(shown, managed_memory_that_cannot_fit_as_out_of_memory) {
    in_world(managed, &(struct world_conf){.limit = LIMIT});
}

/* The limit is held below: an allocation goes to the driver, whatever its size. */
static int allocation(void *user) {
    void *cuda = shim_cuda();
    CUdeviceptr p;
    (void)user;
    MUST(begin(cuda) == CUDA_OK);
    MUST(CALL(cuda, cuMemAlloc_v2, &p, (size_t)(8 * GIB)) == CUDA_OK);
    MUST(atomic_load(&w.card->used) == 8 * GIB);
    MUST(CALL(cuda, cuMemFree_v2, p) == CUDA_OK && CALL(cuda, cuMemFree_v2, p) != CUDA_OK);
    return 0;
}

Test(shown, nothing_between_an_allocation_and_the_driver) {
    in_world(allocation, &(struct world_conf){.limit = LIMIT});
}

static int shares(void *user) {
    void *cuda = shim_cuda();
    (void)user;
    MUST(CALL(cuda, cuMemExportToShareableHandle, NULL, (uint64_t)1, 1, 0ull) ==
         CUDA_NOT_SUPPORTED);
    MUST(CALL(cuda, cuImportExternalMemory, NULL, NULL) == CUDA_NOT_SUPPORTED);
    MUST(CALL(cuda, cuIpcGetMemHandle, NULL, (uint64_t)1) == CUDA_NOT_SUPPORTED);
    MUST(CALL(cuda, cuIpcGetMemHandle, NULL, (uint64_t)1) == CUDA_NOT_SUPPORTED);
    MUST(CALL(cuda, cuGraphicsGLRegisterBuffer, NULL, 1u, 0u) == CUDA_NOT_SUPPORTED);
    return 0;
}

static unsigned lines(const char *part) {
    unsigned n = 0;
    for (const char *at = world_said(); (at = strstr(at, part)); at++)
        n++;
    return n;
}

Test(shown, why_a_call_is_refused_once) {
    in_world(shares, &(struct world_conf){.limit = LIMIT});
    cr_expect_eq(lines("virga: cuIpcGetMemHandle is refused: a task with a share of a GPU cannot "
                       "share the GPU's memory between processes; ask for a whole GPU\n"),
                 1, "%s", world_said());
    cr_expect_eq(lines("virga: cuGraphicsGLRegisterBuffer is refused: a task with a share of a GPU "
                       "cannot use graphics, multicast or checkpoints; ask for a whole GPU\n"),
                 1, "%s", world_said());
    cr_expect_eq(lines("virga: "), 4, "%s", world_said());
}

/* Where it is allowed the call reaches the driver, whose fake does not know it. */
Test(shown, sharing_that_is_allowed_to_the_driver) {
    w = world_new(&(struct world_conf){.limit = LIMIT, .sharing = true});
    cr_assert_eq(world_run(shares, NULL), 1006);
    cr_assert_not_null(
        strstr(world_said(), "fake driver: cuMemExportToShareableHandle is not implemented"));
}

static void *nvml_device(void *nvml, unsigned index) {
    void *device = NULL;
    return CALL(nvml, nvmlInit_v2) == 0 &&
                   CALL(nvml, nvmlDeviceGetHandleByIndex_v2, index, &device) == 0
               ? device
               : NULL;
}

static int nvml_memory(void *user) {
    void *nvml = shim_nvml(), *device = nvml_device(nvml, 0);
    unsigned long long info[3];
    struct {
        unsigned version;
        unsigned long long total, reserved, free, used;
    } info2 = {.version = 0x02000028};
    (void)user;
    MUST(device);
    vg_share_page_used(w.page, 0, GIB);
    MUST(CALL(nvml, nvmlDeviceGetMemoryInfo, device, info) == 0);
    MUST(info[0] == LIMIT && info[1] == 3 * GIB && info[2] == GIB);
    atomic_store(&w.card->used, w.card->capacity - 100 * MIB);
    MUST(CALL(nvml, nvmlDeviceGetMemoryInfo_v2, device, &info2) == 0);
    MUST(info2.version == 0x02000028 && info2.total == LIMIT && info2.free == 100 * MIB &&
         info2.used == GIB && info2.reserved == 0);
    MUST(CALL(nvml, nvmlDeviceSetPowerManagementLimit, device, 1u) == 4);
    MUST(CALL(nvml, nvmlDeviceGetProcessUtilization, device, NULL, NULL, 0ull) == 4);
    return 0;
}

Test(shown, the_share_by_nvml) {
    in_world(nvml_memory, &(struct world_conf){.limit = LIMIT});
    cr_expect_str_eq(world_said(), ""); /* NVML's code says enough */
}

struct process1 {
    unsigned pid;
    unsigned long long bytes;
};
struct process2 {
    unsigned pid;
    unsigned long long bytes;
    unsigned instance[2];
};

static int nvml_processes(void *user) {
    void *nvml = shim_nvml(), *device = nvml_device(nvml, 0);
    struct vg_share_process all[] = {{7, GIB}, {8, 0}, {9, 2 * GIB}};
    struct process1 one[4];
    struct process2 two[4];
    unsigned count = 4;
    (void)user;
    MUST(device);
    MUST(CALL(nvml, nvmlDeviceGetComputeRunningProcesses_v3, device, &count, two) == 0 && !count);
    MUST(vg_share_page_processes(w.page, all, 3) == 3);
    count = 4;
    MUST(CALL(nvml, nvmlDeviceGetComputeRunningProcesses_v3, device, &count, two) == 0);
    MUST(count == 2 && two[0].pid == 7 && two[0].bytes == GIB && two[1].pid == 9 &&
         two[1].bytes == 2 * GIB && two[1].instance[0] == UINT32_MAX);
    count = 4;
    MUST(CALL(nvml, nvmlDeviceGetComputeRunningProcesses, device, &count, one) == 0);
    MUST(count == 2 && one[1].pid == 9 && one[1].bytes == 2 * GIB);
    count = 0;
    MUST(CALL(nvml, nvmlDeviceGetComputeRunningProcesses_v2, device, &count, NULL) == 7);
    MUST(count == 2);
    count = 1;
    MUST(CALL(nvml, nvmlDeviceGetComputeRunningProcesses_v2, device, &count, two) == 7);
    MUST(count == 2 && CALL(nvml, nvmlDeviceGetComputeRunningProcesses, device, NULL, one) == 2);
    count = 4;
    MUST(CALL(nvml, nvmlDeviceGetGraphicsRunningProcesses_v3, device, &count, two) == 0 && !count);
    return 0;
}

Test(shown, the_tasks_own_processes_by_nvml) {
    in_world(nvml_processes, &(struct world_conf){.limit = LIMIT});
}

static int foreign_device(void *user) {
    void *nvml = shim_nvml(), *device = nvml_device(nvml, 1);
    unsigned long long info[3];
    unsigned count = 0;
    (void)user;
    MUST(device);
    MUST(CALL(nvml, nvmlDeviceGetComputeRunningProcesses_v3, device, &count, NULL) == 4);
    MUST(CALL(nvml, nvmlDeviceGetMemoryInfo, device, info) == 4);
    return 0;
}

Test(shown, nothing_of_a_device_that_was_not_given) {
    w = world_new(&(struct world_conf){.limit = LIMIT});
    w.card->devices = 2;
    cr_assert_eq(world_run(foreign_device, NULL), 0, "%s", world_said());
}
