/* What the configured policy means for one queue or user; amounts of money. */
#include "base/cleanup.h"
#include "base/util.h"
#include "conf/parse.h"

#include <stdio.h>

/* Above every queue. */
static struct vg_tenant_conf root_policy(const struct vg_conf *c) {
    struct vg_tenant_conf t = vg_tenant_conf_default();
    t.max_priority = VG_PRIORITY_MAX;
    t.default_priority = VG_PRIORITY_DEFAULT;
    t.min_run_usec = c->scheduler.min_run_usec;
    t.preemptible = 0;
    return t;
}

static struct vg_tenant_conf inherit(struct vg_tenant_conf t, const struct vg_tenant_conf *above) {
    if (t.max_priority == (uint32_t)VG_INHERIT)
        t.max_priority = above->max_priority;
    if (t.default_priority == (uint32_t)VG_INHERIT)
        t.default_priority = VG_MIN(above->default_priority, t.max_priority);
    if (t.min_run_usec == (uint64_t)VG_INHERIT)
        t.min_run_usec = above->min_run_usec;
    if (t.preemptible == VG_INHERIT)
        t.preemptible = above->preemptible;
    return t;
}

static uint64_t add_sat(uint64_t a, uint64_t b) {
    return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

/* A queue that was promised nothing itself has what was promised to those in it: otherwise their
   promises would stop at its door. */
static struct vg_amount promised(const struct vg_conf *c, int queue) {
    struct vg_amount own = c->queue[queue].self.quota, sum = {0};
    for (size_t i = (size_t)queue + 1; i < c->n_queues; i++) {
        if (c->queue[i].parent != queue)
            continue;
        struct vg_amount below = promised(c, (int)i);
        sum.gpu_milli = add_sat(sum.gpu_milli, below.gpu_milli);
        sum.cpu_milli = add_sat(sum.cpu_milli, below.cpu_milli);
        sum.mem_bytes = add_sat(sum.mem_bytes, below.mem_bytes);
    }
    return (struct vg_amount){own.gpu_milli ? own.gpu_milli : sum.gpu_milli,
                              own.cpu_milli ? own.cpu_milli : sum.cpu_milli,
                              own.mem_bytes ? own.mem_bytes : sum.mem_bytes};
}

struct vg_tenant_conf vg_conf_queue_policy(const struct vg_conf *c, int queue) {
    if (queue < 0)
        return root_policy(c);
    struct vg_tenant_conf above = vg_conf_queue_policy(c, c->queue[queue].parent);
    struct vg_tenant_conf t = inherit(c->queue[queue].self, &above);
    t.quota = promised(c, queue);
    return t;
}

struct vg_tenant_conf vg_conf_team_policy(const struct vg_conf *c, int queue) {
    struct vg_tenant_conf above = vg_conf_queue_policy(c, queue);
    return inherit(vg_tenant_conf_default(), &above);
}

struct vg_tenant_conf vg_conf_user_policy(const struct vg_conf *c, int queue, bool own,
                                          const char *user) {
    struct vg_tenant_conf above =
        own ? vg_conf_team_policy(c, queue) : vg_conf_queue_policy(c, queue);
    if (own || queue < 0)
        return inherit(vg_tenant_conf_default(), &above);
    for (size_t i = (size_t)queue + 1; i < c->n_queues; i++)
        if (c->queue[i].parent == queue && c->queue[i].is_user &&
            strcmp(c->queue[i].name, user) == 0)
            return inherit(c->queue[i].self, &above);
    return inherit(c->queue[queue].each_user, &above);
}

char *vg_conf_queue_path(const struct vg_conf *c, int queue, char *out, size_t n) {
    out[0] = '\0';
    if (queue < 0)
        return out;
    vg_conf_queue_path(c, c->queue[queue].parent, out, n);
    size_t at = strlen(out);
    snprintf(out + at, n - at, at ? "/%s" : "%s", c->queue[queue].name);
    return out;
}

/* ------------------------------------------------------------------ money */

int vg_parse_micro(const char *s, uint64_t *ret) {
    uint64_t v = 0;
    unsigned digits = 0, decimals = 0;
    bool point = false;
    for (; *s; s++) {
        if (*s == '.' && !point) {
            point = true;
            continue;
        }
        if (*s < '0' || *s > '9')
            return -EINVAL;
        if (++digits > 18 || (point && ++decimals > 6))
            return -EINVAL;
        v = v * 10 + (uint64_t)(*s - '0');
    }
    if (!digits || (point && !decimals))
        return -EINVAL;
    for (; decimals < 6; decimals++)
        if (__builtin_mul_overflow(v, 10, &v))
            return -EINVAL;
    *ret = v;
    return 0;
}
