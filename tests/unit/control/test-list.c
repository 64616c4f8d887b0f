/* Lists of more tasks than the loop may look through: another thread finds them, and nobody sees a
   difference. */
#include "base/util.h"
#include "control/task-search.h"
#include "world.h"

#include <sqlite3.h>
#include <string.h>

#define STORED 2000
#define RUNS UINT64_C(0x7000000000000001)

static struct world w;
static struct side agent, client, other;

static void execute(const char *sql) {
    sqlite3 *db;
    char *why = NULL;
    cr_assert_eq(sqlite3_open(w.c.home.db, &db), SQLITE_OK);
    sqlite3_busy_timeout(db, 10000);
    cr_assert_eq(sqlite3_exec(db, sql, NULL, NULL, &why), SQLITE_OK, "%s", why);
    sqlite3_close(db);
}

static void end_one(uint64_t id) {
    struct msg m = side_expect(&w, &agent, BODY(START));
    cr_assert_eq(m.env->start->task_id, id);
    msg_done(&m);
    play_started(&agent, id, 1);
    play_exited(&agent, id, 1, 0);
    expect_event(&w, &client, VG__PB__RUN_EVENT__KIND__ENDED, &m);
    msg_done(&m);
}

/* Many ended tasks, and one that runs. */
static void setup(void) {
    world_up(&w, NULL);
    w.c.list_steps = 1;
    play_agent(&w, &agent, "n1", 0, NULL, 0);
    side_open(&w, &client);
    play_run(&client, 1, NULL);
    end_one(1);
    side_sync(&w, &client);
    vg_store_flush(w.c.store);
    execute("WITH RECURSIVE n(i) AS (VALUES(2) UNION ALL SELECT i+1 FROM n WHERE i<2000)"
            " INSERT INTO tasks SELECT (SELECT max(seq) FROM tasks)+i, printf('%016x', i),"
            " user,team,pool,name,session,CASE WHEN i%500 THEN labels ELSE 'k=v' || char(10) END,"
            " state,ended,durable,cancel,interactive,attempt,node,retries_left,status,reason,"
            " reason_text,created_usec-i,started_usec,ended_usec,parent,cpu_usec,mem_peak_bytes,"
            " out_bytes,gpus,spec,who,granted,grp,fold,idx,members,preempted,preempting,due_usec,"
            " after,key,progress,command FROM tasks, n WHERE id='0000000000000001'");
    play_run(&client, RUNS, NULL);
    struct msg m = side_expect(&w, &agent, BODY(START));
    msg_done(&m);
}

static void teardown(void) {
    if (client.conn)
        side_close(&w, &client);
    if (other.conn)
        side_close(&w, &other);
    side_close(&w, &agent);
    world_down(&w);
}

TestSuite(list, .init = setup, .fini = teardown, .timeout = 120);

static void ask(const char *before, const char *name) {
    Vg__Pb__TaskQuery q = VG__PB__TASK_QUERY__INIT;
    q.has_limit = true;
    q.limit = 300;
    q.before = (char *)before;
    q.name = (char *)name;
    ENV(env, TASK_LIST, task_list, &q);
    side_send(&client, &env, NULL, 0);
}

Test(list, pages_cover_everything_once_although_rows_go) {
    static bool seen[STORED + 1];
    char next[64] = "";
    bool runs = false;
    size_t n = 0;
    do {
        ask(next, NULL);
        struct msg m = side_expect(&w, &client, BODY(TASKS));
        const Vg__Pb__TaskList *page = m.env->tasks;
        for (size_t i = 0; i < page->n_task; i++) {
            uint64_t id = page->task[i]->id;
            cr_assert(id == RUNS ? !runs : id <= STORED && !seen[id], "%llx twice",
                      (unsigned long long)id);
            if (id == RUNS)
                runs = true;
            else
                seen[id] = true;
        }
        if (!n)
            cr_expect_eq(page->total, STORED + 1);
        n += page->n_task;
        snprintf(next, sizeof next, "%s", page->next ? page->next : "");
        msg_done(&m);
        if (*next) { /* where the next page begins is removed */
            char sql[96];
            snprintf(sql, sizeof sql, "DELETE FROM tasks WHERE id='%.16s'", next);
            execute(sql);
        }
    } while (*next);
    cr_expect(runs);
    cr_expect_eq(n, STORED + 1);
}

Test(list, nothing_is_found_and_the_loop_goes_on) {
    ask(NULL, "nobody");
    side_sync(&w, &client); /* another request is answered, sooner or later */
    struct msg m = side_expect(&w, &client, BODY(TASKS));
    cr_expect_eq(m.env->tasks->n_task, 0);
    msg_done(&m);
}

Test(list, what_begins_no_page_is_refused) {
    static const char *const wrong[] = {"000000000000000g.1",  "0000000000000001.",
                                        "0000000000000001.x",  "0000000000000001.ffffffffffffffff1",
                                        "0000000000000001.-1", "nobody"};
    for (size_t i = 0; i < VG_COUNT(wrong); i++) {
        ask(wrong[i], NULL);
        struct msg m = side_expect(&w, &client, BODY(ERROR));
        cr_expect_eq(m.env->error->reason, (uint32_t)VG_NOT_FOUND, "%s", wrong[i]);
        msg_done(&m);
    }
}

Test(list, everyone_of_many_searches_is_answered_and_who_leaves_is_forgotten) {
    size_t found = 0, refused = 0, sent = 3 * VG_SEARCH_USER;
    side_open(&w, &other);
    for (size_t i = 0; i < sent; i++)
        ask(NULL, "nobody");
    side_sync(&w, &client);
    while (found + refused < sent) {
        bool error = side_has(&client, BODY(ERROR));
        struct msg m = side_expect(&w, &client, error ? BODY(ERROR) : BODY(TASKS));
        cr_expect(!error || m.env->error->reason == (uint32_t)VG_UNAVAILABLE);
        found += !error;
        refused += error;
        msg_done(&m);
    }
    cr_expect_geq(found, (size_t)VG_SEARCH_USER);
    for (size_t i = 0; i < VG_SEARCH_USER; i++)
        ask(NULL, "nobody");
    side_close(&w, &client);
    side_sync(&w, &other);
}
