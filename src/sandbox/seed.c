/* What sandboxes of one user share, made once: a user namespace and a small mount
   namespace (the seed) with everything that does not differ between them. A sandbox's init enters
   the seed and copies it, which costs a few mounts rather than all of the host's, and leaves no
   mount anywhere on the host: namespaces go when their last descriptor does, whoever is killed.

   The seed's root:  l0 l1 ...  the node's own file systems, id-mapped, read-only
                     d          /dev          v  /run/virga          e  an empty folder, read-only
                     n          an empty file s  place for scratch   r  place for the new root

   Runs in the agent (or in a keeper that needs a profile nobody made before it). One thread. */
#include "base/cleanup.h"
#include "base/fault.h"
#include "base/util.h"
#include "sandbox/sandbox-priv.h"
#include "sandbox/sys.h"

#include <errno.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>

#define FIRST_PERSON 1000 /* ids below are the system's own */

uid_t vg_sb_map_id(uint32_t slot, uid_t own, uid_t inside) {
    if (own && inside == own)
        return own;
    return inside < VG_SB_ID_RANGE ? VG_SB_ID_BASE + slot * VG_SB_ID_RANGE + inside : 65534;
}

/* Inside id x is outside base + x, but a caller's own non-root id keeps its number: what it writes
   through a plain bind (a file system that cannot be id-mapped) then belongs to it. */
static int map_text(char *out, size_t n, uint32_t slot, unsigned own) {
    unsigned base = VG_SB_ID_BASE + slot * VG_SB_ID_RANGE, all = VG_SB_ID_RANGE;
    if (!own)
        return snprintf(out, n, "0 %u %u\n", base, all);
    if (own >= all)
        return snprintf(out, n, "0 %u %u\n%u %u 1\n", base, all, own, own);
    if (own == all - 1)
        return snprintf(out, n, "0 %u %u\n%u %u 1\n", base, own, own, own);
    return snprintf(out, n, "0 %u %u\n%u %u 1\n%u %u %u\n", base, own, own, own, own + 1,
                    base + own + 1, all - own - 1);
}

static int write_map(pid_t pid, const char *file, const char *text) {
    char path[64];
    snprintf(path, sizeof(path), "/proc/%d/%s", (int)pid, file);
    ssize_t n = (ssize_t)strlen(text);
    vg_auto_fd int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    return write(fd, text, (size_t)n) == n ? 0 : -errno;
}

static int open_ns(pid_t pid, const char *ns) {
    char path[64];
    snprintf(path, sizeof(path), "/proc/%d/ns/%s", (int)pid, ns);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    return fd < 0 ? -errno : fd;
}

/* A child that lives until the pipe it reads closes. */
static pid_t clone_waiter(uint64_t flags, int *ret_hold) {
    int p[2];
    if (vg_fault("sandbox.seed") < 0 || pipe2(p, O_CLOEXEC) < 0)
        return -ENOMEM;
    struct vg_clone_args a = {.flags = flags, .exit_signal = SIGCHLD};
    long pid = vg_sys_clone3(&a);
    if (pid == 0) {
        char c;
        close(p[1]);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        while (read(p[0], &c, 1) < 0 && errno == EINTR)
            continue;
        _exit(0);
    }
    int e = errno;
    close(p[0]);
    if (pid < 0) {
        close(p[1]);
        return -e;
    }
    *ret_hold = p[1];
    return (pid_t)pid;
}

static int reap(pid_t pid) {
    int status = 0;
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR)
            return -errno;
    return status;
}

static int make_userns(const char *uid_map, const char *gid_map, int *ret_fd, struct vg_err *err) {
    int hold = -1;
    pid_t pid = clone_waiter(CLONE_NEWUSER, &hold);
    if (pid < 0)
        return vg_err_sys(
            err, pid,
            "cannot make a user namespace (is user.max_user_namespaces 0, or is this a chroot?)");
    int r = write_map(pid, "uid_map", uid_map);
    if (r >= 0)
        r = write_map(pid, "gid_map", gid_map);
    int fd = r < 0 ? r : open_ns(pid, "user");
    close(hold);
    reap(pid);
    if (fd < 0)
        return vg_err_sys(err, fd, "cannot map the ids of a user namespace");
    *ret_fd = fd;
    return 0;
}

int vg_sb_shared_ids(uint32_t slot, const struct vg_sandbox_root *r, struct vg_err *err) {
    char uids[64], gids[64];
    int fd = -1;
    snprintf(uids, sizeof(uids), "%u %u 1\n", r->host_uid, vg_sb_map_id(slot, 0, r->uid));
    snprintf(gids, sizeof(gids), "%u %u 1\n", r->host_gid, vg_sb_map_id(slot, 0, r->gid));
    int e = make_userns(uids, gids, &fd, err);
    return e < 0 ? e : fd;
}

/* ---- the mount namespace; these run in a child, whose errors are (step, errno) on a pipe ---- */

struct seed_error {
    int code;
    char what[252];
};
#define FAIL(...) (snprintf(e->what, sizeof(e->what), __VA_ARGS__), e->code = errno, -1)

static int attach_lower(const struct vg_sandbox_node *n, size_t i, int userns_fd,
                        struct seed_error *e) {
    char at[32];
    snprintf(at, sizeof(at), "l%zu", i);
    int r = n->lower_is_file[i] ? mknod(at, S_IFREG | 0444, 0) : mkdir(at, 0755);
    vg_auto_fd int fd = vg_sys_open_tree(AT_FDCWD, n->lowers[i], OPEN_TREE_CLONE | O_CLOEXEC);
    if (r < 0 || fd < 0)
        return FAIL("cannot take %s", n->lowers[i]);
    struct mount_attr a = {.attr_set = MOUNT_ATTR_IDMAP | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV |
                                       MOUNT_ATTR_RDONLY,
                           .propagation = MS_PRIVATE,
                           .userns_fd = (uint64_t)userns_fd};
    if (vg_sys_mount_setattr(fd, "", AT_EMPTY_PATH, &a) < 0) {
        /* A file system without id-mapped mounts: its files are nobody's inside, still readable. */
        a.attr_set &= ~(uint64_t)MOUNT_ATTR_IDMAP;
        a.userns_fd = 0;
        if (vg_sys_mount_setattr(fd, "", AT_EMPTY_PATH, &a) < 0)
            return FAIL("cannot make %s read-only", n->lowers[i]);
    }
    if (vg_sys_move_mount(fd, "", AT_FDCWD, at, MOVE_MOUNT_F_EMPTY_PATH) < 0)
        return FAIL("cannot attach %s", n->lowers[i]);
    return 0;
}

/* What every /dev has, below `at`. */
int vg_sb_fill_dev(const char *at, uid_t uid, gid_t gid) {
    static const struct {
        const char *name;
        unsigned major, minor;
    } nodes[] = {{"null", 1, 3},   {"zero", 1, 5},    {"full", 1, 7},
                 {"random", 1, 8}, {"urandom", 1, 9}, {"tty", 5, 0}};
    static const char *const links[][2] = {{"/proc/self/fd", "fd"},
                                           {"/proc/self/fd/0", "stdin"},
                                           {"/proc/self/fd/1", "stdout"},
                                           {"/proc/self/fd/2", "stderr"},
                                           {"pts/ptmx", "ptmx"}};
    static const char *const dirs[] = {"pts", "shm", "mqueue"};
    vg_auto_fd int d = open(at, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (d < 0 || fchownat(d, "", uid, gid, AT_EMPTY_PATH) < 0)
        return -errno;
    mode_t old = umask(0);
    int r = 0;
    for (size_t i = 0; !r && i < VG_COUNT(nodes); i++)
        r = mknodat(d, nodes[i].name, S_IFCHR | 0666, makedev(nodes[i].major, nodes[i].minor)) ||
            fchownat(d, nodes[i].name, uid, gid, 0);
    for (size_t i = 0; !r && i < VG_COUNT(links); i++)
        r = symlinkat(links[i][0], d, links[i][1]) ||
            fchownat(d, links[i][1], uid, gid, AT_SYMLINK_NOFOLLOW);
    for (size_t i = 0; !r && i < VG_COUNT(dirs); i++)
        r = mkdirat(d, dirs[i], 0755) || fchownat(d, dirs[i], uid, gid, 0);
    int e = errno;
    umask(old);
    return r ? -e : 0;
}

static int make_dev(const struct vg_sb_seed *s, struct seed_error *e) {
    const unsigned long flags = MS_NOSUID | MS_NOEXEC;
    if (mount("virga", "d", "tmpfs", flags, "mode=0755,size=64k") < 0)
        return FAIL("cannot mount /dev");
    int r = vg_sb_fill_dev("d", vg_sb_map_id(s->slot, s->uid, 0), vg_sb_map_id(s->slot, s->gid, 0));
    if (r < 0) {
        errno = -r;
        return FAIL("cannot make the devices of a sandbox");
    }
    if (mount(NULL, "d", NULL, MS_REMOUNT | MS_BIND | MS_RDONLY | flags, NULL) < 0)
        return FAIL("cannot make /dev read-only");
    return 0;
}

static int bind_ro(const char *from, const char *to) {
    if (mount(from, to, NULL, MS_BIND, NULL) < 0)
        return -1;
    return mount(NULL, to, NULL, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV, NULL);
}

/* /run/virga: a place for what belongs to a share (VG_SANDBOX_SHARE), the program under its three
   names, and the socket for vrun inside a task. A socket in
   a folder of its own is bound by the folder, so that one made anew by a restarted agent is seen.
 */
static int make_run(const struct vg_sandbox_node *n, int sock_from, struct seed_error *e) {
    if (mount("virga", "v", "tmpfs", MS_NOSUID | MS_NODEV, "mode=0755,size=64k") < 0 ||
        mkdir("v/vgpu", 0755) < 0 || mkdir("v/bin", 0755) < 0 ||
        mknod("v/bin/virga", S_IFREG | 0755, 0) < 0 || symlink("virga", "v/bin/vrun") < 0 ||
        symlink("virga", "v/bin/vbatch") < 0)
        return FAIL("cannot make /run/virga");
    if (n->self_exe && bind_ro(n->self_exe, "v/bin/virga") < 0)
        return FAIL("cannot bind %s", n->self_exe);
    char from[64];
    snprintf(from, sizeof(from), "/proc/self/fd/%d", sock_from);
    if (sock_from >= 0 && n->bind_sock_dir) {
        char link[PATH_MAX];
        snprintf(link, sizeof(link), "s/%s", strrchr(n->agent_sock, '/') + 1);
        if (mkdir("v/s", 0755) < 0 || symlink(link, "v/sock") < 0 || bind_ro(from, "v/s") < 0)
            return FAIL("cannot bind %.200s", n->agent_sock);
    } else if (sock_from >= 0) {
        if (mknod("v/sock", S_IFREG | 0666, 0) < 0 ||
            mount(from, "v/sock", NULL, MS_BIND, NULL) < 0)
            return FAIL("cannot bind %.200s", n->agent_sock);
    }
    if (mount(NULL, "v", NULL, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV, NULL) < 0)
        return FAIL("cannot make /run/virga read-only");
    return 0;
}

/* The agent's socket, or its folder; -1 when there is none yet. Opened before the seed's own tmpfs
   covers the node's folder, in which it may lie. */
static int open_sock(const struct vg_sandbox_node *n) {
    char path[PATH_MAX];
    if (!n->agent_sock)
        return -1;
    const char *base = strrchr(n->agent_sock, '/') + 1;
    int len = n->bind_sock_dir ? (int)(base - 1 - n->agent_sock) : (int)strlen(n->agent_sock);
    snprintf(path, sizeof(path), "%.*s", len, n->agent_sock);
    return open(path, O_PATH | O_CLOEXEC);
}

static int build_seed(const struct vg_sandbox_node *n, const struct vg_sb_seed *s, int lower_ids,
                      struct seed_error *e) {
    if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
        return FAIL("cannot make a mount namespace");
    vg_auto_fd int sock = open_sock(n);
    if (mount("virga", n->dir, "tmpfs", MS_NOSUID, "mode=0755,size=64k") < 0 || chdir(n->dir) < 0)
        return FAIL("cannot mount a seed at %s", n->dir);
    for (size_t i = 0; i < n->n_lowers; i++)
        if (attach_lower(n, i, lower_ids, e) < 0)
            return -1;
    static const char *const dirs[] = {"d", "v", "e", "s", "r"};
    for (size_t i = 0; i < VG_COUNT(dirs); i++)
        if (mkdir(dirs[i], 0755) < 0)
            return FAIL("cannot make the seed's folders");
    if (make_dev(s, e) < 0 || make_run(n, sock, e) < 0)
        return -1;
    if (mount("virga", "e", "tmpfs", MS_RDONLY | MS_NOSUID | MS_NODEV, "mode=0555,size=4k") < 0 ||
        mknod("n", S_IFREG | 0444, 0) < 0 || bind_ro("n", "n") < 0)
        return FAIL("cannot make an empty folder");
    if (vg_sys_pivot_root(".", ".") < 0 || umount2(".", MNT_DETACH) < 0)
        return FAIL("cannot enter the seed");
    return 0;
}

static int make_mntns(const struct vg_sandbox_node *n, struct vg_sb_seed *s, int lower_ids,
                      struct vg_err *err) {
    int up[2] = {-1, -1}, down[2] = {-1, -1};
    if (vg_fault("sandbox.seed") < 0)
        return vg_err_sys(err, ENOMEM, "cannot make a mount namespace");
    if (pipe2(up, O_CLOEXEC) < 0 || pipe2(down, O_CLOEXEC) < 0) {
        int e = errno;
        vg_close(&up[0]);
        vg_close(&up[1]);
        return vg_err_sys(err, e, "cannot make a pipe");
    }
    pid_t pid = _Fork();
    if (pid == 0) {
        struct seed_error e = {0};
        char c;
        close(down[1]);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (build_seed(n, s, lower_ids, &e) < 0 && !e.code)
            e.code = EIO;
        if (write(up[1], &e, sizeof(e)) == sizeof(e) && !e.code)
            while (read(down[0], &c, 1) < 0 && errno == EINTR)
                continue;
        _exit(0);
    }
    int r = pid < 0 ? -errno : 0;
    vg_close(&up[1]);
    vg_close(&down[0]);
    struct seed_error e = {.code = -r, .what = "cannot fork"};
    if (pid > 0 && vg_read_full(up[0], &e, sizeof(e)) != (ssize_t)sizeof(e))
        e = (struct seed_error){.code = EIO, .what = "the builder of a mount namespace died"};
    int fd = e.code ? -1 : open_ns(pid, "mnt");
    vg_close(&up[0]);
    vg_close(&down[1]);
    if (pid > 0)
        reap(pid);
    if (e.code)
        return vg_err_sys(err, e.code, "%s", e.what);
    if (fd < 0)
        return vg_err_sys(err, fd, "cannot open a mount namespace");
    s->mntns_fd = fd;
    return 0;
}

/* ---- the cache ------------------------------------------------------------------------------ */

void vg_sb_seed_done(struct vg_sb_seed *s) {
    vg_close(&s->userns_fd);
    vg_close(&s->mntns_fd);
}

bool vg_sb_seed_fits(const struct vg_sb_seed *s, const struct vg_sandbox_profile *p) {
    return s->userns_fd >= 0 && s->slot == p->slot && s->uid == p->uid && s->gid == p->gid &&
           s->stranger == (!p->uid && !p->local_root);
}

static struct vg_sb_seed *oldest_of(struct vg_sandbox_node *node) {
    struct vg_sb_seed *oldest = &node->seeds[0];
    for (size_t i = 0; i < VG_SB_PROFILES_MAX && oldest->userns_fd >= 0; i++)
        if (node->seeds[i].userns_fd < 0 || node->seeds[i].used < oldest->used)
            oldest = &node->seeds[i];
    return oldest;
}

/* The node's files keep their owners inside. But a stranger who is root inside must not be root
   over the files of this machine's people: of those only what everybody may read is visible. */
static int make_seed(const struct vg_sandbox_node *node, struct vg_sb_seed *s, struct vg_err *err) {
    char uids[128], gids[128];
    map_text(uids, sizeof(uids), s->slot, s->uid);
    map_text(gids, sizeof(gids), s->slot, s->gid);
    int r = make_userns(uids, gids, &s->userns_fd, err);
    if (r < 0)
        return r;
    vg_auto_fd int system_ids = -1;
    if (s->stranger) {
        const unsigned base = VG_SB_ID_BASE + s->slot * VG_SB_ID_RANGE;
        snprintf(uids, sizeof(uids), "0 %u %u\n", base, FIRST_PERSON);
        r = make_userns(uids, uids, &system_ids, err);
    }
    return r < 0 ? r : make_mntns(node, s, system_ids >= 0 ? system_ids : s->userns_fd, err);
}

int vg_sb_seed_get(struct vg_sandbox_node *node, const struct vg_sandbox_profile *p,
                   struct vg_sb_seed **ret, struct vg_err *err) {
    for (size_t i = 0; i < VG_SB_PROFILES_MAX; i++)
        if (vg_sb_seed_fits(&node->seeds[i], p)) {
            node->seeds[i].used = ++node->uses;
            *ret = &node->seeds[i];
            return 0;
        }
    if (p->slot > VG_SB_SLOT_MAX || p->uid >= VG_SB_ID_BASE || p->gid >= VG_SB_ID_BASE)
        return vg_err_set(err, VG_INVALID, "user id %u (slot %u) is too large for a sandbox",
                          p->uid, p->slot);
    struct vg_sb_seed s = {.slot = p->slot,
                           .uid = p->uid,
                           .gid = p->gid,
                           .stranger = !p->uid && !p->local_root,
                           .used = ++node->uses,
                           .userns_fd = -1,
                           .mntns_fd = -1};
    int r = make_seed(node, &s, err);
    if (r < 0) {
        vg_sb_seed_done(&s);
        return r;
    }
    struct vg_sb_seed *place = oldest_of(node);
    vg_sb_seed_done(place);
    *place = s;
    *ret = place;
    return 0;
}
