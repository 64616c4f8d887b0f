/* Sharing what submissions have in common.

   A block holds variables, limits, directory, client and identity of one or more submissions. Its
   variables are texts that other blocks may have, too; two blocks with the same variables have the
   same pointers, so that blocks are compared without looking at a single byte of them.

   What always holds: a text or block is in its map exactly as long as somebody uses it, unless
   another one with the same hash was there first; that one is then merely not found again. */
#include "model/alike.h"

#include "base/cleanup.h"
#include "base/mem.h"
#include "model/submission.h"

#include <stdlib.h>
#include <string.h>

struct text {
    struct vg_map *in; /* NULL: in none */
    uint64_t hash;
    uint32_t refs;
    uint32_t len;
    uint8_t data[];
};

struct vg_block {
    struct vg_map *in; /* NULL: in none */
    uint64_t hash;
    uint32_t refs;
    size_t n_env;
    ProtobufCBinaryData *env; /* owned array of texts' data, each with a reference */
    Vg__Pb__TaskSpec *rest;   /* owned; holds what is shared besides the variables */
    Vg__Pb__Identity *who;    /* owned */
    size_t key_len;
    uint8_t key[]; /* rest and who as bytes, for the comparison */
};

static uint64_t hash_bytes(uint64_t h, const void *p, size_t n) {
    const uint8_t *b = p;
    for (size_t i = 0; i < n; i++)
        h = (h ^ b[i]) * 0x100000001b3ULL;
    return h;
}
#define HASH_BEGIN 0xcbf29ce484222325ULL

/* ------------------------------------------------------------------ texts */

static struct text *text_of(const ProtobufCBinaryData *d) {
    return vg_container_of(d->data, struct text, data);
}

static struct text *text_get(struct vg_map *all, const void *p, size_t n) {
    uint64_t hash = hash_bytes(HASH_BEGIN, p, n);
    struct text *t = vg_map_get_u64(all, hash);
    bool taken = t != NULL;
    if (taken && t->len == n && memcmp(t->data, p, n) == 0) {
        t->refs++;
        return t;
    }
    t = n < UINT32_MAX ? vg_alloc(sizeof *t + n + 1) : NULL;
    if (!t)
        return NULL;
    *t = (struct text){.hash = hash, .refs = 1, .len = (uint32_t)n};
    if (n)
        memcpy(t->data, p, n);
    if (!taken && vg_map_put_u64(all, hash, t) == 0)
        t->in = all;
    return t;
}

static void text_unref(struct text *t) {
    if (--t->refs)
        return;
    if (t->in)
        vg_map_del_u64(t->in, t->hash);
    free(t);
}

static void env_free(ProtobufCBinaryData *env, size_t n) {
    for (size_t i = 0; i < n; i++)
        text_unref(text_of(&env[i]));
    free(env);
}

/* The same variables as shared texts; NULL: no memory. */
static ProtobufCBinaryData *env_get(struct vg_map *texts, const Vg__Pb__TaskSpec *spec) {
    ProtobufCBinaryData *env = vg_alloc((spec->n_env + 1) * sizeof *env);
    for (size_t i = 0; env && i < spec->n_env; i++) {
        struct text *t = text_get(texts, spec->env[i].data, spec->env[i].len);
        if (!t) {
            env_free(env, i);
            return NULL;
        }
        env[i] = (ProtobufCBinaryData){.data = t->data, .len = t->len};
    }
    return env;
}

/* ------------------------------------------------------------------ blocks */

/* Moves what is shared besides the variables from one spec to another. */
static void move_rest(Vg__Pb__TaskSpec *to, Vg__Pb__TaskSpec *from) {
    to->rlimit = from->rlimit;
    to->n_rlimit = from->n_rlimit;
    to->cwd = from->cwd;
    to->has_cwd = from->has_cwd;
    to->client_host = from->client_host;
    from->rlimit = NULL;
    from->n_rlimit = 0;
    from->cwd = (ProtobufCBinaryData){0};
    from->has_cwd = false;
    from->client_host = NULL;
}

/* Like move_rest, but both have it: only one may free it. */
static void lend(Vg__Pb__TaskSpec *spec, const struct vg_block *b) {
    spec->env = b->env;
    spec->n_env = b->n_env;
    spec->rlimit = b->rest->rlimit;
    spec->n_rlimit = b->rest->n_rlimit;
    spec->cwd = b->rest->cwd;
    spec->has_cwd = b->rest->has_cwd;
    spec->client_host = b->rest->client_host;
}

static void block_free(struct vg_block *b) {
    if (b->in)
        vg_map_del_u64(b->in, b->hash);
    env_free(b->env, b->n_env);
    vg__pb__task_spec__free_unpacked(b->rest, NULL);
    if (b->who)
        vg__pb__identity__free_unpacked(b->who, NULL);
    free(b);
}

void vg_block_unref(struct vg_block *b, Vg__Pb__TaskSpec *spec, Vg__Pb__Identity **who) {
    Vg__Pb__TaskSpec none = VG__PB__TASK_SPEC__INIT;
    move_rest(&none, spec);
    spec->env = NULL;
    spec->n_env = 0;
    *who = NULL;
    if (--b->refs == 0)
        block_free(b);
}

/* A spec with the rest of this one alone; borrows. */
static Vg__Pb__TaskSpec rest_of(const Vg__Pb__TaskSpec *spec) {
    Vg__Pb__TaskSpec rest = VG__PB__TASK_SPEC__INIT;
    rest.rlimit = spec->rlimit;
    rest.n_rlimit = spec->n_rlimit;
    rest.cwd = spec->cwd;
    rest.has_cwd = spec->has_cwd;
    rest.client_host = spec->client_host;
    return rest;
}

/* A block with the submission's key and variables; it owns neither rest nor who yet. */
static struct vg_block *block_draft(struct vg_alike *pool, const struct vg_submission *s) {
    Vg__Pb__TaskSpec rest = rest_of(s->spec);
    size_t n = vg__pb__task_spec__get_packed_size(&rest);
    size_t m = s->who ? vg__pb__identity__get_packed_size(s->who) : 0;
    struct vg_block *b = vg_alloc(sizeof *b + n + m);
    ProtobufCBinaryData *env = b ? env_get(&pool->texts, s->spec) : NULL;
    if (!env) {
        free(b);
        return NULL;
    }
    *b = (struct vg_block){.refs = 1, .n_env = s->spec->n_env, .env = env, .key_len = n + m};
    vg__pb__task_spec__pack(&rest, b->key);
    if (m)
        vg__pb__identity__pack(s->who, b->key + n);
    b->hash = hash_bytes(HASH_BEGIN, b->key, b->key_len);
    b->hash = hash_bytes(b->hash, env, b->n_env * sizeof *env);
    return b;
}

static bool same(const struct vg_block *a, const struct vg_block *b) {
    return a->n_env == b->n_env && a->key_len == b->key_len &&
           memcmp(a->env, b->env, a->n_env * sizeof *a->env) == 0 &&
           memcmp(a->key, b->key, a->key_len) == 0;
}

static void draft_free(struct vg_block *b) {
    env_free(b->env, b->n_env);
    free(b);
}

/* What the submission has of its own goes to `to`, which is freed or becomes a block's. */
static void strip(struct vg_submission *s, Vg__Pb__TaskSpec *to) {
    move_rest(to, s->spec);
    for (size_t i = 0; i < s->spec->n_env; i++)
        free(s->spec->env[i].data);
    free(s->spec->env);
    s->spec->env = NULL;
    s->spec->n_env = 0;
}

static void join(struct vg_submission *s, struct vg_block *b) {
    s->block = b;
    s->who = b->who;
    lend(s->spec, b);
}

void vg_alike_share(struct vg_alike *pool, struct vg_task *t) {
    struct vg_submission *s = t->submission;
    if (s->refs != 1 || s->block || !s->spec)
        return;
    struct vg_block *mine = block_draft(pool, s);
    Vg__Pb__TaskSpec *rest = mine ? vg_alloc(sizeof *rest) : NULL;
    if (!rest) {
        if (mine)
            draft_free(mine);
        return;
    }
    vg__pb__task_spec__init(rest);
    struct vg_block *known = vg_map_get_u64(&pool->blocks, mine->hash);
    strip(s, rest);
    if (known && same(known, mine)) {
        draft_free(mine);
        vg__pb__task_spec__free_unpacked(rest, NULL);
        if (s->who)
            vg__pb__identity__free_unpacked(s->who, NULL);
        known->refs++;
    } else {
        mine->rest = rest;
        mine->who = s->who;
        if (!known && vg_map_put_u64(&pool->blocks, mine->hash, mine) == 0)
            mine->in = &pool->blocks;
        known = mine;
    }
    join(s, known);
    t->who = s->who;
}

void vg_alike_done(struct vg_alike *pool) {
    vg_map_done(&pool->texts);
    vg_map_done(&pool->blocks);
}
