/* The filter of devices on cgroup v2: its program is run here, instruction by instruction, on every
   kind of access; and where this kernel takes it, by the kernel, in a group of its own. */
#include "base/cleanup.h"
#include "sandbox/sandbox-priv.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/bpf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

/* What a program answers: it may load from its context, compute, jump forwards, and end. */
static uint64_t run(const struct bpf_insn *p, size_t n, const struct bpf_cgroup_dev_ctx *ctx) {
    uint64_t r[11] = {0};
    for (size_t at = 0; at < n; at++) {
        const struct bpf_insn *i = &p[at];
        uint64_t value = i->code & BPF_X ? r[i->src_reg] : (uint64_t)(int64_t)i->imm;
        bool jump = false;
        switch (i->code) {
        case BPF_LDX | BPF_MEM | BPF_W:
            cr_assert_eq(i->src_reg, BPF_REG_1, "only the context is read");
            cr_assert_leq((size_t)i->off + 4, sizeof(*ctx));
            r[i->dst_reg] = *(const uint32_t *)(const void *)((const char *)ctx + i->off);
            break;
        case BPF_ALU64 | BPF_MOV | BPF_K:
        case BPF_ALU64 | BPF_MOV | BPF_X:
            r[i->dst_reg] = value;
            break;
        case BPF_ALU64 | BPF_AND | BPF_K:
            r[i->dst_reg] &= value;
            break;
        case BPF_ALU64 | BPF_RSH | BPF_K:
            r[i->dst_reg] >>= value;
            break;
        case BPF_JMP | BPF_JNE | BPF_K:
            jump = r[i->dst_reg] != value;
            break;
        case BPF_JMP | BPF_JEQ | BPF_K:
            jump = r[i->dst_reg] == value;
            break;
        case BPF_JMP | BPF_EXIT:
            return r[0];
        default:
            cr_assert_fail("instruction %zu is none that is known here: %#x", at, i->code);
        }
        at += jump ? (size_t)i->off : 0;
    }
    cr_assert_fail("the program runs over its end");
    return 0;
}

static uint64_t asks(const struct bpf_insn *p, size_t n, uint32_t type, uint32_t access,
                     uint32_t major, uint32_t minor) {
    struct bpf_cgroup_dev_ctx c = {
        .access_type = access << 16 | type, .major = major, .minor = minor};
    return run(p, n, &c);
}

#define RW (BPF_DEVCG_ACC_READ | BPF_DEVCG_ACC_WRITE)

Test(cgroup_bpf, a_task_with_card_1_opens_card_1_alone) {
    struct bpf_insn p[VG_CG_BPF_MAX];
    dev_t own[] = {makedev(195, 1), makedev(195, 255), makedev(235, 4)}; /* and its nvidia-cap */
    size_t n = vg_cg_bpf_write(p, own, 3);
    for (uint32_t minor = 0; minor < 256; minor++) {
        bool mine = minor == 1 || minor == 255;
        cr_assert_eq(asks(p, n, BPF_DEVCG_DEV_CHAR, RW, 195, minor), mine, "195:%u", minor);
        cr_assert_eq(asks(p, n, BPF_DEVCG_DEV_CHAR, RW, 235, minor), minor == 4, "235:%u", minor);
        cr_assert_eq(asks(p, n, BPF_DEVCG_DEV_BLOCK, RW, 195, minor), 0u);
        cr_assert_eq(asks(p, n, BPF_DEVCG_DEV_CHAR, BPF_DEVCG_ACC_MKNOD, 195, minor), 0u);
        cr_assert_eq(asks(p, n, BPF_DEVCG_DEV_CHAR, RW | BPF_DEVCG_ACC_MKNOD, 195, minor), 0u);
    }
    cr_assert_eq(asks(p, n, BPF_DEVCG_DEV_CHAR, BPF_DEVCG_ACC_READ, 195, 1), 1u);
    cr_assert_eq(asks(p, n, BPF_DEVCG_DEV_CHAR, 0, 195, 0), 0u);
}

Test(cgroup_bpf, everybody_has_the_standard_devices_and_nothing_else) {
    struct bpf_insn p[VG_CG_BPF_MAX];
    size_t n = vg_cg_bpf_write(p, NULL, 0), allowed = 0;
    for (uint32_t major = 0; major < 300; major++)
        for (uint32_t minor = 0; minor < 32; minor++)
            allowed += asks(p, n, BPF_DEVCG_DEV_CHAR, RW, major, minor);
    cr_assert_eq(allowed, 7u + 32u, "null, zero, full, random, urandom, tty, ptmx; terminals");
    cr_assert_eq(asks(p, n, BPF_DEVCG_DEV_CHAR, RW, 136, 1u << 19), 1u);
}

Test(cgroup_bpf, as_many_devices_as_there_may_be) {
    struct bpf_insn p[VG_CG_BPF_MAX];
    dev_t own[VG_CG_DEVS_MAX];
    for (unsigned i = 0; i < VG_CG_DEVS_MAX; i++)
        own[i] = makedev(195, 2 * i);
    size_t n = vg_cg_bpf_write(p, own, VG_CG_DEVS_MAX);
    cr_assert_leq(n, VG_CG_BPF_MAX);
    for (uint32_t i = 0; i < 2 * VG_CG_DEVS_MAX; i++)
        cr_assert_eq(asks(p, n, BPF_DEVCG_DEV_CHAR, RW, 195, i), i % 2 == 0);
}

/* ------------------------------------------------------------------ by the kernel */

static bool find_v2(char *out, size_t n) {
    char line[1024], at[512], type[64];
    FILE *f = fopen("/proc/self/mounts", "re");
    bool found = false;
    while (f && !found && fgets(line, sizeof(line), f))
        found = sscanf(line, "%*s %511s %63s", at, type) == 2 && !strcmp(type, "cgroup2");
    if (f)
        fclose(f);
    if (found)
        snprintf(out, n, "%s/vg-test-%d", at, getpid());
    return found && mkdir(out, 0755) == 0;
}

/* The errno of an open by a child in the group; 0: it succeeded. */
static int open_there(const char *group, const char *node) {
    pid_t pid = fork();
    if (pid == 0) {
        char procs[700];
        snprintf(procs, sizeof(procs), "%s/cgroup.procs", group);
        int fd = open(procs, O_WRONLY | O_CLOEXEC);
        if (fd < 0 || write(fd, "0", 1) != 1)
            _exit(255);
        _exit(open(node, O_RDWR | O_CLOEXEC) < 0 ? errno : 0);
    }
    int status = 0;
    waitpid(pid, &status, 0);
    return WEXITSTATUS(status);
}

Test(cgroup_bpf, the_kernel_keeps_to_it) {
    char group[600], dir[] = "/tmp/vg-bpf-XXXXXX", node[4][64];
    dev_t own[] = {makedev(195, 1)};
    if (geteuid() != 0 || !find_v2(group, sizeof(group)))
        cr_skip_test("needs root and a cgroup v2 that can be written");
    vg_auto_fd int fd = open(group, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int r = vg_cg_bpf_devices(fd, own, 1);
    cr_assert(mkdtemp(dir));
    for (unsigned i = 0; i < 4; i++) {
        snprintf(node[i], sizeof(node[i]), "%s/%u", dir, i);
        if (r >= 0 && mknod(node[i], S_IFCHR | 0600, i < 3 ? makedev(195, i) : makedev(1, 3)) < 0)
            r = -errno;
    }
    int got[4] = {0};
    for (unsigned i = 0; r >= 0 && i < 4; i++) {
        got[i] = open_there(group, node[i]);
        unlink(node[i]);
    }
    rmdir(dir);
    rmdir(group);
    if (r < 0)
        cr_skip_test("this kernel takes no filter of devices: %s", strerror(-r));
    cr_assert_eq(got[0], EPERM);
    cr_assert_neq(got[1], EPERM, "its own: what is behind it is the driver's affair");
    cr_assert_eq(got[2], EPERM);
    cr_assert_eq(got[3], 0, "null");
}
