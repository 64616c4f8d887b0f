/* Ways around a warden, tried by real processes, and what must not bring it down. */
#include "base/util.h"
#include "warden-task.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define AT UINT64_C(0x7f0000000000)

static int device(void) {
    return open("/dev/null", O_RDWR | O_CLOEXEC);
}

static void end(struct wt_task *t, int status) {
    cr_expect(eq(int, wt_finish(t), status));
    wt_settle(t);
    cr_expect(eq(u64, fake_uvm_mapped(t->uvm), 0));
    cr_expect(le(u64, fake_rm_peak(t->rm), CAP));
    wt_free(t);
}

/* ---- mappings -------------------------------------------------------------------------------- */

static int hide(void *arg) {
    const uint32_t *client = arg;
    int fd = device(), got = 0;
    uint32_t object;
    if (wt_register(fd) != VG_RM_OK)
        return 200;
    while (got < 100 && wt_ask(fd, client[0], MIB, &object) == VG_RM_OK) {
        if (wt_map(fd, AT + (uint64_t)got * MIB, MIB, client[0], object) != VG_RM_OK ||
            wt_give(fd, client[0], object) != VG_RM_OK)
            return 201;
        got++;
    }
    if (wt_unmap(fd, AT, 2 * MIB) != VG_RM_OK || wt_ask(fd, client[0], MIB, &object) != VG_RM_OK)
        return 202;
    return got;
}

Test(warden_doors, memory_is_not_hidden_in_a_mapping) {
    struct wt_task t = wt_new();
    uint32_t client[1] = {fake_rm_client(t.rm, 1)};
    wt_begin(&t, hide, client);
    end(&t, 64);
}

static int leave_a_child(void *arg) {
    const uint32_t *client = arg;
    int fd = device();
    uint32_t object;
    if (wt_register(fd) != VG_RM_OK || wt_ask(fd, client[0], 60 * MIB, &object) != VG_RM_OK ||
        wt_map(fd, AT, 60 * MIB, client[0], object) != VG_RM_OK)
        return 1;
    if (fork() == 0) { /* has every descriptor that its parent had */
        while (wt_ask(fd, client[1], 60 * MIB, &object) != VG_RM_OK)
            usleep(1000);
        pid_t me = getpid();
        (void)!write(3, &me, sizeof(me));
        pause();
    }
    return 0;
}

Test(warden_doors, what_a_process_had_ends_with_it_though_a_child_has_its_descriptors) {
    struct wt_task t = wt_new();
    uint32_t client[2] = {fake_rm_client(t.rm, 1), fake_rm_client(t.rm, 2)};
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
    wt_begin(&t, leave_a_child, client);
    pid_t child;
    cr_assert(vg_read_full(t.said, &child, sizeof(child)) == sizeof(child));
    cr_expect(eq(int, wt_finish(&t), 0));
    cr_expect(eq(u64, fake_uvm_mapped(t.uvm), 0));
    cr_expect(eq(u64, fake_rm_used(t.rm), 60 * MIB), "the child's own");
    kill(child, SIGKILL);
    cr_expect(eq(int, waitpid(child, NULL, 0), child));
    wt_settle(&t);
    wt_free(&t);
}

/* ---- other tables, other openings, other processes ------------------------------------------- */

/* Every number of the driver's first device: those that nobody knows to be harmless are stopped. */
static int every_number(void *arg) {
    (void)arg;
    int fd = device();
    const uint8_t harmless[] = {VG_RM_IDLE_CHANNELS, VG_RM_MAP_MEMORY,       VG_RM_CARD_INFO,
                                VG_RM_REGISTER_FD,   VG_RM_UNMAP_MEMORY_DMA, VG_RM_WAIT_OPEN};
    for (size_t i = 0; i < sizeof(harmless); i++)
        if (ioctl(fd, (unsigned)VG_RM_TYPE << 8 | harmless[i], &fd) == 0 || errno != ENOTTY)
            return 1; /* the kernel's own answer */
    const uint8_t stopped[] = {VG_RM_ANY,
                               VG_RM_DMABUF,
                               VG_RM_IMPORT_FD,
                               VG_RM_ALLOC_OBJECT,
                               VG_RM_VID_HEAP,
                               0x00,
                               0x33,
                               0x5c,
                               0xd8,
                               0xff};
    for (size_t i = 0; i < sizeof(stopped); i++)
        if (ioctl(fd, 16u << 16 | (unsigned)VG_RM_TYPE << 8 | stopped[i], &fd) == 0 ||
            errno != EPERM)
            return 2;
    return 0;
}

Test(warden_doors, no_call_wraps_another) {
    struct wt_task t = wt_new();
    wt_begin(&t, every_number, NULL);
    end(&t, 0);
}

static int number_only(void *arg) {
    (void)arg;
    int file = open("/dev/zero", O_RDWR | O_CLOEXEC);
    const unsigned long number[] = {VG_UVM_INITIALIZE, VG_UVM_REGISTER, VG_UVM_MAP, VG_UVM_FREE};
    for (size_t i = 0; i < 4; i++)
        if (ioctl(file, number[i], &file) == 0 || errno != ENOTTY)
            return 1; /* it could be the device by the time that the kernel looks */
    return 0;
}

Test(warden_doors, other_devices_have_no_such_calls) {
    struct wt_task t = wt_new();
    wt_begin(&t, number_only, NULL);
    end(&t, 0);
}

#ifdef __x86_64__
static int by_the_32_bit_table(void *arg) {
    (void)arg;
    int r;
    __asm__ volatile("int $0x80" : "=a"(r) : "a"(20) : "memory", "r8", "r9", "r10", "r11");
    return r > 0 ? 0 : 1;
}

static int by_the_x32_table(void *arg) {
    (void)arg;
    long r;
    __asm__ volatile("syscall" : "=a"(r) : "a"(0x40000000l + 39) : "memory", "rcx", "r11");
    return 0;
}

Test(warden_doors, system_calls_of_other_tables_end_the_process) {
    int (*const body[])(void *) = {by_the_32_bit_table, by_the_x32_table};
    for (int i = 0; i < 2; i++) {
        struct wt_task t = wt_new();
        wt_begin(&t, body[i], NULL);
        int status = wt_finish(&t);
        cr_expect(status == 128 + SIGSYS || (i == 0 && status == 128 + SIGSEGV), "table %d: %d", i,
                  status); /* a kernel without 32-bit programs */
        wt_free(&t);
    }
}
#endif

static void *one_mebibyte(void *arg) {
    int fd = device();
    uint32_t object;
    uint32_t status = wt_ask(fd, *(const uint32_t *)arg, MIB, &object);
    close(fd);
    return status == VG_RM_OK ? arg : NULL;
}

static int with_threads(void *arg) {
    int got = 0;
    for (int round = 0; round < 10; round++) {
        pthread_t thread[8];
        for (int i = 0; i < 8; i++)
            if (pthread_create(&thread[i], NULL, one_mebibyte, arg))
                return 200;
        for (int i = 0; i < 8; i++) {
            void *r;
            pthread_join(thread[i], &r);
            got += r != NULL;
        }
    }
    return got;
}

Test(warden_doors, threads_are_one_process) {
    struct wt_task t = wt_new();
    uint32_t client[1] = {fake_rm_client(t.rm, 1)};
    wt_begin(&t, with_threads, client);
    end(&t, 64);
}

static int goes_on_as_another(void *arg) {
    const uint32_t *client = arg;
    uint32_t object;
    int fd = device();
    if (wt_register(fd) != VG_RM_OK || wt_ask(fd, client[0], 40 * MIB, &object) != VG_RM_OK ||
        wt_map(fd, AT, 40 * MIB, client[0], object) != VG_RM_OK)
        return 1;
    execl("/bin/sh", "sh", "-c", "exec sleep 100", NULL);
    return 2;
}

Test(warden_doors, another_program_in_the_same_process_begins_with_nothing) {
    struct wt_task t = wt_new();
    uint32_t client[1] = {fake_rm_client(t.rm, 1)};
    wt_begin(&t, goes_on_as_another, client);
    while (fake_rm_peak(t.rm) < 40 * MIB)
        usleep(1000);
    wt_settle(&t);
    cr_expect(eq(int, waitpid(t.pid, NULL, WNOHANG), 0), "it lives");
    kill(t.pid, SIGKILL);
    end(&t, 128 + SIGKILL);
}

/* ---- killed, many, stuck --------------------------------------------------------------------- */

static int storm(void *arg) {
    const uint32_t *client = arg;
    for (int round = 0; round < 200; round++) {
        pid_t pid = fork();
        if (pid == 0) {
            int fd = device();
            uint32_t object[16];
            if (wt_register(fd) != VG_RM_OK)
                _exit(1);
            for (unsigned i = 0;; i = (i + 1) % 16) {
                uint64_t at = AT + i * 4 * MIB;
                if (wt_ask(fd, client[round], 3 * MIB, &object[i]) == VG_RM_OK)
                    wt_map(fd, at, 3 * MIB, client[round], object[i]);
                wt_give(fd, client[round], object[(i + 5) % 16]);
                wt_unmap(fd, AT + (i + 9) % 16 * 4 * MIB, 3 * MIB);
            }
        }
        usleep((unsigned)(round * 37 % 1500)); /* a moment like any other */
        kill(pid, SIGKILL);
        int status;
        if (waitpid(pid, &status, 0) != pid || !WIFSIGNALED(status))
            return 1;
    }
    return 0;
}

Test(warden_doors, two_hundred_killed_processes_leave_nothing_behind) {
    struct wt_task t = wt_new();
    static uint32_t client[200];
    for (int i = 0; i < 200; i++)
        client[i] = fake_rm_client(t.rm, 0);
    wt_begin(&t, storm, client);
    cr_expect(eq(int, wt_finish(&t), 0));
    wt_settle(&t);
    cr_expect(le(u64, fake_rm_peak(t.rm), CAP));
    cr_expect(eq(u32, wt_look(&t).objects, 0));
    cr_expect(eq(u32, wt_look(&t).clients, 0));
    cr_expect(eq(u64, fake_uvm_mapped(t.uvm), 0));
    wt_free(&t);
}

static int family(void *arg) {
    const uint32_t *client = arg;
    int n = getenv("VIRGA_TEST_LONG") ? 10000 : 500;
    for (int i = 0; i < n; i++) {
        pid_t pid = fork();
        uint32_t object;
        if (pid == 0)
            _exit(wt_ask(device(), client[i % 8], MIB, &object) == VG_RM_OK ? 0 : 1);
        int status;
        if (pid < 0 || waitpid(pid, &status, 0) != pid)
            return 1;
        if (WEXITSTATUS(status) && i < 8)
            return 2;
    }
    return 0;
}

Test(warden_doors, many_children_one_after_the_other_are_no_burden) {
    struct wt_task t = wt_new();
    uint32_t client[8];
    for (int i = 0; i < 8; i++)
        client[i] = fake_rm_client(t.rm, 0);
    wt_begin(&t, family, client);
    end(&t, 0);
}

/* The driver takes its time with an allocation, until told. */
static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t turn = PTHREAD_COND_INITIALIZER;
static bool is_inside, is_open;

static void at_the_gate(struct wt_task *t, uint32_t cmd) {
    (void)t;
    if ((cmd & 0xff) != VG_RM_ALLOC)
        return;
    pthread_mutex_lock(&gate);
    is_inside = true;
    pthread_cond_broadcast(&turn);
    while (!is_open)
        pthread_cond_wait(&turn, &gate);
    pthread_mutex_unlock(&gate);
}

static void wait_inside(void) {
    pthread_mutex_lock(&gate);
    while (!is_inside)
        pthread_cond_wait(&turn, &gate);
    pthread_mutex_unlock(&gate);
}

static void open_gate(void) {
    pthread_mutex_lock(&gate);
    is_open = true;
    pthread_cond_broadcast(&turn);
    pthread_mutex_unlock(&gate);
}

static int ask_once(void *arg) {
    uint32_t object;
    return wt_ask(device(), *(const uint32_t *)arg, MIB, &object) == VG_RM_OK ? 0 : 1;
}

Test(warden_doors, a_process_killed_in_the_middle_of_a_call_keeps_nothing) {
    struct wt_task t = wt_new();
    t.before = at_the_gate;
    uint32_t client[1] = {fake_rm_client(t.rm, 1)};
    wt_begin(&t, ask_once, client);
    wait_inside();
    kill(t.pid, SIGKILL);
    int status = wt_finish(&t);
    cr_expect(eq(int, status, 128 + SIGKILL));
    open_gate();
    while (fake_rm_calls(t.rm, VG_RM_FREE) == 0) /* it was given, and then taken back */
        usleep(1000);
    wt_settle(&t);
    wt_free(&t);
}

Test(warden_doors, nobody_waits_for_a_warden_that_is_stuck) {
    struct wt_task t = wt_new();
    t.before = at_the_gate;
    uint32_t client[1] = {fake_rm_client(t.rm, 1)};
    wt_begin(&t, ask_once, client);
    wait_inside();
    vg_warden_stop(t.watch); /* comes back, or the test is stuck as well */
    t.watch = NULL;
    open_gate(); /* the thread ends, and with it the listener: what the task calls fails */
    cr_expect(le(int, wt_finish(&t), 1));
    while (fake_rm_used(t.rm)) /* and gives everything back */
        usleep(1000);
    wt_free(&t);
}
