/* Token buckets; see the header. Counted in millionths of a token. */
#include "http/rate.h"

#include "base/mem.h"
#include "base/util.h"

#include <stdio.h>

struct bucket {
    struct vg_list link;
    char name[VG_RATE_NAME_MAX + 1];
    uint64_t micro;   /* tokens that are there ... */
    uint64_t at_usec; /* ... at this time */
};

void vg_rate_init(struct vg_rate *r, uint64_t per_sec, uint64_t burst) {
    *r = (struct vg_rate){.per_sec = per_sec, .burst = VG_MAX(burst, (uint64_t)1)};
    vg_list_init(&r->by_age);
}

void vg_rate_done(struct vg_rate *r) {
    vg_map_for_each (s, &r->names)
        free(s->value);
    vg_map_done(&r->names);
}

static struct bucket *make(struct vg_rate *r, const char *name, uint64_t now) {
    struct bucket *b;
    if (vg_map_len(&r->names) >= VG_RATE_NAMES_MAX) {
        b = vg_list_entry(vg_list_first(&r->by_age), struct bucket, link);
        vg_map_del(&r->names, b->name);
        vg_list_remove(&b->link);
    } else {
        b = vg_alloc(sizeof(*b));
    }
    if (!b)
        return NULL;
    *b = (struct bucket){.micro = r->burst * VG_USEC, .at_usec = now};
    vg_list_init(&b->link);
    snprintf(b->name, sizeof(b->name), "%s", name);
    if (vg_map_put(&r->names, b->name, b) < 0) {
        free(b);
        return NULL;
    }
    return b;
}

static struct bucket *find(struct vg_rate *r, const char *name, uint64_t now) {
    char cut[VG_RATE_NAME_MAX + 1];
    snprintf(cut, sizeof(cut), "%s", name);
    struct bucket *b = vg_map_get(&r->names, cut);
    if (!b)
        b = make(r, cut, now);
    if (!b)
        return NULL;
    uint64_t full = r->burst * VG_USEC, passed = now > b->at_usec ? now - b->at_usec : 0;
    /* A full bucket takes no more, however long it stood. */
    uint64_t more = passed > full / r->per_sec ? full : passed * r->per_sec;
    b->micro = VG_MIN(full, b->micro + more);
    b->at_usec = VG_MAX(now, b->at_usec);
    vg_list_remove(&b->link);
    vg_list_push_back(&r->by_age, &b->link);
    return b;
}

static uint64_t ask(struct vg_rate *r, const char *name, uint64_t cost, uint64_t now, bool take) {
    struct bucket *b = r->per_sec ? find(r, name, now) : NULL;
    uint64_t need = VG_MIN(cost, r->burst) * VG_USEC;
    if (!b)
        return 0;
    if (b->micro < need)
        return (need - b->micro) / (r->per_sec * 1000) + 1;
    if (take)
        b->micro -= need;
    return 0;
}

uint64_t vg_rate_take(struct vg_rate *r, const char *name, uint64_t cost, uint64_t now_usec) {
    return ask(r, name, cost, now_usec, true);
}

uint64_t vg_rate_wait(struct vg_rate *r, const char *name, uint64_t cost, uint64_t now_usec) {
    return ask(r, name, cost, now_usec, false);
}
