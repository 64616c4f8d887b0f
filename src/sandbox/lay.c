/* Files of the node that lie over others in a living sandbox, and a small folder that only the
   keeper can write: what a task with a share of a GPU has beside others. Taken and attached as
   binds are (bind.c), after them, so that nothing covers them. A sandbox that has any is not used
   again.

   The folder is a file system of its own that no path on the node leads to; it goes when the last
   who has it open does. It is attached twice: writable, to be kept open here and detached again,
   and read-only, to stay. Runs in the keeper; one thread. */
#include "base/cleanup.h"
#include "sandbox/sandbox-priv.h"
#include "sandbox/sys.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

struct source {
    int fd; /* owned: a detached mount */
    dev_t dev;
    ino_t ino;
};

static bool is_in(const char *path, const char *folder) {
    size_t n = strlen(folder);
    return !strncmp(path, folder, n) && path[n] == '/';
}

/* In the keeper's own mount namespace. Not id-mapped: what only the node's root may read stays
   closed. */
static int take(const char *path, struct source *ret, struct vg_err *err) {
    struct stat st;
    vg_auto_fd int src = open(path, O_PATH | O_CLOEXEC);
    if (src < 0 || fstat(src, &st) < 0)
        return vg_err_sys(err, -errno, "cannot open %s", path);
    if (!S_ISREG(st.st_mode))
        return vg_err_set(err, VG_INVALID, "%s is not a file", path);
    int fd = vg_sb_detach(src, -1, true);
    if (fd < 0)
        return vg_err_sys(err, fd, "cannot share %s with the sandbox", path);
    *ret = (struct source){.fd = fd, .dev = st.st_dev, .ino = st.st_ino};
    return 0;
}

/* ---- in the sandbox's mount namespace -------------------------------------------------------- */

/* A place for each file that comes to lie in the folder: one level of folders, and a name. */
static int make_places(int folder, const struct vg_lay *l) {
    for (size_t i = 0; i < l->n_files; i++) {
        if (!is_in(l->files[i].at, l->folder))
            continue;
        char name[NAME_MAX + 1];
        const char *rest = l->files[i].at + strlen(l->folder) + 1, *slash = strchr(rest, '/');
        snprintf(name, sizeof(name), "%.*s", slash ? (int)(slash - rest) : 0, rest);
        if ((slash && mkdirat(folder, name, 0755) < 0 && errno != EEXIST) ||
            mknodat(folder, rest, S_IFREG | 0444, 0) < 0)
            return -errno;
    }
    return 0;
}

int vg_sb_own_folder(const char *path, const char *options, int *ret_folder) {
    const unsigned long flags = MS_NOSUID | MS_NODEV | MS_NOEXEC;
    struct mount_attr closed = {.attr_set = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID |
                                            MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC};
    if (mount("virga", path, "tmpfs", flags, options) < 0)
        return -errno;
    vg_auto_fd int folder = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    vg_auto_fd int shown = vg_sys_open_tree(AT_FDCWD, path, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);
    int r = folder < 0 || shown < 0 || vg_sys_mount_setattr(shown, "", AT_EMPTY_PATH, &closed) < 0
                ? -errno
                : 0;
    if (umount2(path, MNT_DETACH) < 0 && r >= 0)
        r = -errno;
    if (r >= 0 && vg_sys_move_mount(shown, "", AT_FDCWD, path, MOVE_MOUNT_F_EMPTY_PATH) < 0)
        r = -errno;
    if (r >= 0)
        *ret_folder = vg_take_fd(folder);
    return r;
}

static int make_folder(const struct vg_lay *l, int *ret_folder) {
    vg_auto_fd int folder = -1;
    int r = vg_sb_own_folder(l->folder, "mode=0755,size=64k", &folder);
    if (r >= 0)
        r = make_places(folder, l);
    if (r >= 0)
        *ret_folder = vg_take_fd(folder);
    return r;
}

/* Where the sandbox shows a file of the node; false: nowhere. */
static bool find_place(const struct vg_sandbox *sb, const struct vg_lay *l, const char *at,
                       char *out, size_t n) {
    const char *name = strrchr(at, '/');
    size_t len = (size_t)(name - at);
    if (!sb->mirrored || is_in(at, l->folder)) {
        snprintf(out, n, "%s", at);
        return true;
    }
    for (size_t i = 0; i < sb->shown.n; i++)
        if (strlen(sb->shown.at[i].path) == len && !memcmp(sb->shown.at[i].path, at, len)) {
            snprintf(out, n, "/run/virga-node/%zu%s", i, name);
            return true;
        }
    return false;
}

/* The node has it where this root, which is a copy of the node's, does not: an empty file there. */
static int make_file(const struct vg_sandbox *sb, const char *path) {
    const uint64_t how = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS;
    char parent[PATH_MAX];
    uid_t uid = vg_sandbox_map_uid(sb, 0);
    gid_t gid = vg_sandbox_map_gid(sb, 0);
    const char *name = strrchr(path, '/') + 1;
    snprintf(parent, sizeof(parent), "%.*s", (int)(name - path), path);
    vg_auto_fd int dir = vg_sys_openat2(AT_FDCWD, parent, O_PATH | O_DIRECTORY | O_CLOEXEC, how);
    if (dir < 0 && errno == ENOENT)
        dir = vg_sb_make_target(parent, true, uid, gid);
    if (dir < 0)
        return dir == -1 ? -errno : dir;
    if (mknodat(dir, name, S_IFREG | 0644, 0) < 0 ||
        fchownat(dir, name, uid, gid, AT_SYMLINK_NOFOLLOW) < 0)
        return -errno;
    int fd = openat(dir, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    return fd < 0 ? -errno : fd;
}

static int lay_one(const struct vg_sandbox *sb, const struct vg_lay *l, const char *at,
                   const struct source *s) {
    const uint64_t how = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS;
    char path[PATH_MAX];
    struct stat st;
    if (!find_place(sb, l, at, path, sizeof(path)))
        return 0;
    int found = vg_sys_openat2(AT_FDCWD, path, O_PATH | O_CLOEXEC, how);
    if (found < 0 && errno == ENOENT) {
        if (sb->mirrored)
            return 0; /* nothing of the node's is there: it has no loader that would look */
        found = make_file(sb, path);
        if (found == -EROFS)
            return 0; /* below a folder that is hidden from tasks */
    } else if (found < 0) {
        found = -errno;
    }
    vg_auto_fd int target = found;
    if (target < 0)
        return target;
    if (fstat(target, &st) < 0)
        return -errno;
    if (st.st_dev == s->dev && st.st_ino == s->ino)
        return 0; /* by another of its names */
    if (!S_ISREG(st.st_mode))
        return -EINVAL;
    if (vg_sys_move_mount(s->fd, "", target, "",
                          MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH) < 0)
        return -errno;
    return 0;
}

static int lay_all(struct vg_sandbox *sb, const struct vg_lay *l, const struct source *s,
                   int *ret_folder, struct vg_err *err) {
    int cwd, r = vg_sb_step_in(sb, &cwd);
    if (r < 0)
        return vg_err_sys(err, r, "cannot enter the sandbox's mounts");
    mode_t mask = umask(0);
    r = make_folder(l, ret_folder);
    if (r < 0)
        vg_err_sys(err, r, "cannot make %s in the sandbox", l->folder);
    for (size_t i = 0; r >= 0 && i < l->n_files; i++)
        if ((r = lay_one(sb, l, l->files[i].at, &s[i])) < 0)
            vg_err_sys(err, r, "cannot lay %s over %s in the sandbox", l->files[i].from,
                       l->files[i].at);
    umask(mask);
    vg_sb_step_out(sb, cwd);
    return r;
}

int vg_sb_lay(struct vg_sandbox *sb, const struct vg_lay *l, struct vg_err *err) {
    struct source s[VG_LAY_MAX];
    vg_auto_fd int folder = -1;
    size_t n = 0;
    int r = 0;
    if (l->n_files > VG_LAY_MAX)
        return vg_err_set(err, VG_TOO_BIG, "more than %u files are laid into a sandbox",
                          VG_LAY_MAX);
    if (sb->laid)
        return vg_err_set(err, VG_CONFLICT, "the sandbox has such files already");
    sb->laid = true; /* even in part */
    while (n < l->n_files && (r = take(l->files[n].from, &s[n], err)) >= 0)
        n++;
    if (r >= 0)
        r = lay_all(sb, l, s, &folder, err);
    while (n)
        vg_close(&s[--n].fd);
    return r < 0 ? r : l->fill(l->ud, folder, err);
}
