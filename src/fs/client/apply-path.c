/* Where an operation's names lie on the disk, whether that may be changed, and what is told about
   it afterwards. */
#include "fs/client/apply-int.h"

#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <string.h>
#include <sys/syscall.h>

#define PATH_LIMIT 65536
#define STEP (PATH_MAX / 2) /* longer paths are opened in steps */

static int open_step(int at, const char *path) {
    struct open_how how = {.flags = O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC,
                           .resolve =
                               RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS};
    for (int tries = 0;; tries++) {
        long fd = syscall(SYS_openat2, at, path, &how, sizeof(how));
        if (fd >= 0)
            return (int)fd;
        if ((errno != EAGAIN && errno != EINTR) || tries == 64)
            return -errno;
    }
}

/* A folder beneath the view's root; links on the way are refused by the kernel. */
static int open_dir(const struct aview *v, const char *path) {
    if (!*path)
        return open_step(v->fd, ".");
    int at = v->fd;
    while (*path) {
        char part[PATH_MAX];
        size_t n = strlen(path);
        if (n > STEP) {
            n = STEP;
            while (n && path[n] != '/')
                n--;
        }
        if (!n)
            return -ENAMETOOLONG;
        memcpy(part, path, n);
        part[n] = 0;
        int fd = open_step(at, part);
        if (at != v->fd)
            close(at);
        if (fd < 0)
            return fd;
        at = fd;
        path += n + (path[n] == '/');
    }
    return at;
}

/* The client removed a folder in which a task still writes: what it writes is kept. */
static int make_dirs(const struct aview *v, char *path) {
    for (char *p = strchr(path, '/');; p = strchr(p + 1, '/')) {
        if (p)
            *p = 0;
        char *leaf = strrchr(path, '/');
        if (leaf)
            *leaf = 0;
        int up = open_dir(v, leaf ? path : "");
        int rc = up < 0 ? up : 0;
        if (rc == 0 && mkdirat(up, leaf ? leaf + 1 : path, 0777) < 0 && errno != EEXIST)
            rc = -errno;
        if (up >= 0)
            close(up);
        if (leaf)
            *leaf = '/';
        if (p)
            *p = '/';
        if (rc < 0 || !p)
            return rc;
    }
}

/* Relative, without empty, "." or ".." parts; "" is the root itself where that makes sense. */
static int check_path(const ProtobufCBinaryData *b, char **ret) {
    if (b->len >= PATH_LIMIT || (b->len && memchr(b->data, 0, b->len)))
        return -EINVAL;
    if (!b->len) {
        *ret = vg_strdup("");
        return *ret ? 0 : -ENOMEM;
    }
    const char *p = (const char *)b->data, *end = p + b->len;
    while (p < end) {
        const char *slash = memchr(p, '/', (size_t)(end - p));
        size_t n = (size_t)((slash ? slash : end) - p);
        if (!n || n > NAME_MAX || (n == 1 && p[0] == '.') || (n == 2 && p[0] == '.' && p[1] == '.'))
            return -EINVAL;
        p += n + 1;
        if (slash && p == end)
            return -EINVAL;
    }
    *ret = vg_strndup((const char *)b->data, b->len);
    return *ret ? 0 : -ENOMEM;
}

void apply_drop_dir(struct vg_apply *a) {
    vg_close(&a->dir_fd);
    free(a->dir_path);
    a->dir_path = NULL;
    vg_close(&a->made_fd);
    a->made = 0;
}

/* The folder of a path; the last one used is kept open. Making things brings removed folders back.
 */
static int dir_of(struct vg_apply *a, const struct aop *o, char *path, const char **ret_leaf,
                  bool make) {
    char *slash = strrchr(path, '/');
    *ret_leaf = slash ? slash + 1 : path;
    size_t n = slash ? (size_t)(slash - path) : 0;
    if (a->dir_fd >= 0 && a->dir_view == o->view->id && strlen(a->dir_path) == n &&
        !memcmp(a->dir_path, path, n))
        return a->dir_fd;
    char *dir = vg_strndup(path, n);
    if (!dir)
        return -ENOMEM;
    int fd = open_dir(o->view, dir);
    if (fd == -ENOENT && make && n && make_dirs(o->view, dir) == 0)
        fd = open_dir(o->view, dir);
    if (fd < 0) {
        free(dir);
        return fd;
    }
    vg_close(&a->dir_fd);
    free(a->dir_path);
    a->dir_fd = fd;
    a->dir_path = dir;
    a->dir_view = o->view->id;
    return fd;
}

int apply_split(struct vg_apply *a, struct aop *o) {
    const Vg__Mr__Op *op = o->op;
    if (!op->has_name)
        return -EINVAL;
    int rc = check_path(&op->name, &o->path);
    if (rc == 0 && op->has_name2)
        rc = check_path(&op->name2, &o->path2);
    if (rc < 0)
        return rc;
    if (!*o->path) { /* the root: only its own attributes may be changed */
        if (op->kind != VG__MR__OP__KIND__SETATTR && op->kind != VG__MR__OP__KIND__XATTR &&
            op->kind != VG__MR__OP__KIND__SYNC)
            return -EINVAL;
        o->dir = o->view->fd;
        o->leaf = ".";
        return 0;
    }
    if (o->path2) {
        int fd = dir_of(a, o, o->path2, &o->leaf2, op->kind == VG__MR__OP__KIND__RENAME);
        if (fd < 0)
            return fd;
        o->dir2 = fcntl(fd, F_DUPFD_CLOEXEC, 0);
        if (o->dir2 < 0)
            return -errno;
    }
    bool make = op->kind <= VG__MR__OP__KIND__SYMLINK || op->kind == VG__MR__OP__KIND__MKNOD;
    o->dir = dir_of(a, o, o->path, &o->leaf, make);
    return o->dir < 0 ? o->dir : 0;
}

void apply_unsplit(struct aop *o) {
    vg_close(&o->dir2);
    free(o->path);
    free(o->path2);
    o->path = o->path2 = NULL;
}

static const struct amine *mine_of(const struct vg_apply *a, const struct stat *st) {
    return vg_map_get_u64(&a->mine, st->st_ino);
}

bool apply_is_mine(const struct vg_apply *a, const struct stat *st) {
    const struct amine *m = mine_of(a, st);
    struct vg_mstat s;
    vg_mstat_from(&s, st);
    return m && m->dev == s.dev && m->size == s.size && m->mtime == s.mtime && m->ctime == s.ctime;
}

/* An earlier life took one of its names away and died before it had written down the new ctime. */
static bool mine_but_for_ctime(const struct vg_apply *a, const struct stat *st) {
    const struct amine *m = st->st_ino == a->redo_ino ? mine_of(a, st) : NULL;
    struct vg_mstat s;
    vg_mstat_from(&s, st);
    return m && m->dev == s.dev && m->size == s.size && m->mtime == s.mtime;
}

bool apply_expected(struct vg_apply *a, const struct aop *o, const struct stat *st) {
    struct vg_mstat s;
    uint8_t stamp[VG_HASH];
    if (apply_is_mine(a, st) || o->redo || mine_but_for_ctime(a, st))
        return true;
    if (!o->op->has_before) /* made by an earlier life of ours, perhaps */
        return a->resumed && !mine_of(a, st);
    vg_mstat_from(&s, st);
    vg_stamp(vg_ctree_machine(a->conf.tree), &s, stamp);
    return o->op->before.len == VG_HASH && !memcmp(o->op->before.data, stamp, VG_HASH);
}

static void set_mine(struct vg_apply *a, uint64_t ino, const struct amine *is) {
    struct amine *m = vg_map_get_u64(&a->mine, ino);
    if (!m) {
        if (vg_map_len(&a->mine) >= APPLY_MINE_MAX)
            return;
        m = vg_alloc(sizeof(*m));
        if (!m || vg_map_put_u64(&a->mine, ino, m) < 0) {
            free(m);
            return; /* a later change of the node may be taken for a conflict: both are kept */
        }
    }
    *m = *is;
}

/* A node logs operations before it hears what became of earlier ones, so they say what it believed
   then: who left the file as it is now must be known after a restart, too. Written behind the
   operation; one that was not is the operation that is done again. */
void apply_left(struct vg_apply *a, const struct stat *st) {
    if (!S_ISREG(st->st_mode) && !S_ISLNK(st->st_mode))
        return;
    struct vg_mstat s;
    vg_mstat_from(&s, st);
    struct aleft e = {++a->n_left, st->st_ino, {s.dev, s.size, s.mtime, s.ctime}};
    set_mine(a, e.ino, &e.m);
    /* Without it both are kept after a restart: not worth stopping for. */
    if (pwrite(a->left_fd, &e, sizeof(e), (off_t)(e.count % APPLY_LEFT * sizeof(e))) < 0)
        errno = 0;
}

void apply_load_left(struct vg_apply *a) {
    vg_auto_free struct aleft *e = vg_alloc(APPLY_LEFT * sizeof(*e));
    if (!e)
        return;
    ssize_t got = pread(a->left_fd, e, APPLY_LEFT * sizeof(*e), 0);
    size_t n = got > 0 ? (size_t)got / sizeof(*e) : 0;
    for (size_t i = 0; i < n; i++)
        a->n_left = e[i].count % APPLY_LEFT == i ? VG_MAX(a->n_left, e[i].count) : a->n_left;
    for (size_t i = 1; i <= APPLY_LEFT; i++) { /* the oldest first */
        const struct aleft *at = e + (a->n_left + i) % APPLY_LEFT;
        if ((size_t)(at - e) < n && at->count && at->ino)
            set_mine(a, at->ino, &at->m);
    }
}

struct achange *apply_change(struct vg_apply *a, uint64_t object) {
    size_t at = (size_t)(uintptr_t)vg_map_get_u64(&a->change_at, object);
    if (at >= 2) {
        a->change[at - 2].last = a->done + 1;
        return &a->change[at - 2];
    }
    struct achange *c = vg_grow(a->change, &a->cap_change, a->n_change + 1, sizeof(*c));
    if (!c)
        return NULL;
    a->change = c;
    if (vg_map_put_u64(&a->change_at, object, (void *)(uintptr_t)(a->n_change + 2)) < 0)
        return NULL;
    c += a->n_change++;
    *c = (struct achange){.object = object, .op = a->done + 1, .last = a->done + 1};
    return c;
}

void apply_tell(struct vg_apply *a, const struct aop *o, const char *path, uint64_t object,
                const struct stat *st) {
    struct vg_mstat s;
    vg_mstat_from(&s, st);
    apply_left(a, st);
    struct vg_cobj *obj = vg_ctree_named(a->conf.tree, o->view->root, path);
    if (obj)
        vg_cobj_set_told(a->conf.tree, obj, &s);
    struct achange *c = apply_change(a, object);
    if (!c)
        return;
    c->st = s;
    c->has_st = true;
    c->number = obj ? vg_cobj_number(obj) : 0;
}

void apply_tell_dir(struct vg_apply *a, int fd, uint64_t object) {
    struct stat st;
    struct achange *c = object && fstat(fd, &st) == 0 ? apply_change(a, object) : NULL;
    if (!c)
        return;
    vg_mstat_from(&c->st, &st);
    c->has_st = true;
}

static const char *kind_words(Vg__Mr__Op__Kind k) {
    static const char *const words[] = {
        [VG__MR__OP__KIND__CREATE] = "create",
        [VG__MR__OP__KIND__MKDIR] = "make the folder",
        [VG__MR__OP__KIND__SYMLINK] = "make the link",
        [VG__MR__OP__KIND__LINK] = "link",
        [VG__MR__OP__KIND__MKNOD] = "create",
        [VG__MR__OP__KIND__UNLINK] = "remove",
        [VG__MR__OP__KIND__RMDIR] = "remove",
        [VG__MR__OP__KIND__RENAME] = "rename",
        [VG__MR__OP__KIND__SETATTR] = "set the attributes of",
        [VG__MR__OP__KIND__BEGIN] = "write to",
        [VG__MR__OP__KIND__END] = "write to",
        [VG__MR__OP__KIND__TRUNCATE] = "truncate",
        [VG__MR__OP__KIND__XATTR] = "set an attribute of",
        [VG__MR__OP__KIND__FALLOCATE] = "allocate",
        [VG__MR__OP__KIND__SYNC] = "sync",
    };
    return (unsigned)k < VG_COUNT(words) && words[k] ? words[k] : "change";
}

void apply_failed(struct vg_apply *a, const struct aop *o, uint64_t object, int err,
                  const char *what) {
    struct achange *c = apply_change(a, object);
    if (!c || c->err)
        return;
    c->err = (uint32_t)err;
    c->text = what ? vg_strdup(what)
                   : vg_fmt("cannot %s %s/%s on this machine: %s", kind_words(o->op->kind),
                            o->view ? o->view->path : "?", o->path ? o->path : "?", strerror(err));
}

void apply_refuse(struct vg_apply *a, const struct aop *o) {
    if (vg_map_put_u64(&a->refused, o->op->object, a) < 0)
        return;
    struct achange *c = apply_change(a, o->op->object);
    if (!c)
        return;
    free(c->text);
    c->text = NULL;
    c->err = ESTALE;
    c->has_st = false;
}

/* Once a view: a build may write thousands of such files. */
static void ignored_note(struct vg_apply *a, const struct aop *o, const char *abs) {
    if (o->view->said_ignored || !a->conf.note)
        return;
    vg_auto_free char *text =
        vg_fmt("%s is named by a .virgaignore: what the task writes there, and to other names that "
               "are ignored, stays on the node and is not kept",
               abs);
    o->view->said_ignored = true;
    a->conf.note(a->conf.user, o->op->task,
                 text ? text : "what the task writes to names that .virgaignore has is not kept");
}

int apply_policy(struct vg_apply *a, const struct aop *o, const char *path, const struct stat *st) {
    struct vg_mpolicy *policy = vg_ctree_policy(a->conf.tree);
    if (!policy)
        return 0;
    vg_auto_free char *abs = vg_fmt("%s/%s", strcmp(o->view->path, "/") ? o->view->path : "", path);
    if (!abs)
        return -ENOMEM;
    mode_t mode = st ? st->st_mode : (mode_t)(o->op->stat ? o->op->stat->mode : S_IFREG);
    enum vg_verdict v = vg_mpolicy_ask(policy, abs, mode, NULL);
    if (v == VG_IGNORE) {
        ignored_note(a, o, abs);
        return -ECANCELED; /* stays on the node */
    }
    /* What is private here may be made by a task, and changed as long as it alone did. */
    return v == VG_DENY && st && S_ISREG(st->st_mode) && !apply_is_mine(a, st) ? -EACCES : 0;
}

int apply_set_mtime(int dir, const char *leaf, int64_t mtime) {
    struct timespec ts[2] = {{.tv_nsec = UTIME_OMIT}, {0}};
    ts[1].tv_sec = mtime / 1000000000;
    ts[1].tv_nsec = mtime % 1000000000;
    if (ts[1].tv_nsec < 0) {
        ts[1].tv_nsec += 1000000000;
        ts[1].tv_sec--;
    }
    return utimensat(dir, leaf, ts, AT_SYMLINK_NOFOLLOW) < 0 ? -errno : 0;
}
