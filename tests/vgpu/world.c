/* The world of a test. See world.h. */
#include "world.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>

static struct world world; /* not freed: a test is a process */
static char folder[] = "/tmp/vgpu-test-XXXXXX";

static void remove_folder(void) {
    static const char *const files[] = {"card", "said", VG_VGPU_FILE};
    for (unsigned i = 0; i < sizeof files / sizeof *files; i++)
        (void)unlink(files[i]);
    (void)rmdir(folder);
}

struct world world_new(const struct world_conf *conf) {
    struct vg_err err = VG_ERR_INIT;
    cr_assert_not_null(mkdtemp(folder));
    cr_assert_eq(chdir(folder), 0);
    atexit(remove_folder); /* tenants leave by _exit */
    setenv("FAKE_CARD", "card", 1);
    setenv("VIRGA_VGPU_PAGE", VG_VGPU_FILE, 1);
    world.card = card_new("card", 141 * GIB);
    if (conf->no_page)
        return world;
    struct vg_share_device device = {.limit_bytes = conf->limit, .weight_milli = 500};
    memcpy(device.uuid, world.card->uuid[0], sizeof device.uuid);
    struct vg_share_conf share = {.device = &device,
                                  .devices = 1,
                                  .sharing = conf->sharing,
                                  .driver = "580.1",
                                  .real_cuda =
                                      conf->real_cuda ? conf->real_cuda : FAKE_DIR "/libcuda.so.1",
                                  .real_nvml = FAKE_DIR "/libnvidia-ml.so.1"};
    cr_assert_eq(vg_share_page_open(AT_FDCWD, &share, &world.page, &err), 0, "%s", err.msg);
    return world;
}

int world_run(int (*tenant)(void *user), void *user) {
    int status = -1;
    pid_t pid = fork();
    cr_assert_geq(pid, 0);
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        int said = open("said", O_WRONLY | O_CREAT | O_APPEND, 0600);
        dup2(said, 2);
        _exit(tenant(user));
    }
    cr_assert_eq(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

char *world_said(void) {
    static char text[65536];
    FILE *f = fopen("said", "r");
    text[0] = '\0';
    if (f) {
        text[fread(text, 1, sizeof text - 1, f)] = '\0';
        fclose(f);
    }
    return text;
}

static void *library(const char *path) {
    void *l = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!l) {
        dprintf(2, "%s\n", dlerror());
        _exit(99);
    }
    return l;
}

void *shim_cuda(void) {
    return library(SHIM_DIR "/libcuda.so.1");
}
void *shim_nvml(void) {
    return library(SHIM_DIR "/libnvidia-ml.so.1");
}
void *shipped_cuda(void) {
    return library(SHIPPED_DIR "/libcuda.so.1");
}
void *fake_cuda(void) {
    return library(FAKE_DIR "/libcuda.so.1");
}

void *function(void *l, const char *name) {
    void *f = dlsym(l, name);
    if (!f) {
        dprintf(2, "%s\n", dlerror());
        _exit(99);
    }
    return f;
}

int begin(void *cuda) {
    CUcontext c = NULL;
    int r = CALL(cuda, cuInit, 0);
    if (r == CUDA_OK)
        r = CALL(cuda, cuDevicePrimaryCtxRetain, &c, 0);
    return r == CUDA_OK ? CALL(cuda, cuCtxSetCurrent, c) : r;
}
