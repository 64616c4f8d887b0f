/* Events and decisions. An event marks the pools and nodes it touches; vg_sched_next() looks at
   nothing else. Pure. */
#include "sched/sched.h"

#include "base/mem.h"
#include "sched/internal.h"

struct vg_sched *vg_sched_new(void) {
    struct vg_sched *s = vg_alloc(sizeof *s);
    if (!s)
        return NULL;
    vg_list_init(&s->dirty_pools);
    vg_list_init(&s->dirty_nodes);
    vg_list_init(&s->astray);
    return s;
}

void vg_sched_free(struct vg_sched *s) {
    if (!s)
        return;
    vg_map_for_each (i, &s->tasks) {
        free(i->value);
    }
    vg_map_for_each (i, &s->nodes) {
        struct snode *n = i->value;
        free(n->member);
        free(n->name);
        free(n);
    }
    for (struct spool *p = s->pools, *next; p; p = next) {
        next = p->next;
        free(p->member);
        free(p);
    }
    vg_map_done(&s->tasks);
    vg_map_done(&s->nodes);
    free(s);
}

struct spool *vg_sched_find_pool(const struct vg_sched *s, const char *name) {
    for (struct spool *p = s->pools; p; p = p->next)
        if (strcmp(p->conf->name, name) == 0)
            return p;
    return NULL;
}

int vg_sched_set_pool(struct vg_sched *s, const struct vg_pool_conf *conf) {
    struct spool *p = vg_sched_find_pool(s, conf->name), **end = &s->pools;
    if (p) {
        p->conf = conf;
        return 0;
    }
    if (!(p = vg_alloc(sizeof *p)))
        return -ENOMEM;
    p->conf = conf;
    p->queue.cmp = p->aside.cmp = vg_tree_cmp_tasks;
    vg_list_init(&p->dirty);
    while (*end)
        end = &(*end)->next;
    *end = p;
    return 0;
}

void vg_sched_dirty_pool(struct vg_sched *s, struct spool *p) {
    if (vg_list_empty(&p->dirty))
        vg_list_push_back(&s->dirty_pools, &p->dirty);
}

void vg_sched_dirty_node(struct vg_sched *s, struct snode *n) {
    if (vg_list_empty(&n->dirty))
        vg_list_push_back(&s->dirty_nodes, &n->dirty);
}

void vg_sched_enqueue(struct vg_sched *s, struct stask *t) {
    struct snode *n = t->pin ? vg_map_get_u64(&s->nodes, t->pin) : NULL;
    s->n_waiting++;
    t->pool->waiting++;
    t->generation = 0;
    if (!t->pin) {
        t->place = WAITS;
        tree_insert(&t->pool->queue, &t->item);
        if (tree_first(&t->pool->queue) == &t->item)
            vg_sched_dirty_pool(s, t->pool);
    } else if (n && vg_res_fits(&t->res, &n->total)) {
        t->place = PINNED;
        t->node = n;
        tree_insert(&n->pinned, &t->item);
        vg_sched_dirty_node(s, n);
    } else {
        t->place = ASTRAY;
        vg_list_push_back(&s->astray, &t->link);
    }
}

void vg_sched_dequeue(struct vg_sched *s, struct stask *t) {
    s->n_waiting--;
    t->pool->waiting--;
    switch (t->place) {
    case WAITS:
        if (tree_first(&t->pool->queue) == &t->item)
            vg_sched_dirty_pool(s, t->pool);
        tree_remove(&t->pool->queue, &t->item);
        break;
    case ASIDE:
        tree_remove(&t->pool->aside, &t->item);
        break;
    case PINNED:
        tree_remove(&t->node->pinned, &t->item);
        vg_sched_dirty_node(s, t->node);
        t->node = NULL;
        break;
    case ASTRAY:
        vg_list_remove(&t->link);
        break;
    case PLACED:
        break;
    }
}

void vg_sched_stray(struct vg_sched *s, struct stask *t) {
    vg_sched_dequeue(s, t);
    s->n_waiting++;
    t->pool->waiting++;
    t->place = ASTRAY;
    vg_list_push_back(&s->astray, &t->link);
}

static struct stask *new_task(struct vg_sched *s, const struct vg_sched_req *r, struct spool *p) {
    struct stask *t = vg_alloc(sizeof *t);
    if (!t)
        return NULL;
    *t = (struct stask){.id = r->task,
                        .order = r->order,
                        .pin = r->node,
                        .priority = r->priority,
                        .res = r->res,
                        .pool = p};
    t->item.rank_bits = tree_mix(r->task);
    vg_list_init(&t->link);
    if (vg_map_put_u64(&s->tasks, t->id, t) < 0) {
        free(t);
        return NULL;
    }
    return t;
}

int vg_sched_check_fit(const struct vg_sched *s, const struct vg_sched_req *r, struct vg_err *err) {
    const struct spool *p = vg_sched_find_pool(s, r->pool);
    char why[256];
    if (!p)
        return vg_err_set(err, VG_NOT_FOUND,
                          "there is no pool '%.64s'; 'virga pool list' shows them", r->pool);
    const struct snode *n = r->node ? vg_map_get_u64(&s->nodes, r->node) : NULL;
    if (n && !vg_res_fits(&r->res, &n->total))
        return vg_err_set(err, VG_NO_CAPACITY,
                          "node %s, where the session is, is too small for this; ask for less or "
                          "use another session",
                          n->name);
    if (n || r->node || p->n_members == 0 || vg_sched_could_hold(p, &r->res, false))
        return 0;
    vg_sched_say_too_big(p, &r->res, why, sizeof why);
    return vg_err_set(err, VG_NO_CAPACITY, "%s; ask for less or choose another pool", why);
}

int vg_sched_submit(struct vg_sched *s, const struct vg_sched_req *r, struct vg_err *err) {
    if (vg_map_get_u64(&s->tasks, r->task))
        return vg_err_set(err, VG_EXISTS, "the task is scheduled already");
    int e = vg_sched_check_fit(s, r, err);
    if (e < 0)
        return e;
    struct stask *t = new_task(s, r, vg_sched_find_pool(s, r->pool));
    if (!t)
        return vg_err_sys(err, -ENOMEM, "cannot queue the task");
    vg_sched_enqueue(s, t);
    return 0;
}

int vg_sched_adopt(struct vg_sched *s, const struct vg_sched_req *r, uint64_t node, uint64_t gpus) {
    struct snode *n = vg_map_get_u64(&s->nodes, node);
    struct spool *p = vg_sched_find_pool(s, r->pool);
    struct stask *t = vg_map_get_u64(&s->tasks, r->task);
    if (!n || !p)
        return -ENOENT;
    if (t && t->place == PLACED)
        return -EEXIST;
    if (t)
        vg_sched_dequeue(s, t);
    else if (!(t = new_task(s, r, p)))
        return -ENOMEM;
    t->res = r->res;
    vg_snode_take(s, n, t, gpus);
    return 0;
}

void vg_sched_release(struct vg_sched *s, uint64_t task) {
    struct stask *t = vg_map_del_u64(&s->tasks, task);
    if (!t)
        return;
    if (t->place == PLACED)
        vg_snode_give(s, t->node, t);
    else
        vg_sched_dequeue(s, t);
    free(t);
}

static int place(struct vg_sched *s, struct stask *t, struct snode *n, struct vg_sched_place *ret) {
    uint64_t gpus = vg_snode_pick_gpus(n, t->res.gpus);
    vg_sched_dequeue(s, t);
    vg_snode_take(s, n, t, gpus);
    *ret = (struct vg_sched_place){.task = t->id, .node = n->id, .gpus = gpus, .res = t->res};
    return 1;
}

/* The first task that waits for this node alone; while it does not fit, the node is kept for it. */
static int next_pinned(struct vg_sched *s, struct snode *n, struct vg_sched_place *ret) {
    struct stask *t = task_of(tree_first(&n->pinned));
    bool room = n->usable && n->n_tasks < n->max_tasks;
    if (t && room && vg_res_fits(&t->res, &n->free))
        return place(s, t, n, ret);
    bool held = t && n->usable;
    if (held != n->held) {
        n->held = held;
        vg_snode_update(s, n);
    }
    return 0;
}

/* Past tasks that fit no usable node even when it is empty, the first of the pool. */
static int next_in_pool(struct vg_sched *s, struct spool *p, struct vg_sched_place *ret) {
    struct stask *t;
    while ((t = task_of(tree_first(&p->queue)))) {
        struct snode *n = vg_snode_find_open(p, &t->res);
        if (n)
            return place(s, t, n, ret);
        if (!p->usable || t->generation == p->generation)
            return 0;
        t->generation = p->generation;
        if (vg_sched_could_hold(p, &t->res, true))
            return 0;
        tree_remove(&p->queue, &t->item);
        tree_insert(&p->aside, &t->item);
        t->place = ASIDE;
    }
    return 0;
}

int vg_sched_next(struct vg_sched *s, struct vg_sched_place *ret) {
    struct vg_list *i;
    while ((i = vg_list_first(&s->dirty_nodes))) {
        if (next_pinned(s, vg_list_entry(i, struct snode, dirty), ret))
            return 1;
        vg_list_remove(i);
    }
    while ((i = vg_list_first(&s->dirty_pools))) {
        if (next_in_pool(s, vg_list_entry(i, struct spool, dirty), ret))
            return 1;
        vg_list_remove(i);
    }
    return 0;
}

size_t vg_sched_queued(const struct vg_sched *s) {
    return s->n_waiting;
}
