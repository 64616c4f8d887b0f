#pragma once
/* Inside store: the schema's history. Version n is reached by running migration n; a migration that
   was ever released is never changed. */
#include "base/err.h"

#include <sqlite3.h>
#include <stddef.h>

extern const char *const vg_migrations[];
extern const size_t vg_n_migrations;

/* Brings the database from its version to version n, each step in a transaction of its own. A
   database beyond n is refused. */
int vg_migrate(sqlite3 *db, const char *path, const char *const *list, size_t n,
               struct vg_err *err);
