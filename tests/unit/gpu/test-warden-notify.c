/* Real processes under the real filter, answered by the warden's thread; only the driver behind it
   is a stand-in. */
#include "base/cleanup.h"
#include "base/util.h"
#include "fake-rm.h"
#include "gpu/rm.h"
#include "gpu/warden-notify.h"

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

#define MIB (UINT64_C(1) << 20)
#define CAP (64 * MIB)
#define CMD(nr, type) (3u << 30 | (uint32_t)sizeof(type) << 16 | VG_RM_TYPE << 8 | (nr))

struct task {
    struct fake_rm *rm;
    struct vg_warden_watch *watch;
    pid_t pid;
    int said; /* what the task says, a byte at a time */
};

static int64_t issue(void *ud, uint64_t process, int fd, uint32_t cmd, void *arg) {
    (void)fd;
    return fake_rm_ioctl(ud, process, cmd, arg);
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

static void begin(struct task *t, int (*body)(void *arg), void *arg) {
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
    const struct vg_warden_setup setup = {.listener = listener,
                                          .limit_bytes = CAP,
                                          .slice_usec = 3000,
                                          .managed_device = makedev(1, 3), /* stands for it */
                                          .issue = issue,
                                          .ud = t->rm};
    cr_assert(vg_warden_start(&setup, &t->watch, &err) == 0);
    cr_assert(write(pair[0], "x", 1) == 1);
    close(pair[0]);
}

static int finish(struct task *t) {
    int status;
    cr_assert(waitpid(t->pid, &status, 0) == t->pid);
    close(t->said);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static struct vg_warden_stat look(struct task *t) {
    struct vg_warden_stat s;
    vg_warden_look(t->watch, &s);
    return s;
}

/* The end of a process is heard of after whoever waits for it. */
static void settle(struct task *t) {
    for (int i = 0; i < 10000 && look(t).used_bytes; i++)
        usleep(1000);
    cr_expect(eq(u64, look(t).used_bytes, 0));
    cr_expect(eq(u64, fake_rm_used(t->rm), 0));
}

/* ---- inside ---------------------------------------------------------------------------------- */

static uint32_t ask(int fd, uint32_t client, uint64_t bytes, uint32_t *object) {
    struct vg_rm_memory m = {.size = bytes};
    struct vg_rm_alloc a = {.client = client,
                            .parent = client,
                            .class_id = VG_RM_CLASS_MEMORY_LOCAL,
                            .params = (uint64_t)(uintptr_t)&m,
                            .status = 0x77};
    if (ioctl(fd, CMD(VG_RM_ALLOC, a), &a) < 0)
        return 0x1000u + (uint32_t)errno;
    *object = a.object;
    return a.status;
}

static int fill(void *arg) {
    const uint32_t *client = arg;
    int fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    uint32_t object[128], n = 0;
    while (n < 128 && ask(fd, client[0], MIB, &object[n]) == VG_RM_OK)
        n++;
    struct vg_rm_free f = {client[0], client[0], object[0], 0x77};
    if (ioctl(fd, CMD(VG_RM_FREE, f), &f) < 0 || f.status != VG_RM_OK)
        return 200;
    if (ask(fd, client[0], MIB, &object[0]) != VG_RM_OK)
        return 201;
    return (int)n;
}

Test(warden_notify, a_process_gets_its_share_and_not_more) {
    struct task t = {.rm = fake_rm_new(1024 * MIB)};
    uint32_t client[1] = {fake_rm_client(t.rm, 1)};
    begin(&t, fill, client);
    cr_expect(eq(int, finish(&t), 64));
    cr_expect(eq(u64, fake_rm_peak(t.rm), CAP));
    settle(&t);
    vg_warden_stop(t.watch);
    fake_rm_free(t.rm);
}

static int race(void *arg) {
    const uint32_t *client = arg;
    for (int i = 0; i < 8; i++)
        if (fork() == 0) {
            int fd = open("/dev/null", O_RDWR | O_CLOEXEC);
            uint32_t object, got = 0;
            while (got < 128 && ask(fd, client[i], MIB, &object) == VG_RM_OK)
                got++;
            char c = (char)got;
            (void)!write(3, &c, 1);
            pause();
        }
    pause();
    return 0;
}

Test(warden_notify, eight_racing_processes_get_one_share_together) {
    struct task t = {.rm = fake_rm_new(1024 * MIB)};
    uint32_t client[8];
    for (int i = 0; i < 8; i++)
        client[i] = fake_rm_client(t.rm, 0);
    begin(&t, race, client);
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
    cr_expect(eq(int, finish(&t), 128 + SIGKILL));
    settle(&t);
    vg_warden_stop(t.watch);
    fake_rm_free(t.rm);
}

static int storm(void *arg) {
    const uint32_t *client = arg;
    for (int round = 0; round < 60; round++) {
        pid_t pid = fork();
        if (pid == 0) {
            int fd = open("/dev/null", O_RDWR | O_CLOEXEC);
            uint32_t object[64];
            for (unsigned i = 0;; i++)
                if (ask(fd, client[round], 3 * MIB, &object[i % 64]) != VG_RM_OK) {
                    struct vg_rm_free f = {client[round], client[round], object[i % 20], 0};
                    ioctl(fd, CMD(VG_RM_FREE, f), &f);
                }
        }
        usleep((unsigned)(round * 37 % 1500)); /* a moment like any other */
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
    }
    return 0;
}

Test(warden_notify, processes_killed_at_any_moment_leave_nothing_behind) {
    struct task t = {.rm = fake_rm_new(1024 * MIB)};
    uint32_t client[60];
    for (int i = 0; i < 60; i++)
        client[i] = fake_rm_client(t.rm, 0);
    begin(&t, storm, client);
    cr_expect(eq(int, finish(&t), 0));
    cr_expect(le(u64, fake_rm_peak(t.rm), CAP));
    settle(&t);
    cr_expect(eq(u32, look(&t).objects, 0));
    vg_warden_stop(t.watch);
    fake_rm_free(t.rm);
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
    if (map_error(null, at, 33 * MIB, MAP_SHARED | MAP_FIXED, at) != ENOMEM)
        return 3; /* with what was let before it is too much */
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
    struct task t = {.rm = fake_rm_new(1024 * MIB)};
    begin(&t, map, NULL);
    cr_expect(eq(int, finish(&t), 0));
    settle(&t);
    vg_warden_stop(t.watch);
    fake_rm_free(t.rm);
}

static int wait_then_ask(void *arg) {
    const uint32_t *client = arg;
    int fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    uint32_t object;
    if (ask(fd, client[0], MIB, &object) != VG_RM_OK || write(3, "a", 1) != 1)
        return 1;
    raise(SIGSTOP);
    int zero;
    if (ioctl(fd, FIONREAD, &zero) == 0 || errno != ENOTTY)
        return 2; /* not the warden's business */
    return ask(fd, client[0], MIB, &object) == 0x1000u + ENOSYS ? 0 : 3;
}

Test(warden_notify, without_a_warden_nothing_is_given) {
    struct task t = {.rm = fake_rm_new(1024 * MIB)};
    uint32_t client[1] = {fake_rm_client(t.rm, 1)};
    int status;
    begin(&t, wait_then_ask, client);
    cr_assert(waitpid(t.pid, &status, WUNTRACED) == t.pid && WIFSTOPPED(status));
    vg_warden_set(t.watch, 10 * MIB, 5000);
    for (int i = 0; i < 10000 && look(&t).limit_bytes != 10 * MIB; i++)
        usleep(1000);
    cr_expect(eq(u64, look(&t).limit_bytes, 10 * MIB));
    cr_expect(eq(u64, look(&t).used_bytes, MIB));
    vg_warden_stop(t.watch);
    kill(t.pid, SIGCONT);
    cr_expect(eq(int, finish(&t), 0));
    fake_rm_free(t.rm);
}
