#pragma once
/* A node: an agent's machine. Pure data; what is used on it is the scheduler's knowledge
   (vg_eng_node_info).

   joining -> ready <-> draining; any -> lost when its lease has surely run out, and back when it
   reports; any -> quarantined by decision. See node-moves.tbl. */
#include "base/err.h"
#include "conf/conf.h"

enum vg_node_state {
#define NODE_STATE(name, text, takes) VG_NODE_##name,
#include "model/node-states.tbl"
#undef NODE_STATE
    VG_NODE_STATES
};

struct vg_node {
    uint64_t id;
    char *name;               /* owned */
    enum vg_node_state state; /* read only: vg_node_move */
    uint64_t since_usec;      /* of the state, as passed to vg_node_move */
    struct vg_res total;
    uint64_t gpus;                                    /* set of GPU indices */
    bool gpu_parts;                                   /* they are parts of cards (MIG) */
    struct vg_strings labels;                         /* "k=v" */
    char *gpu_model, *version, *address, *machine_id; /* owned; NULL when unknown */
    uint64_t lease_deadline_usec; /* boot clock; after it (and a margin) its tasks surely ended */
    uint64_t seen_usec, joined_usec, cert_expires_usec; /* wall */
};

struct vg_node *vg_node_new(uint64_t id, const char *name); /* joining; NULL: no memory */
void vg_node_free(struct vg_node *n);

const char *vg_node_state_name(enum vg_node_state s);
int vg_node_state_parse(const char *s, enum vg_node_state *ret); /* -EINVAL */
bool vg_node_state_takes(enum vg_node_state s);                  /* new tasks may go there */
bool vg_node_may_move(enum vg_node_state from, enum vg_node_state to);
int vg_node_move(struct vg_node *n, enum vg_node_state to, uint64_t now_usec); /* 0 or -EINVAL */

/* A heartbeat was answered: the node may run tasks until now + lease; we call it lost a tenth of
   the lease later. */
void vg_node_renew(struct vg_node *n, uint64_t now_usec, uint64_t lease_usec);
bool vg_node_lease_over(const struct vg_node *n, uint64_t now_usec, uint64_t lease_usec);
/* Replaces the labels by copies. 0 or -ENOMEM (then unchanged). */
int vg_node_set_labels(struct vg_node *n, char *const *labels, size_t count);
/* Whether the node belongs to the pool: by its labels and its GPUs' model. */
bool vg_node_in_pool(const struct vg_node *n, const struct vg_pool_conf *pool);
