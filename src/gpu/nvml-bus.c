/* Bytes over a card's bus; see the header. One thread. */
#include "gpu/nvml-bus.h"

#include "base/util.h"

#include <dlfcn.h>
#include <stddef.h>
#include <string.h>

enum { NVML_OK = 0 };
enum { GPM_VERSION = 1, GPM_TX = 20, GPM_RX = 21 };
#define GPM_METRICS 512           /* more than any version of the library has */
#define MIB 1048576.0             /* rates are in MiB/s ... */
#define RATE_MAX (1 << 20)        /* ... and no bus has so much of them */
#define SPAN_USEC (120 * VG_USEC) /* not told for longer than this: unknown */

struct gpm_support {
    unsigned version, supported;
};
struct gpm_metric {
    unsigned id;
    int result;
    double value;
    char *name[3];
};
struct gpm_get {
    unsigned version, n;
    void *from, *to;
    struct gpm_metric metric[GPM_METRICS];
};

void vg_nvml_bus_open(struct vg_nvml_bus *b, void *lib) {
    static const struct {
        size_t at;
        const char *name;
    } symbols[] = {{offsetof(struct vg_nvml_bus, support), "nvmlGpmQueryDeviceSupport"},
                   {offsetof(struct vg_nvml_bus, alloc), "nvmlGpmSampleAlloc"},
                   {offsetof(struct vg_nvml_bus, drop), "nvmlGpmSampleFree"},
                   {offsetof(struct vg_nvml_bus, take), "nvmlGpmSampleGet"},
                   {offsetof(struct vg_nvml_bus, metrics), "nvmlGpmMetricsGet"}};
    *b = (struct vg_nvml_bus){0};
    for (size_t i = 0; i < sizeof(symbols) / sizeof(symbols[0]); i++) {
        void *p = dlsym(lib, symbols[i].name);
        memcpy((char *)b + symbols[i].at, &p, sizeof(p));
    }
}

void vg_nvml_bus_close(struct vg_nvml_bus *b) {
    for (size_t i = 0; i < VG_CARDS_MAX; i++)
        for (size_t k = 0; k < 2; k++)
            if (b->card[i].sample[k] && b->drop)
                b->drop(b->card[i].sample[k]);
    *b = (struct vg_nvml_bus){0};
}

/* The card's first sample. */
static bool begin(struct vg_nvml_bus *b, struct vg_bus_card *c, void *card) {
    struct gpm_support s = {.version = 1};
    return b->support && b->alloc && b->drop && b->take && b->metrics &&
           b->support(card, &s) == NVML_OK && s.supported && b->alloc(&c->sample[0]) == NVML_OK &&
           b->alloc(&c->sample[1]) == NVML_OK && b->take(card, c->sample[0]) == NVML_OK;
}

/* -1: not told, or nonsense. */
static double rate_of(const struct gpm_metric *m) {
    return m->result == NVML_OK && m->value >= 0 && m->value < RATE_MAX ? m->value : -1;
}

/* What went over the bus since the last sample. When it cannot be told that one stays, and what
   follows it is told with the next. */
static void advance(struct vg_nvml_bus *b, struct vg_bus_card *c, void *card, uint64_t now_usec) {
    static struct gpm_get get; /* large */
    unsigned next = !c->newest;
    uint64_t usec = now_usec - c->at_usec;
    if (b->take(card, c->sample[next]) != NVML_OK)
        return;
    get.version = GPM_VERSION;
    get.n = 2;
    get.from = c->sample[c->newest];
    get.to = c->sample[next];
    get.metric[0] = (struct gpm_metric){.id = GPM_RX};
    get.metric[1] = (struct gpm_metric){.id = GPM_TX};
    if (b->metrics(&get) != NVML_OK || rate_of(&get.metric[0]) < 0 || rate_of(&get.metric[1]) < 0)
        return;
    double mib = MIB * (double)usec / (double)VG_USEC;
    c->rx_bytes += (uint64_t)(rate_of(&get.metric[0]) * mib);
    c->tx_bytes += (uint64_t)(rate_of(&get.metric[1]) * mib);
    c->newest = next;
    c->at_usec = now_usec;
}

bool vg_nvml_bus_read(struct vg_nvml_bus *b, uint32_t i, void *card, uint64_t now_usec,
                      uint64_t *ret_rx, uint64_t *ret_tx) {
    struct vg_bus_card *c = &b->card[i];
    if (c->none)
        return false;
    if (!c->at_usec) {
        c->none = !begin(b, c, card);
        c->at_usec = now_usec;
    } else if (now_usec > c->at_usec) {
        advance(b, c, card, now_usec);
    }
    *ret_rx = c->rx_bytes;
    *ret_tx = c->tx_bytes;
    return !c->none && now_usec - c->at_usec < SPAN_USEC;
}
