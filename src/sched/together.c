/* Places for a whole gang: on one node if one holds it, else within one rack, else in as few racks
   as possible; in each the fewest nodes, and the tightest that will do. Members on one node follow
   one another. All of one pool. Looks only at nodes with room for one. Pure. */
#include "base/cleanup.h"
#include "base/mem.h"
#include "sched/place.h"
#include "sched/profile.h"

/* A node and how many members it would take now. */
struct seat {
    struct enode *node;
    uint32_t room, rank;
};

/* Seats [from, to) are in one rack. */
struct rack {
    size_t from, to;
    uint64_t room;
};

struct seats {
    struct vg_eng *e;
    struct fit *f;
    const struct shape *who;
    uint32_t members;
    uint64_t until;
    enum vg_eng_code refused;
    struct seat *seat; /* owned; in the end by rack, roomiest first */
    size_t n, cap;
    struct rack *rack; /* owned */
    size_t n_racks, racks_cap;
};

static bool promised(const struct seats *s, const struct enode *n) {
    vg_list_for_each (i, &n->holds)
        if (vg_hold_blocks(s->e, vg_list_entry(i, struct hold, on_node), s->who))
            return true;
    return false;
}

/* Members that fit on a node together. Where something is promised to others, at most one: what two
   would do to a promise is not the sum of what each would. */
static uint32_t room_on(struct seats *s, struct enode *n, uint32_t max, struct spot *ret) {
    struct enode copy;
    struct egpu gpu[VG_NODE_GPUS_MAX];
    uint32_t k = 0;
    vg_node_imagine(n, &copy, gpu);
    if (promised(s, n))
        max = VG_MIN(max, 1u);
    for (bool ok; k < max; k++) {
        uint64_t gpus = vg_fit_gpus(s->e, s->f, &copy, &ok);
        if (!ok || !vg_profile_allows(s->e, s->f, n, gpus, s->until, s->who, &s->refused))
            break;
        vg_node_imagine_with(&copy, s->f, gpus);
        if (ret)
            ret[k] = (struct spot){.node = n, .pool = vg_fit_pool(s->e, s->f, n), .gpus = gpus};
    }
    return k;
}

static int add_seat(void *arg, struct enode *n) {
    struct seats *s = arg;
    uint32_t room = room_on(s, n, s->members, NULL);
    if (!room)
        return 0;
    struct seat *grown = vg_grow(s->seat, &s->cap, s->n + 1, sizeof(*grown));
    if (!grown)
        return -ENOMEM;
    s->seat = grown;
    s->seat[s->n++] = (struct seat){.node = n, .room = room, .rank = vg_fit_rank(s->e, s->f, n)};
    return 0;
}

/* By pool, rack, room (most first), slot. */
static int cmp_seats(const void *a, const void *b) {
    const struct seat *x = a, *y = b;
    if (x->rank != y->rank)
        return x->rank < y->rank ? -1 : 1;
    if (x->node->rack_no != y->node->rack_no)
        return x->node->rack_no < y->node->rack_no ? -1 : 1;
    if (x->room != y->room)
        return x->room > y->room ? -1 : 1;
    return x->node->at < y->node->at ? -1 : x->node->at > y->node->at;
}

static int find_racks(struct seats *s, size_t from, size_t to) {
    s->n_racks = 0;
    for (size_t i = from; i < to; i++) {
        if (i == from || s->seat[i].node->rack_no != s->seat[i - 1].node->rack_no) {
            struct rack *grown = vg_grow(s->rack, &s->racks_cap, s->n_racks + 1, sizeof(*grown));
            if (!grown)
                return -ENOMEM;
            s->rack = grown;
            s->rack[s->n_racks++] = (struct rack){.from = i};
        }
        s->rack[s->n_racks - 1].to = i + 1;
        s->rack[s->n_racks - 1].room += s->seat[i].room;
    }
    return 0;
}

/* Whether `a` suits `left` members better than `b`: the tightest that takes all, else the roomiest.
 */
static bool suits_better(uint64_t a, uint64_t b, uint64_t left) {
    return a >= left ? b < left || a < b : b < left && a > b;
}

static struct seat *best_seat(const struct seats *s, size_t from, size_t to, uint32_t left) {
    struct seat *best = NULL;
    for (size_t i = from; i < to; i++)
        if (s->seat[i].room && (!best || suits_better(s->seat[i].room, best->room, left)))
            best = &s->seat[i];
    return best;
}

static struct rack *best_rack(const struct seats *s, uint32_t left) {
    struct rack *best = NULL;
    for (size_t i = 0; i < s->n_racks; i++)
        if (s->rack[i].room && (!best || suits_better(s->rack[i].room, best->room, left)))
            best = &s->rack[i];
    return best;
}

/* Fills a rack: roomiest seats first, the last members on the tightest that takes them. */
static uint32_t sit_in(struct seats *s, const struct rack *r, uint32_t left, struct spot *ret) {
    uint32_t done = 0;
    for (size_t i = r->from; i < r->to && s->seat[i].room < left - done; i++)
        done += room_on(s, s->seat[i].node, s->seat[i].room, ret + done), s->seat[i].room = 0;
    struct seat *last = done < left ? best_seat(s, r->from, r->to, left - done) : NULL;
    return last ? done + room_on(s, last->node, left - done, ret + done) : done;
}

/* The seats [from, to) of one pool: 1 and who sits where, 0: not enough. */
static int sit(struct seats *s, size_t from, size_t to, struct spot *ret) {
    uint32_t n = s->members, done = 0;
    uint64_t room = 0;
    for (size_t i = from; i < to; i++)
        room += s->seat[i].room;
    if (room < n)
        return 0;
    struct seat *one = best_seat(s, from, to, n);
    if (one->room >= n)
        return room_on(s, one->node, n, ret) == n;
    if (find_racks(s, from, to) < 0)
        return 0;
    for (struct rack *r; done < n && (r = best_rack(s, n - done)); r->room = 0)
        done += sit_in(s, r, n - done, ret + done);
    return done == n;
}

static int sit_in_first_pool(struct seats *s, struct spot *ret) {
    if (s->n)
        qsort(s->seat, s->n, sizeof *s->seat, cmp_seats);
    for (size_t from = 0, to; from < s->n; from = to) {
        for (to = from; to < s->n && s->seat[to].rank == s->seat[from].rank; to++)
            ;
        if (sit(s, from, to, ret))
            return 1;
    }
    return 0;
}

int vg_fit_find_gang(struct vg_eng *e, struct fit *f, const struct shape *who, uint32_t n,
                     uint64_t until, uint64_t env, struct spot *ret, enum vg_eng_code *code) {
    if (n == 1)
        return vg_fit_find(e, f, who, until, env, ret, code);
    struct seats s = {
        .e = e, .f = f, .who = who, .members = n, .until = until, .refused = VG_ENG_FREE};
    int found = vg_index_each(e, f, add_seat, &s) == 0 && sit_in_first_pool(&s, ret);
    if (!found)
        *code = vg_fit_reason(e, f, s.refused);
    free(s.seat);
    free(s.rack);
    return found;
}
