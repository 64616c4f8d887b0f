/* Why a task waits, in one sentence: what it waits for, who holds it, when it is expected to start.
   Pure. */
#include "base/cleanup.h"
#include "base/mem.h"
#include "base/util.h"
#include "sched/eta.h"
#include "sched/facts.h"
#include "sched/lanes.h"

#include <inttypes.h>
#include <stdio.h>

#define DEEP 1000                 /* tasks that wait: then an estimate costs, */
#define DEEP_STALE (2 * VG_USEC)  /*   and may be as old as this */
#define BRIEF_STALE (5 * VG_USEC) /* a short line may be as old as this */

/* ------------------------------------------------------------------ words */

static void say_pools(const struct vg_eng *e, const struct fit *f, char *out, size_t n) {
    size_t len = 0;
    out[0] = 0;
    for (uint32_t i = 0; i < f->n_pools && len < n; i++)
        len += (size_t)snprintf(out + len, n - len, "%s%.64s",
                                i == 0                ? ""
                                : i + 1 == f->n_pools ? " or "
                                                      : ", ",
                                e->pool[f->pool[i]]->name);
}

static void say_held(const struct vg_eng *e, struct vg_eng_why *w, const struct etask *t, char *out,
                     size_t n) {
    char who[256];
    vg_facts_holders(e, t->fit, w);
    vg_facts_say_holders(e, t->tenant, w, who, sizeof who);
    out[0] = 0;
    if (who[0])
        snprintf(out, n, "; held by %s", who);
}

/* Adds when it is expected to start. */
static void add_when(const struct vg_eng *e, struct vg_eng_why *w) {
    char about[32];
    size_t len = 0;
    while (w->text[len])
        len++;
    if (w->start_usec == VG_ENG_NEVER)
        return;
    vg_facts_about(w->start_usec - VG_MIN(e->now, w->start_usec), about, sizeof about);
    snprintf(w->text + len, sizeof w->text - len, "; it should start in %s%s",
             about[0] == 'l' ? "" : "about ", about);
}

/* ------------------------------------------------------------------ a place */

/* The member that stands for its gang. */
static const struct etask *first_of(const struct etask *t) {
    return t->gang && t->gang->waits ? vg_list_entry(t->gang->members.next, struct etask, on_gang)
                                     : t;
}

static uint64_t until(const struct vg_eng *e, const struct etask *t) {
    uint64_t run = vg_run_class_max(vg_run_class(t->expect_usec));
    return run > VG_ENG_NEVER - e->now ? VG_ENG_NEVER : e->now + run;
}

/* No earlier than the first opening there will be, whoever gets it; and just then if nobody is
   before it. */
static void bound_by_openings(const struct vg_eng *e, const struct etask *t, struct vg_eng_why *w) {
    const struct shape *s = t->shape;
    struct ask a = {.fit = s->fit,
                    .members = s->members,
                    .run_usec = t->expect_usec,
                    .who = vg_shape_head(e, s) ? s : NULL,
                    .before = VG_ENG_NEVER};
    size_t looks;
    vg_auto_free struct opening *o = vg_alloc(s->members * sizeof *o);
    if (!o || !vg_search(e, &a, o, &looks))
        return;
    uint64_t at = o[s->members - 1].at;
    if (w->start_usec != VG_ENG_NEVER && (!w->ahead || at > w->start_usec)) {
        w->start_usec = at;
        w->node = o[0].node->id;
        snprintf(w->basis, sizeof w->basis, "the expected ends of the tasks on %.64s",
                 o[0].node->name);
    }
}

static void say_estimate(const struct vg_eng *e, const struct etask *t, const struct eta *a,
                         struct vg_eng_why *w) {
    const struct reservation *r = t->shape->reservation;
    w->ahead = a->ahead;
    w->start_usec = a->start_usec;
    if (r && !r->broken && vg_shape_head(e, t->shape) == t && !vg_list_empty(&r->holds)) {
        const struct hold *h = vg_list_entry(r->holds.next, struct hold, link);
        w->start_usec = VG_MAX(r->from, e->now);
        w->node = h->node->id;
        snprintf(w->basis, sizeof w->basis,
                 "a place promised on %.64s, by the expected ends of the tasks there",
                 h->node->name);
        return;
    }
    if (a->by_pace)
        snprintf(w->basis, sizeof w->basis,
                 "the pace at which those before it are expected to start");
    else if (a->ahead)
        snprintf(w->basis, sizeof w->basis,
                 "the expected run times of what runs and of the %u before it", a->ahead);
    else
        snprintf(w->basis, sizeof w->basis, "the expected run times of what runs");
    if (!a->by_pace)
        bound_by_openings(e, t, w);
}

/* ------------------------------------------------------------------ one sentence for each reason
 */

static void no_nodes(const struct vg_eng *e, const struct etask *t, struct vg_eng_why *w) {
    uint32_t nodes = 0;
    char pools[256];
    say_pools(e, t->fit, pools, sizeof pools);
    for (uint32_t i = 0; i < t->fit->n_pools; i++)
        nodes += e->pool[t->fit->pool[i]]->nodes;
    if (!nodes)
        snprintf(w->text, sizeof w->text, "pool %s has no nodes yet; 'virga node invite' adds one",
                 pools);
    else
        snprintf(w->text, sizeof w->text,
                 "no node of pool %s takes tasks now: %u %s draining, lost or away", pools, nodes,
                 nodes == 1 ? "is" : "are");
}

static void too_big(const struct vg_eng *e, const struct etask *t, struct vg_eng_why *w) {
    char pools[256], need[64];
    say_pools(e, t->fit, pools, sizeof pools);
    vg_facts_say_fit(t->fit, need, sizeof need);
    snprintf(w->text, sizeof w->text,
             "the nodes of pool %s that could hold its %s take no tasks now", pools, need);
}

static void at_limit(const struct vg_eng *e, const struct etask *t, uint32_t members,
                     const struct etenant *full, struct vg_eng_why *w) {
    struct vg_eng_amount a = vg_fit_amount(t->fit, members);
    const struct vg_eng_amount *h = &full->held, *l = &full->limit;
    char need[64], mem[2][32];
    vg_facts_say_fit(t->fit, need, sizeof need);
    if (a.gpu_milli && l->gpu_milli < UINT64_MAX && h->gpu_milli + a.gpu_milli > l->gpu_milli)
        snprintf(w->text, sizeof w->text, "%.64s is at its limit: it holds %g of %g GPUs",
                 full->name, (double)h->gpu_milli / 1000, (double)l->gpu_milli / 1000);
    else if (a.cpu_milli && l->cpu_milli < UINT64_MAX && h->cpu_milli + a.cpu_milli > l->cpu_milli)
        snprintf(w->text, sizeof w->text, "%.64s is at its limit: it holds %g of %g CPUs",
                 full->name, (double)h->cpu_milli / 1000, (double)l->cpu_milli / 1000);
    else if (a.mem_bytes && l->mem_bytes < UINT64_MAX && h->mem_bytes + a.mem_bytes > l->mem_bytes)
        snprintf(w->text, sizeof w->text, "%.64s is at its limit: it holds %s of %s of memory",
                 full->name, vg_format_size(h->mem_bytes, mem[0], sizeof mem[0]),
                 vg_format_size(l->mem_bytes, mem[1], sizeof mem[1]));
    else
        snprintf(w->text, sizeof w->text,
                 "%.64s may have nothing beyond its quota, and %s more would be", full->name, need);
    w->start_usec = vg_facts_below_limit(e, full, t->fit, members);
    snprintf(w->basis, sizeof w->basis, "the expected ends of what %.64s runs", full->name);
}

/* Who is to have the place that it would fit into: the first promise in its way. */
static const struct hold *in_its_way(const struct vg_eng *e, const struct etask *t) {
    const struct hold *first = NULL;
    vg_list_for_each (i, &e->profile->reservations) {
        const struct reservation *r = vg_list_entry(i, struct reservation, link);
        vg_list_for_each (k, &r->holds) {
            const struct hold *h = vg_list_entry(k, struct hold, link);
            if (r->shape == t->shape || !vg_fit_now(t->fit, h->node) ||
                !vg_fit_belongs(e, t->fit, h->node) || !vg_hold_blocks(e, h, t->shape))
                continue;
            if (!first || r->from < first->of->from)
                first = h;
        }
    }
    return first;
}

static void kept(const struct vg_eng *e, const struct etask *t, struct vg_eng_why *w) {
    const struct hold *h = in_its_way(e, t);
    const struct etask *other = h ? vg_shape_head(e, h->of->shape) : NULL;
    char need[64], about[32];
    if (!other) {
        snprintf(w->text, sizeof w->text,
                 "it would fit, but the place is kept for a task that is before it");
        return;
    }
    vg_facts_say_fit(other->fit, need, sizeof need);
    vg_facts_about(VG_MAX(h->of->from, e->now) - e->now, about, sizeof about);
    snprintf(w->text, sizeof w->text,
             "it would fit, but would delay a task of %.64s that is before it and is to have %s "
             "of %.64s in %s",
             vg_facts_name(e, t->tenant, other->tenant), need, h->node->name, about);
}

static void window(const struct vg_eng *e, const struct etask *t, struct vg_eng_why *w) {
    const struct vg_eng_window *x = NULL;
    for (size_t i = 0; i < e->n_nodes && !x; i++)
        if (e->node[i] && e->node[i]->usable && vg_fit_belongs(e, t->fit, e->node[i]))
            x = vg_window_next(e, e->node[i], until(e, t), t->shape->grant);
    const struct etenant *who = x && x->tenant ? vg_map_get_u64(&e->tenants, x->tenant) : NULL;
    bool known = who && vg_facts_name(e, t->tenant, who) == who->name;
    char pools[256], in[32], begins[64] = "has begun";
    say_pools(e, t->fit, pools, sizeof pools);
    if (x && x->from_usec > e->now)
        snprintf(begins, sizeof begins, "begins in %s",
                 vg_facts_about(x->from_usec - e->now, in, sizeof in));
    if (!x)
        snprintf(w->text, sizeof w->text, "it waits for the end of a maintenance or reservation");
    else if (!who)
        snprintf(w->text, sizeof w->text,
                 "maintenance of pool %s%s%.100s %s, and it might still run then", pools,
                 x->why[0] ? ": " : "", x->why, begins);
    else
        snprintf(w->text, sizeof w->text,
                 "what is free in pool %s is kept for %.64s%s%.100s, whose reservation %s, and it "
                 "might still run then",
                 pools, vg_facts_name(e, t->tenant, who), x->why[0] && known ? ": " : "",
                 known ? x->why : "", begins);
}

static void pinned(const struct vg_eng *e, const struct etask *t, struct vg_eng_why *w) {
    struct enode *n = t->node;
    struct opening o;
    struct ask a = {
        .fit = t->fit, .members = 1, .run_usec = t->expect_usec, .before = VG_ENG_NEVER};
    char need[64];
    vg_list_for_each (i, &n->pinned) {
        if (vg_list_entry(i, struct etask, link) == t)
            break;
        w->ahead++;
    }
    vg_facts_say_fit(t->fit, need, sizeof need);
    w->node = n->id;
    if (n->ghost)
        snprintf(w->text, sizeof w->text, "the node where its session is has gone away");
    else if (!n->usable)
        snprintf(w->text, sizeof w->text, "node %.64s, where its session is, takes no tasks now",
                 n->name);
    else if (w->ahead)
        snprintf(w->text, sizeof w->text, "%u ahead of you on node %.64s, where its session is",
                 w->ahead, n->name);
    else
        snprintf(w->text, sizeof w->text, "it waits for %s on node %.64s, where its session is",
                 need, n->name);
    if (vg_search_node(e, n, &a, &o, 1)) {
        w->start_usec = o.at;
        snprintf(w->basis, sizeof w->basis, "the expected ends of the tasks on %.64s", n->name);
    }
}

static bool freeing(const struct vg_eng *e, const struct etask *t, struct vg_eng_why *w) {
    vg_list_for_each (i, &e->profile->kept) {
        const struct reservation *r = vg_list_entry(i, struct reservation, link);
        if (r->task != t || vg_list_empty(&r->holds))
            continue;
        const struct enode *n = vg_list_entry(r->holds.next, struct hold, link)->node;
        uint32_t leave = 0;
        vg_list_for_each (k, &n->tasks)
            leave += vg_list_entry(k, struct etask, on_node)->leaving;
        snprintf(w->text, sizeof w->text, "%u task%s being stopped on %.64s to make room for it",
                 leave, leave == 1 ? " is" : "s are", n->name);
        w->code = VG_ENG_FREEING;
        w->node = n->id;
        w->start_usec = e->now;
        snprintf(w->basis, sizeof w->basis, "it starts when they have stopped");
        return true;
    }
    return false;
}

static void busy(const struct vg_eng *e, const struct etask *t, struct vg_eng_why *w) {
    char what[200], held[300], pools[256];
    say_pools(e, t->fit, pools, sizeof pools);
    vg_facts_say_short(e, t->fit, t->shape->members, what, sizeof what);
    say_held(e, w, t, held, sizeof held);
    snprintf(w->text, sizeof w->text, "next on %.100s: %s%.200s", pools, what, held);
}

static void ahead(const struct vg_eng *e, const struct etask *t, struct vg_eng_why *w) {
    char held[300], pools[256];
    say_pools(e, t->fit, pools, sizeof pools);
    say_held(e, w, t, held, sizeof held);
    snprintf(w->text, sizeof w->text, "%u ahead of you on %.100s%s", w->ahead, pools, held);
}

/* ------------------------------------------------------------------ which it is */

/* Of a task in (or that would be in) a lane, behind others or not. */
static void explain(const struct vg_eng *e, const struct etask *t, enum vg_eng_code code,
                    const struct eta *a, struct vg_eng_why *w) {
    w->code = code;
    if (code == VG_ENG_NO_NODES) {
        no_nodes(e, t, w);
        return;
    }
    if (code == VG_ENG_TOO_BIG) {
        too_big(e, t, w);
        return;
    }
    if (code == VG_ENG_AT_LIMIT) { /* by what the node has that it would get */
        snprintf(w->text, sizeof w->text, "one whole node more is beyond the limit of %.64s",
                 t->tenant->name);
        return;
    }
    say_estimate(e, t, a, w);
    if (code == VG_ENG_KEPT)
        kept(e, t, w);
    else if (code == VG_ENG_WINDOW)
        window(e, t, w);
    else if (w->ahead)
        ahead(e, t, w);
    else
        busy(e, t, w);
    if (code != VG_ENG_KEPT && code != VG_ENG_WINDOW)
        w->code = w->ahead ? VG_ENG_AHEAD : VG_ENG_BUSY;
    add_when(e, w);
}

int vg_eng_why(const struct vg_eng *e, uint64_t task, struct vg_eng_why *ret) {
    const struct etask *t = vg_map_get_u64(&e->tasks, task);
    struct eta a = {0};
    if (!t || t->place == TASK_RUNS)
        return -ENOENT;
    t = first_of(t);
    *ret = (struct vg_eng_why){.start_usec = VG_ENG_NEVER, .run_usec = t->expect_usec};
    uint32_t members = t->shape ? t->shape->members : 1;
    const struct etenant *full = vg_tenant_at_limit(e, t->tenant, t->fit, members);
    if (freeing(e, t, ret)) {
        return 0;
    } else if (full) {
        ret->code = VG_ENG_AT_LIMIT;
        at_limit(e, t, members, full, ret);
        add_when(e, ret);
        return 0;
    } else if (t->place == TASK_PINNED) {
        ret->code = VG_ENG_PINNED;
        pinned(e, t, ret);
        add_when(e, ret);
        return 0;
    }
    bool head = vg_shape_head(e, t->shape) == t, asleep = t->shape->state == SHAPE_ASLEEP;
    enum vg_eng_code code = asleep ? t->shape->code : VG_ENG_AHEAD;
    if ((code == VG_ENG_KEPT || code == VG_ENG_WINDOW) && !head)
        code = VG_ENG_AHEAD;
    if (code != VG_ENG_NO_NODES && code != VG_ENG_TOO_BIG &&
        vg_eta(e, t, e->n_waiting > DEEP ? DEEP_STALE : 0, &a) < 0)
        return -ENOMEM;
    explain(e, t, code, &a, ret);
    return 0;
}

/* ------------------------------------------------------------------ before it is there */

/* The engine looks for a place for it, and takes none. */
static bool has_place(const struct vg_eng *e, const struct etask *t, struct vg_eng_why *w,
                      enum vg_eng_code *code) {
    struct vg_eng *scratch = (struct vg_eng *)e; /* looking leaves nothing but a warmer index */
    struct shape *s = t->shape;
    vg_auto_free struct spot *at = vg_alloc(s->members * sizeof *at);
    *code = VG_ENG_BUSY;
    if (!at)
        return false;
    bool ok = s->members > 1 ? vg_fit_find_gang(scratch, s->fit, NULL, s->members, until(e, t),
                                                t->env, at, code)
                             : vg_fit_find(scratch, s->fit, NULL, until(e, t), t->env, at, code);
    if (ok)
        w->node = at[0].node->id;
    return ok;
}

static void forecast_pinned(const struct vg_eng *e, const struct etask *t, uint64_t node,
                            struct vg_eng_why *w) {
    struct enode *n = vg_map_get_u64(&e->nodes, node);
    struct etask copy = *t;
    w->code = VG_ENG_PINNED;
    if (!n) {
        snprintf(w->text, sizeof w->text, "the node where its session is has gone away");
        return;
    }
    copy.node = n;
    pinned(e, &copy, w);
    add_when(e, w);
}

static void forecast(const struct vg_eng *e, struct etask *t, struct vg_eng_why *w) {
    const struct etenant *full = vg_tenant_at_limit(e, t->tenant, t->fit, t->shape->members);
    enum vg_eng_code code;
    struct eta a = {0};
    char name[64] = "";
    if (full) {
        w->code = VG_ENG_AT_LIMIT;
        at_limit(e, t, t->shape->members, full, w);
        add_when(e, w);
    } else if (has_place(e, t, w, &code)) {
        const struct enode *n = vg_map_get_u64(&e->nodes, w->node);
        snprintf(name, sizeof name, "%s", n ? n->name : "?");
        w->code = VG_ENG_FREE;
        w->start_usec = e->now;
        snprintf(w->text, sizeof w->text, "it would start now, on %s%s", name,
                 t->shape->members > 1 ? " and others" : "");
        snprintf(w->basis, sizeof w->basis, "there is room now");
    } else {
        if (code != VG_ENG_NO_NODES && code != VG_ENG_TOO_BIG && vg_eta_extra(e, t, &a) < 0)
            a = (struct eta){.start_usec = VG_ENG_NEVER};
        explain(e, t, code, &a, w);
    }
}

int vg_eng_forecast(const struct vg_eng *e, const struct vg_eng_req *r, size_t members,
                    struct vg_eng_why *ret) {
    struct vg_err err = VG_ERR_INIT;
    int rc = vg_eng_check_fit(e, r, members, &err);
    if (rc < 0)
        return rc;
    struct vg_eng *scratch = (struct vg_eng *)e; /* the fit is put back */
    struct fit *f = vg_fit_get(scratch, r);
    if (!f)
        return -ENOMEM;
    struct etask t = {.id = r->task ? r->task : UINT64_MAX,
                      .order = r->order ? r->order : UINT64_MAX,
                      .kin = r->kin,
                      .env = r->env,
                      .limit_usec = r->limit_usec,
                      .known_usec = r->known_usec,
                      .level = vg_task_level(e, r),
                      .tenant = vg_map_get_u64(&e->tenants, r->tenant),
                      .fit = f};
    t.expect_usec = vg_learn_expect(e, &t);
    struct shape s = {.fit = f,
                      .members = (uint32_t)VG_MAX(members, (size_t)1),
                      .run_class = vg_run_class(t.expect_usec),
                      .grant = vg_window_grant(e, t.tenant),
                      .state = SHAPE_EMPTY,
                      .head_epoch = UINT64_MAX};
    vg_list_init(&s.columns); /* nobody waits in it */
    t.shape = &s;
    *ret = (struct vg_eng_why){.start_usec = VG_ENG_NEVER, .run_usec = t.expect_usec};
    if (r->node)
        forecast_pinned(e, &t, r->node, ret);
    else
        forecast(e, &t, ret);
    vg_fit_put(scratch, f);
    return 0;
}

/* ------------------------------------------------------------------ one line */

int vg_eng_brief(const struct vg_eng *e, uint64_t task, char *out, size_t n) {
    const struct etask *t = vg_map_get_u64(&e->tasks, task);
    struct eta a;
    char pools[256], about[32];
    if (!t || t->place == TASK_RUNS)
        return -ENOENT;
    t = first_of(t);
    const struct etenant *full =
        vg_tenant_at_limit(e, t->tenant, t->fit, t->shape ? t->shape->members : 1);
    say_pools(e, t->fit, pools, sizeof pools);
    enum vg_eng_code code =
        t->shape && t->shape->state == SHAPE_ASLEEP ? t->shape->code : VG_ENG_AHEAD;
    if (full || t->place == TASK_PINNED || t->place == TASK_CLAIMS || code == VG_ENG_NO_NODES ||
        code == VG_ENG_TOO_BIG) {
        struct vg_eng_why w;
        int r = vg_eng_why(e, task, &w);
        if (r == 0)
            snprintf(out, n, "%s", w.text);
        return r;
    }
    if (vg_eta(e, t, BRIEF_STALE, &a) < 0)
        return -ENOMEM;
    const struct reservation *p = t->shape->reservation;
    if (p && !p->broken && vg_shape_head(e, t->shape) == t)
        a.start_usec = VG_MAX(p->from, e->now);
    int len = a.ahead ? snprintf(out, n, "%u ahead of you on %.100s", a.ahead, pools)
                      : snprintf(out, n, "you are next on %.100s", pools);
    if (a.start_usec != VG_ENG_NEVER && len > 0 && (size_t)len < n) {
        vg_facts_about(a.start_usec - VG_MIN(a.start_usec, e->now), about, sizeof about);
        snprintf(out + len, n - (size_t)len, ", %s%s", about[0] == 'l' ? "" : "about ", about);
    }
    return 0;
}
