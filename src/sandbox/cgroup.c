/* Cgroups, v1 and v2, behind one interface. Each hierarchy has a folder virga-<tag> below the
   agent's own group; a sandbox has one folder <name> in it. Moving a process between groups waits
   for a grace period on the whole machine, so only init moves, once, ahead of need (v1); on v2 it
   is born inside. On v1 all sandboxes without extra devices share one devices group ("base").

   Opening and closing them is cgroup-open.c.

   Called in the agent (open, close, sweep), the keeper, and init (enter). One thread each. */
#include "base/cleanup.h"
#include "base/fault.h"
#include "base/mem.h"
#include "base/util.h"
#include "sandbox/sandbox-priv.h"
#include "sandbox/sys.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <time.h>

const struct vg_cg_dev vg_cg_std_devs[] = {{1, 3}, {1, 5}, {1, 7}, {1, 8},
                                           {1, 9}, {5, 0}, {5, 2}, {136, UINT32_MAX}};
const size_t vg_cg_n_std_devs = VG_COUNT(vg_cg_std_devs);

/* ---- files ----------------------------------------------------------------------------------- */

int vg_cg_put(int dir, const char *name, const char *file, const char *text) {
    char path[NAME_MAX * 2];
    snprintf(path, sizeof(path), "%s%s%s", name, *name ? "/" : "", file);
    vg_auto_fd int fd = openat(dir, path, O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    return write(fd, text, strlen(text)) < 0 ? -errno : 0;
}

static int put_u64(int dir, const char *name, const char *file, uint64_t v) {
    char text[32];
    snprintf(text, sizeof(text), "%" PRIu64, v);
    return vg_cg_put(dir, name, file, text);
}

int vg_cg_get(int dir, const char *name, const char *file, char *out, size_t n) {
    char path[NAME_MAX * 2];
    snprintf(path, sizeof(path), "%s/%s", name, file);
    vg_auto_fd int fd = openat(dir, path, O_RDONLY | O_CLOEXEC);
    ssize_t got = fd < 0 ? -1 : read(fd, out, n - 1);
    if (got < 0)
        return -errno;
    out[got] = 0;
    return 0;
}

static uint64_t get_u64(int dir, const char *name, const char *file) {
    char text[64];
    unsigned long long v = 0;
    if (vg_cg_get(dir, name, file, text, sizeof(text)) < 0 || sscanf(text, "%llu", &v) != 1)
        return 0;
    return v;
}

/* The number after "key " at the start of a line. */
static uint64_t get_key(int dir, const char *name, const char *file, const char *key) {
    char text[4096], want[64];
    unsigned long long v = 0;
    if (vg_cg_get(dir, name, file, text, sizeof(text)) < 0)
        return 0;
    snprintf(want, sizeof(want), "%s ", key);
    for (char *line = text; line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL)
        if (!strncmp(line, want, strlen(want))) {
            sscanf(line + strlen(want), "%llu", &v);
            break;
        }
    return v;
}

int vg_cg_hier(const struct vg_cg *cg, unsigned what) {
    for (size_t i = 0; i < cg->n; i++)
        if (cg->h[i].what & what)
            return cg->h[i].fd;
    return -1;
}

/* ---- one sandbox ------------------------------------------------------------------------------
 */

static bool own_folder(const struct vg_cg *cg, size_t i) {
    return cg->v2 || cg->h[i].what != VG_CG_DEVICES;
}

int vg_cg_make(const struct vg_cg *cg, const char *name) {
    for (size_t i = 0; i < cg->n; i++) {
        int r = vg_fault("sandbox.cgroup");
        if (r >= 0 && own_folder(cg, i) && mkdirat(cg->h[i].fd, name, 0755) < 0)
            r = -errno;
        if (r < 0) {
            while (i-- > 0)
                unlinkat(cg->h[i].fd, name, AT_REMOVEDIR);
            return r;
        }
    }
    return 0;
}

int vg_cg_clone_fd(const struct vg_cg *cg, const char *name) {
    if (!cg->v2 || !cg->n)
        return -1;
    int fd = openat(cg->h[0].fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return fd < 0 ? -errno : fd;
}

int vg_cg_enter(const struct vg_cg *cg, const char *name) {
    int r = 0;
    for (size_t i = 0; r >= 0 && !cg->v2 && i < cg->n; i++)
        r = vg_cg_put(cg->h[i].fd, own_folder(cg, i) ? name : "base", "cgroup.procs", "0");
    return r;
}

/* The kernel lets go of the last process a moment after it was reaped. */
static void remove_dir(int dir, const char *name) {
    for (int i = 0; i < 200; i++) {
        if (unlinkat(dir, name, AT_REMOVEDIR) == 0 || errno != EBUSY)
            return;
        if (i < 4)
            sched_yield();
        else
            nanosleep(&(struct timespec){.tv_nsec = i < 20 ? 200000 : 5000000}, NULL);
    }
}

void vg_cg_remove(const struct vg_cg *cg, const char *name) {
    for (size_t i = 0; i < cg->n; i++)
        remove_dir(cg->h[i].fd, name);
}

/* ---- limits ------------------------------------------------------------------------------------
 */

#define CPU_PERIOD_USEC 100000u

static int limit_cpu(const struct vg_cg *cg, const char *name, uint32_t milli) {
    char text[64];
    uint64_t quota = VG_MAX((uint64_t)milli * CPU_PERIOD_USEC / 1000, 1000u);
    int fd = vg_cg_hier(cg, VG_CG_CPU);
    if (fd < 0)
        return -ENOTSUP;
    if (!cg->v2)
        return put_u64(fd, name, "cpu.cfs_quota_us", quota);
    snprintf(text, sizeof(text), "%" PRIu64 " %u", quota, CPU_PERIOD_USEC);
    return vg_cg_put(fd, name, "cpu.max", text);
}

/* Swap is not part of what was asked for, so none is given; a kernel without swap accounting has no
   such file. */
static int limit_memory(const struct vg_cg *cg, const char *name, uint64_t bytes) {
    int fd = vg_cg_hier(cg, VG_CG_MEMORY), r;
    if (fd < 0)
        return -ENOTSUP;
    if (cg->v2) {
        r = put_u64(fd, name, "memory.max", bytes);
        (void)put_u64(fd, name, "memory.swap.max", 0);
        return r;
    }
    r = put_u64(fd, name, "memory.limit_in_bytes", bytes);
    if (r >= 0)
        (void)put_u64(fd, name, "memory.memsw.limit_in_bytes", bytes);
    else if (put_u64(fd, name, "memory.memsw.limit_in_bytes", bytes) >=
             0) /* raising: the other first */
        r = put_u64(fd, name, "memory.limit_in_bytes", bytes);
    return r;
}

int vg_cg_limit(const struct vg_cg *cg, const char *name, const struct vg_limits *l,
                struct vg_err *err) {
    int r = l->cpu_milli ? limit_cpu(cg, name, l->cpu_milli) : 0;
    if (r < 0)
        return vg_err_sys(err, r, "cannot limit the CPU of a sandbox");
    r = l->mem_bytes ? limit_memory(cg, name, l->mem_bytes) : 0;
    if (r < 0)
        return vg_err_sys(err, r, "cannot limit the memory of a sandbox");
    if (l->pids) {
        int fd = vg_cg_hier(cg, VG_CG_PIDS);
        r = fd < 0 ? -ENOTSUP : put_u64(fd, name, "pids.max", (uint64_t)l->pids + 1 /* init */);
    }
    return r < 0 ? vg_err_sys(err, r, "cannot limit the processes of a sandbox") : 0;
}

int vg_cg_devices(const struct vg_cg *cg, const char *name, pid_t pid, const dev_t *devs,
                  size_t n) {
    int dir = vg_cg_hier(cg, VG_CG_DEVICES);
    if (dir < 0)
        return 0; /* no such controller: the nodes in /dev are the only ones there are */
    if (cg->v2) {
        vg_auto_fd int fd = openat(dir, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        return fd < 0 ? -errno : vg_cg_bpf_devices(fd, devs, n);
    }
    bool fresh = mkdirat(dir, name, 0755) == 0;
    if (!fresh && errno != EEXIST)
        return -errno;
    char text[64];
    int r = 0;
    if (fresh) {
        r = vg_cg_put(dir, name, "devices.deny", "a");
        for (size_t i = 0; r >= 0 && i < VG_COUNT(vg_cg_std_devs); i++) {
            bool all = vg_cg_std_devs[i].minor == UINT32_MAX;
            snprintf(text, sizeof(text), all ? "c %u:* rw" : "c %u:%u rw", vg_cg_std_devs[i].major,
                     vg_cg_std_devs[i].minor);
            r = vg_cg_put(dir, name, "devices.allow", text);
        }
    }
    for (size_t i = 0; r >= 0 && i < n; i++) {
        snprintf(text, sizeof(text), "c %u:%u rw", major(devs[i]), minor(devs[i]));
        r = vg_cg_put(dir, name, "devices.allow", text);
    }
    snprintf(text, sizeof(text), "%d", (int)pid);
    return r < 0 || !fresh ? r : vg_cg_put(dir, name, "cgroup.procs", text);
}

int vg_cg_open_devices(const struct vg_cg *cg, const char *name, pid_t pid) {
    int dir = vg_cg_hier(cg, VG_CG_DEVICES);
    char text[16];
    if (dir < 0)
        return 0;
    if (cg->v2) {
        vg_auto_fd int fd = openat(dir, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        return fd < 0 ? -errno : vg_cg_bpf_all_devices(fd);
    }
    /* A folder beside "base", which is the one that refuses: it has what its parent has. */
    if (mkdirat(dir, name, 0755) < 0 && errno != EEXIST)
        return -errno;
    snprintf(text, sizeof(text), "%d", (int)pid);
    return vg_cg_put(dir, name, "cgroup.procs", text);
}

int vg_cg_count(const struct vg_cg *cg, const char *name) {
    char path[160], block[4096];
    size_t i = 0;
    while (i < cg->n && !own_folder(cg, i))
        i++;
    if (i == cg->n)
        return -ENOENT;
    snprintf(path, sizeof(path), "%s/cgroup.procs", name);
    vg_auto_fd int fd = openat(cg->h[i].fd, path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    int lines = 0;
    for (ssize_t n; (n = read(fd, block, sizeof(block))) > 0;)
        for (ssize_t k = 0; k < n; k++)
            lines += block[k] == '\n';
    return lines;
}

/* ---- usage
 * --------------------------------------------------------------------------------------- */

int vg_cg_usage(const struct vg_cg *cg, const char *name, struct vg_usage *ret) {
    int acct = vg_cg_hier(cg, VG_CG_CPUACCT), mem = vg_cg_hier(cg, VG_CG_MEMORY),
        pids = vg_cg_hier(cg, VG_CG_PIDS);
    if (acct >= 0)
        ret->cpu_usec = cg->v2 ? get_key(acct, name, "cpu.stat", "usage_usec")
                               : get_u64(acct, name, "cpuacct.usage") / 1000;
    if (mem >= 0 && cg->v2) {
        ret->mem_bytes = get_u64(mem, name, "memory.current");
        ret->mem_peak_bytes = get_u64(mem, name, "memory.peak"); /* Linux 5.19 */
        ret->oom = get_key(mem, name, "memory.events", "oom_kill") > 0;
    } else if (mem >= 0) {
        ret->mem_bytes = get_u64(mem, name, "memory.usage_in_bytes");
        ret->mem_peak_bytes = get_u64(mem, name, "memory.max_usage_in_bytes");
        ret->oom = get_key(mem, name, "memory.oom_control", "oom_kill") > 0;
    }
    if (pids >= 0) {
        uint64_t n = get_u64(pids, name, "pids.current");
        ret->pids = n ? (uint32_t)n - 1 : 0; /* init is ours */
    }
    return 0;
}

/* Bytes of every device: "8:0 rbytes=1 wbytes=2 rios=...". */
static bool sum_io(int dir, const char *name, struct vg_sandbox_sample *ret) {
    char text[4096];
    if (vg_cg_get(dir, name, "io.stat", text, sizeof(text)) < 0)
        return false;
    for (const char *p = text; (p = strchr(p, ' ')); p++) {
        unsigned long long v;
        if (sscanf(p, " rbytes=%llu", &v) == 1)
            ret->read_bytes += v;
        else if (sscanf(p, " wbytes=%llu", &v) == 1)
            ret->write_bytes += v;
    }
    return true;
}

int vg_cg_sample(const struct vg_cg *cg, const char *name, struct vg_sandbox_sample *ret) {
    int acct = vg_cg_hier(cg, VG_CG_CPUACCT), mem = vg_cg_hier(cg, VG_CG_MEMORY);
    char text[64];
    *ret = (struct vg_sandbox_sample){0};
    if (acct < 0)
        return -ENOTSUP;
    if (cg->v2)
        ret->cpu_usec = get_key(acct, name, "cpu.stat", "usage_usec");
    int r = cg->v2 ? 0 : vg_cg_get(acct, name, "cpuacct.usage", text, sizeof(text));
    if (r < 0)
        return r; /* it is gone */
    if (!cg->v2)
        ret->cpu_usec = strtoull(text, NULL, 10) / 1000;
    if (mem >= 0)
        ret->mem_bytes = get_u64(mem, name, cg->v2 ? "memory.current" : "memory.usage_in_bytes");
    ret->has_io = cg->v2 && sum_io(acct, name, ret);
    return 0;
}

/* v2 forgets a peak for the descriptor that asked, and only since Linux 6.12. */
static int reset_peak(int mem, const char *name, int *peak_fd) {
    char path[160];
    snprintf(path, sizeof(path), "%s/memory.peak", name);
    if (*peak_fd < 0)
        *peak_fd = openat(mem, path, O_RDWR | O_CLOEXEC);
    if (*peak_fd >= 0 && write(*peak_fd, "0", 1) == 1)
        return 0;
    vg_close(peak_fd);
    return -ENOTSUP;
}

uint64_t vg_cg_peak(int peak_fd) {
    char text[32];
    ssize_t n = pread(peak_fd, text, sizeof(text) - 1, 0);
    text[n > 0 ? n : 0] = 0;
    return strtoull(text, NULL, 10);
}

int vg_cg_reset(const struct vg_cg *cg, const char *name, struct vg_usage *base, int *peak_fd) {
    int mem = vg_cg_hier(cg, VG_CG_MEMORY);
    if (mem >= 0 && (cg->v2 ? reset_peak(mem, name, peak_fd)
                            : vg_cg_put(mem, name, "memory.max_usage_in_bytes", "0")) < 0)
        return -ENOTSUP;
    *base = (struct vg_usage){0};
    int r = vg_cg_usage(cg, name, base);
    return r >= 0 && base->oom ? -ENOTSUP : r;
}

/* ---- leftovers
 * -------------------------------------------------------------------------------------- */

/* Kills what still runs in a folder that nobody claims; v1 has no other way than one by one. */
static void kill_members(const struct vg_cg *cg, int dir, const char *name) {
    char text[4096];
    if (cg->v2 && vg_cg_put(dir, name, "cgroup.kill", "1") >= 0)
        return;
    for (int round = 0; round < 50; round++) {
        if (vg_cg_get(dir, name, "cgroup.procs", text, sizeof(text)) < 0 || !text[0])
            return;
        for (char *p = text; *p; p += strcspn(p, "\n"), p += *p == '\n') {
            long pid = strtol(p, NULL, 10);
            if (pid > 1)
                kill((pid_t)pid, SIGKILL);
        }
        nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    }
}

void vg_cg_sweep(const struct vg_cg *cg, bool (*live)(const char *name, void *user), void *user) {
    for (size_t i = 0; i < cg->n; i++) {
        int fd = openat(cg->h[i].fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        DIR *d = fd < 0 ? NULL : fdopendir(fd);
        if (!d) {
            vg_close(&fd);
            continue;
        }
        for (struct dirent *e; (e = readdir(d));) {
            bool base = cg->h[i].what == VG_CG_DEVICES && !strcmp(e->d_name, "base");
            if (e->d_type != DT_DIR || e->d_name[0] == '.' || base || live(e->d_name, user))
                continue;
            kill_members(cg, cg->h[i].fd, e->d_name);
            remove_dir(cg->h[i].fd, e->d_name);
        }
        closedir(d);
    }
}
