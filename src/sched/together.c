/* Places for a whole gang: on one node if one holds it, else within one rack, else in as few racks
   as possible; in each the fewest nodes, and the tightest that will do. Members on one node follow
   one another. All of one pool: the first in which there is room for everybody. Only racks that may
   hold some are looked at closely, the most suitable first. Pure. */
#include "base/cleanup.h"
#include "base/mem.h"
#include "sched/place.h"
#include "sched/profile.h"

struct gathering {
    struct vg_eng *e;
    struct fit *f;
    const struct shape *who;
    uint32_t members;
    uint64_t until;
    uint32_t rank; /* of the pool that is tried */
    enum vg_eng_code refused;
};

/* A node and how many members it would take now. */
struct seat {
    struct enode *node;
    uint32_t room;
};

struct seats {
    struct seat *seat; /* owned; roomiest first */
    size_t n, cap;
};

/* What a rack may hold, or once it was looked at: does. */
struct guess {
    uint64_t room;
    bool sure;
};

static bool promised(const struct gathering *g, const struct enode *n) {
    vg_list_for_each (i, &n->holds)
        if (vg_hold_blocks(g->e, vg_list_entry(i, struct hold, on_node), g->who))
            return true;
    return false;
}

/* Members that fit on a node together. Where something is promised to others, at most one: what two
   would do to a promise is not the sum of what each would. */
static uint32_t room_on(struct gathering *g, struct enode *n, uint32_t max, struct spot *ret) {
    struct enode copy;
    struct egpu gpu[VG_NODE_GPUS_MAX];
    uint32_t k = 0;
    vg_node_imagine(n, &copy, gpu);
    if (promised(g, n))
        max = VG_MIN(max, 1u);
    for (bool ok; k < max; k++) {
        uint64_t gpus = vg_fit_gpus(g->e, g->f, &copy, &ok);
        if (!ok || !vg_profile_allows(g->e, g->f, n, gpus, g->until, g->who, &g->refused))
            break;
        vg_node_imagine_with(&copy, g->f, gpus);
        if (ret)
            ret[k] = (struct spot){.node = n, .pool = vg_fit_pool(g->e, g->f, n), .gpus = gpus};
    }
    return k;
}

/* --- one node --- */

/* A node for all of them is a node for one that asks for as much as all. Shares do not add up. */
static struct fit *all_as_one(struct gathering *g) {
    const struct vg_res *r = &g->f->res;
    uint64_t n = g->members;
    if (g->f->whole || r->gpu_milli || r->gpus * n > VG_NODE_GPUS_MAX ||
        r->cpu_milli * n > UINT32_MAX || (r->mem_bytes && n > UINT64_MAX / r->mem_bytes))
        return NULL;
    struct vg_res all = *r;
    all.gpus *= g->members;
    all.cpu_milli *= g->members;
    all.mem_bytes *= n;
    return vg_fit_like(g->e, g->f, &all);
}

/* Deals the cards out, neighbours together. */
static void deal(const struct gathering *g, const struct spot *all, struct spot *ret) {
    uint64_t left = all->gpus;
    for (uint32_t i = 0; i < g->members; i++) {
        ret[i] = *all;
        ret[i].gpus = vg_near_pick(all->node->near, left, g->f->res.gpus);
        left &= ~ret[i].gpus;
    }
}

/* The rank of the pool in which one node holds all, or 0. */
static uint32_t one_node(struct gathering *g, uint64_t env, struct spot *ret) {
    struct fit *all = all_as_one(g);
    struct spot s;
    enum vg_eng_code code;
    uint32_t rank = 0;
    if (!all)
        return 0;
    if (vg_fit_could(g->e, all, true) && vg_fit_find(g->e, all, g->who, g->until, env, &s, &code) &&
        s.node->n_tasks + g->members <= s.node->max_tasks) {
        rank = vg_fit_rank(g->e, g->f, s.node);
        deal(g, &s, ret);
    }
    vg_fit_put(g->e, all);
    return rank;
}

/* --- several --- */

/* Most room first, then by slot. */
static int cmp_seats(const void *a, const void *b) {
    const struct seat *x = a, *y = b;
    if (x->room != y->room)
        return x->room > y->room ? -1 : 1;
    return x->node->at < y->node->at ? -1 : x->node->at > y->node->at;
}

/* The seats of a rack, and their sum; -ENOMEM. */
static int64_t look_at(struct gathering *g, uint32_t rack_no, struct seats *s) {
    int64_t sum = 0;
    s->n = 0;
    for (uint32_t next = g->e->place->rack[rack_no].first; next;) {
        struct enode *n = g->e->node[next - 1];
        next = n->rack_next;
        if (!vg_fit_now(g->f, n) || vg_fit_rank(g->e, g->f, n) != g->rank)
            continue;
        struct seat *grown = vg_grow(s->seat, &s->cap, s->n + 1, sizeof(*grown));
        if (!grown)
            return -ENOMEM;
        s->seat = grown;
        uint32_t room = room_on(g, n, g->members, NULL);
        if (room)
            s->seat[s->n++] = (struct seat){.node = n, .room = room};
        sum += room;
    }
    if (s->n)
        qsort(s->seat, s->n, sizeof *s->seat, cmp_seats);
    return sum;
}

/* Whether `a` suits `left` members better than `b`: the tightest that takes all, else the roomiest.
 */
static bool suits_better(uint64_t a, uint64_t b, uint64_t left) {
    return a >= left ? b < left || a < b : b < left && a > b;
}

/* Fills a rack: roomiest seats first, the last members on the tightest that takes them. */
static uint32_t sit_in(struct gathering *g, const struct seats *s, uint32_t left,
                       struct spot *ret) {
    uint32_t done = 0;
    size_t i = 0;
    for (; i < s->n && s->seat[i].room < left - done; i++)
        done += room_on(g, s->seat[i].node, s->seat[i].room, ret + done);
    if (i == s->n || done == left)
        return done;
    while (i + 1 < s->n && s->seat[i + 1].room >= left - done)
        i++;
    return done + room_on(g, s->seat[i].node, left - done, ret + done);
}

/* 0: none is left. */
static uint32_t best_rack(const struct guess *guess, uint32_t n, uint32_t left) {
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; i++)
        if (guess[i].room && (!best || suits_better(guess[i].room, guess[best].room, left)))
            best = i;
    return best;
}

/* Racks by what they may hold; the one that looks best is looked at, and taken if it still is. */
static int several(struct gathering *g, struct guess *guess, struct seats *s, struct spot *ret) {
    const struct fit_world *w = g->e->place;
    uint32_t done = 0;
    uint64_t sum = 0;
    for (uint32_t i = 1; i < w->n_rack; i++) {
        guess[i] = (struct guess){.room = vg_rack_bound(&w->rack[i], g->f)};
        sum += guess[i].room;
    }
    if (sum < g->members)
        return 0;
    for (uint32_t i; done < g->members && (i = best_rack(guess, w->n_rack, g->members - done));) {
        int64_t room = look_at(g, i, s);
        if (room < 0)
            return 0;
        if (guess[i].sure || (uint64_t)room == guess[i].room) {
            done += sit_in(g, s, g->members - done, ret + done);
            room = 0;
        }
        guess[i] = (struct guess){.room = (uint64_t)room, .sure = true};
    }
    return done == g->members;
}

int vg_fit_find_gang(struct vg_eng *e, struct fit *f, const struct shape *who, uint32_t n,
                     uint64_t until, uint64_t env, struct spot *ret, enum vg_eng_code *code) {
    if (n == 1)
        return vg_fit_find(e, f, who, until, env, ret, code);
    struct gathering g = {
        .e = e, .f = f, .who = who, .members = n, .until = until, .refused = VG_ENG_FREE};
    struct seats s = {0};
    vg_auto_free struct guess *guess = vg_alloc((e->place->n_rack + 1) * sizeof *guess);
    uint32_t alone = one_node(&g, env, ret);
    int found = 0;
    for (g.rank = 1; g.rank <= f->n_pools && !found; g.rank++)
        found = g.rank == alone || (guess && several(&g, guess, &s, ret));
    if (!found)
        *code = vg_fit_reason(e, f, g.refused);
    free(s.seat);
    return found;
}
