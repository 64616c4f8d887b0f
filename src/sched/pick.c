/* Whose turn it is among those who wait in some columns: see lanes.h. Two ways to the same answer:
   down the tree from the root, which is quick where many wait, and through the lanes, which is
   quick where few do. Pure. */
#include "base/cleanup.h"
#include "sched/lanes.h"

#define FEW 8 /* lanes to compare rather than to walk */

static bool first_before(const struct bough *a, const struct bough *b) {
    const struct etask *x = a->first, *y = b->first;
    return x->order != y->order ? x->order < y->order : x->id < y->id;
}

static bool in_quota(const struct vg_eng *e, const struct etenant *t, const struct column *c) {
    return vg_tenant_in_quota(e, t, c->shape->fit, c->shape->members);
}

/* --- through the lanes --- */

/* Siblings. Equal shares: who was served longest ago. That is a matter of the tenants alone: were
   it one of their tasks' order, a could go before b before c before a. */
static bool by_key(const struct vg_eng *e, const struct etenant *a, const struct column *ca,
                   const struct etenant *b, const struct column *cb) {
    bool qa = in_quota(e, a, ca), qb = in_quota(e, b, cb);
    double x = qa ? a->fill : a->key, y = qb ? b->fill : b->key;
    if (qa != qb)
        return qa;
    if (x != y)
        return x < y;
    return a->served != b->served ? a->served < b->served : a->no < b->no;
}

/* Where the tenants are the same, the shapes may differ: one may be within the quota, one not. What
   stands higher in the tree decides. */
static int by_common_quota(const struct vg_eng *e, const struct etenant *t, const struct column *a,
                           const struct column *b) {
    int r = 0;
    for (; a->shape != b->shape && t->parent; t = t->parent) {
        bool qa = in_quota(e, t, a), qb = in_quota(e, t, b);
        if (qa != qb)
            r = qa ? -1 : 1;
    }
    return r;
}

bool vg_lane_before(const struct vg_eng *e, const struct bough *a, const struct bough *b) {
    const struct column *ca = a->column, *cb = b->column;
    const struct etenant *x = a->tenant, *y = b->tenant;
    if (ca->level != cb->level)
        return ca->level > cb->level;
    while (x->depth > y->depth)
        x = x->parent;
    while (y->depth > x->depth)
        y = y->parent;
    if (x == y) { /* one tenant is the other, or above it: then its own tasks go first */
        int r = by_common_quota(e, x, ca, cb);
        if (r || a->tenant == b->tenant)
            return r ? r < 0 : first_before(a, b);
        return a->tenant->depth < b->tenant->depth;
    }
    while (x->parent != y->parent) {
        x = x->parent;
        y = y->parent;
    }
    int r = by_common_quota(e, x->parent, ca, cb);
    return r ? r < 0 : by_key(e, x, ca, y, cb);
}

struct bough *vg_pick_by_lane(const struct vg_eng *e, struct column *const *col, size_t n) {
    struct bough *best = NULL;
    for (size_t i = 0; i < n; i++)
        vg_list_for_each (k, &col[i]->lanes) {
            struct bough *b = vg_list_entry(k, struct bough, on_column);
            if (vg_lane_is_live(b) && (!best || vg_lane_before(e, b, best)))
                best = b;
        }
    return best;
}

/* --- down the tree --- */

struct search {
    const struct vg_eng *e;
    struct column *const *col;
    size_t n;
    struct sum sum;            /* of the columns */
    struct vg_eng_amount need; /* the least of those that lead with it */
    uint64_t no;               /* of the search: column.asked */
};

static struct search begin(const struct vg_eng *e, struct column *const *col, size_t n) {
    struct vg_eng *counter = (struct vg_eng *)e; /* of searches: not part of what it knows */
    struct search s = {e, col, n, {{0}}, VG_ENG_NO_LIMIT, ++counter->picks};
    for (size_t i = 0; i < n; i++) {
        struct vg_eng_amount a = vg_fit_most(e, col[i]->shape->fit, col[i]->shape->members);
        col[i]->asked = s.no;
        s.sum.w[col[i]->no / 64 % VG_SUM_WORDS] |= 1ULL << (col[i]->no % 64);
        if (a.gpu_milli)
            s.need.gpu_milli = VG_MIN(s.need.gpu_milli, a.gpu_milli);
        else if (a.cpu_milli)
            s.need.cpu_milli = VG_MIN(s.need.cpu_milli, a.cpu_milli);
        else
            s.need.mem_bytes = VG_MIN(s.need.mem_bytes, a.mem_bytes);
    }
    return s;
}

/* Whether any of these may be within a quota. */
static bool may_be_within(const struct search *s, const struct etenant *t) {
    const struct vg_eng_amount *room = &t->fill_room, *need = &s->need;
    return vg_sums_meet(&t->fill_sum, &s->sum) &&
           (need->gpu_milli <= room->gpu_milli || need->cpu_milli <= room->cpu_milli ||
            need->mem_bytes <= room->mem_bytes);
}

/* Tenants on the way down that were chosen for their quota: only what is within it counts. */
struct within {
    const struct etenant *tenant;
    const struct within *above;
};

static bool counts(const struct search *s, const struct etenant *t, const struct column *c,
                   const struct within *w) {
    for (; t; t = t->parent) /* a tenant above may be at its limit for this one only */
        if (!vg_tenant_bit(t, c))
            return false;
    for (; w; w = w->above)
        if (!in_quota(s->e, w->tenant, c))
            return false;
    return true;
}

static bool has_some(const struct search *s, const struct etenant *t, const struct within *w) {
    if (!vg_sums_meet(&t->sum, &s->sum))
        return false;
    for (size_t i = 0; i < s->n; i++)
        if (counts(s, t, s->col[i], w))
            return true;
    return false;
}

static void better_of(struct bough **best, struct bough *b) {
    if (b->first && (!*best || first_before(b, *best)))
        *best = b;
}

/* The first of its own tasks: through its boughs, or through the columns, whichever are fewer. */
static struct bough *own_lane(const struct search *s, const struct etenant *t,
                              const struct within *w) {
    struct bough *best = NULL;
    if (!t->own_lanes)
        return NULL;
    if (vg_list_empty(&t->children) && t->own_lanes < s->n) {
        vg_list_for_each (i, &t->boughs) {
            struct bough *b = vg_list_entry(i, struct bough, on_tenant);
            if (b->column->asked == s->no && counts(s, t, b->column, w))
                better_of(&best, b);
        }
        return best;
    }
    for (size_t i = 0; i < s->n; i++)
        if (counts(s, t, s->col[i], w))
            better_of(&best, vg_map_get_u64(&s->e->boughs, (uint64_t)t->no << 32 | s->col[i]->no));
    return best;
}

static struct bough *down(const struct search *s, const struct etenant *t, const struct within *w);

static struct bough *by_fill(const struct search *s, const struct tree_item *i,
                             const struct within *w) {
    const struct etenant *t = i ? vg_container_of(i, struct etenant, in_fill) : NULL;
    if (!t || !may_be_within(s, t))
        return NULL;
    struct bough *b = by_fill(s, i->left, w);
    if (b)
        return b;
    struct within more = {t, w};
    return has_some(s, t, &more) ? down(s, t, &more) : by_fill(s, i->right, w);
}

static struct bough *by_share(const struct search *s, const struct tree_item *i,
                              const struct within *w) {
    const struct etenant *t = i ? vg_container_of(i, struct etenant, in_share) : NULL;
    if (!t || !vg_sums_meet(&t->share_sum, &s->sum))
        return NULL;
    struct bough *b = by_share(s, i->left, w);
    if (b)
        return b;
    return has_some(s, t, w) ? down(s, t, w) : by_share(s, i->right, w);
}

static struct bough *down(const struct search *s, const struct etenant *t, const struct within *w) {
    struct bough *b = own_lane(s, t, w);
    if (!b)
        b = by_fill(s, t->by_fill.root, w);
    return b ? b : by_share(s, t->by_share.root, w);
}

struct bough *vg_pick_by_walk(const struct vg_eng *e, struct column *const *col, size_t n) {
    struct search s = begin(e, col, n);
    return has_some(&s, &e->root, NULL) ? down(&s, &e->root, NULL) : NULL;
}

struct bough *vg_pick(const struct vg_eng *e, struct column *const *col, size_t n) {
    size_t lanes = 0;
    for (size_t i = 0; i < n && lanes <= FEW; i++)
        lanes += col[i]->n_lanes;
    return lanes <= FEW ? vg_pick_by_lane(e, col, n) : vg_pick_by_walk(e, col, n);
}

/* --- of one shape --- */

struct column *vg_shape_top(const struct vg_eng *e, const struct shape *s) {
    vg_list_for_each (i, &s->columns) {
        struct column *c = vg_list_entry(i, struct column, on_shape);
        if (vg_tenant_bit(&e->root, c))
            return c;
    }
    return NULL;
}

struct etask *vg_shape_head(const struct vg_eng *e, const struct shape *s) {
    struct shape *memo = (struct shape *)s; /* remembers the answer until the order changes */
    if (s->head_epoch != e->order_epoch) {
        struct column *top = vg_shape_top(e, s);
        struct bough *b = top ? vg_pick(e, &top, 1) : NULL;
        memo->head = b ? vg_lane_first(b) : NULL;
        memo->head_epoch = e->order_epoch;
    }
    return s->head;
}

bool vg_shape_before(const struct vg_eng *e, const struct shape *a, const struct shape *b) {
    return vg_lane_before(e, vg_shape_head(e, a)->lane, vg_shape_head(e, b)->lane);
}
