/* What the PCIe paths of two cards have in common; see the header. */
#include "gpu/near.h"

#include "base/cleanup.h"
#include "gpu/card.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#define DEPTH_MAX 32

/* The bridges on the way to a card, the host's first: …/pci0000:00/0000:00:01.0/0000:01:00.0. */
struct path {
    char *text; /* owned */
    const char *part[DEPTH_MAX];
    size_t n;
};

static bool read_path(const char *root, const char *bus, struct path *ret) {
    char at[VG_CARD_BUS], link[PATH_MAX];
    *ret = (struct path){0};
    if (vg_card_address(bus, at) < 0)
        return false;
    snprintf(link, sizeof(link), "%s/sys/bus/pci/devices/%s", root, at);
    ret->text = realpath(link, NULL);
    char *next = ret->text ? strstr(ret->text, "/pci") : NULL;
    if (!next)
        return false;
    next++;
    for (char *part; (part = strsep(&next, "/"));) {
        if (ret->n == DEPTH_MAX)
            return false;
        ret->part[ret->n++] = part;
    }
    return ret->n > 1;
}

static enum vg_near_level compare(const struct path *a, const struct path *b) {
    size_t same = 0;
    while (same < a->n && same < b->n && !strcmp(a->part[same], b->part[same]))
        same++;
    if (same == 0)
        return VG_NEAR_UNKNOWN; /* another host bridge: the NUMA nodes tell */
    if (same == 1)
        return VG_NEAR_HOST;
    /* Below the switch that both share there is a port of it and the card, or more switches. */
    return a->n - same <= 2 && b->n - same <= 2 ? VG_NEAR_SWITCH : VG_NEAR_SWITCHES;
}

enum vg_near_level vg_near_by_path(const char *root, const char *bus, const char *other) {
    struct path a, b = {0};
    enum vg_near_level level = VG_NEAR_UNKNOWN;
    if (read_path(root, bus, &a) && read_path(root, other, &b)) {
        int32_t x = vg_card_numa(root, bus), y = vg_card_numa(root, other);
        level = compare(&a, &b);
        if (level == VG_NEAR_UNKNOWN && x >= 0 && y >= 0)
            level = x == y ? VG_NEAR_NODE : VG_NEAR_SYSTEM;
    }
    free(a.text);
    free(b.text);
    return level;
}
