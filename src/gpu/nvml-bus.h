#pragma once
/* Bytes over a card's PCIe bus, by NVIDIA's library (its GPM part; Hopper and later). The counter
   fields of the library have 32 bits, which a card fills in a tenth of a second: they cannot be
   used. GPM tells the mean rate between two of its samples; what it says is added up here. It
   includes the packets' heads, some 7 %. */
#include "gpu/card.h"

struct vg_nvml_bus {
    int (*support)(void *card, void *ret);
    int (*alloc)(void **sample);
    int (*drop)(void *sample);
    int (*take)(void *card, void *sample);
    int (*metrics)(void *get);
    struct vg_bus_card {
        void *sample[2]; /* owned; NULL: none yet */
        bool none;       /* the card has no such thing */
        unsigned newest; /* of the two */
        uint64_t at_usec;
        uint64_t rx_bytes, tx_bytes;
    } card[VG_CARDS_MAX];
};

/* Finds the functions; where one is missing, every card has none. */
void vg_nvml_bus_open(struct vg_nvml_bus *b, void *lib);
void vg_nvml_bus_close(struct vg_nvml_bus *b);
/* Counters that begin at 0 with the first call. False: the card does not tell. */
bool vg_nvml_bus_read(struct vg_nvml_bus *b, uint32_t i, void *card, uint64_t now_usec,
                      uint64_t *ret_rx, uint64_t *ret_tx);
