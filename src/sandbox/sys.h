#pragma once
/* System calls that older C libraries have no name for, as thin inline functions with libc's
   convention (-1 and errno). Keeps the binary free of new symbol versions. */
#include <fcntl.h>
#include <linux/openat2.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#ifndef CLONE_INTO_CGROUP
#define CLONE_INTO_CGROUP 0x200000000ULL
#endif
#ifndef CLONE_PIDFD
#define CLONE_PIDFD 0x00001000
#endif
#define VG_PIDFD_SIGNAL_GROUP 4u /* PIDFD_SIGNAL_PROCESS_GROUP, Linux 6.9 */

struct vg_clone_args {
    uint64_t flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls, set_tid,
        set_tid_size, cgroup;
};

static inline long vg_sys_clone3(struct vg_clone_args *a) {
    return syscall(SYS_clone3, a, sizeof(*a));
}
static inline int vg_sys_open_tree(int dir, const char *path, unsigned flags) {
    return (int)syscall(SYS_open_tree, dir, path, flags);
}
static inline int vg_sys_mount_setattr(int dir, const char *path, unsigned flags,
                                       struct mount_attr *attr) {
    return (int)syscall(SYS_mount_setattr, dir, path, flags, attr, sizeof(*attr));
}
static inline int vg_sys_move_mount(int from, const char *from_path, int to, const char *to_path,
                                    unsigned flags) {
    return (int)syscall(SYS_move_mount, from, from_path, to, to_path, flags);
}
static inline int vg_sys_openat2(int dir, const char *path, uint64_t flags, uint64_t resolve) {
    struct open_how how = {.flags = flags, .resolve = resolve};
    return (int)syscall(SYS_openat2, dir, path, &how, sizeof(how));
}
static inline int vg_sys_fspick(int dir, const char *path, unsigned flags) {
    return (int)syscall(SYS_fspick, dir, path, flags);
}
static inline int vg_sys_fsconfig(int fs, unsigned what, const char *key, const void *value,
                                  int aux) {
    return (int)syscall(SYS_fsconfig, fs, what, key, value, aux);
}
static inline int vg_sys_pivot_root(const char *new_root, const char *put_old) {
    return (int)syscall(SYS_pivot_root, new_root, put_old);
}
static inline int vg_sys_pidfd_send_signal(int pidfd, int signo, unsigned flags) {
    return (int)syscall(SYS_pidfd_send_signal, pidfd, signo, NULL, flags);
}
static inline int vg_sys_close_range(unsigned first, unsigned last) {
    return (int)syscall(SYS_close_range, first, last, 0);
}
