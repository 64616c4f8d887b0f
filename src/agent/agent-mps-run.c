#include "agent/agent-mps-run.h"

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

char *vg_mps_path(const struct vg_agent *a, uint32_t card, const char *name) {
    return vg_fmt("%s/mps/%u/%s", a->node_dir, card, name);
}

/* What an earlier daemon left would be taken for this one's. */
int vg_mps_make_folders(const struct vg_agent *a, uint32_t card) {
    vg_auto_free char *pipe_dir = vg_mps_path(a, card, "pipe"),
                      *log_dir = vg_mps_path(a, card, "log");
    if (!pipe_dir || !log_dir)
        return -ENOMEM;
    int r = vg_mkdir_p(pipe_dir, 0755);
    if (r >= 0)
        r = vg_mkdir_p(log_dir, 0755);
    DIR *d = r < 0 ? NULL : opendir(pipe_dir);
    for (struct dirent *e; d && (e = readdir(d));)
        if (e->d_name[0] != '.')
            unlinkat(dirfd(d), e->d_name, 0);
    if (d)
        closedir(d);
    return r;
}

/* A file of the driver's; `n` counts the end of the name where it must be that and no longer. */
static const char *driver_file(const struct vg_agent *a, const char *name, size_t n) {
    for (size_t i = 0; i < a->driver.n; i++) {
        const char *base = strrchr(a->driver.path[i], '/');
        if (base && strncmp(base + 1, name, n) == 0)
            return a->driver.path[i];
    }
    return NULL;
}

/* Beside the driver's libraries, else where a shell would find it. */
static char *find_program(const struct vg_agent *a) {
    const char *known = driver_file(a, VG_MPS_PROGRAM, sizeof(VG_MPS_PROGRAM));
    if (known)
        return vg_strdup(known);
    for (const char *p = getenv("PATH"); p && *p;) {
        int n = (int)strcspn(p, ":");
        char *path = n ? vg_fmt("%.*s/" VG_MPS_PROGRAM, n, p) : NULL;
        if (path && access(path, X_OK) == 0)
            return path;
        free(path);
        p += n + (p[n] == ':');
    }
    return NULL;
}

/* NAME=folder of `file`:what the agent itself has. */
static char *path_list(const char *name, const char *file) {
    const char *own = getenv(name);
    int n = file ? (int)(strrchr(file, '/') - file) : 0;
    return vg_fmt("%s=%.*s%s%s", name, n, file ? file : "", n && own ? ":" : "", own ? own : "");
}

int vg_mps_run(const struct vg_agent *a, uint32_t card, const char *const *argv, const int fds[3],
               bool session, pid_t *ret) {
    char visible[128] = "";
    vg_auto_free char *program = find_program(a);
    vg_auto_free char *pipe_dir = vg_mps_path(a, card, "pipe"),
                      *log_dir = vg_mps_path(a, card, "log");
    if (!program)
        return -ENOENT;
    if (!pipe_dir || !log_dir || vg_gpu_visible(&a->gpus, &card, 1, visible, sizeof(visible)) < 0)
        return -ENOMEM;
    char *env[] = {path_list("PATH", program), /* the server is beside it */
                   path_list("LD_LIBRARY_PATH", driver_file(a, "libcuda.so.", 11)),
                   vg_fmt("CUDA_VISIBLE_DEVICES=%s", visible),
                   vg_fmt("CUDA_MPS_PIPE_DIRECTORY=%s", pipe_dir),
                   vg_fmt("CUDA_MPS_LOG_DIRECTORY=%s", log_dir),
                   NULL};
    int r = 0;
    for (size_t i = 0; i + 1 < VG_COUNT(env); i++)
        r = env[i] ? r : -ENOMEM;
    if (r >= 0)
        r = vg_agent_run(program, argv, env, fds, session, ret);
    for (size_t i = 0; i + 1 < VG_COUNT(env); i++)
        free(env[i]);
    return r;
}

/* The daemon that an earlier agent started, if that is what has this number now. */
pid_t vg_mps_find_daemon(const struct vg_agent *a, uint32_t card) {
    vg_auto_free char *path = vg_mps_path(a, card, "pipe/" VG_MPS_PROGRAM ".pid"), *text = NULL,
                      *line = NULL;
    char proc[64];
    size_t n;
    uint64_t pid;
    if (!path || vg_read_file(path, 32, &text, &n) < 0)
        return 0;
    text[strcspn(text, " \n")] = 0;
    if (vg_parse_u64(text, &pid) < 0 || pid < 2 || pid > INT32_MAX)
        return 0;
    snprintf(proc, sizeof(proc), "/proc/%llu/cmdline", (unsigned long long)pid);
    if (vg_read_file(proc, 4096, &line, &n) < 0 ||
        !memmem(line, n, VG_MPS_PROGRAM, strlen(VG_MPS_PROGRAM)))
        return 0;
    return (pid_t)pid;
}
