#pragma once
/* Nodes and the sessions of their agents: hello, leases, reports, orders. */
#include "control/control.h"
#include "model/node.h"

struct vg_call;
struct vg_job;
struct vg_node_gpu;
struct vg_peer;

struct vg_nodelink {
    struct vg_control *ctl;
    struct vg_node *node; /* owned */
    struct vg_peer *peer; /* NULL: not connected */
    bool local;           /* same machine, by unix socket: descriptors may pass */
    bool reported;        /* has told its tasks since we started */
    bool alive_before;    /* may hold tasks of our earlier life */
    bool kept;            /* the store is sure to remember that it may hold tasks */
    uint32_t keeping;     /* not 0: the store is being told; which time */
    uint32_t keep_times;
    bool drain;          /* an administrator's wish */
    bool is_unfit;       /* by its own word; */
    char *unfit;         /* owned; why, or NULL */
    bool refuses;        /* it said it is going down or has no lease: until it says otherwise */
    bool log_rounds;     /* it can be asked for output again */
    char boot_id[40];    /* of its last greeting, */
    uint64_t hello_usec; /* which it sent then, by its own clock */
    uint16_t direct_port;
    uint8_t fingerprint[VG_FINGERPRINT]; /* of its stream port's certificate */
    bool has_fingerprint;
    struct vg_track *track;  /* owned; what it used over time (series.c); NULL: nothing was told */
    struct vg_node_gpu *gpu; /* owned; by index, VG_NODE_GPUS_MAX; NULL: nothing is known */
};

struct vg_nodelink *vg_nodelink_get(struct vg_control *c, uint64_t node);
/* What is sent to it now can arrive. Its connection may be there and ending. `a` may be NULL. */
bool vg_nodelink_hears(const struct vg_nodelink *a);
/* By id, unique prefix or name; err is a sentence. */
struct vg_nodelink *vg_nodelink_find(struct vg_control *c, const char *ref, struct vg_err *err);
/* What a node is called that would like to be called `want`: no two have one name, and whoever
   comes second gets its id behind it. `out` has VG_CONF_NAME_MAX + 1 bytes. */
void vg_node_call(struct vg_control *c, uint64_t id, const char *want, char *out);
struct vg_nodelink *vg_nodelink_new(struct vg_control *c, uint64_t id, const char *name);
void vg_nodelink_free(struct vg_nodelink *a);
const char *vg_nodelink_name(struct vg_control *c, uint64_t node); /* "" when unknown */

/* host:port of its stream port; false: it has none that can be reached. */
bool vg_nodelink_direct(const struct vg_nodelink *a, char *out, size_t n);
/* Tells the scheduler and the store what became of it. */
void vg_nodelink_update(struct vg_nodelink *a);
/* The connection is gone. */
void vg_nodelink_disconnected(struct vg_nodelink *a);
/* Leases that ran out; once a second. */
void vg_nodelinks_tick(struct vg_control *c);
/* Whether everything that may still run somewhere is known; lets held tasks go when it is so. */
void vg_nodelinks_settle(struct vg_control *c);

/* Orders. They do nothing when the node is not connected: its next report brings them up again. */
void vg_nodelink_kill(struct vg_control *c, uint64_t node, uint64_t task, uint32_t attempt,
                      uint32_t signal, uint64_t grace_usec, const char *text);
void vg_nodelink_share(struct vg_control *c, const struct vg_task *t); /* as it is now */
void vg_nodelink_exit_ack(struct vg_control *c, uint64_t node, uint64_t task, uint32_t attempt);
