/* Which system calls of a task on a shared GPU are looked at.
 *
 * ioctl: those of type 'F' that allocate, free, share, import, or control. mmap: managed memory is
 * mapped shared, readable and writable, at an offset that equals its address, never 0.
 * remap_file_pages could change that offset afterwards: it does not exist here. */
#include "gpu/rm.h"
#include "gpu/warden-notify.h"

#include <errno.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the halves of an argument lie the other way round"
#endif

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
    /*  0 */ LOAD(NR),
    /*  1 */ EQUAL(SYS_ioctl, 12, 0), /* 14 */
    /*  2 */ EQUAL(SYS_mmap, 1, 0),
    /*  3 */ EQUAL(SYS_remap_file_pages, 22, 20), /* 26, 24 */
    /*  4 */ LOAD(LOW(3)),
    /*  5 */ SETS(MAP_SHARED, 0, 18),
    /*  6 */ SETS(MAP_ANONYMOUS, 17, 0),
    /*  7 */ LOAD(LOW(2)),
    /*  8 */ SETS(PROT_READ, 0, 15),
    /*  9 */ SETS(PROT_WRITE, 0, 14),
    /* 10 */ LOAD(LOW(5)),
    /* 11 */ EQUAL(0, 0, 13), /* 25 */
    /* 12 */ LOAD(HIGH(5)),
    /* 13 */ EQUAL(0, 10, 11), /* 24, 25 */
    /* 14 */ LOAD(LOW(1)),
    /* 15 */ MASK(0xffff),
    /* 16 */ EQUAL(F(VG_RM_ALLOC), 8, 0), /* 25, as all that follow */
    /* 17 */ EQUAL(F(VG_RM_FREE), 7, 0),
    /* 18 */ EQUAL(F(VG_RM_CONTROL), 6, 0),
    /* 19 */ EQUAL(F(VG_RM_ALLOC_MEMORY), 5, 0),
    /* 20 */ EQUAL(F(VG_RM_ALLOC_OBJECT), 4, 0),
    /* 21 */ EQUAL(F(VG_RM_DUP_OBJECT), 3, 0),
    /* 22 */ EQUAL(F(VG_RM_VID_HEAP), 2, 0),
    /* 23 */ EQUAL(F(VG_RM_IMPORT_FD), 1, 0),
    /* 24 */ RETURN(SECCOMP_RET_ALLOW),
    /* 25 */ RETURN(SECCOMP_RET_USER_NOTIF),
    /* 26 */ RETURN(SECCOMP_RET_ERRNO | ENOSYS),
};

void vg_warden_filter(struct sock_fprog *ret) {
    *ret = (struct sock_fprog){sizeof(program) / sizeof(program[0]), program};
}
