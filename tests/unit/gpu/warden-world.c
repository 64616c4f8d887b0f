/* See the header. */
#include "warden-world.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static int64_t rd(void *caller, uint64_t at, void *into, size_t n) {
    (void)caller;
    if (at < 65536)
        return -EFAULT;
    if (n == VG_WARDEN_PARAMS_MAX)
        n = sizeof(struct vg_rm_memory); /* as at the end of a mapping */
    memcpy(into, (void *)(uintptr_t)at, n);
    return (int64_t)n;
}

static int64_t wr(void *caller, uint64_t at, const void *from, size_t n) {
    (void)caller;
    if (at < 65536)
        return -EFAULT;
    memcpy((void *)(uintptr_t)at, from, n);
    return (int64_t)n;
}

static int lend(void *caller, int fd) {
    struct ww *v = caller;
    if (v->refuse && v->refuse--)
        return -EMFILE;
    v->lent++;
    return fd;
}

static int lend_uvm(void *caller, int fd) {
    return fd >= 100 ? lend(caller, fd) : -ENOTTY;
}

static bool same(void *ud, int a, int b) {
    (void)ud;
    return a == b;
}

static int64_t issue(void *ud, uint64_t process, int fd, uint32_t cmd, void *arg) {
    struct ww *v = ud;
    if (v->instead)
        return v->instead(ud, process, fd, cmd, arg);
    return fd >= 100 ? fake_uvm_ioctl(v->uvm, (uint64_t)fd, cmd, arg)
                     : fake_rm_ioctl(v->rm, process, cmd, arg);
}

static void take_back(void *ud, int fd) {
    (void)fd;
    ((struct ww *)ud)->lent--;
}

void ww_adopt(struct ww *v) {
    const struct vg_warden_ops ops = {.read = rd,
                                      .write = wr,
                                      .borrow = lend,
                                      .borrow_uvm = lend_uvm,
                                      .same = same,
                                      .issue = issue,
                                      .close = take_back,
                                      .ud = v};
    if (vg_warden_new(&ops, CAP, &v->w) < 0)
        abort();
}

void ww_setup(struct ww *v) {
    *v = (struct ww){.rm = fake_rm_new(1024 * MIB)};
    v->uvm = fake_uvm_new(v->rm);
    ww_adopt(v);
    v->client = fake_rm_client(v->rm, 1);
}

int ww_teardown(struct ww *v) {
    vg_warden_free(v->w);
    fake_uvm_free(v->uvm);
    fake_rm_free(v->rm);
    return v->lent;
}

struct vg_warden_answer ww_call_on(struct ww *v, uint64_t process, int fd, uint32_t cmd,
                                   void *arg) {
    struct vg_warden_call k = {v, process, fd, cmd, (uint64_t)(uintptr_t)arg};
    return vg_warden_ioctl(v->w, &k);
}

struct vg_warden_answer ww_call(struct ww *v, uint64_t process, uint32_t cmd, void *arg) {
    return ww_call_on(v, process, WW_CTL, cmd, arg);
}

uint32_t ww_alloc(struct ww *v, uint32_t client, uint32_t parent, uint32_t *object,
                  uint32_t class_id, uint64_t bytes, uint32_t flags) {
    struct vg_rm_memory m = {.size = bytes, .flags = flags};
    struct vg_rm_alloc a = {.client = client,
                            .parent = parent,
                            .object = *object,
                            .class_id = class_id,
                            .params = (uint64_t)(uintptr_t)&m,
                            .status = 0x77};
    struct vg_warden_answer r = ww_call(v, 1, WW_CMD(VG_RM_ALLOC, a), &a);
    if (r.let || r.error || a.params != (uint64_t)(uintptr_t)&m) /* the caller's own pointer */
        abort();
    *object = a.object;
    return a.status;
}

uint32_t ww_take(struct ww *v, uint64_t bytes, uint32_t *object) {
    *object = 0;
    return ww_alloc(v, v->client, v->client, object, VG_RM_CLASS_MEMORY_LOCAL, bytes, 0);
}

uint32_t ww_give(struct ww *v, uint32_t client, uint32_t object) {
    struct vg_rm_free f = {client, client, object, 0x77};
    if (ww_call(v, 1, WW_CMD(VG_RM_FREE, f), &f).error)
        abort();
    return f.status;
}

uint32_t ww_open(struct ww *v, uint64_t process, int fd) {
    struct vg_uvm_initialize i = {.flags = 0};
    struct vg_uvm_register r = {.uuid = "the card", .status = 0x77};
    if (!ww_call_on(v, process, fd, VG_UVM_INITIALIZE, &i).let)
        abort();
    fake_uvm_begin(v->uvm, (uint64_t)fd, i.flags); /* the process goes on with it */
    ww_call_on(v, process, fd, VG_UVM_REGISTER, &r);
    return r.status;
}

uint32_t ww_map(struct ww *v, uint64_t process, int fd, uint64_t base, uint64_t bytes,
                uint32_t client, uint32_t object) {
    static _Thread_local uint8_t form[VG_UVM_MAP_BYTES_MAX];
    fake_uvm_form(form, base, bytes, client, object);
    struct vg_warden_answer a = ww_call_on(v, process, fd, VG_UVM_MAP, form);
    return a.error ? 0x1000u + (uint32_t)-a.error : fake_uvm_status(form);
}

uint32_t ww_unmap(struct ww *v, uint64_t process, int fd, uint64_t base, uint64_t bytes) {
    struct vg_uvm_unmap u = {.base = base, .length = bytes, .uuid = "the card", .status = 0x77};
    struct vg_warden_answer a = ww_call_on(v, process, fd, VG_UVM_UNMAP, &u);
    return a.error ? 0x1000u + (uint32_t)-a.error : u.status;
}

struct vg_warden_stat ww_stat(struct ww *v) {
    struct vg_warden_stat s;
    vg_warden_stat(v->w, &s);
    return s;
}

uint64_t ww_sum_of_processes(struct ww *v) {
    struct vg_warden_process p[16];
    uint64_t sum = 0;
    size_t n = vg_warden_processes(v->w, p, 16);
    for (size_t i = 0; i < n; i++)
        sum += p[i].used_bytes;
    return sum;
}
