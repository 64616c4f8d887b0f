/* Hash map: open addressing with linear probing at a load of at most 3/4. */
#include "base/map.h"

#include "base/mem.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static uint64_t mix(uint64_t x) {
    x ^= x >> 33;
    x *= 0xff51afd7ed558ccdULL;
    x ^= x >> 33;
    x *= 0xc4ceb9fe1a85ec53ULL;
    return x ^ (x >> 33);
}

static uint64_t hash_str(const char *s) {
    uint64_t h = 0xcbf29ce484222325ULL;
    for (; *s; s++)
        h = (h ^ (uint8_t)*s) * 0x100000001b3ULL;
    return h;
}

void vg_map_done(struct vg_map *m) {
    free(m->slots);
    *m = (struct vg_map){0};
}

static bool same(const struct vg_map_slot *s, const char *key, uint64_t hash) {
    if (s->hash != hash)
        return false;
    return !key || (s->key && strcmp(s->key, key) == 0);
}

/* The slot that holds the key, or NULL. */
static struct vg_map_slot *find(const struct vg_map *m, const char *key, uint64_t hash) {
    if (!m->cap)
        return NULL;
    for (size_t i = mix(hash) & (m->cap - 1);; i = (i + 1) & (m->cap - 1)) {
        struct vg_map_slot *s = &m->slots[i];
        if (!s->value)
            return NULL;
        if (s->value != VG_MAP_GONE && same(s, key, hash))
            return s;
    }
}

static void insert(struct vg_map *m, const char *key, uint64_t hash, void *value) {
    size_t i = mix(hash) & (m->cap - 1);
    while (m->slots[i].value && m->slots[i].value != VG_MAP_GONE)
        i = (i + 1) & (m->cap - 1);
    if (!m->slots[i].value)
        m->used++;
    m->slots[i] = (struct vg_map_slot){.key = key, .hash = hash, .value = value};
    m->live++;
}

static int put(struct vg_map *m, const char *key, uint64_t hash, void *value) {
    struct vg_map_slot *s = find(m, key, hash);
    if (s) {
        s->key = key;
        s->value = value;
        return 0;
    }
    if ((m->used + 1) * 4 > m->cap * 3) {
        size_t cap = 16;
        while (cap < (m->live + 1) * 2)
            cap *= 2;
        struct vg_map big = {.slots = vg_alloc(cap * sizeof(*big.slots)), .cap = cap};
        if (!big.slots)
            return -ENOMEM;
        vg_map_for_each (old, m)
            insert(&big, old->key, old->hash, old->value);
        free(m->slots);
        *m = big;
    }
    insert(m, key, hash, value);
    return 0;
}

static void *del(struct vg_map *m, const char *key, uint64_t hash) {
    struct vg_map_slot *s = find(m, key, hash);
    if (!s)
        return NULL;
    void *v = s->value;
    s->value = VG_MAP_GONE;
    s->key = NULL;
    m->live--;
    return v;
}

int vg_map_put(struct vg_map *m, const char *key, void *value) {
    return put(m, key, hash_str(key), value);
}
void *vg_map_get(const struct vg_map *m, const char *key) {
    struct vg_map_slot *s = find(m, key, hash_str(key));
    return s ? s->value : NULL;
}
void *vg_map_del(struct vg_map *m, const char *key) {
    return del(m, key, hash_str(key));
}
int vg_map_put_u64(struct vg_map *m, uint64_t key, void *value) {
    return put(m, NULL, key, value);
}
void *vg_map_get_u64(const struct vg_map *m, uint64_t key) {
    struct vg_map_slot *s = find(m, NULL, key);
    return s ? s->value : NULL;
}
void *vg_map_del_u64(struct vg_map *m, uint64_t key) {
    return del(m, NULL, key);
}
