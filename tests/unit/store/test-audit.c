/* The audit log: a chain that shows what was done to it, and pages of it. */
#include "base/cleanup.h"
#include "base/fault.h"
#include "base/util.h"
#include "store-helpers.h"
#include "store/audit.h"

#include <criterion/criterion.h>
#include <sqlite3.h>
#include <stdio.h>
#include <string.h>

static char dir[DIR_MAX], path[DIR_MAX + 32];
static struct vg_store *s;

static void note(unsigned from, unsigned until) {
    for (unsigned i = from; i <= until; i++) {
        char what[32];
        snprintf(what, sizeof what, "act %u", i);
        struct vg_audit_row row = {
            .when_usec = i, .who = i % 2 ? "ann" : "bob", .what = what, .from = "local"};
        cr_assert_eq(vg_store_audit(s, &row), 0);
    }
    cr_assert_eq(vg_store_flush(s), 0);
}

static void setup(void) {
    helper_dir(dir);
    snprintf(path, sizeof path, "%s/state.db", dir);
    s = helper_open(dir, NULL);
    note(1, 9);
}

static void teardown(void) {
    vg_store_close(s);
    helper_dir_done(dir);
}

TestSuite(audit, .init = setup, .fini = teardown);

static int tamper(const char *sql) {
    sqlite3 *db = NULL;
    cr_assert_eq(sqlite3_open(path, &db), SQLITE_OK);
    int rc = sqlite3_exec(db, sql, NULL, NULL, NULL);
    sqlite3_close(db);
    return rc;
}

static struct vg_audit_check look(const uint8_t *head) {
    struct vg_audit_check c = {0};
    struct vg_err err = VG_ERR_INIT;
    cr_assert_eq(vg_audit_check(path, head, &c, &err), 0, "%s", err.msg);
    return c;
}

Test(audit, what_was_noted_is_a_chain) {
    struct vg_audit_check c = look(NULL);
    cr_assert(c.entries == 9 && !c.broken);
    note(10, 10);
    struct vg_audit_check more = look(c.head);
    cr_assert(more.entries == 10 && !more.broken && more.head_found);
    cr_assert_neq(memcmp(more.head, c.head, VG_AUDIT_HASH), 0);
    uint8_t other[VG_AUDIT_HASH] = {1};
    cr_assert(!look(other).head_found);
}

Test(audit, nothing_in_it_can_be_changed) {
    cr_assert_neq(tamper("UPDATE audit SET who='eve' WHERE seq=3"), SQLITE_OK);
    cr_assert_neq(tamper("DELETE FROM audit WHERE seq=9"), SQLITE_OK);
    cr_assert_neq(tamper("DELETE FROM audit"), SQLITE_OK);
    cr_assert_eq(look(NULL).broken, 0);
}

Test(audit, whoever_goes_around_that_is_found_out) {
    static const struct {
        const char *sql;
        uint64_t broken;
        bool gap;
    } table[] = {
        {"UPDATE audit SET who='eve' WHERE seq=3", 3, false},
        {"UPDATE audit SET what='' WHERE seq=1", 1, false},
        {"UPDATE audit SET origin='elsewhere' WHERE seq=9", 9, false},
        {"UPDATE audit SET when_usec=when_usec+1 WHERE seq=4", 4, false},
        {"UPDATE audit SET hash=zeroblob(32) WHERE seq=5", 5, false},
        {"UPDATE audit SET hash=X'' WHERE seq=6", 6, false},
        {"DELETE FROM audit WHERE seq=1", 2, true},
        {"DELETE FROM audit WHERE seq=7", 8, true},
        {"DELETE FROM audit WHERE seq=7; UPDATE audit SET seq=seq-1 WHERE seq>7", 7, false},
        {"UPDATE audit SET who='an', what='nact 1' WHERE seq=1", 1, false},
    };
    struct vg_audit_check before = look(NULL);
    cr_assert_eq(tamper("DROP TRIGGER audit_stays; DROP TRIGGER audit_is_fixed;"
                        "CREATE TABLE kept AS SELECT * FROM audit"),
                 SQLITE_OK);
    for (size_t i = 0; i < VG_COUNT(table); i++) {
        cr_assert_eq(tamper(table[i].sql), SQLITE_OK, "%s", table[i].sql);
        struct vg_audit_check c = look(NULL);
        cr_expect(c.broken == table[i].broken && c.gap == table[i].gap, "%s: %llu", table[i].sql,
                  (unsigned long long)c.broken);
        cr_assert_eq(tamper("DELETE FROM audit; INSERT INTO audit SELECT * FROM kept"), SQLITE_OK);
        cr_assert_eq(look(NULL).broken, 0);
    }
    cr_assert_eq(tamper("DELETE FROM audit WHERE seq>7"), SQLITE_OK);
    struct vg_audit_check cut = look(before.head);
    cr_assert(!cut.broken && cut.entries == 7 && !cut.head_found);
}

Test(audit, a_log_of_before_is_chained_when_it_is_opened) {
    struct vg_audit_check before = look(NULL);
    cr_assert_eq(tamper("DROP TRIGGER audit_is_fixed; UPDATE audit SET hash=X''"), SQLITE_OK);
    vg_store_close(s);
    s = helper_open(dir, NULL);
    struct vg_audit_check after = look(NULL);
    cr_assert(after.entries == 9 && !after.broken);
    cr_assert_eq(memcmp(after.head, before.head, VG_AUDIT_HASH), 0);
    note(10, 12);
    cr_assert(look(before.head).head_found && !look(NULL).broken);
}

struct seen {
    uint64_t seq[16];
    size_t n;
};

static int keep(void *arg, const struct vg_audit_row *row) {
    struct seen *x = arg;
    cr_assert_eq(row->hash.len, VG_AUDIT_HASH);
    cr_assert_str_eq(row->from, "local");
    x->seq[x->n++] = row->seq;
    return 0;
}

Test(audit, pages_and_filters) {
    static const struct {
        struct vg_audit_filter f;
        uint64_t first, last;
        size_t n;
    } table[] = {
        {{.limit = 3}, 9, 7, 3},          {{.before = 7, .limit = 3}, 6, 4, 3},
        {{.before = 1}, 0, 0, 0},         {{.after = 7}, 8, 9, 2},
        {{.user = "ann"}, 9, 1, 5},       {{.search = "ACT 4"}, 4, 4, 1},
        {{.search = "BOB"}, 8, 2, 4},     {{.since_usec = 8}, 9, 8, 2},
        {{.search = "no such"}, 0, 0, 0}, {{.user = "an"}, 0, 0, 0},
    };
    for (size_t i = 0; i < VG_COUNT(table); i++) {
        struct seen x = {0};
        cr_assert_eq(vg_store_load_audit(s, &table[i].f, keep, &x), 0);
        cr_expect_eq(x.n, table[i].n, "%zu", i);
        cr_expect(!x.n || (x.seq[0] == table[i].first && x.seq[x.n - 1] == table[i].last), "%zu",
                  i);
    }
}

Test(audit, what_waits_for_the_store_comes_after_what_was_queued) {
    int told[2] = {0};
    struct vg_audit_row row = {.when_usec = 10, .who = "ann", .what = "late", .from = ""};
    vg_store_audit(s, &row);
    cr_assert_eq(vg_store_then(s, helper_note, told), 0);
    while (!told[1])
        vg_store_flush(s);
    cr_assert_geq(told[0], 0);
    cr_assert_eq(look(NULL).entries, 10);
}

static uint64_t entries(void) {
    return look(NULL).entries;
}

static void note_one(const char *what) {
    struct vg_audit_row row = {.when_usec = 1, .who = "ann", .what = what, .from = "local"};
    cr_assert_eq(vg_store_audit(s, &row), 0);
}

/* The writer is not held: it takes whatever it finds. */
Test(audit, what_is_queued_together_is_written_together) {
    struct vg_org_row org = {.name = "acme", .created_usec = 1};
    int told[2] = {0};
    uint64_t before = entries();
    vg_store_group_begin(s);
    note_one("organisation acme added"); /* first, but it is written after the change */
    cr_assert_eq(vg_store_put_org(s, &org, helper_note, told), 0);
    vg_store_group_begin(s);
    note_one("and another");
    vg_store_group_end(s);
    cr_assert_eq(vg_store_backlog(s), 3, "the writer has seen nothing of it");
    vg_store_group_end(s);
    vg_store_flush(s);
    cr_assert_eq(told[1], 1);
    cr_assert_eq(entries(), before + 2);
}

Test(audit, what_did_not_happen_is_not_in_the_log) {
    struct vg_user_row user = {.name = "bob", .team = "main", .role = "member", .slot = 7};
    int first[2] = {0}, second[2] = {0};
    uint64_t before = entries();
    cr_assert_eq(vg_store_add_user(s, &user, helper_note, first), 0);
    vg_store_group_begin(s);
    cr_assert_eq(vg_store_add_user(s, &user, helper_note, second), 0);
    note_one("user bob added");
    vg_store_group_end(s);
    note_one("something else, in a group of its own");
    vg_store_flush(s);
    cr_assert_geq(first[0], 0);
    cr_assert_eq(second[0], -EEXIST);
    cr_assert_eq(entries(), before + 1);
    cr_assert_eq(look(NULL).broken, 0);
}

/* The next commit fails; returns how many entries there are. A group is begun. */
static uint64_t begin_on_a_full_disk(void) {
    vg_store_close(s);
    s = helper_open(dir, &(struct vg_store_opts){.inline_writes = true});
    uint64_t before = entries();
    vg_fault_arm(1, ENOSPC, "store/commit");
    vg_store_group_begin(s);
    return before;
}

static void end_on_a_full_disk(const char *entry, const int *told) {
    note_one(entry);
    vg_store_group_end(s);
    vg_store_flush(s);
    cr_assert(vg_fault_disarm());
    cr_assert_eq(told[0], -ENOSPC);
}

/* A full disk: who waits is told, and the entry goes with him; who does not, stays in the queue. */
Test(audit, a_transaction_that_fails_takes_its_entries_along) {
    struct vg_user_row user = {.name = "zoe", .team = "main", .role = "member", .slot = 77};
    int told[2] = {0};
    uint64_t before = begin_on_a_full_disk();
    cr_assert_eq(vg_store_add_user(s, &user, helper_note, told), 0);
    end_on_a_full_disk("user zoe added", told);
    cr_assert_eq(entries(), before);
    vg_fault_arm(1, ENOSPC, "store/commit");
    note_one("by itself");
    vg_store_flush(s);
    cr_assert(vg_fault_disarm());
    cr_assert_eq(entries(), before);
    vg_store_flush(s);
    cr_assert_eq(entries(), before + 1, "retried until it is written");
    cr_assert_eq(look(NULL).broken, 0);
}

static int count_org(void *arg, const struct vg_org_row *row) {
    *(int *)arg += strcmp(row->name, "acme") == 0;
    return 0;
}

static int orgs(void) {
    int n = 0;
    cr_assert_eq(vg_store_load_orgs(s, count_org, &n), 0);
    return n;
}

/* A full disk, of what memory has and shows already: who waits is told at once and once; it is
   stored with its entry when there is room. */
Test(audit, a_change_that_memory_has_is_stored_with_its_entry_when_there_is_room) {
    struct vg_org_row org = {.name = "acme", .created_usec = 1};
    int told[2] = {0};
    uint64_t before = begin_on_a_full_disk();
    cr_assert_eq(vg_store_put_org(s, &org, helper_note, told), 0);
    end_on_a_full_disk("organisation acme added", told);
    cr_assert_eq(orgs(), 0);
    cr_assert_eq(entries(), before);
    told[0] = 5;
    vg_store_flush(s);
    cr_assert_eq(told[0], 5, "he was told already");
    cr_assert_eq(orgs(), 1);
    cr_assert_eq(entries(), before + 1);
    cr_assert_eq(look(NULL).broken, 0);
}

static int add_numbers(void *arg, const struct vg_audit_row *row) {
    uint64_t *sum = arg;
    *sum = *sum * 31 + row->seq;
    return 0;
}

Test(audit, a_thread_of_its_own_reads_the_same_pages) {
    const struct vg_audit_filter filters[] = {
        {0}, {.before = 5}, {.after = 3, .limit = 2}, {.user = "ann"}, {.search = "ACT 7"}};
    for (size_t i = 0; i < VG_COUNT(filters); i++) {
        uint64_t here = 0, there = 0;
        cr_assert_eq(vg_store_load_audit(s, &filters[i], add_numbers, &here), 0);
        cr_assert_eq(vg_audit_scan(path, &filters[i], add_numbers, &there), 0);
        cr_assert(here && here == there, "filter %zu", i);
    }
    cr_assert_lt(vg_audit_scan("/nowhere/state.db", &filters[0], add_numbers, &(uint64_t){0}), 0);
}
