/* Boughs and lanes: see lanes.h. A bough's key (`in_quota`, `share`, and the level and order of its
   head) is what the heap above it was sorted by; it only changes together with its place there.
   Pure. */
#include "sched/lanes.h"

#include "base/mem.h"

int64_t vg_task_level(const struct vg_eng *e, const struct vg_eng_req *r) {
    uint64_t since = r->since_usec ? r->since_usec : e->now;
    return (int64_t)r->priority - (int64_t)(e->conf.age_usec ? since / e->conf.age_usec : 0);
}

static struct etask *task_of(const struct tree_item *i) {
    return i ? vg_container_of(i, struct etask, in_lane) : NULL;
}

static bool task_before(const struct etask *a, const struct etask *b) {
    if (a->level != b->level)
        return a->level > b->level;
    return a->order != b->order ? a->order < b->order : a->id < b->id;
}

static int cmp_tasks(const struct tree_item *x, const struct tree_item *y) {
    return x == y ? 0 : task_before(task_of(x), task_of(y)) ? -1 : 1;
}

/* Siblings, in one shape or in two. Equal shares: who was served longest ago. That is a matter of
   the tenants alone: were it one of their tasks' order, a could go before b before c before a. */
static bool by_key(const struct bough *a, const struct bough *b) {
    if (a->in_quota != b->in_quota)
        return a->in_quota;
    if (a->share != b->share)
        return a->share < b->share;
    return a->served != b->served ? a->served < b->served : a->tenant->no < b->tenant->no;
}

/* Where the tenants are the same, the shapes may differ: one may be within the quota, one not. What
   stands higher in the tree decides. */
static int by_common_quota(const struct bough *a, const struct bough *b) {
    int r = 0;
    for (; a->parent; a = a->parent, b = b->parent)
        if (a->in_quota != b->in_quota)
            r = a->in_quota ? -1 : 1;
    return r;
}

bool vg_bough_before(const struct bough *a, const struct bough *b) {
    const struct etask *x = a->head, *y = b->head;
    if (x->level != y->level)
        return x->level > y->level;
    a = x->lane;
    b = y->lane;
    while (a->tenant->depth > b->tenant->depth)
        a = a->parent;
    while (b->tenant->depth > a->tenant->depth)
        b = b->parent;
    if (a->tenant == b->tenant) { /* one tenant is the other, or above it */
        int r = by_common_quota(a, b);
        if (r || x->tenant == y->tenant)
            return r ? r < 0 : task_before(x, y);
        return x->tenant->depth < y->tenant->depth;
    }
    while (a->parent->tenant != b->parent->tenant) {
        a = a->parent;
        b = b->parent;
    }
    int r = by_common_quota(a->parent, b->parent);
    return r ? r < 0 : by_key(a, b);
}

/* --- the heap of children --- */

/* The same as by level and by_key(), on what the heap keeps beside each child. */
static bool limb_before(const struct limb *a, const struct limb *b) {
    if (a->level != b->level)
        return a->level > b->level;
    if (a->in_quota != b->in_quota)
        return a->in_quota;
    if (a->share != b->share)
        return a->share < b->share;
    return a->served != b->served ? a->served < b->served : a->no < b->no;
}

static struct limb limb_of(struct bough *b) {
    return (struct limb){.bough = b,
                         .level = b->head->level,
                         .share = b->share,
                         .served = b->served,
                         .no = b->tenant->no,
                         .in_quota = b->in_quota};
}

static void put(struct bough *p, uint32_t at, const struct limb *x) {
    p->child[at] = *x;
    x->bough->at = at;
}

/* To its place, from a free one. */
static void sift(struct bough *p, uint32_t at, struct limb x) {
    for (; at && limb_before(&x, &p->child[(at - 1) / 2]); at = (at - 1) / 2)
        put(p, at, &p->child[(at - 1) / 2]);
    for (uint32_t c; (c = 2 * at + 1) < p->n_child; at = c) {
        if (c + 1 < p->n_child && limb_before(&p->child[c + 1], &p->child[c]))
            c++;
        if (!limb_before(&p->child[c], &x))
            break;
        put(p, at, &p->child[c]);
    }
    put(p, at, &x);
}

static void heap_drop(struct bough *b) {
    struct bough *p = b->parent;
    uint32_t at = b->at;
    struct limb last = p->child[--p->n_child];
    b->at = VG_NOT_IN_HEAP;
    if (last.bough != b)
        sift(p, at, last);
}

/* Its head or key changed: to its place in the heap above. */
static void replace(struct bough *b) {
    bool in = b->head && !b->capped;
    if (in)
        sift(b->parent, b->at == VG_NOT_IN_HEAP ? b->parent->n_child++ : b->at, limb_of(b));
    else if (b->at != VG_NOT_IN_HEAP)
        heap_drop(b);
}

/* Among equals by level, an inner tenant's own tasks go before those of the tenants below it. */
static struct etask *winner(const struct bough *b) {
    struct etask *own = task_of(tree_first(&b->tasks));
    struct etask *below = b->n_child ? b->child[0].bough->head : NULL;
    return own && (!below || own->level >= below->level) ? own : below;
}

/* From a bough whose heap or tasks changed up to where nothing changes any more. */
static void climb(struct bough *b) {
    for (struct etask *head; b && (head = winner(b)) != b->head; b = b->parent) {
        b->head = head;
        if (b->parent)
            replace(b);
    }
}

static void key(struct vg_eng *e, struct bough *b) {
    const struct shape *s = b->shape;
    b->in_quota = vg_tenant_in_quota(e, b->tenant, s->fit, s->members);
    b->share = b->in_quota ? b->tenant->fill : b->tenant->key;
    b->served = b->tenant->served;
}

/* --- making and freeing --- */

static uint64_t bough_key(const struct etenant *t, const struct shape *s) {
    return (uint64_t)t->no << 32 | s->no;
}

struct bough *vg_lane_find(const struct vg_eng *e, const struct etenant *t, const struct shape *s) {
    return vg_map_get_u64(&e->boughs, bough_key(t, s));
}

static int room_for_child(struct bough *p) {
    struct limb *more = vg_grow(p->child, &p->child_cap, p->kids + 1, sizeof *more);
    if (!more)
        return -ENOMEM;
    p->child = more;
    return 0;
}

static struct bough *new_bough(struct vg_eng *e, struct etenant *t, struct shape *s,
                               struct bough *parent) {
    struct bough *b = vg_alloc(sizeof *b);
    if (!b || (parent && room_for_child(parent) < 0) ||
        vg_map_put_u64(&e->boughs, bough_key(t, s), b) < 0) {
        free(b);
        return NULL;
    }
    *b = (struct bough){.tenant = t, .shape = s, .parent = parent, .at = VG_NOT_IN_HEAP};
    b->tasks.cmp = cmp_tasks;
    vg_list_init(&b->dirty);
    vg_list_init(&b->on_capped);
    vg_list_init(&b->on_tenant);
    vg_list_push_back(&t->boughs, &b->on_tenant);
    if (parent)
        parent->kids++;
    else
        s->root = b;
    key(e, b);
    return b;
}

struct bough *vg_lane_get(struct vg_eng *e, struct etenant *t, struct shape *s) {
    struct bough *b = vg_lane_find(e, t, s);
    if (b)
        return b;
    struct bough *parent = t->parent ? vg_lane_get(e, t->parent, s) : NULL;
    if (t->parent && !parent)
        return NULL;
    if (!(b = new_bough(e, t, s, parent)) && parent)
        vg_lane_prune(e, parent);
    return b;
}

void vg_lane_prune(struct vg_eng *e, struct bough *b) {
    while (b && !b->kids && !b->tasks.root) {
        struct bough *parent = b->parent;
        vg_map_del_u64(&e->boughs, bough_key(b->tenant, b->shape));
        vg_list_remove(&b->dirty);
        vg_list_remove(&b->on_capped);
        vg_list_remove(&b->on_tenant);
        if (parent)
            parent->kids--;
        else
            b->shape->root = NULL;
        free(b->child);
        free(b);
        b = parent;
    }
}

/* --- tasks --- */

void vg_lane_add(struct vg_eng *e, struct bough *lane, struct etask *t) {
    (void)e;
    t->lane = lane;
    t->in_lane.rank_bits = tree_mix(t->id);
    tree_insert(&lane->tasks, &t->in_lane);
    climb(lane);
}

void vg_lane_remove(struct vg_eng *e, struct etask *t) {
    struct bough *lane = t->lane;
    tree_remove(&lane->tasks, &t->in_lane);
    t->lane = NULL;
    climb(lane);
    vg_lane_prune(e, lane);
}

void vg_lane_lift(struct etask *t, int64_t level) {
    struct bough *lane = t->lane;
    tree_remove(&lane->tasks, &t->in_lane);
    climb(lane); /* while the old level still tells where it stood */
    t->level = level;
    tree_insert(&lane->tasks, &t->in_lane);
    climb(lane);
}

/* --- limits and keys --- */

void vg_bough_cap(struct vg_eng *e, struct bough *b) {
    (void)e;
    if (b->capped || !b->parent)
        return;
    b->capped = true;
    vg_list_push_back(&b->tenant->capped, &b->on_capped);
    replace(b);
    climb(b->parent);
}

void vg_bough_uncap(struct vg_eng *e, struct bough *b) {
    if (!b->capped)
        return;
    b->capped = false;
    vg_list_remove(&b->on_capped);
    key(e, b);
    replace(b);
    climb(b->parent);
}

void vg_lanes_mark(struct etenant *t) {
    vg_list_for_each (i, &t->boughs) {
        struct bough *b = vg_list_entry(i, struct bough, on_tenant);
        if (vg_list_empty(&b->dirty) && b->parent)
            vg_list_push_back(&b->shape->dirty, &b->dirty);
    }
}

void vg_lanes_flush(struct vg_eng *e, struct shape *s) {
    for (struct vg_list *i; (i = vg_list_first(&s->dirty));) {
        struct bough *b = vg_list_entry(i, struct bough, dirty);
        vg_list_remove(i);
        key(e, b);
        if (b->at == VG_NOT_IN_HEAP)
            continue;
        replace(b);
        climb(b->parent);
    }
}

/* Boughs of the new parent are made first, so that what follows cannot fail. */
int vg_lanes_replant(struct vg_eng *e, struct etenant *t, struct etenant *to) {
    vg_list_for_each (i, &t->boughs) {
        struct bough *p = vg_lane_get(e, to, vg_list_entry(i, struct bough, on_tenant)->shape);
        if (p && room_for_child(p) == 0)
            continue;
        vg_list_for_each (k, &t->boughs) { /* those made in vain */
            struct bough *b = vg_list_entry(k, struct bough, on_tenant);
            if ((p = vg_lane_find(e, to, b->shape)))
                vg_lane_prune(e, p);
        }
        return -ENOMEM;
    }
    vg_list_for_each (i, &t->boughs) {
        struct bough *b = vg_list_entry(i, struct bough, on_tenant), *from = b->parent;
        if (b->at != VG_NOT_IN_HEAP)
            heap_drop(b);
        from->kids--;
        climb(from);
        b->parent = vg_lane_find(e, to, b->shape);
        b->parent->kids++;
        replace(b);
        climb(b->parent);
        vg_lane_prune(e, from);
        vg_shape_settle(e, b->shape);
    }
    return 0;
}
