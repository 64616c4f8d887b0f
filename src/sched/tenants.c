/* The tenant tree: what everybody holds, has held and may hold. Pure.

   A tenant's past is an exponential average of its share: while it holds the share r, the average
   moves towards r and halves its distance in each half-life. So one number and the time it was
   taken at are enough, and nothing decays by itself: the value is brought up to date when the
   tenant is touched, and vg_tenants_refresh() touches those that were not touched for long, a few
   at a time.

   The order among siblings: who stays within the guaranteed quota goes before who does not. Among
   the former the one whose quota is filled least; among the latter the one with the least (held
   beyond the quota + past) / weight; among equals the one that was served longest ago. */
#include "base/cleanup.h"
#include "base/mem.h"
#include "sched/claim.h"

#include <math.h>
#include <string.h>

#define SAVE_USAGE 1 /* kind of record: key tenant, value {bits of the average, time} */
#define REFRESH_PARTS 256
#define REFRESH_MAX 8

struct vg_eng_amount vg_fit_amount(const struct fit *f, uint32_t members) {
    uint64_t n = members;
    return (struct vg_eng_amount){n * (f->res.gpus * 1000ULL + f->res.gpu_milli),
                                  n * f->res.cpu_milli, n * f->res.mem_bytes};
}

static double part(uint64_t held, uint64_t of) {
    return of ? (double)held / (double)of : 0;
}

static uint64_t beyond(uint64_t held, uint64_t quota) {
    return held > quota ? held - quota : 0;
}

/* The dominant share of the capacity. */
static double dominant(const struct vg_eng *e, struct vg_eng_amount a) {
    const struct vg_eng_amount *c = &e->capacity;
    double gpu = part(a.gpu_milli, c->gpu_milli), cpu = part(a.cpu_milli, c->cpu_milli);
    return fmax(gpu, fmax(cpu, part(a.mem_bytes, c->mem_bytes)));
}

double vg_tenant_past(const struct vg_eng *e, const struct etenant *t) {
    if (!e->conf.half_life_usec || e->now <= t->usage_at)
        return t->usage;
    double dt = (double)(e->now - t->usage_at) / (double)e->conf.half_life_usec;
    return t->rate + (t->usage - t->rate) * exp2(-dt);
}

static double key_of(const struct vg_eng *e, const struct etenant *t) {
    const struct vg_eng_amount *h = &t->held, *q = &t->quota;
    double over = dominant(e, (struct vg_eng_amount){beyond(h->gpu_milli, q->gpu_milli),
                                                     beyond(h->cpu_milli, q->cpu_milli),
                                                     beyond(h->mem_bytes, q->mem_bytes)});
    double was = e->conf.half_life_usec ? vg_tenant_past(e, t) : 0;
    return (over + was) / (t->weight ? t->weight : 1);
}

double vg_tenant_share(const struct vg_eng *e, const struct etenant *t) {
    return key_of(e, t);
}

/* How far its quota is used up. */
double vg_tenant_fill(const struct etenant *t) {
    const struct vg_eng_amount *h = &t->held, *q = &t->quota;
    return fmax(part(h->gpu_milli, q->gpu_milli),
                fmax(part(h->cpu_milli, q->cpu_milli), part(h->mem_bytes, q->mem_bytes)));
}

/* Brings the past up to now; what it holds may change after this. */
static void settle(struct vg_eng *e, struct etenant *t) {
    t->usage = vg_tenant_past(e, t);
    t->usage_at = e->now;
    if (t->parent) { /* to the end of those that wait to be refreshed */
        vg_list_remove(&t->stale);
        vg_list_push_back(&e->stale, &t->stale);
    }
}

/* --- among its siblings --- */

static int by_served(const struct etenant *a, const struct etenant *b) {
    if (a->served != b->served)
        return a->served < b->served ? -1 : 1;
    return a->no < b->no ? -1 : a->no > b->no;
}

static int cmp_share(const struct tree_item *x, const struct tree_item *y) {
    const struct etenant *a = vg_container_of(x, struct etenant, in_share);
    const struct etenant *b = vg_container_of(y, struct etenant, in_share);
    return a->key != b->key ? (a->key < b->key ? -1 : 1) : by_served(a, b);
}

static int cmp_fill(const struct tree_item *x, const struct tree_item *y) {
    const struct etenant *a = vg_container_of(x, struct etenant, in_fill);
    const struct etenant *b = vg_container_of(y, struct etenant, in_fill);
    return a->fill != b->fill ? (a->fill < b->fill ? -1 : 1) : by_served(a, b);
}

static struct etenant *in_share(struct tree_item *i) {
    return vg_container_of(i, struct etenant, in_share);
}

static void pull_share(struct tree_item *i) {
    struct etenant *t = in_share(i);
    t->share_sum = t->sum;
    if (i->left)
        vg_sum_add(&t->share_sum, &in_share(i->left)->share_sum);
    if (i->right)
        vg_sum_add(&t->share_sum, &in_share(i->right)->share_sum);
}

static void more_room(struct etenant *t, const struct tree_item *i) {
    if (!i)
        return;
    const struct etenant *k = vg_container_of(i, struct etenant, in_fill);
    vg_sum_add(&t->fill_sum, &k->fill_sum);
    t->fill_room.gpu_milli = VG_MAX(t->fill_room.gpu_milli, k->fill_room.gpu_milli);
    t->fill_room.cpu_milli = VG_MAX(t->fill_room.cpu_milli, k->fill_room.cpu_milli);
    t->fill_room.mem_bytes = VG_MAX(t->fill_room.mem_bytes, k->fill_room.mem_bytes);
}

static void pull_fill(struct tree_item *i) {
    struct etenant *t = vg_container_of(i, struct etenant, in_fill);
    t->fill_sum = t->sum;
    t->fill_room = t->room;
    more_room(t, i->left);
    more_room(t, i->right);
}

static void set_up_trees(struct etenant *t) {
    t->by_share = (struct tree){.cmp = cmp_share, .pull = pull_share};
    t->by_fill = (struct tree){.cmp = cmp_fill, .pull = pull_fill};
}

static bool has_quota(const struct etenant *t) {
    return t->quota.gpu_milli || t->quota.cpu_milli || t->quota.mem_bytes;
}

/* Before anything changes that its place among its siblings depends on. */
static void unsort(struct etenant *t) {
    if (!t->sorted)
        return;
    tree_remove(&t->parent->by_share, &t->in_share);
    if (has_quota(t))
        tree_remove(&t->parent->by_fill, &t->in_fill);
    t->sorted = false;
}

/* And after. */
static void rekey(struct vg_eng *e, struct etenant *t) {
    t->rate = dominant(e, t->held);
    t->key = key_of(e, t);
    t->fill = vg_tenant_fill(t);
    t->room = (struct vg_eng_amount){beyond(t->quota.gpu_milli, t->held.gpu_milli),
                                     beyond(t->quota.cpu_milli, t->held.cpu_milli),
                                     beyond(t->quota.mem_bytes, t->held.mem_bytes)};
    e->order_epoch++;
    if (!t->parent)
        return;
    tree_insert(&t->parent->by_share, &t->in_share);
    if (has_quota(t))
        tree_insert(&t->parent->by_fill, &t->in_fill);
    t->sorted = true;
}

void vg_tenant_bits_changed(struct etenant *t) {
    struct sum sum = {0};
    for (size_t i = 0; i < t->n_bits; i++)
        sum.w[i % VG_SUM_WORDS] |= t->bits[i];
    if (memcmp(&sum, &t->sum, sizeof sum) == 0)
        return;
    t->sum = sum;
    if (!t->sorted)
        return;
    tree_touch(&t->parent->by_share, &t->in_share);
    if (has_quota(t))
        tree_touch(&t->parent->by_fill, &t->in_fill);
}

void vg_tenants_refresh(struct vg_eng *e) {
    uint64_t old = e->conf.half_life_usec / REFRESH_PARTS;
    if (!e->conf.half_life_usec)
        return;
    for (int i = 0; i < REFRESH_MAX && !vg_list_empty(&e->stale); i++) {
        struct etenant *t = vg_list_entry(e->stale.next, struct etenant, stale);
        if (t->usage_at + old > e->now)
            return;
        unsort(t);
        settle(e, t);
        rekey(e, t);
    }
}

void vg_tenants_rekey(struct vg_eng *e) {
    e->capacity_seen = e->capacity;
    vg_map_for_each (i, &e->tenants) {
        struct etenant *t = i->value;
        unsort(t);
        t->usage = vg_tenant_past(e, t);
        t->usage_at = e->now;
        rekey(e, t);
    }
}

/* --- holding --- */

static void add(uint64_t *to, uint64_t n, bool minus) {
    *to = minus ? *to - n : *to + n;
}

/* Whoever waits because this tenant was at its limit looks again, if there is room for it. */
static void uncap(struct vg_eng *e, struct etenant *t) {
    vg_list_for_each_safe (i, &t->capped) {
        struct bough *b = vg_list_entry(i, struct bough, on_capped);
        struct shape *s = b->column->shape;
        if (vg_tenant_blocks(e, t, s->fit, s->members))
            continue;
        vg_bough_uncap(e, b);
        vg_shape_settle(e, s);
    }
}

void vg_tenant_charge(struct vg_eng *e, struct etenant *t, const struct fit *f, int n) {
    struct vg_eng_amount a = vg_fit_amount(f, (uint32_t)(n < 0 ? -n : n));
    e->starts += n > 0;
    for (; t; t = t->parent) {
        unsort(t);
        settle(e, t);
        t->served = n > 0 ? e->starts : t->served;
        add(&t->held.gpu_milli, a.gpu_milli, n < 0);
        add(&t->held.cpu_milli, a.cpu_milli, n < 0);
        add(&t->held.mem_bytes, a.mem_bytes, n < 0);
        rekey(e, t);
        if (n < 0)
            uncap(e, t);
    }
    while (n < 0 && !vg_list_empty(&e->pin_capped)) {
        struct vg_list *i = e->pin_capped.next;
        vg_list_remove(i);
        vg_list_push_back(&e->pin_due, i);
    }
}

void vg_tenant_count(struct etenant *t, int queued, int running, int own) {
    t->own += (uint32_t)own;
    for (; t; t = t->parent) {
        t->queued += (uint32_t)queued;
        t->running += (uint32_t)running;
    }
}

static bool within(uint64_t held, uint64_t more, uint64_t bound) {
    return held <= bound && more <= bound - held;
}

/* The leading resource of a request (GPU, else CPU, else memory) needs a quota; the others count
   where one is given. */
static bool in_quota(const struct etenant *t, struct vg_eng_amount a) {
    const struct vg_eng_amount *h = &t->held, *q = &t->quota;
    uint64_t lead = a.gpu_milli ? q->gpu_milli : a.cpu_milli ? q->cpu_milli : q->mem_bytes;
    if (!lead)
        return false;
    return within(h->gpu_milli, a.gpu_milli, q->gpu_milli ? q->gpu_milli : UINT64_MAX) &&
           within(h->cpu_milli, a.cpu_milli, q->cpu_milli ? q->cpu_milli : UINT64_MAX) &&
           within(h->mem_bytes, a.mem_bytes, q->mem_bytes ? q->mem_bytes : UINT64_MAX);
}

bool vg_tenant_in_quota(const struct vg_eng *e, const struct etenant *t, const struct fit *f,
                        uint32_t members) {
    return in_quota(t, vg_fit_most(e, f, members));
}

static bool blocks(const struct etenant *t, struct vg_eng_amount a) {
    const struct vg_eng_amount *h = &t->held, *l = &t->limit;
    if ((a.gpu_milli && !within(h->gpu_milli, a.gpu_milli, l->gpu_milli)) ||
        (a.cpu_milli && !within(h->cpu_milli, a.cpu_milli, l->cpu_milli)) ||
        (a.mem_bytes && !within(h->mem_bytes, a.mem_bytes, l->mem_bytes)))
        return true;
    bool asks = a.gpu_milli || a.cpu_milli || a.mem_bytes;
    return t->parent && !t->weight && asks && !in_quota(t, a);
}

bool vg_tenant_blocks(const struct vg_eng *e, const struct etenant *t, const struct fit *f,
                      uint32_t members) {
    (void)e;
    return blocks(t, vg_fit_amount(f, members));
}

struct etenant *vg_tenant_at_limit(const struct vg_eng *e, struct etenant *t, const struct fit *f,
                                   uint32_t members) {
    for (; t; t = t->parent)
        if (vg_tenant_blocks(e, t, f, members))
            return t;
    return NULL;
}

struct etenant *vg_tenant_at_limit_there(struct etenant *t, const struct fit *f,
                                         const struct spot *at, uint32_t n) {
    struct vg_eng_amount a = {0};
    for (uint32_t i = 0; f->whole && i < n; i++) {
        struct vg_res r = vg_fit_res(f, at[i].node);
        a.gpu_milli += r.gpus * 1000ULL;
        a.cpu_milli += r.cpu_milli;
        a.mem_bytes += r.mem_bytes;
    }
    for (; f->whole && t; t = t->parent)
        if (blocks(t, a))
            return t;
    return NULL;
}

/* --- coming and going --- */

void vg_tenants_init(struct vg_eng *e) {
    e->root.weight = 1;
    e->root.limit = VG_ENG_NO_LIMIT;
    vg_list_init(&e->root.children);
    vg_list_init(&e->root.sibling);
    vg_list_init(&e->root.boughs);
    vg_list_init(&e->root.capped);
    vg_list_init(&e->root.stale);
    vg_list_init(&e->root.runs);
    vg_list_init(&e->stale);
    set_up_trees(&e->root);
}

void vg_etenants_done(struct vg_eng *e) {
    vg_map_for_each (i, &e->tenants) {
        struct etenant *t = i->value;
        free(t->name);
        free(t->bits);
        free(t);
    }
    free(e->root.bits);
    vg_map_for_each (i, &e->restored)
        free(i->value);
    vg_map_done(&e->tenants);
    vg_map_done(&e->restored);
}

static void adopt_past(struct vg_eng *e, struct etenant *t) {
    uint64_t *v = vg_map_del_u64(&e->restored, t->id);
    if (!v)
        return;
    t->usage_at = v[1];
    memcpy(&t->usage, &v[0], sizeof t->usage);
    free(v);
}

static struct etenant *new_tenant(struct vg_eng *e, uint64_t id) {
    struct etenant *t = vg_alloc(sizeof *t);
    if (!t || vg_map_put_u64(&e->tenants, id, t) < 0) {
        free(t);
        return NULL;
    }
    t->id = id;
    t->no = ++e->last_no;
    t->in_share.rank_bits = t->in_fill.rank_bits = tree_mix(t->no);
    set_up_trees(t);
    t->usage_at = e->now;
    vg_list_init(&t->children);
    vg_list_init(&t->sibling);
    vg_list_init(&t->boughs);
    vg_list_init(&t->capped);
    vg_list_init(&t->stale);
    vg_list_init(&t->runs);
    vg_list_push_back(&e->stale, &t->stale);
    adopt_past(e, t);
    return t;
}

static void free_tenant(struct vg_eng *e, struct etenant *t) {
    unsort(t);
    vg_map_del_u64(&e->tenants, t->id);
    vg_list_remove(&t->sibling);
    vg_list_remove(&t->stale);
    free(t->bits);
    free(t->name);
    free(t);
}

static void set_depth(struct etenant *t) {
    t->depth = t->parent->depth + 1;
    vg_list_for_each (i, &t->children)
        set_depth(vg_list_entry(i, struct etenant, sibling));
}

static void shift(struct vg_eng *e, struct etenant *path, const struct etenant *t, bool minus) {
    for (; path; path = path->parent) {
        unsort(path);
        settle(e, path);
        add(&path->held.gpu_milli, t->held.gpu_milli, minus);
        add(&path->held.cpu_milli, t->held.cpu_milli, minus);
        add(&path->held.mem_bytes, t->held.mem_bytes, minus);
        path->queued += minus ? -t->queued : t->queued;
        path->running += minus ? -t->running : t->running;
        path->yielding += minus ? -t->yielding : t->yielding;
        rekey(e, path);
    }
}

/* Below another parent, with what it holds and waits for. */
static int move(struct vg_eng *e, struct etenant *t, struct etenant *to) {
    struct etenant *from = t->parent;
    if (from == to)
        return 0;
    int r = vg_lanes_replant(e, t, to);
    if (r < 0)
        return r;
    unsort(t);
    if (from)
        shift(e, from, t, true);
    t->parent = to;
    vg_list_remove(&t->sibling);
    vg_list_push_back(&to->children, &t->sibling);
    set_depth(t);
    shift(e, to, t, false);
    for (struct etenant *p = from; p; p = p->parent)
        uncap(e, p);
    if (from)
        vg_tenant_drop_if_gone(e, from);
    return 0;
}

int vg_eng_set_tenant(struct vg_eng *e, const struct vg_eng_tenant *in) {
    struct etenant *parent = in->parent ? vg_map_get_u64(&e->tenants, in->parent) : &e->root;
    struct etenant *t = vg_map_get_u64(&e->tenants, in->id);
    if (!in->id || in->id == in->parent)
        return -EINVAL;
    if (!parent)
        return -ENOENT;
    for (struct etenant *p = parent; p; p = p->parent)
        if (p == t)
            return -EINVAL;
    char *name = vg_strdup(in->name ? in->name : "");
    bool fresh = !t;
    if (!name || (fresh && !(t = new_tenant(e, in->id)))) {
        free(name);
        return -ENOMEM;
    }
    if (move(e, t, parent) < 0) {
        free(name);
        if (fresh)
            free_tenant(e, t);
        return -ENOMEM;
    }
    unsort(t);
    free(t->name);
    t->name = name;
    t->quota = in->quota;
    t->limit = in->limit;
    t->weight = in->weight;
    t->min_run_usec = in->min_run_usec;
    t->removed = false;
    unsort(t);
    settle(e, t);
    rekey(e, t);
    uncap(e, t);
    vg_preempt_all(e);
    return 0;
}

void vg_tenant_drop_if_gone(struct vg_eng *e, struct etenant *t) {
    while (t && t->parent && t->removed && !t->own && vg_list_empty(&t->children)) {
        struct etenant *parent = t->parent;
        free_tenant(e, t);
        t = parent;
    }
}

int vg_eng_remove_tenant(struct vg_eng *e, uint64_t id) {
    struct etenant *t = vg_map_get_u64(&e->tenants, id);
    if (!t || t->removed)
        return -ENOENT;
    t->removed = true;
    vg_tenant_drop_if_gone(e, t);
    return 0;
}

/* --- across restarts --- */

void vg_tenants_save(const struct vg_eng *e, vg_eng_save_fn *fn, void *arg) {
    vg_map_for_each (i, &e->tenants) {
        const struct etenant *t = i->value;
        double was = vg_tenant_past(e, t);
        uint64_t v[4] = {0, e->now, 0, 0};
        memcpy(&v[0], &was, sizeof was);
        fn(arg, SAVE_USAGE, t->id, v);
    }
}

bool vg_tenants_restore(struct vg_eng *e, uint32_t kind, uint64_t key, const uint64_t value[4]) {
    if (kind != SAVE_USAGE)
        return false;
    double was;
    memcpy(&was, &value[0], sizeof was);
    if (!(was >= 0 && was < 1e6)) /* broken ones count as none */
        return true;
    struct etenant *t = vg_map_get_u64(&e->tenants, key);
    uint64_t *v = vg_memdup(value, 4 * sizeof *v);
    if (!v)
        return true;
    free(vg_map_del_u64(&e->restored, key));
    if (vg_map_put_u64(&e->restored, key, v) < 0)
        free(v);
    else if (t) {
        unsort(t);
        adopt_past(e, t);
        settle(e, t);
        rekey(e, t);
    }
    return true;
}
