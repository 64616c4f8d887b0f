/* Every allocation and every step of SQL fails once: opening, migrating, beginning, executing,
   committing, reading. Afterwards the file holds exactly what was acknowledged. The store writes
   inline here, so that the fault hits in the order of the calls. */
#include "base/cleanup.h"
#include "base/util.h"
#include "fault.h"
#include "store/store.h"

#include <unistd.h>

#define TASKS 6

struct run {
    char dir[64], path[96];
    int result[TASKS + 1]; /* 0: not told */
    int error;             /* what was armed */
    bool there[TASKS + 1];
};

static void note(void *arg, int result) {
    int *at = arg;
    cr_assert_eq(*at, 0, "told twice");
    *at = result;
}

static int mark(void *arg, const struct vg_task_row *row) {
    struct run *run = arg;
    cr_assert(row->id >= 1 && row->id <= TASKS);
    run->there[row->id] = true;
    return 0;
}

static void clean(struct run *run) {
    static const char *const ends[] = {"", "-wal", "-shm"};
    char path[128];
    for (size_t i = 0; i < VG_COUNT(ends); i++) {
        snprintf(path, sizeof path, "%s%s", run->path, ends[i]);
        unlink(path);
    }
}

static void put(struct vg_store *s, struct run *run, uint64_t id, enum vg_store_sync sync) {
    struct vg_task_row row = {
        .id = id, .user = "ann", .state = "queued", .created_usec = id, .spec = {"spec", 4}};
    int r = vg_store_put_task(s, &row, sync, note, &run->result[id]);
    cr_assert(r == 0 || r == -ENOMEM);
    if (r < 0)
        run->result[id] = r;
}

static void write_some(struct run *run, struct vg_store *s) {
    for (uint64_t id = 1; id <= TASKS; id++) {
        put(s, run, id,
            id % 3 == 0   ? VG_STORE_LAZY
            : id % 3 == 1 ? VG_STORE_COMMIT
                          : VG_STORE_DURABLE);
        if (id % 2 == 0)
            vg_store_flush(s);
    }
    int r = vg_store_load_tasks(s, mark, run);
    cr_assert(r == 0 || r == -EIO || r == -ENOMEM, "%d", r);
}

/* What the file says when nothing fails any more. */
static void check_file(struct run *run) {
    struct vg_store *s = NULL;
    struct vg_err err = VG_ERR_INIT;
    memset(run->there, 0, sizeof run->there);
    cr_assert_eq(
        vg_store_open(&(struct vg_store_opts){.path = run->path, .inline_writes = true}, &s, &err),
        0, "%s", err.msg);
    cr_assert_eq(vg_store_load_tasks(s, mark, run), 0);
    for (int id = 1; id <= TASKS; id++)
        cr_assert_eq(run->there[id], run->result[id] > 0, "task %d was told %d", id,
                     run->result[id]);
    vg_store_close(s);
}

static void body(void *ctx, bool armed) {
    struct run *run = ctx;
    struct vg_store *s = NULL;
    struct vg_err err = VG_ERR_INIT;
    (void)armed;
    clean(run);
    memset(run->result, 0, sizeof run->result);
    int r =
        vg_store_open(&(struct vg_store_opts){.path = run->path, .inline_writes = true}, &s, &err);
    if (r < 0) {
        cr_assert_null(s);
        cr_assert(err.msg[0] && err.code == r);
    } else {
        write_some(run, s);
        vg_store_close(s);
        for (int id = 1; id <= TASKS; id++)
            cr_assert_neq(run->result[id], 0, "task %d was never told", id);
    }
    int64_t rest = vg_fault_countdown;
    vg_fault_countdown = 0; /* the check itself is not to fail */
    check_file(run);
    vg_fault_countdown = rest;
}

static void each(const char *only, int error, unsigned at_least) {
    struct run run = {.dir = "/tmp/vg-fault-XXXXXX", .error = error};
    cr_assert(mkdtemp(run.dir));
    snprintf(run.path, sizeof run.path, "%s/state.db", run.dir);
    unsigned n = fault_each(error, only, body, &run);
    cr_assert_geq(n, at_least, "only %u passages of %s", n, only);
    clean(&run);
    cr_assert_eq(rmdir(run.dir), 0);
}

Test(store_fault, every_allocation) {
    each("alloc", ENOMEM, 9);
}
Test(store_fault, every_step_on_a_full_disk) {
    each("store/", ENOSPC, 25);
}
Test(store_fault, every_step_on_a_broken_disk) {
    each("store/", EIO, 25);
}

/* The writer is told nothing but the error: a lazy row that failed is written by the next pass. */
Test(store_fault, lazy_rows_are_tried_again) {
    struct run run = {.dir = "/tmp/vg-fault-XXXXXX"};
    struct vg_store *s = NULL;
    struct vg_err err = VG_ERR_INIT;
    cr_assert(mkdtemp(run.dir));
    snprintf(run.path, sizeof run.path, "%s/state.db", run.dir);
    cr_assert_eq(
        vg_store_open(&(struct vg_store_opts){.path = run.path, .inline_writes = true}, &s, &err),
        0);
    put(s, &run, 1, VG_STORE_LAZY);
    put(s, &run, 2, VG_STORE_DURABLE);
    put(s, &run, 3, VG_STORE_LAZY);
    vg_fault_arm(1, ENOSPC, "store/commit");
    cr_assert_eq(vg_store_flush(s), -ENOSPC);
    cr_assert(vg_fault_disarm());
    cr_assert(run.result[1] == 0 && run.result[2] == -ENOSPC && run.result[3] == 0);
    cr_assert_eq(vg_store_flush(s), 0);
    cr_assert(run.result[1] == 1 && run.result[3] == 1);
    vg_store_close(s);
    check_file(&run);
    clean(&run);
    rmdir(run.dir);
}
