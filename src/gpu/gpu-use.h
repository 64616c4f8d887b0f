#pragma once
/* What one attempt used of its cards, from samples. Pure.

   A card that several hold is divided among them between every two samples: each millijoule, and
   each byte over its bus, goes to exactly one of them, so that what they are told adds up to what
   the card's own counters say. What the card draws even when nothing runs is divided by what each
   was promised, the rest by what the processes of each did. */
#include "gpu/card.h"

#define VG_GPU_USE_CARDS 64

struct vg_gpu_use {
    uint64_t cards;      /* set of indices */
    uint64_t begin_usec; /* of the first sample; 0: none yet */
    uint64_t end_usec;   /* of the last */
    uint64_t samples;    /* that told a use */
    uint64_t sm_sum;     /* percent times microseconds, over all cards */
    uint64_t mem_sum;
    uint64_t busy_usec;   /* the time they stand for, over all cards */
    uint64_t unused_usec; /* of it: in which it did nothing at all */
    uint32_t sm_max, mem_max;
    uint64_t mem_peak_bytes; /* of one moment, over all cards */
    uint64_t energy_mj, pcie_rx_bytes, pcie_tx_bytes;
    bool energy_known, pcie_known;
    uint64_t used_usec; /* when a use above zero was last seen */
    struct {
        uint64_t at_usec;    /* of its last sample; VG_NONE64: none */
        uint64_t count_usec; /* of the last that told the counters ... */
        uint64_t energy_mj, pcie_rx_bytes, pcie_tx_bytes; /* ... which these are; VG_NONE64: none */
        uint32_t power_mw; /* its part, between the last two; VG_NONE: not known yet */
        uint64_t mem_bytes;
    } card[VG_GPU_USE_CARDS];
};

/* One of those that hold a card. */
struct vg_gpu_holder {
    struct vg_gpu_use *use; /* borrowed */
    uint32_t milli;         /* promised of it; 1000: the whole card */
    uint64_t sm; /* what its processes did since the counters were last told; in any measure, the
                    same for all */
    uint64_t mem_bytes; /* of its own; VG_NONE64: all that is used of the card is */
};

void vg_gpu_use_init(struct vg_gpu_use *u, uint64_t cards, uint64_t now_usec);
/* A sample of a card, to all that hold it. One that had no sample of it before begins with the
   first that tells the counters: the time before was the others'. Whoever leaves should have had
   such a sample just then. `idle_mw`: what the card draws when nothing runs, or VG_NONE. */
void vg_gpu_use_take(struct vg_gpu_holder *h, size_t n, const struct vg_card_sample *s,
                     uint32_t idle_mw);
/* What the card draws when nothing runs, by two samples that follow each other: the least that
   was seen. `idle_mw`: what was known before, or VG_NONE. */
uint32_t vg_gpu_idle_power(uint32_t idle_mw, const struct vg_card_sample *before,
                           const struct vg_card_sample *now);
/* Means over the time that was sampled; VG_NONE: no sample told it. */
uint32_t vg_gpu_use_sm_mean(const struct vg_gpu_use *u); /* thousandths of a percent */
uint32_t vg_gpu_use_mem_mean(const struct vg_gpu_use *u);
/* Between the last two samples that told the counters, over all cards; VG_NONE: not known yet. */
uint32_t vg_gpu_use_power(const struct vg_gpu_use *u);
