/* Maintenance and reservations as the engine is told them: only the occurrence that is on or comes
   next, told again when it is over. */
#include "base/log.h"
#include "base/mem.h"
#include "base/util.h"
#include "control/control.h"
#include "control/nodes.h"
#include "control/policy.h"

#include <string.h>

struct list {
    struct vg_eng_window *item; /* owned */
    size_t n, cap;
};

static int add(struct list *l, struct vg_eng_window w) {
    struct vg_eng_window *item = vg_grow(l->item, &l->cap, l->n + 1, sizeof *item);
    if (!item)
        return -ENOMEM;
    l->item = item;
    w.id = l->n + 1;
    item[l->n++] = w;
    return 0;
}

static bool node_is_meant(const struct vg_window_conf *w, const struct vg_node *n) {
    for (size_t i = 0; i < w->node.n; i++)
        if (strcmp(w->node.item[i], n->name) == 0)
            return true;
    return w->label.n && vg_conf_labels_match(&w->label, n->labels.item, n->labels.n);
}

static int add_maintenance(struct vg_control *c, const struct vg_window_conf *w, uint64_t now,
                           struct list *l) {
    struct vg_eng_window e = {.why = w->name};
    int r = 0;
    if (!vg_conf_window_next(w, now, &e.from_usec, &e.until_usec))
        return 0;
    if (!w->node.n && !w->label.n)
        return add(l, e);
    vg_map_for_each (s, &c->nodes) {
        const struct vg_nodelink *a = s->value;
        e.node = a->node->id;
        if (r >= 0 && node_is_meant(w, a->node))
            r = add(l, e);
    }
    return r;
}

/* For whom; 0: nobody who is known yet. */
static uint64_t tenant_of(struct vg_control *c, const struct vg_reservation_conf *x) {
    if (x->queue)
        return vg_eng_queue_id(x->queue);
    if (x->team)
        return vg_policy_team(c, &c->policy, x->team);
    const struct vg_user *u = vg_tenants_user(&c->tenants, x->user);
    return u ? vg_policy_tenant(c, &c->policy, u->team->name, u->name) : 0;
}

static int add_reservation(struct vg_control *c, const struct vg_reservation_conf *x, uint64_t now,
                           struct list *l) {
    struct vg_eng_window e = {.from_usec = x->from.usec,
                              .until_usec = x->until.usec,
                              .pool = x->pool ? vg_eng_pool_id(x->pool) : 0,
                              .tenant = tenant_of(c, x),
                              .gpus = x->gpus,
                              .why = x->name};
    return e.until_usec <= now || !e.tenant ? 0 : add(l, e);
}

/* Equal lists have equal numbers, whatever the order of the nodes. Never 0. */
static uint64_t fingerprint(const struct list *l) {
    uint64_t sum = 1;
    for (size_t i = 0; i < l->n; i++) {
        const struct vg_eng_window *w = &l->item[i];
        uint64_t part[] = {w->from_usec, w->until_usec, w->node, w->pool, w->tenant, w->gpus};
        uint64_t h = 0xcbf29ce484222325ULL;
        for (size_t k = 0; k < VG_COUNT(part); k++)
            h = (h ^ part[k]) * 0x100000001b3ULL, h ^= h >> 29;
        sum += h;
    }
    return sum ? sum : 1;
}

static int tell(struct vg_policy *p, const struct list *l) {
    while (p->n_windows)
        vg_eng_remove_window(p->eng, p->window[--p->n_windows]);
    int r = 0;
    for (size_t i = 0; r >= 0 && i < l->n; i++) {
        uint64_t *ids = vg_grow(p->window, &p->windows_cap, p->n_windows + 1, sizeof *ids);
        if (!ids)
            return -ENOMEM;
        p->window = ids;
        r = vg_eng_set_window(p->eng, &l->item[i]);
        if (r >= 0)
            ids[p->n_windows++] = l->item[i].id;
    }
    return r;
}

void vg_policy_windows(struct vg_control *c) {
    struct list l = {0};
    struct vg_policy *p = &c->policy;
    uint64_t now = vg_wall_usec();
    int r = 0;
    if (!c->conf.n_windows && !c->conf.n_reservations && !p->n_windows)
        return;
    for (size_t i = 0; r >= 0 && i < c->conf.n_windows; i++)
        r = add_maintenance(c, &c->conf.window[i], now, &l);
    for (size_t i = 0; r >= 0 && i < c->conf.n_reservations; i++)
        r = add_reservation(c, &c->conf.reservation[i], now, &l);
    uint64_t seen = r < 0 ? 0 : fingerprint(&l);
    if (r >= 0 && seen != p->windows_seen) {
        vg_policy_now(c);
        r = tell(p, &l);
        p->windows_seen = r < 0 ? 0 : seen;
    }
    free(l.item);
    if (r < 0) /* the next tick tries again */
        vg_error("maintenance and reservations cannot be told to the scheduler: %s", strerror(-r));
}
