#pragma once
/* Writes the page of a task that has a share of a GPU (vgpu/abi.h): what the library in front of
 * the driver's tells the task's programs. One thread at a time. Nothing is read back from the page,
 * so what somebody else might write there makes no difference here. */
#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define VG_SHARE_DEVICES_MAX 16u
#define VG_SHARE_PROCESSES_MAX 256u

struct vg_share_page;

struct vg_share_device {
    uint8_t uuid[16];
    uint64_t limit_bytes;
    uint32_t weight_milli; /* of the card's time; at most 1000 */
};

struct vg_share_conf {
    const struct vg_share_device *device;
    size_t devices;     /* 1 to VG_SHARE_DEVICES_MAX */
    bool sharing;       /* may memory be handed to other processes, and taken from them? */
    const char *driver; /* its version: "580.159.04" */
    const char *real_cuda, *real_nvml; /* the node's own libraries: absolute, inside the task */
};

struct vg_share_process {
    uint32_t pid;        /* as the task numbers it */
    uint64_t used_bytes; /* of the first device */
};

/* Makes the file in a folder that has none yet; anybody may read it and nobody write. Who gives it
 * to a task mounts the folder read-only, as the task may have this user's rights. On failure there
 * is no file. */
int vg_share_page_open(int folder, const struct vg_share_conf *conf, struct vg_share_page **ret,
                       struct vg_err *err);
/* Takes NULL. The file stays, with what it says. */
void vg_share_page_close(struct vg_share_page *page);

/* `device` is its place in the configuration. */
void vg_share_page_limit(struct vg_share_page *page, size_t device, uint64_t limit_bytes);
void vg_share_page_used(struct vg_share_page *page, size_t device, uint64_t used_bytes);
void vg_share_page_weight(struct vg_share_page *page, size_t device, uint32_t weight_milli);
/* The whole table anew. Of more than VG_SHARE_PROCESSES_MAX the first are shown: how many are. */
size_t vg_share_page_processes(struct vg_share_page *page, const struct vg_share_process *process,
                               size_t n);
