/* Writing the page. See share-page.h; how it is read without a lock is told in vgpu/abi.h. */
#include "gpu/share-page.h"

#include "base/cleanup.h"
#include "vgpu/abi.h"

#include <assert.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

_Static_assert(VG_SHARE_DEVICES_MAX == VG_VGPU_DEVICES &&
                   VG_SHARE_PROCESSES_MAX == VG_VGPU_PROCESSES,
               "as many as the page has room for");

struct vg_share_page {
    struct vg_vgpu_page *shown; /* owned: a mapping */
    size_t devices;
    uint32_t sequence;
};

static int check_text(const char *what, const char *text, size_t size, bool is_path,
                      struct vg_err *err) {
    if (!text || !text[0] || (is_path && text[0] != '/'))
        return vg_err_set(err, VG_INVALID, "%s '%s' is not %s", what, text ? text : "",
                          is_path ? "an absolute path" : "a version");
    if (strlen(text) >= size)
        return vg_err_set(err, VG_INVALID, "%s '%s' is longer than %zu bytes", what, text,
                          size - 1);
    return 0;
}

static int check(const struct vg_share_conf *conf, struct vg_err *err) {
    if (conf->devices < 1 || conf->devices > VG_VGPU_DEVICES)
        return vg_err_set(err, VG_INVALID, "a share is of 1 to %u devices, not %zu",
                          VG_VGPU_DEVICES, conf->devices);
    for (size_t i = 0; i < conf->devices; i++)
        if (conf->device[i].weight_milli > 1000)
            return vg_err_set(err, VG_INVALID, "a weight is at most 1000 thousandths, not %u",
                              conf->device[i].weight_milli);
    int r = check_text("the driver", conf->driver, VG_VGPU_VERSION_MAX, false, err);
    if (r == 0)
        r = check_text("libcuda", conf->real_cuda, VG_VGPU_PATH_MAX, true, err);
    return r < 0 ? r : check_text("libnvidia-ml", conf->real_nvml, VG_VGPU_PATH_MAX, true, err);
}

/* The blocks are there before anything is written: a full disk is an error here, not a signal
 * later. */
static int map_file(int fd, struct vg_vgpu_page **ret) {
    int r = fchmod(fd, 0444) < 0 ? -errno : -posix_fallocate(fd, 0, sizeof **ret);
    if (r < 0)
        return r;
    void *p = mmap(NULL, sizeof **ret, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED)
        return -errno;
    *ret = p;
    return 0;
}

static void fill(struct vg_vgpu_page *page, const struct vg_share_conf *conf) {
    page->abi = VG_VGPU_ABI;
    page->bytes = sizeof *page;
    page->flags = conf->sharing ? VG_VGPU_SHARING : 0;
    page->devices = (uint32_t)conf->devices;
    memcpy(page->driver, conf->driver, strlen(conf->driver));
    memcpy(page->real_cuda, conf->real_cuda, strlen(conf->real_cuda));
    memcpy(page->real_nvml, conf->real_nvml, strlen(conf->real_nvml));
    for (size_t i = 0; i < conf->devices; i++) {
        memcpy(page->device[i].uuid, conf->device[i].uuid, sizeof page->device[i].uuid);
        atomic_store(&page->device[i].limit_bytes, conf->device[i].limit_bytes);
        atomic_store(&page->device[i].weight_milli, conf->device[i].weight_milli);
    }
    atomic_store_explicit(&page->magic, VG_VGPU_MAGIC, memory_order_release);
}

int vg_share_page_open(int folder, const struct vg_share_conf *conf, struct vg_share_page **ret,
                       struct vg_err *err) {
    int r = check(conf, err);
    if (r < 0)
        return vg_err_wrap(err, "cannot describe a shared GPU");
    vg_auto_free struct vg_share_page *page = calloc(1, sizeof *page);
    if (!page)
        return vg_err_sys(err, -ENOMEM, "cannot describe a shared GPU");
    vg_auto_fd int fd = openat(folder, VG_VGPU_FILE, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0444);
    if (fd < 0)
        return vg_err_sys(err, -errno, "cannot make the page of a shared GPU");
    if ((r = map_file(fd, &page->shown)) < 0) {
        (void)unlinkat(folder, VG_VGPU_FILE, 0);
        return vg_err_sys(err, r, "cannot make the page of a shared GPU");
    }
    fill(page->shown, conf);
    page->devices = conf->devices;
    *ret = vg_take_ptr(page);
    return 0;
}

void vg_share_page_close(struct vg_share_page *page) {
    if (!page)
        return;
    munmap(page->shown, sizeof *page->shown);
    free(page);
}

static struct vg_vgpu_device *device_of(struct vg_share_page *page, size_t device) {
    assert(device < page->devices);
    return &page->shown->device[device];
}

void vg_share_page_limit(struct vg_share_page *page, size_t device, uint64_t limit_bytes) {
    atomic_store(&device_of(page, device)->limit_bytes, limit_bytes);
}

void vg_share_page_used(struct vg_share_page *page, size_t device, uint64_t used_bytes) {
    atomic_store(&device_of(page, device)->used_bytes, used_bytes);
}

void vg_share_page_weight(struct vg_share_page *page, size_t device, uint32_t weight_milli) {
    atomic_store(&device_of(page, device)->weight_milli, weight_milli);
}

size_t vg_share_page_processes(struct vg_share_page *page, const struct vg_share_process *process,
                               size_t n) {
    struct vg_vgpu_page *shown = page->shown;
    n = VG_MIN(n, (size_t)VG_VGPU_PROCESSES);
    atomic_store_explicit(&shown->sequence, ++page->sequence, memory_order_relaxed);
    for (size_t i = 0; i < n; i++) {
        atomic_store_explicit(&shown->process[i].pid, process[i].pid, memory_order_release);
        atomic_store_explicit(&shown->process[i].used_bytes, process[i].used_bytes,
                              memory_order_release);
    }
    atomic_store_explicit(&shown->processes, (uint32_t)n, memory_order_release);
    atomic_store_explicit(&shown->sequence, ++page->sequence, memory_order_release);
    return n;
}
