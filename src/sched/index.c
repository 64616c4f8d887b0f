/* Where a fit goes: per fit a tournament of all nodes by score, so that the best is at the root and
   a changed node costs one score and a walk to the root. It is brought up to date when asked, from
   the log of nodes that changed since; one that is too far behind is made anew. When worth changes
   (a new mix) scores follow a part at a time. Indexes that were not asked for longest go first when
   there are too many bytes of them. Pure. */
#include "base/cleanup.h"
#include "base/mem.h"
#include "sched/place.h"

#include <string.h>

#define INDEX_BYTES_MAX (64u << 20) /* of all indexes */
#define RESCORE_MIN 256             /* nodes that are scored again at a time after a new mix, */
#define RESCORE_PART 16             /* or this part of all */
#define TIES_MAX 64                 /* equally good nodes that are looked at for cached bytes */
#define RANK_SHIFT 56

struct fit_index {
    struct fit *fit;
    struct vg_list link; /* fit_world.indexes */
    uint64_t cursor;     /* in the log */
    uint64_t mix;        /* version of the mix that scores are made with, */
    uint32_t stale;      /* from this slot on not yet */
    enum vg_eng_placing placing;
    uint32_t leaves; /* a power of two */
    uint32_t *best;  /* [1]: the best of all; [i]: of those below 2i and 2i + 1 */
    int64_t *key;    /* by slot; VG_INDEX_NONE: no room */
};

/* --- the log --- */

void vg_index_log(struct vg_eng *e, const struct enode *n) {
    struct fit_world *w = e->place;
    w->log[w->log_head++ & (w->log_cap - 1)] = n->at;
}

int vg_index_log_room(struct vg_eng *e, size_t nodes) {
    struct fit_world *w = e->place;
    size_t cap = w->log_cap ? w->log_cap : 256;
    while (cap < 2 * nodes)
        cap *= 2;
    if (cap == w->log_cap)
        return 0;
    uint32_t *log = vg_realloc(w->log, cap * sizeof *log);
    if (!log)
        return -ENOMEM;
    w->log = log;
    w->log_cap = cap;
    w->log_head += 2 * cap; /* whoever comes is too far behind */
    return 0;
}

/* --- the tournament --- */

int64_t vg_index_key(const struct vg_eng *e, const struct fit *f, const struct enode *n) {
    if (!n || !vg_fit_now(f, n))
        return VG_INDEX_NONE;
    uint32_t rank = vg_fit_rank(e, f, n);
    return rank ? ((int64_t)rank << RANK_SHIFT) + vg_score(e, f, n) : VG_INDEX_NONE;
}

static uint32_t winner(const struct fit_index *x, uint32_t i) {
    uint32_t l = 2 * i, r = l + 1;
    uint32_t a = l >= x->leaves ? l - x->leaves : x->best[l];
    uint32_t b = r >= x->leaves ? r - x->leaves : x->best[r];
    return x->key[b] < x->key[a] ? b : a;
}

static void set_key(struct fit_index *x, uint32_t slot, int64_t key) {
    if (x->key[slot] == key)
        return;
    x->key[slot] = key;
    for (uint32_t i = (slot + x->leaves) / 2; i; i /= 2) {
        uint32_t was = x->best[i];
        x->best[i] = winner(x, i);
        if (x->best[i] == was && was != slot)
            break;
    }
}

static void rescore(struct vg_eng *e, struct fit_index *x, uint32_t slot) {
    set_key(x, slot, vg_index_key(e, x->fit, slot < e->n_nodes ? e->node[slot] : NULL));
}

static void score_all(struct vg_eng *e, struct fit_index *x) {
    for (uint32_t i = 0; i < x->leaves; i++)
        x->key[i] = i < e->n_nodes ? vg_index_key(e, x->fit, e->node[i]) : VG_INDEX_NONE;
    for (uint32_t i = x->leaves - 1; i; i--)
        x->best[i] = winner(x, i);
    x->cursor = e->place->log_head;
    x->placing = e->conf.placing;
    x->mix = vg_mix_version(e->place->mix);
    x->stale = UINT32_MAX;
}

/* --- memory --- */

static size_t bytes_of(uint32_t leaves) {
    return sizeof(struct fit_index) + leaves * (sizeof(int64_t) + sizeof(uint32_t));
}

void vg_index_free(struct vg_eng *e, struct fit_index *x) {
    if (!x)
        return;
    e->place->index_bytes -= bytes_of(x->leaves);
    vg_list_remove(&x->link);
    x->fit->index = NULL;
    free(x->best);
    free(x->key);
    free(x);
}

static struct fit_index *make(struct vg_eng *e, struct fit *f) {
    uint32_t leaves = 2;
    while (leaves < e->n_nodes)
        leaves *= 2;
    struct fit_index *x = vg_alloc(sizeof *x);
    if (!x)
        return NULL;
    x->best = vg_alloc(leaves * sizeof *x->best);
    x->key = vg_alloc(leaves * sizeof *x->key);
    if (!x->best || !x->key) {
        free(x->best);
        free(x->key);
        free(x);
        return NULL;
    }
    x->fit = f;
    x->leaves = leaves;
    vg_list_push_back(&e->place->indexes, &x->link);
    e->place->index_bytes += bytes_of(leaves);
    score_all(e, x);
    return f->index = x;
}

static void make_room(struct vg_eng *e, const struct fit_index *keep) {
    struct fit_world *w = e->place;
    while (w->index_bytes > INDEX_BYTES_MAX && w->indexes.next != &keep->link)
        vg_index_free(e, vg_list_entry(w->indexes.next, struct fit_index, link));
}

/* --- up to date --- */

static void follow_mix(struct vg_eng *e, struct fit_index *x) {
    if (x->mix != vg_mix_version(e->place->mix)) {
        x->mix = vg_mix_version(e->place->mix);
        x->stale = 0;
    }
    if (x->stale >= e->n_nodes)
        return;
    uint32_t part = (uint32_t)VG_MAX(e->n_nodes / RESCORE_PART, (size_t)RESCORE_MIN);
    for (; part && x->stale < e->n_nodes; part--)
        rescore(e, x, x->stale++);
}

/* The index of a fit as of now; NULL: no memory. */
static struct fit_index *ready(struct vg_eng *e, struct fit *f) {
    struct fit_index *x = f->index;
    if (x && x->leaves < e->n_nodes) {
        vg_index_free(e, x);
        x = NULL;
    }
    if (!x) {
        if ((x = make(e, f)))
            make_room(e, x);
        return x;
    }
    vg_list_remove(&x->link);
    vg_list_push_back(&e->place->indexes, &x->link);
    if (e->place->log_head - x->cursor > e->n_nodes || x->placing != e->conf.placing) {
        score_all(e, x);
        return x;
    }
    for (; x->cursor != e->place->log_head; x->cursor++)
        rescore(e, x, e->place->log[x->cursor & (e->place->log_cap - 1)]);
    follow_mix(e, x);
    return x;
}

/* --- the search --- */

static struct spot spot_at(const struct vg_eng *e, const struct fit *f, struct enode *n) {
    bool ok;
    return (struct spot){
        .node = n, .pool = vg_fit_pool(e, f, n), .gpus = vg_fit_gpus(e, f, n, &ok)};
}

struct ties {
    const struct vg_eng *e;
    const struct fit_index *x;
    uint64_t env;
    uint32_t left;
};

/* The first of those that are as good as the best and hold the environment's bytes. */
static struct enode *cached_tie(struct ties *t, uint32_t i) {
    bool leaf = i >= t->x->leaves;
    uint32_t slot = leaf ? i - t->x->leaves : t->x->best[i];
    if (!t->left || t->x->key[slot] != t->x->key[t->x->best[1]])
        return NULL;
    if (leaf) {
        t->left--;
        struct enode *n = t->e->node[slot];
        return vg_map_get_u64(&n->cached, t->env) ? n : NULL;
    }
    struct enode *n = cached_tie(t, 2 * i);
    return n ? n : cached_tie(t, 2 * i + 1);
}

static struct enode *root_of(const struct vg_eng *e, const struct fit_index *x, uint64_t env) {
    uint32_t slot = x->best[1];
    if (x->key[slot] == VG_INDEX_NONE)
        return NULL;
    struct ties t = {.e = e, .x = x, .env = env, .left = TIES_MAX};
    struct enode *n = env ? cached_tie(&t, 1) : NULL;
    return n ? n : e->node[slot];
}

/* Puts a node aside that is not allowed, for this search. */
static int put_aside(struct vg_eng *e, struct fit_index *x, struct enode *n, size_t k) {
    struct fit_world *w = e->place;
    struct enode **grown = vg_grow(w->aside, &w->aside_cap, k + 1, sizeof(*grown));
    if (!grown)
        return -ENOMEM;
    w->aside = grown;
    w->aside[k] = n;
    set_key(x, n->at, VG_INDEX_NONE);
    return 0;
}

int vg_fit_find(struct vg_eng *e, struct fit *f, const struct shape *who, uint64_t until,
                uint64_t env, struct spot *ret, enum vg_eng_code *code) {
    struct fit_index *x = e->conf.placing == VG_ENG_RANDOM ? NULL : ready(e, f);
    if (!x)
        return vg_fit_find_plain(e, f, who, until, env, ret, code);
    enum vg_eng_code refused = VG_ENG_FREE;
    struct enode *n;
    size_t aside = 0;
    int found = 0;
    while (!found && (n = root_of(e, x, env))) {
        *ret = spot_at(e, f, n);
        if (vg_profile_allows(e, f, n, ret->gpus, until, who, &refused))
            found = 1;
        else if (put_aside(e, x, n, aside) < 0)
            break;
        else
            aside++;
    }
    while (aside)
        rescore(e, x, e->place->aside[--aside]->at);
    if (!found)
        *code = vg_fit_reason(e, f, refused);
    return found;
}

/* --- without an index --- */

uint64_t vg_place_random(struct fit_world *w) {
    return tree_mix(w->rng += 0x9e3779b97f4a7c15ULL) >> 1;
}

/* Better than the best so far: by key, then cached bytes, then the slot; or by lot. */
struct rival {
    struct enode *node;
    int64_t key;
    bool cached;
};

static struct rival rival_of(struct vg_eng *e, const struct fit *f, struct enode *n, uint64_t env) {
    struct rival r = {.node = n, .key = vg_index_key(e, f, n)};
    r.cached = env && n && vg_map_get_u64(&n->cached, env);
    if (e->conf.placing == VG_ENG_RANDOM && r.key != VG_INDEX_NONE)
        r.key = (r.key >> RANK_SHIFT << RANK_SHIFT) + (int64_t)(vg_place_random(e->place) >> 8);
    return r;
}

int vg_fit_find_plain(struct vg_eng *e, struct fit *f, const struct shape *who, uint64_t until,
                      uint64_t env, struct spot *ret, enum vg_eng_code *code) {
    struct rival best = {.key = VG_INDEX_NONE};
    enum vg_eng_code refused = VG_ENG_FREE;
    if (e->place->rng_seed != e->conf.seed)
        e->place->rng = e->place->rng_seed = e->conf.seed;
    for (size_t i = 0; i < e->n_nodes; i++) {
        struct rival r = rival_of(e, f, e->node[i], env);
        if (r.key > best.key || r.key == VG_INDEX_NONE ||
            (r.key == best.key && r.cached <= best.cached))
            continue;
        struct spot s = spot_at(e, f, r.node);
        if (!vg_profile_allows(e, f, r.node, s.gpus, until, who, &refused))
            continue;
        best = r;
        *ret = s;
    }
    if (!best.node)
        *code = vg_fit_reason(e, f, refused);
    return best.node != NULL;
}

static int each_below(const struct vg_eng *e, const struct fit_index *x, uint32_t i,
                      int (*fn)(void *arg, struct enode *n), void *arg) {
    bool leaf = i >= x->leaves;
    uint32_t slot = leaf ? i - x->leaves : x->best[i];
    if (x->key[slot] == VG_INDEX_NONE)
        return 0;
    if (leaf)
        return fn(arg, e->node[slot]);
    int r = each_below(e, x, 2 * i, fn, arg);
    return r ? r : each_below(e, x, 2 * i + 1, fn, arg);
}

int vg_index_each(struct vg_eng *e, struct fit *f, int (*fn)(void *arg, struct enode *n),
                  void *arg) {
    const struct fit_index *x = ready(e, f);
    if (x)
        return each_below(e, x, 1, fn, arg);
    int r = 0;
    for (size_t i = 0; i < e->n_nodes && r == 0; i++)
        if (e->node[i] && vg_fit_now(f, e->node[i]) && vg_fit_belongs(e, f, e->node[i]))
            r = fn(arg, e->node[i]);
    return r;
}
