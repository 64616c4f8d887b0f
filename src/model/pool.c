/* What a pool grants. Pure. */
#include "model/pool.h"

#include "base/util.h"

const struct vg_pool_conf *vg_pool_find(const struct vg_conf *c, const char *name,
                                        struct vg_err *err) {
    if (!name || !*name)
        name = c->default_pool;
    const struct vg_pool_conf *p = vg_conf_pool(c, name);
    if (p)
        return p;
    const char *names[VG_CONF_POOLS_MAX];
    size_t n = 0;
    for (; n < c->n_pools && n < VG_CONF_POOLS_MAX; n++)
        names[n] = c->pool[n].name;
    const char *near = vg_conf_nearest(name, names, n);
    if (near)
        vg_err_set(err, VG_NOT_FOUND,
                   "there is no pool '%.64s'; did you mean '%s'? ('virga pool list' shows all)",
                   name, near);
    else
        vg_err_set(err, VG_NOT_FOUND, "there is no pool '%.64s'; 'virga pool list' shows them",
                   name);
    return NULL;
}

/* `max` 0: no limit. */
static uint64_t pick(uint64_t want, uint64_t shape, uint64_t max, bool *too_much) {
    uint64_t v = want ? want : shape;
    *too_much = max && v > max;
    return v;
}

static int refuse_size(const struct vg_pool_conf *p, const char *what, uint64_t v, uint64_t max,
                       struct vg_err *err) {
    char a[32], b[32];
    return vg_err_set(err, VG_INVALID, "pool '%s' gives a task at most %s of %s (asked: %s)",
                      p->name, vg_format_size(max, b, sizeof b), what,
                      vg_format_size(v, a, sizeof a));
}

static int refuse_count(const struct vg_pool_conf *p, const char *what, uint64_t v, uint64_t max,
                        struct vg_err *err) {
    return vg_err_set(err, VG_INVALID, "pool '%s' gives a task at most %llu %s (asked: %llu)",
                      p->name, (unsigned long long)max, what, (unsigned long long)v);
}

/* ", or for a share in pool 'a' or 'b'": those that give parts of a GPU, or whole ones. "" where
   there is none. Returns out. */
static char *say_others(const struct vg_conf *c, bool shares, char *out, size_t n) {
    size_t at = 0, said = 0;
    out[0] = 0;
    for (size_t i = 0; i < c->n_pools && said < 3 && at < n; i++) {
        enum vg_pool_class class = c->pool[i].class;
        if (shares ? !vg_pool_class_shares(class) : class != VG_CLASS_DEDICATED)
            continue;
        at += (size_t)snprintf(out + at, n - at, "%s'%s'",
                               said++   ? " or "
                               : shares ? ", or for a share in pool "
                                        : ", or for whole GPUs in pool ",
                               c->pool[i].name);
    }
    return out;
}

static int grant_gpus(const struct vg_conf *c, const struct vg_pool_conf *p, const struct vg_res *w,
                      struct vg_res *r, struct vg_err *err) {
    bool much, shares = vg_pool_class_shares(p->class);
    char others[3 * (VG_CONF_NAME_MAX + 16)];
    uint64_t max = p->max.gpus * 1000ULL + p->max.gpu_milli;
    uint64_t milli = pick(w->gpus * 1000ULL + w->gpu_milli,
                          p->shape.gpus * 1000ULL + p->shape.gpu_milli, max, &much);
    if (!shares && milli % 1000)
        return vg_err_set(err, VG_INVALID,
                          "pool '%s' gives whole GPUs only (class %s): ask for --gpus 1%s", p->name,
                          vg_pool_class_name(p->class), say_others(c, true, others, sizeof others));
    if (shares && milli >= 1000)
        return vg_err_set(err, VG_INVALID,
                          "pool '%s' gives parts of one GPU (class %s): ask for less than 1, such "
                          "as --gpus 0.5%s",
                          p->name, vg_pool_class_name(p->class),
                          say_others(c, false, others, sizeof others));
    if (much && shares)
        return vg_err_set(err, VG_INVALID, "pool '%s' gives a task at most %g of a GPU (asked: %g)",
                          p->name, (double)max / 1000, (double)milli / 1000);
    if (much)
        return refuse_count(p, "GPUs", milli / 1000, max / 1000, err);
    if (w->gpu_mem_bytes && !milli)
        return vg_err_set(err, VG_INVALID,
                          "--gpu-mem needs a GPU, and pool '%s' gives none that is not asked for: "
                          "add --gpus",
                          p->name);
    r->gpus = (uint32_t)(milli / 1000);
    r->gpu_milli = (uint32_t)(milli % 1000);
    r->gpu_mem_bytes = pick(w->gpu_mem_bytes, p->shape.gpu_mem_bytes, p->max.gpu_mem_bytes, &much);
    if (much)
        return refuse_size(p, "GPU memory", r->gpu_mem_bytes, p->max.gpu_mem_bytes, err);
    return 0;
}

int vg_pool_grant(const struct vg_conf *c, const struct vg_pool_conf *p,
                  const Vg__Pb__Resources *want, struct vg_res *ret, struct vg_err *err) {
    struct vg_res w = vg_res_from_pb(want), r = {0};
    bool much;
    r.cpu_milli = (uint32_t)pick(w.cpu_milli, p->shape.cpu_milli, p->max.cpu_milli, &much);
    if (much)
        return vg_err_set(err, VG_INVALID, "pool '%s' gives a task at most %g CPUs (asked: %g)",
                          p->name, p->max.cpu_milli / 1000.0, r.cpu_milli / 1000.0);
    r.mem_bytes = pick(w.mem_bytes, p->shape.mem_bytes, p->max.mem_bytes, &much);
    if (much)
        return refuse_size(p, "memory", r.mem_bytes, p->max.mem_bytes, err);
    int e = grant_gpus(c, p, &w, &r, err);
    if (e < 0)
        return e;
    r.pids = (uint32_t)pick(w.pids, p->shape.pids, p->max.pids, &much);
    if (much)
        return refuse_count(p, "processes", r.pids, p->max.pids, err);
    r.disk_bytes = pick(w.disk_bytes, p->shape.disk_bytes, p->max.disk_bytes, &much);
    if (much)
        return refuse_size(p, "disk", r.disk_bytes, p->max.disk_bytes, err);
    *ret = r;
    return 0;
}

uint64_t vg_pool_time_usec(const struct vg_pool_conf *p, uint64_t want_usec) {
    if (!p->max_time_usec)
        return want_usec;
    return want_usec && want_usec < p->max_time_usec ? want_usec : p->max_time_usec;
}
