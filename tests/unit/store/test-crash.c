/* kill -9 in the middle of writing: every operation whose callback had reported success is there
   when the file is opened again. The child tells each success through a pipe before the parent
   kills it at an operation count drawn from a fixed seed, so nothing depends on how fast anything
   is. */
#include "base/cleanup.h"
#include "base/util.h"
#include "store-helpers.h"

#include <criterion/criterion.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/wait.h>

#define ROUNDS 25
#define IN_FLIGHT 16

struct child {
    struct vg_store *s;
    int out, wake;
    uint64_t next;
};

struct ticket {
    struct child *c;
    uint64_t id;
};

static void put_next(struct child *c);

static void acknowledged(void *arg, int result) {
    struct ticket *t = arg;
    struct child *c = t->c;
    if (result != 1 || write(c->out, &t->id, sizeof t->id) != sizeof t->id)
        _exit(1);
    free(t);
    put_next(c);
}

/* Durable and merely committed ones mixed, with lazy ones between that promise nothing. */
static void put_next(struct child *c) {
    struct ticket *t = malloc(sizeof *t);
    *t = (struct ticket){c, ++c->next};
    struct vg_task_row row = helper_task(t->id);
    struct vg_task_row lazy = helper_task(t->id | 1ULL << 40);
    enum vg_store_sync sync = t->id % 3 ? VG_STORE_COMMIT : VG_STORE_DURABLE;
    if (vg_store_put_task(c->s, &lazy, VG_STORE_LAZY, NULL, NULL) < 0 ||
        vg_store_put_task(c->s, &row, sync, acknowledged, t) < 0)
        _exit(2);
}

static void wake(void *arg) {
    uint64_t one = 1;
    if (write(*(int *)arg, &one, sizeof one) < 0)
        _exit(3);
}

static void write_for_ever(const char *dir, int out, uint64_t first) {
    struct child c = {.out = out, .wake = eventfd(0, 0), .next = first};
    c.s = helper_open(dir, &(struct vg_store_opts){.notify = wake, .notify_arg = &c.wake});
    for (int i = 0; i < IN_FLIGHT; i++)
        put_next(&c);
    for (uint64_t n; read(c.wake, &n, sizeof n) == sizeof n;)
        vg_store_dispatch(c.s);
    _exit(4);
}

/* Reads `count` acknowledgements, kills, then reads what was on its way. Returns the highest id. */
static uint64_t kill_after(const char *dir, uint64_t first, unsigned count, bool *seen) {
    int pipefd[2];
    uint64_t id, highest = first;
    cr_assert_eq(pipe(pipefd), 0);
    pid_t pid = fork();
    if (pid == 0) {
        close(pipefd[0]);
        write_for_ever(dir, pipefd[1], first);
    }
    close(pipefd[1]);
    for (unsigned n = 0; read(pipefd[0], &id, sizeof id) == sizeof id;) {
        seen[id] = true;
        highest = VG_MAX(highest, id);
        if (++n == count)
            kill(pid, SIGKILL);
    }
    int status;
    cr_assert_eq(waitpid(pid, &status, 0), pid);
    cr_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL, "status %x", status);
    close(pipefd[0]);
    return highest;
}

static int mark(void *arg, const struct vg_task_row *row) {
    bool *there = arg;
    cr_assert(row->spec.len == 4 && memcmp(row->spec.data, "spec", 4) == 0, "rows are whole");
    if (row->id < 1 << 20)
        there[row->id] = true;
    return 0;
}

Test(crash, what_was_acknowledged_is_there_after_kill_9, .timeout = 110) {
    static bool seen[1 << 20], there[1 << 20];
    char dir[DIR_MAX];
    uint64_t seed = 12345, highest = 0;
    helper_dir(dir);
    for (int round = 0; round < ROUNDS; round++) {
        seed = seed * 6364136223846793005ULL + 1442695040888963407ULL;
        highest = kill_after(dir, highest + IN_FLIGHT, 1 + (unsigned)(seed >> 33) % 100, seen);
        memset(there, 0, sizeof there);
        struct vg_store *s = helper_open(dir, NULL);
        cr_assert_eq(vg_store_load_tasks(s, mark, there), 0);
        for (uint64_t id = 1; id <= highest; id++)
            cr_assert(!seen[id] || there[id], "round %d: task %d was acknowledged and is gone",
                      round, (int)id);
        vg_store_close(s);
    }
    helper_dir_done(dir);
}
