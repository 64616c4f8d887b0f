/* Secrets as files: a small file system of memory in the sandbox, made for the first command that
   gets any. No path of the node leads to it, and it goes with the sandbox, which is not used again.
   Runs in the keeper; one thread. */
#include "base/cleanup.h"
#include "base/util.h"
#include "sandbox/sandbox-priv.h"
#include "sandbox/sys.h"

#include <errno.h>
#include <stdio.h>
#include <sys/stat.h>

static int make_folder(struct vg_sandbox *sb, const struct vg_exec *x) {
    char options[96];
    int cwd, r = vg_sb_step_in(sb, &cwd);
    if (r < 0)
        return r;
    snprintf(options, sizeof(options), "mode=0500,size=2m,uid=%u,gid=%u",
             vg_sandbox_map_uid(sb, x->uid), vg_sandbox_map_gid(sb, x->gid));
    mode_t mask = umask(0);
    vg_auto_fd int at = vg_sb_make_target(VG_SANDBOX_SECRETS, true, vg_sandbox_map_uid(sb, 0),
                                          vg_sandbox_map_gid(sb, 0));
    r = at < 0 ? at : vg_sb_own_folder(VG_SANDBOX_SECRETS, options, &sb->given_fd);
    umask(mask);
    vg_sb_step_out(sb, cwd);
    return r;
}

static int write_one(struct vg_sandbox *sb, const struct vg_exec *x,
                     const struct vg_given_file *f) {
    if (unlinkat(sb->given_fd, f->name, 0) < 0 && errno != ENOENT)
        return -errno;
    vg_auto_fd int fd =
        openat(sb->given_fd, f->name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0400);
    if (fd < 0)
        return -errno;
    if (fchmod(fd, 0400) < 0 ||
        fchown(fd, vg_sandbox_map_uid(sb, x->uid), vg_sandbox_map_gid(sb, x->gid)) < 0)
        return -errno;
    return vg_write_full(fd, f->data, f->len);
}

int vg_sb_give(struct vg_sandbox *sb, const struct vg_exec *x, struct vg_err *err) {
    int r = 0;
    if (sb->given_fd < 0)
        r = make_folder(sb, x);
    for (size_t i = 0; r >= 0 && i < x->n_given; i++)
        r = write_one(sb, x, &x->given[i]);
    return r < 0
               ? vg_err_sys(err, r, "cannot put secrets into %s of the sandbox", VG_SANDBOX_SECRETS)
               : 0;
}
