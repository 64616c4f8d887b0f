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
#define AHEAD 8                     /* log entries that are fetched before they are needed */
#define RANK_SHIFT 56

#define WAYS 8
#define ROUNDS_MAX 12 /* 8^11 nodes */

struct fit_index {
    struct fit *fit;
    struct vg_list link; /* fit_world.indexes */
    uint64_t cursor;     /* in the log */
    uint64_t mix;        /* version of the mix that scores are made with, */
    uint32_t stale;      /* from this slot on not yet */
    enum vg_eng_placing placing;
    uint32_t slots;  /* room for so many nodes */
    uint32_t rounds; /* key[rounds][0] is the best of all */
    size_t bytes;
    int64_t *key[ROUNDS_MAX]; /* [0]: by slot, VG_INDEX_NONE where there is no room; [k][i]: the
                                 best of [k-1][8i .. 8i+7]; [0] owns the memory of all */
};

/* --- the log --- */

struct glance vg_glance_at(const struct enode *n) {
    struct glance g = {.cpu = n->cpu_free,
                       .mem = n->mem_free,
                       .class_no = n->class_no,
                       .whole = (uint8_t)n->whole_free,
                       .open = n->usable && !n->alone && n->n_tasks < n->max_tasks};
    for (uint32_t i = 0; i < n->n_gpus; i++) {
        int32_t milli = n->gpu[i].bad ? 0 : VG_MAX(n->gpu[i].free_milli, 0);
        g.milli = (int16_t)VG_MAX(g.milli, milli);
        g.all_milli += (uint32_t)milli;
    }
    return g;
}

/* Whether it surely has no room for the fit; what may have is looked at closely. */
static bool surely_full(const struct fit *f, const struct glance *g) {
    return !g->open || g->cpu < (int64_t)f->res.cpu_milli || g->whole < f->res.gpus ||
           g->milli < (int32_t)f->res.gpu_milli || g->mem < (int64_t)f->res.mem_bytes ||
           (g->class_no && g->class_no < f->n_rank && f->rank[g->class_no] == UINT8_MAX);
}

void vg_index_log(struct vg_eng *e, const struct enode *n) {
    struct fit_world *w = e->place;
    struct glance now = vg_glance_at(n);
    vg_rack_changed(e, n, &w->glance[n->at], &now);
    w->glance[n->at] = now;
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
    struct glance *glance = vg_realloc(w->glance, cap / 2 * sizeof *glance);
    if (!glance)
        return -ENOMEM;
    memset(glance + w->log_cap / 2, 0, (cap - w->log_cap) / 2 * sizeof *glance);
    w->glance = glance;
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

static int64_t best_of(const int64_t *k) {
    int64_t m = k[0];
    for (int i = 1; i < WAYS; i++)
        m = VG_MIN(m, k[i]);
    return m;
}

static void set_key(struct fit_index *x, uint32_t slot, int64_t key) {
    uint32_t i = slot;
    if (x->key[0][i] == key)
        return;
    x->key[0][i] = key;
    for (uint32_t r = 0; r < x->rounds; r++) {
        int64_t best = best_of(x->key[r] + (i & ~(WAYS - 1u)));
        i /= WAYS;
        if (x->key[r + 1][i] == best)
            return;
        x->key[r + 1][i] = best;
    }
}

/* The first slot among the best; only when there is any. */
static uint32_t best_slot(const struct fit_index *x) {
    uint32_t i = 0;
    for (uint32_t r = x->rounds; r-- > 0;) {
        i *= WAYS;
        while (x->key[r][i] != x->key[x->rounds][0])
            i++;
    }
    return i;
}

static int64_t key_at(const struct vg_eng *e, const struct fit *f, uint32_t slot) {
    if (slot >= e->n_nodes || !e->node[slot] || surely_full(f, &e->place->glance[slot]))
        return VG_INDEX_NONE;
    return vg_index_key(e, f, e->node[slot]);
}

static void rescore(struct vg_eng *e, struct fit_index *x, uint32_t slot) {
    set_key(x, slot, key_at(e, x->fit, slot));
}

static void score_all(struct vg_eng *e, struct fit_index *x) {
    uint32_t n = x->slots;
    for (uint32_t i = 0; i < n; i++)
        x->key[0][i] = key_at(e, x->fit, i);
    for (uint32_t r = 0; r < x->rounds; r++) {
        n = (n + WAYS - 1) / WAYS;
        for (uint32_t i = 0; i < n; i++)
            x->key[r + 1][i] = best_of(x->key[r] + i * WAYS);
    }
    x->cursor = e->place->log_head;
    x->placing = e->conf.placing;
    x->mix = vg_mix_version(e->place->mix);
    x->stale = UINT32_MAX;
}

/* --- memory --- */

void vg_index_free(struct vg_eng *e, struct fit_index *x) {
    if (!x)
        return;
    e->place->index_bytes -= x->bytes;
    vg_list_remove(&x->link);
    x->fit->index = NULL;
    free(x->key[0]);
    free(x);
}

static size_t whole_rounds(size_t n) {
    return (n + WAYS - 1) / WAYS * WAYS;
}

/* Keys of all rounds in one piece; what lies beyond the nodes is VG_INDEX_NONE. */
static int lay_out(struct fit_index *x) {
    size_t from[ROUNDS_MAX] = {0}, n = x->slots, all = 0;
    for (x->rounds = 0;; x->rounds++) {
        from[x->rounds] = all;
        all += whole_rounds(n);
        if (n == 1)
            break;
        n = (n + WAYS - 1) / WAYS;
    }
    x->bytes = sizeof *x + all * sizeof(int64_t);
    x->key[0] = vg_alloc(all * sizeof(int64_t));
    if (!x->key[0])
        return -ENOMEM;
    for (size_t i = 0; i < all; i++)
        x->key[0][i] = VG_INDEX_NONE;
    for (uint32_t r = 1; r <= x->rounds; r++)
        x->key[r] = x->key[0] + from[r];
    return 0;
}

static struct fit_index *make(struct vg_eng *e, struct fit *f) {
    struct fit_index *x = vg_alloc(sizeof *x);
    if (!x)
        return NULL;
    x->slots = (uint32_t)whole_rounds(e->n_nodes + e->n_nodes / 8 + 1); /* some may come */
    if (lay_out(x) < 0) {
        free(x);
        return NULL;
    }
    x->fit = f;
    vg_list_push_back(&e->place->indexes, &x->link);
    e->place->index_bytes += x->bytes;
    score_all(e, x);
    return f->index = x;
}

static void make_room(struct vg_eng *e, const struct fit_index *keep) {
    struct fit_world *w = e->place;
    while (w->index_bytes > INDEX_BYTES_MAX && w->indexes.next != &keep->link)
        vg_index_free(e, vg_list_entry(w->indexes.next, struct fit_index, link));
}

/* --- up to date --- */

static void follow_log(struct vg_eng *e, struct fit_index *x) {
    const struct fit_world *w = e->place;
    size_t mask = w->log_cap - 1;
    while (x->cursor != w->log_head) {
        if (w->log_head - x->cursor > AHEAD) {
            uint32_t soon = w->log[(x->cursor + AHEAD) & mask];
            __builtin_prefetch(&x->key[0][soon]);
            __builtin_prefetch(&w->glance[soon]);
        }
        uint32_t slot = w->log[x->cursor++ & mask];
        bool again = x->cursor != w->log_head && w->log[x->cursor & mask] == slot;
        if (!again)
            rescore(e, x, slot);
    }
}

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
    if (x && x->slots < e->n_nodes) {
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
    follow_log(e, x);
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
static struct enode *cached_tie(struct ties *t, uint32_t round, uint32_t i) {
    const struct fit_index *x = t->x;
    if (!t->left || x->key[round][i] != x->key[x->rounds][0])
        return NULL;
    if (round == 0) {
        t->left--;
        struct enode *n = t->e->node[i];
        return vg_map_get_u64(&n->cached, t->env) ? n : NULL;
    }
    struct enode *n = NULL;
    for (uint32_t k = 0; k < WAYS && !n; k++)
        n = cached_tie(t, round - 1, i * WAYS + k);
    return n;
}

static struct enode *root_of(const struct vg_eng *e, const struct fit_index *x, uint64_t env) {
    if (x->key[x->rounds][0] == VG_INDEX_NONE)
        return NULL;
    struct ties t = {.e = e, .x = x, .env = env, .left = TIES_MAX};
    struct enode *n = env ? cached_tie(&t, x->rounds, 0) : NULL;
    return n ? n : e->node[best_slot(x)];
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

static struct rival rival_of(struct vg_eng *e, const struct fit *f, uint32_t slot, uint64_t env) {
    struct enode *n = e->node[slot];
    struct rival r = {.node = n};
    if (e->conf.placing == VG_ENG_RANDOM) {
        r.key = key_at(e, f, slot);
        if (r.key != VG_INDEX_NONE)
            r.key = (r.key >> RANK_SHIFT << RANK_SHIFT) + (int64_t)(vg_place_random(e->place) >> 8);
        return r;
    }
    r.key = vg_index_key(e, f, n);
    r.cached = env && n && vg_map_get_u64(&n->cached, env);
    return r;
}

int vg_fit_find_plain(struct vg_eng *e, struct fit *f, const struct shape *who, uint64_t until,
                      uint64_t env, struct spot *ret, enum vg_eng_code *code) {
    struct rival best = {.key = VG_INDEX_NONE};
    enum vg_eng_code refused = VG_ENG_FREE;
    if (e->place->rng_seed != e->conf.seed)
        e->place->rng = e->place->rng_seed = e->conf.seed;
    for (size_t i = 0; i < e->n_nodes; i++) {
        struct rival r = rival_of(e, f, (uint32_t)i, env);
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
