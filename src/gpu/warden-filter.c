/* Which system calls of a task on a shared GPU are looked at.
 *
 * ioctl: those of type 'F' that allocate, free, share, import, or control; those of the driver's
 * other device that map memory for the card, which have plain numbers. mmap: managed memory is
 * mapped shared, readable and writable, at an offset that equals its address, never 0.
 * Calls by another table of numbers (32-bit, x32) would pass unseen: they end the process.
 * remap_file_pages could change that offset afterwards: it does not exist here. */
#include "gpu/rm.h"
#include "gpu/warden-notify.h"

#include <errno.h>
#include <linux/audit.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the halves of an argument lie the other way round"
#endif

#if defined(__x86_64__)
#define OWN_ARCH AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define OWN_ARCH AUDIT_ARCH_AARCH64
#else
#error "whose numbers would these be?"
#endif
#define OTHER_TABLE \
    0x40000000u /* of a number: x86-64 has a second table there; nobody else uses it */

#define ARCH offsetof(struct seccomp_data, arch)
#define NR offsetof(struct seccomp_data, nr)
#define LOW(n) (offsetof(struct seccomp_data, args) + 8 * (n))
#define HIGH(n) (LOW(n) + 4)
#define LOAD(at) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, at)
#define EQUAL(what, yes, no) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, what, yes, no)
#define SETS(what, yes, no) BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, what, yes, no)
#define MASK(what) BPF_STMT(BPF_ALU | BPF_AND | BPF_K, what)
#define RETURN(what) BPF_STMT(BPF_RET | BPF_K, what)
#define F(number) (VG_RM_TYPE << 8 | (number))

/* Jumps are counted from the next line. */
static struct sock_filter program[] = {
    /*  0 */ LOAD(ARCH),
    /*  1 */ EQUAL(OWN_ARCH, 0, 36), /* 38 */
    /*  2 */ LOAD(NR),
    /*  3 */ SETS(OTHER_TABLE, 34, 0), /* 38 */
    /*  4 */ EQUAL(SYS_ioctl, 12, 0),  /* 17 */
    /*  5 */ EQUAL(SYS_mmap, 1, 0),
    /*  6 */ EQUAL(SYS_remap_file_pages, 30, 28), /* 37, 35 */
    /*  7 */ LOAD(LOW(3)),
    /*  8 */ SETS(MAP_SHARED, 0, 26),
    /*  9 */ SETS(MAP_ANONYMOUS, 25, 0),
    /* 10 */ LOAD(LOW(2)),
    /* 11 */ SETS(PROT_READ, 0, 23),
    /* 12 */ SETS(PROT_WRITE, 0, 22),
    /* 13 */ LOAD(LOW(5)),
    /* 14 */ EQUAL(0, 0, 21), /* 36 */
    /* 15 */ LOAD(HIGH(5)),
    /* 16 */ EQUAL(0, 18, 19),                /* 35, 36 */
    /* 17 */ LOAD(LOW(1)),                    /* the kernel looks at no more of it */
    /* 18 */ EQUAL(VG_UVM_INITIALIZE, 17, 0), /* 36, as all that follow */
    /* 19 */ EQUAL(VG_UVM_REGISTER, 16, 0),
    /* 20 */ EQUAL(VG_UVM_MAP, 15, 0),
    /* 21 */ EQUAL(VG_UVM_UNMAP, 14, 0),
    /* 22 */ EQUAL(VG_UVM_FREE, 13, 0),
    /* 23 */ EQUAL(VG_UVM_UNREGISTER, 12, 0),
    /* 24 */ EQUAL(VG_UVM_UNREGISTER_SPACE, 11, 0),
    /* 25 */ MASK(0xffff),
    /* 26 */ EQUAL(F(VG_RM_ALLOC), 9, 0),
    /* 27 */ EQUAL(F(VG_RM_FREE), 8, 0),
    /* 28 */ EQUAL(F(VG_RM_CONTROL), 7, 0),
    /* 29 */ EQUAL(F(VG_RM_ALLOC_MEMORY), 6, 0),
    /* 30 */ EQUAL(F(VG_RM_ALLOC_OBJECT), 5, 0),
    /* 31 */ EQUAL(F(VG_RM_DUP_OBJECT), 4, 0),
    /* 32 */ EQUAL(F(VG_RM_SHARE), 3, 0),
    /* 33 */ EQUAL(F(VG_RM_VID_HEAP), 2, 0),
    /* 34 */ EQUAL(F(VG_RM_IMPORT_FD), 1, 0),
    /* 35 */ RETURN(SECCOMP_RET_ALLOW),
    /* 36 */ RETURN(SECCOMP_RET_USER_NOTIF),
    /* 37 */ RETURN(SECCOMP_RET_ERRNO | ENOSYS),
    /* 38 */ RETURN(SECCOMP_RET_KILL_PROCESS),
};

void vg_warden_filter(struct sock_fprog *ret) {
    *ret = (struct sock_fprog){sizeof(program) / sizeof(program[0]), program};
}
