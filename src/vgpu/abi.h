#pragma once
/* What the libraries of a shared GPU are shown: one small file, the page. The warden's side writes
 * it (gpu/share-page.h) and the libraries map it read-only; nothing goes the other way. A change of
 * anything here is a new VG_VGPU_ABI.
 *
 * Nothing here is a limit: that is held below the library, by the warden. The page lets a program
 * see its share where it would see the card.
 *
 * 1. Everything but the atomic fields is as it was before `magic` was there, which is written last.
 * 2. A number is read whole: it is one atomic word.
 * 3. The table of processes is read whole: `sequence` is odd while it is written, and another
 *    number afterwards. A reader that saw it odd, or changed, reads again. Stores into the table
 *    release and loads from it acquire, so whoever saw a new entry sees a new sequence, too. */
#include <stdatomic.h>
#include <stdint.h>

#define VG_VGPU_ABI 1u
#define VG_VGPU_MAGIC 0x4547415055504756ull /* "VGPUPAGE" */

/* Inside the task. */
#define VG_VGPU_FOLDER "/run/virga/vgpu"
#define VG_VGPU_FILE "page"

#define VG_VGPU_DEVICES 16u
#define VG_VGPU_PROCESSES 256u
#define VG_VGPU_PATH_MAX 256u   /* with its NUL */
#define VG_VGPU_VERSION_MAX 32u /* likewise */

/* Bits of vg_vgpu_page.flags.
 * SHARING: memory may be handed to other processes, and taken from them. */
#define VG_VGPU_SHARING 1u

struct vg_vgpu_device {
    uint8_t uuid[16];
    _Atomic uint64_t limit_bytes;
    _Atomic uint64_t used_bytes;   /* by all of the task's processes */
    _Atomic uint32_t weight_milli; /* of the card's time */
    uint32_t unused;
};

struct vg_vgpu_process {
    _Atomic uint32_t pid; /* as the task numbers it */
    uint32_t unused;
    _Atomic uint64_t used_bytes; /* of the first device */
};

struct vg_vgpu_page {
    _Atomic uint64_t magic;
    uint32_t abi;
    uint32_t bytes; /* of this structure, which is the file's size, too */
    uint32_t flags;
    uint32_t devices; /* how many of device[] are meant */
    char driver[VG_VGPU_VERSION_MAX];
    char real_cuda[VG_VGPU_PATH_MAX]; /* where the node's own libraries are, inside the task */
    char real_nvml[VG_VGPU_PATH_MAX];
    struct vg_vgpu_device device[VG_VGPU_DEVICES];
    _Atomic uint32_t sequence;
    _Atomic uint32_t processes; /* how many of process[] are meant */
    struct vg_vgpu_process process[VG_VGPU_PROCESSES];
};

_Static_assert(sizeof(struct vg_vgpu_device) == 40 && sizeof(struct vg_vgpu_process) == 16 &&
                   sizeof(struct vg_vgpu_page) == 24 + VG_VGPU_VERSION_MAX + 2 * VG_VGPU_PATH_MAX +
                                                      40 * VG_VGPU_DEVICES + 8 +
                                                      16 * VG_VGPU_PROCESSES,
               "laid out alike by every compiler");
_Static_assert(ATOMIC_LLONG_LOCK_FREE == 2 && ATOMIC_INT_LOCK_FREE == 2,
               "readable without a lock, and without writing");
