/* See the header. */
#include "warden-task.h"

#include "base/cleanup.h"
#include "base/util.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

static int64_t issue(void *ud, uint64_t process, int fd, uint32_t cmd, void *arg) {
    struct wt_task *t = ud;
    (void)fd;
    if (t->before)
        t->before(t, cmd);
    return (cmd >> 8 & 0xff) == VG_RM_TYPE ? fake_rm_ioctl(t->rm, process, cmd, arg)
                                           : fake_uvm_ioctl(t->uvm, 1, cmd, arg);
}

struct wt_task wt_new(void) {
    struct wt_task t = {.rm = fake_rm_new(1024 * MIB)};
    t.uvm = fake_uvm_new(t.rm);
    fake_uvm_begin(t.uvm, 1, VG_UVM_NO_HMM);
    return t;
}

void wt_free(struct wt_task *t) {
    vg_warden_stop(t->watch);
    fake_uvm_free(t->uvm);
    fake_rm_free(t->rm);
}

static _Noreturn void confined(int socket, int say, int (*body)(void *arg), void *arg) {
    struct sock_fprog program;
    vg_warden_filter(&program);
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    int listener = (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER,
                                SECCOMP_FILTER_FLAG_NEW_LISTENER, &program);
    char c = 'x';
    if (listener < 0 || vg_send_fds(socket, &c, 1, &listener, 1, 0) < 0 ||
        read(socket, &c, 1) != 1) /* until somebody answers */
        _exit(99);
    close(listener);
    dup2(say, 3);
    _exit(body(arg));
}

void wt_begin(struct wt_task *t, int (*body)(void *arg), void *arg) {
    int pair[2], words[2], listener = -1;
    cr_assert(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
    cr_assert(pipe2(words, O_CLOEXEC) == 0);
    t->pid = fork();
    cr_assert(ge(int, t->pid, 0));
    if (t->pid == 0)
        confined(pair[1], words[1], body, arg);
    close(words[1]);
    close(pair[1]);
    t->said = words[0];
    char c;
    size_t n = 1;
    cr_assert(vg_recv_fds(pair[0], &c, 1, &listener, &n, 0) == 1 && n == 1);
    struct vg_err err = {0};
    struct stat st = {0};
    if (t->managed_fd)
        cr_assert(fstat(t->managed_fd, &st) == 0);
    const struct vg_warden_setup setup = {.listener = listener,
                                          .limit_bytes = CAP,
                                          .slice_usec = 3000,
                                          .managed_device = makedev(1, 3), /* stands for it */
                                          .managed_on = st.st_dev,
                                          .managed_ino = st.st_ino,
                                          .issue = issue,
                                          .ud = t,
                                          .changed = t->changed,
                                          .processes = t->processes};
    cr_assert(vg_warden_start(&setup, &t->watch, &err) == 0);
    cr_assert(write(pair[0], "x", 1) == 1);
    close(pair[0]);
}

int wt_finish(struct wt_task *t) {
    int status;
    cr_assert(waitpid(t->pid, &status, 0) == t->pid);
    close(t->said);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

struct vg_warden_stat wt_look(struct wt_task *t) {
    struct vg_warden_stat s;
    vg_warden_look(t->watch, &s);
    return s;
}

void wt_settle(struct wt_task *t) {
    for (int i = 0; i < 10000 && wt_look(t).used_bytes; i++)
        usleep(1000);
    cr_expect(eq(u64, wt_look(t).used_bytes, 0));
    cr_expect(eq(u64, fake_rm_used(t->rm), 0));
}

uint32_t wt_ask(int fd, uint32_t client, uint64_t bytes, uint32_t *object) {
    struct vg_rm_memory m = {.size = bytes};
    struct vg_rm_alloc a = {.client = client,
                            .parent = client,
                            .class_id = VG_RM_CLASS_MEMORY_LOCAL,
                            .params = (uint64_t)(uintptr_t)&m,
                            .status = 0x77};
    if (ioctl(fd, WT_CMD(VG_RM_ALLOC, a), &a) < 0)
        return 0x1000u + (uint32_t)errno;
    *object = a.object;
    return a.status;
}

uint32_t wt_give(int fd, uint32_t client, uint32_t object) {
    struct vg_rm_free f = {client, client, object, 0x77};
    return ioctl(fd, WT_CMD(VG_RM_FREE, f), &f) < 0 ? 0x1000u + (uint32_t)errno : f.status;
}

uint32_t wt_register(int fd) {
    struct vg_uvm_register r = {.uuid = "the card", .status = 0x77};
    return ioctl(fd, VG_UVM_REGISTER, &r) < 0 ? 0x1000u + (uint32_t)errno : r.status;
}

uint32_t wt_map(int fd, uint64_t base, uint64_t bytes, uint32_t client, uint32_t object) {
    static _Thread_local uint8_t form[VG_UVM_MAP_BYTES_MAX];
    fake_uvm_form(form, base, bytes, client, object);
    return ioctl(fd, VG_UVM_MAP, form) < 0 ? 0x1000u + (uint32_t)errno : fake_uvm_status(form);
}

uint32_t wt_unmap(int fd, uint64_t base, uint64_t bytes) {
    struct vg_uvm_unmap u = {.base = base, .length = bytes, .uuid = "the card", .status = 0x77};
    return ioctl(fd, VG_UVM_UNMAP, &u) < 0 ? 0x1000u + (uint32_t)errno : u.status;
}
