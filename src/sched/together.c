/* Places for a whole gang: on one node if one holds it, else within one rack, else in as few racks
   as possible; in each the fewest nodes, and the tightest that will do. Members on one node follow
   one another. All of one pool. Pure. */
#include "base/cleanup.h"
#include "base/mem.h"
#include "sched/place.h"
#include "sched/profile.h"

/* A node and how many members it would take now. */
struct seat {
    struct enode *node;
    uint32_t room, rack;
};

struct rack_room {
    uint32_t rack;
    uint64_t room;
};

struct seats {
    struct seat *seat; /* owned */
    size_t n, cap;
    struct rack_room *rack; /* owned */
    size_t n_racks, racks_cap;
    uint64_t room;
    enum vg_eng_code refused;
};

static void seats_done(struct seats *s) {
    free(s->seat);
    free(s->rack);
}

static bool promised(const struct vg_eng *e, const struct enode *n, const struct shape *who) {
    vg_list_for_each (i, &n->holds)
        if (vg_hold_blocks(e, vg_list_entry(i, struct hold, on_node), who))
            return true;
    return false;
}

/* Members that fit there together. Where something is promised to others, at most one: what two
   would do to a promise is not the sum of what each would. */
static uint32_t room_on(struct vg_eng *e, struct fit *f, const struct shape *who, uint32_t max,
                        uint64_t until, struct enode *n, enum vg_eng_code *refused,
                        struct spot *ret) {
    struct enode copy;
    struct egpu gpu[VG_NODE_GPUS_MAX];
    vg_node_imagine(n, &copy, gpu);
    if (promised(e, n, who))
        max = VG_MIN(max, 1u);
    uint32_t k = 0;
    for (bool ok; k < max; k++) {
        uint64_t gpus = vg_fit_gpus(e, f, &copy, &ok);
        if (!ok)
            break;
        if (!vg_profile_allows(e, f, n, gpus, until, who, refused))
            break;
        vg_node_imagine_with(&copy, f, gpus);
        if (ret)
            ret[k] = (struct spot){.node = n, .pool = vg_fit_pool(e, f, n), .gpus = gpus};
    }
    return k;
}

static int add_to_rack(struct seats *s, uint32_t rack, uint32_t room) {
    size_t i = 0;
    while (i < s->n_racks && s->rack[i].rack != rack)
        i++;
    if (i == s->n_racks) {
        struct rack_room *grown = vg_grow(s->rack, &s->racks_cap, i + 1, sizeof(*grown));
        if (!grown)
            return -ENOMEM;
        s->rack = grown;
        s->rack[s->n_racks++] = (struct rack_room){.rack = rack};
    }
    s->rack[i].room += room;
    s->room += room;
    return 0;
}

static int add_seat(struct seats *s, struct enode *n, uint32_t room) {
    struct seat *grown = vg_grow(s->seat, &s->cap, s->n + 1, sizeof(*grown));
    if (!grown)
        return -ENOMEM;
    s->seat = grown;
    s->seat[s->n++] = (struct seat){.node = n, .room = room, .rack = n->rack_no};
    return add_to_rack(s, n->rack_no, room);
}

/* The seat that suits `left` members: the tightest that takes them all, else the roomiest. */
static struct seat *suits(const struct seats *s, uint32_t left, bool any, uint32_t rack) {
    struct seat *best = NULL;
    for (size_t i = 0; i < s->n; i++) {
        struct seat *x = &s->seat[i];
        if (!x->room || (!any && x->rack != rack))
            continue;
        bool enough = x->room >= left;
        if (!best || (enough && (best->room < left || x->room < best->room)) ||
            (!enough && best->room < left && x->room > best->room))
            best = x;
    }
    return best;
}

/* The rack that suits `left` members, likewise. */
static struct rack_room *suits_rack(const struct seats *s, uint32_t left) {
    struct rack_room *best = NULL;
    for (size_t i = 0; i < s->n_racks; i++) {
        struct rack_room *x = &s->rack[i];
        if (!x->room)
            continue;
        bool enough = x->room >= left;
        if (!best || (enough && (best->room < left || x->room < best->room)) ||
            (!enough && best->room < left && x->room > best->room))
            best = x;
    }
    return best;
}

/* Seats are enough for all: says who sits where. */
static uint32_t sit(struct vg_eng *e, struct fit *f, const struct shape *who, uint32_t n,
                    uint64_t until, struct seats *s, struct spot *ret) {
    enum vg_eng_code c;
    uint32_t done = 0;
    struct seat *one = suits(s, n, true, 0);
    if (one && one->room >= n)
        return room_on(e, f, who, n, until, one->node, &c, ret);
    while (done < n) {
        struct rack_room *r = suits_rack(s, n - done);
        if (!r)
            break;
        for (struct seat *x; done < n && (x = suits(s, n - done, false, r->rack)); x->room = 0)
            done += room_on(e, f, who, VG_MIN(x->room, n - done), until, x->node, &c, ret + done);
        r->room = 0;
    }
    return done;
}

static int try_pool(struct vg_eng *e, struct fit *f, const struct shape *who, uint32_t n,
                    uint64_t until, const struct epool *p, struct spot *ret,
                    enum vg_eng_code *refused) {
    struct seats s = {0};
    int r = 0;
    for (size_t i = 0; i < e->n_nodes && r == 0; i++) {
        struct enode *x = e->node[i];
        if (!x || !vg_fit_now(f, x) || vg_fit_pool(e, f, x) != p || !vg_fit_belongs(e, f, x))
            continue;
        uint32_t room = room_on(e, f, who, n, until, x, refused, NULL);
        if (room)
            r = add_seat(&s, x, room);
    }
    uint32_t done = r == 0 && s.room >= n ? sit(e, f, who, n, until, &s, ret) : 0;
    seats_done(&s);
    return r < 0 ? r : done == n;
}

int vg_fit_find_gang(struct vg_eng *e, struct fit *f, const struct shape *who, uint32_t n,
                     uint64_t until, uint64_t env, struct spot *ret, enum vg_eng_code *code) {
    enum vg_eng_code refused = VG_ENG_FREE;
    if (n == 1)
        return vg_fit_find(e, f, who, until, env, ret, code);
    for (uint32_t i = 0; i < f->n_pools; i++) {
        int r = try_pool(e, f, who, n, until, e->pool[f->pool[i]], ret, &refused);
        if (r != 0)
            return r;
    }
    *code = vg_fit_reason(e, f, refused);
    return 0;
}
