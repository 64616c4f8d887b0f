#pragma once
/* One connection, whoever is at its other end: a client (local, remote or inside a task) or a
   node's agent. Requests are handed to the file that answers them by the table in peer.c. */
#include "control/control.h"
#include "control/who.h"

struct vg_nodelink;

enum vg_peer_kind {
    VG_PEER_NEW,    /* nothing said yet */
    VG_PEER_CLIENT, /* knows who it is */
    VG_PEER_AGENT,
};

struct vg_peer;
/* A peer without a connection: what it asks is handed in (vg_peer_ask), and what it is told comes
   here instead. Neither function may free the peer: whoever made it drops it later, from the loop.
 */
struct vg_peer_sink {
    void (*told)(struct vg_peer *p, const Vg__Pb__Envelope *env, bool more);
    size_t (*queued)(const struct vg_peer *p); /* bytes that nobody has taken yet; NULL: none */
    /* It does not keep up, or has lost its rights: nothing more will come. NULL: does not matter.
     */
    void (*cut)(struct vg_peer *p, enum vg_reason reason, const char *why);
};

struct vg_peer {
    struct vg_control *ctl;
    struct vg_conn *conn;            /* NULL once closed */
    const struct vg_peer_sink *sink; /* instead of conn; NULL once dropped */
    void *sink_user;
    uint64_t serial; /* names it in callbacks that outlive it */
    enum vg_peer_kind kind;
    uint64_t since_usec; /* boot clock */
    bool unix_socket;    /* descriptors can pass, the kernel vouches for `who` */
    uint64_t
        nested_node; /* not 0: a client inside a task of this node; must hold its task's token */
    struct vg_who who;
    struct vg_list follows; /* struct vg_follow.on_peer */
    uint32_t n_follows;
    struct vg_nodelink *agent; /* when it is one */
};

/* What a handler gets. Descriptors it keeps are set to -1. */
struct vg_call {
    struct vg_peer *peer;
    struct vg_control *ctl;
    struct vg_user *user; /* the principal; NULL only for handlers that need none */
    const Vg__Pb__Envelope *env;
    uint32_t req;
    int *fds;
    size_t n_fds;
};

void vg_peer_accept_unix(int fd, void *ctl);
void vg_peer_accept_tls(int fd, void *ctl);
/* A client inside a task of that node: `fd` carries its frames. Takes fd. */
int vg_peer_accept_nested(struct vg_control *c, int fd, uint64_t node);
/* One with a sink. Who it is stays to be settled (vg_who_settle). Takes `who` on success. -EAGAIN:
   too many peers, or the control plane stops. */
int vg_peer_new_inner(struct vg_control *c, const struct vg_peer_sink *sink, void *user,
                      struct vg_who *who, struct vg_peer **ret);
/* Asks as a client would over its connection; answers may come before this returns. The message may
   be changed and parts of it taken: all of its memory must be the heap's. */
void vg_peer_ask(struct vg_peer *p, Vg__Pb__Envelope *env);
/* The same with descriptors, which are taken. */
void vg_peer_ask_fds(struct vg_peer *p, Vg__Pb__Envelope *env, int *fds, size_t n);
/* Forgets everything it waits for. Not from within a sink's function. */
void vg_peer_drop(struct vg_peer *p);
/* Whether somebody still listens; how many bytes wait for him; an end to it. */
static inline bool vg_peer_open(const struct vg_peer *p) {
    return p->conn || p->sink;
}
size_t vg_peer_queued(const struct vg_peer *p);
void vg_peer_cut(struct vg_peer *p, enum vg_reason reason, const char *why);
/* Ends connections that have not said who they are for too long. */
void vg_peers_tick(struct vg_control *c);
/* Whether what the peer came with lets it do that, whoever it is. */
bool vg_peer_may(const struct vg_peer *p, enum vg_act act);
/* Ends the connections of a user (with that token, unless NULL) who has no right to them any more,
   each with a sentence. `but`: one that still waits for an answer; may be NULL. */
void vg_peers_cut(struct vg_control *c, const char *user, const char *key,
                  const struct vg_peer *but);
/* The user has another role or team: connections on which he follows what he may not see any more
   end. Lists of what changes ask for each line and go on. */
void vg_peers_recheck(struct vg_control *c, const struct vg_user *u);
struct vg_peer *vg_peer_find(struct vg_control *c, uint64_t serial); /* NULL: gone */

/* Answers. `env`'s req and more are set here. */
void vg_peer_send(struct vg_peer *p, uint32_t req, bool more, Vg__Pb__Envelope *env);
void vg_peer_ok(struct vg_peer *p, uint32_t req, const char *text);
void vg_peer_error(struct vg_peer *p, uint32_t req, enum vg_reason reason, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
void vg_peer_fail(struct vg_peer *p, uint32_t req, const struct vg_err *err);

/* The principal by name, so that a removed user's connections lose their rights at once. NULL and
   a sentence when there is none any more. */
struct vg_user *vg_peer_user(struct vg_peer *p, struct vg_err *err);

/* Room for the answer that a body case needs. */
#define VG_ENVELOPE(name) Vg__Pb__Envelope name = VG__PB__ENVELOPE__INIT
