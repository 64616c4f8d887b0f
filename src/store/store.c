/* Opening, closing, waiting, and the way back to the loop thread. */
#include "store/store.h"

#include "base/cleanup.h"
#include "base/fault.h"
#include "base/mem.h"
#include "store/migrations.h"
#include "store/read-internal.h"

#include <fcntl.h>
#include <libgen.h>

#define BUSY_MS 10000
#define CACHE_KIB 8192

/* Makes the file ours alone, and its name in the folder safe. */
static int make_file(const char *path, struct vg_err *err) {
    vg_auto_fd int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_EXCL, 0600);
    if (fd < 0)
        return errno == EEXIST ? 0 : vg_err_sys(err, errno, "cannot make the database %s", path);
    vg_auto_free char *copy = vg_strdup(path);
    if (!copy)
        return vg_err_sys(err, ENOMEM, "cannot make the database %s", path);
    vg_auto_fd int dir = open(dirname(copy), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir < 0 || fsync(dir) < 0)
        return vg_err_sys(err, errno, "cannot sync the folder of %s", path);
    return 0;
}

static int configure(sqlite3 *db, bool readonly, unsigned max_pages) {
    char sql[256];
    int rc = sqlite3_busy_timeout(db, BUSY_MS);
    if (rc == SQLITE_OK && !readonly)
        rc = sqlite3_exec(db, "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;", NULL, NULL,
                          NULL);
    snprintf(sql, sizeof sql,
             "PRAGMA cache_size=-%d; PRAGMA journal_size_limit=67108864; PRAGMA temp_store=MEMORY;"
             "PRAGMA query_only=%d;",
             CACHE_KIB, readonly);
    if (rc == SQLITE_OK)
        rc = sqlite3_exec(db, sql, NULL, NULL, NULL);
    snprintf(sql, sizeof sql, "PRAGMA max_page_count=%u", max_pages);
    if (rc == SQLITE_OK && max_pages)
        rc = sqlite3_exec(db, sql, NULL, NULL, NULL);
    return rc;
}

int store_open_db(const char *path, bool readonly, unsigned max_pages, sqlite3 **ret,
                  struct vg_err *err) {
    sqlite3 *db = NULL;
    int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_PRIVATECACHE;
    int rc = vg_fault("store/open") < 0 ? SQLITE_IOERR : sqlite3_open_v2(path, &db, flags, NULL);
    if (rc == SQLITE_OK)
        rc = configure(db, readonly, max_pages);
    if (rc != SQLITE_OK) {
        vg_err_set(err, VG_INTERNAL, "cannot open the database %s: %s; look at its disk and rights",
                   path, db ? sqlite3_errmsg(db) : sqlite3_errstr(rc));
        sqlite3_close(db);
        return -EIO;
    }
    *ret = db;
    return 0;
}

static int open_both(struct vg_store *s, const struct vg_store_opts *o, struct vg_err *err) {
    int r = make_file(s->path, err);
    if (r >= 0)
        r = store_open_db(s->path, false, 0, &s->writer, err);
    if (r >= 0)
        r = vg_migrate(s->writer, s->path, vg_migrations, vg_n_migrations, err);
    if (r >= 0)
        r = store_audit_init(s->writer, err);
    if (r >= 0 && o->max_pages && configure(s->writer, false, o->max_pages) != SQLITE_OK)
        r = vg_err_set(err, VG_INTERNAL, "cannot limit the database %s", s->path);
    if (r >= 0)
        r = store_open_db(s->path, true, 0, &s->reader, err);
    return r;
}

static int start(struct vg_store *s, const struct vg_store_opts *o, struct vg_err *err) {
    if (o->inline_writes)
        return 0;
    int e = pthread_create(&s->thread, NULL, store_writer_main, s);
    if (e)
        return vg_err_sys(err, e, "cannot start the writer of %s", s->path);
    s->threaded = true;
    return 0;
}

static void init_locks(struct vg_store *s) {
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->wake, &attr);
    pthread_cond_init(&s->idle, &attr);
    pthread_condattr_destroy(&attr);
}

int vg_store_open(const struct vg_store_opts *o, struct vg_store **ret, struct vg_err *err) {
    struct vg_store *s = vg_alloc(sizeof *s);
    if (!s)
        return vg_err_sys(err, ENOMEM, "cannot open the database %s", o->path);
    ops_init(&s->queue);
    ops_init(&s->done);
    ops_init(&s->held);
    ops_init(&s->notes);
    init_locks(s);
    s->notify = o->notify;
    s->notify_arg = o->notify_arg;
    int r = (s->path = vg_strdup(o->path)) ? 0 : vg_err_sys(err, ENOMEM, "cannot open a database");
    if (r >= 0)
        r = open_both(s, o, err);
    if (r >= 0)
        r = start(s, o, err);
    if (r < 0) {
        vg_store_close(s);
        return r;
    }
    *ret = s;
    return 0;
}

/* What could not be written to the very end is told so. */
static void cancel_rest(struct vg_store *s) {
    for (struct op *op; (op = ops_pop(&s->queue));) {
        op->result = -ECANCELED;
        ops_push(&s->done, op);
    }
}

void vg_store_close(struct vg_store *s) {
    if (!s)
        return;
    store_release(s);
    pthread_mutex_lock(&s->lock);
    s->closing = true; /* callbacks can queue nothing more */
    pthread_cond_signal(&s->wake);
    pthread_mutex_unlock(&s->lock);
    if (s->threaded) {
        pthread_join(s->thread, NULL);
        s->threaded = false;
    } else if (s->writer) {
        store_pass(s);
    }
    cancel_rest(s);
    vg_store_dispatch(s);
    for (unsigned i = 0; i < N_STMTS; i++)
        sqlite3_finalize(s->stmt[i]);
    store_close_reader(s->reader);
    sqlite3_close(s->writer);
    pthread_cond_destroy(&s->wake);
    pthread_cond_destroy(&s->idle);
    pthread_mutex_destroy(&s->lock);
    free(s->path);
    free(s);
}

void vg_store_dispatch(struct vg_store *s) {
    struct ops done;
    ops_init(&done);
    pthread_mutex_lock(&s->lock);
    ops_move(&done, &s->done);
    pthread_mutex_unlock(&s->lock);
    for (struct op *op; (op = ops_pop(&done));) {
        vg_store_group_begin(s);
        if (op->cb)
            op->cb(op->arg, op->result);
        vg_store_group_end(s);
        free(op);
    }
}

int vg_store_flush(struct vg_store *s) {
    store_release(s);
    pthread_mutex_lock(&s->lock);
    uint64_t ticket = ++s->flush_asked;
    pthread_cond_signal(&s->wake);
    while (s->threaded && s->flush_done < ticket)
        pthread_cond_wait(&s->idle, &s->lock);
    pthread_mutex_unlock(&s->lock);
    if (!s->threaded)
        store_pass(s);
    pthread_mutex_lock(&s->lock);
    int stuck = s->stuck;
    pthread_mutex_unlock(&s->lock);
    vg_store_dispatch(s);
    return stuck;
}

size_t vg_store_backlog(const struct vg_store *s) {
    struct vg_store *m = (struct vg_store *)s;
    pthread_mutex_lock(&m->lock);
    size_t n = s->queue.n + s->held.n + s->notes.n;
    pthread_mutex_unlock(&m->lock);
    return n;
}
