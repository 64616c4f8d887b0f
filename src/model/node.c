/* A node's life: tables, and the one function that moves. Pure. */
#include "model/node.h"

#include "base/cleanup.h"
#include "base/mem.h"
#include "model/moves.h"

#include <string.h>

static const struct {
    const char *name;
    bool takes;
} states[] = {
#define NODE_STATE(name, text, takes) [VG_NODE_##name] = {text, takes},
#include "model/node-states.tbl"
#undef NODE_STATE
};

static const struct vg_move moves[] = {
#define NODE_MOVE(from, to) {VG_NODE_##from, VG_NODE_##to},
#include "model/node-moves.tbl"
#undef NODE_MOVE
};

struct vg_node *vg_node_new(uint64_t id, const char *name) {
    struct vg_node *n = vg_alloc(sizeof *n);
    if (!n)
        return NULL;
    n->id = id;
    n->name = vg_strdup(name);
    if (!n->name) {
        free(n);
        return NULL;
    }
    return n;
}

static void free_labels(struct vg_strings *l) {
    for (size_t i = 0; i < l->n; i++)
        free(l->item[i]);
    free(l->item);
}

void vg_node_free(struct vg_node *n) {
    if (!n)
        return;
    free_labels(&n->labels);
    free(n->name);
    free(n->gpu_model);
    free(n->version);
    free(n->address);
    free(n->machine_id);
    free(n);
}

const char *vg_node_state_name(enum vg_node_state s) {
    return (unsigned)s < VG_COUNT(states) ? states[s].name : "?";
}

int vg_node_state_parse(const char *s, enum vg_node_state *ret) {
    for (unsigned i = 0; i < VG_COUNT(states); i++)
        if (strcmp(s, states[i].name) == 0) {
            *ret = i;
            return 0;
        }
    return -EINVAL;
}

bool vg_node_state_takes(enum vg_node_state s) {
    return (unsigned)s < VG_COUNT(states) && states[s].takes;
}

bool vg_node_may_move(enum vg_node_state from, enum vg_node_state to) {
    return vg_moves_allow(moves, VG_COUNT(moves), from, to);
}

int vg_node_move(struct vg_node *n, enum vg_node_state to, uint64_t now_usec) {
    if (!vg_node_may_move(n->state, to))
        return -EINVAL;
    n->state = to;
    n->since_usec = now_usec;
    return 0;
}

void vg_node_renew(struct vg_node *n, uint64_t now_usec, uint64_t lease_usec) {
    n->lease_deadline_usec = now_usec + lease_usec;
}

bool vg_node_lease_over(const struct vg_node *n, uint64_t now_usec, uint64_t lease_usec) {
    return now_usec > n->lease_deadline_usec + lease_usec / 10;
}

int vg_node_set_labels(struct vg_node *n, char *const *labels, size_t count) {
    struct vg_strings l = {.item = vg_alloc(count * sizeof *l.item), .cap = count};
    if (!l.item)
        return -ENOMEM;
    for (; l.n < count; l.n++)
        if (!(l.item[l.n] = vg_strdup(labels[l.n]))) {
            free_labels(&l);
            return -ENOMEM;
        }
    free_labels(&n->labels);
    n->labels = l;
    return 0;
}

bool vg_node_in_pool(const struct vg_node *n, const struct vg_pool_conf *pool) {
    bool model = pool->model.n == 0;
    for (size_t i = 0; !model && i < pool->model.n; i++)
        model = n->gpu_model &&
                vg_conf_model_is(n->gpu_model, pool->model.item[i], strlen(pool->model.item[i]));
    return model && vg_conf_labels_match(&pool->nodes, n->labels.item, n->labels.n);
}
