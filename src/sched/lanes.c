/* Columns, boughs and lanes: see lanes.h. A bough's bit is set exactly while it is not capped and
   has tasks of its own or a child whose bit is set. Pure. */
#include "sched/lanes.h"

#include "base/mem.h"

int64_t vg_task_level(const struct vg_eng *e, const struct vg_eng_req *r) {
    uint64_t since = r->since_usec ? r->since_usec : e->now;
    return (int64_t)r->priority - (int64_t)(e->conf.age_usec ? since / e->conf.age_usec : 0);
}

static struct etask *task_of(const struct tree_item *i) {
    return i ? vg_container_of(i, struct etask, in_lane) : NULL;
}

static int cmp_tasks(const struct tree_item *x, const struct tree_item *y) {
    const struct etask *a = task_of(x), *b = task_of(y);
    if (a->order != b->order)
        return a->order < b->order ? -1 : 1;
    return a->id < b->id ? -1 : a->id > b->id;
}

/* --- columns --- */

static struct column *column_of(struct vg_list *i) {
    return vg_list_entry(i, struct column, on_shape);
}

/* A number that no column has; the array has room for it. */
static int new_number(struct vg_eng *e, uint32_t *ret) {
    for (uint32_t i = e->column_hint; i < e->n_columns; i++)
        if (!e->column[i]) {
            *ret = i;
            e->column_hint = i + 1;
            return 0;
        }
    struct column **more = vg_grow(e->column, &e->columns_cap, e->n_columns + 1, sizeof *more);
    if (!more)
        return -ENOMEM;
    e->column = more;
    *ret = e->column_hint = e->n_columns;
    e->column[e->n_columns++] = NULL;
    e->column_hint = e->n_columns;
    return 0;
}

/* New ones mostly have the smallest level, so the place is looked for from the back. */
static struct column *column_get(struct vg_eng *e, struct shape *s, int64_t level) {
    struct vg_list *i = s->columns.prev;
    while (i != &s->columns && column_of(i)->level < level)
        i = i->prev;
    if (i != &s->columns && column_of(i)->level == level)
        return column_of(i);
    uint32_t no;
    struct column *c = vg_alloc(sizeof *c);
    if (!c || new_number(e, &no) < 0) {
        free(c);
        return NULL;
    }
    c->shape = s;
    c->level = level;
    c->no = no;
    vg_list_init(&c->lanes);
    vg_list_insert(i, &c->on_shape);
    return e->column[no] = c;
}

static void column_put(struct vg_eng *e, struct column *c) {
    if (c->n_boughs)
        return;
    e->column[c->no] = NULL;
    e->column_hint = VG_MIN(e->column_hint, c->no);
    vg_list_remove(&c->on_shape);
    free(c);
}

/* --- bits --- */

static int room_for_bit(struct etenant *t, const struct column *c) {
    size_t cap = t->n_bits;
    uint64_t *more = vg_grow(t->bits, &cap, c->no / 64 + 1, sizeof *more);
    if (!more)
        return -ENOMEM;
    t->bits = more;
    while (t->n_bits < cap)
        t->bits[t->n_bits++] = 0;
    return 0;
}

/* From a bough that changed up to where nothing changes any more. */
static void refresh(struct vg_eng *e, struct bough *b) {
    e->order_epoch++;
    for (; b; b = b->parent) {
        bool set = !b->capped && (b->tasks.root || b->live);
        if (set == b->set)
            return;
        b->set = set;
        b->tenant->bits[b->column->no / 64] ^= 1ULL << (b->column->no % 64);
        vg_tenant_bits_changed(b->tenant);
        if (b->parent)
            b->parent->live += set ? 1 : UINT32_MAX;
    }
}

/* --- making and freeing --- */

static uint64_t bough_key(const struct etenant *t, const struct column *c) {
    return (uint64_t)t->no << 32 | c->no;
}

static struct bough *find(const struct vg_eng *e, const struct etenant *t, const struct column *c) {
    return vg_map_get_u64(&e->boughs, bough_key(t, c));
}

static struct bough *new_bough(struct vg_eng *e, struct etenant *t, struct column *c,
                               struct bough *parent) {
    struct bough *b = vg_alloc(sizeof *b);
    if (!b || room_for_bit(t, c) < 0 || vg_map_put_u64(&e->boughs, bough_key(t, c), b) < 0) {
        free(b);
        return NULL;
    }
    *b = (struct bough){.tenant = t, .column = c, .parent = parent};
    b->tasks.cmp = cmp_tasks;
    vg_list_init(&b->on_column);
    vg_list_init(&b->on_capped);
    vg_list_init(&b->on_tenant);
    vg_list_push_back(&t->boughs, &b->on_tenant);
    c->n_boughs++;
    if (parent)
        parent->kids++;
    return b;
}

static struct bough *bough_get(struct vg_eng *e, struct etenant *t, struct column *c) {
    struct bough *b = find(e, t, c);
    if (b)
        return b;
    struct bough *parent = t->parent ? bough_get(e, t->parent, c) : NULL;
    if (t->parent && !parent)
        return NULL;
    if (!(b = new_bough(e, t, c, parent)) && parent)
        vg_lane_prune(e, parent);
    return b;
}

struct bough *vg_lane_get(struct vg_eng *e, struct etenant *t, struct shape *s, int64_t level) {
    struct column *c = column_get(e, s, level);
    if (!c)
        return NULL;
    c->n_boughs++; /* stays while we try */
    struct bough *b = bough_get(e, t, c);
    c->n_boughs--;
    if (!b)
        column_put(e, c);
    return b;
}

void vg_lane_prune(struct vg_eng *e, struct bough *b) {
    struct column *c = b->column;
    while (b && !b->kids && !b->tasks.root) {
        struct bough *parent = b->parent;
        vg_map_del_u64(&e->boughs, bough_key(b->tenant, c));
        vg_list_remove(&b->on_capped);
        vg_list_remove(&b->on_tenant);
        c->n_boughs--;
        if (parent)
            parent->kids--;
        free(b);
        b = parent;
    }
    column_put(e, c);
}

/* --- tasks --- */

void vg_lane_add(struct vg_eng *e, struct bough *lane, struct etask *t) {
    if (!lane->tasks.root) {
        vg_list_push_back(&lane->column->lanes, &lane->on_column);
        lane->column->n_lanes++;
        lane->tenant->own_lanes++;
    }
    t->lane = lane;
    t->in_lane.rank_bits = tree_mix(t->id);
    tree_insert(&lane->tasks, &t->in_lane);
    if (!lane->first || cmp_tasks(&t->in_lane, &lane->first->in_lane) < 0)
        lane->first = t;
    refresh(e, lane);
}

void vg_lane_remove(struct vg_eng *e, struct etask *t) {
    struct bough *lane = t->lane;
    tree_remove(&lane->tasks, &t->in_lane);
    if (lane->first == t)
        lane->first = task_of(tree_first(&lane->tasks));
    t->lane = NULL;
    if (!lane->tasks.root) {
        vg_list_remove(&lane->on_column);
        lane->column->n_lanes--;
        lane->tenant->own_lanes--;
    }
    refresh(e, lane);
    vg_lane_prune(e, lane);
}

bool vg_lane_is_live(const struct bough *lane) {
    while (lane && !lane->capped)
        lane = lane->parent;
    return !lane;
}

/* --- limits --- */

void vg_tenant_cap(struct vg_eng *e, struct etenant *t, const struct shape *s) {
    vg_list_for_each (i, &s->columns) {
        struct bough *b = find(e, t, column_of(i));
        if (!b || b->capped)
            continue;
        b->capped = true;
        vg_list_push_back(&t->capped, &b->on_capped);
        refresh(e, b);
    }
}

void vg_bough_uncap(struct vg_eng *e, struct bough *b) {
    b->capped = false;
    vg_list_remove(&b->on_capped);
    refresh(e, b);
}

/* --- another parent --- */

static void detach(struct vg_eng *e, struct bough *b) {
    struct bough *from = b->parent;
    from->kids--;
    from->live -= b->set;
    refresh(e, from);
    b->parent = NULL;
    vg_lane_prune(e, from);
}

static void attach(struct vg_eng *e, struct bough *b, struct bough *to) {
    b->parent = to;
    to->kids++;
    to->live += b->set;
    refresh(e, to);
}

/* Boughs of the new parent are made first, so that what follows cannot fail. */
int vg_lanes_replant(struct vg_eng *e, struct etenant *t, struct etenant *to) {
    vg_list_for_each (i, &t->boughs) {
        if (bough_get(e, to, vg_list_entry(i, struct bough, on_tenant)->column))
            continue;
        vg_list_for_each (k, &t->boughs) { /* those made in vain */
            struct bough *p = find(e, to, vg_list_entry(k, struct bough, on_tenant)->column);
            if (p)
                vg_lane_prune(e, p);
        }
        return -ENOMEM;
    }
    vg_list_for_each (i, &t->boughs) {
        struct bough *b = vg_list_entry(i, struct bough, on_tenant);
        struct bough *p = find(e, to, b->column);
        p->kids++; /* stays while the old parent goes, which may be below it */
        detach(e, b);
        p->kids--;
        attach(e, b, p);
        vg_shape_settle(e, b->column->shape);
    }
    return 0;
}
