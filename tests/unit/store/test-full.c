/* A full disk: those who wait are told, what was accepted stays, what is lazy waits, and all goes
   on when there is room again. Once with SQLite's own page limit, once on a real, tiny file system.
 */
#include "base/cleanup.h"
#include "base/util.h"
#include "store-helpers.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>

static char big[64 << 10];

static struct vg_task_row big_task(uint64_t id) {
    struct vg_task_row row = helper_task(id);
    row.spec = (struct vg_bytes){big, sizeof big};
    return row;
}

static int count_ids(void *arg, const struct vg_task_row *row) {
    uint64_t *n = arg;
    n[0]++;
    n[1] += row->id;
    return 0;
}

/* Durable rows until one is refused. Returns how many were accepted. */
static uint64_t fill(struct vg_store *s, uint64_t limit) {
    for (uint64_t id = 1; id < limit; id++) {
        struct vg_task_row row = big_task(id);
        int note[2] = {0};
        cr_assert_eq(vg_store_put_task(s, &row, VG_STORE_DURABLE, helper_note, note), 0);
        vg_store_flush(s);
        cr_assert_eq(note[1], 1);
        if (note[0] < 0) {
            cr_assert_eq(note[0], -ENOSPC);
            return id - 1;
        }
    }
    cr_assert(false, "the disk never became full");
    return 0;
}

static void check_rows(struct vg_store *s, uint64_t n) {
    uint64_t got[2] = {0};
    cr_assert_eq(vg_store_load_tasks(s, count_ids, got), 0);
    cr_assert_eq(got[0], n);
    cr_assert_eq(got[1], n * (n + 1) / 2);
}

Test(full, accepted_rows_stay_and_lazy_ones_wait) {
    char dir[DIR_MAX];
    int note[2] = {0};
    helper_dir(dir);
    struct vg_store *s = helper_open(dir, &(struct vg_store_opts){.max_pages = 300});
    uint64_t n = fill(s, 1000);
    cr_assert_gt(n, 3);
    check_rows(s, n);
    struct vg_task_row lazy = big_task(n + 1);
    cr_assert_eq(vg_store_put_task(s, &lazy, VG_STORE_LAZY, helper_note, note), 0);
    cr_assert_eq(vg_store_flush(s), -ENOSPC);
    cr_assert_eq(note[1], 0, "it is not given up");
    cr_assert_eq(vg_store_backlog(s), 1);
    vg_store_close(s);
    cr_assert(note[0] == -ECANCELED && note[1] == 1, "unless the store is closed");
    s = helper_open(dir, NULL);
    check_rows(s, n);
    vg_store_close(s);
    helper_dir_done(dir);
}

/* In a child with a mount of its own. */
static void on_a_tiny_disk(void) {
    char dir[] = "/tmp/vg-tiny-XXXXXX", filler[64];
    int note[2] = {0};
    if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
        !mkdtemp(dir) || mount("tmpfs", dir, "tmpfs", 0, "size=2m") < 0)
        _exit(77);
    snprintf(filler, sizeof filler, "%s/filler", dir);
    int fd = open(filler, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    struct vg_store *s = helper_open(dir, NULL);
    if (posix_fallocate(fd, 0, 512 << 10) != 0)
        _exit(2);
    uint64_t n = fill(s, 1000);
    check_rows(s, n);
    struct vg_task_row lazy = big_task(n + 1);
    vg_store_put_task(s, &lazy, VG_STORE_LAZY, helper_note, note);
    if (vg_store_flush(s) != -ENOSPC || note[1])
        _exit(3);
    if (ftruncate(fd, 0) < 0) /* room again */
        _exit(4);
    if (vg_store_flush(s) != 0 || note[0] != 1 || note[1] != 1)
        _exit(5);
    check_rows(s, n + 1);
    vg_store_close(s);
    s = helper_open(dir, NULL);
    check_rows(s, n + 1);
    vg_store_close(s);
    close(fd);
    _exit(umount(dir) < 0 || rmdir(dir) < 0 ? 6 : 0);
}

Test(full, a_real_disk_that_fills_up_and_is_cleared) {
    pid_t pid = fork();
    if (pid == 0)
        on_a_tiny_disk();
    int status;
    cr_assert_eq(waitpid(pid, &status, 0), pid);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
        cr_skip("needs the right to mount");
    cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0, "status %x", status);
}
