/* When and where something will have room: the running tasks' expected ends are walked in the order
   of time, and the nodes they are on looked at, each once. Every opening is at the end of a task
   (or of a promise, or a window) on its own node, so once the walk has come as far as the openings
   found, no other node has an earlier one. The walk is bounded; where it gives up, the answer is
   good but may not be the earliest. Pure. */
#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"
#include "sched/profile.h"

#define STEPS_MAX \
    2048 /* ends looked at for one place; for several, so many for each, up to 8 times */
#define LOOKS_MAX 256  /* nodes looked at for one place */
#define STEPS_A_LOOK 4 /* that cost as much as looking at a node */
#define SOON VG_USEC   /* a task past its expected end is expected to end then */

static uint64_t after(uint64_t at, uint64_t usec) {
    return usec > VG_ENG_NEVER - at ? VG_ENG_NEVER : at + usec;
}

static const struct etask *task_of(const struct vg_list *i) {
    return vg_list_entry(i, struct etask, on_node);
}

/* ------------------------------------------------------------------ one node */

struct walk {
    const struct vg_eng *e;
    const struct ask *ask;
    struct enode *node, base; /* base: as it is at `at`, with what was found so far */
    struct egpu gpu[VG_NODE_GPUS_MAX];
    const struct vg_list *next; /* of node->tasks: the first that still runs at `at` */
    uint64_t at;
};

static uint64_t end_of(const struct walk *w, const struct etask *t) {
    return VG_MAX(t->end_usec, w->e->now + SOON);
}

static void begin_walk(struct walk *w) {
    vg_node_imagine(w->node, &w->base, w->gpu);
    vg_list_for_each (i, &w->node->tasks)
        if (task_of(i)->leaving)
            vg_node_imagine_without(&w->base, task_of(i)->fit, task_of(i)->gpus);
    w->next = w->node->tasks.next;
    w->at = w->e->now;
}

static void go_to(struct walk *w, uint64_t at) {
    w->at = at;
    for (; w->next != &w->node->tasks && end_of(w, task_of(w->next)) <= at; w->next = w->next->next)
        if (!task_of(w->next)->leaving)
            vg_node_imagine_without(&w->base, task_of(w->next)->fit, task_of(w->next)->gpus);
}

static bool in_the_way(const struct walk *w, const struct hold *h) {
    return h->of->until > w->at && h->of->from < after(w->at, w->ask->run_usec) &&
           vg_hold_blocks(w->e, h, w->ask->who);
}

/* Whether there is room from now to the end, beside what is promised meanwhile. */
static bool has_room(const struct walk *w, uint64_t *gpus) {
    struct egpu gpu[VG_NODE_GPUS_MAX];
    struct enode copy;
    bool ok = vg_fit_now(w->ask->fit, &w->base);
    if (!ok)
        return false;
    if (vg_list_empty(&w->node->holds)) {
        *gpus = vg_fit_gpus(w->e, w->ask->fit, &w->base, &ok);
        return ok;
    }
    vg_node_imagine(&w->base, &copy, gpu);
    vg_list_for_each (i, &w->node->holds) {
        const struct hold *h = vg_list_entry(i, struct hold, on_node);
        if (in_the_way(w, h))
            vg_node_imagine_with(&copy, h->fit, h->gpus);
    }
    *gpus = vg_fit_gpus(w->e, w->ask->fit, &copy, &ok);
    return ok;
}

/* The next moment at which there may be more room. */
static uint64_t next_time(const struct walk *w, uint64_t clear) {
    uint64_t at = clear > w->at ? clear : VG_ENG_NEVER;
    if (w->next != &w->node->tasks)
        at = VG_MIN(at, end_of(w, task_of(w->next)));
    vg_list_for_each (i, &w->node->holds) {
        const struct hold *h = vg_list_entry(i, struct hold, on_node);
        if (h->of->until > w->at)
            at = VG_MIN(at, h->of->until);
    }
    return at;
}

/* No opening can be before this: while the tasks that end last still run, too few cards are left.
 */
static uint64_t not_before(const struct vg_eng *e, const struct enode *n, const struct fit *f) {
    uint64_t held = 0;
    if (f->res.gpus > n->n_gpus)
        return VG_ENG_NEVER;
    for (const struct vg_list *i = n->tasks.prev; f->res.gpus && i != &n->tasks; i = i->prev) {
        const struct etask *t = task_of(i);
        held |= t->leaving ? 0 : t->gpus;
        if (n->n_gpus - (uint32_t)__builtin_popcountll(held) < f->res.gpus)
            return VG_MAX(t->end_usec, e->now);
    }
    return e->now;
}

size_t vg_search_node(const struct vg_eng *e, struct enode *n, const struct ask *a,
                      struct opening *ret, size_t max) {
    struct walk w;
    size_t found = 0;
    uint64_t grant = a->who ? a->who->grant : 0;
    if (!n->usable || !max || not_before(e, n, a->fit) >= a->before ||
        !vg_fit_belongs(e, a->fit, n))
        return 0;
    w.e = e;
    w.ask = a;
    w.node = n;
    begin_walk(&w);
    while (w.at < a->before) {
        uint64_t gpus, clear = vg_window_clear(e, n, w.at, after(w.at, a->run_usec), grant);
        while (clear == w.at && has_room(&w, &gpus)) {
            ret[found++] = (struct opening){.at = w.at, .gpus = gpus, .node = n};
            if (found == max)
                return found;
            vg_node_imagine_with(&w.base, a->fit, gpus);
        }
        uint64_t next = next_time(&w, clear);
        if (next == VG_ENG_NEVER)
            break;
        go_to(&w, next);
    }
    return found;
}

/* ------------------------------------------------------------------ over nodes */

/* The best so far: a heap with the latest on top. */
struct found {
    struct opening *o;
    size_t n, max;
    struct opening *scratch; /* of one node */
    size_t looks, steps;     /* at nodes; along the heap of ends */
};

static void sift_down(struct found *f, size_t at, struct opening x) {
    for (size_t child; (child = 2 * at + 1) < f->n; at = child) {
        if (child + 1 < f->n && f->o[child + 1].at > f->o[child].at)
            child++;
        if (f->o[child].at <= x.at)
            break;
        f->o[at] = f->o[child];
    }
    f->o[at] = x;
}

static void keep(struct found *f, struct opening x) {
    if (f->n < f->max) {
        size_t at = f->n++;
        for (; at && f->o[(at - 1) / 2].at < x.at; at = (at - 1) / 2)
            f->o[at] = f->o[(at - 1) / 2];
        f->o[at] = x;
    } else if (x.at < f->o[0].at) {
        sift_down(f, 0, x);
    }
}

static uint64_t latest(const struct found *f) {
    return f->n == f->max ? f->o[0].at : VG_ENG_NEVER;
}

static void consider(const struct vg_eng *e, const struct ask *a, struct found *f,
                     struct enode *n) {
    if (n->seen == e->profile->searches)
        return;
    n->seen = e->profile->searches;
    f->looks++;
    struct ask ask = *a;
    ask.before = VG_MIN(a->before, latest(f));
    size_t k = vg_search_node(e, n, &ask, f->scratch, f->max);
    for (size_t i = 0; i < k; i++)
        keep(f, f->scratch[i]);
}

/* Nodes that no task will free: those with room already. For one place there is none but what is
   promised to others. */
static void consider_free(const struct vg_eng *e, const struct ask *a, struct found *f) {
    if (a->members > 1) {
        f->steps += e->n_nodes / 4; /* a glance at each */
        for (size_t i = 0; i < e->n_nodes; i++)
            if (e->node[i] && e->node[i]->whole_free >= a->fit->res.gpus &&
                vg_fit_now(a->fit, e->node[i]))
                consider(e, a, f, e->node[i]);
        return;
    }
    vg_list_for_each (i, &e->profile->reservations) {
        const struct reservation *r = vg_list_entry(i, struct reservation, link);
        vg_list_for_each (k, &r->holds) {
            if (f->looks > LOOKS_MAX / 4)
                return;
            consider(e, a, f, vg_list_entry(k, struct hold, link)->node);
        }
    }
}

/* The running tasks in the order of their ends, without disturbing the heap: a second heap holds
   the indices whose parents have been passed. */
static void push_index(const struct profile *p, uint32_t *h, size_t *n, size_t index) {
    if (index >= p->n_heap)
        return;
    size_t at = (*n)++;
    for (; at && p->heap[h[(at - 1) / 2]].at > p->heap[index].at; at = (at - 1) / 2)
        h[at] = h[(at - 1) / 2];
    h[at] = (uint32_t)index;
}

static size_t pop_index(const struct profile *p, uint32_t *h, size_t *n) {
    size_t top = h[0], at = 0;
    uint32_t last = h[--*n];
    for (size_t child; (child = 2 * at + 1) < *n; at = child) {
        if (child + 1 < *n && p->heap[h[child + 1]].at < p->heap[h[child]].at)
            child++;
        if (p->heap[h[child]].at >= p->heap[last].at)
            break;
        h[at] = h[child];
    }
    h[at] = last;
    return top;
}

static void consider_ends(const struct vg_eng *e, const struct ask *a, struct found *f,
                          uint32_t *index, size_t steps) {
    const struct profile *p = e->profile;
    size_t n = 0, looks = LOOKS_MAX * VG_MIN(a->members, 8U);
    for (push_index(p, index, &n, 0); n && steps && f->looks < looks; steps--) {
        size_t i = pop_index(p, index, &n);
        if (p->heap[i].at >= VG_MIN(latest(f), a->before))
            return;
        consider(e, a, f, p->heap[i].task->node);
        push_index(p, index, &n, 2 * i + 1);
        push_index(p, index, &n, 2 * i + 2);
        f->steps++;
    }
}

/* The walk gave up, or nothing runs where it could: any node that will do. */
static void consider_rest(const struct vg_eng *e, const struct ask *a, struct found *f) {
    if (a->members == 1) {
        const struct enode *n = vg_fit_could(e, a->fit, true);
        if (n)
            consider(e, a, f, e->node[n->at]);
        return;
    }
    for (size_t i = 0; i < e->n_nodes && f->n < f->max; i++)
        if (e->node[i])
            consider(e, a, f, e->node[i]);
}

static int by_time(const void *a, const void *b) {
    const struct opening *x = a, *y = b;
    if (x->at != y->at)
        return x->at < y->at ? -1 : 1;
    if (x->node != y->node)
        return x->node->at < y->node->at ? -1 : 1;
    return x->gpus < y->gpus ? -1 : x->gpus > y->gpus;
}

size_t vg_search(const struct vg_eng *e, const struct ask *a, struct opening *ret, size_t *cost) {
    size_t steps = (size_t)STEPS_MAX * VG_MIN(a->members, 8U);
    struct opening one;
    vg_auto_free struct opening *several = NULL;
    vg_auto_free uint32_t *index = vg_realloc(NULL, (steps + 2) * sizeof *index); /* not zeroed */
    *cost = 0;
    if (!index || !a->members ||
        (a->members > 1 && !(several = vg_alloc(a->members * sizeof *several))))
        return 0;
    struct found f = {.o = ret, .max = a->members, .scratch = several ? several : &one};
    e->profile->searches++;
    consider_free(e, a, &f);
    consider_ends(e, a, &f, index, steps);
    if (f.n < f.max)
        consider_rest(e, a, &f);
    *cost = f.looks + f.steps / STEPS_A_LOOK;
    if (f.n < f.max)
        return 0;
    qsort(ret, f.n, sizeof *ret, by_time);
    return f.n;
}
