/* A root that is not the node's: another machine's files (docs/mirror.md) under an overlay whose
   upper layer is the sandbox's scratch. Called by build.c in init, with the host's privileges,
   inside the sandbox's own copy of the seed.

   Looking something up in those files may wait for the machine that has them. So the upper layer is
   filled before it is mounted, with everything that the node makes itself: making and finding
   these needs nobody. What is done afterwards (folders that are written back, driver libraries)
   goes through the mounted root and may wait; the keeper does not wait along. */
#include "base/cleanup.h"
#include "base/fault.h"
#include "sandbox/sandbox-priv.h"
#include "sandbox/sys.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <sys/xattr.h>

#define STEP(call) (vg_fault("sandbox.build") < 0 ? (errno = ENOMEM, -1) : (call))

struct dress {
    const struct vg_sb_birth *b;
    const struct vg_sandbox_root *root;
    uid_t uid; /* of root inside */
    gid_t gid;
    struct vg_err *err;
};

static int fail(struct dress *k, const char *what) {
    return vg_err_sys(k->err, errno, "cannot prepare %s of a mirrored root", what);
}

/* ---- the layers ------------------------------------------------------------------------------ */

static int own(struct dress *k, const char *path, mode_t mode) {
    return mkdir(path, mode) < 0 || chmod(path, mode) < 0 || lchown(path, k->uid, k->gid) < 0 ? -1
                                                                                              : 0;
}

/* Hides what the machine has there: the node makes its own. */
static int own_opaque(struct dress *k, const char *path, mode_t mode) {
    return own(k, path, mode) < 0 ? -1 : setxattr(path, "trusted.overlay.opaque", "y", 1, 0);
}

static int write_file(struct dress *k, const char *path, const char *text) {
    size_t n = strlen(text);
    vg_auto_fd int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (fd < 0 || write(fd, text, n) != (ssize_t)n)
        return -1;
    return fchown(fd, k->uid, k->gid);
}

/* Below where the upper layer lies. */
static const char *in_upper(const struct dress *k, const char *path, char out[64]) {
    snprintf(out, 64, "%s/%s", k->root->on_disk ? "/s/d" : "/s", path);
    return out;
}

static int fill_upper(struct dress *k) {
    static const struct {
        const char *path;
        mode_t mode;
        bool opaque;
    } dirs[] = {
        {"u0", 0755, false},     {"u0/proc", 0555, true},     {"u0/sys", 0555, true},
        {"u0/dev", 0755, true},  {"u0/run", 0755, true},      {"u0/tmp", 01777, true},
        {"u0/var", 0755, false}, {"u0/var/tmp", 01777, true}, {"u0/etc", 0755, false},
    };
    const struct vg_sb_files *f = k->b->files;
    char at[64];
    for (size_t i = 0; i < VG_COUNT(dirs); i++)
        if ((dirs[i].opaque ? own_opaque : own)(k, in_upper(k, dirs[i].path, at), dirs[i].mode) < 0)
            return fail(k, at);
    if (mkdir(in_upper(k, "w0", at), 0700) < 0)
        return fail(k, "the work folder");
    const char *resolv = k->b->profile->resolv_conf ? k->b->profile->resolv_conf : f->resolv_conf;
    if (write_file(k, in_upper(k, "u0/etc/resolv.conf", at), resolv) < 0 ||
        write_file(k, in_upper(k, "u0/etc/hosts", at), f->hosts) < 0 ||
        write_file(k, in_upper(k, "u0/etc/hostname", at), f->hostname) < 0)
        return fail(k, "/etc");
    return 0;
}

static int attach(struct dress *k, int fd, const char *at) {
    if (mkdir(at, 0755) < 0 ||
        STEP(vg_sys_move_mount(fd, "", AT_FDCWD, at, MOVE_MOUNT_F_EMPTY_PATH)) < 0)
        return fail(k, "a layer");
    return 0;
}

static int attach_layers(struct dress *k, char *opts, size_t n) {
    const struct vg_sandbox_root *root = k->root;
    size_t len = (size_t)snprintf(opts, n, "lowerdir=");
    for (size_t i = 0; i < root->n_lower + root->n_data; i++) {
        bool data = i >= root->n_lower;
        char at[32];
        snprintf(at, sizeof(at), "/s/m%zu", i);
        int r = attach(k, root->layers[i], at);
        if (r < 0)
            return r;
        len += (size_t)snprintf(opts + len, n - len, "%s%s", data ? "::" : i ? ":" : "", at);
    }
    snprintf(opts + len, n - len,
             ",upperdir=%s/u0,workdir=%s/w0,index=off,xino=off,redirect_dir=on,metacopy=on",
             root->on_disk ? "/s/d" : "/s", root->on_disk ? "/s/d" : "/s");
    return 0;
}

int vg_sb_mount_mirror(const struct vg_sb_birth *b, uid_t uid, gid_t gid, struct vg_err *err) {
    struct dress k = {.b = b, .root = b->profile->root, .uid = uid, .gid = gid, .err = err};
    char opts[1024];
    int r = k.root->on_disk ? attach(&k, k.root->upper, "/s/d") : 0;
    if (r >= 0)
        r = fill_upper(&k);
    if (r >= 0)
        r = attach_layers(&k, opts, sizeof(opts));
    if (r >= 0 && STEP(mount("virga", "/r", "overlay", MS_NOSUID | MS_NODEV, opts)) < 0)
        r = fail(&k, "the overlay");
    return r;
}

/* ---- driver libraries ------------------------------------------------------------------------ */

static size_t folder_len(const char *path) {
    return (size_t)(strrchr(path, '/') - path);
}

static int find_folder(const struct vg_sb_folders *f, const char *path, size_t len) {
    for (size_t i = 0; i < f->n; i++)
        if (strlen(f->at[i].path) == len && !memcmp(f->at[i].path, path, len))
            return (int)i;
    return -1;
}

void vg_sb_close_folders(struct vg_sb_folders *f) {
    while (f->n)
        vg_close(&f->at[--f->n].fd);
}

/* Taken in the keeper, which sees all file systems of the node: drivers may lie on any of them.
   Not id-mapped: what only the node's root may read stays closed. */
int vg_sb_open_folders(struct vg_sb_folders *f, const struct vg_sandbox_root *root,
                       struct vg_err *err) {
    for (size_t i = 0; i < root->n_libraries; i++) {
        const char *path = root->libraries[i];
        size_t len = folder_len(path);
        if (find_folder(f, path, len) >= 0)
            continue;
        if (f->n == VG_COUNT(f->at) || len >= sizeof(f->at[0].path))
            return vg_err_set(err, VG_TOO_BIG, "driver libraries lie in more than %zu folders",
                              VG_COUNT(f->at));
        char *name = f->at[f->n].path;
        snprintf(name, sizeof(f->at[0].path), "%.*s", (int)len, path);
        vg_auto_fd int src = open(*name ? name : "/", O_PATH | O_DIRECTORY | O_CLOEXEC);
        if (src < 0 && errno == ENOENT)
            continue; /* a driver may be replaced at any time */
        int fd = src < 0 ? -errno : vg_sb_detach(src, -1, true);
        if (fd < 0)
            return vg_err_sys(err, fd, "cannot show the driver libraries in %s", name);
        f->at[f->n++].fd = fd;
    }
    return 0;
}

/* The node's folders that libraries lie in become visible below /run/virga-node, once each. */
static int show_folders(struct dress *k) {
    const struct vg_sb_folders *f = k->b->folders;
    if (f->n && mkdir("run/virga-node", 0755) < 0)
        return fail(k, "/run/virga-node");
    for (size_t i = 0; i < f->n; i++) {
        char at[64];
        snprintf(at, sizeof(at), "run/virga-node/%zu", i);
        if (mkdir(at, 0755) < 0 ||
            STEP(vg_sys_move_mount(f->at[i].fd, "", AT_FDCWD, at, MOVE_MOUNT_F_EMPTY_PATH)) < 0)
            return fail(k, f->at[i].path);
    }
    return 0;
}

/* Where the mirrored machine's loader looks without being told. */
static int find_library_folder(char *out, size_t n) {
    struct utsname u;
    struct stat st;
    if (uname(&u) < 0)
        return -1;
    snprintf(out, n, "usr/lib/%s-linux-gnu", u.machine);
    if (stat(out, &st) == 0)
        return 0;
    snprintf(out, n, "usr/lib64");
    if (stat(out, &st) == 0)
        return 0;
    snprintf(out, n, "usr/lib");
    return stat(out, &st);
}

static int place_library(struct dress *k, const char *path, const char *libs) {
    char target[PATH_MAX], at[PATH_MAX];
    size_t len = folder_len(path);
    const char *name = path + len + 1;
    int i = find_folder(k->b->folders, path, len);
    if (i < 0)
        return 0;
    bool program = len >= 4 && !memcmp(path + len - 4, "/bin", 4);
    snprintf(at, sizeof(at), "%s/%.255s", program ? "usr/bin" : libs, name);
    snprintf(target, sizeof(target), "/run/virga-node/%d/%.255s", i, name);
    if (STEP(symlink(target, at)) == 0)
        return lchown(at, k->uid, k->gid) < 0 ? fail(k, at) : 0;
    if (errno != EEXIST || unlink(at) < 0 || symlink(target, at) < 0)
        return fail(k, at);
    return lchown(at, k->uid, k->gid) < 0 ? fail(k, at) : 0;
}

static int place_libraries(struct dress *k) {
    char libs[128];
    if (!k->root->n_libraries)
        return 0;
    if (find_library_folder(libs, sizeof(libs)) < 0)
        return errno == ENOENT ? 0 : fail(k, "driver libraries"); /* it has no loader either */
    int r = show_folders(k);
    for (size_t i = 0; r >= 0 && i < k->root->n_libraries; i++)
        r = place_library(k, k->root->libraries[i], libs);
    return r;
}

/* ---- folders that are written back ----------------------------------------------------------- */

int vg_sb_dress_mirror(const struct vg_sb_birth *b, uid_t uid, gid_t gid, struct vg_err *err) {
    struct dress k = {.b = b, .root = b->profile->root, .uid = uid, .gid = gid, .err = err};
    for (size_t i = 0; i < k.root->n_views; i++) {
        const struct vg_sandbox_view *v = &k.root->views[i];
        struct mount_attr safe = {.attr_set = MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV};
        if (vg_sys_mount_setattr(v->fd, "", AT_EMPTY_PATH, &safe) < 0)
            return fail(&k, v->path);
        vg_auto_fd int at = vg_sb_make_target(v->path + 1, true, uid, gid);
        if (at < 0 ||
            STEP(vg_sys_move_mount(v->fd, "", at, "",
                                   MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH)) < 0) {
            errno = at < 0 ? -at : errno;
            return fail(&k, v->path);
        }
    }
    return place_libraries(&k);
}

/* ---- the node's own small files -------------------------------------------------------------- */

static void read_text(const char *path, char *out, size_t n) {
    vg_auto_fd int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t len = fd < 0 ? 0 : read(fd, out, n - 1);
    out[len > 0 ? len : 0] = 0;
}

void vg_sb_read_files(struct vg_sb_files *f) {
    char name[80] = "";
    read_text("/etc/resolv.conf", f->resolv_conf, sizeof(f->resolv_conf));
    read_text("/etc/hosts", f->hosts, sizeof(f->hosts));
    if (gethostname(name, sizeof(name) - 2) < 0)
        name[0] = 0;
    snprintf(f->hostname, sizeof(f->hostname), "%s\n", name);
}
