/* RDMA adapters; see the header. UNTESTED on a real one: tried on folders that look like the
   kernel's. Keeps no state; any thread. */
#include "gpu/rdma.h"

#include "base/cleanup.h"
#include "base/util.h"

#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define VERBS_MAX 32 /* adapters; the rest of the nodes are common */
#define PORTS_MAX 4

static bool add(const char *root, const char *path, struct vg_rdma *r) {
    char full[PATH_MAX];
    struct stat st;
    snprintf(full, sizeof(full), "%s%s", root, path);
    if (r->n == VG_RDMA_NODES_MAX || strlen(path) >= VG_GPU_PATH || stat(full, &st) < 0)
        return false;
    snprintf(r->node[r->n++], VG_GPU_PATH, "%s", path);
    return true;
}

/* Ports of an adapter whose state is "4: ACTIVE". */
static void note_ports(const char *root, const char *adapter, struct vg_rdma *r) {
    for (unsigned port = 1; port <= PORTS_MAX; port++) {
        char path[PATH_MAX];
        vg_auto_free char *state = NULL;
        size_t len, at = strlen(r->ports);
        snprintf(path, sizeof(path), "%s/sys/class/infiniband/%s/ports/%u/state", root, adapter,
                 port);
        if (vg_read_file(path, 64, &state, &len) < 0 || strncmp(state, "4:", 2) != 0)
            continue;
        int n =
            snprintf(r->ports + at, sizeof(r->ports) - at, "%s%s:%u", at ? "," : "", adapter, port);
        if (n < 0 || (size_t)n >= sizeof(r->ports) - at)
            r->ports[at] = 0;
    }
}

/* The name of an adapter is a word; it becomes part of a path and of a variable. */
static bool is_word(const char *s) {
    return *s && strlen(s) < 64 &&
           strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                     "0123456789_-") == strlen(s);
}

static void add_verbs(const char *root, const char *name, struct vg_rdma *r) {
    char path[PATH_MAX];
    vg_auto_free char *adapter = NULL;
    size_t len;
    snprintf(path, sizeof(path), "/dev/infiniband/%.32s", name);
    if (r->n == VERBS_MAX || !add(root, path, r))
        return;
    snprintf(path, sizeof(path), "%s/sys/class/infiniband_verbs/%.32s/ibdev", root, name);
    if (vg_read_file(path, 256, &adapter, &len) < 0)
        return;
    adapter[strcspn(adapter, "\n")] = 0;
    if (is_word(adapter))
        note_ports(root, adapter, r);
}

void vg_rdma_find(const char *root, struct vg_rdma *ret) {
    char path[PATH_MAX];
    struct dirent **list = NULL;
    *ret = (struct vg_rdma){0};
    snprintf(path, sizeof(path), "%s/sys/class/infiniband_verbs", root);
    int n = scandir(path, &list, NULL, versionsort);
    for (int i = 0; i < n; i++) {
        if (strncmp(list[i]->d_name, "uverbs", 6) == 0)
            add_verbs(root, list[i]->d_name, ret);
        free(list[i]);
    }
    free(list);
    if (!ret->n)
        return;
    add(root, "/dev/infiniband/rdma_cm", ret);
    add(root, "/dev/gdrdrv", ret);
}
