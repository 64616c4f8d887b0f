/* Managed memory of real processes: a file stands for the device that it is mapped from. */
#include "warden-task.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <unistd.h>

#define AT UINT64_C(0x300000000000) /* where nothing lies, a sanitizer's shadow included */
#define THREADS 8

/* 0 or errno. */
static int map(int fd, uint64_t at, uint64_t bytes) {
    void *p = mmap((void *)(uintptr_t)at, bytes, PROT_READ | PROT_WRITE,
                   MAP_SHARED | MAP_FIXED_NOREPLACE, fd, (off_t)at);
    return p == MAP_FAILED ? errno : 0;
}

static void unmap(uint64_t at, uint64_t bytes) {
    munmap((void *)(uintptr_t)at, bytes);
}

static void in_task(int (*body)(void *arg)) {
    struct wt_task t = wt_new();
    int fd = memfd_create("managed", MFD_CLOEXEC);
    cr_assert(ge(int, fd, 0));
    t.managed_fd = fd;
    wt_begin(&t, body, &fd);
    cr_expect(eq(int, wt_finish(&t), 0));
    wt_settle(&t);
    wt_free(&t);
    close(fd);
}

static int again_and_again(void *arg) {
    int fd = *(int *)arg;
    for (int i = 0; i < 50; i++) {
        if (map(fd, AT, 40 * MIB))
            return 1;
        if (map(fd, AT + CAP, 40 * MIB) != ENOMEM)
            return 2;
        unmap(AT, 40 * MIB);
    }
    return map(fd, AT, CAP) ? 3 : map(fd, AT + CAP, 1) != ENOMEM ? 4 : 0;
}

Test(warden_managed, what_is_unmapped_is_there_for_the_next_who_asks) {
    in_task(again_and_again);
}

/* What the kernel refused counts no longer when its thread asks again. */
static int over_each_other(void *arg) {
    int fd = *(int *)arg;
    if (map(fd, AT, 40 * MIB) || map(fd, AT, 20 * MIB) != EEXIST)
        return 1;
    return map(fd, AT + CAP, 24 * MIB);
}

Test(warden_managed, what_the_kernel_refused_is_not_held) {
    in_task(over_each_other);
}

/* Memory of the card itself, after managed memory. */
static int one_after_the_other(void *arg) {
    const uint32_t *client = arg;
    int fd = (int)client[1], null = open("/dev/null", O_RDWR | O_CLOEXEC);
    uint32_t object;
    for (int i = 0; i < 20; i++) {
        if (map(fd, AT, 40 * MIB))
            return 1;
        if (wt_ask(null, client[0], 40 * MIB, &object) != VG_RM_NO_MEMORY)
            return 2;
        unmap(AT, 40 * MIB);
        if (wt_ask(null, client[0], 40 * MIB, &object) != VG_RM_OK)
            return 3;
        if (wt_give(null, client[0], object) != VG_RM_OK)
            return 4;
    }
    return 0;
}

Test(warden_managed, what_is_unmapped_is_there_for_other_memory) {
    struct wt_task t = wt_new();
    uint32_t client[2] = {fake_rm_client(t.rm, 1), (uint32_t)memfd_create("managed", MFD_CLOEXEC)};
    t.managed_fd = (int)client[1];
    wt_begin(&t, one_after_the_other, client);
    cr_expect(eq(int, wt_finish(&t), 0));
    wt_settle(&t);
    wt_free(&t);
}

struct one {
    pthread_t thread;
    int fd, i;
    atomic_int *got;
};

static void *map_one(void *arg) {
    const struct one *o = arg;
    if (!map(o->fd, AT + (uint64_t)o->i * CAP, CAP / 4))
        atomic_fetch_add(o->got, 1);
    return NULL;
}

/* At one time, so that some ask while others map. */
static int together(void *arg) {
    for (int round = 0; round < 20; round++) {
        struct one one[THREADS];
        atomic_int got = 0;
        for (int i = 0; i < THREADS; i++) {
            one[i] = (struct one){.fd = *(int *)arg, .i = i, .got = &got};
            if (pthread_create(&one[i].thread, NULL, map_one, &one[i]))
                return 1;
        }
        for (int i = 0; i < THREADS; i++)
            pthread_join(one[i].thread, NULL);
        if (got != 4)
            return 10 + got;
        for (int i = 0; i < THREADS; i++)
            unmap(AT + (uint64_t)i * CAP, CAP / 4);
    }
    return 0;
}

Test(warden_managed, threads_that_map_at_one_time_get_the_share_and_no_more, .timeout = 60) {
    in_task(together);
}
