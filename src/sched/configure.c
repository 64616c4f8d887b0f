/* From configuration to engine: see configure.h. */
#include "sched/configure.h"

#include <stdio.h>
#include <string.h>

/* FNV-1a over the kind and the name, with its end. */
static uint64_t name_id(char kind, const char *name) {
    uint64_t h = (0xcbf29ce484222325ULL ^ (uint8_t)kind) * 0x100000001b3ULL;
    for (const char *p = name;; p++) {
        h = (h ^ (uint8_t)*p) * 0x100000001b3ULL;
        if (!*p)
            return h ? h : 1;
    }
}

uint64_t vg_eng_pool_id(const char *name) {
    return name_id('p', name);
}

uint64_t vg_eng_queue_id(const char *path) {
    return name_id('q', path);
}

void vg_eng_pool_label(const char *pool, char *out) {
    snprintf(out, VG_ENG_POOL_LABEL, "=pool=%s", pool);
}

/* ------------------------------------------------------------------ tenants */

static struct vg_eng_amount amount_of(const struct vg_amount *a) {
    return (struct vg_eng_amount){a->gpu_milli, a->cpu_milli, a->mem_bytes};
}

static int set_tenant(struct vg_eng *e, uint64_t id, uint64_t parent, const char *path,
                      const struct vg_tenant_conf *t) {
    const char *slash = strrchr(path, '/');
    struct vg_eng_tenant in = {.id = id,
                               .parent = parent,
                               .name = slash ? slash + 1 : path,
                               .quota = amount_of(&t->quota),
                               .limit = amount_of(&t->limit),
                               .weight = t->weight,
                               /* 0 would mean the parent's; here it was said */
                               .min_run_usec = t->min_run_usec ? t->min_run_usec : 1};
    return vg_eng_set_tenant(e, &in);
}

static uint64_t queue_id(const struct vg_conf *c, int queue) {
    char path[512];
    return queue < 0 ? 0 : vg_eng_queue_id(vg_conf_queue_path(c, queue, path, sizeof path));
}

static int set_queues(struct vg_eng *e, const struct vg_conf *c) {
    int r = 0;
    for (size_t i = 0; r >= 0 && i < c->n_queues; i++) {
        char path[512];
        if (c->queue[i].is_user)
            continue; /* set up when they come */
        struct vg_tenant_conf t = vg_conf_queue_policy(c, (int)i);
        vg_conf_queue_path(c, (int)i, path, sizeof path);
        r = set_tenant(e, vg_eng_queue_id(path), queue_id(c, c->queue[i].parent), path, &t);
    }
    return r;
}

static int find_team(const struct vg_conf *c, const char *org, const char *team, bool *ret_own,
                     struct vg_eng_home *ret) {
    int q = vg_conf_queue_of(c, org, team, ret_own);
    char *path = ret->path;
    vg_conf_queue_path(c, q, path, sizeof ret->path);
    if (!*ret_own) {
        ret->tenant = vg_eng_queue_id(path);
        return q;
    }
    size_t at = strlen(path);
    snprintf(path + at, sizeof ret->path - at, at ? "/%s" : "%s", *team ? team : "?");
    ret->tenant = name_id('t', path);
    return q;
}

void vg_eng_team_path(const struct vg_conf *c, const char *org, const char *team,
                      struct vg_eng_home *ret) {
    bool own;
    find_team(c, org, team, &own, ret);
}

int vg_eng_team(struct vg_eng *e, const struct vg_conf *c, const char *org, const char *team,
                struct vg_eng_home *ret) {
    bool own;
    int q = find_team(c, org, team, &own, ret);
    if (!own)
        return 0;
    struct vg_tenant_conf t = vg_conf_team_policy(c, q);
    return set_tenant(e, ret->tenant, queue_id(c, q), ret->path, &t);
}

int vg_eng_user(struct vg_eng *e, const struct vg_conf *c, const char *org, const char *team,
                const char *user, struct vg_eng_home *ret) {
    bool own;
    int r = vg_eng_team(e, c, org, team, ret), q = vg_conf_queue_of(c, org, team, &own);
    if (r < 0)
        return r;
    uint64_t parent = ret->tenant;
    size_t at = strlen(ret->path);
    snprintf(ret->path + at, sizeof ret->path - at, "/%s", user);
    ret->tenant = name_id('u', ret->path);
    struct vg_tenant_conf t = vg_conf_user_policy(c, q, own, user);
    return set_tenant(e, ret->tenant, parent, ret->path, &t);
}

/* ------------------------------------------------------------------ the rest */

static int set_pools(struct vg_eng *e, const struct vg_conf *c) {
    int r = 0;
    for (size_t i = 0; r >= 0 && i < c->n_pools; i++) {
        const struct vg_pool_conf *p = &c->pool[i];
        char label[VG_ENG_POOL_LABEL], *labels[] = {label};
        vg_eng_pool_label(p->name, label);
        struct vg_eng_pool in = {.name = p->name,
                                 .id = vg_eng_pool_id(p->name),
                                 .labels = labels,
                                 .n_labels = 1,
                                 .shape = p->shape,
                                 .gpu_class = (uint8_t)p->class,
                                 .whole = p->class == VG_CLASS_BARE,
                                 .min_run_usec = p->min_run_usec};
        r = vg_eng_set_pool(e, &in);
    }
    return r;
}

static enum vg_eng_placing placing_of(enum vg_placement p) {
    return p == VG_PLACE_BEST_FIT ? VG_ENG_BEST_FIT
           : p == VG_PLACE_SPREAD ? VG_ENG_SPREAD
                                  : VG_ENG_LEAST_STRANDED;
}

int vg_eng_configure(struct vg_eng *e, const struct vg_conf *c) {
    const struct vg_scheduler_conf *s = &c->scheduler;
    struct vg_eng_conf in = vg_eng_conf_default();
    in.half_life_usec = s->half_life_usec;
    in.age_usec = s->ageing_usec;
    in.reserve = s->backfill;
    in.preempt = s->preemption != VG_PREEMPT_NO;
    in.min_run_usec = s->min_run_usec;
    in.placing = placing_of(s->placement);
    int r = vg_eng_set_conf(e, &in);
    if (r >= 0)
        r = set_queues(e, c);
    return r < 0 ? r : set_pools(e, c);
}
