#pragma once
/* The part of the NVIDIA kernel interface that the warden of a shared GPU looks at: ioctls of type
 * 'F' on /dev/nvidiactl and /dev/nvidiaN. A process makes *clients*; everything else is an *object*
 * of a client, with a number it chose itself (0: the driver chooses), a class and a parent. Freeing
 * an object frees what hangs below it.
 *
 * Layouts are those of the drivers since 515; the numbers are part of the kernel's ABI and have not
 * changed since. Parameters behind a pointer have a size that the driver knows by the class. The
 * driver's other device, /dev/nvidia-uvm, stands below. */
#include <stdint.h>

#define VG_RM_TYPE 0x46u

/* Calls that ask, tell, or map for the processor: they take no memory of the card and keep none. */
enum vg_rm_harmless {
    VG_RM_IDLE_CHANNELS = 0x41,
    VG_RM_MAP_MEMORY = 0x4e,
    VG_RM_UNMAP_MEMORY = 0x4f,
    VG_RM_GET_EVENT_DATA = 0x52,
    VG_RM_ALLOC_CONTEXT_DMA = 0x54,
    VG_RM_MAP_MEMORY_DMA = 0x57,
    VG_RM_UNMAP_MEMORY_DMA = 0x58,
    VG_RM_BIND_CONTEXT_DMA = 0x59,
    VG_RM_UPDATE_MAPPING = 0x5e,
    VG_RM_CARD_INFO = 0xc8,
    VG_RM_REGISTER_FD = 0xc9,
    VG_RM_ALLOC_OS_EVENT = 0xce,
    VG_RM_FREE_OS_EVENT = 0xcf,
    VG_RM_STATUS_CODE = 0xd1,
    VG_RM_CHECK_VERSION = 0xd2,
    VG_RM_ATTACH_GPUS = 0xd4,
    VG_RM_QUERY_INTR = 0xd5,
    VG_RM_SYS_PARAMS = 0xd6,
    VG_RM_NUMA_INFO = 0xd7,
    VG_RM_WAIT_OPEN = 0xda,
};

enum vg_rm_number {
    VG_RM_ALLOC_MEMORY = 0x27,
    VG_RM_ALLOC_OBJECT = 0x28,
    VG_RM_FREE = 0x29,
    VG_RM_CONTROL = 0x2a,
    VG_RM_ALLOC = 0x2b,
    VG_RM_DUP_OBJECT = 0x34,
    VG_RM_SHARE = 0x35, /* lets others have duplicates of an object */
    VG_RM_VID_HEAP = 0x4a,
    VG_RM_IMPORT_FD = 0x5d,
    VG_RM_ANY = 0xd3,    /* wraps a call of any number */
    VG_RM_DMABUF = 0xd9, /* memory as a descriptor, which keeps it */
};

enum vg_rm_class {
    VG_RM_CLASS_ROOT = 0x00,
    VG_RM_CLASS_ROOT_NON_PRIV = 0x01,
    VG_RM_CLASS_EVENT = 0x05,
    VG_RM_CLASS_MEMORY_SYSTEM = 0x3e,
    VG_RM_CLASS_MEMORY_LOCAL = 0x40, /* memory of the card */
    VG_RM_CLASS_ROOT_CLIENT = 0x41,
    VG_RM_CLASS_MEMORY_PINNED = 0x71, /* memory of the process, for the card to use */
    VG_RM_CLASS_EVENT_CALLBACK = 0x78,
    VG_RM_CLASS_EVENT_OS = 0x79, /* its parameters name a descriptor */
    VG_RM_CLASS_EVENT_CALLBACK_EX = 0x7e,
    VG_RM_CLASS_COMPUTE = 0xc0,         /* the last two digits of every generation's */
    VG_RM_CLASS_CHANNEL_GROUP = 0xa06c, /* what the card's scheduler gives time to */
};

enum vg_rm_status {
    VG_RM_OK = 0x00,
    VG_RM_INSUFFICIENT_RESOURCES = 0x1a,
    VG_RM_INVALID_CLASS = 0x22,
    VG_RM_NO_MEMORY = 0x51,
    VG_RM_NOT_SUPPORTED = 0x56,
};

/* Of VG_RM_SHARE. */
#define VG_RM_SHARE_DUP 1u    /* rights */
#define VG_RM_SHARE_USER 2u   /* type: processes of the same user */
#define VG_RM_SHARE_REVOKE 1u /* action */

#define VG_RM_GET_SURFACE 0x00410110u
#define VG_RM_SURFACE_SPACE 9u /* where the memory lies … */
#define VG_RM_SPACE_HOST 1u    /* … not on the card */
#define VG_RM_SET_TIMESLICE 0xa06c0103u
#define VG_RM_GET_TIMESLICE 0xa06c0104u

struct vg_rm_alloc { /* NVOS64; the older form is vg_rm_alloc_old */
    uint32_t client, parent, object, class_id;
    uint64_t params, rights;
    uint32_t params_bytes, flags, status, unused;
};

struct vg_rm_alloc_old { /* NVOS21 */
    uint32_t client, parent, object, class_id;
    uint64_t params;
    uint32_t params_bytes, status;
};

struct vg_rm_free {
    uint32_t client, parent, object, status;
};

struct vg_rm_control {
    uint32_t client, object, command, flags;
    uint64_t params;
    uint32_t params_bytes, status;
};

struct vg_rm_dup {
    uint32_t client, parent, object, from_client, from_object, flags, status;
};

struct vg_rm_alloc_memory {
    uint32_t client, parent, object, class_id, flags, unused;
    uint64_t memory, limit;
    uint32_t status, unused2;
    int32_t fd, unused3;
};

struct vg_rm_share {
    uint32_t client, object, target, rights;
    uint16_t type;
    uint8_t action, unused;
    uint32_t status;
};

struct vg_rm_surface_info {
    uint32_t index, data;
};

struct vg_rm_surface { /* parameters of VG_RM_GET_SURFACE */
    uint32_t n, unused;
    uint64_t list;
};

/* Parameters of the memory classes, as far as they matter here. */
struct vg_rm_memory {
    uint32_t owner, type, flags, width, height, pitch, attr, attr2, format, cover[2], unused;
    uint64_t lo, hi, size, align;
};
#define VG_RM_MEMORY_VIRTUAL 0x80000u /* of flags: addresses only */

/* Calls of /dev/nvidia-uvm. Their numbers are whole: no size, no type. The status is in the form.
 */
enum vg_uvm_number {
    VG_UVM_INITIALIZE = 0x30000001,
    VG_UVM_UNREGISTER_SPACE = 26, /* of a card: what is mapped for it no longer is */
    VG_UVM_MAP = 33,              /* memory that an object stands for */
    VG_UVM_FREE = 34,             /* a range of addresses, with what is mapped there */
    VG_UVM_REGISTER = 37,         /* a card */
    VG_UVM_UNREGISTER = 38,
    VG_UVM_PAGEABLE = 39, /* whether cards may touch any page of the process */
    VG_UVM_UNMAP = 66,
    VG_UVM_SPARSE = 74, /* addresses without memory: their page tables are of the card's */
    VG_UVM_P2P = 78,    /* memory for other devices; keeps it as a mapping does */
};
#define VG_UVM_NO_HMM 1u /* of the flags: they may not */

struct vg_uvm_initialize {
    uint64_t flags;
    uint32_t status, unused;
};

struct vg_uvm_pageable {
    uint8_t yes, unused[3];
    uint32_t status;
};

struct vg_uvm_register {
    uint8_t uuid[16], numa, unused[3];
    int32_t numa_node, fd;
    uint32_t client, part, status;
};

struct vg_uvm_card {
    uint8_t uuid[16];
    uint32_t status;
};

struct vg_uvm_free {
    uint64_t base, length;
    uint32_t status, unused;
};

struct vg_uvm_unmap { /* and VG_UVM_SPARSE */
    uint64_t base, length;
    uint8_t uuid[16];
    uint32_t status, unused;
};

/* The form of VG_UVM_MAP: base, length, offset; then for each card that the driver could know what
   it is to have, beginning with the card's uuid; then how many cards that are, and a descriptor,
   client, object and the status. */
#define VG_UVM_MAP_HEAD 24u
#define VG_UVM_MAP_CARD 36u
#define VG_UVM_MAP_TAIL 24u
#define VG_UVM_CARDS 256u    /* since 550 */
#define VG_UVM_CARDS_OLD 32u /* before */
#define VG_UVM_MAP_BYTES_MAX (VG_UVM_MAP_HEAD + VG_UVM_MAP_CARD * VG_UVM_CARDS + VG_UVM_MAP_TAIL)

_Static_assert(sizeof(struct vg_uvm_initialize) == 16 && sizeof(struct vg_uvm_pageable) == 8, "");
_Static_assert(sizeof(struct vg_uvm_register) == 40 && sizeof(struct vg_uvm_card) == 20, "");
_Static_assert(sizeof(struct vg_uvm_free) == 24 && sizeof(struct vg_uvm_unmap) == 40, "");
_Static_assert(sizeof(struct vg_rm_share) == 24 && sizeof(struct vg_rm_surface) == 16, "");
_Static_assert(sizeof(struct vg_rm_alloc) == 48 && sizeof(struct vg_rm_alloc_old) == 32, "");
_Static_assert(sizeof(struct vg_rm_free) == 16 && sizeof(struct vg_rm_control) == 32, "");
_Static_assert(sizeof(struct vg_rm_dup) == 28 && sizeof(struct vg_rm_alloc_memory) == 56, "");
_Static_assert(sizeof(struct vg_rm_memory) == 80, "");
