/* `virga env apply`: what a task changed is done here, too.

   What always holds:
   1. Nothing outside of the folder is touched, and no link is followed on the way.
   2. What is here as it was when the task began becomes what the task left; what is that already
      stays; of anything else both are kept: ours under its name, the task's beside it.
   3. So it may be done twice, or be broken off. */
#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"
#include "cli/cmd-env-changes.h"
#include "mirror/dirrec.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

struct apply {
    const struct vg_changes *c;
    struct vg_estore *store;
    uint64_t task;
    size_t done, same, conflicts;
    uint8_t *leaf;
    char failed[PATH_MAX]; /* where it stopped */
};

/* ------------------------------------------------------------------ what is here */

struct here {
    bool there;
    struct stat st;
    char target[VG_TARGET_MAX + 1];
    ssize_t target_len;
};

static int look(int dir, const char *name, struct here *h) {
    *h = (struct here){0};
    if (fstatat(dir, name, &h->st, AT_SYMLINK_NOFOLLOW) < 0)
        return errno == ENOENT ? 0 : -errno;
    h->there = true;
    if (S_ISLNK(h->st.st_mode))
        h->target_len = readlinkat(dir, name, h->target, sizeof(h->target));
    return 0;
}

static int read_leaf(int fd, uint64_t off, uint8_t *p, size_t n) {
    for (size_t got = 0; got < n;) {
        ssize_t r = pread(fd, p + got, n - got, (off_t)(off + got));
        if (r < 0 && errno == EINTR)
            continue;
        if (r <= 0)
            return r < 0 ? -errno : -EIO;
        got += (size_t)r;
    }
    return 0;
}

/* 1: the file has this content. */
static int has_content(struct apply *a, int dir, const char *name, const uint8_t id[VG_HASH]) {
    struct stat st;
    uint8_t is[VG_HASH];
    vg_auto_fd int fd = openat(dir, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) < 0)
        return -errno;
    if (!S_ISREG(st.st_mode))
        return 0;
    uint64_t size = (uint64_t)st.st_size, n = vg_leaves(size);
    vg_auto_free uint8_t *hash = vg_alloc((size_t)n * VG_HASH);
    if (!hash)
        return -ENOMEM;
    for (uint64_t i = 0; i < n; i++) {
        size_t len = (size_t)VG_MIN(size - i * VG_LEAF, (uint64_t)VG_LEAF);
        int r = read_leaf(fd, i * VG_LEAF, a->leaf, len);
        if (r < 0)
            return r == -EIO ? 0 : r; /* it shrinks: another content */
        vg_leaf_hash(a->leaf, len, hash + i * VG_HASH);
    }
    vg_file_id(size, hash, n, is);
    return memcmp(is, id, VG_HASH) == 0;
}

static bool links_to(const struct here *h, const char *target, size_t n) {
    return h->there && S_ISLNK(h->st.st_mode) && h->target_len == (ssize_t)n &&
           memcmp(h->target, target, n) == 0;
}

/* 1: what the task left is here already. */
static int is_done(struct apply *a, int dir, const char *name, const struct vg_fitem *i,
                   const struct here *h) {
    if (S_ISREG(i->st.mode))
        return h->there && S_ISREG(h->st.st_mode) && (uint64_t)h->st.st_size == i->st.size
                   ? has_content(a, dir, name, i->id)
                   : 0;
    if (S_ISLNK(i->st.mode))
        return links_to(h, i->target, i->target_len);
    return h->there && (h->st.st_mode & S_IFMT) == (i->st.mode & S_IFMT);
}

/* 1: it is here as it was when the task began. */
static int is_as_it_was(struct apply *a, int dir, const char *name, const struct vg_change *c,
                        const struct here *h) {
    switch (c->was) {
    case '-':
        return !h->there;
    case 'd': /* one that is missing is in nobody's way */
        return !h->there || S_ISDIR(h->st.st_mode);
    case 'l':
        return links_to(h, c->target, c->target_len);
    case 'f':
        return c->id && h->there && S_ISREG(h->st.st_mode) ? has_content(a, dir, name, c->id) : 0;
    default:
        return 0;
    }
}

/* ------------------------------------------------------------------ doing */

static struct timespec when(int64_t ns) {
    int64_t rest = ns % 1000000000;
    return (struct timespec){.tv_sec = ns / 1000000000 - (rest < 0),
                             .tv_nsec = rest + (rest < 0 ? 1000000000 : 0)};
}

static int copy_content(struct apply *a, const struct vg_fitem *i, int to) {
    vg_auto_fd int from = vg_estore_open_data(a->store, i->id);
    if (from < 0)
        return from;
    int r = 0;
    for (uint64_t off = 0; r == 0 && off < i->st.size; off += VG_LEAF) {
        size_t n = (size_t)VG_MIN(i->st.size - off, (uint64_t)VG_LEAF);
        r = read_leaf(from, off, a->leaf, n);
        if (r == 0)
            r = vg_write_full(to, a->leaf, n);
    }
    return r;
}

/* Owner and attributes as far as this user may; mode and time always. */
static int dress(int fd, const struct vg_fitem *i) {
    struct timespec ts[2] = {{.tv_nsec = UTIME_OMIT}, when(i->st.mtime)};
    if (geteuid() == 0 && fchown(fd, i->st.uid, i->st.gid) < 0)
        return -errno;
    for (const struct vg_fxattr *x = i->xattrs; x; x = x->next) {
        char name[256];
        if (x->name_len > 255 || x->name_len < 6 || memcmp(x->bytes, "user.", 5) != 0)
            continue;
        snprintf(name, sizeof(name), "%.*s", (int)x->name_len, x->bytes);
        (void)fsetxattr(fd, name, x->bytes + x->name_len, x->value_len, 0);
    }
    if (fchmod(fd, i->st.mode & 07777) < 0 || futimens(fd, ts) < 0)
        return -errno;
    return 0;
}

/* Beside it first, then in its place: a break leaves the one or the other. */
static int put_file(struct apply *a, int dir, const char *name, const struct vg_fitem *i) {
    char temp[48];
    if (!i->id)
        return -EIO;
    snprintf(temp, sizeof(temp), ".virga-apply-%016llx", (unsigned long long)vg_id_new());
    vg_auto_fd int fd =
        openat(dir, temp, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        return -errno;
    int r = copy_content(a, i, fd);
    if (r == 0)
        r = dress(fd, i);
    if (r == 0 && renameat(dir, temp, dir, name) < 0)
        r = -errno;
    if (r < 0)
        unlinkat(dir, temp, 0);
    return r;
}

static int put_other(int dir, const char *name, const struct vg_fitem *i) {
    vg_auto_free char *target = vg_strndup(i->target ? i->target : "", i->target_len);
    if (!target)
        return -ENOMEM;
    if (S_ISLNK(i->st.mode) ? symlinkat(target, dir, name) < 0
        : S_ISDIR(i->st.mode)
            ? mkdirat(dir, name, (i->st.mode & 07777) | 0700) < 0
            : !S_ISFIFO(i->st.mode) || mkfifoat(dir, name, i->st.mode & 07777) < 0)
        return -errno;
    struct timespec ts[2] = {{.tv_nsec = UTIME_OMIT}, when(i->st.mtime)};
    (void)utimensat(dir, name, ts, AT_SYMLINK_NOFOLLOW);
    if (geteuid() == 0)
        (void)!fchownat(dir, name, i->st.uid, i->st.gid, AT_SYMLINK_NOFOLLOW);
    return 0;
}

/* In the place of what is there, if anything is. A folder gives way only when it is empty. */
static int put(struct apply *a, int dir, const char *name, const struct vg_fitem *i,
               const struct here *h) {
    if (S_ISREG(i->st.mode) && !(h->there && S_ISDIR(h->st.st_mode)))
        return put_file(a, dir, name, i);
    if (h->there && unlinkat(dir, name, S_ISDIR(h->st.st_mode) ? AT_REMOVEDIR : 0) < 0)
        return -errno;
    return S_ISREG(i->st.mode) ? put_file(a, dir, name, i) : put_other(dir, name, i);
}

/* A name beside it that is free, or has just this. */
static int put_beside(struct apply *a, int dir, const char *name, const struct vg_fitem *i,
                      char out[NAME_MAX + 1]) {
    for (unsigned k = 0; k < 1000; k++) {
        struct here h;
        char tail[48];
        int t = snprintf(tail, sizeof(tail), k ? ".conflict-%08llx-%u" : ".conflict-%08llx",
                         (unsigned long long)(a->task >> 32), k);
        snprintf(out, NAME_MAX + 1, "%.*s%s", VG_MIN((int)strlen(name), NAME_MAX - t), name, tail);
        int r = look(dir, out, &h);
        if (r == 0 && h.there)
            r = is_done(a, dir, out, i, &h);
        else if (r == 0)
            return put(a, dir, out, i, &h);
        if (r)
            return r < 0 ? r : 0;
    }
    return -EEXIST;
}

/* ------------------------------------------------------------------ the walk */

static int children(struct apply *a, size_t at, int dir);

static size_t end_of(const struct vg_changes *c, size_t at) {
    size_t n = strlen(c->item[at].path), k = at + 1;
    while (k < c->n && strncmp(c->item[k].path, c->item[at].path, n) == 0 &&
           c->item[k].path[n] == '/')
        k++;
    return k;
}

static int below(struct apply *a, size_t at, int dir, const char *name) {
    vg_auto_fd int fd = openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    return fd < 0 ? -errno : children(a, at, fd);
}

static void conflict(struct apply *a, const char *path, const char *what, const char *other) {
    a->conflicts++;
    vg_cmd_say("%s %s%s%s", path, what, *other ? ": the task's is " : "", other);
}

static int remove_one(struct apply *a, size_t at, int dir, const char *name) {
    const struct vg_fitem *i = &a->c->item[at];
    struct vg_change c;
    struct here h;
    vg_change_of(i, &c);
    int r = look(dir, name, &h);
    if (r < 0 || !h.there) {
        a->same += r == 0;
        return r;
    }
    bool folder = S_ISDIR(i->st.mode);
    if (folder && S_ISDIR(h.st.st_mode))
        r = below(a, at, dir, name);
    if (r == 0)
        r = is_as_it_was(a, dir, name, &c, &h);
    if (r < 0)
        return r;
    if (r == 0) {
        conflict(a, i->path, "was removed by the task and changed here: it stays", "");
        return 0;
    }
    if (unlinkat(dir, name, folder ? AT_REMOVEDIR : 0) == 0)
        a->done++;
    else if (folder && (errno == ENOTEMPTY || errno == EEXIST))
        vg_cmd_say("%s was removed by the task and has something in it here: it stays", i->path);
    else
        return -errno;
    return 0;
}

static int one(struct apply *a, size_t at, int dir, const char *name) {
    const struct vg_fitem *i = &a->c->item[at];
    struct vg_change c;
    struct here h;
    char other[NAME_MAX + 1];
    vg_change_of(i, &c);
    if (c.gone)
        return remove_one(a, at, dir, name);
    int r = look(dir, name, &h);
    if (r == 0)
        r = is_done(a, dir, name, i, &h);
    if (r == 1) {
        bool other_mode = S_ISREG(i->st.mode) && (h.st.st_mode ^ i->st.mode) & 07777;
        if (other_mode && fchmodat(dir, name, i->st.mode & 07777, 0) < 0)
            return -errno;
        a->done += other_mode;
        a->same += !other_mode && !S_ISDIR(i->st.mode);
    } else if (r == 0 && (r = is_as_it_was(a, dir, name, &c, &h)) == 1) {
        r = put(a, dir, name, i, &h);
        a->done += r == 0;
    } else if (r == 0 && (r = put_beside(a, dir, name, i, other)) == 0) {
        conflict(a, i->path, "changed on both sides", other);
        name = other;
    }
    return r >= 0 && S_ISDIR(i->st.mode) ? below(a, at, dir, name) : r;
}

static int children(struct apply *a, size_t at, int dir) {
    const struct vg_changes *c = a->c;
    size_t n = strlen(c->item[at].path), end = end_of(c, at);
    for (size_t k = at + 1; k < end; k = end_of(c, k)) {
        int r = one(a, k, dir, c->item[k].path + n + 1);
        if (r < 0 && !a->failed[0])
            snprintf(a->failed, sizeof(a->failed), "%s", c->item[k].path);
        if (r < 0)
            return r;
    }
    return 0;
}

/* ------------------------------------------------------------------ where */

static bool lies_in(const char *path, const char *folder) {
    size_t n = strlen(folder);
    return strncmp(path, folder, n) == 0 && (!path[n] || path[n] == '/' || n == 1);
}

/* The folder whose changes go to `dir`: that very one, or, when the changes are all of one folder,
   that. Without a `dir` the working folder must lie in it. */
static int choose(const struct vg_changes *c, const char *dir, char to[PATH_MAX], size_t *ret,
                  struct vg_err *err) {
    size_t tops = 0, top = 0;
    if (!realpath(dir ? dir : ".", to))
        return vg_err_sys(err, errno, "cannot find %s", dir ? dir : "the working folder");
    for (size_t i = 0; i < c->n; i = end_of(c, i), tops++)
        top = i;
    for (size_t i = 0; dir && i < c->n; i++)
        if (strcmp(c->item[i].path, to) == 0 && S_ISDIR(c->item[i].st.mode)) {
            *ret = i;
            return 0;
        }
    for (size_t i = 0; !dir && i < c->n; i = end_of(c, i))
        if (S_ISDIR(c->item[i].st.mode) && lies_in(to, c->item[i].path)) {
            snprintf(to, PATH_MAX, "%s", c->item[i].path);
            *ret = i;
            return 0;
        }
    *ret = top;
    if (dir && tops == 1 && S_ISDIR(c->item[top].st.mode))
        return 0;
    return vg_err_set(err, VG_INVALID,
                      "the task's changes are in %s%s: go there, or name the folder that they are "
                      "to be applied to",
                      c->n ? c->item[0].path : "no folder", tops > 1 ? " and others" : "");
}

static int apply(struct apply *a, const char *dir, struct vg_err *err) {
    char to[PATH_MAX];
    size_t at = 0;
    int r = choose(a->c, dir, to, &at, err);
    if (r < 0)
        return r;
    vg_auto_fd int fd = open(to, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return vg_err_sys(err, errno, "cannot open %s", to);
    r = children(a, at, fd);
    if (r < 0)
        return vg_err_sys(err, r, "cannot apply the change of %s", a->failed);
    printf("%zu changes applied to %s, %zu were there already, %zu conflicts\n", a->done, to,
           a->same, a->conflicts);
    return 0;
}

int vg_ecmd_apply_run(struct vg_cmd_line *l) {
    struct vg_ecmd_box box = {0};
    struct vg_changes c = {0};
    struct vg_err err = VG_ERR_INIT;
    struct apply a = {.c = &c};
    char name[VG_ENV_NAME_MAX + 1];
    if (!vg_cmd_plain(l, 1, 2))
        return l->exit;
    int r = vg_ecmd_task_ref(l->args[0], name, &a.task, &err);
    if (r == 0)
        r = vg_ecmd_box_open(&box, &err);
    if (r == 0)
        r = vg_changes_load(box.store, name, false, &c, &err);
    a.store = box.store;
    a.leaf = vg_alloc(VG_LEAF);
    if (r == 0 && !a.leaf)
        r = vg_err_sys(&err, -ENOMEM, "cannot apply the changes");
    if (r == 0)
        r = apply(&a, l->n_args > 1 ? l->args[1] : NULL, &err);
    int exit = r < 0 ? vg_cmd_fail(&err) : a.conflicts ? 1 : 0;
    free(a.leaf);
    vg_changes_done(&c);
    vg_ecmd_box_close(&box);
    return exit;
}
