/* The sandbox's mount tree, built by init while it still has the host's privileges, inside its own
   copy of the seed (seed.c draws it). One scratch tmpfs per sandbox holds the copy-on-write layers,
   /tmp, /var/tmp, /run and /dev/shm, so that one size limits all. All mounts belong to the initial
   user namespace: nobody inside can change any of them. */
#include "base/cleanup.h"
#include "base/fault.h"
#include "sandbox/sandbox-priv.h"
#include "sandbox/sys.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>

#define STEP(call) (vg_fault("sandbox.build") < 0 ? (errno = ENOMEM, -1) : (call))

struct build {
    const struct vg_sb_birth *b;
    uid_t root_uid;
    gid_t root_gid;
    struct vg_err *err;
};

static int fail(struct build *k, const char *what) {
    return vg_err_sys(k->err, errno, "cannot prepare %s of a sandbox", what);
}

/* ---- scratch and the writable layers ------------------------------------------------------- */

static int own_dir(struct build *k, const char *path, mode_t mode) {
    if (mkdir(path, mode) < 0)
        return -1;
    if (mode & 01000 && chmod(path, mode) < 0) /* mkdir obeys the umask: 0 in init, but be sure */
        return -1;
    return lchown(path, k->root_uid, k->root_gid);
}

static int make_scratch(struct build *k) {
    static const struct {
        const char *path;
        mode_t mode;
    } dirs[] = {{"/s/t", 01777},      {"/s/vt", 01777},     {"/s/h", 01777},    {"/s/n", 0755},
                {"/s/n/virga", 0755}, {"/s/n/lock", 01777}, {"/s/n/user", 0755}};
    if (STEP(mount("virga", "/s", "tmpfs", MS_NOSUID | MS_NODEV, "mode=0755")) < 0)
        return fail(k, "scratch space");
    for (size_t i = 0; i < VG_COUNT(dirs); i++)
        if (own_dir(k, dirs[i].path, dirs[i].mode) < 0)
            return fail(k, dirs[i].path);
    const struct vg_sandbox_profile *p = k->b->profile;
    uid_t uid = p->root ? p->root->uid : p->uid;
    gid_t gid = p->root ? p->root->gid : p->gid;
    char user[64];
    snprintf(user, sizeof(user), "/s/n/user/%u", uid);
    if (mkdir(user, 0700) < 0 ||
        lchown(user, vg_sb_map_id(p->slot, p->uid, uid), vg_sb_map_id(p->slot, p->gid, gid)) < 0)
        return fail(k, "/run/user");
    return 0;
}

/* Which of the node's file systems a path is on, the longest match, and what it is called there. */
static size_t lower_of(const struct vg_sandbox_node *n, const char *path, const char **ret_rest) {
    size_t best = 0, best_len = 0;
    for (size_t i = 1; i < n->n_lowers; i++) {
        size_t len = strlen(n->lowers[i]);
        if (!n->lower_is_file[i] && len > best_len && !strncmp(path, n->lowers[i], len) &&
            (path[len] == '/' || !path[len]))
            best = i, best_len = len;
    }
    *ret_rest = path + best_len;
    return best;
}

/* Makes the folders above `rest` in layer i look as they do on the node. */
static int upper_parents(size_t i, const char *rest) {
    char up[PATH_MAX], low[PATH_MAX];
    for (const char *s = strchr(rest + 1, '/'); s; s = strchr(s + 1, '/')) {
        struct stat st;
        snprintf(up, sizeof(up), "/s/u%zu%.*s", i, (int)(s - rest), rest);
        snprintf(low, sizeof(low), "/l%zu%.*s", i, (int)(s - rest), rest);
        if (mkdir(up, 0755) < 0) {
            if (errno == EEXIST)
                continue;
            return -1;
        }
        if (stat(low, &st) < 0 || chmod(up, st.st_mode & 07777) < 0 ||
            lchown(up, st.st_uid, st.st_gid) < 0)
            return -1;
    }
    return 0;
}

/* An empty, writable thing of the same kind in the upper layer covers the node's. */
static int hide(struct build *k, const struct vg_sb_hide *h) {
    char up[PATH_MAX];
    const char *rest;
    size_t i = lower_of(k->b->node, h->path, &rest);
    if (!*rest)
        return 0;
    if (upper_parents(i, rest) < 0)
        return -1;
    snprintf(up, sizeof(up), "/s/u%zu%s", i, rest);
    if (h->kind == VG_SB_HIDE_FILE) {
        if (mknod(up, S_IFREG | h->mode, 0) < 0)
            return -1;
    } else if (mkdir(up, h->mode) < 0 || setxattr(up, "trusted.overlay.opaque", "y", 1, 0) < 0) {
        return -1;
    }
    return lchown(up, k->root_uid, k->root_gid);
}

static int write_resolv(struct build *k, const char *text) {
    char up[PATH_MAX];
    const char *rest;
    size_t i = lower_of(k->b->node, "/etc/resolv.conf", &rest);
    if (upper_parents(i, rest) < 0)
        return -1;
    snprintf(up, sizeof(up), "/s/u%zu%s", i, rest);
    vg_auto_fd int fd = open(up, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    size_t n = strlen(text);
    if (fd < 0 || write(fd, text, n) != (ssize_t)n)
        return -1;
    return fchown(fd, k->root_uid, k->root_gid);
}

static int make_uppers(struct build *k) {
    const struct vg_sandbox_node *n = k->b->node;
    char path[64];
    for (size_t i = 0; i < n->n_lowers; i++) {
        struct stat st;
        if (n->lower_is_file[i])
            continue;
        snprintf(path, sizeof(path), "/l%zu", i);
        if (stat(path, &st) < 0)
            return fail(k, n->lowers[i]);
        snprintf(path, sizeof(path), "/s/u%zu", i);
        if (own_dir(k, path, st.st_mode & 07777) < 0)
            return fail(k, "an upper layer");
        snprintf(path, sizeof(path), "/s/w%zu", i);
        if (mkdir(path, 0700) < 0)
            return fail(k, "a work folder");
    }
    for (size_t i = 0; i < n->n_hide; i++)
        if ((n->hide[i].always || !k->b->profile->local_root) && hide(k, &n->hide[i]) < 0)
            return fail(k, n->hide[i].path);
    const char *text = k->b->profile->resolv_conf;
    if (text && write_resolv(k, text) < 0)
        return fail(k, "/etc/resolv.conf");
    return 0;
}

static int mount_root(struct build *k) {
    const struct vg_sandbox_node *n = k->b->node;
    char opts[256], at[PATH_MAX], low[32];
    for (size_t i = 0; i < n->n_lowers; i++) {
        snprintf(at, sizeof(at), "/r%s", i ? n->lowers[i] : "");
        snprintf(low, sizeof(low), "/l%zu", i);
        if (n->lower_is_file[i]) {
            bool replaced = k->b->profile->resolv_conf && !strcmp(n->lowers[i], "/etc/resolv.conf");
            if (!replaced && STEP(mount(low, at, NULL, MS_BIND, NULL)) < 0)
                return fail(k, n->lowers[i]);
            continue;
        }
        snprintf(opts, sizeof(opts),
                 "lowerdir=%s,upperdir=/s/u%zu,workdir=/s/w%zu,index=off,xino=off,redirect_dir=on,"
                 "metacopy=on",
                 low, i, i);
        if (STEP(mount("virga", at, "overlay", MS_NOSUID | MS_NODEV, opts)) == 0)
            continue;
        /* Some file systems cannot lie under an overlay; below the root they are shown read-only.
         */
        if (!i || errno == ENOMEM || mount(low, at, NULL, MS_BIND, NULL) < 0)
            return fail(k, n->lowers[i]);
    }
    return 0;
}

/* The overlay notes in an upper folder, at the first look at it, which lower one it covers. Looking
   now keeps that from passing for a change by a command later (recycle.c). */
static void look_once(const struct build *k) {
    const struct vg_sandbox_node *n = k->b->node;
    char path[PATH_MAX];
    struct stat st;
    for (size_t i = 0; i < n->n_hide; i++) {
        snprintf(path, sizeof(path), "/r%s", n->hide[i].path);
        (void)!lstat(path, &st);
    }
    (void)!lstat("/r/etc/resolv.conf", &st);
}

/* ---- /proc, /sys, /dev and the private folders; the working folder is the new root ---------- */

static int mount_proc(struct build *k) {
    const struct vg_sandbox_node *n = k->b->node;
    const unsigned long flags = MS_NOSUID | MS_NODEV | MS_NOEXEC;
    if (STEP(mount("proc", "proc", "proc", flags, NULL)) < 0)
        return fail(k, "/proc");
    char path[64];
    for (size_t i = 0; i < n->n_proc_ro; i++) {
        snprintf(path, sizeof(path), "proc/%s", n->proc_ro[i]);
        if (mount(path, path, NULL, MS_BIND, NULL) < 0 ||
            mount(NULL, path, NULL, MS_REMOUNT | MS_BIND | MS_RDONLY | flags, NULL) < 0)
            return fail(k, path);
    }
    for (size_t i = 0; i < n->n_proc_hide; i++) {
        size_t len = strlen(n->proc_hide[i]);
        snprintf(path, sizeof(path), "proc/%s", n->proc_hide[i]);
        bool dir = n->proc_hide[i][len - 1] == '/';
        if (mount(dir ? "/e" : "/n", path, NULL, MS_BIND, NULL) < 0 && errno != ENOENT)
            return fail(k, path);
    }
    return 0;
}

static int mount_sys(struct build *k) {
    const unsigned long flags = MS_NOSUID | MS_NODEV | MS_NOEXEC | MS_RDONLY;
    if (STEP(mount("sysfs", "sys", "sysfs", flags, NULL)) < 0)
        return fail(k, "/sys");
    if (k->b->node->sys_firmware && mount("/e", "sys/firmware", NULL, MS_BIND, NULL) < 0)
        return fail(k, "/sys/firmware");
    /* The cgroup namespace makes the sandbox's own group the root of what is seen here. */
    if (k->b->node->cg.v2 && mount("cgroup2", "sys/fs/cgroup", "cgroup2", flags, NULL) < 0)
        return fail(k, "/sys/fs/cgroup");
    return 0;
}

static int mount_dev(struct build *k) {
    char opts[64];
    snprintf(opts, sizeof(opts), "newinstance,ptmxmode=0666,mode=0620,gid=%u",
             vg_sb_map_id(k->b->profile->slot, k->b->profile->gid, 5));
    if (STEP(mount("/d", "dev", NULL, MS_BIND, NULL)) < 0 ||
        STEP(mount("devpts", "dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, opts)) < 0 ||
        STEP(mount("/s/h", "dev/shm", NULL, MS_BIND, NULL)) < 0 ||
        (mount("mqueue", "dev/mqueue", "mqueue", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL) < 0 &&
         errno != ENODEV))
        return fail(k, "/dev");
    return 0;
}

static int mount_private(struct build *k) {
    static const char *const pairs[][2] = {{"/s/t", "tmp"}, {"/s/n", "run"}, {"/s/vt", "var/tmp"}};
    size_t n = k->b->profile->root ? 2 : 3; /* a mirrored root has a /var/tmp in its upper layer */
    for (size_t i = 0; i < n; i++)
        if (STEP(mount(pairs[i][0], pairs[i][1], NULL, MS_BIND, NULL)) < 0)
            return fail(k, pairs[i][1]);
    if (STEP(mount("/v", "run/virga", NULL, MS_BIND | MS_REC, NULL)) < 0)
        return fail(k, "/run/virga");
    return 0;
}

int vg_sb_make_target(const char *path, bool is_dir, uid_t uid, gid_t gid) {
    const uint64_t how = RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS | RESOLVE_IN_ROOT;
    int fd = vg_sys_openat2(AT_FDCWD, path, O_PATH | O_CLOEXEC, how);
    if (fd >= 0 || errno != ENOENT)
        return fd < 0 ? -errno : fd;
    vg_auto_fd int dir = open(*path == '/' ? "/" : ".", O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (dir < 0)
        return -errno;
    for (const char *s = path; *s;) {
        char name[NAME_MAX + 1];
        size_t len = strcspn(s += strspn(s, "/"), "/");
        const char *rest = s + len + strspn(s + len, "/");
        if (!len)
            break;
        if (len > NAME_MAX)
            return -ENAMETOOLONG;
        snprintf(name, sizeof(name), "%.*s", (int)len, s);
        int r = *rest || is_dir ? mkdirat(dir, name, 0755) : mknodat(dir, name, S_IFREG | 0644, 0);
        if (r == 0)
            (void)!fchownat(dir, name, uid, gid, AT_SYMLINK_NOFOLLOW);
        else if (errno != EEXIST)
            return -errno;
        int next = vg_sys_openat2(dir, name, O_PATH | O_CLOEXEC, how & ~(uint64_t)RESOLVE_IN_ROOT);
        if (next < 0)
            return -errno;
        close(dir);
        dir = next;
        s = rest;
    }
    return vg_take_fd(dir);
}

/* The caller's home, then the cloud's own folder hidden wherever it now shows. */
static int mount_home(struct build *k) {
    const struct vg_sb_birth *b = k->b;
    if (b->home_fd >= 0) {
        vg_auto_fd int at = vg_sb_make_target(b->home + 1, true, k->root_uid, k->root_gid);
        if (at < 0 ||
            STEP(vg_sys_move_mount(b->home_fd, "", at, "",
                                   MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH)) < 0) {
            errno = at < 0 ? -at : errno;
            return fail(k, "the home folder");
        }
    }
    if (mount("/e", b->node->home + 1, NULL, MS_BIND, NULL) < 0 && errno != ENOENT &&
        errno != ENOTDIR)
        return fail(k, "the cloud's folder");
    return 0;
}

int vg_sb_build(const struct vg_sb_birth *b, struct vg_err *err) {
    struct build k = {.b = b,
                      .root_uid = vg_sb_map_id(b->profile->slot, b->profile->uid, 0),
                      .root_gid = vg_sb_map_id(b->profile->slot, b->profile->gid, 0),
                      .err = err};
    if (STEP(setns(b->seed->mntns_fd, CLONE_NEWNS)) < 0 || STEP(unshare(CLONE_NEWNS)) < 0)
        return fail(&k, "the mounts");
    const bool mirrored = b->profile->root != NULL;
    int r = make_scratch(&k);
    vg_auto_fd int scratch = r < 0 ? -1 : open("/s", O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (r >= 0 && mirrored)
        r = vg_sb_mount_mirror(b, k.root_uid, k.root_gid, err);
    else if (r >= 0 && (r = make_uppers(&k)) >= 0)
        r = mount_root(&k);
    if (r >= 0 && chdir("/r") < 0)
        r = fail(&k, "the root");
    if (r >= 0 && !mirrored)
        look_once(&k);
    if (r >= 0)
        r = mount_proc(&k);
    if (r >= 0)
        r = mount_sys(&k);
    if (r >= 0)
        r = mount_dev(&k);
    if (r >= 0)
        r = mount_private(&k);
    if (r >= 0)
        r = mirrored ? vg_sb_dress_mirror(b, k.root_uid, k.root_gid, err) : mount_home(&k);
    if (r < 0)
        return r;
    if (STEP(vg_sys_pivot_root(".", ".")) < 0 || STEP(umount2(".", MNT_DETACH)) < 0 ||
        chdir("/") < 0)
        return fail(&k, "the root");
    return vg_take_fd(scratch);
}
