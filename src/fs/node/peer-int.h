#pragma once
/* Shared by peer.c (links, threads) and peer-talk.c (what is said on a link). */
#include "fs/node/peer.h"

#include "base/list.h"
#include "mirror/mwire.h"

#include <pthread.h>
#include <stdatomic.h>

#define PEER_ASKS 256u      /* of ours that were not answered in full, per link */
#define PEER_SERVES 64u     /* of theirs that wait for us */
#define PEER_OUT (1u << 20) /* bytes prepared ahead of the socket */

struct peer_ask {
    struct vg_list link;
    uint64_t number;
    vg_peers_have *have; /* NULL: nobody wants to know */
    void *user;
    size_t n, left; /* files; of those announced, still to come */
    bool answered;
    struct vg_peer_file file[];
};

struct peer_serve { /* what they asked and we have */
    struct vg_list link;
    uint64_t ask;
    size_t n, at;
    struct {
        uint32_t index;
        uint64_t size;
        uint8_t id[VG_HASH];
    } file[];
};

struct peer {
    struct vg_list link; /* vg_peers.all */
    struct vg_peers *peers;
    pthread_t thread;
    int fd, wake;
    bool stop, over;      /* under the lock */
    struct vg_list queue; /* asks to be sent; under the lock */
    struct vg_list asks;  /* sent; under the lock */
    size_t n_asks;        /* both; under the lock */
    /* the thread's */
    struct vg_mw_in in;
    struct vg_buf out;
    struct vg_list serves;
    size_t n_serves;
    int serving; /* descriptor of the first serve's current file, or -1 */
    uint64_t serving_off;
    struct peer_ask *taking; /* whose content comes in now, with index and intake; NULL: none */
    uint32_t taking_index;
    struct vg_intake *intake; /* NULL: it is not wanted any more */
};

struct vg_peers {
    struct vg_cache *cache; /* borrowed */
    pthread_mutex_t lock;
    struct vg_list all;
    struct vg_list early; /* asks that came before any peer */
    size_t n_early;
    uint64_t next;
    _Atomic uint64_t files, bytes, served_bytes, asked;
};

/* All on the peer's thread; < 0: the link must be dropped. */
int vg_peer_frame(struct peer *e, const struct vg_mw_frame *f);
int vg_peer_send_ask(struct peer *e, const struct peer_ask *a);
int vg_peer_serve(struct peer *e); /* prepares bytes while there is something to send */
void vg_peer_forget_all(struct peer *e);
