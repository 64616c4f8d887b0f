/* The system calls a task may not make. A deny-list, because a task is a whole machine to its user
   and everything that is not a way out should work; the user namespace, which owns nothing but
   itself, is the wall behind it. Compiled once per node, installed once per sandbox (init), and
   inherited by every command. */
#include "base/cleanup.h"
#include "base/mem.h"
#include "sandbox/sandbox-priv.h"

#include <errno.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <seccomp.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef CLONE_NEWTIME
#define CLONE_NEWTIME 0x80
#endif

static const int denied[] = {
    SCMP_SYS(mount),
    SCMP_SYS(umount2),
    SCMP_SYS(pivot_root),
    SCMP_SYS(move_mount),
    SCMP_SYS(open_tree),
    SCMP_SYS(fsopen),
    SCMP_SYS(fsmount),
    SCMP_SYS(fsconfig),
    SCMP_SYS(fspick),
    SCMP_SYS(mount_setattr),
    SCMP_SYS(setns),
    SCMP_SYS(kexec_load),
    SCMP_SYS(kexec_file_load),
    SCMP_SYS(init_module),
    SCMP_SYS(finit_module),
    SCMP_SYS(delete_module),
    SCMP_SYS(create_module),
    SCMP_SYS(query_module),
    SCMP_SYS(get_kernel_syms),
    SCMP_SYS(bpf),
    SCMP_SYS(perf_event_open),
    SCMP_SYS(add_key),
    SCMP_SYS(request_key),
    SCMP_SYS(keyctl),
    SCMP_SYS(open_by_handle_at),
    SCMP_SYS(name_to_handle_at),
    SCMP_SYS(userfaultfd),
    SCMP_SYS(io_uring_setup),
    SCMP_SYS(io_uring_enter),
    SCMP_SYS(io_uring_register),
    SCMP_SYS(acct),
    SCMP_SYS(swapon),
    SCMP_SYS(swapoff),
    SCMP_SYS(reboot),
    SCMP_SYS(settimeofday),
    SCMP_SYS(clock_settime),
    SCMP_SYS(stime),
    SCMP_SYS(iopl),
    SCMP_SYS(ioperm),
    SCMP_SYS(quotactl),
    SCMP_SYS(quotactl_fd),
    SCMP_SYS(nfsservctl),
    SCMP_SYS(lookup_dcookie),
    SCMP_SYS(syslog),
    SCMP_SYS(vhangup),
    SCMP_SYS(fanotify_init),
    SCMP_SYS(kcmp),
    SCMP_SYS(uselib),
    SCMP_SYS(_sysctl),
    SCMP_SYS(sysfs),
    SCMP_SYS(ustat),
};

/* Newer than libseccomp's table: given by number, the same on every architecture. */
static const int denied_numbers[] = {
    467 /* open_tree_attr */,
};

static const unsigned long namespace_flags[] = {CLONE_NEWNS,  CLONE_NEWCGROUP, CLONE_NEWUTS,
                                                CLONE_NEWIPC, CLONE_NEWUSER,   CLONE_NEWPID,
                                                CLONE_NEWNET};

static int add_rules(scmp_filter_ctx ctx) {
    const uint32_t no = SCMP_ACT_ERRNO(EPERM);
    int r = 0;
    for (size_t i = 0; !r && i < sizeof(denied) / sizeof(denied[0]); i++) {
        r = seccomp_rule_add(ctx, no, denied[i], 0);
        if (r == -EDOM) /* not a call of this architecture */
            r = 0;
    }
    for (size_t i = 0; !r && i < sizeof(denied_numbers) / sizeof(denied_numbers[0]); i++)
        r = seccomp_rule_add(ctx, no, denied_numbers[i], 0);
    for (size_t i = 0; !r && i < sizeof(namespace_flags) / sizeof(namespace_flags[0]); i++) {
        unsigned long f = namespace_flags[i];
        r = seccomp_rule_add(ctx, no, SCMP_SYS(clone), 1, SCMP_A0(SCMP_CMP_MASKED_EQ, f, f));
        if (!r)
            r = seccomp_rule_add(ctx, no, SCMP_SYS(unshare), 1, SCMP_A0(SCMP_CMP_MASKED_EQ, f, f));
    }
    if (!r)
        r = seccomp_rule_add(ctx, no, SCMP_SYS(unshare), 1,
                             SCMP_A0(SCMP_CMP_MASKED_EQ, CLONE_NEWTIME, CLONE_NEWTIME));
    if (!r) /* its flags are in memory; ENOSYS makes libc fall back to clone */
        r = seccomp_rule_add(ctx, SCMP_ACT_ERRNO(ENOSYS), SCMP_SYS(clone3), 0);
    /* Reading the clock's state is fine, setting it is not: modes is the first word of the struct,
       which a filter cannot see, so both calls need the privilege check, which they fail. */
    const unsigned long ioctls[] = {TIOCSTI, 0x541C /* TIOCLINUX */, 0x541D /* TIOCCONS */};
    for (size_t i = 0; !r && i < sizeof(ioctls) / sizeof(ioctls[0]); i++)
        r = seccomp_rule_add(ctx, no, SCMP_SYS(ioctl), 1,
                             SCMP_A1(SCMP_CMP_MASKED_EQ, 0xffffffffu, ioctls[i]));
    return r;
}

static int export(scmp_filter_ctx ctx, struct sock_fprog *ret) {
    int fd = memfd_create("seccomp", MFD_CLOEXEC);
    if (fd < 0)
        return -errno;
    int r = seccomp_export_bpf(ctx, fd);
    off_t len = r < 0 ? 0 : lseek(fd, 0, SEEK_END);
    struct sock_filter *filter = len > 0 ? vg_alloc((size_t)len) : NULL;
    if (r >= 0)
        r = !filter ? -ENOMEM : pread(fd, filter, (size_t)len, 0) != len ? -EIO : 0;
    close(fd);
    if (r < 0) {
        free(filter);
        return r;
    }
    *ret = (struct sock_fprog){(unsigned short)((size_t)len / sizeof(*filter)), filter};
    return 0;
}

int vg_seccomp_compile(struct sock_fprog *ret, struct vg_err *err) {
    scmp_filter_ctx ctx = seccomp_init(SCMP_ACT_ALLOW);
    int r = ctx ? 0 : -ENOMEM;
    if (!r)
        r = seccomp_attr_set(ctx, SCMP_FLTATR_ACT_BADARCH, SCMP_ACT_KILL_PROCESS);
    if (!r) /* a binary tree over the numbers: the filter runs at every system call */
        (void)seccomp_attr_set(ctx, SCMP_FLTATR_CTL_OPTIMIZE, 2);
    if (!r)
        r = add_rules(ctx);
    if (!r)
        r = export(ctx, ret);
    if (ctx)
        seccomp_release(ctx);
    return r < 0 ? vg_err_sys(err, r, "cannot compile the system call filter") : 0;
}

int vg_seccomp_watch(const struct sock_fprog *prog) {
    /* Where the kernel can (5.19), a call that is being answered is not begun anew because of a
       signal: what was done in its stead would be done twice. */
    const unsigned long flags[] = {SECCOMP_FILTER_FLAG_NEW_LISTENER | 1ul << 5,
                                   SECCOMP_FILTER_FLAG_NEW_LISTENER};
    long fd = -1;
    for (size_t i = 0; fd < 0 && i < VG_COUNT(flags); i++)
        fd = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags[i], prog);
    return fd < 0 ? -errno : (int)fd;
}

int vg_seccomp_install(const struct sock_fprog *prog) {
    return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, prog) < 0 ? -errno : 0;
}
