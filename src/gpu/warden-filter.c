/* Which system calls of a task on a shared GPU are looked at.
 *
 * ioctl: those of type 'F' but for the harmless ones; those of the driver's other device that map
 * memory for the card, which have plain numbers. mmap: managed memory is
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

/* Jumps are counted from the next line. */
static struct sock_filter program[] = {
    /*  0 */ LOAD(ARCH),
    /*  1 */ EQUAL(OWN_ARCH, 0, 51), /* 53 */
    /*  2 */ LOAD(NR),
    /*  3 */ SETS(OTHER_TABLE, 49, 0), /* 53 */
    /*  4 */ EQUAL(SYS_ioctl, 12, 0),  /* 17 */
    /*  5 */ EQUAL(SYS_mmap, 0, 10),   /* 16 */
    /*  6 */ LOAD(LOW(3)),
    /*  7 */ SETS(MAP_SHARED, 0, 43),    /* 51 */
    /*  8 */ SETS(MAP_ANONYMOUS, 42, 0), /* 51 */
    /*  9 */ LOAD(LOW(2)),
    /* 10 */ SETS(PROT_READ, 0, 40),  /* 51 */
    /* 11 */ SETS(PROT_WRITE, 0, 39), /* 51 */
    /* 12 */ LOAD(LOW(5)),
    /* 13 */ EQUAL(0, 0, 36), /* 50 */
    /* 14 */ LOAD(HIGH(5)),
    /* 15 */ EQUAL(0, 35, 34),                      /* 51, 50 */
    /* 16 */ EQUAL(SYS_remap_file_pages, 35, 34),   /* 52, 51 */
    /* 17 */ LOAD(LOW(1)),                          /* the kernel looks at no more of it */
    /* 18 */ EQUAL(VG_UVM_INITIALIZE, 31, 0),       /* 50 */
    /* 19 */ EQUAL(VG_UVM_REGISTER, 30, 0),         /* 50 */
    /* 20 */ EQUAL(VG_UVM_MAP, 29, 0),              /* 50 */
    /* 21 */ EQUAL(VG_UVM_UNMAP, 28, 0),            /* 50 */
    /* 22 */ EQUAL(VG_UVM_FREE, 27, 0),             /* 50 */
    /* 23 */ EQUAL(VG_UVM_UNREGISTER, 26, 0),       /* 50 */
    /* 24 */ EQUAL(VG_UVM_UNREGISTER_SPACE, 25, 0), /* 50 */
    /* 25 */ EQUAL(VG_UVM_P2P, 24, 0),              /* 50 */
    /* 26 */ MASK(0xff00),
    /* 27 */ EQUAL(VG_RM_TYPE << 8, 0, 23), /* 51 */
    /* 28 */ LOAD(LOW(1)),
    /* 29 */ MASK(0xff),
    /* 30 */ EQUAL(VG_RM_IDLE_CHANNELS, 20, 0),     /* 51 */
    /* 31 */ EQUAL(VG_RM_MAP_MEMORY, 19, 0),        /* 51 */
    /* 32 */ EQUAL(VG_RM_UNMAP_MEMORY, 18, 0),      /* 51 */
    /* 33 */ EQUAL(VG_RM_GET_EVENT_DATA, 17, 0),    /* 51 */
    /* 34 */ EQUAL(VG_RM_ALLOC_CONTEXT_DMA, 16, 0), /* 51 */
    /* 35 */ EQUAL(VG_RM_MAP_MEMORY_DMA, 15, 0),    /* 51 */
    /* 36 */ EQUAL(VG_RM_UNMAP_MEMORY_DMA, 14, 0),  /* 51 */
    /* 37 */ EQUAL(VG_RM_BIND_CONTEXT_DMA, 13, 0),  /* 51 */
    /* 38 */ EQUAL(VG_RM_UPDATE_MAPPING, 12, 0),    /* 51 */
    /* 39 */ EQUAL(VG_RM_CARD_INFO, 11, 0),         /* 51 */
    /* 40 */ EQUAL(VG_RM_REGISTER_FD, 10, 0),       /* 51 */
    /* 41 */ EQUAL(VG_RM_ALLOC_OS_EVENT, 9, 0),     /* 51 */
    /* 42 */ EQUAL(VG_RM_FREE_OS_EVENT, 8, 0),      /* 51 */
    /* 43 */ EQUAL(VG_RM_STATUS_CODE, 7, 0),        /* 51 */
    /* 44 */ EQUAL(VG_RM_CHECK_VERSION, 6, 0),      /* 51 */
    /* 45 */ EQUAL(VG_RM_ATTACH_GPUS, 5, 0),        /* 51 */
    /* 46 */ EQUAL(VG_RM_QUERY_INTR, 4, 0),         /* 51 */
    /* 47 */ EQUAL(VG_RM_SYS_PARAMS, 3, 0),         /* 51 */
    /* 48 */ EQUAL(VG_RM_NUMA_INFO, 2, 0),          /* 51 */
    /* 49 */ EQUAL(VG_RM_WAIT_OPEN, 1, 0),          /* 51 */
    /* 50 */ RETURN(SECCOMP_RET_USER_NOTIF),
    /* 51 */ RETURN(SECCOMP_RET_ALLOW),
    /* 52 */ RETURN(SECCOMP_RET_ERRNO | ENOSYS),
    /* 53 */ RETURN(SECCOMP_RET_KILL_PROCESS),
};

void vg_warden_filter(struct sock_fprog *ret) {
    *ret = (struct sock_fprog){sizeof(program) / sizeof(program[0]), program};
}
