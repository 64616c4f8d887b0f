/* Adding up what an attempt used; see the header. */
#include "gpu/gpu-use.h"

#include "base/cleanup.h"
#include "base/util.h"

#define POWER_USEC (VG_USEC / 2) /* shorter, and the counter's own steps would show */

void vg_gpu_use_init(struct vg_gpu_use *u, uint64_t cards, uint64_t now_usec) {
    *u = (struct vg_gpu_use){.cards = cards, .used_usec = now_usec};
    for (size_t i = 0; i < VG_GPU_USE_CARDS; i++) {
        u->card[i].at_usec = u->card[i].energy_mj = u->card[i].pcie_rx_bytes =
            u->card[i].pcie_tx_bytes = VG_NONE64;
        u->card[i].power_mw = VG_NONE;
    }
}

/* ------------------------------------------------------------------ one of several */

/* Where one lies among those that divide something: behind `before` of `all`. */
struct part {
    uint64_t before, own, all;
};

/* Rounded where it begins and where it ends, so that the parts that follow each other leave
   nothing out and take nothing twice. */
static uint64_t part_of(uint64_t v, const struct part *p) {
    if (!p->all)
        return 0;
    unsigned __int128 end = (unsigned __int128)v * (p->before + p->own) / p->all;
    return (uint64_t)(end - (unsigned __int128)v * p->before / p->all);
}

static void part_next(struct part *p, uint64_t own) {
    p->before += p->own;
    p->own = own;
}

/* The use that a sample tells is that of the time before it. */
static void take_use(struct vg_gpu_use *u, const struct vg_card_sample *s, uint64_t usec,
                     const struct part *part) {
    if (s->sm_percent == VG_NONE)
        return;
    uint64_t mem_percent = s->mem_percent == VG_NONE ? 0 : s->mem_percent;
    uint32_t sm = (uint32_t)part_of(s->sm_percent, part);
    uint32_t mem = (uint32_t)part_of(mem_percent, part);
    u->samples++;
    u->sm_sum += part_of(s->sm_percent * usec, part);
    u->mem_sum += part_of(mem_percent * usec, part);
    u->busy_usec += usec;
    u->unused_usec += sm ? 0 : usec;
    u->sm_max = VG_MAX(u->sm_max, sm);
    u->mem_max = VG_MAX(u->mem_max, mem);
    if (part->own && s->sm_percent && s->at_usec > u->used_usec)
        u->used_usec = s->at_usec;
}

/* How much more a counter says than it did; false: nothing can be said. One that begins anew, as
   when a driver is loaded again, is no gift. */
static bool advance(uint64_t *last, uint64_t now, uint64_t *ret) {
    if (now == VG_NONE64)
        return false;
    bool known = *last != VG_NONE64;
    *ret = known && now > *last ? now - *last : 0;
    *last = now;
    return known;
}

static void take_energy(struct vg_gpu_use *u, const struct vg_card_sample *s, uint32_t idle_mw,
                        const struct part *use, const struct part *promise) {
    uint64_t mj, usec = s->at_usec - u->card[s->index].count_usec;
    if (!advance(&u->card[s->index].energy_mj, s->energy_mj, &mj))
        return;
    u->energy_known = true;
    uint64_t idle_mj = idle_mw == VG_NONE ? 0 : VG_MIN(usec * idle_mw / VG_USEC, mj);
    uint64_t own_mj = part_of(idle_mj, promise) + part_of(mj - idle_mj, use);
    u->energy_mj += own_mj;
    if (usec >= POWER_USEC && own_mj < UINT32_MAX)
        u->card[s->index].power_mw = (uint32_t)VG_MIN(own_mj * VG_USEC / usec, VG_NONE - 1ULL);
}

static void take_bus(struct vg_gpu_use *u, const struct vg_card_sample *s, const struct part *use) {
    uint64_t rx, tx;
    bool known = advance(&u->card[s->index].pcie_rx_bytes, s->pcie_rx_bytes, &rx);
    known = advance(&u->card[s->index].pcie_tx_bytes, s->pcie_tx_bytes, &tx) && known;
    if (!known)
        return;
    u->pcie_known = true;
    u->pcie_rx_bytes += part_of(rx, use);
    u->pcie_tx_bytes += part_of(tx, use);
}

static void take_memory(struct vg_gpu_use *u, uint32_t card, uint64_t bytes) {
    uint64_t sum = 0;
    if (bytes == VG_NONE64)
        return;
    u->card[card].mem_bytes = bytes;
    for (size_t i = 0; i < VG_GPU_USE_CARDS; i++)
        sum += u->card[i].mem_bytes;
    u->mem_peak_bytes = VG_MAX(u->mem_peak_bytes, sum);
}

/* ------------------------------------------------------------------ all of them */

/* Whether the card is one of its own, and the sample is new to it. */
static bool takes(const struct vg_gpu_holder *h, const struct vg_card_sample *s) {
    uint64_t last = h->use->card[s->index].at_usec;
    return (h->use->cards >> s->index & 1) && (last == VG_NONE64 || last < s->at_usec);
}

/* Whether the time before the sample was its own, too. */
static bool held_before(const struct vg_gpu_holder *h, const struct vg_card_sample *s) {
    return h->use->card[s->index].at_usec != VG_NONE64;
}

/* The counter that others hold a value of is not told this time: who begins now would not be known
   to have begun behind it. */
static bool has_gap(const struct vg_gpu_holder *h, const struct vg_card_sample *s) {
    return s->energy_mj == VG_NONE64 && h->use->card[s->index].energy_mj != VG_NONE64;
}

static void begin(struct vg_gpu_use *u, const struct vg_card_sample *s) {
    u->card[s->index].count_usec = s->at_usec;
    u->card[s->index].energy_mj = s->energy_mj;
    u->card[s->index].pcie_rx_bytes = s->pcie_rx_bytes;
    u->card[s->index].pcie_tx_bytes = s->pcie_tx_bytes;
    if (!u->begin_usec)
        u->begin_usec = s->at_usec;
}

/* `use`: its part by what was done, or by what was promised where nobody did anything, or nobody
   tells. */
static void go_on(struct vg_gpu_use *u, const struct vg_card_sample *s, uint32_t idle_mw,
                  const struct part *use, const struct part *promise) {
    take_use(u, s, s->at_usec - u->card[s->index].at_usec, use);
    take_energy(u, s, idle_mw, use, promise);
    take_bus(u, s, use);
    if (s->energy_mj != VG_NONE64)
        u->card[s->index].count_usec = s->at_usec;
}

void vg_gpu_use_take(struct vg_gpu_holder *h, size_t n, const struct vg_card_sample *s,
                     uint32_t idle_mw) {
    struct part use = {0}, promise = {0};
    bool gap = !s->counted;
    if (s->index >= VG_GPU_USE_CARDS)
        return;
    for (size_t i = 0; i < n; i++)
        if (takes(&h[i], s) && held_before(&h[i], s)) {
            use.all += h[i].sm;
            promise.all += h[i].milli;
            gap |= has_gap(&h[i], s);
        }
    for (size_t i = 0; i < n; i++) {
        struct vg_gpu_use *u = h[i].use;
        if (!takes(&h[i], s) || (gap && !held_before(&h[i], s)))
            continue;
        if (held_before(&h[i], s)) {
            part_next(&use, h[i].sm);
            part_next(&promise, h[i].milli);
            go_on(u, s, idle_mw, use.all ? &use : &promise, &promise);
        } else {
            begin(u, s);
        }
        u->card[s->index].at_usec = u->end_usec = s->at_usec;
        take_memory(u, s->index, h[i].mem_bytes == VG_NONE64 ? s->mem_used_bytes : h[i].mem_bytes);
    }
}

uint32_t vg_gpu_idle_power(uint32_t idle_mw, const struct vg_card_sample *before,
                           const struct vg_card_sample *now) {
    bool idle = before->sm_percent == 0 && now->sm_percent == 0 && now->power_mw != VG_NONE;
    return idle ? VG_MIN(now->power_mw, idle_mw) : idle_mw;
}

/* ------------------------------------------------------------------ means */

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

uint32_t vg_gpu_use_power(const struct vg_gpu_use *u) {
    uint64_t sum = 0;
    bool known = false;
    for (size_t i = 0; i < VG_GPU_USE_CARDS; i++)
        if (u->card[i].power_mw != VG_NONE) {
            known = true;
            sum += u->card[i].power_mw;
        }
    return known ? (uint32_t)VG_MIN(sum, VG_NONE - 1ULL) : VG_NONE;
}
