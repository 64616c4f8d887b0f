/* What tasks used: one list in order of first use, which every running task sees from its own
   beginning. A thing is listed again when a task began since it was listed last. Tasks that run at
   once see each other's uses: a trace may name too much, never too little. */
#include "base/cleanup.h"
#include "base/mem.h"
#include "fs/node/env-int.h"

#include <errno.h>
#include <string.h>

#define USES_MAX (1u << 20)
#define ITEMS_MAX 40000u /* a message is at most 1 MiB */
#define TURNS_MAX 20000u /* of these, before files that take turns are named once again */

static void add(struct vg_env *e, const struct env_node *n, uint32_t leaf) {
    struct env_use *grown = e->n_uses < USES_MAX
                                ? vg_grow(e->uses, &e->cap_uses, e->n_uses + 1, sizeof(*e->uses))
                                : NULL;
    if (!grown)
        return; /* a trace is a hint */
    e->uses = grown;
    e->uses[e->n_uses++] = (struct env_use){.object = n->object, .leaf = leaf, .epoch = n->epoch};
}

void vg_env_use(struct vg_env *e, struct env_node *n) {
    if (vg_list_empty(&e->tasks) || n->used_gen == e->trace_gen)
        return;
    n->used_gen = e->trace_gen;
    add(e, n, UINT32_MAX);
}

void vg_env_use_leaf(struct vg_env *e, struct env_node *n, uint64_t first, uint64_t last) {
    struct env_file *f = n->file;
    uint64_t leaves = vg_leaves(n->st.size);
    if (vg_list_empty(&e->tasks) || !f)
        return;
    vg_env_use(e, n);
    if (!f->used && !(f->used = vg_alloc(leaves / 8 + 1)))
        return;
    if (f->used_gen != e->trace_gen)
        memset(f->used, 0, leaves / 8 + 1);
    f->used_gen = e->trace_gen;
    for (uint64_t i = first; i <= last && i < leaves && i < UINT32_MAX; i++)
        if (!(f->used[i / 8] >> (i % 8) & 1)) {
            f->used[i / 8] = (uint8_t)(f->used[i / 8] | 1u << (i % 8));
            add(e, n, (uint32_t)i);
        }
}

int vg_env_trace_begin(struct vg_env *e, uint64_t task) {
    struct env_task *t = vg_alloc(sizeof(*t));
    if (!t)
        return -ENOMEM;
    pthread_mutex_lock(&e->lock);
    *t = (struct env_task){.task = task, .from = e->n_uses, .whole = !e->traced_before};
    e->traced_before = true;
    e->trace_gen++;
    vg_list_push_back(&e->tasks, &t->link);
    pthread_mutex_unlock(&e->lock);
    return 0;
}

static Vg__Mr__Used *new_item(Vg__Mr__Trace *out, struct vg_map *last, uint64_t object) {
    Vg__Mr__Used *u = out->n_used < ITEMS_MAX ? malloc(sizeof(*u)) : NULL;
    if (!u)
        return NULL;
    vg__mr__used__init(u);
    u->has_object = true;
    u->object = object;
    if (vg_map_put_u64(last, object, u) < 0) {
        free(u);
        return NULL;
    }
    out->used[out->n_used++] = u;
    return u;
}

/* Where a leaf goes: an item has its leaves in order, and another one begins when they jump back or
   something else came in between, so that they can be pushed as they will be needed. */
static Vg__Mr__Used *item_for(Vg__Mr__Trace *out, struct vg_map *last, const struct env_use *use) {
    Vg__Mr__Used *u = vg_map_get_u64(last, use->object);
    bool goes_on =
        u && u == out->used[out->n_used - 1] && (!u->n_leaf || u->leaf[u->n_leaf - 1] < use->leaf);
    if (u && (goes_on || use->leaf == UINT32_MAX || out->n_used >= TURNS_MAX))
        return u;
    return new_item(out, last, use->object);
}

static int fold(struct vg_env *e, const struct env_task *t, Vg__Mr__Trace *out) {
    struct vg_map last = {0}; /* object to its last item */
    size_t n = e->n_uses - t->from;
    int r = 0;
    out->used = calloc(VG_MIN(n, ITEMS_MAX) + 1, sizeof(*out->used));
    for (size_t i = t->from; out->used && i < e->n_uses; i++) {
        const struct env_use *use = &e->uses[i];
        if (use->epoch != e->epoch) /* a number of another service */
            continue;
        Vg__Mr__Used *u = item_for(out, &last, use);
        if (!u || use->leaf == UINT32_MAX)
            continue;
        uint32_t *grown = realloc(u->leaf, (u->n_leaf + 1) * sizeof(*u->leaf));
        if (!grown)
            continue;
        u->leaf = grown;
        u->leaf[u->n_leaf++] = use->leaf;
    }
    if (!out->used)
        r = -ENOMEM;
    vg_map_done(&last);
    return r;
}

int vg_env_trace_end(struct vg_env *e, uint64_t task, Vg__Mr__Trace **ret) {
    Vg__Mr__Trace *out = malloc(sizeof(*out));
    struct env_task *t = NULL;
    if (!out)
        return -ENOMEM;
    vg__mr__trace__init(out);
    pthread_mutex_lock(&e->lock);
    vg_list_for_each (it, &e->tasks)
        if (vg_list_entry(it, struct env_task, link)->task == task)
            t = vg_list_entry(it, struct env_task, link);
    int r = t ? fold(e, t, out) : -ENOENT;
    if (t) {
        out->has_task = out->has_whole = true;
        out->task = task;
        out->whole = t->whole;
        vg_list_remove(&t->link);
        free(t);
        if (vg_list_empty(&e->tasks))
            e->n_uses = 0;
    }
    pthread_mutex_unlock(&e->lock);
    if (r < 0)
        vg__mr__trace__free_unpacked(out, NULL);
    else
        *ret = out;
    return r;
}
