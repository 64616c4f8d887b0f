/* What tasks used of a project, in order of first use: folders whose record was needed, files that
   were opened, leaves that were read. A task sees the list from its own beginning on; tasks that
   run at once see each other's uses. With the lock held, but for the calls of machine.h. */
#include "fs/node/proj-int.h"

#include "base/mem.h"

#include <errno.h>
#include <string.h>

#define USES_MAX (1u << 20)
#define ITEMS_MAX 20000u  /* with the environment's, a message is at most 1 MiB */
#define LEAVES_MAX 60000u /* 15 GiB */

static void add(struct vg_proj *p, const struct pnode *n, uint32_t leaf) {
    uint64_t object = proj_object(n);
    if (!object || p->n_uses >= USES_MAX)
        return; /* made here; or a hint too many */
    struct puse *grown = vg_grow(p->uses, &p->cap_uses, p->n_uses + 1, sizeof(*p->uses));
    if (!grown)
        return;
    p->uses = grown;
    p->uses[p->n_uses++] = (struct puse){.object = object, .leaf = leaf};
}

void proj_use(struct vg_proj *p, struct pnode *n) {
    if (vg_map_len(&p->tracing) == 0 || n->used_gen == p->trace_gen)
        return;
    n->used_gen = p->trace_gen;
    add(p, n, UINT32_MAX);
}

void proj_use_data(struct pnode *n, uint64_t off, uint64_t end) {
    struct vg_proj *p = n->p;
    struct pfile *f = n->file;
    uint64_t leaves = vg_leaves(n->cst.size);
    if (vg_map_len(&p->tracing) == 0 || !n->at_client || off >= end || off / VG_LEAF >= leaves)
        return;
    proj_use(p, n);
    if (!f->used || f->n_used != leaves || f->used_gen != p->trace_gen) {
        free(f->used);
        f->used = vg_alloc(leaves / 8 + 1);
        f->n_used = leaves;
        f->used_gen = p->trace_gen;
    }
    for (uint64_t i = off / VG_LEAF; f->used && i <= (end - 1) / VG_LEAF && i < leaves; i++) {
        if (f->used[i / 8] >> (i % 8) & 1)
            continue;
        f->used[i / 8] = (uint8_t)(f->used[i / 8] | 1u << (i % 8));
        add(p, n, (uint32_t)VG_MIN(i, (uint64_t)UINT32_MAX - 1));
    }
}

void proj_trace_lost(struct vg_proj *p) {
    vg_map_for_each (s, &p->tracing)
        s->value = (void *)(uintptr_t)2;
    p->n_uses = 0;
    p->trace_gen++;
    p->traced_before = true;
}

int vg_proj_trace_begin(struct vg_proj *p, uint64_t task) {
    pthread_mutex_lock(&p->lock);
    /* Neither NULL nor VG_MAP_GONE; the lowest bit: everything that is used will be seen. */
    uintptr_t from = (p->n_uses + 1) * 2 + !p->traced_before;
    int r = vg_map_put_u64(&p->tracing, task, (void *)from);
    if (r == 0) {
        p->traced_before = true;
        p->trace_gen++;
    }
    pthread_mutex_unlock(&p->lock);
    return r;
}

static Vg__Mr__Used *item_of(Vg__Mr__Trace *out, struct vg_map *seen, uint64_t object) {
    Vg__Mr__Used *u = vg_map_get_u64(seen, object);
    if (u || vg_map_len(seen) >= ITEMS_MAX)
        return u;
    Vg__Mr__Used **grown = realloc(out->used, (out->n_used + 1) * sizeof(*grown));
    if (grown)
        out->used = grown;
    if (!grown || !(u = malloc(sizeof(*u))))
        return NULL;
    vg__mr__used__init(u);
    u->has_object = true;
    u->object = object;
    if (vg_map_put_u64(seen, object, u) < 0) {
        free(u);
        return NULL;
    }
    out->used[out->n_used++] = u;
    return u;
}

static void fold(const struct vg_proj *p, size_t from, Vg__Mr__Trace *out) {
    struct vg_map seen = {0};
    unsigned leaves = 0;
    for (size_t i = from; i < p->n_uses; i++) {
        Vg__Mr__Used *u = item_of(out, &seen, p->uses[i].object);
        if (!u || p->uses[i].leaf == UINT32_MAX || leaves++ >= LEAVES_MAX)
            continue;
        uint32_t *grown = realloc(u->leaf, (u->n_leaf + 1) * sizeof(*u->leaf));
        if (!grown)
            continue;
        u->leaf = grown;
        u->leaf[u->n_leaf++] = p->uses[i].leaf;
    }
    vg_map_done(&seen);
}

void vg_proj_trace_end(struct vg_proj *p, uint64_t task, Vg__Mr__Trace *out) {
    pthread_mutex_lock(&p->lock);
    uintptr_t mark = (uintptr_t)vg_map_del_u64(&p->tracing, task);
    if (mark)
        fold(p, mark / 2 - 1, out);
    if (!(mark & 1))
        out->whole = false;
    if (vg_map_len(&p->tracing) == 0)
        p->n_uses = 0;
    pthread_mutex_unlock(&p->lock);
}
