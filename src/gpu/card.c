/* What all cards have in common; see the header. */
#include "gpu/card.h"

#include "base/cleanup.h"
#include "base/util.h"

#include <ctype.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

const char *vg_card_vendor_name(enum vg_card_vendor v) {
    static const char *const names[] = {"nvidia", "amd", "simulated"};
    return v <= VG_CARD_FAKE ? names[v] : "?";
}

void vg_card_sample_init(struct vg_card_sample *s, uint32_t index) {
    *s = (struct vg_card_sample){.index = index,
                                 .at_usec = vg_now_usec(),
                                 .sm_percent = VG_NONE,
                                 .mem_percent = VG_NONE,
                                 .mem_used_bytes = VG_NONE64,
                                 .energy_mj = VG_NONE64,
                                 .pcie_rx_bytes = VG_NONE64,
                                 .pcie_tx_bytes = VG_NONE64,
                                 .power_mw = VG_NONE,
                                 .temp_c = VG_NONE,
                                 .sm_mhz = VG_NONE,
                                 .mem_mhz = VG_NONE,
                                 .ecc_corrected = VG_NONE64,
                                 .ecc_uncorrected = VG_NONE64};
}

int vg_card_address(const char *bus, char ret[static VG_CARD_BUS]) {
    size_t len = strlen(bus);
    if (len < 12 || strchr(bus, '/'))
        return -EINVAL;
    for (size_t i = 0; i <= 12; i++)
        ret[i] = (char)tolower((unsigned char)bus[len - 12 + i]);
    return 0;
}

int32_t vg_card_numa(const char *root, const char *bus) {
    char path[PATH_MAX], at[VG_CARD_BUS];
    vg_auto_free char *text = NULL;
    size_t len;
    if (vg_card_address(bus, at) < 0)
        return -1;
    snprintf(path, sizeof(path), "%s/sys/bus/pci/devices/%s/numa_node", root, at);
    if (vg_read_file(path, 64, &text, &len) < 0)
        return -1;
    text[strcspn(text, "\n")] = 0;
    uint64_t v;
    return vg_parse_u64(text, &v) == 0 && v < 4096 ? (int32_t)v : -1;
}

void vg_card_fake_uuid(uint32_t index, char *ret, size_t n) {
    snprintf(ret, n, "GPU-73696d75-6c61-7465-6400-%012x", index);
}
