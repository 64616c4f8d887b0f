/* Fits: what one member needs of a node. Equal requests are one fit; one that nobody refers to any
   more is kept for a while with its index, since the like often comes again. Pure. */
#include "base/cleanup.h"
#include "base/mem.h"
#include "conf/conf.h"
#include "sched/lanes.h"
#include "sched/place.h"

#include <string.h>

#define IDLE_MAX 128 /* fits without references that are kept */

/* --- equal requests are one fit --- */

static uint64_t hash_bytes(uint64_t h, const void *p, size_t n) {
    const uint8_t *b = p;
    for (size_t i = 0; i < n; i++)
        h = (h ^ b[i]) * 0x100000001b3ULL;
    return h;
}

static uint64_t hash_number(uint64_t h, uint64_t x) {
    return tree_mix(h ^ x) + 0x9e3779b97f4a7c15ULL;
}

/* The request's pools that exist, as numbers. */
static uint32_t pools_of(const struct vg_eng *e, const struct vg_eng_req *r, uint32_t *ret) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < r->n_pools && i < VG_ENG_POOLS_MAX; i++) {
        const struct epool *p = vg_map_get_u64(&e->pools, r->pool[i]);
        if (p)
            ret[n++] = p->at;
    }
    return n;
}

/* What is limited but not reserved (processes, disk) does not tell fits apart. */
static struct vg_res reserved(const struct vg_res *r) {
    struct vg_res x = *r;
    x.pids = 0;
    x.disk_bytes = 0;
    return x;
}

static uint64_t hash_of(const struct fit *k) {
    uint64_t h = 0xcbf29ce484222325ULL;
    h = hash_number(h, k->res.cpu_milli);
    h = hash_number(h, k->res.mem_bytes);
    h = hash_number(h, (uint64_t)k->res.gpus << 32 | k->res.gpu_milli);
    h = hash_number(h, k->res.gpu_mem_bytes + k->whole);
    h = hash_number(h, k->gpu_class);
    for (uint32_t i = 0; i < k->n_pools; i++)
        h = hash_number(h, k->pool[i]);
    h = hash_bytes(h, k->model, strlen(k->model) + 1);
    for (size_t i = 0; i < k->n_labels; i++)
        h = hash_bytes(h, k->label[i], strlen(k->label[i]) + 1);
    return h;
}

static bool equal(const struct fit *a, const struct fit *b) {
    if (a->hash != b->hash || a->n_pools != b->n_pools || a->n_labels != b->n_labels ||
        a->res.cpu_milli != b->res.cpu_milli || a->res.mem_bytes != b->res.mem_bytes ||
        a->res.gpus != b->res.gpus || a->res.gpu_milli != b->res.gpu_milli ||
        a->res.gpu_mem_bytes != b->res.gpu_mem_bytes || a->whole != b->whole ||
        a->gpu_class != b->gpu_class || strcmp(a->model, b->model) != 0 ||
        memcmp(a->pool, b->pool, a->n_pools * sizeof a->pool[0]) != 0)
        return false;
    for (size_t i = 0; i < a->n_labels; i++)
        if (strcmp(a->label[i], b->label[i]) != 0)
            return false;
    return true;
}

static void count_pools(struct vg_eng *e, const struct fit *f, uint32_t sign) {
    for (uint32_t i = 0; i < f->n_pools; i++)
        e->pool[f->pool[i]]->refs += sign;
}

static void free_fit(struct fit *f) {
    free(f->rank);
    free(f->model);
    vg_labels_free(f->label, f->n_labels);
    free(f);
}

static struct fit *new_fit(struct vg_eng *e, const struct fit *key) {
    struct fit *f = vg_alloc(sizeof *f);
    if (!f)
        return NULL;
    *f = *key;
    f->model = vg_strdup(key->model);
    f->label = vg_labels_dup(key->label, key->n_labels);
    f->same = vg_map_get_u64(&e->place->fits, key->hash);
    vg_list_init(&f->shapes);
    vg_list_init(&f->link);
    if (!f->model || !f->label || vg_map_put_u64(&e->place->fits, key->hash, f) < 0) {
        free_fit(f);
        return NULL;
    }
    return f;
}

static struct fit *get(struct vg_eng *e, const struct fit *key) {
    struct fit *f = vg_map_get_u64(&e->place->fits, key->hash);
    while (f && !equal(f, key))
        f = f->same;
    bool idle = f;
    if (!f && !(f = new_fit(e, key)))
        return NULL;
    if (f->refs++ == 0) {
        e->place->n_idle -= idle;
        vg_list_remove(&f->link);
        vg_list_push_back(&e->fits, &f->link);
        count_pools(e, f, 1);
    }
    return f;
}

struct fit *vg_fit_get(struct vg_eng *e, const struct vg_eng_req *r) {
    char model[] = "";
    struct fit key = {.res = reserved(&r->res),
                      .whole = r->whole,
                      .gpu_class = r->gpu_class,
                      .model = r->model ? (char *)r->model : model,
                      .label = (char **)r->labels,
                      .n_labels = r->n_labels};
    key.n_pools = pools_of(e, r, key.pool);
    key.hash = hash_of(&key);
    return get(e, &key);
}

struct fit *vg_fit_like(struct vg_eng *e, const struct fit *f, const struct vg_res *res) {
    struct fit key = {.res = *res,
                      .whole = f->whole,
                      .gpu_class = f->gpu_class,
                      .model = f->model,
                      .label = f->label,
                      .n_labels = f->n_labels,
                      .n_pools = f->n_pools};
    memcpy(key.pool, f->pool, sizeof key.pool);
    key.hash = hash_of(&key);
    return get(e, &key);
}

static void unlink_fit(struct vg_eng *e, struct fit *f) {
    struct fit *first = vg_map_get_u64(&e->place->fits, f->hash);
    if (first != f) {
        while (first->same != f)
            first = first->same;
        first->same = f->same;
    } else if (f->same) {
        (void)vg_map_put_u64(&e->place->fits, f->hash, f->same); /* replaces: needs no memory */
    } else {
        vg_map_del_u64(&e->place->fits, f->hash);
    }
    vg_list_remove(&f->link);
}

static void drop(struct vg_eng *e, struct fit *f) {
    unlink_fit(e, f);
    vg_index_free(e, f->index);
    free_fit(f);
}

void vg_fit_put(struct vg_eng *e, struct fit *f) {
    if (!f || --f->refs)
        return;
    count_pools(e, f, UINT32_MAX);
    vg_list_remove(&f->link);
    vg_list_push_back(&e->place->idle, &f->link);
    if (e->place->n_idle++ >= IDLE_MAX) {
        e->place->n_idle--;
        drop(e, vg_list_entry(e->place->idle.next, struct fit, link));
    }
}

void vg_fits_forget_pool(struct vg_eng *e, const struct epool *p) {
    vg_list_for_each_safe (i, &e->place->idle) {
        struct fit *f = vg_list_entry(i, struct fit, link);
        bool names = false;
        for (uint32_t k = 0; k < f->n_pools; k++)
            names |= f->pool[k] == p->at;
        if (names) {
            e->place->n_idle--;
            drop(e, f);
        }
    }
}

static void drop_all(struct vg_eng *e, struct vg_list *l) {
    vg_list_for_each_safe (i, l)
        drop(e, vg_list_entry(i, struct fit, link));
}

void vg_fits_done(struct vg_eng *e) {
    drop_all(e, &e->fits);
    drop_all(e, &e->place->idle);
    vg_map_done(&e->place->fits);
}

/* --- where it may go at all --- */

static bool model_fits(const char *want, const char *have) {
    if (!*want)
        return true;
    for (const char *p = want;; p++) {
        size_t n = strcspn(p, "|");
        if (vg_conf_model_is(have, p, n))
            return true;
        p += n;
        if (!*p)
            return false;
    }
}

/* Whether it is large enough, or may turn out to be. */
static bool card_fits(const struct fit *f, const struct egpu *g) {
    return g->mem >= f->res.gpu_mem_bytes || (!g->mem && f->res.gpu_milli);
}

/* Size when empty. Bad GPUs count: they may be mended, and the task waits for that. */
static bool size_fits(const struct fit *f, const struct enode *n) {
    if (f->res.cpu_milli > n->total.cpu_milli || f->res.mem_bytes > n->total.mem_bytes)
        return false;
    uint32_t need = f->res.gpus ? f->res.gpus : f->res.gpu_milli ? 1 : 0, have = 0;
    for (uint32_t i = 0; i < n->n_gpus && have < need; i++)
        have += card_fits(f, &n->gpu[i]);
    return have >= need;
}

/* 1 + place of the pool, or 0. */
static uint32_t rank_in_pools(const struct fit *f, const struct enode *n) {
    for (uint32_t i = 0; i < f->n_pools; i++)
        if (n->pools[f->pool[i] / 64] >> (f->pool[i] % 64) & 1)
            return i + 1;
    return 0;
}

bool vg_fit_suits(const struct fit *f, const struct enode *n) {
    return model_fits(f->model, n->model) &&
           vg_labels_within(f->label, f->n_labels, n->label, n->n_labels);
}

/* Who asks for a part of a card gets none that is whole, nor the other way round. */
static bool kind_fits(const struct fit *f, const struct enode *n) {
    return (!f->res.gpus && !f->res.gpu_milli) || (f->gpu_class == VG_CLASS_MIG) == n->parts;
}

static uint32_t rank_afresh(const struct fit *f, const struct enode *n) {
    uint32_t rank = n->ghost ? 0 : rank_in_pools(f, n);
    return rank && kind_fits(f, n) && size_fits(f, n) && vg_fit_suits(f, n) ? rank : 0;
}

/* What was found for a node holds for its class. Remembering is no change that anybody sees, so
   that a fit that is only read remembers, too. */
uint32_t vg_fit_rank(const struct vg_eng *e, const struct fit *f, const struct enode *n) {
    uint32_t c = n->class_no;
    if (c && c < f->n_rank && f->rank[c])
        return f->rank[c] == UINT8_MAX ? 0 : f->rank[c];
    uint32_t rank = rank_afresh(f, n), classes = e->place->classes.n;
    if (!c || n->ghost)
        return rank;
    if (c >= f->n_rank) {
        struct fit *w = (struct fit *)f;
        uint8_t *grown = vg_realloc(w->rank, classes + 16);
        if (!grown)
            return rank;
        memset(grown + w->n_rank, 0, classes + 16 - w->n_rank);
        w->rank = grown;
        w->n_rank = classes + 16;
    }
    f->rank[c] = rank ? (uint8_t)rank : UINT8_MAX;
    return rank;
}

struct epool *vg_fit_pool(const struct vg_eng *e, const struct fit *f, const struct enode *n) {
    uint32_t rank = rank_in_pools(f, n);
    return rank ? e->pool[f->pool[rank - 1]] : NULL;
}

bool vg_fit_belongs(const struct vg_eng *e, const struct fit *f, const struct enode *n) {
    return vg_fit_rank(e, f, n) != 0;
}

/* Found once for each layout of the nodes. */
const struct enode *vg_fit_could(const struct vg_eng *e, const struct fit *f, bool usable) {
    struct fit *w = (struct fit *)f;
    if (f->could_layout[usable] == e->place->layout)
        return f->could[usable];
    w->could_layout[usable] = e->place->layout;
    w->could[usable] = NULL;
    for (size_t i = 0; i < e->n_nodes; i++) {
        const struct enode *n = e->node[i];
        if (n && (n->usable || !usable) && vg_fit_belongs(e, f, n)) {
            w->could[usable] = n;
            break;
        }
    }
    return f->could[usable];
}

/* Of one member that gets a whole node; found once for each layout of the nodes. */
static struct vg_eng_amount most_of_one(const struct vg_eng *e, const struct fit *f) {
    struct fit *w = (struct fit *)f;
    struct vg_eng_amount a = vg_fit_amount(f, 1);
    if (f->most_layout == e->place->layout)
        return f->most;
    for (size_t i = 0; i < e->n_nodes; i++) {
        const struct enode *n = e->node[i];
        if (!n || !vg_fit_belongs(e, f, n))
            continue;
        a.gpu_milli = VG_MAX(a.gpu_milli, n->n_gpus * 1000ULL);
        a.cpu_milli = VG_MAX(a.cpu_milli, n->total.cpu_milli);
        a.mem_bytes = VG_MAX(a.mem_bytes, n->total.mem_bytes);
    }
    w->most = a;
    w->most_layout = e->place->layout;
    return a;
}

struct vg_eng_amount vg_fit_most(const struct vg_eng *e, const struct fit *f, uint32_t members) {
    if (!f->whole)
        return vg_fit_amount(f, members);
    struct vg_eng_amount a = most_of_one(e, f);
    return (struct vg_eng_amount){a.gpu_milli * members, a.cpu_milli * members,
                                  a.mem_bytes * members};
}

enum vg_eng_code vg_fit_reason(const struct vg_eng *e, struct fit *f, enum vg_eng_code refused) {
    if (refused != VG_ENG_FREE)
        return refused;
    if (vg_fit_could(e, f, true))
        return VG_ENG_BUSY;
    for (uint32_t i = 0; i < f->n_pools; i++)
        if (e->pool[f->pool[i]]->usable)
            return VG_ENG_TOO_BIG;
    return VG_ENG_NO_NODES;
}
