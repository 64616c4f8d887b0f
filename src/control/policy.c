/* Tenants, pools and nodes as the engine knows them. */
#include "control/policy.h"

#include "base/cleanup.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/util.h"
#include "control/bare.h"
#include "control/job.h"
#include "control/node-gpus.h"
#include "control/nodes.h"
#include "control/price.h"
#include "control/sessions.h"
#include "control/users.h"
#include "gpu/near.h"

#include <stdio.h>
#include <string.h>

struct vg_leaf {
    char *key; /* owned; "team/user" */
    uint64_t tenant;
};

struct vg_tenant_name {
    char *path; /* owned */
};

static uint64_t hash(uint64_t h, const void *data, size_t n) {
    const uint8_t *p = data;
    for (size_t i = 0; i < n; i++)
        h = (h ^ p[i]) * 0x100000001b3ULL;
    return h;
}

static uint64_t hash_text(uint64_t h, const char *s) {
    return hash(h, s ? s : "", s ? strlen(s) + 1 : 1);
}

#define HASH_START 0xcbf29ce484222325ULL

/* ------------------------------------------------------------------ tenants */

static int keep_name(struct vg_policy *p, const struct vg_eng_home *h) {
    if (vg_map_get_u64(&p->names, h->tenant))
        return 0;
    struct vg_tenant_name *t = vg_alloc(sizeof *t);
    if (t)
        t->path = vg_strdup(h->path);
    if (!t || !t->path || vg_map_put_u64(&p->names, h->tenant, t) < 0) {
        if (t)
            free(t->path);
        free(t);
        return -ENOMEM;
    }
    return 0;
}

static int name_queues(struct vg_policy *p) {
    int r = 0;
    for (size_t i = 0; r >= 0 && i < p->conf->n_queues; i++) {
        struct vg_eng_home h;
        if (p->conf->queue[i].is_user)
            continue;
        vg_conf_queue_path(p->conf, (int)i, h.path, sizeof h.path);
        h.tenant = vg_eng_queue_id(h.path);
        r = keep_name(p, &h);
    }
    return r;
}

static const char *org_of(const struct vg_control *c, const char *team) {
    const struct vg_team *t = vg_tenants_team(&c->tenants, team);
    return t ? t->org : "";
}

uint64_t vg_policy_team(struct vg_control *c, struct vg_policy *p, const char *team) {
    struct vg_eng_home h;
    int r = vg_eng_team(p->eng, p->conf, org_of(c, team), team, &h);
    if (r >= 0)
        r = keep_name(p, &h);
    return r < 0 ? 0 : h.tenant;
}

static uint64_t make_leaf(struct vg_control *c, struct vg_policy *p, const char *team,
                          const char *user, const char *key) {
    struct vg_eng_home h;
    struct vg_leaf *l = vg_alloc(sizeof *l);
    bool made = l && vg_policy_team(c, p, team) &&
                vg_eng_user(p->eng, p->conf, org_of(c, team), team, user, &h) >= 0 &&
                keep_name(p, &h) >= 0 && (l->key = vg_strdup(key)) != NULL;
    if (made)
        l->tenant = h.tenant;
    if (made && vg_map_put(&p->leaves, l->key, l) >= 0)
        return h.tenant;
    if (l)
        free(l->key);
    free(l);
    return 0;
}

uint64_t vg_policy_tenant(struct vg_control *c, struct vg_policy *p, const char *team,
                          const char *user) {
    char key[2 * VG_TENANT_NAME_MAX + 8];
    snprintf(key, sizeof key, "%s/%s", team, user);
    const struct vg_leaf *l = vg_map_get(&p->leaves, key);
    return l ? l->tenant : make_leaf(c, p, team, user, key);
}

void vg_policy_forget_team(struct vg_policy *p, const char *team) {
    size_t n = strlen(team);
    vg_map_for_each (s, &p->leaves) {
        struct vg_leaf *l = s->value;
        if (strncmp(l->key, team, n) != 0 || l->key[n] != '/')
            continue;
        vg_map_del(&p->leaves, l->key);
        free(l->key);
        free(l);
    }
}

const char *vg_policy_name(const struct vg_control *c, uint64_t tenant) {
    const struct vg_tenant_name *t = vg_map_get_u64(&c->policy.names, tenant);
    return t ? t->path : "";
}

char *vg_policy_queue(const struct vg_control *c, const char *team, char *out, size_t n) {
    struct vg_eng_home h;
    vg_eng_team_path(c->policy.conf, org_of(c, team), team, &h);
    snprintf(out, n, "%s", h.path);
    return out;
}

struct vg_tenant_conf vg_policy_of(const struct vg_control *c, const char *team, const char *user) {
    bool own;
    int q = vg_conf_queue_of(&c->conf, org_of(c, team), team, &own);
    return vg_conf_user_policy(&c->conf, q, own, user);
}

/* ------------------------------------------------------------------ the engine */

int vg_policy_open(struct vg_policy *p, const struct vg_conf *conf, struct vg_err *err) {
    *p = (struct vg_policy){.eng = vg_eng_new(), .conf = conf};
    int r = p->eng ? 0 : -ENOMEM;
    if (r >= 0) {
        vg_eng_now(p->eng, vg_wall_usec());
        r = vg_eng_configure(p->eng, conf);
    }
    if (r >= 0)
        r = name_queues(p);
    if (r < 0) {
        vg_policy_close(p);
        return vg_err_sys(err, r, "cannot set up the scheduler");
    }
    return 0;
}

void vg_policy_close(struct vg_policy *p) {
    vg_map_for_each (s, &p->leaves) {
        struct vg_leaf *l = s->value;
        free(l->key);
        free(l);
    }
    vg_map_for_each (s, &p->names) {
        struct vg_tenant_name *t = s->value;
        free(t->path);
        free(t);
    }
    vg_map_done(&p->leaves);
    vg_map_done(&p->names);
    free(p->window);
    vg_eng_free(p->eng);
    *p = (struct vg_policy){0};
}

static const struct vg_leaf *leaf_of(const struct vg_policy *p, uint64_t tenant) {
    vg_map_for_each (s, &p->leaves) {
        const struct vg_leaf *l = s->value;
        if (l->tenant == tenant)
            return l;
    }
    return NULL;
}

static bool is_above(const char *path, const char *below) {
    size_t n = strlen(path);
    return n && strncmp(path, below, n) == 0 && (!below[n] || below[n] == '/');
}

bool vg_policy_knows(struct vg_control *c, uint64_t viewer, uint64_t tenant) {
    const struct vg_policy *p = &c->policy;
    if (p->tell_all || viewer == tenant ||
        is_above(vg_policy_name(c, tenant), vg_policy_name(c, viewer)))
        return true;
    const struct vg_leaf *a = leaf_of(p, viewer), *b = a ? leaf_of(p, tenant) : NULL;
    size_t team = a ? strcspn(a->key, "/") + 1 : 0;
    bool common = team && strncmp(a->key, VG_TEAM_DEFAULT "/", team) != 0;
    return b && common && strncmp(a->key, b->key, team) == 0;
}

static bool knows(void *ctl, uint64_t viewer, uint64_t tenant) {
    return vg_policy_knows(ctl, viewer, tenant);
}

struct vg_eng *vg_policy_now(struct vg_control *c) {
    vg_eng_tell(c->policy.eng, knows, c);
    vg_eng_now(c->policy.eng, vg_wall_usec());
    return c->policy.eng;
}

/* ------------------------------------------------------------------ nodes */

static const char *rack_of(const struct vg_node *n) {
    for (size_t i = 0; i < n->labels.n; i++)
        if (strncmp(n->labels.item[i], "rack=", 5) == 0)
            return n->labels.item[i] + 5;
    return NULL;
}

static size_t gpus_of(const struct vg_nodelink *a, struct vg_eng_gpu out[static VG_NODE_GPUS_MAX]) {
    const struct vg_node *n = a->node;
    size_t count = 0;
    for (uint32_t i = 0; i < VG_NODE_GPUS_MAX; i++) {
        const struct vg_node_gpu *k = vg_node_gpu_get(a, i);
        if (!(n->gpus & 1ULL << i))
            continue;
        struct vg_eng_gpu g = {.index = i, .mem_bytes = vg_node_gpu_mem(a, i)};
        if (k && k->state) {
            g.island = k->state->island;
            g.numa = k->state->numa;
        }
        g.bad = k && k->drained;
        out[count++] = g;
    }
    return count;
}

/* By index; false: not all of its cards say how near the others are. */
static bool far_of(const struct vg_nodelink *a,
                   uint8_t out[static VG_NODE_GPUS_MAX][VG_NODE_GPUS_MAX]) {
    bool told = false;
    for (uint32_t i = 0; i < VG_NODE_GPUS_MAX; i++) {
        const struct vg_node_gpu *k = vg_node_gpu_get(a, i);
        if (!(a->node->gpus & 1ULL << i))
            continue;
        if (!k || !k->state || !k->state->n_near)
            return false;
        for (size_t j = 0; j < k->state->n_near && j < VG_NODE_GPUS_MAX; j++)
            out[i][j] = vg_near_distance(k->state->near[j]);
        told = true;
    }
    return told;
}

int vg_policy_set_node(struct vg_control *c, struct vg_policy *p, const struct vg_nodelink *a) {
    const struct vg_node *n = a->node;
    struct vg_eng_gpu gpus[VG_NODE_GPUS_MAX];
    uint8_t far[VG_NODE_GPUS_MAX][VG_NODE_GPUS_MAX] = {0};
    size_t max = n->labels.n + p->conf->n_pools, count = 0, pools = 0;
    vg_auto_free char **labels = vg_alloc((max + 1) * sizeof *labels);
    vg_auto_free char *room = vg_alloc((p->conf->n_pools + 1) * VG_ENG_POOL_LABEL);
    if (!labels || !room)
        return -ENOMEM;
    for (; count < n->labels.n; count++)
        labels[count] = n->labels.item[count];
    for (size_t i = 0; i < p->conf->n_pools; i++)
        if (vg_node_in_pool(n, &p->conf->pool[i])) {
            char *label = room + pools++ * VG_ENG_POOL_LABEL;
            vg_eng_pool_label(p->conf->pool[i].name, label);
            labels[count++] = label;
        }
    struct vg_eng_node e = {.id = n->id,
                            .name = n->name,
                            .total = n->total,
                            .gpu = gpus,
                            .n_gpus = gpus_of(a, gpus),
                            .far = far_of(a, far) ? far : NULL,
                            .parts = n->gpu_parts,
                            .model = n->gpu_model,
                            .rack = rack_of(n),
                            .labels = labels,
                            .n_labels = count,
                            .usable = a->peer && a->reported && a->kept && !a->drain &&
                                      !a->refuses && !a->is_unfit && vg_node_state_takes(n->state)};
    (void)c;
    vg_eng_now(p->eng, vg_wall_usec());
    return vg_eng_set_node(p->eng, &e);
}

/* ------------------------------------------------------------------ requests */

static uint64_t kin_of(const struct vg_task *t) {
    uint64_t h = hash_text(hash_text(HASH_START, t->user), t->spec->name);
    for (size_t i = 0; i < t->spec->n_argv; i++)
        h = hash(hash(h, t->spec->argv[i].data, t->spec->argv[i].len), "", 1);
    return h ? h : 1;
}

/* How its share divides a card: as its attempt began, else as its pool does. */
static uint8_t gpu_class_of(const struct vg_policy *p, const struct vg_task *t) {
    const struct vg_pool_conf *pool = vg_conf_pool(p->conf, vg_task_pool(t));
    return (uint8_t)(t->share.milli ? t->share.class : pool ? pool->class : VG_CLASS_DEDICATED);
}

int vg_policy_request(struct vg_control *c, struct vg_policy *p, const struct vg_job *j,
                      struct vg_eng_req *ret) {
    const struct vg_task *t = j->task;
    const Vg__Pb__TaskSpec *s = t->spec;
    *ret = (struct vg_eng_req){
        .task = t->id,
        .tenant = vg_policy_tenant(c, p, t->team, t->user),
        .res = vg_task_held(t),
        .gpu_class = gpu_class_of(p, t),
        .model = s->gpu_model,
        .labels = s->node_label,
        .n_labels = s->n_node_label,
        .priority = s->priority,
        .order = t->created_usec + t->index,
        .since_usec = t->created_usec,
        .node = j->session ? j->session->node : 0,
        .preemptible = s->preemptible,
        .fixed = !vg_eng_may_preempt(p->conf, s->interactive && !s->detached, s->preemptible),
        .limit_usec = vg_prices_limit_usec(c, t),
        .kin = kin_of(t),
        .gang = s->gang ? t->group : 0};
    if (s->pool && vg_conf_pool(p->conf, s->pool))
        ret->pool[ret->n_pools++] = vg_eng_pool_id(s->pool);
    for (size_t i = 0; i < s->n_also_pool && ret->n_pools < VG_ENG_POOLS_MAX; i++)
        if (vg_conf_pool(p->conf, s->also_pool[i]))
            ret->pool[ret->n_pools++] = vg_eng_pool_id(s->also_pool[i]);
    vg_bare_request(c, p->conf, t, ret);
    if (t->share.milli)
        ret->res.gpu_mem_bytes = VG_MAX(ret->res.gpu_mem_bytes, j->share_counted);
    return ret->tenant ? 0 : -ENOMEM;
}

/* ------------------------------------------------------------------ memory */

struct save {
    struct vg_control *c;
    uint64_t now;
    size_t n;
};

static void save_one(void *arg, uint32_t kind, uint64_t key, const uint64_t value[4]) {
    struct save *s = arg;
    struct vg_memory_row row = {.kind = kind, .key = key};
    memcpy(row.value, value, sizeof row.value);
    if (vg_store_put_memory(s->c->store, &row, s->now) >= 0)
        s->n++;
}

void vg_policy_save(struct vg_control *c) {
    struct save s = {.c = c, .now = vg_wall_usec()};
    vg_eng_save(vg_policy_now(c), save_one, &s);
    vg_store_prune_memory(c->store, s.now);
    vg_debug("the scheduler's memory was saved records=%zu", s.n);
}

static int restore_one(void *arg, const struct vg_memory_row *row) {
    vg_eng_restore(arg, row->kind, row->key, row->value);
    return 0;
}

void vg_policy_restore(struct vg_control *c) {
    int r = vg_store_load_memory(c->store, restore_one, vg_policy_now(c));
    if (r < 0)
        vg_warn("what the scheduler had learnt cannot be read and is learnt anew: %s",
                strerror(-r));
}
