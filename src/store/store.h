#pragma once
/* Durable state. One interface; SQLite (WAL) behind it.

   Writing: the loop thread queues operations; a writer thread executes everything that is queued in
   one transaction (group commit), in the order in which it was queued. How long an operation may
   wait and what it survives is said by its `enum vg_store_sync`. When it is done, its callback runs
   on the loop thread inside vg_store_dispatch(); the store calls `notify` (from the writer thread)
   to ask for that: virgad sends a uv_async there.

   Reading: synchronous, on a connection of its own, on the loop thread; vg_store_scan_… are for
   other threads and open one each. A read sees what was committed, not what is queued: the caller
   answers from memory about what it has not yet been told is committed, or calls vg_store_flush()
   first.

   What always holds:
   1. After kill -9 at any moment the file opens again; every operation whose callback reported
      success with COMMIT or DURABLE is there, and each transaction is there whole or not at all.
   2. After power loss the same holds for DURABLE.
   3. A failed operation leaves no trace and takes no earlier one with it. On a full disk COMMIT and
      DURABLE operations are told -ENOSPC; LAZY ones stay queued and are retried until they succeed
      or the store is closed. So are, after they were told, changes of people, secrets, prices,
      budgets and hooks, which the caller's memory has already: what it shows is what comes to be
   stored.

   All functions are for one thread (the loop's), except that `notify` is called on the writer. */
#include "base/err.h"
#include "store/rows.h"

#include <stdatomic.h>

struct vg_store;

enum vg_store_sync {
    VG_STORE_LAZY, /* within VG_STORE_LINGER_USEC or with the next batch; retried on a full disk */
    VG_STORE_COMMIT,  /* at once; survives kill -9 */
    VG_STORE_DURABLE, /* at once; survives power loss */
};

#define VG_STORE_LINGER_USEC 10000
#define VG_STORE_QUEUE_BYTES_MAX (256u << 20) /* queued and not yet written; then -ENOBUFS */

/* `result` >= 0: rows changed; -ENOSPC: the disk is full; -ENOENT: there was no such row (removals,
   vg_store_use_join); -EEXIST: the name is taken (additions); -EIO otherwise; -ECANCELED: the store
   was closed before a LAZY operation could be written. */
typedef void vg_store_cb(void *arg, int result);

struct vg_store_opts {
    const char *path; /* of the database file; made when missing (mode 0600) */
    void (*notify)(
        void *arg); /* "call vg_store_dispatch on the loop thread"; any thread; may be NULL */
    void *notify_arg;
    bool inline_writes; /* no thread: queued operations are written by vg_store_flush and _close */
    unsigned max_pages; /* of the database, for tests of a full disk; 0: no limit */
};

/* Opens, migrates to this program's schema, starts the writer. Refuses a database that a newer
   program has written. That one process has it at a time is the caller's care (virgad's lock). */
int vg_store_open(const struct vg_store_opts *opts, struct vg_store **ret, struct vg_err *err);
/* Writes what is queued, joins the writer, runs the remaining callbacks; what these queue is
   refused with -ENOBUFS. `notify` may be called until this returns. NULL is fine. */
void vg_store_close(struct vg_store *s);
/* Runs the callbacks of what has been written. Callbacks may queue more. */
void vg_store_dispatch(struct vg_store *s);
/* Waits until everything queued before is committed (or failed) and runs the callbacks. 0, or the
   -errno that LAZY operations are stuck on. */
int vg_store_flush(struct vg_store *s);
/* Queued and not yet written; for status and back-pressure. */
size_t vg_store_backlog(const struct vg_store *s);

/* --- writing. 0: queued, the callback (may be NULL) will run exactly once. -ENOMEM or -ENOBUFS:
   not queued, it will not run. Everything passed is copied. --- */

/* Adds or replaces. With an empty spec and without row->insert only a row that exists is updated,
   and spec, who and grant stay as they are: state changes don't write the environment again. */
int vg_store_put_task(struct vg_store *s, const struct vg_task_row *row, enum vg_store_sync sync,
                      vg_store_cb *cb, void *arg);
/* Forgets ended tasks that ended before `before_usec`, at most `limit` of them; the callback's
   result is how many. */
int vg_store_prune_tasks(struct vg_store *s, uint64_t before_usec, uint32_t limit, vg_store_cb *cb,
                         void *arg);

int vg_store_put_node(struct vg_store *s, const struct vg_node_row *row, enum vg_store_sync sync,
                      vg_store_cb *cb, void *arg);
int vg_store_del_node(struct vg_store *s, uint64_t id, enum vg_store_sync sync, vg_store_cb *cb,
                      void *arg);

int vg_store_put_org(struct vg_store *s, const struct vg_org_row *row, vg_store_cb *cb, void *arg);
int vg_store_put_team(struct vg_store *s, const struct vg_team_row *row, vg_store_cb *cb,
                      void *arg);
/* Durable; -ENOENT. That nothing is in it is the caller's care. */
int vg_store_del_org(struct vg_store *s, const char *name, vg_store_cb *cb, void *arg);
int vg_store_del_team(struct vg_store *s, const char *name, vg_store_cb *cb, void *arg);
/* put replaces; add answers -EEXIST when the name (or slot) is taken. Durable. */
int vg_store_put_user(struct vg_store *s, const struct vg_user_row *row, vg_store_cb *cb,
                      void *arg);
int vg_store_add_user(struct vg_store *s, const struct vg_user_row *row, vg_store_cb *cb,
                      void *arg);
/* Removes the user's tokens too. Durable. */
int vg_store_del_user(struct vg_store *s, const char *name, vg_store_cb *cb, void *arg);

int vg_store_add_token(struct vg_store *s, const struct vg_token_row *row, vg_store_cb *cb,
                       void *arg);
int vg_store_del_token(struct vg_store *s, const char *id, vg_store_cb *cb, void *arg);
int vg_store_touch_token(struct vg_store *s, const char *id, uint64_t used_usec); /* lazy */

/* Adds or replaces. Both durable. */
int vg_store_put_secret(struct vg_store *s, const struct vg_secret_row *row, vg_store_cb *cb,
                        void *arg);
int vg_store_del_secret(struct vg_store *s, const char *scope, const char *name, vg_store_cb *cb,
                        void *arg);

int vg_store_add_join(struct vg_store *s, const struct vg_join_row *row, vg_store_cb *cb,
                      void *arg);
/* Consumes a join token for `node`: succeeds for exactly one caller, durably; -ENOENT when it is
   unknown, used or expired at `now_usec`. */
int vg_store_use_join(struct vg_store *s, const char *id, uint64_t node, uint64_t now_usec,
                      vg_store_cb *cb, void *arg);

int vg_store_put_session(struct vg_store *s, const struct vg_session_row *row,
                         enum vg_store_sync sync, vg_store_cb *cb, void *arg);
int vg_store_del_session(struct vg_store *s, const char *user, const char *name, vg_store_cb *cb,
                         void *arg);

int vg_store_put_schedule(struct vg_store *s, const struct vg_schedule_row *row,
                          enum vg_store_sync sync, vg_store_cb *cb, void *arg);
int vg_store_del_schedule(struct vg_store *s, uint64_t id, vg_store_cb *cb, void *arg);

/* The same row again replaces itself: an end that is reported twice counts once. */
int vg_store_put_attempt(struct vg_store *s, const struct vg_attempt_row *row,
                         enum vg_store_sync sync, vg_store_cb *cb, void *arg);
int vg_store_put_history(struct vg_store *s, const struct vg_history_row *row);
/* At most `limit` of each that ended before. Lazy. */
int vg_store_prune_history(struct vg_store *s, uint64_t before_usec, uint32_t limit);
/* Lazy, as are rows of the ledger: written as soon as it can be, whatever happens to the disk. An
   entry of the price book is written before the charges that were queued after it. */
int vg_store_add_price(struct vg_store *s, const struct vg_price_row *row, vg_store_cb *cb,
                       void *arg);
int vg_store_add_ledger(struct vg_store *s, const struct vg_ledger_row *row, vg_store_cb *cb,
                        void *arg);
int vg_store_put_budget(struct vg_store *s, const struct vg_budget_row *row, vg_store_cb *cb,
                        void *arg);
int vg_store_del_budget(struct vg_store *s, const char *name, vg_store_cb *cb, void *arg);
/* Lazy; `saved_usec` dates the row, so that what was not saved this time can be forgotten. */
int vg_store_put_memory(struct vg_store *s, const struct vg_memory_row *row, uint64_t saved_usec);
int vg_store_prune_memory(struct vg_store *s, uint64_t before_usec);

int vg_store_put_hook(struct vg_store *s, const struct vg_hook_row *row, enum vg_store_sync sync,
                      vg_store_cb *cb, void *arg);
/* With what waits for it. Durable. */
int vg_store_del_hook(struct vg_store *s, const char *user, const char *name, vg_store_cb *cb,
                      void *arg);
/* Commit; the same id again changes nothing. */
int vg_store_put_outbox(struct vg_store *s, const struct vg_outbox_row *row);
int vg_store_del_outbox(struct vg_store *s, const char *id); /* lazy */
/* Lazy, and replaces; goes with its task. */
int vg_store_put_series(struct vg_store *s, uint64_t task, struct vg_bytes data);

/* Lazy: retried until it is written; in a group with something that is not, like that. An entry is
   left out when the store answers to one of its group's callbacks that it could not do what was
   asked: what did not happen is not in the log. */
int vg_store_audit(struct vg_store *s, const struct vg_audit_row *row);
/* What is queued between these two is one transaction's, however the writer is just getting on.
   Pairs may stand in pairs: the outermost counts. Callbacks of the store run in such a pair. */
void vg_store_group_begin(struct vg_store *s);
void vg_store_group_end(struct vg_store *s);
/* Nothing is written: the callback runs when everything queued before it is, or has failed. */
int vg_store_then(struct vg_store *s, vg_store_cb *cb, void *arg);
int vg_store_put_meta(struct vg_store *s, const char *key, const char *value,
                      enum vg_store_sync sync, vg_store_cb *cb, void *arg);

/* --- reading. Callbacks get rows that live until they return; a non-zero return stops the read and
   is returned. Failures are -errno. --- */

typedef int vg_task_row_cb(void *arg, const struct vg_task_row *row);

/* What to load at start: every task that has not ended, groups before all others, else oldest
   first. */
int vg_store_load_tasks(struct vg_store *s, vg_task_row_cb *cb, void *arg);
int vg_store_load_nodes(struct vg_store *s, int (*cb)(void *, const struct vg_node_row *),
                        void *arg);
int vg_store_load_orgs(struct vg_store *s, int (*cb)(void *, const struct vg_org_row *), void *arg);
int vg_store_load_teams(struct vg_store *s, int (*cb)(void *, const struct vg_team_row *),
                        void *arg);
int vg_store_load_users(struct vg_store *s, int (*cb)(void *, const struct vg_user_row *),
                        void *arg);
/* Every API token, expired ones too; virgad holds them in memory. */
int vg_store_load_tokens(struct vg_store *s, int (*cb)(void *, const struct vg_token_row *),
                         void *arg);
int vg_store_load_secrets(struct vg_store *s, int (*cb)(void *, const struct vg_secret_row *),
                          void *arg);
int vg_store_load_joins(struct vg_store *s, int (*cb)(void *, const struct vg_join_row *),
                        void *arg);
int vg_store_load_sessions(struct vg_store *s, int (*cb)(void *, const struct vg_session_row *),
                           void *arg);
int vg_store_load_schedules(struct vg_store *s, int (*cb)(void *, const struct vg_schedule_row *),
                            void *arg);
int vg_store_load_memory(struct vg_store *s, int (*cb)(void *, const struct vg_memory_row *),
                         void *arg);
/* All that is known of one task's attempts, in order. */
int vg_store_load_attempts(struct vg_store *s, uint64_t task,
                           int (*cb)(void *, const struct vg_attempt_row *), void *arg);
int vg_store_load_hooks(struct vg_store *s, int (*cb)(void *, const struct vg_hook_row *),
                        void *arg);
/* Oldest first. */
int vg_store_load_outbox(struct vg_store *s, int (*cb)(void *, const struct vg_outbox_row *),
                         void *arg);
/* -ENOENT: there is none. */
int vg_store_get_series(struct vg_store *s, uint64_t task, int (*cb)(void *, struct vg_bytes data),
                        void *arg);
struct vg_audit_filter {
    uint64_t before;     /* older than this entry; 0: from the newest */
    uint64_t after;      /* or, not 0: newer than this one, oldest first */
    uint32_t limit;      /* 0: 100 */
    const char *user;    /* NULL: everybody's */
    const char *search;  /* NULL, or a part of `what`, `who` or `from`; letters' case is ignored */
    uint64_t since_usec; /* 0: ever */
};
/* In the order of their ids. */
int vg_store_load_prices(struct vg_store *s, int (*cb)(void *, const struct vg_price_row *),
                         void *arg);
int vg_store_load_budgets(struct vg_store *s, int (*cb)(void *, const struct vg_budget_row *),
                          void *arg);

struct vg_ledger_filter {
    uint64_t task;                  /* 0: any */
    uint64_t from_usec, until_usec; /* rows that reach into it; until 0: without end */
    const char *user, *team, *org, *pool, *project; /* NULL: any */
    uint64_t below_seq;                             /* 0: all; else older rows than this */
    uint32_t limit; /* 0: all, oldest first; else the newest so many, newest first */
};
typedef int vg_ledger_row_cb(void *arg, const struct vg_ledger_row *row);
int vg_store_load_ledger(struct vg_store *s, const struct vg_ledger_filter *f, vg_ledger_row_cb *cb,
                         void *arg);
/* The same on a connection of its own, for any thread; `path` is the store's file. */
int vg_store_scan_ledger(const char *path, const struct vg_ledger_filter *f, vg_ledger_row_cb *cb,
                         void *arg);
/* The newest row of kind "storage" of every user who has one. */
int vg_store_load_kept(struct vg_store *s, vg_ledger_row_cb *cb, void *arg);
/* What its rows cost together. */
int vg_store_task_cost(struct vg_store *s, uint64_t task, int64_t *ret);
/* The same of each task folded under that one that has ended and cost something. */
int vg_store_folded_costs(struct vg_store *s, uint64_t fold,
                          int (*cb)(void *arg, uint64_t task, int64_t micro), void *arg);
const char *vg_store_path(const struct vg_store *s);
/* The newest row's number; 0: there is none. */
int vg_store_last_ledger(struct vg_store *s, uint64_t *ret);
/* Newest first, unless `after`. */
int vg_store_load_audit(struct vg_store *s, const struct vg_audit_filter *f,
                        int (*cb)(void *, const struct vg_audit_row *), void *arg);
/* The value, caller frees; -ENOENT. */
int vg_store_get_meta(struct vg_store *s, const char *key, char **ret);

struct vg_task_filter {
    const char *user;         /* NULL: everybody's */
    const char *or_team;      /* with user: the team's, too; NULL: not */
    const char *pool, *name;  /* NULL: any */
    const char *const *state; /* any of these; n_states 0: any */
    size_t n_states;          /* at most VG_TASK_FILTER_MAX */
    const char *const *label; /* "k=v", all of these */
    size_t n_labels;          /* at most VG_TASK_FILTER_MAX */
    uint64_t before_usec;     /* page: created before this ... */
    uint64_t before_id;       /* ... or at it with a smaller id; both 0: the first page */
    uint32_t limit;           /* 0: VG_TASK_PAGE */
    bool only_ended;          /* the caller has the others in memory */
    bool top;                 /* only what is folded under nothing */
    uint64_t fold;            /* not 0: only what is folded under this */
    const char *search;       /* NULL, or in name, labels or command; letters' case is ignored */
    uint64_t since_usec;      /* created at or after */
    uint32_t steps;           /* thousands of the database's steps that it may take; 0: any */
};
#define VG_TASK_FILTER_MAX 16
#define VG_TASK_PAGE 100

/* Newest first, by (created, id). Rows carry spec, who and grant. -ECANCELED: f->steps were too
 * few.
 */
int vg_store_query_tasks(struct vg_store *s, const struct vg_task_filter *f, vg_task_row_cb *cb,
                         void *arg);
/* How many match; paging and limit are ignored. -ECANCELED as above. */
int vg_store_count_tasks(struct vg_store *s, const struct vg_task_filter *f, uint64_t *ret);
/* The ids of such a page and, unless ret_count is NULL, how many match: for another thread than the
   loop's. `ids` has room for f->limit. -ECANCELED: *stop was set meanwhile. */
int vg_store_scan_tasks(const char *path, const struct vg_task_filter *f, atomic_bool *stop,
                        uint64_t *ids, size_t *ret_n, uint64_t *ret_count);
/* By id. -ENOENT when there is none. */
int vg_store_get_task(struct vg_store *s, uint64_t id, vg_task_row_cb *cb, void *arg);
/* 1 when the task's end is stored, 0 when it is not, or an error. */
int vg_store_has_end(struct vg_store *s, uint64_t id);
/* What is read between these two is of one moment. Without effect where that cannot be had. */
void vg_store_hold_still(struct vg_store *s);
void vg_store_move_on(struct vg_store *s);
/* By unique prefix of the id (1 to 16 hex digits) of `user`'s tasks (NULL: everybody's). 0 and the
   id; -ENOENT; -EBUSY when several match. */
int vg_store_find_prefix(struct vg_store *s, const char *prefix, const char *user,
                         uint64_t *ret_id);
/* The newest task of that name. -ENOENT. */
int vg_store_find_name(struct vg_store *s, const char *name, const char *user, uint64_t *ret_id);
/* The newest of that name and owner among those made in `parent` (0: in no task). -ENOENT. */
int vg_store_find_sibling(struct vg_store *s, const char *name, const char *user, uint64_t parent,
                          uint64_t *ret_id);
/* The task that the owner gave that key. -ENOENT. */
int vg_store_find_key(struct vg_store *s, const char *user, const char *key, uint64_t *ret_id);
/* What has ended of the rows folded under `fold`: id, index, state and status of each, by index.
   Other fields of the row are empty. */
int vg_store_load_folded(struct vg_store *s, uint64_t fold, vg_task_row_cb *cb, void *arg);
