/* Filling the operator's store. One process, one thread.

   A file is read once to know its id, and, when it is not there, a second time into new/, where its
   hash must come out the same. Every so often everything in new/ is synced and only then named: a
   name below id/ never stands for bytes that a power failure could take back. */
#include "fs/node/public.h"

#include "base/cleanup.h"
#include "base/fault.h"
#include "base/mem.h"
#include "base/util.h"
#include "mirror/stamp.h"

#include <dirent.h>
#include <fcntl.h>
#include <fts.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#define BATCH_FILES 4096
#define BATCH_BYTES (UINT64_C(1) << 30)
#define FILE_MAX (UINT64_C(64) << 30) /* packages have no larger ones */
#define KEEP_FREE_MAX (UINT64_C(1) << 30)

struct store {
    int dir, lock;
    uint8_t *leaf; /* owned */
    struct vg_public_stat *st;
    unsigned n_new; /* files in new/ */
    uint64_t new_bytes;
};

static void id_path(const uint8_t id[VG_HASH], const char *kind, char out[96]) {
    char hex[2 * VG_HASH + 1];
    vg_hex(id, VG_HASH, hex);
    if (strcmp(kind, "new") == 0)
        snprintf(out, 96, "new/%s", hex);
    else
        snprintf(out, 96, "%s/%.2s/%s", kind, hex, hex);
}

static void store_close(struct store *s) {
    vg_close(&s->dir);
    vg_close(&s->lock);
    free(s->leaf);
}

static int remove_in(int dir, const char *folder) {
    vg_auto_fd int fd = openat(dir, folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    int again = fd < 0 ? -1 : dup(fd);
    DIR *d = again < 0 ? NULL : fdopendir(again);
    if (!d)
        return -errno;
    for (struct dirent *e; (e = readdir(d));)
        if (e->d_name[0] != '.')
            unlinkat(fd, e->d_name, 0);
    closedir(d);
    return 0;
}

static int store_open(struct store *s, const char *dir, struct vg_err *err) {
    int r = vg_mkdir_p(dir, 0700);
    if (r < 0)
        return vg_err_sys(err, r, "cannot make the public store %s", dir);
    s->dir = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    s->leaf = vg_alloc(VG_LEAF);
    if (s->dir < 0 || !s->leaf)
        return vg_err_sys(err, s->leaf ? -errno : -ENOMEM, "cannot open the public store %s", dir);
    s->lock = openat(s->dir, "lock", O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (s->lock < 0)
        return vg_err_sys(err, -errno, "cannot lock the public store %s", dir);
    if (flock(s->lock, LOCK_EX | LOCK_NB) < 0)
        return vg_err_set(err, VG_CONFLICT,
                          "somebody else is filling the public store %s; wait until that is done",
                          dir);
    if ((mkdirat(s->dir, "id", 0700) < 0 && errno != EEXIST) ||
        (mkdirat(s->dir, "new", 0700) < 0 && errno != EEXIST) || remove_in(s->dir, "new") < 0)
        return vg_err_sys(err, -errno, "cannot write in the public store %s", dir);
    return 0;
}

/* Reads a file to its end; with `out` >= 0 writes it there. The id, or -ESTALE when its length is
   another than it was. */
static int read_id(struct store *s, int fd, int out, uint64_t size, uint8_t id[VG_HASH]) {
    uint64_t leaves = vg_leaves(size), got = 0;
    vg_auto_free uint8_t *hash = vg_alloc((size_t)leaves * VG_HASH);
    if (!hash)
        return -ENOMEM;
    if (lseek(fd, 0, SEEK_SET) < 0)
        return -errno;
    for (uint64_t i = 0; i < leaves; i++) {
        ssize_t n = vg_read_full(fd, s->leaf, VG_LEAF);
        if (n < 0)
            return (int)n;
        vg_leaf_hash(s->leaf, (size_t)n, hash + i * VG_HASH);
        got += (uint64_t)n;
        int r = out < 0 ? 0 : vg_fault("public/write");
        r = r < 0 || out < 0 ? r : vg_write_full(out, s->leaf, (size_t)n);
        if (r < 0)
            return r;
    }
    if (got != size)
        return -ESTALE;
    vg_file_id(size, hash, leaves, id);
    return 0;
}

/* Everything in new/ is on the disk, then it gets its names. */
static int settle(struct store *s) {
    int r = vg_fault("public/sync");
    if (r == 0 && syncfs(s->dir) < 0)
        r = -errno;
    vg_auto_fd int fd = r < 0 ? -1 : openat(s->dir, "new", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int again = fd < 0 ? -1 : dup(fd);
    DIR *d = again < 0 ? NULL : fdopendir(again);
    if (!d)
        return r < 0 ? r : -errno;
    for (struct dirent *e; r == 0 && (e = readdir(d));) {
        char to[96], folder[8];
        if (strlen(e->d_name) != 2 * VG_HASH)
            continue;
        snprintf(folder, sizeof folder, "id/%.2s", e->d_name);
        snprintf(to, sizeof to, "%s/%.64s", folder, e->d_name);
        r = vg_fault("public/name");
        if (r == 0 && ((mkdirat(s->dir, folder, 0700) < 0 && errno != EEXIST) ||
                       renameat(fd, e->d_name, s->dir, to) < 0))
            r = -errno;
    }
    closedir(d);
    s->n_new = 0;
    s->new_bytes = 0;
    return r;
}

static int enough_room(struct store *s, uint64_t n) {
    struct statvfs v;
    if (fstatvfs(s->dir, &v) < 0)
        return -errno;
    uint64_t disk = (uint64_t)v.f_blocks * v.f_frsize, left = (uint64_t)v.f_bavail * v.f_frsize;
    return left >= n + VG_MIN(disk / 20, KEEP_FREE_MAX) ? 0 : -ENOSPC;
}

static int copy(struct store *s, int fd, uint64_t size, const uint8_t id[VG_HASH]) {
    char path[96];
    uint8_t copied[VG_HASH];
    int r = enough_room(s, size);
    if (r < 0)
        return r;
    id_path(id, "new", path);
    vg_auto_fd int out =
        openat(s->dir, path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0444);
    if (out < 0)
        return errno == EEXIST ? 0 : -errno;
    r = read_id(s, fd, out, size, copied);
    if (r == 0 && memcmp(id, copied, VG_HASH) != 0)
        r = -ESTALE;
    if (r == 0 && fchmod(out, 0444) < 0)
        r = -errno;
    if (r < 0) {
        unlinkat(s->dir, path, 0);
        return r;
    }
    s->st->added++;
    s->st->added_bytes += size;
    s->n_new++;
    s->new_bytes += size;
    return s->n_new >= BATCH_FILES || s->new_bytes >= BATCH_BYTES ? settle(s) : 0;
}

static bool public_file(const struct stat *st) {
    return S_ISREG(st->st_mode) && st->st_uid == 0 && (st->st_mode & S_IROTH) &&
           (uint64_t)st->st_size <= FILE_MAX;
}

static bool public_folder(const struct stat *st) {
    return S_ISDIR(st->st_mode) && st->st_uid == 0 && (st->st_mode & S_IXOTH) &&
           !(st->st_mode & (S_IWOTH | S_IWGRP));
}

/* 0, -ESTALE (skip it), or an error of the store. */
static int take_in(struct store *s, const char *path, bool follow) {
    uint8_t id[VG_HASH];
    char to[96];
    struct stat st;
    vg_auto_fd int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | (follow ? 0 : O_NOFOLLOW));
    if (fd < 0 || fstat(fd, &st) < 0 || !public_file(&st))
        return -ESTALE;
    int r = read_id(s, fd, -1, (uint64_t)st.st_size, id);
    if (r < 0)
        return r == -ENOMEM ? r : -ESTALE;
    s->st->files++;
    s->st->bytes += (uint64_t)st.st_size;
    id_path(id, "id", to);
    if (faccessat(s->dir, to, F_OK, AT_SYMLINK_NOFOLLOW) == 0)
        return 0;
    return copy(s, fd, (uint64_t)st.st_size, id);
}

static int visit(struct store *s, FTS *fts, FTSENT *e, struct vg_err *err) {
    int r = 0;
    if (e->fts_level == 0 && e->fts_info != FTS_NS && e->fts_info != FTS_DP &&
        !public_file(e->fts_statp) && !public_folder(e->fts_statp))
        return vg_err_set(err, VG_INVALID,
                          "%s is not public: what is seeded must belong to root and be open to "
                          "all, as below /usr",
                          e->fts_path);
    if (e->fts_info == FTS_D && !public_folder(e->fts_statp)) {
        s->st->skipped++;
        fts_set(fts, e, FTS_SKIP);
    } else if (e->fts_info == FTS_F) {
        r = public_file(e->fts_statp) ? take_in(s, e->fts_accpath, e->fts_level == 0) : -ESTALE;
        s->st->skipped += r == -ESTALE;
    } else if (e->fts_info == FTS_NS && e->fts_level == 0) {
        return vg_err_sys(err, -e->fts_errno, "cannot seed from %s", e->fts_path);
    }
    if (r == -ENOSPC)
        return vg_err_set(err, VG_DISK_FULL,
                          "the disk is too full to take in %s; free some space or seed less",
                          e->fts_path);
    return r == 0 || r == -ESTALE ? 0 : vg_err_sys(err, r, "cannot take in %s", e->fts_path);
}

/* What lies where not everybody may go is not public, whatever its own mode says. */
static int reachable(const char *path, struct vg_err *err) {
    vg_auto_free char *full = realpath(path, NULL);
    struct stat st;
    if (!full)
        return vg_err_sys(err, -errno, "cannot seed from %s", path);
    for (char *end = full; (end = strchr(end + 1, '/'));) {
        *end = '\0';
        if (stat(full, &st) < 0)
            return vg_err_sys(err, -errno, "cannot seed from %s", path);
        if (!(st.st_mode & S_IXOTH))
            return vg_err_set(err, VG_INVALID,
                              "%s is not public: %s may not be entered by everybody; seed from "
                              "folders such as /usr",
                              path, full);
        *end = '/';
    }
    return 0;
}

int vg_public_seed(const char *dir, char *const *paths, struct vg_public_stat *st,
                   struct vg_err *err) {
    struct store s = {.dir = -1, .lock = -1, .st = st};
    *st = (struct vg_public_stat){0};
    int r = store_open(&s, dir, err);
    for (size_t i = 0; r == 0 && paths[i]; i++)
        r = reachable(paths[i], err);
    FTS *fts =
        r < 0 ? NULL : fts_open(paths, FTS_PHYSICAL | FTS_COMFOLLOW | FTS_NOCHDIR | FTS_XDEV, NULL);
    if (r == 0 && !fts)
        r = vg_err_sys(err, -errno, "cannot read the folders to seed from");
    for (FTSENT *e; r == 0 && (e = fts_read(fts));)
        r = visit(&s, fts, e, err);
    if (fts)
        fts_close(fts);
    if (s.n_new) {
        int settled = settle(&s); /* also what came before an error */
        if (r == 0 && settled < 0)
            r = vg_err_sys(err, settled, "cannot write the public store %s", dir);
    }
    store_close(&s);
    return r;
}

static int check_one(struct store *s, FTSENT *e) {
    uint8_t id[VG_HASH];
    char hex[2 * VG_HASH + 1];
    vg_auto_fd int fd = open(e->fts_accpath, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0)
        return -errno;
    int r = read_id(s, fd, -1, (uint64_t)e->fts_statp->st_size, id);
    if (r < 0 && r != -EIO && r != -ESTALE)
        return r;
    s->st->files++;
    s->st->bytes += (uint64_t)e->fts_statp->st_size;
    if (r == 0)
        vg_hex(id, VG_HASH, hex);
    if (r == 0 && strcmp(hex, e->fts_name) == 0)
        return 0;
    s->st->bad++;
    return unlink(e->fts_accpath) < 0 ? -errno : 0;
}

int vg_public_check(const char *dir, struct vg_public_stat *st, struct vg_err *err) {
    struct store s = {.dir = -1, .lock = -1, .st = st};
    *st = (struct vg_public_stat){0};
    int r = store_open(&s, dir, err);
    vg_auto_free char *ids = vg_fmt("%s/id", dir);
    char *paths[] = {ids, NULL};
    FTS *fts = r < 0 || !ids ? NULL : fts_open(paths, FTS_PHYSICAL | FTS_NOCHDIR, NULL);
    if (r == 0 && !fts)
        r = vg_err_sys(err, ids ? -errno : -ENOMEM, "cannot read the public store %s", dir);
    for (FTSENT *e; r == 0 && (e = fts_read(fts));)
        if (e->fts_info == FTS_F && (r = check_one(&s, e)) < 0)
            r = vg_err_sys(err, r, "cannot check %s", e->fts_path);
    if (fts)
        fts_close(fts);
    store_close(&s);
    return r;
}
