/* Operations on names: make, link, unlink, rename. */
#include "fs/client/apply-int.h"

#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

static uint32_t mode_of(const Vg__Mr__Op *op) {
    return op->stat ? op->stat->mode : 0;
}

static int make_file(struct vg_apply *a, struct aop *o) {
    mode_t mode = (mode_t)(mode_of(o->op) & 07777);
    int flags = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
    int fd = openat(o->dir, o->leaf, flags, mode);
    if (fd < 0 && errno == EEXIST && o->redo)
        fd = openat(o->dir, o->leaf, O_WRONLY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return errno == EEXIST ? -ESTALE : -errno;
    /* The writes that follow go to the same file, whatever mode it has got. */
    vg_close(&a->made_fd);
    a->made_fd = fd;
    a->made = o->op->object;
    return 0;
}

static int make_link(struct aop *o) {
    const ProtobufCBinaryData *t = &o->op->target;
    if (!o->op->has_target || !t->len || t->len >= PATH_MAX || memchr(t->data, 0, t->len))
        return -EINVAL;
    char target[PATH_MAX], there[PATH_MAX];
    memcpy(target, t->data, t->len);
    target[t->len] = 0;
    if (symlinkat(target, o->dir, o->leaf) == 0)
        return 0;
    if (errno != EEXIST)
        return -errno;
    ssize_t n = readlinkat(o->dir, o->leaf, there, sizeof(there));
    return n == (ssize_t)t->len && !memcmp(there, target, t->len) ? 0 : -ESTALE;
}

/* A folder that both made is one folder; the node looks at what the client has in it. */
static int make_folder(struct vg_apply *a, struct aop *o, bool *ret_there) {
    (void)a;
    if (mkdirat(o->dir, o->leaf, (mode_t)(mode_of(o->op) & 07777)) == 0)
        return 0;
    struct stat st;
    if (errno != EEXIST)
        return -errno;
    if (fstatat(o->dir, o->leaf, &st, AT_SYMLINK_NOFOLLOW) < 0 || !S_ISDIR(st.st_mode))
        return -EEXIST;
    *ret_there = !o->redo; /* made in an earlier life, which may not have got to its mode */
    return 0;
}

/* The mask of this process must not show: modes are as the program made them. */
static int exact_mode(struct vg_apply *a, struct aop *o, struct stat *st) {
    mode_t want = (mode_t)(mode_of(o->op) & 07777);
    if (S_ISLNK(st->st_mode) || (st->st_mode & 07777) == want)
        return 0;
    if (a->made == o->op->object && a->made_fd >= 0)
        return fchmod(a->made_fd, want) < 0 ? -errno : 0;
    int fd = openat(o->dir, o->leaf, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    char self[40];
    if (fd < 0)
        return -errno;
    snprintf(self, sizeof(self), "/proc/self/fd/%d", fd);
    int rc = chmod(self, want) < 0 ? -errno : 0;
    close(fd);
    return rc;
}

static int make_it(struct vg_apply *a, struct aop *o, bool *ret_there) {
    mode_t mode = (mode_t)mode_of(o->op);
    switch (o->op->kind) {
    case VG__MR__OP__KIND__CREATE:
        return make_file(a, o);
    case VG__MR__OP__KIND__MKDIR:
        return make_folder(a, o, ret_there);
    case VG__MR__OP__KIND__SYMLINK:
        return make_link(o);
    default:
        if (!S_ISFIFO(mode) && !S_ISSOCK(mode))
            return -EPERM;
        if (mknodat(o->dir, o->leaf, mode & (S_IFMT | 07777), 0) < 0 &&
            !(errno == EEXIST && o->redo))
            return -errno;
        return 0;
    }
}

int apply_make(struct vg_apply *a, struct aop *o) {
    bool there = false;
    int rc = apply_policy(a, o, o->path, NULL);
    if (rc < 0)
        return rc == -ECANCELED ? 0 : rc;
    rc = make_it(a, o, &there);
    struct stat st;
    if (rc == 0 && fstatat(o->dir, o->leaf, &st, AT_SYMLINK_NOFOLLOW) < 0)
        rc = -errno;
    if (rc == 0 && !there)
        rc = exact_mode(a, o, &st);
    if (rc == 0 && !there && o->op->stat && o->op->stat->has_mtime)
        rc = apply_set_mtime(o->dir, o->leaf, o->op->stat->mtime);
    if (rc == 0 && fstatat(o->dir, o->leaf, &st, AT_SYMLINK_NOFOLLOW) < 0)
        rc = -errno;
    if (rc < 0)
        return rc;
    apply_tell(a, o, o->path, o->op->object, &st);
    apply_tell_dir(a, o->dir, o->op->parent);
    if (there) {
        struct achange *c = apply_change(a, o->op->object);
        if (c)
            c->err = EEXIST;
    }
    return 0;
}

int apply_link(struct vg_apply *a, struct aop *o) {
    struct stat st;
    if (!o->path2)
        return -EINVAL;
    int rc = apply_policy(a, o, o->path2, NULL);
    if (rc < 0)
        return rc == -ECANCELED ? 0 : rc;
    if (linkat(o->dir, o->leaf, o->dir2, o->leaf2, 0) < 0 && !(errno == EEXIST && o->redo))
        return -errno;
    if (fstatat(o->dir2, o->leaf2, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return -errno;
    apply_tell(a, o, o->path, o->op->object, &st);
    apply_tell(a, o, o->path2, o->op->object, &st);
    apply_tell_dir(a, o->dir2, o->op->parent2);
    return 0;
}

/* Another name of the same file sees its ctime change: that was us, too, also when we die before it
   is written down. */
static int hold_other_names(struct vg_apply *a, const struct aop *o, int dir, const char *leaf,
                            const struct stat *st) {
    if (st->st_nlink < 2 || S_ISDIR(st->st_mode))
        return -1;
    apply_remember(a, o->op->op, st->st_ino);
    return openat(dir, leaf, O_PATH | O_NOFOLLOW | O_CLOEXEC);
}

static void left_other_names(struct vg_apply *a, int fd, uint64_t object) {
    struct stat st;
    if (fd >= 0 && fstat(fd, &st) == 0) {
        apply_left(a, &st);
        apply_tell_dir(a, fd, object);
    }
    if (fd >= 0)
        close(fd);
}

static void told_gone(struct vg_apply *a, const struct aop *o, const char *path) {
    /* The tree's walk wants the thing to be there: its parent is. */
    const char *slash = strrchr(path, '/');
    vg_auto_free char *dir = vg_strndup(path, slash ? (size_t)(slash - path) : 0);
    struct vg_cobj *up = dir ? vg_ctree_walk_in(a->conf.tree, o->view->root, dir) : NULL;
    struct vg_cobj *kid = up ? vg_cobj_kid(up, slash ? slash + 1 : path) : NULL;
    if (kid)
        vg_cobj_removed(a->conf.tree, kid);
}

int apply_unlink(struct vg_apply *a, struct aop *o) {
    bool folder = o->op->kind == VG__MR__OP__KIND__RMDIR;
    struct stat st;
    if (fstatat(o->dir, o->leaf, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return errno == ENOENT ? 0 : -errno; /* somebody was faster */
    int rc = apply_policy(a, o, o->path, &st);
    if (rc < 0)
        return rc == -ECANCELED ? 0 : rc;
    if (!folder && S_ISREG(st.st_mode) && !apply_expected(a, o, &st)) {
        /* It was changed here since: it stays, and the node looks again. */
        vg_auto_free char *text =
            vg_fmt("%s/%s was changed on your machine while the task removed it: it is kept",
                   o->view->path, o->path);
        if (a->conf.note && text)
            a->conf.note(a->conf.user, o->op->task, text);
        apply_failed(a, o, o->op->parent, EEXIST, text);
        return 0;
    }
    int other = hold_other_names(a, o, o->dir, o->leaf, &st);
    if (unlinkat(o->dir, o->leaf, folder ? AT_REMOVEDIR : 0) < 0 && errno != ENOENT) {
        rc = -errno;
        if (other >= 0)
            close(other);
        apply_failed(a, o, o->op->parent, -rc, NULL);
        return 0;
    }
    left_other_names(a, other, o->op->object);
    told_gone(a, o, o->path);
    apply_tell_dir(a, o->dir, o->op->parent);
    if (folder)
        apply_drop_dir(a); /* its path may mean another folder from now on */
    return 0;
}

/* The file that would be replaced is another one than the node believed. */
static bool clobbers(struct vg_apply *a, struct aop *o, const struct stat *target) {
    return S_ISREG(target->st_mode) && !apply_expected(a, o, target);
}

static int move_names(struct aop *o) {
    if (renameat2(o->dir, o->leaf, o->dir2, o->leaf2, o->op->flags) == 0)
        return 0;
    if (errno == EINVAL && o->op->flags == RENAME_NOREPLACE) /* not all file systems have it */
        return linkat(o->dir, o->leaf, o->dir2, o->leaf2, 0) < 0 ? -errno
               : unlinkat(o->dir, o->leaf, 0) < 0                ? -errno
                                                                 : 0;
    return -errno;
}

/* What lies below a moved folder keeps its numbers, as it does for the node. */
static void told_moved(struct vg_apply *a, struct aop *o, const struct stat *st) {
    struct vg_ctree *t = a->conf.tree;
    const char *s1 = strrchr(o->path, '/'), *s2 = strrchr(o->path2, '/');
    vg_auto_free char *d1 = vg_strndup(o->path, s1 ? (size_t)(s1 - o->path) : 0);
    vg_auto_free char *d2 = vg_strndup(o->path2, s2 ? (size_t)(s2 - o->path2) : 0);
    struct vg_cobj *from = d1 ? vg_ctree_walk_in(t, o->view->root, d1) : NULL;
    struct vg_cobj *to = d2 ? vg_ctree_walk_in(t, o->view->root, d2) : NULL;
    struct vg_cobj *kid = from ? vg_cobj_kid(from, o->leaf) : NULL;
    struct vg_cobj *other = to ? vg_cobj_kid(to, o->leaf2) : NULL;
    bool swap = o->op->flags & RENAME_EXCHANGE;
    if (kid && to && swap)
        vg_cobj_moved(t, kid, to, "/"); /* aside: no file is called so */
    if (other && from && swap)
        vg_cobj_moved(t, other, from, o->leaf);
    if (kid && to)
        vg_cobj_moved(t, kid, to, o->leaf2);
    struct stat back;
    if (swap && fstatat(o->dir, o->leaf, &back, AT_SYMLINK_NOFOLLOW) == 0) {
        struct vg_mstat s;
        apply_left(a, &back);
        vg_mstat_from(&s, &back);
        if (other)
            vg_cobj_set_told(t, other, &s);
    }
    apply_tell(a, o, o->path2, o->op->object, st);
}

int apply_rename(struct vg_apply *a, struct aop *o) {
    struct stat src, dst, st;
    uint32_t flags = o->op->flags;
    if (!o->path2 || (flags & ~(RENAME_NOREPLACE | RENAME_EXCHANGE)))
        return -EINVAL;
    bool have_dst = fstatat(o->dir2, o->leaf2, &dst, AT_SYMLINK_NOFOLLOW) == 0;
    if (fstatat(o->dir, o->leaf, &src, AT_SYMLINK_NOFOLLOW) < 0) {
        if (errno == ENOENT && o->redo && have_dst)
            goto told; /* it was done */
        return errno == ENOENT && S_ISREG(mode_of(o->op)) ? -ESTALE : -errno;
    }
    int rc = apply_policy(a, o, o->path2, have_dst ? &dst : NULL);
    if (rc < 0)
        return rc == -ECANCELED ? 0 : rc;
    if (have_dst && clobbers(a, o, &dst)) {
        if (S_ISREG(src.st_mode) && apply_is_mine(a, &src))
            unlinkat(o->dir, o->leaf, 0); /* the node sends all of it again, under another name */
        return -ESTALE;
    }
    if (flags & RENAME_EXCHANGE) {
        if (o->redo && have_dst && a->redo_ino == dst.st_ino)
            goto told; /* it was done */
        apply_remember(a, o->op->op, src.st_ino);
    }
    int other = have_dst && !flags ? hold_other_names(a, o, o->dir2, o->leaf2, &dst) : -1;
    rc = move_names(o);
    left_other_names(a, other, o->op->offset);
    if (rc < 0)
        return rc == -EEXIST && S_ISREG(src.st_mode) ? -ESTALE : rc;
told:
    if (fstatat(o->dir2, o->leaf2, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return -errno;
    told_moved(a, o, &st);
    apply_tell_dir(a, o->dir, o->op->parent);
    apply_tell_dir(a, o->dir2, o->op->parent2);
    apply_drop_dir(a); /* a folder may have moved */
    return 0;
}
