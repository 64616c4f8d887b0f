#pragma once
/* The library's side of the page (abi.h): finding it, and reading what it says. */
#include "abi.h"

#include <stddef.h>

struct vg_why {
    char text[512]; /* one sentence: the cause and what can be done */
};

/* Maps the page, until the process ends. On failure a negative errno, and the sentence. What is
 * there is checked: it may be another version's, or anything. */
int vg_page_open(const struct vg_vgpu_page **ret, struct vg_why *why);

/* The place of a device in the page; -1: it was not given to this task. */
int vg_page_find(const struct vg_vgpu_page *page, const uint8_t uuid[16]);

/* What a program is told of a device's memory. */
struct vg_memory {
    uint64_t total, used, free; /* used is at most total: a limit may be lowered under it */
};
struct vg_memory vg_page_memory(const struct vg_vgpu_page *page, unsigned device,
                                uint64_t real_free);

struct vg_process {
    unsigned pid;
    uint64_t used_bytes;
};
/* The task's processes, as they were at one moment: how many. -EAGAIN: the table is being written
 * and does not come to rest, as when its writer was killed. */
int vg_page_processes(const struct vg_vgpu_page *page, struct vg_process ret[VG_VGPU_PROCESSES]);
