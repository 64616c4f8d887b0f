/* The audit log's chain and its reading. The writer adds number and hash to an entry inside its own
   transaction, from the last entry that this sees: an entry and its place in the chain are one. */
#include "store/audit.h"

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"
#include "store/read-internal.h"

#include <openssl/evp.h>
#include <pthread.h>
#include <string.h>

#define LIMIT_DEFAULT 100
#define LIMIT_MAX 10000

/* ------------------------------------------------------------------ the hash */

/* One for all threads, looked up once: that costs more than hashing an entry. */
static EVP_MD *sha256;
static pthread_once_t sha256_once = PTHREAD_ONCE_INIT;

static void sha256_fetch(void) {
    sha256 = EVP_MD_fetch(NULL, "SHA256", NULL);
}

static int add_word(EVP_MD_CTX *md, const char *s, size_t n) {
    uint8_t len[4] = {(uint8_t)(n >> 24), (uint8_t)(n >> 16), (uint8_t)(n >> 8), (uint8_t)n};
    return EVP_DigestUpdate(md, len, sizeof len) && EVP_DigestUpdate(md, s, n);
}

static int add_number(EVP_MD_CTX *md, uint64_t v) {
    uint8_t b[8];
    for (int i = 0; i < 8; i++)
        b[i] = (uint8_t)(v >> (56 - 8 * i));
    return EVP_DigestUpdate(md, b, sizeof b);
}

int vg_audit_hash(const uint8_t last[static VG_AUDIT_HASH], const struct vg_audit_words *w,
                  uint8_t ret[static VG_AUDIT_HASH]) {
    pthread_once(&sha256_once, sha256_fetch);
    EVP_MD_CTX *md = EVP_MD_CTX_new();
    int ok = md && sha256 && EVP_DigestInit_ex(md, sha256, NULL) &&
             EVP_DigestUpdate(md, last, VG_AUDIT_HASH) && add_number(md, w->seq) &&
             add_number(md, w->when_usec) && add_word(md, w->who, w->n_who) &&
             add_word(md, w->what, w->n_what) && add_word(md, w->from, w->n_from) &&
             EVP_DigestFinal_ex(md, ret, NULL);
    EVP_MD_CTX_free(md);
    return ok ? 0 : -EIO;
}

/* ------------------------------------------------------------------ writing */

static int read_tail(struct vg_store *s) {
    int rc;
    sqlite3_stmt *q = store_stmt(s, STMT_AUDIT_TAIL, &rc);
    if (!q)
        return rc;
    s->tail.seq = 0;
    memset(s->tail.hash, 0, sizeof s->tail.hash);
    rc = sqlite3_step(q);
    if (rc == SQLITE_ROW) {
        struct vg_bytes hash = store_blob(q, 1);
        s->tail.seq = store_u64(q, 0);
        if (hash.len == VG_AUDIT_HASH)
            memcpy(s->tail.hash, hash.data, VG_AUDIT_HASH);
        rc = hash.len == VG_AUDIT_HASH ? SQLITE_DONE : SQLITE_CORRUPT;
    }
    sqlite3_reset(q);
    s->tail.known = rc == SQLITE_DONE;
    return s->tail.known ? SQLITE_OK : rc;
}

int store_audit_bind(struct vg_store *s, sqlite3_stmt *q, const struct op *op) {
    int rc = s->tail.known ? SQLITE_OK : read_tail(s);
    const struct val *v = op->val;
    struct vg_audit_words w = {.seq = s->tail.seq + 1,
                               .when_usec = (uint64_t)v[0].i,
                               .who = v[1].p,
                               .n_who = v[1].len,
                               .what = v[2].p,
                               .n_what = v[2].len,
                               .from = v[3].p,
                               .n_from = v[3].len};
    if (rc == SQLITE_OK && vg_audit_hash(s->tail.hash, &w, s->tail.hash) < 0)
        rc = SQLITE_ERROR;
    if (rc == SQLITE_OK)
        rc = sqlite3_bind_int64(q, 5, (sqlite3_int64)w.seq);
    if (rc == SQLITE_OK)
        rc = sqlite3_bind_blob(q, 6, s->tail.hash, VG_AUDIT_HASH, SQLITE_STATIC);
    s->tail.seq = w.seq;
    return rc;
}

/* ------------------------------------------------------------------ entries of before */

static const char columns[] = "SELECT seq,when_usec,who,what,origin,hash FROM audit";

static struct vg_audit_words words_of(sqlite3_stmt *q) {
    struct vg_audit_words w = {.seq = store_u64(q, 0),
                               .when_usec = store_u64(q, 1),
                               .who = store_text(q, 2),
                               .what = store_text(q, 3),
                               .from = store_text(q, 4)};
    w.n_who = (size_t)sqlite3_column_bytes(q, 2);
    w.n_what = (size_t)sqlite3_column_bytes(q, 3);
    w.n_from = (size_t)sqlite3_column_bytes(q, 4);
    return w;
}

/* One entry gets its hash, which is the next one's `last`. */
static int chain_one(sqlite3_stmt *q, sqlite3_stmt *put, uint8_t last[static VG_AUDIT_HASH]) {
    struct vg_audit_words w = words_of(q);
    if (vg_audit_hash(last, &w, last) < 0)
        return SQLITE_ERROR;
    sqlite3_bind_blob(put, 1, last, VG_AUDIT_HASH, SQLITE_STATIC);
    sqlite3_bind_int64(put, 2, (sqlite3_int64)w.seq);
    int rc = sqlite3_step(put);
    sqlite3_reset(put);
    return rc == SQLITE_DONE ? SQLITE_OK : rc;
}

/* A log that was begun before there was a chain. Its numbers have no gap: nothing ever left it. */
static int chain_all(sqlite3 *db) {
    uint8_t last[VG_AUDIT_HASH] = {0};
    sqlite3_stmt *q = NULL, *put = NULL;
    int rc = sqlite3_prepare_v2(db, "UPDATE audit SET hash=? WHERE seq=?", -1, &put, NULL);
    if (rc == SQLITE_OK)
        rc = sqlite3_prepare_v2(db, "SELECT seq,when_usec,who,what,origin FROM audit ORDER BY seq",
                                -1, &q, NULL);
    while (rc == SQLITE_OK && (rc = sqlite3_step(q)) == SQLITE_ROW)
        rc = chain_one(q, put, last);
    sqlite3_finalize(q);
    sqlite3_finalize(put);
    return rc == SQLITE_DONE ? SQLITE_OK : rc;
}

static int is_unchained(sqlite3 *db, bool *ret) {
    sqlite3_stmt *q = NULL;
    int rc = sqlite3_prepare_v2(
        db, "SELECT length(hash) FROM audit WHERE seq=(SELECT max(seq) FROM audit)", -1, &q, NULL);
    if (rc == SQLITE_OK)
        rc = sqlite3_step(q);
    *ret = rc == SQLITE_ROW && sqlite3_column_int(q, 0) == 0;
    sqlite3_finalize(q);
    return rc == SQLITE_ROW || rc == SQLITE_DONE ? SQLITE_OK : rc;
}

int store_audit_init(sqlite3 *db, struct vg_err *err) {
    bool unchained = false;
    int rc = is_unchained(db, &unchained);
    if (rc == SQLITE_OK && unchained) {
        rc = sqlite3_exec(db, "BEGIN IMMEDIATE", NULL, NULL, NULL);
        if (rc == SQLITE_OK)
            rc = chain_all(db);
        if (rc == SQLITE_OK)
            rc = sqlite3_exec(db, "COMMIT", NULL, NULL, NULL);
        if (!sqlite3_get_autocommit(db))
            sqlite3_exec(db, "ROLLBACK", NULL, NULL, NULL);
    }
    if (rc != SQLITE_OK)
        return vg_err_set(err, VG_INTERNAL,
                          "cannot chain the audit log: %s; free disk space and start again",
                          sqlite3_errmsg(db));
    return 0;
}

/* ------------------------------------------------------------------ the walk */

static bool fits(sqlite3_stmt *q, const uint8_t last[static VG_AUDIT_HASH], uint64_t expected,
                 struct vg_audit_check *c) {
    struct vg_audit_words w = words_of(q);
    struct vg_bytes is = store_blob(q, 5);
    uint8_t should[VG_AUDIT_HASH];
    c->gap = w.seq != expected;
    if (!c->gap && is.len == VG_AUDIT_HASH && vg_audit_hash(last, &w, should) == 0 &&
        memcmp(should, is.data, VG_AUDIT_HASH) == 0) {
        memcpy(c->head, should, VG_AUDIT_HASH);
        return true;
    }
    c->broken = w.seq;
    return false;
}

static int walk(sqlite3_stmt *q, const uint8_t *head, struct vg_audit_check *ret) {
    struct vg_audit_check c = {0};
    int rc;
    while (!c.broken && (rc = sqlite3_step(q)) == SQLITE_ROW) {
        uint8_t last[VG_AUDIT_HASH];
        memcpy(last, c.head, sizeof last);
        c.entries++;
        if (fits(q, last, c.entries, &c) && head)
            c.head_found |= memcmp(head, c.head, VG_AUDIT_HASH) == 0;
    }
    if (!c.broken && rc != SQLITE_DONE)
        return store_errno(rc);
    *ret = c;
    return 0;
}

int vg_audit_check(const char *path, const uint8_t *head, struct vg_audit_check *ret,
                   struct vg_err *err) {
    vg_auto_free char *sql = vg_fmt("%s ORDER BY seq", columns);
    sqlite3 *db = NULL;
    sqlite3_stmt *q = NULL;
    int r = store_open_db(path, true, 0, &db, err);
    if (r < 0)
        return r;
    int rc = sql ? sqlite3_prepare_v2(db, sql, -1, &q, NULL) : SQLITE_NOMEM;
    r = rc == SQLITE_OK ? walk(q, head, ret) : store_errno(rc);
    if (r < 0)
        vg_err_set(err, VG_INTERNAL, "cannot read the audit log in %s: %s", path,
                   sqlite3_errmsg(db));
    sqlite3_finalize(q);
    sqlite3_close(db);
    return r;
}

/* ------------------------------------------------------------------ reading a page */

struct page_ctx {
    int (*cb)(void *, const struct vg_audit_row *);
    void *arg;
};

static int row_audit(void *ctx, sqlite3_stmt *q) {
    struct page_ctx *c = ctx;
    struct vg_audit_row row = {.seq = store_u64(q, 0),
                               .when_usec = store_u64(q, 1),
                               .who = store_text(q, 2),
                               .what = store_text(q, 3),
                               .from = store_text(q, 4),
                               .hash = store_blob(q, 5)};
    return c->cb(c->arg, &row);
}

static const char *page_sql(const struct vg_audit_filter *f, char *out, size_t n) {
    snprintf(out, n,
             "%s WHERE seq%s?1 AND (?2='' OR who=?2) AND when_usec>=?3 AND (?4='' OR "
             "instr(lower(what||char(10)||who||char(10)||origin),lower(?4))>0) "
             "ORDER BY seq %s LIMIT ?5",
             columns, f->after ? ">" : "<", f->after ? "ASC" : "DESC");
    return out;
}

static void bind_filter(sqlite3_stmt *q, const struct vg_audit_filter *f) {
    uint64_t at = f->after ? f->after : f->before ? f->before : INT64_MAX;
    sqlite3_bind_int64(q, 1, (sqlite3_int64)VG_MIN(at, (uint64_t)INT64_MAX));
    sqlite3_bind_text(q, 2, f->user ? f->user : "", -1, SQLITE_STATIC);
    sqlite3_bind_int64(q, 3, (sqlite3_int64)VG_MIN(f->since_usec, (uint64_t)INT64_MAX));
    sqlite3_bind_text(q, 4, f->search ? f->search : "", -1, SQLITE_STATIC);
    sqlite3_bind_int64(q, 5, f->limit ? VG_MIN(f->limit, (uint32_t)LIMIT_MAX) : LIMIT_DEFAULT);
}

int vg_store_load_audit(struct vg_store *s, const struct vg_audit_filter *f,
                        int (*cb)(void *, const struct vg_audit_row *), void *arg) {
    struct page_ctx c = {cb, arg};
    char sql[400];
    sqlite3_stmt *q;
    int r = store_prepare(s, page_sql(f, sql, sizeof sql), &q);
    if (r < 0)
        return r;
    bind_filter(q, f);
    return store_each(q, row_audit, &c);
}

int vg_audit_scan(const char *path, const struct vg_audit_filter *f,
                  int (*cb)(void *, const struct vg_audit_row *), void *arg) {
    struct page_ctx c = {cb, arg};
    struct vg_err err = VG_ERR_INIT;
    char sql[400];
    sqlite3 *db = NULL;
    sqlite3_stmt *q = NULL;
    int r = store_open_db(path, true, 0, &db, &err);
    if (r < 0)
        return r;
    r = store_errno(sqlite3_prepare_v2(db, page_sql(f, sql, sizeof sql), -1, &q, NULL));
    if (r >= 0) {
        bind_filter(q, f);
        r = store_each(q, row_audit, &c);
    }
    store_close_reader(db);
    return r;
}
