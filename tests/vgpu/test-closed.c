/* Whatever is wrong, no program takes the card for its own: cuInit fails, and one sentence says
 * why. */
#include "world.h"

#include <fcntl.h>
#include <stddef.h>
#include <string.h>
#include <sys/stat.h>

/* Both libraries fail, with all their calls, and the resolver leads to failure. */
static int all_fail(void *user) {
    void *cuda = shim_cuda(), *nvml = shim_nvml();
    int (*alloc)(CUdeviceptr *, size_t) = NULL;
    const char *text = NULL;
    CUdeviceptr p;
    (void)user;
    MUST(CALL(cuda, cuGetProcAddress_v2, "cuMemAlloc_v2", &alloc, 12000, (uint64_t)0, NULL) ==
         CUDA_OK);
    MUST(CALL(cuda, cuInit, 0) == CUDA_SYSTEM_NOT_READY);
    MUST(CALL(cuda, cuInit, 0) == CUDA_SYSTEM_NOT_READY);
    MUST(CALL(cuda, cuMemAlloc_v2, &p, (size_t)1) == CUDA_SYSTEM_NOT_READY);
    MUST(CALL(cuda, cuLaunchKernel, NULL, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL) ==
         CUDA_SYSTEM_NOT_READY);
    MUST(alloc(&p, 1) == CUDA_SYSTEM_NOT_READY);
    MUST(CALL(cuda, cuGetErrorName, CUDA_SYSTEM_NOT_READY, &text) == CUDA_OK &&
         strstr(text, "NOT_READY"));
    MUST(CALL(nvml, nvmlInit_v2) != 0);
    MUST(CALL(nvml, nvmlDeviceGetCount_v2, NULL) != 0);
    MUST(((const char *(*)(int))function(nvml, "nvmlErrorString"))(9) != NULL);
    return 0;
}

static int cuda_fails(void *user) {
    void *cuda = shim_cuda();
    CUdeviceptr p;
    (void)user;
    MUST(CALL(cuda, cuInit, 0) == CUDA_SYSTEM_NOT_READY);
    MUST(CALL(cuda, cuMemAlloc_v2, &p, (size_t)1) == CUDA_SYSTEM_NOT_READY);
    return 0;
}

/* One sentence a library, with this in it. */
static void said_once(const char *part, int libraries) {
    char *said = world_said(), *at = said;
    int lines = 0;
    while ((at = strstr(at, "virga: the shared GPU cannot be used: "))) {
        at++;
        lines++;
    }
    cr_expect_eq(lines, libraries, "%s", said);
    cr_expect_not_null(strstr(said, part), "%s", said);
}

Test(closed, without_a_page) {
    (void)world_new(&(struct world_conf){.no_page = true});
    cr_assert_eq(world_run(all_fail, NULL), 0, "%s", world_said());
    said_once("page cannot be opened (No such file or directory); ask the node's administrator", 2);
}

Test(closed, without_the_nodes_library) {
    (void)world_new(&(struct world_conf){.limit = GIB, .real_cuda = "/nowhere/libcuda.so.1"});
    cr_assert_eq(world_run(cuda_fails, NULL), 0, "%s", world_said());
    said_once("/nowhere/libcuda.so.1", 1);
    said_once("driver 580.1 cannot be loaded", 1);
}

Test(closed, with_a_library_that_is_no_driver) {
    (void)world_new(&(struct world_conf){.limit = GIB, .real_cuda = FAKE_DIR "/libnvidia-ml.so.1"});
    cr_assert_eq(world_run(cuda_fails, NULL), 0, "%s", world_said());
    said_once("is not a driver library", 1);
}

Test(closed, with_a_device_that_was_not_given) {
    struct world w = world_new(&(struct world_conf){.limit = GIB});
    w.card->devices = 2;
    cr_assert_eq(world_run(cuda_fails, NULL), 0, "%s", world_said());
    said_once("device 1 is not one of those given to this task", 1);
}

/* A good page with these bytes in it. */
static void damaged(size_t at, const void *bytes, size_t n, const char *part) {
    (void)world_new(&(struct world_conf){.limit = GIB});
    cr_assert_eq(chmod(VG_VGPU_FILE, 0600), 0);
    int fd = open(VG_VGPU_FILE, O_RDWR);
    cr_assert_eq(pwrite(fd, bytes, n, (off_t)at), (ssize_t)n);
    close(fd);
    cr_assert_eq(world_run(cuda_fails, NULL), 0, "%s", world_said());
    said_once(part, 1);
}

#define NUMBER(field, value, part) \
    damaged(offsetof(struct vg_vgpu_page, field), &(uint32_t){value}, sizeof(uint32_t), part)

Test(closed, with_a_file_that_is_no_page) {
    NUMBER(magic, 7, "page is not the description of a shared GPU");
}
Test(closed, with_a_newer_page) {
    NUMBER(abi, VG_VGPU_ABI + 1, "page is of another version");
}
Test(closed, with_a_page_of_another_length) {
    NUMBER(bytes, 4096, "page is of another version");
}
Test(closed, without_a_device) {
    NUMBER(devices, 0, "page is damaged");
}
Test(closed, with_more_devices_than_there_is_room_for) {
    NUMBER(devices, VG_VGPU_DEVICES + 1, "page is damaged");
}
Test(closed, with_a_library_looked_up_by_name) {
    damaged(offsetof(struct vg_vgpu_page, real_cuda), "libcuda.so.1", 13, "page is damaged");
}

Test(closed, with_text_that_has_no_end) {
    static const char endless[VG_VGPU_PATH_MAX] = {[0 ... VG_VGPU_PATH_MAX - 1] = '/'};
    damaged(offsetof(struct vg_vgpu_page, real_nvml), endless, sizeof endless, "page is damaged");
}

Test(closed, with_a_driver_version_that_has_no_end) {
    static const char endless[VG_VGPU_VERSION_MAX] = {[0 ... VG_VGPU_VERSION_MAX - 1] = '5'};
    damaged(offsetof(struct vg_vgpu_page, driver), endless, sizeof endless, "page is damaged");
}

Test(closed, with_an_empty_file) {
    (void)world_new(&(struct world_conf){.no_page = true});
    close(open(VG_VGPU_FILE, O_WRONLY | O_CREAT, 0600));
    cr_assert_eq(world_run(cuda_fails, NULL), 0, "%s", world_said());
    said_once("page is of another version", 1);
}

/* The shipped library looks at one place, whatever the environment says. */
static int shipped_fails(void *user) {
    (void)user;
    return CALL(shipped_cuda(), cuInit, 0) == CUDA_SYSTEM_NOT_READY ? 0 : 1;
}

Test(closed, to_a_page_that_the_program_names) {
    if (access(VG_VGPU_FOLDER "/" VG_VGPU_FILE, F_OK) == 0)
        cr_skip_test("this machine is a task with a shared GPU");
    (void)world_new(&(struct world_conf){.limit = GIB});
    cr_assert_eq(world_run(shipped_fails, NULL), 0, "%s", world_said());
    said_once(": " VG_VGPU_FOLDER "/" VG_VGPU_FILE " cannot be opened", 1);
}
