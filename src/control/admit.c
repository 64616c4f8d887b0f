/* What a request may ask for, and what is filled in where it does not say. */
#include "base/mem.h"
#include "base/util.h"
#include "control/bare.h"
#include "control/control.h"
#include "control/policy.h"
#include "control/price.h"
#include "model/pool.h"

#include <string.h>

/* protobuf-c's own empty string is not to be freed. */
static int set_text(char **field, const char *s) {
    char *copy = vg_strdup(s);
    if (!copy)
        return -ENOMEM;
    if (*field && *field != (char *)protobuf_c_empty_string)
        free(*field);
    *field = copy;
    return 0;
}

static int admit_priority(const struct vg_pool_conf *pool, const struct vg_tenant_conf *t,
                          Vg__Pb__TaskSpec *spec, struct vg_err *err) {
    uint32_t most = VG_MIN(t->max_priority, pool->max_priority);
    if (!spec->has_priority)
        spec->priority = VG_MIN(t->default_priority, most);
    if (spec->priority > most)
        return vg_err_set(
            err, VG_FORBIDDEN, "priority %u is more than %s may ask for: at most %u is allowed",
            spec->priority, t->max_priority <= pool->max_priority ? "you" : "tasks of this pool",
            most);
    spec->has_priority = 1;
    return 0;
}

static int admit_time(const struct vg_control *c, const struct vg_pool_conf *pool,
                      const struct vg_res *grant, Vg__Pb__TaskSpec *spec, struct vg_err *err) {
    spec->time_limit_usec = vg_pool_time_usec(pool, spec->time_limit_usec);
    struct vg_hold h = vg_hold_of(grant, spec->preemptible);
    if (spec->max_cost_micro &&
        vg_prices_pay_usec(c, pool, &h, vg_wall_usec(), spec->max_cost_micro) < VG_USEC)
        return vg_err_set(err, VG_INVALID,
                          "--max-cost would not pay for a second on pool '%s': raise it or ask for "
                          "less",
                          pool->name);
    spec->has_time_limit_usec = spec->time_limit_usec != 0;
    return 0;
}

/* The other acceptable pools give the same as the first: what each would give by itself only has to
   be allowed there. */
static int admit_others(struct vg_control *c, const struct vg_pool_conf *pool,
                        Vg__Pb__TaskSpec *spec, const struct vg_res *grant, struct vg_err *err) {
    Vg__Pb__Resources want = vg_res_to_pb(*grant);
    if (spec->n_also_pool >= VG_ENG_POOLS_MAX)
        return vg_err_set(err, VG_INVALID, "a task may name at most %d pools", VG_ENG_POOLS_MAX);
    for (size_t i = 0; i < spec->n_also_pool; i++) {
        struct vg_res other;
        const struct vg_pool_conf *p = vg_pool_find(&c->conf, spec->also_pool[i], err);
        if (!p)
            return err->code;
        int r = vg_pool_grant(&c->conf, p, &want, &other, err);
        if (r < 0)
            return r;
        if (p->class != pool->class && (grant->gpus || grant->gpu_milli))
            return vg_err_set(err, VG_INVALID,
                              "pools '%s' (class %s) and '%s' (class %s) give GPUs in different "
                              "ways: name pools of one class",
                              pool->name, vg_pool_class_name(pool->class), p->name,
                              vg_pool_class_name(p->class));
        if ((p->class == VG_CLASS_BARE) != (pool->class == VG_CLASS_BARE))
            return vg_err_set(err, VG_INVALID,
                              "of pools '%s' and '%s' one gives whole nodes (class bare-metal) and "
                              "the other parts of them: name pools of one kind",
                              pool->name, p->name);
        spec->time_limit_usec = vg_pool_time_usec(p, spec->time_limit_usec);
        spec->has_time_limit_usec = spec->time_limit_usec != 0;
    }
    return 0;
}

int vg_admit(struct vg_control *c, const struct vg_user *u, Vg__Pb__TaskSpec *spec,
             struct vg_res *ret_grant, struct vg_err *err) {
    struct vg_tenant_conf t = vg_policy_of(c, u->team->name, u->name);
    const struct vg_pool_conf *pool = vg_pool_find(&c->conf, spec->pool, err);
    struct vg_res grant;
    if (!pool)
        return err->code;
    if (!spec->has_preemptible) {
        spec->has_preemptible = 1;
        spec->preemptible = t.preemptible;
    }
    int r = vg_pool_grant(&c->conf, pool, spec->want, &grant, err);
    if (r >= 0 && spec->gpu_hard && !(pool->class == VG_CLASS_MPS && grant.gpu_milli))
        r = vg_err_set(
            err, VG_INVALID,
            "--gpu-hard is for a share in a pool of class mps, where each program is kept to "
            "its part of the GPU: ask for one there (pool '%s' is of class %s)",
            pool->name, vg_pool_class_name(pool->class));
    if (r >= 0)
        r = admit_priority(pool, &t, spec, err);
    if (r >= 0)
        r = admit_time(c, pool, &grant, spec, err);
    if (r >= 0)
        r = admit_others(c, pool, spec, &grant, err);
    if (r >= 0)
        r = vg_bare_admit(pool, spec, err);
    if (r >= 0 && (!spec->pool || strcmp(spec->pool, pool->name) != 0) &&
        set_text(&spec->pool, pool->name) < 0)
        r = vg_err_sys(err, ENOMEM, "cannot take the task");
    if (r < 0)
        return r;
    *ret_grant = grant;
    return 0;
}
