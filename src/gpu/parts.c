/* Parts that an administrator made of cards (NVIDIA's MIG: instances of a GPU, and of its compute
   engines within), by what the driver shows in /proc/driver/nvidia/capabilities:

       gpuMINOR/mig/giG/access, gpuMINOR/mig/giG/ciC/access   "DeviceFileMinor: N"

   Whoever may open /dev/nvidia-caps/nvidia-capN of both may use that part. UNTESTED on a real card:
   tried on folders that look like it. Keeps no state; any thread. */
#include "gpu/gpus.h"

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"

#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define CAPABILITIES "/proc/driver/nvidia/capabilities"
#define MINOR_MAX (1u << 20)

/* The number behind `prefix` in a name, below 64; -1: it is another name. */
static int number_of(const char *name, const char *prefix) {
    uint64_t v;
    size_t n = strlen(prefix);
    if (strncmp(name, prefix, n) != 0 || vg_parse_u64(name + n, &v) < 0 || v >= VG_PART_IDS)
        return -1;
    return (int)v;
}

/* The node by which access is had; false: there is none here. */
static bool cap_node(const char *root, const char *dir, char out[static VG_GPU_PATH]) {
    static const char key[] = "DeviceFileMinor:";
    char path[PATH_MAX];
    vg_auto_free char *text = NULL;
    size_t len;
    uint64_t minor = MINOR_MAX;
    struct stat st;
    snprintf(path, sizeof(path), "%s/access", dir);
    if (vg_read_file(path, 4096, &text, &len) < 0)
        return false;
    for (char *next = text, *line; (line = strsep(&next, "\n"));)
        if (strncmp(line, key, sizeof(key) - 1) == 0)
            (void)vg_parse_u64(line + sizeof(key) - 1 + strspn(line + sizeof(key) - 1, " \t"),
                               &minor);
    if (minor >= MINOR_MAX)
        return false;
    snprintf(out, VG_GPU_PATH, "/dev/nvidia-caps/nvidia-cap%u", (unsigned)minor);
    snprintf(path, sizeof(path), "%s%s", root, out);
    return stat(path, &st) == 0;
}

struct split {
    const char *root;
    struct vg_gpus *out;
};

static void add_part(struct split *s, const struct vg_gpu *card, int gi, int ci, const char *gi_cap,
                     const char *dir) {
    struct vg_gpu *p = &s->out->gpu[s->out->n];
    char ci_cap[VG_GPU_PATH];
    if (s->out->n == VG_GPUS_MAX || !cap_node(s->root, dir, ci_cap))
        return;
    *p = (struct vg_gpu){.vendor = card->vendor,
                         .index = (uint32_t)s->out->n,
                         .minor = card->minor,
                         .part = VG_PART(gi, ci),
                         .n_extra = 2};
    snprintf(p->model, sizeof(p->model), "%.58s MIG", card->model);
    snprintf(p->extra[0], VG_GPU_PATH, "%s", gi_cap);
    snprintf(p->extra[1], VG_GPU_PATH, "%s", ci_cap);
    s->out->n++;
}

/* Entries of a folder, in the order of their numbers. */
static int list(const char *dir, struct dirent ***ret) {
    *ret = NULL;
    return scandir(dir, ret, NULL, versionsort);
}

static void split_instance(struct split *s, const struct vg_gpu *card, int gi, const char *dir) {
    char cap[VG_GPU_PATH], sub[PATH_MAX];
    struct dirent **names;
    bool open = cap_node(s->root, dir, cap);
    int n = list(dir, &names);
    for (int i = 0; i < n; i++) {
        int ci = open ? number_of(names[i]->d_name, "ci") : -1;
        snprintf(sub, sizeof(sub), "%.3800s/%s", dir, names[i]->d_name);
        if (ci >= 0)
            add_part(s, card, gi, ci, cap, sub);
        free(names[i]);
    }
    free(names);
}

static void split_card(struct split *s, const struct vg_gpu *card) {
    char dir[PATH_MAX], sub[PATH_MAX];
    struct dirent **names;
    snprintf(dir, sizeof(dir), "%s" CAPABILITIES "/gpu%d/mig", s->root, card->minor);
    int n = card->minor < 0 ? 0 : list(dir, &names);
    for (int i = 0; i < n; i++) {
        int gi = number_of(names[i]->d_name, "gi");
        snprintf(sub, sizeof(sub), "%.3500s/%s", dir, names[i]->d_name);
        if (gi >= 0)
            split_instance(s, card, gi, sub);
        free(names[i]);
    }
    if (n > 0)
        free(names);
}

void vg_gpus_split(const char *root, struct vg_gpus *g) {
    vg_auto_free struct vg_gpus *out = vg_alloc(sizeof(*out));
    if (!out)
        return;
    struct split s = {.root = root, .out = out};
    for (size_t i = 0; i < g->n; i++) {
        size_t before = out->n;
        if (g->gpu[i].vendor != VG_CARD_AMD)
            split_card(&s, &g->gpu[i]);
        out->n_left_out += out->n == before;
    }
    if (!out->n)
        return;
    memcpy(g->gpu, out->gpu, sizeof(g->gpu));
    g->n = out->n;
    g->n_left_out = out->n_left_out;
}
