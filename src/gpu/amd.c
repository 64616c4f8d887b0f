/* AMD's cards by the kernel's own files: /sys/class/drm/renderD*. UNTESTED on a real card: written
   from the driver's documentation, and tried on folders that look like it. */
#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"
#include "gpu/card.h"

#include <glob.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CARDS_MAX 64
#define VENDOR "0x1002"

struct amd {
    uint32_t n;
    char dir[CARDS_MAX][256]; /* …/renderDN/device */
    int32_t minor[CARDS_MAX];
    const char *root; /* borrowed */
};

/* The first line of dir/name (a pattern may lead there); false: there is none. */
static bool read_text(const char *dir, const char *name, char *out, size_t n) {
    char pattern[PATH_MAX];
    vg_auto_free char *text = NULL;
    size_t len;
    glob_t g = {0};
    snprintf(pattern, sizeof(pattern), "%s/%s", dir, name);
    bool ok = glob(pattern, 0, NULL, &g) == 0 && g.gl_pathc > 0 &&
              vg_read_file(g.gl_pathv[0], 4096, &text, &len) >= 0;
    globfree(&g);
    if (ok) {
        text[strcspn(text, "\n")] = 0;
        snprintf(out, n, "%s", text);
    }
    return ok;
}

static uint64_t read_number(const char *dir, const char *name) {
    char text[64];
    uint64_t v;
    return read_text(dir, name, text, sizeof(text)) && vg_parse_u64(text, &v) == 0 ? v : VG_NONE64;
}

static uint32_t scaled(uint64_t v, uint64_t by) {
    return v == VG_NONE64 || v / by >= VG_NONE ? VG_NONE : (uint32_t)(v / by);
}

static void read_bus(const char *dir, char *out, size_t n) {
    char link[PATH_MAX], *slash;
    vg_auto_free char *real = NULL;
    snprintf(link, sizeof(link), "%s", dir);
    real = realpath(link, NULL);
    slash = real ? strrchr(real, '/') : NULL;
    snprintf(out, n, "%s", slash && strchr(slash, ':') ? slash + 1 : "");
}

static int facts(void *state, uint32_t i, struct vg_card_facts *ret) {
    const struct amd *a = state;
    *ret = (struct vg_card_facts){.vendor = VG_CARD_AMD,
                                  .index = i,
                                  .minor = a->minor[i],
                                  .power_limit_mw = VG_NONE,
                                  .pcie_gen = VG_NONE,
                                  .pcie_width = VG_NONE};
    if (!read_text(a->dir[i], "product_name", ret->name, sizeof(ret->name)) || !ret->name[0])
        snprintf(ret->name, sizeof(ret->name), "AMD GPU");
    read_text(a->dir[i], "unique_id", ret->uuid, sizeof(ret->uuid));
    read_bus(a->dir[i], ret->bus, sizeof(ret->bus));
    ret->numa = vg_card_numa(a->root, ret->bus);
    ret->mem_bytes = read_number(a->dir[i], "mem_info_vram_total");
    ret->power_limit_mw = scaled(read_number(a->dir[i], "hwmon/hwmon*/power1_cap"), 1000);
    return 0;
}

static int sample(void *state, uint32_t i, unsigned ask, struct vg_card_sample *ret) {
    const struct amd *a = state;
    vg_card_sample_init(ret, i);
    uint64_t busy = read_number(a->dir[i], "gpu_busy_percent");
    uint64_t mem = read_number(a->dir[i], "mem_busy_percent");
    ret->sm_percent = busy <= 100 ? (uint32_t)busy : VG_NONE;
    ret->mem_percent = mem <= 100 ? (uint32_t)mem : VG_NONE;
    ret->mem_used_bytes = read_number(a->dir[i], "mem_info_vram_used");
    ret->power_mw = scaled(read_number(a->dir[i], "hwmon/hwmon*/power1_average"), 1000);
    ret->full = ask & VG_ASK_SLOW;
    ret->counted = ask & VG_ASK_COUNTERS;
    if (ret->full) {
        ret->temp_c = scaled(read_number(a->dir[i], "hwmon/hwmon*/temp1_input"), 1000);
        ret->sm_mhz = scaled(read_number(a->dir[i], "hwmon/hwmon*/freq1_input"), 1000000);
        ret->mem_mhz = scaled(read_number(a->dir[i], "hwmon/hwmon*/freq2_input"), 1000000);
    }
    return 0;
}

static int no_event(void *state, struct vg_card_event *ret) {
    (void)state, (void)ret;
    return 0;
}

int vg_amd_open(const char *root, struct vg_card_source *ret, struct vg_err *err) {
    struct amd *a = vg_alloc(sizeof(*a));
    char pattern[PATH_MAX], vendor[16];
    glob_t g = {0};
    if (!a)
        return vg_err_sys(err, -ENOMEM, "cannot watch the GPUs");
    a->root = root;
    snprintf(pattern, sizeof(pattern), "%s/sys/class/drm/renderD*", root);
    if (glob(pattern, 0, NULL, &g) != 0)
        g.gl_pathc = 0;
    for (size_t i = 0; i < g.gl_pathc && a->n < CARDS_MAX; i++) {
        char *dir = a->dir[a->n];
        uint64_t minor;
        int len = snprintf(dir, sizeof(a->dir[0]), "%s/device", g.gl_pathv[i]);
        if ((size_t)len >= sizeof(a->dir[0]) || !read_text(dir, "vendor", vendor, sizeof(vendor)) ||
            strcmp(vendor, VENDOR) != 0)
            continue;
        const char *digits = strstr(strrchr(g.gl_pathv[i], '/'), "renderD") + 7;
        a->minor[a->n++] = vg_parse_u64(digits, &minor) == 0 && minor < 1024 ? (int32_t)minor : -1;
    }
    globfree(&g);
    if (!a->n) {
        free(a);
        return vg_err_set(err, VG_NOT_FOUND, "no card of AMD is here");
    }
    *ret = (struct vg_card_source){
        .n = a->n, .state = a, .facts = facts, .sample = sample, .event = no_event, .close = free};
    return 0;
}
