#pragma once
/* Inside store: reading rows from the loop's own connection. */
#include "store/internal.h"

/* Runs fn for every row; its non-zero return ends the read and is returned. Gives q back. */
int store_each(sqlite3_stmt *q, int (*fn)(void *ctx, sqlite3_stmt *q), void *ctx);
/* With the statements that store_each keeps; NULL is fine. */
void store_close_reader(sqlite3 *db);
int store_prepare(struct vg_store *s, const char *sql, sqlite3_stmt **ret);
const char *store_text(sqlite3_stmt *q, int column); /* never NULL */
struct vg_bytes store_blob(sqlite3_stmt *q, int column);
uint64_t store_id(sqlite3_stmt *q, int column); /* 0 for "" */
static inline uint64_t store_u64(sqlite3_stmt *q, int column) {
    return (uint64_t)sqlite3_column_int64(q, column);
}
