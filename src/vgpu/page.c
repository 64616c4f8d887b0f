/* Reading the page. See page.h. Keeps to old functions of libc: the environment may be of another
 * distribution. */
#include "page.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define READS_MAX 1000
#define ASK "ask the node's administrator to look at its agent"

static const char *page_path(void) {
#ifdef VG_VGPU_TEST_BUILD
    const char *other = getenv("VIRGA_VGPU_PAGE");
    if (other)
        return other;
#endif
    return VG_VGPU_FOLDER "/" VG_VGPU_FILE;
}

static bool has_end(const char *text, size_t size) {
    return memchr(text, '\0', size) != NULL;
}

static bool is_path(const char path[VG_VGPU_PATH_MAX]) {
    return path[0] == '/' && has_end(path, VG_VGPU_PATH_MAX);
}

/* What is wrong with it, or NULL. */
static const char *flaw(const struct vg_vgpu_page *page) {
    if (atomic_load_explicit(&page->magic, memory_order_acquire) != VG_VGPU_MAGIC)
        return "is not the description of a shared GPU; " ASK;
    if (page->abi != VG_VGPU_ABI || page->bytes != sizeof *page)
        return "is of another version than this library; restart the node's agent";
    if (page->devices < 1 || page->devices > VG_VGPU_DEVICES || !is_path(page->real_cuda) ||
        !is_path(page->real_nvml) || !has_end(page->driver, sizeof page->driver))
        return "is damaged; " ASK;
    return NULL;
}

/* A page that is longer or shorter is not read at all: what is beyond a file's end cannot be. */
static const struct vg_vgpu_page *map(int fd, const char **ret_flaw) {
    off_t size = lseek(fd, 0, SEEK_END);
    *ret_flaw = "is of another version than this library; restart the node's agent";
    if (size != (off_t)sizeof(struct vg_vgpu_page))
        return NULL;
    void *p = mmap(NULL, sizeof(struct vg_vgpu_page), PROT_READ, MAP_SHARED, fd, 0);
    *ret_flaw = p == MAP_FAILED ? "cannot be mapped; " ASK : flaw(p);
    if (p != MAP_FAILED && *ret_flaw)
        munmap(p, sizeof(struct vg_vgpu_page));
    return *ret_flaw ? NULL : p;
}

int vg_page_open(const struct vg_vgpu_page **ret, struct vg_why *why) {
    const char *path = page_path(), *wrong;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        int r = -errno;
        snprintf(why->text, sizeof why->text, "%s cannot be opened (%s); " ASK, path, strerror(-r));
        return r;
    }
    const struct vg_vgpu_page *page = map(fd, &wrong);
    close(fd);
    if (!page) {
        snprintf(why->text, sizeof why->text, "%s %s", path, wrong);
        return -EPROTO;
    }
    *ret = page;
    return 0;
}

int vg_page_find(const struct vg_vgpu_page *page, const uint8_t uuid[16]) {
    for (unsigned i = 0; i < page->devices && i < VG_VGPU_DEVICES; i++)
        if (memcmp(page->device[i].uuid, uuid, sizeof page->device[i].uuid) == 0)
            return (int)i;
    return -1;
}

struct vg_memory vg_page_memory(const struct vg_vgpu_page *page, unsigned device,
                                uint64_t real_free) {
    struct vg_memory m = {.total = atomic_load(&page->device[device].limit_bytes),
                          .used = atomic_load(&page->device[device].used_bytes)};
    if (m.used > m.total)
        m.used = m.total;
    m.free = m.total - m.used < real_free ? m.total - m.used : real_free;
    return m;
}

static unsigned copy(const struct vg_vgpu_page *page, struct vg_process *ret) {
    unsigned count = atomic_load_explicit(&page->processes, memory_order_acquire);
    if (count > VG_VGPU_PROCESSES)
        count = VG_VGPU_PROCESSES;
    for (unsigned i = 0; i < count; i++) {
        ret[i].pid = atomic_load_explicit(&page->process[i].pid, memory_order_acquire);
        ret[i].used_bytes =
            atomic_load_explicit(&page->process[i].used_bytes, memory_order_acquire);
    }
    return count;
}

int vg_page_processes(const struct vg_vgpu_page *page, struct vg_process ret[VG_VGPU_PROCESSES]) {
    for (int i = 0; i < READS_MAX; i++) {
        uint32_t before = atomic_load_explicit(&page->sequence, memory_order_acquire);
        unsigned count = before % 2 ? 0 : copy(page, ret);
        if (before % 2 == 0 &&
            atomic_load_explicit(&page->sequence, memory_order_relaxed) == before)
            return (int)count;
        sched_yield(); /* the writer is in the middle of it */
    }
    return -EAGAIN;
}
