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
    /*  1 */ EQUAL(OWN_ARCH, 0, 52), /* 54 */
    /*  2 */ LOAD(NR),
    /*  3 */ SETS(OTHER_TABLE, 50, 0), /* 54 */
    /*  4 */ EQUAL(SYS_ioctl, 12, 0),  /* 17 */
    /*  5 */ EQUAL(SYS_mmap, 0, 10),   /* 16 */
    /*  6 */ LOAD(LOW(3)),
    /*  7 */ SETS(MAP_SHARED, 0, 44),    /* 52 */
    /*  8 */ SETS(MAP_ANONYMOUS, 43, 0), /* 52 */
    /*  9 */ LOAD(LOW(2)),
    /* 10 */ SETS(PROT_READ, 0, 41),  /* 52 */
    /* 11 */ SETS(PROT_WRITE, 0, 40), /* 52 */
    /* 12 */ LOAD(LOW(5)),
    /* 13 */ EQUAL(0, 0, 37), /* 51 */
    /* 14 */ LOAD(HIGH(5)),
    /* 15 */ EQUAL(0, 36, 35),                      /* 52, 51 */
    /* 16 */ EQUAL(SYS_remap_file_pages, 36, 35),   /* 53, 52 */
    /* 17 */ LOAD(LOW(1)),                          /* the kernel looks at no more of it */
    /* 18 */ EQUAL(VG_UVM_INITIALIZE, 32, 0),       /* 51 */
    /* 19 */ EQUAL(VG_UVM_REGISTER, 31, 0),         /* 51 */
    /* 20 */ EQUAL(VG_UVM_MAP, 30, 0),              /* 51 */
    /* 21 */ EQUAL(VG_UVM_UNMAP, 29, 0),            /* 51 */
    /* 22 */ EQUAL(VG_UVM_FREE, 28, 0),             /* 51 */
    /* 23 */ EQUAL(VG_UVM_UNREGISTER, 27, 0),       /* 51 */
    /* 24 */ EQUAL(VG_UVM_UNREGISTER_SPACE, 26, 0), /* 51 */
    /* 25 */ EQUAL(VG_UVM_SPARSE, 25, 0),           /* 51 */
    /* 26 */ EQUAL(VG_UVM_P2P, 24, 0),              /* 51 */
    /* 27 */ MASK(0xff00),
    /* 28 */ EQUAL(VG_RM_TYPE << 8, 0, 23), /* 52 */
    /* 29 */ LOAD(LOW(1)),
    /* 30 */ MASK(0xff),
    /* 31 */ EQUAL(VG_RM_IDLE_CHANNELS, 20, 0),     /* 52 */
    /* 32 */ EQUAL(VG_RM_MAP_MEMORY, 19, 0),        /* 52 */
    /* 33 */ EQUAL(VG_RM_UNMAP_MEMORY, 18, 0),      /* 52 */
    /* 34 */ EQUAL(VG_RM_GET_EVENT_DATA, 17, 0),    /* 52 */
    /* 35 */ EQUAL(VG_RM_ALLOC_CONTEXT_DMA, 16, 0), /* 52 */
    /* 36 */ EQUAL(VG_RM_MAP_MEMORY_DMA, 15, 0),    /* 52 */
    /* 37 */ EQUAL(VG_RM_UNMAP_MEMORY_DMA, 14, 0),  /* 52 */
    /* 38 */ EQUAL(VG_RM_BIND_CONTEXT_DMA, 13, 0),  /* 52 */
    /* 39 */ EQUAL(VG_RM_UPDATE_MAPPING, 12, 0),    /* 52 */
    /* 40 */ EQUAL(VG_RM_CARD_INFO, 11, 0),         /* 52 */
    /* 41 */ EQUAL(VG_RM_REGISTER_FD, 10, 0),       /* 52 */
    /* 42 */ EQUAL(VG_RM_ALLOC_OS_EVENT, 9, 0),     /* 52 */
    /* 43 */ EQUAL(VG_RM_FREE_OS_EVENT, 8, 0),      /* 52 */
    /* 44 */ EQUAL(VG_RM_STATUS_CODE, 7, 0),        /* 52 */
    /* 45 */ EQUAL(VG_RM_CHECK_VERSION, 6, 0),      /* 52 */
    /* 46 */ EQUAL(VG_RM_ATTACH_GPUS, 5, 0),        /* 52 */
    /* 47 */ EQUAL(VG_RM_QUERY_INTR, 4, 0),         /* 52 */
    /* 48 */ EQUAL(VG_RM_SYS_PARAMS, 3, 0),         /* 52 */
    /* 49 */ EQUAL(VG_RM_NUMA_INFO, 2, 0),          /* 52 */
    /* 50 */ EQUAL(VG_RM_WAIT_OPEN, 1, 0),          /* 52 */
    /* 51 */ RETURN(SECCOMP_RET_USER_NOTIF),
    /* 52 */ RETURN(SECCOMP_RET_ALLOW),
    /* 53 */ RETURN(SECCOMP_RET_ERRNO | ENOSYS),
    /* 54 */ RETURN(SECCOMP_RET_KILL_PROCESS),
};

void vg_warden_filter(struct sock_fprog *ret) {
    *ret = (struct sock_fprog){sizeof(program) / sizeof(program[0]), program};
}
