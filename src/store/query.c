/* Tasks: loading, lists in pages, search. Loop thread, but for vg_store_scan_tasks. */
#include "base/buf.h"
#include "base/cleanup.h"
#include "base/util.h"
#include "store/read-internal.h"

#include <ctype.h>

#define COL(column, kind, field) "," #column
#define BLOB_COL(column, field) "," #column
static const char select_tasks[] = "SELECT id"
#include "store/task-columns.tbl"
                                   " FROM tasks ";

struct ctx {
    vg_task_row_cb *cb;
    void *arg;
};

#define GET_TEXT(i) store_text(q, i)
#define GET_BOOL(i) (sqlite3_column_int64(q, i) != 0)
#define GET_U32(i) (uint32_t) store_u64(q, i)
#define GET_I32(i) (int32_t) sqlite3_column_int64(q, i)
#define GET_U64(i) store_u64(q, i)
#define GET_ID(i) store_id(q, i)

static int row_task(void *arg, sqlite3_stmt *q) {
    struct ctx *c = arg;
    int i = 0;
    struct vg_task_row row = {.id = store_id(q, i++)};
#define COL(column, kind, field) row.field = GET_##kind(i++);
#define BLOB_COL(column, field) row.field = store_blob(q, i++);
#include "store/task-columns.tbl"
    return c->cb(c->arg, &row);
}

/* --- the WHERE of a filter; text and binding go through the same steps in the same order --- */

struct where {
    struct vg_buf sql;
    const char *bind[2 * VG_TASK_FILTER_MAX + 12]; /* borrowed */
    char fold[VG_ID_LEN + 1], since[24];
    int n;
    bool failed;
};

static void add(struct where *w, const char *clause, const char *bind) {
    if (vg_buf_printf(&w->sql, "%s%s", w->n || vg_buf_len(&w->sql) ? " AND " : "WHERE ", clause) <
        0)
        w->failed = true;
    if (bind)
        w->bind[w->n++] = bind;
}

static void add_states(struct where *w, const struct vg_task_filter *f) {
    char in[16 + 2 * VG_TASK_FILTER_MAX] = "state IN (";
    size_t at = strlen(in);
    if (!f->n_states)
        return;
    for (size_t i = 0; i < f->n_states; i++)
        at += (size_t)snprintf(in + at, sizeof in - at, i ? ",?" : "?");
    snprintf(in + at, sizeof in - at, ")");
    add(w, in, NULL);
    for (size_t i = 0; i < f->n_states; i++)
        w->bind[w->n++] = f->state[i];
}

static int make_where(struct where *w, const struct vg_task_filter *f) {
    if (f->n_states > VG_TASK_FILTER_MAX || f->n_labels > VG_TASK_FILTER_MAX)
        return -E2BIG;
    if (f->user && f->or_team) {
        add(w, "(user=? OR team=?)", f->user);
        w->bind[w->n++] = f->or_team;
    } else if (f->user) { /* the name's index, not the user's, finds few */
        add(w, f->name ? "+user=?" : "user=?", f->user);
    }
    if (f->pool)
        add(w, "pool=?", f->pool);
    if (f->name)
        add(w, "name=? AND name<>''", f->name);
    if (f->only_ended)
        add(w, "ended=1", NULL);
    add_states(w, f);
    if (f->top)
        add(w, "fold=''", NULL);
    if (f->fold) {
        vg_id_format(f->fold, w->fold);
        add(w, "fold=? AND fold<>''", w->fold);
    }
    if (f->since_usec) {
        snprintf(w->since, sizeof w->since, "%llu", (unsigned long long)f->since_usec);
        add(w, "created_usec>=CAST(? AS INTEGER)", w->since);
    }
    if (f->search) {
        add(w,
            "(instr(lower(name),lower(?))>0 OR instr(lower(labels),lower(?))>0 OR "
            "instr(lower(CAST(command AS TEXT)),lower(?))>0)",
            f->search);
        w->bind[w->n++] = f->search;
        w->bind[w->n++] = f->search;
    }
    for (size_t i = 0; i < f->n_labels; i++)
        add(w, "instr(char(10)||labels, char(10)||?||char(10))>0", f->label[i]);
    return w->failed ? -ENOMEM : 0;
}

static int bind_where(sqlite3_stmt *q, const struct where *w) {
    int rc = SQLITE_OK;
    for (int i = 0; i < w->n && rc == SQLITE_OK; i++)
        rc = sqlite3_bind_text(q, i + 1, w->bind[i], -1, SQLITE_STATIC);
    return store_errno(rc);
}

/* "<head> WHERE ... <tail>", prepared and bound. */
static int prepare(struct vg_store *s, const char *head, struct where *w, const char *tail,
                   sqlite3_stmt **ret) {
    struct vg_buf sql = {0};
    int r = vg_buf_printf(&sql, "%s%.*s%s", head, (int)vg_buf_len(&w->sql),
                          w->sql.base ? (char *)vg_buf_data(&w->sql) : "", tail);
    if (r >= 0)
        r = vg_buf_append(&sql, "", 1);
    if (r >= 0)
        r = store_prepare(s, (char *)vg_buf_data(&sql), ret);
    vg_buf_done(&sql);
    if (r < 0)
        return r;
    r = bind_where(*ret, w);
    if (r < 0)
        sqlite3_finalize(*ret);
    return r;
}

/* --- searches that would take too long are given up --- */

#define STEP 1000 /* of the database, between two looks */

static int spend(void *arg) {
    uint32_t *left = arg;
    return (*left)-- == 0;
}

static int is_stopped(void *arg) {
    return atomic_load((atomic_bool *)arg);
}

static void bound(struct vg_store *s, uint32_t *steps) {
    sqlite3_progress_handler(s->reader, *steps ? STEP : 0, *steps ? spend : NULL, steps);
}

static void unbound(struct vg_store *s) {
    sqlite3_progress_handler(s->reader, 0, NULL, NULL);
}

/* "<head> WHERE ... " of a page: fn for every row of it. */
static int read_page(struct vg_store *s, const char *head, const struct vg_task_filter *f,
                     int (*fn)(void *ctx, sqlite3_stmt *q), void *ctx) {
    struct where w = {0};
    char id[VG_ID_LEN + 1] = "", tail[96];
    sqlite3_stmt *q;
    bool page = f->before_usec || f->before_id;
    if (f->before_id)
        vg_id_format(f->before_id, id);
    int r = make_where(&w, f);
    if (r >= 0 && page)
        add(&w, "(created_usec,id)<(?,?)", NULL);
    snprintf(tail, sizeof tail, " ORDER BY created_usec DESC,id DESC LIMIT %u",
             f->limit ? f->limit : VG_TASK_PAGE);
    if (r >= 0)
        r = w.failed ? -ENOMEM : prepare(s, head, &w, tail, &q);
    vg_buf_done(&w.sql);
    if (r < 0)
        return r;
    if (page) {
        sqlite3_bind_int64(q, w.n + 1, (int64_t)f->before_usec);
        sqlite3_bind_text(q, w.n + 2, id, -1, SQLITE_STATIC);
    }
    return store_each(q, fn, ctx);
}

int vg_store_query_tasks(struct vg_store *s, const struct vg_task_filter *f, vg_task_row_cb *cb,
                         void *arg) {
    struct ctx c = {cb, arg};
    uint32_t steps = f->steps;
    bound(s, &steps);
    int r = read_page(s, select_tasks, f, row_task, &c);
    unbound(s);
    return r;
}

static int row_count(void *arg, sqlite3_stmt *q) {
    *(uint64_t *)arg = store_u64(q, 0);
    return 0;
}

static int count(struct vg_store *s, const struct vg_task_filter *f, uint64_t *ret) {
    struct where w = {0};
    sqlite3_stmt *q;
    uint64_t n = 0;
    int r = make_where(&w, f);
    if (r >= 0)
        r = prepare(s, "SELECT count(*) FROM tasks ", &w, "", &q);
    vg_buf_done(&w.sql);
    if (r >= 0)
        r = store_each(q, row_count, &n);
    if (r >= 0)
        *ret = n;
    return r;
}

int vg_store_count_tasks(struct vg_store *s, const struct vg_task_filter *f, uint64_t *ret) {
    uint32_t steps = f->steps;
    bound(s, &steps);
    int r = count(s, f, ret);
    unbound(s);
    return r;
}

struct scan {
    uint64_t *ids;
    size_t n, room;
};

static int row_scanned(void *arg, sqlite3_stmt *q) {
    struct scan *c = arg;
    if (c->n < c->room)
        c->ids[c->n++] = store_id(q, 0);
    return 0;
}

int vg_store_scan_tasks(const char *path, const struct vg_task_filter *f, atomic_bool *stop,
                        uint64_t *ids, size_t *ret_n, uint64_t *ret_count) {
    struct vg_err err = VG_ERR_INIT;
    struct vg_task_filter whole = *f;
    struct vg_store own = {0}; /* its reader is all that is looked at */
    struct scan c = {ids, 0, f->limit};
    whole.steps = 0;
    int r = store_open_db(path, true, 0, &own.reader, &err);
    if (r < 0)
        return r;
    sqlite3_exec(own.reader, "BEGIN", NULL, NULL, NULL); /* both of one moment */
    sqlite3_progress_handler(own.reader, STEP, is_stopped, stop);
    r = read_page(&own, "SELECT id FROM tasks ", &whole, row_scanned, &c);
    if (r >= 0 && ret_count)
        r = count(&own, &whole, ret_count);
    store_close_reader(own.reader);
    if (r >= 0)
        *ret_n = c.n;
    return r;
}

int vg_store_has_end(struct vg_store *s, uint64_t id) {
    char hex[VG_ID_LEN + 1];
    uint64_t n = 0;
    sqlite3_stmt *q;
    int r = store_prepare(s, "SELECT count(*) FROM tasks WHERE id=? AND ended=1", &q);
    if (r < 0)
        return r;
    vg_id_format(id, hex);
    sqlite3_bind_text(q, 1, hex, -1, SQLITE_STATIC);
    r = store_each(q, row_count, &n);
    return r < 0 ? r : n > 0;
}

void vg_store_hold_still(struct vg_store *s) {
    sqlite3_exec(s->reader, "BEGIN", NULL, NULL, NULL);
}

void vg_store_move_on(struct vg_store *s) {
    sqlite3_exec(s->reader, "COMMIT", NULL, NULL, NULL);
}

static int select_where(struct vg_store *s, const char *tail, sqlite3_stmt **ret) {
    char sql[1024];
    int n = snprintf(sql, sizeof sql, "%s%s", select_tasks, tail);
    return n < 0 || (size_t)n >= sizeof sql ? -E2BIG : store_prepare(s, sql, ret);
}

int vg_store_load_tasks(struct vg_store *s, vg_task_row_cb *cb, void *arg) {
    struct ctx c = {cb, arg};
    sqlite3_stmt *q;
    int r = select_where(s, "WHERE ended=0 ORDER BY members=0,created_usec,id", &q);
    return r < 0 ? r : store_each(q, row_task, &c);
}

struct found {
    struct ctx ctx;
    bool any;
};

static int row_found(void *arg, sqlite3_stmt *q) {
    struct found *f = arg;
    f->any = true;
    return row_task(&f->ctx, q);
}

int vg_store_get_task(struct vg_store *s, uint64_t id, vg_task_row_cb *cb, void *arg) {
    struct found f = {{cb, arg}, false};
    char hex[VG_ID_LEN + 1];
    sqlite3_stmt *q;
    int r = select_where(s, "WHERE id=?", &q);
    if (r < 0)
        return r;
    vg_id_format(id, hex);
    sqlite3_bind_text(q, 1, hex, -1, SQLITE_STATIC);
    r = store_each(q, row_found, &f);
    return r == 0 && !f.any ? -ENOENT : r;
}

struct ids {
    uint64_t id;
    unsigned n;
};

static int row_id(void *arg, sqlite3_stmt *q) {
    struct ids *f = arg;
    f->id = store_id(q, 0);
    f->n++;
    return 0;
}

static int find(struct vg_store *s, const char *sql, const char *a, const char *b, const char *user,
                uint64_t *ret) {
    struct ids f = {0};
    sqlite3_stmt *q;
    int r = store_prepare(s, sql, &q);
    if (r < 0)
        return r;
    sqlite3_bind_text(q, 1, a, -1, SQLITE_STATIC);
    sqlite3_bind_text(q, 2, b, -1, SQLITE_STATIC);
    if (user)
        sqlite3_bind_text(q, 3, user, -1, SQLITE_STATIC);
    r = store_each(q, row_id, &f);
    if (r < 0)
        return r;
    if (f.n != 1)
        return f.n ? -EBUSY : -ENOENT;
    *ret = f.id;
    return 0;
}

int vg_store_find_prefix(struct vg_store *s, const char *prefix, const char *user,
                         uint64_t *ret_id) {
    char low[VG_ID_LEN + 1] = "", high[VG_ID_LEN + 2];
    size_t n = strlen(prefix);
    if (n == 0 || n > VG_ID_LEN)
        return -ENOENT;
    for (size_t i = 0; i < n; i++) {
        if (!isxdigit((unsigned char)prefix[i]))
            return -ENOENT;
        low[i] = (char)tolower((unsigned char)prefix[i]);
    }
    snprintf(high, sizeof high, "%sg", low); /* 'g' comes after every hex digit */
    return find(s,
                "SELECT id FROM tasks WHERE id>=?1 AND id<?2 AND (?3 IS NULL OR user=?3) LIMIT 2",
                low, high, user, ret_id);
}

int vg_store_find_sibling(struct vg_store *s, const char *name, const char *user, uint64_t parent,
                          uint64_t *ret_id) {
    char hex[VG_ID_LEN + 1] = "";
    if (parent)
        vg_id_format(parent, hex);
    return find(s,
                "SELECT id FROM tasks WHERE name=?1 AND name<>'' AND parent=?2 AND grp='' AND "
                "user=?3 ORDER BY created_usec DESC LIMIT 1",
                name, hex, user, ret_id);
}

int vg_store_find_key(struct vg_store *s, const char *user, const char *key, uint64_t *ret_id) {
    return find(s, "SELECT id FROM tasks WHERE user=?1 AND key=?2 AND key<>'' LIMIT 1", user, key,
                NULL, ret_id);
}

static int row_folded(void *arg, sqlite3_stmt *q) {
    struct ctx *c = arg;
    struct vg_task_row row = {.id = store_id(q, 0),
                              .index = (uint32_t)store_u64(q, 1),
                              .state = store_text(q, 2),
                              .status = (int32_t)sqlite3_column_int64(q, 3),
                              .ended = true};
    return c->cb(c->arg, &row);
}

int vg_store_load_folded(struct vg_store *s, uint64_t fold, vg_task_row_cb *cb, void *arg) {
    struct ctx c = {cb, arg};
    char hex[VG_ID_LEN + 1];
    sqlite3_stmt *q;
    int r = store_prepare(s,
                          "SELECT id,idx,state,status FROM tasks WHERE fold=? AND fold<>'' AND "
                          "ended=1 ORDER BY idx",
                          &q);
    if (r < 0)
        return r;
    vg_id_format(fold, hex);
    sqlite3_bind_text(q, 1, hex, -1, SQLITE_STATIC);
    return store_each(q, row_folded, &c);
}

int vg_store_find_name(struct vg_store *s, const char *name, const char *user, uint64_t *ret_id) {
    return find(s,
                "SELECT id FROM tasks WHERE name=?1 AND name<>'' AND name=?2 AND grp='' AND "
                "(?3 IS NULL OR user=?3) ORDER BY created_usec DESC LIMIT 1",
                name, name, user, ret_id);
}
