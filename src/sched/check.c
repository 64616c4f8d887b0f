/* The invariants, checked from scratch. Passes over everything; tests call it after each step. */
#include "sched/internal.h"

static const char *check_node(const struct snode *n) {
    uint64_t cpu = 0, mem = 0, gpus = 0;
    uint32_t tasks = 0;
    bool twice = false;
    vg_list_for_each (i, &n->tasks) {
        const struct stask *t = vg_list_entry(i, struct stask, link);
        if (t->place != PLACED || t->node != n)
            return "a node's task knows its node";
        cpu += t->res.cpu_milli;
        mem += t->res.mem_bytes;
        twice |= (gpus & t->gpus) != 0;
        gpus |= t->gpus;
        tasks++;
    }
    if (cpu != n->cpu_used || mem != n->mem_used || gpus != n->gpus_used || tasks != n->n_tasks)
        return "what is used is the sum over the node's tasks";
    if (twice && !n->overlap)
        return "a GPU is held by one task";
    bool open = n->usable && !n->held && n->n_tasks < n->max_tasks;
    for (size_t i = 0; i < n->n_members; i++)
        if (n->member[i].open != open ||
            n->member[i].pool->member[n->member[i].at] != &n->member[i])
            return "a node stands in its pools' trees exactly while it takes tasks";
    return NULL;
}

static bool in_tree(const struct tree_item *x, const struct tree_item *item) {
    return x && (x == item || in_tree(x->left, item) || in_tree(x->right, item));
}

static const char *check_task(const struct stask *t) {
    switch (t->place) {
    case WAITS:
        return in_tree(t->pool->queue.root, &t->item) ? NULL : "a waiting task is in its queue";
    case ASIDE:
        return in_tree(t->pool->aside.root, &t->item) ? NULL : "a task aside is in that tree";
    case PINNED:
        return t->node && t->node->id == t->pin && in_tree(t->node->pinned.root, &t->item)
                   ? NULL
                   : "a pinned task is in its node's queue";
    case ASTRAY:
        return vg_list_empty(&t->link) ? "a task astray is in that list" : NULL;
    case PLACED:
        return t->node ? NULL : "a placed task has a node";
    }
    return "a task is in one place";
}

const char *vg_sched_check(const struct vg_sched *s) {
    size_t waiting = 0;
    vg_map_for_each (i, &s->nodes) {
        const char *bad = check_node(i->value);
        if (bad)
            return bad;
    }
    vg_map_for_each (i, &s->tasks) {
        const struct stask *t = i->value;
        const char *bad = check_task(t);
        if (bad)
            return bad;
        waiting += t->place != PLACED;
    }
    return waiting == s->n_waiting ? NULL : "the number of waiting tasks is right";
}
