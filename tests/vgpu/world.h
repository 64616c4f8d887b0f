#pragma once
/* A node with a simulated card, the page of a task's share, and the task's processes, which load
 * the shim. Each test has its own, in a folder of its own. */
#include "fake/card.h"
#include "gpu/share-page.h"
#include "vgpu/abi.h"
#include "vgpu/cuda-types.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <unistd.h>

#define MIB (1ull << 20)
#define GIB (1ull << 30)

struct world {
    struct card *card;
    struct vg_share_page *page; /* NULL: there is none; tasks' processes may write it, too */
};

struct world_conf {
    uint64_t limit;
    bool sharing;
    const char *real_cuda; /* NULL: the fake driver */
    bool no_page;
};

struct world world_new(const struct world_conf *conf);

/* Runs `tenant` in a process of its own, and says how it ended: its exit status, or 1000 and the
 * signal. What it says on standard error is in the file `said`. */
int world_run(int (*tenant)(void *user), void *user);
char *world_said(void); /* until the next call */

/* A library: the shim's as it is tested and as it is shipped, or the fake's own. Functions are
 * found by name. */
void *shim_cuda(void);
void *shim_nvml(void);
void *shipped_cuda(void);
void *fake_cuda(void);
void *function(void *library, const char *name);
#define CALL(library, name, ...) (((int (*)())function((library), #name))(__VA_ARGS__))

/* cuInit, and a context on device 0: the first error, or CUDA_OK. */
int begin(void *cuda);

/* Fails the tenant with a line that says where. */
#define MUST(condition)                                                        \
    do {                                                                       \
        if (!(condition)) {                                                    \
            dprintf(2, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
            return 1;                                                          \
        }                                                                      \
    } while (0)
