/* cgroup v2 has no devices controller but a program: this writes one, instruction by instruction,
   that allows the standard devices and those given, and denies the rest. */
#include "base/cleanup.h"
#include "sandbox/sandbox-priv.h"

#include <errno.h>
#include <linux/bpf.h>
#include <stddef.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

static long sys_bpf(int cmd, union bpf_attr *attr) {
    return syscall(SYS_bpf, cmd, attr, sizeof(*attr));
}

static struct bpf_insn insn(uint8_t code, uint8_t dst, uint8_t src, int16_t off, int32_t imm) {
    struct bpf_insn i = {.code = code, .off = off, .imm = imm};
    i.dst_reg = (unsigned char)(dst & 15u) & 15u;
    i.src_reg = (unsigned char)(src & 15u) & 15u;
    return i;
}

/* r2 type, r3 access, r4 major, r5 minor; one device: skip unless all match, else return 1. */
static size_t allow(struct bpf_insn *p, uint32_t maj, uint32_t min) {
    size_t n = 0;
    bool any = min == UINT32_MAX;
    p[n++] = insn(BPF_JMP | BPF_JNE | BPF_K, BPF_REG_4, 0, any ? 2 : 3, (int32_t)maj);
    if (!any)
        p[n++] = insn(BPF_JMP | BPF_JNE | BPF_K, BPF_REG_5, 0, 2, (int32_t)min);
    p[n++] = insn(BPF_ALU64 | BPF_MOV | BPF_K, BPF_REG_0, 0, 0, 1);
    p[n++] = insn(BPF_JMP | BPF_EXIT, 0, 0, 0, 0);
    return n;
}

size_t vg_cg_bpf_write(struct bpf_insn *p, const dev_t *devs, size_t n_devs) {
    size_t n = 0;
    const int16_t type = offsetof(struct bpf_cgroup_dev_ctx, access_type);
    p[n++] = insn(BPF_LDX | BPF_MEM | BPF_W, BPF_REG_2, BPF_REG_1, type, 0);
    p[n++] = insn(BPF_ALU64 | BPF_MOV | BPF_X, BPF_REG_3, BPF_REG_2, 0, 0);
    p[n++] = insn(BPF_ALU64 | BPF_AND | BPF_K, BPF_REG_2, 0, 0, 0xffff);
    p[n++] = insn(BPF_ALU64 | BPF_RSH | BPF_K, BPF_REG_3, 0, 0, 16);
    p[n++] = insn(BPF_LDX | BPF_MEM | BPF_W, BPF_REG_4, BPF_REG_1,
                  offsetof(struct bpf_cgroup_dev_ctx, major), 0);
    p[n++] = insn(BPF_LDX | BPF_MEM | BPF_W, BPF_REG_5, BPF_REG_1,
                  offsetof(struct bpf_cgroup_dev_ctx, minor), 0);
    /* Only character devices, and never mknod. */
    p[n++] = insn(BPF_JMP | BPF_JNE | BPF_K, BPF_REG_2, 0, 2, BPF_DEVCG_DEV_CHAR);
    p[n++] = insn(BPF_ALU64 | BPF_AND | BPF_K, BPF_REG_3, 0, 0, BPF_DEVCG_ACC_MKNOD);
    p[n++] = insn(BPF_JMP | BPF_JEQ | BPF_K, BPF_REG_3, 0, 2, 0);
    p[n++] = insn(BPF_ALU64 | BPF_MOV | BPF_K, BPF_REG_0, 0, 0, 0);
    p[n++] = insn(BPF_JMP | BPF_EXIT, 0, 0, 0, 0);
    for (size_t i = 0; i < vg_cg_n_std_devs; i++)
        n += allow(p + n, vg_cg_std_devs[i].major, vg_cg_std_devs[i].minor);
    for (size_t i = 0; i < n_devs; i++)
        n += allow(p + n, major(devs[i]), minor(devs[i]));
    p[n++] = insn(BPF_ALU64 | BPF_MOV | BPF_K, BPF_REG_0, 0, 0, 0);
    p[n++] = insn(BPF_JMP | BPF_EXIT, 0, 0, 0, 0);
    return n;
}

static int attach_program(int cgroup_fd, const struct bpf_insn *prog, size_t n) {
    union bpf_attr load, attach;
    memset(&load, 0, sizeof(load));
    memset(&attach, 0, sizeof(attach));
    load.prog_type = BPF_PROG_TYPE_CGROUP_DEVICE;
    load.insns = (uintptr_t)prog;
    load.insn_cnt = (uint32_t)n;
    load.license = (uintptr_t) "Apache-2.0";
    vg_auto_fd int fd = (int)sys_bpf(BPF_PROG_LOAD, &load);
    if (fd < 0)
        return -errno;
    attach.target_fd = (uint32_t)cgroup_fd;
    attach.attach_bpf_fd = (uint32_t)fd;
    attach.attach_type = BPF_CGROUP_DEVICE;
    /* A sandbox's own program takes the place of the node's; attaching again replaces it. */
    attach.attach_flags = BPF_F_ALLOW_OVERRIDE;
    return sys_bpf(BPF_PROG_ATTACH, &attach) < 0 ? -errno : 0;
}

int vg_cg_bpf_devices(int cgroup_fd, const dev_t *devs, size_t n) {
    struct bpf_insn prog[VG_CG_BPF_MAX];
    if (n > VG_CG_DEVS_MAX)
        return -E2BIG;
    return attach_program(cgroup_fd, prog, vg_cg_bpf_write(prog, devs, n));
}

int vg_cg_bpf_all_devices(int cgroup_fd) {
    const struct bpf_insn prog[] = {insn(BPF_ALU64 | BPF_MOV | BPF_K, BPF_REG_0, 0, 0, 1),
                                    insn(BPF_JMP | BPF_EXIT, 0, 0, 0, 0)};
    return attach_program(cgroup_fd, prog, VG_COUNT(prog));
}
