/* The walk through an upper layer; see the header. */
#include "fs/node/keep.h"

#include "base/cleanup.h"
#include "base/mem.h"
#include "mirror/mwire.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>

#define XATTRS_MAX 64
#define NAMES_MAX 65536u
#define VALUE_MAX 65536u

struct walk {
    struct vg_keep_walk *w;
    uint64_t number;
    dev_t dev; /* of the merged root: what is mounted over it is not the task's */
    uint8_t *leaf;
    size_t len;
    char path[VG_KEEP_PATH_MAX + 1];
};

/* Of every root here, whatever the task does: not its changes. */
static bool is_nodes_own(const char *path) {
    static const char *const own[] = {"/proc",        "/sys",     "/dev",       "/run",
                                      "/tmp",         "/var/tmp", "/etc/hosts", "/etc/resolv.conf",
                                      "/etc/hostname"};
    for (size_t i = 0; i < VG_COUNT(own); i++) {
        size_t n = strlen(own[i]);
        if (strncmp(path, own[i], n) == 0 && (!path[n] || path[n] == '/'))
            return true;
    }
    return false;
}

enum wanted { NO, ON_THE_WAY, YES };

static enum wanted wanted(const struct vg_keep_walk *w, const char *path) {
    enum wanted best = NO;
    if (!w->n_path)
        return is_nodes_own(path) ? NO : YES;
    size_t len = strlen(path);
    for (size_t i = 0; i < w->n_path; i++) {
        size_t n = strlen(w->path[i]);
        if (strncmp(path, w->path[i], n) == 0 && (!path[n] || path[n] == '/'))
            return YES;
        if (n > len && strncmp(path, w->path[i], len) == 0 && w->path[i][len] == '/')
            best = ON_THE_WAY;
    }
    return best;
}

/* ------------------------------------------------------------------ one thing */

static bool has_mark(int upper, const char *name, const char *mark) {
    char self[64 + 256], value[8];
    snprintf(self, sizeof(self), "/proc/self/fd/%d/%s", upper, name);
    ssize_t n = lgetxattr(self, mark, value, sizeof(value));
    return n > 0 || (n < 0 && errno == ERANGE);
}

/* The folder shows nothing, or something else, of what lies below it. */
static bool is_fresh(int upper, const char *name) {
    char self[64 + 256], value[4] = "";
    snprintf(self, sizeof(self), "/proc/self/fd/%d/%s", upper, name);
    bool opaque =
        lgetxattr(self, "trusted.overlay.opaque", value, sizeof(value)) == 1 && value[0] == 'y';
    return opaque || has_mark(upper, name, "trusted.overlay.redirect");
}

struct attrs {
    char *names; /* owned */
    uint8_t *values[XATTRS_MAX];
    Vg__Mr__Xattr x[XATTRS_MAX], *each[XATTRS_MAX];
    size_t n;
};

static void attrs_done(struct attrs *a) {
    free(a->names);
    for (size_t i = 0; i < a->n; i++)
        free(a->values[i]);
}

/* A person's own attributes; one that cannot be read is not there. */
static void attrs_read(int fd, struct attrs *a) {
    ssize_t len = flistxattr(fd, NULL, 0);
    if (len <= 0 || len > (ssize_t)NAMES_MAX || !(a->names = vg_alloc((size_t)len)))
        return;
    len = flistxattr(fd, a->names, (size_t)len);
    for (ssize_t at = 0; at < len && a->n < XATTRS_MAX;) {
        const char *name = a->names + at;
        at += (ssize_t)strlen(name) + 1;
        ssize_t size = strncmp(name, "user.", 5) ? -1 : fgetxattr(fd, name, NULL, 0);
        if (size < 0 || size > (ssize_t)VALUE_MAX)
            continue;
        uint8_t *value = vg_alloc((size_t)size + 1);
        if (!value || (size = fgetxattr(fd, name, value, (size_t)size)) < 0) {
            free(value);
            continue;
        }
        Vg__Mr__Xattr *x = &a->x[a->n];
        *x = (Vg__Mr__Xattr)VG__MR__XATTR__INIT;
        x->has_name = x->has_value = true;
        x->name = (ProtobufCBinaryData){strlen(name), (uint8_t *)name};
        x->value = (ProtobufCBinaryData){(size_t)size, value};
        a->values[a->n] = value;
        a->each[a->n] = x;
        a->n++;
    }
}

static int tell(struct walk *k, Vg__Mr__Keep *m) {
    if (k->number >= VG_KEEP_THINGS_MAX)
        return -E2BIG;
    m->has_kind = m->has_number = m->has_path = true;
    m->number = ++k->number;
    m->path = (ProtobufCBinaryData){k->len, (uint8_t *)k->path};
    return k->w->tell(k->w->user, m);
}

static int tell_gone(struct walk *k) {
    Vg__Mr__Keep m = VG__MR__KEEP__INIT;
    m.kind = VG__MR__KEEP__KIND__GONE;
    return tell(k, &m);
}

static int tell_thing(struct walk *k, const struct stat *st, int fd, const char *target,
                      bool fresh) {
    Vg__Mr__Keep m = VG__MR__KEEP__INIT;
    Vg__Mr__Stat s;
    struct vg_mstat is;
    struct attrs a = {0};
    vg_mstat_from(&is, st);
    is.uid = k->w->id_in(k->w->user, is.uid);
    is.gid = k->w->id_in(k->w->user, is.gid);
    vg_mw_stat_to(&s, &is);
    if (fd >= 0)
        attrs_read(fd, &a);
    m.kind = VG__MR__KEEP__KIND__THING;
    m.stat = &s;
    m.has_fresh = m.fresh = fresh;
    m.has_target = target != NULL;
    if (target)
        m.target = (ProtobufCBinaryData){strlen(target), (uint8_t *)target};
    m.n_xattr = a.n;
    m.xattr = a.each;
    int r = tell(k, &m);
    attrs_done(&a);
    return r;
}

/* Nobody writes any more; a file that is shorter than it said is filled up with zeroes. */
static int tell_bytes(struct walk *k, int fd, uint64_t size) {
    uint64_t number = k->number;
    for (uint64_t off = 0; off < size;) {
        size_t n = (size_t)VG_MIN(size - off, (uint64_t)VG_LEAF), got = 0;
        while (got < n) {
            ssize_t r = pread(fd, k->leaf + got, n - got, (off_t)(off + got));
            if (r < 0 && errno != EINTR)
                return -errno;
            if (r == 0)
                break;
            got += r > 0 ? (size_t)r : 0;
        }
        memset(k->leaf + got, 0, n - got);
        int r = k->w->write(k->w->user, number, off, k->leaf, n);
        if (r < 0)
            return r;
        off += n;
    }
    return 0;
}

static int tell_file(struct walk *k, int merged, const char *name) {
    struct stat st;
    vg_auto_fd int fd = openat(merged, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) < 0)
        return -errno;
    if (!S_ISREG(st.st_mode))
        return 0;
    int r = tell_thing(k, &st, fd, NULL, false);
    return r < 0 ? r : tell_bytes(k, fd, (uint64_t)st.st_size);
}

static int tell_link(struct walk *k, int merged, const char *name, const struct stat *st) {
    char target[VG_TARGET_MAX + 1];
    ssize_t n = readlinkat(merged, name, target, sizeof(target));
    if (n < 0 || n > VG_TARGET_MAX)
        return n < 0 ? -errno : -ENAMETOOLONG;
    target[n] = 0;
    return tell_thing(k, st, -1, target, false);
}

/* ------------------------------------------------------------------ folders */

static int folder(struct walk *k, int upper, int merged, unsigned depth);

static int open_dir(int at, const char *name) {
    int fd = openat(at, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    return fd < 0 ? -errno : fd;
}

/* `upper` -1: it lies in a folder that is the task's as a whole. */
static int tell_folder(struct walk *k, int upper, int merged, const char *name, enum wanted want,
                       unsigned depth) {
    struct stat st;
    bool fresh = upper < 0 || (want == YES && is_fresh(upper, name));
    vg_auto_fd int below = open_dir(merged, name);
    vg_auto_fd int above = fresh ? -1 : open_dir(upper, name);
    if (below < 0 || (!fresh && above < 0))
        return below < 0 ? below : above;
    if (fstat(below, &st) < 0)
        return -errno;
    if (st.st_dev != k->dev)
        return 0;
    int r = want == YES ? tell_thing(k, &st, below, NULL, fresh) : 0;
    return r < 0 ? r : folder(k, above, below, depth + 1);
}

static bool is_whiteout(const struct stat *st) {
    return S_ISCHR(st->st_mode) && st->st_rdev == makedev(0, 0);
}

static int entry(struct walk *k, int upper, int merged, const char *name, unsigned depth) {
    enum wanted want = wanted(k->w, k->path);
    struct stat st;
    if (want == NO)
        return 0;
    if (fstatat(upper < 0 ? merged : upper, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return -errno;
    if (is_whiteout(&st))
        return want == YES ? tell_gone(k) : 0;
    if (S_ISDIR(st.st_mode))
        return tell_folder(k, upper, merged, name, want, depth);
    if (want != YES || S_ISSOCK(st.st_mode))
        return 0;
    if (fstatat(merged, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return -errno;
    if (S_ISREG(st.st_mode))
        return tell_file(k, merged, name);
    if (S_ISLNK(st.st_mode))
        return tell_link(k, merged, name, &st);
    return S_ISFIFO(st.st_mode) ? tell_thing(k, &st, -1, NULL, false) : 0;
}

static int folder(struct walk *k, int upper, int merged, unsigned depth) {
    if (depth > VG_KEEP_DEPTH_MAX)
        return -E2BIG;
    int fd = open_dir(upper < 0 ? merged : upper, ".");
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    if (!d)
        return fd < 0 ? fd : -ENOMEM;
    size_t len = k->len;
    int r = 0;
    for (struct dirent *e; r >= 0 && (e = readdir(d));) {
        size_t n = strlen(e->d_name);
        if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, ".."))
            continue;
        if (len + 1 + n > VG_KEEP_PATH_MAX) {
            r = -ENAMETOOLONG;
            break;
        }
        k->path[len] = '/';
        memcpy(k->path + len + 1, e->d_name, n + 1);
        k->len = len + 1 + n;
        r = entry(k, upper, merged, e->d_name, depth);
        if (r < 0 && !k->w->failed[0])
            snprintf(k->w->failed, sizeof(k->w->failed), "%.250s", k->path);
        k->len = len;
        k->path[len] = 0;
    }
    closedir(d);
    return r < 0 ? r : 0;
}

int vg_keep_walk(struct vg_keep_walk *w) {
    struct stat st;
    struct walk *k = vg_alloc(sizeof(*k));
    int r = k && (k->leaf = vg_alloc(VG_LEAF)) ? 0 : -ENOMEM;
    w->failed[0] = 0;
    if (r == 0 && fstat(w->merged, &st) < 0)
        r = -errno;
    if (r == 0) {
        k->w = w;
        k->dev = st.st_dev;
        r = folder(k, w->upper, w->merged, 0);
    }
    if (k)
        free(k->leaf);
    free(k);
    return r;
}
