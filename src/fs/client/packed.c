#include "fs/client/packed.h"

#include "fs/client/read.h"

#include "base/list.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/util.h"
#include "mirror/mwire.h"

#include <errno.h>
#include <string.h>

#define YOUNG_USEC (60 * VG_USEC)

struct leaf {
    struct vg_list link; /* by last use, oldest first */
    uint64_t key, object, number, used_usec;
    struct vg_mstat st;
    size_t len;
    uint8_t frame[];
};

struct vg_packed {
    struct vg_map by_key;
    struct vg_list used;
    size_t bytes, max_bytes;
};

/* Two leaves may have one key: the later one takes the place, and what is found is compared. */
static uint64_t key_of(uint64_t object, uint64_t leaf) {
    uint64_t h = (object ^ leaf << 40) * UINT64_C(0x9e3779b97f4a7c15);
    return h ^ h >> 32;
}

static size_t cost(size_t frame) {
    return sizeof(struct leaf) + frame;
}

int vg_packed_new(size_t max_bytes, struct vg_packed **ret) {
    struct vg_packed *p = vg_alloc(sizeof(*p));
    if (!p)
        return -ENOMEM;
    vg_list_init(&p->used);
    p->max_bytes = max_bytes;
    *ret = p;
    return 0;
}

static void drop(struct vg_packed *p, struct leaf *f) {
    vg_map_del_u64(&p->by_key, f->key);
    vg_list_remove(&f->link);
    p->bytes -= cost(f->len);
    free(f);
}

void vg_packed_free(struct vg_packed *p) {
    if (!p)
        return;
    vg_list_for_each_safe (it, &p->used)
        drop(p, vg_list_entry(it, struct leaf, link));
    vg_map_done(&p->by_key);
    free(p);
}

static bool make_room(struct vg_packed *p, size_t n, uint64_t now_usec) {
    while (p->bytes + n > p->max_bytes) {
        struct vg_list *first = vg_list_first(&p->used);
        struct leaf *f = first ? vg_list_entry(first, struct leaf, link) : NULL;
        if (!f || now_usec < f->used_usec + YOUNG_USEC)
            return false;
        drop(p, f);
    }
    return true;
}

void vg_packed_put(struct vg_packed *p, uint64_t object, uint64_t leaf, const struct vg_mstat *st,
                   const struct vg_buf *frame, uint64_t now_usec) {
    size_t n = vg_buf_len(frame);
    uint64_t key = key_of(object, leaf);
    struct leaf *old = vg_map_get_u64(&p->by_key, key);
    if (old)
        drop(p, old);
    struct leaf *f = n && make_room(p, cost(n), now_usec) ? vg_alloc(cost(n)) : NULL;
    if (!f)
        return;
    *f = (struct leaf){
        .key = key, .object = object, .number = leaf, .used_usec = now_usec, .st = *st, .len = n};
    memcpy(f->frame, frame->base + frame->head, n);
    if (vg_map_put_u64(&p->by_key, key, f) < 0) {
        free(f);
        return;
    }
    vg_list_push_back(&p->used, &f->link);
    p->bytes += cost(n);
}

bool vg_packed_get(struct vg_packed *p, uint64_t object, uint64_t leaf, const struct vg_mstat *st,
                   uint64_t req, struct vg_buf *out, uint64_t now_usec) {
    struct leaf *f = vg_map_get_u64(&p->by_key, key_of(object, leaf));
    if (!f || f->object != object || f->number != leaf)
        return false;
    if (!vg_mstat_same(&f->st, st)) {
        drop(p, f);
        return false;
    }
    if (vg_buf_append(out, f->frame, f->len) < 0)
        return false;
    vg_mw_data_for(out, req);
    f->used_usec = now_usec;
    vg_list_remove(&f->link);
    vg_list_push_back(&p->used, &f->link);
    return true;
}

size_t vg_packed_bytes(const struct vg_packed *p) {
    return p->bytes;
}
