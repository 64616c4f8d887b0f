/* The time profile: when the tasks on each node are expected to end, and what is promised there.

   Running tasks stand in their node's list by expected end, and all of them in one heap. Nothing
   here passes over all nodes or all tasks: a task that begins or ends touches its node, and what is
   due is found at the top of the heap.

   Always: a running task is in node->tasks at its place by end_usec and in the heap at end_at
   (unless there was no memory for it: then it is only never found overdue). */
#include "sched/profile.h"
#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"

#define NOT_IN_HEAP UINT32_MAX

int vg_time_init(struct vg_eng *e) {
    int r = vg_learn_init(e);
    if (r < 0)
        return r;
    e->profile = vg_alloc(sizeof *e->profile);
    if (!e->profile)
        return -ENOMEM;
    vg_list_init(&e->profile->reservations);
    vg_list_init(&e->profile->kept);
    vg_list_init(&e->profile->windows);
    e->profile->next_due = VG_ENG_NEVER;
    e->profile->credit = 1 << 13;
    return 0;
}

void vg_time_done(struct vg_eng *e) {
    struct profile *p = e->profile;
    vg_learn_done(e);
    if (!p)
        return;
    vg_list_for_each_safe (i, &p->reservations) {
        struct reservation *r = vg_list_entry(i, struct reservation, link);
        r->shape->reservation = NULL;
        vg_reservation_free(r);
    }
    vg_list_for_each_safe (i, &p->kept)
        vg_reservation_free(vg_list_entry(i, struct reservation, link));
    vg_windows_done(e);
    vg_eta_done(p);
    free(p->heap);
    free(p);
    e->profile = NULL;
}

/* ------------------------------------------------------------------ the heap of ends */

static void heap_put(struct profile *p, size_t at, struct ending x) {
    p->heap[at] = x;
    x.task->end_at = (uint32_t)at;
}

static void heap_up(struct profile *p, size_t at, struct ending x) {
    for (; at && p->heap[(at - 1) / 2].at > x.at; at = (at - 1) / 2)
        heap_put(p, at, p->heap[(at - 1) / 2]);
    heap_put(p, at, x);
}

static void heap_down(struct profile *p, size_t at, struct ending x) {
    for (size_t child; (child = 2 * at + 1) < p->n_heap; at = child) {
        if (child + 1 < p->n_heap && p->heap[child + 1].at < p->heap[child].at)
            child++;
        if (p->heap[child].at >= x.at)
            break;
        heap_put(p, at, p->heap[child]);
    }
    heap_put(p, at, x);
}

static void heap_add(struct profile *p, struct etask *t) {
    t->end_at = NOT_IN_HEAP;
    struct ending *grown = vg_grow(p->heap, &p->heap_cap, p->n_heap + 1, sizeof *grown);
    if (!grown)
        return;
    p->heap = grown;
    heap_up(p, p->n_heap++, (struct ending){t->end_usec, t});
}

static void heap_remove(struct profile *p, struct etask *t) {
    size_t at = t->end_at;
    if (at == NOT_IN_HEAP)
        return;
    t->end_at = NOT_IN_HEAP;
    struct ending last = p->heap[--p->n_heap];
    if (at == p->n_heap)
        return;
    if (at && p->heap[(at - 1) / 2].at > last.at)
        heap_up(p, at, last);
    else
        heap_down(p, at, last);
}

/* ------------------------------------------------------------------ tasks come and go */

static struct etask *task_of(struct vg_list *i) {
    return vg_list_entry(i, struct etask, on_node);
}

/* New tasks mostly end last, so its place is looked for from the back. */
static void sort_in(struct enode *n, struct etask *t) {
    vg_list_remove(&t->on_node);
    struct vg_list *i = n->tasks.prev;
    while (i != &n->tasks && task_of(i)->end_usec > t->end_usec)
        i = i->prev;
    vg_list_insert(i, &t->on_node);
}

static uint64_t after(uint64_t at, uint64_t usec) {
    return usec > VG_ENG_NEVER - at ? VG_ENG_NEVER : at + usec;
}

void vg_profile_begin(struct vg_eng *e, struct etask *t) {
    uint64_t ran = e->now > t->started_usec ? e->now - t->started_usec : 0;
    uint64_t whole = ran || !t->expect_usec ? vg_learn_expect_given(e, t, ran) : t->expect_usec;
    t->end_usec = after(t->started_usec, whole);
    e->profile->events++;
    sort_in(t->node, t);
    heap_add(e->profile, t);
    if (!vg_list_empty(&e->profile->windows))
        vg_window_task(e, t, true);
    vg_holds_recheck(e, t->node);
}

void vg_profile_end(struct vg_eng *e, struct etask *t) {
    struct profile *p = e->profile;
    p->events++;
    heap_remove(p, t);
    if (!vg_list_empty(&p->windows))
        vg_window_task(e, t, false);
    vg_list_for_each (i, &t->node->holds)
        vg_list_entry(i, struct hold, on_node)->valid = false;
    if (!vg_list_empty(&p->reservations) && p->n_freed < FREED_MAX &&
        (!p->n_freed || p->freed[p->n_freed - 1] != t->node->id))
        p->freed[p->n_freed++] = t->node->id;
}

/* It runs on past its estimate: what is left to it is estimated anew. */
static void overdue(struct vg_eng *e, struct etask *t) {
    uint64_t whole = vg_learn_expect_given(e, t, e->now - t->started_usec);
    heap_remove(e->profile, t);
    t->end_usec = VG_MAX(after(t->started_usec, whole), e->now + VG_USEC);
    sort_in(t->node, t);
    heap_add(e->profile, t);
    vg_holds_recheck(e, t->node);
}

uint64_t vg_profile_tick(struct vg_eng *e) {
    struct profile *p = e->profile;
    while (p->n_heap && p->heap[0].at <= e->now)
        overdue(e, p->heap[0].task);
    uint64_t window = vg_window_tick(e), promise = vg_reserve_tick(e);
    if (p->moved) {
        p->moved = false;
        vg_shapes_wake_kept(e);
    }
    return VG_MIN(window, promise);
}

/* ------------------------------------------------------------------ what is free when */

static bool own(const struct vg_eng *e, const struct reservation *r, const struct shape *who) {
    return r->shape == who || (r->task && r->task->shape == who) ||
           (r->grant && who->grant && vg_window_granted(e, r->grant, who->grant));
}

bool vg_hold_blocks(const struct vg_eng *e, const struct hold *h, const struct shape *who) {
    const struct shape *s = h->of->shape;
    if (!who)
        return true;
    if (own(e, h->of, who))
        return false;
    return !s || !vg_shape_head(e, s) || !vg_shape_head(e, who) || vg_shape_before(e, s, who);
}

static void take_out_ended(const struct enode *n, uint64_t at, struct enode *copy) {
    vg_list_for_each (i, &n->tasks) {
        const struct etask *t = task_of(i);
        if (t->end_usec <= at || t->leaving)
            vg_node_imagine_without(copy, t->fit, t->gpus);
    }
}

void vg_room_at(const struct vg_eng *e, const struct enode *n, uint64_t at, const struct shape *who,
                bool own_too, struct enode *copy, struct egpu *gpu) {
    vg_node_imagine(n, copy, gpu);
    take_out_ended(n, VG_MAX(at, e->now), copy);
    vg_list_for_each (i, &n->holds) {
        const struct hold *h = vg_list_entry(i, struct hold, on_node);
        if (h->of->from <= at && h->of->until > at &&
            ((own_too && h->of->shape == who) || vg_hold_blocks(e, h, who)))
            vg_node_imagine_with(copy, h->fit, h->gpus);
    }
}

/* What is left at the hold's beginning, once all that is promised by then has begun. */
static void look(const struct vg_eng *e, struct hold *h) {
    struct egpu gpu[VG_NODE_GPUS_MAX];
    struct enode copy;
    if (h->valid)
        return;
    vg_room_at(e, h->node, VG_MAX(h->of->from, e->now), NULL, false, &copy, gpu);
    h->spare_cpu = copy.cpu_free;
    h->spare_mem = copy.mem_free;
    h->spare_gpus = 0;
    for (uint32_t i = 0; i < copy.n_gpus; i++)
        h->spare_gpus |= (uint64_t)(gpu[i].tasks == 0) << gpu[i].index;
    h->valid = true;
}

static bool leaves_all(const struct vg_eng *e, struct hold *h, const struct fit *f, uint64_t gpus) {
    if (f->whole || h->fit->whole)
        return false; /* nobody is beside it */
    look(e, h);
    if ((f->res.cpu_milli && h->spare_cpu < (int64_t)f->res.cpu_milli) ||
        (f->res.mem_bytes && (h->spare_mem < 0 || (uint64_t)h->spare_mem < f->res.mem_bytes)))
        return false;
    return !(gpus & ~h->spare_gpus);
}

/* There is room for it on those cards, beside what stands in its way when the hold begins. */
static bool leaves_those_before(const struct vg_eng *e, const struct hold *h, const struct fit *f,
                                uint64_t gpus, const struct shape *who) {
    struct egpu gpu[VG_NODE_GPUS_MAX];
    struct enode copy;
    vg_room_at(e, h->node, VG_MAX(h->of->from, e->now), who, false, &copy, gpu);
    for (uint32_t i = 0; i < copy.n_gpus; i++) {
        bool wanted = gpus >> gpu[i].index & 1;
        if (!wanted && !gpu[i].bad && gpu[i].tasks == 0)
            copy.whole_free--;
        gpu[i].bad = gpu[i].bad || !wanted;
    }
    copy.usable = true;
    return vg_fit_now(f, &copy);
}

/* Tasks are being stopped on this node for somebody of this shape: nobody's promise matters. */
static bool kept_for(const struct enode *n, const struct shape *who) {
    vg_list_for_each (i, &n->holds) {
        const struct hold *h = vg_list_entry(i, struct hold, on_node);
        if (who && h->of->task && h->of->task->shape == who)
            return true;
    }
    return false;
}

bool vg_profile_allows(const struct vg_eng *e, const struct fit *f, const struct enode *n,
                       uint64_t gpus, uint64_t until, const struct shape *who,
                       enum vg_eng_code *code) {
    if (!vg_list_empty(&e->profile->windows) &&
        vg_window_clear(e, n, e->now, until, who ? who->grant : 0) != e->now) {
        *code = VG_ENG_WINDOW;
        return false;
    }
    if (kept_for(n, who))
        return true;
    vg_list_for_each (i, &n->holds) {
        struct hold *h = vg_list_entry(i, struct hold, on_node);
        if (h->of->from < until && h->of->until > e->now && !leaves_all(e, h, f, gpus) &&
            vg_hold_blocks(e, h, who) && !leaves_those_before(e, h, f, gpus, who)) {
            *code = h->of->grant ? VG_ENG_WINDOW : VG_ENG_KEPT;
            return false;
        }
    }
    return true;
}

uint64_t vg_profile_when(const struct vg_eng *e, struct fit *f, uint32_t members,
                         const struct enode **ret) {
    struct ask a = {.fit = f, .members = members, .before = VG_ENG_NEVER};
    vg_auto_free struct opening *o = vg_alloc(members * sizeof *o);
    size_t looks, n = o ? vg_search(e, &a, o, &looks) : 0;
    *ret = n ? o[0].node : NULL;
    return n ? o[n - 1].at : VG_ENG_NEVER;
}

/* ------------------------------------------------------------------ for tests */

static const char *check_heap(const struct profile *p) {
    for (size_t i = 0; i < p->n_heap; i++) {
        const struct ending *x = &p->heap[i];
        if (i && p->heap[(i - 1) / 2].at > x->at)
            return "the heap of expected ends is out of order";
        if (x->task->end_at != i || x->task->end_usec != x->at || x->task->place != TASK_RUNS)
            return "a task is not where the heap of expected ends has it";
    }
    return NULL;
}

static const char *check_node(struct enode *n) {
    uint64_t last = 0;
    vg_list_for_each (i, &n->tasks) {
        if (task_of(i)->end_usec < last)
            return "a node's tasks are not in the order of their expected ends";
        last = task_of(i)->end_usec;
    }
    vg_list_for_each (i, &n->holds)
        if (vg_list_entry(i, struct hold, on_node)->node != n)
            return "a hold is on another node's list";
    return NULL;
}

const char *vg_time_check(const struct vg_eng *e) {
    const char *bad = check_heap(e->profile);
    for (size_t i = 0; !bad && i < e->n_nodes; i++)
        bad = e->node[i] ? check_node(e->node[i]) : NULL;
    vg_list_for_each (i, &e->profile->reservations) {
        const struct reservation *r = vg_list_entry(i, struct reservation, link);
        if (!bad && (r->shape->reservation != r ||
                     (!r->broken && vg_list_empty(&r->shape->reservation->holds))))
            bad = "a reservation's shape does not know it, or it holds nothing";
    }
    return bad;
}
