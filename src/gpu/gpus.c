/* GPU discovery; see the header. Thread: any, it keeps no state. */
#include "gpu/gpus.h"

#include "base/cleanup.h"
#include "base/util.h"

#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const char *const common[] = {"/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools",
                                     "/dev/nvidia-modeset"};

static bool exists(const char *root, const char *path) {
    char full[PATH_MAX];
    struct stat st;
    snprintf(full, sizeof(full), "%s%s", root, path);
    return stat(full, &st) == 0;
}

/* Copies the value of "Key:   value" when `line` is of that key. */
static void field(const char *line, const char *key, char *out, size_t cap) {
    size_t n = strlen(key);
    if (strncmp(line, key, n) != 0 || line[n] != ':')
        return;
    line += n + 1;
    line += strspn(line, " \t");
    snprintf(out, cap, "%s", line);
}

static void read_information(const char *root, const char *bus, struct vg_gpu *gpu) {
    char path[PATH_MAX], minor[16] = "";
    vg_auto_free char *text = NULL;
    size_t len;
    snprintf(path, sizeof(path), "%s/proc/driver/nvidia/gpus/%s/information", root, bus);
    if (vg_read_file(path, 16384, &text, &len) < 0)
        return;
    for (char *next = text, *line; (line = strsep(&next, "\n"));) {
        field(line, "Model", gpu->model, sizeof(gpu->model));
        field(line, "GPU UUID", gpu->uuid, sizeof(gpu->uuid));
        field(line, "Device Minor", minor, sizeof(minor));
    }
    uint64_t v;
    if (vg_parse_u64(minor, &v) == 0 && v < 1024)
        gpu->minor = (int)v;
    if (strchr(gpu->uuid, '?')) /* the driver has not asked the card yet */
        gpu->uuid[0] = 0;
}

static void find_in_proc(const char *root, struct vg_gpus *g) {
    char path[PATH_MAX];
    struct dirent **list = NULL;
    snprintf(path, sizeof(path), "%s/proc/driver/nvidia/gpus", root);
    int n = scandir(path, &list, NULL, alphasort);
    for (int i = 0; i < n; i++) {
        if (list[i]->d_name[0] != '.' && g->n < VG_GPUS_MAX) {
            struct vg_gpu *gpu = &g->gpu[g->n];
            *gpu = (struct vg_gpu){.index = (uint32_t)g->n, .minor = -1};
            g->n++;
            read_information(root, list[i]->d_name, gpu);
        }
        free(list[i]);
    }
    free(list);
}

static bool has_minor(const struct vg_gpus *g, int minor) {
    for (size_t i = 0; i < g->n; i++)
        if (g->gpu[i].minor == minor)
            return true;
    return false;
}

/* Containers may show device nodes without the driver's /proc. */
static void find_in_dev(const char *root, struct vg_gpus *g) {
    char path[VG_GPU_PATH];
    for (int minor = 0; minor < VG_GPUS_MAX && g->n < VG_GPUS_MAX; minor++) {
        snprintf(path, sizeof(path), "/dev/nvidia%d", minor);
        if (has_minor(g, minor) || !exists(root, path))
            continue;
        g->gpu[g->n] = (struct vg_gpu){.index = (uint32_t)g->n, .minor = minor};
        g->n++;
    }
}

/* A card that the driver knows but that has no node here (hidden from this container) is no use. */
static void drop_hidden(const char *root, struct vg_gpus *g) {
    char path[VG_GPU_PATH];
    size_t k = 0;
    for (size_t i = 0; i < g->n; i++) {
        snprintf(path, sizeof(path), "/dev/nvidia%d", g->gpu[i].minor);
        if (g->gpu[i].minor < 0 || !exists(root, path))
            continue;
        g->gpu[k] = g->gpu[i];
        g->gpu[k].index = (uint32_t)k;
        k++;
    }
    g->n = k;
}

/* AMD's, by the kernel's list of render nodes. UNTESTED on a real card. */
static void find_amd(const char *root, struct vg_gpus *g) {
    char path[PATH_MAX], node[VG_GPU_PATH];
    for (int minor = 128; minor < 128 + VG_GPUS_MAX && g->n < VG_GPUS_MAX; minor++) {
        vg_auto_free char *vendor = NULL;
        size_t len;
        snprintf(path, sizeof(path), "%s/sys/class/drm/renderD%d/device/vendor", root, minor);
        snprintf(node, sizeof(node), "/dev/dri/renderD%d", minor);
        if (vg_read_file(path, 64, &vendor, &len) < 0 || strncmp(vendor, "0x1002", 6) != 0 ||
            !exists(root, node) || !exists(root, "/dev/kfd"))
            continue;
        g->gpu[g->n] = (struct vg_gpu){
            .vendor = VG_CARD_AMD, .index = (uint32_t)g->n, .minor = minor, .model = "AMD GPU"};
        g->n++;
    }
}

void vg_gpus_find(const char *root, int64_t count, const char *model, struct vg_gpus *ret) {
    ret->n = ret->n_common = ret->n_left_out = 0;
    ret->root[0] = 0;
    if (count == 0)
        return;
    find_in_proc(root, ret);
    drop_hidden(root, ret);
    if (ret->n == 0)
        find_in_dev(root, ret);
    vg_gpus_split(root, ret);
    if (ret->n == 0)
        find_amd(root, ret);
    if (count > 0) {
        size_t want = (size_t)VG_MIN(count, (int64_t)VG_GPUS_MAX);
        for (; ret->n < want; ret->n++)
            ret->gpu[ret->n] = (struct vg_gpu){.index = (uint32_t)ret->n, .minor = -1};
        ret->n = want;
    }
    for (size_t i = 0; model && i < ret->n; i++)
        snprintf(ret->gpu[i].model, sizeof(ret->gpu[i].model), "%s", model);
}

/* A socket that stands for a device, or a device that stands for another. */
static bool is_stand_in(const char *root, const char *path) {
    char full[PATH_MAX];
    struct stat st;
    snprintf(full, sizeof(full), "%s%s", root, path);
    return stat(full, &st) == 0 && (S_ISSOCK(st.st_mode) || S_ISCHR(st.st_mode));
}

void vg_gpus_fake(size_t n, const char *root, struct vg_gpus *ret) {
    char path[VG_GPU_PATH];
    ret->n = VG_MIN(n, (size_t)VG_GPUS_MAX);
    ret->n_common = ret->n_left_out = 0;
    ret->root[0] = 0;
    if (root && strlen(root) < sizeof(ret->root) && is_stand_in(root, "/dev/nvidiactl"))
        snprintf(ret->root, sizeof(ret->root), "%s", root);
    for (size_t i = 0; i < ret->n; i++) {
        struct vg_gpu *g = &ret->gpu[i];
        *g = (struct vg_gpu){
            .vendor = VG_CARD_FAKE, .index = (uint32_t)i, .minor = -1, .model = "Simulated GPU"};
        snprintf(path, sizeof(path), "/dev/nvidia%zu", i);
        if (!ret->root[0] || !is_stand_in(root, path))
            continue;
        g->minor = (int)i;
        vg_card_fake_uuid((uint32_t)i, g->uuid, sizeof(g->uuid));
    }
    if (ret->root[0])
        vg_gpus_split(ret->root, ret);
}

/* The number of /dev/nvidiaN; -1: another node. */
static int minor_of(const char *path) {
    uint64_t v;
    if (strncmp(path, "/dev/nvidia", 11) != 0 || vg_parse_u64(path + 11, &v) < 0 || v >= 1024)
        return -1;
    return (int)v;
}

/* The one card that a device of the specification is; NULL: none, or several ("all"). */
static struct vg_gpu *card_of(struct vg_gpus *g, const struct vg_cdi_list *nodes) {
    struct vg_gpu *found = NULL;
    for (size_t i = 0; i < nodes->n; i++) {
        int minor = minor_of(nodes->item[i]);
        for (size_t k = 0; minor >= 0 && k < g->n; k++)
            if (g->gpu[k].minor == minor) {
                if (found)
                    return NULL;
                found = &g->gpu[k];
            }
    }
    return found;
}

static void note(char (*list)[VG_GPU_PATH], size_t *n, size_t max, const char *path) {
    if (*n == max || strlen(path) >= VG_GPU_PATH || minor_of(path) >= 0)
        return;
    for (size_t i = 0; i < *n; i++)
        if (!strcmp(list[i], path))
            return;
    snprintf(list[(*n)++], VG_GPU_PATH, "%s", path);
}

void vg_gpus_take_cdi(struct vg_gpus *g, const struct vg_cdi *c) {
    for (size_t i = 0; i < c->common.nodes.n; i++)
        note(g->common, &g->n_common, VG_GPU_COMMON_MAX, c->common.nodes.item[i]);
    for (size_t i = 0; i < c->n_devices; i++) {
        const struct vg_cdi_list *nodes = &c->device[i].edits.nodes;
        struct vg_gpu *gpu = card_of(g, nodes);
        for (size_t k = 0; gpu && k < nodes->n; k++)
            note(gpu->extra, &gpu->n_extra, VG_GPU_EXTRA_MAX, nodes->item[k]);
    }
}

/* What a task has of the nodes so far. */
struct node_list {
    const char *root;
    char (*path)[VG_GPU_PATH];
    size_t n, max;
};

static void add_node(struct node_list *l, const char *path) {
    for (size_t i = 0; i < l->n; i++)
        if (!strcmp(l->path[i], path))
            return;
    if (l->n < l->max && exists(l->root, path))
        snprintf(l->path[l->n++], VG_GPU_PATH, "%s", path);
}

size_t vg_gpu_devices(const struct vg_gpus *g, const char *root, const uint32_t *index, size_t n,
                      char (*ret)[VG_GPU_PATH], size_t max) {
    struct node_list l = {.root = root, .path = ret, .max = max};
    bool amd = false;
    for (size_t i = 0; i < n && l.n < max; i++) {
        if (index[i] >= g->n || g->gpu[index[i]].minor < 0)
            continue;
        char path[VG_GPU_PATH];
        amd |= g->gpu[index[i]].vendor == VG_CARD_AMD;
        snprintf(path, sizeof(path), amd ? "/dev/dri/renderD%d" : "/dev/nvidia%d",
                 g->gpu[index[i]].minor);
        if (!l.n || strcmp(ret[l.n - 1], path) != 0) /* two parts of one card follow each other */
            snprintf(ret[l.n++], VG_GPU_PATH, "%s", path);
    }
    if (l.n == 0)
        return 0;
    if (amd)
        add_node(&l, "/dev/kfd");
    for (size_t i = 0; !amd && i < VG_COUNT(common); i++)
        add_node(&l, common[i]);
    for (size_t i = 0; i < g->n_common; i++)
        add_node(&l, g->common[i]);
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; index[i] < g->n && k < g->gpu[index[i]].n_extra; k++)
            add_node(&l, g->gpu[index[i]].extra[k]);
    return l.n;
}

int vg_gpu_visible(const struct vg_gpus *g, const uint32_t *index, size_t n, char *out,
                   size_t cap) {
    bool uuids = true;
    for (size_t i = 0; i < n; i++) {
        bool known = index[i] < g->n && g->gpu[index[i]].uuid[0];
        if (!known && index[i] < g->n && g->gpu[index[i]].part)
            return -ENODATA;
        uuids = uuids && known;
    }
    size_t at = 0;
    out[0] = 0;
    for (size_t i = 0; i < n; i++) {
        const char *comma = i ? "," : "";
        int r = uuids ? snprintf(out + at, cap - at, "%s%s", comma, g->gpu[index[i]].uuid)
                      : snprintf(out + at, cap - at, "%s%u", comma, index[i]);
        if (r < 0 || (size_t)r >= cap - at)
            return -E2BIG;
        at += (size_t)r;
    }
    return 0;
}
