/* The schema, version by version. Ids are 16 hex digits, "" for none; times wall microseconds. */
#include "store/migrations.h"

#include "base/cleanup.h"
#include "base/fault.h"

const char *const vg_migrations[] = {
    /* 1 */
    "CREATE TABLE meta(key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;"
    "CREATE TABLE orgs(name TEXT PRIMARY KEY, created_usec INTEGER NOT NULL);"
    "CREATE TABLE teams(name TEXT PRIMARY KEY, org TEXT NOT NULL, created_usec INTEGER NOT NULL);"
    "CREATE TABLE users(name TEXT PRIMARY KEY, team TEXT NOT NULL, role TEXT NOT NULL,"
    " uid INTEGER NOT NULL, gid INTEGER NOT NULL, slot INTEGER NOT NULL UNIQUE,"
    " created_usec INTEGER NOT NULL);"
    "CREATE TABLE tokens(id TEXT PRIMARY KEY, user TEXT NOT NULL, name TEXT NOT NULL,"
    " hash BLOB NOT NULL, created_usec INTEGER NOT NULL, expires_usec INTEGER NOT NULL,"
    " used_usec INTEGER NOT NULL);"
    "CREATE INDEX tokens_user ON tokens(user);"
    "CREATE TRIGGER users_gone AFTER DELETE ON users BEGIN"
    " DELETE FROM tokens WHERE user=OLD.name; END;"
    "CREATE TABLE join_tokens(id TEXT PRIMARY KEY, hash BLOB NOT NULL, labels TEXT NOT NULL,"
    " created_usec INTEGER NOT NULL, expires_usec INTEGER NOT NULL, node TEXT NOT NULL);"
    "CREATE TABLE nodes(id TEXT PRIMARY KEY, name TEXT NOT NULL, state TEXT NOT NULL,"
    " labels TEXT NOT NULL, total BLOB NOT NULL, gpu_model TEXT NOT NULL, version TEXT NOT NULL,"
    " address TEXT NOT NULL, machine_id TEXT NOT NULL, joined_usec INTEGER NOT NULL,"
    " seen_usec INTEGER NOT NULL, cert_expires_usec INTEGER NOT NULL);"
    "CREATE TABLE tasks(seq INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, user TEXT NOT NULL,"
    " team TEXT NOT NULL, pool TEXT NOT NULL, name TEXT NOT NULL, session TEXT NOT NULL,"
    " labels TEXT NOT NULL, state TEXT NOT NULL, ended INTEGER NOT NULL,"
    " durable INTEGER NOT NULL, cancel INTEGER NOT NULL, interactive INTEGER NOT NULL,"
    " attempt INTEGER NOT NULL, node TEXT NOT NULL, retries_left INTEGER NOT NULL,"
    " status INTEGER NOT NULL, reason INTEGER NOT NULL, reason_text TEXT NOT NULL,"
    " created_usec INTEGER NOT NULL, started_usec INTEGER NOT NULL, ended_usec INTEGER NOT NULL,"
    " parent TEXT NOT NULL, cpu_usec INTEGER NOT NULL, mem_peak_bytes INTEGER NOT NULL,"
    " out_bytes INTEGER NOT NULL, gpus TEXT NOT NULL, spec BLOB NOT NULL, who BLOB NOT NULL,"
    " granted BLOB NOT NULL);"
    "CREATE INDEX tasks_created ON tasks(created_usec, id);"
    "CREATE INDEX tasks_user ON tasks(user, created_usec, id);"
    "CREATE INDEX tasks_open ON tasks(created_usec, id) WHERE ended=0;"
    "CREATE INDEX tasks_ended ON tasks(ended_usec) WHERE ended=1;"
    "CREATE INDEX tasks_name ON tasks(name, created_usec) WHERE name<>'';"
    "CREATE TABLE sessions(user TEXT NOT NULL, name TEXT NOT NULL, pool TEXT NOT NULL,"
    " node TEXT NOT NULL, created_usec INTEGER NOT NULL, keep_usec INTEGER NOT NULL,"
    " PRIMARY KEY(user, name)) WITHOUT ROWID;"
    "CREATE TABLE audit(seq INTEGER PRIMARY KEY, when_usec INTEGER NOT NULL, who TEXT NOT NULL,"
    " what TEXT NOT NULL);",
    /* 2: groups, dependencies, keys, schedules. Children of the first schema are folded, too. */
    "ALTER TABLE tasks ADD COLUMN grp TEXT NOT NULL DEFAULT '';"
    "ALTER TABLE tasks ADD COLUMN fold TEXT NOT NULL DEFAULT '';"
    "ALTER TABLE tasks ADD COLUMN idx INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE tasks ADD COLUMN members INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE tasks ADD COLUMN preempted INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE tasks ADD COLUMN preempting INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE tasks ADD COLUMN due_usec INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE tasks ADD COLUMN after TEXT NOT NULL DEFAULT '';"
    "ALTER TABLE tasks ADD COLUMN key TEXT NOT NULL DEFAULT '';"
    "ALTER TABLE tasks ADD COLUMN progress TEXT NOT NULL DEFAULT '';"
    "ALTER TABLE tasks ADD COLUMN command BLOB NOT NULL DEFAULT X'';"
    "UPDATE tasks SET fold=parent WHERE parent<>'';"
    "CREATE INDEX tasks_fold ON tasks(fold, idx) WHERE fold<>'';"
    "CREATE INDEX tasks_top ON tasks(created_usec, id) WHERE fold='' AND ended=1;"
    "CREATE INDEX tasks_top_user ON tasks(user, created_usec, id) WHERE fold='' AND ended=1;"
    "CREATE INDEX tasks_key ON tasks(user, key) WHERE key<>'';"
    "CREATE TABLE schedules(id TEXT PRIMARY KEY, user TEXT NOT NULL, team TEXT NOT NULL,"
    " name TEXT NOT NULL, spec BLOB NOT NULL, who BLOB NOT NULL, created_usec INTEGER NOT NULL,"
    " next_usec INTEGER NOT NULL, last_usec INTEGER NOT NULL, last_task TEXT NOT NULL,"
    " made INTEGER NOT NULL) WITHOUT ROWID;",
    /* 3: what was held by whom and when, the load as it came, what the scheduler has learnt. See
       docs/history.md; virga-sim reads `load`. */
    "CREATE TABLE attempts(task TEXT NOT NULL, attempt INTEGER NOT NULL, user TEXT NOT NULL,"
    " team TEXT NOT NULL, pool TEXT NOT NULL, node TEXT NOT NULL, from_usec INTEGER NOT NULL,"
    " until_usec INTEGER NOT NULL, how TEXT NOT NULL, cpu_milli INTEGER NOT NULL,"
    " mem_bytes INTEGER NOT NULL, gpu_milli INTEGER NOT NULL,"
    " PRIMARY KEY(task, attempt)) WITHOUT ROWID;"
    "CREATE INDEX attempts_until ON attempts(until_usec);"
    "CREATE TABLE history(task TEXT PRIMARY KEY, queue TEXT NOT NULL, user TEXT NOT NULL,"
    " team TEXT NOT NULL, pools TEXT NOT NULL, models TEXT NOT NULL, labels TEXT NOT NULL,"
    " cpu_milli INTEGER NOT NULL, mem_bytes INTEGER NOT NULL, gpus INTEGER NOT NULL,"
    " gpu_milli INTEGER NOT NULL, gpu_mem_bytes INTEGER NOT NULL, priority INTEGER NOT NULL,"
    " preemptible INTEGER NOT NULL, fixed INTEGER NOT NULL, limit_usec INTEGER NOT NULL,"
    " kin INTEGER NOT NULL, gang TEXT NOT NULL, members INTEGER NOT NULL,"
    " submit_usec INTEGER NOT NULL, ready_usec INTEGER NOT NULL, end_usec INTEGER NOT NULL,"
    " outcome TEXT NOT NULL) WITHOUT ROWID;"
    "CREATE INDEX history_submit ON history(submit_usec);"
    "CREATE INDEX history_end ON history(end_usec);"
    "CREATE VIEW load AS SELECT h.*,"
    " coalesce((SELECT min(from_usec) FROM attempts a WHERE a.task=h.task), 0) AS start_usec,"
    " coalesce((SELECT until_usec-from_usec FROM attempts a WHERE a.task=h.task"
    "  ORDER BY attempt DESC LIMIT 1), 0) AS run_usec,"
    " coalesce((SELECT sum(until_usec-from_usec) FROM attempts a WHERE a.task=h.task), 0)"
    "  AS held_usec,"
    " (SELECT count(*) FROM attempts a WHERE a.task=h.task) AS attempts"
    " FROM history h;"
    "CREATE TABLE sched_memory(kind INTEGER NOT NULL, key INTEGER NOT NULL, a INTEGER NOT NULL,"
    " b INTEGER NOT NULL, c INTEGER NOT NULL, d INTEGER NOT NULL, saved_usec INTEGER NOT NULL,"
    " PRIMARY KEY(kind, key)) WITHOUT ROWID;",
    /* 4: what attempts used of what they held. NULL: nobody told. */
    "ALTER TABLE attempts ADD COLUMN cpu_usec INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE attempts ADD COLUMN mem_peak_bytes INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE attempts ADD COLUMN gpu_sm_milli INTEGER;"
    "ALTER TABLE attempts ADD COLUMN gpu_sm_max INTEGER;"
    "ALTER TABLE attempts ADD COLUMN gpu_mem_milli INTEGER;"
    "ALTER TABLE attempts ADD COLUMN gpu_mem_max INTEGER;"
    "ALTER TABLE attempts ADD COLUMN gpu_mem_peak_bytes INTEGER;"
    "ALTER TABLE attempts ADD COLUMN gpu_mj INTEGER;"
    "ALTER TABLE attempts ADD COLUMN gpu_sampled_usec INTEGER;",

    /* What was cleared away after an attempt that had a whole node, one line each. */
    "ALTER TABLE attempts ADD COLUMN wiped TEXT;",
    /* A share may change while it is held: its sum over time. */
    "ALTER TABLE attempts ADD COLUMN gpu_held INTEGER NOT NULL DEFAULT 0;"
    "UPDATE attempts SET gpu_held=gpu_milli*(until_usec-from_usec);",

    /* Bytes over the buses of its GPUs. NULL: nobody told. */
    "ALTER TABLE attempts ADD COLUMN gpu_pcie_rx_bytes INTEGER;"
    "ALTER TABLE attempts ADD COLUMN gpu_pcie_tx_bytes INTEGER;",

    /* What a task used over time, as a packed SeriesInfo. */
    "CREATE TABLE series(task TEXT PRIMARY KEY, data BLOB NOT NULL) WITHOUT ROWID;"
    "CREATE TRIGGER tasks_gone AFTER DELETE ON tasks BEGIN"
    " DELETE FROM series WHERE task=OLD.id; END;",

    /* People: accounts for programs, who is kept out, who they are elsewhere. Scopes of tokens. The
       audit log becomes a chain; entries of before get their hashes when the store is opened
       (audit.c), and from then on nothing in it can be changed. */
    "ALTER TABLE users ADD COLUMN service INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE users ADD COLUMN disabled INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE users ADD COLUMN email TEXT NOT NULL DEFAULT '';"
    "ALTER TABLE users ADD COLUMN full_name TEXT NOT NULL DEFAULT '';"
    "ALTER TABLE users ADD COLUMN subject TEXT NOT NULL DEFAULT '';"
    "ALTER TABLE tokens ADD COLUMN scope INTEGER NOT NULL DEFAULT 65535;"
    "ALTER TABLE audit ADD COLUMN origin TEXT NOT NULL DEFAULT '';"
    "ALTER TABLE audit ADD COLUMN hash BLOB NOT NULL DEFAULT X'';"
    "CREATE TRIGGER audit_stays BEFORE DELETE ON audit BEGIN"
    " SELECT RAISE(ABORT, 'the audit log is only added to'); END;"
    "CREATE TRIGGER audit_is_fixed BEFORE UPDATE ON audit WHEN length(OLD.hash)>0 BEGIN"
    " SELECT RAISE(ABORT, 'the audit log is only added to'); END;",

    /* Prices, what was charged, budgets: docs/money.md. What was written stays as it is. */
    "CREATE TABLE prices(id INTEGER PRIMARY KEY, pool TEXT NOT NULL, class TEXT NOT NULL,"
    " from_usec INTEGER NOT NULL, gpu_hour_micro INTEGER NOT NULL, cpu_hour_micro INTEGER NOT NULL,"
    " gib_hour_micro INTEGER NOT NULL, storage_gib_month_micro INTEGER NOT NULL,"
    " idle_milli INTEGER NOT NULL, preemptible_milli INTEGER NOT NULL, currency TEXT NOT NULL,"
    " who TEXT NOT NULL, set_usec INTEGER NOT NULL);"
    "CREATE TABLE ledger(seq INTEGER PRIMARY KEY, task TEXT NOT NULL, attempt INTEGER NOT NULL,"
    " part INTEGER NOT NULL, kind TEXT NOT NULL, from_usec INTEGER NOT NULL,"
    " until_usec INTEGER NOT NULL, user TEXT NOT NULL, team TEXT NOT NULL, org TEXT NOT NULL,"
    " project TEXT NOT NULL, pool TEXT NOT NULL, class TEXT NOT NULL, node TEXT NOT NULL,"
    " labels TEXT NOT NULL, gpu_milli INTEGER NOT NULL, cpu_milli INTEGER NOT NULL,"
    " mem_bytes INTEGER NOT NULL, preemptible INTEGER NOT NULL, price INTEGER NOT NULL,"
    " currency TEXT NOT NULL, cost_micro INTEGER NOT NULL, gpu_micro INTEGER NOT NULL,"
    " rest_hi INTEGER NOT NULL, rest_lo INTEGER NOT NULL, energy_mj INTEGER NOT NULL,"
    " gpu_busy_usec INTEGER NOT NULL, gpu_unused_usec INTEGER NOT NULL, text TEXT NOT NULL,"
    " who TEXT NOT NULL);"
    "CREATE UNIQUE INDEX ledger_task ON ledger(task, attempt, part) WHERE task<>'';"
    "CREATE UNIQUE INDEX ledger_kept ON ledger(user, from_usec) WHERE kind='storage';"
    "CREATE INDEX ledger_from ON ledger(from_usec);"
    "CREATE TRIGGER ledger_stays BEFORE UPDATE ON ledger BEGIN"
    " SELECT RAISE(ABORT, 'the ledger is append-only'); END;"
    "CREATE TRIGGER ledger_keeps BEFORE DELETE ON ledger BEGIN"
    " SELECT RAISE(ABORT, 'the ledger is append-only'); END;"
    "CREATE TRIGGER prices_stay BEFORE UPDATE ON prices BEGIN"
    " SELECT RAISE(ABORT, 'the price book is append-only'); END;"
    "CREATE TRIGGER prices_keep BEFORE DELETE ON prices BEGIN"
    " SELECT RAISE(ABORT, 'the price book is append-only'); END;"
    "CREATE TABLE budgets(name TEXT PRIMARY KEY, scope TEXT NOT NULL, period TEXT NOT NULL,"
    " policy TEXT NOT NULL, who TEXT NOT NULL, currency TEXT NOT NULL, warn TEXT NOT NULL,"
    " limit_micro INTEGER NOT NULL, grace_usec INTEGER NOT NULL, set_usec INTEGER NOT NULL,"
    " paused INTEGER NOT NULL, warned_percent INTEGER NOT NULL,"
    " warned_from_usec INTEGER NOT NULL) WITHOUT ROWID;",

    /* Secrets, sealed (docs/secrets.md). They go with whom they belong to. */
    "CREATE TABLE secrets(scope TEXT NOT NULL, name TEXT NOT NULL, version INTEGER NOT NULL,"
    " key TEXT NOT NULL, wrapped BLOB NOT NULL, sealed BLOB NOT NULL, set_by TEXT NOT NULL,"
    " created_usec INTEGER NOT NULL, changed_usec INTEGER NOT NULL,"
    " PRIMARY KEY(scope, name)) WITHOUT ROWID;"
    "CREATE TRIGGER users_secrets_gone AFTER DELETE ON users BEGIN"
    " DELETE FROM secrets WHERE scope='user:'||OLD.name; END;"
    "CREATE TRIGGER teams_secrets_gone AFTER DELETE ON teams BEGIN"
    " DELETE FROM secrets WHERE scope='team:'||OLD.name; END;",

    /* Whom people want to be told, and what is on its way to them. */
    "CREATE TABLE hooks(user TEXT NOT NULL, name TEXT NOT NULL, url TEXT NOT NULL,"
    " scope TEXT NOT NULL, events TEXT NOT NULL, sealed BLOB NOT NULL, paused INTEGER NOT NULL,"
    " created_usec INTEGER NOT NULL, sent INTEGER NOT NULL, failed INTEGER NOT NULL,"
    " last_usec INTEGER NOT NULL, failing_usec INTEGER NOT NULL, last_error TEXT NOT NULL,"
    " PRIMARY KEY(user, name)) WITHOUT ROWID;"
    "CREATE TABLE outbox(id TEXT PRIMARY KEY, user TEXT NOT NULL, hook TEXT NOT NULL,"
    " event TEXT NOT NULL, body BLOB NOT NULL, created_usec INTEGER NOT NULL);"
    "CREATE INDEX outbox_hook ON outbox(user, hook);"
    "CREATE TRIGGER hooks_gone AFTER DELETE ON hooks BEGIN"
    " DELETE FROM outbox WHERE user=OLD.user AND hook=OLD.name; END;"
    "CREATE TRIGGER users_gone_hooks AFTER DELETE ON users BEGIN"
    " DELETE FROM hooks WHERE user=OLD.name; END;",

    /* A budget that has ended what ran lets nothing start until its period is over. */
    "ALTER TABLE budgets ADD COLUMN stopped_from_usec INTEGER NOT NULL DEFAULT 0;",
};
const size_t vg_n_migrations = VG_COUNT(vg_migrations);

static int run(sqlite3 *db, const char *sql) {
    return vg_fault("store/migrate") < 0 ? SQLITE_IOERR : sqlite3_exec(db, sql, NULL, NULL, NULL);
}

static int read_version(sqlite3 *db, sqlite3_int64 *ret) {
    sqlite3_stmt *q = NULL;
    int rc = run(db, "CREATE TABLE IF NOT EXISTS schema_version(version INTEGER NOT NULL)");
    if (rc == SQLITE_OK)
        rc = sqlite3_prepare_v2(db, "SELECT max(version) FROM schema_version", -1, &q, NULL);
    if (rc == SQLITE_OK)
        rc = sqlite3_step(q);
    if (rc == SQLITE_ROW)
        *ret = sqlite3_column_int64(q, 0);
    sqlite3_finalize(q);
    return rc == SQLITE_ROW ? SQLITE_OK : rc;
}

static int step(sqlite3 *db, const char *sql, size_t version) {
    char *note = sqlite3_mprintf("INSERT INTO schema_version VALUES(%lld)", (long long)version);
    int rc = note ? run(db, "BEGIN IMMEDIATE") : SQLITE_NOMEM;
    if (rc == SQLITE_OK)
        rc = run(db, sql);
    if (rc == SQLITE_OK)
        rc = run(db, note);
    if (rc == SQLITE_OK)
        rc = run(db, "COMMIT");
    if (!sqlite3_get_autocommit(db))
        sqlite3_exec(db, "ROLLBACK", NULL, NULL, NULL);
    sqlite3_free(note);
    return rc;
}

int vg_migrate(sqlite3 *db, const char *path, const char *const *list, size_t n,
               struct vg_err *err) {
    sqlite3_int64 version = 0;
    if (read_version(db, &version) != SQLITE_OK)
        return vg_err_set(err, VG_INTERNAL,
                          "cannot read the database %s: %s; restore it from a copy", path,
                          sqlite3_errmsg(db));
    if (version < 0 || (size_t)version > n)
        return vg_err_set(err, VG_UNSUPPORTED,
                          "the database %s was written by a newer virgad (schema %lld, this one "
                          "knows %zu); upgrade virgad",
                          path, (long long)version, n);
    for (size_t v = (size_t)version; v < n; v++) {
        int rc = step(db, list[v], v + 1);
        if (rc != SQLITE_OK) /* by its number: what SQLite said is gone with the transaction */
            return vg_err_set(err, VG_INTERNAL,
                              "cannot bring the database %s to schema %zu: %s; free disk space and "
                              "start again",
                              path, v + 1, sqlite3_errstr(rc));
    }
    return 0;
}
