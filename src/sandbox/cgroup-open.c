/* Finding the cgroup hierarchies that there are, and making the agent's folder in each. See
   cgroup.c. In the agent only. */
#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"
#include "sandbox/sandbox-priv.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const struct {
    const char *name;
    unsigned what;
} controllers[] = {{"cpu", VG_CG_CPU},
                   {"cpuacct", VG_CG_CPUACCT},
                   {"memory", VG_CG_MEMORY},
                   {"pids", VG_CG_PIDS},
                   {"devices", VG_CG_DEVICES}};

static bool has_word(const char *list, const char *word) {
    size_t len = strlen(word);
    for (const char *p = list; (p = strstr(p, word)); p += len)
        if ((p == list || p[-1] == ',') && (p[len] == ',' || !p[len]))
            return true;
    return false;
}

/* The agent's own group in the hierarchy with this controller ("" for v2). */
static int own_group(const char *controller, char *ret, size_t n) {
    FILE *f = fopen("/proc/self/cgroup", "re");
    if (!f)
        return -errno;
    char line[PATH_MAX + 256];
    int r = -ENOENT;
    while (r < 0 && fgets(line, sizeof(line), f)) {
        line[strcspn(line, "\n")] = 0;
        char *list = strchr(line, ':'), *path = list ? strchr(list + 1, ':') : NULL;
        if (!path)
            continue;
        *path++ = 0;
        list++;
        if (*controller ? has_word(list, controller) : !*list) {
            snprintf(ret, n, "%s", path);
            r = 0;
        }
    }
    fclose(f);
    return r;
}

static int add_hier(struct vg_cg *cg, unsigned what, const char *mount, const char *own,
                    const char *tag) {
    char path[PATH_MAX];
    if (cg->n == VG_CG_HIER_MAX)
        return -E2BIG;
    snprintf(path, sizeof(path), "%s%s/virga-%s", mount, strcmp(own, "/") ? own : "", tag);
    if (mkdir(path, 0755) < 0 && errno != EEXIST)
        return -errno;
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    char *copy = vg_strdup(path);
    if (fd < 0 || !copy) {
        int r = fd < 0 ? -errno : -ENOMEM;
        vg_close(&fd);
        free(copy);
        return r;
    }
    cg->h[cg->n++] = (struct vg_cg_hier){what, fd, copy};
    cg->have |= what;
    return 0;
}

struct found {
    char v1[VG_CG_HIER_MAX + 2][256]; /* mount points */
    unsigned what[VG_CG_HIER_MAX + 2];
    size_t n;
    char v2[256];
};

static int find_mounts(struct found *ret) {
    FILE *f = fopen("/proc/self/mountinfo", "re");
    if (!f)
        return -errno;
    char line[8192], at[256], type[64], opts[512];
    while (fgets(line, sizeof(line), f)) {
        char *dash = strstr(line, " - ");
        if (!dash || sscanf(line, "%*s %*s %*s %*s %255s", at) != 1 ||
            sscanf(dash + 3, "%63s %*s %511s", type, opts) != 2)
            continue;
        if (!strcmp(type, "cgroup2") && !ret->v2[0])
            snprintf(ret->v2, sizeof(ret->v2), "%s", at);
        unsigned what = 0;
        for (size_t i = 0; !strcmp(type, "cgroup") && i < VG_COUNT(controllers); i++)
            if (has_word(opts, controllers[i].name))
                what |= controllers[i].what;
        for (size_t i = 0; i < ret->n; i++)
            what &= ~ret->what[i];
        if (what && ret->n < VG_COUNT(ret->what)) {
            snprintf(ret->v1[ret->n], sizeof(ret->v1[0]), "%s", at);
            ret->what[ret->n++] = what;
        }
    }
    fclose(f);
    return 0;
}

static int open_v1(struct vg_cg *cg, const struct found *f, const char *tag) {
    for (size_t i = 0; i < f->n; i++) {
        char own[PATH_MAX] = "/";
        for (size_t c = 0; c < VG_COUNT(controllers); c++)
            if (f->what[i] & controllers[c].what &&
                own_group(controllers[c].name, own, sizeof(own)) == 0)
                break;
        int r = add_hier(cg, f->what[i], f->v1[i], own, tag);
        if (r < 0)
            return r;
    }
    int dev = vg_cg_hier(cg, VG_CG_DEVICES);
    if (dev < 0)
        return 0;
    if (mkdirat(dev, "base", 0755) < 0)
        return errno == EEXIST ? 0 : -errno;
    int r = vg_cg_put(dev, "base", "devices.deny", "a");
    for (size_t i = 0; r >= 0 && i < vg_cg_n_std_devs; i++) {
        char text[64];
        if (vg_cg_std_devs[i].minor == UINT32_MAX)
            snprintf(text, sizeof(text), "c %u:* rw", vg_cg_std_devs[i].major);
        else
            snprintf(text, sizeof(text), "c %u:%u rw", vg_cg_std_devs[i].major,
                     vg_cg_std_devs[i].minor);
        r = vg_cg_put(dev, "base", "devices.allow", text);
    }
    return r;
}

/* Hands the controllers we use down to the groups below `dir`; *ret_what: those there are. */
static int hand_down(int dir, unsigned *ret_what) {
    static const struct {
        const char *name, *text;
        unsigned what;
    } wanted[] = {{"cpu", "+cpu", VG_CG_CPU},
                  {"memory", "+memory", VG_CG_MEMORY},
                  {"pids", "+pids", VG_CG_PIDS}};
    char list[512];
    int r = vg_cg_get(dir, ".", "cgroup.controllers", list, sizeof(list));
    if (r < 0)
        return r;
    for (char *p = list; *p; p++)
        if (*p == ' ' || *p == '\n')
            *p = ',';
    *ret_what = VG_CG_CPUACCT | VG_CG_DEVICES; /* cpu.stat and programs need no controller */
    for (size_t i = 0; r >= 0 && i < VG_COUNT(wanted); i++)
        if (has_word(list, wanted[i].name)) {
            *ret_what |= wanted[i].what;
            r = vg_cg_put(dir, "", "cgroup.subtree_control", wanted[i].text);
        }
    if (r >= 0 && has_word(list, "io")) /* only looked at: without it less is told */
        (void)vg_cg_put(dir, "", "cgroup.subtree_control", "+io");
    return r;
}

/* Undoes the stepping into a leaf; in vain, and harmless, while keepers live on in it. */
static void step_back(int dir, const char *leaf) {
    (void)vg_cg_put(dir, "", "cgroup.subtree_control", "-cpu -memory -pids");
    (void)vg_cg_put(dir, "", "cgroup.subtree_control", "-io");
    (void)vg_cg_put(dir, "", "cgroup.procs", "0");
    unlinkat(dir, leaf, AT_REMOVEDIR);
}

/* A group with processes of its own cannot hand controllers down (but for the root), so the agent
   steps into a leaf beside the sandboxes' folder; when others remain there, the root is used. */
static int open_v2_at(struct vg_cg *cg, const char *mount, const char *own, const char *tag,
                      unsigned need, bool may_move) {
    char path[PATH_MAX + 256];
    unsigned what = 0;
    snprintf(path, sizeof(path), "%s%s", mount, own);
    vg_auto_fd int dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir < 0)
        return -errno;
    int r = hand_down(dir, &what);
    if (r >= 0 && (what & need) != need)
        r = -ENOTSUP;
    if (r == -EBUSY && may_move) {
        char leaf[64];
        snprintf(leaf, sizeof(leaf), "virga-%s-agent", tag);
        if (mkdirat(dir, leaf, 0755) < 0 && errno != EEXIST)
            return -errno;
        r = vg_cg_put(dir, leaf, "cgroup.procs", "0");
        if (r >= 0)
            r = open_v2_at(cg, mount, own, tag, need, false);
        if (r >= 0)
            cg->left = vg_strdup(path);
        else
            step_back(dir, leaf);
        return r;
    }
    if (r < 0)
        return r;
    cg->v2 = true;
    r = add_hier(cg, what, mount, own, tag);
    if (r >= 0)
        r = hand_down(cg->h[0].fd, &what);
    if (r >= 0)
        r = vg_cg_bpf_devices(cg->h[0].fd, NULL, 0);
    if (r < 0)
        vg_cg_close(cg);
    return r;
}

int vg_cg_open(struct vg_cg *cg, const char *tag, struct vg_err *err) {
    static struct found f;
    f = (struct found){0};
    *cg = (struct vg_cg){0};
    int r = find_mounts(&f);
    if (r >= 0 && f.n) {
        r = open_v1(cg, &f, tag);
    } else if (r >= 0 && f.v2[0]) {
        char own[PATH_MAX] = "/";
        const unsigned all = VG_CG_CPU | VG_CG_MEMORY | VG_CG_PIDS;
        own_group("", own, sizeof(own));
        r = open_v2_at(cg, f.v2, own, tag, all, true);
        if (r < 0 && strcmp(own, "/"))
            r = open_v2_at(cg, f.v2, "/", tag, all, false);
        if (r < 0) /* then without limits: asking for one is an error that says so */
            r = open_v2_at(cg, f.v2, own, tag, 0, false);
    }
    if (r < 0) {
        vg_cg_close(cg);
        return vg_err_sys(err, r,
                          "cannot make cgroups for sandboxes (is /sys/fs/cgroup writable?)");
    }
    return 0;
}

void vg_cg_close(struct vg_cg *cg) {
    for (size_t i = 0; i < cg->n; i++) {
        if (cg->h[i].what & VG_CG_DEVICES && !cg->v2)
            unlinkat(cg->h[i].fd, "base", AT_REMOVEDIR);
        close(cg->h[i].fd);
        rmdir(cg->h[i].path); /* fails while a keeper lives on: it is swept later */
        if (cg->left) {
            char leaf[NAME_MAX];
            vg_auto_fd int dir = open(cg->left, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
            snprintf(leaf, sizeof(leaf), "%s-agent", strrchr(cg->h[i].path, '/') + 1);
            if (dir >= 0)
                step_back(dir, leaf);
        }
        free(cg->h[i].path);
    }
    free(cg->left);
    *cg = (struct vg_cg){0};
}
