/* The store: what is written is read back; names are unique; join tokens are used once; pages,
   prefixes and filters; migrations. Each test has a store of its own. */
#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"
#include "store-helpers.h"
#include "store/migrations.h"

#include <criterion/criterion.h>
#include <sys/stat.h>

void helper_dir(char out[static DIR_MAX]) {
    snprintf(out, DIR_MAX, "/tmp/vg-store-XXXXXX");
    cr_assert(mkdtemp(out));
}

void helper_dir_done(const char *dir) {
    static const char *const names[] = {"state.db", "state.db-wal", "state.db-shm"};
    char path[128];
    for (size_t i = 0; i < VG_COUNT(names); i++) {
        snprintf(path, sizeof path, "%s/%s", dir, names[i]);
        unlink(path);
    }
    cr_assert_eq(rmdir(dir), 0, "the store leaves nothing else behind");
}

struct vg_store *helper_open(const char *dir, const struct vg_store_opts *base) {
    char path[128];
    struct vg_store_opts o = base ? *base : (struct vg_store_opts){0};
    struct vg_err err = VG_ERR_INIT;
    struct vg_store *s = NULL;
    snprintf(path, sizeof path, "%s/state.db", dir);
    o.path = path;
    cr_assert_eq(vg_store_open(&o, &s, &err), 0, "%s", err.msg);
    return s;
}

struct vg_task_row helper_task(uint64_t id) {
    return (struct vg_task_row){.id = id,
                                .user = "ann",
                                .team = "vision",
                                .pool = "default",
                                .state = "queued",
                                .created_usec = id,
                                .spec = {"spec", 4},
                                .grant = {"g", 1}};
}

void helper_note(void *arg, int result) {
    int *note = arg;
    note[0] = result;
    note[1]++;
}

int helper_count_row(void *arg, const struct vg_task_row *row) {
    (void)row;
    ++*(int *)arg;
    return 0;
}

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

TestSuite(store, .init = setup, .fini = teardown);

static void reopen(void) {
    vg_store_close(s);
    s = helper_open(dir, NULL);
}

static int check_task(void *arg, const struct vg_task_row *row) {
    const struct vg_task_row *want = arg;
#define SAME_TEXT(f) cr_assert_str_eq(row->f, want->f ? want->f : "")
#define SAME_BOOL(f) cr_assert_eq(row->f, want->f)
#define SAME_U32 SAME_BOOL
#define SAME_I32 SAME_BOOL
#define SAME_U64 SAME_BOOL
#define SAME_ID SAME_BOOL
#define COL(column, kind, field) SAME_##kind(field);
#define BLOB_COL(column, field)                    \
    cr_assert(row->field.len == want->field.len && \
              memcmp(row->field.data, want->field.data, row->field.len) == 0);
#include "store/task-columns.tbl"
    return 0;
}

Test(store, every_field_of_a_task_survives_a_restart) {
    struct vg_task_row row = {.id = 0xfedcba9876543210,
                              .user = "ann",
                              .team = "vision",
                              .pool = "a100-1",
                              .name = "train",
                              .session = "lab",
                              .labels = "a=1\nb=2\n",
                              .state = "running",
                              .durable = true,
                              .cancel = true,
                              .interactive = true,
                              .attempt = 3,
                              .node = 0x8000000000000001,
                              .retries_left = 2,
                              .status = -5,
                              .reason = 13,
                              .reason_text = "it's \"over\"",
                              .created_usec = UINT64_MAX / 2,
                              .started_usec = 7,
                              .ended_usec = 8,
                              .parent = 9,
                              .cpu_usec = 10,
                              .mem_peak_bytes = 11,
                              .out_bytes = 12,
                              .gpus = "0,7",
                              .spec = {"a\0b", 3},
                              .group = 21,
                              .fold = 22,
                              .index = 23,
                              .members = 24,
                              .preempted = 25,
                              .preempting = true,
                              .due_usec = 26,
                              .after = "s0123456789abcdef ",
                              .key = "k",
                              .progress = "1 2",
                              .command = {"./train", 7},
                              .who = {"who", 3},
                              .grant = {"grant", 5}};
    int note[2] = {-1};
    cr_assert_eq(vg_store_put_task(s, &row, VG_STORE_DURABLE, helper_note, note), 0);
    cr_assert_eq(vg_store_flush(s), 0);
    cr_assert(note[0] == 1 && note[1] == 1);
    reopen();
    cr_assert_eq(vg_store_get_task(s, row.id, check_task, &row), 0);
    cr_assert_eq(vg_store_get_task(s, 1, check_task, &row), -ENOENT);
    row.state = "succeeded";
    row.ended = true;
    row.labels = "";
    struct vg_task_row change = row;
    change.spec = change.who = change.grant = (struct vg_bytes){0};
    cr_assert_eq(vg_store_put_task(s, &change, VG_STORE_LAZY, NULL, NULL), 0);
    vg_store_flush(s);
    cr_assert_eq(vg_store_get_task(s, row.id, check_task, &row), 0, "an update keeps the spec");
}

Test(store, an_update_of_nothing_makes_nothing) {
    struct vg_task_row row = helper_task(5);
    int n = 0;
    row.spec = (struct vg_bytes){0};
    vg_store_put_task(s, &row, VG_STORE_COMMIT, NULL, NULL);
    vg_store_flush(s);
    vg_store_load_tasks(s, helper_count_row, &n);
    cr_assert_eq(n, 0);
}

static int collect(void *arg, const struct vg_task_row *row) {
    uint64_t **at = arg;
    *(*at)++ = row->id;
    return 0;
}

Test(store, unfinished_tasks_are_loaded_oldest_first) {
    uint64_t got[8] = {0}, *at = got;
    for (uint64_t id = 4; id >= 1; id--) {
        struct vg_task_row row = helper_task(id);
        row.ended = id == 2;
        vg_store_put_task(s, &row, VG_STORE_LAZY, NULL, NULL);
    }
    vg_store_flush(s);
    cr_assert_eq(vg_store_load_tasks(s, collect, &at), 0);
    cr_assert(at - got == 3 && got[0] == 1 && got[1] == 3 && got[2] == 4);
}

Test(store, pages_cover_everything_once) {
    struct vg_task_filter f = {.limit = 7, .user = "ann"};
    uint64_t seen = 0;
    for (uint64_t id = 1; id <= 50; id++) {
        struct vg_task_row row = helper_task(id);
        row.created_usec = id / 5; /* many at the same time */
        vg_store_put_task(s, &row, VG_STORE_LAZY, NULL, NULL);
    }
    vg_store_flush(s);
    for (int page = 0; page < 8; page++) {
        uint64_t got[8] = {0}, *at = got;
        cr_assert_eq(vg_store_query_tasks(s, &f, collect, &at), 0);
        cr_assert_eq(at - got, page < 7 ? 7 : 1);
        for (uint64_t *i = got; i < at; i++) {
            cr_assert_not(seen >> *i & 1, "task %d twice", (int)*i);
            seen |= 1ULL << *i;
        }
        f.before_id = at[-1];
        f.before_usec = at[-1] / 5;
    }
    cr_assert_eq(seen, ((1ULL << 51) - 1) & ~1ULL);
    uint64_t n;
    cr_assert_eq(vg_store_count_tasks(s, &f, &n), 0);
    cr_assert_eq(n, 50);
}

Test(store, a_search_that_takes_long_is_given_up_and_another_thread_finds_the_same) {
    const char *const labels[] = {"k=v"};
    struct vg_task_filter f = {.limit = 7, .label = labels, .n_labels = 1};
    uint64_t got[8] = {0}, *at = got, ids[7], n = 0;
    size_t found = 0;
    atomic_bool stop = false;
    for (uint64_t id = 1; id <= 2000; id++) {
        struct vg_task_row row = helper_task(id);
        row.created_usec = id;
        row.labels = id % 300 ? "" : "k=v\n";
        vg_store_put_task(s, &row, VG_STORE_LAZY, NULL, NULL);
    }
    vg_store_flush(s);
    f.steps = 1;
    cr_assert_eq(vg_store_query_tasks(s, &f, collect, &at), -ECANCELED);
    cr_assert_eq(vg_store_count_tasks(s, &f, &n), -ECANCELED);
    f.steps = 0;
    at = got;
    cr_assert_eq(vg_store_query_tasks(s, &f, collect, &at), 0, "the next one is not bounded");
    cr_assert_eq(at - got, 6);
    cr_assert_eq(vg_store_scan_tasks(vg_store_path(s), &f, &stop, ids, &found, &n), 0);
    cr_assert_eq(found, 6);
    cr_assert_eq(n, 6);
    cr_assert_eq(memcmp(ids, got, found * sizeof *ids), 0);
    stop = true;
    cr_assert_eq(vg_store_scan_tasks(vg_store_path(s), &f, &stop, ids, &found, &n), -ECANCELED);
}

Test(store, filters_narrow) {
    const struct {
        uint64_t id;
        const char *user, *pool, *name, *state, *labels;
    } rows[] = {
        {1, "ann", "a", "x", "queued", "k=v\n"},
        {2, "ann", "b", "x", "running", "k=vv\nj=1\n"},
        {3, "bob", "a", "y", "failed", "j=1\nk=v\n"},
        {4, "bob", "b", "", "queued", ""},
    };
    const char *const states[] = {"queued", "failed"};
    const char *const labels[] = {"k=v", "j=1"};
    const struct {
        struct vg_task_filter f;
        uint64_t set;
    } table[] = {
        {{0}, 0x1e},
        {{.user = "ann"}, 0x06},
        {{.pool = "b"}, 0x14},
        {{.name = "x"}, 0x06},
        {{.name = ""}, 0},
        {{.state = states, .n_states = 2}, 0x1a},
        {{.label = labels, .n_labels = 1}, 0x0a},
        {{.label = labels, .n_labels = 2}, 0x08},
        {{.user = "bob", .state = states, .n_states = 1}, 0x10},
        {{.only_ended = true}, 0x08},
        {{.user = "' OR 1=1 --"}, 0},
    };
    for (size_t i = 0; i < VG_COUNT(rows); i++) {
        struct vg_task_row row = helper_task(rows[i].id);
        row.user = rows[i].user;
        row.pool = rows[i].pool;
        row.name = rows[i].name;
        row.state = rows[i].state;
        row.labels = rows[i].labels;
        row.ended = rows[i].id == 3;
        vg_store_put_task(s, &row, VG_STORE_LAZY, NULL, NULL);
    }
    vg_store_flush(s);
    for (size_t i = 0; i < VG_COUNT(table); i++) {
        uint64_t got[8] = {0}, *at = got, set = 0, n = 99;
        cr_assert_eq(vg_store_query_tasks(s, &table[i].f, collect, &at), 0);
        for (uint64_t *k = got; k < at; k++)
            set |= 1ULL << *k;
        cr_assert_eq(set, table[i].set, "filter %zu: %llx", i, (unsigned long long)set);
        cr_assert_eq(vg_store_count_tasks(s, &table[i].f, &n), 0);
        cr_assert_eq(n, (uint64_t)__builtin_popcountll(set));
    }
    struct vg_task_filter big = {.state = states, .n_states = VG_TASK_FILTER_MAX + 1};
    uint64_t *none = NULL;
    cr_assert_eq(vg_store_query_tasks(s, &big, collect, &none), -E2BIG);
}

Test(store, prefixes_are_found_when_unique) {
    const uint64_t ids[] = {0xabc0000000000001, 0xabc0000000000002, 0xabd0000000000000, 0xf};
    uint64_t id;
    for (size_t i = 0; i < VG_COUNT(ids); i++) {
        struct vg_task_row row = helper_task(ids[i]);
        row.created_usec = i;
        row.name = i < 2 ? "twin" : "";
        row.user = i == 1 ? "bob" : "ann";
        vg_store_put_task(s, &row, VG_STORE_LAZY, NULL, NULL);
    }
    vg_store_flush(s);
    cr_assert_eq(vg_store_find_prefix(s, "abd", NULL, &id), 0);
    cr_assert_eq(id, ids[2]);
    cr_assert_eq(vg_store_find_prefix(s, "ABD", NULL, &id), 0);
    cr_assert_eq(vg_store_find_prefix(s, "abc", NULL, &id), -EBUSY);
    cr_assert_eq(vg_store_find_prefix(s, "abc", "bob", &id), 0);
    cr_assert_eq(id, ids[1]);
    cr_assert_eq(vg_store_find_prefix(s, "abc0000000000001", NULL, &id), 0);
    cr_assert_eq(vg_store_find_prefix(s, "000", NULL, &id), 0);
    cr_assert_eq(vg_store_find_prefix(s, "0001", NULL, &id), -ENOENT);
    cr_assert_eq(vg_store_find_prefix(s, "", NULL, &id), -ENOENT);
    cr_assert_eq(vg_store_find_prefix(s, "ab%", NULL, &id), -ENOENT);
    cr_assert_eq(vg_store_find_prefix(s, "abc00000000000011", NULL, &id), -ENOENT);
    cr_assert_eq(vg_store_find_name(s, "twin", NULL, &id), 0);
    cr_assert_eq(id, ids[1], "the newest");
    cr_assert_eq(vg_store_find_name(s, "twin", "ann", &id), 0);
    cr_assert_eq(id, ids[0]);
    cr_assert_eq(vg_store_find_name(s, "", NULL, &id), -ENOENT);
}

Test(store, pruning_takes_only_what_ended_long_ago) {
    int note[2] = {0}, n = 0;
    for (uint64_t id = 1; id <= 10; id++) {
        struct vg_task_row row = helper_task(id);
        row.ended = id != 1;
        row.ended_usec = row.ended ? id : 0;
        vg_store_put_task(s, &row, VG_STORE_LAZY, NULL, NULL);
    }
    vg_store_prune_tasks(s, 6, 3, helper_note, note);
    vg_store_flush(s);
    cr_assert_eq(note[0], 3);
    vg_store_prune_tasks(s, 6, 100, helper_note, note);
    vg_store_flush(s);
    cr_assert_eq(note[0], 1);
    struct vg_task_filter f = {0};
    vg_store_query_tasks(s, &f, helper_count_row, &n);
    cr_assert_eq(n, 6);
}

static int last_user(void *arg, const struct vg_user_row *row) {
    struct vg_user_row *u = arg;
    *u = *row;
    u->name = strdup(row->name);
    u->team = u->role = NULL;
    return 0;
}
static int count_tokens(void *arg, const struct vg_token_row *row) {
    cr_assert(row->hash.len == 4 && memcmp(row->hash.data, "\0\1\2\3", 4) == 0);
    ++*(int *)arg;
    return 0;
}

Test(store, users_are_unique_and_take_their_tokens_with_them) {
    struct vg_user_row ann = {.name = "ann", .team = "t", .role = "member", .uid = -1, .slot = 1};
    struct vg_user_row bob = {.name = "bob", .team = "t", .role = "admin", .uid = 7, .slot = 1};
    struct vg_token_row token = {
        .id = "t1", .user = "ann", .name = "laptop", .hash = {"\0\1\2\3", 4}};
    int a[2] = {0}, b[2] = {0}, c[2] = {0}, n = 0;
    vg_store_add_user(s, &ann, helper_note, a);
    vg_store_add_user(s, &ann, helper_note, b);
    vg_store_add_user(s, &bob, helper_note, c);
    vg_store_flush(s);
    cr_assert(a[0] == 1 && b[0] == -EEXIST && c[0] == -EEXIST, "name, then slot");
    ann.role = "lead";
    vg_store_put_user(s, &ann, helper_note, a);
    vg_store_add_token(s, &token, helper_note, b);
    vg_store_add_token(s, &token, helper_note, c);
    vg_store_touch_token(s, "t1", 99);
    reopen();
    cr_assert(a[0] == 1 && b[0] == 1 && c[0] == -EEXIST);
    struct vg_user_row got = {0};
    cr_assert_eq(vg_store_load_users(s, last_user, &got), 0);
    cr_assert(got.name && strcmp(got.name, "ann") == 0 && got.uid == -1);
    free((char *)got.name);
    vg_store_load_tokens(s, count_tokens, &n);
    cr_assert_eq(n, 1);
    vg_store_del_user(s, "ann", helper_note, a);
    vg_store_del_user(s, "ann", helper_note, b);
    vg_store_flush(s);
    cr_assert(a[0] == 1 && b[0] == -ENOENT);
    n = 0;
    vg_store_load_tokens(s, count_tokens, &n);
    cr_assert_eq(n, 0);
}

Test(store, a_join_token_is_used_by_exactly_one_node) {
    struct vg_join_row join = {.id = "j", .hash = {"h", 1}, .expires_usec = 100};
    int a[2] = {0}, b[2] = {0}, c[2] = {0}, d[2] = {0};
    vg_store_add_join(s, &join, NULL, NULL);
    vg_store_use_join(s, "j", 5, 100, helper_note, a);
    vg_store_use_join(s, "j", 6, 99, helper_note, b);
    vg_store_use_join(s, "j", 7, 99, helper_note, c);
    vg_store_use_join(s, "k", 7, 99, helper_note, d);
    vg_store_flush(s);
    cr_assert_eq(a[0], -ENOENT, "expired");
    cr_assert_eq(b[0], 1);
    cr_assert_eq(c[0], -ENOENT);
    cr_assert_eq(d[0], -ENOENT);
}

static int check_node(void *arg, const struct vg_node_row *row) {
    cr_assert(row->id == 5 && row->seen_usec == 9 && row->total.len == 3);
    cr_assert_str_eq(row->state, "draining");
    ++*(int *)arg;
    return 0;
}
static int check_session(void *arg, const struct vg_session_row *row) {
    cr_assert(row->node == 5 && row->keep_usec == 60);
    ++*(int *)arg;
    return 0;
}
static int check_audit(void *arg, const struct vg_audit_row *row) {
    cr_assert_str_eq(row->what, *(int *)arg == 0 ? "second" : "first");
    ++*(int *)arg;
    return 0;
}
static int count_team(void *arg, const struct vg_team_row *row) {
    cr_assert_str_eq(row->org, "org");
    ++*(int *)arg;
    return 0;
}

Test(store, the_other_tables_come_back) {
    struct vg_node_row node = {.id = 5, .name = "n", .state = "ready", .total = {"abc", 3}};
    struct vg_session_row session = {.user = "ann", .name = "lab", .node = 5, .keep_usec = 60};
    int n = 0;
    char *value = NULL;
    vg_store_put_node(s, &node, VG_STORE_LAZY, NULL, NULL);
    node.state = "draining";
    node.seen_usec = 9;
    vg_store_put_node(s, &node, VG_STORE_COMMIT, NULL, NULL);
    vg_store_put_session(s, &session, VG_STORE_LAZY, NULL, NULL);
    vg_store_audit(s, &(struct vg_audit_row){1, "ann", "first"});
    vg_store_audit(s, &(struct vg_audit_row){2, "ann", "second"});
    vg_store_put_org(s, &(struct vg_org_row){"org", 1}, NULL, NULL);
    vg_store_put_team(s, &(struct vg_team_row){"vision", "org", 1}, NULL, NULL);
    vg_store_put_meta(s, "cloud", "one", VG_STORE_LAZY, NULL, NULL);
    vg_store_put_meta(s, "cloud", "two", VG_STORE_LAZY, NULL, NULL);
    reopen();
    cr_assert(vg_store_load_nodes(s, check_node, &n) == 0 && n == 1);
    cr_assert(vg_store_load_sessions(s, check_session, &n) == 0 && n == 2);
    n = 0;
    cr_assert(vg_store_load_audit(s, &(struct vg_audit_filter){.limit = 10}, check_audit, &n) ==
                  0 &&
              n == 2);
    cr_assert(vg_store_load_teams(s, count_team, &n) == 0 && n == 3);
    cr_assert_eq(vg_store_get_meta(s, "cloud", &value), 0);
    cr_assert_str_eq(value, "two");
    free(value);
    cr_assert_eq(vg_store_get_meta(s, "none", &value), -ENOENT);
    int a[2] = {0};
    vg_store_del_session(s, "ann", "lab", helper_note, a);
    vg_store_flush(s);
    cr_assert_eq(a[0], 1);
    vg_store_del_node(s, 5, VG_STORE_COMMIT, helper_note, a);
    vg_store_flush(s);
    cr_assert_eq(a[0], 1);
}

Test(store, the_file_is_its_owners_alone) {
    char path[128];
    struct stat st;
    snprintf(path, sizeof path, "%s/state.db", dir);
    cr_assert_eq(stat(path, &st), 0);
    cr_assert_eq(st.st_mode & 0777, 0600);
}

static void queue_another(void *arg, int result) {
    struct vg_task_row row = helper_task(2);
    int *note = arg;
    helper_note(note, result);
    if (note[1] == 1)
        cr_assert_eq(vg_store_put_task(s, &row, VG_STORE_COMMIT, queue_another, note), 0);
}

Test(store, callbacks_may_queue_more) {
    struct vg_task_row row = helper_task(1);
    int note[2] = {0};
    vg_store_put_task(s, &row, VG_STORE_COMMIT, queue_another, note);
    vg_store_flush(s);
    vg_store_flush(s);
    cr_assert_eq(note[1], 2);
}

/* --- batch --- */

static int note_id(void *arg, const struct vg_task_row *row) {
    *(uint64_t *)arg = row->id;
    return 0;
}

static int count_found(const struct vg_task_filter *f) {
    int n = 0;
    cr_assert_eq(vg_store_query_tasks(s, f, helper_count_row, &n), 0);
    return n;
}

Test(store, members_are_added_without_a_spec_and_found_under_their_group) {
    struct vg_task_row g = helper_task(1), m = helper_task(2), c = helper_task(3);
    g.members = 2;
    g.name = "sweep";
    g.command = (struct vg_bytes){"./Train.py", 10};
    m.group = m.fold = 1;
    m.index = 1;
    m.state = "failed";
    m.status = 3;
    m.ended = true;
    m.spec = (struct vg_bytes){0};
    c.parent = c.fold = 9;
    c.key = "once";
    cr_assert_eq(vg_store_put_task(s, &m, VG_STORE_COMMIT, NULL, NULL), 0);
    cr_assert_eq(vg_store_flush(s), 0);
    uint64_t id = 0;
    cr_assert_eq(vg_store_get_task(s, 2, note_id, &id), -ENOENT, "only an update");
    m.insert = true;
    vg_store_put_task(s, &m, VG_STORE_COMMIT, NULL, NULL);
    vg_store_put_task(s, &c, VG_STORE_COMMIT, NULL, NULL);
    vg_store_put_task(s, &g, VG_STORE_COMMIT, NULL, NULL);
    cr_assert_eq(vg_store_flush(s), 0);
    int n = 0;
    cr_assert_eq(vg_store_load_folded(s, 1, helper_count_row, &n), 0);
    cr_assert_eq(n, 1);
    cr_assert_eq(count_found(&(struct vg_task_filter){.top = true}), 1);
    cr_assert_eq(count_found(&(struct vg_task_filter){.fold = 1}), 1);
    cr_assert_eq(count_found(&(struct vg_task_filter){.search = "train"}), 1);
    cr_assert_eq(count_found(&(struct vg_task_filter){.search = "SWEE"}), 1);
    cr_assert_eq(count_found(&(struct vg_task_filter){.search = "nothing"}), 0);
    cr_assert_eq(count_found(&(struct vg_task_filter){.since_usec = 2}), 2);
    cr_assert_eq(vg_store_find_key(s, "ann", "once", &id), 0);
    cr_assert_eq(id, 3);
    cr_assert_eq(vg_store_find_key(s, "bob", "once", &id), -ENOENT);
    cr_assert_eq(vg_store_find_key(s, "ann", "", &id), -ENOENT);
    cr_assert_eq(vg_store_find_sibling(s, "sweep", "ann", 0, &id), 0);
    cr_assert_eq(vg_store_find_sibling(s, "sweep", "ann", 9, &id), -ENOENT);
    cr_assert_eq(vg_store_load_tasks(s, note_id, &id), 0);
    cr_assert_eq(id, 3, "groups come first, whatever their age");
}

static int check_schedule(void *arg, const struct vg_schedule_row *row) {
    cr_assert_eq(row->id, 5);
    cr_assert_str_eq(row->name, "nightly");
    cr_assert(row->spec.len == 4 && memcmp(row->spec.data, "spec", 4) == 0);
    cr_assert(row->next_usec == 11 && row->last_task == 8 && row->made == 3);
    ++*(int *)arg;
    return 0;
}

Test(store, a_schedule_keeps_its_template_when_it_moves_on) {
    struct vg_schedule_row row = {.id = 5, .user = "ann", .name = "nightly", .spec = {"spec", 4}};
    int n = 0, note[2] = {0};
    vg_store_put_schedule(s, &row, VG_STORE_DURABLE, NULL, NULL);
    row.spec = (struct vg_bytes){0};
    row.next_usec = 11;
    row.last_task = 8;
    row.made = 3;
    vg_store_put_schedule(s, &row, VG_STORE_LAZY, NULL, NULL);
    reopen();
    cr_assert_eq(vg_store_load_schedules(s, check_schedule, &n), 0);
    cr_assert_eq(n, 1);
    vg_store_del_schedule(s, 5, helper_note, note);
    vg_store_del_schedule(s, 5, helper_note, note);
    vg_store_flush(s);
    cr_assert(note[1] == 2 && note[0] == -ENOENT);
}

/* --- migrations --- */

static int64_t version_of(sqlite3 *db) {
    sqlite3_stmt *q;
    cr_assert_eq(sqlite3_prepare_v2(db, "SELECT max(version) FROM schema_version", -1, &q, NULL),
                 0);
    cr_assert_eq(sqlite3_step(q), SQLITE_ROW);
    int64_t v = sqlite3_column_int64(q, 0);
    sqlite3_finalize(q);
    return v;
}

static const char *const history[] = {
    "CREATE TABLE a(x);",
    "CREATE TABLE b(y); INSERT INTO a VALUES(1);",
    "ALTER TABLE a ADD COLUMN z; UPDATE a SET z=x+1;",
};

Test(migrate, every_version_reaches_the_newest) {
    for (size_t from = 0; from <= 3; from++) {
        struct vg_err err = VG_ERR_INIT;
        sqlite3 *db;
        cr_assert_eq(sqlite3_open(":memory:", &db), 0);
        cr_assert_eq(vg_migrate(db, "x", history, from, &err), 0, "%s", err.msg);
        cr_assert_eq(version_of(db), (int64_t)from);
        cr_assert_eq(vg_migrate(db, "x", history, 3, &err), 0, "%s", err.msg);
        cr_assert_eq(vg_migrate(db, "x", history, 3, &err), 0, "again changes nothing");
        cr_assert_eq(version_of(db), 3);
        sqlite3_close(db);
    }
}

Test(migrate, children_of_the_first_schema_are_folded) {
    struct vg_err err = VG_ERR_INIT;
    sqlite3 *db;
    sqlite3_stmt *q;
    cr_assert_eq(sqlite3_open(":memory:", &db), SQLITE_OK);
    cr_assert_eq(vg_migrate(db, "x", vg_migrations, 1, &err), 0, "%s", err.msg);
    cr_assert_eq(sqlite3_exec(db,
                              "INSERT INTO tasks(id,user,team,pool,name,session,labels,state,ended,"
                              "durable,cancel,interactive,attempt,node,retries_left,status,reason,"
                              "reason_text,created_usec,started_usec,ended_usec,parent,cpu_usec,"
                              "mem_peak_bytes,out_bytes,gpus,spec,who,granted) VALUES('2','a','t',"
                              "'p','','','','queued',0,0,0,0,0,'',0,0,0,'',5,0,0,'1',0,0,0,'',"
                              "X'',X'',X'')",
                              NULL, NULL, NULL),
                 SQLITE_OK, "%s", sqlite3_errmsg(db));
    cr_assert_eq(vg_migrate(db, "x", vg_migrations, vg_n_migrations, &err), 0, "%s", err.msg);
    cr_assert_eq(sqlite3_prepare_v2(db, "SELECT fold FROM tasks", -1, &q, NULL), SQLITE_OK);
    cr_assert_eq(sqlite3_step(q), SQLITE_ROW);
    cr_assert_str_eq((const char *)sqlite3_column_text(q, 0), "1");
    sqlite3_finalize(q);
    sqlite3_close(db);
}

Test(migrate, a_newer_database_is_refused_and_a_broken_step_leaves_no_trace) {
    struct vg_err err = VG_ERR_INIT;
    sqlite3 *db;
    const char *const broken[] = {history[0], "CREATE TABLE c(x); NONSENSE;"};
    cr_assert_eq(sqlite3_open(":memory:", &db), 0);
    cr_assert_lt(vg_migrate(db, "x", broken, 2, &err), 0);
    cr_assert_null(strstr(err.msg, "not an error"), "%s", err.msg);
    cr_assert_eq(version_of(db), 1);
    cr_assert_neq(sqlite3_exec(db, "SELECT * FROM c", NULL, NULL, NULL), 0);
    cr_assert_eq(vg_migrate(db, "x", history, 3, &err), 0);
    cr_assert_eq(vg_migrate(db, "x", history, 2, &err), -ENOTSUP);
    cr_assert_str_eq(err.msg, "the database x was written by a newer virgad (schema 3, this one "
                              "knows 2); upgrade virgad");
    sqlite3_close(db);
}

Test(migrate, what_is_no_database_is_told) {
    char d[DIR_MAX], path[128];
    struct vg_err err = VG_ERR_INIT;
    struct vg_store *none = NULL;
    helper_dir(d);
    snprintf(path, sizeof path, "%s/state.db", d);
    cr_assert_eq(vg_write_file(path, "this is not a database, whatever its name says.", 47, 0600),
                 0);
    cr_assert_lt(vg_store_open(&(struct vg_store_opts){.path = path}, &none, &err), 0);
    cr_assert(strstr(err.msg, path) && strstr(err.msg, "not a database"), "%s", err.msg);
    cr_assert_null(none);
    cr_assert_lt(vg_store_open(&(struct vg_store_opts){.path = "/nonexistent/x"}, &none, &err), 0);
    helper_dir_done(d);
}
