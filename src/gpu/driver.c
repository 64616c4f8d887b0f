/* The node's driver files; see the header. */
#include "gpu/driver.h"

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"
#include "gpu/ldcache.h"

#include <ctype.h>
#include <elf.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <glob.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/utsname.h>

static const char *const libraries[] = {
    "libcuda.so*",         "libcudadebugger.so*", "libnvidia-*.so*",     "libnvcuvid.so*",
    "libnvoptix.so*",      "libEGL_nvidia.so*",   "libGLX_nvidia.so*",   "libGLESv1_CM_nvidia.so*",
    "libvdpau_nvidia.so*", "libnvidia-ml.so*",    "libGLESv2_nvidia.so*"};
static const char *const programs[] = {"nvidia-smi", "nvidia-debugdump", "nvidia-cuda-mps-control",
                                       "nvidia-cuda-mps-server", "nvidia-persistenced"};
/* %s: the machine's kind. The vendors' own folders come first: what lies in the system's is often
   a package's that nobody loads. */
static const char *const vendor_folders[] = {
    "/usr/local/nvidia/lib64", "/usr/local/nvidia/lib", "/run/opengl-driver/lib",
    "/usr/lib/nvidia",         "/usr/lib64/nvidia",     "/usr/lib/%s-linux-gnu/nvidia/current",
};
static const char *const system_folders[] = {"/usr/lib/%s-linux-gnu", "/usr/lib64", "/usr/lib",
                                             "/usr/local/lib"};

struct search {
    const struct vg_driver_where *w;
    struct vg_driver *d;
    char machine[66];
};

void vg_driver_done(struct vg_driver *d) {
    for (size_t i = 0; i < d->n; i++)
        free(d->path[i]);
    free(d->path);
    vg_cdi_done(&d->cdi);
    *d = (struct vg_driver){0};
}

const char *vg_driver_source_name(enum vg_driver_source s) {
    static const char *const names[] = {"none", "configuration", "cdi", "search"};
    return names[s];
}

/* ------------------------------------------------------------------ one file */

static const char *base_name(const char *path) {
    return strrchr(path, '/') + 1;
}

bool vg_driver_is_other(const char *name, const char *version) {
    const char *so = strstr(name, ".so.");
    if (!so || !*version || !isdigit((unsigned char)so[4]))
        return false;
    so += 4;
    /* Libraries that count by themselves (libnvidia-egl-gbm.so.1.1.2) begin small. */
    return strtoul(so, NULL, 10) >= 100 && strcmp(so, version) != 0;
}

static bool has(const struct vg_driver *d, const char *path) {
    for (size_t i = 0; i < d->n; i++) /* the first folder's counts, as for a loader */
        if (!strcmp(base_name(d->path[i]), base_name(path)))
            return true;
    return false;
}

static size_t folder_len(const char *path) {
    return (size_t)(strrchr(path, '/') - path);
}

static bool folder_fits(const struct vg_driver *d, const char *path) {
    const char *seen[VG_DRIVER_FOLDERS_MAX];
    size_t n = 0, len = folder_len(path);
    for (size_t i = 0; i < d->n; i++) {
        size_t k = 0, l = folder_len(d->path[i]);
        if (l == len && !strncmp(d->path[i], path, len))
            return true;
        while (k < n && (folder_len(seen[k]) != l || strncmp(seen[k], d->path[i], l) != 0))
            k++;
        if (k == n && n < VG_DRIVER_FOLDERS_MAX)
            seen[n++] = d->path[i];
    }
    return n < VG_DRIVER_FOLDERS_MAX;
}

/* A library for other programs than this machine's usual ones (32 bit beside 64). */
static bool is_foreign(const char *path) {
    unsigned char id[EI_NIDENT];
    vg_auto_fd int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 || vg_read_full(fd, id, sizeof(id)) != sizeof(id) ||
        memcmp(id, ELFMAG, SELFMAG) != 0)
        return false;
    return id[EI_CLASS] != (sizeof(void *) == 8 ? ELFCLASS64 : ELFCLASS32);
}

/* Links count by what they lead to: libcuda.so.1 may be another driver's. */
static bool is_stale(const char *path, const char *version) {
    vg_auto_free char *real = realpath(path, NULL);
    return vg_driver_is_other(base_name(path), version) ||
           (real && vg_driver_is_other(base_name(real), version));
}

static int add(struct vg_driver *d, const char *path) {
    struct stat st;
    if (d->n == VG_DRIVER_FILES_MAX || has(d, path) || stat(path, &st) < 0 ||
        !S_ISREG(st.st_mode) || !folder_fits(d, path))
        return 0;
    char **p = vg_grow(d->path, &d->cap, d->n + 1, sizeof(*p));
    if (!p)
        return -ENOMEM;
    d->path = p;
    p[d->n] = vg_strdup(path);
    return p[d->n] ? (d->n++, 0) : -ENOMEM;
}

/* One that a search came upon: only the running driver's, not what programs are linked against
   where there is no driver. */
static int add_own(struct vg_driver *d, const char *path) {
    if (strstr(path, "/stubs/") || !strncmp(base_name(path), "libnvidia-container", 19) ||
        is_stale(path, d->version) || is_foreign(path))
        return 0;
    return add(d, path);
}

static int add_matches(struct vg_driver *d, const char *pattern,
                       int (*take)(struct vg_driver *d, const char *path)) {
    glob_t g = {0};
    int r = glob(pattern, 0, NULL, &g);
    r = r == GLOB_NOSPACE ? -ENOMEM : 0;
    for (size_t i = 0; r >= 0 && i < g.gl_pathc; i++)
        r = take(d, g.gl_pathv[i]);
    globfree(&g);
    return r;
}

/* ------------------------------------------------------------------ as configured */

static int find_pattern(struct search *s, const char *pattern) {
    char folder[256], full[PATH_MAX];
    if (pattern[0] == '/') {
        snprintf(full, sizeof(full), "%s%s", s->w->root, pattern);
        return add_matches(s->d, full, add);
    }
    if (strchr(pattern, '/'))
        return 0; /* neither a name nor a path */
    int r = 0;
    for (size_t i = 0; r >= 0 && i < VG_COUNT(system_folders); i++) {
        snprintf(folder, sizeof(folder), system_folders[i], s->machine);
        snprintf(full, sizeof(full), "%s%s/%s", s->w->root, folder, pattern);
        r = add_matches(s->d, full, add);
    }
    return r;
}

static int find_configured(struct search *s) {
    int r = 0;
    for (size_t i = 0; r >= 0 && i < s->w->n_patterns; i++)
        r = find_pattern(s, s->w->patterns[i]);
    s->d->source = VG_DRIVER_CONFIGURED;
    return r;
}

/* ------------------------------------------------------------------ as a specification lists */

static bool has_cuda(const struct vg_driver *d) {
    for (size_t i = 0; i < d->n; i++)
        if (!strncmp(base_name(d->path[i]), "libcuda.so", 10))
            return true;
    return false;
}

/* A library and its shorter names beside it, which a hook would make. */
static int add_listed(struct search *s, const char *path) {
    char full[PATH_MAX], pattern[PATH_MAX + 8];
    snprintf(full, sizeof(full), "%s%s", s->w->root, path);
    const char *so = strstr(base_name(full), ".so");
    bool program = strstr(full, "/bin/") != NULL;
    if (!so)
        return program ? add(s->d, full) : 0; /* other files belong to graphics */
    snprintf(pattern, sizeof(pattern), "%.*s*", (int)(so + 3 - full), full);
    int r = add_own(s->d, full);
    return r < 0 ? r : add_matches(s->d, pattern, add_own);
}

static int add_edits(struct search *s, const struct vg_cdi_edits *e) {
    int r = 0;
    for (size_t i = 0; r >= 0 && i < e->mounts.n; i++)
        r = add_listed(s, e->mounts.item[i]);
    return r;
}

/* 1: it was enough. */
static int find_listed(struct search *s) {
    struct vg_err err = VG_ERR_INIT;
    int r = vg_cdi_load(s->w->root, &s->d->cdi, &err);
    if (r <= 0) {
        snprintf(s->d->remark, sizeof(s->d->remark), "%s", err.msg);
        return r;
    }
    const struct vg_cdi *c = &s->d->cdi;
    size_t hooks = c->common.hooks;
    r = add_edits(s, &c->common);
    for (size_t i = 0; r >= 0 && i < c->n_devices; i++) {
        hooks += c->device[i].edits.hooks;
        r = add_edits(s, &c->device[i].edits);
    }
    if (r < 0)
        return r;
    if (!has_cuda(s->d)) {
        snprintf(s->d->remark, sizeof(s->d->remark),
                 "the CDI specification lists no libcuda that is here: it is older than the "
                 "driver; write it anew with 'nvidia-ctk cdi generate'");
        return 0;
    }
    if (hooks)
        snprintf(s->d->remark, sizeof(s->d->remark),
                 "%zu hooks of the CDI specification are not run", hooks);
    s->d->source = VG_DRIVER_CDI;
    return 1;
}

/* ------------------------------------------------------------------ by looking around */

static int find_in_folder(struct search *s, const char *folder) {
    char full[PATH_MAX];
    int r = 0;
    for (size_t i = 0; r >= 0 && i < VG_COUNT(libraries); i++) {
        snprintf(full, sizeof(full), "%s%s/%s", s->w->root, folder, libraries[i]);
        r = add_matches(s->d, full, add_own);
    }
    return r;
}

static int take_cached(void *arg, uint32_t flags, const char *name, const char *path) {
    struct search *s = arg;
    char folder[PATH_MAX];
    if ((flags & 0xffff) != vg_ldcache_own_flags() || fnmatch("libcuda.so*", name, 0) != 0)
        return 0;
    snprintf(folder, sizeof(folder), "%.*s", (int)folder_len(path), path);
    return find_in_folder(s, folder);
}

/* The folders in which the loader knows a libcuda. */
static int find_in_cache(struct search *s) {
    char path[PATH_MAX];
    vg_auto_free char *data = NULL;
    size_t len;
    snprintf(path, sizeof(path), "%s/etc/ld.so.cache", s->w->root);
    if (vg_read_file(path, VG_LDCACHE_BYTES_MAX, &data, &len) < 0)
        return 0;
    int r = vg_ldcache_walk(data, len, take_cached, s);
    return r == -EINVAL ? 0 : r;
}

static int find_in_path(struct search *s) {
    vg_auto_free char *copy = vg_strdup(s->w->library_path);
    if (s->w->library_path && !copy)
        return -ENOMEM;
    int r = 0;
    for (char *next = copy, *folder; r >= 0 && next && (folder = strsep(&next, ":"));)
        if (folder[0] == '/' && strlen(folder) < 2048)
            r = find_in_folder(s, folder);
    return r;
}

static int find_in_folders(struct search *s, const char *const *folders, size_t n) {
    char folder[256];
    int r = 0;
    for (size_t i = 0; r >= 0 && i < n; i++) {
        snprintf(folder, sizeof(folder), folders[i], s->machine);
        r = find_in_folder(s, folder);
    }
    return r;
}

/* Beside the folder of libraries, else where programs lie. */
static int find_programs(struct search *s) {
    static const char *const common[] = {"/usr/bin", "/usr/local/nvidia/bin", "/usr/local/bin",
                                         "/run/opengl-driver/bin"};
    char folder[PATH_MAX] = "", full[PATH_MAX];
    int r = 0;
    if (s->d->n) { /* PREFIX/lib64/libcuda.so.1 -> PREFIX/bin */
        snprintf(folder, sizeof(folder), "%.*s", (int)folder_len(s->d->path[0]), s->d->path[0]);
        char *slash = strrchr(folder, '/');
        snprintf(slash, sizeof(folder) - (size_t)(slash - folder), "/bin");
    }
    for (size_t i = 0; r >= 0 && i < VG_COUNT(programs); i++) {
        snprintf(full, sizeof(full), "%.4000s/%s", folder, programs[i]);
        r = *folder ? add(s->d, full) : 0;
        for (size_t k = 0; r >= 0 && k < VG_COUNT(common); k++) {
            snprintf(full, sizeof(full), "%s%s/%s", s->w->root, common[k], programs[i]);
            r = add(s->d, full);
        }
    }
    return r;
}

static int find_around(struct search *s) {
    s->d->source = VG_DRIVER_FOUND;
    int r = find_in_cache(s);
    if (r >= 0)
        r = find_in_path(s);
    if (r >= 0)
        r = find_in_folders(s, vendor_folders, VG_COUNT(vendor_folders));
    if (r >= 0)
        r = find_in_folders(s, system_folders, VG_COUNT(system_folders));
    if (r >= 0 && !has_cuda(s->d))
        snprintf(s->d->remark, sizeof(s->d->remark),
                 "no libcuda of driver %s is found on this node: tasks with their own files cannot "
                 "use its GPUs; name its folder in node.libraries",
                 *s->d->version ? s->d->version : "(unknown)");
    return r < 0 ? r : find_programs(s);
}

/* ------------------------------------------------------------------ the whole */

/* "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build": the first
   word that is numbers with dots. */
void vg_driver_version(const char *root, char *out, size_t n) {
    char path[PATH_MAX];
    vg_auto_free char *text = NULL;
    size_t len;
    out[0] = 0;
    snprintf(path, sizeof(path), "%s/proc/driver/nvidia/version", root);
    if (vg_read_file(path, 16384, &text, &len) < 0)
        return;
    text[strcspn(text, "\n")] = 0;
    for (char *next = text, *word; (word = strsep(&next, " \t"));)
        if (isdigit((unsigned char)word[0]) && strchr(word, '.') &&
            word[strspn(word, "0123456789.")] == 0) {
            snprintf(out, n, "%s", word);
            return;
        }
}

static bool has_card(const char *root) {
    char path[PATH_MAX];
    snprintf(path, sizeof(path), "%s/dev/nvidiactl", root);
    return access(path, F_OK) == 0;
}

int vg_driver_find(const struct vg_driver_where *w, struct vg_driver *ret) {
    struct vg_driver d = {0};
    struct search s = {.w = w, .d = &d};
    struct utsname u;
    int r = 0;
    snprintf(s.machine, sizeof(s.machine), "%s", uname(&u) < 0 ? "x86_64" : u.machine);
    vg_driver_version(w->root, d.version, sizeof(d.version));
    if (w->n_patterns) {
        r = find_configured(&s);
    } else if (has_card(w->root)) {
        r = find_listed(&s);
        if (r == 0)
            r = find_around(&s);
    }
    if (r < 0) {
        vg_driver_done(&d);
        return r;
    }
    *ret = d;
    return 0;
}

/* ------------------------------------------------------------------ where programs find it */

const char *vg_driver_library(const struct vg_driver *d, const char *name) {
    for (size_t i = 0; i < d->n; i++)
        if (!strncmp(base_name(d->path[i]), name, strlen(name)))
            return d->path[i];
    return NULL;
}

static bool is_listed(const struct vg_cdi_list *l, const char *path) {
    for (size_t i = 0; i < l->n; i++)
        if (!strcmp(l->item[i], path))
            return true;
    return false;
}

/* Both libraries, by all their names, in one folder (which begins with the root). */
static int add_places(const struct search *s, const char *folder, struct vg_cdi_list *ret) {
    static const char *const names[] = {VG_DRIVER_CUDA, VG_DRIVER_NVML};
    size_t skip = strlen(s->w->root);
    int r = 0;
    for (size_t k = 0; r >= 0 && k < VG_COUNT(names); k++) {
        char pattern[PATH_MAX];
        glob_t g = {0};
        snprintf(pattern, sizeof(pattern), "%.4000s/%s*", folder, names[k]);
        r = glob(pattern, 0, NULL, &g) == GLOB_NOSPACE ? -ENOMEM : 0;
        for (size_t i = 0; r >= 0 && i < g.gl_pathc; i++)
            if (!is_stale(g.gl_pathv[i], s->d->version) && !is_foreign(g.gl_pathv[i]) &&
                !is_listed(ret, g.gl_pathv[i] + skip))
                r = vg_cdi_list_add(ret, g.gl_pathv[i] + skip);
        globfree(&g);
    }
    return r;
}

int vg_driver_places(const struct vg_driver_where *w, const struct vg_driver *d,
                     struct vg_cdi_list *ret) {
    static const struct {
        const char *const *folder;
        size_t n;
    } usual[] = {{vendor_folders, VG_COUNT(vendor_folders)},
                 {system_folders, VG_COUNT(system_folders)}};
    struct search s = {.w = w, .d = (struct vg_driver *)d};
    struct utsname u;
    char folder[PATH_MAX], name[256];
    int r = 0;
    snprintf(s.machine, sizeof(s.machine), "%s", uname(&u) < 0 ? "x86_64" : u.machine);
    for (size_t i = 0; r >= 0 && i < d->n; i++) {
        snprintf(folder, sizeof(folder), "%.*s", (int)folder_len(d->path[i]), d->path[i]);
        r = add_places(&s, folder, ret);
    }
    for (size_t k = 0; k < VG_COUNT(usual); k++)
        for (size_t i = 0; r >= 0 && i < usual[k].n; i++) {
            snprintf(name, sizeof(name), usual[k].folder[i], s.machine);
            snprintf(folder, sizeof(folder), "%s%s", w->root, name);
            r = add_places(&s, folder, ret);
        }
    return r;
}
