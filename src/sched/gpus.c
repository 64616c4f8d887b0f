/* The cards of a node: what is held of them, and which ones a member gets. Whole ones: near.c
   chooses. Shares: score.c. Pure. */
#include "base/cleanup.h"
#include "sched/place.h"

uint64_t vg_fit_card_mem(const struct fit *f, uint64_t card_bytes) {
    return f->whole ? card_bytes : vg_res_card_mem(&f->res, card_bytes);
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
        if (sign > 0)
            g->gpu_class = !was || g->gpu_class == f->gpu_class ? f->gpu_class : VG_GPU_MIXED;
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

bool vg_card_takes_class(const struct egpu *g, uint8_t gpu_class) {
    return !g->bad && (g->tasks == 0 || g->gpu_class == gpu_class) && (g->mem || !gpu_class);
}

bool vg_card_takes_share(const struct fit *f, const struct egpu *g) {
    return vg_card_takes_class(g, f->gpu_class) && g->free_milli >= (int32_t)f->res.gpu_milli &&
           g->free_mem >= (int64_t)vg_fit_card_mem(f, g->mem);
}

/* The free cards of one NVLink island. */
struct island {
    uint32_t key, n;
};

uint32_t vg_gpus_linked(const struct fit *f, const struct enode *n) {
    struct island g[VG_NODE_GPUS_MAX];
    uint32_t most = 0, islands = 0;
    for (uint32_t i = 0; i < n->n_gpus; i++) {
        uint32_t key = n->gpu[i].island, k = 0;
        if (!key || !whole(f, &n->gpu[i]))
            continue;
        while (k < islands && g[k].key != key)
            k++;
        if (k == islands)
            g[islands++] = (struct island){.key = key};
        g[k].n++;
        most = VG_MAX(most, g[k].n);
    }
    return most;
}

static uint64_t whole_set(const struct fit *f, const struct enode *n) {
    uint64_t free = 0;
    for (uint32_t i = 0; i < n->n_gpus; i++)
        if (whole(f, &n->gpu[i]))
            free |= 1ULL << n->gpu[i].index;
    return vg_near_pick(n->near, free, f->res.gpus);
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

bool vg_node_is_empty(const struct enode *n) {
    return n->n_tasks == 0 && n->whole_free == n->n_gpus;
}

bool vg_fit_now(const struct fit *f, const struct enode *n) {
    if (!n->usable || n->alone || !host_has_room(f, n) || (f->whole && !vg_node_is_empty(n)))
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
