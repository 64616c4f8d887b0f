/* Operations on a file itself: its content, attributes, extended attributes. */
#include "fs/client/apply-int.h"

#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>

/* For writing, never through a link. A program may write to a file that it made read-only: so may
   we, since it is the user's own. */
static int open_for_writing(struct vg_apply *a, struct aop *o, struct stat *st) {
    int fd = -1;
    if (a->made == o->op->object && a->made_fd >= 0)
        fd = fcntl(a->made_fd, F_DUPFD_CLOEXEC, 0);
    int flags = O_WRONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC | O_NOCTTY;
    if (fd < 0)
        fd = openat(o->dir, o->leaf, flags);
    if (fd < 0 && errno == EACCES) {
        int at = openat(o->dir, o->leaf, O_PATH | O_NOFOLLOW | O_CLOEXEC);
        char self[40];
        snprintf(self, sizeof(self), "/proc/self/fd/%d", at);
        if (at >= 0 && fstat(at, st) == 0 && S_ISREG(st->st_mode) && apply_expected(a, o, st) &&
            chmod(self, (st->st_mode & 07777) | S_IWUSR) == 0) {
            mode_t mode = st->st_mode & 07777;
            fd = open(self, flags & ~O_NOFOLLOW);
            int e = errno;
            if (chmod(self, mode) < 0 && fd >= 0)
                e = errno;
            struct stat now;
            if (fstat(at, &now) == 0)
                apply_left(a, &now); /* its ctime is ours */
            errno = e;
        } else if (at >= 0) {
            errno = EACCES;
        }
        if (at >= 0)
            close(at);
    }
    if (fd < 0)
        return errno == ENOENT || errno == ELOOP || errno == EISDIR || errno == ENXIO ? -ESTALE
                                                                                      : -errno;
    if (fstat(fd, st) < 0 || !S_ISREG(st->st_mode)) {
        close(fd);
        return -ESTALE;
    }
    return fd;
}

/* Opened, as expected and allowed: fd, -ESTALE, -errno. */
static int ready(struct vg_apply *a, struct aop *o, struct stat *st) {
    int fd = open_for_writing(a, o, st);
    if (fd < 0)
        return fd;
    int rc = apply_policy(a, o, o->path, st);
    if (rc == 0 && !apply_expected(a, o, st))
        rc = -ESTALE;
    if (rc < 0) {
        close(fd);
        return rc;
    }
    return fd;
}

static int set_times(int fd, const Vg__Mr__Op *op) {
    if (!op->stat || !op->stat->has_mtime)
        return 0;
    struct timespec ts[2] = {{.tv_nsec = UTIME_OMIT}, {0}};
    int64_t t = op->stat->mtime;
    ts[1].tv_sec = t / 1000000000 - (t % 1000000000 < 0);
    ts[1].tv_nsec = t % 1000000000 + (t % 1000000000 < 0 ? 1000000000 : 0);
    return futimens(fd, ts) < 0 ? -errno : 0;
}

static int finish(struct vg_apply *a, struct aop *o, int fd, int rc) {
    struct stat st;
    if (rc == 0)
        rc = set_times(fd, o->op);
    if (rc == 0 && fstat(fd, &st) < 0)
        rc = -errno;
    if (rc == 0)
        apply_tell(a, o, o->path, o->op->object, &st);
    close(fd);
    return rc;
}

void apply_group_close(struct vg_apply *a) {
    struct stat st;
    if (a->fd >= 0 && fstat(a->fd, &st) == 0)
        apply_left(a, &st); /* half of it is ours already */
    vg_close(&a->fd);
    if (a->cobj)
        vg_cobj_set_busy(a->cobj, false);
    a->cobj = NULL;
    a->object = 0;
    a->group_err = 0;
}

int apply_begin(struct vg_apply *a, struct aop *o) {
    struct stat st;
    apply_group_close(a);
    a->object = o->op->object;
    int fd = ready(a, o, &st);
    if (fd == -ECANCELED)
        return 0; /* of no interest here: the writes are passed over */
    if (fd < 0) {
        a->object = 0;
        return fd;
    }
    a->fd = fd;
    a->cobj = vg_ctree_named(a->conf.tree, o->view->root, o->path);
    if (a->cobj)
        vg_cobj_set_busy(a->cobj, true);
    return 0;
}

int apply_end(struct vg_apply *a, struct aop *o) {
    if (a->object != o->op->object || a->fd < 0) {
        apply_group_close(a);
        return 0;
    }
    int fd = vg_take_fd(a->fd), rc = a->group_err ? -a->group_err : 0;
    if (a->cobj)
        vg_cobj_set_busy(a->cobj, false);
    a->cobj = NULL;
    a->object = 0;
    a->group_err = 0;
    return finish(a, o, fd, rc);
}

int apply_truncate(struct vg_apply *a, struct aop *o) {
    struct stat st;
    if (!o->op->stat || o->op->stat->size > INT64_MAX)
        return -EINVAL;
    int fd = ready(a, o, &st);
    if (fd < 0)
        return fd == -ECANCELED ? 0 : fd;
    int rc = ftruncate(fd, (off_t)o->op->stat->size) < 0 ? -errno : 0;
    return finish(a, o, fd, rc);
}

/* Where the file system has no holes, zeroes are written. */
static int zero(int fd, uint64_t off, uint64_t len, uint64_t size) {
    static const uint8_t none[64 << 10];
    uint64_t end = VG_MIN(off + len, size);
    while (off < end) {
        ssize_t w = pwrite(fd, none, VG_MIN(end - off, sizeof(none)), (off_t)off);
        if (w <= 0)
            return w < 0 ? -errno : -ENOSPC;
        off += (uint64_t)w;
    }
    return 0;
}

int apply_fallocate(struct vg_apply *a, struct aop *o) {
    const Vg__Mr__Op *op = o->op;
    uint32_t known = FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE | FALLOC_FL_ZERO_RANGE;
    struct stat st;
    if ((op->flags & ~known) || !op->length || op->offset > (uint64_t)INT64_MAX - op->length)
        return -EINVAL;
    int fd = ready(a, o, &st);
    if (fd < 0)
        return fd == -ECANCELED ? 0 : fd;
    int rc = 0;
    if (fallocate(fd, (int)op->flags, (off_t)op->offset, (off_t)op->length) < 0) {
        rc = -errno;
        uint64_t end = op->offset + op->length;
        if (rc == -EOPNOTSUPP && (op->flags & ~(uint32_t)FALLOC_FL_KEEP_SIZE))
            rc = zero(fd, op->offset, op->length, (uint64_t)st.st_size);
        else if (rc == -EOPNOTSUPP)
            rc = 0;
        if (rc == 0 && !(op->flags & FALLOC_FL_KEEP_SIZE) && end > (uint64_t)st.st_size)
            rc = ftruncate(fd, (off_t)end) < 0 ? -errno : 0;
    }
    return finish(a, o, fd, rc);
}

static void owner_note(struct vg_apply *a, const struct aop *o) {
    vg_auto_free char *text =
        vg_fmt("%s/%s keeps its owner on your machine: only its administrator can change that",
               o->view->path, o->path);
    if (a->conf.note && text)
        a->conf.note(a->conf.user, o->op->task, text);
}

static int set_owner(struct vg_apply *a, const struct aop *o, int fd, const struct stat *st) {
    const Vg__Mr__Stat *want = o->op->stat;
    uid_t uid = o->op->valid & VG_MSET_UID ? want->uid : st->st_uid;
    gid_t gid = o->op->valid & VG_MSET_GID ? want->gid : st->st_gid;
    if (uid == st->st_uid && gid == st->st_gid)
        return 0;
    if (fchownat(fd, "", uid, gid, AT_EMPTY_PATH) == 0)
        return 0;
    if (errno != EPERM)
        return -errno;
    owner_note(a, o);
    return 0;
}

static int set_stat_times(const struct aop *o) {
    const Vg__Mr__Stat *want = o->op->stat;
    struct timespec ts[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_nsec = UTIME_OMIT}};
    int64_t t[2] = {want->atime, want->mtime};
    uint32_t bit[2] = {VG_MSET_ATIME, VG_MSET_MTIME};
    for (int i = 0; i < 2; i++)
        if (o->op->valid & bit[i]) {
            int64_t ns = t[i] % 1000000000;
            ts[i].tv_sec = t[i] / 1000000000 - (ns < 0);
            ts[i].tv_nsec = ns + (ns < 0 ? 1000000000 : 0);
        }
    return utimensat(o->dir, o->leaf, ts, AT_SYMLINK_NOFOLLOW) < 0 ? -errno : 0;
}

int apply_setattr(struct vg_apply *a, struct aop *o) {
    struct stat st;
    char self[40];
    if (!o->op->stat)
        return -EINVAL;
    vg_auto_fd int fd = openat(o->dir, o->leaf, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return errno == ENOENT ? -ESTALE : -errno;
    if (fstat(fd, &st) < 0)
        return -errno;
    int rc = apply_policy(a, o, o->path, &st);
    if (rc < 0)
        return rc == -ECANCELED ? 0 : rc;
    snprintf(self, sizeof(self), "/proc/self/fd/%d", fd);
    if (o->op->valid & (VG_MSET_UID | VG_MSET_GID))
        rc = set_owner(a, o, fd, &st);
    if (rc == 0 && (o->op->valid & VG_MSET_MODE) && !S_ISLNK(st.st_mode) &&
        chmod(self, o->op->stat->mode & 07777) < 0)
        rc = -errno;
    if (rc == 0 && (o->op->valid & (VG_MSET_ATIME | VG_MSET_MTIME)))
        rc = set_stat_times(o);
    if (rc < 0 || fstat(fd, &st) < 0)
        return rc < 0 ? rc : -errno;
    if (*o->path)
        apply_tell(a, o, o->path, o->op->object, &st);
    else
        apply_tell_dir(a, fd, o->op->object);
    return 0;
}

int apply_xattr(struct vg_apply *a, struct aop *o) {
    const Vg__Mr__Xattr *x = o->op->xattr;
    struct stat st;
    char self[40], name[XATTR_NAME_MAX + 1];
    if (!x || !x->has_name || x->name.len <= 5 || x->name.len > XATTR_NAME_MAX ||
        memcmp(x->name.data, "user.", 5) != 0 || memchr(x->name.data, 0, x->name.len))
        return -EINVAL;
    memcpy(name, x->name.data, x->name.len);
    name[x->name.len] = 0;
    vg_auto_fd int fd = openat(o->dir, o->leaf, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return errno == ENOENT ? -ESTALE : -errno;
    if (fstat(fd, &st) < 0)
        return -errno;
    int rc = apply_policy(a, o, o->path, &st);
    if (rc < 0)
        return rc == -ECANCELED ? 0 : rc;
    if (!S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode))
        return -EPERM;
    snprintf(self, sizeof(self), "/proc/self/fd/%d", fd);
    if (x->has_value)
        rc = setxattr(self, name, x->value.data, x->value.len, 0);
    else if ((rc = removexattr(self, name)) < 0 && errno == ENODATA)
        rc = 0;
    if (rc < 0 || fstat(fd, &st) < 0)
        return -errno;
    if (*o->path)
        apply_tell(a, o, o->path, o->op->object, &st);
    return 0;
}

int apply_sync(struct vg_apply *a, struct aop *o) {
    vg_auto_fd int fd = openat(o->dir, o->leaf, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    vg_auto_fd int dir = openat(o->dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    (void)a;
    if (fd < 0)
        return errno == ENOENT ? 0 : -errno;
    if (fsync(fd) < 0)
        return -errno;
    if (dir >= 0 && fsync(dir) < 0)
        return -errno;
    return 0;
}
