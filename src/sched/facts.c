/* What sentences about waiting tasks are made of: see facts.h. Pure. */
#include "sched/facts.h"

#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"
#include "sched/lanes.h"
#include "sched/place.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define ENDS_MAX 4096 /* of a tenant's tasks that are looked at */

static const char *plural(uint64_t n) {
    return n == 1 ? "" : "s";
}

char *vg_facts_about(uint64_t usec, char *out, size_t n) {
    uint64_t min = (usec + 30 * VG_USEC) / (60 * VG_USEC), h = (min + 30) / 60;
    if (min < 1)
        snprintf(out, n, "less than a minute");
    else if (min < 90)
        snprintf(out, n, "%" PRIu64 " min", min);
    else if (h < 48)
        snprintf(out, n, "%" PRIu64 " h", h);
    else
        snprintf(out, n, "%" PRIu64 " days", (h + 12) / 24);
    return out;
}

/* 1000 -> "1", 250 -> "0.25" */
static char *say_milli(uint64_t milli, char *out, size_t n) {
    if (milli % 1000 == 0)
        snprintf(out, n, "%" PRIu64, milli / 1000);
    else
        snprintf(out, n, "%g", (double)milli / 1000);
    return out;
}

void vg_facts_say_need(const struct vg_res *r, char *out, size_t n) {
    char a[32];
    if (r->gpus)
        snprintf(out, n, "%u GPU%s", r->gpus, plural(r->gpus));
    else if (r->gpu_milli)
        snprintf(out, n, "%s of a GPU", say_milli(r->gpu_milli, a, sizeof a));
    else if (r->cpu_milli)
        snprintf(out, n, "%s CPU%s", say_milli(r->cpu_milli, a, sizeof a),
                 plural(r->cpu_milli / 1000));
    else if (r->mem_bytes)
        snprintf(out, n, "%s of memory", vg_format_size(r->mem_bytes, a, sizeof a));
    else
        snprintf(out, n, "a place");
}

void vg_facts_say_fit(const struct fit *f, char *out, size_t n) {
    char more[64];
    if (!f->whole) {
        vg_facts_say_need(&f->res, out, n);
        return;
    }
    vg_facts_say_need(&f->res, more, sizeof more);
    snprintf(out, n, "a whole node%s%s", f->res.gpus ? " with " : "", f->res.gpus ? more : "");
}

/* ------------------------------------------------------------------ holders */

struct holding {
    uint64_t tenant, gpu_milli, until_usec;
    uint32_t tasks;
};

static int by_size(const void *a, const void *b) {
    const struct holding *x = *(struct holding *const *)a, *y = *(struct holding *const *)b;
    if (x->gpu_milli != y->gpu_milli)
        return x->gpu_milli > y->gpu_milli ? -1 : 1;
    if (x->tasks != y->tasks)
        return x->tasks > y->tasks ? -1 : 1;
    return x->tenant < y->tenant ? -1 : x->tenant > y->tenant;
}

/* Without memory somebody is not named. */
static void note(struct vg_map *by, const struct etask *t) {
    struct holding *h = vg_map_get_u64(by, t->tenant->id);
    if (!h) {
        if (!(h = vg_alloc(sizeof *h)) || vg_map_put_u64(by, t->tenant->id, h) < 0) {
            free(h);
            return;
        }
        *h = (struct holding){.tenant = t->tenant->id, .until_usec = VG_ENG_NEVER};
    }
    h->gpu_milli += vg_fit_amount(t->fit, 1).gpu_milli;
    h->until_usec = VG_MIN(h->until_usec, t->end_usec);
    h->tasks++;
}

void vg_facts_holders(const struct vg_eng *e, const struct fit *f, struct vg_eng_why *ret) {
    struct vg_map by = {0};
    for (size_t i = 0; i < e->n_nodes; i++) {
        struct enode *n = e->node[i];
        if (!n || !n->usable || !vg_fit_belongs(e, f, n))
            continue;
        vg_list_for_each (k, &n->tasks) {
            const struct etask *t = vg_list_entry(k, struct etask, on_node);
            if (t->gpus || f->whole || !(f->res.gpus || f->res.gpu_milli))
                note(&by, t);
        }
    }
    size_t n = 0;
    vg_auto_free struct holding **all = vg_alloc((vg_map_len(&by) + 1) * sizeof *all);
    vg_map_for_each (s, &by)
        if (all)
            all[n++] = s->value;
    if (all)
        qsort(all, n, sizeof *all, by_size);
    ret->n_holders = VG_MIN(n, (size_t)VG_ENG_HOLDERS_MAX);
    ret->more_holders = (uint32_t)(n - ret->n_holders);
    for (size_t i = 0; i < ret->n_holders; i++) {
        ret->holder[i].tenant = all[i]->tenant;
        ret->holder[i].gpu_milli = all[i]->gpu_milli;
        ret->holder[i].until_usec = VG_MAX(all[i]->until_usec, e->now);
        ret->holder[i].tasks = all[i]->tasks;
    }
    vg_map_for_each (s, &by)
        free(s->value);
    vg_map_done(&by);
}

void vg_eng_tell(struct vg_eng *e, vg_eng_knows_fn *knows, void *arg) {
    e->knows = knows;
    e->knows_arg = arg;
}

static bool knows(const struct vg_eng *e, const struct etenant *viewer, uint64_t tenant) {
    return !e->knows || e->knows(e->knows_arg, viewer ? viewer->id : 0, tenant);
}

const char *vg_facts_name(const struct vg_eng *e, const struct etenant *viewer,
                          const struct etenant *tenant) {
    return knows(e, viewer, tenant->id) ? tenant->name : "another team";
}

/* What a sentence says of one holder, or of all that are not named. */
struct spoken {
    const char *name;
    uint64_t gpu;
    uint32_t tasks, holders;
};

static size_t spoken_of(const struct vg_eng *e, const struct etenant *viewer,
                        const struct vg_eng_why *w, struct spoken ret[static VG_ENG_HOLDERS_MAX]) {
    struct spoken *hidden = NULL;
    size_t n = 0;
    for (size_t i = 0; i < w->n_holders; i++) {
        const struct etenant *t = vg_map_get_u64(&e->tenants, w->holder[i].tenant);
        bool known = knows(e, viewer, w->holder[i].tenant);
        struct spoken *s = !known && hidden ? hidden : &ret[n++];
        if (s != hidden)
            *s = (struct spoken){.name = known ? t ? t->name : "?" : "another team"};
        if (!known)
            hidden = s;
        s->gpu += w->holder[i].gpu_milli;
        s->tasks += w->holder[i].tasks;
        if (++s->holders > 1)
            s->name = "other teams";
    }
    return n;
}

void vg_facts_say_holders(const struct vg_eng *e, const struct etenant *viewer,
                          const struct vg_eng_why *w, char *out, size_t n) {
    struct spoken of[VG_ENG_HOLDERS_MAX];
    size_t len = 0, all = spoken_of(e, viewer, w, of);
    out[0] = 0;
    for (size_t i = 0; i < all && len < n; i++) {
        uint64_t gpu = of[i].gpu;
        bool last = i + 1 == all && !w->more_holders;
        char much[48], a[32];
        if (gpu)
            snprintf(much, sizeof much, "%s%s%s", say_milli(gpu, a, sizeof a), i == 0 ? " GPU" : "",
                     i == 0 && gpu != 1000 ? "s" : "");
        else
            snprintf(much, sizeof much, "%u task%s", of[i].tasks, plural(of[i].tasks));
        len += (size_t)snprintf(out + len, n - len, "%s%.64s (%s)",
                                i == 0 ? ""
                                : last ? " and "
                                       : ", ",
                                of[i].name, much);
    }
    if (w->more_holders && len < n)
        snprintf(out + len, n - len, " and %u other%s", w->more_holders, plural(w->more_holders));
}

/* ------------------------------------------------------------------ what is short */

struct most { /* on one node, each by itself */
    uint32_t gpus, share_milli;
    uint64_t share_mem;                 /* left on a card that has enough thousandths */
    uint32_t other_class, unknown_size; /* cards that are divided in another way, or cannot be, */
    uint32_t takes;                     /*   or have room */
    int64_t cpu, mem;
    uint64_t members;
};

static void most_shares(const struct fit *f, const struct enode *n, struct most *m) {
    for (uint32_t i = 0; i < n->n_gpus; i++) {
        const struct egpu *g = &n->gpu[i];
        if (g->bad)
            continue;
        m->unknown_size += !g->mem && f->gpu_class;
        m->other_class += g->tasks && g->gpu_class != f->gpu_class && g->free_milli > 0;
        if (!vg_card_takes_class(g, f->gpu_class))
            continue;
        m->takes += vg_card_takes_share(f, g);
        m->share_milli = VG_MAX(m->share_milli, (uint32_t)VG_MAX(g->free_milli, 0));
        if (g->free_milli >= (int32_t)f->res.gpu_milli)
            m->share_mem = VG_MAX(m->share_mem, (uint64_t)VG_MAX(g->free_mem, (int64_t)0));
    }
}

static void most_on(const struct vg_eng *e, const struct fit *f, const struct enode *n,
                    uint32_t members, struct most *m) {
    struct enode copy;
    struct egpu gpu[VG_NODE_GPUS_MAX];
    m->gpus = VG_MAX(m->gpus, n->whole_free);
    m->cpu = VG_MAX(m->cpu, n->cpu_free);
    m->mem = VG_MAX(m->mem, n->mem_free);
    most_shares(f, n, m);
    vg_node_imagine(n, &copy, gpu);
    for (bool ok = true; m->members < members; m->members++) {
        uint64_t gpus = vg_fit_gpus(e, f, &copy, &ok);
        if (!ok)
            return;
        vg_node_imagine_with(&copy, f, gpus);
    }
}

/* Whether the card is what is short. */
static bool say_share(const struct vg_res *r, const struct most *m, const char *need, char *out,
                      size_t n) {
    char a[32], b[32], with[64] = "";
    if (r->gpu_mem_bytes)
        snprintf(with, sizeof with, " with %s", vg_format_size(r->gpu_mem_bytes, a, sizeof a));
    if (r->gpu_milli > m->share_milli && !m->share_milli && m->other_class)
        snprintf(out, n, "it needs %s%s, and what is free is on cards that another class holds",
                 need, with);
    else if (r->gpu_milli > m->share_milli && !m->share_milli && m->unknown_size)
        snprintf(out, n, "it needs %s%s, and how much memory the cards have is not known yet", need,
                 with);
    else if (r->gpu_milli > m->share_milli)
        snprintf(out, n, "it needs %s%s and at most %s of one is free", need, with,
                 say_milli(m->share_milli, b, sizeof b));
    else if (!m->takes)
        snprintf(out, n, "it needs %s%s and a card with that much free has at most %s left", need,
                 with[0] ? with : " with its part of the memory",
                 vg_format_size(m->share_mem, b, sizeof b));
    else
        return false;
    return true;
}

static void say_most(const struct vg_res *r, const struct most *m, char *out, size_t n) {
    char need[64], a[32];
    struct vg_res part = *r;
    vg_facts_say_need(r, need, sizeof need);
    if (r->gpus > m->gpus)
        snprintf(out, n, "it needs %s%s and %s%u %s free", need, r->gpus > 1 ? " on one node" : "",
                 m->gpus ? "at most " : "", m->gpus, m->gpus == 1 ? "is" : "are");
    else if (r->gpu_milli && say_share(r, m, need, out, n))
        return;
    else if ((int64_t)r->cpu_milli > m->cpu) {
        part.gpus = part.gpu_milli = 0;
        vg_facts_say_need(&part, need, sizeof need);
        snprintf(out, n, "it needs %s on one node and at most %s are free", need,
                 say_milli((uint64_t)VG_MAX(m->cpu, 0), a, sizeof a));
    } else if (r->mem_bytes && (m->mem < 0 || r->mem_bytes > (uint64_t)m->mem)) {
        char b[32];
        snprintf(out, n, "it needs %s of memory on one node and at most %s are free",
                 vg_format_size(r->mem_bytes, b, sizeof b),
                 vg_format_size((uint64_t)VG_MAX(m->mem, 0), a, sizeof a));
    } else {
        snprintf(out, n, "no single node has all that it needs free at once");
    }
}

void vg_facts_say_short(const struct vg_eng *e, const struct fit *f, uint32_t members, char *out,
                        size_t n) {
    struct most m = {0};
    char need[64];
    for (size_t i = 0; i < e->n_nodes; i++)
        if (e->node[i] && e->node[i]->usable && vg_fit_belongs(e, f, e->node[i]))
            most_on(e, f, e->node[i], members, &m);
    if (members > 1) {
        vg_facts_say_fit(f, need, sizeof need);
        snprintf(out, n, "its %u members need %s each and there is room for %" PRIu64 " now",
                 members, need, m.members);
    } else if (f->whole) {
        vg_facts_say_fit(f, need, sizeof need);
        snprintf(out, n, "it needs %s and none is empty and in order", need);
    } else {
        say_most(&f->res, &m, out, n);
    }
}

/* ------------------------------------------------------------------ what can never be */

static bool in_pools(const struct fit *f, const struct enode *n) {
    for (uint32_t i = 0; i < f->n_pools; i++)
        if (n->pools[f->pool[i] / 64] >> (f->pool[i] % 64) & 1)
            return true;
    return false;
}

/* Each amount by itself: the most that one node has when empty. False: none has its model and
 * labels.
 */
static bool largest(const struct vg_eng *e, const struct fit *f, struct vg_res *ret) {
    struct vg_res most = {0};
    bool any = false;
    for (size_t i = 0; i < e->n_nodes; i++) {
        const struct enode *n = e->node[i];
        if (!n || n->ghost || !in_pools(f, n) || !vg_fit_suits(f, n))
            continue;
        any = true;
        most.gpus = VG_MAX(most.gpus, n->n_gpus);
        most.cpu_milli = VG_MAX(most.cpu_milli, n->total.cpu_milli);
        most.mem_bytes = VG_MAX(most.mem_bytes, n->total.mem_bytes);
        for (uint32_t g = 0; g < n->n_gpus; g++)
            most.gpu_mem_bytes = VG_MAX(most.gpu_mem_bytes, n->gpu[g].mem);
    }
    *ret = most;
    return any;
}

/* Only what is short is named. */
static bool short_at_all(const struct vg_res *r, const struct vg_res *most, char *need, char *have,
                         size_t n) {
    struct vg_res part = {0};
    char a[32];
    if (r->gpus > most->gpus || (r->gpu_milli && !most->gpus)) {
        part.gpus = r->gpus;
        part.gpu_milli = r->gpu_milli;
        snprintf(have, n, "%u", most->gpus);
    } else if ((r->gpus || r->gpu_milli) && r->gpu_mem_bytes > most->gpu_mem_bytes) {
        snprintf(need, n, "a GPU with %s of memory", vg_format_size(r->gpu_mem_bytes, a, sizeof a));
        vg_format_size(most->gpu_mem_bytes, have, n);
        return true;
    } else if (r->cpu_milli > most->cpu_milli) {
        part.cpu_milli = r->cpu_milli;
        say_milli(most->cpu_milli, have, n);
    } else if (r->mem_bytes > most->mem_bytes) {
        part.mem_bytes = r->mem_bytes;
        vg_format_size(most->mem_bytes, have, n);
    } else {
        return false;
    }
    vg_facts_say_need(&part, need, n);
    return true;
}

void vg_facts_say_too_big(const struct vg_eng *e, const struct fit *f, char *out, size_t n) {
    struct vg_res most;
    char need[64], have[64], pool[100];
    snprintf(pool, sizeof pool, "'%.64s'%s", e->pool[f->pool[0]]->name,
             f->n_pools > 1 ? " or the others it names" : "");
    if (!largest(e, f, &most))
        snprintf(out, n, "no node of pool %s has the GPU model or the labels that it asks for",
                 pool);
    else if (short_at_all(&f->res, &most, need, have, sizeof need))
        snprintf(out, n, "no node of pool %s has %s (the largest has %s)", pool, need, have);
    else
        snprintf(out, n, "no node of pool %s has all that it asks for together", pool);
}

/* ------------------------------------------------------------------ limits */

static int by_end(const void *a, const void *b) {
    const struct etask *x = *(struct etask *const *)a, *y = *(struct etask *const *)b;
    return x->end_usec < y->end_usec ? -1 : x->end_usec > y->end_usec;
}

uint64_t vg_facts_below_limit(const struct vg_eng *e, const struct etenant *full,
                              const struct fit *f, uint32_t members) {
    const struct profile *p = e->profile;
    struct etenant copy = *full;
    size_t n = 0;
    vg_auto_free const struct etask **own = vg_alloc(ENDS_MAX * sizeof(*own));
    for (size_t i = 0; own && i < p->n_heap && n < ENDS_MAX; i++)
        for (const struct etenant *t = p->heap[i].task->tenant; t; t = t->parent)
            if (t == full)
                own[n++] = p->heap[i].task;
    if (own)
        qsort(own, n, sizeof *own, by_end);
    for (size_t i = 0; i < n; i++) {
        struct vg_eng_amount a = vg_fit_amount(own[i]->fit, 1);
        copy.held.gpu_milli -= a.gpu_milli;
        copy.held.cpu_milli -= a.cpu_milli;
        copy.held.mem_bytes -= a.mem_bytes;
        if (!vg_tenant_blocks(e, &copy, f, members))
            return VG_MAX(own[i]->end_usec, e->now);
    }
    return VG_ENG_NEVER;
}
