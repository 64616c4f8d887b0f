/* Adding up what an attempt used; see the header. */
#include "gpu/gpu-use.h"

#include "base/cleanup.h"

void vg_gpu_use_init(struct vg_gpu_use *u, uint64_t cards, uint64_t now_usec) {
    *u = (struct vg_gpu_use){.cards = cards, .used_usec = now_usec};
    for (size_t i = 0; i < VG_GPU_USE_CARDS; i++)
        u->card[i].at_usec = u->card[i].energy_mj = VG_NONE64;
}

static uint64_t part_of(uint64_t v, uint32_t milli) {
    return v / 1000 * milli + v % 1000 * milli / 1000;
}

/* The use that a sample tells is that of the time before it. */
static void take_use(struct vg_gpu_use *u, const struct vg_card_sample *s, uint64_t usec,
                     uint32_t part) {
    if (s->sm_percent == VG_NONE)
        return;
    uint32_t sm = (uint32_t)part_of(s->sm_percent, part);
    uint32_t mem = s->mem_percent == VG_NONE ? 0 : (uint32_t)part_of(s->mem_percent, part);
    u->samples++;
    u->sm_sum += sm * usec;
    u->mem_sum += mem * usec;
    u->busy_usec += usec;
    u->sm_max = VG_MAX(u->sm_max, sm);
    u->mem_max = VG_MAX(u->mem_max, mem);
    if (sm > 0 && s->at_usec > u->used_usec)
        u->used_usec = s->at_usec;
}

static void take_energy(struct vg_gpu_use *u, const struct vg_card_sample *s, uint32_t part) {
    uint64_t *last = &u->card[s->index].energy_mj;
    if (s->energy_mj == VG_NONE64)
        return;
    if (*last != VG_NONE64) {
        u->energy_known = true;
        if (s->energy_mj > *last) /* a driver that was loaded anew counts from 0 */
            u->energy_mj += part_of(s->energy_mj - *last, part);
    }
    *last = s->energy_mj;
}

static void take_memory(struct vg_gpu_use *u, const struct vg_card_sample *s) {
    uint64_t sum = 0;
    if (s->mem_used_bytes == VG_NONE64)
        return;
    u->card[s->index].mem_bytes = s->mem_used_bytes;
    for (size_t i = 0; i < VG_GPU_USE_CARDS; i++)
        sum += u->card[i].mem_bytes;
    u->mem_peak_bytes = VG_MAX(u->mem_peak_bytes, sum);
}

void vg_gpu_use_take(struct vg_gpu_use *u, const struct vg_card_sample *s, uint32_t part_milli) {
    if (s->index >= VG_GPU_USE_CARDS || !(u->cards >> s->index & 1))
        return;
    uint64_t *last = &u->card[s->index].at_usec;
    if (*last != VG_NONE64 && s->at_usec <= *last)
        return; /* told twice */
    if (*last != VG_NONE64)
        take_use(u, s, s->at_usec - *last, part_milli);
    if (!u->begin_usec)
        u->begin_usec = s->at_usec;
    *last = u->end_usec = s->at_usec;
    take_energy(u, s, part_milli);
    take_memory(u, s);
}

uint32_t vg_gpu_use_part(uint64_t own_sm, uint64_t all_sm, uint64_t own_milli, uint64_t all_milli) {
    if (all_sm)
        return (uint32_t)(VG_MIN(own_sm, all_sm) * 1000 / all_sm);
    return all_milli ? (uint32_t)(VG_MIN(own_milli, all_milli) * 1000 / all_milli) : 1000;
}

static uint32_t mean(const struct vg_gpu_use *u, uint64_t sum) {
    if (!u->busy_usec)
        return VG_NONE;
    return (uint32_t)(sum < UINT64_MAX / 1000 ? sum * 1000 / u->busy_usec
                                              : sum / (u->busy_usec / 1000));
}

uint32_t vg_gpu_use_sm_mean(const struct vg_gpu_use *u) {
    return mean(u, u->sm_sum);
}

uint32_t vg_gpu_use_mem_mean(const struct vg_gpu_use *u) {
    return mean(u, u->mem_sum);
}
