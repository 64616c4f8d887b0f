/* Whose turn it is, played forward: see turns.h. The tenants that wait are copied, with what they
   hold; each turn goes to the same one as in the engine (lanes.c), and is added to what its copy
   holds. */
#include "sched/turns.h"
#include "base/util.h"
#include "sched/profile.h"

#include "base/cleanup.h"
#include "base/mem.h"
#include <math.h>
#include <string.h>

#define LANES_MAX 16384
#define SPANS 24 /* doublings of a second that what is held is expected to be held for */

struct cursor {               /* in one lane */
    const struct bough *lane; /* NULL: of the extra task */
    struct etask *task;       /* NULL: done */
};

struct amounts {
    double gpu, cpu, mem;
};

struct twig { /* a tenant */
    struct etenant copy;
    struct amounts holds[SPANS]; /* what copy.held sums up, by how long that is expected to last */
    struct twig *parent;
    struct twig **kid; /* owned: heap, the next one's turn first; without a head: not in it */
    size_t n_kids, kids_cap;
    struct cursor *lane; /* owned */
    size_t n_lanes, lanes_cap;
    struct etask *head; /* its own or of those below */
    bool own;           /* the head is its own */
    bool in_quota;
    double share;
};

struct turns {
    const struct vg_eng *e;
    struct vg_map twigs; /* owned, by tenant id; the root's is apart */
    struct twig root;
    size_t n_lanes;
    uint64_t served;
};

static struct etask *task_of(struct tree_item *i) {
    return i ? vg_container_of(i, struct etask, in_lane) : NULL;
}

static struct etask *after(const struct tree *t, const struct tree_item *item) {
    struct tree_item *next = NULL;
    for (struct tree_item *i = t->root; i;) {
        if (t->cmp(item, i) < 0) {
            next = i;
            i = i->left;
        } else {
            i = i->right;
        }
    }
    return task_of(next);
}

static bool task_before(const struct etask *a, const struct etask *b) {
    if (a->level != b->level)
        return a->level > b->level;
    return a->order != b->order ? a->order < b->order : a->id < b->id;
}

/* As lanes.c compares siblings. */
static bool before(const struct twig *a, const struct twig *b) {
    if (a->head->level != b->head->level)
        return a->head->level > b->head->level;
    if (a->in_quota != b->in_quota)
        return a->in_quota;
    if (a->share != b->share)
        return a->share < b->share;
    return a->copy.served != b->copy.served ? a->copy.served < b->copy.served
                                            : a->copy.no < b->copy.no;
}

static void sift_down(struct twig *p, size_t at) {
    struct twig *x = p->kid[at];
    for (size_t k; (k = 2 * at + 1) < p->n_kids; at = k) {
        if (k + 1 < p->n_kids && before(p->kid[k + 1], p->kid[k]))
            k++;
        if (!before(p->kid[k], x))
            break;
        p->kid[at] = p->kid[k];
    }
    p->kid[at] = x;
}

static struct twig *twig_of(struct turns *t, const struct etenant *tenant) {
    if (!tenant->parent)
        return &t->root;
    struct twig *w = vg_map_get_u64(&t->twigs, tenant->id);
    if (w)
        return w;
    struct twig *parent = twig_of(t, tenant->parent);
    struct twig **grown =
        parent ? vg_grow(parent->kid, &parent->kids_cap, parent->n_kids + 1, sizeof *grown) : NULL;
    if (grown)
        parent->kid = grown;
    if (!grown || !(w = vg_alloc(sizeof *w)))
        return NULL;
    if (vg_map_put_u64(&t->twigs, tenant->id, w) < 0) {
        free(w);
        return NULL;
    }
    w->copy = *tenant;
    w->parent = parent;
    parent->kid[parent->n_kids++] = w;
    return w;
}

static int add_lane(struct turns *t, const struct etenant *tenant, const struct bough *lane,
                    struct etask *first) {
    struct twig *w = twig_of(t, tenant);
    struct cursor *grown =
        w ? vg_grow(w->lane, &w->lanes_cap, w->n_lanes + 1, sizeof *grown) : NULL;
    if (!grown)
        return -ENOMEM;
    w->lane = grown;
    w->lane[w->n_lanes++] = (struct cursor){.lane = lane, .task = first};
    return 0;
}

/* ------------------------------------------------------------------ what is held ends */

static size_t span_of(double sec) {
    size_t i = 0;
    for (; i + 1 < SPANS && sec > 1.5; i++)
        sec /= 2;
    return i;
}

static void hold(struct twig *w, struct vg_eng_amount a, uint64_t usec) {
    for (struct amounts *h; w; w = w->parent) {
        h = &w->holds[span_of((double)usec / VG_USEC)];
        h->gpu += (double)a.gpu_milli;
        h->cpu += (double)a.cpu_milli;
        h->mem += (double)a.mem_bytes;
    }
}

/* What every tenant who waits holds now. */
static void hold_running(struct turns *t) {
    const struct profile *p = t->e->profile;
    for (size_t i = 0; i < p->n_heap; i++) {
        const struct etask *x = p->heap[i].task;
        const struct etenant *tenant = x->tenant;
        struct twig *w = NULL;
        for (; tenant && tenant->parent && !w; tenant = tenant->parent)
            w = vg_map_get_u64(&t->twigs, tenant->id);
        if (w)
            hold(w, vg_fit_amount(x->fit, 1), x->end_usec - VG_MIN(x->end_usec, t->e->now));
    }
}

/* Of what is expected to last for another hour, half is left after one, a third after two; and what
   is left then is expected to last as much longer. */
struct fading {
    double part[SPANS];
    size_t to[SPANS];
};

static struct fading fading_after(double sec) {
    struct fading f;
    for (size_t i = 0; i < SPANS; i++) {
        double span = exp2((double)i);
        f.part[i] = span / (span + sec);
        f.to[i] = span_of(span + sec);
    }
    return f;
}

static void fade(struct twig *w, const struct fading *f) {
    struct amounts left[SPANS] = {0}, sum = {0};
    for (size_t i = 0; i < SPANS; i++) {
        const struct amounts *h = &w->holds[i];
        struct amounts *to = &left[f->to[i]];
        to->gpu += h->gpu * f->part[i];
        to->cpu += h->cpu * f->part[i];
        to->mem += h->mem * f->part[i];
        sum.gpu += h->gpu * f->part[i];
        sum.cpu += h->cpu * f->part[i];
        sum.mem += h->mem * f->part[i];
    }
    memcpy(w->holds, left, sizeof left);
    w->copy.held = (struct vg_eng_amount){(uint64_t)sum.gpu, (uint64_t)sum.cpu, (uint64_t)sum.mem};
}

/* ------------------------------------------------------------------ gathering */

/* Lanes whose tenant is at its limit are not waited for. */
static int add_shape(struct turns *t, const struct shape *s) {
    int r = 0;
    vg_list_for_each (i, &s->columns) {
        const struct column *c = vg_list_entry(i, struct column, on_shape);
        vg_list_for_each (k, &c->lanes) {
            const struct bough *b = vg_list_entry(k, struct bough, on_column);
            if (r < 0 || !vg_lane_is_live(b))
                continue;
            if (t->n_lanes >= LANES_MAX)
                return 0; /* there are too many to look at all of them */
            t->n_lanes++;
            r = add_lane(t, b->tenant, b, vg_lane_first(b));
        }
    }
    return r;
}

static bool concerned(const struct fit *f, const uint64_t pools[4]) {
    for (uint32_t i = 0; i < f->n_pools; i++)
        if (pools[f->pool[i] / 64] >> (f->pool[i] % 64) & 1)
            return true;
    return false;
}

/* Its first, its key, its place: of a twig and all below it. */
static void set_key(struct turns *t, struct twig *w) {
    const struct shape *s = w->head->shape;
    w->in_quota = vg_tenant_in_quota(t->e, &w->copy, s->fit, s->members);
    w->share = w->in_quota ? vg_tenant_fill(&w->copy) : vg_tenant_share(t->e, &w->copy);
}

static void set_head(struct turns *t, struct twig *w) {
    struct etask *own = NULL, *below = w->n_kids ? w->kid[0]->head : NULL;
    for (size_t i = 0; i < w->n_lanes; i++)
        if (w->lane[i].task && (!own || task_before(w->lane[i].task, own)))
            own = w->lane[i].task;
    w->own = own && (!below || own->level >= below->level);
    w->head = w->own ? own : below;
    if (w->head && w->parent)
        set_key(t, w);
}

static void settle(struct turns *t, struct twig *w) {
    for (size_t i = 0; i < w->n_kids; i++)
        settle(t, w->kid[i]);
    for (size_t i = w->n_kids; i-- > 0;)
        if (!w->kid[i]->head)
            w->kid[i] = w->kid[--w->n_kids];
    for (size_t i = w->n_kids / 2; i-- > 0;)
        sift_down(w, i);
    set_head(t, w);
}

struct turns *vg_turns_new(const struct vg_eng *e, const uint64_t pools[4], struct etask *extra) {
    struct turns *t = vg_alloc(sizeof *t);
    if (!t)
        return NULL;
    t->e = e;
    t->served = e->starts;
    t->root.copy = e->root;
    int r = extra ? add_lane(t, extra->tenant, NULL, extra) : 0;
    vg_list_for_each (i, &e->fits) {
        const struct fit *f = vg_list_entry(i, struct fit, link);
        vg_list_for_each (k, &f->shapes) {
            const struct shape *s = vg_list_entry(k, struct shape, on_fit);
            if (r == 0 && concerned(f, pools))
                r = add_shape(t, s);
        }
    }
    if (r < 0) {
        vg_turns_free(t);
        return NULL;
    }
    hold_running(t);
    settle(t, &t->root);
    return t;
}

static void done(struct twig *w) {
    free(w->kid);
    free(w->lane);
}

void vg_turns_free(struct turns *t) {
    if (!t)
        return;
    vg_map_for_each (i, &t->twigs) {
        done(i->value);
        free(i->value);
    }
    done(&t->root);
    vg_map_done(&t->twigs);
    free(t);
}

/* ------------------------------------------------------------------ taking turns */

static void charge(struct turns *t, struct twig *w, const struct shape *s) {
    struct vg_eng_amount a = vg_fit_amount(s->fit, s->members);
    w->copy.held.gpu_milli += a.gpu_milli;
    w->copy.held.cpu_milli += a.cpu_milli;
    w->copy.held.mem_bytes += a.mem_bytes;
    w->copy.served = t->served;
}

void vg_turns_pass(struct turns *t, uint64_t usec) {
    struct fading f = fading_after((double)usec / VG_USEC);
    vg_map_for_each (i, &t->twigs)
        fade(i->value, &f);
    settle(t, &t->root);
}

static void step(struct twig *w, const struct etask *task) {
    for (size_t i = 0; i < w->n_lanes; i++) {
        struct cursor *c = &w->lane[i];
        if (c->task == task) {
            c->task = c->lane ? after(&c->lane->tasks, &task->in_lane) : NULL;
            return;
        }
    }
}

struct etask *vg_turns_next(struct turns *t) {
    struct twig *w = &t->root;
    struct etask *task = w->head;
    if (!task)
        return NULL;
    t->served++;
    while (!w->own)
        w = w->kid[0];
    step(w, task);
    hold(w, vg_fit_amount(task->shape->fit, task->shape->members), task->expect_usec);
    for (; w; w = w->parent) {
        charge(t, w, task->shape);
        set_head(t, w);
        if (!w->parent)
            continue;
        struct twig *p = w->parent;
        if (!w->head)
            p->kid[0] = p->kid[--p->n_kids];
        if (p->n_kids)
            sift_down(p, 0);
    }
    return task;
}
