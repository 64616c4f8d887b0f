/* The loop and the writer at full speed, without a test framework, so that the thread sanitizer can
   run it: three kinds of writes mixed, reads between, every callback counted, every row found. With
   an argument: that many tasks; prints a line with the rate. */
#include "base/util.h"
#include "store/store.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

static uint64_t told, failed;

static void note(void *arg, int result) {
    (void)arg;
    told++;
    failed += result != 1;
}

static void wake(void *arg) {
    uint64_t one = 1;
    if (write(*(int *)arg, &one, sizeof one) < 0)
        abort();
}

static int count(void *arg, const struct vg_task_row *row) {
    (void)row;
    ++*(uint64_t *)arg;
    return 0;
}

static void put(struct vg_store *s, uint64_t id, uint64_t step) {
    static char spec[2000];
    static const char *const states[] = {"queued", "running", "succeeded"};
    struct vg_task_row row = {.id = id,
                              .user = "ann",
                              .state = states[step],
                              .created_usec = id,
                              .spec = {spec, step ? 0 : sizeof spec}};
    enum vg_store_sync sync = step ? VG_STORE_LAZY : id % 16 ? VG_STORE_COMMIT : VG_STORE_DURABLE;
    if (vg_store_put_task(s, &row, sync, note, NULL) < 0)
        abort();
}

static void run(struct vg_store *s, int fd, uint64_t tasks) {
    for (uint64_t id = 1; id <= tasks; id++) {
        for (uint64_t step = 0; step < 3; step++)
            put(s, id, step);
        struct pollfd p = {.fd = fd, .events = POLLIN};
        uint64_t n;
        if (poll(&p, 1, 0) == 1 && read(fd, &n, sizeof n) == sizeof n)
            vg_store_dispatch(s);
        if (id % 1000 == 0 && vg_store_count_tasks(s, &(struct vg_task_filter){0}, &n) < 0)
            abort();
    }
}

int main(int argc, char **argv) {
    char dir[] = "/tmp/vg-stress-XXXXXX", path[64];
    uint64_t tasks = 3000, rows = 0;
    struct vg_store *s;
    struct vg_err err = VG_ERR_INIT;
    int fd = eventfd(0, EFD_CLOEXEC);
    if ((argc > 1 && vg_parse_u64(argv[1], &tasks) < 0) || !mkdtemp(dir))
        return 2;
    snprintf(path, sizeof path, "%s/state.db", dir);
    struct vg_store_opts o = {.path = path, .notify = wake, .notify_arg = &fd};
    if (vg_store_open(&o, &s, &err) < 0)
        return fprintf(stderr, "%s\n", err.msg), 1;
    uint64_t begin = vg_now_usec();
    run(s, fd, tasks);
    vg_store_flush(s);
    uint64_t usec = vg_now_usec() - begin;
    vg_store_load_tasks(s, count, &rows);
    vg_store_close(s);
    unlink(path);
    rmdir(dir);
    printf("%llu writes told, %llu failed, %llu rows, %.0f writes/s\n", (unsigned long long)told,
           (unsigned long long)failed, (unsigned long long)rows,
           (double)told * 1e6 / (double)(usec ? usec : 1));
    return told == 3 * tasks && failed == 0 && rows == tasks ? 0 : 1;
}
