/* Which driver libraries of this node a task finds that brought its own files; see the header. */
#include "agent/agent-libs.h"

#include "base/cleanup.h"
#include "base/mem.h"

#include <errno.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

static const char *const nvidia[] = {
    "libcuda.so*",          "libcudadebugger.so*", "libnvidia-*.so*",    "libnvcuvid.so*",
    "libnvoptix.so*",       "libEGL_nvidia.so*",   "libGLX_nvidia.so*",  "libGLESv1_CM_nvidia.so*",
    "libGLESv2_nvidia.so*", "libvdpau_nvidia.so*", "/usr/bin/nvidia-smi"};

void vg_libs_done(struct vg_libs *l) {
    for (size_t i = 0; i < l->n; i++)
        free(l->path[i]);
    free(l->path);
    *l = (struct vg_libs){0};
}

static bool has(const struct vg_libs *l, const char *path) {
    const char *name = strrchr(path, '/');
    for (size_t i = 0; i < l->n; i++) /* the first folder's counts, as for a loader */
        if (!strcmp(strrchr(l->path[i], '/'), name))
            return true;
    return false;
}

static int add(struct vg_libs *l, const char *path) {
    struct stat st;
    if (l->n == VG_LIBS_MAX || has(l, path) || stat(path, &st) < 0 || !S_ISREG(st.st_mode))
        return 0;
    char **p = vg_grow(l->path, &l->cap, l->n + 1, sizeof(*p));
    if (!p)
        return -ENOMEM;
    l->path = p;
    p[l->n] = vg_strdup(path);
    return p[l->n] ? (l->n++, 0) : -ENOMEM;
}

static int add_matches(struct vg_libs *l, const char *pattern) {
    glob_t g = {0};
    int r = glob(pattern, 0, NULL, &g);
    r = r == GLOB_NOSPACE ? -ENOMEM : 0;
    for (size_t i = 0; r >= 0 && i < g.gl_pathc; i++)
        r = add(l, g.gl_pathv[i]);
    globfree(&g);
    return r;
}

static int find_one(const char *root, const char *pattern, struct vg_libs *l) {
    struct utsname u;
    char triplet[96], full[4096];
    if (pattern[0] == '/') {
        snprintf(full, sizeof(full), "%s%s", root, pattern);
        return add_matches(l, full);
    }
    if (strchr(pattern, '/') || uname(&u) < 0)
        return 0; /* neither a name nor a path */
    snprintf(triplet, sizeof(triplet), "/usr/lib/%s-linux-gnu", u.machine);
    const char *const folders[] = {triplet, "/usr/lib64", "/usr/lib", "/usr/local/lib"};
    int r = 0;
    for (size_t i = 0; r >= 0 && i < VG_COUNT(folders); i++) {
        snprintf(full, sizeof(full), "%s%s/%s", root, folders[i], pattern);
        r = add_matches(l, full);
    }
    return r;
}

static bool has_card(const char *root) {
    char path[256];
    snprintf(path, sizeof(path), "%s/dev/nvidiactl", root);
    return access(path, F_OK) == 0;
}

int vg_libs_find(const char *root, char *const *patterns, size_t n, struct vg_libs *ret) {
    struct vg_libs l = {0};
    int r = 0;
    for (size_t i = 0; r >= 0 && i < n; i++)
        r = find_one(root, patterns[i], &l);
    for (size_t i = 0; r >= 0 && !n && has_card(root) && i < VG_COUNT(nvidia); i++)
        r = find_one(root, nvidia[i], &l);
    if (r < 0) {
        vg_libs_done(&l);
        return r;
    }
    *ret = l;
    return 0;
}
