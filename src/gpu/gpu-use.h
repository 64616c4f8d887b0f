#pragma once
/* What one attempt used of its cards, from samples. Pure. Each card's part is its share: 1000 for a
   whole card; of a shared one, energy is counted by the part of its use that was the attempt's. */
#include "gpu/card.h"

#define VG_GPU_USE_CARDS 64

struct vg_gpu_use {
    uint64_t cards;      /* set of indices */
    uint64_t begin_usec; /* of the first sample; 0: none yet */
    uint64_t end_usec;   /* of the last */
    uint64_t samples;    /* that told a use */
    uint64_t sm_sum;     /* percent times microseconds, over all cards */
    uint64_t mem_sum;
    uint64_t busy_usec; /* the time they stand for, over all cards */
    uint32_t sm_max, mem_max;
    uint64_t mem_peak_bytes; /* of one moment, over all cards */
    uint64_t energy_mj;
    bool energy_known;
    uint64_t used_usec; /* when a use above zero was last seen */
    struct {
        uint64_t at_usec, energy_mj; /* of its last sample; VG_NONE64: none */
        uint64_t mem_bytes;
    } card[VG_GPU_USE_CARDS];
};

void vg_gpu_use_init(struct vg_gpu_use *u, uint64_t cards, uint64_t now_usec);
/* Samples of other cards are passed over. `part_milli`: how much of what the card used meanwhile
   was the attempt's own; 1000 when it has the card alone. */
void vg_gpu_use_take(struct vg_gpu_use *u, const struct vg_card_sample *s, uint32_t part_milli);
/* The part of one of several that hold a card, in thousandths: by what the processes of each did,
   else by what each was promised. Those of all of them add up to the whole card (less rounding),
   also when one holds less than a card alone: nobody else pays for what is left. */
uint32_t vg_gpu_use_part(uint64_t own_sm, uint64_t all_sm, uint64_t own_milli, uint64_t all_milli);
/* Means over the time that was sampled; VG_NONE: no sample told it. */
uint32_t vg_gpu_use_sm_mean(const struct vg_gpu_use *u); /* thousandths of a percent */
uint32_t vg_gpu_use_mem_mean(const struct vg_gpu_use *u);
