#pragma once
/* Hash map from byte strings or 64-bit numbers to pointers: open addressing, tombstones, grows by
   doubling. Keys are borrowed: they must live as long as their entry (usually inside the value).
   Iteration order is unspecified; removing while iterating is allowed, adding is not. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct vg_map_slot {
    const char *key; /* borrowed; NULL for number maps */
    uint64_t hash;   /* the key itself in number maps */
    void *value;     /* NULL free, VG_MAP_GONE tombstone */
};

struct vg_map {
    struct vg_map_slot *slots; /* owned */
    size_t cap, used, live;
};

#define VG_MAP_GONE ((void *)1)

void vg_map_done(struct vg_map *m);                             /* values are not touched */
int vg_map_put(struct vg_map *m, const char *key, void *value); /* replaces; 0 or -ENOMEM */
void *vg_map_get(const struct vg_map *m, const char *key);
void *vg_map_del(struct vg_map *m, const char *key); /* returns what was there, or NULL */
int vg_map_put_u64(struct vg_map *m, uint64_t key, void *value);
void *vg_map_get_u64(const struct vg_map *m, uint64_t key);
void *vg_map_del_u64(struct vg_map *m, uint64_t key);
static inline size_t vg_map_len(const struct vg_map *m) {
    return m->live;
}

static inline struct vg_map_slot *vg_map_next(const struct vg_map *m, struct vg_map_slot *s) {
    for (s = s ? s + 1 : m->slots; s && s < m->slots + m->cap; s++)
        if (s->value && s->value != VG_MAP_GONE)
            return s;
    return NULL;
}
#define vg_map_for_each(s, m) \
    for (struct vg_map_slot *s = vg_map_next(m, NULL); s; s = vg_map_next(m, s))
