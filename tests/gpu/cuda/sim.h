#pragma once
/* A libcuda for simulated cards: what a program's calls make of calls to the driver is what
   NVIDIA's makes of them, as far as memory and time are concerned. Memory comes in blocks of 2 MiB
   that small requests share, pools and graphs keep what was freed, a handle's memory lives while it
   is mapped. No kernel runs and no memory can be read. A name that is not implemented ends the
   program. Thread-safe by one lock. */
#include "../../vgpu/fake/strict.h"
#include "driver.h"
#include "vgpu/cuda-types.h"

#include <pthread.h>
#include <stdbool.h>

#define SIM_BLOCK (UINT64_C(2) << 20)
#define SIM_CONTEXT_BYTES (UINT64_C(64) << 20) /* 518 on an H200 */
#define SIM_STACKS (132 * 2048u)               /* threads that each have one */

enum {
    CUDA_NO_DEVICE = 100,
    CUDA_INVALID_DEVICE = 101,
    CUDA_INVALID_CONTEXT = 201,
    CUDA_INVALID_HANDLE = 400,
};

struct sim_context {
    int card, refs;
    uint32_t memory, group, stack;
    uint64_t stack_bytes;
};

/* Memory of a card that has a name: a block, or what backs something. */
struct sim_block {
    uint32_t object; /* 0: none */
    int card;
    uint64_t bytes, at; /* at: where it is seen; 0: nowhere */
    uint32_t parts;     /* small requests in it, handles and mappings of it, or 1 */
    bool small;         /* small requests share it … */
    uint64_t filled;    /* … and have so much of it */
    void *pool;         /* that keeps it */
    bool idle;          /* freed, and kept by its pool */
};

extern struct sim sim;
extern bool sim_started;
extern _Thread_local struct sim_context *sim_current;

int sim_error(int status); /* CUDA's, for the driver's */
struct sim_block *sim_take(int card, uint64_t bytes, int *ret_error);
void sim_give(struct sim_block *b); /* one part less; the last frees it */
struct sim_block *sim_block_at(uint64_t at);
uint64_t sim_addresses(uint64_t bytes);
/* From what the pool keeps, or new. */
struct sim_block *sim_take_from(void *pool, int card, uint64_t bytes, int *ret_error);
void sim_keep(struct sim_block *b); /* for its pool; it is used no more */
void sim_trim(const void *pool);    /* frees what it keeps */

/* Held until the function returns. */
int sim_lock(void);
void sim_unlock(int *unused);
#define LOCKED __attribute__((cleanup(sim_unlock), unused)) int sim_locked_ = sim_lock()
#define NEEDS_CONTEXT                    \
    LOCKED;                              \
    do {                                 \
        if (!sim_started)                \
            return CUDA_NOT_INITIALIZED; \
        if (!sim_current)                \
            return CUDA_INVALID_CONTEXT; \
    } while (0)
