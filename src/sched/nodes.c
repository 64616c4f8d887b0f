/* Nodes: what is free on them, and their place in the trees of their pools. A node stands in a
   pool's `open` tree exactly while it takes tasks; the tree is ordered as tasks should find it.
   Pure. */
#include "base/mem.h"
#include "sched/internal.h"

int vg_tree_cmp_tasks(const struct tree_item *x, const struct tree_item *y) {
    const struct stask *a = task_of(x), *b = task_of(y);
    if (a->priority != b->priority)
        return a->priority > b->priority ? -1 : 1;
    if (a->order != b->order)
        return a->order < b->order ? -1 : 1;
    return a->id < b->id ? -1 : a->id > b->id;
}

/* Fewest free GPUs first, then fewest tasks. */
static int cmp_members(const struct tree_item *x, const struct tree_item *y) {
    const struct snode *a = member_of(x)->node, *b = member_of(y)->node;
    if (a->free.gpus != b->free.gpus)
        return a->free.gpus < b->free.gpus ? -1 : 1;
    if (a->n_tasks != b->n_tasks)
        return a->n_tasks < b->n_tasks ? -1 : 1;
    return a->id < b->id ? -1 : a->id > b->id;
}

static void raise_to(struct vg_res *most, const struct tree_item *child) {
    if (!child)
        return;
    const struct vg_res *c = &member_of(child)->most;
    most->cpu_milli = VG_MAX(most->cpu_milli, c->cpu_milli);
    most->mem_bytes = VG_MAX(most->mem_bytes, c->mem_bytes);
    most->gpus = VG_MAX(most->gpus, c->gpus);
}

static void pull_member(struct tree_item *x) {
    struct member *m = member_of(x);
    m->most = m->node->free;
    raise_to(&m->most, x->left);
    raise_to(&m->most, x->right);
}

static struct member *find(struct tree_item *x, const struct vg_res *res) {
    if (!x || !vg_res_fits(res, &member_of(x)->most))
        return NULL;
    struct member *m = find(x->left, res);
    if (m)
        return m;
    m = member_of(x);
    return vg_res_fits(res, &m->node->free) ? m : find(x->right, res);
}

struct snode *vg_snode_find_open(const struct spool *p, const struct vg_res *res) {
    struct member *m = find(p->open.root, res);
    return m ? m->node : NULL;
}

uint64_t vg_snode_pick_gpus(const struct snode *n, uint32_t count) {
    uint64_t left = n->gpus & ~n->gpus_used, set = 0;
    for (; count && left; count--) {
        set |= left & -left;
        left &= left - 1;
    }
    return set;
}

static void close_member(struct member *m) {
    if (m->open)
        tree_remove(&m->pool->open, &m->item);
    m->open = false;
}

static void compute_free(struct snode *n) {
    uint64_t cpu = n->total.cpu_milli, mem = n->total.mem_bytes;
    n->free = (struct vg_res){
        .cpu_milli = (uint32_t)(cpu > n->cpu_used ? cpu - n->cpu_used : 0),
        .mem_bytes = mem > n->mem_used ? mem - n->mem_used : 0,
        .gpus = (uint32_t)__builtin_popcountll(n->gpus & ~n->gpus_used),
    };
}

/* Closing comes before the change that the order depends on, so callers close, change, update. */
static void close_all(struct snode *n) {
    for (size_t i = 0; i < n->n_members; i++)
        close_member(&n->member[i]);
}

void vg_snode_update(struct vg_sched *s, struct snode *n) {
    close_all(n);
    compute_free(n);
    bool open = n->usable && !n->held && n->n_tasks < n->max_tasks;
    for (size_t i = 0; i < n->n_members; i++) {
        struct member *m = &n->member[i];
        if (open) {
            tree_insert(&m->pool->open, &m->item);
            m->open = true;
            vg_sched_dirty_pool(s, m->pool);
        }
    }
}

static void count(struct snode *n, const struct stask *t, int sign) {
    n->cpu_used += (uint64_t)sign * t->res.cpu_milli;
    n->mem_used += (uint64_t)sign * t->res.mem_bytes;
    n->n_tasks += (uint32_t)sign;
    t->pool->running += (uint32_t)sign;
}

void vg_snode_take(struct vg_sched *s, struct snode *n, struct stask *t, uint64_t gpus) {
    close_all(n);
    n->overlap |= (n->gpus_used & gpus) != 0;
    n->gpus_used |= gpus;
    count(n, t, 1);
    t->place = PLACED;
    t->node = n;
    t->gpus = gpus;
    vg_list_push_back(&n->tasks, &t->link);
    vg_snode_update(s, n);
}

void vg_snode_give(struct vg_sched *s, struct snode *n, struct stask *t) {
    close_all(n);
    vg_list_remove(&t->link);
    n->gpus_used &= ~t->gpus;
    count(n, t, -1);
    if (n->overlap) /* another adopted task may hold the same GPU */
        vg_list_for_each (i, &n->tasks)
            n->gpus_used |= vg_list_entry(i, struct stask, link)->gpus;
    t->node = NULL;
    t->gpus = 0;
    vg_snode_update(s, n);
    vg_sched_dirty_node(s, n);
}

/* --- coming and going --- */

static int join_pool(struct member *m, struct snode *n, struct spool *p) {
    struct member **all = vg_grow(p->member, &p->members_cap, p->n_members + 1, sizeof *all);
    if (!all)
        return -ENOMEM;
    p->member = all;
    *m = (struct member){.node = n, .pool = p, .at = p->n_members};
    m->item.rank_bits = tree_mix(n->id);
    p->open.cmp = cmp_members;
    p->open.pull = pull_member;
    return 0;
}

static void leave_pools(struct snode *n) {
    close_all(n);
    for (size_t i = 0; i < n->n_members; i++) {
        struct member *m = &n->member[i];
        struct spool *p = m->pool;
        p->usable -= n->usable;
        p->generation++;
        p->member[m->at] = p->member[--p->n_members];
        p->member[m->at]->at = m->at;
    }
    free(n->member);
    n->member = NULL;
    n->n_members = 0;
}

static bool belongs(const struct spool *p, const struct vg_sched_node *in) {
    return vg_conf_labels_match(&p->conf->nodes, in->labels, in->n_labels);
}

/* The memberships that the node will have; the pools' arrays have room for them. */
static int plan(struct vg_sched *s, struct snode *n, const struct vg_sched_node *in,
                struct member **ret, size_t *ret_n) {
    size_t k = 0;
    for (struct spool *p = s->pools; p; p = p->next)
        k += belongs(p, in);
    struct member *m = vg_alloc(k * sizeof *m);
    if (!m)
        return -ENOMEM;
    k = 0;
    for (struct spool *p = s->pools; p; p = p->next)
        if (belongs(p, in) && join_pool(&m[k++], n, p) < 0) {
            free(m);
            return -ENOMEM;
        }
    *ret = m;
    *ret_n = k;
    return 0;
}

static void enter_pools(struct vg_sched *s, struct snode *n, struct member *m, size_t k) {
    n->member = m;
    n->n_members = k;
    for (size_t i = 0; i < k; i++) {
        struct spool *p = m[i].pool;
        m[i].at = p->n_members;
        p->member[p->n_members++] = &m[i];
        p->usable += n->usable;
        p->generation++;
        vg_sched_dirty_pool(s, p);
        for (struct tree_item *t; (t = tree_first(&p->aside));) { /* it may hold them */
            vg_sched_dequeue(s, task_of(t));
            vg_sched_enqueue(s, task_of(t));
        }
    }
}

static struct snode *new_node(struct vg_sched *s, uint64_t id) {
    struct snode *n = vg_alloc(sizeof *n);
    if (!n)
        return NULL;
    n->id = id;
    n->pinned.cmp = vg_tree_cmp_tasks;
    vg_list_init(&n->tasks);
    vg_list_init(&n->dirty);
    if (vg_map_put_u64(&s->nodes, id, n) < 0) {
        free(n);
        return NULL;
    }
    return n;
}

static void free_node(struct vg_sched *s, struct snode *n) {
    vg_map_del_u64(&s->nodes, n->id);
    vg_list_remove(&n->dirty);
    free(n->name);
    free(n);
}

/* Tasks that wait for this node alone are sorted in anew: it may be large enough now, or no more.
 */
static void resort(struct vg_sched *s, struct snode *n) {
    for (struct tree_item *i; (i = tree_first(&n->pinned));)
        vg_sched_stray(s, task_of(i));

    vg_list_for_each_safe (i, &s->astray) {
        struct stask *t = vg_list_entry(i, struct stask, link);
        if (t->pin == n->id && vg_res_fits(&t->res, &n->total)) {
            vg_sched_dequeue(s, t);
            vg_sched_enqueue(s, t);
        }
    }
}

int vg_sched_set_node(struct vg_sched *s, const struct vg_sched_node *in) {
    struct snode *n = vg_map_get_u64(&s->nodes, in->id);
    bool fresh = !n;
    struct member *m = NULL;
    size_t k = 0;
    if (fresh && !(n = new_node(s, in->id)))
        return -ENOMEM;
    char *name = vg_strdup(in->name ? in->name : "");
    if (!name || plan(s, n, in, &m, &k) < 0) {
        free(name);
        if (fresh)
            free_node(s, n);
        return -ENOMEM;
    }
    leave_pools(n);
    free(n->name);
    n->name = name;
    n->total = in->total;
    n->gpus = in->gpus;
    n->total.gpus = (uint32_t)__builtin_popcountll(in->gpus);
    n->usable = in->usable;
    n->held = false;
    n->max_tasks = in->max_tasks ? in->max_tasks : VG_SCHED_NODE_TASKS_MAX;
    enter_pools(s, n, m, k);
    vg_snode_update(s, n);
    resort(s, n);
    vg_sched_dirty_node(s, n);
    return 0;
}

void vg_sched_remove_node(struct vg_sched *s, uint64_t id) {
    struct snode *n = vg_map_get_u64(&s->nodes, id);
    if (!n)
        return;
    vg_list_for_each_safe (i, &n->tasks) {
        struct stask *t = vg_list_entry(i, struct stask, link);
        vg_map_del_u64(&s->tasks, t->id);
        t->pool->running--;
        free(t);
    }
    n->total = (struct vg_res){0};
    for (struct tree_item *i; (i = tree_first(&n->pinned));)
        vg_sched_stray(s, task_of(i));

    leave_pools(n);
    free_node(s, n);
}
