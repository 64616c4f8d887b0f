/* SQLite on the world's disk: the store's own code runs unchanged, and what a crash leaves of its
   database and write-ahead log is for SQLite to make sense of, as it would have to. */
#include "sim/faults/world.h"

#include "base/cleanup.h"
#include "base/mem.h"

#include <sqlite3.h>
#include <string.h>

struct handle {
    sqlite3_file base;
    struct vg_w_file *file;
    int lock;         /* SQLITE_LOCK_* that it holds */
    uint8_t shm[8];   /* 1 shared, 2 exclusive */
    bool gone_at_end; /* a temporary file */
    char path[256];
};

static struct handle *handle_of(sqlite3_file *f) {
    return (struct handle *)f;
}

/* ------------------------------------------------------------------ bytes */

static int x_read(sqlite3_file *f, void *p, int n, sqlite3_int64 at) {
    size_t got = vg_w_file_read(handle_of(f)->file, p, (size_t)n, (uint64_t)at);
    if (got == (size_t)n)
        return SQLITE_OK;
    memset((uint8_t *)p + got, 0, (size_t)n - got);
    return SQLITE_IOERR_SHORT_READ;
}

static int x_write(sqlite3_file *f, const void *p, int n, sqlite3_int64 at) {
    return vg_w_file_write(handle_of(f)->file, p, (size_t)n, (uint64_t)at) < 0 ? SQLITE_FULL
                                                                               : SQLITE_OK;
}

static int x_truncate(sqlite3_file *f, sqlite3_int64 size) {
    vg_w_file_truncate(handle_of(f)->file, (uint64_t)size);
    return SQLITE_OK;
}

static int x_sync(sqlite3_file *f, int flags) {
    (void)flags;
    vg_w_file_sync(handle_of(f)->file);
    return SQLITE_OK;
}

static int x_size(sqlite3_file *f, sqlite3_int64 *ret) {
    *ret = (sqlite3_int64)vg_w_file_size(handle_of(f)->file);
    return SQLITE_OK;
}

/* ------------------------------------------------------------------ locks */

static int x_unlock(sqlite3_file *f, int level) {
    struct handle *h = handle_of(f);
    struct vg_w_locks *l = vg_w_file_locks(h->file);
    if (h->lock > SQLITE_LOCK_SHARED && level <= SQLITE_LOCK_SHARED) {
        l->reserved -= h->lock >= SQLITE_LOCK_RESERVED;
        l->pending -= h->lock >= SQLITE_LOCK_PENDING;
        l->exclusive -= h->lock == SQLITE_LOCK_EXCLUSIVE;
    }
    if (h->lock >= SQLITE_LOCK_SHARED && level == SQLITE_LOCK_NONE)
        l->shared--;
    h->lock = VG_MIN(h->lock, level);
    return SQLITE_OK;
}

static int x_lock(sqlite3_file *f, int level) {
    struct handle *h = handle_of(f);
    struct vg_w_locks *l = vg_w_file_locks(h->file);
    if (h->lock >= level)
        return SQLITE_OK;
    if (level == SQLITE_LOCK_SHARED) {
        if (l->pending)
            return SQLITE_BUSY;
        l->shared++;
    } else {
        if (h->lock < SQLITE_LOCK_RESERVED && l->reserved)
            return SQLITE_BUSY;
        if (level == SQLITE_LOCK_EXCLUSIVE && l->shared > 1)
            return SQLITE_BUSY;
        l->reserved += h->lock < SQLITE_LOCK_RESERVED;
        l->pending += level >= SQLITE_LOCK_PENDING && h->lock < SQLITE_LOCK_PENDING;
        l->exclusive += level == SQLITE_LOCK_EXCLUSIVE;
    }
    h->lock = level;
    return SQLITE_OK;
}

static int x_check_reserved(sqlite3_file *f, int *ret) {
    *ret = vg_w_file_locks(handle_of(f)->file)->reserved > 0;
    return SQLITE_OK;
}

static int x_control(sqlite3_file *f, int op, void *arg) {
    (void)f;
    (void)op;
    (void)arg;
    return SQLITE_NOTFOUND;
}

static int x_sector(sqlite3_file *f) {
    (void)f;
    return 4096;
}

static int x_characteristics(sqlite3_file *f) {
    (void)f;
    return SQLITE_IOCAP_POWERSAFE_OVERWRITE;
}

/* ------------------------------------------------------------------ the index of the log */

static int x_shm_map(sqlite3_file *f, int i, int size, int extend, void volatile **ret) {
    size_t n = 0;
    void **p = vg_w_file_shm(handle_of(f)->file, &n, extend ? (size_t)i + 1 : 0, (size_t)size);
    *ret = (size_t)i < n ? p[i] : NULL;
    return SQLITE_OK;
}

static int x_shm_lock(sqlite3_file *f, int from, int n, int flags) {
    struct handle *h = handle_of(f);
    struct vg_w_locks *l = vg_w_file_locks(h->file);
    for (int i = from; i < from + n; i++) {
        if (flags & SQLITE_SHM_UNLOCK)
            continue;
        bool others_shared = l->shm_shared[i] > (h->shm[i] == 1);
        bool others_own = l->shm_exclusive[i] > (h->shm[i] == 2);
        if (others_own || (flags & SQLITE_SHM_EXCLUSIVE && others_shared))
            return SQLITE_BUSY;
    }
    for (int i = from; i < from + n; i++) {
        l->shm_shared[i] -= h->shm[i] == 1;
        l->shm_exclusive[i] -= h->shm[i] == 2;
        h->shm[i] = flags & SQLITE_SHM_UNLOCK ? 0 : flags & SQLITE_SHM_SHARED ? 1 : 2;
        l->shm_shared[i] += h->shm[i] == 1;
        l->shm_exclusive[i] += h->shm[i] == 2;
    }
    return SQLITE_OK;
}

static void x_shm_barrier(sqlite3_file *f) {
    (void)f;
}

/* The pieces live as long as the file: what a crash leaves is a new file with none. */
static int x_shm_unmap(sqlite3_file *f, int remove) {
    (void)remove;
    x_shm_lock(f, 0, 8, SQLITE_SHM_UNLOCK);
    return SQLITE_OK;
}

/* ------------------------------------------------------------------ files */

static int x_close(sqlite3_file *f) {
    struct handle *h = handle_of(f);
    x_unlock(f, SQLITE_LOCK_NONE);
    x_shm_lock(f, 0, 8, SQLITE_SHM_UNLOCK);
    vg_w_file_close(h->file);
    if (h->gone_at_end)
        vg_w_file_remove(h->path);
    return SQLITE_OK;
}

static const sqlite3_io_methods methods = {
    .iVersion = 2,
    .xClose = x_close,
    .xRead = x_read,
    .xWrite = x_write,
    .xTruncate = x_truncate,
    .xSync = x_sync,
    .xFileSize = x_size,
    .xLock = x_lock,
    .xUnlock = x_unlock,
    .xCheckReservedLock = x_check_reserved,
    .xFileControl = x_control,
    .xSectorSize = x_sector,
    .xDeviceCharacteristics = x_characteristics,
    .xShmMap = x_shm_map,
    .xShmLock = x_shm_lock,
    .xShmBarrier = x_shm_barrier,
    .xShmUnmap = x_shm_unmap,
};

static int x_open(sqlite3_vfs *v, const char *name, sqlite3_file *f, int flags, int *ret_flags) {
    struct handle *h = handle_of(f);
    (void)v;
    memset(h, 0, sizeof *h);
    if (!vg_w)
        return SQLITE_CANTOPEN;
    snprintf(h->path, sizeof h->path, "%s", name ? name : "temporary");
    h->file = vg_w_file_open(h->path, flags & SQLITE_OPEN_CREATE);
    if (!h->file)
        return SQLITE_CANTOPEN;
    h->gone_at_end = flags & SQLITE_OPEN_DELETEONCLOSE;
    h->base.pMethods = &methods;
    if (ret_flags)
        *ret_flags = flags;
    return SQLITE_OK;
}

static int x_delete(sqlite3_vfs *v, const char *name, int sync) {
    (void)v;
    (void)sync;
    vg_w_file_remove(name);
    return SQLITE_OK;
}

static int x_access(sqlite3_vfs *v, const char *name, int flags, int *ret) {
    (void)v;
    (void)flags;
    *ret = vg_w_file_exists(name);
    return SQLITE_OK;
}

static int x_full_path(sqlite3_vfs *v, const char *name, int n, char *out) {
    (void)v;
    snprintf(out, (size_t)n, "%s", name);
    return SQLITE_OK;
}

static int x_randomness(sqlite3_vfs *v, int n, char *out) {
    (void)v;
    for (int i = 0; i < n; i++)
        out[i] = (char)vg_rng_next(&vg_w->disk_rng);
    return n;
}

static int x_sleep(sqlite3_vfs *v, int usec) {
    (void)v;
    return usec;
}

static int x_time(sqlite3_vfs *v, double *ret) {
    (void)v;
    *ret = 2461041.5 + (double)vg_w->now / 86400e6;
    return SQLITE_OK;
}

static sqlite3_vfs vfs = {
    .iVersion = 1,
    .szOsFile = sizeof(struct handle),
    .mxPathname = 255,
    .zName = "virga-world",
    .xOpen = x_open,
    .xDelete = x_delete,
    .xAccess = x_access,
    .xFullPathname = x_full_path,
    .xRandomness = x_randomness,
    .xSleep = x_sleep,
    .xCurrentTime = x_time,
};

int vg_w_vfs_install(struct vg_err *err) {
    int rc = sqlite3_vfs_register(&vfs, 1);
    return rc == SQLITE_OK ? 0
                           : vg_err_set(err, VG_INTERNAL, "SQLite refuses the simulated disk: %s",
                                        sqlite3_errstr(rc));
}
