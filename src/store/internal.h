#pragma once
/* Inside store: operations, the queue between loop and writer, and the connections.

   An operation is a statement with copied values: one piece of memory, made on the loop thread,
   executed on the writer, returned to the loop for its callback.

   The queue and everything under `lock` is shared; `reader` belongs to the loop thread, `writer`
   and its statements to the writer thread (or to the loop, with inline_writes). */
#include "store/audit.h"
#include "store/store.h"

#include <pthread.h>
#include <sqlite3.h>

enum stmt {
#define STMT(name, must, sql) STMT_##name,
#include "store/statements.tbl"
#undef STMT
    N_STMTS
};

enum val_kind { VAL_INT, VAL_TEXT, VAL_BLOB };

struct val {
    enum val_kind kind;
    int64_t i;
    const void *p; /* into the operation's own memory once queued */
    size_t len;
};

struct op {
    struct op *next;
    enum stmt stmt;
    enum vg_store_sync sync;
    int result;
    vg_store_cb *cb;
    void *arg;
    bool begins;  /* a group, or is one alone */
    size_t bytes; /* of the whole piece */
    unsigned n;
    struct val val[];
};

struct ops {
    struct op *first, **end;
    size_t n, bytes;
};

struct vg_store {
    char *path; /* owned */
    void (*notify)(void *arg);
    void *notify_arg;

    sqlite3 *reader;

    unsigned groups;        /* open ones, one in another */
    struct ops held, notes; /* of the outermost: changes, and entries of the audit log */

    pthread_mutex_t lock;
    pthread_cond_t wake; /* for the writer: more to do */
    pthread_cond_t idle; /* for the loop: a pass is over */
    struct ops queue;    /* not yet taken */
    struct ops done;     /* written or failed, callback pending */
    size_t urgent;       /* in queue, that do not linger */
    size_t in_hand;      /* bytes that the writer has taken */
    uint64_t flush_asked, flush_done;
    int stuck; /* -errno that lazy operations wait on, or 0 */
    bool closing;

    pthread_t thread;
    bool threaded;

    sqlite3 *writer;
    sqlite3_stmt *stmt[N_STMTS];
    bool synced; /* the connection's mode: commits reach the disk */
    struct {
        bool known; /* in this transaction */
        uint64_t seq;
        uint8_t hash[VG_AUDIT_HASH];
    } tail; /* the audit log's last entry */
};

static inline void ops_init(struct ops *l) {
    *l = (struct ops){.end = &l->first};
}
static inline void ops_push(struct ops *l, struct op *op) {
    op->next = NULL;
    *l->end = op;
    l->end = &op->next;
    l->n++;
    l->bytes += op->bytes;
}
static inline struct op *ops_pop(struct ops *l) {
    struct op *op = l->first;
    if (!op)
        return NULL;
    l->first = op->next;
    if (!l->first)
        l->end = &l->first;
    l->n--;
    l->bytes -= op->bytes;
    return op;
}
/* Moves everything of `from` to the end of `to`. */
static inline void ops_move(struct ops *to, struct ops *from) {
    if (!from->first)
        return;
    *to->end = from->first;
    to->end = from->end;
    to->n += from->n;
    to->bytes += from->bytes;
    ops_init(from);
}

/* op.c. Copies the values into an operation and queues it. */
int store_queue(struct vg_store *s, enum stmt stmt, enum vg_store_sync sync, const struct val *val,
                unsigned n, vg_store_cb *cb, void *arg);
/* Lets the writer have what an open group holds so far. */
void store_release(struct vg_store *s);

/* writer.c. One pass: takes what is queued, executes it in one transaction, hands it back. */
void store_pass(struct vg_store *s);
void *store_writer_main(void *arg);
/* 0 or -errno for a SQLite result code. */
int store_errno(int rc);
/* audit.c. Hashes for entries that have none yet. */
int store_audit_init(sqlite3 *db, struct vg_err *err);
/* Binds the number and the hash of the entry that comes next, whose words are bound already; and
   notes that it was written. SQLite's codes. */
int store_audit_bind(struct vg_store *s, sqlite3_stmt *q, const struct op *op);
/* The writer's statement, prepared when it is needed first. NULL: it cannot be; *rc says why. */
sqlite3_stmt *store_stmt(struct vg_store *s, enum stmt which, int *rc);
int store_open_db(const char *path, bool readonly, unsigned max_pages, sqlite3 **ret,
                  struct vg_err *err);
