/* How good a place is: how much worth (mix.c) is lost there beyond what the task itself uses, then
   how little is left over. Pure. */
#include "base/cleanup.h"
#include "sched/place.h"

#include <math.h>

#define FINE 1024         /* steps of a thousandth of a GPU */
#define TIES 4096         /* what is left over, below one step */
#define APART (1LL << 50) /* several cards that do not reach each other by NVLink */

/* What is free on a node, as far as worth goes. */
struct state {
    double cards; /* sum of worth.card */
    int64_t cpu, mem;
    uint32_t whole;
};

static struct state state_of(const struct worth *w, const struct enode *n) {
    struct state s = {.cpu = n->cpu_free, .mem = n->mem_free, .whole = n->whole_free};
    for (uint32_t i = 0; i < n->n_gpus; i++)
        s.cards += w->card[n->gpu[i].room];
    return s;
}

/* Cards are worth what CPUs and memory can carry: gently the smaller of the two. */
static double worth_of(const struct worth *w, const struct state *s) {
    if (s->cards <= 0)
        return 0;
    if ((s->cpu <= 0 && w->cpu_per_milli > 0) || (s->mem <= 0 && w->mem_per_milli > 0))
        return w->whole[s->whole];
    double tight = s->cpu > 0 ? s->cards * w->cpu_per_milli / (double)s->cpu : 0;
    double by_mem = s->mem > 0 ? s->cards * w->mem_per_milli / (double)s->mem : 0;
    tight = VG_MAX(tight, by_mem);
    return s->cards / sqrt(sqrt(1 + tight * tight * tight * tight)) + w->whole[s->whole];
}

/* Thousandths of a card that a share takes, memory included. */
static int32_t share_of(const struct fit *f, const struct egpu *g) {
    int32_t by_mem = 0;
    if (f->res.gpu_mem_bytes && g->mem)
        by_mem = (int32_t)VG_MIN((f->res.gpu_mem_bytes * 1000 + g->mem - 1) / g->mem, 1000u);
    return VG_MAX((int32_t)f->res.gpu_milli, by_mem);
}

static double card_loss(const struct worth *w, const struct fit *f, const struct egpu *g) {
    int32_t left = g->room - share_of(f, g);
    return w->card[g->room] - w->card[VG_MAX(left, 0)];
}

/* Worth after a share on this card. */
static double after_share(const struct worth *w, const struct fit *f, const struct state *s,
                          const struct egpu *g) {
    struct state x = *s;
    x.cards -= card_loss(w, f, g);
    x.whole -= g->tasks == 0;
    return worth_of(w, &x);
}

/* Among touched cards, and among untouched ones, the least loss is best: at most two to compare. */
static const struct egpu *least_loss(const struct worth *w, const struct fit *f,
                                     const struct enode *n, bool untouched) {
    const struct egpu *best = NULL;
    double least = 0;
    for (uint32_t i = 0; i < n->n_gpus; i++) {
        const struct egpu *g = &n->gpu[i];
        if ((g->tasks == 0) != untouched || !vg_card_takes_share(f, g))
            continue;
        double loss = card_loss(w, f, g);
        if (!best || loss < least) {
            best = g;
            least = loss;
        }
    }
    return best;
}

/* The state that remains once CPUs and memory are taken. */
static struct state host_after(const struct vg_res *r, const struct state *before) {
    struct state s = *before;
    s.cpu -= r->cpu_milli;
    s.mem -= (int64_t)r->mem_bytes;
    return s;
}

static const struct egpu *share_card(const struct worth *w, const struct fit *f,
                                     const struct enode *n, const struct state *host,
                                     double *ret_after) {
    const struct egpu *used = least_loss(w, f, n, false), *fresh = least_loss(w, f, n, true);
    double a = used ? after_share(w, f, host, used) : 0;
    double b = fresh ? after_share(w, f, host, fresh) : 0;
    bool take_fresh = fresh && (!used || b > a);
    *ret_after = take_fresh ? b : a;
    return take_fresh ? fresh : used;
}

/* The card with the least or most left, or any: the policies to compare with. */
static const struct egpu *other_card(const struct vg_eng *e, const struct fit *f,
                                     const struct enode *n) {
    const struct egpu *best = NULL;
    uint64_t k = 0;
    for (uint32_t i = 0; i < n->n_gpus; i++) {
        const struct egpu *g = &n->gpu[i];
        if (!vg_card_takes_share(f, g))
            continue;
        bool better = e->conf.placing == VG_ENG_RANDOM   ? vg_place_random(e->place) % ++k == 0
                      : e->conf.placing == VG_ENG_SPREAD ? best && g->room > best->room
                                                         : best && g->room < best->room;
        if (!best || better)
            best = g;
    }
    return best;
}

const struct egpu *vg_score_card(const struct vg_eng *e, const struct fit *f,
                                 const struct enode *n) {
    if (e->conf.placing != VG_ENG_LEAST_STRANDED)
        return other_card(e, f, n);
    const struct worth *w = vg_mix_worth(e->place, n);
    struct state before = state_of(w, n), host = host_after(&f->res, &before);
    double after;
    return share_card(w, f, n, &host, &after);
}

/* 0 .. TIES - 1: what is left over, GPUs and CPUs alike. */
static int64_t leftover(const struct vg_res *r, const struct enode *n) {
    int64_t milli = -(int64_t)(r->gpus ? r->gpus * 1000 : r->gpu_milli);
    for (uint32_t i = 0; i < n->n_gpus; i++)
        milli += n->gpu[i].room;
    int64_t cpu = n->cpu_free - (int64_t)r->cpu_milli;
    return VG_MIN(VG_MAX(milli, 0) >> 3, TIES / 2 - 1) + VG_MIN(VG_MAX(cpu, 0) >> 7, TIES / 2 - 1);
}

static int64_t stranded(const struct vg_eng *e, const struct fit *f, const struct vg_res *r,
                        const struct enode *n) {
    const struct worth *w = vg_mix_worth(e->place, n);
    struct state before = state_of(w, n), host = host_after(r, &before);
    double after;
    if (r->gpus) {
        host.cards -= r->gpus * w->card[1000];
        host.whole -= r->gpus;
        after = worth_of(w, &host);
    } else if (r->gpu_milli) {
        share_card(w, f, n, &host, &after);
    } else {
        after = worth_of(w, &host);
    }
    return (int64_t)floor((worth_of(w, &before) - after) * FINE + 0.5) * TIES;
}

int64_t vg_score(const struct vg_eng *e, const struct fit *f, const struct enode *n) {
    struct vg_res r = vg_fit_res(f, n);
    int64_t left = leftover(&r, n);
    if (e->conf.placing == VG_ENG_SPREAD)
        return -left;
    if (e->conf.placing != VG_ENG_LEAST_STRANDED)
        return left;
    bool apart = !f->whole && f->res.gpus > 1 && n->linked && vg_gpus_linked(f, n) < f->res.gpus;
    return stranded(e, f, &r, n) + left + (apart ? APART : 0);
}
