/* Charges: reading. On the loop's connection, or for whoever reads much, on one
   of its own. */
#include "base/buf.h"
#include "base/cleanup.h"
#include "base/fault.h"
#include "base/util.h"
#include "store/read-internal.h"

#include <stdio.h>

#define DAY_USEC (86400ULL * 1000000) /* no row is longer: docs/money.md */
#define BINDS_MAX 12

struct ledger_ctx {
    vg_ledger_row_cb *cb;
    void *arg;
};

static int row_ledger(void *ctx, sqlite3_stmt *q) {
    struct ledger_ctx *c = ctx;
    struct vg_ledger_row row = {.seq = store_u64(q, 0),
                                .task = store_id(q, 1),
                                .attempt = (uint32_t)store_u64(q, 2),
                                .part = (uint32_t)store_u64(q, 3),
                                .kind = store_text(q, 4),
                                .from_usec = store_u64(q, 5),
                                .until_usec = store_u64(q, 6),
                                .user = store_text(q, 7),
                                .team = store_text(q, 8),
                                .org = store_text(q, 9),
                                .project = store_text(q, 10),
                                .pool = store_text(q, 11),
                                .class_name = store_text(q, 12),
                                .node = store_text(q, 13),
                                .labels = store_text(q, 14),
                                .gpu_milli = store_u64(q, 15),
                                .cpu_milli = store_u64(q, 16),
                                .mem_bytes = store_u64(q, 17),
                                .preemptible = store_u64(q, 18) != 0,
                                .price = store_u64(q, 19),
                                .currency = store_text(q, 20),
                                .cost_micro = sqlite3_column_int64(q, 21),
                                .gpu_micro = store_u64(q, 22),
                                .rest_hi = store_u64(q, 23),
                                .rest_lo = store_u64(q, 24),
                                .energy_mj = store_u64(q, 25),
                                .gpu_busy_usec = store_u64(q, 26),
                                .gpu_unused_usec = store_u64(q, 27),
                                .text = store_text(q, 28),
                                .who = store_text(q, 29)};
    return c->cb(c->arg, &row);
}

#define COLUMNS                                                                                  \
    "SELECT seq,task,attempt,part,kind,from_usec,until_usec,user,team,org,project,pool,class,"   \
    "node,labels,gpu_milli,cpu_milli,mem_bytes,preemptible,price,currency,cost_micro,gpu_micro," \
    "rest_hi,rest_lo,energy_mj,gpu_busy_usec,gpu_unused_usec,text,who FROM ledger "

/* Conditions and what they compare with, in one order. */
struct where {
    struct vg_buf sql;
    struct {
        const char *text; /* NULL: the number */
        uint64_t number;
    } bind[BINDS_MAX];
    int n;
    bool failed;
};

static void add(struct where *w, const char *clause, const char *text, uint64_t number) {
    if (vg_buf_printf(&w->sql, "%s%s", w->n ? " AND " : "WHERE ", clause) < 0)
        w->failed = true;
    w->bind[w->n].text = text;
    w->bind[w->n++].number = number;
}

static void make_where(struct where *w, const struct vg_ledger_filter *f, const char *task) {
    if (f->task)
        add(w, "task=? AND task<>''", task, 0);
    if (f->from_usec && !f->task) /* by the index, which knows beginnings alone */
        add(w, "from_usec>?", NULL, f->from_usec > DAY_USEC ? f->from_usec - DAY_USEC - 1 : 0);
    if (f->from_usec)
        add(w, "max(until_usec,from_usec+1)>?", NULL, f->from_usec);
    if (f->until_usec)
        add(w, "from_usec<?", NULL, f->until_usec);
    if (f->user)
        add(w, "user=?", f->user, 0);
    if (f->team)
        add(w, "team=?", f->team, 0);
    if (f->org)
        add(w, "org=?", f->org, 0);
    if (f->pool)
        add(w, "pool=?", f->pool, 0);
    if (f->project)
        add(w, "project=?", f->project, 0);
    if (f->below_seq)
        add(w, "seq<?", NULL, f->below_seq);
}

static int bind_where(sqlite3_stmt *q, const struct where *w) {
    int rc = SQLITE_OK;
    for (int i = 0; i < w->n && rc == SQLITE_OK; i++)
        rc = w->bind[i].text ? sqlite3_bind_text(q, i + 1, w->bind[i].text, -1, SQLITE_STATIC)
                             : sqlite3_bind_int64(q, i + 1, (sqlite3_int64)w->bind[i].number);
    return store_errno(rc);
}

static int read_ledger(sqlite3 *db, const struct vg_ledger_filter *f, vg_ledger_row_cb *cb,
                       void *arg) {
    struct ledger_ctx c = {cb, arg};
    struct where w = {0};
    struct vg_buf sql = {0};
    char id[VG_ID_LEN + 1] = "", order[64];
    sqlite3_stmt *q = NULL;
    vg_id_format(f->task, id);
    make_where(&w, f, id);
    if (f->limit)
        snprintf(order, sizeof order, " ORDER BY seq DESC LIMIT %u", f->limit);
    else /* a task's own rows; everything else is added up, in whatever order it lies */
        snprintf(order, sizeof order, "%s", f->task ? " ORDER BY attempt,part" : "");
    int r = vg_fault("store/read") < 0 || w.failed ? -EIO : 0;
    if (r >= 0)
        r = vg_buf_printf(&sql, COLUMNS "%.*s%s", (int)vg_buf_len(&w.sql),
                          w.sql.base ? (char *)vg_buf_data(&w.sql) : "", order);
    if (r >= 0)
        r = vg_buf_append(&sql, "", 1);
    if (r >= 0)
        r = store_errno(sqlite3_prepare_v2(db, (char *)vg_buf_data(&sql), -1, &q, NULL));
    if (r >= 0)
        r = bind_where(q, &w);
    if (r >= 0)
        r = store_each(vg_take_ptr(q), row_ledger, &c);
    sqlite3_finalize(q);
    vg_buf_done(&w.sql);
    vg_buf_done(&sql);
    return r;
}

int vg_store_load_ledger(struct vg_store *s, const struct vg_ledger_filter *f, vg_ledger_row_cb *cb,
                         void *arg) {
    return read_ledger(s->reader, f, cb, arg);
}

int vg_store_scan_ledger(const char *path, const struct vg_ledger_filter *f, vg_ledger_row_cb *cb,
                         void *arg) {
    struct vg_err err = VG_ERR_INIT;
    sqlite3 *db = NULL;
    int r = store_open_db(path, true, 0, &db, &err);
    if (r < 0)
        return r;
    r = read_ledger(db, f, cb, arg);
    store_close_reader(db);
    return r;
}

int vg_store_load_kept(struct vg_store *s, vg_ledger_row_cb *cb, void *arg) {
    struct ledger_ctx c = {cb, arg};
    sqlite3_stmt *q;
    int r = store_prepare(s,
                          COLUMNS "WHERE seq IN (SELECT max(seq) FROM ledger WHERE kind='storage' "
                                  "GROUP BY user)",
                          &q);
    return r < 0 ? r : store_each(q, row_ledger, &c);
}

const char *vg_store_path(const struct vg_store *s) {
    return s->path;
}

static int row_cost(void *ctx, sqlite3_stmt *q) {
    *(int64_t *)ctx = sqlite3_column_int64(q, 0);
    return 0;
}

int vg_store_task_cost(struct vg_store *s, uint64_t task, int64_t *ret) {
    char id[VG_ID_LEN + 1];
    sqlite3_stmt *q;
    int r = store_prepare(
        s, "SELECT coalesce(sum(cost_micro),0) FROM ledger WHERE task=? AND task<>''", &q);
    if (r < 0)
        return r;
    vg_id_format(task, id);
    sqlite3_bind_text(q, 1, id, -1, SQLITE_STATIC);
    return store_each(q, row_cost, ret);
}

static int row_last(void *ctx, sqlite3_stmt *q) {
    *(uint64_t *)ctx = store_u64(q, 0);
    return 0;
}

struct folded_ctx {
    int (*cb)(void *arg, uint64_t task, int64_t micro);
    void *arg;
};

static int row_folded_cost(void *ctx, sqlite3_stmt *q) {
    const struct folded_ctx *c = ctx;
    uint64_t task = 0;
    return vg_id_parse((const char *)sqlite3_column_text(q, 0), &task) < 0
               ? 0
               : c->cb(c->arg, task, sqlite3_column_int64(q, 1));
}

int vg_store_folded_costs(struct vg_store *s, uint64_t fold,
                          int (*cb)(void *arg, uint64_t task, int64_t micro), void *arg) {
    struct folded_ctx c = {cb, arg};
    char id[VG_ID_LEN + 1];
    sqlite3_stmt *q;
    int r =
        store_prepare(s,
                      "SELECT t.id,sum(l.cost_micro) FROM tasks t JOIN ledger l ON l.task=t.id "
                      "WHERE t.fold=? AND t.fold<>'' AND t.ended=1 AND l.task<>'' GROUP BY t.id",
                      &q);
    if (r < 0)
        return r;
    vg_id_format(fold, id);
    sqlite3_bind_text(q, 1, id, -1, SQLITE_STATIC);
    return store_each(q, row_folded_cost, &c);
}

int vg_store_last_ledger(struct vg_store *s, uint64_t *ret) {
    sqlite3_stmt *q;
    *ret = 0;
    int r = store_prepare(s, "SELECT coalesce(max(seq),0) FROM ledger", &q);
    return r < 0 ? r : store_each(q, row_last, ret);
}
