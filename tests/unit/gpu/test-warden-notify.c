/* Real processes under the real filter, answered by the warden's thread; only the driver behind it
   is a stand-in. */
#include "base/cleanup.h"
#include "base/util.h"
#include "warden-task.h"

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
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

static int fill(void *arg) {
    const uint32_t *client = arg;
    int fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    uint32_t object[128], n = 0;
    while (n < 128 && wt_ask(fd, client[0], MIB, &object[n]) == VG_RM_OK)
        n++;
    struct vg_rm_free f = {client[0], client[0], object[0], 0x77};
    if (ioctl(fd, WT_CMD(VG_RM_FREE, f), &f) < 0 || f.status != VG_RM_OK)
        return 200;
    if (wt_ask(fd, client[0], MIB, &object[0]) != VG_RM_OK)
        return 201;
    return (int)n;
}

Test(warden_notify, a_process_gets_its_share_and_not_more) {
    struct wt_task t = wt_new();
    uint32_t client[1] = {fake_rm_client(t.rm, 1)};
    wt_begin(&t, fill, client);
    cr_expect(eq(int, wt_finish(&t), 64));
    cr_expect(eq(u64, fake_rm_peak(t.rm), CAP));
    wt_settle(&t);
    wt_free(&t);
}

static int race(void *arg) {
    const uint32_t *client = arg;
    for (int i = 0; i < 8; i++)
        if (fork() == 0) {
            int fd = open("/dev/null", O_RDWR | O_CLOEXEC);
            uint32_t object, got = 0;
            while (got < 128 && wt_ask(fd, client[i], MIB, &object) == VG_RM_OK)
                got++;
            char c = (char)got;
            (void)!write(3, &c, 1);
            pause();
        }
    pause();
    return 0;
}

Test(warden_notify, eight_racing_processes_get_one_share_together) {
    struct wt_task t = wt_new();
    uint32_t client[8];
    for (int i = 0; i < 8; i++)
        client[i] = fake_rm_client(t.rm, 0);
    wt_begin(&t, race, client);
    uint8_t got[8];
    unsigned sum = 0;
    cr_assert(eq(int, (int)vg_read_full(t.said, got, 8), 8));
    for (int i = 0; i < 8; i++)
        sum += got[i];
    cr_expect(eq(uint, sum, 64));
    cr_expect(eq(u64, fake_rm_used(t.rm), CAP));
    cr_expect(eq(u64, fake_rm_peak(t.rm), CAP), "more was out for a moment");
    vg_auto_free char *children = NULL;
    char path[64];
    size_t n;
    snprintf(path, sizeof(path), "/proc/%d/task/%d/children", t.pid, t.pid);
    cr_assert(vg_read_file(path, 4096, &children, &n) >= 0);
    for (char *at = children, *end; *at; at = end + 1) {
        long pid = strtol(at, &end, 10);
        if (end == at)
            break;
        kill((pid_t)pid, SIGKILL);
    }
    kill(t.pid, SIGKILL);
    cr_expect(eq(int, wt_finish(&t), 128 + SIGKILL));
    wt_settle(&t);
    wt_free(&t);
}

static int storm(void *arg) {
    const uint32_t *client = arg;
    for (int round = 0; round < 60; round++) {
        pid_t pid = fork();
        if (pid == 0) {
            int fd = open("/dev/null", O_RDWR | O_CLOEXEC);
            uint32_t object[64];
            for (unsigned i = 0;; i++)
                if (wt_ask(fd, client[round], 3 * MIB, &object[i % 64]) != VG_RM_OK) {
                    struct vg_rm_free f = {client[round], client[round], object[i % 20], 0};
                    ioctl(fd, WT_CMD(VG_RM_FREE, f), &f);
                }
        }
        usleep((unsigned)(round * 37 % 1500)); /* a moment like any other */
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
    }
    return 0;
}

Test(warden_notify, processes_killed_at_any_moment_leave_nothing_behind) {
    struct wt_task t = wt_new();
    uint32_t client[60];
    for (int i = 0; i < 60; i++)
        client[i] = fake_rm_client(t.rm, 0);
    wt_begin(&t, storm, client);
    cr_expect(eq(int, wt_finish(&t), 0));
    cr_expect(le(u64, fake_rm_peak(t.rm), CAP));
    wt_settle(&t);
    cr_expect(eq(u32, wt_look(&t).objects, 0));
    wt_free(&t);
}

/* The device that stands for managed memory cannot be mapped at all: ENODEV is the kernel's own
   answer to a call that was let through. */
static int map_error(int fd, uint64_t at, uint64_t bytes, int flags, uint64_t offset) {
    void *p = mmap((void *)(uintptr_t)at, bytes, PROT_READ | PROT_WRITE, flags, fd, (off_t)offset);
    int e = p == MAP_FAILED ? errno : 0;
    if (p != MAP_FAILED)
        munmap(p, bytes);
    return e;
}

static int map(void *arg) {
    (void)arg;
    int null = open("/dev/null", O_RDWR | O_CLOEXEC), file = memfd_create("file", 0);
    const uint64_t at = UINT64_C(0x600000000000);
    if (ftruncate(file, 1 << 20) < 0)
        return 1;
    if (map_error(null, at, 32 * MIB, MAP_SHARED | MAP_FIXED, at) != ENODEV)
        return 2; /* fits: the kernel is asked */
    if (map_error(null, at, CAP + 1, MAP_SHARED | MAP_FIXED, at) != ENOMEM)
        return 3; /* does not */
    if (map_error(null, 0, 4096, MAP_SHARED, 4096) != ENODEV)
        return 4; /* could not be managed memory */
    if (map_error(file, 0, 4096, MAP_SHARED, 4096) != 0)
        return 5; /* an ordinary file */
    if (map_error(file, at, 4096, MAP_SHARED | MAP_FIXED, at) != EINVAL)
        return 6; /* could be, were the descriptor another */
    if (map_error(file, 0, 4096, MAP_SHARED, at) != EINVAL)
        return 7;
    if (map_error(-1, at, 4096, MAP_SHARED | MAP_FIXED | MAP_ANONYMOUS, at) != 0)
        return 8;
    if (syscall(SYS_remap_file_pages, at, 4096, 0, 0, 0) == 0 || errno != ENOSYS)
        return 9;
    return 0;
}

Test(warden_notify, managed_memory_is_counted_and_what_only_looks_like_files_is_refused) {
    struct wt_task t = wt_new();
    wt_begin(&t, map, NULL);
    cr_expect(eq(int, wt_finish(&t), 0));
    wt_settle(&t);
    wt_free(&t);
}

static int wait_then_ask(void *arg) {
    const uint32_t *client = arg;
    int fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    uint32_t object;
    if (wt_ask(fd, client[0], MIB, &object) != VG_RM_OK || write(3, "a", 1) != 1)
        return 1;
    raise(SIGSTOP);
    int zero;
    if (ioctl(fd, FIONREAD, &zero) == 0 || errno != ENOTTY)
        return 2; /* not the warden's business */
    return wt_ask(fd, client[0], MIB, &object) == 0x1000u + ENOSYS ? 0 : 3;
}

Test(warden_notify, without_a_warden_nothing_is_given) {
    struct wt_task t = wt_new();
    uint32_t client[1] = {fake_rm_client(t.rm, 1)};
    int status;
    wt_begin(&t, wait_then_ask, client);
    cr_assert(waitpid(t.pid, &status, WUNTRACED) == t.pid && WIFSTOPPED(status));
    vg_warden_set(t.watch, 10 * MIB, 5000);
    for (int i = 0; i < 10000 && wt_look(&t).limit_bytes != 10 * MIB; i++)
        usleep(1000);
    cr_expect(eq(u64, wt_look(&t).limit_bytes, 10 * MIB));
    cr_expect(eq(u64, wt_look(&t).used_bytes, MIB));
    vg_warden_stop(t.watch);
    t.watch = NULL;
    kill(t.pid, SIGCONT);
    cr_expect(eq(int, wt_finish(&t), 0));
    wt_free(&t);
}
