/* Sets of cards by distance; see the header. A good set is found first, by taking each card's
   nearest neighbours; then sets are gone through in order, those left out that cannot be better.
   Pure. */
#include "sched/near.h"

#include "base/cleanup.h"
#include "base/mem.h"

#include <string.h>

#define EXACT_CARDS 12
#define STEPS_MAX (1u << EXACT_CARDS) /* so many sets they have */

/* Sets compare by these, in this order; smaller is better. */
struct worth_of_set {
    uint32_t worst, total;
    int32_t apart; /* minus the sum of distances to all free cards */
    uint64_t set;
};

struct search {
    const struct near *w;
    uint8_t card[VG_NODE_GPUS_MAX]; /* the free ones, ascending */
    uint32_t all[VG_NODE_GPUS_MAX]; /* by place in `card`: the sum to all free ones */
    uint32_t n, count, steps;
    struct worth_of_set best;
    bool found;
};

static uint32_t far(const struct near *w, uint32_t a, uint32_t b) {
    return w->far[a * w->n + b];
}

struct near *vg_near_new(const uint8_t (*dist)[VG_NODE_GPUS_MAX], uint32_t n) {
    struct near *w = vg_alloc(sizeof *w + (size_t)n * n);
    if (!w)
        return NULL;
    w->n = n;
    for (uint32_t a = 0; a < n; a++)
        for (uint32_t b = 0; b < n; b++)
            w->far[a * n + b] = a == b ? 0 : VG_MAX(dist[a][b], dist[b][a]);
    return w;
}

bool vg_near_flat(const struct near *w, uint64_t cards) {
    uint32_t first = 0;
    for (uint64_t a = cards; a; a &= a - 1)
        for (uint64_t b = a & (a - 1); b; b &= b - 1) {
            uint32_t d = far(w, (uint32_t)__builtin_ctzll(a), (uint32_t)__builtin_ctzll(b));
            if (first && d != first)
                return false;
            first = d;
        }
    return true;
}

static uint64_t lowest(uint64_t set, uint32_t count) {
    uint64_t some = 0;
    for (; set && count; count--, set &= set - 1)
        some |= set & -set;
    return some;
}

static bool better(const struct worth_of_set *a, const struct worth_of_set *b) {
    if (a->worst != b->worst)
        return a->worst < b->worst;
    if (a->total != b->total)
        return a->total < b->total;
    if (a->apart != b->apart)
        return a->apart < b->apart;
    /* The one that has the lowest card in which they differ. */
    uint64_t differ = a->set ^ b->set;
    return a->set & (differ & -differ);
}

static void offer(struct search *s, const struct worth_of_set *x) {
    if (s->found && !better(x, &s->best))
        return;
    s->best = *x;
    s->found = true;
}

/* The set with one more card: `at` is its place among the free ones. */
static struct worth_of_set grown(const struct search *s, const struct worth_of_set *x,
                                 uint32_t at) {
    struct worth_of_set y = *x;
    uint32_t c = s->card[at];
    for (uint64_t i = x->set; i; i &= i - 1) {
        uint32_t d = far(s->w, c, (uint32_t)__builtin_ctzll(i));
        y.worst = VG_MAX(y.worst, d);
        y.total += d;
    }
    y.apart -= (int32_t)s->all[at];
    y.set |= 1ULL << c;
    return y;
}

/* The nearest neighbours of one card, and theirs. */
static void gather(struct search *s, uint32_t seed) {
    struct worth_of_set x = grown(s, &(struct worth_of_set){0}, seed);
    for (uint32_t k = 1; k < s->count; k++) {
        struct worth_of_set next = {0};
        for (uint32_t i = 0; i < s->n; i++) {
            if (x.set >> s->card[i] & 1)
                continue;
            struct worth_of_set y = grown(s, &x, i);
            if (!next.set || better(&y, &next))
                next = y;
        }
        x = next;
    }
    offer(s, &x);
}

/* Every set that begins with `x` and goes on from place `at`, while it may still be the best. */
static void go_through(struct search *s, const struct worth_of_set *x, uint32_t at, uint32_t left) {
    if (left == 0) {
        offer(s, x);
        return;
    }
    for (uint32_t i = at; i + left <= s->n && s->steps < STEPS_MAX; i++) {
        struct worth_of_set y = grown(s, x, i);
        s->steps++;
        if (y.worst > s->best.worst || (y.worst == s->best.worst && y.total > s->best.total))
            continue;
        go_through(s, &y, i + 1, left - 1);
    }
}

static void prepare(struct search *s, uint64_t free) {
    for (; free; free &= free - 1)
        s->card[s->n++] = (uint8_t)__builtin_ctzll(free);
    for (uint32_t i = 0; i < s->n; i++)
        for (uint32_t k = 0; k < s->n; k++)
            s->all[i] += far(s->w, s->card[i], s->card[k]);
}

uint64_t vg_near_pick(const struct near *w, uint64_t free, uint32_t count) {
    if (w && w->n < VG_NODE_GPUS_MAX)
        free &= (1ULL << w->n) - 1;
    if (!w || count == 0 || count >= (uint32_t)__builtin_popcountll(free))
        return lowest(free, count);
    struct search s = {.w = w, .count = count};
    prepare(&s, free);
    /* Where all sets can be gone through, one good set to compare with is enough. */
    for (uint32_t i = 0; i < (s.n <= EXACT_CARDS ? 1 : s.n); i++)
        gather(&s, i);
    if (s.n <= EXACT_CARDS || count > 1)
        go_through(&s, &(struct worth_of_set){0}, 0, count);
    return s.best.set;
}
