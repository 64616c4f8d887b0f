/* A task's command: everything that the sandbox must know of it, from its Start. */
#include "agent/keeper-int.h"
#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"
#include "gpu/rdma.h"

#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#define RLIMITS_MAX 16

static char *bytes_dup(const ProtobufCBinaryData *d) {
    return d->len ? vg_strndup((const char *)d->data, d->len) : vg_strdup("");
}

static void strv_free(char **v) {
    for (size_t i = 0; v && v[i]; i++)
        free(v[i]);
    free(v);
}

static bool is_ours(const ProtobufCBinaryData *d) {
    static const char *const names[] = {"VIRGA_TASK_ID=", "VIRGA_TOKEN=", "VIRGA_SOCKET="};
    for (size_t i = 0; i < VG_COUNT(names); i++)
        if (d->len >= strlen(names[i]) && memcmp(d->data, names[i], strlen(names[i])) == 0)
            return true;
    return false;
}

/* Whether one of `more` sets the same variable: a program takes the first that it finds. */
static bool is_replaced(const ProtobufCBinaryData *d, const ProtobufCBinaryData *more, size_t n) {
    const uint8_t *eq = d->len ? memchr(d->data, '=', d->len) : NULL;
    size_t len = eq ? (size_t)(eq - d->data) + 1 : 0;
    for (size_t i = 0; i < n && len; i++)
        if (more[i].len >= len && memcmp(more[i].data, d->data, len) == 0)
            return true;
    return false;
}

static char **make_env(const struct ktask *t) {
    const Vg__Pb__Start *st = t->start;
    size_t cap = st->spec->n_env + st->n_extra_env + st->n_secret + 9, n = 0;
    char **v = vg_alloc(cap * sizeof(*v));
    if (!v)
        return NULL;
    for (size_t i = 0; i < st->spec->n_env; i++)
        if (!is_ours(&st->spec->env[i]) && !ksecret_replaces(st, &st->spec->env[i]) &&
            !is_replaced(&st->spec->env[i], st->extra_env, st->n_extra_env))
            v[n++] = bytes_dup(&st->spec->env[i]);
    for (size_t i = 0; i < st->n_extra_env; i++)
        if (!is_replaced(&st->extra_env[i], st->extra_env + i + 1, st->n_extra_env - i - 1))
            v[n++] = bytes_dup(&st->extra_env[i]);
    n += ksecret_env(st, v + n);
    char id[VG_ID_LEN + 1];
    vg_id_format(t->id, id);
    v[n++] = vg_fmt("VIRGA_TASK_ID=%s", id);
    v[n++] = vg_strdup("VIRGA_SOCKET=/run/virga/sock");
    if (st->task_token)
        v[n++] = vg_fmt("VIRGA_TOKEN=%s", st->task_token);
    for (size_t i = 0; i < n; i++)
        if (!v[i])
            v[i] = vg_strdup("VIRGA_LOST=1"); /* out of memory: execve will say so itself */
    return v;
}

static char **make_argv(const Vg__Pb__TaskSpec *spec) {
    char **v = vg_alloc((spec->n_argv + 1) * sizeof(*v));
    for (size_t i = 0; v && i < spec->n_argv; i++)
        v[i] = bytes_dup(&spec->argv[i]);
    return v;
}

/* The node's adapters for a task with whole GPUs. They work on memory that stays where it is, so
   there is no limit to that, whatever the caller's is. */
static size_t add_rdma(const struct keeper *k, char (*path)[VG_GPU_PATH], size_t max,
                       struct vg_rlimit *rl, size_t *n_rl) {
    struct vg_rdma r;
    size_t i = 0;
    vg_rdma_find(k->birth.gpus->root, &r);
    if (!r.n || r.n > max)
        return 0;
    memcpy(path, r.node, r.n * sizeof(r.node[0]));
    while (i < *n_rl && rl[i].which != RLIMIT_MEMLOCK)
        i++;
    if (i == RLIMITS_MAX)
        i--;
    rl[i] = (struct vg_rlimit){RLIMIT_MEMLOCK, RLIM_INFINITY, RLIM_INFINITY};
    *n_rl = VG_MAX(*n_rl, i + 1);
    return r.n;
}

static int do_exec(struct keeper *k, struct ktask *t, struct kstdio *s, int cwd_fd,
                   struct vg_err *err) {
    const Vg__Pb__Start *st = t->start;
    const Vg__Pb__TaskSpec *spec = st->spec;
    const Vg__Pb__Resources *g = st->grant;
    char **argv = make_argv(spec), **env = make_env(t);
    vg_auto_free char *cwd = bytes_dup(&spec->cwd);
    struct vg_bind binds[18 + VG_FSD_FDS];
    char *paths[16] = {0};
    size_t n_binds = 0;
    for (size_t i = 0; i < st->n_shared_path && i < VG_COUNT(paths); i++)
        if ((paths[i] = bytes_dup(&st->shared_path[i])))
            binds[n_binds++] = (struct vg_bind){.path = paths[i], .fd = -1};
    /* Without a descriptor (the task outlived a restart) the path is opened with the user's rights.
     */
    if (cwd && (cwd_fd >= 0 || st->who->local))
        binds[n_binds++] = (struct vg_bind){.path = cwd, .fd = cwd_fd};
    struct vg_bind mps = {.fd = -1};
    int r = kmps_bind(k, t, &mps, err);
    vg_auto_fd int mps_fd = mps.fd;
    (void)mps_fd; /* closed at the end */
    if (r > 0)
        binds[n_binds++] = mps;
    n_binds += kmirror_binds(t, binds + n_binds, VG_COUNT(binds) - n_binds);
    struct vg_rlimit rl[RLIMITS_MAX];
    size_t n_rl = 0;
    for (size_t i = 0; i < spec->n_rlimit && n_rl < VG_COUNT(rl); i++)
        rl[n_rl++] = (struct vg_rlimit){(int)spec->rlimit[i]->which, spec->rlimit[i]->soft,
                                        spec->rlimit[i]->hard};
    char dev_paths[VG_GPU_NODES_MAX][VG_GPU_PATH];
    struct vg_device devices[VG_COUNT(dev_paths)];
    size_t n_dev = 0;
    if (st->n_gpu && k->birth.gpus)
        n_dev = vg_gpu_devices(k->birth.gpus, k->birth.gpus->root, st->gpu, st->n_gpu, dev_paths,
                               VG_COUNT(dev_paths));
    if (st->rdma && n_dev)
        n_dev += add_rdma(k, dev_paths + n_dev, VG_COUNT(dev_paths) - n_dev, rl, &n_rl);
    for (size_t i = 0; i < n_dev; i++)
        devices[i] = (struct vg_device){.path = dev_paths[i], .root = k->birth.gpus->root};
    struct vg_near_cpus near = {.numa = st->near_numa};
    if (st->has_near_cpus && st->near_cpus.len == sizeof(near.cpus))
        memcpy(near.cpus, st->near_cpus.data, sizeof(near.cpus));
    struct vg_limits lim = {0};
    if (g && !kbare_is(t)) /* who has all of the node is limited by the node */
        lim = (struct vg_limits){g->cpu_milli, g->mem_bytes, g->pids, g->disk_bytes};
    vg_auto_free struct vg_given_file *given = NULL;
    size_t n_given = 0;
    if (r >= 0)
        r = ksecret_files(st, &given, &n_given, err);
    struct kgpu_lay *lay = NULL;
    bool share = kgpu_is_held(k, t);
    if (r >= 0 && share)
        r = kgpu_lay(k, t, &lay, err);
    struct vg_exec x = {
        .argv = argv,
        .env = env,
        .cwd = cwd && *cwd ? cwd : "/",
        .uid = st->who->uid,
        .gid = st->who->gid,
        .groups = st->who->groups,
        .n_groups = st->who->n_groups,
        .umask = spec->has_umask ? spec->umask : 022,
        .rlimits = rl,
        .n_rlimits = n_rl,
        .nice = (int)spec->nice,
        .sig_ignored = spec->sig_ignored,
        .fds = {s->child[0], s->child[1], s->child[2]},
        .tty = t->tty,
        .limits = &lim,
        .binds = binds,
        .n_binds = n_binds,
        .devices = devices,
        .n_devices = n_dev,
        .lay = kgpu_laid(lay),
        .given = given,
        .n_given = n_given,
        .near = st->has_near_cpus ? &near : NULL,
        .watched = share,
        .open_devices = kbare_is(t),
    };
    if (r >= 0)
        r = argv && env && argv[0] ? vg_sandbox_exec(k->sb, t->id, &x, err)
                                   : vg_err_set(err, VG_INVALID, "there is no command to run");
    free(lay);
    strv_free(argv);
    if (st->n_secret)
        ksecret_wipe(t->start, env);
    strv_free(env);
    for (size_t i = 0; i < VG_COUNT(paths); i++)
        free(paths[i]);
    return r;
}

void ktask_launch(struct keeper *k, struct ktask *t, int stdin_fd, int cwd_fd) {
    struct kstdio s;
    struct vg_err err = VG_ERR_INIT;
    int r = kstdio_make(k, t, stdin_fd, &s);
    if (r < 0)
        vg_err_sys(&err, r, "cannot make the task's pipes");
    else
        r = do_exec(k, t, &s, cwd_fd, &err);
    kstdio_close(&s);
    vg_close(&cwd_fd);
    if (r < 0) {
        ktask_fail(k, t, err.reason, "%s", err.msg);
        return;
    }
    kstdio_begin(k, t);
}
