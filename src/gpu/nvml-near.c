/* How near the others are to a card, by NVIDIA's library: what is common to their PCIe paths (by
   the kernel's files where the library does not say), and the NVLinks between them. Links that end
   at no card end at a switch: they reach every card that is linked. Thread: nvml.c's. */
#include "gpu/near.h"
#include "gpu/nvml-int.h"

#include <dlfcn.h>
#include <string.h>
#include <strings.h>

#define LINKS_MAX 18u

typedef int pci_fn(vg_nvml_handle, struct pci_info *);
typedef int ancestor_fn(vg_nvml_handle, vg_nvml_handle, int *);
typedef int link_fn(vg_nvml_handle, unsigned, unsigned *);
typedef int remote_fn(vg_nvml_handle, unsigned, struct pci_info *);

static void *symbol(const struct vg_nvml_cards *c, const char *name, const char *older) {
    void *p = dlsym(c->lib, name);
    return p || !older ? p : dlsym(c->lib, older);
}

/* By address; equal ones are one device. */
struct address {
    unsigned domain, bus, device;
};

static struct address address_of(const struct pci_info *p) {
    return (struct address){p->domain, p->bus, p->device};
}

static bool same(struct address a, struct address b) {
    return a.domain == b.domain && a.bus == b.bus && a.device == b.device;
}

/* The library's levels are 0, 10, .. 50, in the order of ours. */
static enum vg_near_level ask_level(ancestor_fn *fn, vg_nvml_handle a, vg_nvml_handle b) {
    int level = -1;
    if (!fn || fn(a, b, &level) != NVML_OK || level < 0 || level > 50)
        return VG_NEAR_UNKNOWN;
    return (enum vg_near_level)(VG_NEAR_BOARD + level / 10);
}

/* Counts the links of one card by where they end; `direct` by card. */
static unsigned count_links(const struct vg_nvml_cards *c, uint32_t own, const struct address *at,
                            unsigned direct[static VG_CARDS_MAX]) {
    link_fn *state = (link_fn *)symbol(c, "nvmlDeviceGetNvLinkState", NULL);
    remote_fn *remote = (remote_fn *)symbol(c, "nvmlDeviceGetNvLinkRemotePciInfo_v2",
                                            "nvmlDeviceGetNvLinkRemotePciInfo");
    unsigned elsewhere = 0;
    for (unsigned l = 0; state && l < LINKS_MAX; l++) {
        unsigned active = 0, k = c->n;
        struct pci_info pci = {0};
        if (state(c->card[own], l, &active) != NVML_OK || active != 1)
            continue;
        if (remote && remote(c->card[own], l, &pci) == NVML_OK)
            for (k = 0; k < c->n && (k == own || !same(at[k], address_of(&pci)));)
                k++;
        if (k < c->n)
            direct[k]++;
        else
            elsewhere++;
    }
    return elsewhere;
}

void vg_nvml_near(const struct vg_nvml_cards *c, struct vg_card_facts *ret) {
    pci_fn *pci = (pci_fn *)symbol(c, "nvmlDeviceGetPciInfo_v3", NULL);
    ancestor_fn *ancestor = (ancestor_fn *)symbol(c, "nvmlDeviceGetTopologyCommonAncestor", NULL);
    struct address at[VG_CARDS_MAX] = {0};
    unsigned direct[VG_CARDS_MAX] = {0}, elsewhere = 0;
    struct pci_info info[VG_CARDS_MAX] = {0};
    for (unsigned k = 0; pci && k < c->n; k++)
        if (pci(c->card[k], &info[k]) == NVML_OK)
            at[k] = address_of(&info[k]);
    if (ret->linked)
        elsewhere = count_links(c, ret->index, at, direct);
    for (unsigned k = 0; k < c->n; k++) {
        if (k == ret->index)
            continue;
        enum vg_near_level level = ask_level(ancestor, c->card[ret->index], c->card[k]);
        info[k].bus_id[sizeof(info[k].bus_id) - 1] = 0;
        if (level == VG_NEAR_UNKNOWN)
            level = vg_near_by_path("", ret->bus, info[k].bus_id);
        unsigned links = 0;
        if (ret->linked >> k & 1) /* one at least, whatever else is told */
            links = VG_MAX(direct[k] ? direct[k] : elsewhere, 1u);
        ret->near[k] = (uint8_t)vg_near_make(links, level);
    }
}
