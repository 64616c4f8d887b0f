/* Pushes that the service announced. Who reads along waits for them without asking; who reads
   elsewhere asks, and overtakes. When one ends, or its link breaks, those who wait look again. */
#include "base/cleanup.h"
#include "base/mem.h"
#include "fs/node/link-int.h"

/* Leaves: a program that waits for one of the next NEAR reads along; what it will read then, up to
   NEAR_AHEAD, comes as well before a question could be answered. */
#define NEAR 8u
#define NEAR_AHEAD 64u

static void drop(struct link *k, struct coming *c) {
    vg_list_remove(&c->link);
    k->n_coming--;
    free(c);
}

void vg_coming_over(struct link *k, uint64_t object) {
    vg_list_for_each_safe (it, &k->coming) {
        struct coming *c = vg_list_entry(it, struct coming, link);
        if (c->object == object)
            drop(k, c);
    }
}

uint64_t vg_coming_any(const struct link *k) {
    return vg_list_empty(&k->coming) ? 0
                                     : vg_list_entry(k->coming.next, struct coming, link)->object;
}

void vg_coming(struct link *k, const Vg__Mr__Coming *m) {
    if (!m->object || m->length > INT64_MAX || m->offset > INT64_MAX - m->length ||
        k->n_coming == LINK_COMING)
        return; /* it is asked for, then */
    struct coming *c = vg_alloc(sizeof(*c));
    if (!c)
        return;
    c->object = m->object;
    c->front = m->offset / VG_LEAF;
    c->end = vg_leaves(m->offset + m->length);
    vg_list_push_back(&k->coming, &c->link);
    k->n_coming++;
}

void vg_coming_seen(struct link *k, uint64_t object, uint64_t leaf) {
    vg_list_for_each (it, &k->coming) {
        struct coming *c = vg_list_entry(it, struct coming, link);
        if (c->object != object || leaf < c->front || leaf - c->front >= 64)
            continue;
        c->seen |= UINT64_C(1) << (leaf - c->front);
        for (; c->seen & 1; c->seen >>= 1)
            c->front++;
    }
}

/* One that was seen and is asked for nevertheless was of no use. */
static uint64_t soon(const struct coming *c, uint64_t leaf, unsigned urgency) {
    if (leaf < c->front || leaf >= c->end || leaf - c->front >= (urgency ? NEAR_AHEAD : NEAR) ||
        (c->seen >> (leaf - c->front) & 1))
        return 0;
    return VG_MIN(c->front + NEAR_AHEAD, c->end) - leaf;
}

uint64_t vg_coming_soon(const struct vg_links *l, uint64_t object, uint64_t leaf,
                        unsigned urgency) {
    uint64_t n = 0;
    vg_list_for_each (at, &l->links)
        vg_list_for_each (it, &vg_list_entry(at, struct link, link)->coming) {
            const struct coming *c = vg_list_entry(it, struct coming, link);
            n = c->object == object ? VG_MAX(n, soon(c, leaf, urgency)) : n;
        }
    return n;
}
