/* The birth of a sandbox: what it is checked for, its init process, and the wait for that. */
#include "base/cleanup.h"
#include "base/fault.h"
#include "base/mem.h"
#include "sandbox/sandbox-priv.h"
#include "sandbox/sys.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

/* A home is bound when it is the caller's own; remote strangers have none here. */
static int take_home(struct vg_sandbox *sb, const struct vg_sandbox_profile *p, int *ret_fd) {
    char link[32], path[PATH_MAX];
    struct stat st;
    if (!p->home || p->home[0] != '/' || (!p->uid && !p->local_root))
        return 0;
    vg_auto_fd int src = open(p->home, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (src < 0 || fstat(src, &st) < 0 || st.st_uid != p->uid)
        return 0;
    snprintf(link, sizeof(link), "/proc/self/fd/%d", src);
    ssize_t n = readlink(link, path, sizeof(path) - 1);
    if (n <= 1)
        return 0;
    path[n] = 0;
    int fd = vg_sb_detach(src, sb->userns_fd, false);
    if (fd < 0)
        return fd;
    sb->covers[0].path = vg_strdup(path);
    if (!sb->covers[0].path) {
        close(fd);
        return -ENOMEM;
    }
    sb->n_covers = 1;
    *ret_fd = fd;
    return 0;
}

static bool root_fits(const struct vg_sandbox_profile *p) {
    const struct vg_sandbox_root *r = p->root;
    if (!r)
        return true;
    if (p->uid || p->gid || p->local_root || p->home || !r->n_lower ||
        r->n_lower + r->n_data > VG_SB_LAYERS_MAX || r->n_views > VG_SB_BINDS_MAX)
        return false;
    for (size_t i = 0; i < r->n_views; i++)
        if (r->views[i].path[0] != '/' || !r->views[i].path[1])
            return false;
    for (size_t i = 0; i < r->n_libraries; i++)
        if (r->libraries[i][0] != '/')
            return false;
    return true;
}

static int start_init(struct vg_sandbox *sb, const struct vg_sandbox_profile *p,
                      const struct vg_sb_seed *seed, int home_fd,
                      const struct vg_sb_folders *folders, struct vg_err *err) {
    int pair[2];
    int r = vg_fault("sandbox.start");
    if (r >= 0 && socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        r = -errno;
    if (r < 0)
        return vg_err_sys(err, r, "cannot make a socket pair");
    vg_auto_fd int cgroup = vg_cg_clone_fd(&sb->node->cg, sb->name);
    struct vg_sb_files files;
    if (p->root)
        vg_sb_read_files(&files);
    struct vg_clone_args a = {
        .flags = CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_PIDFD |
                 (cgroup >= 0 ? CLONE_INTO_CGROUP : 0),
        .pidfd = (uintptr_t)&sb->pidfd,
        .exit_signal = SIGCHLD,
        .cgroup = cgroup >= 0 ? (uint64_t)cgroup : 0,
    };
    long pid = vg_sys_clone3(&a);
    if (pid == 0) {
        struct vg_sb_birth b = {.node = sb->node,
                                .profile = p,
                                .seed = seed,
                                .name = sb->name,
                                .sock = pair[1],
                                .home_fd = home_fd,
                                .home = sb->n_covers ? sb->covers[0].path : NULL,
                                .files = p->root ? &files : NULL,
                                .folders = folders};
        close(pair[0]);
        vg_sb_init_main(&b);
    }
    int e = errno;
    close(pair[1]);
    sb->sock = pair[0];
    if (pid < 0)
        return vg_err_sys(err, e, "cannot make the namespaces of a sandbox");
    sb->pid = (pid_t)pid;
    return 0;
}

int vg_sandbox_await(struct vg_sandbox *sb, struct vg_err *err) {
    struct vg_sb_msg m;
    int fds[VG_SB_READY_FDS];
    ssize_t n = vg_sb_receive(sb->sock, &m, fds, 0);
    sb->pts_fd = fds[0];
    sb->scratch_fd = fds[1];
    sb->root_fd = fds[2];
    sb->merged_fd = fds[3];
    if (n >= (ssize_t)VG_SB_MSG_MIN && m.kind == VG_SB_MSG_READY && fds[2] >= 0) {
        if (!sb->mirrored)
            vg_sb_trace_first(sb);
        return 0;
    }
    if (n >= (ssize_t)VG_SB_MSG_MIN && m.kind == VG_SB_MSG_FAILED) {
        vg_err_sys(err, m.code, "x"); /* for the reason and code; the text has it all */
        snprintf(err->msg, sizeof(err->msg), "%s", m.text);
        return err->code;
    }
    return vg_err_sys(err, n < 0 ? (int)n : -EIO, "the init process of a sandbox died at birth");
}

static struct vg_sandbox *sandbox_new(struct vg_sandbox_node *node,
                                      const struct vg_sandbox_profile *p, const char *name) {
    struct vg_sandbox *sb = vg_alloc(sizeof(*sb));
    if (!sb)
        return NULL;
    sb->node = node;
    sb->slot = p->slot;
    sb->uid = p->uid;
    sb->gid = p->gid;
    sb->local_root = p->local_root;
    sb->mirrored = p->root != NULL;
    sb->netns_fd = p->netns_fd;
    sb->given_fd = sb->pidfd = sb->sock = sb->userns_fd = sb->pts_fd = sb->scratch_fd =
        sb->shared_ids = -1;
    sb->own_mnt_fd = sb->own_net_fd = sb->root_fd = sb->merged_fd = sb->peak_fd = -1;
    sb->name = vg_strdup(name);
    bool whole = sb->name != NULL;
    for (size_t i = 0; whole && p->root && i < p->root->n_views; i++)
        whole = (sb->covers[sb->n_covers++].path = vg_strdup(p->root->views[i].path)) != NULL;
    if (!whole) {
        vg_sandbox_destroy(sb);
        return NULL;
    }
    return sb;
}

int vg_sandbox_begin(struct vg_sandbox_node *node, const struct vg_sandbox_profile *p,
                     const char *name, struct vg_sandbox **ret, struct vg_err *err) {
    struct vg_sb_seed *seed;
    struct vg_sb_folders folders = {0};
    vg_auto_fd int home_fd = -1;
    if (!*name || strchr(name, '/') || name[0] == '.' || strlen(name) > 100)
        return vg_err_set(err, VG_INVALID, "'%s' cannot be the name of a sandbox", name);
    if (!root_fits(p))
        return vg_err_set(err, VG_INVALID, "the mirrored root of a sandbox makes no sense");
    struct vg_sandbox *sb = sandbox_new(node, p, name);
    if (!sb)
        return vg_err_sys(err, ENOMEM, "cannot prepare a sandbox");
    int r = vg_sb_seed_get(node, p, &seed, err);
    if (r >= 0) {
        sb->userns_fd = fcntl(seed->userns_fd, F_DUPFD_CLOEXEC, 3);
        sb->own_mnt_fd = open("/proc/self/ns/mnt", O_RDONLY | O_CLOEXEC);
        if (sb->userns_fd < 0 || sb->own_mnt_fd < 0)
            r = vg_err_sys(err, errno, "cannot prepare a sandbox");
    }
    if (r >= 0 && p->root && p->root->host_uid) {
        sb->host_uid = p->root->host_uid;
        sb->host_gid = p->root->host_gid;
        r = sb->shared_ids = vg_sb_shared_ids(p->slot, p->root, err);
    }
    if (r >= 0 && (r = take_home(sb, p, &home_fd)) < 0)
        vg_err_sys(err, r, "cannot bind the home folder %s", p->home);
    if (r >= 0 && p->root)
        r = vg_sb_open_folders(&folders, p->root, err);
    if (r >= 0 && (r = vg_cg_make(&node->cg, name)) < 0)
        vg_err_sys(err, r, "cannot make the cgroup of a sandbox");
    if (r >= 0) {
        sb->in_cgroup = true;
        r = start_init(sb, p, seed, home_fd, &folders, err);
    }
    sb->shown = folders; /* the names only */
    vg_sb_close_folders(&folders);
    if (r < 0) {
        vg_sandbox_destroy(sb);
        return r;
    }
    *ret = sb;
    return 0;
}

int vg_sandbox_prepare(struct vg_sandbox_node *node, const struct vg_sandbox_profile *p,
                       const char *name, struct vg_sandbox **ret, struct vg_err *err) {
    struct vg_sandbox *sb = NULL;
    int r = vg_sandbox_begin(node, p, name, &sb, err);
    if (r >= 0 && (r = vg_sandbox_await(sb, err)) < 0)
        vg_sandbox_destroy(vg_take_ptr(sb));
    if (r >= 0)
        *ret = sb;
    return r;
}
