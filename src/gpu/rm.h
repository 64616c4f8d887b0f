#pragma once
/* The part of the NVIDIA kernel interface that the warden of a shared GPU looks at: ioctls of type
 * 'F' on /dev/nvidiactl and /dev/nvidiaN. A process makes *clients*; everything else is an *object*
 * of a client, with a number it chose itself (0: the driver chooses), a class and a parent. Freeing
 * an object frees what hangs below it.
 *
 * Layouts are those of the drivers since 515; the numbers are part of the kernel's ABI and have not
 * changed since. Parameters behind a pointer have a size that the driver knows by the class. */
#include <stdint.h>

#define VG_RM_TYPE 0x46u

enum vg_rm_number {
    VG_RM_ALLOC_MEMORY = 0x27,
    VG_RM_ALLOC_OBJECT = 0x28,
    VG_RM_FREE = 0x29,
    VG_RM_CONTROL = 0x2a,
    VG_RM_ALLOC = 0x2b,
    VG_RM_DUP_OBJECT = 0x34,
    VG_RM_VID_HEAP = 0x4a,
    VG_RM_IMPORT_FD = 0x5d,
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

#define VG_RM_SET_TIMESLICE 0xa06c0103u
#define VG_RM_GET_TIMESLICE 0xa06c0104u
#define VG_RM_SCHEDULE_GROUP 0xa06c0101u /* gets turns, or none; with vg_rm_schedule */
#define VG_RM_SCHEDULE_CHANNEL 0xa06f0103u

struct vg_rm_schedule {
    uint8_t enable, skip_submit, skip_enable;
};

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

/* Parameters of the memory classes, as far as they matter here. */
struct vg_rm_memory {
    uint32_t owner, type, flags, width, height, pitch, attr, attr2, format, cover[2], unused;
    uint64_t lo, hi, size, align;
};
#define VG_RM_MEMORY_VIRTUAL 0x80000u /* of flags: addresses only */

_Static_assert(sizeof(struct vg_rm_alloc) == 48 && sizeof(struct vg_rm_alloc_old) == 32, "");
_Static_assert(sizeof(struct vg_rm_free) == 16 && sizeof(struct vg_rm_control) == 32, "");
_Static_assert(sizeof(struct vg_rm_dup) == 28 && sizeof(struct vg_rm_alloc_memory) == 56, "");
_Static_assert(sizeof(struct vg_rm_memory) == 80, "");
