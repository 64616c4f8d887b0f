/* Nodes as requests see them when empty: pools, model, labels and size. Equal ones are of one
   class, so that whether a fit belongs is looked up once a class. Pure. */
#include "base/buf.h"
#include "base/cleanup.h"
#include "base/mem.h"
#include "sched/place.h"

#include <string.h>

struct named {
    uint32_t no;
    char name[];
};

uint32_t vg_names_find(const struct names *s, const char *name) {
    const struct named *x = name && *name ? vg_map_get(&s->map, name) : NULL;
    return x ? x->no : 0;
}

uint32_t vg_names_number(struct names *s, const char *name) {
    uint32_t no = vg_names_find(s, name);
    if (no || !name || !*name)
        return no;
    size_t len = strlen(name);
    struct named *x = vg_alloc(sizeof *x + len + 1);
    if (!x)
        return 0;
    memcpy(x->name, name, len + 1);
    x->no = s->n + 1;
    if (vg_map_put(&s->map, x->name, x) < 0) {
        free(x);
        return 0;
    }
    return ++s->n;
}

void vg_names_done(struct names *s) {
    vg_map_for_each (i, &s->map)
        free(i->value);
    vg_map_done(&s->map);
    s->n = 0;
}

/* --- labels --- */

void vg_labels_free(char **l, size_t n) {
    for (size_t i = 0; l && i < n; i++)
        free(l[i]);
    free(l);
}

char **vg_labels_dup(char *const *l, size_t n) {
    char **d = vg_alloc((n + 1) * sizeof *d);
    for (size_t i = 0; d && i < n; i++)
        if (!(d[i] = vg_strdup(l[i]))) {
            vg_labels_free(d, n);
            return NULL;
        }
    return d;
}

static bool has_label(const char *want, char *const *have, size_t n_have) {
    for (size_t i = 0; i < n_have; i++)
        if (strcmp(want, have[i]) == 0)
            return true;
    return false;
}

bool vg_labels_within(char *const *want, size_t n_want, char *const *have, size_t n_have) {
    for (size_t i = 0; i < n_want; i++)
        if (!has_label(want[i], have, n_have))
            return false;
    return true;
}

/* --- classes --- */

static int describe(const struct enode *n, struct vg_buf *b) {
    int r = vg_buf_printf(b, "%llx.%llx.%llx.%llx %d %u %llu '%s'", (unsigned long long)n->pools[0],
                          (unsigned long long)n->pools[1], (unsigned long long)n->pools[2],
                          (unsigned long long)n->pools[3], n->parts, n->total.cpu_milli,
                          (unsigned long long)n->total.mem_bytes, n->model);
    for (uint32_t i = 0; i < n->n_gpus && r == 0; i++)
        r = vg_buf_printf(b, " %llu", (unsigned long long)n->gpu[i].mem);
    for (size_t i = 0; i < n->n_labels && r == 0; i++)
        r = vg_buf_printf(b, " '%s'", n->label[i]);
    return r < 0 ? r : vg_buf_append(b, "", 1);
}

static uint32_t number(struct fit_world *w, const struct enode *n) {
    struct vg_buf b = {0};
    uint32_t no = describe(n, &b) < 0 ? 0 : vg_names_number(&w->classes, (char *)vg_buf_data(&b));
    vg_buf_done(&b);
    return no;
}

static void forget_ranks(struct vg_list *fits) {
    vg_list_for_each (i, fits) {
        struct fit *f = vg_list_entry(i, struct fit, link);
        if (f->rank)
            memset(f->rank, 0, f->n_rank);
    }
}

/* Nodes that change over and over leave classes behind: begin anew when most are of that kind. */
static void sweep(struct vg_eng *e) {
    struct fit_world *w = e->place;
    if (w->classes.n < 1024 + 4 * e->n_nodes)
        return;
    vg_names_done(&w->classes);
    forget_ranks(&e->fits);
    forget_ranks(&w->idle);
    for (size_t i = 0; i < e->n_nodes; i++)
        if (e->node[i]) {
            e->node[i]->class_no = number(w, e->node[i]);
            vg_index_log(e, e->node[i]);
        }
}

void vg_nclass_set(struct vg_eng *e, struct enode *n) {
    sweep(e);
    n->class_no = number(e->place, n);
    e->place->layout++;
    e->order_epoch++; /* who is within a quota may depend on what the nodes have */
}
