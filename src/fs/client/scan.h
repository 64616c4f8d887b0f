#pragma once
/* A folder as the disk has it now: its own stat, every entry with stat and link target, sorted. Any
   thread; decides nothing. */
#include "base/buf.h"
#include "mirror/stamp.h"

struct vg_scan_ent {
    size_t name, target; /* offsets into `text`, NUL-terminated; target 0: none */
    struct vg_mstat st;
    bool kernels; /* a folder on which a file system of the kernel's own is mounted */
    bool xattr;
};
struct vg_scan {
    struct vg_mstat st;
    struct vg_scan_ent *ent;
    size_t n, cap;
    struct vg_buf text;
    bool kernels; /* the folder itself */
    bool far;     /* on a file system that others may change unseen: NFS, CIFS, FUSE, 9p */
    bool ignore;  /* has a .virgaignore, whose first 64 KiB are in ignore_text */
    struct vg_buf ignore_text;
};

/* Takes fd. `xattrs`: look at every entry's, else only at executables'. */
int vg_scan_folder(int fd, bool xattrs, struct vg_scan *ret);
void vg_scan_done(struct vg_scan *s);
static inline const char *vg_scan_str(const struct vg_scan *s, size_t at) {
    return (const char *)s->text.base + at;
}
/* File systems of the kernel's own (proc, sysfs, cgroup, ...) by statfs's f_type. */
bool vg_fs_is_kernels(long type);
bool vg_fs_is_far(long type);
