/* Loading what virgad holds in memory. Each table is one query and one reader. Loop thread. */
#include "base/cleanup.h"
#include "base/fault.h"
#include "base/mem.h"
#include "base/util.h"
#include "store/read-internal.h"

#include <string.h>

#define STATEMENTS_KEPT 32

/* Statements stay with the connection when they are over and are taken again: to read a query's
   text costs more than to run one for a single row. SQLite lists a connection's statements, the
   newest first. */
int store_prepare(struct vg_store *s, const char *sql, sqlite3_stmt **ret) {
    if (vg_fault("store/read") < 0)
        return -EIO;
    for (sqlite3_stmt *q = NULL; (q = sqlite3_next_stmt(s->reader, q));)
        if (!sqlite3_stmt_busy(q) && strcmp(sqlite3_sql(q), sql) == 0) {
            *ret = q;
            return 0;
        }
    return store_errno(
        sqlite3_prepare_v3(s->reader, sql, -1, SQLITE_PREPARE_PERSISTENT, ret, NULL));
}

/* Gives one back, and the oldest up when there are many. */
static void over(sqlite3_stmt *q) {
    sqlite3_stmt *oldest = NULL;
    size_t n = 0;
    sqlite3_reset(q);
    sqlite3_clear_bindings(q);
    for (sqlite3_stmt *it = NULL; (it = sqlite3_next_stmt(sqlite3_db_handle(q), it)); n++)
        if (!sqlite3_stmt_busy(it))
            oldest = it;
    if (n > STATEMENTS_KEPT)
        sqlite3_finalize(oldest);
}

void store_close_reader(sqlite3 *db) {
    for (sqlite3_stmt *q; db && (q = sqlite3_next_stmt(db, NULL));)
        sqlite3_finalize(q);
    sqlite3_close(db);
}

int store_each(sqlite3_stmt *q, int (*fn)(void *, sqlite3_stmt *), void *ctx) {
    int rc, r = 0;
    while ((rc = vg_fault("store/read") < 0 ? SQLITE_IOERR : sqlite3_step(q)) == SQLITE_ROW)
        if ((r = fn(ctx, q)) != 0)
            break;
    if (rc != SQLITE_ROW && rc != SQLITE_DONE)
        r = store_errno(rc);
    over(q);
    return r;
}

const char *store_text(sqlite3_stmt *q, int column) {
    const char *s = (const char *)sqlite3_column_text(q, column);
    return s ? s : "";
}

struct vg_bytes store_blob(sqlite3_stmt *q, int column) {
    const void *p = sqlite3_column_blob(q, column);
    return (struct vg_bytes){p ? p : "", (size_t)sqlite3_column_bytes(q, column)};
}

uint64_t store_id(sqlite3_stmt *q, int column) {
    uint64_t id = 0;
    vg_id_parse(store_text(q, column), &id);
    return id;
}

/* READER(name, row, sql, fields): vg_store_load_<name> with its row reader. */
#define READER(name, type, sql, ...)                                                     \
    struct ctx_##name {                                                                  \
        int (*cb)(void *, const struct type *);                                          \
        void *arg;                                                                       \
    };                                                                                   \
    static int row_##name(void *ctx, sqlite3_stmt *q) {                                  \
        struct ctx_##name *c = ctx;                                                      \
        struct type row = {__VA_ARGS__};                                                 \
        return c->cb(c->arg, &row);                                                      \
    }                                                                                    \
    int vg_store_load_##name(struct vg_store *s, int (*cb)(void *, const struct type *), \
                             void *arg) {                                                \
        struct ctx_##name c = {cb, arg};                                                 \
        sqlite3_stmt *q;                                                                 \
        int r = store_prepare(s, sql, &q);                                               \
        return r < 0 ? r : store_each(q, row_##name, &c);                                \
    }

READER(nodes, vg_node_row,
       "SELECT id,name,state,labels,total,gpu_model,version,address,machine_id,joined_usec,"
       "seen_usec,cert_expires_usec FROM nodes ORDER BY id",
       .id = store_id(q, 0), .name = store_text(q, 1), .state = store_text(q, 2),
       .labels = store_text(q, 3), .total = store_blob(q, 4), .gpu_model = store_text(q, 5),
       .version = store_text(q, 6), .address = store_text(q, 7), .machine_id = store_text(q, 8),
       .joined_usec = store_u64(q, 9), .seen_usec = store_u64(q, 10),
       .cert_expires_usec = store_u64(q, 11))

READER(orgs, vg_org_row, "SELECT name,created_usec FROM orgs ORDER BY name",
       .name = store_text(q, 0), .created_usec = store_u64(q, 1))

READER(teams, vg_team_row, "SELECT name,org,created_usec FROM teams ORDER BY name",
       .name = store_text(q, 0), .org = store_text(q, 1), .created_usec = store_u64(q, 2))

READER(users, vg_user_row,
       "SELECT name,team,role,uid,gid,slot,created_usec,service,disabled,email,full_name,subject "
       "FROM users ORDER BY name",
       .name = store_text(q, 0), .team = store_text(q, 1), .role = store_text(q, 2),
       .uid = sqlite3_column_int64(q, 3), .gid = sqlite3_column_int64(q, 4),
       .slot = (uint32_t)store_u64(q, 5), .created_usec = store_u64(q, 6),
       .service = store_u64(q, 7) != 0, .disabled = store_u64(q, 8) != 0, .email = store_text(q, 9),
       .full_name = store_text(q, 10), .subject = store_text(q, 11))

READER(tokens, vg_token_row,
       "SELECT id,user,name,hash,created_usec,expires_usec,used_usec,scope FROM tokens "
       "ORDER BY id",
       .id = store_text(q, 0), .user = store_text(q, 1), .name = store_text(q, 2),
       .hash = store_blob(q, 3), .created_usec = store_u64(q, 4), .expires_usec = store_u64(q, 5),
       .used_usec = store_u64(q, 6), .scope = (uint32_t)store_u64(q, 7))

READER(secrets, vg_secret_row,
       "SELECT scope,name,version,key,wrapped,sealed,set_by,created_usec,changed_usec "
       "FROM secrets ORDER BY scope,name",
       .scope = store_text(q, 0), .name = store_text(q, 1), .version = (uint32_t)store_u64(q, 2),
       .key = store_text(q, 3), .wrapped = store_blob(q, 4), .sealed = store_blob(q, 5),
       .set_by = store_text(q, 6), .created_usec = store_u64(q, 7), .changed_usec = store_u64(q, 8))

READER(joins, vg_join_row,
       "SELECT id,hash,labels,created_usec,expires_usec,node FROM join_tokens ORDER BY id",
       .id = store_text(q, 0), .hash = store_blob(q, 1), .labels = store_text(q, 2),
       .created_usec = store_u64(q, 3), .expires_usec = store_u64(q, 4), .node = store_id(q, 5))

READER(sessions, vg_session_row,
       "SELECT user,name,pool,node,created_usec,keep_usec FROM sessions ORDER BY user,name",
       .user = store_text(q, 0), .name = store_text(q, 1), .pool = store_text(q, 2),
       .node = store_id(q, 3), .created_usec = store_u64(q, 4), .keep_usec = store_u64(q, 5))

READER(schedules, vg_schedule_row,
       "SELECT id,user,team,name,spec,who,created_usec,next_usec,last_usec,last_task,made "
       "FROM schedules ORDER BY created_usec,id",
       .id = store_id(q, 0), .user = store_text(q, 1), .team = store_text(q, 2),
       .name = store_text(q, 3), .spec = store_blob(q, 4), .who = store_blob(q, 5),
       .created_usec = store_u64(q, 6), .next_usec = store_u64(q, 7), .last_usec = store_u64(q, 8),
       .last_task = store_id(q, 9), .made = (uint32_t)store_u64(q, 10))

READER(memory, vg_memory_row, "SELECT kind,key,a,b,c,d FROM sched_memory ORDER BY kind,key",
       .kind = (uint32_t)store_u64(q, 0), .key = store_u64(q, 1),
       .value = {store_u64(q, 2), store_u64(q, 3), store_u64(q, 4), store_u64(q, 5)})

READER(prices, vg_price_row,
       "SELECT id,pool,class,from_usec,gpu_hour_micro,cpu_hour_micro,gib_hour_micro,"
       "storage_gib_month_micro,idle_milli,preemptible_milli,currency,who,set_usec "
       "FROM prices ORDER BY id",
       .id = store_u64(q, 0), .pool = store_text(q, 1), .class_name = store_text(q, 2),
       .from_usec = store_u64(q, 3), .gpu_hour_micro = store_u64(q, 4),
       .cpu_hour_micro = store_u64(q, 5), .gib_hour_micro = store_u64(q, 6),
       .storage_gib_month_micro = store_u64(q, 7), .idle_milli = (uint32_t)store_u64(q, 8),
       .preemptible_milli = (uint32_t)store_u64(q, 9), .currency = store_text(q, 10),
       .who = store_text(q, 11), .set_usec = store_u64(q, 12))

READER(budgets, vg_budget_row,
       "SELECT name,scope,period,policy,who,currency,warn,limit_micro,grace_usec,set_usec,paused,"
       "warned_percent,warned_from_usec,stopped_from_usec FROM budgets ORDER BY name",
       .name = store_text(q, 0), .scope = store_text(q, 1), .period = store_text(q, 2),
       .policy = store_text(q, 3), .who = store_text(q, 4), .currency = store_text(q, 5),
       .warn = store_text(q, 6), .limit_micro = store_u64(q, 7), .grace_usec = store_u64(q, 8),
       .set_usec = store_u64(q, 9), .paused = store_u64(q, 10) != 0,
       .warned_percent = (uint32_t)store_u64(q, 11), .warned_from_usec = store_u64(q, 12),
       .stopped_from_usec = store_u64(q, 13))

struct attempts_ctx {
    int (*cb)(void *, const struct vg_attempt_row *);
    void *arg;
};

static int row_attempt(void *ctx, sqlite3_stmt *q) {
    struct attempts_ctx *c = ctx;
    struct vg_attempt_row row = {.task = store_id(q, 0),
                                 .attempt = (uint32_t)store_u64(q, 1),
                                 .user = store_text(q, 2),
                                 .team = store_text(q, 3),
                                 .pool = store_text(q, 4),
                                 .node = store_text(q, 5),
                                 .from_usec = store_u64(q, 6),
                                 .until_usec = store_u64(q, 7),
                                 .how = store_text(q, 8),
                                 .cpu_milli = store_u64(q, 9),
                                 .mem_bytes = store_u64(q, 10),
                                 .gpu_milli = store_u64(q, 11),
                                 .cpu_usec = store_u64(q, 12),
                                 .mem_peak_bytes = store_u64(q, 13),
                                 .gpu = {.sm_milli = sqlite3_column_int64(q, 14),
                                         .sm_max = sqlite3_column_int64(q, 15),
                                         .mem_milli = sqlite3_column_int64(q, 16),
                                         .mem_max = sqlite3_column_int64(q, 17),
                                         .mem_peak_bytes = sqlite3_column_int64(q, 18),
                                         .energy_mj = sqlite3_column_int64(q, 19),
                                         .sampled_usec = sqlite3_column_int64(q, 20),
                                         .pcie_rx_bytes = sqlite3_column_int64(q, 23),
                                         .pcie_tx_bytes = sqlite3_column_int64(q, 24)},
                                 .wiped = store_text(q, 21),
                                 .gpu_held = store_u64(q, 22)};
    return c->cb(c->arg, &row);
}

int vg_store_load_attempts(struct vg_store *s, uint64_t task,
                           int (*cb)(void *, const struct vg_attempt_row *), void *arg) {
    struct attempts_ctx c = {cb, arg};
    char id[VG_ID_LEN + 1];
    sqlite3_stmt *q;
    int r = store_prepare(s,
                          "SELECT task,attempt,user,team,pool,node,from_usec,until_usec,how,"
                          "cpu_milli,mem_bytes,gpu_milli,cpu_usec,mem_peak_bytes,"
                          "coalesce(gpu_sm_milli,-1),coalesce(gpu_sm_max,-1),"
                          "coalesce(gpu_mem_milli,-1),coalesce(gpu_mem_max,-1),"
                          "coalesce(gpu_mem_peak_bytes,-1),coalesce(gpu_mj,-1),"
                          "coalesce(gpu_sampled_usec,-1),wiped,gpu_held,"
                          "coalesce(gpu_pcie_rx_bytes,-1),coalesce(gpu_pcie_tx_bytes,-1) "
                          "FROM attempts WHERE task=? "
                          "ORDER BY attempt",
                          &q);
    if (r < 0)
        return r;
    vg_id_format(task, id);
    sqlite3_bind_text(q, 1, id, -1, SQLITE_STATIC);
    return store_each(q, row_attempt, &c);
}

static int row_meta(void *ctx, sqlite3_stmt *q) {
    char **ret = ctx;
    *ret = vg_strdup(store_text(q, 0));
    return *ret ? 1 : -ENOMEM;
}

int vg_store_get_meta(struct vg_store *s, const char *key, char **ret) {
    char *value = NULL;
    sqlite3_stmt *q;
    int r = store_prepare(s, "SELECT value FROM meta WHERE key=?", &q);
    if (r < 0)
        return r;
    sqlite3_bind_text(q, 1, key, -1, SQLITE_STATIC);
    r = store_each(q, row_meta, &value);
    if (r <= 0)
        return r < 0 ? r : -ENOENT;
    *ret = value;
    return 0;
}

READER(hooks, vg_hook_row,
       "SELECT user,name,url,scope,events,sealed,paused,created_usec,sent,failed,last_usec,"
       "failing_usec,last_error FROM hooks ORDER BY user,name",
       .user = store_text(q, 0), .name = store_text(q, 1), .url = store_text(q, 2),
       .scope = store_text(q, 3), .events = store_text(q, 4), .sealed = store_blob(q, 5),
       .paused = store_u64(q, 6) != 0, .created_usec = store_u64(q, 7), .sent = store_u64(q, 8),
       .failed = store_u64(q, 9), .last_usec = store_u64(q, 10), .failing_usec = store_u64(q, 11),
       .last_error = store_text(q, 12))

READER(outbox, vg_outbox_row,
       "SELECT id,user,hook,event,body,created_usec FROM outbox ORDER BY created_usec,id",
       .id = store_text(q, 0), .user = store_text(q, 1), .hook = store_text(q, 2),
       .event = store_text(q, 3), .body = store_blob(q, 4), .created_usec = store_u64(q, 5))

struct one_blob {
    int (*cb)(void *, struct vg_bytes);
    void *arg;
    bool any;
};

static int row_blob(void *ctx, sqlite3_stmt *q) {
    struct one_blob *b = ctx;
    b->any = true;
    return b->cb(b->arg, store_blob(q, 0));
}

int vg_store_get_series(struct vg_store *s, uint64_t task, int (*cb)(void *, struct vg_bytes data),
                        void *arg) {
    struct one_blob b = {cb, arg, false};
    char hex[VG_ID_LEN + 1];
    sqlite3_stmt *q;
    int r = store_prepare(s, "SELECT data FROM series WHERE task=?", &q);
    if (r < 0)
        return r;
    vg_id_format(task, hex);
    sqlite3_bind_text(q, 1, hex, -1, SQLITE_STATIC);
    r = store_each(q, row_blob, &b);
    return r == 0 && !b.any ? -ENOENT : r;
}
