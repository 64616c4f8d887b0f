/* Binds and devices: parts of the host that become visible in a living sandbox. The source is taken
   in the keeper's (the host's) mount namespace as a detached mount, id-mapped so that the user's
   files are the user's inside; then the keeper steps into the sandbox's mount namespace, attaches
   it, and steps back. Init cannot do it: it has no power over its own mounts any more.

   Runs in the keeper; one thread. */
#include "base/cleanup.h"
#include "base/mem.h"
#include "sandbox/sandbox-priv.h"
#include "sandbox/sys.h"

#include <errno.h>
#include <grp.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/fsuid.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

static int clone_tree(int src, unsigned recursive, int userns_fd, bool read_only) {
    vg_auto_fd int fd =
        vg_sys_open_tree(src, "", AT_EMPTY_PATH | OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | recursive);
    if (fd < 0)
        return -errno;
    struct mount_attr a = {.attr_set = MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV |
                                       (read_only ? MOUNT_ATTR_RDONLY : 0u),
                           .propagation = MS_PRIVATE};
    if (userns_fd >= 0) {
        a.attr_set |= MOUNT_ATTR_IDMAP;
        a.userns_fd = (uint64_t)userns_fd;
    }
    if (vg_sys_mount_setattr(fd, "", AT_EMPTY_PATH | recursive, &a) < 0)
        return -errno;
    return vg_take_fd(fd);
}

int vg_sb_detach(int src, int userns_fd, bool read_only) {
    int fd = clone_tree(src, AT_RECURSIVE, userns_fd, read_only);
    if (fd < 0 && userns_fd >= 0) /* something mounted below cannot be id-mapped */
        fd = clone_tree(src, 0, userns_fd, read_only);
    if (fd <
        0) /* this file system cannot: a non-root user keeps its number, so plain is right too */
        fd = clone_tree(src, AT_RECURSIVE, -1, read_only);
    return fd;
}

/* ---- the source
 * ---------------------------------------------------------------------------------- */

/* Opens with the user's rights, so that a path proves what its owner may reach. */
static int open_as_user(const struct vg_sandbox *sb, const struct vg_exec *x, const char *path) {
    if (sb->local_root)
        return open(path, O_PATH | O_CLOEXEC);
    bool known = sb->uid != 0; /* else a stranger: its ids exist nowhere on the host */
    uid_t uid = known ? sb->uid : sb->host_uid ? sb->host_uid : vg_sandbox_map_uid(sb, 0);
    gid_t gid = known ? sb->gid : sb->host_uid ? sb->host_gid : vg_sandbox_map_gid(sb, 0);
    gid_t saved[NGROUPS_MAX > 1024 ? 1024 : NGROUPS_MAX];
    int n = getgroups(VG_COUNT(saved), saved);
    if (n < 0 || setgroups(known ? x->n_groups : 0, x->groups) < 0)
        return -1;
    setfsgid(gid);
    setfsuid(uid);
    int fd = open(path, O_PATH | O_CLOEXEC), e = errno;
    setfsuid(0);
    setfsgid(0);
    if (setgroups((size_t)n, saved) < 0)
        abort(); /* never go on with a user's groups */
    errno = e;
    return fd;
}

static bool below(const char *path, const char *dir) {
    size_t n = strlen(dir);
    if (n == 1)
        return true;
    return !strncmp(path, dir, n) && (path[n] == '/' || !path[n]);
}

/* Places that are the sandbox's own: the copy-on-write view or a private folder stays there. */
static bool never_bound(const struct vg_sandbox *sb, const char *path) {
    static const char *const exact[] = {"/",      "/bin",    "/sbin", "/lib",    "/lib32",
                                        "/lib64", "/libx32", "/usr",  "/etc",    "/var",
                                        "/opt",   "/boot",   "/run",  "/dev/shm"};
    static const char *const whole[] = {"/proc", "/sys", "/run/virga", "/dev"};
    for (size_t i = 0; i < VG_COUNT(exact); i++)
        if (!strcmp(path, exact[i]))
            return true;
    if (below(path, "/dev/shm"))
        return false;
    for (size_t i = 0; i < VG_COUNT(whole); i++)
        if (below(path, whole[i]))
            return true;
    return below(path, sb->node->home);
}

static bool covered(const struct vg_sandbox *sb, const char *path, bool read_only) {
    for (size_t i = sb->n_covers; i-- > 0;)
        if (below(path, sb->covers[i].path))
            return sb->covers[i].read_only == read_only;
    return false;
}

struct pending {
    int fd; /* owned: detached mount */
    bool is_dir;
    bool read_only;
    char *path; /* owned */
};

static void pending_done(struct pending *p, size_t n) {
    for (size_t i = 0; i < n; i++) {
        vg_close(&p[i].fd);
        free(p[i].path);
    }
}

static bool is_bound(const struct vg_sandbox *sb, const char *path) {
    for (size_t i = 0; i < sb->n_covers; i++)
        if (!strcmp(path, sb->covers[i].path))
            return true;
    return false;
}

/* A mount of its own that goes where it is told. */
static int take_detached(struct vg_sandbox *sb, const struct vg_bind *b, struct pending *ret,
                         struct vg_err *err) {
    if (is_bound(sb, b->path))
        return 0;
    int fd = b->nodes ? clone_tree(b->fd, 0, -1, b->read_only) : fcntl(b->fd, F_DUPFD_CLOEXEC, 3);
    if (b->nodes && fd < 0)
        return vg_err_sys(err, fd, "cannot share %s with the sandbox", b->path);
    char *copy = fd < 0 ? NULL : vg_strdup(b->path);
    if (!copy) {
        vg_close(&fd);
        return vg_err_sys(err, ENOMEM, "cannot share %s with the sandbox", b->path);
    }
    *ret = (struct pending){fd, true, b->read_only, copy};
    return 1;
}

/* 1: in *ret, 0: nothing to bind, -errno. */
static int take_source(struct vg_sandbox *sb, const struct vg_exec *x, const struct vg_bind *b,
                       struct pending *ret, bool *ret_gone, char **ret_cwd, struct vg_err *err) {
    char path[PATH_MAX], link[32];
    struct stat st;
    if (b->detached || b->nodes)
        return take_detached(sb, b, ret, err);
    vg_auto_fd int own = b->fd < 0 ? open_as_user(sb, x, b->path) : -1;
    int src = b->fd < 0 ? own : b->fd;
    if (src < 0)
        return errno == ENOENT || errno == EACCES || errno == ENOTDIR
                   ? 0
                   : vg_err_sys(err, errno, "cannot open %s", b->path);
    snprintf(link, sizeof(link), "/proc/self/fd/%d", src);
    ssize_t n = readlink(link, path, sizeof(path) - 1);
    if (n < 0 || fstat(src, &st) < 0)
        return vg_err_sys(err, errno, "cannot look at %s", b->path);
    path[n] = 0;
    bool is_cwd = x->cwd && !strcmp(b->path, x->cwd);
    if (S_ISDIR(st.st_mode) && !st.st_nlink) {
        *ret_gone |= is_cwd;
        return 0;
    }
    if (path[0] != '/' || never_bound(sb, path) || covered(sb, path, b->read_only))
        goto named;
    int map = sb->local_root || sb->uid ? sb->userns_fd : sb->shared_ids;
    int fd = vg_sb_detach(src, map, b->read_only);
    if (fd == -EINVAL && b->fd >= 0) { /* of another mount namespace: what is it called here? */
        vg_close(&own);
        own = open_as_user(sb, x, path);
        if (own < 0)
            goto named;
        fd = vg_sb_detach(own, map, b->read_only);
    }
    if (fd < 0)
        return vg_err_sys(err, fd, "cannot share %s with the sandbox", path);
    char *copy = vg_strdup(path);
    if (!copy) {
        close(fd);
        return vg_err_sys(err, ENOMEM, "cannot share %s with the sandbox", path);
    }
    *ret = (struct pending){fd, S_ISDIR(st.st_mode), b->read_only, copy};
named:
    if (is_cwd && strcmp(path, x->cwd) && !*ret_cwd)
        *ret_cwd = vg_strdup(path);
    return ret->path ? 1 : 0;
}

/* ---- in the sandbox's mount namespace ---------------------------------------------------------
 */

int vg_sb_step_in(struct vg_sandbox *sb, int *ret_cwd) {
    int cwd = open(".", O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (setns(sb->pidfd, CLONE_NEWNS) < 0) {
        int r = -errno;
        vg_close(&cwd);
        return r;
    }
    *ret_cwd = cwd;
    return 0;
}

void vg_sb_step_out(struct vg_sandbox *sb, int cwd) {
    if (setns(sb->own_mnt_fd, CLONE_NEWNS) < 0)
        abort(); /* a keeper must never work on in a sandbox's files */
    if (cwd >= 0) {
        (void)!fchdir(cwd);
        close(cwd);
    }
}

static int attach(struct vg_sandbox *sb, struct pending *p) {
    vg_auto_fd int at =
        vg_sb_make_target(p->path, p->is_dir, vg_sandbox_map_uid(sb, 0), vg_sandbox_map_gid(sb, 0));
    if (at < 0)
        return at;
    if (vg_sys_move_mount(p->fd, "", at, "", MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH) < 0)
        return -errno;
    if (below(sb->node->home, p->path) &&
        mount("virga", sb->node->home, "tmpfs", MS_RDONLY | MS_NOSUID | MS_NODEV,
              "mode=0555,size=4k") < 0 &&
        errno != ENOENT && errno != ENOTDIR)
        return -errno;
    return 0;
}

int vg_sb_add_binds(struct vg_sandbox *sb, const struct vg_exec *x, bool *ret_gone, char **ret_cwd,
                    struct vg_err *err) {
    struct pending pend[VG_SB_BINDS_MAX];
    size_t n = 0;
    int r = 0, cwd = -1;
    if (x->n_binds > VG_SB_BINDS_MAX || sb->n_covers + x->n_binds > VG_COUNT(sb->covers))
        return vg_err_set(err, VG_TOO_BIG, "too many folders are shared with the sandbox");
    for (size_t i = 0; r >= 0 && i < x->n_binds; i++) {
        pend[n] = (struct pending){.fd = -1};
        r = take_source(sb, x, &x->binds[i], &pend[n], ret_gone, ret_cwd, err);
        if (r > 0)
            n++;
    }
    if (r >= 0 && n && (r = vg_sb_step_in(sb, &cwd)) < 0)
        vg_err_sys(err, r, "cannot enter the sandbox's mounts");
    if (r >= 0 && n) {
        mode_t mask = umask(022);
        for (size_t i = 0; r >= 0 && i < n; i++) {
            r = attach(sb, &pend[i]);
            if (r < 0)
                vg_err_sys(err, r, "cannot share %s with the sandbox", pend[i].path);
            else
                sb->covers[sb->n_covers++] =
                    (struct vg_sb_cover){vg_take_ptr(pend[i].path), pend[i].read_only};
        }
        umask(mask);
        vg_sb_step_out(sb, cwd);
    }
    pending_done(pend, n);
    return r < 0 ? r : 0;
}

/* ---- devices ------------------------------------------------------------------------------------
 */

struct node {
    const char *path;
    dev_t dev;
    mode_t mode;
    int bound; /* owned: a mount that stands for the device; -1: it is one */
};

/* A /dev of the sandbox's own over the shared one: its pts and shm are carried over. */
static int make_private_dev(struct vg_sandbox *sb) {
    const unsigned take = OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC;
    vg_auto_fd int pts = vg_sys_open_tree(AT_FDCWD, "/dev/pts", take);
    vg_auto_fd int shm = vg_sys_open_tree(AT_FDCWD, "/dev/shm", take);
    if (pts < 0 || shm < 0 ||
        mount("virga", "/dev", "tmpfs", MS_NOSUID | MS_NOEXEC, "mode=0755,size=256k") < 0)
        return -errno;
    int r = vg_sb_fill_dev("/dev", vg_sandbox_map_uid(sb, 0), vg_sandbox_map_gid(sb, 0));
    if (r < 0)
        return r;
    if (vg_sys_move_mount(pts, "", AT_FDCWD, "/dev/pts", MOVE_MOUNT_F_EMPTY_PATH) < 0 ||
        vg_sys_move_mount(shm, "", AT_FDCWD, "/dev/shm", MOVE_MOUNT_F_EMPTY_PATH) < 0)
        return -errno;
    sb->private_dev = true;
    return 0;
}

static int place_bound(int dir, const char *base, int bound) {
    if (mknodat(dir, base, S_IFREG | 0444, 0) < 0)
        return errno == EEXIST ? 0 : -errno;
    return vg_sys_move_mount(bound, "", dir, base, MOVE_MOUNT_F_EMPTY_PATH) < 0 ? -errno : 0;
}

static int place_devices(struct vg_sandbox *sb, const struct node *nodes, size_t n) {
    const unsigned long flags = MS_REMOUNT | MS_BIND | MS_NOSUID | MS_NOEXEC;
    uid_t uid = vg_sandbox_map_uid(sb, 0);
    gid_t gid = vg_sandbox_map_gid(sb, 0);
    int r = sb->private_dev ? (mount(NULL, "/dev", NULL, flags, NULL) < 0 ? -errno : 0)
                            : make_private_dev(sb);
    mode_t old = umask(0);
    for (size_t i = 0; r >= 0 && i < n; i++) {
        char parent[PATH_MAX];
        snprintf(parent, sizeof(parent), "%.*s", (int)(strrchr(nodes[i].path, '/') - nodes[i].path),
                 nodes[i].path);
        vg_auto_fd int dir = vg_sb_make_target(parent, true, uid, gid);
        const char *base = strrchr(nodes[i].path, '/') + 1;
        if (dir < 0)
            r = dir;
        else if (nodes[i].bound >= 0)
            r = place_bound(dir, base, nodes[i].bound);
        else if (mknodat(dir, base, nodes[i].mode, nodes[i].dev) < 0)
            r = errno == EEXIST ? 0 : -errno;
        else if (fchownat(dir, base, uid, gid, AT_SYMLINK_NOFOLLOW) < 0)
            r = -errno;
    }
    umask(old);
    if (r >= 0 && mount(NULL, "/dev", NULL, flags | MS_RDONLY, NULL) < 0)
        r = -errno;
    return r;
}

static int bind_stand_in(const char *full, struct node *ret, struct vg_err *err) {
    vg_auto_fd int fd = open(full, O_PATH | O_CLOEXEC);
    ret->bound = fd < 0 ? -errno : clone_tree(fd, 0, -1, false);
    return ret->bound < 0 ? vg_err_sys(err, ret->bound, "cannot bind simulated device %s", full)
                          : 0;
}

/* A device of the machine's, or what stands for one that is simulated. */
static int take_device(struct vg_sandbox *sb, const struct vg_device *d, struct node *ret,
                       struct vg_err *err) {
    struct stat st;
    char full[PATH_MAX];
    const char *path = d->path;
    bool simulated = d->root && d->root[0];
    *ret = (struct node){.path = path, .bound = -1};
    if (strncmp(path, "/dev/", 5) || strstr(path, "/../"))
        return vg_err_set(err, VG_INVALID, "%s is not below /dev", path);
    snprintf(full, sizeof(full), "%s%s", simulated ? d->root : "", path);
    if (stat(full, &st) < 0)
        return vg_err_sys(err, errno, "cannot find device %s", full);
    if (simulated && !S_ISCHR(st.st_mode))
        return bind_stand_in(full, ret, err);
    if (!S_ISCHR(st.st_mode))
        return vg_err_set(err, VG_INVALID, "%s is not a character device", path);
    ret->dev = st.st_rdev;
    ret->mode = S_IFCHR | (st.st_mode & 0666);
    sb->devs[sb->n_devs++] = st.st_rdev;
    return 0;
}

/* The node's /dev with all that is mounted there, in which nothing can be made or removed. */
static int take_dev(void) {
    vg_auto_fd int fd =
        vg_sys_open_tree(AT_FDCWD, "/dev", OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_RECURSIVE);
    struct mount_attr a = {.attr_set = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC,
                           .propagation = MS_PRIVATE};
    if (fd < 0 || vg_sys_mount_setattr(fd, "", AT_EMPTY_PATH | AT_RECURSIVE, &a) < 0)
        return -errno;
    return vg_take_fd(fd);
}

/* In the sandbox's mounts: the node's /dev over the sandbox's, whose terminals, shared memory and
   queues stay. A place that the node lacks is not made: it would be made on the node. */
static int put_dev(int dev) {
    static const char *const own[] = {"/dev/pts", "/dev/shm", "/dev/mqueue"};
    int fd[VG_COUNT(own)], r = 0;
    for (size_t i = 0; i < VG_COUNT(own); i++)
        fd[i] = vg_sys_open_tree(AT_FDCWD, own[i], OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);
    if (vg_sys_move_mount(dev, "", AT_FDCWD, "/dev", MOVE_MOUNT_F_EMPTY_PATH) < 0)
        r = -errno;
    for (size_t i = 0; i < VG_COUNT(own); i++) {
        if (r >= 0 && fd[i] >= 0 &&
            vg_sys_move_mount(fd[i], "", AT_FDCWD, own[i], MOVE_MOUNT_F_EMPTY_PATH) < 0 &&
            !(errno == ENOENT && i > 0))
            r = -errno;
        vg_close(&fd[i]);
    }
    return r;
}

static int open_devices(struct vg_sandbox *sb, struct vg_err *err) {
    int cwd;
    vg_auto_fd int dev = take_dev();
    int r = dev < 0 ? dev : vg_cg_open_devices(&sb->node->cg, sb->name, sb->pid);
    sb->private_dev = true;
    if (r >= 0)
        r = vg_sb_step_in(sb, &cwd);
    if (r >= 0) {
        r = put_dev(dev);
        vg_sb_step_out(sb, cwd);
    }
    return r < 0 ? vg_err_sys(err, r, "cannot give the node's devices to the sandbox") : 0;
}

int vg_sb_add_devices(struct vg_sandbox *sb, const struct vg_exec *x, struct vg_err *err) {
    struct node nodes[VG_CG_DEVS_MAX];
    size_t n = 0;
    int cwd, r = 0;
    if (x->open_devices)
        return open_devices(sb, err);
    if (!x->n_devices)
        return 0;
    if (x->n_devices > VG_CG_DEVS_MAX || sb->n_devs + x->n_devices > VG_CG_DEVS_MAX)
        return vg_err_set(err, VG_TOO_BIG, "too many devices are asked for");
    for (; r >= 0 && n < x->n_devices; n++)
        r = take_device(sb, &x->devices[n], &nodes[n], err);
    bool taken = r >= 0;
    if (taken)
        r = vg_cg_devices(&sb->node->cg, sb->name, sb->pid, sb->devs, sb->n_devs);
    if (r >= 0)
        r = vg_sb_step_in(sb, &cwd);
    if (r >= 0) {
        r = place_devices(sb, nodes, n);
        vg_sb_step_out(sb, cwd);
    }
    while (n)
        vg_close(&nodes[--n].bound);
    return r >= 0 ? 0 : taken ? vg_err_sys(err, r, "cannot give devices to the sandbox") : r;
}

/* ---- scratch size
 * --------------------------------------------------------------------------------- */

int vg_sb_set_disk(struct vg_sandbox *sb, uint64_t bytes, struct vg_err *err) {
    char size[32];
    snprintf(size, sizeof(size), "%llu", (unsigned long long)bytes);
    vg_auto_fd int fd =
        (int)syscall(SYS_fspick, sb->scratch_fd, "", FSPICK_EMPTY_PATH | FSPICK_CLOEXEC);
    if (fd < 0 || syscall(SYS_fsconfig, fd, FSCONFIG_SET_STRING, "size", size, 0) < 0 ||
        syscall(SYS_fsconfig, fd, FSCONFIG_CMD_RECONFIGURE, NULL, NULL, 0) < 0)
        return vg_err_sys(err, errno, "cannot limit the scratch space of a sandbox");
    return 0;
}
