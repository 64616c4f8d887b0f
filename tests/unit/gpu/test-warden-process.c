/* What each process of a task holds: counted by the warden, told by its thread. */
#include "base/util.h"
#include "warden-task.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* What was told, by the warden's thread. */
struct told {
    struct wt_task task; /* first: callbacks get it */
    pthread_mutex_t lock;
    struct vg_warden_process last[VG_WARDEN_SHOWN_MAX];
    size_t n;
    uint64_t tells, sums, begin_usec;
};

static void on_processes(void *ud, const struct vg_warden_process *p, size_t n) {
    struct told *o = ud;
    pthread_mutex_lock(&o->lock);
    memcpy(o->last, p, n * sizeof(*p));
    o->n = n;
    o->tells++;
    pthread_mutex_unlock(&o->lock);
}

static void on_changed(void *ud, const struct vg_warden_stat *stat) {
    struct told *o = ud;
    (void)stat;
    pthread_mutex_lock(&o->lock);
    o->sums++;
    pthread_mutex_unlock(&o->lock);
}

static struct told *told_new(void) {
    struct told *o = calloc(1, sizeof(*o));
    cr_assert(o != NULL);
    pthread_mutex_init(&o->lock, NULL);
    o->task = wt_new();
    o->task.changed = on_changed;
    o->task.processes = on_processes;
    o->begin_usec = vg_now_usec();
    return o;
}

static void told_free(struct told *o) {
    wt_free(&o->task);
    pthread_mutex_destroy(&o->lock);
    free(o);
}

static struct vg_warden_process last_of(struct told *o, size_t i, size_t *ret_n) {
    pthread_mutex_lock(&o->lock);
    struct vg_warden_process p = o->last[i];
    *ret_n = o->n;
    pthread_mutex_unlock(&o->lock);
    return p;
}

/* Two children hold 3 and 5 MiB after many changes; they say their numbers, in that order. */
static int two(void *arg) {
    const uint32_t *client = arg;
    for (unsigned i = 0; i < 2; i++) {
        if (fork() == 0) {
            int fd = open("/dev/null", O_RDWR | O_CLOEXEC);
            uint32_t object;
            for (unsigned k = 0; k < 200; k++) {
                if (wt_ask(fd, client[i], MIB * (k % 7 + 1), &object) != VG_RM_OK)
                    _exit(1);
                struct vg_rm_free f = {client[i], client[i], object, 0};
                ioctl(fd, WT_CMD(VG_RM_FREE, f), &f);
            }
            pid_t me = getpid();
            if (wt_ask(fd, client[i], MIB * (i ? 5 : 3), &object) == VG_RM_OK)
                (void)!write(3, &me, sizeof(me));
            pause();
        }
        char c;
        if (i == 0 && read(4, &c, 1) != 1)
            return 1;
    }
    while (wait(NULL) > 0)
        ;
    return 0;
}

Test(warden_process, what_each_process_holds_is_told_seldom_and_in_the_end) {
    struct told *o = told_new();
    uint32_t client[2] = {fake_rm_client(o->task.rm, 0), fake_rm_client(o->task.rm, 0)};
    int go[2];
    pid_t child[2];
    cr_assert(pipe(go) == 0);
    for (int i = 0; i < 2; i++) { /* out of the way of 4 */
        int high = fcntl(go[i], F_DUPFD, 10);
        close(go[i]);
        go[i] = high;
    }
    cr_assert(dup2(go[0], 4) == 4);
    wt_begin(&o->task, two, client);
    for (int i = 0; i < 2; i++) {
        cr_assert(vg_read_full(o->task.said, &child[i], sizeof(child[i])) == sizeof(child[i]));
        if (i == 0)
            cr_assert(write(go[1], "x", 1) == 1);
    }
    size_t n = 0;
    for (int i = 0; i < 10000 && n != 2; i++) {
        last_of(o, 0, &n);
        if (n != 2)
            usleep(1000);
    }
    cr_assert(eq(sz, n, 2));
    struct vg_warden_process a = last_of(o, 0, &n), b = last_of(o, 1, &n), look[3];
    cr_expect(eq(int, a.pid, child[0]));
    cr_expect(eq(int, a.task_pid, child[0]), "this task has no namespace of its own");
    cr_expect(eq(int, b.pid, child[1]));
    cr_expect(eq(u64, a.used_bytes, 3 * MIB));
    cr_expect(eq(u64, wt_look(&o->task).used_bytes, 8 * MIB));
    for (int i = 0; i < 10000 && (b = last_of(o, 1, &n)).used_bytes != 5 * MIB; i++)
        usleep(1000);
    cr_expect(eq(u64, b.used_bytes, 5 * MIB));
    cr_expect(eq(sz, vg_warden_look_processes(o->task.watch, look, 1), 1));
    cr_expect(eq(sz, vg_warden_look_processes(o->task.watch, look, 3), 2));
    cr_expect(eq(u64, look[1].used_bytes, 5 * MIB));

    pthread_mutex_lock(&o->lock);
    uint64_t tells = o->tells, sums = o->sums, took = vg_now_usec() - o->begin_usec;
    pthread_mutex_unlock(&o->lock);
    cr_expect(ge(u64, sums, 802), "each change of the sums is told");
    cr_expect(le(u64, tells, took * VG_WARDEN_TELLS_PER_SECOND / 1000000 + 2));

    kill(child[0], SIGKILL);
    kill(child[1], SIGKILL);
    cr_expect(eq(int, wt_finish(&o->task), 0));
    wt_settle(&o->task);
    for (int i = 0; i < 10000 && n; i++) {
        last_of(o, 0, &n);
        usleep(1000);
    }
    cr_expect(eq(sz, n, 0), "the last state was not told");
    close(go[0]);
    close(go[1]);
    close(4);
    told_free(o);
}
