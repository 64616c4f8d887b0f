/* Recorded load under a changed policy: a store as virgad writes it, played twice. */
#include "base/cleanup.h"
#include "base/util.h"
#include "sim/sim.h"
#include "sim/whatif.h"
#include "store/store.h"

#include <criterion/criterion.h>
#include <sqlite3.h>

#define START (1700000000 * VG_USEC)

static char dir[64], path[96], conf_path[96];
static sqlite3 *db;

static void sql(const char *text) {
    char *why = NULL;
    cr_assert_eq(sqlite3_exec(db, text, NULL, NULL, &why), SQLITE_OK, "%s: %s", text, why);
}

/* The schema is the store's own; the rows are written as any SQLite program could. */
static void setup(void) {
    struct vg_store *s;
    struct vg_err err = VG_ERR_INIT;
    snprintf(dir, sizeof dir, "/tmp/vg-whatif-XXXXXX");
    cr_assert_not_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/state.db", dir);
    snprintf(conf_path, sizeof conf_path, "%s/new.yaml", dir);
    struct vg_store_opts o = {.path = path};
    cr_assert_eq(vg_store_open(&o, &s, &err), 0, "%s", err.msg);
    vg_store_close(s);
    cr_assert_eq(sqlite3_open(path, &db), SQLITE_OK);
    sql("INSERT INTO teams VALUES('a','org',1),('b','org',1)");
    /* one node with 4 CPUs: Resources{cpu_milli: 4000} */
    sql("INSERT INTO nodes VALUES('00000000000000aa','n1','ready','',X'08a01f','','','','',1,1,1)");
}

static void teardown(void) {
    char cmd[128];
    sqlite3_close(db);
    for (const char *const *n =
             (const char *const[]){"state.db", "state.db-wal", "state.db-shm", "new.yaml", NULL};
         *n; n++) {
        snprintf(cmd, sizeof cmd, "%s/%s", dir, *n);
        unlink(cmd);
    }
    rmdir(dir);
}

TestSuite(whatif, .init = setup, .fini = teardown);

/* A task of 4 CPUs that became ready at `ready` and ran 100 s from `start`. */
static void record(unsigned id, const char *team, const char *user, unsigned ready,
                   unsigned start) {
    char text[1024];
    snprintf(
        text, sizeof text,
        "INSERT INTO history VALUES('%016x','%s','%s','%s','default','','',4000,0,0,0,0,50,0,0,"
        "0,7,'',0,%llu,%llu,%llu,'succeeded');"
        "INSERT INTO attempts(task, attempt, user, team, pool, node, from_usec, until_usec, how, "
        "cpu_milli, mem_bytes, gpu_milli) "
        "VALUES('%016x',1,'%s','%s','default','n1',%llu,%llu,'ended',4000,"
        "0,0)",
        id, team, user, team, (unsigned long long)(START + ready * VG_USEC),
        (unsigned long long)(START + ready * VG_USEC),
        (unsigned long long)(START + (start + 100) * VG_USEC), id, user, team,
        (unsigned long long)(START + start * VG_USEC),
        (unsigned long long)(START + (start + 100) * VG_USEC));
    sql(text);
}

static struct vg_whatif play(const struct vg_recorded *r, const char *yaml) {
    struct vg_conf c;
    struct vg_whatif w;
    struct vg_err err = VG_ERR_INIT;
    cr_assert_eq(vg_conf_parse(yaml, strlen(yaml), "new.yaml", &c, &err), 0, "%s", err.msg);
    cr_assert_eq(vg_whatif_run(r, &c, &w, &err), 0, "%s", err.msg);
    vg_conf_done(&c);
    return w;
}

static uint64_t waited_s(const struct vg_recorded *r, const struct vg_whatif *w, const char *user) {
    uint64_t sum = 0;
    for (size_t i = 0; i < r->n_tasks; i++)
        if (strcmp(r->task[i].user, user) == 0)
            sum += w->task[i].wait_usec / VG_USEC;
    return sum;
}

Test(whatif, a_heavier_queue_waits_less_and_the_other_more) {
    struct vg_recorded r;
    struct vg_err err = VG_ERR_INIT;
    for (unsigned i = 0; i < 6; i++)
        record(1 + i, i % 2 ? "b" : "a", i % 2 ? "bob" : "ann", i, i * 100);
    cr_assert_eq(vg_recorded_read(path, 0, &r, &err), 0, "%s", err.msg);
    cr_assert_eq(r.n_tasks, 6);
    struct vg_whatif fair = play(&r, "");
    struct vg_whatif heavy =
        play(&r, "queues:\n- {name: a, weight: 10}\n- {name: b, weight: 1000}\n");
    cr_assert_eq(fair.unfinished + fair.refused + heavy.unfinished + heavy.refused, 0);
    cr_assert_lt(waited_s(&r, &heavy, "bob"), waited_s(&r, &fair, "bob"));
    cr_assert_gt(waited_s(&r, &heavy, "ann"), waited_s(&r, &fair, "ann"));
    /* Whoever goes first, the six waits sum to the same. */
    cr_assert_eq(waited_s(&r, &heavy, "bob") + waited_s(&r, &heavy, "ann"),
                 waited_s(&r, &fair, "bob") + waited_s(&r, &fair, "ann"));
    vg_whatif_done(&fair);
    vg_whatif_done(&heavy);
    vg_recorded_done(&r);
}

Test(whatif, tasks_without_a_place_are_counted_and_stop_nothing) {
    struct vg_recorded r;
    struct vg_err err = VG_ERR_INIT;
    record(1, "a", "ann", 0, 0);
    record(2, "a", "ann", 0, 0);
    sql("UPDATE history SET pools='gone' WHERE task='0000000000000001'");
    cr_assert_eq(vg_recorded_read(path, 0, &r, &err), 0, "%s", err.msg);
    struct vg_whatif w = play(&r, "");
    cr_assert_eq(w.refused, 1);
    cr_assert_eq(w.unfinished, 0);
    vg_whatif_done(&w);
    vg_recorded_done(&r);
}

Test(whatif, only_what_is_asked_for_is_read) {
    struct vg_recorded r;
    struct vg_err err = VG_ERR_INIT;
    record(1, "a", "ann", 0, 0);
    record(2, "a", "ann", 5000, 5000);
    record(3, "a", "ann", 5001, 5100);
    sql("DELETE FROM attempts WHERE task='0000000000000003'"); /* cancelled while it waited */
    cr_assert_eq(vg_recorded_read(path, 1000 * VG_USEC, &r, &err), 0, "%s", err.msg);
    cr_assert_eq(r.n_tasks, 1);
    cr_assert_eq(r.task[0].id, 2);
    cr_assert_eq(r.never_ran, 1);
    cr_assert_eq(r.n_nodes, 1);
    cr_assert_eq(r.node[0].total.cpu_milli, 4000);
    cr_assert_str_eq(vg_recorded_org(&r, "b"), "org");
    vg_recorded_done(&r);
}

Test(whatif, members_of_a_gang_start_together) {
    struct vg_recorded r;
    struct vg_err err = VG_ERR_INIT;
    record(1, "a", "ann", 0, 0); /* holds the node for 100 s */
    for (unsigned i = 2; i <= 3; i++)
        record(i, "b", "bob", 1 + i, 200);
    sql("UPDATE history SET gang='00000000000000ff', members=2, cpu_milli=2000 WHERE user='bob'");
    cr_assert_eq(vg_recorded_read(path, 0, &r, &err), 0, "%s", err.msg);
    struct vg_whatif w = play(&r, "");
    cr_assert_eq(w.unfinished, 0);
    cr_assert_eq(r.task[1].gang, 0xff);
    cr_assert_eq(r.task[1].ready_usec, r.task[2].ready_usec);
    cr_assert_eq(w.task[1].wait_usec, 96 * VG_USEC, "both at 100 s, ready at 4 s");
    cr_assert_eq(w.task[2].wait_usec, 96 * VG_USEC);
    vg_whatif_done(&w);
    vg_recorded_done(&r);
}

Test(whatif, what_cannot_be_read_is_a_sentence) {
    struct vg_recorded r;
    struct vg_err err = VG_ERR_INIT;
    cr_assert_lt(vg_recorded_read("/nowhere/state.db", 0, &r, &err), 0);
    cr_assert(strstr(err.msg, "cannot open the store '/nowhere/state.db'"), "%s", err.msg);
    sql("DROP VIEW load");
    cr_assert_lt(vg_recorded_read(path, 0, &r, &err), 0);
    cr_assert(strstr(err.msg, "cannot read the recorded load"), "%s", err.msg);
    cr_assert_null(r.task);
}

Test(whatif, the_command_prints_a_line_for_each_tenant_and_pool) {
    char *argv[] = {(char *)"whatif", (char *)"--db", path,           (char *)"--conf",
                    conf_path,        (char *)"-o",   (char *)"json", NULL};
    record(1, "a", "ann", 0, 0);
    cr_assert_eq(vg_write_file(conf_path, "queues: []\n", 11, 0600), 0);
    cr_assert_eq(vg_sim_whatif(7, argv), 0);
    argv[2] = (char *)"/nowhere/x.db";
    cr_assert_eq(vg_sim_whatif(7, argv), VG_SIM_REFUSED);
    cr_assert_eq(vg_sim_whatif(1, argv), VG_SIM_REFUSED);
}
