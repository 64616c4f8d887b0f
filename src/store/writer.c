/* The writer. A pass takes the whole queue and makes one transaction of it; the disk is synced when
   some operation of the batch asked for it (in WAL mode that sync covers all commits before it).

   A statement that fails by itself (a constraint) fails alone, with the audit log's entries of its
   group when somebody is told of the failure: what did not happen is not in the log. What fails the
   transaction (disk full, I/O) rolls it back whole: COMMIT and DURABLE operations are told, LAZY
   ones go back to the front of the queue in their order. Writer thread; with inline_writes the
   loop's. */
#include "base/cleanup.h"
#include "base/fault.h"
#include "base/mem.h"
#include "base/util.h"
#include "store/internal.h"

#include <time.h>

#define RETRY_USEC 1000000 /* how long stuck operations wait when nothing else happens */

#define COL(column, kind, field) "," #column
#define BLOB_COL(column, field) "," #column
static const char task_put[] = "INSERT INTO tasks(id"
#include "store/task-columns.tbl"
                               ") VALUES(?"
#define COL(column, kind, field) ",?"
#define BLOB_COL(column, field) ",?"
#include "store/task-columns.tbl"
                               ") ON CONFLICT(id) DO UPDATE SET id=excluded.id"
#define COL(column, kind, field) "," #column "=excluded." #column
#define BLOB_COL(column, field) "," #column "=excluded." #column
#include "store/task-columns.tbl"
    ;
static const char task_update[] = "UPDATE tasks SET id=id"
#define COL(column, kind, field) "," #column "=?"
#include "store/task-columns.tbl"
                                  " WHERE id=?";
#define SQL_TASK_PUT task_put
#define SQL_TASK_UPDATE task_update

static const struct {
    const char *sql;
    bool must;
} statements[] = {
#define STMT(name, must, sql) [STMT_##name] = {sql, must},
#include "store/statements.tbl"
#undef STMT
};

int store_errno(int rc) {
    switch (rc & 0xff) {
    case SQLITE_OK:
    case SQLITE_ROW:
    case SQLITE_DONE:
        return 0;
    case SQLITE_FULL:
        return -ENOSPC;
    case SQLITE_NOMEM:
        return -ENOMEM;
    case SQLITE_CONSTRAINT:
        return -EEXIST;
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
        return -EBUSY;
    case SQLITE_TOOBIG:
        return -E2BIG;
    case SQLITE_INTERRUPT:
        return -ECANCELED;
    default:
        return -EIO;
    }
}

/* Whether the failure is the operation's own and leaves the transaction standing. */
static bool is_own(int rc) {
    rc &= 0xff;
    return rc == SQLITE_CONSTRAINT || rc == SQLITE_TOOBIG || rc == SQLITE_MISMATCH ||
           rc == SQLITE_RANGE;
}

static int exec(struct vg_store *s, const char *point, const char *sql) {
    int e = vg_fault(point);
    if (e < 0)
        return e == -ENOSPC ? SQLITE_FULL : SQLITE_IOERR;
    return sqlite3_exec(s->writer, sql, NULL, NULL, NULL);
}

static int bind(sqlite3_stmt *q, const struct op *op) {
    int rc = SQLITE_OK;
    for (unsigned i = 0; i < op->n && rc == SQLITE_OK; i++) {
        const struct val *v = &op->val[i];
        int at = (int)i + 1;
        if (v->kind == VAL_INT)
            rc = sqlite3_bind_int64(q, at, v->i);
        else if (v->kind == VAL_TEXT)
            rc = sqlite3_bind_text64(q, at, v->p, v->len, SQLITE_STATIC, SQLITE_UTF8);
        else
            rc = sqlite3_bind_blob64(q, at, v->p, v->len, SQLITE_STATIC);
    }
    return rc;
}

sqlite3_stmt *store_stmt(struct vg_store *s, enum stmt which, int *rc) {
    sqlite3_stmt **q = &s->stmt[which];
    *rc = *q ? SQLITE_OK
             : sqlite3_prepare_v3(s->writer, statements[which].sql, -1, SQLITE_PREPARE_PERSISTENT,
                                  q, NULL);
    return *q;
}

static int execute(struct vg_store *s, struct op *op) {
    int e = vg_fault("store/step"), rc;
    if (e < 0)
        return e == -ENOSPC ? SQLITE_FULL : SQLITE_IOERR;
    sqlite3_stmt *q = store_stmt(s, op->stmt, &rc);
    if (rc == SQLITE_OK)
        rc = bind(q, op);
    if (rc == SQLITE_OK && op->stmt == STMT_AUDIT_ADD)
        rc = store_audit_bind(s, q, op);
    if (rc == SQLITE_OK)
        rc = sqlite3_step(q);
    if (q) {
        sqlite3_reset(q);
        sqlite3_clear_bindings(q);
    }
    s->tail.known &= op->stmt != STMT_AUDIT_ADD || rc == SQLITE_DONE;
    if (rc == SQLITE_DONE || rc == SQLITE_ROW) {
        op->result = sqlite3_changes(s->writer);
        if (!op->result && statements[op->stmt].must)
            op->result = -ENOENT;
        return SQLITE_OK;
    }
    op->result = store_errno(rc);
    return is_own(rc) ? SQLITE_OK : rc ? rc : SQLITE_ERROR;
}

static int set_mode(struct vg_store *s, const struct ops *batch) {
    bool sync = false;
    for (const struct op *op = batch->first; op && !sync; op = op->next)
        sync = op->sync == VG_STORE_DURABLE;
    if (sync == s->synced)
        return SQLITE_OK;
    int rc = exec(s, "store/mode", sync ? "PRAGMA synchronous=FULL" : "PRAGMA synchronous=NORMAL");
    if (rc == SQLITE_OK)
        s->synced = sync;
    return rc;
}

static int transact(struct vg_store *s, const struct ops *batch) {
    int rc = set_mode(s, batch);
    s->tail.known = false;
    if (rc == SQLITE_OK)
        rc = exec(s, "store/begin", "BEGIN IMMEDIATE");
    bool failed = false; /* something of this group */
    for (struct op *op = batch->first; op && rc == SQLITE_OK; op = op->next) {
        failed &= !op->begins;
        if (failed && op->stmt == STMT_AUDIT_ADD)
            op->result = -ECANCELED;
        else
            rc = execute(s, op);
        failed |= op->cb && op->result < 0;
    }
    if (rc == SQLITE_OK)
        rc = exec(s, "store/commit", "COMMIT");
    if (!sqlite3_get_autocommit(s->writer))
        sqlite3_exec(s->writer, "ROLLBACK", NULL, NULL, NULL);
    return rc;
}

/* Whether memory has the change already, and has no way back: then it is written when it can be,
   so that what people see and what a later life finds stay the same. */
static bool is_kept(enum stmt stmt) {
    switch (stmt) {
    case STMT_ORG_PUT:
    case STMT_ORG_DEL:
    case STMT_TEAM_PUT:
    case STMT_TEAM_DEL:
    case STMT_USER_PUT:
    case STMT_USER_DEL:
    case STMT_TOKEN_DEL:
    case STMT_SECRET_PUT:
    case STMT_SECRET_DEL:
    case STMT_META_PUT:
    case STMT_PRICE_ADD:
    case STMT_BUDGET_PUT:
    case STMT_BUDGET_DEL:
    case STMT_HOOK_PUT:
    case STMT_HOOK_DEL:
    case STMT_OUTBOX_PUT:
        return true;
    default:
        return false;
    }
}

/* Of the group that begins here: all of it, or nothing. */
static bool group_is_kept(const struct op *op) {
    bool kept = false, others = false;
    for (bool first = true; op && (first || !op->begins); op = op->next, first = false) {
        kept |= is_kept(op->stmt);
        others |= !is_kept(op->stmt) && op->stmt != STMT_AUDIT_ADD && op->sync != VG_STORE_LAZY;
    }
    return kept && !others;
}

/* Tells whom it concerns, and makes it one that waits. Without memory for that he waits, too. */
static void keep(struct op *op, int error, struct ops *done, struct ops *again) {
    struct op *word = op->cb && op->sync != VG_STORE_LAZY ? vg_alloc(sizeof *word) : NULL;
    if (word) {
        *word = (struct op){.stmt = STMT_NOTHING, .result = error, .cb = op->cb, .arg = op->arg};
        op->cb = NULL;
        ops_push(done, word);
    }
    op->sync = VG_STORE_LAZY;
    ops_push(again, op);
}

/* After a failed transaction: who is told, and who waits for better times. */
static void part(struct ops *batch, int error, struct ops *done, struct ops *again) {
    bool kept = false;
    while (batch->first) {
        if (batch->first->begins)
            kept = group_is_kept(batch->first);
        struct op *op = ops_pop(batch);
        op->result = error;
        if (kept)
            keep(op, error, done, again);
        else
            ops_push(op->sync == VG_STORE_LAZY ? again : done, op);
    }
}

static void hand_back(struct vg_store *s, struct ops *done, struct ops *again, uint64_t flush,
                      int error) {
    bool tell = done->n > 0;
    pthread_mutex_lock(&s->lock);
    ops_move(&s->done, done);
    ops_move(again, &s->queue);
    ops_move(&s->queue, again);
    s->in_hand = 0;
    s->stuck = error;
    s->flush_done = flush;
    pthread_cond_broadcast(&s->idle);
    pthread_mutex_unlock(&s->lock);
    if (tell && s->notify)
        s->notify(s->notify_arg);
}

void store_pass(struct vg_store *s) {
    struct ops batch, done, again;
    ops_init(&batch);
    ops_init(&done);
    ops_init(&again);
    pthread_mutex_lock(&s->lock);
    ops_move(&batch, &s->queue);
    s->urgent = 0;
    s->in_hand = batch.bytes;
    uint64_t flush = s->flush_asked;
    pthread_mutex_unlock(&s->lock);
    int error = batch.n ? store_errno(transact(s, &batch)) : 0;
    if (error < 0)
        part(&batch, error, &done, &again);
    else
        ops_move(&done, &batch);
    hand_back(s, &done, &again, flush, error && again.n ? error : 0);
}

static struct timespec after(uint64_t usec) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    usec += (uint64_t)t.tv_nsec / 1000;
    t.tv_sec += (time_t)(usec / VG_USEC);
    t.tv_nsec = (long)(usec % VG_USEC) * 1000;
    return t;
}

/* Something that may not linger. Under the lock. */
static bool pressing(const struct vg_store *s) {
    return s->urgent || s->closing || s->flush_asked > s->flush_done;
}

/* Waits for work; what is lazy waits a little longer, for company. Under the lock. */
static void await(struct vg_store *s) {
    while (!s->queue.n && !pressing(s))
        pthread_cond_wait(&s->wake, &s->lock);
    struct timespec until = after(s->stuck ? RETRY_USEC : VG_STORE_LINGER_USEC);
    while (!pressing(s))
        if (pthread_cond_timedwait(&s->wake, &s->lock, &until) == ETIMEDOUT)
            break;
}

void *store_writer_main(void *arg) {
    struct vg_store *s = arg;
    for (bool last = false; !last;) {
        pthread_mutex_lock(&s->lock);
        await(s);
        last = s->closing;
        pthread_mutex_unlock(&s->lock);
        store_pass(s);
    }
    return NULL;
}
