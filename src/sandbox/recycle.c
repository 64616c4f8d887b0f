/* Using a sandbox again for the same user, when its last command left it as it found it. Making and
   destroying one costs more than the whole rest of a short command, and most short commands write
   nothing outside the folders that are bound.

   "As it found it" is checked, not assumed: no process is left but init, no IPC object, and every
   file of the scratch file system (copy-on-write layers, /tmp, /run, /dev/shm) is the same file
   with the same owner, mode, size and change time as before the command. Whatever is in doubt is
   destroyed. The next command finds the node's files as they are then. Runs in the keeper. */
#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"
#include "sandbox/sandbox-priv.h"
#include "sandbox/sys.h"

#include <dirent.h>
#include <errno.h>
#include <linux/magic.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <time.h>

#define RESET_WAIT_MSEC 200
#define DEPTH_MAX 12
#define CONTENT_MAX 4096

static bool before_or_same(struct timespec a, struct timespec b) {
    return a.tv_sec < b.tv_sec || (a.tv_sec == b.tv_sec && a.tv_nsec <= b.tv_nsec);
}

/* A write through a mapping changes no time, so what the few files hold is compared too. */
static uint64_t content_of(int dir, const char *name, const struct stat *st) {
    uint8_t data[CONTENT_MAX];
    uint64_t h = 0xcbf29ce484222325ULL;
    if (!S_ISREG(st->st_mode) || st->st_size == 0)
        return 0;
    vg_auto_fd int fd = openat(dir, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : vg_read_full(fd, data, sizeof(data));
    for (ssize_t i = 0; i < n; i++)
        h = (h ^ data[i]) * 0x100000001b3ULL;
    return n < 0 ? 1 : h;
}

/* Notes the entries below dir (taken) into out. False when there are too many. */
static bool walk(int dir, int depth, struct vg_sb_trace *out) {
    DIR *d = depth < DEPTH_MAX ? fdopendir(dir) : NULL;
    if (!d) {
        close(dir);
        return false;
    }
    bool good = true;
    for (struct dirent *e; good && (e = readdir(d));) {
        struct stat st;
        if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, ".."))
            continue;
        good = out->n < VG_SB_TRACE_MAX &&
               fstatat(dirfd(d), e->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
               (!S_ISREG(st.st_mode) || st.st_size <= CONTENT_MAX);
        if (!good)
            break;
        out->file[out->n++] = (struct vg_sb_traced){.ino = st.st_ino,
                                                    .size = st.st_size,
                                                    .content = content_of(dirfd(d), e->d_name, &st),
                                                    .ctime = st.st_ctim,
                                                    .mode = st.st_mode,
                                                    .uid = st.st_uid,
                                                    .gid = st.st_gid,
                                                    .nlink = (uint32_t)st.st_nlink};
        if (S_ISREG(st.st_mode) && !before_or_same(st.st_ctim, out->newest))
            out->newest = st.st_ctim;
        if (S_ISDIR(st.st_mode)) {
            int sub = openat(dirfd(d), e->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
            good = sub >= 0 && walk(sub, depth + 1, out);
        }
    }
    closedir(d);
    return good;
}

static bool take_trace(const struct vg_sandbox *sb, struct vg_sb_trace *out) {
    struct statvfs v;
    *out = (struct vg_sb_trace){0};
    if (sb->root_fd < 0 || fstatvfs(sb->root_fd, &v) < 0)
        return false;
    out->files = (uint64_t)(v.f_files - v.f_ffree);
    out->blocks = (uint64_t)(v.f_blocks - v.f_bfree);
    int dir = openat(sb->root_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return dir >= 0 && walk(dir, 0, out);
}

void vg_sb_trace_first(struct vg_sandbox *sb) {
    sb->trace = vg_alloc(sizeof(*sb->trace));
    sb->traced = sb->trace && take_trace(sb, sb->trace);
}

void vg_sb_trace_exec(struct vg_sandbox *sb) {
    struct statvfs v;
    struct timespec now;
    if (!sb->traced)
        return;
    /* Binds may have made their mount points just now. */
    if (fstatvfs(sb->root_fd, &v) < 0 || (uint64_t)(v.f_files - v.f_ffree) != sb->trace->files)
        sb->traced = take_trace(sb, sb->trace);
    /* Change times tick with this clock: a file changed from now on must be seen to be newer. */
    clock_gettime(CLOCK_REALTIME_COARSE, &now);
    if (before_or_same(now, sb->trace->newest))
        sb->traced = false;
    sb->clock_offset = (int64_t)(vg_wall_usec() - vg_now_usec());
}

static bool same_trace(const struct vg_sandbox *sb) {
    vg_auto_free struct vg_sb_trace *now = vg_alloc(sizeof(*now));
    int64_t drift = (int64_t)(vg_wall_usec() - vg_now_usec()) - sb->clock_offset;
    if (!now || drift < -1000 || drift > 1000 || !take_trace(sb, now))
        return false;
    return now->n == sb->trace->n && now->files == sb->trace->files &&
           now->blocks == sb->trace->blocks &&
           memcmp(now->file, sb->trace->file, now->n * sizeof(now->file[0])) == 0;
}

/* Init ends every other process and says whether anything else is left. */
static bool init_is_clean(struct vg_sandbox *sb) {
    struct vg_sb_req q = {.flags = VG_SB_REQ_RESET};
    struct vg_sb_msg m = {0};
    struct pollfd p = {.fd = sb->sock, .events = POLLIN};
    if (vg_sb_send(sb->sock, &q, sizeof(q), NULL, 0, NULL, 0) < 0)
        return false;
    if (poll(&p, 1, RESET_WAIT_MSEC) != 1)
        return false;
    ssize_t n = recv(sb->sock, &m, sizeof(m), MSG_DONTWAIT);
    return n >= (ssize_t)VG_SB_MSG_MIN && m.kind == VG_SB_MSG_RESET && m.code == 0;
}

/* ---- what a command would find ---- */

/* Reconfiguring a file system, to what it is, makes the kernel forget its names. */
static int forget(int root, const char *path) {
    struct statfs fs;
    while (*path == '/')
        path++;
    vg_auto_fd int at = vg_sys_openat2(root, *path ? path : ".", O_PATH | O_CLOEXEC | O_DIRECTORY,
                                       RESOLVE_IN_ROOT | RESOLVE_NO_SYMLINKS);
    if (at < 0 || fstatfs(at, &fs) < 0)
        return -errno;
    if (fs.f_type != OVERLAYFS_SUPER_MAGIC) /* bound as it is, or covered by something else */
        return 0;
    vg_auto_fd int pick = vg_sys_fspick(at, "", FSPICK_CLOEXEC | FSPICK_EMPTY_PATH);
    if (pick < 0 || vg_sys_fsconfig(pick, FSCONFIG_CMD_RECONFIGURE, NULL, NULL, 0) < 0)
        return -errno;
    return 0;
}

/* An overlay keeps the names that were looked up, and does not ask the folder below it again: a
   file of the node that was replaced there would be the old one for every later command. */
static int forget_names(struct vg_sandbox *sb) {
    const struct vg_sandbox_node *n = sb->node;
    char path[48];
    if (sb->mirrored) /* what lies below those is asked by the kernel itself */
        return 0;
    snprintf(path, sizeof(path), "/proc/%d/root", (int)sb->pid);
    vg_auto_fd int root = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
    int r = root < 0 ? -errno : 0;
    for (size_t i = 0; i < n->n_lowers && r >= 0; i++)
        if (!n->lower_is_file[i])
            r = forget(root, n->lowers[i]);
    return r;
}

void vg_sb_refresh(struct vg_sandbox *sb) {
    if (sb->looked)
        (void)forget_names(sb);
    sb->looked = true;
}

bool vg_sandbox_recycle(struct vg_sandbox *sb) {
    if (sb->dead || !sb->traced || sb->n_running || sb->private_dev || sb->n_devs || sb->laid ||
        sb->given_fd >= 0)
        return false;
    if (!init_is_clean(sb) || !same_trace(sb) || forget_names(sb) < 0)
        return false;
    sb->looked = false;
    return vg_cg_reset(&sb->node->cg, sb->name, &sb->base, &sb->peak_fd) >= 0;
}
