#pragma once
/* What the readers of NVIDIA's library share: its binary interface, written down by us. */
#include "gpu/card.h"

typedef void *vg_nvml_handle;

enum { NVML_OK = 0, NVML_TOO_SMALL = 7, NVML_LOST = 15 };

struct pci_info {
    char legacy[16];
    unsigned domain, bus, device, id, subsystem;
    char bus_id[32];
};

/* The library, and the cards in the order in which it counts them. */
struct vg_nvml_cards {
    void *lib;
    const vg_nvml_handle *card;
    unsigned n;
};

/* nvml-near.c: fills `near` of card ret->index; its other facts are known. */
void vg_nvml_near(const struct vg_nvml_cards *c, struct vg_card_facts *ret);
