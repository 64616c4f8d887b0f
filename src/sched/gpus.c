/* The cards of a node: what is held of them, and which ones a member gets. Whole ones: within one
   NVLink island if any has enough, the one that then has the fewest left; else within one NUMA
   domain; else the fewest domains, fullest first. Shares: score.c chooses. Pure. */
#include "base/cleanup.h"
#include "sched/place.h"

uint64_t vg_fit_card_mem(const struct fit *f, uint64_t card_bytes) {
    if (f->res.gpus || f->whole)
        return card_bytes;
    if (f->res.gpu_mem_bytes)
        return f->res.gpu_mem_bytes;
    return (card_bytes / 1000) * f->res.gpu_milli + (card_bytes % 1000) * f->res.gpu_milli / 1000;
}

int32_t vg_card_room(const struct egpu *g) {
    if (g->bad || g->free_milli <= 0 || (g->mem && g->free_mem <= 0))
        return 0;
    int32_t room = VG_MIN(g->free_milli, 1000);
    if (g->free_mem < (int64_t)g->mem)
        room = VG_MIN(room, (int32_t)((uint64_t)g->free_mem * 1000 / g->mem));
    return room;
}

static struct egpu *card_at(struct enode *n, uint32_t index) {
    if (index < n->n_gpus && n->gpu[index].index == index)
        return &n->gpu[index];
    for (uint32_t i = 0; i < n->n_gpus; i++)
        if (n->gpu[i].index == index)
            return &n->gpu[i];
    return NULL;
}

struct vg_res vg_fit_res(const struct fit *f, const struct enode *n) {
    struct vg_res all = n->total;
    all.gpus = n->n_gpus;
    all.gpu_milli = 0;
    all.gpu_mem_bytes = all.disk_bytes = all.pids = 0;
    return f->whole ? all : f->res;
}

void vg_node_hold(struct enode *n, const struct fit *f, uint64_t gpus, int sign) {
    struct vg_res res = vg_fit_res(f, n);
    int32_t milli = res.gpus ? 1000 : (int32_t)res.gpu_milli;
    n->cpu_free -= sign * (int64_t)res.cpu_milli;
    n->mem_free -= sign * (int64_t)res.mem_bytes;
    n->n_tasks += (uint32_t)sign;
    n->alone += f->whole ? (uint32_t)sign : 0;
    for (; gpus && milli; gpus &= gpus - 1) {
        struct egpu *g = card_at(n, (uint32_t)__builtin_ctzll(gpus));
        if (!g)
            continue;
        uint32_t was = g->tasks;
        g->free_milli -= sign * milli;
        g->free_mem -= sign * (int64_t)vg_fit_card_mem(f, g->mem);
        g->tasks += (uint32_t)sign;
        g->room = vg_card_room(g);
        if (!g->bad && (was == 0 || g->tasks == 0))
            n->whole_free += was == 0 ? UINT32_MAX : 1;
    }
}

static bool whole(const struct fit *f, const struct egpu *g) {
    return !g->bad && g->tasks == 0 && g->mem >= f->res.gpu_mem_bytes;
}

bool vg_card_takes_share(const struct fit *f, const struct egpu *g) {
    return !g->bad && g->free_milli >= (int32_t)f->res.gpu_milli &&
           g->free_mem >= (int64_t)vg_fit_card_mem(f, g->mem);
}

/* One group of free cards: an island or a NUMA domain. */
struct group {
    uint32_t key, n;
};

static uint32_t key_of(const struct egpu *g, bool by_island) {
    return by_island ? g->island : g->numa;
}

static size_t group_free(const struct fit *f, const struct enode *n, bool by_island,
                         struct group *ret) {
    size_t groups = 0;
    for (uint32_t i = 0; i < n->n_gpus; i++) {
        uint32_t key = key_of(&n->gpu[i], by_island);
        if (!whole(f, &n->gpu[i]) || (by_island && !key))
            continue;
        size_t k = 0;
        while (k < groups && ret[k].key != key)
            k++;
        if (k == groups)
            ret[groups++] = (struct group){.key = key};
        ret[k].n++;
    }
    return groups;
}

/* Up to `count` free cards of a group (or, without one, of all), lowest index first. */
static uint64_t pick(const struct fit *f, const struct enode *n, uint32_t count,
                     const struct group *g, bool by_island, uint64_t taken) {
    uint64_t set = 0;
    for (uint32_t i = 0; i < n->n_gpus && count; i++) {
        const struct egpu *c = &n->gpu[i];
        if (!whole(f, c) || (taken >> c->index & 1) || (g && key_of(c, by_island) != g->key))
            continue;
        set |= 1ULL << c->index;
        count--;
    }
    return set;
}

/* The smallest group that holds `count`. */
static const struct group *tightest(const struct group *g, size_t n, uint32_t count) {
    const struct group *best = NULL;
    for (size_t i = 0; i < n; i++)
        if (g[i].n >= count && (!best || g[i].n < best->n))
            best = &g[i];
    return best;
}

/* No group is enough: fill the largest ones first, so that few are touched. */
static uint64_t spread(const struct fit *f, const struct enode *n, uint32_t count, struct group *g,
                       size_t groups) {
    uint64_t set = 0;
    while (count) {
        const struct group *tight = tightest(g, groups, count);
        struct group *most = NULL;
        for (size_t i = 0; i < groups; i++)
            if (g[i].n && (!most || g[i].n > most->n))
                most = &g[i];
        if (!most)
            break;
        if (tight)
            most = g + (tight - g);
        uint64_t more = pick(f, n, count, most, false, set);
        count -= (uint32_t)__builtin_popcountll(more);
        set |= more;
        most->n = 0;
    }
    return set;
}

uint32_t vg_gpus_linked(const struct fit *f, const struct enode *n) {
    struct group g[VG_NODE_GPUS_MAX];
    size_t groups = group_free(f, n, true, g);
    uint32_t most = 0;
    for (size_t i = 0; i < groups; i++)
        most = VG_MAX(most, g[i].n);
    return most;
}

static uint64_t whole_set(const struct fit *f, const struct enode *n) {
    struct group g[VG_NODE_GPUS_MAX];
    uint32_t count = f->res.gpus;
    size_t groups = group_free(f, n, true, g);
    const struct group *best = tightest(g, groups, count);
    if (best)
        return pick(f, n, count, best, true, 0);
    groups = group_free(f, n, false, g);
    return spread(f, n, count, g, groups);
}

/* Whether CPU, memory and the number of tasks leave room. */
static bool host_has_room(const struct fit *f, const struct enode *n) {
    return n->cpu_free >= (int64_t)f->res.cpu_milli && n->n_tasks < n->max_tasks &&
           (f->res.mem_bytes == 0 ||
            (n->mem_free >= 0 && (uint64_t)n->mem_free >= f->res.mem_bytes));
}

static uint32_t free_cards(const struct fit *f, const struct enode *n) {
    if (!f->res.gpu_mem_bytes)
        return n->whole_free;
    uint32_t k = 0;
    for (uint32_t i = 0; i < n->n_gpus; i++)
        k += whole(f, &n->gpu[i]);
    return k;
}

/* A whole node is an empty one, and one with a bad card is not whole. */
static bool is_empty(const struct enode *n) {
    return n->n_tasks == 0 && n->whole_free == n->n_gpus;
}

bool vg_fit_now(const struct fit *f, const struct enode *n) {
    if (!n->usable || n->alone || !host_has_room(f, n) || (f->whole && !is_empty(n)))
        return false;
    if (f->res.gpus)
        return free_cards(f, n) >= f->res.gpus;
    if (!f->res.gpu_milli)
        return true;
    for (uint32_t i = 0; i < n->n_gpus; i++)
        if (vg_card_takes_share(f, &n->gpu[i]))
            return true;
    return false;
}

uint64_t vg_fit_gpus(const struct vg_eng *e, const struct fit *f, const struct enode *n, bool *ok) {
    *ok = vg_fit_now(f, n);
    uint64_t all = 0;
    if (!*ok)
        return 0;
    for (uint32_t i = 0; f->whole && i < n->n_gpus; i++)
        all |= 1ULL << n->gpu[i].index;
    if (f->whole)
        return all;
    if (f->res.gpus)
        return whole_set(f, n);
    return f->res.gpu_milli ? 1ULL << vg_score_card(e, f, n)->index : 0;
}
