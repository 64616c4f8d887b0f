/* When those who wait will start: see eta.h. */
#include "sched/eta.h"

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"
#include "sched/turns.h"

#include <string.h>

#define TURNS_MAX 1024 /* that are played one by one */
#define STEPS 400      /* of time: the first is a second, each 3 % longer than the one before */
#define SHORT 64       /* turns that are soon played again */
#define CACHED 4       /* sets of pools whose last play is kept */

struct turn {
    uint64_t task, start_usec;
};

struct play {
    uint64_t pools[4];
    uint64_t made_at, change, starts;
    size_t waiting;
    struct turn *turn; /* owned; in order */
    size_t n;
    struct vg_map index; /* of turn, by task */
    uint64_t used;
};

struct eta_cache {
    struct play play[CACHED];
    uint64_t uses;
};

/* Amounts over a step: what is free for half of it counts half. */
struct room {
    double gpu, cpu, mem;
};

struct steps {
    uint64_t now, at[STEPS + 1]; /* at: after now */
    struct room whole[STEPS];    /* what there is, if nobody new started */
    struct room free[STEPS];
};

/* ------------------------------------------------------------------ capacity over time */

static struct room amount(const struct fit *f, uint32_t members) {
    struct vg_eng_amount a = vg_fit_amount(f, members);
    return (struct room){(double)a.gpu_milli, (double)a.cpu_milli, (double)a.mem_bytes};
}

static void add(struct room *r, const struct room *a, double part) {
    r->gpu += a->gpu * part;
    r->cpu += a->cpu * part;
    r->mem += a->mem * part;
}

/* The step that this time, after now, is in; STEPS: beyond all. */
static size_t step_of(const struct steps *s, uint64_t later) {
    size_t low = 0, high = STEPS;
    while (low < high) {
        size_t mid = (low + high) / 2;
        if (s->at[mid + 1] <= later)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

static double part(const struct steps *s, size_t step, uint64_t from, uint64_t to) {
    from = VG_MAX(from, s->at[step]);
    to = VG_MIN(to, s->at[step + 1]);
    return to <= from ? 0 : (double)(to - from) / (double)(s->at[step + 1] - s->at[step]);
}

static bool within(const uint64_t pools[4], const struct enode *n) {
    return (pools[0] & n->pools[0]) || (pools[1] & n->pools[1]) || (pools[2] & n->pools[2]) ||
           (pools[3] & n->pools[3]);
}

/* What ends in a step is free for the rest of it; `gains`: from the next step on. */
static void add_node(struct steps *s, struct room *gains, const struct enode *n) {
    gains[0].cpu += (double)VG_MAX(n->cpu_free, 0);
    gains[0].mem += (double)VG_MAX(n->mem_free, 0);
    for (uint32_t i = 0; i < n->n_gpus; i++)
        gains[0].gpu += n->gpu[i].bad ? 0 : (double)VG_MAX(n->gpu[i].free_milli, 0);
    vg_list_for_each (i, &n->tasks) {
        const struct etask *t = vg_list_entry(i, struct etask, on_node);
        uint64_t end = VG_MAX(t->end_usec, s->now + VG_USEC) - s->now;
        struct room a = amount(t->fit, 1);
        size_t k = step_of(s, t->leaving ? 0 : end);
        if (k >= STEPS)
            continue;
        add(&s->whole[k], &a, part(s, k, end, VG_ENG_NEVER));
        add(&gains[k + 1], &a, 1);
    }
}

static void look(const struct vg_eng *e, const uint64_t pools[4], struct steps *s) {
    struct room gains[STEPS + 1] = {0}, sum = {0};
    uint64_t width = VG_USEC, at = 0;
    memset(s, 0, sizeof *s);
    s->now = e->now;
    for (size_t i = 0; i <= STEPS; i++, at += width, width += width / 32)
        s->at[i] = at;
    for (size_t i = 0; i < e->n_nodes; i++)
        if (e->node[i] && e->node[i]->usable && within(pools, e->node[i]))
            add_node(s, gains, e->node[i]);
    for (size_t i = 0; i < STEPS; i++) {
        add(&sum, &gains[i], 1);
        add(&s->whole[i], &sum, 1);
        s->free[i] = s->whole[i];
    }
}

static bool holds(const struct room *r, const struct room *a, double of) {
    return r->gpu >= a->gpu * of && r->cpu >= a->cpu * of && r->mem >= a->mem * of;
}

/* How much of the step is taken by those who were put there before. */
static double filled(const struct steps *s, size_t k, const struct room *a) {
    const struct room *w = &s->whole[k], *f = &s->free[k];
    if (a->gpu > 0)
        return w->gpu > 0 ? 1 - f->gpu / w->gpu : 0;
    return a->cpu > 0 && w->cpu > 0 ? 1 - f->cpu / w->cpu : 0;
}

/* The first time from `from` (after now) on at which it can run to its end; it is taken up there.
 */
static uint64_t put(struct steps *s, const struct etask *t, uint64_t from) {
    struct room a = amount(t->shape->fit, t->shape->members);
    uint64_t run = VG_MAX(t->expect_usec, 1);
    for (size_t i = step_of(s, from); i < STEPS;) {
        uint64_t begin = VG_MAX(from, s->at[i]), end = begin + run;
        size_t k = i;
        /* Within the first step it may run at any time, later on it goes on without a break. */
        while (k < STEPS && s->at[k] < end && holds(&s->free[k], &a, part(s, k, begin, end)))
            k++;
        if (k < STEPS && s->at[k] < end) {
            i = k == i ? i + 1 : k;
            continue;
        }
        double later = filled(s, i, &a) * (double)(s->at[i + 1] - s->at[i]);
        for (k = i; k < STEPS && s->at[k] < end; k++)
            add(&s->free[k], &a, -part(s, k, begin, end));
        return s->now + VG_MAX(begin, s->at[i] + (uint64_t)VG_MAX(later, 0));
    }
    return VG_ENG_NEVER;
}

/* ------------------------------------------------------------------ playing */

static void play_done(struct play *p) {
    free(p->turn);
    vg_map_done(&p->index);
    *p = (struct play){0};
}

/* A shape's first starts where it was promised to; later ones cannot be earlier than that. */
static uint64_t promised(const struct vg_eng *e, const struct shape *s) {
    const struct reservation *r = s->reservation;
    return r && !r->broken && r->from > e->now ? r->from - e->now : 0;
}

/* Turns are not all taken at once: when one is well after the last, what was held then has partly
   ended. What starts much later than the others (a large gang) says nothing about the time. */
static uint64_t pass(struct turns *turns, uint64_t now, uint64_t clock, uint64_t start) {
    uint64_t later = clock - now;
    if (start < clock + later / 4 + 10 * VG_USEC || start > clock + later + 600 * VG_USEC)
        return clock;
    vg_turns_pass(turns, start - clock);
    return start;
}

static int play_on(const struct vg_eng *e, struct turns *turns, struct steps *s, struct play *p) {
    uint64_t clock = e->now;
    p->turn = vg_alloc(TURNS_MAX * sizeof *p->turn);
    if (!p->turn)
        return -ENOMEM;
    for (struct etask *t; p->n < TURNS_MAX && (t = vg_turns_next(turns)); p->n++) {
        uint64_t start = put(s, t, promised(e, t->shape));
        p->turn[p->n] = (struct turn){.task = t->id, .start_usec = start};
        if (vg_map_put_u64(&p->index, t->id, &p->turn[p->n]) < 0)
            return -ENOMEM;
        clock = pass(turns, e->now, clock, start);
    }
    return 0;
}

static int play(const struct vg_eng *e, const uint64_t pools[4], struct etask *extra,
                struct play *p) {
    vg_auto_free struct steps *s = vg_alloc(sizeof *s);
    struct turns *turns = s ? vg_turns_new(e, pools, extra) : NULL;
    if (!turns)
        return -ENOMEM;
    memcpy(p->pools, pools, sizeof p->pools);
    p->made_at = e->now;
    p->change = e->change;
    p->starts = e->starts;
    p->waiting = e->n_waiting;
    look(e, pools, s);
    int r = play_on(e, turns, s, p);
    vg_turns_free(turns);
    if (r < 0)
        play_done(p);
    return r;
}

static void pools_of(const struct fit *f, uint64_t pools[4]) {
    memset(pools, 0, 4 * sizeof *pools);
    for (uint32_t i = 0; i < f->n_pools; i++)
        pools[f->pool[i] / 64] |= 1ULL << (f->pool[i] % 64);
}

static bool fresh(const struct vg_eng *e, const struct play *p, uint64_t stale_usec) {
    bool same = p->change == e->change && p->waiting == e->n_waiting && p->starts == e->starts;
    uint64_t age = e->now - p->made_at;
    return p->turn && (same ? age <= VG_MAX(stale_usec, VG_USEC) : stale_usec && age <= stale_usec);
}

/* The last play of these pools if it will do, else another. NULL: no memory. */
static const struct play *get(const struct vg_eng *e, const struct fit *f, uint64_t stale_usec) {
    uint64_t pools[4];
    struct eta_cache *c = e->profile->eta;
    if (!c && !(c = e->profile->eta = vg_alloc(sizeof *c)))
        return NULL;
    struct play *p = &c->play[0];
    pools_of(f, pools);
    for (size_t i = 0; i < CACHED; i++) {
        struct play *x = &c->play[i];
        if (x->turn && memcmp(x->pools, pools, sizeof pools) == 0) {
            p = x;
            break;
        }
        if (x->used < p->used)
            p = x;
    }
    bool ours = p->turn && memcmp(p->pools, pools, sizeof pools) == 0;
    if (!ours || !fresh(e, p, stale_usec)) {
        play_done(p);
        if (play(e, pools, NULL, p) < 0)
            return NULL;
    }
    p->used = ++c->uses;
    return p;
}

void vg_eta_done(struct profile *p) {
    for (size_t i = 0; p->eta && i < CACHED; i++)
        play_done(&p->eta->play[i]);
    free(p->eta);
    p->eta = NULL;
}

/* ------------------------------------------------------------------ one of them */

/* Far behind: as many turns of the others as there are of its own tenant's before it, by weight. */
static uint32_t behind(const struct vg_eng *e, const struct etask *t, size_t at_least) {
    double mine =
        t->lane ? (double)tree_before(&t->lane->tasks, &t->in_lane) : (double)e->n_waiting;
    double sum = 0, weight = VG_MAX(t->tenant->weight, 1U);
    vg_map_for_each (i, &e->tenants) {
        const struct etenant *x = i->value;
        if (x->queued && vg_list_empty(&x->children))
            sum += VG_MIN((double)x->queued, mine * x->weight / weight);
    }
    sum = VG_MIN(VG_MAX(sum, (double)at_least), (double)VG_MAX(e->n_waiting, 1U) - 1);
    return (uint32_t)VG_MAX(sum, (double)at_least);
}

static void find(const struct vg_eng *e, const struct play *p, const struct etask *t,
                 struct eta *ret) {
    const struct turn *x = vg_map_get_u64(&p->index, t->id);
    if (x) {
        *ret = (struct eta){.start_usec = x->start_usec, .ahead = (uint32_t)(x - p->turn)};
        return;
    }
    *ret = (struct eta){.start_usec = VG_ENG_NEVER, .ahead = behind(e, t, p->n), .by_pace = true};
    if (p->n < 2)
        return;
    uint64_t from = p->turn[p->n / 2].start_usec, to = 0;
    for (size_t i = p->n / 2; i < p->n; i++)
        to = p->turn[i].start_usec == VG_ENG_NEVER ? to : VG_MAX(to, p->turn[i].start_usec);
    if (from == VG_ENG_NEVER || to < from)
        return;
    double pace = (double)(to - from) / (double)(p->n - p->n / 2);
    ret->start_usec = to + (uint64_t)(pace * (double)(ret->ahead - p->n + 1));
}

int vg_eta(const struct vg_eng *e, const struct etask *t, uint64_t stale_usec, struct eta *ret) {
    const struct play *p = get(e, t->fit, stale_usec);
    /* It came after the last play: if that was short, another is cheap, and better than its pace.
     */
    if (p && p->n < SHORT && !vg_map_get_u64(&p->index, t->id))
        p = get(e, t->fit, 0);
    if (!p)
        return -ENOMEM;
    find(e, p, t, ret);
    ret->start_usec = VG_MAX(ret->start_usec, e->now);
    return 0;
}

int vg_eta_extra(const struct vg_eng *e, struct etask *extra, struct eta *ret) {
    struct play p = {0};
    uint64_t pools[4];
    pools_of(extra->fit, pools);
    if (play(e, pools, extra, &p) < 0)
        return -ENOMEM;
    find(e, &p, extra, ret);
    play_done(&p);
    return 0;
}
