/* What was held and the load as it came: rows that replace themselves, sums, pruning. */
#include "base/util.h"
#include "store-helpers.h"

#include <criterion/criterion.h>
#include <sqlite3.h>
#include <stdio.h>

static char dir[DIR_MAX];
static struct vg_store *s;

static void setup(void) {
    helper_dir(dir);
    s = helper_open(dir, NULL);
}

static void teardown(void) {
    vg_store_close(s);
    helper_dir_done(dir);
}

TestSuite(history, .init = setup, .fini = teardown);

static void put(uint64_t task, uint32_t attempt, uint64_t from, uint64_t until, const char *how) {
    struct vg_attempt_row a = {.task = task,
                               .attempt = attempt,
                               .user = "ann",
                               .team = "vision",
                               .pool = "p",
                               .node = "n1",
                               .from_usec = from,
                               .until_usec = until,
                               .how = how,
                               .cpu_milli = 500,
                               .gpu_milli = 2000,
                               .cpu_usec = until - from,
                               .gpu = {.sm_milli = 12345,
                                       .sm_max = 90,
                                       .mem_milli = -1,
                                       .mem_max = -1,
                                       .mem_peak_bytes = -1,
                                       .energy_mj = (int64_t)until * 10,
                                       .sampled_usec = 5,
                                       .pcie_rx_bytes = 1LL << 40,
                                       .pcie_tx_bytes = -1},
                               .wiped = "processes: 2\nfiles: 1\n"};
    cr_assert_eq(vg_store_put_attempt(s, &a, VG_STORE_LAZY, NULL, NULL), 0);
}

static void put_task(uint64_t task, uint64_t end) {
    struct vg_history_row h = {.task = task,
                               .queue = "research/vision",
                               .user = "ann",
                               .team = "vision",
                               .pools = "p,q",
                               .gpus = 2,
                               .priority = 50,
                               .kin = UINT64_MAX - 5,
                               .submit_usec = 1,
                               .ready_usec = 2,
                               .end_usec = end,
                               .outcome = "succeeded"};
    cr_assert_eq(vg_store_put_history(s, &h), 0);
}

/* One number from the file, as any other program would read it. */
static int64_t ask(const char *sql) {
    char path[128];
    sqlite3 *db;
    sqlite3_stmt *q;
    vg_store_flush(s);
    snprintf(path, sizeof path, "%s/state.db", dir);
    cr_assert_eq(sqlite3_open_v2(path, &db, SQLITE_OPEN_READONLY, NULL), SQLITE_OK);
    cr_assert_eq(sqlite3_prepare_v2(db, sql, -1, &q, NULL), SQLITE_OK, "%s", sqlite3_errmsg(db));
    cr_assert_eq(sqlite3_step(q), SQLITE_ROW);
    int64_t v = sqlite3_column_int64(q, 0);
    sqlite3_finalize(q);
    sqlite3_close(db);
    return v;
}

static int sum_attempts(void *arg, const struct vg_attempt_row *row) {
    uint64_t *sum = arg;
    cr_assert_str_eq(row->node, "n1");
    *sum += row->until_usec - row->from_usec;
    return 0;
}

Test(history, an_end_that_is_said_twice_counts_once) {
    uint64_t sum = 0;
    put(7, 1, 100, 150, "preempted");
    put(7, 2, 200, 290, "ended");
    put(7, 2, 200, 300, "ended");
    put_task(7, 300);
    put_task(7, 300);
    vg_store_flush(s);
    cr_assert_eq(vg_store_load_attempts(s, 7, sum_attempts, &sum), 0);
    cr_assert_eq(sum, 150);
    cr_assert_eq(ask("SELECT count(*) FROM history"), 1);
}

static int last_use(void *arg, const struct vg_attempt_row *row) {
    *(struct vg_gpu_row *)arg = row->gpu;
    return 0;
}

Test(history, what_was_used_of_gpus_is_kept_and_what_nobody_told_is_null) {
    struct vg_gpu_row gpu = {0};
    put(7, 1, 100, 150, "ended");
    put(7, 1, 100, 160, "ended");
    vg_store_flush(s);
    cr_assert_eq(vg_store_load_attempts(s, 7, last_use, &gpu), 0);
    cr_assert_eq(gpu.sm_milli, 12345);
    cr_assert_eq(gpu.sm_max, 90);
    cr_assert_eq(gpu.mem_milli, -1);
    cr_assert_eq(gpu.mem_peak_bytes, -1);
    cr_assert_eq(gpu.energy_mj, 1600, "as it was told last");
    cr_assert_eq(gpu.sampled_usec, 5);
    cr_assert_eq(gpu.pcie_rx_bytes, 1LL << 40);
    cr_assert_eq(gpu.pcie_tx_bytes, -1);
    cr_assert_eq(ask("SELECT gpu_mem_milli IS NULL AND gpu_mj=1600 AND cpu_usec=60 FROM attempts"),
                 1);
}

static int last_wipe(void *arg, const struct vg_attempt_row *row) {
    snprintf(arg, 64, "%s", row->wiped);
    return 0;
}

Test(history, what_was_wiped_after_an_attempt_is_kept) {
    char wiped[64] = "";
    put(7, 1, 100, 150, "ended");
    vg_store_flush(s);
    cr_assert_eq(vg_store_load_attempts(s, 7, last_wipe, wiped), 0);
    cr_assert_str_eq(wiped, "processes: 2\nfiles: 1\n");
}

Test(history, the_load_has_what_a_replay_needs) {
    put(7, 1, 100, 150, "lost");
    put(7, 2, 200, 300, "ended");
    put_task(7, 300);
    put_task(8, 5);
    cr_assert_eq(ask("SELECT count(*) FROM load"), 2);
    cr_assert_eq(ask("SELECT start_usec FROM load WHERE task='0000000000000007'"), 100);
    cr_assert_eq(ask("SELECT run_usec FROM load WHERE task='0000000000000007'"), 100);
    cr_assert_eq(ask("SELECT held_usec FROM load WHERE task='0000000000000007'"), 150);
    cr_assert_eq(ask("SELECT attempts FROM load WHERE task='0000000000000007'"), 2);
    cr_assert_eq(ask("SELECT start_usec+run_usec+attempts FROM load WHERE task LIKE '%8'"), 0);
    cr_assert_eq((uint64_t)ask("SELECT kin FROM load WHERE task LIKE '%7'"), UINT64_MAX - 5);
}

Test(history, old_rows_go_in_portions) {
    for (uint64_t i = 1; i <= 10; i++) {
        put(i, 1, 0, i * 10, "ended");
        put_task(i, i * 10);
    }
    cr_assert_eq(vg_store_prune_history(s, 60, 3), 0);
    cr_assert_eq(ask("SELECT count(*) FROM attempts"), 7);
    cr_assert_eq(vg_store_prune_history(s, 60, 30), 0);
    cr_assert_eq(ask("SELECT min(until_usec) FROM attempts"), 60);
    cr_assert_eq(ask("SELECT min(end_usec) FROM history"), 60);
}

static int take_memory(void *arg, const struct vg_memory_row *row) {
    struct vg_memory_row *last = arg;
    *last = *row;
    return 0;
}

Test(history, what_was_not_saved_again_is_forgotten) {
    struct vg_memory_row a = {.kind = 1, .key = UINT64_MAX, .value = {1, 2, 3, UINT64_MAX}},
                         b = {.kind = 2, .key = 9}, last = {0};
    cr_assert_eq(vg_store_put_memory(s, &a, 100), 0);
    cr_assert_eq(vg_store_put_memory(s, &b, 100), 0);
    a.value[0] = 5;
    cr_assert_eq(vg_store_put_memory(s, &a, 200), 0);
    cr_assert_eq(vg_store_prune_memory(s, 200), 0);
    cr_assert_eq(ask("SELECT count(*) FROM sched_memory"), 1);
    cr_assert_eq(vg_store_load_memory(s, take_memory, &last), 0);
    cr_assert(last.key == UINT64_MAX && last.value[0] == 5 && last.value[3] == UINT64_MAX);
}
